"""The judging of all clips of a dataset: first every clip is looked at, then each is held against what is usual.

Of each clip 8 bytes a measure stay in memory, for the medians; texts, speakers and sounds are remembered on the disk,
so that 100,000 clips are judged in the memory of 1,000. Never loads torch.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import log
from types import TracebackType
from typing import Self

import numpy as np

from data.clip_findings import (
    ERROR,
    LIMITS,
    SAME_SOUND,
    TWO_TEXTS,
    WARNING,
    ClipFinding,
    ClipLimits,
    Spoken,
    of_sound,
    of_text,
    scale,
    speaking_rate,
)
from data.clip_plots import LEVEL, RATE, Spread
from data.kept import Kept
from data.measures import differing_bits

_CHUNK = 8  # hexadecimal digits of a sketch that two copies may share whole
_CACHE_KIB = 16_000


def find_clip_problems(clips: Sequence[Spoken], limits: ClipLimits = LIMITS) -> list[tuple[ClipFinding, ...]]:
    """The findings of each clip, in the order of `clips`."""
    with Survey(limits) as survey:
        for clip in clips:
            survey.add(clip)
        return [survey.find_problems(clip) for clip in clips]


class Survey:
    """What must be known of all clips before one of them can be judged: `add` all, in order, then `find_problems`."""

    def __init__(self, limits: ClipLimits = LIMITS) -> None:
        self.spread = Spread()
        self._limits = limits
        self._clips = 0
        self._open = ExitStack()
        self._copies = self._open.enter_context(_Copies(limits))
        self._texts, self._speakers, self._sounds = (self._open.enter_context(Kept()) for _ in range(3))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._open.close()

    def add(self, clip: Spoken) -> None:
        self._clips += 1
        self.spread.add(clip)
        self._texts.put(_said(clip), clip.id)
        if self._speakers.put(clip.speaker, "one") == "one":
            self._speakers.replace(clip.speaker, "several")
        if (first := self._copies.first(clip)) is not None:
            self._sounds.put(clip.id, json.dumps(first))
            if first[1] != clip.text:
                self._sounds.put(first[0], json.dumps([clip.id, clip.text]))

    def find_problems(self, clip: Spoken) -> tuple[ClipFinding, ...]:
        """The findings of a clip that was added, the gravest first."""
        found = of_text(clip, self._limits)
        found += of_sound(clip.measures, self._limits) if clip.measures else [
            ClipFinding("unreadable", ERROR, "the recording could not be read", 10.0)]
        for find in (self._level, self._pace, self._same_sound, self._same_text, self._rare, self._alone):
            found += find(clip)
        return tuple(sorted(found, key=lambda finding: -finding.weight))

    @cached_property
    def _usual_level(self) -> float | None:
        levels = self.spread.values[LEVEL]
        return float(np.median(levels)) if len(levels) >= self._limits.least_clips else None

    @cached_property
    def _usual_pace(self) -> tuple[float, float, float] | None:
        """Median of the rates; median and spread of their logarithms."""
        rates = np.frombuffer(self.spread.values[RATE])
        return (float(np.median(rates)), *scale(np.log(rates))) if len(rates) >= self._limits.least_clips else None

    @cached_property
    def _rare_characters(self) -> frozenset[str]:
        """Those whose rows can hardly be learnt; none where they stand in so many clips that no clip stands out.

        In small data nearly every clip holds one, which is told of the dataset as a whole (`data.validation`).
        """
        rare = {one: count for one, count in self.spread.counts.items() if count < self._limits.rare_occurrences}
        return frozenset(rare) if sum(rare.values()) <= self._limits.rare_share * self._clips else frozenset()

    def _level(self, clip: Spoken) -> list[ClipFinding]:
        level, usual = clip.measures.level_lufs if clip.measures else None, self._usual_level
        if level is None:
            return []
        if usual is not None and abs(level - usual) > self._limits.level_apart:
            message = f"{level:.0f} LUFS, {abs(level - usual):.0f} {'over' if level > usual else 'under'} the others"
        elif level < self._limits.least_lufs:
            message = f"{level:.0f} LUFS: hardly to be heard"
        else:
            return []
        return [ClipFinding("level", WARNING, message, 2.0)]

    def _pace(self, clip: Spoken) -> list[ClipFinding]:
        """Pairs that are read much faster or slower than the rest: most are texts of another recording."""
        rate = speaking_rate(clip)
        if not rate or self._usual_pace is None:
            return []
        usual, middle, spread = self._usual_pace
        score = (log(rate) - middle) / spread if spread else 0.0
        times = max(rate / usual, usual / rate)
        if abs(score) <= self._limits.pace_z or times <= self._limits.pace_times:
            return []
        level = ERROR if times > self._limits.pace_error_times else WARNING
        message = (f"{rate:.1f} letters a second, the others {usual:.1f} (robust z {score:+.1f}): "
                   "is the text of this recording?")
        return [ClipFinding("pace", level, message, 3 + min(5.0, times))]

    def _same_sound(self, clip: Spoken) -> list[ClipFinding]:
        """Copies, each told of the first. Where two texts stand for one sound, both clips are told: who knows which.

        A copy of one whose text is in doubt is in the same doubt.
        """
        if (kept := self._sounds.get(clip.id)) is None:
            return []
        name, text = json.loads(kept)
        if text == clip.text and (rival := self._sounds.get(name)) is not None:
            name, text = json.loads(rival)
        if text == clip.text:
            return [ClipFinding(SAME_SOUND, WARNING, f"sounds like {name}", 3.0)]
        return [ClipFinding(TWO_TEXTS, ERROR, f"sounds like {name}, which has another text: listen which one is right",
                            3.0)]

    def _same_text(self, clip: Spoken) -> list[ClipFinding]:
        there = self._texts.get(_said(clip))
        return [] if there in (None, clip.id) else [
            ClipFinding("same text", WARNING, f"the text of {there}, by the same speaker", 0.5)]

    def _rare(self, clip: Spoken) -> list[ClipFinding]:
        here = sorted(self._rare_characters & set(clip.text))
        message = f"{' '.join(here)} seen fewer than {self._limits.rare_occurrences} times in the dataset"
        return [ClipFinding("rare characters", WARNING, message, 0.3)] if here else []

    def _alone(self, clip: Spoken) -> list[ClipFinding]:
        message = f"all that {clip.speaker!r} says: no other clip can be its prompt"
        return [ClipFinding("one clip", WARNING, message, 1.0)] if self._speakers.get(clip.speaker) == "one" else []


def _said(clip: Spoken) -> str:
    return f"{clip.speaker}\n{clip.text}"


@dataclass(frozen=True)
class _Sound:
    """What of a recording is compared."""

    sketch: str
    voiced_s: float

    @classmethod
    def of(cls, clip: Spoken) -> _Sound | None:
        one = clip.measures
        return cls(one.sketch, one.duration_s - one.silence_start_s - one.silence_end_s) if one and one.sketch else None

    @property
    def parts(self) -> list[int]:
        """Parts of the sketch, each with its place: a copy shares one of them whole."""
        return [at << 32 | int(self.sketch[at * _CHUNK:(at + 1) * _CHUNK], 16)
                for at in range(len(self.sketch) // _CHUNK)]

    def is_like(self, other: _Sound, limits: ClipLimits) -> bool:
        return (abs(self.voiced_s - other.voiced_s) <= limits.sketch_duration * max(self.voiced_s, other.voiced_s)
                and differing_bits(self.sketch, other.sketch) <= limits.sketch_bits)


class _Copies:
    """Recordings that are not copies of one before them, by the parts of their sketches, in a temporary database."""

    def __init__(self, limits: ClipLimits) -> None:
        self._limits = limits
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._database.execute("CREATE TABLE sounds (at INTEGER PRIMARY KEY, sketch TEXT, voiced_s REAL, said TEXT)")
        self._database.execute("CREATE TABLE parts (part INTEGER, at INTEGER, PRIMARY KEY (part, at)) WITHOUT ROWID")
        self._database.execute("BEGIN")  # never committed: nobody reads it later

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._database.close()

    def first(self, clip: Spoken) -> tuple[str, str] | None:
        """Id and text of the first recording that sounds like this one; None where there is none, and it is kept."""
        if (sound := _Sound.of(clip)) is None:
            return None
        parts = sound.parts
        near = self._database.execute(
            "SELECT sketch, voiced_s, said FROM sounds WHERE at IN "
            f"(SELECT at FROM parts WHERE part IN ({', '.join('?' * len(parts))})) ORDER BY at", parts)
        for sketch, voiced_s, said in near:
            if sound.is_like(_Sound(sketch, voiced_s), self._limits):
                name, text = json.loads(said)
                return name, text
        at = self._database.execute("INSERT INTO sounds (sketch, voiced_s, said) VALUES (?, ?, ?)",
                                    (sound.sketch, sound.voiced_s, json.dumps([clip.id, clip.text]))).lastrowid
        self._database.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?)", [(part, at) for part in parts])
        return None
