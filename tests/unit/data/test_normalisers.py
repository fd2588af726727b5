"""Normalisers fold and separate; nothing that is spoken gets lost."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.errors import UserError
from data.normalisers import KINDS, NORMALISERS, dropped, for_language, normalise


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


@pytest.mark.parametrize(("codes", "kind"), [
    (("tr", "tr-TR", "tr_TR", "az", "az-Latn", "az-Latn-AZ", "crh", "crh-Latn", "gag", "kaa-Latn", "tt-Latn", "tur",
      "tur-Latn", "azj-latn"), "turkic"),
    (("az-Cyrl", "crh-Cyrl", "az-Arab", "tt-Cyrl", "azb", "uzn-Cyrl", "fa-IR", "xx"), "generic"),
    (("am", "am-ET", "ti-ER", "om-Ethi", "amh", "tir-ER"), "ethiopic"),
    (("uz", "uz-UZ", "uz-Latn", "uzn", "uzb-uz"), "uzbek"),
    (("sw", "sw-KE", "sr-Latn", "en-GB"), "latin")])
def test_region_and_script_keep_the_rules_of_a_language(codes: tuple[str, ...], kind: str) -> None:
    assert {code: for_language(code) for code in codes} == dict.fromkeys(codes, kind)


@pytest.mark.parametrize("name", [name for name in NORMALISERS if name in KINDS or "-new-" in name])
def test_a_capital_i_with_a_dot_gives_no_second_dot(name: str) -> None:
    read = unicodedata.normalize("NFD", normalise("İstanbul İZMİR IŞIK", name))
    assert "i\u0307" not in read
    dotless = "ısık" if name.endswith("turkic") else "isik"
    assert unicodedata.normalize("NFC", read.replace("\u0327", "")).lower().endswith((dotless, f"{dotless}.")) or (
        name.startswith("indextts2-new"))


@pytest.mark.parametrize("sign", "'`\u2018\u2019\u201b\u02bb\u02bc")
def test_the_apostrophes_of_uzbek_are_one(sign: str) -> None:
    assert normalise(f"O{sign}zbekiston go{sign}zal", for_language("uz-Latn")) == "o'zbekiston go'zal"
    assert normalise("Hawaiʻi", for_language("haw")) == "hawaiʻi"  # a consonant there


@given(words=st.lists(st.text(st.sampled_from("ابپتمی"), min_size=1, max_size=5), min_size=1, max_size=5),
       joiner=st.sampled_from("\u200c\u200d"))
def test_joiners_that_join_nothing_are_taken_out(words: list[str], joiner: str) -> None:
    wanted = joiner.join(words)
    assert normalise((joiner * 2).join(words), "generic") == wanted
    loose = f"{joiner} {wanted}{joiner} {joiner}{wanted} {joiner}"
    assert normalise(loose, "generic") == f"{wanted} {wanted}"


def test_unknown_normaliser_names_the_others() -> None:
    with pytest.raises(UserError, match="no text normaliser 'klingon'") as caught:
        normalise("x", "klingon")
    assert "latin" in caught.value.hint
