"""The text of IndexTTS2 against the published package, and what does not belong together."""

from __future__ import annotations

import io
import json
import sys
import types
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from config.errors import UserError
from data import normalisers
from data.front_end import FrontEnd
from data.languages import indextts2_normaliser
from data.languages.indextts2_normaliser import marked, normalise, reads_as_chinese, spaced
from data.normalisers import dropped
from data.text_chunking import cut_as_published, split_for_model
from models.indextts2.family import base_front_end

REFERENCE = Path(__file__).parents[3] / "reference" / "indextts2"
PUBLISHED = json.loads((REFERENCE / "text.json").read_text("utf-8"))
MODEL = (REFERENCE / "bpe.model").read_bytes()
PIECES = sentencepiece.SentencePieceProcessor(model_proto=MODEL).get_piece_size()
NAMES = {True: "零一二三四五六七八九",
         False: ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")}


def verbalize(text: str, chinese: bool) -> str:
    """The rules of the stored outputs: digits one by one."""
    return text.translate({ord(str(digit)): name for digit, name in enumerate(NAMES[chinese])})


@pytest.fixture(scope="module")
def base() -> FrontEnd:
    return base_front_end(REFERENCE, PIECES + 1)


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package of rules."""

    class Normalizer:
        def __init__(self, lang: str, **_: object) -> None:
            self.chinese = lang == "zh"

        def normalize(self, text: str) -> str:
            return verbalize(text, self.chinese)

    module = types.ModuleType("wetext")
    module.__dict__["Normalizer"] = Normalizer
    monkeypatch.setitem(sys.modules, "wetext", module)
    indextts2_normaliser._rules.cache_clear()


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: repr(entry["text"])[:30])
def test_text_becomes_what_the_published_package_makes_of_it(entry: dict, base: FrontEnd) -> None:
    text = entry["text"]
    if len(text.strip()) > 1:
        assert reads_as_chinese(text) == entry["chinese"]
        assert marked(text, verbalize) == entry["marked"]
    assert base.spell(normalise(text, verbalize))[0] == entry["ids"]


@pytest.mark.parametrize("limit", [120, 30])
def test_segments_are_the_published_ones(limit: int, base: FrontEnd, rules: None) -> None:
    for entry in PUBLISHED:
        segments = cut_as_published(base.tokens(entry["text"], "en"), limit)
        ids = [[base.base_vocabulary.get(token, base.unknown_id) for token in one] for one in segments]
        assert ids == entry[f"segments_{limit}"]


def test_chunks_of_a_base_language_are_the_published_segments(base: FrontEnd, rules: None) -> None:
    known = [entry for entry in PUBLISHED if entry["ids"] and 2 not in entry["ids"]]
    assert len(known) > 20
    for entry in known:
        chunks = split_for_model(entry["text"], "en", base, 30 + base.overhead("en"), 600)
        assert [list(chunk.ids) for chunk in chunks] == [[0, *ids, 1] for ids in entry["segments_30"]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([".", "?", ",", "▁,", "-", "'", "▁'", "x", "▁y"]), max_size=60), st.integers(3, 20))
def test_segments_hold_every_token_in_order(tokens: list[str], limit: int) -> None:
    segments = cut_as_published(tokens, limit)
    assert [token for one in segments for token in one if "'" not in token] == [
        token for token in tokens if "'" not in token]
    assert all(len(one) <= limit + 1 for one in segments)


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_is_normalised_in_upper_case(text: str) -> None:
    found = spaced(text)
    assert spaced(found) == found


def test_missing_package_is_named_with_its_command(base: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wetext", None)
    indextts2_normaliser._rules.cache_clear()
    with pytest.raises(UserError, match="needs the package wetext, which is not installed") as caught:
        base.encode("THE LAW", "en")
    assert f"pip install {indextts2_normaliser.WETEXT}" in caught.value.hint
    assert indextts2_normaliser.WETEXT in (Path(__file__).parents[4] / "requirements-languages.txt").read_text("utf-8")
    assert "wetext" in base.unready("zh")
    assert base.extended("am", base.normaliser_for("am"), ["ሀ"], []).unready("am") == ""


def test_escapes_of_the_package_are_taken_out_and_texts_that_it_cannot_read_stay(
        rules: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def escaping(text: str) -> str:
        assert "£" not in text
        return text.replace("\\", "\\\\").replace('"', '\\"')

    monkeypatch.setattr(indextts2_normaliser, "_rules", lambda chinese: escaping)
    assert marked('He said "no"') == "He said 'no'"
    assert marked('"£5"') == "'£5'"
    assert marked("lone \ud800 surrogate") == "lone surrogate"


@pytest.mark.parametrize(("pieces", "rows"), [(PIECES, PIECES), (PIECES, PIECES + 1)])
def test_a_spare_row_is_allowed(tmp_path: Path, pieces: int, rows: int) -> None:
    (tmp_path / "bpe.model").write_bytes(MODEL)
    front_end = base_front_end(tmp_path, rows)
    assert (front_end.base_ids, front_end.prefix_size, front_end.size) == (pieces, rows, rows)
    assert (front_end.start_id, front_end.stop_id, front_end.unknown_id) == (0, 1, 2)
    assert front_end.tag_id("en") is None


@pytest.mark.parametrize("rows", [PIECES - 1, PIECES + 2, 12001])
def test_tokenizer_of_another_size_is_refused_with_both_numbers(tmp_path: Path, rows: int) -> None:
    (tmp_path / "bpe.model").write_bytes(MODEL)
    with pytest.raises(UserError, match=rf"has {PIECES} pieces, and gpt\.pth has {rows} text rows") as caught:
        base_front_end(tmp_path, rows, "gpt.pth")
    assert str(rows - 1) in caught.value.hint


def trained(**options: object) -> bytes:
    made = io.BytesIO()
    chosen: dict[str, object] = {"model_type": "bpe", "vocab_size": 60, "hard_vocab_limit": False} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["THE CAT SEES A DOG AND THE BIRD"] * 4), model_writer=made, num_threads=1,
        minloglevel=2, **chosen)
    return made.getvalue()


@pytest.mark.parametrize(("content", "message"), [
    (b"", "is not a whole SentencePiece model"),
    (MODEL[:-500], "is not a whole SentencePiece model"),
    (b'{"model": {"type": "BPE"}}', "is not a whole SentencePiece model"),
    (trained(model_type="unigram", vocab_size=30), "of another kind than BPE"),
    (trained(), r"start, stop and unknown at \(1, 2, 0\), IndexTTS2 at \(0, 1, 2\)"),
    (trained(bos_id=-1, eos_id=-1), "no pieces for the start and the end of a text"),
])
def test_wrong_bpe_model_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bpe.model").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        base_front_end(tmp_path, 61)
    assert "bpe.model" in caught.value.message
    assert caught.value.hint


def test_missing_bpe_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bpe\.model could not be read: No such file"):
        base_front_end(tmp_path, PIECES)


@pytest.mark.parametrize(("text", "language", "wanted"), [
    ("ሰላም ለዓለም። እንዴት ናችሁ፧ አንድ፣ ሁለት፤ ሦስት፡አራት", "am", "ሰላም ለዓለም. እንዴት ናችሁ? አንድ, ሁለት, ሦስት አራት."),
    ("Nabad, Dalkeenna", "so", "NABAD, DALKEENNA."),
    ("İstanbul'da ışık", "tr", "İSTANBUL'DA IŞIK."),
    ("क्या हाल है। ठीक", "hi", "क्या हाल है. ठीक."),
    ("مرحبا، كيف؟", "ar", "مرحبا, كيف?"),
    ("… !", "am", ""),
])
def test_new_language_is_written_with_marks_and_capitals_that_the_model_knows(text: str, language: str,
                                                                               wanted: str) -> None:
    name = normalisers.for_language(language, "indextts2")
    assert normalisers.normalise(text, name) == wanted


def test_what_a_new_language_leaves_out_is_counted(base: FrontEnd) -> None:
    assert dropped('„Nabad“ | Dalka', "indextts2-new-latin") == {"|": 1, "“": 1, "„": 1}
    assert dropped("ሰላም። ነው፧", "indextts2-new-ethiopic") == {}
