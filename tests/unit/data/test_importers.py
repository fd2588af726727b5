"""Every row of a source is taken, or named with the reason why not."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from config.errors import UserError
from data.acoustics import audio
from data.importers import ImportedSource, SourceRow, import_source, rows
from data.importers.rows import RecordingLookup, RecordingNotFound
from tests.unit.small_data import write_clip, write_dataset


def reasons(imported: ImportedSource) -> list[str]:
    return [f"{entry.location}: {entry.reason}" for entry in imported.skipped]


def table(folder: Path, name: str, content: str, clips: tuple[str, ...] = ("a", "b", "c")) -> ImportedSource:
    for index, clip in enumerate(clips):
        write_clip(folder / "wavs" / f"{clip}.wav", pitch=200 + 20 * index)
    (folder / name).write_bytes(content.encode("utf-8"))
    return import_source(folder)


def test_folder_of_audio_and_texts(tmp_path: Path) -> None:
    write_dataset(tmp_path, ("ሰላም ነው", "እሺ"))
    write_clip(tmp_path / "lonely.wav")
    (tmp_path / "silent.txt").write_text("no recording")
    imported = import_source(tmp_path)
    assert [(row.id, row.text) for row in imported.rows] == [("clip0", "ሰላም ነው"), ("clip1", "እሺ")]
    assert reasons(imported) == ["lonely.wav: there is no lonely.txt beside it",
                                 "silent.txt: there is no recording of the same name beside it"]


def test_folder_without_audio(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(UserError, match="is a dataset without audio"):
        import_source(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no dataset at"):
        import_source(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["%PDF-1.4 secret", "root:secret:0:0", "secret\nlines\n"])
@pytest.mark.parametrize("name", ["document", "passwd", "notes.txt"])
def test_a_file_that_is_no_table_is_not_quoted(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=f"{name} is no table of audio and text") as caught:
        import_source(tmp_path / name)
    assert "secret" not in caught.value.message
    assert len(caught.value.hint) < 200


def test_a_pdf_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "doc.pdf").write_bytes(b"%PDF-1.4\n\x93\x8c\n")
    with pytest.raises(UserError, match=r"doc\.pdf is a PDF document, which Lisan does not read"):
        import_source(tmp_path / "doc.pdf")


def test_ljspeech_takes_the_spelled_out_text(tmp_path: Path) -> None:
    imported = table(tmp_path, "metadata.csv", "a|It is 3.|It is three.\nb|Yes|\n")
    assert [(row.id, row.text) for row in imported.rows] == [("a", "It is three."), ("b", "Yes")]


def test_bar_in_a_text_is_named_with_its_line(tmp_path: Path) -> None:
    imported = table(tmp_path, "metadata.csv", "a|one\nb|two | or more\nc|three\n")
    assert [row.id for row in imported.rows] == ["a", "c"]
    assert reasons(imported) == [
        "metadata.csv line 2: 3 fields instead of 2; is a | in the text, or one missing?"]


def test_bar_in_a_quoted_comma_table_is_text(tmp_path: Path) -> None:
    imported = table(tmp_path, "metadata.csv", 'audio,text\na.wav,"one | two, three"\n')
    assert imported.rows[0].text == "one | two, three"


@pytest.mark.parametrize(("name", "content"), [
    ("metadata.csv", "\ufeffaudio,text\r\na.wav,one\r\n"),
    ("metadata.csv", "\ufeffa|one\n"),
    ("metadata.tsv", "\ufeffpath\tsentence\na\tone\n"),
    ("metadata.jsonl", '\ufeff{"audio": "wavs/a.wav", "text": "one"}\n'),
])
def test_byte_order_mark_is_no_part_of_the_first_cell(tmp_path: Path, name: str, content: str) -> None:
    imported = table(tmp_path, name, content)
    assert [(row.id, row.text) for row in imported.rows] == [("a", "one")]
    assert not imported.skipped


def test_missing_index_missing_audio_and_unknown_split_are_named(tmp_path: Path) -> None:
    content = "audio,text,split\n,one,\nz.wav,two,\na.wav,three,later\nb.wav,four,dev\n"
    imported = table(tmp_path, "metadata.csv", content)
    assert [(row.id, row.split) for row in imported.rows] == [("b", "held_out")]
    first, second, third = reasons(imported)
    assert first == "metadata.csv line 2: no audio is named (missing index)"
    assert second.startswith("metadata.csv line 3: the audio 'z.wav' is not in ")
    assert third.startswith("metadata.csv line 4: the split 'later' is not one of train")


def test_duplicated_id_is_named_with_both_lines(tmp_path: Path) -> None:
    imported = table(tmp_path, "metadata.jsonl",
                     '{"id": "x", "audio": "a.wav", "text": "one"}\n\n{"id": "x", "audio": "b.wav", "text": "two"}\n')
    assert [row.text for row in imported.rows] == ["one"]
    assert reasons(imported) == ["metadata.jsonl line 3: the id 'x' was already used at metadata.jsonl line 1"]


def test_line_separators_inside_a_text_do_not_split_a_row(tmp_path: Path) -> None:
    imported = table(tmp_path, "metadata.csv", "audio,text\na.wav,one\u2028two\n")
    assert [row.text for row in imported.rows] == ["one\u2028two"]


def test_broken_json_line_has_its_number(tmp_path: Path) -> None:
    imported = table(tmp_path, "metadata.jsonl", '{"audio": "a.wav", "text": "one"}\n{"audio": \n')
    assert [row.text for row in imported.rows] == ["one"]
    assert reasons(imported)[0].startswith("metadata.jsonl line 2: is not JSON: Expecting value")


def test_table_without_columns_says_what_it_wants(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no column for audio and text") as caught:
        table(tmp_path, "metadata.csv", "clip,words\na,one\n")
    assert "audio and text" in caught.value.hint


def test_other_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_bytes("audio,text\na,été\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"is not UTF-8: byte 13 is 0xe9"):
        import_source(tmp_path)


@pytest.mark.parametrize(("name", "content", "message", "hint"), [
    ("list.csv", "audio,text\na.wav,été\n".encode("latin-1"), "list.csv is not UTF-8: byte 17 is 0xe9", "CSV UTF-8"),
    ("list.csv", b"sound,words\na.wav,one\n", "list.csv, line 1 names no column for audio and text", "Write a header"),
    ("list.csv", b"audio,text\nx.wav,one\n", "list.csv names no recording that is in .*, such as 'x.wav'", "under the"),
    ("list.jsonl", b'{"audio": "x.wav", "text": "one"}\n', "list.jsonl names no recording", "under the"),
])
def test_a_table_that_cannot_be_used_is_what_a_folder_is_told_of(tmp_path: Path, name: str, content: bytes,
                                                                 message: str, hint: str) -> None:
    write_clip(tmp_path / "a.wav")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        import_source(tmp_path)
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", ["metadata.csv", "list.csv", "texts.txt"])
@pytest.mark.parametrize("content", [
    'a.wav,one\nb,"two, or more"\nc.wav,three, four\n', 'a;one\nb;"two, or more"\nc;x;y\n'])
def test_two_columns_need_no_header_where_the_first_names_recordings(tmp_path: Path, name: str, content: str) -> None:
    imported = table(tmp_path, name, content)
    assert [(row.id, row.text) for row in imported.rows] == [("a", "one"), ("b", "two, or more")]
    assert reasons(imported)[0].startswith(f"{name} line 3: 3 fields instead of 2")
    assert imported.form == "CSV without a header"
    assert [row.text for row in import_source(tmp_path / name).rows] == ["one", "two, or more"]


def test_ids_become_file_names(tmp_path: Path) -> None:
    imported = table(tmp_path, "metadata.jsonl", '{"id": "../../x y", "audio": "a.wav", "text": "one"}\n')
    assert imported.rows[0].id == "_.._x_y"


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        folder = tmp_path / str(count)
        write_clip(folder / "a.wav")
        with open(folder / "metadata.csv", "w", encoding="utf-8") as file:
            file.write("audio,text,start,end\n")
            file.writelines(f"a.wav,ሰላም {index},{index / 100},{index / 100 + 1}\n" for index in range(count))
        tracemalloc.start()
        try:
            assert sum(isinstance(entry, SourceRow) for entry in import_source(folder)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few = peak(3000)  # as many as are looked at to tell what the file is
    assert peak(3600) < few + 100_000  # bytes; 600 rows in memory would be more than 400,000


@pytest.mark.parametrize(("name", "most"), [("x.wav", 2), ("x", 2 * 30), ("from/elsewhere/x.wav", 6)])
def test_a_recording_that_is_missing_costs_few_looks_at_the_disk(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    (tmp_path / "wavs").mkdir()
    looked: list[str] = []

    def isfile(path: str | Path) -> bool:
        looked.append(str(path))
        return False

    monkeypatch.setattr("os.path.isfile", isfile)
    with pytest.raises(RecordingNotFound):
        RecordingLookup(tmp_path).find(name)
    assert len(looked) <= most
    assert {str(tmp_path / name), str(tmp_path / "wavs" / name)} <= {str(Path(path)) for path in looked}


def test_librispeech_names_its_readers_and_splits(tmp_path: Path) -> None:
    for split, reader, chapter in (("train-clean-100", "84", "121"), ("dev-clean", "1272", "128")):
        folder = tmp_path / split / reader / chapter
        for number in range(2):
            write_clip(folder / f"{reader}-{chapter}-{number:04}.flac")
        lines = [f"{reader}-{chapter}-{number:04} WORDS OF {number}" for number in range(3)]
        (folder / f"{reader}-{chapter}.trans.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = import_source(tmp_path)
    assert found.form == "LibriSpeech"
    assert [(row.id, row.text, row.speaker, row.split) for row in found.rows] == [
        ("1272-128-0000", "WORDS OF 0", "1272", "held_out"), ("1272-128-0001", "WORDS OF 1", "1272", "held_out"),
        ("84-121-0000", "WORDS OF 0", "84", "train"), ("84-121-0001", "WORDS OF 1", "84", "train")]
    assert [one.reason for one in found.skipped] == [
        "there is no recording 1272-128-0002 beside it", "there is no recording 84-121-0002 beside it"]


def test_folders_of_several_recordings_are_taken_for_speakers(tmp_path: Path) -> None:
    for speaker in ("abebe", "sara"):
        for number in range(2):
            write_clip(tmp_path / speaker / f"{number}.wav")
            (tmp_path / speaker / f"{number}.txt").write_text("ሰላም", encoding="utf-8")
    found = import_source(tmp_path)
    assert [(row.id, row.speaker) for row in found.rows] == [
        ("abebe-0", "abebe"), ("abebe-1", "abebe"), ("sara-0", "sara"), ("sara-1", "sara")]
    assert "whose 2 folders are taken for speakers" in found.notes[0]
    write_clip(tmp_path / "alone.wav")
    (tmp_path / "alone.txt").write_text("ሰላም", encoding="utf-8")
    assert len({row.speaker for row in import_source(tmp_path).rows}) == 1


def test_an_unreadable_recording_is_named_with_one_full_stop(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"no sound at all")
    with pytest.raises(UserError) as caught:
        audio.read(tmp_path / "a.wav")
    assert caught.value.message.endswith("recognised.")


SENTENCES = ("It was a bright cold day in April.", "The clocks were striking thirteen.", "He went up the stairs.",
             "There was nobody in the hall.")


@pytest.mark.parametrize(("lines", "wanted"), [
    ("a.wav|{0}|Anna\nb.wav|{1}|Anna\nc.wav|{2}|Bert\n", [("Anna", 0), ("Anna", 1), ("Bert", 2)]),  # StyleTTS2
    ("a|Anna|{0}\nb|Anna|{1}\nc|Bert|{2}\n", [("Anna", 0), ("Anna", 1), ("Bert", 2)]),  # Piper with speakers
    ("a|Anna|{0}\nb|Anna|{1}\n", [("Anna", 0), ("Anna", 1)]),
    ("a\tAnna\t{0}\nb\tAnna\t{1}\nc\tBert\t{2}\n", [("Anna", 0), ("Anna", 1), ("Bert", 2)]),
    ("wavs/a.wav|anna|EN|{0}\nwavs/b.wav|anna|EN|{1}\nwavs/c.wav|bert|EN|{2}\n",
     [("anna", 0), ("anna", 1), ("bert", 2)]),  # GPT-SoVITS and Bert-VITS2
])
def test_a_name_in_a_list_is_a_speaker_and_never_a_text(tmp_path: Path, lines: str, wanted: list) -> None:
    imported = table(tmp_path, "metadata.csv", lines.format(*SENTENCES))
    assert [(row.speaker, row.text) for row in imported.rows] == [(name, SENTENCES[at]) for name, at in wanted]
    assert "is taken for the speaker ('" in imported.notes[0]


@pytest.mark.parametrize("third", [("1.25", "2.50", "1.25"), ("happy", "sad", "happy"), ("F", "M", "F")])
def test_seconds_emotions_and_genders_are_no_speakers(tmp_path: Path, third: tuple[str, str, str]) -> None:
    lines = "".join(f"{name}|{text}|{value}\n" for name, text, value in zip("abc", SENTENCES, third, strict=False))
    imported = table(tmp_path, "metadata.csv", lines)
    assert [(row.text, row.speaker) for row in imported.rows] == [(text, "speaker") for text in SENTENCES[:3]]


@pytest.mark.parametrize("lines", [
    "a|{0}|Anna\nb|{1}|Bert\nc|{2}|Carl\n",  # one line each: nothing tells a name from a text
    "a|{0}|{3}\nb|{1}|{2}\nc|{2}|{1}\n",  # a translation, say
    "a|yes|Anna\nb|no|Bert\nc|yes|Anna\n",  # commands: either could be the name
    "a|{0}|Anna\n", "a|{0}|happy|Anna\nb|{1}|sad|Anna\nc|{2}|happy|Bert\n",
])
def test_a_list_whose_columns_cannot_be_told_is_refused(tmp_path: Path, lines: str) -> None:
    with pytest.raises(UserError, match="fields a line, and ") as caught:
        table(tmp_path, "metadata.csv", lines.format(*SENTENCES))
    assert "Put a header" in caught.value.hint


NUMBERED = [*SENTENCES, "Yes.", "All the windows were dark that night.", "No.", "She closed the door and left."]
IPA = ("ðɪ ˌoʊvɚwˈɛlmɪŋ mədʒˈɔːɹᵻɾi", "wˌɪtʃ hiː kˈɛpt kənsˈiːld", "æt lˈæst , ɪnðə twˈɛntiəθ mˈʌnθ")


def listed(folder: Path, form: str, values: Sequence[str], texts: Sequence[str]) -> ImportedSource:
    """A list whose lines have the `form`, with a recording for each."""
    lines = [form.format(name=f"a{number}", value=value, text=text)
             for number, (value, text) in enumerate(zip(values, texts, strict=False))]
    for line in lines:
        path = folder / line.split("|")[0]
        write_clip(path if path.suffix else path.with_name(f"{path.name}.wav"))
    (folder / "list.txt").write_text("\n".join(lines), encoding="utf-8")
    return import_source(folder)


@pytest.mark.parametrize(("form", "values", "column"), [
    ("{name}|{value}|{text}", ("3200", "2800", "1999"), 2),  # milliseconds
    ("{name}.wav|{value}|{text}", ("0", "1", "2"), 2),  # an index
    ("{name}.wav|{value}|{text}", ("0", "1", "2", "3", "0", "1", "2", "3"), 2),  # an index in a chapter
    ("{name}.wav|{value}|{text}", ("4", "4", "3", "3", "1", "4", "1", "3"), 2),  # seconds
    ("{name}|{value}|{text}", ("1", "1", "2"), 2), ("{name}|{text}|{value}", ("0", "1", "0"), 3),
    ("{name}|{text}|{value}", ("ig", "yo", "ig"), 3), ("{name}|{text}|{value}", ("Igbo", "Yoruba", "Igbo"), 3),
    ("{name}.wav|{text}|{value}", ("5", "4", "5"), 3),  # votes
    ("{name}|{text}|{value}", ("Anna", "Bert", "Anna"), 3), ("{name}|{value}", ("3200", "2800", "1999"), 2),
])
def test_a_column_that_may_be_something_else_is_no_speaker_and_is_shown(
        tmp_path: Path, form: str, values: tuple[str, ...], column: int) -> None:
    with pytest.raises(UserError, match=f"column {column} '{values[0]}'") as caught:
        listed(tmp_path, form, values, NUMBERED)
    header = caught.value.hint.partition("Put a header above them: ")[2].split(" where")[0].rstrip(".")
    table = (tmp_path / "list.txt").read_text(encoding="utf-8")
    (tmp_path / "list.txt").write_text(f"{header}\n{table}", encoding="utf-8")  # as the hint says
    assert len(import_source(tmp_path).rows) == len(values)


@pytest.mark.parametrize(("form", "values", "speakers"), [
    ("w/{name}.wav|{value}|{text}", ("0", "0", "1"), ["speaker-0", "speaker-0", "speaker-1"]),  # VITS
    ("{name}.wav|{text}|{value}", ("0", "1", "0"), ["speaker-0", "speaker-1", "speaker-0"]),  # StyleTTS2
    ("{value}_{name}|{text}|{value}", ("p225", "p226", "p225"), ["p225", "p226", "p225"]),
    ("{name}|{value}|{text}", ("Anna", "Bert", "Anna"), ["Anna", "Bert", "Anna"]),  # Piper
    ("{name}|LJSpeech|{{{{HH AH0 L OW1}}}}|{text}", ("", "", ""), ["LJSpeech"] * 3),  # FastSpeech 2
    ("{name}|{text}|{value}", ("train", "train", "train"), ["speaker"] * 3),
    ("{name}|{text}|{value}", ("ig", "ig", "ig"), ["speaker"] * 3),
    ("{name}|{value}|{text}", ("1.25", "2", "00:00:03.5"), ["speaker"] * 3),
    ("{name}|{text}|{value}", ("32.5", "-1", "28"), ["speaker"] * 3),  # decibels
    ("{name}|{text}|{value}", IPA, ["speaker"] * 3),
])
def test_a_speaker_has_evidence_and_other_columns_are_named(tmp_path: Path, form: str, values: tuple[str, ...],
                                                            speakers: list[str]) -> None:
    imported = listed(tmp_path, form, values, SENTENCES)
    assert sorted((row.text, row.speaker, row.split) for row in imported.rows) == sorted(
        (text, speaker, "") for text, speaker in zip(SENTENCES, speakers, strict=False))
    assert "is taken for the speaker" in imported.notes[0] or "is not used" in imported.notes[0]


def test_a_column_of_splits_is_the_split(tmp_path: Path) -> None:
    imported = listed(tmp_path, "{name}|{text}|{value}", ("train.clean.100", "dev-other", "train"), SENTENCES)
    assert [(row.speaker, row.split) for row in imported.rows] == [
        ("speaker", "train"), ("speaker", "held_out"), ("speaker", "train")]
    assert "column 3 is taken for the split" in imported.notes[0]


@pytest.mark.parametrize("form", ["{name}.wav|{text}|0", "{name}|{text}", "{name}.wav|{text}|{value}"])
def test_phonemes_are_no_text(tmp_path: Path, form: str) -> None:
    with pytest.raises(UserError, match=r"column 2 holds phonemes \(IPA\) instead of text") as caught:
        listed(tmp_path, form, ("0", "1", "0"), IPA)
    assert "texts as they are written" in caught.value.hint


def test_phonemes_under_a_header_are_named(tmp_path: Path) -> None:
    imported = table(tmp_path, "list.csv", f"audio|text\na|{IPA[0]}\nb|{IPA[1]}\n")
    assert [row.text for row in imported.rows] == list(IPA[:2])
    assert "Its texts are phonemes (IPA), such as 'ðɪ" in imported.notes[-1]
    assert len(table(tmp_path, "list.csv", "audio|text\na|one\nb|two\n").notes) == 1


@pytest.mark.parametrize(("texts", "wanted"), [
    (IPA, "phonemes (IPA)"), (["HH AH0 L OW1 sp", "W ER1 L D"], "phones (ARPAbet)"),
    (["ka2 er2 pu3", "guang3 zhou1"], "pinyin"), (["k o N n i ch i w a"], "phones"),
    (["Mede aseda ma Awurade ɛno ara", "Ŋutsu sia ƒo nu kplim", "Ƙasar ɗaya ɓera"], ""),  # Twi, Ewe, Hausa
    (["ɨ̀ ndó ŋgʉ́", "bɑ́ɑ ŋkà"], ""),  # of Cameroon
    (SENTENCES, ""), (["I AM ON TV", "GO TO 2"], ""), (["a b c"], ""), ([], ""),
])
def test_orthographies_are_told_from_phonemes(texts: Sequence[str], wanted: str) -> None:
    assert rows.notation_of(texts) == wanted


def test_splits_with_more_in_their_names_are_no_speakers(tmp_path: Path) -> None:
    for split in ("train-clean-100", "dev-clean"):
        for number in range(2):
            write_clip(tmp_path / split / f"{split}{number}.wav", pitch=200 + number)
            (tmp_path / split / f"{split}{number}.txt").write_text("ሰላም", encoding="utf-8")
    assert [(row.speaker, row.split) for row in import_source(tmp_path).rows] == [
        ("speaker", "held_out"), ("speaker", "held_out"), ("speaker", "train"), ("speaker", "train")]


@pytest.mark.parametrize(("columns", "span"), [
    ({"onset": "1.5", "offset": "2.25"}, (1.5, 2.25)), ({"start_ms": "250", "end_ms": 1188}, (0.25, 1.188)),
    ({"from": "0.5", "to": "2"}, (0.5, 2.0)), ({"timestamp": [0.5, 2.5]}, (0.5, 2.5)),
    ({"from": "Addis", "to": "Adama"}, (0.0, None)), ({"timestamp": "2024-01-01"}, (0.0, None)),
    ({"offset": "1.5", "duration": "2"}, (1.5, 3.5))])
def test_times_are_read_by_the_names_that_other_tools_give_them(
        columns: dict[str, object], span: tuple[float, float | None]) -> None:
    assert rows.span_of(rows.standard_values({"audio": "a.wav", "text": "ሰላም", **columns})) == span


@pytest.mark.parametrize("columns", [{"start_sample": "0", "end_sample": "19008"}, {"begin_frame": 3}])
def test_times_in_samples_or_frames_are_refused(columns: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is not a time in seconds"):
        rows.span_of(rows.standard_values({"audio": "a.wav", "text": "ሰላም", **columns}))
