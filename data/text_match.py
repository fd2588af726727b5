"""Whether the texts of a table belong to its recordings, by the lengths of the texts and the durations alone.

A long text takes long to speak: over the clips of every corpus measured, the correlation of the two (of their square
roots, so that a few very long clips do not decide) is 0.75 to 0.99. Texts that are shifted by some rows have next to
none, and have it again when they are shifted back. `match_texts` compares the offsets from -3 to 3 rows, a shift that
begins inside the table, and other columns that hold text.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

LEAST_CORRELATION = 0.5
LEAST_CLIPS = 30
"""With so many clips a smaller correlation is a finding."""
MAX_OFFSET = 3  # rows
_LEAST_SPREAD = 0.15  # spread of lengths and durations, relative to their mean; equal ones tell nothing
_LEAST_PAIRS = 6
_EVIDENCE = 5.0  # nats: log-likelihood ratio of an offset to the texts as given
_SPLIT_EVIDENCE = 12.0  # nats: there are as many places for a shift to begin as rows
_LEAST_PART = 15  # rows on either side of that place
_SIGNIFICANCE = 0.05  # significance of the best correlation, over all offsets and both durations
_ROWS = ("no rows", "one row", "two rows", "three rows")


class MatchKind(StrEnum):
    """What the lengths say about texts and recordings."""

    MATCHES = "matches"
    UNRELATED = "unrelated"
    SHIFTED = "shifted"
    OTHER_COLUMN = "other column"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class TextMatch:
    """The correlation of text length and duration, and what fits better if the texts as given do not fit."""

    kind: MatchKind
    clips: int
    correlation: float
    low: float  # 95% interval (Fisher 1921)
    high: float
    offset: int = 0  # rows from a recording to its text
    first_row: int = 0  # the row of the table from which on the texts are shifted; 0: all are
    better: float = 0.0  # the correlation at that offset, or with that column
    column: str = ""  # matching column of the table

    @property
    def is_finding(self) -> bool:
        return self.kind in (MatchKind.UNRELATED, MatchKind.SHIFTED, MatchKind.OTHER_COLUMN)

    @property
    def is_proven(self) -> bool:
        """Whether it is known which texts belong to the recordings: those as given do not."""
        return self.kind in (MatchKind.SHIFTED, MatchKind.OTHER_COLUMN)

    @property
    def measured(self) -> str:
        """The correlation with its interval, such as `0.86 (0.80 to 0.91) over 80 clips`."""
        return f"{self.correlation:.2f} ({self.low:.2f} to {self.high:.2f}) over {self.clips:,} clips"

    @property
    def message(self) -> str:
        """The finding in two sentences; empty without a finding."""
        as_given = f"Text length and duration have a correlation of {self.measured} as given"
        if self.kind is MatchKind.SHIFTED:
            rows, place = _ROWS[abs(self.offset)], "below" if self.offset > 0 else "above"
            begin = f" from row {self.first_row:,} on" if self.first_row else ""
            return (f"The texts match when shifted by {rows}{begin}: the text of each recording stands {rows} {place} "
                    f"it. {as_given}, and of {self.better:.2f} when shifted.")
        if self.kind is MatchKind.OTHER_COLUMN:
            return (f"The texts of the column {self.column!r} match the recordings, those that were read do not. "
                    f"{as_given}, and of {self.better:.2f} with that column.")
        if self.kind is MatchKind.UNRELATED:
            return (f"Texts and recordings may not belong together. {as_given}; matching ones have more than "
                    f"{LEAST_CORRELATION:g}.")
        return ""

    @property
    def hint(self) -> str:
        """Advice on the finding; empty without one."""
        if self.kind is MatchKind.SHIFTED:
            rows, way = _ROWS[abs(self.offset)], "up" if self.offset > 0 else "down"
            begin = f" from row {self.first_row:,} on" if self.first_row else ""
            return f"Move the texts {rows} {way} in the table{begin}, then prepare it again under another name."
        if self.kind is MatchKind.OTHER_COLUMN:
            return f"Name the column {self.column!r} `text` in the table, then prepare it again under another name."
        if self.kind is MatchKind.UNRELATED:
            return "Listen to some clips in the review before you train on them."
        return ""

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> TextMatch:
        return cls(**{**values, "kind": MatchKind(str(values["kind"]))})  # type: ignore[arg-type]


def text_length(text: str) -> int:
    """Letters, digits and combining marks: what takes time to speak."""
    return sum(character.isalnum() or unicodedata.category(character)[0] == "M" for character in text)


def match_texts(lengths: Sequence[float], durations: Sequence[float], speech: Sequence[float],
                columns: Mapping[str, Sequence[float]] | None = None) -> TextMatch:
    """Compare lengths (N,) of texts with durations (N,) in the order of the table; NaN if a row has none.

    `speech`: durations (N,) without the silence at the ends. The better fitting of the two durations counts.
    `columns`: lengths of the texts in columns of the table that were not read.
    """
    # With square roots, a few very long clips do not decide.
    text = np.sqrt(np.asarray(lengths, dtype=np.float64))
    sounds = [np.sqrt(np.asarray(values, dtype=np.float64)) for values in (durations, speech)]
    offsets = [_offsets(text, sound) for sound in sounds]
    best = max(range(2), key=lambda index: max(correlation.value for correlation in offsets[index].values()))
    sound, by_offset = sounds[best], offsets[best]
    as_given = by_offset[0]
    low, high = as_given.interval()

    def made(kind: MatchKind, offset: int = 0, first_row: int = 0, better: float = 0.0, column: str = "") -> TextMatch:
        return TextMatch(kind, as_given.pairs, round(as_given.value, 3), low, high, offset, first_row, round(better, 3),
                         column)

    offset, shifted = max(by_offset.items(), key=lambda item: item[1].evidence())
    tests = 2 * (len(by_offset) - 1)
    is_shifted = offset != 0 and shifted.is_better_than(as_given, tests)
    # A shift inside the table explains more than one offset for all rows, so it is tested first.
    best_evidence = max(as_given.evidence(), shifted.evidence() if is_shifted else 0.0)
    split = _shift_inside(text, sound, best_evidence)
    if split:
        return made(MatchKind.SHIFTED, split.offset, split.row + 1, split.correlation)
    if is_shifted:
        return made(MatchKind.SHIFTED, offset, better=shifted.value)

    # Another column may hold the text that was spoken.
    by_column = {name: _correlation(np.sqrt(np.asarray(values, dtype=np.float64)), sound)
              for name, values in (columns or {}).items()}
    if by_column and as_given.value < LEAST_CORRELATION:
        name, other = max(by_column.items(), key=lambda item: item[1].evidence())
        if other.is_better_than(as_given, 2 * len(by_column)):
            return made(MatchKind.OTHER_COLUMN, better=other.value, column=name)

    if as_given.pairs < LEAST_CLIPS:
        return made(MatchKind.NOT_MEASURED)
    if as_given.value >= LEAST_CORRELATION:
        return made(MatchKind.MATCHES)
    # If all texts are about as long, lengths say nothing.
    are_alike = min(_spread(text ** 2), _spread(sound ** 2)) < _LEAST_SPREAD
    return made(MatchKind.NOT_MEASURED if are_alike else MatchKind.UNRELATED)


def _spread(values: Values) -> float:
    """The standard deviation relative to the mean."""
    finite = values[np.isfinite(values)]
    return float(finite.std() / finite.mean()) if len(finite) and finite.mean() > 0 else 0.0


@dataclass(frozen=True)
class _Correlation:
    """Pearson's correlation over some pairs; 0 for fewer than `_LEAST_PAIRS`, or if one side is constant."""

    value: float
    pairs: int

    def evidence(self, pairs: int | None = None) -> float:
        """The log-likelihood ratio to no relation, in nats, over so many pairs; a negative relation is none."""
        return -(self.pairs if pairs is None else pairs) / 2 * math.log(max(1e-9, 1 - max(0.0, self.value) ** 2))

    def is_better_than(self, as_given: _Correlation, tests: int) -> bool:
        """Whether this one, the best of so many `tests`, fits and the one as given does not fit as well."""
        from scipy import stats  # slow to import

        if self.pairs < _LEAST_PAIRS or self.value < LEAST_CORRELATION:
            return False
        pairs = min(self.pairs, as_given.pairs)
        t_value = self.value * math.sqrt((self.pairs - 2) / max(1e-9, 1 - self.value ** 2))
        by_chance = tests * float(stats.t.sf(t_value, self.pairs - 2))
        return self.evidence(pairs) - as_given.evidence(pairs) >= _EVIDENCE and by_chance < _SIGNIFICANCE

    def interval(self) -> tuple[float, float]:
        """The 95% interval by Fisher's transformation."""
        if self.pairs < 4:
            return -1.0, 1.0
        centre, half = math.atanh(min(0.999999, max(-0.999999, self.value))), 1.96 / math.sqrt(self.pairs - 3)
        return round(math.tanh(centre - half), 3), round(math.tanh(centre + half), 3)


