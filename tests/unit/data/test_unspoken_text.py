"""Signs of what nobody speaks are found in texts of any source, and only removed on request."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soundfile import write

from core import prepare
from core.workspace import Workspace
from data.importers import import_source
from data.importers.rows import SourceNote
from data.unspoken_text import LABEL, signs, without_signs
from tests.unit.outside import RATE, prepared, speech, text
from tests.unit.small_data import SmallFamily, base

WORDS = st.text(st.characters(categories=["Ll", "Lo"]), min_size=1, max_size=8)
SENTENCE = st.lists(WORDS, min_size=2, max_size=6).map(" ".join)
MARKED = {
    "text in [ ]": "[{0}]", "text in ( )": "({0})", "text in { }": "{{{0}}}", "tags in < >": "<i>", "music signs": "♪",
    "times": "[00:00:05.120 --> 00:00:07.000]", "HTML entities": "&amp;",
}


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    family = SmallFamily()
    monkeypatch.setattr(prepare, "family", lambda name: family)
    base().save(workspace.models / "tiny")
    return workspace


@settings(max_examples=60, deadline=None)
@given(before=SENTENCE, after=SENTENCE, sound=WORDS, kind=st.sampled_from(sorted(MARKED)))
def test_a_sign_is_found_and_removed_wherever_it_stands(before: str, after: str, sound: str, kind: str) -> None:
    sign = MARKED[kind].format(sound)
    for whole in (f"{before} {sign} {after}", f"{sign} {before} {after}", f"{before} {after} {sign}"):
        assert kind in signs(whole)
        kept = "&" if kind == "HTML entities" else ""
        assert without_signs(whole).replace(kept, "").split() == f"{before} {after}".split()


@settings(max_examples=60, deadline=None)
@given(sentence=SENTENCE)
def test_a_text_without_signs_stays_as_it_is(sentence: str) -> None:
    assert signs(f"{sentence}.") == {}
    assert without_signs(f"{sentence}.") == f"{sentence}."


@pytest.mark.parametrize(("words", "spoken"), [
    ("SPEAKER_00: She opened it.", "She opened it."), ("Narrator: the teacher wrote.", "the teacher wrote."),
    ("ANNA MARIA: hello", "hello"), (">> Our neighbours keep bees.", "Our neighbours keep bees."),
    ("- Go. - No.", "Go. No."), ("*laughs* He went.", "He went."), ("They painted *the old* door.",
                                                                     "They painted the old door."),
    ("Please <break time=\"1s\"/> wait.", "Please wait."), ("<unk> The train.", "The train."),
    ("&lt;i&gt;So&lt;/i&gt; it is", "So it is"), ("00:05 hello there", "hello there"),
    ("((unclear)) he went", "he went"), ("[[laugh]] he [[door]] went", "he went"), ("he {{pause:0.5}} went", "he went"),
    ("he went [inaudible 00:01:02]", "he went"), ("(crosstalk 01:02.5) he went", "he went"),
    ("MAN #1: stop it", "stop it"), ("Speaker #2: go on", "go on"),
])
def test_labels_and_other_signs(words: str, spoken: str) -> None:
    assert signs(words)
    assert without_signs(words) == spoken


@pytest.mark.parametrize("words", [
    "He said: go.", "At 12:30 we met.", "AT&T is here", "if a < b and c > d then", "2 * 3 * 4", "well-known - as ever",
    "the ratio 3:2", "we came, and he: nothing"])
def test_what_is_spoken_is_no_sign(words: str) -> None:
    assert signs(words) == {}


def test_label_is_the_only_kind_of_a_colon() -> None:
    assert set(signs("Anna: he went.")) == {LABEL}


def test_prepare_names_each_kind_once_and_removes_on_request(ready: Workspace, tmp_path: Path) -> None:
    marked = ["[music] {0}", "SPEAKER_00: {0}", "(laughs) {0}", "<unk> {0}", "♪ {0} ♪", "{0} &amp;", "[music] {0}",
              "{0}"]
    (tmp_path / "in").mkdir()
    for number in range(len(marked)):
        write(tmp_path / "in" / f"{number}.wav", speech(number), RATE)
    table = "".join(f"{number}|{line.format(text(number))}\n" for number, line in enumerate(marked))
    (tmp_path / "in" / "metadata.csv").write_text(table, encoding="utf-8")
    dataset, warnings = prepared(ready, tmp_path / "in")
    assert "metadata.csv line 1: 2 of 8 texts have text in [ ], such as '[music]': they would be learnt" in warnings
    for kind in ("text in ( )", "tags in < >", "music signs", "HTML entities", LABEL):
        assert f"1 of 8 texts have {kind}" in warnings
    assert {clip.text for clip in dataset.clips} == {line.format(text(at)) for at, line in enumerate(marked)}

    cleaned, warnings = prepared(ready, tmp_path / "in", "am", "--remove-unspoken", "--dataset", "clean")
    del cleaned
    from data import manifest

    spoken = {clip.text.removesuffix(" &") for clip in manifest.load(ready.dataset("clean")).clips}
    assert spoken == {text(number) for number in range(len(marked))}
    assert ": removed" in warnings


def test_whispers_doubts_are_notes(tmp_path: Path) -> None:
    write(tmp_path / "talk.wav", speech(0), RATE)
    segments = ",".join(f'{{"start": {at}, "end": {at + 1}, "text": "thank you", "no_speech_prob": {doubt}}}'
                        for at, doubt in enumerate((0.1, 0.9)))
    (tmp_path / "talk.json").write_text(f'{{"segments": [{segments}]}}', encoding="utf-8")
    notes = [entry.reason for entry in import_source(tmp_path, "en") if isinstance(entry, SourceNote)]
    assert notes[0].startswith("1 of 2 segments have a no_speech_prob above 0.6, the first is segment 2")
    assert notes[1].startswith("1 of 2 segments repeat the text of the one before")
