"""Write files and folders whole or not at all, and compare files with their expected hashes.

A process may be killed at any time and a disk may be full: what is written here has its old content or its new one,
never a part. With `sync` it also outlives a power cut; caches, which can be made again, do without.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from config import foreign
from config.errors import ErrorKind, UserError

BLOCK_BYTES = 1 << 20
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch.serialization.MAGIC_NUMBER, pickled
_DISK_HINT = "Free space on the disk or change its permissions, then continue; nothing that existed was touched."
BlockCallback = Callable[[int, str], None]
"""Called for each block that was read: its bytes, and the name of its file."""


@contextmanager
def atomic_path(target: Path, *, sync: bool = True) -> Iterator[Path]:
    """The path of a hidden file beside `target`, which replaces `target` when the block ends well, else vanishes."""
    temporary = _hidden_beside(target)
    try:
        yield temporary
        if sync:
            fsync_path(temporary)
        os.replace(temporary, target)
        if sync:
            fsync_path(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write `content` to `path`, whole or not at all."""
    with atomic_path(path, sync=sync) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, *, sync: bool = True) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"), sync=sync)


def write_json(path: Path, value: object, *, sync: bool = True) -> None:
    """Write `value` to `path` as readable JSON, whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n", sync=sync)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all; `UserError` if the disk or the folder of `target` refuses it."""
    try:
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
    except OSError as error:
        raise UserError(f"{target} could not be written: {error.strerror or error}.", _DISK_HINT,
                        ErrorKind.ENVIRONMENT) from error


def append_text(path: Path, text: str) -> None:
    """Append lines to `path` and wait until they are on the disk; a line that was cut off before is ended first."""
    with open(path, "ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def atomic_directory(target: Path, hint: str = _DISK_HINT) -> Iterator[Path]:
    """A new hidden folder beside `target`, renamed to `target` when the block ends well, else removed.

    `target` must not exist. A failing disk raises `UserError` with `hint`.
    """
    _remove_leftovers(target)
    temporary = _hidden_beside(target)
    descriptor = -1
    try:

        # The lock tells other processes that this folder is still being written.
        temporary.mkdir(parents=True)
        descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        # Some file systems have no locks; then nothing is removed either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield temporary
        fsync_tree(temporary)
        temporary.rename(target)
        fsync_path(target.parent)
    except OSError as error:
        hint = _NO_FSYNC if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS) else hint
        raise UserError(f"{target} could not be written: {error.strerror or error}.", hint,
                        ErrorKind.ENVIRONMENT) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


_NO_FSYNC = "The file system of this folder cannot do what is needed (fsync, rename). Choose a folder on a local disk."


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left of `target`; a living process has a lock on its file."""
    pattern = re.compile(rf"\.{re.escape(target.name[:200])}-[0-9a-f]{{8}}")
    with suppress(OSError):
        for entry in os.scandir(target.parent):
            if not pattern.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            with suppress(OSError):
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(descriptor)


def fsync_path(path: Path) -> None:
    """Wait until the content of a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Wait until every file and folder below `folder`, and `folder` itself, is on the disk."""
    for path in (*folder.rglob("*"), folder):
        fsync_path(path)


def _hidden_beside(target: Path) -> Path:
    """A new name; listings of the workspace leave out names that start with a dot."""
    return target.with_name(f".{target.name[:200]}-{uuid.uuid4().hex[:8]}")


@dataclass(frozen=True)
class ExpectedFile:
    """Expected size and hash of a file. A hub gives `sha256` of large files and git's SHA-1 (`blob`) of small ones."""

    size: int = -1  # bytes; -1: not known
    sha256: str = ""
    blob: str = ""

    @property
    def hashed(self) -> bool:
        return bool(self.sha256 or self.blob)


class FileHasher:
    """The hashes of a file, updated block by block."""

    def __init__(self, expected: ExpectedFile) -> None:
        self.expected = expected
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._blob = hashlib.sha1(b"blob %d\0" % expected.size, usedforsecurity=False) if expected.blob else None

    def update(self, block: bytes) -> None:
        self.size += len(block)
        self._sha256.update(block)
        if self._blob:
            self._blob.update(block)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def fault(self) -> str:
        """How the content differs from what was expected, with both values; empty if it is equal."""
        expected = self.expected
        if expected.size >= 0 and self.size != expected.size:
            return f"it has {self.size} bytes, the whole file {expected.size}"
        if expected.sha256 and self.sha256 != expected.sha256:
            return (f"its {self.size} bytes have the SHA-256 {self.sha256[:12]}..., those of the whole file "
                    f"{expected.sha256[:12]}...")
        if self._blob and self._blob.hexdigest() != expected.blob:
            return f"its git hash begins {self._blob.hexdigest()[:12]}, that of the whole file {expected.blob[:12]}"
        return ""


def hash_with_progress(path: Path, expected: ExpectedFile, on_block: BlockCallback | None = None) -> FileHasher:
    """The hashes of `path`, to compare with `expected`."""
    hasher = FileHasher(expected)
    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK_BYTES)
            if not block:
                break
            hasher.update(block)
            if on_block:
                on_block(len(block), path.name)
    return hasher


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_tree(folder: Path, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
    """SHA-256 of every file below `folder` by its relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: hash_file(path) for name, path in named.items() if name not in leave_out}


def find_faults(folder: Path, files: Mapping[str, ExpectedFile],
                on_block: BlockCallback | None = None) -> Iterator[tuple[str, str]]:
    """For each file of `folder` that is not as expected, its name and fault, a sentence with both values."""
    for name, expected in files.items():
        path = check_no_link_out(folder, name)
        if not path.is_file():
            yield name, f"{path} is missing."
            continue

        # The size is compared first, because hashing a file of gigabytes takes seconds.
        size = path.stat().st_size
        if expected.size >= 0 and size != expected.size:
            word = "cut off" if size < expected.size else "too long"
            yield name, f"{path} is {word}: it has {size} bytes, the whole file {expected.size}."
            continue
        fault = hash_with_progress(path, expected, on_block).fault()
        if fault:
            yield name, f"{path} is damaged: {fault}."


def is_pytorch_file(path: Path) -> bool:
    """Whether a file begins as torch writes one: a zip archive, or the pickled magic number of torch before 1.6."""
    with open(path, "rb") as file:
        return file.read(len(_LEGACY_MAGIC)) == _LEGACY_MAGIC or zipfile.is_zipfile(file)


def check_relative_path(name: str, source: object) -> None:
    """Raise `UserError` when `name`, which stands in `source`, is not a plain path inside of a folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise UserError(
            f"{source} names {name!r}, which lies outside of its folder.", "Do not use it: it was tampered with.",
        )


def check_no_link_out(folder: Path, name: str) -> Path:
    """`folder / name`; `UserError` if a link leads out of `folder`."""
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # links in a circle
        inside = False
    if not inside:
        raise UserError(f"{path} is a link that leads out of {folder.name}; it is not followed.",
                        "Put the file itself there, if it is yours.")
    return path


def read_sums(path: Path, hint: str) -> dict[str, str]:
    """SHA-256 by relative path from a JSON file; `UserError` when it is damaged or leads out of its folder."""
    try:
        sums = {str(name): str(digest) for name, digest in foreign.read_json(path).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"The list of files {path} could not be read: {foreign.reason_of(error)}.", hint) from error
    for name in sums:
        check_relative_path(name, path)
    return sums


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link to `source`, or a copy if the disk cannot link."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
