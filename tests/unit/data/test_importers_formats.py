"""Each format: what is written is read, whatever the text; what is broken is named by its place, and ends nothing."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.errors import UserError
from config.foreign import encoding_of, read_text
from data.importers import annotation_files, corpora, subtitles, tables
from data.importers.rows import ParsedItem, ParsedUtterance, SkippedRow
from data.importers.text_files import head, lines

PROPERTY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LETTERS = st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"))
WORDS = st.text(LETTERS, min_size=1, max_size=30).map(lambda text: " ".join(text.split())).filter(bool)
PLAIN = WORDS.map(lambda text: "".join(letter for letter in text if letter not in "<>{}&|\"[]()（）【】♪♫*#")).map(
    lambda text: " ".join(text.split())).filter(lambda text: bool(text) and not text.isdecimal())
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])
ENDS = st.sampled_from(["\n", "\r\n"])
MADE = Path(__file__).resolve().parents[2] / "reference" / "imports"  # by other programs
JUNK = st.one_of(st.binary(max_size=400), st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")))


def taken(found: Iterator[ParsedItem]) -> list[ParsedUtterance]:
    items = list(found)
    assert not [item for item in items if isinstance(item, SkippedRow)]
    return [item for item in items if isinstance(item, ParsedUtterance)]


def skipped(found: Iterator[ParsedItem]) -> list[str]:
    return [f"{item.location}: {item.reason}" for item in found if isinstance(item, SkippedRow)]


def written(folder: Path, name: str, text: str, encoding: str = "utf-8", end: str = "\n") -> Path:
    path = folder / name
    path.write_bytes(text.replace("\n", end).encode(encoding))
    return path


def clock(seconds: float, mark: str) -> str:
    millis = round(seconds * 1000)
    return f"{millis // 3600000:02d}:{millis // 60000 % 60:02d}:{millis // 1000 % 60:02d}{mark}{millis % 1000:03d}"


CUES = st.lists(st.tuples(st.integers(0, 5000), st.integers(100, 5000), PLAIN), min_size=1, max_size=6)


@PROPERTY
@given(texts=st.lists(WORDS, min_size=1, max_size=8), encoding=ENCODINGS, end=ENDS,
       delimiter=st.sampled_from([",", ";", "\t"]), quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_a_quoted_table_gives_back_its_texts(
        tmp_path: Path, texts: list[str], encoding: str, end: str, delimiter: str, quoting: int) -> None:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n")  # type: ignore[arg-type]
    writer.writerows([("audio", "text"), *((f"{index}.wav", text) for index, text in enumerate(texts))])
    path = written(tmp_path, "t.csv", out.getvalue(), encoding, end)
    found = taken(tables.read_table(path))
    assert [item.text for item in found] == texts
    assert [item.audio for item in found] == [f"{index}.wav" for index in range(len(texts))]


@PROPERTY
@given(texts=st.lists(PLAIN, min_size=1, max_size=8), encoding=ENCODINGS, end=ENDS,
       suffix=st.sampled_from(["", ".wav"]))
def test_ljspeech_gives_back_its_texts(tmp_path: Path, texts: list[str], encoding: str, end: str, suffix: str) -> None:
    body = "".join(f"a{index}{suffix}|{text}\n" for index, text in enumerate(texts))
    found = taken(tables.read_ljspeech(written(tmp_path, "metadata.csv", body, encoding, end)))
    assert [(item.audio, item.text) for item in found] == [(f"a{n}{suffix}", text) for n, text in enumerate(texts)]
    headed = taken(tables.read_table(written(tmp_path, "metadata.csv", f"id|transcription\n{body}", encoding, end)))
    assert [(item.id, item.text) for item in headed] == [(item.audio, item.text) for item in found]


@PROPERTY
@given(texts=st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=8), encoding=ENCODINGS,
       indent=st.sampled_from([None, 2]), plain=st.booleans())
def test_json_gives_back_its_texts(
        tmp_path: Path, texts: list[str], encoding: str, indent: int | None, plain: bool) -> None:
    rows = [{"audio": f"{index}.wav", "text": text} for index, text in enumerate(texts)]
    as_lines = "".join(json.dumps(row, ensure_ascii=plain) + "\n" for row in rows)
    as_list = json.dumps(rows, ensure_ascii=plain, indent=indent)
    as_names = json.dumps({row["audio"]: row["text"] for row in rows}, ensure_ascii=plain, indent=indent)
    for reader, content in ((tables.read_json_lines, as_lines), (tables.read_json, as_list),
                            (tables.read_json, as_names),
                            (tables.read_json, json.dumps({"data": rows}))):
        found = taken(reader(written(tmp_path, "t.json", content, encoding)))
        assert [(item.audio, item.text) for item in found] == [(row["audio"], row["text"]) for row in rows]


@PROPERTY
@given(cues=CUES, encoding=ENCODINGS, end=ENDS, mark=st.sampled_from([",", "."]), index=st.booleans(),
       position=st.sampled_from(["", " X1:63 X2:223 Y1:043 Y2:058", " align:start position:0%"]), vtt=st.booleans())
def test_subtitles_give_back_their_cues(tmp_path: Path, cues: list[tuple[int, int, str]], encoding: str, end: str,
                                        mark: str, index: bool, position: str, vtt: bool) -> None:
    body, wanted, at = "WEBVTT\n\n" if vtt else "", [], 0.0
    for number, (gap, length, text) in enumerate(cues, start=1):
        begin_s, end_s = at + gap / 1000, at + (gap + length) / 1000
        body += f"{number}\n" if index else ""
        body += f"{clock(begin_s, mark)} --> {clock(end_s, mark)}{position}\n{text}\n\n"
        wanted.append((round(begin_s, 3), round(end_s, 3), text))
        at = end_s
    found = taken(subtitles.read_subtitles(written(tmp_path, "f.srt", body, encoding, end), "f.mp4"))
    assert [(round(item.begin_s, 3), round(item.end_s or 0, 3), item.text) for item in found] == wanted
    assert {item.audio for item in found} == {"f.mp4"}


@PROPERTY
@given(cues=CUES, comma=st.booleans(), encoding=ENCODINGS)
def test_labels_give_back_their_stretches(
        tmp_path: Path, cues: list[tuple[int, int, str]], comma: bool, encoding: str) -> None:
    body, wanted = "", []
    for begin, length, text in cues:
        times = f"{begin / 1000:.6f}\t{(begin + length) / 1000:.6f}"
        body += f"{times.replace('.', ',') if comma else times}\t{text}\n\\\t100.0\t200.0\n"
        wanted.append((begin / 1000, (begin + length) / 1000, text))
    found = taken(subtitles.read_labels(written(tmp_path, "l.txt", body, encoding), "a.wav"))
    assert [(item.begin_s, item.end_s, item.text) for item in found] == wanted


@PROPERTY
@given(cues=st.lists(st.tuples(st.integers(1, 300), PLAIN), min_size=1, max_size=6), encoding=ENCODINGS)
def test_lyrics_last_until_the_next_line(tmp_path: Path, cues: list[tuple[int, str]], encoding: str) -> None:
    body, at, begins = "[ar:someone]\n", 0, []
    for gap, text in cues:
        at += gap
        begins.append(at / 100)
        body += f"[{at // 6000:02d}:{at // 100 % 60:02d}.{at % 100:02d}]{text}\n"
    found = taken(subtitles.read_lrc(written(tmp_path, "l.lrc", body, encoding), "a.mp3"))
    assert [(round(item.begin_s, 2), item.text) for item in found] == [
        (begin, text) for begin, (_, text) in zip(begins, cues, strict=True)]
    assert [None if item.end_s is None else round(item.end_s, 2) for item in found] == [*begins[1:], None]


@PROPERTY
@given(rows=st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.tuples(WORDS, st.integers(0, 99)),
                            min_size=1, max_size=6), segmented=st.booleans())
def test_kaldi_joins_its_files(tmp_path: Path, rows: dict[str, tuple[str, int]], segmented: bool) -> None:
    written(tmp_path, "text", "".join(f"{name} {text}\n" for name, (text, _) in rows.items()))
    written(tmp_path, "utt2spk", "".join(f"{name} spk{number}\n" for name, (_, number) in rows.items()))
    (tmp_path / "segments").unlink(missing_ok=True)
    if segmented:
        written(tmp_path, "wav.scp", "rec audio/long.wav\n")
        written(tmp_path, "segments", "".join(f"{name} rec {n} {n + 1.5}\n" for name, (_, n) in rows.items()))
    else:
        written(tmp_path, "wav.scp", "".join(f"{name} audio/{name}.wav\n" for name in rows))
    found = taken(corpora.read_kaldi(tmp_path))
    assert [(item.id, item.text, item.speaker) for item in found] == [
        (name, text, f"spk{number}") for name, (text, number) in rows.items()]
    assert [(item.audio, item.begin_s, item.end_s) for item in found] == [
        ("audio/long.wav", number, number + 1.5) if segmented else (f"audio/{name}.wav", 0.0, None)
        for name, (_, number) in rows.items()]


def test_common_voice_takes_what_was_validated_and_leaves_quotes_alone(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    row = 'client_id\tpath\tsentence\tup_votes\nc1\ta.mp3\t"Selam," said\t2\n'
    for name in ("validated.tsv", "train.tsv", "invalidated.tsv"):
        written(tmp_path, name, row)
    paths = corpora.common_voice_tables(tmp_path)
    assert [path.name for path in paths] == ["validated.tsv"]
    (item,) = taken(corpora.read_common_voice(paths))
    assert (item.audio, item.text, item.speaker, item.split) == ("a.mp3", '"Selam," said', "c1", "")
    paths[0].unlink()
    written(tmp_path, "dev.tsv", row)
    assert [(item.split,
             item.text[:6])
            for item in taken(corpora.read_common_voice(corpora.common_voice_tables(tmp_path)))] == [
        ("train", '"Selam'), ("dev", '"Selam')]


def test_broken_blocks_are_reported_by_number(tmp_path: Path) -> None:
    body = ("1\n00:00:01,000 --> 00:00:02,000\ngood\n\n2\n00:00:03 -> soon\nno times\n\n3\n"
            "00:00:05,000 --> 00:00:04,000\nbackwards\n\n00:00:06.500-->00:00:07.5\n<i>no</i> index &amp; no blank\n"
            "5\n00:00:08,0 --> 00:00:09,0\n"
            "{\\an8}after\ntwo lines\n\n6\n00:00:10,000 --> 00:00:11,000\n\n7\n"
            "00:00:12,000 --> 00:00:13,000\n[music]\n")
    items = list(subtitles.read_subtitles(written(tmp_path, "f.srt", body), "f.wav"))
    assert [(item.begin_s, item.text) for item in items if isinstance(item, ParsedUtterance)] == [
        (1.0, "good"), (6.5, "no index & no blank"), (8.0, "after two lines")]
    assert skipped(iter(items)) == [
        "f.srt block 2 (line 5): has no line of times: '00:00:03 -> soon'",
        "f.srt block 3 (line 9): ends at 4 s, not after it begins at 5 s",
        "f.srt block 6 (line 20): has no text",
        "f.srt block 7 (line 23): describes a sound and is not spoken: '[music]'",
    ]


def test_what_ffmpeg_writes_is_read() -> None:
    """Made by ffmpeg 9.0.2 from the subtitle track of an MP4: `ffmpeg -i film.mp4 -map 0:s:0 ffmpeg.EXT`."""
    wanted = [(0.5, 1.75, "ሰላም ለሁሉም ሰው"), (2.0, 3.25, "እንዴት ነህ ወንድሜ?"), (4.0, 5.125, "5 < 7 & ውሃ")]
    for suffix in ("srt", "vtt"):
        found = taken(subtitles.read_subtitles(MADE / f"ffmpeg.{suffix}", "film.mp4"))
        assert [(item.begin_s, item.end_s, item.text) for item in found] == wanted
    found = taken(subtitles.read_lrc(MADE / "ffmpeg.lrc", "film.mp4"))
    assert [(item.begin_s, item.end_s, item.text) for item in found] == [
        (0.5, 2.0, wanted[0][2]), (2.0, 4.0, wanted[1][2]), (4.0, None, wanted[2][2])]


def test_a_voice_in_webvtt_is_a_speaker_and_notes_are_none(tmp_path: Path) -> None:
    body = ("WEBVTT - a title\nKind: captions\n\nNOTE not\nspoken\n\nSTYLE\n::cue {}\n\nintro\n"
            "01:02.003 --> 01:04.000 align:start\n<v.loud Abebe>ሰላም <00:01:03.000><c>ነው</c></v>\n")
    (item,) = taken(subtitles.read_subtitles(written(tmp_path, "f.vtt", body), "f.wav"))
    assert (item.speaker, item.text, item.begin_s, item.end_s) == ("Abebe", "ሰላም ነው", 62.003, 64.0)


def test_a_quote_that_is_never_closed_costs_its_own_line_alone(tmp_path: Path) -> None:
    body = 'audio,text\na.wav,"open\n' + "".join(f"b{n}.wav,text {n}\n" for n in range(40)) + 'c.wav,"two\nlines"\n'
    items = list(tables.read_table(written(tmp_path, "t.csv", body)))
    assert skipped(iter(items)) == ["t.csv line 2: a quote is opened that is never closed"]
    assert [item.text for item in items if isinstance(item, ParsedUtterance)][-2:] == ["text 39", "two\nlines"]


def test_a_list_of_json_goes_on_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    items = list(tables.read_json(written(tmp_path, "t.json",
                                             '[{"audio": "a", "text": "one"}, 7, {"audio": "b", "te')))
    assert [item.text for item in items if isinstance(item, ParsedUtterance)] == ["one"]
    assert skipped(iter(items))[0] == "t.json entry 2: is not a JSON object: '7'"
    assert "t.json entry 3: is not JSON" in skipped(iter(items))[1]


def test_times_in_a_table_are_parts_of_a_recording(tmp_path: Path) -> None:
    body = ("audio_filepath,text,offset,duration\na.wav,one,1.5,2\n", "path,sentence,start,end\na.wav,one,1.5,3.5\n")
    for content in body:
        (item,) = taken(tables.read_table(written(tmp_path, "t.csv", content)))
        assert (item.begin_s, item.end_s) == (1.5, 3.5)
    said = skipped(tables.read_table(written(tmp_path, "t.csv", "path,text,start,end\na.wav,one,now,nan\n")))
    assert said == ["t.csv line 2: 'now' is not a time in seconds, nor of the form H:MM:SS.mmm"]


@pytest.mark.parametrize(("begin", "end", "span"), [
    ("00:00:00.5", "00:00:02", (0.5, 2.0)), ("1:02:03,250", "1:02:04,5", (3723.25, 3724.5)),
    ("01:05", "1:06.5", (65, 66.5)), ("0", "0:01", (0.0, 1.0))])
def test_times_with_colons_are_read(tmp_path: Path, begin: str, end: str, span: tuple[float, float]) -> None:
    body = f'audio,text,start,end\na.wav,one,"{begin}","{end}"\n'
    (item,) = taken(tables.read_table(written(tmp_path, "t.csv", body)))
    assert (item.begin_s, item.end_s) == span


@pytest.mark.parametrize("value", ["1:75:00", "1:2:3:4", ":30", "1:00:61", "-1:00"])
def test_what_is_no_time_is_refused(tmp_path: Path, value: str) -> None:
    (said,) = skipped(tables.read_table(written(tmp_path, "t.csv", f"audio,text,start\na.wav,one,{value}\n")))
    assert "is not a time in seconds" in said


@pytest.mark.parametrize("text", ["=1+1", "+251 911", "-5 degrees", "@home", "'=1", "''=1", "plain", "'Twas", "\tx",
                                  "\uff1d1", "", "'"])
def test_a_table_for_spreadsheets_has_no_formulas_and_reads_back_equal(tmp_path: Path, text: str) -> None:
    cell = tables.safe_cell(text)
    assert tables.given_cell(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\uff1d"))
    body = ",".join(tables.CLIP_COLUMNS) + f',model\na.wav,"{cell}",am,1.0,,,x\n'
    (item,) = taken(tables.read_table(written(tmp_path, "clips.csv", body)))
    assert item.text == text
    (item,) = taken(tables.read_table(written(tmp_path, "other.csv", f'file,text\na.wav,"{cell}"\n')))
    assert item.text == cell  # a table of somebody else is as it is


def test_commands_of_kaldi_are_never_run(tmp_path: Path) -> None:
    written(tmp_path, "wav.scp", f"a touch {tmp_path}/ran |\n")
    written(tmp_path, "text", "a hello\nb lost\n")
    assert skipped(corpora.read_kaldi(tmp_path)) == [
        "text line 1: wav.scp has a command for 'a', and commands are not run; give a file",
        "text line 2: wav.scp has no 'b'"]
    assert not (tmp_path / "ran").exists()


READERS: dict[str, Callable[[Path], Iterator[ParsedItem]]] = {
    "ljspeech": lambda path: tables.read_ljspeech(path) if tables.ljspeech_delimiter(head(path)) else iter(()),
    "table": lambda path: tables.read_table(path) if tables.header_of(head(path)) else iter(()),
    "jsonl": tables.read_json_lines, "json": tables.read_json,
    "subtitles": lambda path: subtitles.read_subtitles(path, "a.wav"),
    "lrc": lambda path: subtitles.read_lrc(path, "a.wav"),
    "textgrid": lambda path: annotation_files.read_textgrid(path, "a.wav"),
    "elan": lambda path: annotation_files.read_elan(path, "a.wav"),
    "json beside": lambda path: annotation_files.read_json(path, "a.wav"),
    "audacity": lambda path: subtitles.read_labels(path, "a.wav"),
}
SEEDS = {
    "ljspeech": b"a|one\nb|two\n", "table": b'audio,text,start,end\na.wav,"o""ne",0,1\n',
    "jsonl": b'{"audio": "a", "text": "b"}\n',
    "json": b'[{"audio": "a", "text": "b"}]', "subtitles": b"1\n00:00:01,000 --> 00:00:02,000 X1:0\n<i>a</i>\n\n",
    "textgrid": b'"ooTextFile" "TextGrid" 0 1 <exists> 1 "IntervalTier" "a" 0 1 1 0 1 "one"', "elan":
    b'<A><TIME_SLOT TIME_SLOT_ID="a" TIME_VALUE="1"/><TIER><ALIGNABLE_ANNOTATION TIME_SLOT_REF1="a"/></TIER></A>',
    "json beside": b'{"segments": [{"start": 1, "end": "2", "text": "one"}], "text": "b"}',
    "lrc": b"[offset:+9]\n[00:01.00]<00:01.00>one\n", "audacity": b"0.1\t0.9\tone\n\\\t1\t2\n",
}


@pytest.mark.parametrize("form", READERS)
@settings(PROPERTY, max_examples=40)
@given(junk=JUNK, at=st.integers(0, 60), cut=st.integers(0, 60), times=st.integers(1, 3))
def test_broken_files_are_told_and_never_crash(
        tmp_path: Path, form: str, junk: bytes, at: int, cut: int, times: int) -> None:
    seed = SEEDS[form] * times
    for number, content in enumerate((junk, seed[:at] + junk + seed[at + cut:], junk + seed)):
        path = tmp_path / f"{form}{number}"
        path.write_bytes(content)
        try:
            found = list(READERS[form](path))
        except UserError as error:
            found = [SkippedRow(error.message, error.hint)]
        for item in found:
            assert isinstance(item, SkippedRow | ParsedUtterance)
            assert item.location
            assert isinstance(item, ParsedUtterance) or item.reason


@PROPERTY
@given(text=st.text(max_size=200).map(lambda text: text.replace("\r", "").replace("\0", "")),
       encoding=ENCODINGS)
def test_lines_are_those_that_were_written(tmp_path: Path, text: str, encoding: str) -> None:
    path = written(tmp_path, "t", text, encoding)
    assert "".join(line for _, line in lines(path)) == text.removeprefix("\ufeff" if encoding == "utf-8" else "")


@PROPERTY
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200), encoding=ENCODINGS)
def test_a_text_is_that_which_was_written(tmp_path: Path, text: str, encoding: str) -> None:
    assert read_text(written(tmp_path, "t", text, encoding)) == text.removeprefix(
        "\ufeff" if encoding == "utf-8" else "")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("dix huîtres".encode("latin-1"))
    os.mkfifo(tmp_path / "pipe")
    for name, reason in {"latin": "can't decode byte 0xee in position 6", "pipe": "no file of text",
                         ".": "no file of text", "none": "No such file"}.items():
        with pytest.raises(UserError, match=reason) as caught:
            read_text(tmp_path / name)
        assert "UTF-8 or UTF-16" in caught.value.hint


def test_utf_16_is_told_without_its_mark() -> None:
    ethiopic = "audio\ttext\nሰላም ነው እንዴት ነህ\tሁሉ ሰው\n" * 3
    assert encoding_of(ethiopic.encode("utf-16-le")) == "utf-16-le"
    assert encoding_of(ethiopic.encode("utf-16-be")) == "utf-16-be"
    assert encoding_of(ethiopic.encode()) == "utf-8-sig"
