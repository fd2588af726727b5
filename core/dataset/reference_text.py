"""A long text as what is to be found in a recording: sentences or subtitles, and the words of each."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from config.errors import UserError
from core.dataset.cutting import ClipSpan
from core.job.reporter import counted
from data.ctc_alignment import Aligned
from data.cuts import Atoms, Limits, group
from data.importers import companions, is_audio, text
from data.importers.rows import Utterance
from data.sentences import split

_LONGEST = 200  # characters of a sentence; longer ones part at phrases
_MOST = 20_000_000  # characters of a text
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_SPACES = re.compile(r"[\s\u1361]+")
_LINE_END = re.compile(r"\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
_NARROWEST = 40  # characters of a line to which prose is broken
_BROKEN_LINES = 3  # from so many on, lines that all end where the next word had no room were broken by an editor


@dataclass(frozen=True)
class ReferenceWord:
    """A word as it is written, with what parts it from the next; and the ids by which it is found, none for a mark."""

    text: str
    space: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class ReferenceSentence:
    """What is said at a stretch. Times are those that subtitles had, which may be wrong."""

    text: str
    words: tuple[ReferenceWord, ...]
    begin_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True)
class ReferenceLine:
    """A sentence before it is spelled."""

    text: str
    begin_s: float | None = None
    end_s: float | None = None


def read_reference(path: Path, audio: str, ends: str = "") -> list[ReferenceLine]:
    """The sentences of a plain text, or the blocks of subtitles, lyrics or labels. `ends`: more ends of sentences."""
    kind = companions.kind_of(path)
    if kind.timed:
        found = [ReferenceLine(item.text, item.begin_s, item.end_s) for item in kind.read(path, audio)
                 if isinstance(item, Utterance)]
    else:
        whole = "\n\n".join(_paragraphs(text.read(path, _MOST)))
        found = [ReferenceLine(" ".join(piece.text.split())) for piece in split(whole, _LONGEST, len, len(whole) + 1,
                                                                                ends)]
    found = [line for line in found if line.text]
    if not found:
        raise UserError(f"{path} has no text.", "Give the text that is said in the recording.")
    return found


def check_reference(path: Path) -> None:
    """Raise `UserError` for what cannot be the text of a recording, before any work."""
    if is_audio(path.name) or _sounds(path):
        raise UserError(f"{path} is a recording; the text that is said in it is wanted.",
                        "Give the text, or its subtitles, with --text, and the recording with --source.")
    next(text.pieces(path), "")


def _sounds(path: Path) -> bool:
    """Whether it is a recording under another name."""
    try:
        return soundfile.info(str(path)).frames > 0
    except (soundfile.SoundFileError, OSError):
        return False


def _paragraphs(whole: str) -> list[str]:
    """What a line end ends: every line, or, where an editor broke the lines to a width, what stands between empty ones.

    Broken lines are told by their width: none had room for the first word of the next one.
    """
    lines = [" ".join(line.split()) for line in _LINE_END.split(whole)]
    pairs = [(one, two) for one, two in zip(lines, lines[1:], strict=False) if one and two]
    width = max(map(len, lines), default=0)
    broken = len(pairs) >= _BROKEN_LINES and width >= _NARROWEST and all(
        len(one) + 1 + len(two.split()[0]) > width for one, two in pairs)
    if not broken:
        return [line for line in lines if line]
    return [" ".join(some) for filled, some in itertools.groupby(lines, key=bool) if filled]


def spell_sentences(lines: Sequence[ReferenceLine], spell: Callable[[str], Sequence[int]]) -> list[ReferenceSentence]:
    """The words of each sentence with their ids."""
    return [ReferenceSentence(line.text, tuple(ReferenceWord(word, space, tuple(spell(word))) for word,
                                      space in split_words(line.text)),
                     line.begin_s, line.end_s) for line in lines]


def split_words(line: str) -> list[tuple[str, str]]:
    """Words and the space behind each; where a script has no spaces, its characters."""
    found: list[tuple[str, str]] = []
    for word, space in zip(_SPACES.split(line), [*_SPACES.findall(line), ""], strict=True):
        if not word:
            continue
        parts = [part for part in re.split(f"({_UNSPACED.pattern})", word) if part]
        found += [(part, "") for part in parts[:-1]] + [(parts[-1], space)]
    return found


_FOREIGN = 2  # sounds between two sentences from which on something else was said there
_WALL_S = 1.5  # a pause so long is no part of a clip
_IN_SENTENCE = 4.0  # price of a cut within a sentence, beside that of its pause
_NAMED = 8


@dataclass(frozen=True)
class AlignedWord:
    """A word that was heard: its sentence and place in it, when, and how sure that is."""

    sentence: int
    place: int
    begin_s: float
    end_s: float
    score: float


@dataclass(frozen=True)
class AlignedText:
    """A text and its recording: the words that were found, and the sounds before each sentence and after the last."""

    sentences: Sequence[ReferenceSentence]
    words: Sequence[AlignedWord]
    foreign: Sequence[int]

    @property
    def missing(self) -> int:
        """Sentences of which no word was heard."""
        there = {word.sentence for word in self.words}
        return sum(number not in there for number, sentence in enumerate(self.sentences)
                   if any(word.ids for word in sentence.words))


def match_words(sentences: Sequence[ReferenceSentence], aligned: Aligned, frame_s: float,
                separated: bool) -> AlignedText:
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
                found.append(AlignedWord(number, place, float(aligned.begins[letters][0]) * frame_s,
                                   float(aligned.ends[letters][-1]) * frame_s, score))
    return AlignedText(sentences, found, aligned.foreign.tolist())


def choose_clips(match: AlignedText, total_s: float, limits: Limits, doubtful: float,
                 least: float) -> tuple[list[ClipSpan], list[str]]:
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
            spans.append(ClipSpan(cut.begin_s, min(cut.end_s, total_s), False, text, score, doubt))
    if match.missing:
        were = "was" if match.missing == 1 else "were"
        left_out.append(f"{match.missing} of {counted(len(match.sentences), 'sentence')} {were} not heard.")
    more = len(left_out) - _NAMED
    return spans, left_out if more <= 0 else [*left_out[:_NAMED], f"... and {more} more."]


def _atoms(match: AlignedText) -> Atoms:
    """Words as atoms. A clip ends at the end of a sentence where it can, and never goes past what is not its text."""
    words = match.words
    begins, ends = np.array([word.begin_s for word in words]), np.array([word.end_s for word in words])
    pauses = begins[1:] - ends[:-1]
    sides = list(zip(words, words[1:], strict=False))
    within = np.array([one.sentence == two.sentence for one, two in sides], bool)
    prices = 2.0 * np.clip(1 - pauses / 0.5, 0, 1) + np.where(within, _IN_SENTENCE, 0.0)
    walls = np.array([_apart(match, one, two) for one, two in sides], bool) | (pauses > _WALL_S)
    return Atoms(begins, ends, prices, walls)


def _apart(match: AlignedText, one: AlignedWord, two: AlignedWord) -> bool:
    """Whether something stands between two words that a clip must not have: other speech, or a text not heard."""
    between = range(one.sentence + 1, two.sentence)
    skipped = any(word.ids for number in between for word in match.sentences[number].words)
    other = sum(match.foreign[number] for number in range(one.sentence + 1, two.sentence + 1))
    return skipped or other >= _FOREIGN


def _text(match: AlignedText, first: int, last: int) -> str:
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


def to_srt(match: AlignedText) -> str:
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
