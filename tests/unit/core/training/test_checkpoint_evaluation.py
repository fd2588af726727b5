"""Validation between checkpoints, and when it ends a training; a resumed run counts on where it stood."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from config.errors import UserError
from core import train
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import Evaluated
from core.jobs.reporter import StopRequested
from core.jobs.state import JobState
from core.library import checkpoints
from core.library.checkpoints import RankingMetric
from core.model.loading import load_extension
from core.speech import measures
from core.speech.evaluation import SpeechEvaluator
from core.training import checkpoint, checkpoint_evaluation, dataloader
from core.training.checkpoint import EarlyStopping
from core.training.checkpoint_evaluation import ValidationLosses
from core.workspace import Workspace
from data.acoustics import audio
from tests.worlds import Listener, train_options
from ui import media

CPU = torch.device("cpu")
LOSSES = {1: 5.0, 2: 4.0, 3: 4.5, 4: 3.0, 5: 3.5, 6: 3.2, 7: 3.1, 8: 2.0}
OFTEN = {"evaluation_sentences": 0, "checkpoint_every": 100, "validate_every": 1, "steps": 8,
         "select_best_by": "speech_loss"}


def run(world: Workspace, monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None,
        **changes: object) -> Listener:
    """The run `one`, whose losses are those of `LOSSES`."""
    listener, steps = Listener(world.runs / "one", stop_after), list[int]()
    emit, before = listener.emit, checkpoint_steps(world.runs / "one")

    def heard(event) -> None:
        if event.kind == "step":
            steps.append(event.step)
        emit(event)

    monkeypatch.setattr(listener, "emit", heard)
    monkeypatch.setattr(checkpoint_evaluation, "measure_losses", lambda *given: {
        "am": ValidationLosses(4, LOSSES[steps[-1] if steps else before[-1]], 1.5, 0.25)})
    options = train_options(**{**OFTEN, **changes})
    if stop_after is None:
        train.run(options, world, listener)
    else:
        with pytest.raises(StopRequested):
            train.run(options, world, listener)
    return listener


def test_a_better_step_between_checkpoints_is_saved(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = run(world, monkeypatch, keep_last=9)
    assert checkpoint_steps(listener.directory) == [1, 2, 4, 8]
    assert checkpoints.read_ranking(listener.directory).best == 8
    first: Evaluated = listener.of("evaluated")[0]
    assert (first.speech_loss, first.text_loss, first.accuracy) == (5.0, 1.5, 0.25)
    assert first.languages == {"am": {"clips": 4, "speech_loss": 5.0, "text_loss": 1.5, "accuracy": 0.25}}


def test_patience_ends_the_run_with_the_best_step(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = run(world, monkeypatch, patience=2)
    assert [step.step for step in listener.of("step")] == [1, 2, 3, 4, 5, 6]
    assert listener.of("warning")[-1].message == (
        "Stopped early at step 6 of 8: 2 validations in a row did not improve the validation speech loss of 3.0000 "
        "at step 4.")
    assert checkpoints.read_ranking(listener.directory).best == 4
    assert checkpoint.load_state(listener.directory, 6).early_stopping == EarlyStopping(6, 4, 3.0, 2, 3.0)


def test_a_run_whose_last_step_exhausts_the_patience_did_not_stop_early(world: Workspace,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    listener = run(world, monkeypatch, patience=2, steps=6)
    assert listener.of("step")[-1].step == 6
    assert not [event for event in listener.of("warning") if "Stopped early" in event.message]


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_resumed_run_stops_where_the_whole_one_does(world: Workspace, monkeypatch: pytest.MonkeyPatch,
                                                       stop: int) -> None:
    run(world, monkeypatch, stop_after=stop, patience=2)
    listener = run(world, monkeypatch, patience=2)
    assert listener.of("step")[-1].step == 6
    assert checkpoints.read_ranking(listener.directory).best == 4


def test_a_step_counts_once_and_a_tie_is_no_better() -> None:
    patience = EarlyStopping().after(4, 2.0).after(4, 2.0).after(8, 2.0)
    assert patience == EarlyStopping(8, 4, 2.0, 1, 2.0)
    assert patience.should_stop(1)
    assert not patience.should_stop(0)


def test_loss_chooses_where_that_is_asked_for(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.training.checkpoint_evaluation.TrainingRun._synthesize",
                        lambda self: ({"am": 0.1}, {}, []))
    listener = run(world, monkeypatch, validate_every=0, checkpoint_every=4, evaluation_sentences=2)
    assert checkpoints.read_ranking(listener.directory).values == {4: 3.0, 8: 2.0}
    assert [event.errors for event in listener.of("evaluated")] == [{"am": 0.1}] * 2


def test_a_judge_that_is_asked_for_and_not_there_is_refused(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="evaluation_sentences is 0"):
        run(world, monkeypatch, select_best_by="cer")


def test_a_metric_of_an_evaluation_selects_the_best(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are those of the files. Of naturalness, which is better when it is higher, the distance to 5 is ranked."""
    scores = iter([2.0, 3.0, 4.5, 3.5])  # two samples a checkpoint
    monkeypatch.setattr(measures, "naturalness", lambda *_: next(scores))
    generate, reasons = SpeechEvaluator.generate, cycle(["limit", "stop"])
    monkeypatch.setattr(SpeechEvaluator, "generate", lambda *given: [
        replace(one, finish_reason=next(reasons)) for one in generate(*given)])
    listener = run(world, monkeypatch, validate_every=0, checkpoint_every=4, evaluation_sentences=2,
                   evaluation_metrics=True, select_best_by="naturalness")
    found = [event.metrics for event in listener.of("evaluated")]
    assert [one["naturalness"] for one in found] == [2.5, 4.0]
    assert checkpoints.read_ranking(listener.directory) == checkpoints.Ranking(
        RankingMetric.NATURALNESS, 8, {4: 2.5, 8: 1.0})
    data = dataloader.load_training_data(world, "demo-am", load_extension(world, "tiny-am", CPU))
    originals = {one.text: one.original for one in data.sentences}
    samples = [event for event in listener.of("sample") if event.step == 8]
    distances = [measures.mel_cepstral_distance(*(measures.mel_cepstra(*audio.read(path)) for path in (
        listener.directory / event.path, originals[event.text]))) for event in samples]
    assert len(distances) == 2
    assert found[-1]["mcd"] == pytest.approx(sum(distances) / 2, rel=0.02)  # the file has 16 bits
    assert set(found[-1]) == {"wer", "deletions", "repetition", "similarity", "naturalness", "mcd", "missing_stop",
                              "long_silence", "clipping"}
    assert -1 <= found[-1]["similarity"] <= 1
    assert [one["missing_stop"] for one in found] == [0.5, 0.5]
    rows = media.curves_csv(cast(JobState, SimpleNamespace(steps=(), evaluations=listener.of("evaluated"))))
    assert "metric.naturalness" in rows.splitlines()[0]


