"""Tables of two columns without a header, parted by commas or semicolons: a recording's name and its text.

Only the recordings tell that the first line is no header: it must name one that is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from data.importers import tables, text
from data.importers.rows import Found, Skipped, Utterance

_WIDTH, _SAMPLE = 2, 50


def delimiter_of(head: str, is_there: Callable[[str], bool]) -> str | None:
    """What parts the two columns; None where they are not two, or the first line names no recording."""
    lines = list(enumerate(islice(head.splitlines(keepends=True), _SAMPLE)))
    for delimiter in (",", ";"):
        sample = [cells for _, cells in tables.records(lines, delimiter, True) if not isinstance(cells, str)]
        widths = Counter(map(len, sample))
        if sample and len(sample[0]) == widths.most_common(1)[0][0] == _WIDTH and is_there(sample[0][0].strip()):
            return delimiter
    return None


def read(path: Path, delimiter: str) -> Iterator[Found]:
    """Every line of the table at `path`."""
    for number, cells in tables.records(text.lines(path), delimiter, True):
        where = f"{path.name} line {number}"
        if isinstance(cells, str):
            yield Skipped(where, cells)
        elif len(cells) != _WIDTH:
            yield Skipped(where, tables.wrong_count(cells, _WIDTH, delimiter))
        else:
            yield Utterance(where, cells[0].strip(), cells[1].strip())
