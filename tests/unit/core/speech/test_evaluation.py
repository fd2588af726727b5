"""Errors over many sentences, and what is done with those that cannot be spoken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from config.errors import UserError
from config.loading import parse_options
from config.schema import EvaluateOptions, TrainOptions
from core.library.evaluation_report import EvaluatedClip, group_estimates
from core.model.loading import TTSModel, extend_model, load_base
from core.model.prefix import rows_name
from core.speech import evaluation
from core.speech.evaluation import ListedSentence, SpeechEvaluator
from core.training.checkpoint_evaluation import load_custom_sentences
from core.workspace import Workspace
from data.languages.verbalizer import checked_rules
from data.manifest import HeldOutSentence
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


@pytest.fixture(scope="module")
def amharic(base: TTSModel) -> TTSModel:
    """A model that knows five letters of Amharic."""
    tables = {rows_name(table): base.lm.module.get_parameter(table) for table in base.lm.text_tables}
    return extend_model(base, base.front_end.extended("am", "ethiopic", list("ሰላምወደ"), []),
                        {name: torch.zeros(6, table.shape[1]) for name, table in tables.items()})


def test_lines_of_a_list_may_have_a_category(tmp_path: Path) -> None:
    path = tmp_path / "own.tsv"
    path.write_text("am\tሰላም\tgreeting\n\nam\tወደ\nam\tሰላም\n", encoding="utf-8")
    assert evaluation.read_sentences(path) == [ListedSentence("am", "ሰላም", "greeting"), ListedSentence("am", "ወደ")]
    path.write_text("am\tሰላም\tgreeting\tmore\n", encoding="utf-8")
    with pytest.raises(UserError, match="Line 1 of"):
        evaluation.read_sentences(path)


def test_the_shipped_list_has_a_hundred_sentences_in_eight_categories() -> None:
    listed = evaluation.read_sentences(Path(EvaluateOptions(sentences="categories").sentences))
    assert len(listed) == 100
    categories = [one.category for one in listed]
    assert {category: categories.count(category) >= 12 for category in categories} == dict.fromkeys(
        ("greeting", "question", "long", "rare letters", "numbers and dates", "abbreviations",
         "names and mixed scripts", "emotion"), True)
    assert parse_options(TrainOptions, {"evaluation_texts": "categories"}).evaluation.evaluation_texts == str(
        Path(EvaluateOptions(sentences="categories").sentences))


def custom_sentences(tts: TTSModel, folder: Path, text: str, unknown: str) -> tuple[dict[str, list[str]], str]:
    (folder / "own.tsv").write_text(text, encoding="utf-8")
    warnings: list[str] = []
    options = parse_options(TrainOptions, {"evaluation_texts": str(folder / "own.tsv"), "evaluation_unknown": unknown})
    found = load_custom_sentences(options.evaluation, tts, ("am",), folder, warnings.append)
    return {language: [one.text for one in some] for language, some in found.items()}, " ".join(warnings)


def test_a_sentence_with_an_unknown_letter_is_spoken_without_it_and_named(amharic: TTSModel, tmp_path: Path) -> None:
    texts, warning = custom_sentences(amharic, tmp_path, "am\tሰላም ሐ ወደ\tgreeting\nam\tሰላም\n", "leave_out")
    assert texts == {"am": ["ሰላም ወደ", "ሰላም"]}
    assert "1 of 2 evaluation texts" in warning
    assert "“ሰላም ሐ ወደ” (without ሐ)" in warning
    assert (tmp_path / "evaluation_texts.tsv").read_text("utf-8") == "am\tሰላም ሐ ወደ\tgreeting\nam\tሰላም\n"


def test_a_sentence_with_an_unknown_letter_is_refused_by_name(amharic: TTSModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1 of 2 evaluation texts cannot be read by the model: “ሰላም ሐ” .without ሐ"):
        custom_sentences(amharic, tmp_path, "am\tሰላም ሐ\nam\tሰላም\n", "refuse")


def test_sentences_that_cannot_be_read_even_so_are_named(amharic: TTSModel, tmp_path: Path) -> None:
    texts, warning = custom_sentences(amharic, tmp_path, f"am\tሐሐ\nam\tሰላም\nam\t{'ሰላም' * 40}\n", "leave_out")
    assert texts == {"am": ["ሰላም"]}
    assert "2 of 3 evaluation texts cannot be read" in warning
    assert "“ሐሐ”" in warning
    (other := tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="None is left in Amharic"):
        custom_sentences(amharic, other, "am\tሐሐ\n", "leave_out")


def clip(number: int, text: str, edits: float, category: str, speaker: str) -> EvaluatedClip:
    return EvaluatedClip("run:a", "am", number, text, "", "", 0, "", "", 1.0, "", "", "stop",
                         {"cer": (edits, 10.0)}, category, speaker)


def test_estimates_are_grouped_by_category_length_and_speaker() -> None:
    clips = [clip(number, "a" * (number + 5), float(number % 2), ("long", "greeting")[number % 2], "ann")
             for number in range(12)]
    groups = group_estimates(clips)
    by_category = {one.group: one.estimates["cer"] for one in groups if one.kind == "category"}
    assert {name: (found.value, found.sentences) for name, found in by_category.items()} == {
        "greeting": (pytest.approx(0.1), 6), "long": (0.0, 6)}
    lengths = [one for one in groups if one.kind == "length"]
    assert [one.estimates["cer"].sentences for one in lengths] == [3, 3, 3, 3]
    assert lengths[0].group == "1: up to 7 letters"
    assert [one for one in groups if one.kind == "speaker"] == []  # there is one
    two = [*clips, clip(12, "b" * 9, 5.0, "", "bob")]
    assert {one.group for one in group_estimates(two) if one.kind == "speaker"} == {"ann", "bob"}