def test_own_sentences_are_spoken_at_each_checkpoint_also_by_a_run_that_goes_on(
        world: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = tmp_path / "own.tsv"
    texts.write_text("am\tሀለ መሰ\nen\tone\nam\tረቀ በተ\n", encoding="utf-8")
    changes = {"validate_every": 0, "checkpoint_every": 4, "evaluation_sentences": 5, "evaluation_texts": str(texts),
               "select_best_by": "long_silence"}
    first = run(world, monkeypatch, stop_after=5, **changes)
    texts.unlink()
    again = run(world, monkeypatch, **changes)
    spoken = [(event.step, event.text) for listener in (first, again) for event in listener.of("sample")]
    assert spoken == [(step, text) for step in (4, 8) for text in ("ሀለ መሰ", "ረቀ በተ")]
    assert [set(event.metrics) for event in again.of("evaluated")] == [{"long_silence"}]


@pytest.mark.parametrize(("text", "changes", "message"), [
    ("en\tone", {}, "has no sentence in Amharic"), ("am", {}, "is not a language code, a tab and a sentence"),
    ("am\tሀለ", {"select_best_by": "mcd"}, "evaluation_texts have no recordings"),
    ("am\tሀለ", {"select_best_by": "wer", "evaluation_sentences": 0}, "evaluation_sentences is 0"),
])
def test_a_metric_that_cannot_be_measured_is_refused_before_the_first_step(
        world: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, changes: dict[str, object],
        message: str) -> None:
    (tmp_path / "own.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        run(world, monkeypatch, **{"evaluation_sentences": 2, "evaluation_texts": str(tmp_path / "own.tsv"), **changes})


def test_losses_and_accuracy_are_those_of_the_logits(world: Workspace) -> None:
    tts = load_extension(world, "tiny-am", CPU)
    data = dataloader.load_training_data(world, "demo-am", tts)
    samples = dataloader.held_out_samples(data.held_out, data.train, tts.lm)
    from core.model.precision import Precision

    found = checkpoint_evaluation.measure_losses(tts, {"am": samples}, 3,
                                                 Precision("cpu", torch.float32, "for the test"))["am"]
    speech = text = hits = 0.0
    for sample in samples:
        probe = tts.lm.probe(sample)
        wanted = torch.tensor([*sample.speech_codes, 28])  # the stop comes last
        logs = torch.log_softmax(probe.speech_logits, -1)
        speech -= float(logs[torch.arange(len(wanted)), wanted].sum())
        hits += int((logs.argmax(-1) == wanted).sum())
        ids = torch.tensor(sample.text_ids)
        text -= float(torch.log_softmax(probe.text_logits, -1)[torch.arange(len(ids) - 1), ids[1:]].sum())
    codes, letters = sum(len(item.speech_codes) + 1 for item in samples), sum(len(s.text_ids) - 1 for s in samples)
    assert (found.clips, found.accuracy) == (4, pytest.approx(hits / codes))
    assert found.speech_loss == pytest.approx(speech / codes, rel=1e-5)
    assert found.text_loss == pytest.approx(text / letters, rel=1e-5)


def test_base_languages_are_measured_in_full_alone(world: Workspace) -> None:
    for scope, languages in (("gated", ["am"]), ("full", ["am", "en", "fr"])):
        listener = Listener(world.runs / scope)
        train.run(train_options(scope=scope, steps=1, evaluation_sentences=0), world, listener)
        *begun, event = listener.of("evaluated")
        assert [one.step for one in begun] == ([0] if scope == "full" else [])  # what drift is measured from
        assert sorted(event.languages) == languages
        assert all(0 < one["speech_loss"] < 10 for one in event.languages.values())


def test_validating_leaves_the_chance_of_training_alone(world: Workspace) -> None:
    """The first validation of a process loads what draws random numbers; in a resumed run it comes at another step."""
    changes = {"evaluation_sentences": 0, "checkpoint_every": 8, "select_best_by": "speech_loss"}
    often, seldom = Listener(world.runs / "often"), Listener(world.runs / "seldom")
    train.run(train_options(scope="full", validate_every=3, **changes), world, often)
    train.run(train_options(scope="full", validate_every=0, **changes), world, seldom)
    assert [step.speech_loss for step in often.of("step")] == [step.speech_loss for step in seldom.of("step")]


def test_a_kill_between_saving_and_ranking_loses_no_value(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: object, value: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("core.training.checkpoint_evaluation.TrainingRun._rank", killed)
        with pytest.raises(KeyboardInterrupt):
            run(world, patch)
    assert checkpoint_steps(world.runs / "one") == [1]
    assert checkpoints.read_ranking(world.runs / "one").values == {}
    run(world, monkeypatch)
    assert checkpoints.read_ranking(world.runs / "one").values == {1: 5.0, 2: 4.0, 4: 3.0, 8: 2.0}


def test_small_improvements_count_when_they_add_up_to_a_large_one() -> None:
    stopping, counts = EarlyStopping(), []
    for step, value in enumerate((3.0, 2.95, 2.92, 2.85, 2.84, 2.85), 1):
        stopping = stopping.after(step, value, min_improvement=0.1)
        counts.append(stopping.validations_without_improvement)
    assert counts == [0, 1, 2, 0, 1, 2]  # 2.85 is more than a tenth below 3.0
    assert (stopping.best_step, stopping.best) == (5, 2.84)  # the best is the lowest all the same


def test_a_minimum_improvement_ends_the_run_sooner(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = run(world, monkeypatch, patience=2, min_improvement=1.5, keep_last=9)
    assert [step.step for step in listener.of("step")] == [1, 2, 3]
    assert checkpoints.read_ranking(listener.directory).best == 2
