"""The verb `train`: one run from setup to its last checkpoint, top to bottom.

What is trained are the new rows of an extended model, adapters or the base itself, as the option `scope` says. The same
function starts a run and resumes it; it resumes if the run's folder has a checkpoint. Every rank runs the same loop;
rank 0 also emits events, writes checkpoints and evaluates them. Rank 0 starts the other ranks as
`python -m core.train WORKSPACE`, unless torchrun started all of them (`scripts.train`).
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

from config import confinement, schema
from config.errors import UserError
from config.loading import parse_options
from config.schema import ANY_STEPS, TrainOptions, without_sections
from core import compute, wait_policy
from core.dataset import review
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import Event, Result, Step, WarningRaised, read_events
from core.jobs.process_watchdog import exit_with_parent
from core.jobs.reporter import Reporter, StopRequested, check_stop, stage
from core.library import certificate, checkpoints, learning
from core.training import checkpoint, decoder_training, distributed, memory_plan, parameter_groups, run_plan, trackers
from core.training.checkpoint_evaluation import TrainingRun
from core.training.distributed import ONE_PROCESS, AbortedByRank0, ProcessGroup
from core.training.run_plan import BatchChoice, Estimate, is_batch_open
from core.training.setup import setup_run
from core.training.trainer import Diverged, StepLosses, Trainer
from core.workspace import Workspace

_PACKAGES = ("torch", "torchaudio", "numpy", "peft", "safetensors", "tokenizers")
_PROVISIONAL_BATCH = BatchChoice(4)  # until a trainer can measure what fits
_MAX_STEP_EVENTS = 5000  # a run of more steps emits an event for every second step, every third ...
_RISE_FACTOR = 1.4  # warn at 1.4 times the lowest mean loss; one bad batch in a window of ten can add a third
_FALL_FACTOR = 0.99  # warn if the mean loss is above 0.99 times the first one


def run(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Train to the last step or the time limit. A separate job computes the certificate (`core.certify`)."""
    schema.check_sharding(options, schema.get_world_size(options.hardware.processes))
    is_new = not checkpoint_steps(reporter.directory)
    if is_new:
        warning = review.check_texts_match(workspace, options.dataset, options.data.mismatch_action)
        if warning:
            reporter.emit(WarningRaised(warning))
    device = compute.setup_device(options.device)
    blocking_s, values = wait_policy.blocking_s(), options.model_dump(mode="json")
    with trackers.open_trackers(reporter, options.job.tracker, without_sections(TrainOptions, values)) as reporter:
        with distributed.launch(options.hardware.processes, device, ["-m", "core.train", str(workspace.path)],
                                workspace.path) as group:
            # The other ranks take the values of rank 0 in `run_other_rank`; its device replaces `auto`.
            group.broadcast((reporter.directory.name, {**values, "device": device.type}))
            training_run, _ = prepare_run(options, workspace, reporter, group)
            train_loop(training_run)
        return {**run_result(training_run.trainer, reporter),
                "beside_programs_s": round(wait_policy.blocking_s() - blocking_s, 1)}


def run_other_rank(workspace: Workspace) -> None:
    """The same run in a rank other than 0, which writes nothing."""
    if "LISAN_RANK0_PID" in os.environ:  # unset under torchrun, which ends its processes itself
        exit_with_parent(int(os.environ["LISAN_RANK0_PID"]))
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    node_names = distributed.init_process_group("env://", rank, world_size, workspace=workspace.path)
    group = ProcessGroup(rank, world_size, node_names=node_names)
    confinement.include(workspace.path)
    try:
        name, values = group.broadcast(None)
        reporter = SilentReporter(workspace.runs / name)
        training_run, _ = prepare_run(parse_options(TrainOptions, values), workspace, reporter, group)
        train_loop(training_run)
    except AbortedByRank0:
        pass
    finally:
        group.close()


