"""Files that other programs made, as they came (`tests/reference/imports/README.md` says which): each is read whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from data.importers import SourceRow, corpora, import_source
from tests.unit.small_data import write_clip

MADE = Path(__file__).resolve().parents[2] / "reference" / "imports"
Part = tuple[str, float, float | None]


def beside(folder: Path, name: str) -> Path:
    """A folder with the file `name` and a recording of six seconds that it belongs to."""
    shutil.copy(MADE / name, folder / f"film{Path(name).suffix}")
    write_clip(folder / "film.wav", 6.0)
    return folder


def parts(rows: tuple[SourceRow, ...]) -> list[Part]:
    return [(row.text, row.begin_s, row.end_s) for row in rows]


@pytest.mark.parametrize(("name", "form", "wanted"), [
    ("audacity.txt", "Audacity labels", [("ሰላም ለሁሉም ሰው", 0.5, 1.75), ('እንዴት ነህ, "ወንድሜ"?', 2.0, 3.25),
                                         ("5 < 7 & ውሃ", 4.25, 5.125), ("ድምፅ", 5.65, 5.9)]),
    ("pysubs2.srt", "subtitles (SRT)", [("ሰላም ለሁሉም ሰው", 0.5, 1.75), ("እንዴት ነህ", 2.0, 3.25),
                                        ("5 < 7 & ውሃ", 3600.5, 3601.125)]),
    ("pysubs2-tags.srt", "subtitles (SRT)", [("ሰላም ለሁሉም ሰው", 0.5, 1.75), ("እንዴት ነህ", 2.0, 3.25),
                                             ("5 < 7 & ውሃ", 3600.5, 3601.125)]),
    ("pysubs2.vtt", "subtitles (WebVTT)", [("ሰላም ለሁሉም ሰው", 0.5, 1.75), ("እንዴት ነህ", 2.0, 3.25),
                                           ("5 < 7 & ውሃ", 3600.5, 3601.125)]),
    ("webvtt-py.vtt", "subtitles (WebVTT)", [("ሰላም ለሁሉም", 0.5, 1.75), ("እንዴት ነህ ወንድሜ?", 3602.0, 3603.25)]),
    ("srt.srt", "subtitles (SRT)", [("ሰላም ለሁሉም ሰው", 0.5, 1.75), ("እንዴት ነህ ወንድሜ?", 2.0, 3.25)]),
    ("pylrc.lrc", "lyrics (LRC)", [("ሰላም ለሁሉም ሰው", 0.5, 2.0), ("እንዴት ነህ", 2.0, 4.25), ("5 < 7 & ውሃ", 4.25, None)]),
])
def test_what_other_programs_write_beside_a_recording_is_read(
        tmp_path: Path, name: str, form: str, wanted: list[Part]) -> None:
    found = import_source(beside(tmp_path, name), "am")
    assert (found.form, parts(found.rows)) == (form, wanted)


def test_audacitys_point_and_label_without_text_are_named_and_nothing_else(tmp_path: Path) -> None:
    left = [(one.location, one.reason) for one in import_source(beside(tmp_path, "audacity.txt")).skipped]
    assert left == [("film.txt line 3", "marks the point 4 s; label a stretch from begin to end"),
                    ("film.txt line 5", "has no text")]


def test_a_voice_of_webvtt_py_is_the_speaker(tmp_path: Path) -> None:
    assert [row.speaker for row in import_source(beside(tmp_path, "webvtt-py.vtt")).rows] == ["Abebe", "speaker"]


def test_lines_of_lj_speech_are_read_as_they_are_spoken(tmp_path: Path) -> None:
    shutil.copy(MADE / "ljspeech" / "metadata.csv", tmp_path)
    for number in (2, 6, 7, 8):
        write_clip(tmp_path / "wavs" / f"LJ001-{number:04}.wav", 0.5, 200 + number)
    found = import_source(tmp_path)
    assert (found.form, len(found.rows), found.skipped) == ("LJSpeech", 4, ())
    assert found.rows[2].id == "LJ001-0007"
    assert found.rows[2].text.endswith('"forty-two line Bible" of about fourteen fifty-five,')


def test_lines_of_common_voice_are_read_with_their_speakers(tmp_path: Path) -> None:
    shutil.copy(MADE / "common-voice" / "validated.tsv", tmp_path)
    for number in (41479807, 41479816, 41348324, 41396774):
        write_clip(tmp_path / "clips" / f"common_voice_ibb_{number}.mp3.wav", 0.5).rename(
            tmp_path / "clips" / f"common_voice_ibb_{number}.mp3")
    found = import_source(tmp_path)
    assert (found.form, len(found.rows), found.skipped) == ("Common Voice", 4, ())
    assert found.rows[0].text == "Mma kift sitifịns amaadian obo."
    assert len({row.speaker for row in found.rows}) == 3
    assert found.rows[0].speaker == found.rows[1].speaker


def test_a_kaldi_folder_whose_recordings_are_decoded_by_commands_needs_none_of_them(tmp_path: Path) -> None:
    shutil.copytree(MADE / "kaldi", tmp_path, dirs_exist_ok=True)
    for number, name in enumerate(("1272-141231", "174-168635", "1988-24833", "5895-34622")):
        write_clip(tmp_path / "corpus" / f"{name}-0000.flac", 5.0, 200 + number)
    found = import_source(tmp_path)
    assert (found.form, found.skipped) == ("Kaldi", ())
    assert [(row.id, row.end_s, row.audio.name) for row in found.rows][:2] == [
        ("lbi-1272-141231-0000", 4.65, "1272-141231-0000.flac"), ("lbi-174-168635-0000", 4.53, "174-168635-0000.flac")]
    assert found.rows[0].speaker == "lbi-1272-141231"
    assert found.rows[3].text == "WHAT TRUE THINGS ARE TOLD IN STORIES"


@pytest.mark.parametrize(("command", "file"), [
    ("flac -c -d -s a/b.flac |", "a/b.flac"), ("/usr/bin/flac -cds 'a b.flac'|", "a b.flac"),
    ("sox a.mp3 -t wav -r 16k -b 16 - |", "a.mp3"), ("ffmpeg -v 8 -i a.mp3 -f wav -ar 16000 -|", "a.mp3"),
    ("ffmpeg -i a.mp3 -ss 5 -f wav - |", ""), ("sox a.wav -t wav - trim 3 |", ""), ("cat a.wav; rm b |", ""),
    ("sox -r 16000 -b16 -c 1 --null -t wav - synth 174160s sine 300-3300 |", ""), ("flac -c -d 'a.flac |", ""),
    ("flac -c -d --skip=5 a.flac |", ""), ("ffmpeg -i a.mp3 -i b.mp3 -f wav - |", ""),
])
def test_a_command_stands_for_a_file_only_where_it_decodes_and_nothing_else(command: str, file: str) -> None:
    assert corpora.decoded_file(command) == file
