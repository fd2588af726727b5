"""From people's files to rows: a folder of audio and texts, a table, or JSON lines.

Nothing is lost in silence: every row that cannot be used becomes a `Skipped` with its place
and the reason. Texts are kept as given; normalising is the front-end's business.

Forms: a folder of recordings with a text file of the same name beside each; a table with a
header (CSV, TSV; `|` or `;` as well) whose columns are named as in `COLUMNS`; LJSpeech's
`metadata.csv` (id|text or id|text|normalised text, audio in `wavs/`); JSON lines.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from config.errors import UserError
from data.manifest import HELD_OUT, TRAIN, read_json_lines, read_text

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3")
AUDIO_FOLDERS = ("", "wavs", "audio", "clips")
TABLES = ("manifest.jsonl", "metadata.jsonl", "metadata.csv", "metadata.tsv", "metadata.txt")
COLUMNS = {
    "audio": ("audio", "audio_path", "audio_file", "path", "file", "file_name", "filename", "wav"),
    "text": ("text", "sentence", "transcript", "transcription"),
    "id": ("id", "utterance_id", "index"),
    "speaker": ("speaker", "speaker_id", "client_id"),
    "split": ("split", "set", "subset"),
}
SPLIT_NAMES = {
    "train": TRAIN, "training": TRAIN, "held_out": HELD_OUT, "held-out": HELD_OUT, "heldout": HELD_OUT,
    "test": HELD_OUT, "validation": HELD_OUT, "valid": HELD_OUT, "dev": HELD_OUT, "val": HELD_OUT, "eval": HELD_OUT,
}
_DEFAULT_SPEAKER = "speaker"


@dataclass(frozen=True)
class Row:
    """A recording and its text, where they came from, and what the source said about them."""

    id: str
    audio: Path
    text: str
    where: str
    speaker: str = _DEFAULT_SPEAKER
    split: str = ""  # empty where the source names none


@dataclass(frozen=True)
class Skipped:
    """A row that was not taken, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class Imported:
    """All rows of a source: each is in one of the two."""

    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]


@dataclass
class _Taker:
    """Collects rows, and says no where something is missing or used twice."""

    folder: Path
    rows: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)  # id -> where

    def skip(self, where: str, reason: str) -> None:
        self.skipped.append(Skipped(where, reason))

    def take(self, where: str, values: Mapping[str, str]) -> None:
        """One row by the names in COLUMNS."""
        name = values.get("audio", "").strip() or values.get("id", "").strip()
        if not name:
            return self.skip(where, "no audio is named (missing index)")
        path = _find_audio(self.folder, name)
        if path is None:
            return self.skip(where, f"the audio {name[:60]!r} is not in {self.folder}")
        split = values.get("split", "").strip().lower()
        if split and split not in SPLIT_NAMES:
            return self.skip(where, f"the split {split!r} is not one of {', '.join(SPLIT_NAMES)}")
        row_id = _safe_id(values.get("id", "").strip() or _relative_stem(path, self.folder))
        if row_id in self.seen:
            return self.skip(where, f"the id {row_id!r} was already used at {self.seen[row_id]}")
        self.seen[row_id] = where
        speaker = values.get("speaker", "").strip() or _DEFAULT_SPEAKER
        self.rows.append(Row(row_id, path, values.get("text", "").strip(), where, speaker, SPLIT_NAMES.get(split, "")))
        return None


def import_source(source: Path) -> Imported:
    """Read a folder or a table; raises `UserError` when there is nothing that could be a dataset."""
    if source.is_dir():
        for name in TABLES:
            if (source / name).is_file():
                return _import_table(source / name)
        return _import_folder(source)
    if source.is_file():
        return _import_table(source)
    raise UserError(f"There is no dataset at {source}.", "Give a folder of recordings with texts, or a table of them.")


def _import_folder(folder: Path) -> Imported:
    """Recordings with a text of the same name; subfolders included."""
    taker = _Taker(folder)
    recordings = sorted(path for path in folder.rglob("*") if path.suffix.lower() in AUDIO_SUFFIXES)
    if not recordings:
        raise UserError(
            f"{folder} is a dataset without audio: no {', '.join(AUDIO_SUFFIXES)} file in it.",
            "Put recordings there, each with a text file of the same name, or give a table such as metadata.csv.",
        )
    for path in recordings:
        where = str(path.relative_to(folder))
        transcript = path.with_suffix(".txt")
        if not transcript.is_file():
            taker.skip(where, f"there is no {transcript.name} beside it")
        else:
            taker.take(where, {"audio": where, "text": " ".join(read_text(transcript).split())})
    spoken = {path.with_suffix(".txt") for path in recordings}
    for path in sorted(set(folder.rglob("*.txt")) - spoken):
        taker.skip(str(path.relative_to(folder)), "there is no recording of the same name beside it")
    return Imported(tuple(taker.rows), tuple(taker.skipped))


