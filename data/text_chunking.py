"""Text in chunks that a model can speak at once: sentences, then phrases, then words; in any script.

A chunk ends where a reader would breathe. No word or number is cut: the chunks, joined, are the text but for white
space. The caller chooses the limit and its unit. In languages that `sentencex` has rules for, sentences are its own but
for the signs that it does not know; in others they are found by the marks below. In both,
`languages/abbreviations.yaml` says after which full stops a sentence goes on. Words of scripts without spaces are those
of ICU's dictionaries.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Literal

import sentencex
import yaml
from icu4py.breakers import WordBreaker
from icu4py.messageformat import MessageFormat

from config.errors import UserError
from config.schema import UnknownCharacters
from data.front_end import FrontEnd
from data.normalisers import INDEXTTS2

Boundary = Literal["sentence", "phrase", "word"]

# Full stops that need no space after them: Ethiopic, Indic, Chinese and Japanese, Khmer, Burmese, Armenian, Tibetan.
_STOPS = "።፧፨।॥。！？｡．︒។៕៖။։༎᠃᠉᙮꓿𑅁"
_SPACED_STOPS = ".!?…؟۔"  # they also stand inside words and numbers, so a space or the end must follow
_ETHIOPIC_STOP = r"፡፡|(?:(?<=[\u1200-\u135a])|(?<=[\u1200-\u135a]\s))::"  # how the Ethiopic full stop is often typed
_MARKS = "፣፤፥፦、，；：､၊"  # commas and similar marks that need no space
_SPACED_MARKS = ",;:،؛–—"
_CLOSING = "\"'»”’›)]}」』】）》〉］"

_PHRASE_END = re.compile(rf"[{re.escape(_MARKS)}]+|[{re.escape(_SPACED_MARKS)}!?…؟]+[{re.escape(_CLOSING)}]*(?=\s)")
_WORD_END = re.compile(r"\s+(?![!?;:»›])|፡(?!፡)")  # French writes a space before some marks
_PARAGRAPH = re.compile(r"\n\s*\n")
_QUOTATION = re.compile("|".join(f"{re.escape(opening)}([^{re.escape(opening + closing)}]+){re.escape(closing)}"
                                 for opening, closing in ("“”", '""', "«»", "»«", "„“", "„”", "‹›", "「」", "『』")))
_INK = re.compile(r"\S")
_LOOK_BACK = 64  # characters; longer words are no initials
_LAST_WORD = re.compile(r"[^\s(\[{«\"“‘]+$")
_LISTED = re.compile(r"(?<!\S)\d{1,2}\.$")
_ENUMERATOR = re.compile(r"\d{1,2}|[a-zA-Z]")
_DOTTED = r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,3}\."  # t.ex., bl.a., U.S.
# Languages with rules of their own in sentencex 1.0.32 (src/lib.rs), and Chinese, which its tests cover; others would
# be read by those of a neighbour.
_SENTENCEX = frozenset({
    "am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy", "it", "ja", "kk", "kn",
    "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te", "uk", "zh",
})
_ABBREVIATIONS = Path(__file__).with_name("languages") / "abbreviations.yaml"
_SAME = {"nb": "no", "nn": "no", "bs": "hr", "lb": "de", "ms": "id", "ti": "am"}  # use the table of another
# Days of a month are written with a dot (CLDR 48, `yMMMMd`).
_DOTTED_DAYS = frozenset({"bs", "cs", "da", "de", "et", "fi", "fo", "hr", "hu", "is", "lb", "lv", "nb", "nn", "no",
                          "sk", "sl", "sr", "tr"})
_BEFORE_WORD = r"(?<![^\s(\[{\"'«“„‘’/–—-])"
# Scripts without capitals: a letter with a dot is an initial, and so are several (ዓ.ም., พ.ศ., ई.पू.).
_UNCASED = "\u0590-\u0963\u0966-\u109f\u1200-\u135f\u1780-\u17d3"
_UNCASED_INITIALS = re.compile(rf"{_BEFORE_WORD}(?:(?:[{_UNCASED}]{{1,4}}\.)+[{_UNCASED}]{{1,4}}|[{_UNCASED}])\.")
_NEXT_WORD = re.compile(r"\W*([^\W\d_]+)")
_ROMAN = "[IVXLC]{1,7}"
_LETTER = re.compile(r"[^\W_]")
# Scripts that put no space between words: a chunk may end after any word of a dictionary when nothing better is near.
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_WINDOW = 4000  # characters that are divided into sentences at once
_MARGIN = 0.2  # share of a sentence that must stand on each side of a comma, or of a space, for it to be cut there


@dataclass(frozen=True)
class TextChunk:
    """A part of a text, and the boundary after it."""

    text: str
    boundary: Boundary
    ids: tuple[int, ...] = ()  # start and stop included, if the chunk was cut between tokens; else `encode` gives them


def split_text(text: str, limit: int, count: Callable[[str], int], word_limit: int | None = None,
               more_ends: str = "", language: str = "") -> list[TextChunk]:
    """Chunks of `text` in order, each with `count(chunk) <= limit`.

    A single word is never cut: it may take up to `word_limit` (default: `limit`), else `UserError`. `more_ends` are
    further signs that end a sentence.
    """
    chunks: list[TextChunk] = []
    for sentence in split_sentences(text, more_ends, language):
        parts = [sentence]
        if count(sentence) > limit:
            parts = _split_quotations(sentence, more_ends, language)
        for part in parts:
            chunks += _fitted(part, "sentence", limit, max(limit, word_limit or 0), count)
    return chunks


def _split_quotations(sentence: str, more_ends: str, language: str) -> list[str]:
    """A sentence after each sentence but the last within its quotations; elsewhere it is one."""
    cuts = list[int]()
    for quotation in _QUOTATION.finditer(sentence):
        inner = next(part for part in quotation.groups() if part is not None)
        place = sentence.index(inner, quotation.start())
        for part in split_sentences(inner, more_ends, language)[:-1]:
            found_at = sentence.find(part, place)
            if found_at < 0:
                break
            place = found_at + len(part)
            if not (sentence[place - 2].isdigit() and sentence[place].isdigit()):  # ３．５
                cuts.append(place)
    edges = [0, *sorted(set(cuts)), len(sentence)]
    return _strip(sentence[start:end] for start, end in pairwise(edges))


def split_sentences(text: str, more_ends: str = "", language: str = "") -> list[str]:
    """Sentences of `text`, each with its full stop and closing quotes; an empty line ends one too."""
    code = language.partition("-")[0]
    sentences: list[str] = []
    for paragraph in _PARAGRAPH.split(text):
        if code in _SENTENCEX:
            parts: list[str] = []
            longest_run = max(map(len, paragraph.split()), default=0)
            windowed = _segmented if longest_run > _WINDOW else sentencex.segment
            for sentence in windowed(code, paragraph):
                parts += _split_by_signs(sentence, more_ends)
            sentences += _strip(_joined(parts, paragraph, code))
        else:
            sentences += _strip(_split_by_marks(paragraph, more_ends, code))
    return sentences


def _segmented(code: str, paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph by sentencex, which gets it in windows.

    Its time grows with the square of a text without spaces. The last sentence of a window may go on in the next one, so
    that one begins with it; quotations across the end of a window are cut.
    """
    start = 0
    while len(paragraph) - start > _WINDOW:
        window = paragraph[start:start + _WINDOW]
        sentences = list(sentencex.segment(code, window))
        end = len(window) - len(sentences[-1])
        if end > 0:
            yield from sentences[:-1]
        else:
            end = window.rfind(" ") + 1 or len(window)
            yield window[:end]
        start += end
    yield from sentencex.segment(code, paragraph[start:])