def _offsets(text: Values, sound: Values) -> dict[int, _Correlation]:
    """By offset, the correlation of each duration with the text so many rows below it."""
    largest = max(0, min(MAX_OFFSET, len(text) - 1))
    return {offset: _correlation(*_shifted(text, sound, offset)) for offset in range(-largest, largest + 1)}


def _shifted(text: Values, sound: Values, offset: int) -> tuple[Values, Values]:
    """Pairs of a duration and the text `offset` rows below it. What leaves the table at one end has no partner."""
    count = len(text)
    return (text[offset:], sound[:count - offset]) if offset >= 0 else (text[:offset], sound[-offset:])


def _correlation(text: Values, sound: Values) -> _Correlation:
    finite = np.isfinite(text) & np.isfinite(sound)
    text, sound = text[finite], sound[finite]
    if len(text) < _LEAST_PAIRS or text.std() < 1e-9 or sound.std() < 1e-9:
        return _Correlation(0.0, len(text))
    return _Correlation(float(np.corrcoef(text, sound)[0, 1]), len(text))


@dataclass(frozen=True)
class _Split:
    """A shift that begins at a row, counted from 0, and the correlation from there on."""

    row: int
    offset: int
    correlation: float


def _shift_inside(text: Values, sound: Values, evidence: float) -> _Split | None:
    """The place from which on the texts are shifted, as after a lost row; None if one offset explains all rows.

    `evidence` in nats: that of the best offset of the whole table.
    """
    rows = len(text)
    if rows < 2 * _LEAST_PART:
        return None
    places = np.arange(_LEAST_PART, rows - _LEAST_PART + 1)  # the number of rows before the shift
    head, tail_as_given = _Running.over(text, sound), _Running.over(text[::-1], sound[::-1])
    best: tuple[float, _Split] | None = None
    for offset in (offset for offset in range(-MAX_OFFSET, MAX_OFFSET + 1) if offset):
        # Shift the texts; rows without a partner stay NaN.
        shifted = np.full(rows, np.nan)
        source = np.arange(rows) + offset
        inside = (source >= 0) & (source < rows)
        shifted[inside] = text[source[inside]]
        head_shifted, tail = _Running.over(shifted, sound), _Running.over(shifted[::-1], sound[::-1])

        # Both parts must fit, each better than at the offset of the other, and together better than one offset alone.
        head_evidence, tail_evidence = head.evidence[places], tail.evidence[rows - places]
        gain = np.min([head_evidence + tail_evidence - evidence, tail_evidence - tail_as_given.evidence[rows - places],
                       head_evidence - head_shifted.evidence[places]], axis=0)
        fits = np.minimum(head.values[places], tail.values[rows - places]) >= LEAST_CORRELATION
        gain = np.where(fits, gain, -np.inf)
        place = int(gain.argmax())
        if gain[place] >= _SPLIT_EVIDENCE and (best is None or gain[place] > best[0]):
            row = int(places[place])
            best = float(gain[place]), _Split(row, offset, float(tail.values[rows - row]))
    return best[1] if best else None


