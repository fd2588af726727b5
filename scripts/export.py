"""Write a finetuned model for others to load, with its certificate; or, for Piper, a dataset that it speaks."""

import sys

from scripts.command import exit_with, run_verb

_PIPER = "--piper-dataset"


def main() -> int:
    """`export`, or `piper_dataset` with all other arguments if `--piper-dataset` is among them."""
    if _PIPER in sys.argv[1:]:
        return run_verb("piper_dataset", [argument for argument in sys.argv[1:] if argument != _PIPER])
    return run_verb("export", more="--piper-dataset export:NAME makes a dataset to train a voice for Piper instead; "
                                   "its options: python -m scripts piper_dataset --help.")


if __name__ == "__main__":
    exit_with(main)
