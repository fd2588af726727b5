"""Deterministic sentences for the built-in model: what is spoken, trained on and judged.

Sentences come from four kinds of text: a small grammar (`lexicon.yaml`), windows of the
Universal Declaration of Human Rights (`udhr.jsonl`), shuffled real words and, for English
and French, pronounceable pseudo-words. The same arguments always give the same texts.

The grammar knows agreement and elision but no meaning: it will say that the cat bought a
bridge. Held-out texts depend on `seed` and `n_test` alone, so that `build` and `demo`
leave out the same ones.
"""

import heapq
import json
import random
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.dev.tiny import draws
from scripts.dev.tiny.draws import lexicon, normalise

HERE = Path(__file__).parent
WITHOUT_SPACES = ("zh", "ja", "th", "my", "km")
LENGTHS = {"en": (4, 40), "fr": (4, 40), "am": (4, 26)}  # characters
HELD_OUT_MIN_LENGTH = 8  # shorter texts say little about intelligibility
DEMO_LENGTHS = (14, 26)  # characters: 1.5 to 3 seconds of Amharic speech
DEMO_POOL = {"template": 2200, "window": 400, "shuffled": 400}  # candidates
DEMO_SHARE = 3  # one Amharic sentence in three belongs to the demo, by its checksum
MIN_OCCURRENCES = 3  # in the demo's train texts, of each syllable that is held out
MIX = {
    "en": {"template": 0.45, "window": 0.25, "shuffled": 0.20, "pseudo": 0.10},
    "fr": {"template": 0.45, "window": 0.25, "shuffled": 0.20, "pseudo": 0.10},
    "am": {"template": 0.50, "window": 0.30, "shuffled": 0.20},
}
Draw = Callable[[random.Random], str]
Keep = Callable[[str], bool]


@dataclass(frozen=True)
class Texts:
    """Training texts and two held-out sets, none of which share a text."""

    train: tuple[str, ...]
    combinations: tuple[str, ...]  # new combinations of known words
    running: tuple[str, ...]  # windows of paragraphs that train never sees


@dataclass(frozen=True)
class _Sources:
    """What one language and seed draw from, after the held-out texts were set aside."""

    train_paragraphs: tuple[str, ...]
    words: tuple[str, ...]
    combinations: tuple[str, ...]
    running: tuple[str, ...]


def build(language: str, n_train: int, n_test: int, seed: int) -> Texts:
    """Distinct normalised texts to train on, with `n_test` of each held-out set.

    Every word of `combinations` occurs in `train`. Amharic leaves one sentence in three
    to `demo`. Raises ValueError where the language has too few distinct sentences.
    """
    draws.check_language(language)
    sources = _sources(language, n_test, seed)
    keep = _accept(language, sources, belongs=lambda text: language != "am" or not _is_demo(text))
    rng = random.Random(f"{seed}/{language}/train")
    train = _supporting(language, sources.combinations, keep, rng)
    if len(train) > n_train:
        raise ValueError(f"n_train={n_train} is too few for {n_test=}: want {len(train)} or more")
    counts = {kind: int(share * (n_train - len(train))) for kind, share in MIX[language].items()}
    counts["template"] += n_train - len(train) - sum(counts.values())
    for kind, count in counts.items():
        _fill(train, len(train) + count, _drawer(kind, language, sources), keep, rng)
    texts = list(train)
    rng.shuffle(texts)
    return Texts(tuple(texts), sources.combinations, sources.running)


def demo(n_train: int = 300, n_test: int = 40, seed: int = 0) -> Texts:
    """The Amharic demo dataset: few texts that cover the syllables the held-out sets need.

    Shares its held-out sets with `build("am", ..., n_test, seed)` and no train text.
    """
    sources = _sources("am", n_test, seed)
    held_apart = _accept("am", sources, belongs=_is_demo)
    low, high = DEMO_LENGTHS

    def keep(text: str) -> bool:
        return low <= len(text) <= high and held_apart(text)

    rng = random.Random(f"{seed}/am/demo")
    pool = _supporting("am", sources.combinations, held_apart, rng)
    for kind, count in DEMO_POOL.items():
        _fill(pool, len(pool) + count, _drawer(kind, "am", sources), keep, rng)
    if n_train > len(pool):
        raise ValueError(f"n_train={n_train} is more than the {len(pool)} candidates")
    train = _cover(list(pool), n_train, sources.combinations, sources.running)
    rng.shuffle(train)
    return Texts(tuple(train), sources.combinations, sources.running)


