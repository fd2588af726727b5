"""Train the new rows, and adapters beside them, of an extended model: the story of one run, top to bottom.

The same function starts a run and resumes it: what stands in `checkpoints/` decides. The
rate follows the steps alone, never the clock, so that a resumed run is the same run.
"""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

from config.schema import TrainOptions
from core import (
    adopt,
    certificate,
    certify,
    checkpoint,
    compute,
    fitting,
    memory,
    precision,
    ranking,
    records,
    replay,
    resuming,
    training_data,
    trackers,
)
from core.adapters import Adapters, plan
from core.evaluate import Studio
from core.fitting import Estimate
from core.journal import Plan, Result, Step, Warned
from core.loading import VoiceModel, load_checkpoint, load_extension
from core.milestones import Milestones
from core.optimization import StepLosses
from core.patience import Patience
from core.records import CheckpointRecord
from core.reporter import Reporter, check_stop, stage, telling
from core.trainer import Trainer
from core.workspace import Workspace

_PACKAGES = ("torch", "torchaudio", "numpy", "peft", "safetensors", "tokenizers")
_STEPS_TOLD = 5000  # a longer run tells of every second step, every third ...


def run(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Train to the last step or the time limit, then certify the best checkpoint."""
    with trackers.following(reporter, options.tracker, options.model_dump(mode="json")) as tracked:
        return _train(options, workspace, tracked)


def _train(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> Result:
    device = compute.prepare(options.device)
    with stage(reporter, "load"):
        milestones = _open(options, workspace, reporter, device)
    trainer = milestones.trainer
    _write_environment(reporter.directory, device, str(trainer.precision))
    with stage(reporter, "probe"):
        found = fitting.estimate(trainer)
    reporter.emit(_plan(trainer, found))
    milestones.warn()
    check_stop(reporter)
    milestones.catch_up(_due(trainer))
    while not _done(trainer) and not milestones.exhausted():
        losses = trainer.take_step()
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
        reporter.emit(Warned(_given_up(milestones)))
    elif trainer.step < options.steps:
        reporter.emit(Warned(f"The time limit of {options.max_minutes:g} minutes ended the training at step "
                             f"{trainer.step} of {options.steps}, before the learning rate had run down."))
    return _finish(milestones, workspace, reporter)


def _open(options: TrainOptions, workspace: Workspace, reporter: Reporter, device: torch.device) -> Milestones:
    """Everything of a new run, or of one that goes on from its last checkpoint."""
    run, patience = reporter.directory, Patience()
    checkpoint.clean(run)
    saved = checkpoint.last_whole(run, lambda message: reporter.emit(Warned(message)))
    if saved is not None:
        resuming.check_options(run, saved, options)
        resuming.check_vocabulary(run, saved, workspace, options.extension)
        voice = load_checkpoint(workspace, checkpoint.folder_of(run, saved), device)
    else:
        voice = new_voice(options, workspace, device)
        if options.adopt_weights:
            adopt.adopt(workspace, options.adopt_weights, voice, lambda message: reporter.emit(Warned(message)))
    data = training_data.load(workspace, options.dataset, voice, options.validate_apart)
    for note in data.notes:
        reporter.emit(Warned(note))
    studio = Studio.of(voice)
    rehearsed = replay.load(voice, studio.voices).rehearsed if options.scope == "full" else ()
    if options.scope == "full" and options.replay > 0 and not rehearsed:
        reporter.emit(Warned("The base model comes with no clips to rehearse: replay is off, expect more drift."))
    trainer = Trainer(options, voice, data, rehearsed, precision.decide(options.precision, device),
                      lambda message: reporter.emit(Warned(message)))
    if options.compile == "on":
        voice.model.compile()
    if saved is not None:
        state = checkpoint.load_state(run, saved)
        resuming.check_data(run, options, state, data)
        trainer.restore(state)
        patience = state.patience
        if (ranked := ranking.read(run)) != ranked.up_to(saved):
            ranking.write(run, ranked.up_to(saved))
    return Milestones(trainer, studio, _record(options, workspace, run, voice), reporter, patience)


def new_voice(options: TrainOptions, workspace: Workspace, device: torch.device) -> VoiceModel:
    """The untrained extension, with fresh adapters where the scope has them."""
    voice = load_extension(workspace, options.extension, device)
    if options.scope == "rows":
        return voice
    adapters = Adapters.fresh(voice.model.module, plan(options, voice.model.adapter_targets), options.seed)
    voice.model.module.to(device)
    return replace(voice, adapters=adapters, scope=options.scope)


def _record(options: TrainOptions, workspace: Workspace, run: Path, voice: VoiceModel) -> CheckpointRecord:
    folder = workspace.extensions / options.extension
    there = folder / records.EXTENSION
    rows_hash = records.read(there, records.ExtensionRecord).rows_hash if there.is_file() else ""
    return CheckpointRecord(run.name, 0, options.scope, options.extension, options.dataset, rows_hash, "", voice.origin,
                            options.adapter_rank if voice.adapters else None)


def _plan(trainer: Trainer, found: Estimate) -> Plan:
    counts, options, data = trainer.counts, trainer.options, trainer.data
    total = counts.new_rows + counts.old_rows
    frozen = _amount(counts.base_parameters)
    beside = f"adapters of {_amount(counts.adapter_parameters)} beside" if counts.adapter_parameters else "0 of"
    return Plan(
        (f"{counts.new_rows} new rows of {total}; 0 of {counts.old_rows} old rows; "
         f"{beside} {frozen} frozen parameters.",
         f"{len(data.train)} clips in {data.language!r}, {len(data.held_out)} held out; "
         f"steps {trainer.step} to {options.steps} of {options.batch_size * options.accumulation} clips; "
         f"{trainer.precision}.",
         *_expected(trainer, found)),
        {"new_rows": counts.new_rows, "rows": total, "old_rows": counts.old_rows, "old_rows_trained": 0,
         "row_parameters": counts.row_parameters, "adapter_parameters": counts.adapter_parameters,
         "frozen_parameters": counts.base_parameters, "clips": len(data.train), "held_out_clips": len(data.held_out),
         "memory_bytes": found.needed or 0, "seconds": round(found.seconds_a_step * (options.steps - trainer.step))},
    )


def _expected(trainer: Trainer, found: Estimate) -> tuple[str, ...]:
    """Memory and time, and what was changed so that it fits."""
    options, setting = trainer.options, found.setting
    free = "" if found.free is None else f" of {memory.gib(found.free)} free"
    if not found.fits:
        needed = f"about {memory.gib(found.needed)}" if found.needed is not None else "more memory than there is"
        return (f"It needs {needed}{free} even with single clips: it may end without memory.",)
    steps = options.steps - trainer.step
    lines = [f"About {memory.gib(found.needed or 0)}{free}; {steps} steps in about "
             f"{_duration(found.seconds_a_step * steps)}, beside the samples that are spoken."]
    if setting.parts > 1:
        lines.append(f"To fit into memory, passes of {setting.size(options.batch_size)} clips, accumulated "
                     f"{setting.parts * options.accumulation} times a step.")
    if setting.recompute:
        lines.append("Activations are computed again in the backward pass, to save memory.")
    return tuple(lines)


def _duration(seconds: float) -> str:
    """Such as `50 s`, `12 min` or `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _amount(parameters: int) -> str:
    """Such as `5.9 M` or `4.2 k`."""
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e5 else f"{parameters / 1e3:.1f} k"


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
                       round(left, 1)))


def _finish(milestones: Milestones, workspace: Workspace, reporter: Reporter) -> Result:
    """Certify the best checkpoint; the run's result."""
    run, trainer = reporter.directory, milestones.trainer
    ranked = _whole(run, reporter)
    best = ranked.best
    assert best is not None
    tell = telling(reporter, f"The training is whole: all of its {trainer.step} steps are done and saved. Only its "
                             "certificate is missing; resume makes it.")
    with stage(reporter, "certificate"):
        folder = checkpoint.folder_of(run, best)
        made = certify.certify_folder(workspace, folder, trainer.voice.device, tell=tell)
        certificate.write(run / certificate.FILE, made)
    if made.failed():
        reporter.emit(Warned(f"The certificate has failed checks: {', '.join(made.failed())}."))
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
    faults = {step: fault for step in checkpoint.steps(run) if step in ranked.values
              and (fault := records.damage(checkpoint.folder_of(run, step))) is not None}
    if ranked.best in faults:
        reporter.emit(Warned(f"{faults[ranked.best]} The best checkpoint cannot be used; the next best is certified."))
    return ranked.among([step for step in checkpoint.steps(run) if step not in faults])


def _write_environment(run: Path, device: torch.device, computed_in: str) -> None:
    """What the numbers of this run were made with."""
    environment = {
        "python": platform.python_version(), "packages": {name: version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(), "precision": computed_in, "commit": _commit(),
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
