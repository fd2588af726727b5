"""The folder layouts of Kaldi, LibriSpeech and Common Voice; more are in `public_corpora`.

Kaldi (https://kaldi-asr.org/doc/data_prep.html): `wav.scp`, `text`, and optionally `segments` and `utt2spk`. Commands
in `wav.scp` (lines that end in a bar) are never run; one that only decodes a file, as in LibriSpeech's recipe, stands
for that file.
LibriSpeech (Panayotov et al. 2015): `READER/CHAPTER/READER-CHAPTER.trans.txt`, one recording a line, its name and its
text.
Mozilla Common Voice: `validated.tsv` beside `clips/`, without quoting: a quotation mark at the start of a sentence
belongs to it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from data.disk_collections import DiskDict
from data.importers import sidecars, tables, text_files
from data.importers.rows import ParsedItem, ParsedUtterance, SkippedRow, is_audio, split_of_folders, standard_values

_FORMAT = {"-t": True, "-r": True, "-b": True, "-e": True, "-c": True}
_DECODERS: dict[str, dict[str, bool]] = {  # options that do not change the sound, and whether a value follows
    "flac": {"-c": False, "-d": False, "-s": False, "-cd": False, "-cds": False, "-dcs": False, "-sdc": False,
             "--decode": False, "--stdout": False, "--silent": False},
    "sox": _FORMAT,
    "ffmpeg": {"-i": True, "-f": True, "-ar": True, "-ab": True, "-ac": True, "-acodec": True, "-v": True,
               "-loglevel": True, "-nostdin": False, "-vn": False},
}
TRANSCRIPT_SUFFIX = ".trans.txt"
_TABLES = ("validated.tsv", "train.tsv", "dev.tsv", "test.tsv")
_REQUIRED_COLUMNS = {"client_id", "path", "sentence"}


def is_kaldi(folder: Path) -> bool:
    return (folder / "wav.scp").is_file() and (folder / "text").is_file()


def read_kaldi(folder: Path) -> Iterator[ParsedItem]:
    """The utterances that `text` names."""
    with DiskDict() as recordings, DiskDict() as speakers, DiskDict() as segments:
        _store(folder / "wav.scp", recordings)
        _store(folder / "utt2spk", speakers)
        has_segments = _store(folder / "segments", segments)
        for number, line in text_files.lines(folder / "text"):
            if not line.strip():
                continue
            name, _, words = line.strip().replace("\t", " ").partition(" ")
            location = f"text line {number}"
            # Without `segments`, an utterance is a whole recording.
            span = segments.get(name) if has_segments else name
            if span is None:
                yield SkippedRow(location, f"segments has no {name[:60]!r}")
                continue
            yield _utterance(location, name, words, span.split(), recordings, speakers.get(name) or "")


def _utterance(location: str, name: str, words: str, span: list[str], recordings: DiskDict, speaker: str) -> ParsedItem:
    """`span` is a recording's name, then perhaps begin and end."""
    begin_s, end_s = 0.0, None
    if len(span) not in (1, 3):
        return SkippedRow(location, f"segments has {' '.join(span)[:60]!r} for {name[:60]!r}, not a recording, begin "
                          "and end")

    if len(span) == 3:
        try:
            begin_s, end_s = float(span[1]), float(span[2])
        except ValueError:
            return SkippedRow(location, f"segments has {' '.join(span[1:])[:60]!r} for {name[:60]!r}, which are not "
                              "seconds")
        end_s = None if end_s < 0 else end_s  # -1 is the end of the recording

    # Only files are read: commands are not run, unless they merely decode a file.
    path = recordings.get(span[0])
    if path is None:
        return SkippedRow(location, f"wav.scp has no {span[0][:60]!r}")
    if path.endswith("|"):
        path = decoded_file(path)
    if re.search(r"\.ark:\d+$", path):
        return SkippedRow(location, f"wav.scp has a place in an archive of Kaldi for {span[0][:60]!r}, {path[-60:]!r}; "
                          "write its recordings as sound files")
    if not path:
        return SkippedRow(location, f"wav.scp has a command for {span[0][:60]!r}, and commands are not run; give a "
                          "file")
    return ParsedUtterance(location, path, words.strip(), name, speaker, begin_s=begin_s, end_s=end_s)


