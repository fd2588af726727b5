"""Findings about the clips of a dataset: by their own measures and text, and compared with all others.

An error is what training cannot use or would learn wrongly; a warning needs a listener. Each finding has a weight, so
the worst clips can be shown first; no clip is removed here. Limits are in `ClipLimits`. A survey passes over all clips
twice: 8 bytes a measure stay in memory for the medians; texts, speakers and sketches are on disk, so 100,000 clips need
the memory of 1,000.
"""

from __future__ import annotations

import json
import re
import sqlite3
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, nan
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from data.disk_collections import DiskDict
from data.measures import Measures, differing_bits
from data.text_match import TextMatch, match_texts, text_length

ERROR, WARNING = "error", "warning"
SAME_SOUND, TWO_TEXTS, EDGES = "same sound", "two texts", "edges"
"""Kinds: a copy of another clip, clips with the same sound and different texts, and silent edges that were kept."""
OTHER_TEXT = "other text"
"""Kind: a recogniser hears another text of the dataset in the clip."""
_REPEATED_MARK = re.compile(r"([^\w\s])\1{2,}")
_SENTENCE_MARKS = ".!?…።፧፨؟۔।॥。！？"
_MARKED_WORDS = 4  # fewer words say nothing about a mark after each
_LINE_SAMPLE = 20_000  # pairs of clips for the slope of Theil and Sen
_BINS = 24
_MOST_CHARACTERS = 48
LEARNABLE = 10  # times; a rarer character can hardly be learned
RATE_TITLE, LEVEL_TITLE, CLIPPING_TITLE = "Speaking rate", "Level", "Clipping"
_CHUNK = 8  # hexadecimal digits of a sketch; copies share at least one chunk
_CACHE_KIB = 16_000


@dataclass(frozen=True)
class ClipLimits:
    """Bounds beyond which a clip gets a finding."""

    clipped_share: float = 0.001  # share of samples
    level_apart: float = 10.0  # LU from the median of the dataset
    least_lufs: float = -45.0
    snr_db: float = 10.0
    edge_s: float = 0.75  # silence at either end
    pause_s: float = 1.0  # silence between two sounds
    bandwidth_hz: float = 5500.0  # telephone ends at 4000
    pace_z: float = 3.5  # robust z-score (Iglewicz and Hoaglin 1993)
    pace_times: float = 1.5  # and at least this ratio to the median: uniform data has large scores
    pace_error_times: float = 2.5  # an error: the text must be another one
    length_z: float = 3.0  # z-score of the speech duration against its text, in this dataset
    length_times: float = 1.6
    same_text_clips: int = 5  # clips of a speaker with one text; the table was filled down
    least_clips: int = 10  # fewer give no meaningful median
    rare_occurrences: int = 3
    rare_share: float = 0.1  # share of clips; above it rare characters are normal
    max_text_length: int = 0  # characters that the model can hold; 0: unknown
    sketch_bits: int = 24  # differing bits, out of 256; the nearest of 617 unrelated clips of the demo differ in 58
    sketch_duration: float = 0.1  # relative difference in length between copies


LIMITS = ClipLimits()


@dataclass(frozen=True)
class AnalysedClip:
    """What the survey needs of a clip; `measures` is None if the recording could not be read."""

    id: str
    text: str  # normalised
    speaker: str
    measures: Measures | None
    unknown: str = ""  # characters outside the tokenizer
    over: str = ""  # message if it is longer than the model can hold
    written: str = ""  # the text as it was given, with all its marks
    other_text: str = ""  # message if the recogniser hears another text of the dataset in it


@dataclass(frozen=True)
class ClipFinding:
    """One finding; `kind` is a short word for grouping, `level` is `error` or `warning`."""

    kind: str
    level: str
    message: str
    weight: float


def badness(findings: Sequence[ClipFinding]) -> float:
    """Sort key of a clip; 0 without findings. An error outweighs all warnings."""
    return sum(finding.weight + (100.0 if finding.level == ERROR else 0.0) for finding in findings)


