"""Pieces out of a tokenizer that a person brings, by what they are and never by the ids that they have there.

An id is a row of the table it was trained with. So pieces that the base has keep the base's ids, the others are
appended after them, and marks, special ids and spaces of the tokenizer brought are left behind, and so is a Unigram
piece that no pair of others gives, as the base's form joins pieces two by two. A tokenizer that has
as many ids as the base and is another one is refused: it seems to fit, and every row would mean something else.
Never loads torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from config.errors import UserError
from core.text.pieces import Pieces, pairs_of
from data.bpe import vocabulary
from data.front_end import BASE_FILE, FrontEnd

OWN = "own"
_MOST = 20_000  # pieces, as the option `merges` allows
_MARK = re.compile(r"\[.+\]")  # the form of the base's own marks and tags, which no piece may become
_WORD_START = "\u2581"  # SentencePiece's mark of a space
_GIVE = "Give the JSON file of a BPE or Unigram tokenizer, or a SentencePiece model."


@dataclass(frozen=True)
class Brought:
    """A tokenizer that was brought: its pieces with their ids, and its pairs in rank order, without word marks."""

    path: Path
    ids: Mapping[str, int]  # as they stand there, special ones too
    pairs: tuple[tuple[str, str], ...]
    characters: tuple[str, ...]

    @property
    def size(self) -> int:
        return max(self.ids.values(), default=-1) + 1


@dataclass(frozen=True)
class PieceMap:
    """How the pieces of a tokenizer that was brought stand to the base's."""

    shared: int  # pieces that both have
    elsewhere: tuple[str, ...]  # of these, with another id in the one brought
    lost: tuple[str, ...]  # pieces of the base that the one brought lacks

    @property
    def same(self) -> bool:
        return not self.elsewhere and not self.lost


def take(base: FrontEnd, path: str) -> Pieces:
    """The pieces to append to `base`; `UserError` for what cannot be read, or would only seem to fit."""
    brought = read(Path(path))
    check(base, brought)
    return Pieces(brought.characters, brought.pairs, OWN, len({left + right for left, right in brought.pairs}))


def check(base: FrontEnd, brought: Brought) -> PieceMap:
    """Refuse one of the base's size with other content, with both; how the two stand to each other."""
    mapped = map_pieces(vocabulary(base.files[BASE_FILE], BASE_FILE), brought.ids)
    if brought.size in (base.prefix_size, base.base_ids) and not mapped.same:
        named = ", ".join(repr(piece) for piece in (*mapped.elsewhere, *mapped.lost)[:5])
        raise UserError(
            f"{brought.path} has {brought.size} ids as the base has, and is another tokenizer: {len(mapped.elsewhere)} "
            f"of the base's pieces have another id there and {len(mapped.lost)} are missing ({named}).",
            "Equal size is no fit: each row would stand for another piece. Give a tokenizer of the new language "
            "alone, or let Lisan learn the pieces.",
        )
    if len(brought.pairs) > _MOST:
        raise UserError(f"{brought.path} has {len(brought.pairs)} merges; at most {_MOST} rows can be learnt.",
                        "Give a smaller tokenizer of the new language.")
    return mapped


def map_pieces(base: Mapping[str, int], brought: Mapping[str, int]) -> PieceMap:
    """Compare two vocabularies by piece."""
    shared = [piece for piece in base if piece in brought]
    return PieceMap(len(shared), tuple(piece for piece in shared if base[piece] != brought[piece]),
                    tuple(piece for piece in base if piece not in brought))


def read(path: Path) -> Brought:
    """A SentencePiece model, or a tokenizer in the JSON form of `tokenizers`; the file itself, or its folder."""
    if path.is_dir():
        found = [one for name in ("tokenizer.json", "*.model", "*.json") for one in sorted(path.glob(name))]
        if not found:
            raise UserError(f"{path} holds no tokenizer.", _GIVE)
        path = found[0]
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", _GIVE) from error
    return _from_json(path, content) if content.lstrip()[:1] == b"{" else _from_sentencepiece(path, content)


def _from_json(path: Path, content: bytes) -> Brought:
    try:
        values: dict[str, Any] = json.loads(content)
        model = values["model"]
        if '"ByteLevel"' in json.dumps([values.get("pre_tokenizer"), values.get("decoder")]):
            raise UserError(f"{path} is a tokenizer of bytes: its pieces are parts of letters, which the base's form "
                            "does not have.", "Train one on characters (BPE or Unigram without ByteLevel).")
        special = {token["content"]: int(token["id"]) for token in values.get("added_tokens") or ()}
        if model["type"] == "BPE":
            merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
            ids = {**model["vocab"], **special}
            return _brought(path, ids, special, [(left, right) for left, right in merges], None)
        if model["type"] == "Unigram":
            ids = {piece: number for number, (piece, _) in enumerate(model["vocab"])} | special
            ranked = [piece for piece, _ in sorted(model["vocab"], key=lambda one: -one[1])]
            return _brought(path, ids, special, None, ranked)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no whole tokenizer: {error!r}.", _GIVE) from error
    raise UserError(f"{path} is a {model['type']} tokenizer, whose pieces cannot be merged into a BPE.", _GIVE)


def _from_sentencepiece(path: Path, content: bytes) -> Brought:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(content)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"{path} is neither a JSON file nor a SentencePiece model.", _GIVE) from error
    names = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    special = {name for number, name in enumerate(names) if processor.is_control(number)
               or processor.is_unknown(number) or processor.is_byte(number) or processor.is_unused(number)}
    scores = {name: processor.get_score(number) for number, name in enumerate(names)}
    ranked = sorted((name for name in names if name not in special), key=lambda name: -scores[name])
    return _brought(path, {name: number for number, name in enumerate(names)}, special, None, ranked)


def _brought(path: Path, ids: Mapping[str, int], special: Mapping[str, int] | set[str],
             merges: Sequence[tuple[str, str]] | None, ranked: Sequence[str] | None) -> Brought:
    """Leave marks and special pieces behind, and keep the pairs whose parts are there before them."""
    plain = [text for piece in ids if piece not in special and (text := piece.replace(_WORD_START, ""))]
    characters = tuple(sorted({text for text in plain if len(text) == 1 and not text.isspace()}))
    if ranked is not None:
        longer = [text for piece in ranked if len(text := piece.replace(_WORD_START, "")) > 1 and " " not in text
                  and not _MARK.fullmatch(text)]
        return Brought(path, ids, tuple(pairs_of(list(dict.fromkeys(longer)), characters)), characters)
    known, pairs = set(characters), []
    for left, right in merges or ():
        pair = left.replace(_WORD_START, ""), right.replace(_WORD_START, "")
        if pair[0] in known and pair[1] in known and not _MARK.fullmatch("".join(pair)):
            pairs.append(pair)
            known.add("".join(pair))
    return Brought(path, ids, tuple(dict.fromkeys(pairs)), characters)
