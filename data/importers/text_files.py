"""Text files line by line, in whatever Unicode they were saved in, also compressed by gzip (`.gz`).

No line is longer than `LONGEST_LINE`.
"""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from config import confinement
from config.errors import UserError
from config.foreign import encoding_of

LONGEST_LINE = 1 << 20  # characters
HEAD = 1 << 16  # bytes for recognising a format


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line with its end (`\\n`, `\\r\\n` or `\\r`)."""
    encoding = _encoding_at(path)
    with _explained(path), _opened(path) as raw, TextIOWrapper(raw, encoding, newline="") as reading:
        number = 0
        try:
            while True:
                line = reading.readline(LONGEST_LINE + 1)
                if not line:
                    return
                number += 1
                if len(line) > LONGEST_LINE:
                    raise UserError(f"{path}, line {number} has more than {LONGEST_LINE} characters.",
                                    "This is not a table or text with one recording a line; check the file.")
                yield number, line
        except UnicodeDecodeError as error:
            raise _wrong_encoding(path, encoding, raw.tell(), error) from error


def head(path: Path) -> str:
    """The first `HEAD` bytes as text; empty for a file that is no text or cannot be read."""
    try:
        with _opened(path) as file:
            start = file.read(HEAD)
        return codecs.getincrementaldecoder(encoding_of(start))().decode(start).lstrip("\ufeff")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return ""


def pieces(path: Path) -> Iterator[str]:
    """The text of a file in pieces of `HEAD` characters, for files without lines."""
    encoding = _encoding_at(path)
    with _explained(path), _opened(path) as raw, TextIOWrapper(raw, encoding, newline="") as reading:
        try:
            while True:
                piece = reading.read(HEAD)
                if not piece:
                    return
                yield piece
        except UnicodeDecodeError as error:
            raise _wrong_encoding(path, encoding, raw.tell(), error) from error


def read(path: Path, longest: int = LONGEST_LINE) -> str:
    """A file as one text; `UserError` when it has more than `longest` characters."""
    parts, size = [], 0
    for piece in pieces(path):
        parts.append(piece)
        size += len(piece)
        if size > longest:
            raise UserError(f"{path} has more than {longest} characters.", "Write one recording a line (JSONL, CSV).")
    return "".join(parts)


def _opened(path: Path) -> IO[bytes]:
    with confinement.verified(path) as readable:
        return cast("IO[bytes]", gzip.open(readable) if path.suffix.lower() == ".gz" else open(readable, "rb"))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or no gzip file: {error}.", "Download or pack it again.") from error
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", "Check path and permissions.") from error


def _encoding_at(path: Path) -> str:
    with _explained(path), _opened(path) as file:
        return encoding_of(file.read(HEAD))


def _wrong_encoding(path: Path, encoding: str, read_to: int, error: UnicodeDecodeError) -> UserError:
    """The first wrong byte; the bytes that were being decoded end at `read_to`."""
    name = "UTF-16" if "16" in encoding else "UTF-8"
    offset = read_to - len(error.object) + error.start
    return UserError(f"{path} is not {name}: byte {offset} is 0x{error.object[error.start]:02x}.",
                     "Save it as UTF-8 (in a spreadsheet: 'CSV UTF-8').")