def scale(values: ArrayLike) -> tuple[float, float]:
    """The median, and a robust standard deviation: the median absolute deviation / 0.6745."""
    array = np.asarray(values, dtype=np.float64)
    middle = float(np.median(array))
    apart = np.abs(array - middle)
    spread = float(np.median(apart)) / 0.6745
    # More than half of the values are equal: use the mean deviation (Iglewicz and Hoaglin 1993).
    if spread == 0:
        spread = 1.253314 * float(apart.mean())
    return middle, spread


def speaking_rate(clip: AnalysedClip) -> float | None:
    """Characters a second between the silent ends; None if that time or text is empty."""
    if clip.measures is None:
        return None
    voiced_s = _speech_s(clip.measures)
    return len(clip.text.replace(" ", "")) / voiced_s if voiced_s > 0.05 and clip.text else None


def _speech_s(measures: Measures) -> float:
    """Seconds between the silent ends."""
    return measures.duration_s - measures.silence_start_s - measures.silence_end_s


def text_findings(clip: AnalysedClip, limits: ClipLimits) -> list[ClipFinding]:
    """Findings about the text."""
    findings = []
    if clip.unknown:
        message = f"unknown to the tokenizer: {' '.join(clip.unknown)}"
        findings.append(ClipFinding("unknown characters", ERROR, message, 5))
    if clip.over:
        findings.append(ClipFinding("too long", ERROR, clip.over, 5.0))
    if clip.other_text:
        findings.append(ClipFinding(OTHER_TEXT, ERROR, clip.other_text, 50.0))  # first in the review
    message = _mark_fault(clip.written)
    if message:
        findings.append(ClipFinding("repeated marks", WARNING, message, 1.5))

    if 0 < limits.max_text_length < len(clip.text):
        message = (f"{len(clip.text)} characters; the model holds {limits.max_text_length} tokens, so it fits only "
                   "where pieces are longer than one")
        findings.append(ClipFinding("long text", WARNING, message, 3.0))

    symbols = sorted({character for character in clip.text if _is_symbol(character)})
    if symbols:
        message = f"{' '.join(symbols)} in the text: spell out as it is spoken"
        findings.append(ClipFinding("symbols", WARNING, message, 2))
    return findings


def _mark_fault(text: str) -> str:
    """What is wrong with the marks of the text as written; empty if nothing is. Three dots are one mark."""
    runs = {match[0] for match in _REPEATED_MARK.finditer(text)} - {"..."}
    if runs:
        return f"{' '.join(sorted(runs))} in the text: a mark is not repeated"
    words = text.split()
    if len(words) >= _MARKED_WORDS and sum(word[-1] in _SENTENCE_MARKS for word in words[:-1]) >= len(words) - 1:
        return f"{words[0][-1]} after each word: it ends a sentence"
    return ""


def _is_symbol(character: str) -> bool:
    """Whether a character must be spelled out, such as a digit or a currency sign."""
    if character.isnumeric():
        return True
    return (character.isprintable() and not character.isspace() and not character.isalnum()
            and not _in_words(character))


def _in_words(character: str) -> bool:
    return character in "'’.,?!-" or ("a" + character).isidentifier()


