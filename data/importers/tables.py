"""Tables: delimited text with a header (CSV, TSV, `;`, `|`), LJSpeech lines, pairs without header, JSON lines, JSON.

Columns and keys may have any of the names in `rows.COLUMNS`, in any order. Everything is streamed; only a JSON file
that is one object is read at once.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rapidfuzz import fuzz

from config import foreign
from config.errors import UserError, join_names
from data.importers import text_files
from data.importers.rows import ParsedItem, ParsedUtterance, SkippedRow, has_clip_columns, span_of, standard_values

DELIMITERS = ("\t", "|", ",", ";")
_LONGEST_CELL_LINES = 20  # a quote that is still open then is no quote
_PAIR_SAMPLE = 50  # lines
_LONGEST_OBJECT = 1 << 20  # characters of one recording's entry
_LONGEST_WHOLE = 1 << 26  # characters of a file that is one object, which is read at once
_SEPARATOR = re.compile(r"[ \t\r\n,]*")
_ALIKE = 60.0  # of 100, by rapidfuzz's ratio; two different sentences of one language have up to 50
_LONGEST_NAME = 40  # characters of a speaker
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[_-][A-Za-z]{2,4})?|all_[a-z]{2,3}|auto(?:_yue)?")  # as GPT-SoVITS writes it
_NO_NAMES = frozenset((  # of an emotion, a style or a gender
    "angry", "calm", "disgust", "disgusted", "fear", "fearful", "happy", "joy", "neutral", "sad", "surprise",
    "surprised", "whisper", "m", "f", "male", "female", "man", "woman"))
_FRACTION = re.compile(r"\d{1,4}\.\d+")
_SECONDS = re.compile(r"\d{1,4}(?:\.\d+)?")
_LIST_KEYS = ("data", "utterances", "clips", "items", "segments", "samples", "rows")


def header_of(head: str) -> tuple[str, list[str]] | None:
    """The delimiter and the column names of a header line; None for a header without audio and text."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"').strip().lower() for name in first.split(delimiter)]
        if has_clip_columns(names):
            return delimiter, names
    return None


def read_table(path: Path) -> Iterator[ParsedItem]:
    """Every row of the table at `path`, which has a header."""
    start = text_files.head(path)
    found = header_of(start)
    assert found is not None
    delimiter, names = found
    for row in table_rows(path, delimiter, has_quotes(start, delimiter), len(names), header=True):
        if isinstance(row, SkippedRow):
            yield row
            continue
        where, cells = row
        values = standard_values(dict(zip(names, cells, strict=True)))
        spelled = values.get("spelled", "").strip() if delimiter == "|" else ""
        yield _utterance(where, {**values, "text": spelled or values.get("text", "")})


def table_rows(path: Path, delimiter: str, with_quotes: bool, width: int, *,
               header: bool) -> Iterator[tuple[str, list[str]] | SkippedRow]:
    """The place and the cells of each row after the header; one that has not `width` cells is skipped."""
    for number, cells in table_records(text_files.lines(path), delimiter, with_quotes):
        where = f"{path.name} line {number}"
        if isinstance(cells, str):
            yield SkippedRow(where, cells)
        elif header:
            header = False
        elif len(cells) != width:
            yield SkippedRow(where, wrong_field_count(cells, width, delimiter))
        else:
            yield where, cells


def _utterance(where: str, values: dict[str, str]) -> ParsedItem:
    """An utterance from the values of `rows.standard_values`."""
    try:
        begin_s, end_s = span_of(values)
    except ValueError as why:
        return SkippedRow(where, str(why))
    return ParsedUtterance(where, values.get("audio", "").strip(), values.get("text", ""), values.get("id", "").strip(),
                           values.get("speaker", ""), values.get("split", "").strip(), begin_s, end_s)


def wrong_field_count(cells: list[str], wanted: int, delimiter: str) -> str:
    """Message for a line with another number of cells."""
    shown = "tab" if delimiter == "\t" else delimiter
    return f"{len(cells)} fields instead of {wanted}; is a {shown} in the text, or one missing?"


