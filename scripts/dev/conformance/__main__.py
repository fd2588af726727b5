"""Compare a family's models with stored outputs of its reference: python -m scripts.dev.conformance chatterbox DIR"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from config.errors import UserError
from scripts.command import USAGE_ERROR, exit_with
from scripts.dev.conformance import chatterbox, indextts2
from scripts.dev.conformance.comparison import show

FAMILIES = {"chatterbox": chatterbox.compare, "indextts2": indextts2.compare}


def main(arguments: list[str] | None = None) -> int:
    """Print the table; 1 when any output is out of its bound, 2 when there is nothing to compare."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.conformance", description=__doc__)
    parser.add_argument("family", choices=sorted(FAMILIES), help="model family")
    parser.add_argument("folder", type=Path, help="folder with the reference's inputs and outputs")
    args = parser.parse_args(arguments)
    try:
        rows = FAMILIES[args.family](args.folder)
    except UserError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        return USAGE_ERROR
    print(show(rows))
    failed = sum(not row.passed for row in rows)
    print(f"\n{len(rows) - failed} of {len(rows)} passed.")
    return 1 if failed else 0


if __name__ == "__main__":
    exit_with(main)
