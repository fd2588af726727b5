"""New pieces for a SentencePiece model, unigram or BPE, after all that it has.

Ids, scores and kinds of the old pieces stay as they are, those of control, unknown and byte pieces among them. Every
appended piece must hold a character that the model has in no piece of its own ("new character"). Then a text that holds
no new character, once the model has normalised it, gets the very ids that it had: no appended piece can match within
it, and what the search takes from all pieces together does not move (in unigram the least score, below which the
unknown lies, and the greatest, above which user-defined pieces lie; BPE takes nothing from all). A text with a new
character was unknown to the old model at that place, or was spelled in bytes there; it changes at the new character and
may change beside it. A piece of old characters alone cannot be appended so: whoever used it would change old texts.

Shapes: `sentencepiece_model.proto` of google/sentencepiece; unigram after Kudo 2018, BPE after Sennrich et al. 2016.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sentencepiece

from config.errors import UserError

if TYPE_CHECKING:
    Proto = Any  # protobuf makes the class when it is imported

_MARKS = ("CONTROL", "UNKNOWN", "BYTE", "UNUSED")
_UNIGRAM, _BPE = 1, 2  # of TrainerSpec.ModelType
_LEAST = 0.75  # two appended pieces must cost more than one of both: the least score times this is the best of them


@dataclass(frozen=True)
class Appended:
    """A model with more pieces. `ids` holds all that were wanted, those too that it had; `left_out` says why not."""

    content: bytes
    ids: Mapping[str, int]
    left_out: Mapping[str, str]
    size_before: int


def append(content: bytes, pieces: Sequence[str], name: str = "the model") -> Appended:
    """`content` with `pieces`, the best first, behind its own; `UserError` for no model, or one of another kind."""
    model, processor = _parsed(content, name)
    old = {piece.piece: number for number, piece in enumerate(model.pieces)}
    known = _characters(model)
    ids: dict[str, int] = {}
    left_out: dict[str, str] = {}
    new: list[str] = []
    reached = _reached(model, pieces)
    for piece in dict.fromkeys(pieces):
        if piece in old:
            if _kind(model, old[piece]) in _MARKS:
                left_out[piece] = "is a mark of the model, which no text may hold"
            else:
                ids[piece] = old[piece]
        elif why := _unfit(piece, known, processor):
            left_out[piece] = why
        elif model.trainer_spec.model_type == _BPE and piece not in reached:
            left_out[piece] = "is no two pieces joined, so BPE would never make it"
        else:
            new.append(piece)
    for piece, score in zip(new, _scores(model, len(new)), strict=True):
        ids[piece] = len(model.pieces)
        model.pieces.add(piece=piece, score=score)
    model.trainer_spec.vocab_size = len(model.pieces)
    made = model.SerializeToString()
    _parsed(made, name)
    return Appended(made, ids, left_out, len(old))


def new_characters(content: bytes, text: str) -> frozenset[str]:
    """Characters of `text`, as the model normalises it, that the model has in no piece: where ids may differ."""
    model, processor = _parsed(content, "the model")
    return frozenset(processor.normalize(text)) - _characters(model) if text else frozenset()


def changed(before: bytes, after: bytes, texts: Iterable[str]) -> list[str]:
    """Those of `texts` that the two models encode to other ids."""
    one, two = _parsed(before, "the old model")[1], _parsed(after, "the new model")[1]
    return [text for text in texts if one.encode(text) != two.encode(text)]


def _parsed(content: bytes, name: str) -> tuple[Proto, sentencepiece.SentencePieceProcessor]:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        model.ParseFromString(content)
    except (RuntimeError, TypeError, ValueError, DecodeError) as error:
        raise UserError(f"{name} is not a whole SentencePiece model.", "Fetch or make it again.") from error
    if model.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        raise UserError(f"{name} is a SentencePiece model of words or characters.",
                        "Pieces can be appended to a unigram or BPE model.")
    return model, processor


def _kind(model: Proto, number: int) -> str:
    return str(model.SentencePiece.Type.Name(model.pieces[number].type))


def _characters(model: Proto) -> frozenset[str]:
    """Those of the pieces that a text can become."""
    return frozenset(character for number, piece in enumerate(model.pieces) if _kind(model, number) not in _MARKS
                     for character in piece.piece)


def _unfit(piece: str, known: frozenset[str], processor: sentencepiece.SentencePieceProcessor) -> str:
    if not piece or " " in piece:
        return "is empty, or holds a space, which the model writes as \u2581"
    if set(piece) <= known:
        return "has only characters that the model knows, so it would change the ids of texts that it reads already"
    spelled = piece.replace("\u2581", " ").strip()
    if processor.normalize(spelled).strip("\u2581 ") != piece.strip("\u2581"):
        return "is written in another way by the model's normaliser, so no text would hold it"
    return ""


def _reached(model: Proto, pieces: Sequence[str]) -> set[str]:
    """What BPE can make of texts, which begin as characters, by joining two that it has made."""
    made = {piece.piece for number, piece in enumerate(model.pieces) if _kind(model, number) not in _MARKS}
    for piece in sorted(pieces, key=len):
        if len(piece) == 1 or any(all(len(part) == 1 or part in made for part in (piece[:cut], piece[cut:]))
                                  for cut in range(1, len(piece))):
            made.add(piece)
    return made


def _scores(model: Proto, count: int) -> list[float]:
    """Falling, and such that the old pieces are searched as before.

    BPE joins the best pair first, so the new ones come after all old ones. In unigram they lie between the least old
    score and `_LEAST` of it, no higher than the greatest: one piece then always costs less than two.
    """
    old = [piece.score for number, piece in enumerate(model.pieces) if _kind(model, number) == "NORMAL"]
    if not old:
        raise UserError("The model has no piece that a text could become.", "Give another one.")
    least = min(old)
    if model.trainer_spec.model_type == _BPE:
        return [least - 1.0 - number for number in range(count)]
    if least >= 0:
        raise UserError(f"The model's least score is {least:g}; a unigram model's are logarithms of probabilities.",
                        "Train it with SentencePiece.")
    best = min(max(old), _LEAST * least)
    return [best + (least - best) * number / max(1, count) for number in range(count)]
