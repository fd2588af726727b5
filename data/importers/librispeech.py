"""LibriSpeech's folders: `READER/CHAPTER/READER-CHAPTER.trans.txt` with a line a recording, its name and what is said.

Layout of V. Panayotov et al., "Librispeech: an ASR corpus based on public domain audio books", 2015; Multilingual
LibriSpeech has a `transcripts.txt` of its own and is a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from data.importers import companions, text
from data.importers.columns import SPLIT_NAMES
from data.importers.lookup import is_audio
from data.importers.rows import Found, Skipped, Utterance

SUFFIX = ".trans.txt"


def transcripts(folder: Path) -> list[Path]:
    """The transcripts below `folder`, in order; one a chapter."""
    return [place / name for place, names in companions.walk(folder) for name in names
            if name.lower().endswith(SUFFIX)]


def read(folder: Path, found: list[Path]) -> Iterator[Found]:
    """The utterances of the transcripts `found`, with readers and, where there are some of training, splits."""
    sides = {path: _split(path.relative_to(folder)) for path in found}
    named = "train" in sides.values() and len(set(sides.values())) > 1
    for path in found:
        by_stem = {Path(name.name).stem: name for name in sorted(path.parent.iterdir()) if is_audio(name.name)}
        place = path.relative_to(folder)
        for number, line in text.lines(path):
            where = f"{place}:{number}"
            name, _, words = line.strip().partition(" ")
            if not name:
                continue
            if name not in by_stem:
                yield Skipped(where, f"there is no recording {name} beside it")
            elif not words.strip():
                yield Skipped(where, f"{name} has no text")
            else:
                yield Utterance(where, str(by_stem[name].relative_to(folder)), words.strip(), name, _reader(place),
                                sides[path] if named else "")


def _reader(place: Path) -> str:
    """The reader of a transcript: what its name begins with, where a folder is called so too; else its folder."""
    first = place.name.partition("-")[0]
    return first if first in place.parts[:-1] else place.parent.name or first


def _split(place: Path) -> str:
    """The split that a folder such as `train-clean-100` or `dev-other` says; empty for none."""
    for part in place.parts[:-1]:
        name = part.lower().partition("-")[0]
        if name in SPLIT_NAMES:
            return name
    return ""
