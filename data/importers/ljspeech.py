"""LJSpeech and its kin: lines without a header, `id|text` or `id|text|normalised text`, or with a number for a speaker.

The normalised text is taken where there is one: numbers are spelled out there. The audio is named with or without its
ending and lies in `wavs/` or beside the table. A tab may stand for the bar.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from config.errors import UserError
from data.importers import text
from data.importers.rows import Found, Skipped, Utterance
from data.importers.tables import wrong_count


def delimiter_of(head: str) -> str | None:
    """The bar or tab that parts the fields; None when the first line has neither."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    return "|" if "|" in first else "\t" if "\t" in first else None


def read(path: Path, split: str = "") -> Iterator[Found]:
    """Every line of the table at `path`."""
    start = text.head(path)
    delimiter = delimiter_of(start)
    assert delimiter is not None
    sample = [line.split(delimiter) for line in start.splitlines() if line.strip()]
    width = Counter(len(cells) for cells in sample).most_common(1)[0][0]
    if width not in (2, 3):
        raise UserError(f"{path} has {width} fields a line, id|text or id|text|text are wanted.", "Mend the table.")
    speaker = _speaker_column([cells for cells in sample if len(cells) == width])
    for number, line in text.lines(path):
        if not line.strip():
            continue
        where, cells = f"{path.name} line {number}", line.rstrip("\r\n").split(delimiter)
        if len(cells) != width:
            yield Skipped(where, wrong_count(cells, width, delimiter))
        else:
            spoken = [cell for index, cell in enumerate(cells) if index not in (0, speaker)]
            yield Utterance(where, cells[0].strip(), spoken[-1].strip() or spoken[0],
                            speaker=f"speaker-{cells[speaker].strip()}" if speaker else "", split=split)


def _speaker_column(sample: list[list[str]]) -> int | None:
    """Which of three columns holds nothing but numbers, as in the lists of multi-speaker trainings."""
    if len(sample) < 2 or len(sample[0]) < 3:
        return None
    return next((column for column in (2, 1) if all(cells[column].strip().isdecimal() for cells in sample)), None)
