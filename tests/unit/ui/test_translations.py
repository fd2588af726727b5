"""The tables of the page's texts, and the script that compares them with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scripts.dev import page_texts
from ui import layout, translations
from ui.translations import tables


def test_each_language_has_the_same_texts_with_the_same_places() -> None:
    first, *others = tables().values()
    for table in others:
        assert table.texts.keys() == first.texts.keys()
        assert table.values.keys() == first.values.keys()
    for table in tables().values():
        for source, shown in {**table.texts, **table.values}.items():
            assert shown.strip(), f"{table.language}: {source!r} is empty"
            assert set(re.findall(r"\{(\w+)\}", source)) == set(re.findall(r"\{(\w+)\}", shown)), source


def test_code_in_a_text_is_the_same_in_its_translation() -> None:
    for table in tables().values():
        for source, shown in table.texts.items():
            assert sorted(set(re.findall(r"`[^`]+`", source))) == sorted(set(re.findall(r"`[^`]+`", shown))), source


def test_page_has_the_addresses_of_the_tables_and_a_chooser_with_their_names() -> None:
    head = layout.head()
    for code, table in tables().items():
        assert f"media/texts/{code}.json?" in head
        assert table.name in translations.chooser()


def test_browser_is_told_whether_a_speaker_has_read_a_table() -> None:
    for code, content in translations.contents().items():
        assert json.loads(content)["read_by"] == tables()[code].read_by


def listed(source: str, folder: Path) -> set[str]:
    """The texts of a module with this source."""
    module = folder / "core" / "some.py"
    module.parent.mkdir()
    module.write_text(source, encoding="utf-8")
    return {text.text for text in page_texts.module_texts(module, folder)}


def test_texts_of_a_module_are_its_labels_and_sentences(tmp_path: Path) -> None:
    module = tmp_path / "ui" / "some.py"
    module.parent.mkdir()
    module.write_text('''"""The docstring of it."""
def build(name, count):
    button = gr.Button("Start over", elem_id="some-id", elem_classes="wide one")
    _LOG.warning("only for the log")
    raise UserError(f"{name} has {pluralize(count, 'clip')}. Its texts are empty.", "Write some.")
''', encoding="utf-8")
    texts = {text.text for text in page_texts.module_texts(module, tmp_path)}
    assert texts == {"Start over", "{name} has {count}.", "1 clip", "{n} clips", "Its texts are empty.", "Write some."}


@pytest.mark.parametrize(("source", "texts"), [
    ("say(f\"{count} line{'' if count == 1 else 's'}.\")", {"{count} line.", "{count} lines."}),
    ("say(f\"{name} {'is' if one else 'are'} old, {'was' if one else 'were'} new.\")",
     {"{name} is old, was new.", "{name} are old, were new."}),
    ("say(f\"{count} clip{'s' * (count != 1)}{', and more' if more else ''} here.\")",
     {"{count} clip{value} here.", "{count} clips{value} here.", ", and more"}),
    ("say(f\"It has {pluralize(len(clips), 'clip')}.\")", {"It has {clips}.", "1 clip", "{n} clips"})])
def test_choice_of_two_words_makes_two_texts(source: str, texts: set[str], tmp_path: Path) -> None:
    assert listed(source, tmp_path) == texts


@pytest.mark.parametrize("source", [
    'NATIVE_NAMES = {"ha": ("Harshen Hausa",)}', 'SENTENCES: dict = {"de": "Wir gehen morgen nach Hause."}',
    'Counter("name", "Seconds of speech.")', 'say("python -m scripts train --init-from run:x")',
    'say("sudo apt-get install -y ffmpeg")', 'say("book.epub --voice-model run:first")',
    'say("rows WHERE kind = ?")', 'say("audio/ogg; codecs=opus")', 'say(f"torch {version}, torchaudio {other}")',
    'say("Multilingual LibriSpeech")', 'say("| language | value |")'])
def test_what_nobody_translates_is_no_text(source: str, tmp_path: Path) -> None:
    assert listed(source, tmp_path) == set()


@pytest.mark.parametrize("text", [
    "Install torch, then do this again.", "Train it: python -m scripts recogniser.", "A sentence that names sudo.",
    "The source is a table of Common Voice.", "fold: it is not one of these"])
def test_sentence_with_a_name_or_a_command_is_a_text(text: str, tmp_path: Path) -> None:
    assert listed(f"say({text!r})", tmp_path) == set(page_texts.sentences(text))


@pytest.mark.parametrize(("text", "known"), [
    ("3 clips", True), ("many clips", False), ("my-run has started.", True), ("my-run has ended.", False),
    ("{job} has started.", True), ("Start", True)])
def test_a_place_takes_a_text_and_one_of_one_letter_a_number(text: str, known: bool) -> None:
    texts = {"Start": "Démarrer", "{name} has started.": "{name} a démarré."}
    table = page_texts.Table(texts, {"{n} clips": "{n} extraits"})
    assert page_texts.Matcher(table).has(text) is known


def test_report_counts_texts_by_where_they_come_from() -> None:
    code = [page_texts.Text("Start", page_texts.PAGE, "ui/a.py:1"),
            page_texts.Text("Stop it.", page_texts.SERVER, "core/a.py:1")]
    table = page_texts.Table({"Start": "Démarrer"}, {})
    assert page_texts.report(code, ["Start"], {"fr": table}) == (
        "fr: page 1 of 1, options 0 of 0, server 0 of 1, opened page 1 of 1, a draft")