def prepare_run(options: TrainOptions, workspace: Workspace, reporter: Reporter, group: ProcessGroup = ONE_PROCESS,
                max_clips: int | None = None) -> tuple[TrainingRun, Estimate]:
    """Load everything, find the memory plan that fits, and emit the run's plan and warnings.

    `max_clips`: use only so many clips, for a preflight. A run whose steps are all done needs no memory plan.
    """
    device = compute.setup_device(options.device)
    if max_clips is None and not checkpoint_steps(reporter.directory):
        group.run_on_rank0(lambda: decoder_training.train_decoder(options, workspace, reporter, device))

    # If the batch is open, the run is set up with a provisional one, and measured before it is chosen.
    requested, run_dir = options, reporter.directory
    choice = group.run_on_rank0(lambda: run_plan.read_batch_choice(run_dir)) if is_batch_open(options) else None
    if is_batch_open(options):
        options = (choice or _PROVISIONAL_BATCH).apply(options)
    with stage(reporter, "load"), group.rank0_first():
        training_run = setup_run(options, workspace, reporter, device, group, max_clips)
        if group.rank == 0:
            _write_environment(reporter.directory, device, str(training_run.trainer.precision))

    trainer = training_run.trainer
    # A disk without room for a checkpoint is reported before the first step, not after hours.
    if trainer.step == 0 and max_clips is None:
        group.run_on_rank0(lambda: run_plan.check_first_checkpoint(trainer, reporter.directory))
    if trainer.step and (trainer.finished or training_run.early_stopped()):
        return training_run, Estimate(trainer.microbatch_plan, None, None)
    # The batch is chosen once and stored, so that a resumed run keeps it.
    if is_batch_open(requested) and choice is None:
        choice = group.run_on_rank0(lambda: run_plan.choose_batch(trainer, requested, run_dir))
        trainer.set_options(choice.apply(requested))

    # With FSDP all ranks measure together; else rank 0 measures for all.
    with stage(reporter, "memory plan"):
        if trainer.sharded:
            estimate = run_plan.fit_memory_plan(trainer)
        else:
            estimate = group.run_on_rank0(lambda: run_plan.fit_memory_plan(trainer))
            trainer.set_microbatch_plan(estimate.microbatch_plan)
        if trainer.step == 0:
            trainer.fit_steps_to_time_limit(estimate.mean_step_s)

    def announce() -> None:
        reporter.emit(run_plan.plan_event(trainer, estimate, choice.notes if choice else ()))
        if trainer.step == 0 and max_clips is None:
            for message in run_plan.training_warnings(trainer, reporter.directory):
                reporter.emit(WarningRaised(message))
        check_stop(reporter)

    group.run_on_rank0(announce)
    return training_run, estimate


