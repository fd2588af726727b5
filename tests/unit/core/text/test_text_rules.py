"""Rules from choice to speech: one encoding everywhere, and an edit after something was made with them is caught."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from config.errors import UserError
from config.schema import ExtendOptions, TokenizerOptions
from core import extend, tokenizer
from core.model import loading
from core.model.loading import load_extension
from core.text import text_rules
from core.text.tokenizer_report import TokenizerReport
from core.workspace import Workspace
from data.front_end import FrontEnd
from data.languages import verbalizer as shipped
from data.text_chunking import split_for_model
from models import registry
from scripts import rules as script
from tests.unit.chatterbox_text import multilingual
from tests.unit.core.test_tokenizer import write
from tests.unit.data.languages.test_verbalizer import ANY_TEXT
from tests.unit.small_data import LETTERS, Recorder, SmallFamily, base
from tests.worlds import write_model

AMHARIC = ("በ1967 ዓ.ም. ተወለደ።", "ዶ/ር አበበ 50% አገኘ፧", "ከUSA በ2:30 ሰዓት መጣ!", "ሰላም ለሁሉም ሰው", "ት/ቤቱ ፳ ሰዎች አሉት")
ETHIOPIC = [chr(code) for code in range(0x1200, 0x135B)]


@cache
def reader(style: str) -> FrontEnd:
    """A front-end with the shipped rules that knows every Ethiopic letter."""
    rules = shipped.checked_rules(shipped.rules_text("am"), "am")
    if style == "words":
        old = FrontEnd.base({"en": "latin", "fr": "latin"}, LETTERS)
    else:
        with tempfile.TemporaryDirectory() as folder:
            old = multilingual(Path(folder))
    return old.extended("am", old.normaliser_for("am"), ETHIOPIC, [("ሰ", "ላ"), ("ሰላ", "ም")], rules)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ANY_TEXT, st.sampled_from(["words", "chatterbox"]))
def test_preparation_training_and_synthesis_encode_alike(text: str, style: str) -> None:
    prepared = reader(style)
    trained = loaded(style)  # as a run has it: what preparation saved, read back
    assert prepared.fingerprint == trained.fingerprint
    if not prepared.normalise(text, "am"):
        with pytest.raises(UserError, match="nothing to speak"):
            trained.encode(text, "am")
        return
    ids = prepared.encode(text, "am").tolist()
    assert trained.encode(text, "am").tolist() == ids
    pieces = split_for_model(text, "am", trained, 10_000, 10_000)
    spoken = [trained.encode(piece.text, "am").tolist() for piece in pieces]
    if len(spoken) == 1:
        assert spoken[0] == ids
    elif style == "words":  # sentences are apart; what is read in them is what was read in the whole
        assert without_spaces(trained, [token for piece in spoken for token in piece[2:-1]]) == without_spaces(
            trained, ids[2:-1])


def without_spaces(front_end: FrontEnd, ids: list[int]) -> list[int]:
    return [token for token in ids if token != front_end.base_vocabulary["[SPACE]"]]


@cache
def loaded(style: str) -> FrontEnd:
    with tempfile.TemporaryDirectory() as folder:
        reader(style).save(folder)
        return FrontEnd.load(folder)


def test_a_dot_of_an_abbreviation_ends_no_sentence() -> None:
    pieces = split_for_model("በ1967 ዓ. ም. ተወለደ። ዶ.ር 3.5 ኪ.ሜ. ሄደ።", "am", reader("words"), 10_000, 10_000)
    assert [piece.text for piece in pieces] == [
        "በአስራ ዘጠኝ መቶ ስልሳ ሰባት ዓመተ ምህረት ተወለደ።", "ዶክተር ሶስት ነጥብ አምስት ኪሎ ሜትር ሄደ።"]


def test_base_languages_never_go_through_rules() -> None:
    front_end = reader("words")
    plain = FrontEnd.base({"en": "latin", "fr": "latin"}, LETTERS)
    assert front_end.writer("en") is None
    for text in ("Dr. Who at half past ten", "l'eau & le feu"):
        assert front_end.comparable(text, "en") == plain.comparable(text, "en")
    assert front_end.comparable("50%", "fr") == plain.comparable("50%", "fr")


def test_surrogates_and_noncharacters_are_named_not_raised() -> None:
    with pytest.raises(UserError, match="outside the vocabulary"):
        FrontEnd.base({"en": "latin"}, LETTERS).encode("a\ud800", "en")


def test_digits_that_a_tokenizer_lacks_are_told_with_the_rules_that_would_write_them_out() -> None:
    base = FrontEnd.base({"en": "latin"}, LETTERS)
    for language, name in (("am", "`am`"), ("wal", "your own")):
        made = base.extended(language, base.normaliser_for(language), ETHIOPIC, [])
        with pytest.raises(UserError) as caught:
            made.encode("ሰላም 12", language)
        assert "has no text rules" in caught.value.hint
        assert name in caught.value.hint
        with pytest.raises(UserError) as caught:
            made.encode("ሰላም ж", language)
        assert "text rules" not in caught.value.hint


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace with a model and an Amharic dataset."""
    monkeypatch.setattr(loading, "family_named", lambda name: SmallFamily())
    base().save(workspace.models / "tiny")
    write(workspace, "amharic", "am", AMHARIC)
    return workspace


