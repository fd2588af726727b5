"""How the built-in recogniser normalises text."""

from __future__ import annotations

from models.tiny.recogniser import letters_of


def test_base_languages_are_spelled_without_spaces_and_marks_of_elision():
    assert letters_of("L'Été à la mer", "fr") == "létéàlamer"


def test_amharic_is_spelled_in_latin_letters_and_homophones_agree():
    assert letters_of("ሰላም ቀለም", "am") == "selamk'elem"
    assert letters_of("ሠላም", "am") == letters_of("ሰላም", "am")
    assert letters_of("ሐኪም", "am") == letters_of("ኀኪም", "am")
