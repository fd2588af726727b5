"""How the clips of a dataset are spread: durations, speaking rates, levels, noise, and how often each character stands.

Pure: judged clips in, counts out; the page draws them. Never loads torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from data.clip_findings import Spoken, speaking_rate

_BINS = 24
_MOST_CHARACTERS = 48


@dataclass(frozen=True)
class Histogram:
    """`counts` of clips between `low` and `high` in equal steps; what lies beyond is in the first and last one."""

    title: str
    unit: str
    low: float
    high: float
    median: float
    counts: tuple[int, ...]


_READ: tuple[tuple[str, str, Callable[[Spoken], float | None]], ...] = (
    ("Duration", "s", lambda clip: clip.measures.duration_s if clip.measures else None),
    ("Speaking rate", "letters a second", speaking_rate),
    ("Level", "LUFS", lambda clip: clip.measures.level_lufs if clip.measures else None),
    ("Voice over noise", "dB", lambda clip: clip.measures.snr_db if clip.measures else None),
)


def histograms(clips: Sequence[Spoken]) -> tuple[Histogram, ...]:
    """One of each measure that some clip has. Half a percent at each end is drawn in the outermost bars."""
    made = []
    for title, unit, read in _READ:
        values = np.array([value for clip in clips if (value := read(clip)) is not None], dtype=np.float64)
        if not len(values):
            continue
        low, high = (float(edge) for edge in np.percentile(values, (0.5, 99.5)))
        if high - low < 1e-9:
            low, high = low - 0.5, high + 0.5
        counts, _ = np.histogram(np.clip(values, low, high), bins=_BINS, range=(low, high))
        made.append(Histogram(title, unit, low, high, float(np.median(values)), tuple(int(count) for count in counts)))
    return tuple(made)


def characters(clips: Sequence[Spoken]) -> tuple[tuple[str, int], ...]:
    """The most frequent characters of the texts as they are spoken, with how often each stands there."""
    counts: Counter[str] = Counter()
    for clip in clips:
        counts.update(clip.text.replace(" ", ""))
    return tuple(counts.most_common(_MOST_CHARACTERS))
