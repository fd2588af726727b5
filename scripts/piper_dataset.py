"""Synthesize a dataset to train a voice for Piper; also `python -m scripts.export --piper-dataset`."""

from scripts.command import run_script

if __name__ == "__main__":
    run_script("piper_dataset")
