"""Normalisers fold and separate; nothing that is spoken gets lost."""

import pytest

from config.errors import UserError
from data.normalisers import KINDS, dropped, for_language, normalise


@pytest.mark.parametrize(("text", "name", "wanted"), [
    ("Hello,  World!", "latin", "hello world"),
    ("L’eau — c‘est “bon”…", "latin", "l'eau c'est bon"),
    ("He said 'go home' twice", "latin", "he said go home twice"),
    ("lo' ' dhakhso", "latin", "lo' dhakhso"),
    ("e\u0301te\u0301", "latin", "été"),
    ("a|b_c-d", "latin", "a b c d"),
    ("\ufeffbonjour\u00a0toi\u200b", "latin", "bonjour toi"),
    ("ሰላም፡ለሁሉም።እንዴት፣ነህ፤ወንድሜ፧", "ethiopic", "ሰላም ለሁሉም እንዴት ነህ ወንድሜ"),
    ("ሀ ሐ ኀ", "ethiopic", "ሀ ሐ ኀ"),
    ("ISPARTA İyi", "turkic", "ısparta iyi"),
    ("می‌روم،", "generic", "می‌روم"),
    ("नमस्ते।", "generic", "नमस्ते"),
])
def test_text_is_folded(text: str, name: str, wanted: str) -> None:
    assert normalise(text, name) == wanted


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("spoken", ["12", "50%", "a@b", "x+y", "5€", "፲"])
def test_digits_and_spoken_symbols_stay_for_the_tokenizer_to_report(name: str, spoken: str) -> None:
    assert normalise(f"{spoken} !", name) == spoken


@pytest.mark.parametrize("name", sorted(KINDS))
def test_normalised_text_is_normal(name: str) -> None:
    once = normalise("Ünder the ‘sea’: l’été, İS 3% ሰላም። go'aan", name)
    assert normalise(once, name) == once


def test_dropped_names_punctuation_and_nothing_else() -> None:
    assert dropped("Oui, oui! L’eau - 12", "latin") == {"!": 1, ",": 1, "-": 1}


def test_languages_have_normalisers() -> None:
    assert [for_language(code) for code in ("am", "ti", "so", "tr", "fa", "xx")] == [
        "ethiopic", "ethiopic", "latin", "turkic", "generic", "generic"]


def test_unknown_normaliser_names_the_others() -> None:
    with pytest.raises(UserError, match="no text normaliser 'klingon'") as caught:
        normalise("x", "klingon")
    assert "latin" in caught.value.hint
