"""What an importer gives, and how it becomes rows: recordings found, ids made and kept apart.

A format's function says `Utterance` for what it read and `Skipped` for what it could not; it opens no recording.
`rows` looks the recordings up and makes the ids. Both are generators, and what must be remembered lies on the disk,
so memory does not grow with the number of utterances.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from data.importers.columns import SPLIT_NAMES
from data.importers.lookup import AUDIO_FOLDERS, Lookup, NotThere
from data.kept import Kept

DEFAULT_SPEAKER = "speaker"
_LONGEST_ID = 120  # bytes; a file name may have 255, with what is put behind it


@dataclass(frozen=True)
class Utterance:
    """A recording by the name that the source has for it, and its text. A part of it where times are given."""

    where: str
    audio: str
    text: str
    id: str = ""  # empty where the source has none
    speaker: str = ""
    split: str = ""  # a name of `SPLIT_NAMES`, or empty
    begin_s: float = 0.0
    end_s: float | None = None  # None is the end of the recording


@dataclass(frozen=True)
class Skipped:
    """What was not taken, and why."""

    where: str
    reason: str


Found = Utterance | Skipped


@dataclass(frozen=True)
class Row:
    """A recording and its text, where they came from, and what the source said about them."""

    id: str
    audio: Path
    text: str
    where: str
    speaker: str = DEFAULT_SPEAKER
    split: str = ""  # empty where the source names none
    begin_s: float = 0.0
    end_s: float | None = None

    @property
    def is_part(self) -> bool:
        """Whether the row is a piece of its recording."""
        return self.begin_s > 0 or self.end_s is not None


Entry = Row | Skipped


@dataclass(frozen=True)
class Imported:
    """Every row of a source, taken or skipped, read anew on each pass; and what the source was taken for."""

    entries: Iterable[Entry]
    form: str = ""  # such as "LJSpeech"
    notes: tuple[str, ...] = ()  # what was recognised, what else would fit, and why it was not taken

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(entry for entry in self if isinstance(entry, Row))

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        return tuple(entry for entry in self if isinstance(entry, Skipped))


def rows(found: Iterable[Found], lookup: Lookup) -> Iterator[Entry]:
    """Each utterance as a row: its recording must be there, and its id is its own."""
    with Kept() as raw_ids, Kept() as ids:
        for item in found:
            item = replace(item, where=visible(item.where))
            if isinstance(item, Skipped):
                yield item
                continue
            try:
                path = lookup.find(item.audio or item.id)
            except NotThere as why:
                yield Skipped(item.where, str(why))
                continue
            yield _row(item, path, lookup.folder, raw_ids, ids)


def _row(item: Utterance, path: Path, folder: Path, raw_ids: Kept, ids: Kept) -> Entry:
    split = item.split.strip().lower()
    if split and split not in SPLIT_NAMES:
        return Skipped(item.where, f"the split {split[:40]!r} is not one of {', '.join(SPLIT_NAMES)}")
    if not 0 <= item.begin_s < (item.end_s if item.end_s is not None else float("inf")):
        return Skipped(item.where, f"it goes from {item.begin_s:g} s to {item.end_s or 0:g} s, which is no time")
    name = item.id.strip() or _of_audio(item, path, folder)
    if (before := raw_ids.put(name, item.where)) is not None:
        return Skipped(item.where, f"the id {safe_id(name)!r} was already used at {before}")
    return Row(unused(safe_id(name), item.where, ids), path, _one_line(item.text), item.where,
               _speaker(item.speaker) or DEFAULT_SPEAKER, SPLIT_NAMES.get(split, ""), item.begin_s, item.end_s)


def visible(name: str) -> str:
    """A name for people to read: what has no shape of its own, or turns the line around, is spelled out."""
    return name if name.isprintable() else "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name)


def unused(name: str, where: str, ids: Kept) -> str:
    """`name`, or `name-2` and so on where it is taken; letters of either case are one, as on some disks."""
    number, free = 1, name
    while ids.put(free.casefold(), where) is not None:
        number += 1
        free = f"{name}-{number}"
    return free


def safe_id(name: str) -> str:
    """An id that can be a file name: other characters become `_`, and what is too long is cut and told apart."""
    safe = re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"
    if len(safe.encode()) <= _LONGEST_ID:
        return safe
    cut = safe.encode()[:_LONGEST_ID - 9].decode(errors="ignore")
    return f"{cut}-{sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _of_audio(item: Utterance, path: Path, folder: Path) -> str:
    """An id by the recording's name; times in milliseconds follow for a part, so that it stays when others change."""
    inside = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
    parts = inside.with_suffix("").parts
    stem = "-".join(parts[1:] if len(parts) > 1 and parts[0] in AUDIO_FOLDERS else parts)
    if item.begin_s == 0 and item.end_s is None:
        return stem
    end = "end" if item.end_s is None else f"{round(item.end_s * 1000):07d}"
    return f"{stem}-{round(item.begin_s * 1000):07d}-{end}"


def _speaker(name: str) -> str:
    """Without what no file can hold: control characters and half surrogate pairs."""
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]+", " ", name).strip()


def _one_line(text: str) -> str:
    return re.sub(r"[\t\r\n]+", " ", text).strip()
