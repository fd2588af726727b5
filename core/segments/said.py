"""A long text as what is to be found in a recording: sentences or subtitles, and the words of each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile

from config.errors import UserError
from data.importers import is_audio, sidecars
from data.importers import text_files as text
from data.importers.rows import ParsedUtterance
from data.text_chunking import split_text

_LONGEST = 200  # characters of a sentence; longer ones part at phrases
_MOST = 20_000_000  # characters of a text
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_SPACES = re.compile(r"[\s\u1361]+")
_LINE_END = re.compile(r"\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
_NARROWEST = 40  # characters of a line to which prose is broken
_BROKEN_LINES = 3  # from so many on, lines that all end where the next word had no room were broken by an editor


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
    kind = sidecars.kind_of(path)
    if kind.timed:
        found = [Line(item.text, item.begin_s, item.end_s) for item in kind.read(path, audio)
                 if isinstance(item, ParsedUtterance)]
    else:
        whole = "\n\n".join(_paragraphs(text.read(path, _MOST)))
        found = [Line(" ".join(piece.text.split())) for piece in split_text(whole, _LONGEST, len, len(whole) + 1, ends)]
    found = [line for line in found if line.text]
    if not found:
        raise UserError(f"{path} has no text.", "Give the text that is said in the recording.")
    return found


def check_text(path: Path) -> None:
    """Raise `UserError` for what cannot be the text of a recording, before any work."""
    if is_audio(path.name) or _sounds(path):
        raise UserError(f"{path} is a recording; the text that is said in it is wanted.",
                        "Give the text, or its subtitles, with --text, and the recording with --source.")
    next(text.pieces(path), "")


def _sounds(path: Path) -> bool:
    """Whether it is a recording under another name."""
    try:
        return soundfile.info(str(path)).frames > 0
    except (soundfile.SoundFileError, OSError):
        return False


def _paragraphs(whole: str) -> list[str]:
    """What a line end ends: every line, or, where an editor broke the lines to a width, what stands between empty ones.

    Broken lines are told by their width: none had room for the first word of the next one.
    """
    lines = [" ".join(line.split()) for line in _LINE_END.split(whole)]
    pairs = [(one, two) for one, two in zip(lines, lines[1:], strict=False) if one and two]
    width = max(map(len, lines), default=0)
    broken = len(pairs) >= _BROKEN_LINES and width >= _NARROWEST and all(
        len(one) + 1 + len(two.split()[0]) > width for one, two in pairs)
    if not broken:
        return [line for line in lines if line]
    return [" ".join(some) for filled, some in itertools.groupby(lines, key=bool) if filled]


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
