"""The rules as text and as a page: small edits keep comments, and what changed is marked on both sides."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from config.errors import UserError
from config.text_rules import parse_rules
from core.text import text_rules
from core.text.text_rules import TABLES, FoldCost, with_entry, with_folds, with_latin
from core.workspace import Workspace
from ui import rules as page

SHIPPED = text_rules.shipped.rules_text("am")


@pytest.mark.parametrize("table", TABLES)
def test_an_entry_is_added_and_the_rest_stays(table: str) -> None:
    made = with_entry(SHIPPED, table, "ሀ: #", 'ለ "መ"')
    assert getattr(parse_rules(made, "am"), table)["ሀ: #"] == 'ለ "መ"'
    assert [line for line in made.splitlines() if "ሀ: #" not in line] == SHIPPED.splitlines()


def test_an_entry_that_is_there_is_replaced() -> None:
    made = with_entry(SHIPPED, "abbreviations", "ዶ/ር", "ሐኪም")
    assert parse_rules(made, "am").abbreviations["ዶ/ር"] == "ሐኪም"
    assert len(made.splitlines()) == len(SHIPPED.splitlines())


def test_tables_that_are_empty_or_not_there() -> None:
    text = text_rules.shipped.rules_text("sv")
    made = with_entry(with_entry(text, "abbreviations", "t.ex.", "till exempel"), "characters", "a", "b")
    rules = parse_rules(made, "sv")
    assert (rules.abbreviations, rules.characters) == ({"t.ex.": "till exempel"}, {"a": "b"})
    with pytest.raises(UserError, match="stands in one line"):
        with_entry("words: {a: b}", "words", "c", "d")
    with pytest.raises(UserError, match="nothing that is written"):
        with_entry(text, "words", " ", "d")


@pytest.mark.parametrize("choice", ["keep", "letters", "sound"])
def test_choices_are_set_where_they_stand(choice: str) -> None:
    made = with_folds(with_latin(SHIPPED, choice), ["homophones", "labialised"])
    rules = parse_rules(made, "am")
    assert (rules.latin.words, rules.fold) == (choice, ("homophones", "labialised"))
    assert parse_rules(with_folds(made, []), "am").fold == ()
    assert len(made.splitlines()) == len(SHIPPED.splitlines())
    assert parse_rules(with_latin("version: 1\n", "keep"), "x").latin.words == "keep"


def test_changed_spans_are_marked_and_text_is_escaped() -> None:
    shown = page.shown_view(text_rules.preview(parse_rules(SHIPPED, "am"), ["<b> 50% 😀", "ሰላም"]))
    assert '<mark class="old" title="percent">50%</mark>' in shown
    assert '<mark class="new" title="percent">ሃምሳ በመቶ</mark>' in shown
    assert "1 of 2 texts change" in shown
    assert "<b>" not in shown
    assert "Removed:" in shown


def test_costs_and_uses_are_told(workspace: Workspace) -> None:
    cost = FoldCost("homophones", "about", 6, 4, 30, 20, 5, 10, (("ሠላም", "ሰላም"),))
    assert "ሠላም = ሰላም" in page.costs_view([cost], 2)
    assert "6 → 4" in page.costs_view([cost], 2)
    assert page.known_view(text_rules.list_rules(workspace)) == ""
    text_rules.save(workspace, "mine", SHIPPED)
    assert "Not used" in page.known_view(text_rules.list_rules(workspace))
    (workspace.rules / "mine.yaml").write_text("words: [", encoding="utf-8")
    assert "could not be read" in page.known_view(text_rules.list_rules(workspace))


def test_other_rules_of_that_name_are_not_overwritten(workspace: Workspace) -> None:
    text_rules.save(workspace, "mine", SHIPPED)
    place = SimpleNamespace(workspace=workspace)
    with pytest.raises(UserError, match="Other rules named 'mine' exist") as refused:
        page._save(place, "mine", "version: 1", "am")  # type: ignore[arg-type]
    assert "'mine-2'" in refused.value.hint
    assert text_rules.load(workspace, "mine").abbreviations
    assert page._save(place, "mine", "version: 1", "mine")[2] == "mine"  # type: ignore[arg-type]
