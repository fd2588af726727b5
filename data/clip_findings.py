"""What stands out of a clip by its own measures and text; nothing is left out here, only told.

What stands out among the others is told by `data.clip_survey`. An error is what training cannot use or would learn
wrongly; a warning is for the ear to decide. Each finding has a weight, so that the worst clips can be shown first.
Limits are in `ClipLimits`. Never loads torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from data.measures import Measures

ERROR, WARNING = "error", "warning"
SAME_SOUND, TWO_TEXTS = "same sound", "two texts"
"""Kinds: a copy of a clip that stays, and one of several clips whose one sound has different texts."""


@dataclass(frozen=True)
class ClipLimits:
    """Bounds of what is not remarked upon."""

    clipped_share: float = 0.001  # of the samples
    level_apart: float = 10.0  # LU from the median of the dataset
    least_lufs: float = -45.0
    snr_db: float = 10.0
    silence_s: float = 0.75  # at one end
    bandwidth_hz: float = 5500.0  # telephone ends at 4000
    pace_z: float = 3.5  # robust z-score (Iglewicz and Hoaglin 1993)
    pace_times: float = 1.5  # and at least so far from the median: in even data a small difference has a large score
    pace_error_times: float = 2.5  # so far, nobody reads: the text is another one
    least_clips: int = 10  # for a median to mean something
    rare_occurrences: int = 3
    rare_share: float = 0.1  # of the clips that may have rare characters: beyond, the dataset is small, and no clip odd
    max_text_length: int = 0  # characters that the model can hold; 0: nobody said
    sketch_bits: int = 24  # of 256; the nearest of 617 unrelated clips of the demo differ in 58
    sketch_duration: float = 0.1  # share by which copies may differ in length: their silent ends


LIMITS = ClipLimits()


@dataclass(frozen=True)
class Spoken:
    """A clip as far as it is judged. `measures` is None where it could not be read."""

    id: str
    text: str  # normalised: as it is spoken
    speaker: str
    measures: Measures | None
    unknown: str = ""  # characters that the chosen tokenizer does not know
    over: str = ""  # what of it is longer than the model can hold, with both numbers


@dataclass(frozen=True)
class ClipFinding:
    """One remark; `kind` is a short word for grouping, `level` is `error` or `warning`."""

    kind: str
    level: str
    message: str
    weight: float


def badness(findings: Sequence[ClipFinding]) -> float:
    """How far to the front a clip belongs; 0 without findings. An error outweighs any warnings."""
    return sum(finding.weight + (100.0 if finding.level == ERROR else 0.0) for finding in findings)


def scale(values: ArrayLike) -> tuple[float, float]:
    """The median, and a standard deviation that outliers do not move: 0.6745 of it is the median deviation."""
    array = np.asarray(values, dtype=np.float64)
    middle = float(np.median(array))
    apart = np.abs(array - middle)
    spread = float(np.median(apart)) / 0.6745
    if spread == 0:  # more than half are equal: the mean deviation still tells (Iglewicz and Hoaglin 1993)
        spread = 1.253314 * float(apart.mean())
    return middle, spread


def robust_z(values: ArrayLike) -> np.ndarray:
    """Distance from the median in such deviations; 0 where none differ."""
    array = np.asarray(values, dtype=np.float64)
    middle, spread = scale(array)
    return (array - middle) / spread if spread else np.zeros_like(array)


def speaking_rate(clip: Spoken) -> float | None:
    """Characters a second between the silent ends; None where there is no such time."""
    if clip.measures is None:
        return None
    voiced_s = clip.measures.duration_s - clip.measures.silence_start_s - clip.measures.silence_end_s
    return len(clip.text.replace(" ", "")) / voiced_s if voiced_s > 0.05 and clip.text else None


def of_text(clip: Spoken, limits: ClipLimits) -> list[ClipFinding]:
    """What its text shows."""
    found = []
    if clip.unknown:
        found.append(ClipFinding("unknown characters", ERROR, f"unknown to the tokenizer: {' '.join(clip.unknown)}", 5))
    if clip.over:
        found.append(ClipFinding("too long", ERROR, clip.over, 5.0))
    if 0 < limits.max_text_length < len(clip.text):
        message = (f"{len(clip.text)} characters; the model holds {limits.max_text_length} tokens, so it fits only "
                   f"where "
                   "pieces are longer than one")
        found.append(ClipFinding("long text", WARNING, message, 3.0))
    symbols = sorted({one for one in clip.text if one.isnumeric() or (one.isprintable() and not one.isspace()
                      and not one.isalnum() and not _in_words(one))})
    if symbols:
        found.append(ClipFinding("symbols", WARNING, f"{' '.join(symbols)} in the text: spell out as it is spoken", 2))
    return found


def _in_words(character: str) -> bool:
    return character in "'’.,?!-" or ("a" + character).isidentifier()


def of_sound(measures: Measures, limits: ClipLimits) -> list[ClipFinding]:
    """What its recording shows."""
    found = []
    if measures.clipped_share > limits.clipped_share:
        found.append(ClipFinding("clipping", WARNING, f"{measures.clipped_share:.1%} of the samples are clipped",
                                 2 + min(3.0, 20 * measures.clipped_share)))
    if measures.snr_db is not None and measures.snr_db < limits.snr_db:
        found.append(ClipFinding("noise", WARNING, f"the voice is {measures.snr_db:.0f} dB over the noise, "
                                 f"{limits.snr_db:g} or more are wanted", 2 + (limits.snr_db - measures.snr_db) / 5))
    for seconds, where in ((measures.silence_start_s, "start"), (measures.silence_end_s, "end")):
        if seconds > limits.silence_s:
            found.append(ClipFinding("silence", WARNING, f"{seconds:.1f} s of silence at the {where}",
                                     1 + min(2.0, seconds / 2)))
    if 0 < measures.bandwidth_hz < limits.bandwidth_hz:
        found.append(ClipFinding("bandwidth", WARNING, f"nothing above {measures.bandwidth_hz / 1000:.1f} kHz in "
                                 f"{measures.sample_rate:,} samples a second: muffled, as by telephone", 2.5))
    return found
