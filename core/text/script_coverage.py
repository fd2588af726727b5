"""Which characters of a script a dataset has, how often, which are missing, and which sentences to record."""

from __future__ import annotations

import heapq
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

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
    return Counter(character for character in chain.from_iterable(texts) if not character.isspace())


def map_script(train: Mapping[str, int], held_out: Mapping[str, int], own_text: Mapping[str, int],
               is_unchanged: Callable[[str], bool]) -> tuple[ScriptBlock, ...]:
    """Every character of the texts by its block, with the other letters of the main blocks.

    `is_unchanged`: whether a letter can reach the model at all; capitals and folded spellings may not.
    """
    by_block: dict[str, set[str]] = {}
    letter_counts: Counter[str] = Counter()
    for character in {*train, *held_out, *own_text}:
        name = block_of(character)
        by_block.setdefault(name, set()).add(character)
        if unicodedata.category(character)[0] in "LM":
            letter_counts[name] += train.get(character, 0) + held_out.get(character, 0) + own_text.get(character, 0)
    total = max(1, sum(letter_counts.values()))

    # Letters that the texts lack are shown for the main blocks only.
    script = []
    for name, present in by_block.items():
        letters = block_letters(name) if letter_counts[name] >= _MAIN_SHARE * total else ()
        cells = sorted(present | {letter for letter in letters if letter in present or is_unchanged(letter)})
        script.append(ScriptBlock(name, bool(letters), tuple(
            CharacterCount(character, train.get(character, 0), held_out.get(character, 0), own_text.get(character, 0))
            for character in cells)))
    return tuple(sorted(script, key=lambda block: (-letter_counts[block.name], block.name)))


def rare_characters(train: Mapping[str, int], own_text: Mapping[str, int]) -> tuple[str, ...]:
    """Characters of the user's own text that training text has too rarely, the most frequent there first."""
    rare = [character for character in own_text if train.get(character, 0) < MIN_OCCURRENCES]
    return tuple(sorted(rare, key=lambda character: (-own_text[character], character)))


def choose_prompts(sentences: Sequence[tuple[str, str]], train: Mapping[str, int],
                   limit: int) -> tuple[tuple[RecordingPrompt, ...], tuple[str, ...]]:
    """At most `limit` sentences to record, best first, and the characters that stay too rare with them.

    `sentences` are pairs of the text as given and as the model reads it. Greedy: each step takes the sentence with the
    largest gain for its length, the usual way with such covers (Nemhauser, Wolsey, Fisher 1978). A gain can only fall
    as others are chosen, so an old one is an upper bound, and few are computed again (Minoux 1978).
    """
    short = {normal: text for text, normal in sentences if 0 < len(normal) <= _LONGEST_PROMPT}
    counts = {normal: count_characters([normal]) for normal in short}
    characters = set[str]().union(*(count_characters([normal]) for _, normal in sentences))
    needed = {character: MIN_OCCURRENCES - train.get(character, 0) for character in characters
              if train.get(character, 0) < MIN_OCCURRENCES}

    # A heap of upper bounds of the gains; the largest is computed again before it is believed.
    heap = [(-_gain(counts[normal], needed), normal) for normal in short]
    heapq.heapify(heap)

    chosen: list[RecordingPrompt] = []
    while heap and len(chosen) < limit:
        _, normal = heapq.heappop(heap)
        negative_gain = -_gain(counts[normal], needed)
        if negative_gain == 0:
            continue
        # The bound was too high; the true gain goes back into the heap.
        if heap and negative_gain > heap[0][0]:
            heapq.heappush(heap, (negative_gain, normal))
            continue
        added = tuple(sorted(character for character in counts[normal] if needed.get(character, 0) > 0))
        chosen.append(RecordingPrompt(short[normal], added))
        for character in added:
            needed[character] -= counts[normal][character]
    return tuple(chosen), tuple(sorted(character for character, count in needed.items() if count > 0))


def _gain(counts: Counter[str], needed: Mapping[str, int]) -> float:
    """The gain of a sentence for its length: the nth occurrence of a character counts 1/n, up to MIN_OCCURRENCES."""
    gain = 0.0
    for character, times in counts.items():
        deficit = needed.get(character, 0)
        had = MIN_OCCURRENCES - deficit
        gain += sum(1 / (had + occurrence) for occurrence in range(1, min(times, deficit) + 1))
    return gain / (_OVERHEAD + counts.total())


_LEARNABLE = 600  # letters of a block; of a larger one, no text has them all

OTHER = "Other"


def block_of(character: str) -> str:
    """Name of the block of Unicode that holds `character`; `Other` for a block without letters."""
    from fontTools.unicodedata import block  # slow: its tables take a moment

    name = block(character)
    return name if _all_letters(name) else OTHER


def block_letters(block: str) -> tuple[str, ...]:
    """Letters and vowel signs of a block in code order; none of a block that is too large to be learnt whole."""
    letters = _all_letters(block)
    return letters if len(letters) <= _LEARNABLE else ()


@cache
def _all_letters(block: str) -> tuple[str, ...]:
    from fontTools.unicodedata import Blocks

    if block not in Blocks.VALUES:
        return ()
    index, bounds = Blocks.VALUES.index(block), [*Blocks.RANGES, sys.maxunicode + 1]
    return tuple(letter for letter in map(chr, range(bounds[index], bounds[index + 1]))
                 if unicodedata.category(letter)[0] in "LM")
