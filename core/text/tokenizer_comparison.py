"""Candidates for a language's tokenizer, measured on its text: what the verb reports, and which one it recommends.

The page reads the report from `lab.json` in the job's folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from config.loading import read_record
from config.text_rules import TextRules
from core.text.pieces import OWN, Pieces, characters_of, train_pieces, with_all_characters
from core.text.script_coverage import MIN_OCCURRENCES, RecordingPrompt, ScriptBlock
from core.text.tokenizer_report import count_tokens
from data import normalisers
from data.durable_files import write_json
from data.front_end import FrontEnd
from data.segmenters import BYTES

FILE = "lab.json"
CHARACTERS = "characters"  # the candidate without merges, against which the others are compared
BASE = "base as it is"
WITH_BYTES = "characters and bytes"  # byte fallback; for comparison only, as it saves nothing
ALGORITHMS: tuple[Literal["bpe", "sentencepiece"], ...] = ("bpe", "sentencepiece")
_MAX_RARE_SHARE = 0.05  # share of new rows that may be too rare, if the share among the characters is lower
_MIN_SAVING = 0.1  # share of tokens that longer pieces must save to be worth their rows
_SHOWN = 60  # rare pieces in the report


@dataclass(frozen=True)
class ComparedTexts:
    """A dataset's text and the user's own text as the model reads them, and the seconds of audio."""

    language: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    given: tuple[str, ...]
    seconds: float
    normaliser: str = ""  # the one that read them; empty is the base's for the language

    @property
    def all(self) -> tuple[str, ...]:
        """All texts of the dataset."""
        return (*self.train, *self.held_out)


@dataclass(frozen=True)
class TokenizerCandidate:
    """One tokenizer, measured on the dataset's text. Start, stop and tag count only where a limit is concerned.

    `unknown_rate` is of characters, spaces included; `given_unknown_rate` of the user's own text, None without one.
    """

    name: str
    algorithm: str  # empty for the base as it is
    merges_asked: int
    merges: int  # pieces longer than one character that were learned
    tokens_added: int  # new rows, the tag's among them
    characters: int  # distinct, in all of the text
    characters_covered: int
    unknown_rate: float
    given_unknown_rate: float | None
    tokens_per_character: float
    tokens_per_second: float  # tokens a second of audio
    longest: int  # ids of the longest text, start, stop and tag counted
    over_limit: int  # texts of more ids than the model has positions for
    rare: int  # new rows that the training text uses fewer than MIN_OCCURRENCES times
    rare_pieces: tuple[tuple[str, int], ...]  # some of them with their counts, the rarest first

    @property
    def rare_share(self) -> float:
        return self.rare / max(1, self.tokens_added)


@dataclass(frozen=True)
class BuiltCandidate:
    """A candidate and its front-end; for the base as it is, the base's own."""

    candidate: TokenizerCandidate
    front_end: FrontEnd


@dataclass(frozen=True)
class Recommendation:
    """Which candidate to make, and why, in words."""

    name: str
    reason: str


@dataclass(frozen=True)
class TokenizerComparison:
    """The report for one dataset and one base."""

    model: str
    dataset: str
    language: str
    rules: str
    texts: int
    seconds: float  # seconds of audio
    limit: int  # text ids that the model has positions for
    candidates: tuple[TokenizerCandidate, ...]
    recommendation: Recommendation
    proven: tuple[str, ...]  # base languages whose sample sentences keep their ids with the recommended one
    script: tuple[ScriptBlock, ...]
    gaps: tuple[str, ...]  # characters of the user's own text that are too rare in training text
    sentences: tuple[RecordingPrompt, ...]  # sentences of the user's own text
    still_rare: tuple[str, ...]  # gaps that remain with these sentences
    left_out: tuple[str, ...] = ()  # candidates that were not compared, and why
    own: str = ""  # the user's own tokenizer, whose pieces are the candidate `own`
    rules_from: str = ""  # the tokenizer whose rules were taken, where none were named
    rules_hash: str = ""  # hash of the rules' content; empty without rules

    def candidate(self, name: str) -> TokenizerCandidate | None:
        return next((candidate for candidate in self.candidates if candidate.name == name), None)

    def save(self, folder: Path) -> Path:
        """Write `lab.json` into `folder`, whole or not at all."""
        write_json(folder / FILE, asdict(self))
        return folder / FILE

    @classmethod
    def load(cls, folder: Path) -> TokenizerComparison:
        """What `save` wrote; `UserError` when it is missing or damaged."""
        return read_record(folder / FILE, cls, "Compare the tokenizers again.")


