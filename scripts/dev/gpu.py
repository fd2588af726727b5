"""Test and measure on a GPU: python -m scripts.dev.gpu, or `make gpu`, or `make gpu STAGE=T3,demo`.

Every stage is a separate command and is stopped after eight minutes, or --limit. What it found is written after each
to gpu.json and gpu.md; stages that were not run this time keep what they found before, with its date and commit.
Stages that are not timed run side by side, and timed ones alone, after them. On a machine that is lent for minutes:
--minutes starts no stage that is not expected to end in time, and --resume leaves out those that have passed on this
device with this commit. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from config.errors import UserError
from config.versions import find_conflicts
from core import compute, machine_check
from scripts.command import USAGE_ERROR, exit_with
from scripts.dev.benchmark import machine

LIMIT_S = 480.0
_STOPPING_S = 20.0  # seconds of the limit, in which interrupted tests write their report
_ROOT = Path(__file__).resolve().parents[2]
# Parts of the benchmark with the seconds that each took on an H200; training, options, extraction, T3 and the built-in
# model have not been measured to their end there.
_BENCHMARKS = {"T3": 80.0, "S3Gen": 40.0, "GPT": 55.0, "S2Mel": 45.0, "training": 120.0, "options": 120.0,
               "extraction": 60.0, "certificate": 75.0, "built-in": 60.0}
_PARALLEL = ("-n", "auto", "--dist", "load")
_MOST_PROCESSES = 14  # of one stage of tests
# Each with one thread: what the CPU computes to compare with took 76 s with 16 threads in each of 14 processes.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
_REFERENCE = _ROOT / ".reference" / "bin" / "python"


@dataclass(frozen=True)
class GpuStage:
    """One command: of pytest with `tests`, of the benchmark with `parts`, or the demo."""

    what: str
    tests: tuple[str, ...] = ()
    parts: str = ""
    against_reference: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    expected_s: float = LIMIT_S  # on an H200 with 16 cores, where it was measured or can be told from its parts

    @property
    def is_timed(self) -> bool:
        """Whether it measures speed, so that nothing else may run beside it."""
        return bool(self.parts)


# Names of tests, each of which is in one of the three; those of all families are with the built-in model's.
_CONTRACT = {"tiny": "not chatterbox and not indextts2", "chatterbox": "chatterbox and not indextts2",
             "indextts2": "indextts2"}

# An export of two layers of the published width and the package that speaks it compute on the CPU, with one thread for
# minutes: they are tests of `make test-long`.
_ON_A_CPU = ("--ignore=tests/contract/test_cuda.py", "--ignore=tests/contract/test_chatterbox_export.py")

# Every file of tests that emulate CUDA where there is no GPU.
CUDA_TESTS = ("tests/contract/test_cuda.py", "tests/unit/models/test_cuda_graph_decode.py",
              "tests/unit/models/test_alignment_guard.py", "tests/unit/core/model/test_precision.py",
              "tests/unit/scripts/dev/test_benchmark.py",
              "tests/unit/models/test_triton_training.py", "tests/unit/models/chatterbox/test_flow_graphs.py",
              "tests/unit/models/chatterbox/test_hift.py", "tests/unit/models/test_triton_vocoder.py")

STAGES: dict[str, GpuStage] = {
    "tests": GpuStage("the tests of CUDA, on the GPU",
                      (*CUDA_TESTS, "tests/unit/models/test_triton_sampling.py",
                       "tests/unit/models/test_triton_kernels.py", *_PARALLEL),
                      environment={"LISAN_ALL_CASES": "1", **_ONE_THREAD}, expected_s=80),
    **{f"contract-{family}": GpuStage(f"the contract suite, trained on the GPU: {family}", (
        "tests/contract", *_ON_A_CPU, "-k", names, *_PARALLEL),
        environment={"LISAN_TEST_DEVICE": "cuda", **_ONE_THREAD}, expected_s=85)
        for family, names in _CONTRACT.items()},
    "demo": GpuStage("the demo", expected_s=225),
    "memory": GpuStage("what happens when memory runs out", ("tests/e2e/test_gpu_memory.py",), expected_s=65),
    "kill": GpuStage("a training that is killed three times", ("tests/e2e/test_kill_and_resume.py",),
                  environment={"LISAN_TEST_DEVICE": "cuda"}, expected_s=85),
    **{part: GpuStage(f"benchmark: {part}", parts=part, expected_s=seconds) for part, seconds in _BENCHMARKS.items()},
    "reference": GpuStage("benchmark beside chatterbox-tts", parts="T3,S3Gen", against_reference=True, expected_s=140),
    "reference-indextts2": GpuStage("benchmark beside indextts2-inference", parts="GPT,S2Mel", against_reference=True),
    "reference-training": GpuStage("extraction and training beside both packages", parts="extraction,training",
                                   against_reference=True),
}


@dataclass
class StageResult:
    """`result` is passed, failed, stopped or not run; `found` are counts of tests, the demo's report or the
    benchmark's results."""

    stage: str
    what: str
    command: str
    result: str
    seconds: float
    date: str
    commit: str
    device: str
    reason: str = ""
    found: dict[str, Any] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; 0 if all that ran have passed, 1 if not, 2 for wrong arguments or no GPU."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.gpu", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default=",".join(STAGES), help=f"of {', '.join(STAGES)} (default: all)")
    parser.add_argument("--out", type=Path, default=_ROOT / "docs" / "gpu", help="where to write (default: docs/gpu)")
    parser.add_argument("--scratch", type=Path, default=_ROOT / "test-output" / "gpu",
                        help="for logs and the demo (default: test-output/gpu)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="`cpu` tries this program itself")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS",
                        help=f"how long a stage may take (default: {LIMIT_S:.0f})")
    parser.add_argument("--minutes", type=float, default=0.0,
                        help="start no stage that is not expected to end within so many minutes; 0 is no limit")
    parser.add_argument("--resume", action="store_true",
                        help="leave out stages that have passed on this device with this commit")
    parser.add_argument("--quick", action="store_true", help="narrow models in the benchmark")
    args = parser.parse_args(arguments)

    # Wrong names are refused before the first stage takes its minutes.
    names = args.stage.split(",")
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    try:
        device = compute.setup_device(args.device)
    except UserError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr)
        return USAGE_ERROR

    # A package that was not installed with the others would end a stage after minutes.
    conflicts = find_conflicts(machine_check.pinned_packages(_ROOT / "requirements.txt"))
    needed = [str(conflict) for conflict in conflicts if conflict.needed]
    if needed:
        print(f"Installed packages do not fit each other: {'; '.join(needed)}.\nInstall what is pinned: make install",
              file=sys.stderr)
        return USAGE_ERROR

    if args.resume:
        passed = _passed_before(args.out, machine.describe(device))
        print(f"Left out, passed before: {', '.join(name for name in names if name in passed) or 'none'}", flush=True)
        names = [name for name in names if name not in passed]
    end = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")

    # Interrupts are ignored in a shell's background job, and so by the programs that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed = False
    for result in _run_all(names, end, lambda name, processes: run(
            name, device, args.scratch / name, quick=args.quick, limit_s=args.limit, processes=processes)):
        write(args.out, result)
        print(f"{result.stage}: {result.result} in {result.seconds:.0f} s {result.reason}", flush=True)
        failed |= result.result in ("failed", "stopped")
    print(f"Written: {args.out / 'gpu.json'} and {args.out / 'gpu.md'}")
    return int(failed)


