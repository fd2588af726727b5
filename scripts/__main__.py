"""The commands of Lisan by task, with an example each: `python -m scripts`."""

from __future__ import annotations

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core.jobs.verbs import VERBS
from scripts.command import DONE, exit_with

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


def main() -> int:
    """Print the commands; the exit code."""
    print("Each command has --help. Jobs appear on the page too (python app.py).")
    for tab, task in TASKS.items():
        print(f"\n{task}")
        rows = [(verb.title, name, verb.example) for name, verb in VERBS.items() if verb.tab == tab]
        rows += [(title, name, example) for name, (title, example) in OTHERS.get(tab, {}).items()]
        for title, name, example in rows:
            print(f"  {title:32}  python -m scripts.{name} {example}".rstrip())
    return DONE


if __name__ == "__main__":
    exit_with(main)
