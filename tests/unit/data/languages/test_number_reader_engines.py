"""Numbers by ICU and num2words: words for all values, no two alike, and those that one of the two says wrongly."""

from __future__ import annotations

import hashlib

import pytest

from data.languages import verbalizer
from data.languages.number_reader import NumberSpeller, number_speller
from scripts.dev import numbers

LANGUAGES = tuple(name for name in verbalizer.rule_names() if name not in verbalizer.written_by_hand())
FIRST_WITHOUT_WORDS = {"kn": 10**9, "te": 10**9}  # num2words, and ICU does not know them


def speller(name: str) -> NumberSpeller:
    found = number_speller(numbers.shipped(name))
    assert found is not None
    return found


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_value_has_words_of_its_own(name: str) -> None:
    values = [value for value in numbers.values()[::20] if value < FIRST_WITHOUT_WORDS.get(name, 10**12)]
    words = [speller(name).cardinal(value) for value in values]
    assert None not in words
    assert len(set(words)) == len(values)
    assert not any(map(str.isdigit, "".join(map(str, words))))


@pytest.mark.parametrize("name", numbers.OWN)
def test_grammars_of_ours_say_what_other_packages_say(name: str) -> None:
    """2,000 values of am_num2word and tigrinya-numbers by their hash, in our spelling; see docs/numbers.md."""
    words = "\n".join(" ".join(str(speller(name).cardinal(value)).split()) for value in numbers.values())
    assert hashlib.sha256(words.encode()).hexdigest() == numbers.OWN[name][-1]


@pytest.mark.slow
def test_the_table_of_engines_is_that_of_the_installed_libraries() -> None:
    assert numbers.document(LANGUAGES) == numbers.DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "value", "words"), [
    ("tr", 111_799, "yüz on bir bin yedi yüz doksan dokuz"), ("sv", 40, "fyrtio"), ("sv", 1000, "ettusen"),
    ("es", 21_000, "veintiún mil"), ("it", 118, "centodiciotto"), ("it", 23, "ventitré"),
    ("no", 2_000_000, "to millioner"), ("de", 201_000, "zweihunderteintausend"), ("fr-be", 201, "deux cent un"),
    ("fr", 80_000_000, "quatre-vingts millions"),
    ("he", 120, "מאה ועשרים"), ("el", 3000, "τρεις χιλιάδες"), ("az", 60, "altmış"), ("az", 101_000, "yüz bir min"),
    ("ar", 11, "أحد عشر"), ("ar", 300, "ثلاثمائة"), ("ar", 1967, "ألف وتسعمائة وسبعة وستون"), ("ar", 2000, "ألفان"),
    ("ar", 3000, "ثلاثة آلاف"), ("ar", 103_000, "مائة وثلاثة آلاف"), ("ar", 201_000, "مائتان وواحد ألف"),
    ("ar", 3_000_000, "ثلاثة ملايين"), ("ar", 2_000_000, "مليونان"), ("ar", 200_000, "مائتا ألف"),
    ("sw", 1967, "elfu moja mia tisa na sitini na saba"), ("hi", 123_456, "एक लाख तेईस हज़ार चार सौ छप्पन"),
    ("zh", 2013, "二千零一十三"), ("ms", 1000, "seribu"),
])
def test_values_that_one_library_says_wrongly(name: str, value: int, words: str) -> None:
    assert speller(name).cardinal(value) == words


@pytest.mark.parametrize("name", ["tr", "ar", "te", "sv"])
def test_a_number_without_words_is_read_digit_by_digit(name: str) -> None:
    reader = verbalizer.verbalizer_of(verbalizer.checked_rules(verbalizer.rules_text(name), name))
    spoken = reader.verbalize("9" * 39)
    assert len(spoken.split()) >= 39
    assert not any(map(str.isdigit, spoken))


def test_ordinals_of_icu() -> None:
    assert [speller(name).ordinal(21) for name in ("sv", "tr", "es")] == [
        "tjugoförsta", "yirmi birinci", "vigésimo primero"]
