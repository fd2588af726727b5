"""What the tokenizer lab found: candidates beside each other, a recommendation, and the map of the script.

Numbers and words alone; the page reads them from `lab.json` in the job's folder. Never loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from config.errors import UserError
from data.durable_files import write_json

FILE = "lab.json"
ENOUGH = 10  # times that a piece must be seen for its row to be learnt
CHARACTERS = "characters"  # the candidate without merges, against which the others are held
BASE = "base as it is"
WITH_BYTES = "characters and bytes"  # byte fallback; here for comparison, as it saves nothing
_RARE = 0.05  # share of its new rows that may be seen fewer than ENOUGH times, where the characters' own is less
_WORTH = 0.1  # share of tokens that longer pieces must save to be worth their rows


@dataclass(frozen=True)
class Candidate:
    """One tokenizer, measured on the dataset's text. Tokens leave out start, stop and tag, but where a limit is meant.

    `unknown_rate` is of characters, spaces included; `given_unknown_rate` of the text that the person gave, None
    without one.
    """

    name: str
    algorithm: str  # empty for the base as it is, which is here for comparison alone
    merges_asked: int
    merges: int  # pieces longer than one character that were learned
    tokens_added: int  # new rows, the tag's among them
    characters: int  # distinct, in all of the text
    characters_covered: int
    unknown_rate: float
    given_unknown_rate: float | None
    tokens_per_character: float
    tokens_per_second: float  # of audio
    longest: int  # ids of the longest text, start, stop and tag counted
    over_limit: int  # texts of more ids than the model has positions for
    rare: int  # new rows that the training text uses fewer than ENOUGH times
    rare_pieces: tuple[tuple[str, int], ...]  # some of them with their counts, the rarest first


@dataclass(frozen=True)
class Recommendation:
    """Which candidate to make, and why, in words."""

    name: str
    reason: str


@dataclass(frozen=True)
class Cell:
    """A character of the script: how often training text, held-out text and the given text have it."""

    character: str
    train: int
    held_out: int
    given: int


@dataclass(frozen=True)
class Block:
    """A block of Unicode that the text uses. `whole`: its letters that no text has are among the cells as well."""

    name: str
    whole: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Sentence:
    """A sentence to record, and the characters that it brings nearer to ENOUGH."""

    text: str
    brings: tuple[str, ...]


@dataclass(frozen=True)
class LabReport:
    """Everything that the lab found for one dataset and one base."""

    model: str
    dataset: str
    language: str
    rules: str
    texts: int
    seconds: float  # of audio
    limit: int  # text ids that the model has positions for
    candidates: tuple[Candidate, ...]
    recommendation: Recommendation
    proven: tuple[str, ...]  # base languages whose sample sentences have the ids they had, with the recommended one
    script: tuple[Block, ...]
    gaps: tuple[str, ...]  # characters of the given text that training text has fewer than ENOUGH times
    sentences: tuple[Sentence, ...]  # of the given text, to record
    left_open: tuple[str, ...]  # gaps that the sentences named do not close
    left_out: tuple[str, ...] = ()  # candidates that were not compared, and why
    own: str = ""  # the tokenizer that a person brought, whose pieces are the candidate `own`
    rules_of: str = ""  # the tokenizer whose rules were taken, where none were named
    rules_hash: str = ""  # of the rules' content; empty without rules, and in a report of before it was there

    def candidate(self, name: str) -> Candidate | None:
        return next((one for one in self.candidates if one.name == name), None)

    def save(self, folder: Path) -> Path:
        """Write `lab.json` into `folder`, whole or not at all."""
        write_json(folder / FILE, asdict(self))
        return folder / FILE

    @classmethod
    def load(cls, folder: Path) -> LabReport:
        """What `save` wrote; `UserError` when it is missing or damaged."""
        path = folder / FILE
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} could not be read: {error}.", "Compare the tokenizers again.") from error

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LabReport:
        candidates = tuple(
            Candidate(**{**one, "rare_pieces": tuple((text, count) for text, count in one["rare_pieces"])})
            for one in values["candidates"])
        script = tuple(Block(one["name"], one["whole"], tuple(Cell(**cell) for cell in one["cells"]))
                       for one in values["script"])
        sentences = tuple(Sentence(one["text"], tuple(one["brings"])) for one in values["sentences"])
        lists = {name: tuple(values[name]) for name in ("proven", "gaps", "left_open", "left_out")}
        return cls(**{**values, **lists, "candidates": candidates, "script": script, "sentences": sentences,
                      "recommendation": Recommendation(**values["recommendation"])})


def recommend(candidates: Sequence[Candidate], limit: int) -> Recommendation:
    """The candidate to make, from its numbers alone.

    Characters come first: each is needed in any case. Longer pieces are worth their rows when the share of new rows
    that is seen too seldom to be learnt is no higher than the characters' own or a twentieth, nothing becomes
    unknown, and a tenth of the tokens is saved.
    """
    plain = next(one for one in candidates if one.name == CHARACTERS)
    longer = [one for one in candidates if one.algorithm and one.name not in (CHARACTERS, WITH_BYTES)]
    allowed = max(_rare_share(plain), _RARE)
    learnable = [one for one in longer if _rare_share(one) <= allowed and one.unknown_rate <= plain.unknown_rate]
    worth = [one for one in learnable if one.tokens_per_character <= (1 - _WORTH) * plain.tokens_per_character]
    if worth:
        best = min(worth, key=lambda one: (one.over_limit, one.tokens_per_character, one.tokens_added))
        return Recommendation(best.name, " ".join((_why_longer(best, plain), *_cautions(best, limit))))
    return Recommendation(plain.name, " ".join((_why_plain(plain, longer, learnable), *_cautions(plain, limit))))


def _rare_share(one: Candidate) -> float:
    return one.rare / max(1, one.tokens_added)


def _why_longer(best: Candidate, plain: Candidate) -> str:
    saved = 1 - best.tokens_per_character / plain.tokens_per_character
    return (f"It needs {saved:.0%} fewer tokens than characters alone ({best.tokens_per_character:.2f} a character "
            f"against {plain.tokens_per_character:.2f}), and its rows can be learnt: {best.rare} of "
            f"{best.tokens_added} are seen fewer than {ENOUGH} times, {plain.rare} of {plain.tokens_added} of "
            "the characters.")


def _why_plain(plain: Candidate, longer: Sequence[Candidate], learnable: Sequence[Candidate]) -> str:
    if not longer:
        return "The text gave no pieces longer than one character."
    if not learnable:
        nearest = min(longer, key=lambda one: (one.unknown_rate > plain.unknown_rate, _rare_share(one)))
        if nearest.unknown_rate > plain.unknown_rate:
            return f"Every other candidate leaves text unknown ({nearest.name}: {nearest.unknown_rate:.1%})."
        return (f"Every other candidate has too many rows that cannot be learnt: {nearest.rare} of the "
                f"{nearest.tokens_added} of {nearest.name} are seen fewer than {ENOUGH} times, {plain.rare} of the "
                f"{plain.tokens_added} of the characters.")
    best = min(learnable, key=lambda one: one.tokens_per_character)
    saved = 1 - best.tokens_per_character / plain.tokens_per_character
    return (f"Longer pieces save too little: {best.name}, the best whose rows can be learnt, needs {saved:.0%} fewer "
            f"tokens, and less than {_WORTH:.0%} is not worth {best.tokens_added - plain.tokens_added} more rows.")


def _cautions(chosen: Candidate, limit: int) -> list[str]:
    told = []
    if chosen.rare:
        told.append(f"{chosen.rare} of its {chosen.tokens_added} new rows are seen fewer than {ENOUGH} times; more "
                    "recordings that hold them would teach them.")
    if chosen.over_limit:
        told.append(f"{chosen.over_limit} texts are longer than the model's {limit} tokens and will not be trained on: "
                    "cut their recordings shorter.")
    return told
