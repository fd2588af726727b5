"""The cases that outsiders met, by their commands: run where LISAN_OUTSIDE names the folder with `cases`.

Inputs of the same kinds that are built here are in `test_sound_files` (03, 05, 06, 10, 29, 30, 55), `test_tables` (01,
13, 16, 44, 45, 46), `test_unspoken_text` (18), `test_tokenizer` (19, 20, 41), `test_subtitles` (48), `test_text_match`
(52) and `test_text_chunking_sentences` (56).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core import prepare
from core.model import loading
from core.text.tokenizer_report import TokenizerReport
from core.workspace import Workspace
from data.front_end import FrontEnd
from data.sound_files import read_samples
from data.text_chunking import split_text
from tests.unit.core.test_tokenizer import write
from tests.unit.outside import by_command, needs_ffmpeg, prepared
from tests.unit.small_data import SmallFamily, base

ROOT = Path(os.environ.get("LISAN_OUTSIDE", "")) / "cases"
pytestmark = pytest.mark.skipif("LISAN_OUTSIDE" not in os.environ, reason="LISAN_OUTSIDE names no folder with cases")


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    family = SmallFamily()
    monkeypatch.setattr(prepare, "family", lambda name: family)
    monkeypatch.setattr(loading, "family_named", lambda name: family)
    base().save(workspace.models / "tiny")
    return workspace


def case(name: str) -> Path:
    return next(ROOT.glob(f"{name.partition('/')[0]}-*")) / (name.partition("/")[2] or "in")


@needs_ffmpeg
@pytest.mark.parametrize(("name", "language", "clips", "said"), [
    ("01", "sw", 8, ()), ("13", "sw", 6, ()), ("16/in/v.zip", "sw", 3, ()),
    ("03", "sw", 6, ("channels 1 and 2 cancel each other", )),
    ("03/exact", "sw", 2, ("channels 1 and 2 cancel each other", )),
    ("05", "sw", 4, ("channels 1 and 2 hold different sound", )),
    ("06", "sw", 6, ("a constant offset (DC) of 20.0%", )),
    ("10", "sw", 6, ("its header states 2.1 s, and 12.6 s decode", )),
    ("18", "sw", 12, ("have text in [ ]", "have text in ( )", "have tags in < >", "have music signs", "have times",
                      "have HTML entities", "have text in { }", "have text in * *", "a speaker's name before a colon",
                      "signs for a new speaker")),
    ("29", "sw", 6, ()), ("30", "sw", 6, ("its header states", )),
    ("44/in/one", "sw", 1, ("This dataset alone cannot be trained on: it has 1 training clip", )),
    ("44/in/two", "sw", 2, ("it has 1 training clip of 1 speaker and 1 held out", )),
    ("45/in/a", "sw", 3, ("its language is 'en', and 'sw' is imported", )),
    ("45/in/b", "sw", 3, ("its language is 'en', and 'sw' is imported", )),
    *((f"45/in/{letter}", "sw", 4, ()) for letter in "cdefghij"),
    *((f"46/in/{kind}", "sw", 4, ()) for kind in ("chat", "csm", "f5", "indextts", "voxcpm")),
    ("46/in/nan", "sw", 2, ("has nothing to speak", )), ("46/in/qwen", "en", 4, ()),
    ("48", "sw", 4, ("rolling captions: 7 lines", )), ("20", "uz", 6, ()),
    ("52", "sw", 8, ()), ("55", "sw", 9, ("the file is cut off", )),
])
def test_a_case_gives_its_clips_and_what_is_odd_is_said(ready: Workspace, name: str, language: str, clips: int,
                                                        said: tuple[str, ...]) -> None:
    source = ROOT / next(ROOT.glob(f"{name[:2]}-*")).name / name.partition("/")[2] if "/" in name else case(name)
    dataset, warnings = prepared(ready, source, language)
    assert len(dataset.clips) == clips, warnings
    for words in said:
        assert words in warnings
    for clip in dataset.clips:
        waveform, rate = read_samples(dataset.audio_path(clip))
        whole_s = clip.trimmed_start_s + clip.duration_s + clip.trimmed_end_s
        assert len(waveform) / rate == pytest.approx(whole_s, abs=0.01)
        if name in ("29", "30"):
            assert (3.5 if name == "30" else 7.5) < whole_s < 10
        assert waveform.std() > 0.01
        assert abs(waveform.mean()) < 2e-3


@pytest.mark.parametrize(("name", "language", "said"), [
    ("46/in/qwen", "sw", "its language is 'English', and 'sw' is imported"),
    ("46/in/utterances", "sw", "The part begins at 1000 s"),
])
def test_a_case_that_cannot_be_read_is_refused_with_the_reason(ready: Workspace, name: str, language: str,
                                                               said: str) -> None:
    source = next(ROOT.glob(f"{name[:2]}-*")) / name.partition("/")[2]
    code, warnings = by_command(ready, "prepare", "--source", str(source), "--dataset", "d", "--language", language)
    assert code == 1
    assert said in warnings


def tokenizer_of(workspace: Workspace, *words: str) -> tuple[FrontEnd, TokenizerReport]:
    """The tokenizer that the command makes of the dataset `d`."""
    code, warnings = by_command(workspace, "tokenizer", "--model", "tiny", "--dataset", "d", "--tokenizer", "t", *words)
    assert code == 0, warnings
    return FrontEnd.load(workspace.tokenizer("t")), TokenizerReport.load(workspace.tokenizer("t"))


@pytest.mark.parametrize("code", ["tr", "tr-TR", "az", "az-Latn", "crh", "gag"])
def test_turkish_texts_have_no_second_dot(ready: Workspace, code: str) -> None:
    dataset, _ = prepared(ready, case("19"), code)
    front_end, report = tokenizer_of(ready)
    read = [front_end.normalise(clip.text, dataset.card.language) for clip in dataset.clips]
    assert "ışık ve karanlık" in read
    assert not any("\u0307" in text for text in read)
    assert "ı" in report.characters_added
    assert "\u0307" not in (*report.characters_added, *report.characters_reused)


def test_uzbek_apostrophes_are_one(ready: Workspace) -> None:
    dataset, _ = prepared(ready, case("20"), "uz")
    front_end, report = tokenizer_of(ready)
    assert {front_end.normalise(clip.text, "uz") for clip in dataset.clips} == {"o'zbekiston go'zal"}
    assert {*report.characters_added, *report.characters_reused} == set("o'zbekiston go'zal") - {" "}


@pytest.mark.parametrize(("name", "reason"), [
    *((name, "") for name in ("addedlate.json", "bytefb.vocab", "dupids.json", "eow.json", "gaps.json", "hf_dir",
                              "identity.vocab", "metaspace.json", "nfd.json", "nmt_nfkc.vocab", "uds.vocab",
                              "vocab.json", "vocab.txt")),
    ("bytelevel.json", "is a tokenizer of bytes"), ("wordlevel.json", "is a WordLevel tokenizer"),
    ("texts.txt", "is not a list of pieces: one of its lines is")])
def test_a_tokenizer_of_ones_own_is_used_or_refused_by_name(ready: Workspace, name: str, reason: str) -> None:
    """Pieces are taken by their text, whatever their ids are there, and no id of the base moves."""
    texts = (case("41") / "texts.txt").read_text("utf-8").splitlines()[:20]
    write(ready, "d", "si", tuple(texts))
    words = ("--tokenizer-file", str(case("41") / name))
    if reason:
        code, warnings = by_command(ready, "tokenizer", "--model", "tiny", "--dataset", "d", "--tokenizer", "t", *words)
        assert code == 1
        assert f"{name} {reason}" in warnings
        assert not (ready.tokenizers / "t").exists()
        return
    front_end, report = tokenizer_of(ready, *words)
    assert report.base_unchanged
    assert report.unknown_rate == 0
    for language, text in (("en", "the cat sees a dog"), ("fr", "le chat")):
        assert front_end.encode(text, language).tolist() == base().encode(text, language).tolist()
    assert min(token.id for token in front_end.added_tokens()) == base().size


@pytest.mark.parametrize("limit", [45, 60, 120, 200])
def test_a_long_sentence_with_abbreviations(limit: int) -> None:
    text = ("After the meeting Dr. Brown and Mrs. Smith of St. Louis, who had lived in the U.S. for years, e.g. in "
            "Ohio, went home by the last train together")
    chunks = split_text(f"{text}, {text[0].lower()}{text[1:]}.", limit, len, language="en")
    assert [chunk.boundary for chunk in chunks].count("sentence") == 1
    assert not any(chunk.text.endswith(".") for chunk in chunks[:-1])
