"""Outcomes of trainings of seconds on a small model, from the run to its certificate and the refusal to export."""

from __future__ import annotations

import pytest
import torch

from config.errors import UserError
from config.schema import CertifyOptions, ExportOptions
from core import certify, export, train
from core.jobs.events import append_event
from core.jobs.job import create_job
from core.library import certificate, learning
from core.library.learning import Finding, Learning
from core.model.loading import TTSModel
from core.speech.evaluation import SpeechEvaluator, SpeechItem
from core.workspace import Workspace
from models.base import Generated
from tests.unit.short_runs import started
from tests.worlds import Listener, train_options


def run(world: Workspace, **changes: object) -> tuple[dict, Listener]:
    """The result of a run without a checkpoint in its first half, and its events."""
    values = {"steps": 20, "checkpoint_every": 20, "evaluation_sentences": 2, "warmup": 0, **changes}
    options = train_options(**values)
    job = create_job(world, "train", options, job_id="one")
    listener = Listener(job.directory)
    result = train.run(options, world, listener)
    for event in listener.of("checkpoint"):
        append_event(job.journal, event)
    return result, listener


def warned_early(listener: Listener) -> str:
    """The warning of the check at a quarter of the steps."""
    return next(event.message for event in listener.of("warning") if event.message.startswith("Step 5 of 20: "))


def test_a_run_whose_weights_stay_has_not_learned_and_is_not_exported(world: Workspace) -> None:
    result, listener = run(world, row_lr=1e-12, adapter_lr=1e-12)
    assert result["learning"] == "not_learned"
    assert "did not fall since step 0" in str(result["learning_outcome"])
    assert "did not fall since step 0" in warned_early(listener)
    with pytest.raises(UserError, match="not learned"):
        export.run(ExportOptions(run="run:one", export="bad"), world, Listener(world.runs / "export"))
    assert not (world.exports / "bad").exists()
    proven = certify.run(CertifyOptions(run="run:one"), world, Listener(world.runs / "one"))
    assert (proven["learning"], proven["learning_outcome"]) == (result["learning"], result["learning_outcome"])
    made = certificate.read(world.runs / "one" / certificate.CERTIFICATE)
    assert made.learning is Learning.NOT_LEARNED
    assert made.learning_report == learning.read_report(world.runs / "one", 20)


def test_a_run_that_does_not_read_its_text_has_not_learned(world: Workspace) -> None:
    """The base has random weights, so in seconds the loss falls and the text is not read."""
    result, listener = run(world)
    assert result["learning"] in ("not_learned", "silent")  # the sound of random weights is chance
    findings = learning.read_report(listener.directory, 20).languages[0].findings
    assert Finding.TEXT_NOT_READ in findings
    assert Finding.NO_DECREASE not in findings
    assert warned_early(listener)


def test_a_run_that_says_nothing_is_silent(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    waveform_of = SpeechEvaluator._waveform

    def silent(evaluator: SpeechEvaluator, model: TTSModel, item: SpeechItem, generated: Generated) -> torch.Tensor:
        return torch.zeros_like(waveform_of(evaluator, model, item, generated))

    monkeypatch.setattr(SpeechEvaluator, "_waveform", silent)
    result, listener = run(world)
    assert result["learning"] == "silent"
    assert result["learning_outcome"] == "Amharic: no speech (2 of 2 sentences are silent)"
    assert "no speech (2 of 2 sentences are silent)" in warned_early(listener)


def test_a_resumed_run_is_compared_with_its_own_step_0(world: Workspace) -> None:
    folder = started(world, stop_after=4).directory
    start = learning.read_learning(folder).start
    started(world)
    record = learning.read_learning(folder)
    assert record.start == start
    assert record.start["am"].base_errors  # of the romanised base
    measured = record.report(8).languages[0].measurements
    assert measured.speech_change is not None
    assert measured.speech_change.count == 4