def build_candidates(base: FrontEnd, texts: ComparedTexts, sizes: Sequence[int], limit: int, rules: TextRules | None,
                     excluded: list[str], own_pieces: Pieces | None = None,
                     byte_fallback: bool = False) -> Iterator[BuiltCandidate]:
    """The base as it is, characters alone, each algorithm at each size, and the pieces of the user's own tokenizer.

    With `byte_fallback`, characters and bytes too. `excluded` gets a line for each size that is not compared, and why.
    """

    def built(name: str, pieces: Pieces, byte_fallback: bool = False) -> BuiltCandidate:
        extended = base.extended(texts.language, texts.normaliser or base.normaliser_for(texts.language),
                                 pieces.characters, pieces.merges, rules, byte_fallback)
        return BuiltCandidate(_measure(name, extended, pieces, texts, limit), extended)

    # The base comes first, then characters alone, against which the others are compared.
    yield BuiltCandidate(_measure(BASE, base, None, texts, limit), base)
    bare = [normalisers.without_marks(text) for text in texts.train]
    plain = with_all_characters(train_pieces(bare, "bpe", 0), texts.all)
    yield built(CHARACTERS, plain)
    if byte_fallback:
        yield built(WITH_BYTES, plain, byte_fallback=True)
    for algorithm in ALGORITHMS:
        seen: set[tuple[tuple[str, str], ...]] = set()
        for size in sorted(set(sizes)):
            pieces = with_all_characters(train_pieces(bare, algorithm, size, base.split_word), texts.all)
            # A larger size may give the same pieces.
            if not pieces.merges or pieces.merges in seen:
                excluded.append(f"{algorithm}-{size}: the text gives no more pieces than a smaller candidate has")
                continue
            seen.add(pieces.merges)
            yield built(f"{algorithm}-{size}", pieces)
    if own_pieces is not None:
        yield built(OWN, with_all_characters(own_pieces, texts.all))


def why_no_bytes(base: FrontEnd, texts: ComparedTexts) -> str:
    """Why byte fallback is off by default, with the numbers of this text; empty if the base has bytes."""
    if all(byte in base.base_vocabulary for byte in BYTES):
        return ""
    text_bytes = set("".join(characters_of(texts.all)).encode("utf-8", "replace"))
    needed = len(text_bytes)
    return (f"{WITH_BYTES}: byte fallback is off (--byte-fallback compares it). The base has no pieces of bytes, so it "
            f"would be {needed} more rows for the bytes of this text and 256 for any text. Every character of the text "
            "has its row, so training would never use the rows of bytes, and a character that is new at "
            "synthesis would be spoken with untrained rows. Without byte fallback, such a character is named and "
            "refused.")


def _measure(name: str, front_end: FrontEnd, pieces: Pieces | None, texts: ComparedTexts,
             limit: int) -> TokenizerCandidate:
    """`pieces` None: the base, which spells the language without a tag."""

    def encode(text: str) -> tuple[list[int], str]:  # the text is normalised already
        return front_end.spell(text, texts.language if pieces else "")

    # Tokens are counted over all texts, the overhead of a text only against the limit of the model.
    train, held_out = [encode(text) for text in texts.train], [encode(text) for text in texts.held_out]
    every = [*train, *held_out]
    tokens, length = count_tokens(every, front_end.unknown_id), max(1, sum(map(len, texts.all)))
    characters = characters_of(texts.all)
    overhead = front_end.overhead(texts.language) if pieces else 3

    # A row that training texts hardly use stays close to its initial values.
    uses = Counter(chain.from_iterable(ids for ids, _ in train))
    added = [token for token in front_end.added_tokens() if token.language == texts.language] if pieces else []
    rare = sorted(((token.text, uses[token.id]) for token in added
                   if token.kind != "tag" and uses[token.id] < MIN_OCCURRENCES), key=lambda piece: (piece[1], piece[0]))
    unknown_given = sum(len(encode(text)[1]) for text in texts.given)

    return TokenizerCandidate(
        name=name, algorithm=pieces.algorithm if pieces else "", merges_asked=pieces.merges_asked if pieces else 0,
        merges=pieces.longer_than_one if pieces else 0, tokens_added=len(added), characters=len(characters),
        characters_covered=sum(not encode(character)[1] for character in characters),
        unknown_rate=sum(len(unknown) for _, unknown in every) / length,
        given_unknown_rate=unknown_given / max(1, sum(map(len, texts.given))) if texts.given else None,
        tokens_per_character=tokens / length, tokens_per_second=tokens / texts.seconds if texts.seconds else 0.0,
        longest=max((len(ids) for ids, _ in every), default=0) + overhead,
        over_limit=sum(len(ids) + overhead > limit for ids, _ in every), rare=len(rare),
        rare_pieces=tuple(rare[:_SHOWN]),
    )


