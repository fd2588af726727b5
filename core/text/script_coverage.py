"""Which characters of a script a dataset has, how often, which are missing, and which sentences to record."""

from __future__ import annotations

import heapq
import sys
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MIN_OCCURRENCES = 10  # times that a piece must occur in training text for its row to be learned
_MAIN_SHARE = 0.05  # share of a text's letters in a block from which the block counts as one of its script
_LONGEST_PROMPT = 150  # characters of a sentence to record: about ten seconds
_OVERHEAD = 20  # characters that starting a recording counts as, so that single words are not the cheapest


@dataclass(frozen=True)
class CharacterCount:
    """How often training text, held-out text and the user's own text have a character."""

    character: str
    train: int
    held_out: int
    given: int


@dataclass(frozen=True)
class ScriptBlock:
    """A block of Unicode that the text uses. `whole`: `cells` include its letters that no text has."""

    name: str
    whole: bool
    cells: tuple[CharacterCount, ...]


@dataclass(frozen=True)
class RecordingPrompt:
    """A sentence to record, and the rare characters in it."""

    text: str
    characters: tuple[str, ...]


def count_characters(texts: Sequence[str]) -> Counter[str]:
    """Characters of `texts` except spaces."""
    return Counter(character for text in texts for character in text if not character.isspace())


def map_script(train: Mapping[str, int], held_out: Mapping[str, int], given: Mapping[str, int],
               is_unchanged: Callable[[str], bool]) -> tuple[ScriptBlock, ...]:
    """Every character of the texts by its block, with the other letters of the main blocks.

    `is_unchanged`: whether a letter can reach the model at all; capitals and folded spellings may not.
    """
    by_block: dict[str, set[str]] = {}
    letter_counts: Counter[str] = Counter()
    for character in {*train, *held_out, *given}:
        name = block_of(character)
        by_block.setdefault(name, set()).add(character)
        if unicodedata.category(character)[0] in "LM":
            letter_counts[name] += train.get(character, 0) + held_out.get(character, 0) + given.get(character, 0)
    total = max(1, sum(letter_counts.values()))
    script = []
    for name, present in by_block.items():
        letters = block_letters(name) if letter_counts[name] >= _MAIN_SHARE * total else ()
        cells = sorted(present | {letter for letter in letters if letter in present or is_unchanged(letter)})
        script.append(ScriptBlock(name, bool(letters), tuple(
            CharacterCount(one, train.get(one, 0), held_out.get(one, 0), given.get(one, 0)) for one in cells)))
    return tuple(sorted(script, key=lambda block: (-letter_counts[block.name], block.name)))


def rare_characters(train: Mapping[str, int], given: Mapping[str, int]) -> tuple[str, ...]:
    """Characters of the given text that training text has too rarely, the most frequent in the given text first."""
    return tuple(sorted((one for one in given if train.get(one, 0) < MIN_OCCURRENCES),
                        key=lambda one: (-given[one], one)))


def choose_prompts(sentences: Sequence[tuple[str, str]], train: Mapping[str, int],
                   most: int) -> tuple[tuple[RecordingPrompt, ...], tuple[str, ...]]:
    """At most `most` sentences to record, best first, and the characters that stay too rare with them.

    `sentences` are pairs of the text as given and as the model reads it. Greedy: each step takes the sentence with the
    largest gain for its length, the usual way with such covers (Nemhauser, Wolsey, Fisher 1978). A gain can only fall
    as others are chosen, so an old one is an upper bound, and few are computed again (Minoux 1978).
    """
    short = {normal: text for text, normal in sentences if 0 < len(normal) <= _LONGEST_PROMPT}
    counts = {normal: count_characters([normal]) for normal in short}
    known = {character for _, normal in sentences for character in count_characters([normal])}
    needed = {one: MIN_OCCURRENCES - train.get(one, 0) for one in known if train.get(one, 0) < MIN_OCCURRENCES}
    heap = [(-_gain(counts[normal], needed), normal) for normal in short]
    heapq.heapify(heap)
    chosen: list[RecordingPrompt] = []
    while heap and len(chosen) < most:
        _, normal = heapq.heappop(heap)
        negative_gain = -_gain(counts[normal], needed)
        if negative_gain == 0:
            continue
        if heap and negative_gain > heap[0][0]:
            heapq.heappush(heap, (negative_gain, normal))
            continue
        added = tuple(sorted(one for one in counts[normal] if needed.get(one, 0) > 0))
        chosen.append(RecordingPrompt(short[normal], added))
        for one in added:
            needed[one] -= counts[normal][one]
    return tuple(chosen), tuple(sorted(one for one, missing in needed.items() if missing > 0))


