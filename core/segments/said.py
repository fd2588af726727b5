"""A long text as what is to be found in a recording: sentences or subtitles, and the words of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.errors import UserError
from data.importers import companions, text
from data.importers.rows import Utterance
from data.sentences import split

_LONGEST = 200  # characters of a sentence; longer ones part at phrases
_MOST = 20_000_000  # characters of a text
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_SPACES = re.compile(r"[\s\u1361]+")


@dataclass(frozen=True)
class Word:
    """A word as it is written, with what parts it from the next; and the ids by which it is found, none for a mark."""

    text: str
    space: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Sentence:
    """What is said at a stretch. Times are those that subtitles had, which may be wrong."""

    text: str
    words: tuple[Word, ...]
    begin_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True)
class Line:
    """A sentence before it is spelled."""

    text: str
    begin_s: float | None = None
    end_s: float | None = None


def lines_of(path: Path, audio: str, ends: str = "") -> list[Line]:
    """The sentences of a plain text, or the blocks of subtitles, lyrics or labels. `ends`: more ends of sentences."""
    kind = companions.kind_of(path)
    if kind.timed:
        found = [Line(item.text, item.begin_s, item.end_s) for item in kind.read(path, audio)
                 if isinstance(item, Utterance)]
    else:
        whole = text.read(path, _MOST)
        found = [Line(" ".join(piece.text.split())) for piece in split(whole, _LONGEST, len, len(whole) + 1, ends)]
    found = [line for line in found if line.text]
    if not found:
        raise UserError(f"{path} has no text.", "Give the text that is said in the recording.")
    return found


def spelled(lines: Sequence[Line], spell: Callable[[str], Sequence[int]]) -> list[Sentence]:
    """The words of each sentence with their ids."""
    return [Sentence(line.text, tuple(Word(word, space, tuple(spell(word))) for word, space in words_of(line.text)),
                     line.begin_s, line.end_s) for line in lines]


def words_of(line: str) -> list[tuple[str, str]]:
    """Words and the space behind each; where a script has no spaces, its characters."""
    found: list[tuple[str, str]] = []
    for word, space in zip(_SPACES.split(line), [*_SPACES.findall(line), ""], strict=True):
        if not word:
            continue
        parts = [part for part in re.split(f"({_UNSPACED.pattern})", word) if part]
        found += [(part, "") for part in parts[:-1]] + [(parts[-1], space)]
    return found