def languages() -> tuple[str, ...]:
    """Codes of every language there is text for."""
    with (HERE / "udhr.jsonl").open(encoding="utf-8") as lines:
        return tuple(json.loads(line)["language"] for line in lines)


def fragments(language: str, n: int, seed: int) -> list[str]:
    """`n` distinct windows of 1-4 words (8-12 characters without spaces) of another language."""
    if language == "am":
        raise ValueError("fragments: language 'am' is kept apart; use build or demo")
    rng = random.Random(f"{seed}/{language}/fragments")
    paragraphs = [_without_punctuation(p) for p in _udhr(language)]
    if language in WITHOUT_SPACES:
        paragraphs = [p.replace(" ", "") for p in paragraphs]
        draw = draws.character_window
    else:
        draw = draws.word_window
    found: dict[str, None] = {}
    _fill(found, n, lambda r: draw(r, paragraphs), _is_fragment, rng)
    return list(found)


def coverage(texts: Iterable[str]) -> Counter[str]:
    """How often each character other than the space occurs."""
    return Counter(c for text in texts for c in text if c != " ")


@cache
def _udhr(language: str) -> tuple[str, ...]:
    with (HERE / "udhr.jsonl").open(encoding="utf-8") as lines:
        rows = {row["language"]: tuple(row["paragraphs"]) for row in map(json.loads, lines)}
    if language not in rows:
        raise ValueError(f"udhr.jsonl has no language {language!r}; it has {sorted(rows)}")
    return rows[language]


def _sources(language: str, n_test: int, seed: int) -> _Sources:
    rng = random.Random(f"{seed}/{language}/held-out")
    paragraphs = [normalise(p, language) for p in _udhr(language)]
    rng.shuffle(paragraphs)
    n_held_out = len(paragraphs) // 7
    held_out, train = paragraphs[:n_held_out], tuple(paragraphs[n_held_out:])
    low, high = HELD_OUT_MIN_LENGTH, LENGTHS[language][1]
    padded = [f" {p} " for p in train]

    def is_new_window(text: str) -> bool:
        return low <= len(text) <= high and not any(f" {text} " in p for p in padded)

    fixed = {normalise(p, language) for p in lexicon(language)["phrase"]}

    def is_combination(text: str) -> bool:
        return low <= len(text) <= high and text not in fixed

    running: dict[str, None] = {}
    _fill(running, n_test, lambda r: draws.word_window(r, held_out, 2, 6), is_new_window, rng)
    combinations: dict[str, None] = {}
    _fill(combinations, n_test, lambda r: draws.template(r, language), is_combination, rng)
    known = {w for p in train for w in p.split()} | _lexicon_words(language)
    words = tuple(sorted(w for w in known if len(w) > 1))
    return _Sources(train, words, tuple(combinations), tuple(running))


def _lexicon_words(language: str) -> set[str]:
    alternatives = (a for slot in lexicon(language).values() for a in slot)
    return {w for a in alternatives for w in normalise(draws.SLOT.sub(" ", a), language).split()}


def _accept(language: str, sources: _Sources, belongs: Keep) -> Keep:
    held_out = {*sources.combinations, *sources.running}
    low, high = LENGTHS[language]
    return lambda text: low <= len(text) <= high and text not in held_out and belongs(text)


