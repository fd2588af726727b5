"""Try variations of the demo's training on the built-in model, several seeds each, and tabulate the results.

Each training is a job of the workspace. A measured one is not repeated and an interrupted one is resumed, so the
command can be stopped and run again. The tables are written to --out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import DownloadOptions, ExtendOptions, Options, PrepareOptions, TokenizerOptions
from core.jobs import control
from core.jobs.job import Job, load_job
from core.jobs.state import JobState
from core.library import certificate
from core.submission import job_chains
from core.submission.jobs import submit
from core.workspace import Workspace
from scripts.command import DEFAULT_WORKSPACE, DONE, FAILED, USAGE_ERROR, exit_with
from scripts.dev.benchmark import machine
from scripts.dev.experiments import engine, plan, report, results
from scripts.dev.experiments.plan import ExperimentTrial, TrialGroup
from scripts.dev.experiments.results import NOTHING, TrialResult, Used

_POLL_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then write the tables; the exit code."""
    args = build_parser().parse_args(arguments)
    try:
        workspace = Workspace.open(args.workspace)
        chosen = args.only.split(",") if args.only else None
        groups = [group for group in plan.read(args.steps) if chosen is None or group.name in chosen]
    except UserError as error:
        return _say(error, USAGE_ERROR)
    try:
        if groups:
            _prepare(workspace)
        for seed in range(args.seeds):  # a whole round of all trials first, so that what is cut off is comparable
            for group in groups:
                for trial in group.trials:
                    _try(workspace, trial, seed)
        if engine.NAME in (chosen or [engine.NAME] * (args.steps is None)):
            engine.measure(workspace)
        _write(Path(args.out or workspace.path / "experiments.md"), workspace, groups, args.seeds)
    except UserError as error:
        return _say(error, FAILED)
    return DONE


def _say(error: UserError, code: int) -> int:
    sys.stderr.write(f"{error.message}\n{error.hint}\n")
    return code


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.experiments", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", default=DEFAULT_WORKSPACE, help="folder of all artefacts (default: %(default)s)")
    parser.add_argument("--only", metavar="GROUP,...", help=f"of {plan.PLAN.name}, or {engine.NAME} (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each trial (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="steps of every training, to try the experiments themselves")
    parser.add_argument("--out", metavar="FILE", help="where the tables go (default: experiments.md in the workspace)")
    return parser


def _prepare(workspace: Workspace) -> None:
    """The base model, the demo dataset and its tokenizer."""
    steps: list[tuple[str, Options, bool]] = [
        ("download", job_chains.demo_options("download", DownloadOptions), "tiny" in workspace.list_models()),
        ("prepare", job_chains.demo_options("prepare", PrepareOptions), "amharic-demo" in workspace.list_datasets()),
        ("tokenizer", job_chains.demo_options("tokenizer", TokenizerOptions), "tiny-am" in workspace.list_tokenizers()),
    ]
    for verb, options, is_present in steps:
        if not is_present:
            _finish(*submit(workspace, verb, options))


def _try(workspace: Workspace, trial: ExperimentTrial, seed: int) -> None:
    name = trial.run(seed)
    if results.read(_folder(workspace, trial, seed)) is not None:
        return
    print(f"{time.strftime('%H:%M:%S')}  {name}", flush=True)
    options: ExtendOptions = trial.extension(seed)
    if options.extension not in workspace.list_extensions():
        _finish(*submit(workspace, "extend", options))
    if trial.recipe:
        _break(workspace, trial, seed)
        return
    if name in workspace.list_runs():
        job = load_job(workspace, name)
    else:
        [job] = submit(workspace, "train", trial.training(seed), name=name, certificate=False)
    state, used = _finish(job)
    results.of(trial.name, seed, state, used).write(job.directory)


def _break(workspace: Workspace, trial: ExperimentTrial, seed: int) -> None:
    """Train by the common recipe, in a subprocess."""
    command = [sys.executable, "-m", "scripts.dev.experiments.broken", str(workspace.path)]
    steps = [str(trial.training(seed).length.steps)] if trial.shortened else []
    with subprocess.Popen([*command, trial.group, trial.name, str(seed), *steps]) as child:
        spent = NOTHING
        while child.poll() is None:
            spent = results.used_by_pid(child.pid) or spent
            time.sleep(_POLL_S)
    if child.returncode:
        raise UserError(f"{trial.run(seed)} ended with exit code {child.returncode}.", "Its reason stands above.")
    folder = _folder(workspace, trial, seed)
    results.proven(trial.name, seed, certificate.read(folder / certificate.CERTIFICATE), spent).write(folder)


def _folder(workspace: Workspace, trial: ExperimentTrial, seed: int) -> Path:
    """Where a trial's measurement is kept: with the run, or with the export of a recipe that is none of ours."""
    return (workspace.exports if trial.recipe else workspace.runs) / trial.run(seed)


def _finish(job: Job) -> tuple[JobState, Used]:
    """Let a worker do the job; its state, and what the worker used of the machine."""
    old_state = control.read_state(job)
    is_complete = not old_state.ended  # a job that was cut off has used more than its last try does
    if old_state.status != "finished":
        (control.resume if old_state.resumable else control.start)(job)
    used = NOTHING
    while not (state := control.wait(job, _POLL_S)).ended:
        used = results.used_by(job) or used
    if state.status != "finished":
        raise UserError(f"{job.id} {state.status}: {state.message}", state.hint)
    return state, used if is_complete else NOTHING


def _write(path: Path, workspace: Workspace, groups: Sequence[TrialGroup], seeds: int) -> None:
    def found(trial: ExperimentTrial) -> list[TrialResult]:
        folders = [_folder(workspace, trial, seed) for seed in range(seeds)]
        return [result for folder in folders if (result := results.read(folder))]

    # The tables are written from files, so that a later call can add seeds.
    sections = [report.section(group, {trial.name: found(trial) for trial in group.trials}) for group in groups]
    sections.append(engine.section(workspace))
    folders = [_folder(workspace, trial, seed) for group in groups for trial in group.trials for seed in range(seeds)]
    page = report.page(machine.describe(torch.device("cpu")), _commits(folders), sections)
    path.write_text(page, encoding="utf-8")
    print(f"Written: {path}")


def _commits(folders: Sequence[Path]) -> list[str]:
    """The commits that the trainings ran at, short."""
    environments = [json.loads(path.read_text(encoding="utf-8")).get("commit", "")
                    for folder in folders if (path := folder / "environment.json").is_file()]
    return sorted({str(commit)[:7] for commit in environments if commit})


if __name__ == "__main__":
    exit_with(main)