def train_loop(training_run: TrainingRun) -> None:
    """Take all steps and evaluate checkpoints; end early on a stop request, early stopping or the time limit."""
    trainer, reporter, options = training_run.trainer, training_run.reporter, training_run.options
    group = trainer.group
    finished = trainer.finished  # true from the start if a finished run is resumed
    schedule = trainer.schedule
    watch = LossWatch(schedule.steps, schedule.warmup)
    if group.rank == 0:
        watch.read_journal(reporter.directory, trainer.step)

    def is_checkpoint_due() -> bool:
        return finished or trainer.step % options.checkpoints.checkpoint_every == 0

    if trainer.step == 0:
        training_run.evaluate_base()
    else:
        training_run.finish_pending_evaluation(checkpoint_due=is_checkpoint_due())

    # A step, its event, then whatever is due after it: checkpoint, stop, evaluation.
    while not finished and not training_run.early_stopped():
        try:
            losses = trainer.train_step()
        except Diverged as error:
            saved = checkpoint_steps(reporter.directory)
            resume_hint = (f"The run can resume from its last checkpoint, of step {saved[-1]}."
                           if saved else "No checkpoint was saved yet.")
            raise UserError(f"{error.message} {resume_hint}", error.hint) from error
        finished = trainer.finished
        checkpoint_due = is_checkpoint_due()
        if group.rank == 0 and (checkpoint_due or trainer.step % max(1, schedule.steps // _MAX_STEP_EVENTS) == 0):
            event = _step_event(trainer, losses)
            reporter.emit(event)
            warning = watch.observe(event)
            if warning:
                reporter.emit(WarningRaised(warning))

        # Rank 0 decides for all ranks: only its clock counts, and only it sees a stop request.
        finished, checkpoint_due, stop = group.broadcast((finished, checkpoint_due, reporter.stop_requested()))
        if checkpoint_due or stop:
            training_run.save()
        if stop:
            raise StopRequested(training_run.stop_message) if group.rank == 0 else AbortedByRank0
        if checkpoint_due:
            training_run.evaluate_checkpoint()
        elif training_run.validation_due():
            training_run.validate_losses()
        if not checkpoint_due and not finished and training_run.early_check_due():
            training_run.check_early()

    # A run that ends before its schedule says why.
    if trainer.step < trainer.schedule.steps and training_run.early_stopped():
        early = training_run.early_stopping
        reporter.emit(WarningRaised(
            f"Stopped early at step {trainer.step} of {trainer.schedule.steps}: "
            f"{early.validations_without_improvement} validations in a row did not improve the "
            f"{training_run.metric.label} "
            f"of {early.best:.4f} at step {early.best_step}."))
    elif trainer.step < trainer.schedule.steps:
        reporter.emit(WarningRaised(
            f"The time limit of {options.length.max_minutes:g} minutes ended the training at step {trainer.step} of "
            f"{trainer.schedule.steps}, before the end of the learning-rate schedule."))
    elif trainer.step < trainer.max_steps < ANY_STEPS:
        reporter.emit(WarningRaised(
            f"{trainer.step} of {trainer.max_steps} steps fitted into the time limit of {options.length.max_minutes:g} "
            "minutes; the learning-rate schedule was shortened to them."))


class LossWatch:
    """Warns of losses that rise, do not fall, or stopped falling; a warning can come again after a tenth of the steps.

    It compares means over a window of reported steps, because the loss differs from batch to batch. The window is a
    fiftieth of the steps, at least ten.
    """

    def __init__(self, steps: int, warmup: int) -> None:
        self.window = max(10, min(steps, _MAX_STEP_EVENTS) // 50)
        self._tenth = max(1.0, steps / 10)
        self._fall_due = max(self._tenth, 2 * warmup)  # step; learning rates are low during warmup
        self._speech: deque[float] = deque(maxlen=self.window)
        self._text: deque[float] = deque(maxlen=self.window)
        self._count, self._first, self._first_text = 0, math.nan, math.nan
        self._lowest, self._improved_step, self._rise_bound = math.inf, 0, math.inf

    def read_journal(self, run_dir: Path, step: int) -> None:
        """Observe the steps up to `step` in the journal of a resumed run, so that no warning is repeated."""
        steps = {event.step: event for event in read_events(run_dir / "events.jsonl")[0] if isinstance(event, Step)}
        for number in sorted(number for number in steps if number <= step):
            self.observe(steps[number])

    def observe(self, event: Step) -> str:
        """The warning of a step, or an empty string."""
        self._speech.append(event.speech_loss)
        self._text.append(event.text_loss)
        self._count += 1
        if self._count < self.window:
            return ""
        mean, text_mean = sum(self._speech) / self.window, sum(self._text) / self.window
        if self._count == self.window:
            self._first, self._first_text = mean, text_mean
        lowest = self._lowest
        if not mean >= lowest:
            self._lowest, self._improved_step, self._rise_bound = mean, event.step, _RISE_FACTOR * mean

        # A rise is reported again when the loss rises once more by as much.
        if not mean < self._rise_bound:
            self._rise_bound = _RISE_FACTOR * mean
            return (f"The speech loss has risen: {mean:.3f} over the last {self.window} steps shown, after "
                    f"{lowest:.3f}. Stop the run and start one with a lower learning rate; earlier checkpoints are "
                    "not affected.")
        if self._count < 2 * self.window or event.step < self._fall_due:
            return ""

        # Each of these warnings may come again after a tenth of the steps.
        if mean > _FALL_FACTOR * self._first:
            self._fall_due = event.step + self._tenth
            return (f"The speech loss has not fallen in {event.step} of {event.total_steps} steps: it was "
                    f"{self._first:.3f} at first and is {mean:.3f}. Check the learning rate, and check by ear "
                    "that clips and texts belong together.")
        if text_mean > _FALL_FACTOR * self._first_text:
            self._fall_due = event.step + self._tenth
            return (f"The text loss is flat after {event.step} of {event.total_steps} steps: it was "
                    f"{self._first_text:.3f} at first and is {text_mean:.3f}. The new rows learn nothing of the texts: "
                    "check the learning rate of the rows.")
        if event.step - self._improved_step >= max(self._tenth, 3 * self.window):
            self._fall_due = event.step + self._tenth
            return (f"The speech loss has not improved for {event.step - self._improved_step} of {event.total_steps} "
                    f"steps: the lowest mean was {lowest:.3f}, now it is {mean:.3f}. More steps like these bring "
                    "little; listen to the samples.")
        return ""


def run_result(trainer: Trainer, reporter: Reporter) -> Result:
    """The result of a finished training. Its certificate is computed by a later job."""
    run_dir = reporter.directory
    best = checkpoint.best_intact(run_dir, lambda message: reporter.emit(WarningRaised(message)))
    ranking = checkpoints.read_ranking(run_dir)
    report = learning.read_report(run_dir, best)
    return {
        "learning": report.learning.value, "learning_outcome": learning.describe_report(report),
        "run": run_dir.name, "steps": trainer.step, "best_step": best,
        "chosen_by": ranking.metric.label if ranking.metric else "",
        "best_value": round(ranking.values[best], 4), "train_seconds": round(trainer.seconds, 1),
        "certificate": certificate.NOT_PROVEN_YET,
    }


def _step_event(trainer: Trainer, losses: StepLosses) -> Step:
    options = trainer.options
    steps = trainer.schedule.steps
    seconds_left = trainer.seconds / trainer.step * (steps - trainer.step)
    if options.length.max_minutes:
        seconds_left = min(seconds_left, max(0.0, options.length.minutes_of_steps * 60 - trainer.seconds))
    memory_bytes, memory_of = memory_plan.peak_since_last_call(trainer.tts.device)
    return Step(
        step=trainer.step, total_steps=steps, speech_loss=losses.speech, text_loss=losses.text,
        learning_rates=parameter_groups.learning_rates(trainer.parameter_groups, trainer.optimizer),
        gradient_norm=losses.gradient_norm, tokens_per_s=round(losses.tokens / trainer.step_seconds, 1),
        seconds=round(trainer.seconds, 3), seconds_left=round(seconds_left, 1), memory_bytes=memory_bytes,
        memory_of=memory_of)


def _write_environment(run_dir: Path, device: torch.device, precision: str) -> None:
    """Write `environment.json`: what the results of this run depend on, and how its threads wait, for its speed."""
    try:
        command = ["git", "-C", str(Path(__file__).resolve().parent.parent), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = None  # the code does not run from a clone
    environment = {
        "python": platform.python_version(), "packages": {name: version(name) for name in _PACKAGES},
        "platform": platform.platform(), "conditions": compute.numeric_environment(device), "precision": precision,
        "commit": commit, "threads": torch.get_num_threads(),
        "wait_policy": wait_policy.description(torch.get_num_threads()),
    }
    (run_dir / "environment.json").write_text(json.dumps(environment, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class SilentReporter:
    """The reporter of the ranks that are not 0."""

    directory: Path

    def emit(self, event: Event) -> None:
        """Do nothing: rank 0 emits the event."""

    def stop_requested(self) -> bool:
        return False


def main(arguments: list[str]) -> int:
    """Run a rank other than 0: `python -m core.train WORKSPACE`, with torchrun's environment variables."""
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 handles them and ends the other ranks
        signal.signal(number, signal.SIG_IGN)
    try:
        run_other_rank(Workspace(Path(arguments[0]).absolute()))
    except UserError as error:
        sys.stderr.write(f"Rank {os.environ['RANK']}: {error.message} {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
