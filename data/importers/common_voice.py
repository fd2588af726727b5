"""Mozilla Common Voice: `validated.tsv` beside `clips/`, with the columns `client_id`, `path` and `sentence`.

Its tables have no quoting: a quotation mark that begins a sentence belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from data.importers import tables, text
from data.importers.rows import Found, Skipped, Utterance

TABLES = ("validated.tsv", "train.tsv", "dev.tsv", "test.tsv", "other.tsv", "invalidated.tsv")
_COLUMNS = {"client_id", "path", "sentence"}


def chosen(folder: Path) -> list[Path]:
    """The tables to read: what listeners confirmed, else the splits. Empty for another form."""
    if not (folder / "clips").is_dir():
        return []
    there = [folder / name for name in TABLES[:4] if _fits(folder / name)]
    return there[:1] if there and there[0].name == TABLES[0] else there


def _fits(path: Path) -> bool:
    header = tables.header_of(text.head(path)) if path.is_file() else None
    return header is not None and header[0] == "\t" and set(header[1]) >= _COLUMNS


def read(paths: list[Path]) -> Iterator[Found]:
    """Every clip of the tables, as a row of its own split where they are splits."""
    for path in paths:
        split = "" if path.name == TABLES[0] else path.stem
        names: list[str] | None = None
        for number, cells in tables.records(text.lines(path), "\t", False):
            where = f"{path.name} line {number}"
            if names is None:
                names = [cell.strip().lower() for cell in cells]
            elif len(cells) != len(names):
                yield Skipped(where, tables.wrong_count(list(cells), len(names), "\t"))
            else:
                values = dict(zip(names, cells, strict=True))
                yield Utterance(where, values["path"], values["sentence"], speaker=values["client_id"], split=split)