def _strip(sentences: Iterable[str]) -> list[str]:
    return [" ".join(sentence.split()) for sentence in sentences if sentence.strip()]


def _split_by_signs(text: str, more_ends: str) -> list[str]:
    """At the signs that sentencex does not know: how `።` is typed, and those of the rules."""
    signs = "".join(mark for mark in more_ends if mark not in _SPACED_STOPS and not mark.isspace())
    pattern = f"(?:{_ETHIOPIC_STOP}" + (f"|[{re.escape(signs)}]" if signs else "") + rf")+[{re.escape(_CLOSING)}]*"
    cuts = [0, *(match.end() for match in re.finditer(pattern, text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts)]


def _joined(parts: Sequence[str], paragraph: str, code: str) -> list[str]:
    """`parts`, with pieces joined that are no sentence: marks alone, and parts that do not start one."""
    cased, inner = paragraph != paragraph.lower(), _inner_stops(paragraph, code)
    joined, marks, place = [""], "", 0
    for part in parts:
        stop = place - len(joined[-1]) + len(joined[-1].rstrip().rstrip(_CLOSING))  # after the last full stop
        place += len(part)
        if part[:1].isspace():
            # Marks before a space belong to the part before.
            joined[-1] += marks
            marks = ""
        if not _LETTER.search(part) and not part[-1:].isspace():
            marks += part  # they touch what follows
        elif (stop in inner or _goes_on(joined[-1], part, cased)) if _LETTER.search(part) else (
                set(marks + part) & set(_CLOSING)):
            joined[-1] += marks + part
            marks = ""
        else:
            joined.append(marks + part)
            marks = ""
    joined[-1] += marks
    return joined


def _goes_on(preceding: str, part: str, cased: bool) -> bool:
    """Whether `part` is in the sentence of `preceding`: after an enumerator, or in lower case after a full stop."""
    end, start = preceding.rstrip(), _INK.search(part)
    if unicodedata.category(part[0]) == "Cf" or (start and start.start() == 0 and _LISTED.search(preceding)):
        return True  # the sign that closes a direction of writing; 3.Arroz
    following = start.group() if start else ""
    if _is_enumerator(end):
        return True
    return cased and following.islower() and end.endswith(".") and end[-2:] != ".."


def _inner_stops(text: str, code: str) -> set[int]:
    """Places after the full stops of `text` inside a sentence: in and after abbreviations, ordinals and initials."""
    places = set()
    for pattern, starters in _abbreviations(code):
        for match in pattern.finditer(text):
            *inside, last = (match.start() + place for place, sign in enumerate(match.group(), 1) if sign == ".")
            places.update(inside)
            following = _NEXT_WORD.match(text, match.end()) if starters else None
            if not following or following[1] not in starters:
                places.add(last)
    return places


@cache
def _abbreviations(code: str) -> tuple[tuple[re.Pattern[str], frozenset[str]], ...]:
    """Patterns of full stops inside a sentence, each with the words that begin a new sentence all the same."""
    tables = _abbreviation_tables()
    table = tables.get(_SAME.get(code, code), {} if code in _SENTENCEX else tables["und"])
    prefix = f"(?:{'|'.join(table['prefixes'].split())})?" if "prefixes" in table else ""
    kinds = {kind: "|".join(map(_written, sorted(table.get(kind, "").split(), key=len, reverse=True)))
             for kind in ("inside", "number", "either")}
    starters = frozenset(table.get("starters", "").split())

    patterns: list[tuple[str, frozenset[str]]] = [(_UNCASED_INITIALS.pattern, frozenset())]

    # Abbreviations from the table of the language, longest first.
    for kind, alternatives in kinds.items():
        if alternatives:
            number = r"(?=\s*\d)" if kind == "number" else r"(?!\w)"
            patterns.append((rf"{_BEFORE_WORD}{prefix}(?:{alternatives})\.{number}",
                          starters if kind == "either" else frozenset()))

    # Languages without their own segmenter, or with starters, also have dotted abbreviations such as U.S.
    if starters or code not in _SENTENCEX:
        patterns.append((f"{_BEFORE_WORD}{_DOTTED}", starters))

    # Ordinals are numbers, Roman or Arabic, with a full stop.
    ordinals = table.get("ordinals", "").split()
    if ordinals:
        patterns.append((rf"{_BEFORE_WORD}{_ROMAN}\.(?=\s)", starters))
        preceding = "" if ordinals == ["any"] else rf"(?:(?i:\b(?:{'|'.join(ordinals)}))\s+)"
        if ordinals != ["roman"]:
            patterns.append((rf"{_BEFORE_WORD}{preceding}\d{{1,2}}\.(?=\s)", starters))

    # A day of the month has a full stop in some languages.
    if code in _DOTTED_DAYS:
        months = "|".join(_months(code))
        patterns.append((rf"(?<![\w.,:/-])\d{{1,2}}\.(?=\s+(?i:{months})(?!\w))", frozenset()))
    return tuple((re.compile(pattern), words) for pattern, words in patterns)


@cache
def _abbreviation_tables() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = yaml.safe_load(_ABBREVIATIONS.read_text(encoding="utf-8"))
    return tables


def _written(abbreviation: str) -> str:
    """A pattern for an entry of the table, without its last dot."""
    initial = re.escape(abbreviation[0])
    if abbreviation[0].islower():
        initial = f"[{abbreviation[0]}{abbreviation[0].upper()}]"
    remainder = re.escape(abbreviation[1:]).replace(r"\.", r"\.\s?").replace("_", r"\s")
    return initial + remainder


def _months(code: str) -> list[str]:
    """Names of the months after a day, whole and short, without a dot."""
    dates = [datetime(2001, month, 15, tzinfo=UTC) for month in range(1, 13)]
    formats = [MessageFormat(f"{{0,date,{form}}}", code) for form in ("d MMMM", "d MMM")]
    date_texts = [form.format({"0": date}) for form, date in product(formats, dates)]
    names = {date.partition(" ")[2].strip(". ") for date in date_texts}
    return sorted(map(re.escape, names), key=len, reverse=True)


def _is_enumerator(text: str) -> bool:
    return text.endswith(".") and bool(_ENUMERATOR.fullmatch(text[:-1].strip()))


@lru_cache(maxsize=32)
def _sentence_end(more_ends: str) -> re.Pattern[str]:
    stops = _STOPS + "".join(mark for mark in more_ends if mark not in _STOPS + _SPACED_STOPS and not mark.isspace())
    return re.compile(
        rf"(?:{_ETHIOPIC_STOP}|[{re.escape(stops)}]|[{re.escape(_SPACED_STOPS)}])"
        rf"[{re.escape(stops + _SPACED_STOPS)}]*(?P<closing>(?:[\u00a0\u202f ]?[»›]|[{re.escape(_CLOSING)}])*)"
    )


def _split_by_marks(paragraph: str, more_ends: str, code: str = "") -> list[str]:
    sentences, start = [], 0
    cased, inner = paragraph != paragraph.lower(), _inner_stops(paragraph, code)
    for match in _sentence_end(more_ends).finditer(paragraph):
        abbreviated = match.group().rstrip(_CLOSING) == "." and match.start() + 1 in inner
        if not abbreviated and _ends_sentence(paragraph, match, start, cased):
            sentences.append(paragraph[start:match.end()])
            start = match.end()
    return [*sentences, paragraph[start:]]


def _ends_sentence(text: str, match: re.Match[str], start: int, cased: bool) -> bool:
    mark, end = match.group()[0], match.end()
    preceding = text[max(start, match.start() - _LOOK_BACK):match.start()]

    if preceding[-1:].isdigit() and text[end:end + 1].isdigit():
        return False  # 3.5, ３．５
    if mark not in _SPACED_STOPS:
        return True
    if end < len(text) and not text[end].isspace():
        return False  # example.com
    character = _INK.search(text, end)
    following = character.group() if character else ""
    if following.islower() and (match["closing"] or mark == "…" or match.group().startswith("..")
                                or (cased and match.group() == ".")):
        return False  # "Who is it?" she asked; f. eks. dette
    return not (mark == "." and match.group() == "." and following and _is_initial(preceding))


def _is_initial(preceding: str) -> bool:
    """Whether the full stop after `preceding` is one of initials or of an enumerator."""
    match = _LAST_WORD.search(preceding)
    if not match:
        return False
    word = match.group()
    if len(word) == 1 and word.isupper() and word != "I":
        return True  # J. Smith
    return bool(_ENUMERATOR.fullmatch(word) and preceding.strip() == word)  # 1. First


def _fitted(text: str, boundary: Boundary, limit: int, word_limit: int, count: Callable[[str], int]) -> list[TextChunk]:
    """`text` if it fits, else its halves, cut at the best place near the middle."""
    size = count(text)
    if size <= limit:
        return [TextChunk(text, boundary)]

    # Halve the text; a word that cannot be halved may be longer than a sentence.
    cut = halve(text)
    if cut is not None:
        first_half, second_half = cut
        return (_fitted(first_half.text, first_half.boundary, limit, word_limit, count)
                + _fitted(second_half, boundary, limit, word_limit, count))
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
    words, unspaced = [match.end() for match in _WORD_END.finditer(text)], _dictionary_word_ends(text)
    # Within a sentence a full stop ends an abbreviation, which stays with its name: Dr. Brown.
    words = [place for place in words if not text[:place].rstrip().endswith(".")] or words
    word = _nearest(words, text, _MARGIN) if unspaced else None  # a space is a better place there
    if word is None:
        word = _nearest(words + unspaced, text, 0.0)
    return None if word is None else (TextChunk(text[:word].strip(), "word"), text[word:].strip())


def _within_number(text: str, match: re.Match[str]) -> bool:
    return text[match.start() - 1:match.start()].isdigit() and text[match.end():match.end() + 1].isdigit()


def _nearest(places: list[int], text: str, margin: float) -> int | None:
    """The place nearest to the middle that leaves `margin` of the text, and something, on each side."""
    low, high = margin * len(text), (1 - margin) * len(text)
    inner = [place for place in places if low <= place <= high and text[:place].strip() and text[place:].strip()]
    return min(inner, key=lambda place: abs(2 * place - len(text)), default=None)


def _dictionary_word_ends(text: str) -> list[int]:
    """Places between two words in scripts without spaces."""
    if not UNSPACED.search(text):
        return []
    # The script decides, not the locale.
    places = list(accumulate(map(len, WordBreaker(text, "en"))))
    return [place for place in places[:-1] if UNSPACED.match(text, place - 1) and UNSPACED.match(text, place)
            and unicodedata.category(text[place]) in ("Lo", "Nd")]


def split_for_model(text: str, language: str, front_end: FrontEnd, limit: int, max_text_ids: int,
                    unknown: UnknownCharacters = "refuse") -> list[TextChunk]:
    """Chunks of at most `limit` ids, start, tag and stop included; a single word may take up to `max_text_ids`.

    Chinese and English of IndexTTS2 are cut as published, within words if necessary. `UserError` for a text without
    words, for a word that is too long, and for characters that the model does not know, unless `unknown` allows them;
    if they are left out, sentences that consist of them are left out too.
    """
    overhead = front_end.overhead(language)
    if front_end.normaliser_for(language) == INDEXTTS2:
        front_end.encode(text, language, unknown)
        return [_published_chunk(segment, front_end, unknown)
                for segment in cut_as_published(front_end.tokens(text, language), limit - overhead)]
    # Rules are applied before the text is cut: the dot of an abbreviation does not end a sentence.
    original, text = text, front_end.verbalize(text, language)

    @cache
    def count(part: str) -> int:
        return overhead + len(front_end.body(part, language))

    chunks = split_text(text, limit, count, max_text_ids, front_end.sentence_ends(language), language)
    readable = [chunk for chunk in chunks if count(chunk.text) > overhead
             and (unknown != "leave_out" or front_end.can_read(chunk.text, language))]

    # Encode each chunk once: characters outside the vocabulary are reported now, with the text as the user wrote it.
    plain = " ".join(original.split())
    for part in [chunk.text for chunk in readable] or [original]:
        front_end.encode(part, language, unknown, "" if part in plain or not readable else original)
    return readable


_SENTENCE_TOKENS = frozenset((".", "!", "?", "\u2581.", "\u2581?", "\u2581..."))
_PHRASE_TOKENS = frozenset((",", "\u2581,", "-"))
_QUOTES = ("'", "\u2581'")


def cut_as_published(tokens: Sequence[str], limit: int) -> list[list[str]]:
    """Segments of at most `limit` tokens as IndexTTS2's published code cuts them (index-tts/index-tts, `front.py`).

    A cut follows each comma and hyphen, each full stop from the third token on, and the last token that fits; then
    neighbours are joined while they fit. A quote after a full stop stands on both sides of the cut, as it does there.
    """
    segments: list[list[str]] = []
    current: list[str] = []
    for following, token in enumerate(tokens, 1):
        current.append(token)
        if token in _PHRASE_TOKENS or len(current) > limit:
            segments += [current[:limit], current[limit:]]
            current = []
        elif token in _SENTENCE_TOKENS and len(current) > 2:
            segments.append([*current, *(quote for quote in tokens[following:following + 1] if quote in _QUOTES)])
            current = []

    # Join neighbours while they fit.
    joined: list[list[str]] = []
    for segment in filter(None, [*segments, current]):
        if joined and len(joined[-1]) + len(segment) <= limit:
            joined[-1] = [*joined[-1], *segment]
        else:
            joined.append(segment)
    return joined


def _published_chunk(tokens: Sequence[str], front_end: FrontEnd, unknown: UnknownCharacters) -> TextChunk:
    vocabulary = front_end.base_vocabulary
    ids = (vocabulary.get(token, front_end.unknown_id) for token in tokens if token in vocabulary or unknown == "unk")
    text = "".join(tokens).replace(front_end.word_start, " ").strip()
    boundary: Boundary = "sentence" if tokens[-1] in (*_SENTENCE_TOKENS, *_QUOTES) else "phrase"
    return TextChunk(text, boundary, (front_end.start_id, *ids, front_end.stop_id))
