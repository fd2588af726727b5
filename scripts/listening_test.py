"""Make a listening test from an evaluation; import the answers of listeners; show the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config import foreign
from core.jobs.reporter import pluralize
from core.library import listening
from core.library.evaluation_report import listening_tables
from core.workspace import Workspace
from scripts.command import exit_with, run_in_workspace, run_verb, script_parser

_IMPORT = "import answers that listeners sent; those that are there already are not added again"
_RESULTS = "print the results of an evaluation's listening tests, and write them into its report"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    # Two words are actions of this script; all else makes a test.
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] not in (["import"], ["results"]):
        return run_verb("listening_test", words, more=f"Also: `import FILE...` ({_IMPORT}) and `results EVALUATION` "
                                                      f"({_RESULTS}).")
    part, part_words = words[0], words[1:]
    parser = script_parser(f"listening_test {part}", _IMPORT if part == "import" else _RESULTS,
                           "end with the outcome as one line of JSON")
    if part == "import":
        parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON files that the test page saved")
    else:
        parser.add_argument("evaluation", help="job of the evaluation")
    return run_in_workspace(parser, part_words, _import if part == "import" else _results)


def _import(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any]:
    evaluations, added = list[str](), 0
    for path in args.files:
        with foreign.reading(path, "Give a JSON file that the test page saved."):
            added_answers = listening.add_answers(workspace, foreign.read_bytes(path, listening.FILE_BYTES), path)
        print(f"{path}: {pluralize(added_answers.answers, 'new answer')} to {added_answers.folder.name}.")
        added += added_answers.answers
        evaluations.append(added_answers.test.evaluation)

    results: list[dict[str, Any]] = []
    for name in dict.fromkeys(evaluations):
        results += _show(workspace, name)
    return {"added": added, "results": results}


def _results(workspace: Workspace, args: argparse.Namespace) -> dict[str, Any]:
    return {"results": _show(workspace, workspace.run(args.evaluation).name)}


def _show(workspace: Workspace, evaluation: str) -> list[dict[str, Any]]:
    """Print the results of one evaluation, after its report has them."""
    results = listening.update_report(workspace, evaluation)
    if not results:
        print(f"The listening tests of {evaluation} have no answers.")
    for result in results:
        print(f"{result.test}: {result.about}")
        for title, head, rows in listening_tables(result):
            print(f"\n{title}")
            # Columns are as wide as their longest cell.
            widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
            for row in (head, *rows):
                print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return [asdict(result) for result in results]


if __name__ == "__main__":
    exit_with(main)
