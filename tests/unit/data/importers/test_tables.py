"""Tables and archives as people have them: no sound row is lost, and what is not used is named.

The real entry point is the command `prepare`; the readers below it are tested by properties.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soundfile import write

from config.languages import same_language
from core import prepare
from core.library.records import EXTENSION, ExtensionRecord, Origin, write_record
from core.sources.archives import unpack_archive
from core.workspace import Workspace
from data import manifest
from data.importers import import_source
from data.importers.rows import SkippedRow, SourceRow, column_names, unused_columns
from data.importers.tables import table_records
from scripts.command import USAGE_ERROR, run_verb
from tests.unit.outside import RATE, by_command, prepared, speech, text
from tests.unit.small_data import SmallFamily, base

PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORD = st.text(st.characters(categories=["Ll", "Lu"]), min_size=1, max_size=8)


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    family = SmallFamily()
    monkeypatch.setattr(prepare, "family", lambda name: family)
    base().save(workspace.models / "tiny")
    return workspace


def sounds(folder: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, speech(number), RATE)
    return folder


def rows_of(source: Path, language: str = "sw") -> tuple[list[SourceRow], list[str], str]:
    imported = import_source(source, language)
    return list(imported.rows), [entry.reason for entry in imported.skipped], " ".join(imported.notes)


@PROPERTY
@given(texts=st.lists(st.lists(WORD, min_size=1, max_size=4).map(" ".join), min_size=2, max_size=8),
       data=st.data(), delimiter=st.sampled_from([",", ";"]))
def test_lone_quotes_cost_no_other_row(texts: list[str], data: st.DataObject, delimiter: str) -> None:
    """A quote within a text is text; one at its start that is never closed costs its own line, and is counted."""
    inside = data.draw(st.sets(st.integers(0, len(texts) - 1)))
    opened = data.draw(st.sets(st.integers(0, len(texts) - 1)))
    lines, wanted = ["file_name,transcription".replace(",", delimiter) + "\n"], {}
    for number, words in enumerate(texts):
        name = f"wavs/{number}.wav"
        if number in opened:
            lines.append(f'{name}{delimiter}"{words}\n')
        else:
            whole = f'{words} 5" wide' if number in inside else words
            lines.append(f"{name}{delimiter}{whole}\n")
            wanted[name] = whole
    records = list(table_records(enumerate(lines, 1), delimiter, True))[1:]
    read = {cells[0]: cells[1] for _, cells in records if not isinstance(cells, str)}
    assert read == wanted
    assert {number for number, cells in records if isinstance(cells, str)} == {number + 2 for number in opened}


@PROPERTY
@given(rows=st.lists(st.tuples(WORD, st.text(st.sampled_from('ab,;"\n '), max_size=12), WORD), min_size=1, max_size=5))
def test_what_pythons_csv_writes_is_read_back(rows: list[tuple[str, str, str]]) -> None:
    target = io.StringIO()
    csv.writer(target, lineterminator="\n").writerows(rows)
    lines = enumerate(target.getvalue().splitlines(keepends=True), 1)
    assert [tuple(cells) for _, cells in table_records(lines, ",", True)] == rows


@pytest.mark.parametrize(("given", "names"), [
    (["Audio File", "Text", "Speaker Name"], ["audio_file", "text", "speaker_name"]),
    (["wav_path", "speakerID", "languageID", "text"], ["wav_path", "speaker_id", "language_id", "text"]),
    (["file-name", "Transcription", "LANG"], ["file_name", "transcription", "lang"]),
])
def test_names_of_columns_are_compared_without_case_and_blanks(given: list[str], names: list[str]) -> None:
    assert [column_names([name])[0].replace("_", "") for name in given] == [name.replace("_", "") for name in names]
    assert unused_columns(column_names(given)) == []


def test_codes_and_names_of_one_language_are_one() -> None:
    for other in ("swa", "sw-KE", "Swahili", "sw_TZ", "swh"):
        assert same_language("sw", other)
    assert not same_language("sw", "en")
    assert same_language("zh-CN", "cmn")


@pytest.mark.parametrize(("header", "row", "speakers", "note"), [
    ("wav_path,speakerID,languageID,text", "{0},{2},{3},{1}", True, ""),
    ("Audio File,Text,Speaker Name,Language", "{0},{1},{2},{3}", True, ""),
    ("file,lang,sentence,mood", "{0},{3},{1},calm", False, "column `mood` has 'calm' and is not used"),
    ("filename,subtitle,spk,locale", "{0},{1},{2},{3}", True, ""),
])
def test_speakers_and_languages_are_those_of_the_header(tmp_path: Path, header: str, row: str, speakers: bool,
                                                        note: str) -> None:
    names = [f"wavs/{number}.wav" for number in range(4)]
    sounds(tmp_path, names)
    lines = [row.format(name, f"text {number}", "anna" if number < 2 else "bert", "en" if number == 3 else "sw-KE")
             for number, name in enumerate(names)]
    (tmp_path / "metadata.csv").write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    rows, skipped, notes = rows_of(tmp_path)
    assert [entry.text for entry in rows] == ["text 0", "text 1", "text 2"]
    assert {entry.speaker for entry in rows} == ({"anna", "bert"} if speakers else {"speaker"})
    assert skipped == ["its language is 'en', and 'sw' is imported"]
    assert note in notes


def test_gpt_sovits_lists_keep_the_rows_of_the_language(tmp_path: Path) -> None:
    sounds(tmp_path, ["a.wav", "b.wav", "c.wav"])
    (tmp_path / "x.list").write_text("a.wav|anna|ZH|one two three\nb.wav|anna|EN|four five six\n"
                                     "c.wav|anna|EN|seven eight nine\n", encoding="utf-8")
    rows, skipped, _ = rows_of(tmp_path, "en")
    assert [entry.id for entry in rows] == ["b", "c"]
    assert skipped == ["its language is 'ZH', and 'en' is imported"]


@pytest.mark.parametrize("record", [
    {"messages": [{"role": "user", "content": "{text}"}, {"role": "assistant", "content": "<audio>{audio}</audio>"}]},
    {"messages": [{"role": "user", "content": [{"type": "audio", "audio": "wavs/9.wav"},
                                               {"type": "text", "text": "{text}"}]},
                  {"role": "assistant", "content": [{"type": "audio", "audio": "{audio}"}]}]},
    {"conversations": [{"from": "human", "value": "{text}"}, {"from": "gpt", "value": "<audio>"}],
     "audios": ["{audio}"]},
    {"audio": {"path": "{audio}"}, "text": "{text}", "ref_audio": "wavs/9.wav"},
    {"audio_path": "{audio}", "text": "LETTERS", "duration": 2.0},
])
def test_json_lines_of_other_trainers(tmp_path: Path, record: dict[str, object]) -> None:
    names = [f"wavs/{number}.wav" for number in range(3)]
    sounds(tmp_path, [*names, "wavs/9.wav"])
    lines = []
    for number, name in enumerate(names):
        line = json.dumps(record).replace("{audio}", name).replace("{text}", f"text {number}")
        lines.append(line.replace('"LETTERS"', json.dumps(list(f"text {number}"))))
    (tmp_path / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    rows, skipped, notes = rows_of(tmp_path)
    assert [(entry.audio.name, entry.text) for entry in rows] == [(f"{at}.wav", f"text {at}") for at in range(3)]
    assert not skipped
    assert ("ref_audio" in notes) == ("ref_audio" in record)


def test_a_text_that_is_a_list_of_words_is_named(tmp_path: Path) -> None:
    sounds(tmp_path, ["a.wav", "b.wav"])
    lines = '{"audio": "a.wav", "text": ["one", "two"]}\n{"audio": "b.wav", "text": "x"}\n'
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    rows, skipped, _ = rows_of(tmp_path)
    assert len(rows) == 1
    assert skipped == ["its text is a list, and not of letters: ['one', 'two']"]


@pytest.mark.parametrize(("name", "encoding"), [
    ("你好.wav", "gbk"), ("こんにちは.wav", "shift_jis"), ("привет.wav", "cp866"), ("größe.wav", "cp437"),
    ("ሰላም.wav", "utf-8")])
def test_names_in_archives_are_found_in_the_encoding_that_packed_them(tmp_path: Path, name: str, encoding: str) -> None:
    sounds(tmp_path, ["x.wav"])
    shown = name.encode(encoding).decode("cp437")  # without the flag for UTF-8, ZIP's names are shown so
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
        sound, table = (tmp_path / "x.wav").read_bytes(), f"audio,text\n{name},one\nb.wav,two\nbb.wav,three\n"
        for inside, content in ((shown, sound), ("b.wav", sound), ("__MACOSX/._b.wav", b"resource fork"),
                                (".hidden.wav", b""), ("metadata.csv", table.encode())):
            archive.writestr(inside, content)
    folder = tmp_path / "unpacked"
    folder.mkdir()
    assert unpack_archive(tmp_path / "v.zip", folder, 10**9) == []
    imported = import_source(folder, "sw", foreign=True, title="v.zip")
    assert [entry.text for entry in imported.rows] == ["one", "two"]
    assert imported.rows[0].id == Path(name).stem
    assert [entry.reason for entry in imported.skipped] == [
        "the audio 'bb.wav' is not in v.zip; the nearest name there is 'b.wav'"]


def test_stems_that_are_equal_are_two_clips_and_one_row_twice_is_one(tmp_path: Path) -> None:
    sounds(tmp_path, ["wavs/take.wav", "wavs/take.flac", "wavs/b.wav"])
    (tmp_path / "metadata.csv").write_text("take.wav|one\ntake.flac|two\nb.wav|three\nb.wav|three\n", encoding="utf-8")
    rows, skipped, _ = rows_of(tmp_path)
    assert [(entry.id, entry.audio.name) for entry in rows] == [("take", "take.wav"), ("take-2", "take.flac"),
                                                                ("b", "b.wav")]
    assert skipped == ["the id 'b' was already used at metadata.csv line 3"]


def test_prepare_reads_a_table_of_all_these(ready: Workspace, tmp_path: Path) -> None:
    """Lone quotes, equal stems, an unused column and a row of another language, by the command."""
    names = ["take.wav", "take.flac", "b.wav", "c.wav", "d.wav"]
    sounds(tmp_path / "in" / "wavs", names)
    lines = ["Audio File,Text,LanguageID,mood"]
    lines += [f'{name},{text(at)} 5" wide,am,calm' for at, name in enumerate(names[:4])]
    lines.append(f"d.wav,{text(4)},so,calm")
    (tmp_path / "in" / "metadata.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    dataset, warnings = prepared(ready, tmp_path / "in")
    assert {clip.id for clip in dataset.clips} == {"take", "take-2", "b", "c"}
    assert {clip.text for clip in dataset.clips} == {f'{text(at)} 5" wide' for at in range(4)}
    assert "metadata.csv line 6: its language is 'so', and 'am' is imported" in warnings
    report = json.loads((dataset.folder / "report.json").read_text("utf-8"))
    assert "column `mood` has 'calm' and is not used" in " ".join(report["notes"])


def test_prepare_takes_an_orthography_with_greek_letters_beside_latin_ones(ready: Workspace, tmp_path: Path) -> None:
    """As the corpus of Mboshi is written; --any-script is not needed."""
    texts = ["wa ábí ngá moyi ω", "bε sεrε ωra na", "lέkεrέ la nω bε", "ɔ wa ngá ε sεrε"]
    sounds(tmp_path / "in", [f"{number}.wav" for number in range(len(texts))])
    table = "".join(f"{number}|{line}\n" for number, line in enumerate(texts))
    (tmp_path / "in" / "metadata.csv").write_text(table, encoding="utf-8")
    code, warnings = by_command(ready, "prepare", "--source", str(tmp_path / "in"), "--dataset", "d", "--language",
                                "mdw")
    assert code == 0, warnings
    assert "look alike" not in warnings
    assert {clip.text for clip in manifest.load(ready.dataset("d")).clips} == set(texts)


def test_prepare_finds_names_of_an_archive_and_leaves_hidden_files_out(ready: Workspace, tmp_path: Path) -> None:
    sounds(tmp_path, ["a.wav", "b.wav"])
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
        archive.writestr("ночь.wav".encode("cp866").decode("cp437"), (tmp_path / "a.wav").read_bytes())
        archive.writestr("день.wav".encode("cp866").decode("cp437"), (tmp_path / "b.wav").read_bytes())
        archive.writestr("__MACOSX/._a.wav", b"resource fork")
        archive.writestr(".DS_Store", b"")
        archive.writestr("metadata.csv", f"audio,text\nночь.wav,{text(0)}\nдень.wav,{text(1)}\nутро.wav,{text(2)}\n")
    dataset, warnings = prepared(ready, tmp_path / "v.zip")
    assert {clip.text for clip in dataset.clips} == {text(0), text(1)}
    assert "the audio 'утро.wav' is not in v.zip" in warnings


@pytest.mark.parametrize("clips", [1, 2])
def test_one_or_two_clips_are_named_before_training(ready: Workspace, tmp_path: Path, clips: int,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    sounds(tmp_path / "in", [f"{number}.wav" for number in range(clips)])
    (tmp_path / "in" / "metadata.csv").write_text("".join(f"{number}|{text(number)}\n" for number in range(clips)),
                                                  encoding="utf-8")
    dataset, warnings = prepared(ready, tmp_path / "in")
    assert len(dataset.clips) == clips
    reason = f"cannot be trained on: it has 1 training clip of 1 speaker and {clips - 1} held out"
    assert reason in warnings

    # A training refuses it before there is a job.
    (ready.extensions / "mine").mkdir()
    write_record(ready.extensions / "mine" / EXTENSION, ExtensionRecord(
        "mine", "mine", ("am",), "mean", 0, "", Origin("tiny", "tiny", "", 10, 10, "")))
    arguments = ["--workspace", str(ready.path), "--extension", "mine", "--dataset", "d", "--name", "refused"]
    assert run_verb("train", arguments) == USAGE_ERROR
    assert reason in capsys.readouterr().err
    assert not (ready.runs / "refused").exists()


def test_rows_of_another_language_alone_are_refused(ready: Workspace, tmp_path: Path) -> None:
    sounds(tmp_path / "in", ["a.wav", "b.wav"])
    (tmp_path / "in" / "metadata.csv").write_text("audio,text,language\na.wav,one,English\nb.wav,two,English\n",
                                                  encoding="utf-8")
    code, warnings = by_command(ready, "prepare", "--source", str(tmp_path / "in"), "--dataset", "d", "--language",
                                "am", "--any-script")
    assert code == 1
    assert "its language is 'English', and 'am' is imported" in warnings
    assert not [entry for entry in import_source(tmp_path / "in", "en") if isinstance(entry, SkippedRow)]
