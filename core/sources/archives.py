"""Archives of recordings (ZIP, and TAR with gzip, bzip2 or xz) into a folder, and nothing beyond it. Never loads torch.

Only what could belong to a dataset is written: recordings, texts and tables. A name that leads out of the folder, a
link, a device, an encrypted or damaged member is skipped and named; an archive that would fill the disk, or that
expands from next to nothing, is refused.

`tarfile.data_filter` is not used: nothing here is extracted by `tarfile`, members are read as streams, and only plain
files under checked names are written; ZIP needs the same checks, which the filter does not make.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from config import confinement, foreign
from config.errors import ErrorKind, UserError
from core.jobs.reporter import size_text
from core.workspace import KINDS
from data.durable_files import BLOCK_BYTES, BlockCallback
from data.importers.rows import AUDIO_SUFFIXES, TEXT_SUFFIXES, SkippedRow, is_audio, printable
from data.importers.sidecars import walk_folders

SUFFIXES = (".zip", ".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
TABLE_SUFFIXES = (".parquet", ".arrow")  # tables with recordings inside
_BARE = ("text", "segments", "utt2spk", "prompts", "prompts-original")  # names in Kaldi and VoxForge
_SPARE_BYTES = 200_000_000  # bytes left free
_MAX_MEMBERS = 2_000_000
_MAX_EXPANSION, _ALWAYS_ALLOWED = 200, 500_000_000  # times the archive's size, beyond so many bytes
_HIDDEN = "is hidden"
_MAX_NAMED = 1000  # skipped members that are named one by one
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile,
            NotImplementedError)


def is_archive(path: Path) -> bool:
    """Whether `path` is named as an archive, or begins as a ZIP does."""
    if path.name.lower().endswith(SUFFIXES):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\3\4"
    except OSError:
        return False


def packed_files(path: Path) -> tuple[list[Path], list[Path]]:
    """Tables with recordings inside, and archives, of a folder that has no recording outside of them; or `path` itself.

    Shards of a data set on the hub or of WebDataset lie so. In an upload, archives are wanted beside recordings too.
    """
    if path.is_file():
        return ([path] if path.suffix.lower() in TABLE_SUFFIXES else []), []
    tables, archives, loose = list[Path](), list[Path](), False
    for place, names in walk_folders(path) if path.is_dir() else ():
        loose = loose or any(map(is_audio, names))
        tables += [place / name for name in names if name.lower().endswith(TABLE_SUFFIXES)]
        archives += [place / name for name in names if name.lower().endswith(SUFFIXES)]
    if loose:
        return [], archives if path.parent.name == Path(KINDS["upload"]).name else []
    return tables, archives


def unpack_archive(path: Path, folder: Path, free: int, on_block: BlockCallback = lambda size, name: None,
                   *, texts_only: bool = False, only: frozenset[str] | None = None) -> list[SkippedRow]:
    """Write the members of the archive at `path` into `folder`, which is empty; the skipped ones.

    `free`: bytes that may be written. `texts_only`: recordings become empty files, for a look at the texts. `only`:
    the paths below `folder` that are written, with `/`; None writes all. Raises `UserError` for an archive that is
    damaged or too large.
    """
    room = min(free - _SPARE_BYTES, max(_ALWAYS_ALLOWED, _MAX_EXPANSION * path.stat().st_size))
    unpacking = _Unpacking(path, folder, room, on_block, texts_only, only)
    hint = "Give a ZIP, or a TAR (.tar, .tar.gz, .tar.bz2, .tar.xz); download or pack it again."
    try:
        with foreign.reading(path.name, hint, *_DAMAGED), confinement.verified(path) as readable:
            if zipfile.is_zipfile(readable):
                _zip(Path(readable), unpacking)
            else:
                _tar(Path(readable), unpacking)
    except foreign.DamagedFile as error:
        raise UserError(f"{path.name} is damaged or no archive that Lisan opens: {error.__cause__}.", hint) from error
    # Files that are of no use here are reported as one entry.
    if unpacking.other_files:
        others_note = f" and {unpacking.other_files - 1} more" if unpacking.other_files > 1 else ""
        location = f"{path.name}: {unpacking.other}{others_note}"
        unpacking.skipped.append(SkippedRow(location, "no recording, text or table"))
    return unpacking.skipped


@dataclass
class _Unpacking:
    """The folder for the members, and how many bytes may still be written."""

    archive: Path
    folder: Path
    room: int
    on_block: BlockCallback
    texts_only: bool = False
    only: frozenset[str] | None = None
    skipped: list[SkippedRow] = field(default_factory=list)
    written_bytes: int = 0
    members: int = 0
    other_files: int = 0  # files of no use here
    other: str = ""  # the first of them

    def wanted(self, name: str, size: int) -> Path | None:
        """The path for the member `name`; None for a skipped one, whose reason is noted."""
        self.members += 1
        # A limit on the number stops archives of very many tiny files.
        if self.members > _MAX_MEMBERS:
            raise UserError(f"{self.archive.name} has more than {_MAX_MEMBERS} files.", "Pack it in parts.")
        inside = path_inside(name)
        if self.only is not None and str(inside) not in self.only:
            return None
        if not self.texts_only:
            self.check(size, name)
        if isinstance(inside, str):
            # Nobody packed files such as macOS's `__MACOSX/._a.wav` on purpose.
            if inside != _HIDDEN:
                self.skip(name, inside)
            return None
        lower = inside.name.lower()
        # Only files that an import can read are unpacked.
        if lower.endswith(SUFFIXES):
            self.skip(name, "is an archive within the archive; unpack it and give it by itself")
            return None
        if not lower.endswith((*AUDIO_SUFFIXES, *TEXT_SUFFIXES, *TABLE_SUFFIXES)) and lower not in _BARE:
            self.other_files += 1
            self.other = self.other or printable(name)
            return None
        return self.folder.joinpath(inside)

    def check(self, size: int, name: str) -> None:
        if self.written_bytes + size > self.room:
            raise UserError(
                f"{self.archive.name} ({size_text(self.archive.stat().st_size)}) would unpack to more than "
                f"{size_text(max(0, self.room))}, at {printable(name)!r}: that does not fit here, or it is no archive "
                "of recordings.",
                "Free space on the workspace's disk, then continue; or unpack it yourself and give the folder.",
                ErrorKind.ENVIRONMENT,
            )

    def skip(self, name: str, reason: str) -> None:
        if len(self.skipped) < _MAX_NAMED:
            self.skipped.append(SkippedRow(f"{self.archive.name}: {printable(name[:200])}", reason))
        else:
            self.other_files += 1

    def write(self, name: str, target: Path, source: IO[bytes]) -> None:
        """Copy a member; its real bytes are counted, not those that the archive claims."""
        is_skipped = self.texts_only and is_audio(target.name)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as writing:
                while not is_skipped:
                    block = source.read(BLOCK_BYTES)
                    if not block:
                        break
                    self.check(len(block), name)
                    self.written_bytes += len(block)
                    writing.write(block)
                    self.on_block(len(block), name)
        except (FileExistsError, NotADirectoryError):
            # A file stands where a folder is needed, or the other way round.
            inside = target.relative_to(self.folder)
            file = next((str(place) for place in inside.parents if (self.folder / place).is_file()), "")
            self.skip(name, f"lies in {printable(file)}, which is a file there too; rename one of the two" if file
                      else "is a file, but other files lie in a folder of that name; rename one of the two"
                      if target.is_dir() else "is there twice")


def path_inside(name: str) -> PurePosixPath | str:
    """The relative path that `name` means, or why it is none."""
    pure = PurePosixPath(name.replace("\\", "/"))
    if pure.is_absolute() or re.match(r"[A-Za-z]:", name):
        return "is a path from the root; archives may name only what is in them"
    if ".." in pure.parts:
        return "leads out of the archive"
    if "\0" in name or not pure.parts or any(len(part.encode("utf-8", "replace")) > 240 for part in pure.parts):
        return "is no name of a file"
    if any(part.startswith((".", "__MACOSX")) for part in pure.parts):
        return _HIDDEN
    # A name in a TAR that is not UTF-8 is shown as in a ZIP.
    if any(0xDC80 <= ord(letter) <= 0xDCFF for letter in name):
        pure = PurePosixPath(str(pure).encode("utf-8", "surrogateescape").decode("cp437"))
    return PurePosixPath(str(pure).encode("utf-8", "replace").decode())


def _zip(path: Path, to: _Unpacking) -> None:
    with zipfile.ZipFile(path) as archive:
        if not to.texts_only and to.only is None:
            to.check(sum(info.file_size for info in archive.infolist()), "all its files")
        for info in archive.infolist():
            # The upper bits are the Unix mode, if the packer wrote one.
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir():
                continue
            if kind and kind != stat.S_IFREG:
                to.skip(info.filename, "is a link or device, which is not followed")
            elif info.flag_bits & 1:
                to.skip(info.filename, "is encrypted")
            else:
                target = to.wanted(info.filename, info.file_size)
                if target is not None:
                    with _named(info.filename, target, to), archive.open(info) as source:
                        to.write(info.filename, target, source)


@contextmanager
def _named(name: str, target: Path, to: _Unpacking) -> Iterator[None]:
    """One damaged member of a ZIP leaves the others as they are."""
    try:
        yield
    except (*_DAMAGED, OSError, ValueError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        target.unlink(missing_ok=True)
        to.skip(name, f"is damaged: {error}")


def _tar(path: Path, to: _Unpacking) -> None:
    with (closing(_Bounded(path, to)) as stream,
          tarfile.open(fileobj=stream, mode="r|") as archive):  # type: ignore[call-overload]  # it only reads
        for member in archive:
            if member.isdir():
                continue
            if not member.isreg():
                to.skip(member.name, "is a link or device, which is not followed")
            else:
                target = to.wanted(member.name, member.size)
                if target is not None:
                    source = archive.extractfile(member)
                    assert source is not None
                    to.write(member.name, target, source)
            archive.members = []  # it would remember each


class _Bounded:
    """A TAR's uncompressed bytes; no more than the disk could take, also of skipped members."""

    def __init__(self, path: Path, to: _Unpacking) -> None:
        with open(path, "rb") as file:
            magic = file.read(6)
        openers: tuple[tuple[bytes, Any], ...] = (
            (b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open), (b"", open))
        self._file: IO[bytes] = next(opener for mark, opener in openers if magic.startswith(mark))(path, "rb")
        self._to = to
        self._read = 0
        # Headers and padding come on top of the content.
        self._most = to.room + max(to.room // 10, 100_000_000)

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._read += len(block)
        if self._read > self._most:
            self._to.check(self._most, "what it holds")
        return block

    def close(self) -> None:
        self._file.close()
