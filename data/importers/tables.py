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
from itertools import islice
from pathlib import Path

from config.errors import UserError
from data.importers import text_files
from data.importers.rows import ParsedItem, ParsedUtterance, SkippedRow, has_clip_columns, span_of, standard_values

DELIMITERS = ("\t", "|", ",", ";")
_NAMES = {"\t": "tab"}
_LONGEST_CELL_LINES = 20  # a quote that is still open then is no quote
_PAIR_SAMPLE = 50  # lines
_LONGEST_OBJECT = 1 << 20  # characters of one recording's entry
_LONGEST_WHOLE = 1 << 26  # characters of a file that is one object, which is read at once
_SEPARATOR = re.compile(r"[ \t\r\n,]*")
_LIST_KEYS = ("data", "utterances", "clips", "items", "segments", "samples", "rows")


def header_of(head: str) -> tuple[str, list[str]] | None:
    """The delimiter and the column names of a header line; None for a header without audio and text."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"').strip().lower() for name in first.split(delimiter)]
        if has_clip_columns(names):
            return delimiter, names
    return None


def read_table(path: Path, split: str = "") -> Iterator[ParsedItem]:
    """Every row of the table at `path`, which has a header; `split` is for rows without one."""
    start = text_files.head(path)
    found = header_of(start)
    assert found is not None
    delimiter, names = found
    header_seen = False
    for number, cells in table_records(text_files.lines(path), delimiter, has_quotes(start, delimiter)):
        where = f"{path.name} line {number}"
        if isinstance(cells, str):
            yield SkippedRow(where, cells)
        elif not header_seen:
            header_seen = True
        elif len(cells) != len(names):
            yield SkippedRow(where, wrong_field_count(cells, len(names), delimiter))
        else:
            values = standard_values(dict(zip(names, cells, strict=True)))
            spelled = values.get("spelled", "").strip() if delimiter == "|" else ""
            yield table_utterance(where, {**values, "text": spelled or values.get("text", "")}, split)


def table_utterance(where: str, values: dict[str, str], split: str = "") -> ParsedItem:
    """An utterance from the values of `rows.standard_values`."""
    try:
        begin_s, end_s = span_of(values)
    except ValueError as why:
        return SkippedRow(where, str(why))
    return ParsedUtterance(where, values.get("audio", "").strip(), values.get("text", ""), values.get("id", "").strip(),
                           values.get("speaker", ""), values.get("split", "").strip() or split, begin_s, end_s)


def wrong_field_count(cells: list[str], wanted: int, delimiter: str) -> str:
    """Message for a line with another number of cells."""
    shown = _NAMES.get(delimiter, delimiter)
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
    waiting = _Lines(lines)
    while (first := waiting.next()) is not None:
        number, line = first
        if not line.strip():
            continue
        if not with_quotes:
            cells: list[str] | str = line.rstrip("\r\n").split(delimiter)
        else:
            more = _until_closed(line, waiting)
            if more is None:
                yield number, "a quote is opened that is never closed"
                continue
            number = more[-1][0] if more else number
            cells = _parsed("".join([line, *(part for _, part in more)]), delimiter)
        if isinstance(cells, str) or any(cell.strip() for cell in cells):
            yield number, cells


def _parsed(record: str, delimiter: str) -> list[str] | str:
    try:
        return next(csv.reader([record], delimiter=delimiter))
    except csv.Error as error:
        return f"its quotes cannot be read: {error}"


def _until_closed(line: str, waiting: _Lines) -> list[tuple[int, str]] | None:
    """The lines that follow until the quotes are even; None, and nothing taken, when they never are."""
    taken: list[tuple[int, str]] = []
    is_open = line.count('"') % 2 == 1
    while is_open:
        following = waiting.next() if len(taken) < _LONGEST_CELL_LINES else None
        if following is None:
            waiting.put_back(taken)
            return None
        taken.append(following)
        is_open = following[1].count('"') % 2 == 0
    return taken


class _Lines:
    """Lines that can be put back."""

    def __init__(self, lines: Iterable[tuple[int, str]]) -> None:
        self._lines = iter(lines)
        self._back: list[tuple[int, str]] = []

    def next(self) -> tuple[int, str] | None:
        return self._back.pop() if self._back else next(self._lines, None)

    def put_back(self, lines: list[tuple[int, str]]) -> None:
        self._back.extend(reversed(lines))


def ljspeech_delimiter(head: str) -> str | None:
    """The bar or tab between the fields; None when the first line has neither."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    return "|" if "|" in first else "\t" if "\t" in first else None


