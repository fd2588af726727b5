"""Pieces appended to SentencePiece models that are trained here: what was there stays, to the id."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Literal

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from small_data import AMHARIC

import data
from config.errors import UserError
from core.text.pieces import train_pieces
from data.sentencepiece_model import append, changed, new_characters

Kind = Literal["unigram", "bpe"]
KINDS: tuple[Kind, ...] = ("unigram", "bpe")
PROBES = [str(json.loads(line)["text"]) for line in
          (Path(str(data.__file__)).parent / "probe_sentences.jsonl").read_text("utf-8").splitlines()]
LATIN = [*(text for text in PROBES if text.isascii()), "The quick brown fox jumps over the lazy dog.",
         "How vexingly quick daft zebras jump!", "Pack my box with 5 dozen liquor jugs: now."]
MARK = "<laugh>"
PROPERTY = settings(max_examples=25, deadline=None)


@cache
def trained(kind: Kind, *, bytes_too: bool = False, texts: tuple[str, ...] = tuple(LATIN)) -> bytes:
    made, size = io.BytesIO(), 1300 if len(texts) > 50 else 400 if bytes_too else 120
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 3), model_writer=made, model_type=kind, vocab_size=size,
        hard_vocab_limit=False, byte_fallback=bytes_too, user_defined_symbols=[MARK], pad_id=3, num_threads=1,
        minloglevel=2)
    return made.getvalue()


@cache
def amharic() -> tuple[str, ...]:
    pieces = train_pieces(AMHARIC * 3, "bpe", 30)
    return (*pieces.characters, *dict.fromkeys(left + right for left, right in pieces.merges))


def processor(content: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=content)


def rows(content: bytes) -> list[tuple[str, float, int]]:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(content)
    return [(piece.piece, piece.score, piece.type) for piece in model.pieces]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bytes_too", [False, True])
def test_old_pieces_stay_as_they_are_and_new_ones_stand_last(kind: Kind, bytes_too: bool) -> None:
    before = trained(kind, bytes_too=bytes_too)
    made = append(before, amharic())
    old, new = rows(before), rows(made.content)
    assert new[:len(old)] == old
    added = [piece for piece, _, _ in new[len(old):]]
    assert sorted(added) == sorted(set(amharic()) - {piece for piece, _, _ in old} - set(made.left_out))
    assert len({piece for piece, _, _ in new}) == len(new)
    assert {made.ids[piece] for piece in added} == set(range(len(old), len(new)))
    assert {kind for _, _, kind in new[len(old):]} == {1}  # normal ones
    reader, earlier = processor(made.content), processor(before)
    for special in ("bos_id", "eos_id", "pad_id", "unk_id"):
        assert getattr(reader, special)() == getattr(earlier, special)()
    assert reader.piece_to_id(MARK) == earlier.piece_to_id(MARK)


@pytest.mark.parametrize("kind", KINDS)
def test_the_new_language_is_read_by_its_own_pieces(kind: Kind) -> None:
    made = append(trained(kind), amharic())
    reader = processor(made.content)
    for text in AMHARIC:
        ids = reader.encode(text)
        assert reader.unk_id() not in ids
        assert reader.decode(ids) == text
        assert {reader.id_to_piece(one) for one in ids if one < made.size_before} == {"\u2581"}
        longer = [reader.id_to_piece(one) for one in ids if len(reader.id_to_piece(one)) > 1]
        assert longer


def test_one_long_piece_is_taken_where_two_short_ones_would_do() -> None:
    made = append(trained("unigram"), ("ሰላም", "ሰ", "ላ", "ም", "ሰላ", "ላም"))
    assert processor(made.content).encode("ሰላም", out_type=str)[-1] == "ሰላም"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bytes_too", [False, True])
def test_every_base_sentence_keeps_its_ids(kind: Kind, bytes_too: bool) -> None:
    before = trained(kind, bytes_too=bytes_too, texts=tuple(PROBES))
    made = append(before, amharic())
    assert len(made.ids) > 20
    assert changed(before, made.content, PROBES) == []


def old_text(bytes_too: bool) -> st.SearchStrategy[str]:
    known = "".join(sorted({character for text in LATIN for character in text}))
    return st.lists(st.one_of(st.text(known, max_size=20), st.sampled_from([MARK, " ", "the ", "qu"]),
                              st.text("жщ漢" if bytes_too else "жщ", max_size=3))).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bytes_too", [False, True])
@PROPERTY
@given(drawn=st.data())
def test_any_text_without_a_new_character_keeps_its_ids(kind: Kind, bytes_too: bool, drawn: st.DataObject) -> None:
    """Unknown characters that are not appended may stand in it too."""
    before = trained(kind, bytes_too=bytes_too)
    text = drawn.draw(old_text(bytes_too))
    pieces = drawn.draw(st.lists(st.text("ሰላምነውthe▁", min_size=1, max_size=5), max_size=12))
    made = append(before, [*pieces, *"ሰላምነው"])
    assert not new_characters(before, text) & set("ሰላምነው")
    assert changed(before, made.content, [text]) == []


@pytest.mark.parametrize("kind", KINDS)
@PROPERTY
@given(pieces=st.lists(st.text("ሰላምnqእ▁the<s>", max_size=6), max_size=15))
def test_what_cannot_be_appended_is_named_and_appending_again_adds_nothing(kind: Kind, pieces: list[str]) -> None:
    before = trained(kind)
    made = append(before, pieces)
    assert set(made.ids) | set(made.left_out) == set(pieces)
    assert not set(made.ids) & set(made.left_out)
    again = append(made.content, list(made.ids))
    assert (again.content, again.ids, again.left_out) == (made.content, made.ids, {})


@pytest.mark.parametrize(("piece", "why"), [
    ("tqh", "only characters that the model knows"), ("<s>", "is a mark"), ("<unk>", "is a mark"), ("", "is empty"),
    ("ሰ ላ", "holds a space"), ("ﬁ", "written in another way"),
])
def test_each_reason_is_said(piece: str, why: str) -> None:
    assert why in append(trained("unigram"), [piece]).left_out[piece]


def test_a_piece_that_bpe_cannot_make_is_left_out_there_alone() -> None:
    assert "no two pieces joined" in append(trained("bpe"), ["ሰ", "ላ", "ም", "ሰላም"]).left_out["ሰላም"]
    assert not append(trained("unigram"), ["ሰላም"]).left_out


def test_what_is_no_such_model_is_refused() -> None:
    with pytest.raises(UserError, match="x.model is not a whole SentencePiece model"):
        append(b"{}", ["ሰ"], "x.model")
    with pytest.raises(UserError, match="of words or characters"):
        append(trained("char"), ["ሰ"])  # type: ignore[arg-type]
