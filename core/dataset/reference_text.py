"""The reference text of a long recording: its sentences and words, where they were found, and the clips cut there."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from config.errors import UserError
from core.dataset.cutting import FoundClip
from core.jobs.reporter import pluralize
from data import sound_files
from data.ctc_alignment import AlignedLabels
from data.importers import is_audio, sidecars
from data.importers import text_files as text
from data.importers.rows import ParsedUtterance
from data.segmentation import SegmentLimits, SpeechSpans, group_spans
from data.text_chunking import UNSPACED, split_text

_LONGEST_SENTENCE = 200  # characters; longer ones are split at phrases
_MAX_CHARACTERS = 20_000_000  # characters of a text
_SPACES = re.compile(r"[\s\u1361]+")
_LINE_END = re.compile(r"\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
_MIN_WIDTH = 40  # characters of a line, at least, where an editor wraps prose
_MIN_WRAPPED = 3  # lines; from so many on, lines that all end where the next word had no room were wrapped
_FOREIGN = 2  # sounds between two sentences from which on something else was spoken there
_LONG_PAUSE_S = 1.5  # is never inside a clip
_CUT_IN_SENTENCE = 4.0  # price, added to that of the pause
_TOLERANCE_S = 0.05  # tolerance of the bounds of a clip
_SHOWN = 8  # dropped parts of a recording


@dataclass(frozen=True)
class ReferenceWord:
    """A word, the space behind it, and the ids of its letters; a punctuation mark alone has no ids."""

    text: str
    space: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class ReferenceSentence:
    """A sentence of the text, or a block of subtitles."""

    text: str
    words: tuple[ReferenceWord, ...]


@dataclass(frozen=True)
class AlignedWord:
    """A word that was found: its sentence and its place in it, its time, and its score."""

    sentence: int
    place: int
    begin_s: float
    end_s: float
    score: float


@dataclass(frozen=True)
class AlignedText:
    """A text aligned with its recording: the words that were found.

    `foreign` counts the other sounds before each sentence, and after the last.
    """

    sentences: Sequence[ReferenceSentence]
    words: Sequence[AlignedWord]
    foreign: Sequence[int]

    @property
    def mean_score(self) -> float:
        """The mean score of all words that have letters; 0 for a word that was not found."""
        words = sum(word_count(sentence) for sentence in self.sentences)
        return sum(word.score for word in self.words) / words if words else 0.0

    @property
    def missing(self) -> int:
        """Sentences without a word that was found."""
        found_sentences = {word.sentence for word in self.words}
        return sum(number not in found_sentences for number, sentence in enumerate(self.sentences)
                   if word_count(sentence))


def word_count(sentence: ReferenceSentence) -> int:
    """Words of a sentence that have letters."""
    return sum(bool(word.ids) for word in sentence.words)


def check_reference(path: Path) -> None:
    """Raise `UserError` for what cannot be the text of a recording, before any work."""
    try:
        has_sound = is_audio(path.name) or sound_files.file_duration(path) > 0  # a recording under another name
    except (UserError, OSError):
        has_sound = False
    if has_sound:
        raise UserError(f"{path} is a recording; the text that is spoken in it is wanted.",
                        "Give the text, or its subtitles, with --text, and the recording with --source.")
    next(text.pieces(path), "")


def read_reference(path: Path, audio: str, language: str = "") -> list[str]:
    """The sentences of a plain text, or the blocks of subtitles, lyrics or labels."""
    kind = sidecars.kind_of(path)
    if kind.timed:
        sentences = [item.text for item in kind.read(path, audio) if isinstance(item, ParsedUtterance)]
    else:
        content = "\n\n".join(_paragraphs(text.read(path, _MAX_CHARACTERS)))
        sentences = [" ".join(piece.text.split())
                 for piece in split_text(content, _LONGEST_SENTENCE, len, len(content) + 1, language=language)]
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise UserError(f"{path} has no text.", "Give the text that is spoken in the recording.")
    return sentences


def _paragraphs(content: str) -> list[str]:
    """The lines of a text, or the blocks between empty lines if an editor wrapped the lines to a width.

    In wrapped text, the first word of a line did not fit into the line before.
    """
    lines = [" ".join(line.split()) for line in _LINE_END.split(content)]
    pairs = [(line, following) for line, following in pairwise(lines) if line and following]
    width = max(map(len, lines), default=0)
    wrapped = len(pairs) >= _MIN_WRAPPED and width >= _MIN_WIDTH and all(
        len(line) + 1 + len(following.split()[0]) > width for line, following in pairs)
    if not wrapped:
        return [line for line in lines if line]
    return [" ".join(block) for filled, block in itertools.groupby(lines, key=bool) if filled]


def spell_sentences(sentences: Sequence[str], spell: Callable[[str], Sequence[int]]) -> list[ReferenceSentence]:
    """The words of each sentence with their ids."""
    return [ReferenceSentence(sentence, tuple(ReferenceWord(word, space, tuple(spell(word)))
                                              for word, space in split_words(sentence))) for sentence in sentences]


def split_words(sentence: str) -> list[tuple[str, str]]:
    """Words and the space behind each; characters if a script has no spaces."""
    words: list[tuple[str, str]] = []
    for word, space in zip(_SPACES.split(sentence), [*_SPACES.findall(sentence), ""], strict=True):
        if not word:
            continue
        parts = [part for part in re.split(f"({UNSPACED.pattern})", word) if part]
        words += [(part, "") for part in parts[:-1]] + [(parts[-1], space)]
    return words


def match_words(sentences: Sequence[ReferenceSentence], aligned: AlignedLabels, frame_s: float,
                separated: bool) -> AlignedText:
    """The words from the aligned letters. `separated`: between two words stands a letter for the space."""
    words, offset = [], 0
    for number, sentence in enumerate(sentences):
        is_first = True
        for place, word in enumerate(sentence.words):
            if not word.ids:
                continue
            offset += 0 if is_first or not separated else 1
            is_first = False
            letters = slice(offset, offset + len(word.ids))
            offset += len(word.ids)

            # A recording may end within a word.
            if (aligned.begins[letters] >= 0).all():
                score = float(np.exp(aligned.scores[letters].mean()))
                words.append(AlignedWord(number, place, float(aligned.begins[letters][0]) * frame_s,
                                         float(aligned.ends[letters][-1]) * frame_s, score))
    return AlignedText(sentences, words, aligned.foreign.tolist())


def choose_clips(match: AlignedText, total_s: float, limits: SegmentLimits, flag_below: float,
                 drop_below: float) -> tuple[list[FoundClip], list[str]]:
    """The clips of a recording, and sentences about dropped parts."""
    if not match.words:
        return [], ["nothing of its text was found."]
    spans, dropped = [], []
    for cut in group_spans(_atoms(match), total_s, limits):
        # The geometric mean shows a single wrong word.
        logs = [math.log(max(word.score, 1e-6)) for word in match.words[cut.first:cut.last + 1]]
        score = math.exp(sum(logs) / len(logs))
        content = _text(match, cut.first, cut.last)
        location = f"{cut.begin_s:.1f} to {cut.end_s:.1f} s"
        # Between two walls there may be less sound than the shortest clip has.
        if not limits.min_clip_s - _TOLERANCE_S <= cut.duration_s <= limits.max_clip_s + _TOLERANCE_S:
            dropped.append(f"{location} would be a clip of {cut.duration_s:.1f} s: {content[:60]!r}")
        elif score < drop_below:
            dropped.append(f"{location} fits its text with a score of only {score:.2f}: {content[:60]!r}")
        else:
            doubt = f"it fits its text with a score of only {score:.2f}" if score < flag_below else ""
            spans.append(FoundClip(cut.begin_s, min(cut.end_s, total_s), False, content, score, doubt))
    if match.missing:
        dropped.append(f"{match.missing} of {pluralize(len(match.sentences), 'sentence')} "
                       f"{'was' if match.missing == 1 else 'were'} not found.")
    # Only the first few are listed.
    remaining = len(dropped) - _SHOWN

    return spans, dropped if remaining <= 0 else [*dropped[:_SHOWN], f"... and {remaining} more."]


def _atoms(match: AlignedText) -> SpeechSpans:
    """Words as atoms. A clip ends at the end of a sentence if possible, and never contains speech outside its text."""
    words = match.words
    begins, ends = np.array([word.begin_s for word in words]), np.array([word.end_s for word in words])
    pauses = begins[1:] - ends[:-1]
    neighbours = list(zip(words, words[1:], strict=False))
    same_sentence = np.array([word.sentence == following.sentence for word, following in neighbours], bool)

    # A cut inside a sentence costs more than one at its end.
    costs = 2.0 * np.clip(1 - pauses / 0.5, 0, 1) + np.where(same_sentence, _CUT_IN_SENTENCE, 0.0)

    def apart(word: AlignedWord, following: AlignedWord) -> bool:
        """Whether a sentence that was not found, or other speech, lies between two words."""
        between = match.sentences[word.sentence + 1:following.sentence]
        skipped = any(word_count(sentence) for sentence in between)
        foreign = sum(match.foreign[number] for number in range(word.sentence + 1, following.sentence + 1))
        return skipped or foreign >= _FOREIGN

    # A clip never spans a wall.
    walls = np.array([apart(word, following) for word, following in neighbours], bool) | (pauses > _LONG_PAUSE_S)
    return SpeechSpans(begins, ends, costs, walls)


def _text(match: AlignedText, first_word: int, last_word: int) -> str:
    """The text from one word to another, with the marks before a sentence's first word and behind its last."""
    begin, end = match.words[first_word], match.words[last_word]
    parts = []
    for number in range(begin.sentence, end.sentence + 1):
        words = match.sentences[number].words
        start, stop = 0, len(words)
        # A clip that begins within a sentence leaves out what is before.
        if number == begin.sentence and any(word.ids for word in words[:begin.place]):
            start = begin.place
        if number == end.sentence:
            stop = end.place + 1
            # Marks without letters belong to the word before them.
            while stop < len(words) and not words[stop].ids:
                stop += 1
        parts.append("".join(word.text + word.space for word in words[start:stop]).strip())
    return " ".join(parts)


def to_srt(match: AlignedText) -> str:
    """The sentences that were found, as SubRip with the times that were found."""
    blocks: list[str] = []
    for number, words in itertools.groupby(match.words, key=lambda word: word.sentence):
        sentence_words = list(words)
        times = f"{srt_time(sentence_words[0].begin_s)} --> {srt_time(sentence_words[-1].end_s)}"
        blocks.append(f"{len(blocks) + 1}\n{times}\n{match.sentences[number].text}\n")
    return "\n".join(blocks)


def srt_time(seconds: float) -> str:
    """Such as `01:02:03,456`."""
    total_s, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{total_s // 3600:02d}:{total_s // 60 % 60:02d}:{total_s % 60:02d},{milliseconds:03d}"
