"""Which characters of a script a dataset has, how often, which are missing, and what to record. Never loads torch."""

from __future__ import annotations

import heapq
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from core.text.lab_report import ENOUGH, Block, Cell, Sentence
from data import unicode_blocks

_MAIN = 0.05  # share of a text's letters in a block from which the block counts as one of its script
_CHARACTERS = 150  # of a sentence to record: some ten seconds
_EFFORT = 20  # characters that starting a recording counts as, so that single words are not the cheapest


def count(texts: Sequence[str]) -> Counter[str]:
    """Characters of `texts` but spaces."""
    return Counter(character for text in texts for character in text if not character.isspace())


def draw(train: Mapping[str, int], held_out: Mapping[str, int], given: Mapping[str, int],
         stays: Callable[[str], bool]) -> tuple[Block, ...]:
    """Every character of the texts by its block, with the letters that a main block has beside them.

    `stays`: whether a letter can reach the model at all; capitals and folded spellings may not.
    """
    present = {*train, *held_out, *given}
    by_block: dict[str, set[str]] = {}
    weight: Counter[str] = Counter()
    for character in present:
        name = unicode_blocks.block_of(character)
        by_block.setdefault(name, set()).add(character)
        if unicodedata.category(character)[0] in "LM":
            weight[name] += train.get(character, 0) + held_out.get(character, 0) + given.get(character, 0)
    total = max(1, sum(weight.values()))
    drawn = []
    for name, found in by_block.items():
        letters = unicode_blocks.letters(name) if weight[name] >= _MAIN * total else ()
        cells = sorted(found | {letter for letter in letters if letter in found or stays(letter)})
        drawn.append(Block(name, bool(letters), tuple(
            Cell(one, train.get(one, 0), held_out.get(one, 0), given.get(one, 0)) for one in cells)))
    return tuple(sorted(drawn, key=lambda block: (-weight[block.name], block.name)))


def gaps(train: Mapping[str, int], given: Mapping[str, int]) -> tuple[str, ...]:
    """Characters of the given text that training text has fewer than ENOUGH times, the most wanted first."""
    return tuple(sorted((one for one in given if train.get(one, 0) < ENOUGH), key=lambda one: (-given[one], one)))


def cover(sentences: Sequence[tuple[str, str]], train: Mapping[str, int],
          most: int) -> tuple[tuple[Sentence, ...], tuple[str, ...]]:
    """Sentences to record, best first, and the gaps that they leave open.

    `sentences` are pairs of the text as given and as the model reads it. Greedy: each time the one that brings most
    for its length, the usual way with such covers (Nemhauser, Wolsey, Fisher 1978). A gain can only fall as others
    are chosen, so an old one is an upper bound, and few are computed anew (Minoux 1978).
    """
    short = {normal: text for text, normal in sentences if 0 < len(normal) <= _CHARACTERS}
    counts = {normal: count([normal]) for normal in short}
    known = {character for _, normal in sentences for character in count([normal])}
    needed = {one: ENOUGH - train.get(one, 0) for one in known if train.get(one, 0) < ENOUGH}
    heap = [(-_worth(counts[normal], needed), normal) for normal in short]
    heapq.heapify(heap)
    chosen: list[Sentence] = []
    while heap and len(chosen) < most:
        _, normal = heapq.heappop(heap)
        worth = -_worth(counts[normal], needed)
        if worth == 0:
            continue
        if heap and worth > heap[0][0]:
            heapq.heappush(heap, (worth, normal))
            continue
        brings = tuple(sorted(one for one in counts[normal] if needed.get(one, 0) > 0))
        chosen.append(Sentence(short[normal], brings))
        for one in brings:
            needed[one] -= counts[normal][one]
    return tuple(chosen), tuple(sorted(one for one, missing in needed.items() if missing > 0))


def _worth(counts: Counter[str], needed: Mapping[str, int]) -> float:
    """What a sentence brings for its length: the nth time that a character is seen is worth 1/n, up to ENOUGH."""
    brought = 0.0
    for one, times in counts.items():
        missing = needed.get(one, 0)
        had = ENOUGH - missing
        brought += sum(1 / (had + more) for more in range(1, min(times, missing) + 1))
    return brought / (_EFFORT + counts.total())