@pytest.fixture
def made(ready: Workspace) -> Workspace:
    """The same with a tokenizer that was made with rules of a person's own."""
    text_rules.save(ready, "mine", shipped.rules_text("am"))
    make(ready, "mine")
    return ready


def make(workspace: Workspace, rules: str) -> None:
    options = TokenizerOptions(model="tiny", dataset="amharic", tokenizer="new", rules=rules)
    tokenizer.run(options, workspace, Recorder())


def test_tokenizer_takes_a_copy_of_the_rules(made: Workspace) -> None:
    front_end = FrontEnd.load(made.tokenizer("new"))
    report = TokenizerReport.load(made.tokenizer("new"))
    assert report.unknown_rate == 0
    assert report.rules.startswith("mine (")
    assert report.texts_written_out == 4  # all but the one of words alone
    assert front_end.normalise("50%", "am") == "ሃምሳ በመቶ"
    assert not any(character.isdigit() for token in front_end.added_tokens() for character in token.text)


def test_without_rules_a_tokenizer_is_what_it_was(ready: Workspace) -> None:
    make(ready, "")
    front_end = FrontEnd.load(ready.tokenizer("new"))
    settings_file = json.loads((ready.tokenizer("new") / "front_end.json").read_text("utf-8"))
    assert "rules" not in settings_file["languages"]["am"]
    assert front_end.normalise("50%", "am") == "50%"
    assert not list(ready.tokenizer("new").glob("rules-*"))


def test_an_edit_of_the_copy_is_another_fingerprint(made: Workspace) -> None:
    before = FrontEnd.load(made.tokenizer("new")).fingerprint
    path = made.tokenizer("new") / "rules-am.json"
    path.write_text(path.read_text("utf-8").replace("ሃምሳ", "አምሳ"), encoding="utf-8")
    assert FrontEnd.load(made.tokenizer("new")).fingerprint != before
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"rules-am\.json.* could not be read"):
        FrontEnd.load(made.tokenizer("new"))
    path.unlink()
    with pytest.raises(UserError, match=r"lacks rules-am\.json"):
        FrontEnd.load(made.tokenizer("new"))


def test_an_edit_of_rules_in_use_is_refused_or_forked(made: Workspace) -> None:
    edited = text_rules.read(made, "mine").replace("ሃምሳ", "አምሳ")
    with pytest.raises(UserError, match="Tokenizer new was made with the rules 'mine'") as refused:
        text_rules.save(made, "mine", edited)
    assert "'mine-2'" in refused.value.hint
    assert text_rules.save(made, "mine", text_rules.read(made, "mine")).state == "already there"
    assert text_rules.save_copy(made, "mine", edited).name == "mine-2"
    assert text_rules.load(made, "mine-2").numbers.grammar.tens[3] == "አምሳ"  # type: ignore[union-attr]
    with pytest.raises(UserError, match="already is another tokenizer named 'new'"):
        make(made, "mine-2")


