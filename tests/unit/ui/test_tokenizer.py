"""The lab on the page: what it shows of a report, and what its button would make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from config.errors import UserError
from config.schema import NO_RULES, CompareTokenizersOptions
from config.text_rules import TextRules
from core.text import pasted_text, text_rules
from core.text.script_coverage import CharacterCount, RecordingPrompt, ScriptBlock
from core.text.tokenizer_comparison import BASE, Recommendation, TokenizerCandidate, TokenizerComparison
from core.workspace import Workspace
from ui import tokenizer as page

PLAIN = TokenizerCandidate("characters", "bpe", 0, 0, 40, 39, 39, 0.0, 0.015, 1.0, 12.0, 90, 2, 5,
                           (("ጯ", 0), ("<b>", 3)))
LONGER = TokenizerCandidate("bpe-50", "bpe", 50, 48, 88, 39, 39, 0.0, None, 0.6, 7.2, 60, 0, 4, ())
REPORT = TokenizerComparison(
    "tiny", "voice", "am", "am", 100, 840.0, 128,
    (TokenizerCandidate(BASE, "", 0, 0, 0, 39, 2, 0.82, None, 1.0, 12.0, 90, 0, 0, ()), PLAIN, LONGER),
    Recommendation("bpe-50", "It needs 40% fewer tokens."), ("en", "fr"),
    (ScriptBlock("Ethiopic", True, (CharacterCount("ሀ", 1200, 3, 0), CharacterCount("ጳ", 0, 0, 4),
                                    CharacterCount("ሿ", 0, 0, 0), CharacterCount("ቐ", 9, 0, 1))),
     ScriptBlock("Combining Diacritical Marks", False, (CharacterCount("\u0301", 10, 0, 0),))),
    ("ጳ", "ቐ"), (RecordingPrompt("ጳጳሱ <i>", ("ጳ",)),), ("ቐ",), ("bpe-800: the text gives no more",),
)


def of(workspace: Workspace) -> page.Page:
    return SimpleNamespace(workspace=workspace)  # type: ignore[return-value]


def test_a_report_is_shown_whole_and_escaped() -> None:
    shown = page.lab_report_view(REPORT)
    for text in ("Recommended: bpe-50", "It needs 40% fewer tokens.", "39 of 39", "1.5% of your text", "82.0%",
                 "Over 128 tokens", "2 of 100", "English, French", "bpe-800: the text gives no more",
                 "2 characters of your text occur fewer than 10 times", "1 remain below 10"):
        assert text in shown
    assert shown.count("badge good") == 1
    assert "<b>" not in shown
    assert "<i>" not in shown


@pytest.mark.parametrize(("character", "words"), [
    ("ሀ", 'cell shade-4" title="U+1200 ETHIOPIC SYLLABLE HA: 1200 times in training text, 3 held out"'),
    ("ጳ", 'cell shade-0 wanted" title="U+1333 ETHIOPIC SYLLABLE PHAA: 0 times in training text, 4 in your text"'),
    ("ሿ", 'cell shade-0" title="U+123F'),
    ("ቐ", 'cell shade-1" title='),
    ("\u0301", 'cell shade-2" title="U+0301'),
])
def test_a_cell_says_how_often_a_character_is_there(character: str, words: str) -> None:
    assert words in page.script_view(REPORT).replace("&#x27;", "'")
    assert f"{character}</span>" in page.script_view(REPORT)


def test_a_block_counts_what_is_there_and_what_is_rare() -> None:
    shown = page.script_view(REPORT)
    assert "2 of 4 letters and signs; 1 fewer than 10 times." in shown
    assert "1 of 1 characters of the texts; 0 fewer than 10 times." in shown


def test_the_button_makes_what_was_recommended_under_a_free_name(workspace: Workspace) -> None:
    made = page.recommended_options(of(workspace), REPORT)
    assert (made.algorithm, made.merges, made.rules, made.dataset, made.tokenizer) == (
        "bpe", 50, "am", "voice", "tiny-am")
    (workspace.tokenizers / "tiny-am").mkdir()
    assert page.recommended_options(of(workspace), REPORT).tokenizer == "tiny-am-bpe-50"


def read_by(name: str, rules: TextRules, **changes: str) -> TokenizerComparison:
    return replace(REPORT, rules=name, rules_hash=text_rules.content_hash(rules), **changes)


def test_the_button_warns_where_the_rules_are_others_by_now(workspace: Workspace) -> None:
    text_rules.save(workspace, "mine", text_rules.read(workspace, "am"))
    report = read_by("mine", text_rules.load(workspace, "mine"), rules_from="new")
    assert page.rules_warning(of(workspace), report) == ""
    path = workspace.rules / "mine.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("ሃምሳ", "አምሳ"), encoding="utf-8")
    assert "rules 'mine' of the tokenizer new changed since" in page.rules_warning(of(workspace), report)
    path.unlink()
    with pytest.raises(UserError, match="no text rules named 'mine'"):
        page.rules_warning(of(workspace), report)
    with pytest.raises(UserError, match="rules of the tokenizer new, which are not saved under a name"):
        page.rules_warning(of(workspace), replace(report, rules=""))
    assert page.rules_warning(of(workspace), replace(REPORT, rules="")) == ""  # none were taken
    assert page.rules_warning(of(workspace), REPORT) == ""  # a comparison of before


def test_a_report_says_whose_rules_it_read_by() -> None:
    assert "with the text rules am." in page.candidates_view(REPORT)
    assert "with the text rules am of the tokenizer new." in page.candidates_view(replace(REPORT, rules_from="new"))
    unnamed = replace(REPORT, rules="", rules_from="new", rules_hash="1")
    assert "with the text rules of the tokenizer new." in page.candidates_view(unnamed)
    assert "without text rules" in page.candidates_view(replace(REPORT, rules=""))


@pytest.mark.parametrize(("chosen", "taken"), [("", NO_RULES), ("am", "am")])
def test_the_lab_reads_by_the_rules_that_the_form_shows(workspace: Workspace, chosen: str, taken: str) -> None:
    given = {"model": "tiny", "dataset": "voice", "rules": chosen, "tokenizer_file": "", "byte_fallback": "False",
             "sizes": "10", "sentences": "5", "text": ""}
    assert page.lab_options(of(workspace), given, keep=False).rules == taken


def test_what_the_fold_says_becomes_options_and_pasted_text_a_file(workspace: Workspace, tmp_path: Path) -> None:
    def said(text: str, sizes: str = "10, 20", keep: bool = True, sentences: str = "5",
             byte_fallback: str = "False") -> CompareTokenizersOptions:
        given = {"model": "tiny", "dataset": "voice", "rules": "", "tokenizer_file": "", "byte_fallback": byte_fallback,
                 "sizes": sizes, "sentences": sentences, "text": text}
        return page.lab_options(of(workspace), given, keep=keep)

    made = said("ሰላም\nለሁሉም")
    assert (made.sizes, made.sentences) == ((10, 20), 5)
    assert pasted_text.read_lines(made.text) == ["ሰላም", "ለሁሉም"]
    assert said("ሰላም\nለሁሉም") == made
    assert len(list((workspace.path / "texts").iterdir())) == 1
    said("something else", keep=False)
    assert len(list((workspace.path / "texts").iterdir())) == 1
    other = said("/tmp/x.txt", sizes="", sentences="", byte_fallback="True")
    assert (other.text, other.byte_fallback, made.byte_fallback) == ("/tmp/x.txt", True, False)
    with pytest.raises(UserError, match="[Ss]izes"):
        said("", "ten")


def test_a_report_is_the_same_after_it_was_written(tmp_path: Path) -> None:
    REPORT.save(tmp_path)
    assert TokenizerComparison.load(tmp_path) == REPORT


@pytest.mark.parametrize(("sizes", "message"), [
    ("50, abc", "Sizes: should be a whole number (given: 'abc')."),
    ("-5", "Sizes: -5 pieces cannot be learned: ask for 1 to 20000."),
])
def test_wrong_sizes_are_told_by_label_and_value(workspace: Workspace, sizes: str, message: str) -> None:
    values = {**dict.fromkeys((*page._SHARED, *page._OWN), ""), "model": "tiny", "dataset": "voice", "sizes": sizes}
    with pytest.raises(UserError) as refused:
        page.lab_options(of(workspace), values, keep=False)
    assert refused.value.message == message