def _gain(counts: Counter[str], needed: Mapping[str, int]) -> float:
    """The gain of a sentence for its length: the nth occurrence of a character counts 1/n, up to MIN_OCCURRENCES."""
    gain = 0.0
    for one, times in counts.items():
        missing = needed.get(one, 0)
        had = MIN_OCCURRENCES - missing
        gain += sum(1 / (had + more) for more in range(1, min(times, missing) + 1))
    return gain / (_OVERHEAD + counts.total())


_LEARNABLE = 600  # letters of a block; of a larger one, no text has them all

_BLOCKS = (
    (0x0000, 0x007F, "Basic Latin"), (0x0080, 0x00FF, "Latin-1 Supplement"), (0x0100, 0x017F, "Latin Extended-A"),
    (0x0180, 0x024F, "Latin Extended-B"), (0x0250, 0x02AF, "IPA Extensions"),
    (0x02B0, 0x02FF, "Spacing Modifier Letters"), (0x0300, 0x036F, "Combining Diacritical Marks"),
    (0x0370, 0x03FF, "Greek and Coptic"), (0x0400, 0x04FF, "Cyrillic"), (0x0500, 0x052F, "Cyrillic Supplement"),
    (0x0530, 0x058F, "Armenian"), (0x0590, 0x05FF, "Hebrew"), (0x0600, 0x06FF, "Arabic"), (0x0700, 0x074F, "Syriac"),
    (0x0750, 0x077F, "Arabic Supplement"), (0x0780, 0x07BF, "Thaana"), (0x07C0, 0x07FF, "NKo"),
    (0x0900, 0x097F, "Devanagari"), (0x0980, 0x09FF, "Bengali"), (0x0A00, 0x0A7F, "Gurmukhi"),
    (0x0A80, 0x0AFF, "Gujarati"), (0x0B00, 0x0B7F, "Oriya"), (0x0B80, 0x0BFF, "Tamil"), (0x0C00, 0x0C7F, "Telugu"),
    (0x0C80, 0x0CFF, "Kannada"), (0x0D00, 0x0D7F, "Malayalam"), (0x0D80, 0x0DFF, "Sinhala"), (0x0E00, 0x0E7F, "Thai"),
    (0x0E80, 0x0EFF, "Lao"), (0x0F00, 0x0FFF, "Tibetan"), (0x1000, 0x109F, "Myanmar"), (0x10A0, 0x10FF, "Georgian"),
    (0x1100, 0x11FF, "Hangul Jamo"), (0x1200, 0x137F, "Ethiopic"), (0x1380, 0x139F, "Ethiopic Supplement"),
    (0x13A0, 0x13FF, "Cherokee"), (0x1400, 0x167F, "Unified Canadian Aboriginal Syllabics"),
    (0x1780, 0x17FF, "Khmer"), (0x1800, 0x18AF, "Mongolian"), (0x1C50, 0x1C7F, "Ol Chiki"),
    (0x1E00, 0x1EFF, "Latin Extended Additional"), (0x1F00, 0x1FFF, "Greek Extended"),
    (0x2D30, 0x2D7F, "Tifinagh"), (0x2D80, 0x2DDF, "Ethiopic Extended"), (0x3040, 0x309F, "Hiragana"),
    (0x30A0, 0x30FF, "Katakana"), (0x3400, 0x4DBF, "CJK Unified Ideographs Extension A"),
    (0x4E00, 0x9FFF, "CJK Unified Ideographs"), (0xA000, 0xA48F, "Yi Syllables"), (0xA500, 0xA63F, "Vai"),
    (0xAB00, 0xAB2F, "Ethiopic Extended-A"), (0xAC00, 0xD7AF, "Hangul Syllables"),
    (0x10D00, 0x10D3F, "Hanifi Rohingya"), (0x1E900, 0x1E95F, "Adlam"),
)
_STARTS = [start for start, _, _ in _BLOCKS]
OTHER = "Other"


def block_of(character: str) -> str:
    """Name of the block that holds `character`; `Other` for one that is not listed here."""
    index = bisect_right(_STARTS, ord(character)) - 1
    return _BLOCKS[index][2] if index >= 0 and ord(character) <= _BLOCKS[index][1] else OTHER


def block_letters(block: str) -> tuple[str, ...]:
    """Letters and vowel signs of a block in code order; none of a block that is too large to be learnt whole."""
    for start, end, name in _BLOCKS:
        if name == block and end <= sys.maxunicode:
            found = tuple(chr(code) for code in range(start, end + 1) if unicodedata.category(chr(code))[0] in "LM")
            return found if len(found) <= _LEARNABLE else ()
    return ()
