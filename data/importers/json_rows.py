"""JSON lines, and JSON: a list of objects, or one object of objects or of texts by the name of their recording.

A list is read piece by piece, so that its length costs no memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from config.errors import UserError
from data.importers import text
from data.importers.columns import by_meaning, names_clips
from data.importers.rows import Found, Skipped
from data.importers.tables import utterance

_LONGEST_OBJECT = 1 << 20  # characters of one recording's entry
_LONGEST_WHOLE = 1 << 26  # characters of a file that is one object, which is read at once
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_LISTS = ("data", "utterances", "clips", "items", "segments", "samples", "rows")


def looks_like(head: str) -> bool:
    return head.lstrip()[:1] in ("{", "[")


def is_lines(head: str) -> bool:
    """Whether each line is an object of its own."""
    first = [line.strip() for line in head.split("\n") if line.strip()][:2]
    return len(first) == 2 and all(line.startswith("{") for line in first) and first[0].endswith("}")


def read_lines(path: Path, split: str = "") -> Iterator[Found]:
    """JSON lines: an object with names of `COLUMNS` a line."""
    for number, line in text.lines(path):
        where = f"{path.name} line {number}"
        if not line.strip():
            continue
        try:
            record = _loaded(line)
        except ValueError as error:
            yield Skipped(where, f"is not JSON: {error}")
            continue
        yield _entry(record, where, split)


def read(path: Path, split: str = "") -> Iterator[Found]:
    """A JSON file that is a list, or an object."""
    if text.head(path).lstrip().startswith("["):
        yield from _read_list(path, split)
        return
    try:
        whole = _loaded(text.read(path, _LONGEST_WHOLE))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}.", "Write a list of objects, or one object a line.") from error
    if not isinstance(whole, dict):
        raise UserError(f"{path} is neither a list nor an object: {str(whole)[:40]!r}.",
                        "Write a list of objects, or one object a line.")
    inner = next((whole[name] for name in _LISTS if isinstance(whole.get(name), list)), whole)
    if names_clips(whole):  # it is one row itself
        inner = [whole]
    for number, item in enumerate(inner.items() if isinstance(inner, dict) else inner, start=1):
        where = f"{path.name} entry {number}"
        if not isinstance(item, tuple):
            yield _entry(item, where, split)
        elif isinstance(item[1], dict):
            yield _entry({"id": item[0], **item[1]}, where, split)
        else:
            yield _entry({"audio": item[0], "text": item[1]}, where, split)


def _entry(record: object, where: str, split: str) -> Found:
    if not isinstance(record, dict):
        return Skipped(where, f"is not a JSON object: {str(record)[:40]!r}")
    values = by_meaning({str(name).lower(): value for name, value in record.items()})
    return utterance(where, values, split)


def _loaded(source: str) -> object:
    try:
        return json.loads(source)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_list(path: Path, split: str) -> Iterator[Found]:
    """The elements of a list. What follows one that cannot be read is left, and that is said."""
    decoder, pieces = json.JSONDecoder(), text.pieces(path)
    buffer, at, number = next(pieces, "").lstrip()[1:], 0, 1
    while True:
        at = _BETWEEN.match(buffer, at).end()  # type: ignore[union-attr]  # it matches nothing too
        if buffer.startswith("]", at):
            return
        try:
            value, end = decoder.raw_decode(buffer, at)
        except (ValueError, RecursionError) as error:
            more = next(pieces, None) if len(buffer) - at < _LONGEST_OBJECT else None
            if more is None:
                why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
                yield Skipped(f"{path.name} entry {number}", f"is not JSON: {why}; what follows could not be read")
                return
            buffer, at = buffer[at:] + more, 0
            continue
        yield _entry(value, f"{path.name} entry {number}", split)
        at, number = end, number + 1