def _supporting(
    language: str, combinations: tuple[str, ...], keep: Keep, rng: random.Random
) -> dict[str, None]:
    """Template sentences that together hold every word of `combinations`."""
    missing = {w for text in combinations for w in text.split()}
    found: dict[str, None] = {}
    for _ in range(100_000):
        if not missing:
            return found
        text = draws.template(rng, language)
        if keep(text) and not missing.isdisjoint(text.split()):
            found[text] = None
            missing.difference_update(text.split())
    raise ValueError(f"{language}: no train sentence found for the words {sorted(missing)}")


def _fill(texts: dict[str, None], size: int, draw: Draw, keep: Keep, rng: random.Random) -> None:
    for _ in range(1000 + 200 * size):
        if len(texts) >= size:
            return
        text = draw(rng)
        if keep(text):
            texts[text] = None
    raise ValueError(f"only {len(texts)} distinct texts found, want {size}; ask for fewer")


def _drawer(kind: str, language: str, sources: _Sources) -> Draw:
    ways: dict[str, Draw] = {
        "template": lambda r: draws.template(r, language),
        "window": lambda r: draws.word_window(r, sources.train_paragraphs, 1, 6),
        "shuffled": lambda r: " ".join(r.choice(sources.words) for _ in range(r.randint(2, 4))),
        "pseudo": lambda r: draws.pseudo(r, language, sources.words),
    }
    return ways[kind]


def _is_fragment(text: str) -> bool:
    """Two characters or more, the first of them no mark that lost its letter."""
    return len(text) > 1 and unicodedata.category(text[0])[0] == "L"


def _without_punctuation(text: str) -> str:
    """Letters, marks and the signs inside words; punctuation and digits become spaces."""

    def is_kept(c: str) -> bool:
        return unicodedata.category(c)[0] in "LM" or c in "'’\u200c\u200d"

    return " ".join("".join(c if is_kept(c) else " " for c in text).split())


def _is_demo(text: str) -> bool:
    return zlib.crc32(text.encode()) % DEMO_SHARE == 0


def _cover(
    pool: list[str], n: int, combinations: tuple[str, ...], running: tuple[str, ...]
) -> list[str]:
    """Choose `n` texts greedily, each for what the ones before it still lack.

    The gain of a text never grows as others are chosen (it is submodular), so a stale
    heap entry is an upper bound and only the top needs to be weighed again (Minoux 1978).
    """
    needed = set(coverage((*combinations, *running)))
    words_left = {w for text in combinations for w in text.split()}
    counts: Counter[str] = Counter()

    def gain(text: str) -> float:
        weights = {c: 4 if c in needed and counts[c] < MIN_OCCURRENCES else 1 for c in text}
        syllables = sum(w / (1 + counts[c]) for c, w in weights.items() if c != " ")
        return syllables + 4 * len(words_left & set(text.split()))

    heap = [(-gain(text), i) for i, text in enumerate(pool)]
    heapq.heapify(heap)
    chosen: list[str] = []
    while len(chosen) < n:
        _, i = heapq.heappop(heap)
        fresh = -gain(pool[i])
        if heap and fresh > heap[0][0]:
            heapq.heappush(heap, (fresh, i))
            continue
        chosen.append(pool[i])
        counts.update(pool[i])
        words_left -= set(pool[i].split())
    return chosen


def _report() -> None:
    for language, n in (("en", 12_000), ("fr", 12_000), ("am", 4_000)):
        texts = build(language, n, 40, seed=0)
        mean = sum(map(len, texts.train)) / n
        print(f"{language}: {len(texts.train)} train texts, {mean:.1f} characters on average")
        for name in ("train", "combinations", "running"):
            print(f"  {name}: " + " | ".join(getattr(texts, name)[:8]))
    texts = demo()
    counts = coverage(texts.train)
    held_out = {c: counts[c] for c in coverage(texts.combinations + texts.running)}
    rare = {c: n for c, n in held_out.items() if n < MIN_OCCURRENCES}
    print(f"  {len(held_out)} held-out syllables, {list(held_out.values()).count(0)} not covered")
    print(f"  fewest {min(held_out.values())}; below {MIN_OCCURRENCES}: {rare}")
    print("  train: " + " | ".join(texts.train[:12]))


if __name__ == "__main__":
    _report()