def audio_findings(measures: Measures, limits: ClipLimits) -> list[ClipFinding]:
    """Findings about the recording."""
    findings = []

    if measures.clipped_share > limits.clipped_share:
        findings.append(ClipFinding("clipping", WARNING, f"{measures.clipped_share:.1%} of the samples are clipped",
                                 2 + min(3.0, 20 * measures.clipped_share)))

    if measures.snr_db is not None and measures.snr_db < limits.snr_db:
        findings.append(ClipFinding("noise", WARNING, f"the voice is {measures.snr_db:.0f} dB over the noise, "
                                 f"{limits.snr_db:g} or more are wanted", 2 + (limits.snr_db - measures.snr_db) / 5))

    # Only clips whose edges were kept have silence at an end.
    for seconds, end in ((measures.silence_start_s, "start"), (measures.silence_end_s, "end")):
        if seconds > limits.edge_s:
            findings.append(ClipFinding(EDGES, WARNING, f"{seconds:.1f} s of silence at the {end}",
                                     1 + min(2.0, seconds / 2)))

    if measures.pause_s > limits.pause_s:
        findings.append(ClipFinding("silence", WARNING, f"{measures.pause_s:.1f} s of silence within the clip",
                                 1 + min(2.0, measures.pause_s / 2)))

    if 0 < measures.bandwidth_hz < limits.bandwidth_hz:
        findings.append(ClipFinding("bandwidth", WARNING, f"nothing above {measures.bandwidth_hz / 1000:.1f} kHz in "
                                 f"{measures.sample_rate:,} samples a second: muffled, as by telephone", 2.5))
    return findings


@dataclass(frozen=True)
class Histogram:
    """`counts` of clips in equal steps from `low` to `high`; values beyond are in the first and last bin."""

    title: str
    unit: str
    low: float
    high: float
    median: float
    counts: tuple[int, ...]
    among: int = 0  # all clips, if those with the value 0 are not drawn


_READ: tuple[tuple[str, str, Callable[[AnalysedClip], float | None]], ...] = (
    ("Duration", "s", lambda clip: clip.measures.duration_s if clip.measures else None),
    (RATE_TITLE, "letters a second", speaking_rate),
    (LEVEL_TITLE, "LUFS", lambda clip: clip.measures.level_lufs if clip.measures else None),
    ("Voice over noise", "dB", lambda clip: clip.measures.snr_db if clip.measures else None),
    (CLIPPING_TITLE, "% of the samples", lambda clip: 100 * clip.measures.clipped_share if clip.measures else None),
    ("Longest pause", "s", lambda clip: clip.measures.pause_s if clip.measures else None),
    ("Bandwidth", "kHz", lambda clip: clip.measures.bandwidth_hz / 1000 if clip.measures else None),
)


class ClipStatistics:
    """The measures of all clips, 8 bytes each, and the counts of characters in their texts."""

    def __init__(self) -> None:
        self.values = {title: array("d") for title, _, _ in _READ}
        self.counts: Counter[str] = Counter()

    def add(self, clip: AnalysedClip) -> None:
        for title, _, read in _READ:
            value = read(clip)
            if value is not None:
                self.values[title].append(value)
        self.counts.update("".join(clip.text.split()))

    def histograms(self) -> tuple[Histogram, ...]:
        """One for each measure that some clip has; the outermost 0.5 % on each side are in the outer bins."""
        return tuple(_histogram(title, unit, np.frombuffer(self.values[title]))
                     for title, unit, _ in _READ if self.values[title])

    def characters(self) -> tuple[tuple[str, int], ...]:
        """The most frequent characters of the normalised texts with their counts."""
        return tuple(self.counts.most_common(_MOST_CHARACTERS))

    def rarest(self) -> tuple[tuple[str, int], ...]:
        """Characters that are not among the most frequent or are hard to learn, the rarest first."""
        frequent = dict(self.characters())
        rare = ((character, count) for character, count in self.counts.items()
                if character not in frequent or count < LEARNABLE)
        return tuple(sorted(rare, key=lambda pair: (pair[1], pair[0]))[:_MOST_CHARACTERS])


def _histogram(title: str, unit: str, values: np.ndarray) -> Histogram:
    among = 0
    # Most recordings have no clipped samples, and would hide the others.
    if title == CLIPPING_TITLE:
        among, values = len(values), values[values > 0]
        if not len(values):
            return Histogram(title, unit, 0.0, 1.0, 0.0, (0,) * _BINS, among)
    low, high = (float(edge) for edge in np.percentile(values, (0.5, 99.5)))
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    counts, _ = np.histogram(np.clip(values, low, high), bins=_BINS, range=(low, high))
    return Histogram(title, unit, low, high, float(np.median(values)), tuple(int(count) for count in counts), among)