def _run_all(names: Sequence[str], end: float, run_stage: Callable[[str, int], StageResult]) -> Iterator[StageResult]:
    """The results of the stages as they end: of those that are not timed, side by side, then of the timed ones.

    `end`, by the monotonic clock: no stage is started that is expected to end after it. `run_stage` gets a stage and
    how many processes its tests may have.
    """
    together = [name for name in names if not STAGES[name].is_timed]
    tests = sum("-n" in STAGES[name].tests for name in together)
    processes = max(1, min(_MOST_PROCESSES, (os.cpu_count() or 1) // max(1, tests)))
    together = [name for name in together if _fits(name, end, slower=tests)]
    with ThreadPoolExecutor(max(1, len(together))) as pool:
        for future in as_completed([pool.submit(run_stage, name, processes) for name in together]):
            yield future.result()

    for name in names:
        if STAGES[name].is_timed and _fits(name, end):
            print(f"{name}: {STAGES[name].what}", flush=True)
            yield run_stage(name, 1)


def _fits(name: str, end: float, slower: int = 1) -> bool:
    """Whether a stage is expected to end in time, if tests beside `slower` others take as many times as long."""
    expected_s = STAGES[name].expected_s * (max(1, slower) if "-n" in STAGES[name].tests else 1)
    if time.monotonic() + expected_s <= end:
        return True
    print(f"{name}: not started, as it takes about {expected_s:.0f} s", flush=True)
    return False


def _passed_before(folder: Path, host: machine.Machine) -> set[str]:
    """The stages in `folder` that passed on this device with this commit, if no file was changed since."""
    path = folder / "gpu.json"
    if not path.is_file() or host.commit.endswith(machine.CHANGED):
        return set()
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {name for name, result in stored.items() if result["result"] == "passed"
            and result["commit"] == host.commit and result["device"].startswith(f"{host.device};")}


def run(name: str, device: torch.device, scratch: Path, *, quick: bool, limit_s: float = LIMIT_S,
        processes: int = _MOST_PROCESSES) -> StageResult:
    """Run one stage; what it prints goes to `log` in `scratch`. `processes`: the most of parallel tests."""
    stage, host = STAGES[name], machine.describe(device)
    scratch.mkdir(parents=True, exist_ok=True)
    report = scratch / "tests.xml"
    if stage.tests:
        parallel = ["--maxprocesses", str(processes)] if "-n" in stage.tests else []
        command = ["-m", "pytest", *stage.tests, *parallel, "-m", "not slow", "-p", "no:cacheprovider",
                   # Without the option the report also has tests that an interrupt ended.
                   f"--junitxml={report}", "-o", "junit_duration_report=call"]
    elif stage.parts:
        command = ["-m", "scripts.dev.benchmark", "--only", stage.parts, "--device", device.type, "--out", str(scratch),
                   *(["--quick"] if quick else []), *(["--against-reference"] if stage.against_reference else [])]
    else:
        command = ["-m", "scripts", "demo", "--workspace", str(scratch / "workspace"), "--json"]
    made = StageResult(name, stage.what, " ".join(("python", *command)).replace(str(scratch), "SCRATCH"),
                         "passed", 0.0,
                       datetime.now().date().isoformat(), host.commit,
                       f"{host.device}; {host.processor}, {host.cores} cores, {host.threads} threads, load "
                       f"{host.load:.1f}; torch {host.torch}")

    if stage.against_reference and not _REFERENCE.is_file():
        made.result, made.reason = "not run", "the published package is not there: make reference"
        return made

    # Reports of an earlier run would look like this one's.
    for old_report in (report, scratch / "benchmark.json"):
        old_report.unlink(missing_ok=True)
    if stage.tests:
        if threading.current_thread() is threading.main_thread():  # otherwise `main` has done it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        limit_s -= min(_STOPPING_S, limit_s / 2)

    start = time.monotonic()
    with open(scratch / "log", "w", encoding="utf-8") as log:
        # A session of its own lets the whole group be killed.
        process = subprocess.Popen([sys.executable, *command], cwd=_ROOT, stdout=log, stderr=subprocess.STDOUT,
                                   env={**os.environ, **stage.environment}, start_new_session=True)
        try:
            code = process.wait(limit_s)
            if code:
                made.result, made.reason = "failed", f"exit code {code}"
        except subprocess.TimeoutExpired:
            made.result, made.reason = "stopped", f"it took more than {limit_s:.0f} s"
            if stage.tests:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_STOPPING_S)
        finally:
            with contextlib.suppress(ProcessLookupError):  # processes that tests started may hold the GPU
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    made.seconds = round(time.monotonic() - start, 1)

    # Each kind of stage leaves its results in its own file.
    if report.is_file():
        made.found = _counts(report)
    elif (scratch / "benchmark.json").is_file():  # only the parts that ended, if it was stopped
        text = (scratch / "benchmark.json").read_text(encoding="utf-8")
        made.found = json.loads(text.replace(str(scratch), "SCRATCH"))
    elif not stage.tests and not stage.parts and made.result == "passed":
        made.found = json.loads((scratch / "log").read_text(encoding="utf-8").splitlines()[-1])

    if made.result == "passed" and not made.found:
        made.result, made.reason = "failed", "it ended well and left no results"
    if made.result == "passed" and made.found.get("passed") == 0:
        made.result, made.reason = "not run", "all its tests were skipped"
    return made


def _counts(report: Path) -> dict[str, Any]:
    """How many tests passed and were skipped, and the names of those that failed."""
    counts: dict[str, Any] = {"passed": 0, "skipped": 0, "failed": []}
    try:
        root = ElementTree.parse(report).getroot()
    except ElementTree.ParseError:  # killed while it was written
        return {}
    for case in root.iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            counts["failed"].append(f"{case.get('classname')}::{case.get('name')}")
        else:
            counts["skipped" if "skipped" in kinds else "passed"] += 1
    return counts


def write(folder: Path, result: StageResult) -> None:
    """Put the stage's result into both files in `folder`, in the place of an older one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gpu.json"
    # Results of other stages stay.
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    results = {**stored, result.stage: asdict(result)}
    ordered = {name: results[name] for name in (*STAGES, *results) if name in results}  # also of former stages
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text(_markdown(ordered), encoding="utf-8")


def _markdown(results: dict[str, dict[str, Any]]) -> str:
    lines = ["# On a GPU", "", "Written by `make gpu`.", "",
             "| stage | what | result | seconds | date, commit, device |", "|---|---|---|---|---|"]
    for name, stage in results.items():
        outcome = stage["result"] + (f": {stage['reason']}" if stage["reason"] else "")
        if "passed" in stage["found"]:
            outcome += f" ({stage['found']['passed']} passed, {len(stage['found']['failed'])} failed, "
            outcome += f"{stage['found']['skipped']} skipped)"
        lines.append(f"| {name} | {stage['what']} | {outcome} | {stage['seconds']:g} | {stage['date']}, "
                     f"{stage['commit']}, "
                     f"{stage['device']} |")

    for name, stage in results.items():
        outcome_data = stage["found"]
        if outcome_data.get("failed"):
            lines += ["", f"## {name}: failed", "", *(f"- `{test}`" for test in outcome_data["failed"])]
        if "errors" in outcome_data:
            lines += ["", f"## {name}", "", "```json", json.dumps(outcome_data, ensure_ascii=False, indent=1), "```"]
        if outcome_data.get("rows") or outcome_data.get("costs"):
            lines += ["", f"## {name}", "", f"`{stage['command']}`", "",
                      "| | unit | median | lowest | highest | package | speed-up | target |",
                      "|---|---|---|---|---|---|---|---|"]
            for row in outcome_data["rows"]:
                package, ratio = row["package"], row["ratio"]
                cells = (row["what"], row["unit"], *(f"{row['ours'][key]:.4g}" for key in ("median", "least", "most")),
                         f"{package['median']:.4g}" if package else "", f"{ratio:.2f}" if ratio else "", row["target"])
                lines.append(f"| {' | '.join(cells)} |")
            for cost in outcome_data["costs"]:
                lines.append(f"| {cost['what']} | {cost['unit']} | {cost['value']:.4g} | | | | | {cost['note']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    exit_with(main)