def has_quotes(head: str, delimiter: str) -> bool:
    """Whether quotes enclose cells; with tabs and bars only if every cell that begins with a quote ends with one."""
    if delimiter in ",;":
        return True
    cells = [cell.strip("\r\n") for line in head.split("\n")[:-1] or [head] for cell in line.split(delimiter)]
    opened = [cell for cell in cells if cell.startswith('"')]
    return bool(opened) and all(
        len(cell) > 1 and cell.endswith('"') and '"' not in cell[1:-1].replace('""', "") for cell in opened)


def table_records(lines: Iterable[tuple[int, str]], delimiter: str,
                  with_quotes: bool) -> Iterator[tuple[int, list[str] | str]]:
    """The number of each record's last line, and its cells or, instead, what is wrong with it."""
    unread, put_back = iter(lines), list[tuple[int, str]]()

    def next_line() -> tuple[int, str] | None:
        return put_back.pop() if put_back else next(unread, None)

    while (first := next_line()) is not None:
        number, line = first
        if not line.strip():
            continue
        if not with_quotes:
            cells: list[str] | str = line.rstrip("\r\n").split(delimiter)
        else:
            record = [first]
            while is_open := sum(part.count('"') for _, part in record) % 2 == 1:
                if len(record) > _LONGEST_CELL_LINES or (following := next_line()) is None:
                    put_back += reversed(record[1:])
                    break
                record.append(following)
            if is_open:
                yield number, "a quote is opened that is never closed"
                continue
            number = record[-1][0]
            try:
                cells = next(csv.reader(["".join(part for _, part in record)], delimiter=delimiter))
            except csv.Error as error:
                cells = f"its quotes cannot be read: {error}"
        if isinstance(cells, str) or any(cell.strip() for cell in cells):
            yield number, cells


