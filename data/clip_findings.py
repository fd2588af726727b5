"""What stands out among the clips of a dataset, by their measures and texts; nothing is left out here, only told.

An error is what training cannot use or would learn wrongly; a warning is for the ear to decide. Each finding has a
weight, so that the worst clips can be shown first. Limits are in `ClipLimits`. Never loads torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from data.measures import Measures, differing_bits

ERROR, WARNING = "error", "warning"
_CHUNK = 8  # hexadecimal digits of a sketch that two copies may share whole


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
    longest_text: int = 0  # characters that the model can hold; 0: nobody said
    sketch_bits: int = 24  # of 256; the nearest of 617 unrelated clips of the demo differ in 58
    sketch_duration: float = 0.1  # share by which copies may differ in length: their silent ends


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


def judge(clips: Sequence[Spoken], limits: ClipLimits = ClipLimits()) -> list[tuple[ClipFinding, ...]]:
    """The findings of each clip, in the order of `clips`."""
    found: list[list[ClipFinding]] = [[] for _ in clips]
    for at, clip in enumerate(clips):
        found[at] += _of_text(clip, limits)
        found[at] += _of_sound(clip.measures, limits) if clip.measures else [
            ClipFinding("unreadable", ERROR, "the recording could not be read", 10.0)]
    for find in (_level, _pace, _same_sound, _same_text, _rare, _alone):
        for at, finding in find(clips, limits):
            found[at].append(finding)
    return [tuple(sorted(each, key=lambda finding: -finding.weight)) for each in found]


def badness(findings: Sequence[ClipFinding]) -> float:
    """How far to the front a clip belongs; 0 without findings. An error outweighs any warnings."""
    return sum(finding.weight + (100.0 if finding.level == ERROR else 0.0) for finding in findings)


def robust_z(values: ArrayLike) -> np.ndarray:
    """Distance from the median in standard deviations, of which the median deviation is 0.6745; 0 where none differ."""
    array = np.asarray(values, dtype=np.float64)
    apart = array - np.median(array)
    spread = float(np.median(np.abs(apart))) / 0.6745
    if spread == 0:  # more than half are equal: the mean deviation still tells (Iglewicz and Hoaglin 1993)
        spread = 1.253314 * float(np.abs(apart).mean())
    return apart / spread if spread else np.zeros_like(array)


def speaking_rate(clip: Spoken) -> float | None:
    """Characters a second between the silent ends; None where there is no such time."""
    if clip.measures is None:
        return None
    voiced_s = clip.measures.duration_s - clip.measures.silence_start_s - clip.measures.silence_end_s
    return len(clip.text.replace(" ", "")) / voiced_s if voiced_s > 0.05 and clip.text else None


def _of_text(clip: Spoken, limits: ClipLimits) -> list[ClipFinding]:
    found = []
    if clip.unknown:
        found.append(ClipFinding("unknown characters", ERROR, f"unknown to the tokenizer: {' '.join(clip.unknown)}", 5))
    if clip.over:
        found.append(ClipFinding("too long", ERROR, clip.over, 5.0))
    if 0 < limits.longest_text < len(clip.text):
        message = (f"{len(clip.text)} characters; the model holds {limits.longest_text} tokens, so it fits only where "
                   "pieces are longer than one")
        found.append(ClipFinding("long text", WARNING, message, 3.0))
    symbols = sorted({one for one in clip.text if one.isnumeric() or (one.isprintable() and not one.isspace()
                      and not one.isalnum() and not _in_words(one))})
    if symbols:
        found.append(ClipFinding("symbols", WARNING, f"{' '.join(symbols)} in the text: spell out as it is spoken", 2))
    return found


def _in_words(character: str) -> bool:
    return character in "'’.,?!-" or ("a" + character).isidentifier()


def _of_sound(measures: Measures, limits: ClipLimits) -> list[ClipFinding]:
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


Found = list[tuple[int, ClipFinding]]


def _level(clips: Sequence[Spoken], limits: ClipLimits) -> Found:
    levels = {at: clip.measures.level_lufs for at, clip in enumerate(clips)
              if clip.measures and clip.measures.level_lufs is not None}
    usual = float(np.median(list(levels.values()))) if len(levels) >= limits.least_clips else None
    found = []
    for at, level in levels.items():
        if usual is not None and abs(level - usual) > limits.level_apart:
            message = f"{level:.0f} LUFS, {abs(level - usual):.0f} {'over' if level > usual else 'under'} the others"
        elif level < limits.least_lufs:
            message = f"{level:.0f} LUFS: hardly to be heard"
        else:
            continue
        found.append((at, ClipFinding("level", WARNING, message, 2.0)))
    return found


def _pace(clips: Sequence[Spoken], limits: ClipLimits) -> Found:
    """Pairs that are read much faster or slower than the rest: most are texts of another recording."""
    rates = {at: rate for at, clip in enumerate(clips) if (rate := speaking_rate(clip))}
    if len(rates) < limits.least_clips:
        return []
    usual = float(np.median(list(rates.values())))
    found = []
    for (at, rate), score in zip(rates.items(), robust_z(np.log(list(rates.values()))), strict=True):
        times = max(rate / usual, usual / rate)
        if abs(score) > limits.pace_z and times > limits.pace_times:
            level = ERROR if times > limits.pace_error_times else WARNING
            message = (f"{rate:.1f} letters a second, the others {usual:.1f} (robust z {score:+.1f}): "
                       "is the text of this recording?")
            found.append((at, ClipFinding("pace", level, message, 3 + min(5.0, times))))
    return found


def _same_sound(clips: Sequence[Spoken], limits: ClipLimits) -> Found:
    """Copies, each told of the first; pairs are sought among those that share a part of the sketch."""
    buckets: dict[tuple[int, str], list[int]] = defaultdict(list)
    found = []
    for at, clip in enumerate(clips):
        bits = clip.measures.sketch if clip.measures else ""
        parts = [(start, bits[start:start + _CHUNK]) for start in range(0, len(bits), _CHUNK)]
        near = sorted({other for part in parts for other in buckets[part] if _alike(clips[other], clip, limits)})
        if near:
            other = clips[near[0]]
            level = WARNING if other.text == clip.text else ERROR
            message = f"sounds like {other.id}" + ("" if level == WARNING else ", which has another text")
            found.append((at, ClipFinding("same sound", level, message, 3.0)))
        else:
            for part in parts:
                buckets[part].append(at)
    return found


def _alike(one: Spoken, other: Spoken, limits: ClipLimits) -> bool:
    if not one.measures or not other.measures:
        return False
    lengths = [each.duration_s - each.silence_start_s - each.silence_end_s for each in (one.measures, other.measures)]
    return (abs(lengths[0] - lengths[1]) <= limits.sketch_duration * max(lengths)
            and differing_bits(one.measures.sketch, other.measures.sketch) <= limits.sketch_bits)


def _same_text(clips: Sequence[Spoken], limits: ClipLimits) -> Found:
    first: dict[tuple[str, str], str] = {}
    found = []
    for at, clip in enumerate(clips):
        there = first.setdefault((clip.speaker, clip.text), clip.id)
        if there != clip.id:
            found.append((at, ClipFinding("same text", WARNING, f"the text of {there}, by the same speaker", 0.5)))
    return found


def _rare(clips: Sequence[Spoken], limits: ClipLimits) -> Found:
    """Characters whose rows can hardly be learnt."""
    counts = Counter(character for clip in clips for character in clip.text if not character.isspace())
    rare = {character for character, count in counts.items() if count < limits.rare_occurrences}
    found = []
    for at, clip in enumerate(clips):
        here = sorted(rare & set(clip.text))
        if here:
            message = f"{' '.join(here)} seen fewer than {limits.rare_occurrences} times in the dataset"
            found.append((at, ClipFinding("rare characters", WARNING, message, 0.3)))
    return found


def _alone(clips: Sequence[Spoken], limits: ClipLimits) -> Found:
    counts = Counter(clip.speaker for clip in clips)
    message = "all that {!r} says: no other clip can be its prompt"
    return [(at, ClipFinding("one clip", WARNING, message.format(clip.speaker), 1.0))
            for at, clip in enumerate(clips) if counts[clip.speaker] == 1]