class DatasetSurvey:
    """Statistics of all clips, then findings of each: `add` every clip in order, then `find_problems` of every clip."""

    def __init__(self, limits: ClipLimits = LIMITS) -> None:
        self.spread = ClipStatistics()
        self._limits = limits
        self._clips = 0
        self._repeated: Counter[str] = Counter()  # other clips with the text, keyed by the first clip that has it
        self._lengths, self._durations, self._speech = array("d"), array("d"), array("d")  # all in clip order
        self._open = ExitStack()
        self._copies = self._open.enter_context(_Copies(limits))
        self._texts, self._speakers, self._sounds = (self._open.enter_context(DiskDict()) for _ in range(3))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._open.close()

    def text_match(self) -> TextMatch:
        """Whether the lengths of the texts fit the durations of the clips, in the order in which these were added."""
        return match_texts(self._lengths, self._durations, self._speech)

    def add(self, clip: AnalysedClip) -> None:
        self._clips += 1
        self.spread.add(clip)
        self._lengths.append(text_length(clip.text))
        self._durations.append(clip.measures.duration_s if clip.measures else nan)
        self._speech.append(max(0.0, _speech_s(clip.measures)) if clip.measures else nan)

        # The same text twice is noted at its first clip.
        earlier_clip = self._texts.put(_text_key(clip), clip.id)
        if earlier_clip is not None:
            self._repeated[earlier_clip] += 1
        if self._speakers.put(clip.speaker, "one") == "one":
            self._speakers.replace(clip.speaker, "several")

        # Both clips are noted if their texts differ: a listener must decide which text is right.
        copy = self._copies.first(clip)
        if copy is not None:
            self._sounds.put(clip.id, json.dumps(copy))
            name, text = copy
            if text != clip.text:
                self._sounds.put(name, json.dumps([clip.id, clip.text]))

    def find_problems(self, clip: AnalysedClip) -> tuple[ClipFinding, ...]:
        """The findings of a clip that was added, the gravest first."""
        findings = text_findings(clip, self._limits)
        findings += audio_findings(clip.measures, self._limits) if clip.measures else [
            ClipFinding("unreadable", ERROR, "the recording could not be read", 10.0)]
        for find in (self._level, self._pace, self._long, self._same_sound, self._same_text, self._rare, self._alone):
            findings += find(clip)
        return tuple(sorted(findings, key=lambda finding: -finding.weight))

    @cached_property
    def _usual_level(self) -> float | None:
        levels = self.spread.values[LEVEL_TITLE]
        return float(np.median(levels)) if len(levels) >= self._limits.least_clips else None

    @cached_property
    def _usual_pace(self) -> tuple[float, float, float] | None:
        """Median of the rates; median and spread of their logarithms."""
        rates = np.frombuffer(self.spread.values[RATE_TITLE])
        return (float(np.median(rates)), *scale(np.log(rates))) if len(rates) >= self._limits.least_clips else None

    @cached_property
    def _rare_characters(self) -> frozenset[str]:
        """Characters that can hardly be learned; none if they are in too many clips.

        In a small dataset nearly every clip has one; `data.validation` reports that for the whole dataset.
        """
        rare = {character: count for character, count in self.spread.counts.items()
                if count < self._limits.rare_occurrences}
        return frozenset(rare) if sum(rare.values()) <= self._limits.rare_share * self._clips else frozenset()

    def _level(self, clip: AnalysedClip) -> list[ClipFinding]:
        level, usual = clip.measures.level_lufs if clip.measures else None, self._usual_level
        if level is None:
            return []
        if usual is not None and abs(level - usual) > self._limits.level_apart:
            message = f"{level:.0f} LUFS, {abs(level - usual):.0f} {'over' if level > usual else 'under'} the others"
        elif level < self._limits.least_lufs:
            message = f"{level:.0f} LUFS: too quiet"
        else:
            return []
        return [ClipFinding("level", WARNING, message, 2.0)]

    def _pace(self, clip: AnalysedClip) -> list[ClipFinding]:
        """Clips that are much faster or slower than the rest: most have the text of another recording."""
        rate = speaking_rate(clip)
        if not rate or self._usual_pace is None:
            return []
        usual, middle, spread = self._usual_pace
        score = (log(rate) - middle) / spread if spread else 0.0
        times = max(rate / usual, usual / rate)
        if abs(score) <= self._limits.pace_z or times <= self._limits.pace_times:
            return []
        level = ERROR if times > self._limits.pace_error_times else WARNING
        message = (f"{rate:.1f} letters a second, the others {usual:.1f}, {times:.1f} times as "
                   f"{'many' if rate > usual else 'few'}: is the text of this recording?")
        return [ClipFinding("pace", level, message, 3 + min(5.0, times))]

    @cached_property
    def _usual_length(self) -> tuple[float, float, float, float] | None:
        """Seconds of speech at no letter, seconds a letter, and the middle and spread of the log ratio to that line."""
        letters, speech = np.frombuffer(self._lengths), np.frombuffer(self._speech)
        measured = np.isfinite(speech) & (speech > 0.05) & (letters > 0)
        letters, speech = letters[measured], speech[measured]

        if len(letters) < self._limits.least_clips:
            return None

        # The slope of Theil and Sen: the median over random pairs of clips, which outliers do not move.
        first_clip, second_clip = np.random.default_rng(0).integers(0, len(letters), (2, _LINE_SAMPLE))
        differ = letters[first_clip] != letters[second_clip]
        if not differ.any():
            return None
        first_clip, second_clip = first_clip[differ], second_clip[differ]
        slopes = (speech[first_clip] - speech[second_clip]) / (letters[first_clip] - letters[second_clip])
        slope = float(np.median(slopes))
        start = float(np.median(speech - slope * letters))
        return start, slope, *scale(np.log(speech / _expected_s(letters, start, slope)))

    def _long(self, clip: AnalysedClip) -> list[ClipFinding]:
        """Clips with far more speech than their text takes, as one that holds a second sentence."""
        letters, usual = text_length(clip.text), self._usual_length
        if clip.measures is None or usual is None or not letters or self._pace(clip):
            return []
        speech_s, (start, slope, middle, spread) = _speech_s(clip.measures), usual
        expected_s = float(_expected_s(np.array([letters]), start, slope)[0]) * exp(middle)
        times = speech_s / expected_s
        if times <= self._limits.length_times or not spread or log(times) / spread <= self._limits.length_z:
            return []
        message = (f"{speech_s:.1f} s of speech, a text of this length takes {expected_s:.1f} s here: does the clip "
                   "hold a second sentence?")
        return [ClipFinding("long for its text", WARNING, message, 3 + min(5.0, times))]

    def _same_sound(self, clip: AnalysedClip) -> list[ClipFinding]:
        """Copies of an earlier clip. If their texts differ, both clips get an error, and so does a copy of either."""
        copy = self._sounds.get(clip.id)
        if copy is None:
            return []
        name, text = json.loads(copy)

        # A copy of a clip whose own copy has another text shares that conflict.
        rival = self._sounds.get(name) if text == clip.text else None
        if rival is not None:
            name, text = json.loads(rival)
        if text == clip.text:
            return [ClipFinding(SAME_SOUND, WARNING, f"sounds like {name}", 3.0)]
        return [ClipFinding(TWO_TEXTS, ERROR, f"sounds like {name}, which has another text: check which is correct",
                            3.0)]

    def _same_text(self, clip: AnalysedClip) -> list[ClipFinding]:
        earlier_clip = self._texts.get(_text_key(clip))
        if earlier_clip is None:
            return []
        count = 1 + self._repeated[earlier_clip]
        if count >= self._limits.same_text_clips:
            message = f"its text is that of {count} clips of the same speaker: was the table filled down?"
            return [ClipFinding("text of many clips", WARNING, message, 4.0)]
        if earlier_clip == clip.id:
            return []
        return [ClipFinding("same text", WARNING, f"the text of {earlier_clip}, by the same speaker", 0.5)]

    def _rare(self, clip: AnalysedClip) -> list[ClipFinding]:
        characters = sorted(self._rare_characters & set(clip.text))
        message = f"{' '.join(characters)} seen fewer than {self._limits.rare_occurrences} times in the dataset"
        return [ClipFinding("rare characters", WARNING, message, 0.3)] if characters else []

    def _alone(self, clip: AnalysedClip) -> list[ClipFinding]:
        message = f"all that {clip.speaker!r} says: no other clip can be its prompt"
        return [ClipFinding("one clip", WARNING, message, 1.0)] if self._speakers.get(clip.speaker) == "one" else []