def read_ljspeech(path: Path, split: str = "") -> Iterator[ParsedItem]:
    """Lines without a header: `id|text`, `id|text|normalised text`, or with a column of speaker numbers.

    The normalised text is preferred, since numbers are spelled out there. A tab may replace the bar.
    """
    start = text_files.head(path)
    delimiter = ljspeech_delimiter(start)
    assert delimiter is not None
    sample = [line.split(delimiter) for line in start.splitlines() if line.strip()]
    width = Counter(len(cells) for cells in sample).most_common(1)[0][0]
    if width not in (2, 3):
        raise UserError(f"{path} has {width} fields a line, id|text or id|text|text are wanted.", "Fix the table.")
    speaker = _speaker_column([cells for cells in sample if len(cells) == width])
    for number, line in text_files.lines(path):
        if not line.strip():
            continue
        where, cells = f"{path.name} line {number}", line.rstrip("\r\n").split(delimiter)
        if len(cells) != width:
            yield SkippedRow(where, wrong_field_count(cells, width, delimiter))
        else:
            spoken = [cell for index, cell in enumerate(cells) if index not in (0, speaker)]
            yield ParsedUtterance(where, cells[0].strip(), spoken[-1].strip() or spoken[0],
                                  speaker=f"speaker-{cells[speaker].strip()}" if speaker else "", split=split)


def _speaker_column(sample: list[list[str]]) -> int | None:
    """The column of three that holds only numbers, as in file lists of multi-speaker training."""
    if len(sample) < 2 or len(sample[0]) < 3:
        return None
    return next((column for column in (2, 1) if all(cells[column].strip().isdecimal() for cells in sample)), None)


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
    for number, cells in table_records(text_files.lines(path), delimiter, True):
        where = f"{path.name} line {number}"
        if isinstance(cells, str):
            yield SkippedRow(where, cells)
        elif len(cells) != 2:
            yield SkippedRow(where, wrong_field_count(cells, 2, delimiter))
        else:
            yield ParsedUtterance(where, cells[0].strip(), cells[1].strip())


def looks_like_json(head: str) -> bool:
    return head.lstrip()[:1] in ("{", "[")


def is_json_lines(head: str) -> bool:
    """Whether each line is a JSON object."""
    first = [line.strip() for line in head.split("\n") if line.strip()][:2]
    return len(first) == 2 and all(line.startswith("{") for line in first) and first[0].endswith("}")


def read_json_lines(path: Path, split: str = "") -> Iterator[ParsedItem]:
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
        yield _entry(record, where, split)


def read_json(path: Path, split: str = "") -> Iterator[ParsedItem]:
    """A JSON file: a list of objects, or an object of objects or texts by the name of their recording."""
    if text_files.head(path).lstrip().startswith("["):
        yield from _read_list(path, split)
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
            yield _entry(item, where, split)
        elif isinstance(item[1], dict):
            yield _entry({"id": item[0], **item[1]}, where, split)
        else:
            yield _entry({"audio": item[0], "text": item[1]}, where, split)


def _entry(record: object, where: str, split: str) -> ParsedItem:
    if not isinstance(record, dict):
        return SkippedRow(where, f"is not a JSON object: {str(record)[:40]!r}")
    values = standard_values({str(name).lower(): value for name, value in record.items()})
    return table_utterance(where, values, split)


def _loaded(source: str) -> object:
    try:
        return json.loads(source)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_list(path: Path, split: str) -> Iterator[ParsedItem]:
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
        yield _entry(value, f"{path.name} entry {number}", split)
        at, number = end, number + 1