def ljspeech_delimiter(head: str) -> str | None:
    """The bar or tab between the fields; None when the first line has neither."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    return "|" if "|" in first else "\t" if "\t" in first else None


@dataclass(frozen=True)
class ListColumns:
    """What the columns of a list without a header hold: the first one names the recording."""

    title: str
    width: int
    text: int
    speaker: int | None = None
    spelled: int | None = None  # the text as it is spoken
    note: str = ""  # what was concluded from the values

    def utterance(self, where: str, cells: list[str]) -> ParsedUtterance:
        """A line of `width` cells."""
        spoken = cells[self.spelled].strip() if self.spelled else ""
        speaker = cells[self.speaker].strip() if self.speaker else ""
        return ParsedUtterance(where, cells[0].strip(), spoken or cells[self.text].strip(),
                               speaker=f"speaker-{speaker}" if speaker.isdecimal() else speaker)


def list_columns(path: Path) -> ListColumns:
    """The columns of the list at `path`, by the values of its first lines; `UserError` if they cannot be told.

    `id|text` and `id|text|normalised text` (LJ Speech; the normalised text is preferred, since numbers are spelled out
    there), `id|speaker|text` (Piper), `path|text|speaker number` (VITS), `path|text|normalised text|seconds` (CSS10),
    `path|text|expanded|decomposed|seconds|translation` (KSS), `path|speaker|language|text` (GPT-SoVITS, Bert-VITS2;
    the latter with phones, tones and their counts behind it once it was preprocessed). A tab may replace the bar.
    """
    start = text_files.head(path)
    delimiter = ljspeech_delimiter(start)
    assert delimiter is not None
    lines = [line for line in start.splitlines() if line.strip()]
    cut_off = path.stat().st_size > text_files.HEAD and len(lines) > 1
    sample = [line.split(delimiter) for line in (lines[:-1] if cut_off else lines)]
    width = Counter(len(cells) for cells in sample).most_common(1)[0][0]
    rows = [[cell.strip() for cell in cells] for cells in sample if len(cells) == width]
    columns = list(zip(*rows, strict=True))
    title = "LJSpeech"
    if width == 2:
        return ListColumns(title, width, 1)
    if width == 3:
        return _of_three(path, title, columns)
    if width in (4, 7) and all(_LANGUAGE.fullmatch(value) for value in columns[2]) and not _are_alike(*columns[1:3]):
        return ListColumns("path|speaker|language|text", width, 3, 1, note=_speakers_note(2, columns[1]))
    if width in (4, 6) and all(_SECONDS.fullmatch(value) for value in columns[3 if width == 4 else 4]) and _are_alike(
            *columns[1:3]):
        return ListColumns("path|text|normalised text|seconds", width, 1, spelled=2)
    shown = delimiter.join(f"{cell[:30]!r}" for cell in rows[0])
    raise UserError(f"{path} has {width} fields a line, and what they hold cannot be told: {shown}.",
                    "Put a header above them that names audio, text and speaker.")


def _of_three(path: Path, title: str, columns: list[tuple[str, ...]]) -> ListColumns:
    """Of three columns one may be the speaker, or the last one the text of the second as it is spoken."""
    for column in (2, 1):
        if len(columns[0]) > 1 and all(value.isdecimal() for value in columns[column]):
            return ListColumns("path|text|speaker" if column == 2 else "path|speaker|text", 3, 3 - column, column,
                               note=_speakers_note(column + 1, columns[column]))
    if all(_FRACTION.fullmatch(value) for value in columns[2]):
        return ListColumns("path|text|seconds", 3, 1)
    if all(value.casefold() in _NO_NAMES for value in columns[2]):
        return ListColumns("path|text|label", 3, 1, note="column 3 is no speaker, and is not used")
    if _are_alike(columns[1], columns[2]):
        return ListColumns(title, 3, 1, spelled=2)
    labels = [column for column in (1, 2) if _are_labels(columns[column])]
    if len(labels) == 1 and 2 * len(set(columns[3 - labels[0]])) > len(columns[0]):
        column = labels[0]
        return ListColumns("path|text|speaker" if column == 2 else "path|speaker|text", 3, 3 - column, column,
                           note=_speakers_note(column + 1, columns[column]))
    raise UserError(
        f"{path} has three fields a line, and the third ({columns[2][0][:40]!r}) is neither the second "
        f"({columns[1][0][:40]!r}) as it is spoken, nor is one of the two a speaker who has several lines.",
        "Put a header above them that names audio, text and speaker.")


def _are_alike(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether the texts of two columns are mostly the same, as a text and its numbers spelled out; empty ones too."""
    pairs = [(left, right) for left, right in zip(one, other, strict=True) if right]
    alike = sum(fuzz.ratio(left.casefold(), right.casefold()) >= _ALIKE for left, right in pairs)
    return 2 * alike > len(pairs) or not pairs


def _are_labels(values: tuple[str, ...]) -> bool:
    """Whether a column holds names that come back on several lines rather than texts."""
    return (3 * len(set(values)) <= 2 * len(values)
            and all(value and len(value) <= _LONGEST_NAME and len(value.split()) <= 3 for value in values))


def _speakers_note(number: int, values: tuple[str, ...]) -> str:
    names = list(dict.fromkeys(values))
    return (f"column {number} is taken for the speaker ({join_names([repr(name[:40]) for name in names], 3)})")


def read_ljspeech(path: Path) -> Iterator[ParsedItem]:
    """Lines of a list without a header; `list_columns` tells what its columns hold."""
    delimiter = ljspeech_delimiter(text_files.head(path))
    assert delimiter is not None
    columns = list_columns(path)
    for number, line in text_files.lines(path):
        if not line.strip():
            continue
        where, cells = f"{path.name} line {number}", line.rstrip("\r\n").split(delimiter)
        if len(cells) != columns.width:
            yield SkippedRow(where, wrong_field_count(cells, columns.width, delimiter))
        else:
            yield columns.utterance(where, cells)


def pair_delimiter(head: str, is_there: Callable[[str], bool]) -> str | None:
    """The delimiter of two columns without a header; None unless the first line names an existing recording."""
    lines = list(enumerate(islice(head.splitlines(keepends=True), _PAIR_SAMPLE)))
    for delimiter in (",", ";"):
        sample = [cells for _, cells in table_records(lines, delimiter, True) if not isinstance(cells, str)]
        widths = Counter(map(len, sample))
        if sample and len(sample[0]) == widths.most_common(1)[0][0] == 2 and is_there(sample[0][0].strip()):
            return delimiter
    return None