def decoded_file(command: str) -> str:
    """The file that a command of `wav.scp` decodes and does nothing else to; empty for any other command.

    `flac -c -d -s FILE |`, and `sox FILE -t wav - |` or `ffmpeg -i FILE -f wav - |`, which may change rate and format.
    """
    try:
        program, *words = shlex.split(command.strip().removesuffix("|"))
    except ValueError:
        return ""
    takes = _DECODERS.get(Path(program).name)
    if takes is None:
        return ""

    # Options of the decoder are skipped with their values; one file must remain.
    files, arguments = [], iter(words)
    for word in arguments:
        if word.startswith("-") and word != "-":
            if word not in takes or (takes[word] and next(arguments, None) is None):
                return ""
        elif word != "-":
            files.append(word)
    # The input of ffmpeg follows `-i`; its other words are options or the output.
    if Path(program).name == "ffmpeg":
        return words[words.index("-i") + 1] if words.count("-i") == 1 and not files else ""
    return files[0] if len(files) == 1 else ""


def _store(path: Path, target: DiskDict) -> bool:
    """Store the remainder of each line under its first word; False without such a file."""
    if not path.is_file():
        return False
    for _, line in text_files.lines(path):
        name, _, value = line.strip().replace("\t", " ").partition(" ")
        if name:
            target.put(name, value.strip())
    return True


def librispeech_transcripts(folder: Path) -> list[Path]:
    """The transcripts below `folder`, one a chapter, in order."""
    transcripts: list[Path] = []
    for place, names in sidecars.walk_folders(folder):
        transcripts += [place / name for name in names if name.lower().endswith(TRANSCRIPT_SUFFIX)]
    return transcripts


def read_librispeech(folder: Path, transcripts: list[Path]) -> Iterator[ParsedItem]:
    """The utterances of `transcripts` with their readers, and their splits if one of these is for training."""
    sides = {path: split_of_folders(path.relative_to(folder).parts[:-1]) for path in transcripts}
    # Splits count only if one of them is for training.
    named = "train" in sides.values() and len(set(sides.values())) > 1
    for path in transcripts:
        by_stem = {Path(name.name).stem: name for name in sorted(path.parent.iterdir()) if is_audio(name.name)}
        place = path.relative_to(folder)
        # The reader is the start of the transcript's name, if a folder has that name too; else the folder's name.
        name_start = place.name.partition("-")[0]
        reader = name_start if name_start in place.parts[:-1] else place.parent.name or name_start
        for number, line in text_files.lines(path):
            location = f"{place}:{number}"
            name, _, words = line.strip().partition(" ")
            if not name:
                continue
            if name not in by_stem:
                yield SkippedRow(location, f"there is no recording {name} beside it")
            elif not words.strip():
                yield SkippedRow(location, f"{name} has no text")
            else:
                yield ParsedUtterance(location, str(by_stem[name].relative_to(folder)), words.strip(), name, reader,
                                      sides[path] if named else "")


def common_voice_tables(folder: Path) -> list[Path]:
    """The tables to read: the validated one, else the splits. Empty for another format."""
    if not (folder / "clips").is_dir():
        return []
    tables = [folder / name for name in _TABLES if _fits(folder / name)]
    return tables[:1] if tables and tables[0].name == _TABLES[0] else tables


def _fits(path: Path) -> bool:
    header = tables.header_of(text_files.head(path)) if path.is_file() else None
    return header is not None and header[0] == "\t" and set(header[1]) >= _REQUIRED_COLUMNS


def read_common_voice(paths: list[Path]) -> Iterator[ParsedItem]:
    """Every clip of the tables, with its split if the tables are splits."""
    for path in paths:
        split = "" if path.name == _TABLES[0] else path.stem
        header = tables.header_of(text_files.head(path))
        assert header is not None
        for row in tables.table_rows(path, "\t", False, len(header[1]), header=True):
            if isinstance(row, SkippedRow):
                yield row
            else:
                values = dict(zip(header[1], row[1], strict=True))
                yield ParsedUtterance(row[0], values["path"], values["sentence"], speaker=values["client_id"],
                                      split=split, language=standard_values(values).get("language", ""))
