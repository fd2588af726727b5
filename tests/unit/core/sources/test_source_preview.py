"""Uploads are kept and recognised before a job begins, and what is recognised is said with its reason."""

from __future__ import annotations

import io
import os
import shutil
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from config.errors import UserError
from config.languages import script_doubt
from core.sources import source_preview
from core.sources.dataset_source import open_source
from core.workspace import Workspace
from data.importers import ImportedSource, SourceRow, import_source
from tests.unit.small_data import AMHARIC, Recorder, write_clip, write_dataset
from ui import dataset

SRT = "1\n00:00:00,000 --> 00:00:01,000\nሰላም\n"
ROW = "c\ta.wav\tሰላም\n"


def upload(folder: Path, **files: bytes) -> list[Path]:
    """As Gradio leaves them: each in a separate folder."""
    paths = []
    for name, content in files.items():
        path = folder / f"hash-{name}" / name.replace("__", ".")
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        paths.append(path)
    return paths


def zipped(**files: bytes) -> bytes:
    """A ZIP of these files; `__` in a name is its dot."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "."), content)
    return buffer.getvalue()


def test_a_folder_at_the_top_of_the_disk_may_hold_recordings() -> None:
    top = Path(*Path(__file__).resolve().parts[:2])  # as /data of a container
    assert source_preview.preview(str(top), "am") == (f"{top} is recognised when the preparation starts.",)
    assert source_preview.script_question(str(top), "am") == ""
    for source, message in (("/", "/ is no folder of recordings"), ("/not-there", "There is no dataset at /not-there")):
        with pytest.raises(UserError, match=message):
            source_preview.preview(source, "am")


def test_files_that_were_uploaded_together_are_one_source(tmp_path: Path, workspace: Workspace) -> None:
    sound = write_clip(tmp_path / "a.wav").read_bytes()
    kept = source_preview.store_upload(workspace, upload(tmp_path / "up", film__wav=sound, film__srt=SRT.encode()))
    assert kept.is_relative_to(workspace.cache / "uploads")
    lines = source_preview.preview(str(kept), "am")
    assert lines[0].startswith("Recognised as subtitles (SRT)")
    assert lines[1] == "Of its 1 entry 1 has a recording and a text."
    with pytest.raises(UserError) as caught:
        source_preview.preview(str(source_preview.store_upload(workspace,
                                                    upload(tmp_path / "odd", notes__txt=b"nothing of use here"))), "am")
    assert caught.value.message.startswith("notes.txt is no table")
    assert str(workspace.path) not in caught.value.message + caught.value.hint
    old = kept.parent / "old"
    old.mkdir()
    os.utime(old, (time.time() - 10**6,) * 2)
    beside = source_preview.store_upload(workspace, upload(tmp_path / "both", film__wav=sound, film__srt=SRT.encode(),
                                                           clips__zip=zipped(a__wav=sound, a__txt=b"the cat")))
    assert source_preview.preview(str(beside), "en") == (
        "The upload has recordings in 1 archive: it is unpacked and recognised when the preparation starts.",)
    with open_source(str(beside), "en", workspace, Recorder()) as opened:
        rows = [entry for entry in import_source(opened.path) if isinstance(entry, SourceRow)]
    assert sorted(row.audio.name for row in rows) == ["a.wav", "film.wav"]  # those of the archive, and those beside it
    single = source_preview.store_upload(workspace, upload(tmp_path / "more", x__zip=b"PK\3\4"))
    assert single.name == "x.zip"
    assert not old.exists()
    with pytest.raises(UserError, match="x.zip is damaged"):
        source_preview.preview(str(single), "am")


def test_two_uploads_of_one_name_are_refused(tmp_path: Path, workspace: Workspace) -> None:
    paths = [*upload(tmp_path / "one", a__wav=b"1"), *upload(tmp_path / "two", a__wav=b"2")]
    with pytest.raises(UserError, match=r"Two of the files are called 'a\.wav'"):
        source_preview.store_upload(workspace, paths)
    assert all(path.is_file() for path in paths)


def test_an_upload_that_lacks_its_text_stays_until_it_is_complete(tmp_path: Path, workspace: Workspace) -> None:
    page: Any = SimpleNamespace(workspace=workspace)
    sound = write_clip(tmp_path / "a.wav").read_bytes()
    listed = upload(tmp_path / "up", noise__wav=sound)
    notice, source, update = dataset.save_upload(page, [str(path) for path in listed], "")
    assert "noise.wav is a recording without a text" in str(notice)
    assert "stays in the list: add what is missing to it" in str(notice)
    assert update == gr.skip()
    assert Path(str(source)).read_bytes() == sound  # Long recordings takes it as it is
    listed += upload(tmp_path / "more", noise__txt="ሰላም".encode())
    notice, source, update = dataset.save_upload(page, [str(path) for path in listed], "am")
    assert "Of its 1 entry 1 has a recording and a text." in str(notice)
    assert update is None
    assert sorted(path.name for path in Path(str(source)).iterdir()) == ["noise.txt", "noise.wav"]
    assert not any(path.exists() for path in listed)  # the workspace has them now


def test_an_upload_is_copied_where_it_cannot_be_linked(
        tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("another disk")))
    listed = upload(tmp_path / "up", a__wav=b"1", b__wav=b"2")
    stored = source_preview.store_upload(workspace, listed)
    assert [(stored / name).read_bytes() for name in ("a.wav", "b.wav")] == [b"1", b"2"]


def test_an_empty_text_is_no_text(tmp_path: Path) -> None:
    write_clip(tmp_path / "a.wav")
    write_clip(tmp_path / "b.wav")
    (tmp_path / "a.txt").write_text("ሰላም")
    (tmp_path / "b.txt").write_text(" \n")
    said = source_preview.preview(str(tmp_path), "am")
    assert "Of its 2 entries 1 has a recording and a text." in said
    assert said[-1] == "Skipped: b.wav: there is nothing in b.txt beside it."
    table = tmp_path / "table"
    table.mkdir()
    write_clip(table / "a.wav")
    write_clip(table / "b.wav")
    (table / "metadata.csv").write_text("audio,text\na.wav,ሰላም\nb.wav,\n")
    said = source_preview.preview(str(table), "am")
    assert "Of its 2 entries 1 has a recording and a text." in said
    assert "empty" in said[-1]


def test_what_is_left_out_is_said_before_the_job(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, AMHARIC[:1])
    for index in range(5):
        write_clip(folder / f"lonely{index}.wav")
    lines = source_preview.preview(str(folder), "am")
    assert "Of its 6 entries 1 has a recording and a text." in lines
    assert lines[-2:] == ("Skipped: lonely2.wav: there is no lonely2.txt beside it.",
                          "2 more are skipped; the report will name them all.")
    with pytest.raises(UserError, match="There is no dataset at"):
        source_preview.preview(str(tmp_path / "nowhere"), "am")
    assert source_preview.preview("demo", "am") == source_preview.preview("", "am") == ()


@pytest.mark.parametrize("suffix", ["zip", "tar"])
def test_an_archive_is_recognised_by_its_texts(tmp_path: Path, suffix: str) -> None:
    folder = write_dataset(tmp_path / "in", AMHARIC[:3])
    packed = shutil.make_archive(str(tmp_path / "speech"), suffix, folder)
    lines = source_preview.preview(packed, "am")
    assert lines[0].startswith("Recognised as a text beside each recording")
    assert lines[1] == "Of its 3 entries 3 have a recording and a text."
    assert source_preview.script_question(packed, "am") == ""
    assert source_preview.script_question(packed, "sw").startswith("Swahili is written in Latin letters; 100%")


def test_scripts_that_do_not_fit_the_language_are_asked_about(tmp_path: Path) -> None:
    def asked(language: str, *texts: str) -> str:
        return script_doubt(language, texts)

    assert asked("am", "Habari yako", "leo ነው") == (
        "Amharic is written in Ethiopic letters; 87% of the letters here are Latin, as in 'Habari yako'.")
    assert asked("sw", "Habari", "y\u0430ko") == (
        "1 word has letters of several scripts that look alike: the Cyrillic letter \u0430 (U+0430) in 'y\u0430ko'.")
    fitting = {"am": "በGoogle ፈለገ ነው ብሎ", "sw": "Habari yako", "el": "η μητέρα", "ko": "한국어",
               "ja": "日本語のカタカナ", "sr-latn": "dobar dan", "x-mine": "добрый день", "zh": "你好", "om": ""}
    for language, text in fitting.items():
        assert asked(language, text) == "", language


def put(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", ".").replace("--", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def clips(folder: Path, *names: str) -> Path:
    for index, name in enumerate(names):
        write_clip(folder / name, pitch=300 + index)
    return folder


def forms(tmp_path: Path) -> dict[str, Path]:
    def home(name: str, *recordings: str) -> Path:
        return clips(tmp_path / name, *(recordings or ("a.wav",)))

    return {
        "Kaldi": put(home("kaldi"), wav__scp="u a.wav\n", text="u ሰላም\n"),
        "Common Voice": put(home("cv", "clips/a.wav"), validated__tsv="client_id\tpath\tsentence\n" + ROW),
        "LJSpeech": put(home("lj", "wavs/a.wav"), metadata__csv="a|ሰላም\n"),
        "LJSpeech with a header": put(home("ljh", "wavs/a.wav"), metadata__csv="id|transcription\na|ሰላም\n"),
        "CSV": put(home("csv"), any__csv="file,transcript\na.wav,ሰላም\n"),
        "TSV": put(home("tsv"), metadata__tsv="path\tsentence\na.wav\tሰላም\n"),
        "JSON lines": put(home("jsonl"), train__jsonl='{"audio": "a.wav", "text": "ሰላም"}\n'),
        "JSON": put(home("json"), data__json='[{"audio": "a.wav", "text": "ሰላም"}]'),
        "subtitles (SRT)": put(home("srt"), a__am__srt=SRT, a__en__srt=SRT.replace("ሰላም", "peace")),
        "subtitles (WebVTT)": put(home("vtt"), other__vtt="WEBVTT\n\n00:00.000 --> 00:01.000\nሰላም\n"),
        "lyrics (LRC)": put(home("lrc"), a__lrc="[00:00.10]ሰላም\n"),
        "Audacity labels": put(home("labels"), a__txt="0.0\t0.9\tሰላም\n"),
        "a text beside each recording": put(home("beside"), a__txt="ሰላም\n"),
    }


def test_every_form_is_recognised_in_its_folder_also_one_folder_deep(tmp_path: Path) -> None:
    for name, folder in forms(tmp_path).items():
        for read in (lambda folder: import_source(folder, "am"), again):
            imported = read(folder)
            assert (imported.form, [row.text for row in imported.rows]) == (name, ["ሰላም"]), name
            assert imported.notes[0].startswith(f"Recognised as {name}: ")


def again(folder: Path) -> ImportedSource:
    """The same within another folder, as archives have it."""
    outer = folder.with_name(f"{folder.name}-outer")
    outer.mkdir()
    folder.rename(outer / folder.name)
    return import_source(outer, "am")


def test_of_two_forms_the_reason_for_the_first_is_said(tmp_path: Path) -> None:
    folder = put(write_dataset(tmp_path, AMHARIC[:2]), metadata__csv="audio,text\nclip0.wav,ሰላም\n")
    imported = import_source(folder)
    assert [row.text for row in imported.rows] == ["ሰላም"]
    assert imported.notes == (
        "Recognised as CSV: metadata.csv.",
        f"It could be read as a text beside each recording ({folder.name}) too. CSV was taken, because metadata.csv "
        "names its recordings itself.",
    )


def test_tables_called_after_splits_are_read_together(tmp_path: Path) -> None:
    tables = {"train__csv": "audio,text\na.wav,one\n", "dev__csv": "audio,text\nb.wav,two\n"}
    rows = import_source(put(clips(tmp_path, "a.wav", "b.wav"), **tables)).rows
    assert sorted((row.text, row.split) for row in rows) == [("one", "train"), ("two", "held_out")]


def test_tables_in_folders_called_after_splits_are_read_together(tmp_path: Path) -> None:
    folder = put(clips(tmp_path, "train/a.wav", "test/a.wav"))
    for name, text in (("train", "one"), ("test", "two")):
        (folder / name / "metadata.csv").write_text(f"file_name,text\na.wav,{text}\n")
    rows = import_source(folder).rows
    assert sorted((row.id, row.text, row.split) for row in rows) == [
        ("test-a", "two", "test"), ("train-a", "one", "train")]


def test_names_from_another_machine_and_ids_that_look_alike(tmp_path: Path) -> None:
    table = "audio,text\n/home/bob/set/wavs/a.wav,one\nwavs\\b.wav,two\nwavs/a b.wav,three\nwavs/a_b.wav,four\n"
    folder = put(clips(tmp_path, *(f"wavs/{name}.wav" for name in ("a", "b", "a b", "a_b"))), metadata__csv=table)
    assert [(row.id, row.text) for row in import_source(folder).rows] == [
        ("a", "one"), ("b", "two"), ("a_b", "three"), ("a_b-2", "four")]


def test_a_gigabyte_that_is_no_table_is_refused_at_once(tmp_path: Path) -> None:
    with open(tmp_path / "metadata.csv", "wb") as file:
        file.write(b"audio,text\n")
        file.truncate(10**9)
    with pytest.raises(UserError, match=r"metadata\.csv, line 2 has more than 1048576 characters"):
        import_source(tmp_path)


def test_a_recording_without_its_text_and_a_text_without_its_recording(tmp_path: Path) -> None:
    folder = put(clips(tmp_path, "talk.wav"))
    with pytest.raises(UserError, match=r"talk\.wav is a recording without a text: no talk\.srt"):
        import_source(folder / "talk.wav")
    put(folder, talk__srt=SRT)
    for name in ("talk.wav", "talk.srt"):
        assert [row.text for row in import_source(folder / name).rows] == ["ሰላም"]
    (folder / "talk.wav").unlink()
    with pytest.raises(UserError, match=r"talk\.srt has times, but the recording"):
        import_source(folder / "talk.srt")
