"""Compute the certificate of a run or an export (`--run`), or compare it with its files (`--check`).

`--run run:ID@STEP` chooses that checkpoint, and certifies it. `--check run:ID` or `--check export:NAME` reads files
only: it starts no job and loads no model.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from core.library import verification
from core.library.verification import Outcome
from core.workspace import Workspace
from scripts.command import exit_with, run_in_workspace, run_verb, script_parser

_CHECK = "--check"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, or compute; the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if any(argument.partition("=")[0] == _CHECK for argument in words):
        # The comparison with the files is no job, so it has a parser of its own.
        parser = script_parser("certify", "Compare the certificate of a run or an export with its files.",
                               "print the outcome as one line of JSON")
        parser.add_argument(_CHECK, required=True, metavar="REFERENCE", help="run:ID, run:ID@STEP or export:NAME")
        return run_in_workspace(parser, words, check)
    return run_verb("certify", words)


def check(workspace: Workspace, args: argparse.Namespace) -> int:
    """Print what the certificate says of the files that are there now; every file is read."""

    result = verification.verify(workspace, args.check)
    proof = result.proof
    if args.json:
        print(json.dumps({
            "status": "ok" if result.outcome is Outcome.PASSED else "failed", "item": result.reference,
            "certificate": result.outcome.value, "reason": result.reason, "files": len(proof.files),
            "checks": {item.name: item.result for item in proof.checks}}, ensure_ascii=False))
    else:
        print(result.describe())
        if result.outcome is Outcome.PASSED:
            names = ", ".join(item.name for item in proof.checks if item.result == "not proven")
            unproven = f"; not proven: {names}" if names else ""
            print(f"{len(proof.files)} files have the sizes and hashes that it lists; {len(proof.checks)} checks, "
                  f"none failed{unproven}. {proof.describe()}")
            if proof.base_note:
                print(f"{proof.base_note[0].upper()}{proof.base_note[1:]}.")
            if proof.trained_elsewhere:
                print("It was trained elsewhere: what its trainer reported is its sender's word.")
        else:
            print(result.hint)
    return 0 if result.outcome is Outcome.PASSED else 1


if __name__ == "__main__":
    exit_with(main)
