"""Write docs/numbers.md: which library says the numbers of each language, compared over 2,000 values.

    python -m scripts.dev.numbers
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import yaml

from config.text_rules import Numbers
from data.languages import verbalizer
from data.languages.number_reader import (
    ICU_LANGUAGES,
    NumberSpeller,
    library_languages,
    library_version,
    number_speller,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "numbers.md"
_ROUND = (1100, 1900, 1967, 1999, 2000, 2001, 2013, 10_000, 10_001, 11_000, 20_000, 21_000, 31_000, 41_000, 51_000,
          91_000, 100_000, 101_000, 101_101, 110_000, 111_799, 121_000, 200_000, 201_000, 300_000, 500_000, 999_999,
          10**6, 10**6 + 1, 2 * 10**6, 3 * 10**6, 5 * 10**6, 11 * 10**6, 21 * 10**6, 10**8, 10**9, 2 * 10**9, 10**10)


OWN = {
    "am": ("am_num2word 1.0.2", 0, "", "23751bd249a2ca5164255c40bc7b3f96d53e3c0a67fe20ce3e6e77ecbe319004"),
    "om": ("am_num2word 1.0.2", 1915, "spelling (duwwaa, afuri, shani, saddeeti, sagali, digdami, jahatami, kitila, "
           "biliyoonii), tokko after dhibba and kuma, commas and a second fi",
           "6910c7edf47a958296ed7099e659afaf10f5b043c27c37ed0d1f715132c7a4f6"),
    "ti": ("tigrinya-numbers 0.2.0", 853, "spelling (ዜሮ, ሱሳ, ቴስዓ, ሚእት ሽሕ), and ሓደ before ሚእቲ and ሽሕ",
           "9452cca72297cef7496bd6e636e149be7cefba07e173fb465442586530865fe8"),
}
"""Grammars of ours: the package that each was compared with, how many of the 2,000 values it says otherwise and why.

Last, sha256 of the package's words, a line a value, in our spelling: equal to that of ours.
"""


def values(count: int = 2000) -> list[int]:
    """0 to 1000, round numbers, then others up to 100 billion, evenly by their logarithm."""
    chosen = dict.fromkeys((*range(1001), *_ROUND))
    rng = random.Random(0)
    while len(chosen) < count:
        chosen[int(10 ** rng.uniform(3, 11))] = None
    return list(chosen)[:count]


def shipped(name: str) -> Numbers:
    return verbalizer.checked_rules(verbalizer.rules_text(name), name).numbers


def other_library(name: str, chosen: Numbers) -> NumberSpeller | None:
    """The speller that was not chosen; None where it does not know the language."""
    languages = {code.lower().replace("_", "-"): code for code in library_languages()}
    if chosen.engine == "icu":
        library_code = languages.get(name)
        return number_speller(Numbers(engine="num2words", language=library_code)) if library_code else None
    # num2words has the country's code for Kazakh.
    language = {"kz": "kk"}.get(name, name.partition("-")[0])
    return number_speller(Numbers(engine="icu", language=language)) if language in ICU_LANGUAGES else None


def row(name: str, numbers: list[int], reasons: dict[str, str]) -> str:
    chosen = shipped(name)
    speller = number_speller(chosen)
    assert speller is not None
    spellings = [speller.cardinal(number) for number in numbers]
    other = other_library(name, chosen)
    otherwise = [other.cardinal(number) for number in numbers] if other else []
    differ = [(number, word, two) for number, word, two in zip(numbers, spellings, otherwise, strict=False)
              if _letters(word) != _letters(two)]
    example = "; ".join(f"{number:,}: {two or 'nothing'}" for number, _, two in differ[:1] + differ[-1:])
    silent = spellings.count(None)
    doubled = len(spellings) - silent - len({words for words in spellings if words is not None})
    count = str(len(differ)) if other else "not known to it"
    return f"| {name} | {chosen.engine} | {silent} | {doubled} | {count} | {example} | {reasons.get(name, '')} |"


def _letters(words: str | None) -> str:
    """Without what is not heard."""
    return re.sub(r"[\s\u200c'\u02bc-]", "", words or "")


def document(names: tuple[str, ...], count: int = 2000) -> str:
    entries = yaml.safe_load(verbalizer.ENGINES.read_text(encoding="utf-8"))
    reasons = {code: entry["why"] for code, entry in entries["icu"].items()} | entries["num2words"]
    numbers = values(count)
    rows = "\n".join(row(name, numbers, reasons) for name in names)
    grammars = "\n".join(f"| {name} | {package} | {differ} | {reason} |"
                         for name, (package, differ, reason, _) in OWN.items())
    return f"""# Numbers

Which library says the numbers of each language that has no grammar of ours (`am`, `om`, `ti`), compared over
{count:,} values: 0 to 1,000, round numbers, others up to 100 billion. *No words*: values that are read digit by digit.
*Alike*: values with the words of another. *Differ*: values for which the other library has other letters, and what it
says for the first and the last of them. Where it does not know the language, the words were compared with nothing.

Written by `python -m scripts.dev.numbers` ({library_version("icu")}, {library_version("num2words")}).

| language | engine | no words | alike | differ | the other library | why |
|---|---|---|---|---|---|---|
{rows}

The grammars of ours over the same values, against packages that are no requirement. With what the last column
names replaced, none differs.

| language | compared with | differ | why |
|---|---|---|---|
{grammars}
"""


if __name__ == "__main__":
    DOCUMENT.write_text(document(tuple(name for name in verbalizer.rule_names()
                                       if name not in verbalizer.written_by_hand())), encoding="utf-8")
