"""Items a second of the engines against their workers, and the efficiency of the driver by generated work:

    OMP_NUM_THREADS=1 python -m scripts.dev.benchmark.engines --workspace FOLDER --engines here processes --workers 1 2

Extracts the features of the demo and transcribes clips of it by the built-in recogniser, --rounds times by turns. The
rate counts from the first outcome of every worker to the last, and the start is listed beside it. The generated work
sleeps, so that many workers can be tried on few cores: its efficiency is that of the driver and the pipes alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from config.errors import UserError
from config.schema import DEMO_DATASET, PrepareOptions, SegmentOptions, TranscribeOptions
from core.jobs.engines import Engine, LostBatch, run_batches
from core.jobs.events import Event, Progress, Stage
from core.jobs.reporter import Reporter, memory_text
from core.workspace import Workspace
from scripts.command import exit_with

SLEEP_S, BATCHES_PER_WORKER = 0.5, 24  # of the generated work
_LOADED, _LOOK_S = "loaded", 0.05  # a file for each worker that is ready, and seconds between two looks
_LONGEST_LOAD_S = 300.0
_PACK = Path(__file__).resolve().parents[3] / "models/tiny/pack"


@dataclass
class _Clock:
    """A reporter that notes when the counts of one stage grow."""

    directory: Path
    stage: str
    now: str = ""
    times: tuple[tuple[float, float], ...] = ()  # when so many items were done

    def emit(self, event: Event) -> None:
        if isinstance(event, Stage):
            self.now = "" if event.seconds is not None else event.name
            if event.name == self.stage:
                self.times += ((time.monotonic(), 0 if event.seconds is None else -1),)
        elif isinstance(event, Progress) and self.now == self.stage:
            self.times += ((time.monotonic(), float(event.done)),)

    def stop_requested(self) -> bool:
        return False

    def rate(self, workers: int) -> tuple[float, float]:
        """Items a second, and seconds until the first outcome. The first outcome of every worker is its start."""
        begin, outcomes = self.times[0], [entry for entry in self.times[1:] if entry[1] > 0]
        if len(outcomes) < 3 * workers:
            raise UserError(f"{len(outcomes)} batches are too few to measure {workers} workers, which need "
                            f"{3 * workers}.", "Use more clips (--clips).")
        first, last = outcomes[workers - 1], outcomes[-1]
        return (last[1] - first[1]) / (last[0] - first[0]), outcomes[0][0] - begin[0]


@dataclass(frozen=True)
class EngineRate:
    """The median of some rounds."""

    work: str
    engine: str
    workers: int
    items_per_s: float
    start_s: float
    against_one: float  # times the rate of the first row of this work


def measure_verb(work: str, folder: Path, engine: str, workers: int, clips: int) -> tuple[float, float]:
    """Rate and start of `extract` or `transcribe` in a new workspace."""
    from core import prepare, segment, transcribe  # they load torch

    shutil.rmtree(folder, ignore_errors=True)
    workspace = Workspace.open(folder)
    (workspace.models / "tiny").symlink_to(_PACK)
    choice = {"engine": engine, "workers": 0 if engine == "here" else workers}
    if work == "extract":
        clock = _Clock(folder, "features")
        prepare.run(PrepareOptions.model_validate({**DEMO_DATASET, "max_clips": clips, "device": "cpu", **choice}),
                    workspace, clock)
        return clock.rate(workers)

    # The demo's own recordings, cut at their pauses.
    from core.sources import dataset_source

    with dataset_source.open_source("demo", "am", workspace, _Clock(folder, ""), clips) as gathered:
        recordings = folder / "recordings"
        recordings.mkdir()
        for entry in list(dataset_source.read_rows(gathered, "am", _Clock(folder, "")))[:clips]:
            shutil.copy(entry.audio, recordings)  # type: ignore[union-attr]
        segment.run(SegmentOptions(source=str(recordings), segments="demo", language="am"), workspace,
                    _Clock(folder, ""))
    clock = _Clock(folder, "transcribe")
    transcribe.run(TranscribeOptions.model_validate({"segments": "demo", "recogniser": "built-in", "device": "cpu",
                                                     **choice}), workspace, clock)
    return clock.rate(workers)


def wait_for_all(workers: int, reporter: Reporter) -> None:
    """The state of generated work, which is loaded when all workers are: they begin together."""
    loaded = reporter.directory / _LOADED
    (loaded / str(os.getpid())).touch()
    deadline_s = time.monotonic() + _LONGEST_LOAD_S
    while len(os.listdir(loaded)) < workers:
        if time.monotonic() > deadline_s:
            raise UserError(f"{len(os.listdir(loaded))} of {workers} workers were loaded within {_LONGEST_LOAD_S:g} s.",
                            "Measure fewer (--simulated).")
        time.sleep(_LOOK_S)


def sleep_for(_state: None, batch: Sequence[float]) -> tuple[float, float]:
    """Generated work: sleep so many seconds for each item. When it began and ended, on a clock of all processes."""
    begin_s = time.monotonic()
    time.sleep(sum(batch))
    return begin_s, time.monotonic()


def simulated_efficiency(workers: int, folder: Path) -> tuple[float, float]:
    """The share of the workers' time that is work: until the last batch begins, and until it ends.

    Batches differ in length by half. After the last has begun, workers wait for those that are not ready yet.
    """
    choice = random.Random(0)
    shutil.rmtree(folder / _LOADED, ignore_errors=True)
    (folder / _LOADED).mkdir(parents=True)
    batches = [[choice.uniform(0.5, 1.5) * SLEEP_S] for _ in range(BATCHES_PER_WORKER * workers)]
    outcomes = run_batches(partial(wait_for_all, workers), sleep_for, iter(batches), Engine("processes", workers),
                           _Clock(folder, ""), str)

    # All workers have begun when the last of their first batches has.
    spans = sorted(span for _, span in outcomes if not isinstance(span, LostBatch))
    first_s, last_s, end_s = spans[workers - 1][0], spans[-1][0], max(end for _, end in spans)

    def share_until(until_s: float) -> float:
        worked_s = sum(max(0.0, min(end, until_s) - max(begin, first_s)) for begin, end in spans)
        return worked_s / ((until_s - first_s) * workers)

    return share_until(last_s), share_until(end_s)


def pack_memory(hours: int, folder: Path) -> tuple[int, int, int]:
    """Bytes of a pack of so many hours of generated codes, of memory after it is opened, and after 64 clips are read.

    Clips last 4 s, at 25 codes a second, with a speaker embedding of 256 numbers.
    """
    from data.feature_cache import FeatureCache

    choice = np.random.default_rng(0)
    cache = FeatureCache(folder, "generated")
    codes, embedding = choice.integers(0, 6561, 100).astype(np.uint16), choice.random(256).astype(np.float16)
    cache.write_pack(str(hours), ((f"{number:064x}", {"speech_codes": codes, "speaker_embedding": embedding})
                                  for number in range(hours * 900)))

    # Another process measures, since this one has memory from before.
    program = (f"from pathlib import Path; from data.feature_cache import FeatureCache; import random\n"
               f"def now(): return int(open('/proc/self/statm').read().split()[1]) * {os.sysconf('SC_PAGE_SIZE')}\n"
               f"begin = now(); pack = FeatureCache(Path({str(folder)!r}), 'generated').load_pack('{hours}')\n"
               f"opened = now() - begin; keys = random.Random(0).sample(list(pack.index), 64)\n"
               f"sums = [int(pack.arrays(key)['speech_codes'].sum()) for key in keys]; print(opened, now() - begin)")
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    size = cache.pack_path(str(hours)).stat().st_size
    cache.pack_path(str(hours)).unlink()
    opened, used = map(int, output.split())
    return size, opened, used


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and write `engines.json` into the workspace."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.benchmark.engines",
                                     description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workspace", type=Path, required=True, help="a new folder; workspaces are made in it")
    parser.add_argument("--work", nargs="*", choices=("extract", "transcribe"), default=["extract", "transcribe"])
    parser.add_argument("--engines", nargs="+", choices=("here", "processes", "ray"), default=["here", "processes"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--simulated", nargs="*", type=int, default=[1, 8, 64], help="workers of the generated work")
    parser.add_argument("--hours", nargs="*", type=int, default=[10, 100, 1000], help="hours of a pack of features")
    parser.add_argument("--clips", type=int, default=1230)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(arguments)
    args.workspace.mkdir(parents=True, exist_ok=True)

    # Rounds alternate, so that a busy machine does not favour one engine.
    cases = [(work, engine, workers) for work in args.work for engine in args.engines
             for workers in ([1] if engine == "here" else args.workers)]
    results: dict[tuple[str, str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(args.rounds):
        for case in cases:
            results[case].append(measure_verb(case[0], args.workspace / "measured", case[1], case[2], args.clips))

    rows: list[EngineRate] = []
    for (work, engine, workers), values in results.items():
        rate, start_s = (statistics.median(column) for column in zip(*values, strict=True))
        base = next((row.items_per_s for row in rows if row.work == work), rate)
        rows.append(EngineRate(work, engine, workers, round(rate, 2), round(start_s, 2), round(rate / base, 3)))
    efficiencies = {workers: [round(share, 3) for share in simulated_efficiency(workers, args.workspace)]
                    for workers in args.simulated}

    lines = ["| work | engine | workers | items/s | first outcome after s | times the first |",
             "|---|---|---|---|---|---|"]
    lines += [f"| {row.work} | {row.engine} | {row.workers} | {row.items_per_s} | {row.start_s} | {row.against_one} |"
              for row in rows]
    lines += ["", "| workers | generated work until the last batch begins | until it ends |", "|---|---|---|"]
    lines += [f"| {workers} | {' | '.join(f'{share:.1%}' for share in shares)} |"
              for workers, shares in efficiencies.items()]
    lines += ["", "| hours | pack | memory, opened | memory, 64 clips read |", "|---|---|---|---|"]
    memory = {hours: pack_memory(hours, args.workspace) for hours in args.hours}
    lines += [f"| {hours} | {' | '.join(memory_text(size) for size in sizes)} |" for hours, sizes in memory.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    report = {"rows": [asdict(row) for row in rows], "simulated": efficiencies, "memory": memory}
    (args.workspace / "engines.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    exit_with(main)
