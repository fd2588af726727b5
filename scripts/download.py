"""Get a base model into the workspace."""

from __future__ import annotations

from collections.abc import Sequence

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core.jobs.state import JobState
from scripts import command
from scripts.command import exit_with


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb; the exit code."""
    return command.run_verb("download", arguments, grade=grade, graded="a model that the probe found broken")


def grade(state: JobState) -> int:
    """1 for a model that is in the workspace and cannot speak."""
    return 1 if (state.result or {}).get("probe_outcome") == "broken" else 0


if __name__ == "__main__":
    exit_with(main)
