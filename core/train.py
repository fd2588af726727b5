"""Train the new rows, and adapters beside them, of an extended model: the story of one run, top to bottom.

The same function starts a run and resumes it: what stands in `checkpoints/` decides. The
rate follows the steps alone, never the clock, so that a resumed run is the same run.
"""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import TrainOptions
from core import compute
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import Result, Step, WarningRaised
from core.jobs.reporter import Reporter, check_stop, progress_callback, stage
from core.library import certificate, records
from core.proof import certify
from core.training import advice, checkpoint, divisible, fitting, memory, plan, ranking, scopes, trackers
from core.training.company import Company, gathering
from core.training.fitting import Estimate
from core.training.milestones import Milestones
from core.training.opening import open_run
from core.training.optimization import Diverged, StepLosses
from core.training.trainer import Trainer
from core.workspace import Workspace

_PACKAGES = ("torch", "torchaudio", "numpy", "peft", "safetensors", "tokenizers")
_STEPS_TOLD = 5000  # a longer run tells of every second step, every third ...


def run(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Train to the last step or the time limit, then certify the best checkpoint."""
    with trackers.following(reporter, options.tracker, options.model_dump(mode="json")) as tracked:
        return _train(options, workspace, tracked)


def _train(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> Result:
    divisible.check(options, divisible.number_of_processes(options.processes))
    with gathering(options.processes, compute.setup_device(options.device), workspace) as company:
        milestones, _ = begin(options, workspace, reporter, company=company)
        if milestones.trainer.step == 0:
            for message in advice.warnings(milestones.trainer, reporter.directory):
                reporter.emit(WarningRaised(message))
        follow(milestones)
    return _finish(milestones, workspace, reporter)


def begin(options: TrainOptions, workspace: Workspace, reporter: Reporter,
          max_clips: int | None = None, company: Company | None = None) -> tuple[Milestones, Estimate]:
    """Load everything, find what fits, and say what will be done; `max_clips` of the data, for a trial."""
    device = compute.setup_device(options.device)
    with stage(reporter, "load"):
        milestones = open_run(options, workspace, reporter, device, max_clips, company)
    trainer = milestones.trainer
    _write_environment(reporter.directory, device, str(trainer.precision))
    with stage(reporter, "probe"):
        found = fitting.estimate(trainer)
    reporter.emit(plan.plan(trainer, found))
    milestones.warn()
    check_stop(reporter)
    return milestones, found


def follow(milestones: Milestones) -> None:
    """Every step to the last, or to where the training ends before it, with what is due after each."""
    trainer, reporter, options = milestones.trainer, milestones.reporter, milestones.options
    milestones.catch_up(_due(trainer))
    while not _done(trainer) and not milestones.exhausted():
        losses = _step(trainer, reporter)
        _tell(trainer, losses, reporter)
        if _due(trainer):
            milestones.save()
            milestones.stop_here()
            milestones.evaluate()
        elif reporter.stop_requested():
            milestones.save()
            milestones.stop_here()
        elif milestones.validation_due():
            milestones.validate()
    if milestones.exhausted():
        reporter.emit(WarningRaised(_given_up(milestones)))
    elif trainer.step < options.steps:
        reporter.emit(WarningRaised(f"The time limit of {options.max_minutes:g} minutes ended the training at step "
                             f"{trainer.step} of {options.steps}, before the learning rate had run down."))


def _step(trainer: Trainer, reporter: Reporter) -> StepLosses:
    """A step of the trainer; where it cannot go on, what is left to go on from."""
    try:
        return trainer.take_step()
    except Diverged as fault:
        found = checkpoint_steps(reporter.directory)
        left = (f"The run stopped on its last good checkpoint, of step {found[-1]}: it can continue from there."
                if found else "No checkpoint was saved yet.")
        raise UserError(f"{fault.message} {left}", fault.hint) from fault.__cause__


def _given_up(milestones: Milestones) -> str:
    patience, trainer = milestones.patience, milestones.trainer
    return (f"Stopped early at step {trainer.step} of {trainer.options.steps}: {patience.stale} validations in a row "
            f"were not better than the {milestones.measure} of {patience.best:.4f} at step {patience.best_step}.")


def _done(trainer: Trainer) -> bool:
    limit = trainer.options.max_minutes * 60
    return trainer.step >= trainer.options.steps or 0 < limit <= trainer.seconds


def _due(trainer: Trainer) -> bool:
    return trainer.step % trainer.options.checkpoint_every == 0 or _done(trainer)


def _tell(trainer: Trainer, losses: StepLosses, reporter: Reporter) -> None:
    options = trainer.options
    if trainer.step % max(1, options.steps // _STEPS_TOLD) and not _due(trainer):
        return
    left = trainer.seconds / trainer.step * (options.steps - trainer.step)
    if options.max_minutes:
        left = min(left, max(0.0, options.max_minutes * 60 - trainer.seconds))
    reporter.emit(Step(trainer.step, options.steps, losses.speech, losses.text, trainer.learning_rate,
                       losses.gradient_norm, round(losses.tokens / trainer.step_seconds, 1), round(trainer.seconds, 3),
                       round(left, 1), *memory.told(trainer.voice.device),
                       scopes.rates(trainer.groups, trainer.optimizer)))


def _finish(milestones: Milestones, workspace: Workspace, reporter: Reporter) -> Result:
    """Certify the best checkpoint; the run's result."""
    run, trainer = reporter.directory, milestones.trainer
    ranked = _whole(run, reporter)
    best = ranked.best
    if best is None:
        raise _nothing_whole(run, trainer.step)
    progress = progress_callback(
        reporter, f"The training is whole: all of its {trainer.step} steps are done and saved. Only its certificate is "
                  "missing; continue the run to make it.")
    with stage(reporter, "certificate"):
        folder = checkpoint.folder_of(run, best)
        made = certify.certify_folder(workspace, folder, trainer.voice.device, progress=progress,
                                      warn=lambda message: reporter.emit(WarningRaised(message)))
        certificate.write(run / certificate.CERTIFICATE, made)
    if made.failed():
        reporter.emit(WarningRaised(f"The certificate has failed checks: {', '.join(made.failed())}."))
    result: Result = {
        "run": run.name, "steps": trainer.step, "best_step": best, "chosen_by": ranked.measure,
        "best_value": round(ranked.values[best], 4), "train_seconds": round(trainer.seconds, 1),
        "certificate": "failed: " + ", ".join(made.failed()) if made.failed() else "passed",
    }
    for error in made.errors:
        for when, value in (("before", error.before), ("after", error.after), ("original", error.original)):
            result[f"error_{error.language}_{when}"] = None if value is None else round(value, 4)
    return result


def _whole(run: Path, reporter: Reporter) -> ranking.Ranking:
    """The ranking with the best among the checkpoints that are whole."""
    ranked = ranking.read(run)
    faults = {step: fault for step in checkpoint_steps(run) if step in ranked.values
              and (fault := records.find_damage(checkpoint.folder_of(run, step))) is not None}
    if ranked.best in faults:
        reporter.emit(WarningRaised(f"{faults[ranked.best]} The best checkpoint cannot be used; the next best is "
                                    f"certified."))
    return ranked.among([step for step in checkpoint_steps(run) if step not in faults])


def _nothing_whole(run: Path, step: int) -> UserError:
    """Every checkpoint that was measured is damaged: from which one the run could go on."""
    whole = [step for step in checkpoint_steps(run) if records.find_damage(checkpoint.folder_of(run, step)) is None]
    way = (f"continue the run: it goes on from the checkpoint of step {whole[-1]}, which was not measured and is whole"
           if whole else "start a new run")
    return UserError(f"All {step} steps of {run.name} are done, but every checkpoint of it that was measured is "
                     "damaged: there is none to certify.", f"Put the files back if you have a copy, or {way}.")


def _write_environment(run: Path, device: torch.device, computed_in: str) -> None:
    """What the numbers of this run were made with."""
    environment = {
        "python": platform.python_version(), "packages": {name: version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "conditions": compute.numeric_environment(device), "precision": computed_in, "commit": _commit(),
    }
    (run / "environment.json").write_text(json.dumps(environment, indent=1) + "\n", encoding="utf-8")


def _commit() -> str | None:
    """The commit of the code, where it runs from a clone."""
    root = Path(__file__).resolve().parent.parent
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
