"""Measure the speed of Chatterbox and IndexTTS2 with random weights: python -m scripts.dev.benchmark

Sizes are the published ones. Writes benchmark.json and benchmark.md. With --against-reference the published packages,
in a separate environment (`make reference`), are measured interleaved with ours.
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
from scripts.command import USAGE_ERROR, exit_with
from scripts.dev.benchmark import (
    builtin,
    certificate,
    extraction,
    gpt,
    machine,
    options,
    results,
    s2mel,
    s3gen,
    t3,
    training,
)
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.reference import PublishedPackage
from scripts.dev.benchmark.results import PUBLISHED, BenchmarkResults, BenchmarkRow
from scripts.dev.benchmark.sizes import FULL, QUICK

PARTS: dict[str, Callable[[Bench], BenchmarkResults]] = {
    part.PART: part.measure for part in (t3, s3gen, gpt, s2mel, training, options, extraction, certificate, builtin)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write and print; exit code 2 for wrong arguments, else 0 whether targets were met or not."""
    args = _parser().parse_args(arguments)
    try:
        return run(args, ["python", "-m", "scripts.dev.benchmark",
                           *(sys.argv[1:] if arguments is None else arguments)])
    except UserError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        return USAGE_ERROR


def run(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Measure the chosen parts."""
    device = compute.setup_device(args.device)
    folder = Path(args.out) if args.out else Workspace.open(args.workspace).path / "benchmark"

    folder.mkdir(parents=True, exist_ok=True)
    machine_now, sizes = machine.describe(device), QUICK if args.quick else FULL

    if args.repeats:
        sizes = replace(sizes, repeats=args.repeats)
    settings = {"command": " ".join(command), "date": datetime.now().date().isoformat(),
                "sizes": "quick" if args.quick else "full"}
    all_results, partial = BenchmarkResults(), list[BenchmarkRow]()

    def write(results_now: BenchmarkResults) -> None:
        if args.quick:  # the package's models are not narrow
            results_now = replace(results_now, rows=tuple(
                replace(row, equal_sizes=row.package is None or row.against != PUBLISHED) for row in results_now.rows))
        for file, text in (("benchmark.json", results.as_json(machine_now, settings, results_now)),
                           ("benchmark.md", results.as_markdown(machine_now, settings, results_now))):
            (folder / file).write_text(text, encoding="utf-8")

    def keep(rows: Sequence[BenchmarkRow]) -> None:
        partial.extend(rows)
        write(replace(all_results, rows=(*all_results.rows, *partial)))

    with ExitStack() as stack:
        reference = None
        if args.against_reference:
            opened = PublishedPackage(torch.get_num_threads(), device.type, folder / "reference.log")
            reference = stack.enter_context(opened)
        bench = Bench(sizes, device, reference, lambda text: print(text, file=sys.stderr, flush=True), keep)
        for name in args.only:
            # Results are written after each part, as a later one may fail.
            part = PARTS[name](bench)
            all_results = BenchmarkResults(all_results.rows + part.rows, all_results.costs + part.costs)
            partial.clear()
            bench.tidy()
            write(all_results)
    print((folder / "benchmark.md").read_text("utf-8"))
    print(f"Written: {folder / 'benchmark.json'} and {folder / 'benchmark.md'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.benchmark", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", default="workspace", help="folder of all artefacts (default: %(default)s)")
    parser.add_argument("--out", metavar="FOLDER", help="where to write (default: benchmark/ in the workspace)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: %(default)s")
    parser.add_argument("--only", type=_parts, default=tuple(PARTS), metavar="PART,...",
                        help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--repeats", type=int, help="measurements of each speed, training apart (default: 5)")
    parser.add_argument("--quick", action="store_true",
                        help="narrow models, few repeats: tries the benchmark itself, without ratios to the package")
    parser.add_argument("--against-reference", action="store_true",
                        help="also measure the published package, in the environment of `make reference`")
    return parser


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    exit_with(main)