@dataclass(frozen=True)
class _Running:
    """The correlation over the first 0 to N rows, and its evidence in nats: (N + 1,) each."""

    values: Values
    evidence: Values

    @classmethod
    def over(cls, text: Values, sound: Values) -> _Running:
        finite = np.isfinite(text) & np.isfinite(sound)
        if not finite.any():
            return cls(np.zeros(len(text) + 1), np.zeros(len(text) + 1))
        # Sums of small numbers lose no digits, so the means are subtracted first.
        x = np.where(finite, text - text[finite].mean(), 0.0)
        y = np.where(finite, sound - sound[finite].mean(), 0.0)
        count, sum_x, sum_y, sum_xx, sum_yy, sum_xy = (
            np.concatenate([[0.0], np.cumsum(values)]) for values in (finite.astype(float), x, y, x * x, y * y, x * y))
        pairs = np.maximum(count, 1.0)
        variance = (sum_xx - sum_x ** 2 / pairs) * (sum_yy - sum_y ** 2 / pairs)
        measured = (count >= _LEAST_PAIRS) & (variance > 1e-12)
        values = np.where(measured, (sum_xy - sum_x * sum_y / pairs) / np.sqrt(np.where(measured, variance, 1.0)), 0.0)
        return cls(values, -count / 2 * np.log(np.maximum(1e-9, 1 - np.maximum(0.0, values) ** 2)))
