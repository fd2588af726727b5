"""Train the new rows, and adapters beside them, of an extended model: the story of one run, top to bottom.

The same function starts a run and resumes it, as `checkpoints/` says. Every rank runs the same loop; rank 0 also emits
events, writes checkpoints and evaluates them. The others are started by rank 0 as `python -m core.train WORKSPACE`, or
by torchrun (`scripts.train`).
"""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from config import schema
from config.errors import UserError
from config.schema import TrainOptions
from core import compute
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import Event, Result, Step, WarningRaised, read_events
from core.jobs.process_watchdog import exit_with
from core.jobs.reporter import Reporter, check_stop, stage
from core.library import certificate
from core.training import checkpoint, distributed, memory_plan, parameter_groups, run_plan, trackers
from core.training.checkpoint_evaluation import TrainingRun
from core.training.distributed import ONE_PROCESS, AbortedByRank0, Ranks
from core.training.run_plan import Estimate
from core.training.setup import setup_run
from core.training.trainer import Diverged, StepLosses, Trainer
from core.workspace import Workspace

_PACKAGES = ("torch", "torchaudio", "numpy", "peft", "safetensors", "tokenizers")
_MAX_STEP_EVENTS = 5000  # a longer run emits every second step, every third ...
_RISEN, _FALLEN = 1.5, 0.99  # times the lowest loss, and the first one


