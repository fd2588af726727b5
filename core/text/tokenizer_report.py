"""What a merged tokenizer is, measured, with the proof that the base languages read as before. Never loads torch."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from config.errors import UserError
from core.text import text_rules
from data.front_end import FrontEnd
from data.manifest import HELD_OUT, TRAIN, PreparedDataset

REPORT_FILE = "report.json"
_LOT = 50  # pieces that are written as one text


@dataclass(frozen=True)
class ProofSentence:
    """One sentence of a base language through both tokenizers: counts of ids, and whether the ids are the same."""

    text: str
    tokens_before: int
    tokens_after: int
    same: bool


@dataclass(frozen=True)
class BaseProof:
    """Sample sentences and pieces in a base language, encoded before and after; hashes are sha256 over all ids."""

    language: str
    hash_before: str
    hash_after: str
    same: bool
    sentences: tuple[ProofSentence, ...]
    pieces: int = 0  # of both tokenizers, that were written beside the sentences


@dataclass(frozen=True)
class TokenizerReport:
    """Counts, rates and proofs.

    A rate is of characters, spaces included; tokens a character leave out start, stop and
    tag, and count an unknown character as one token.
    """

    language: str
    normaliser: str
    algorithm: str
    merges_asked: int
    merges_learned: int  # pieces longer than one character
    tokens_added: int  # tag, characters and merges that had no id
    characters: int  # distinct, in all of the text
    characters_covered: int
    characters_added: tuple[str, ...]
    characters_reused: tuple[str, ...]  # they had an id in the base
    characters_held_out_only: tuple[str, ...]  # covered, but no training text holds them
    unknown_rate_before: float
    unknown_rate: float
    tokens_per_character_before: float
    tokens_per_character: float
    dropped: dict[str, int]  # punctuation that the normaliser leaves out
    prefix_size: int
    size: int
    fingerprint: str
    probe_source: str  # `model` or `app`: where the sample sentences come from
    proofs: tuple[BaseProof, ...]
    unproven: tuple[str, ...]  # base languages without a sample sentence
    unprepared: tuple[str, ...] = ()  # base languages proven without the package or file that their text needs
    rules: str = ""  # name and hash of the rules that write the text out
    texts_written_out: int = 0  # texts that the rules change, but for spaces

    @property
    def base_unchanged(self) -> bool:
        """Whether every sample sentence has the ids it had, and every base language has some."""
        return not self.unproven and all(proof.same for proof in self.proofs)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "base_unchanged": self.base_unchanged}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TokenizerReport:
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        del plain["base_unchanged"]
        plain["proofs"] = tuple(
            BaseProof(**{**proof, "sentences": tuple(ProofSentence(**line) for line in proof["sentences"])})
            for proof in values["proofs"]
        )
        return cls(**plain)

    def save(self, folder: Path) -> None:
        """Write `report.json` into `folder`."""
        content = json.dumps(self.to_json(), ensure_ascii=False, indent=1)
        (folder / REPORT_FILE).write_text(content + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> TokenizerReport:
        """The report beside a merged tokenizer."""
        path = folder / REPORT_FILE
        try:
            return cls.from_json(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} could not be read: {error}.", "Make the tokenizer again.") from error


@dataclass(frozen=True)
class Learned:
    """How the pieces were learned, for the record."""

    algorithm: str
    merges_asked: int
    merges: int  # pieces longer than one character


def measure(base: FrontEnd, extended: FrontEnd, dataset: PreparedDataset, learned: Learned, probe_source: str,
            sentences: Sequence[tuple[str, str]]) -> TokenizerReport:
    """Measure `extended` on all of the dataset's text, and prove it on `sentences` (language, text) of the base."""
    language = dataset.card.language
    text = _Text.of(base, extended, dataset)
    added = {token.text for token in extended.added_tokens() if token.language == language}
    proofs = prove(base, extended, sentences, every_piece=True)
    proven = [proof.language for proof in proofs]
    every = text.train | text.held_out
    return TokenizerReport(
        language, extended.normaliser_for(language), learned.algorithm, learned.merges_asked, learned.merges,
        tokens_added=len(added), characters=len(every), characters_covered=len(every - text.unknown),
        characters_added=tuple(sorted(every & added)), characters_reused=tuple(sorted(every - added - text.unknown)),
        characters_held_out_only=tuple(sorted(text.held_out - text.train)),
        unknown_rate_before=text.unknown_before / text.length, unknown_rate=text.unknown_after / text.length,
        tokens_per_character_before=text.tokens_before / text.length,
        tokens_per_character=text.tokens_after / text.length,
        dropped=text.dropped, prefix_size=extended.prefix_size, size=extended.size, fingerprint=extended.fingerprint,
        probe_source=probe_source, proofs=proofs,
        unproven=tuple(code for code in base.base_languages if code not in proven),
        unprepared=tuple(code for code in proven if base.unready(code)),
        rules=text_rules.label(extended.writer(language)), texts_written_out=text.verbalized,
    )