def test_an_edit_of_what_was_made_is_refused_when_it_is_loaded(
        ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "family_named", registry.family)
    shutil.rmtree(ready.models / "tiny")
    write_model(ready.models / "tiny")
    options = TokenizerOptions(model="tiny", dataset="amharic", tokenizer="new", rules="am")
    tokenizer.run(options, ready, Recorder())
    extend.run(ExtendOptions(model="tiny", tokenizer="new", extension="new"), ready, Recorder())
    path = ready.extension("new") / "front_end" / "rules-am.json"
    assert load_extension(ready, "new", torch.device("cpu")).front_end.normalise("50%", "am") == "ሃምሳ በመቶ"
    path.write_text(path.read_text("utf-8").replace("ሃምሳ", "አምሳ"), encoding="utf-8")
    with pytest.raises(UserError, match="does not belong to its rows"):
        load_extension(ready, "new", torch.device("cpu"))


def test_an_edit_in_the_file_itself_is_seen(made: Workspace) -> None:
    path = made.rules / "mine.yaml"
    path.write_text(path.read_text("utf-8").replace("ሃምሳ", "አምሳ"), encoding="utf-8")
    entry = text_rules.list_rules(made)[0]
    assert (entry.name, entry.used_by, entry.edited) == ("mine", (), ("tokenizer new",))


@pytest.mark.parametrize(("names", "languages"), [("am,ti", ("am",)), ("am,own", ("am",)), ("am,ti,own", ("am", "ti"))])
def test_two_rules_for_one_language_are_refused_by_their_names(workspace: Workspace, names: str,
                                                               languages: tuple[str, ...]) -> None:
    text_rules.save(workspace, "own", text_rules.read(workspace, "am"))
    with pytest.raises(UserError, match="The rules 'am' and '(ti|own)' are both chosen, and the texts in 'am'"):
        text_rules.for_languages(workspace, names, languages)
    both = text_rules.for_languages(workspace, "ti,own", ("am", "ti"))
    assert {code: rules and rules.name for code, rules in both.items()} == {"am": "own", "ti": "ti"}


def test_shipped_rules_are_not_overwritten(workspace: Workspace) -> None:
    for name in ("am", "sv"):
        with pytest.raises(UserError, match="ship with the app"):
            text_rules.save(workspace, name, shipped.rules_text("am"))
    assert text_rules.save_copy(workspace, "am", shipped.rules_text("am")).name == "am-2"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "x" * 65])
def test_names_stay_in_the_workspace(workspace: Workspace, name: str) -> None:
    with pytest.raises(UserError, match="cannot be a name"):
        text_rules.save(workspace, name, "version: 1")


def test_rules_of_another_language_are_refused(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="for 'ti', the texts are in 'am'"):
        text_rules.for_dataset(workspace, "ti", "am")
    with pytest.raises(UserError, match="no text rules named 'klingon'"):
        text_rules.for_dataset(workspace, "klingon", "am")


def test_cost_of_a_folding_counts_words_that_fall_together(workspace: Workspace) -> None:
    text_rules.save(workspace, "mine", shipped.rules_text("am"))
    costs = {cost.name: cost for cost in text_rules.fold_costs(
        text_rules.load(workspace, "mine"), ["ሰላም ሠላም ኃይል", "ሰላም ሐይል ቍጥር 5"])}
    assert (costs["homophones"].words, costs["homophones"].merged_word_count) == (6, 2)
    assert costs["homophones"].merged == (("ሠላም", "ሰላም"), ("ሐይል", "ኃይል"))
    assert (costs["labialised"].merged_word_count, costs["labialised"].occurrences) == (0, 1)


def test_command_line_does_the_same(workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--workspace", str(workspace.path), "--json"]
    assert script.main(["show", "am", *place]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    (tmp_path / "mine.yaml").write_text(text.replace("ሃምሳ", "አምሳ"), encoding="utf-8")
    assert script.main(["save", "mine", "--file", str(tmp_path / "mine.yaml"), *place]) == 0
    assert script.main(["try", "mine", "--text", "50% ዶ/ር 😀", *place]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])["lines"][0]
    assert line["after"].split() == ["አምሳ", "በመቶ", "ዶክተር"]
    assert [change["rules"] for change in line["changes"]] == [["percent"], ["abbreviation"], ["left out"]]
    assert script.main(["cost", "mine", "--text", "ሠላም ሰላም", *place]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["costs"][0]["merged_word_count"] == 1
    assert script.main(["list", *place]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out.splitlines()[-1])["rules"]] == [
        "mine", "am", "om", "ti"]
    assert script.main(["save", "am", "--file", str(tmp_path / "mine.yaml"), *place]) == 2
    assert json.loads(capsys.readouterr().out)["status"] == "refused"
