"""What is to be tried can be tried, and what was measured is told with its spread."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from config.schema import TrainOptions, option_fields, option_value
from core.jobs.job import create_job
from core.submission import job_chains
from core.workspace import Workspace
from scripts.dev.benchmark import machine
from scripts.dev.benchmark import results as benchmark_table
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow
from scripts.dev.benchmark.timing import MeasurementStats
from scripts.dev.experiments import engine, plan, report, results
from scripts.dev.experiments.results import TrialResult

ONE = TrialResult("rows", 0, 400, 150.0, 2**30, 8000, "75 of 75 tensors", "40 of 40 samples (en, fr) bit-identical",
               {"am": 0.5, "en": 0.06}, {"am": 0.7, "en": 0.06}, {50: 5.0, 200: 4.0})


def test_every_trial_is_the_demo_but_for_what_it_names() -> None:
    common = job_chains.demo_options("train", TrainOptions)
    for group in plan.read():
        for trial in group.trials:
            made = trial.training(2)
            changed = {name for name in option_fields(TrainOptions)
                       if option_value(made, name) != option_value(common, name)}
            assert changed <= {*trial.train, "seed", "extension", "max_minutes"}
            assert (made.seed, made.extension) == (2, trial.extension(2).extension)
            assert trial.extension(2).seed == 2


def test_names_of_runs_and_extensions_never_meet() -> None:
    trials = [(trial, seed) for group in plan.read() for trial in group.trials for seed in range(3)]
    assert len({trial.run(seed) for trial, seed in trials}) == len(trials)
    by_name = {trial.extension(seed).extension: trial.extension(seed) for trial, seed in trials}
    assert all(by_name[trial.extension(seed).extension] == trial.extension(seed) for trial, seed in trials)


def test_a_shorter_try_of_the_experiments_is_shorter_everywhere() -> None:
    assert {trial.training(0).length.steps for group in plan.read(steps=60) for trial in group.trials} == {60}
    assert all(step <= 60 for group in plan.read(steps=60) for step in group.at)


def test_seeds_are_told_as_mean_and_deviation() -> None:
    assert results.spread([10.0, 12.0, 14.0], "%") == "12.0 ± 2.0%"
    assert results.spread([10.0], " s", 0) == "10 s"
    assert results.spread([]) == "not measured"


def test_what_was_not_measured_is_said_to_be_so() -> None:
    scope, rows, _ = plan.read()
    other = replace(ONE, seed=1, errors={"am": 0.7, "en": 0.06})
    shown = report.section(scope, {"rows": [ONE, other]})
    assert "| rows | 2 | 60.0 ± 14.1% | 6.0 ± 0.0% |" in shown
    assert "| gated-lora-8 | 0 | not measured |" in shown
    assert "| random | 1 | 5.000 | 4.000 | not measured |" in report.section(rows, {"random": [ONE]})


def test_a_measurement_is_read_as_it_was_written(tmp_path: Path) -> None:
    ONE.write(tmp_path)
    assert results.read(tmp_path) == ONE


def test_what_a_process_uses_is_counted_while_it_lives(tmp_path: Path) -> None:
    job = create_job(Workspace.open(tmp_path / "workspace"), "train", TrainOptions())
    code = ("import sys\nfor line in sys.stdin:\n"
            "    held = bytearray(int(line)); sum(range(3_000_000)); print(flush=True)")
    with subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        job.lock.write_text(f"{process.pid} train\n")

        def used_with(size: int) -> results.Used:
            print(size, file=process.stdin, flush=True)
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            found = results.used_by(job)
            assert found is not None
            return found

        first, second = used_with(1), used_with(100_000_000)
        assert process.stdin is not None
        process.stdin.close()
    assert second.cpu_seconds > first.cpu_seconds > 0
    assert second.peak_bytes >= first.peak_bytes + 50_000_000
    job.lock.write_text("999999999 train\n")
    assert results.used_by(job) is None


def test_the_page_says_where_and_how_it_was_measured() -> None:
    scope, *_ = plan.read()
    shown = report.page(machine.describe(torch.device("cpu")), ["8e65943"], [report.section(scope, {"rows": [ONE]})])
    assert shown.startswith("# Experiments\n")
    assert " cores, " in shown
    assert "400 steps of 16 clips." in shown


def test_the_engines_options_are_told_from_the_benchmarks_file(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    assert "Not measured" in engine.section(workspace)
    here = machine.describe(torch.device("cpu"))
    rows = (BenchmarkRow("options", "gated, 10 layers, none", "tokens/s", MeasurementStats.of([200.0])),
            BenchmarkRow("options", "gated, 10 layers, averaging", "tokens/s", MeasurementStats.of([190.0]),
                         MeasurementStats.of([200.0]),
                more_is_better=True),
            *(BenchmarkRow("options", f"gated, 10 layers, {name}, peak memory with the model", "GiB",
                           MeasurementStats.of([1.5]))
              for name in ("none", "averaging")))
    folder = workspace.path / "experiments-engine"
    folder.mkdir()
    (folder / "benchmark.json").write_text(benchmark_table.as_json(here, {}, BenchmarkResults(rows, ())))
    shown = engine.section(workspace)
    assert "| gated, 10 layers, averaging | 190 (190 to 190) | 0.95 | 1.50 GiB |" in shown
    assert str(tmp_path) not in shown
