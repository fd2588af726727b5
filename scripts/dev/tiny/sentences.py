"""Deterministic sentences for the built-in model: to train on, and to test with.

Sentences come from four kinds of text: a small grammar (`lexicon.yaml`), windows of the
Universal Declaration of Human Rights (`udhr.jsonl`), shuffled real words and, for English
and French, pronounceable pseudo-words. The same arguments always give the same texts.

The grammar has agreement and elision but no semantics: a cat may buy a bridge. Held-out texts depend on
`seed` and `n_test` alone, so that `build` and `demo` hold out the same ones. Functions that take a random
generator give the same text for the same state of it.
"""

import heapq
import json
import random
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

HERE = Path(__file__).parent
LANGUAGES = ("en", "fr", "am")
WITHOUT_SPACES = ("zh", "ja", "th", "my", "km")
LENGTHS = {"en": (4, 40), "fr": (4, 40), "am": (4, 26)}  # characters
HELD_OUT_MIN_LENGTH = 8  # shorter texts say little about intelligibility
DEMO_LENGTHS = (14, 26)  # characters: 1.5 to 3 seconds of Amharic speech
DEMO_POOL = {"template": 2200, "window": 400, "shuffled": 400}  # candidates
DEMO_SHARE = 3  # a third of the Amharic sentences belongs to the demo, by their checksums
MIN_OCCURRENCES = 3  # occurrences in the demo's train texts of each syllable that is held out
MIX = {
    "en": {"template": 0.45, "window": 0.25, "shuffled": 0.20, "pseudo": 0.10},
    "fr": {"template": 0.45, "window": 0.25, "shuffled": 0.20, "pseudo": 0.10},
    "am": {"template": 0.50, "window": 0.30, "shuffled": 0.20},
}
FORBIDDEN = {
    "en": re.compile(r"[^a-z' ]"),
    "fr": re.compile(r"[^a-zàâçéèêëîïôùûüœ' ]"),
    "am": re.compile(r"[^\u1200-\u135a ]"),
}
FRENCH_VOWEL = (
    r"(?!oui|onze)"
    r"(?=[aeiouàâéèêëîïôùûœ]|h(?:abi|erbe|eure|iver|isto|omme|ô[pt]|orloge|uile))"
)
FRENCH_CONTRACTIONS = (
    (re.compile(rf"\b([djlmnst]|qu)e {FRENCH_VOWEL}"), r"\1'"),
    (re.compile(rf"\bla {FRENCH_VOWEL}"), "l'"),
    (re.compile(rf"\b([mts])a {FRENCH_VOWEL}"), r"\1on "),
    (re.compile(rf"\bce {FRENCH_VOWEL}"), "cet "),
    (re.compile(rf"\bdu {FRENCH_VOWEL}"), "de l'"),
    (re.compile(rf"\b(b|nouv)eau {FRENCH_VOWEL}"), r"\1el "),
    (re.compile(rf"\bvieux {FRENCH_VOWEL}"), "vieil "),
    (re.compile(r"\bde le "), "du "),
    (re.compile(r"\bà le "), "au "),
)
ENGLISH_AN = re.compile(r"\ba (?=(?!use|uni|one|eu)[aeiou]|hour|honest)")
SLOT = re.compile(r"\{(\w+)\}")
Draw = Callable[[random.Random], str]
Keep = Callable[[str], bool]


@dataclass(frozen=True)
class SentenceSets:
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


def build(language: str, n_train: int, n_test: int, seed: int) -> SentenceSets:
    """Distinct normalised texts to train on, with `n_test` of each held-out set.

    Every word of `combinations` occurs in `train`. Amharic leaves one sentence in three
    to `demo`. Raises ValueError where the language has too few distinct sentences.
    """
    check_language(language)
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
    return SentenceSets(tuple(texts), sources.combinations, sources.running)


def demo(n_train: int = 300, n_test: int = 40, seed: int = 0) -> SentenceSets:
    """The Amharic demo dataset: few texts that cover the syllables the held-out sets need.

    Shares its held-out sets with `build("am", ..., n_test, seed)` and no train text.
    """
    sources = _sources("am", n_test, seed)
    keep = _accept("am", sources, belongs=_is_demo)
    rng = random.Random(f"{seed}/am/demo")
    pool = _supporting("am", sources.combinations, keep, rng)
    train = _choose(sources, pool, keep, n_train, rng)
    return SentenceSets(tuple(train), sources.combinations, sources.running)


def more_demo(shipped: SentenceSets, n: int, seed: int = 0) -> list[str]:
    """`n` further train texts for a demo dataset that exists, none of them in `shipped`.

    A paragraph that holds one of `shipped.running` gives neither windows nor words.
    """
    paragraphs = [normalise(p, "am") for p in _udhr("am")]
    held_out = [f" {p} " for p in paragraphs if any(f" {text} " in f" {p} " for text in shipped.running)]
    train = tuple(p for p in paragraphs if f" {p} " not in held_out)
    sources = _Sources(train, _words("am", train), shipped.combinations, shipped.running)
    accept = _accept("am", sources, belongs=_is_demo)
    known_texts = set(shipped.train)

    def keep(text: str) -> bool:
        return accept(text) and text not in known_texts and not any(f" {text} " in p for p in held_out)

    return _choose(sources, {}, keep, n, random.Random(f"{seed}/am/more"))


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
        draw = character_window
    else:
        draw = word_window
    windows: dict[str, None] = {}
    _fill(windows, n, lambda r: draw(r, paragraphs), _is_fragment, rng)
    return list(windows)


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
    _fill(running, n_test, lambda r: word_window(r, held_out, 2, 6), is_new_window, rng)
    combinations: dict[str, None] = {}
    _fill(combinations, n_test, lambda r: template(r, language), is_combination, rng)
    return _Sources(train, _words(language, train), tuple(combinations), tuple(running))