def prove(base: FrontEnd, extended: FrontEnd, sentences: Sequence[tuple[str, str]], *,
          every_piece: bool = False) -> tuple[BaseProof, ...]:
    """Encode (language, text) pairs of the base languages by both front-ends, or also `every_piece` that either has.

    A sentence shows what is usual; a new piece that a base language would take up may stand in none.
    Where a package or file is missing that a language needs, its text goes to both tokenizers as it stands.
    A character that the base does not know is no obstacle.
    """
    proofs: list[BaseProof] = []
    pieces: tuple[str, ...] = ()
    if every_piece:
        pieces = (*base.pieces, *(token.text for token in extended.added_tokens() if token.kind != "tag"))
    lots = [" ".join(pieces[start:start + _LOT]) for start in range(0, len(pieces), _LOT)]
    for language in base.base_languages:
        texts = [text for code, text in sentences if code == language]
        if not texts:
            continue
        before, after = (_encoded(one, [*texts, *lots], language) for one in (base, extended))
        lines = tuple(
            ProofSentence(text, len(old), len(new), old == new)
            for text, old, new in zip(texts, before, after, strict=False)  # the lots come after the sentences
        )
        proofs.append(BaseProof(language, _hash(before), _hash(after), before == after, lines, len(pieces)))
    return tuple(proofs)


def _encoded(front_end: FrontEnd, texts: Sequence[str], language: str) -> list[list[int]]:
    if front_end.unready(language):
        return [front_end.spell(text)[0] for text in texts]
    return [front_end.comparable(text, language) for text in texts]


@dataclass(frozen=True)
class _Text:
    """Counts over a dataset's normalised text; `length` is in characters, spaces included."""

    length: int
    train: set[str]
    held_out: set[str]
    unknown: set[str]  # to the extended front-end
    unknown_before: int
    unknown_after: int
    tokens_before: int
    tokens_after: int
    dropped: dict[str, int]
    verbalized: int

    @classmethod
    def of(cls, base: FrontEnd, extended: FrontEnd, dataset: PreparedDataset) -> _Text:
        language = dataset.card.language
        normal = {clip.id: extended.normalise(clip.text, language) for clip in dataset.clips}
        before = [token for text in normal.values() for token in base.spell(text)[0]]
        after = [token for clip in dataset.clips for token in extended.body(clip.text, language)]
        unknown_id = base.special_id("[UNK]")
        dropped: Counter[str] = Counter()
        for clip in dataset.clips:
            dropped.update(extended.dropped(clip.text, language))
        return cls(
            max(1, sum(map(len, normal.values()))),
            characters_of([normal[clip.id] for clip in dataset.split(TRAIN)]),
            characters_of([normal[clip.id] for clip in dataset.split(HELD_OUT)]),
            {c for clip in dataset.clips for c in extended.unknown_characters(clip.text, language)},
            before.count(unknown_id), after.count(unknown_id), len(before), len(after), dict(sorted(dropped.items())),
            sum(extended.verbalize(clip.text, language).split() != clip.text.split() for clip in dataset.clips),
        )


def characters_of(texts: Sequence[str]) -> set[str]:
    """Distinct characters but the space."""
    return {character for text in texts for character in text if character != " "}


def _hash(encoded: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256(json.dumps(encoded).encode()).hexdigest()
