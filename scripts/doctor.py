"""Say what this machine has and lacks, and what to do about it; or what a model from elsewhere changed.

Without words the machine is examined; exit code 1 when something must be mended. With `model BASE CHECKPOINT`
a finetune is compared with its base, tensor by tensor: python -m scripts doctor model --help lists the options;
exit code 1 when the verdict is bad, that is when the base languages, the new rows or the tokenizer cannot work, and
nothing was restored.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core import machine_check
from core.jobs.state import JobState
from scripts import command
from scripts.command import exit_with, script_parser

_BAD = ("a bad finding with nothing restored (the base languages, the new rows or the tokenizer cannot work), "
        "or without `model` a problem of this machine")


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine a model where one is named, else the machine; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return command.run_verb("doctor", words, grade=grade, graded=_BAD) if "model" in words else machine(words)


def grade(state: JobState) -> int:
    """1 for a checkpoint whose verdict is bad, unless it was restored as asked."""
    result = state.result or {}
    return 1 if result.get("assessment") == "bad" and "ref" not in result else 0


def machine(arguments: Sequence[str]) -> int:
    """Make every check and print a row for each; the exit code."""
    parser = script_parser("doctor", __doc__, "end with all rows as one line of JSON")
    parser.add_argument("--port", type=int, default=7860, help="that is to be free; 0: none (default: %(default)s)")
    parser.add_argument("--hub-model", action="append", default=[], metavar="OWNER/NAME",
                        help="a repository of the hub that the token must open; several are allowed")
    parser.add_argument("--start", action="store_true", help="only what the app checks when it starts")
    args = parser.parse_args(arguments)

    # Each row is printed at once, as some checks take seconds.
    checks = []
    for check in machine_check.check_start(Path(args.workspace)) if args.start else machine_check.check_machine(
            Path(args.workspace), port=args.port, hub_models=args.hub_model):
        checks.append(check)
        print(f"{check.result:4}  {check.name:14}  {check.found}", flush=True)
        if check.hint:
            print(f"{'':22}-> {check.hint}")

    if args.json:
        rows = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"status": "failed" if machine_check.failed(checks) else "ok", "checks": rows},
                         ensure_ascii=False))
    return 1 if machine_check.failed(checks) else 0


if __name__ == "__main__":
    exit_with(main)
