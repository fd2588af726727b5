"""From where each letter was heard to words, sentences and clips, each with its score."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.jobs.reporter import pluralize
from core.segments.cutting import Span
from core.segments.said import Sentence
from data.ctc_alignment import Aligned
from data.cuts import Atoms, Limits, group

_FOREIGN = 2  # sounds between two sentences from which on something else was said there
_WALL_S = 1.5  # a pause so long is no part of a clip
_IN_SENTENCE = 4.0  # price of a cut within a sentence, beside that of its pause
_NAMED = 8


@dataclass(frozen=True)
class Found:
    """A word that was heard: its sentence and place in it, when, and how sure that is."""

    sentence: int
    place: int
    begin_s: float
    end_s: float
    score: float


@dataclass(frozen=True)
class Match:
    """A text and its recording: the words that were found, and the sounds before each sentence and after the last."""

    sentences: Sequence[Sentence]
    words: Sequence[Found]
    foreign: Sequence[int]

    @property
    def missing(self) -> int:
        """Sentences of which no word was heard."""
        there = {word.sentence for word in self.words}
        return sum(number not in there for number, sentence in enumerate(self.sentences)
                   if any(word.ids for word in sentence.words))


def match_words(sentences: Sequence[Sentence], aligned: Aligned, frame_s: float, separated: bool) -> Match:
    """The words by the letters; `separated`: a letter for each space stands among them."""
    found, at = [], 0
    for number, sentence in enumerate(sentences):
        first = True
        for place, word in enumerate(sentence.words):
            if not word.ids:
                continue
            at += 0 if first or not separated else 1
            first = False
            letters = slice(at, at + len(word.ids))
            at += len(word.ids)
            if (aligned.begins[letters] >= 0).all():  # a recording may end within a word: it was not said whole
                score = float(np.exp(aligned.scores[letters].mean()))
                found.append(Found(number, place, float(aligned.begins[letters][0]) * frame_s,
                                   float(aligned.ends[letters][-1]) * frame_s, score))
    return Match(sentences, found, aligned.foreign.tolist())


def chosen_clips(match: Match, total_s: float, limits: Limits, doubtful: float,
                 least: float) -> tuple[list[Span], list[str]]:
    """The clips of a recording, and what was left out of it, in words."""
    if not match.words:
        return [], ["nothing of its text was heard."]
    atoms = _atoms(match)
    spans, left_out = [], []
    for cut in group(atoms, total_s, limits):
        words = match.words[cut.first:cut.last + 1]
        score = _mean([word.score for word in words])
        text = _text(match, cut.first, cut.last)
        where = f"{cut.begin_s:.1f} to {cut.end_s:.1f} s"
        if not limits.min_clip_s - 0.05 <= cut.duration_s <= limits.max_clip_s + 0.05:
            left_out.append(f"{where} would be a clip of {cut.duration_s:.1f} s: {text[:60]!r}")
        elif score < least:
            left_out.append(f"{where} fits its text by {score:.2f} alone: {text[:60]!r}")
        else:
            doubt = f"it fits its text by {score:.2f} alone" if score < doubtful else ""
            spans.append(Span(cut.begin_s, min(cut.end_s, total_s), False, text, score, doubt))
    if match.missing:
        were = "was" if match.missing == 1 else "were"
        left_out.append(f"{match.missing} of {pluralize(len(match.sentences), 'sentence')} {were} not heard.")
    more = len(left_out) - _NAMED
    return spans, left_out if more <= 0 else [*left_out[:_NAMED], f"... and {more} more."]


def _atoms(match: Match) -> Atoms:
    """Words as atoms. A clip ends at the end of a sentence where it can, and never goes past what is not its text."""
    words = match.words
    begins, ends = np.array([word.begin_s for word in words]), np.array([word.end_s for word in words])
    pauses = begins[1:] - ends[:-1]
    sides = list(zip(words, words[1:], strict=False))
    within = np.array([one.sentence == two.sentence for one, two in sides], bool)
    prices = 2.0 * np.clip(1 - pauses / 0.5, 0, 1) + np.where(within, _IN_SENTENCE, 0.0)
    walls = np.array([_apart(match, one, two) for one, two in sides], bool) | (pauses > _WALL_S)
    return Atoms(begins, ends, prices, walls)


def _apart(match: Match, one: Found, two: Found) -> bool:
    """Whether something stands between two words that a clip must not have: other speech, or a text not heard."""
    between = range(one.sentence + 1, two.sentence)
    skipped = any(word.ids for number in between for word in match.sentences[number].words)
    other = sum(match.foreign[number] for number in range(one.sentence + 1, two.sentence + 1))
    return skipped or other >= _FOREIGN


def _text(match: Match, first: int, last: int) -> str:
    """What is written from a word to another, with the marks before the first of a sentence and behind the last."""
    begin, end = match.words[first], match.words[last]
    parts = []
    for number in range(begin.sentence, end.sentence + 1):
        words = match.sentences[number].words
        start = begin.place if number == begin.sentence else 0
        while 0 < start <= begin.place and number == begin.sentence and not any(
                word.ids for word in words[:start]):
            start = 0
        stop = end.place + 1 if number == end.sentence else len(words)
        while number == end.sentence and stop < len(words) and not words[stop].ids:
            stop += 1
        parts.append("".join(word.text + word.space for word in words[start:stop]).strip())
    return " ".join(parts)


def subtitles(match: Match) -> str:
    """The sentences that were heard as SubRip, with the times that were found."""
    blocks: list[str] = []
    for number, words in itertools.groupby(match.words, key=lambda word: word.sentence):
        mine = list(words)
        times = f"{_clock(mine[0].begin_s)} --> {_clock(mine[-1].end_s)}"
        blocks.append(f"{len(blocks) + 1}\n{times}\n{match.sentences[number].text}\n")
    return "\n".join(blocks)


def _mean(scores: Sequence[float]) -> float:
    """Geometric, so that one wrong word is seen."""
    return math.exp(sum(math.log(max(score, 1e-6)) for score in scores) / len(scores))


def _clock(seconds: float) -> str:
    whole = round(seconds * 1000)
    return f"{whole // 3600000:02d}:{whole // 60000 % 60:02d}:{whole // 1000 % 60:02d},{whole % 1000:03d}"
