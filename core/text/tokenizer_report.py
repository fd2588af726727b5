"""The report of a merged tokenizer: its measures, and the proof that base languages are encoded as before."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from config.loading import read_record
from core.text import text_rules
from core.text.pieces import characters_of
from data.front_end import FrontEnd
from data.manifest import SPLITS, TRAIN, PreparedDataset

REPORT_FILE = "report.json"
_FEW_UNUSED, _UNUSED_SHARE = 3, 0.5  # letters that occur only within merged pieces are usual in little text
_PIECES_PER_TEXT = 50  # pieces that are encoded as one text


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
    pieces: int = 0  # pieces of both tokenizers that were encoded beside the sentences


@dataclass(frozen=True)
class TokenizerReport:
    """Counts, rates and proofs.

    A rate is of characters, spaces included; tokens per character exclude start, stop and tag, and count an unknown
    character as one token.
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
    dropped: dict[str, int]  # punctuation that the normaliser removes
    prefix_size: int
    size: int
    fingerprint: str
    probe_source: str  # `model` or `app`: where the sample sentences come from
    proofs: tuple[BaseProof, ...]
    unproven: tuple[str, ...]  # base languages without a sample sentence
    unprepared: tuple[str, ...] = ()  # base languages proven without the package or file that their text needs
    rules: str = ""  # name and hash of the rules that write the text out
    texts_written_out: int = 0  # texts that the rules change, but for spaces
    shared_file: tuple[BaseProof, ...] = ()  # the same for the one file of all languages that some programs load
    pieces_added: int = 0  # new characters and merges
    pieces_unused: tuple[str, ...] = ()  # those in no training text, whose rows cannot be trained

    @property
    def base_unchanged(self) -> bool:
        """Whether every sample sentence has the ids it had, and every base language has some."""
        return not self.unproven and all(proof.same for proof in self.proofs)

    def save(self, folder: Path) -> None:
        """Write `report.json` into `folder`."""
        values = {**asdict(self), "base_unchanged": self.base_unchanged}
        if not self.shared_file:
            del values["shared_file"]
        content = json.dumps(values, ensure_ascii=False, indent=1)
        (folder / REPORT_FILE).write_text(content + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> TokenizerReport:
        """The report beside a merged tokenizer."""
        return read_record(folder / REPORT_FILE, cls, "Make the tokenizer again.")


@dataclass(frozen=True)
class PieceTraining:
    """How the pieces were trained, for the record."""

    algorithm: str
    merges_asked: int
    merges: int  # pieces longer than one character


def unused_pieces_warning(unused: int, added: int) -> str:
    """A sentence if more of the new pieces than usual occur in no training text; empty otherwise.

    Merging leaves some: a piece whose every occurrence became part of a longer one.
    """
    if unused <= max(_FEW_UNUSED, _UNUSED_SHARE * added):
        return ""
    return (f"{unused} of {added} new pieces occur in no training text: their rows stay as they were initialised. "
            "Train the pieces on this dataset's text, or choose fewer merges.")


def measure(base: FrontEnd, extended: FrontEnd, dataset: PreparedDataset, training: PieceTraining, probe_source: str,
            sentences: Sequence[tuple[str, str]]) -> TokenizerReport:
    """Measure `extended` on all of the dataset's text, and prove it on `sentences` (language, text) of the base."""
    normal = {clip.id: extended.normalise(clip.text, clip.language) for clip in dataset.clips}
    length = max(1, sum(map(len, normal.values())))  # characters, spaces included

    # Every text is encoded by both tokenizers.
    base_encoded = [base.spell(text) for text in normal.values()]
    encoded = [extended.spell(normal[clip.id], clip.language) for clip in dataset.clips]

    # Characters that rules and normaliser leave out, that are known, and that only held-out clips have.
    dropped: Counter[str] = Counter()
    for clip in dataset.clips:
        dropped.update(extended.dropped(clip.text, clip.language))
    train, held_out, test = (_characters_of_split(dataset, normal, part) for part in SPLITS)
    held_out |= test
    every = train | held_out
    unknown = set[str]().union(*(characters for _, characters in encoded))
    added = {token.text for token in extended.added_to(base)}
    pieces = [token for token in extended.added_to(base) if token.kind in ("character", "merge")]

    # A piece that no training text is encoded with gets a row that is never trained.
    trained = set[int]()
    for clip, (ids, _) in zip(dataset.clips, encoded, strict=True):
        if clip.split == TRAIN:
            trained.update(ids)

    # The base's own languages must be encoded as before.
    proofs = prove(base, extended, sentences, every_piece=True)
    proven_languages = [proof.language for proof in proofs]

    return TokenizerReport(
        dataset.card.language, ",".join(dict.fromkeys(map(extended.normaliser_for, dataset.card.languages))),
        training.algorithm, training.merges_asked, training.merges,
        tokens_added=len(added), characters=len(every), characters_covered=len(every - unknown),
        characters_added=tuple(sorted(every & added)), characters_reused=tuple(sorted(every - added - unknown)),
        characters_held_out_only=tuple(sorted(held_out - train)),
        unknown_rate_before=_count_unknown(base_encoded) / length, unknown_rate=_count_unknown(encoded) / length,
        tokens_per_character_before=count_tokens(base_encoded, base.unknown_id) / length,
        tokens_per_character=count_tokens(encoded, base.unknown_id) / length,
        dropped=dict(sorted(dropped.items())), prefix_size=base.size, size=extended.size,
        fingerprint=extended.fingerprint, probe_source=probe_source, proofs=proofs,
        unproven=tuple(code for code in base.base_languages if code not in proven_languages),
        unprepared=tuple(code for code in proven_languages if base.unready(code)),
        rules=", ".join(filter(None, (text_rules.label(extended.writer(code)) for code in dataset.card.languages))),
        texts_written_out=sum(extended.verbalize(clip.text, clip.language).split() != clip.text.split()
                              for clip in dataset.clips),
        shared_file=prove_shared_file(base, extended, sentences),
        pieces_added=len(pieces), pieces_unused=tuple(token.text for token in pieces if token.id not in trained),
    )


def _characters_of_split(dataset: PreparedDataset, normal: Mapping[str, str], split: str) -> set[str]:
    return characters_of([normal[clip.id] for clip in dataset.split(split)])


def count_tokens(encoded: Sequence[tuple[list[int], str]], unknown_id: int) -> int:
    """Tokens of what `FrontEnd.spell` gave, an unknown character counted as one."""
    return sum(len(ids) - ids.count(unknown_id) + len(unknown) for ids, unknown in encoded)


def _count_unknown(encoded: Sequence[tuple[list[int], str]]) -> int:
    return sum(len(unknown) for _, unknown in encoded)


def prove(base: FrontEnd, extended: FrontEnd, sentences: Sequence[tuple[str, str]], *,
          every_piece: bool = False) -> tuple[BaseProof, ...]:
    """Encode (language, text) pairs of the base's languages by both front-ends, or also `every_piece` that either has.

    Languages of earlier trainings are included; without a sentence of such a language, only its pieces are encoded. A
    sentence may not contain a new piece that a base language would use, so `every_piece` tests all pieces. If a package
    or file that a language needs is missing, both tokenizers get its text unprepared. Characters that the base does not
    know are allowed.
    """
    proofs: list[BaseProof] = []
    pieces: tuple[str, ...] = ()

    # Pieces are encoded in texts of several, as single ones are slow.
    if every_piece:
        pieces = (*base.pieces, *(token.text for token in extended.added_tokens() if token.kind != "tag"))
    piece_texts = _texts_of(pieces)
    for language in base.languages:
        texts = [text for code, text in sentences if code == language]
        if not texts and not (every_piece and base.is_new(language)):
            continue
        base_ids, extended_ids = (_encoded(front_end, [*texts, *piece_texts], language)
                                  for front_end in (base, extended))
        proofs.append(_proof(language, texts, base_ids, extended_ids, len(pieces)))
    return tuple(proofs)


def prove_shared_file(base: FrontEnd, extended: FrontEnd,
                      sentences: Sequence[tuple[str, str]]) -> tuple[BaseProof, ...]:
    """Encode `sentences` and every base piece by the base's file and by the shared one; none without a shared file.

    In the shared file, a new language's pieces may join what a base language of the same script keeps apart.
    """
    shared = extended.shared_file()
    if shared is None:
        return ()
    piece_texts = _texts_of(base.pieces)
    proofs = []
    for language in base.base_languages:
        texts = [text for code, text in sentences if code == language]
        normal = [base.normalise_for_comparison(text, language) for text in texts]
        base_ids = [base.spell(text)[0] for text in (*normal, *piece_texts)]
        shared_ids = [shared.encode(text)[0] for text in (*normal, *piece_texts)]
        proofs.append(_proof(language, texts, base_ids, shared_ids, len(base.pieces)))
    return tuple(proofs)


def _texts_of(pieces: Sequence[str]) -> list[str]:
    return [" ".join(pieces[start:start + _PIECES_PER_TEXT]) for start in range(0, len(pieces), _PIECES_PER_TEXT)]


def _proof(language: str, texts: Sequence[str], base_ids: Sequence[list[int]], new_ids: Sequence[list[int]],
           pieces: int) -> BaseProof:
    """The proof from the ids of `texts`, and of the texts of `pieces` after them."""
    lines = tuple(ProofSentence(text, len(old), len(new), old == new)
                  for text, old, new in zip(texts, base_ids, new_ids, strict=False))
    return BaseProof(language, _hash(base_ids), _hash(new_ids), base_ids == new_ids, lines, pieces)


def _encoded(front_end: FrontEnd, texts: Sequence[str], language: str) -> list[list[int]]:
    if front_end.unready(language):
        return [front_end.spell(front_end.normalise_for_comparison(text, language))[0] for text in texts]
    return [front_end.comparable(text, language) for text in texts]


def _hash(encoded: Sequence[Sequence[int]]) -> str:
    return hashlib.sha256(json.dumps(encoded).encode()).hexdigest()