def _words(language: str, paragraphs: Sequence[str]) -> tuple[str, ...]:
    """The words of two letters or more of `paragraphs` and of the grammar, in order."""
    alternatives = (a for slot in lexicon(language).values() for a in slot)
    texts = (*paragraphs, *(normalise(SLOT.sub(" ", a), language) for a in alternatives))
    return tuple(sorted({w for text in texts for w in text.split() if len(w) > 1}))


def _choose(sources: _Sources, pool: dict[str, None], keep: Keep, n: int, rng: random.Random) -> list[str]:
    """`n` texts that cover the syllables of the held-out sets, out of `pool` and further candidates of its lengths."""
    low, high = DEMO_LENGTHS
    for kind, count in DEMO_POOL.items():
        _fill(pool, len(pool) + count, _drawer(kind, "am", sources),
              lambda text: low <= len(text) <= high and keep(text), rng)
    if n > len(pool):
        raise ValueError(f"{n} texts are more than the {len(pool)} candidates")
    chosen = _cover(list(pool), n, sources.combinations, sources.running)
    rng.shuffle(chosen)
    return chosen


def _accept(language: str, sources: _Sources, belongs: Keep) -> Keep:
    held_out = {*sources.combinations, *sources.running}
    low, high = LENGTHS[language]
    return lambda text: low <= len(text) <= high and text not in held_out and belongs(text)


def _supporting(
    language: str, combinations: tuple[str, ...], keep: Keep, rng: random.Random
) -> dict[str, None]:
    """Template sentences that together hold every word of `combinations`."""
    missing_words = {w for text in combinations for w in text.split()}
    chosen: dict[str, None] = {}
    for _ in range(100_000):
        if not missing_words:
            return chosen
        text = template(rng, language)
        if keep(text) and not missing_words.isdisjoint(text.split()):
            chosen[text] = None
            missing_words.difference_update(text.split())
    raise ValueError(f"{language}: no train sentence found for the words {sorted(missing_words)}")


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
        "template": lambda r: template(r, language),
        "window": lambda r: word_window(r, sources.train_paragraphs, 1, 6),
        "shuffled": lambda r: " ".join(r.choice(sources.words) for _ in range(r.randint(2, 4))),
        "pseudo": lambda r: pseudo(r, language, sources.words),
    }
    return ways[kind]


def _is_fragment(text: str) -> bool:
    """Two characters or more, the first of them no mark that lost its letter."""
    return len(text) > 1 and unicodedata.category(text[0])[0] == "L"


def _without_punctuation(text: str) -> str:
    """Letters, marks and the signs inside words; punctuation and digits become spaces."""

    def is_letter(c: str) -> bool:
        return unicodedata.category(c)[0] in "LM" or c in "'’\u200c\u200d"

    return " ".join("".join(c if is_letter(c) else " " for c in text).split())


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


def check_language(language: str) -> None:
    """Raise ValueError for a language that has no grammar."""
    if language not in LANGUAGES:
        raise ValueError(f"language must be one of {LANGUAGES}, not {language!r}")


def normalise(text: str, language: str) -> str:
    """Lower-case NFC text in the language's own alphabet, with single spaces."""
    text = unicodedata.normalize("NFC", text.lower()).replace("\u2019", "'")
    return " ".join(FORBIDDEN[language].sub(" ", text).split())


@cache
def lexicon(language: str) -> dict[str, tuple[str, ...]]:
    """Grammar slots by name, each with its alternatives, which may name `{slots}`."""
    check_language(language)
    slots = yaml.safe_load((HERE / "lexicon.yaml").read_text(encoding="utf-8"))[language]
    return {name: tuple(map(str.strip, text.split(","))) for name, text in slots.items()}


def template(rng: random.Random, language: str) -> str:
    """A sentence of the grammar."""
    slots = lexicon(language)
    text = "{sentence}"
    while "{" in text:
        text = SLOT.sub(lambda match: rng.choice(slots[match.group(1)]), text)
    if language == "en":
        text = ENGLISH_AN.sub("an ", text)
    if language == "fr":
        for pattern, replacement in FRENCH_CONTRACTIONS:
            text = pattern.sub(replacement, text)
    return normalise(text, language)


def pseudo(rng: random.Random, language: str, words: tuple[str, ...]) -> str:
    """Two to four pronounceable words, most of them invented."""
    def word() -> str:
        if rng.random() < 0.3:
            return rng.choice(words)
        return "".join(_syllable(rng, lexicon(language)) for _ in range(rng.choice((1, 2, 2, 3))))

    return " ".join(word() for _ in range(rng.randint(2, 4)))


def _syllable(rng: random.Random, parts: dict[str, tuple[str, ...]]) -> str:
    coda = rng.choice(parts["coda"]) if rng.random() < 0.5 else ""
    return rng.choice(parts["onset"]) + rng.choice(parts["nucleus"]) + coda


def word_window(
    rng: random.Random, paragraphs: Sequence[str], n_min: int = 1, n_max: int = 4
) -> str:
    """Words that follow one another in a paragraph."""
    words = rng.choices(paragraphs, weights=[len(p) for p in paragraphs])[0].split()
    start = rng.randrange(max(1, len(words) - n_min + 1))
    return " ".join(words[start : start + rng.randint(n_min, n_max)])


def character_window(rng: random.Random, paragraphs: Sequence[str]) -> str:
    """Characters that follow one another in a paragraph that has no spaces."""
    text = rng.choice(paragraphs)
    start = rng.randrange(max(1, len(text) - 8))
    return text[start : start + rng.randint(8, 12)]


if __name__ == "__main__":
    _report()
