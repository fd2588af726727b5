"""The commands of Lisan: `python -m scripts COMMAND ...` runs one, `python -m scripts` lists all by task."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core.jobs.verbs import VERBS
from scripts.command import DONE, USAGE_ERROR, exit_with, run_verb

TASKS = {
    "model": "Get a base model", "data": "Bring recordings", "tokenizer": "Build the vocabulary",
    "embeddings": "Extend the model", "train": "Train", "listen": "Listen and measure",
    "share": "Export and publish", "doctor": "Find faults", "storage": "Store and move",
}
"""Titles by the tab of the page."""
OTHERS = {
    "data": {"review": ("Review a dataset", "my-voice"), "rules": ("Text rules", "--help")},
    "train": {"import_config": ("Settings of another program", "training_config.yaml --output preset.yaml"),
              "pin_checkpoint": ("Keep a checkpoint under a name", "first 400 before-the-new-clips"),
              "demo": ("Everything, with the demo data", "")},
    "share": {"signature": ("Sign an export as its maker", "sign export:my-voice --key ~/.ssh/id_ed25519")},
    "doctor": {"doctor": ("What this machine has and lacks", ""), "jobs": ("List, stop and rename jobs", "list")},
    "storage": {"storage": ("Sizes, deletion and the bin", "list")},
}
"""Commands that are no jobs: title and example."""
_NO_COMMANDS = {"command", "scripts", "suggestions", "verb"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that is named, else list the commands; the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and not words[0].startswith("-"):
        return run_command(words[0], words[1:])
    if words and words[0] not in ("-h", "--help"):
        sys.stderr.write(f"{words[0]!r} comes before the command.\n"
                         "Name the command first: python -m scripts COMMAND ...\n")
        return USAGE_ERROR

    print("Each command has --help. Jobs appear on the page too (python app.py).")
    for tab, task in TASKS.items():
        print(f"\n{task}")
        rows = [(verb.title, name, verb.example) for name, verb in VERBS.items() if verb.tab == tab]
        rows += [(title, name, example) for name, (title, example) in OTHERS.get(tab, {}).items()]
        for title, name, example in rows:
            print(f"  {title:32}  python -m scripts {name} {example}".rstrip())
    return DONE


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run the command `name`; the exit code. One that does more than its verb has a module of its name here."""
    modules = {path.stem: path for path in Path(__file__).parent.glob("[!_]*.py") if path.stem not in _NO_COMMANDS}
    if name in modules:
        sys.argv = [f"scripts {name}", *arguments]
        runpy.run_path(str(modules[name]), run_name="__main__")
        return DONE
    if name in VERBS:
        return run_verb(name, arguments)
    near = get_close_matches(name.replace("-", "_"), [*VERBS, *modules], 1)
    remark = f"Perhaps {near[0]} is meant. " if near else ""
    sys.stderr.write(f"There is no command {name!r}.\n{remark}All commands: python -m scripts\n")
    return USAGE_ERROR


if __name__ == "__main__":
    exit_with(main)
