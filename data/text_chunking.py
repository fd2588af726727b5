"""Text in chunks that a model can speak at once: sentences, then phrases, then words; in any script.

A chunk ends where a reader would breathe. No word or number is cut: the chunks, joined, are the text but for white
space. The caller chooses the limit and its unit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from config.errors import UserError
from data.front_end import FrontEnd

Boundary = Literal["sentence", "phrase", "word"]

# Full stops that need no space after them: Ethiopic, Indic, Chinese and Japanese, Khmer, Burmese, Armenian, Tibetan.
_STOPS = "።፧፨।॥。！？｡．︒។៕៖။։༎᠃᠉᙮꓿𑅁"
_SPACED_STOPS = ".!?…؟۔"  # they also stand inside words and numbers, so a space or the end must follow
_ETHIOPIC_STOP = "፡፡|(?<=[\u1200-\u135a])::"  # how the Ethiopic full stop is often typed
_MARKS = "፣፤፥፦、，；：､၊"  # commas and similar marks that need no space
_SPACED_MARKS = ",;:،؛–—"
_CLOSING = "\"'»”’›)]}」』】）》〉］"

_PHRASE_END = re.compile(rf"[{re.escape(_MARKS)}]+|[{re.escape(_SPACED_MARKS)}!?…؟]+[{re.escape(_CLOSING)}]*(?=\s)")
_WORD_END = re.compile(r"\s+(?![!?;:»›])|፡(?!፡)")  # French writes a space before some marks
_PARAGRAPH = re.compile(r"\n\s*\n")
_INK = re.compile(r"\S")
_LOOK_BACK = 64  # characters; longer words are no abbreviations
_LAST_WORD = re.compile(r"[^\s(\[{«\"“‘]+$")
_ENUMERATOR = re.compile(r"\d{1,2}|[a-zA-Z]")
_SHORT = """mr mrs ms dr prof st sr jr vs etc e.g i.e cf no nr vol fig p pp al ca approx inc ltd co gen col capt lt sgt
rev hon m mm mme mlle bd av ch éd env ex tél z.b d.h u.a bzw usw ggf evtl str sra srta dra ud uds av.j.-c"""
_ABBREVIATIONS = frozenset(_SHORT.split())
# Scripts that put no space between words: a chunk may end after any syllable when nothing better is near.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_BEFORE_VOWELS = "เแโใไເແໂໃໄ"  # Thai and Lao vowels written before their consonant
_MARGIN = 0.2  # share of a sentence that must stand on each side of a comma, or of a space, for it to be cut there


@dataclass(frozen=True)
class TextChunk:
    """A part of a text, and the boundary after it."""

    text: str
    boundary: Boundary


def split_text(text: str, limit: int, count: Callable[[str], int], word_limit: int | None = None,
               more_ends: str = "") -> list[TextChunk]:
    """Chunks of `text` in order, each with `count(chunk) <= limit`.

    A single word is never cut: it may take up to `word_limit` (default: `limit`), else `UserError`. `more_ends` are
    further signs that end a sentence.
    """
    chunks: list[TextChunk] = []
    for sentence in split_sentences(text, more_ends):
        chunks += _fitted(sentence, "sentence", limit, max(limit, word_limit or 0), count)
    return chunks


def split_sentences(text: str, more_ends: str = "") -> list[str]:
    """Sentences of `text`, each with its full stop and closing quotes; an empty line ends one too."""
    ends = _sentence_end(more_ends)
    return [sentence for paragraph in _PARAGRAPH.split(text) for sentence in _sentences(paragraph, ends)]


@lru_cache(maxsize=32)
def _sentence_end(more_ends: str) -> re.Pattern[str]:
    stops = _STOPS + "".join(mark for mark in more_ends if mark not in _STOPS + _SPACED_STOPS and not mark.isspace())
    return re.compile(
        rf"(?:{_ETHIOPIC_STOP}|[{re.escape(stops)}]|[{re.escape(_SPACED_STOPS)}])"
        rf"[{re.escape(stops + _SPACED_STOPS)}]*(?P<closing>(?:[\u00a0\u202f ]?[»›]|[{re.escape(_CLOSING)}])*)"
    )


def _sentences(paragraph: str, ends: re.Pattern[str]) -> list[str]:
    found, start = [], 0
    for match in ends.finditer(paragraph):
        if _ends_sentence(paragraph, match, start):
            found.append(paragraph[start:match.end()])
            start = match.end()
    found.append(paragraph[start:])
    return [" ".join(sentence.split()) for sentence in found if sentence.strip()]


def _ends_sentence(text: str, match: re.Match[str], start: int) -> bool:
    mark, end = match.group()[0], match.end()
    before = text[max(start, match.start() - _LOOK_BACK):match.start()]
    if before[-1:].isdigit() and text[end:end + 1].isdigit():
        return False  # 3.5, ３．５
    if mark not in _SPACED_STOPS:
        return True
    if end < len(text) and not text[end].isspace():
        return False  # example.com
    found = _INK.search(text, end)
    following = found.group() if found else ""
    if (match["closing"] or mark == "…" or match.group().startswith("..")) and following.islower():
        return False  # "Who is it?" she asked
    return not (mark == "." and match.group() == "." and following and _is_abbreviation(before, following))


def _is_abbreviation(before: str, following: str) -> bool:
    found = _LAST_WORD.search(before)
    if not found:
        return False
    word = found.group()
    if word.lower() in _ABBREVIATIONS:
        return word.lower() != "no" or following.isdigit()  # No. 5, but: He said no.
    initial = len(word) == 1 and word.isupper() and word != "I"  # J. Smith
    return initial or bool(_ENUMERATOR.fullmatch(word) and before.strip() == word)  # 1. First


def _fitted(text: str, boundary: Boundary, limit: int, word_limit: int, count: Callable[[str], int]) -> list[TextChunk]:
    """`text` if it fits, else its halves, cut at the best place near the middle."""
    size = count(text)
    if size <= limit:
        return [TextChunk(text, boundary)]
    cut = halve(text)
    if cut is not None:
        first, second = cut
        return (_fitted(first.text, first.boundary, limit, word_limit, count)
                + _fitted(second, boundary, limit, word_limit, count))
    if size <= word_limit:
        return [TextChunk(text, boundary)]
    raise UserError(
        f"The word {text[:40] + ('...' if len(text) > 40 else '')!r} takes {size} tokens; "
        f"the model speaks at most {word_limit} at once.",
        "Write it as several words.",
    )


def halve(text: str) -> tuple[TextChunk, str] | None:
    """Two parts of `text`, cut after a comma, else at a space, near the middle; None for a single word."""
    marks = [match.end() for match in _PHRASE_END.finditer(text) if not _within_number(text, match)]
    phrase = _nearest(marks, text, _MARGIN)
    if phrase is not None:
        return TextChunk(text[:phrase].strip(), "phrase"), text[phrase:].strip()
    words, syllables = [match.end() for match in _WORD_END.finditer(text)], _syllable_ends(text)
    word = _nearest(words, text, _MARGIN) if syllables else None  # a space is a better place than between syllables
    if word is None:
        word = _nearest(words + syllables, text, 0.0)
    return None if word is None else (TextChunk(text[:word].strip(), "word"), text[word:].strip())


def _within_number(text: str, match: re.Match[str]) -> bool:
    return text[match.start() - 1:match.start()].isdigit() and text[match.end():match.end() + 1].isdigit()


def _nearest(places: list[int], text: str, margin: float) -> int | None:
    """The place nearest to the middle that leaves `margin` of the text, and something, on each side."""
    low, high = margin * len(text), (1 - margin) * len(text)
    inner = [place for place in places if low <= place <= high and text[:place].strip() and text[place:].strip()]
    return min(inner, key=lambda place: abs(2 * place - len(text)), default=None)


def _syllable_ends(text: str) -> list[int]:
    return [
        place for place in range(1, len(text))
        if _UNSPACED.match(text, place - 1) and _UNSPACED.match(text, place)
        and unicodedata.category(text[place]) in ("Lo", "Nd") and text[place - 1] not in _BEFORE_VOWELS
        and text[place] not in "ะาำๅະາຳーっッゃゅょャュョ" and text[place - 1] not in "\u1039\u17d2"
        and text[place + 1:place + 2] not in ("\u1039", "\u103a")  # a Burmese final consonant
    ]


def split_for_model(text: str, language: str, front_end: FrontEnd, limit: int, max_text_ids: int) -> list[TextChunk]:
    """Chunks of at most `limit` ids, start, tag and stop included; a single word may take up to `max_text_ids`.

    `UserError` for a text without words, a word that is too long, and characters that the model does not know.
    """
    overhead = front_end.overhead(language)
    text = front_end.verbalize(text, language)  # first: the dot of an abbreviation ends no sentence

    @cache
    def count(part: str) -> int:
        return overhead + len(front_end.body(part, language))

    chunks = split_text(text, limit, count, max_text_ids, front_end.sentence_ends(language))
    found = [chunk for chunk in chunks if count(chunk.text) > overhead]
    for part in [chunk.text for chunk in found] or [text]:
        front_end.encode(part, language)
    return found