def _import_table(path: Path) -> Imported:
    taker = _Taker(path.parent)
    if path.suffix.lower() in (".jsonl", ".json", ".ndjson"):
        for number, record in read_json_lines(path):
            taker.take(f"{path.name} line {number}", _by_meaning(record))
    else:
        _take_delimited(path, taker)
    if not taker.rows and not taker.skipped:
        raise UserError(f"{path} has no rows.", "Write one recording a line: its audio file and its text.")
    return Imported(tuple(taker.rows), tuple(taker.skipped))


def _take_delimited(path: Path, taker: _Taker) -> None:
    text = read_text(path)
    first = next((line for line in text.split("\n") if line.strip()), "")
    for delimiter in ("\t", "|", ",", ";"):
        names = [name.strip().strip('"').lower() for name in first.split(delimiter)]
        if _has(names, "text") and (_has(names, "audio") or _has(names, "id")):
            return _take_with_header(path, text, delimiter, taker)
    if "|" in first or "\t" in first:
        return _take_without_header(path, text, "|" if "|" in first else "\t", taker)
    raise UserError(
        f"{path}, line 1 names no column for audio and text: {first[:80]!r}.",
        f"Write a header with {COLUMNS['audio'][0]} and {COLUMNS['text'][0]}, or use lines of the form id|text.",
    )


def _take_with_header(path: Path, text: str, delimiter: str, taker: _Taker) -> None:
    records = _records(text, delimiter)
    _, header = next(records)
    names = [name.strip().lower() for name in header]
    for number, cells in records:
        where = f"{path.name} line {number}"
        if len(cells) != len(names):
            taker.skip(where, _wrong_count(cells, len(names), delimiter))
        else:
            taker.take(where, _by_meaning(dict(zip(names, cells, strict=True))))


def _take_without_header(path: Path, text: str, delimiter: str, taker: _Taker) -> None:
    """id, text and perhaps the normalised text, which is taken instead (LJSpeech spells numbers out there)."""
    records = list(_records(text, delimiter))
    width = Counter(len(cells) for _, cells in records).most_common(1)[0][0]
    if width not in (2, 3):
        raise UserError(f"{path} has {width} fields a line, id|text or id|text|text are wanted.", "Mend the table.")
    for number, cells in records:
        where = f"{path.name} line {number}"
        if len(cells) != width:
            taker.skip(where, _wrong_count(cells, width, delimiter))
        else:
            taker.take(where, {"audio": cells[0], "text": cells[-1].strip() or cells[1]})


def _wrong_count(cells: list[str], wanted: int, delimiter: str) -> str:
    shown = {"\t": "tab"}.get(delimiter, delimiter)
    return f"{len(cells)} fields where {wanted} are wanted; is there a {shown} in the text, or one too few?"


def _records(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells; quotes mean something only in comma and semicolon tables."""
    lines = io.StringIO(text, newline="")  # splits at line ends alone, not at U+2028 and its like inside a text
    if delimiter in ",;":
        reader = csv.reader(lines, delimiter=delimiter)
    else:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    for cells in reader:
        if any(cell.strip() for cell in cells):
            yield reader.line_num, cells


def _by_meaning(record: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for meaning, names in COLUMNS.items():
        name = next((name for name in names if record.get(name) not in (None, "")), None)
        if name is not None:
            found[meaning] = str(record[name])
    return found


def _has(names: Iterable[str], meaning: str) -> bool:
    return any(name in COLUMNS[meaning] for name in names)


def _find_audio(folder: Path, name: str) -> Path | None:
    if len(name.encode()) > 240 or "\0" in name:  # a text in the place of a name
        return None
    for place in AUDIO_FOLDERS:
        for suffix in ("", *AUDIO_SUFFIXES):
            path = folder / place / (name + suffix)
            if path.is_file():
                return path
    return None


def _relative_stem(path: Path, folder: Path) -> str:
    inside = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
    parts = inside.with_suffix("").parts
    return "-".join(parts[1:] if len(parts) > 1 and parts[0] in AUDIO_FOLDERS else parts)


def _safe_id(name: str) -> str:
    """An id that can be a file name: other characters become `_`."""
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"
