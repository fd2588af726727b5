"""How the judge spells and counts."""

from __future__ import annotations

import pytest

from models.tiny.judge import edit_distance, letters_of


@pytest.mark.parametrize(("wanted", "heard", "edits"), [
    ("abc", "abc", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("abc", "axbxc", 2),
])
def test_edits_are_counted(wanted, heard, edits):
    assert edit_distance(wanted, heard) == edits


def test_base_languages_are_spelled_without_spaces_and_marks_of_elision():
    assert letters_of("L'Été à la mer", "fr") == "létéàlamer"


def test_amharic_is_spelled_in_latin_letters_and_homophones_agree():
    assert letters_of("ሰላም ቀለም", "am") == "selamk'elem"
    assert letters_of("ሠላም", "am") == letters_of("ሰላም", "am")
    assert letters_of("ሐኪም", "am") == letters_of("ኀኪም", "am")