def run(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Train to the last step or the time limit; the certificate is a job of its own (`core.certify`)."""
    schema.check_sharding(options, schema.number_of_processes(options.processes))
    device = compute.setup_device(options.device)
    with trackers.tracked(reporter, options.tracker, options.model_dump(mode="json")) as tracked:
        with distributed.launch(options.processes, device, ["-m", "core.train", str(workspace.path)]) as group:
            group.broadcast((tracked.directory.name, options.model_dump(mode="json")))  # to `run_other_rank`
            training_run, _ = prepare_run(options, workspace, tracked, group)
            train_loop(training_run)
        return run_result(training_run.trainer, tracked)


def run_other_rank(workspace: Workspace) -> None:
    """The run of rank 0, in a rank that writes nothing."""
    if "LISAN_WORKER" in os.environ:  # not with torchrun, which ends its processes itself
        exit_with(int(os.environ["LISAN_WORKER"]))
    device = compute.setup_device(os.environ.get("LISAN_DEVICE", "auto"))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("env://", rank, size, device)
    group = Ranks(rank, size)
    try:
        name, values = group.broadcast(None)
        run, _ = prepare_run(TrainOptions(**values), workspace, SilentReporter(workspace.runs / name), group)
        train_loop(run)
    except AbortedByRank0:
        pass
    finally:
        group.close()


def prepare_run(options: TrainOptions, workspace: Workspace, reporter: Reporter, group: Ranks = ONE_PROCESS,
                max_clips: int | None = None) -> tuple[TrainingRun, Estimate]:
    """Setup and memory plan: load everything, find what fits, and announce it; `max_clips` of the data, for a trial.

    A run whose steps are all done needs no plan.
    """
    device = compute.setup_device(options.device)
    with stage(reporter, "load"), group.rank0_first():
        run = setup_run(options, workspace, reporter, device, group, max_clips)
        if group.rank == 0:
            _write_environment(reporter.directory, device, str(run.trainer.precision))

    trainer = run.trainer
    if trainer.step and (_finished(trainer) or run.should_stop()):
        return run, Estimate(trainer.microbatch_plan, None, None)
    with stage(reporter, "memory plan"):
        if trainer.sharded:
            estimate = run_plan.estimate(trainer)
        else:
            estimate = group.run_on_rank0(lambda: run_plan.estimate(trainer))
            trainer.set_microbatch_plan(estimate.microbatch_plan)
        if trainer.step == 0:
            trainer.fit_steps(sum(estimate.seconds_a_step) / 2)

    def announce() -> None:
        reporter.emit(run_plan.plan_event(trainer, estimate))
        if trainer.step == 0 and max_clips is None:
            for message in run_plan.training_warnings(trainer, reporter.directory):
                reporter.emit(WarningRaised(message))
        check_stop(reporter)

    group.run_on_rank0(announce)
    return run, estimate


def train_loop(run: TrainingRun) -> None:
    """Take all steps; evaluate checkpoints on the way; end early on a stop request, out of patience or time."""
    trainer, reporter, options = run.trainer, run.reporter, run.options
    group = trainer.group
    finished = _finished(trainer)  # a resumed run may be
    plan = trainer.step_plan
    watch = LossWatch(options.model_copy(update={"steps": plan.steps, "warmup": plan.warmup}))
    if group.rank == 0:
        watch.read(reporter.directory, trainer.step)
    if trainer.step == 0:
        run.evaluate_base()
    else:
        run.finish_pending_evaluation(checkpoint_due=finished or trainer.step % options.checkpoint_every == 0)

    while not finished and not run.should_stop():
        try:
            losses = trainer.train_step()
        except Diverged as fault:
            saved = checkpoint_steps(reporter.directory)
            resume_hint = (f"The run stopped on its last good checkpoint, of step {saved[-1]}: it can resume "
                           "from there."
                           if saved else "No checkpoint was saved yet.")
            raise UserError(f"{fault.message} {resume_hint}", fault.hint) from fault
        finished = _finished(trainer)
        checkpoint_due = finished or trainer.step % options.checkpoint_every == 0
        if group.rank == 0 and (checkpoint_due or trainer.step % max(1, plan.steps // _MAX_STEP_EVENTS) == 0):
            event = _step_event(trainer, losses)
            reporter.emit(event)
            if warning := watch.observe(event):
                reporter.emit(WarningRaised(warning))

        # Rank 0 decides for all: by its clock, and by a stop request, which it alone sees.
        finished, checkpoint_due, stop = group.broadcast((finished, checkpoint_due, reporter.stop_requested()))
        if checkpoint_due or stop:
            run.save()
        if stop:
            run.check_stop()
            raise AbortedByRank0
        if checkpoint_due:
            run.evaluate_checkpoint()
        elif run.validation_due():
            run.validate_losses()

    if trainer.step < options.steps and run.should_stop():
        best = run.early_stopping
        reporter.emit(WarningRaised(
            f"Stopped early at step {trainer.step} of {options.steps}: {best.validations_without_improvement} "
            f"validations in a row did not improve the {run.metric} of {best.best:.4f} at step {best.best_step}."))
    elif trainer.step < trainer.step_plan.steps:
        reporter.emit(WarningRaised(
            f"The time limit of {options.max_minutes:g} minutes ended the training at step {trainer.step} of "
            f"{trainer.step_plan.steps}, before the end of the learning-rate schedule."))
    elif trainer.step < trainer.most_steps:
        reporter.emit(WarningRaised(
            f"{trainer.step} of {trainer.most_steps} steps fitted into the time limit of {options.max_minutes:g} "
            "minutes; the learning-rate schedule ended with them."))


class LossWatch:
    """Warns of a training loss that rises by half, and of one that has not fallen after a tenth of the steps.

    It compares means of the speech loss over so many of the reported steps as to smooth out the batches: a fiftieth,
    at least ten. Either warning is given once; the run goes on.
    """

    def __init__(self, options: TrainOptions) -> None:
        self.window = max(10, min(options.steps, _MAX_STEP_EVENTS) // 50)
        self._learnt_by = max(options.steps / 10, 2 * options.warmup)  # the rates of a warmup are low
        self._losses: deque[float] = deque(maxlen=self.window)
        self._count, self._first, self._lowest = 0, math.nan, math.inf
        self._has_risen = self._was_asked = False

    def read(self, run: Path, step: int) -> None:
        """Take up the steps until `step` from the journal of a resumed run; what it said then is not said again."""
        steps = {event.step: event for event in read_events(run / "events.jsonl")[0] if isinstance(event, Step)}
        for number in sorted(number for number in steps if number <= step):
            self.observe(steps[number])

    def observe(self, event: Step) -> str:
        """The warning of a step, or an empty string."""
        self._losses.append(event.speech_loss)
        self._count += 1
        if self._count < self.window:
            return ""
        mean = sum(self._losses) / self.window
        if self._count == self.window:
            self._first = mean
        lowest, self._lowest = self._lowest, min(self._lowest, mean)
        if mean >= _RISEN * lowest and not self._has_risen:
            self._has_risen = True
            return (f"The speech loss has risen by half: {mean:.3f} over the last {self.window} steps shown, after "
                    f"{lowest:.3f}. Stop the run and start one with a lower learning rate; earlier checkpoints are "
                    "not harmed.")
        if self._count >= 2 * self.window and event.step >= self._learnt_by and not self._was_asked:
            self._was_asked = True
            if mean > _FALLEN * self._first:
                return (f"Nothing was learnt in {event.step} of {event.total_steps} steps: the speech loss was "
                        f"{self._first:.3f} at first and is {mean:.3f}. Listen to some clips beside their texts, and "
                        "look at the learning rate.")
        return ""


def run_result(trainer: Trainer, reporter: Reporter) -> Result:
    """What a finished training says of itself; what its certificate says is not known yet."""
    run_dir = reporter.directory
    best = checkpoint.best_intact(run_dir, lambda message: reporter.emit(WarningRaised(message)))
    ranking = checkpoint.read_ranking(run_dir)
    return {
        "run": run_dir.name, "steps": trainer.step, "best_step": best, "chosen_by": ranking.metric,
        "best_value": round(ranking.values[best], 4), "train_seconds": round(trainer.seconds, 1),
        "certificate": certificate.NOT_PROVEN_YET,
    }


def _finished(trainer: Trainer) -> bool:
    limit_s = trainer.options.max_minutes * 60
    return trainer.step >= trainer.step_plan.steps or 0 < limit_s <= trainer.seconds


def _step_event(trainer: Trainer, losses: StepLosses) -> Step:
    options = trainer.options
    steps = trainer.step_plan.steps
    seconds_left = trainer.seconds / trainer.step * (steps - trainer.step)
    if options.max_minutes:
        seconds_left = min(seconds_left, max(0.0, options.max_minutes * 60 - trainer.seconds))
    return Step(trainer.step, steps, losses.speech, losses.text, trainer.learning_rate, losses.gradient_norm,
                round(losses.tokens / trainer.step_seconds, 1), round(trainer.seconds, 3), round(seconds_left, 1),
                *memory_plan.peak_since_last_call(trainer.tts.device),
                parameter_groups.learning_rates(trainer.groups, trainer.optimizer))


def _write_environment(run_dir: Path, device: torch.device, precision: str) -> None:
    """Write the versions, the platform and the precision that the results of this run depend on."""
    try:
        command = ["git", "-C", str(Path(__file__).resolve().parent.parent), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = None  # the code does not run from a clone
    environment = {
        "python": platform.python_version(), "packages": {name: version(name) for name in _PACKAGES},
        "platform": platform.platform(), "conditions": compute.numeric_environment(device), "precision": precision,
        "commit": commit,
    }
    (run_dir / "environment.json").write_text(json.dumps(environment, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class SilentReporter:
    """The reporter of the ranks that are not 0."""

    directory: Path

    def emit(self, event: Event) -> None:
        """Nothing: rank 0 emits it."""

    def stop_requested(self) -> bool:
        return False


def main(arguments: list[str]) -> int:
    """A rank beside rank 0: `python -m core.train WORKSPACE`, with torchrun's environment."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for rank 0, which ends the others
        signal.signal(number, signal.SIG_IGN)
    try:
        run_other_rank(Workspace(Path(arguments[0]).absolute()))
    except UserError as error:
        sys.stderr.write(f"Rank {os.environ['RANK']}: {error.message} {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
