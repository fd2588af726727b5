"""A code that is no language's is told, with those near it; one that is known or private is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.errors import UserError
from config.languages import (
    NAMES,
    NATIVE_NAMES,
    _registry,
    code_of,
    doubt,
    find_languages,
    language_name,
    language_title,
    script_doubt,
)
from config.loading import parse_options
from config.schema import PrepareOptions
from core import prepare
from core.dataset.languages import describe_language
from core.workspace import Workspace
from data.manifest import load
from tests.unit.small_data import AMHARIC, Recorder, SmallFamily, base, write_dataset


@pytest.mark.parametrize("code", [*NAMES, "wal", "gez", "sgw", "nb", "fil", "cmn", "pt-br", "zh-hant", "ar-eg", "mul",
                                  "qaa", "qqq", "qtz", "x-mine"])
def test_what_is_known_or_private_is_not_doubted(code: str) -> None:
    assert doubt(code) == ""


@pytest.mark.parametrize(("code", "near"), [
    ("jp", "Similar codes: ja (Japanese), "), ("dk", "Similar codes: da (Danish), "),
    ("cn", "Similar codes: zh (Chinese), "),
    ("zz", "zu (Zulu)"), ("yyb", "ybb (Yemba)"),
])
def test_what_is_no_code_is_told_with_those_near_it(code: str, near: str) -> None:
    said = doubt(code)
    assert said.startswith(f"{code!r} is the code of no language")
    assert near in said


@pytest.mark.parametrize(("code", "usual"), [("eng", "'en'"), ("amh", "'am'"), ("iw", "'he'"), ("swa-ke", "'sw'")])
def test_an_unusual_code_is_told_with_the_usual_one(code: str, usual: str) -> None:
    assert usual in doubt(code)


def test_a_script_or_region_that_is_none_is_told() -> None:
    assert "no script, region or variant" in doubt("en-qq1x")


def test_languages_have_the_names_of_the_registry() -> None:
    assert language_name("wal") == "Wolaytta"
    assert code_of("wolaytta") == "wal"
    assert (language_name("ms"), language_name("el")) == ("Malay", "Greek")
    assert (language_name("zz"), language_name("pt-br")) == ("zz", "pt-br")
    assert code_of("no such language") == ""
    assert (describe_language("wal"), describe_language("jp")) == ("Wolaytta (wal)", "'jp'")


def test_a_code_means_itself_also_where_it_is_the_name_of_another_language() -> None:
    for code in _registry():
        assert code_of(code) == code_of(f" {code.upper()} ") == code
    named = {entry.name.lower(): code for code, entry in _registry().items()}
    assert {"en", "ha", "ko", "ga", "to"} <= {code for code in _registry() if named.get(code, code) != code}
    assert [code_of(name) for name in NAMES.values()] == list(NAMES)


def test_a_dataset_of_an_unknown_code_is_prepared_with_a_warning(
        tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "family", lambda name: SmallFamily())
    base().save(workspace.models / "tiny")
    source = write_dataset(tmp_path / "in", AMHARIC[:2])
    told = {code: Recorder() for code in ("jp", "x-mine")}
    for code, recorder in told.items():
        prepare.run(PrepareOptions(source=str(source), dataset=code, language=code), workspace, recorder)
        assert load(workspace.dataset(code)).card.language == code
    assert "Similar codes: ja (Japanese)" in told["jp"].warnings
    assert "code" not in told["x-mine"].warnings


def test_a_language_written_by_its_name_is_told_its_code() -> None:
    with pytest.raises(UserError, match="such as `wal`"):
        parse_options(PrepareOptions, {"language": "Wolaytta"})


@pytest.mark.parametrize(("text", "code"), [
    ("አማርኛ", "am"), ("mboshi", "mdw"), ("Mbosi", "mdw"), ("twi", "tw"), ("Oluganda", "lg"), ("sidama", "sid"),
    ("kiswahili", "sw"), ("yoruba", "yo"), ("ibibio", "ibb"), ("afan oromo", "om"), ("mdw", "mdw")])
def test_a_language_is_found_by_any_of_its_names(text: str, code: str) -> None:
    assert find_languages(text)[:1] == [code]


def test_native_names_are_of_known_codes_and_are_codes_of_them() -> None:
    assert set(NATIVE_NAMES) <= set(_registry())
    assert code_of("አማርኛ") == "am"
    assert language_title("am") == "Amharic · አማርኛ (am)"
    assert find_languages("qqqqqq") == find_languages("a") == []


@pytest.mark.parametrize("texts", [
    ("wa ábí ngá moyi ω ε ɔ", "bε sεrε ωra"), ("lέkεrέ la nω", "Εbε na Εbεkε"), ("aβa θuθi", "Ωra δaγ"),
    ("mbεtε",)])
@pytest.mark.parametrize("code", ["mdw", "x-mine", "ln"])
def test_greek_letters_that_look_like_no_latin_one_belong_to_an_orthography(code: str, texts: tuple[str, ...]) -> None:
    assert script_doubt(code, texts) == ""


@pytest.mark.parametrize(("code", "texts", "named"), [
    ("mdw", ("wa mοyi", ), "the Greek letter ο (U+03BF) in 'mοyi'"),  # an omicron
    ("mdw", ("Εnglish na wa",), "the Greek letter Ε (U+0395) in 'Εnglish'"),  # no small epsilon anywhere
    ("el", ("η μητέρα lέει",), "the Latin letter l (U+006C) in 'lέει'"),
    ("mdw", ("bε na", "bɛ na"), "one letter is written in two ways: ε (U+03B5) in 'bε na', ɛ (U+025B) in 'bɛ na'"),
    ("sw", ("yаko",), "the Cyrillic letter а (U+0430) in 'yаko'")])
def test_letters_that_look_alike_are_asked_about(code: str, texts: tuple[str, ...], named: str) -> None:
    assert named in script_doubt(code, texts)
