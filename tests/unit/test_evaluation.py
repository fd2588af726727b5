"""Errors over many sentences, and what is done with those that cannot be spoken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core.model.loading import TTSModel, extend_model, load_base
from core.model.prefix import rows_name
from core.speech import evaluation
from core.speech.evaluation import HeldOutSentence, SpeechEvaluator
from core.workspace import Workspace
from data.languages.verbalizer import checked_rules
from models.base import RecognitionScore, Sampling
from tests.worlds import ENGLISH, FRENCH, write_model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TTSModel:
    workspace = Workspace.open(tmp_path_factory.mktemp("evaluate"))
    write_model(workspace.models / "tiny")
    return load_base(workspace, "tiny", torch.device("cpu"))


def studio_of(tts: TTSModel) -> SpeechEvaluator:
    """With the recogniser that comes with the model."""
    return SpeechEvaluator.of(tts, tts.family.load_recogniser(tts.base_folder))


def test_an_error_is_over_all_letters_and_not_a_mean_of_means() -> None:
    score = evaluation.corpus_score("en", [RecognitionScore("a" * 90, "", 9), RecognitionScore("b" * 10, "", 10)])
    assert score.error == pytest.approx(0.19)
    assert evaluation.corpus_score("en", []).sentences == 0


def test_sentences_are_spread_evenly() -> None:
    sentences = [HeldOutSentence(str(index), None) for index in range(40)]
    assert [item.text for item in evaluation.spread_evenly(sentences, 4)] == ["0", "10", "20", "30"]
    assert evaluation.spread_evenly(sentences[:3], 4) == sentences[:3]
    assert evaluation.spread_evenly(sentences, 0) == []


def test_what_cannot_be_read_is_counted(base: TTSModel) -> None:
    sentences = [HeldOutSentence(text, None) for text in ("the cat", "ሰላም", "...", "a" * 60)]
    score, said = evaluation.evaluate_language(studio_of(base), base, "en", sentences, Sampling())
    assert (score.sentences, score.left_out) == (1, 3)
    assert [item.text for item in said] == ["the cat"]


def test_voices_take_turns_over_batches(base: TTSModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_BATCH", 3)
    said = studio_of(base).speak(base, [("en", text) for text in ENGLISH], Sampling())
    assert [item.voice for item in said] == ["high", "low", "high", "low"]
    assert all(item.score is not None for item in said)


def test_languages_share_batches_and_each_begins_with_the_first_voice(
    base: TTSModel, monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    generate = base.lm.generate
    monkeypatch.setattr(base.lm, "generate", lambda texts, *more: sizes.append(len(texts)) or generate(texts, *more))
    sentences = {code: [HeldOutSentence(text, None) for text in texts] for code, texts in (
        ("en", (*ENGLISH[:3], "ሰላም")), ("fr", FRENCH[:2]))}
    found = evaluation.evaluate_languages(studio_of(base), base, sentences, Sampling())
    assert sizes == [5]
    assert [item.voice for item in found["en"][1]] == ["high", "low", "high"]
    assert [item.voice for item in found["fr"][1]] == ["high", "low"]
    assert (found["en"][0].sentences, found["en"][0].left_out, found["fr"][0].left_out) == (3, 1, 0)
    for language, (score, said) in found.items():
        alone, heard = evaluation.evaluate_language(studio_of(base), base, language, sentences[language], Sampling())
        assert alone == score
        assert all(torch.equal(one.waveform, other.waveform) for one, other in zip(said, heard, strict=True))


def test_a_recording_is_scored_as_it_is(base: TTSModel) -> None:
    sentences = evaluation.base_recordings(base, "en")
    assert len(sentences) == 4
    assert all(isinstance(item.original, Path) for item in sentences)
    score = evaluation.score_recording(studio_of(base), "en", sentences[0])
    assert score.reference == sentences[0].text.replace(" ", "") or score.reference == sentences[0].text


def test_a_recogniser_is_given_the_words_that_are_spoken(tmp_path: Path) -> None:
    """Digits are heard as words: an error against the digits would be none of the voice's."""
    workspace = Workspace.open(tmp_path)
    write_model(workspace.models / "tiny")
    base = load_base(workspace, "tiny", torch.device("cpu"))
    rules = checked_rules("words: {x: ሰላም}\nalphabet: [ሀ-ፚ]", "test")
    tables = {rows_name(table): base.lm.module.get_parameter(table) for table in base.lm.text_tables}
    tts = extend_model(base, base.front_end.extended("am", "ethiopic", list("ሰላም"), [], rules),
                     {name: torch.zeros(4, table.shape[1]) for name, table in tables.items()})
    said = studio_of(tts).speak(tts, [("am", "x")], Sampling())
    assert [item.text for item in said] == ["ሰላም"]