def recommend(candidates: Sequence[TokenizerCandidate], limit: int) -> Recommendation:
    """The candidate to make, from its numbers alone.

    The default is characters alone: each is needed in any case. Longer pieces are worth their rows when the share of
    new rows that is too rare is no higher than the characters' own or a twentieth, nothing becomes unknown, and a
    tenth of the tokens is saved.
    """
    # Find the candidates whose rows can be learnt, and among them those that save enough.
    plain = next(candidate for candidate in candidates if candidate.name == CHARACTERS)
    longer = [candidate for candidate in candidates
              if candidate.algorithm and candidate.name not in (CHARACTERS, WITH_BYTES)]
    allowed = max(plain.rare_share, _MAX_RARE_SHARE)
    learnable = [candidate for candidate in longer
                 if candidate.rare_share <= allowed and candidate.unknown_rate <= plain.unknown_rate]
    most_tokens = (1 - _MIN_SAVING) * plain.tokens_per_character
    worth = [candidate for candidate in learnable if candidate.tokens_per_character <= most_tokens]

    def saving(candidate: TokenizerCandidate) -> float:
        return 1 - candidate.tokens_per_character / plain.tokens_per_character

    # Explain the choice with the numbers that decided it.
    chosen = plain
    if worth:
        chosen = min(worth, key=lambda candidate: (candidate.over_limit, candidate.tokens_per_character,
                                                   candidate.tokens_added))
        reason = (f"It needs {saving(chosen):.0%} fewer tokens than characters alone "
                  f"({chosen.tokens_per_character:.2f} a character against {plain.tokens_per_character:.2f}), and its "
                  f"rows can be learnt: {chosen.rare} of {chosen.tokens_added} are seen fewer than {MIN_OCCURRENCES} "
                  f"times, {plain.rare} of {plain.tokens_added} of the characters.")
    elif not longer:
        reason = "The text gave no pieces longer than one character."
    elif learnable:
        best = min(learnable, key=lambda candidate: candidate.tokens_per_character)
        reason = (f"Longer pieces save too little: {best.name}, the best whose rows can be learnt, needs "
                  f"{saving(best):.0%} fewer tokens, and less than {_MIN_SAVING:.0%} is not worth "
                  f"{best.tokens_added - plain.tokens_added} more rows.")
    else:
        nearest = min(longer, key=lambda candidate: (candidate.unknown_rate > plain.unknown_rate, candidate.rare_share))
        reason = (
            f"Every other candidate leaves text unknown ({nearest.name}: {nearest.unknown_rate:.1%})."
            if nearest.unknown_rate > plain.unknown_rate else
            f"Every other candidate has too many rows that cannot be learnt: {nearest.rare} of the "
            f"{nearest.tokens_added} of {nearest.name} are seen fewer than {MIN_OCCURRENCES} times, {plain.rare} of "
            f"the {plain.tokens_added} of the characters.")
    # Warnings follow the choice, whichever it was.
    if chosen.rare:
        reason += (f" {chosen.rare} of its {chosen.tokens_added} new rows are seen fewer than {MIN_OCCURRENCES} times; "
                   "more recordings that hold them would teach them.")
    if chosen.over_limit:
        reason += (f" {chosen.over_limit} texts are longer than the model's {limit} tokens and will not be trained on: "
                   "cut their recordings shorter.")
    return Recommendation(chosen.name, reason)
