"""Measure how fast Chatterbox is here, on made-up weights of the published sizes: python -m scripts.benchmark

Writes benchmark.json and benchmark.md. With --against-reference the published package, in an
environment of its own (`make reference`), is measured in turns with ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch

from config.errors import UserError
from core import compute
from core.workspace import Workspace
from scripts.benchmark import extraction, machine, options, s3gen, t3, table, training
from scripts.benchmark.bench import Bench
from scripts.benchmark.extent import FULL, QUICK
from scripts.benchmark.reference import Reference
from scripts.benchmark.rows import Found
from scripts.exit_codes import USAGE_ERROR, exit_with

PARTS: dict[str, Callable[[Bench], Found]] = {
    part.PART: part.measure for part in (t3, s3gen, training, options, extraction)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print; 2 when it cannot, and 0 whatever was aimed at."""
    asked = _parser().parse_args(arguments)
    try:
        return run(asked, ["python", "-m", "scripts.benchmark", *(sys.argv[1:] if arguments is None else arguments)])
    except UserError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        return USAGE_ERROR


def run(asked: argparse.Namespace, command: Sequence[str]) -> int:
    """Measure the parts that were asked for."""
    device = compute.prepare(asked.device)
    torch.use_deterministic_algorithms(False)  # speaking and training differ in it; speed is what is asked
    folder = Path(asked.out) if asked.out else Workspace.open(asked.workspace).path / "benchmark"
    folder.mkdir(parents=True, exist_ok=True)
    where, extent = machine.describe(device), QUICK if asked.quick else FULL
    if asked.repeats:
        extent = replace(extent, repeats=asked.repeats)
    settings = {"command": " ".join(command), "date": datetime.now().date().isoformat(),
                "extent": "quick" if asked.quick else "full"}
    found = Found()
    with ExitStack() as stack:
        reference = None
        if asked.against_reference:
            opened = Reference(torch.get_num_threads(), device.type, folder / "reference.log")
            reference = stack.enter_context(opened)
        bench = Bench(extent, device, reference, lambda text: print(text, file=sys.stderr, flush=True))
        for name in asked.only:
            made = PARTS[name](bench)
            found = Found(found.rows + made.rows, found.costs + made.costs)
            bench.tidy()
            for file, text in (("benchmark.json", table.as_json(where, settings, found)),
                               ("benchmark.md", table.as_markdown(where, settings, found))):
                (folder / file).write_text(text, encoding="utf-8")  # after each part, should the next be cut off
    print(table.as_markdown(where, settings, found))
    print(f"Written: {folder / 'benchmark.json'} and {folder / 'benchmark.md'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.benchmark", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", default="workspace", help="folder of all artefacts (default: %(default)s)")
    parser.add_argument("--out", metavar="FOLDER", help="where to write (default: benchmark/ in the workspace)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    parser.add_argument("--only", type=_parts, default=tuple(PARTS), metavar="PART,...",
                        help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--repeats", type=int, help="measurements of each speed, training apart (default: 5)")
    parser.add_argument("--quick", action="store_true", help="narrow models, few repeats: tries the benchmark itself")
    parser.add_argument("--against-reference", action="store_true",
                        help="also measure the published package, in the environment that `make reference` makes")
    return parser


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    exit_with(main)