def _expected_s(letters: np.ndarray, start: float, slope: float) -> np.ndarray:
    """Seconds of speech of texts of so many letters, at least a fifth of a second."""
    return np.asarray(np.maximum(0.2, start + slope * letters))


def _text_key(clip: AnalysedClip) -> str:
    return f"{clip.speaker}\n{clip.text}"


@dataclass(frozen=True)
class _Sound:
    """The features by which copies are found."""

    sketch: str
    voiced_s: float

    @classmethod
    def of(cls, clip: AnalysedClip) -> _Sound | None:
        measures = clip.measures
        return cls(measures.sketch, _speech_s(measures)) if measures and measures.sketch else None

    @property
    def parts(self) -> list[int]:
        """Chunks of the sketch with their positions: a copy shares at least one."""
        return [chunk << 32 | int(self.sketch[chunk * _CHUNK:(chunk + 1) * _CHUNK], 16)
                for chunk in range(len(self.sketch) // _CHUNK)]

    def is_like(self, other: _Sound, limits: ClipLimits) -> bool:
        return (abs(self.voiced_s - other.voiced_s) <= limits.sketch_duration * max(self.voiced_s, other.voiced_s)
                and differing_bits(self.sketch, other.sketch) <= limits.sketch_bits)


class _Copies:
    """Recordings without an earlier copy, indexed by chunks of their sketches in a temporary database."""

    def __init__(self, limits: ClipLimits) -> None:
        self._limits = limits
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._database.execute("CREATE TABLE sounds (at INTEGER PRIMARY KEY, sketch TEXT, voiced_s REAL, clip TEXT)")
        self._database.execute("CREATE TABLE parts (part INTEGER, at INTEGER, PRIMARY KEY (part, at)) WITHOUT ROWID")
        # Nothing is committed, because no other process reads the database.
        self._database.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._database.close()

    def first(self, clip: AnalysedClip) -> tuple[str, str] | None:
        """Id and text of the first recording that sounds like this one; if there is none, store this one."""
        sound = _Sound.of(clip)
        if sound is None:
            return None

        # Copies share at least one chunk of the sketch, so few rows are compared bit by bit.
        parts = sound.parts
        near = self._database.execute(
            "SELECT sketch, voiced_s, clip FROM sounds WHERE at IN "
            f"(SELECT at FROM parts WHERE part IN ({', '.join('?' * len(parts))})) ORDER BY at", parts)
        for sketch, voiced_s, stored in near:
            if sound.is_like(_Sound(sketch, voiced_s), self._limits):
                name, text = json.loads(stored)
                return name, text

        row = self._database.execute("INSERT INTO sounds (sketch, voiced_s, clip) VALUES (?, ?, ?)",
                                    (sound.sketch, sound.voiced_s, json.dumps([clip.id, clip.text]))).lastrowid
        self._database.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?)", [(part, row) for part in parts])
        return None
