"""Tables with a header (CSV, TSV, with `;` or `|`): columns named as in `columns.COLUMNS`, in any order."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from data.importers import text
from data.importers.columns import by_meaning, names_clips, times
from data.importers.rows import Found, Skipped, Utterance

DELIMITERS = ("\t", "|", ",", ";")
_NAMES = {"\t": "tab"}
_LONGEST_CELL_LINES = 20  # a quote that is still open then was never meant to be closed


def header_of(head: str) -> tuple[str, list[str]] | None:
    """The delimiter and the names of a table's header line; None when there is no header that can be used."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"').strip().lower() for name in first.split(delimiter)]
        if names_clips(names):
            return delimiter, names
    return None


def read(path: Path, split: str = "") -> Iterator[Found]:
    """Every row of the table at `path`, which has a header; `split` is for rows that name none."""
    start = text.head(path)
    found = header_of(start)
    assert found is not None
    delimiter, names = found
    header_seen = False
    for number, cells in records(text.lines(path), delimiter, quoted(start, delimiter)):
        where = f"{path.name} line {number}"
        if isinstance(cells, str):
            yield Skipped(where, cells)
        elif not header_seen:
            header_seen = True
        elif len(cells) != len(names):
            yield Skipped(where, wrong_count(cells, len(names), delimiter))
        else:
            values = by_meaning(dict(zip(names, cells, strict=True)))
            spelled = values.get("spelled", "").strip() if delimiter == "|" else ""
            yield utterance(where, {**values, "text": spelled or values.get("text", "")}, split)


def utterance(where: str, values: dict[str, str], split: str = "") -> Found:
    """An utterance from values by meaning."""
    try:
        begin_s, end_s = times(values)
    except ValueError as why:
        return Skipped(where, str(why))
    return Utterance(where, values.get("audio", "").strip(), values.get("text", ""), values.get("id", "").strip(),
                     values.get("speaker", ""), values.get("split", "").strip() or split, begin_s, end_s)


def wrong_count(cells: list[str], wanted: int, delimiter: str) -> str:
    """Why a line with another number of cells was not taken."""
    shown = _NAMES.get(delimiter, delimiter)
    return f"{len(cells)} fields where {wanted} are wanted; is there a {shown} in the text, or one too few?"


def quoted(head: str, delimiter: str) -> bool:
    """Whether quotes enclose cells. Where tabs or bars part them, only if every cell that begins with one says so."""
    if delimiter in ",;":
        return True
    cells = [cell.strip("\r\n") for line in head.split("\n")[:-1] or [head] for cell in line.split(delimiter)]
    opened = [cell for cell in cells if cell.startswith('"')]
    return bool(opened) and all(
        len(cell) > 1 and cell.endswith('"') and '"' not in cell[1:-1].replace('""', "") for cell in opened)


def records(lines: Iterable[tuple[int, str]], delimiter: str,
            with_quotes: bool) -> Iterator[tuple[int, list[str] | str]]:
    """The number of each record's last line, and its cells, or in their place what is wrong with it."""
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
