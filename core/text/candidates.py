"""Candidates for a language's tokenizer, learned and measured on one reading of the text. Never loads torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from config.text_rules import TextRules
from core.text.lab_report import BASE, CHARACTERS, ENOUGH, WITH_BYTES, Candidate
from core.text.own_pieces import OWN
from core.text.pieces import Pieces, learn
from core.text.tokenizer_report import characters_of
from data import normalisers
from data.bpe import BYTES, vocabulary
from data.front_end import BASE_FILE, FrontEnd

ALGORITHMS: tuple[Literal["bpe", "sentencepiece"], ...] = ("bpe", "sentencepiece")
_NAMED = 60  # rare pieces in the report


@dataclass(frozen=True)
class Texts:
    """A dataset's text as the model reads it, the text that a person gave, and the seconds of audio (train first)."""

    language: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    given: tuple[str, ...]
    seconds: float

    @property
    def all(self) -> tuple[str, ...]:
        """Of the dataset."""
        return (*self.train, *self.held_out)


@dataclass(frozen=True)
class Made:
    """A candidate with the front-end that it would be; the base itself for the one that is there for comparison."""

    candidate: Candidate
    front_end: FrontEnd


def candidates(base: FrontEnd, texts: Texts, sizes: Sequence[int], limit: int, rules: TextRules | None,
               leave_out: Callable[[str], None], own: Pieces | None = None, byte_fallback: bool = False,
               ) -> Iterator[Made]:
    """The base as it is, characters alone, each algorithm at each size, and the pieces that a person brought.

    With `byte_fallback`, characters and bytes too. `leave_out` is told of those left out, and why.
    """
    yield Made(_measure(BASE, base, None, texts, limit), base)
    bare = [normalisers.without_marks(text) for text in texts.train]
    plain = with_all_characters(learn(bare, "bpe", 0), texts)
    yield _made(CHARACTERS, base, plain, texts, limit, rules)
    if byte_fallback:
        yield _made(WITH_BYTES, base, plain, texts, limit, rules, byte_fallback=True)
    for algorithm in ALGORITHMS:
        seen: set[tuple[tuple[str, str], ...]] = set()
        for size in sorted(set(sizes)):
            pieces = with_all_characters(learn(bare, algorithm, size), texts)
            name = f"{algorithm}-{size}"
            if not pieces.merges or pieces.merges in seen:
                leave_out(f"{name}: the text gives no more pieces than a smaller candidate has")
                continue
            seen.add(pieces.merges)
            yield _made(name, base, pieces, texts, limit, rules)
    if own is not None:
        yield _made(OWN, base, with_all_characters(own, texts), texts, limit, rules)


def why_no_bytes(base: FrontEnd, texts: Texts) -> str:
    """Why byte fallback is off unless asked for, with the numbers of this text; empty where the base has bytes."""
    if all(byte in vocabulary(base.files[BASE_FILE], BASE_FILE) for byte in BYTES):
        return ""
    needed = len({byte for character in characters_of(texts.all) for byte in character.encode("utf-8", "replace")})
    return (f"{WITH_BYTES}: byte fallback is off (--byte-fallback compares it). The base has no pieces of bytes, so it "
            f"would be {needed} more rows for the bytes of this text and 256 for any text. Every character of the text "
            "has a row of its own, so training would see each of them 0 times, and a character that is new would be "
            "spoken by rows that were never taught. Without it, such a character is named and refused.")


def with_all_characters(pieces: Pieces, texts: Texts) -> Pieces:
    """`pieces` with every character of the dataset, as the tokenizer itself is made (`core.vocabulary`)."""
    more = sorted(characters_of(texts.all) - set(pieces.characters))
    return replace(pieces, characters=(*pieces.characters, *more))


def _made(name: str, base: FrontEnd, pieces: Pieces, texts: Texts, limit: int, rules: TextRules | None, *,
          byte_fallback: bool = False) -> Made:
    extended = base.extended(texts.language, base.normaliser_for(texts.language), pieces.characters, pieces.merges,
                             rules, byte_fallback)
    return Made(_measure(name, extended, pieces, texts, limit), extended)


def _measure(name: str, front_end: FrontEnd, pieces: Pieces | None, texts: Texts, limit: int) -> Candidate:
    """`pieces` None: the base, which spells the language without a tag."""
    encode = _encoder(front_end, texts.language if pieces else "")
    train, held_out = [encode(text) for text in texts.train], [encode(text) for text in texts.held_out]
    every = [*train, *held_out]
    unknown = front_end.special_id("[UNK]")
    tokens, length = sum(map(len, every)), max(1, sum(map(len, texts.all)))
    characters = characters_of(texts.all)
    overhead = front_end.overhead(texts.language) if pieces else 3
    longest = max(map(len, every), default=0) + overhead
    uses = Counter(token for ids in train for token in ids)
    added = [token for token in front_end.added_tokens() if token.language == texts.language] if pieces else []
    rare = sorted(((token.text, uses[token.id]) for token in added if token.kind != "tag" and uses[token.id] < ENOUGH),
                  key=lambda one: (one[1], one[0]))
    given = [token for text in texts.given for token in encode(text)]
    return Candidate(
        name, pieces.algorithm if pieces else "", pieces.merges_asked if pieces else 0,
        len({left + right for left, right in pieces.merges}) if pieces else 0, len(added), len(characters),
        sum(unknown not in encode(character) for character in characters),
        sum(ids.count(unknown) for ids in every) / length,
        given.count(unknown) / max(1, sum(map(len, texts.given))) if texts.given else None,
        tokens / length, tokens / texts.seconds if texts.seconds else 0.0, longest,
        sum(len(ids) + overhead > limit for ids in every), len(rare), tuple(rare[:_NAMED]),
    )


def _encoder(front_end: FrontEnd, language: str) -> Callable[[str], list[int]]:
    """Ids of text that is normalised already."""
    if not language:
        return lambda text: front_end.spell(text)[0]
    return lambda text: front_end.ids_of(text, language)