def read_pairs(path: Path, delimiter: str) -> Iterator[ParsedItem]:
    """Every line of a table of two columns without a header: a recording and its text."""
    for row in table_rows(path, delimiter, True, 2, header=False):
        yield row if isinstance(row, SkippedRow) else ParsedUtterance(row[0], row[1][0].strip(), row[1][1].strip())


def looks_like_json(head: str) -> bool:
    return head.lstrip()[:1] in ("{", "[")


def is_json_lines(head: str) -> bool:
    """Whether each line is a JSON object."""
    first = [line.strip() for line in head.split("\n") if line.strip()][:2]
    return len(first) == 2 and all(line.startswith("{") for line in first) and first[0].endswith("}")


def read_json_lines(path: Path) -> Iterator[ParsedItem]:
    """JSON lines: one object with keys of `COLUMNS` a line."""
    for number, line in text_files.lines(path):
        where = f"{path.name} line {number}"
        if not line.strip():
            continue
        try:
            record = _loaded(line)
        except ValueError as error:
            yield SkippedRow(where, f"is not JSON: {error}")
            continue
        yield _entry(record, where)


def read_json(path: Path) -> Iterator[ParsedItem]:
    """A JSON file: a list of objects, or an object of objects or texts by the name of their recording."""
    if text_files.head(path).lstrip().startswith("["):
        yield from _read_list(path)
        return
    try:
        whole = _loaded(text_files.read(path, _LONGEST_WHOLE))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.", "Write a list of objects, or one object a line.") from error
    if not isinstance(whole, dict):
        raise UserError(f"{path} is neither a list nor an object: {str(whole)[:40]!r}.",
                        "Write a list of objects, or one object a line.")
    inner = next((whole[name] for name in _LIST_KEYS if isinstance(whole.get(name), list)), whole)
    if has_clip_columns(whole):  # it is one row itself
        inner = [whole]
    for number, item in enumerate(inner.items() if isinstance(inner, dict) else inner, start=1):
        where = f"{path.name} entry {number}"
        if not isinstance(item, tuple):
            yield _entry(item, where)
        elif isinstance(item[1], dict):
            yield _entry({"id": item[0], **item[1]}, where)
        else:
            yield _entry({"audio": item[0], "text": item[1]}, where)


def _entry(record: object, where: str) -> ParsedItem:
    if not isinstance(record, dict):
        return SkippedRow(where, f"is not a JSON object: {str(record)[:40]!r}")
    values = standard_values({str(name).lower(): value for name, value in record.items()})
    if "dnsmos" in record:  # of Emilia's pipeline, whose times are those in the recording that the clip was cut from
        values = {meaning: value for meaning, value in values.items() if meaning not in ("begin", "end", "duration")}
    return _utterance(where, values)


def _loaded(source: str) -> object:
    try:
        return foreign.loads(source)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_list(path: Path) -> Iterator[ParsedItem]:
    """The elements of a list, read piece by piece; what follows an element that cannot be parsed is skipped."""
    decoder, pieces = json.JSONDecoder(), text_files.pieces(path)
    buffer, at, number = next(pieces, "").lstrip()[1:], 0, 1
    while True:
        at = _SEPARATOR.match(buffer, at).end()  # type: ignore[union-attr]  # it matches nothing too
        if buffer.startswith("]", at):
            return
        try:
            value, end = decoder.raw_decode(buffer, at)
        except (ValueError, RecursionError) as error:
            more = next(pieces, None) if len(buffer) - at < _LONGEST_OBJECT else None
            if more is None:
                why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
                yield SkippedRow(f"{path.name} entry {number}", f"is not JSON: {why}; what follows could not be read")
                return
            buffer, at = buffer[at:] + more, 0
            continue
        yield _entry(value, f"{path.name} entry {number}")
        at, number = end, number + 1
