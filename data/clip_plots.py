"""How the clips of a dataset are spread by what was measured of them, and how often each character stands in them.

Pure: judged clips in, counts out; the page draws them. Never loads torch.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data.clip_findings import Spoken, speaking_rate

_BINS = 24
_MOST_CHARACTERS = 48
LEARNABLE = 10  # times; the row of a character that is seen less often can hardly be learnt


@dataclass(frozen=True)
class Histogram:
    """`counts` of clips between `low` and `high` in equal steps; what lies beyond is in the first and last one."""

    title: str
    unit: str
    low: float
    high: float
    median: float
    counts: tuple[int, ...]
    among: int = 0  # clips that were looked at, where those without any of it are not drawn


RATE, LEVEL, CLIPPING = "Speaking rate", "Level", "Clipping"
_READ: tuple[tuple[str, str, Callable[[Spoken], float | None]], ...] = (
    ("Duration", "s", lambda clip: clip.measures.duration_s if clip.measures else None),
    (RATE, "letters a second", speaking_rate),
    (LEVEL, "LUFS", lambda clip: clip.measures.level_lufs if clip.measures else None),
    ("Voice over noise", "dB", lambda clip: clip.measures.snr_db if clip.measures else None),
    (CLIPPING, "% of the samples", lambda clip: 100 * clip.measures.clipped_share if clip.measures else None),
    ("Silence at the longer end", "s", lambda clip: max(clip.measures.silence_start_s, clip.measures.silence_end_s)
     if clip.measures else None),
    ("Bandwidth", "kHz", lambda clip: clip.measures.bandwidth_hz / 1000 if clip.measures else None),
)


class Spread:
    """The measures of all clips, 8 bytes each, and how often each character stands in their texts."""

    def __init__(self) -> None:
        self.values = {title: array("d") for title, _, _ in _READ}
        self.counts: Counter[str] = Counter()

    def add(self, clip: Spoken) -> None:
        for title, _, read in _READ:
            if (value := read(clip)) is not None:
                self.values[title].append(value)
        self.counts.update("".join(clip.text.split()))

    def histograms(self) -> tuple[Histogram, ...]:
        """One of each measure that some clip has. Half a percent at each end is drawn in the outermost bars."""
        return tuple(_histogram(title, unit, np.frombuffer(self.values[title]))
                     for title, unit, _ in _READ if self.values[title])

    def characters(self) -> tuple[tuple[str, int], ...]:
        """The most frequent characters of the texts as they are spoken, with how often each stands there."""
        return tuple(self.counts.most_common(_MOST_CHARACTERS))

    def rarest(self) -> tuple[tuple[str, int], ...]:
        """The rarest characters, the rarest first, of those that are not among the most frequent or hard to learn."""
        frequent = dict(self.characters())
        rare = ((one, count) for one, count in self.counts.items() if one not in frequent or count < LEARNABLE)
        return tuple(sorted(rare, key=lambda one: (one[1], one[0]))[:_MOST_CHARACTERS])


def _histogram(title: str, unit: str, values: np.ndarray) -> Histogram:
    among = 0
    if title == CLIPPING:  # most recordings have none, beside which the others could not be seen
        among, values = len(values), values[values > 0]
        if not len(values):
            return Histogram(title, unit, 0.0, 1.0, 0.0, (0,) * _BINS, among)
    low, high = (float(edge) for edge in np.percentile(values, (0.5, 99.5)))
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    counts, _ = np.histogram(np.clip(values, low, high), bins=_BINS, range=(low, high))
    return Histogram(title, unit, low, high, float(np.median(values)), tuple(int(count) for count in counts), among)
