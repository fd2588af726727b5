"""Confines what is opened for a person at the page to chosen folders (`--sources`), by descriptor.

A path is opened first, and the kernel then says where the open file lies (`/proc/self/fd`). Whatever was typed (`..`,
spaces, links, `/proc/self/root`), and whatever is exchanged afterwards, the file that was checked is the one that is
read. Without `LISAN_SOURCES` nothing is confined, as at the command line.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from itertools import product
from pathlib import Path

from config.errors import UserError

VARIABLE = "LISAN_SOURCES"  # folders that the app and its workers may read
WORKSPACE_KEY = "workspace.key"
"""The file with a workspace's secret key (`core.library.workspace_key`), which is never read as anything else."""
LONGEST_PATH = 4096  # bytes, as in Linux
HINT = "Give a file of another machine, or one in the folders that the app was started with (--sources)."
_DESCRIPTORS = Path("/proc/self/fd")
_WORKSPACES: list[str] = []
"""The real path of the workspace of this process, which may be read too."""
_APP_FOLDERS = tuple(str(Path(__file__).resolve().parents[1] / name)
                     for name in ("config", "core", "data", "docs", "models", "scripts", "ui"))
"""The app's own texts, weights and demo, which readers of a source open too."""
_TEMPORARY: set[str] = set()
"""The real paths of this process's own temporary files and folders."""
_PINS = ExitStack()
_BLOCK_PINS: ContextVar[ExitStack | None] = ContextVar("block_pins", default=None)
"""What the block of `pinned` has opened."""
_GIVEN: dict[str, str] = {}
"""The path that a person gave, by the path of the pinned file."""


def limit(workspace: Path, folders: Sequence[str]) -> None:
    """Confine this process, and those that it starts, to `workspace` and `folders`; `UserError` for a missing one."""
    if not folders:
        os.environ.pop(VARIABLE, None)
        return
    for folder in folders:
        if not Path(folder).expanduser().is_dir():
            raise UserError(f"--sources {folder!r} is not a folder.", "Give a folder that exists.")
        if os.pathsep in os.path.realpath(Path(folder).expanduser()):
            raise UserError(f"--sources {folder!r} has {os.pathsep!r} in its path, which would make two folders of it.",
                            "Rename the folder.")
    if not _DESCRIPTORS.is_dir():
        raise UserError("--sources needs /proc/self/fd, which this system does not have.", "Start the app on Linux.")
    os.environ[VARIABLE] = os.pathsep.join(os.path.realpath(Path(folder).expanduser()) for folder in folders)
    include(workspace)


def include(workspace: Path) -> None:
    """Let this process read `workspace` too, if it is confined."""
    _WORKSPACES[:] = [os.path.realpath(workspace)]


def workspace() -> Path | None:
    """The workspace that `include` named, for processes that do a part of this one's work."""
    return Path(_WORKSPACES[0]) if _WORKSPACES else None


def is_confined() -> bool:
    return bool(os.environ.get(VARIABLE))


def _folders() -> list[str]:
    folders = [folder for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    return [*folders, *_WORKSPACES] if folders else []


def _is_inside(real: str, folders: Sequence[str]) -> bool:
    return any(real == folder or real.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _linked() -> list[str]:
    """The real paths of artefacts whose folder in the workspace is a link, such as a model on another disk."""
    links: list[str] = []
    for workspace, pattern in product(_WORKSPACES, ("*", "*/*")):
        linked = (path for path in Path(workspace).glob(pattern) if path.is_symlink())
        links += [os.path.realpath(path) for path in linked if path.is_dir()]
    return links


def _may_be_read(real: str) -> bool:
    return _is_inside(real, _folders()) or _is_inside(real, _linked())


class OutsideSources(UserError, ValueError):
    """A path outside of the folders that may be read, whether it exists or not."""


def _refusal(path: str | Path) -> OutsideSources:
    return OutsideSources(f"{str(path)[:200]!r} is not in the folders that may be read.", HINT)


def check(path: str | Path, *, links: bool = True) -> None:
    """Raise `UserError` if this process is confined and `path`, or a link in that folder, leads out of its folders.

    `links`: whether the links in a folder are looked at, which takes a while in a large one.

    A path that does not exist is refused by where it would be, so the answer does not tell what exists elsewhere.
    """
    _refuse_key(path)
    if not is_confined():
        return
    descriptor = _open(path)
    if descriptor is None:
        if not _may_be_read(_real_path(path)):
            raise _refusal(path)
        return
    try:
        _check_descriptor(descriptor, path, links=links)
    finally:
        os.close(descriptor)


def _refuse_key(path: str | Path) -> None:
    """Raise `UserError` for the secret key of a workspace, also if nothing is confined."""
    try:
        name = os.path.basename(os.path.realpath(os.path.expanduser(path)))
    except (OSError, RuntimeError, ValueError):
        return  # no file can have that name
    if name == WORKSPACE_KEY:
        raise UserError(f"{str(path)[:200]!r} is the secret key of a workspace, which is not read as a source.",
                        "Give another file.")


def _real_path(path: str | Path) -> str:
    try:
        return os.path.realpath(Path(path).expanduser())
    except (OSError, RuntimeError, ValueError):
        raise _refusal(path) from None


def _open(path: str | Path) -> int | None:
    """A descriptor that stands for `path` and reads nothing; None if nothing is there."""
    if len(str(path).encode("utf-8", "replace")) > LONGEST_PATH:
        raise _refusal(path)
    try:
        return os.open(Path(path).expanduser(), os.O_PATH | os.O_CLOEXEC)
    except PermissionError:
        raise _refusal(path) from None
    except (OSError, RuntimeError, ValueError):
        return None


def _check_descriptor(descriptor: int, path: str | Path, *, links: bool = True) -> str:
    """The real path of what is open, which must be a file or folder inside, without links that lead out."""
    real = os.readlink(_DESCRIPTORS / str(descriptor))
    kind = os.fstat(descriptor).st_mode
    if not _may_be_read(real) or not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise _refusal(path)
    if stat.S_ISDIR(kind) and links:
        _check_links(real)
    return real


def _check_links(folder: str) -> None:
    pending = [folder]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            # A job cannot read what this account may not list either.
            continue
        for entry in entries:
            if entry.is_symlink():
                if not _may_be_read(os.path.realpath(entry.path)):
                    raise UserError(f"{entry.path} is a link that leads out of the folders that may be read.",
                                    "Put the file itself there, or remove the link.")
            elif entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)


@contextmanager
def opened(path: str | Path, *, in_place: bool = False) -> Iterator[Path]:
    """`path` to read from; if this process is confined, the file or folder that was checked, whatever takes its name.

    For a file, this is a link with its name to the open descriptor. For a folder, and with `in_place` for a file that
    is read together with its neighbours, it is the real path; every file below is opened by `verified`.
    """
    _refuse_key(path)
    if not is_confined():
        yield Path(path).expanduser()
        return

    # The descriptor is opened before the check, so that the name cannot be given to another file in between.
    descriptor = _open(path)
    if descriptor is None:
        check(path)
        # A missing file is reported by the caller, which knows what it is for.
        yield Path(path).expanduser()
        return
    try:
        real = _check_descriptor(descriptor, path)
        if in_place or stat.S_ISDIR(os.fstat(descriptor).st_mode):
            yield Path(real)
            return

        # Readers tell formats by the suffix, so the descriptor gets a link with the file's own name.
        with tempfile.TemporaryDirectory(prefix="lisan-source-") as folder:
            link = Path(folder) / os.path.basename(real)
            link.symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
            _GIVEN[str(link)] = str(path)
            try:
                yield link
            except UserError as error:
                error.rename(_GIVEN)  # paths that a person gave, instead of those of pinned files
                raise
            finally:
                del _GIVEN[str(link)]
    finally:
        os.close(descriptor)


def open_path(path: str | Path, *, in_place: bool = False) -> Path:
    """As `opened`, until the block of `job` or `pinned` ends."""
    _refuse_key(path)
    if not is_confined():
        return Path(path).expanduser()
    return (_BLOCK_PINS.get() or _PINS).enter_context(opened(path, in_place=in_place))


@contextmanager
def pinned() -> Iterator[None]:
    """The block in which the page acts: what this thread opened by `open_path` is closed at its end."""
    with ExitStack() as pins:
        token = _BLOCK_PINS.set(pins)
        try:
            yield
        finally:
            _BLOCK_PINS.reset(token)


@contextmanager
def job(workspace: Path) -> Iterator[None]:
    """The block in which a job of `workspace` runs: what it opened by `open_path` is closed at its end."""
    include(workspace)
    try:
        yield
    except UserError as error:
        error.rename(_GIVEN)  # paths that a person gave, instead of those of pinned files
        raise
    finally:
        _PINS.close()


@contextmanager
def verified(path: str | Path) -> Iterator[str]:
    """`path` to read a file from, opened and checked by descriptor if this process is confined.

    Besides sources and workspace, the app's own data and what `temporary_folder` and `temporary_file` name may be read.
    A path outside is refused in the same words whether it exists or not.
    """
    _refuse_key(path)
    if not is_confined():
        yield str(path)
        return

    # This descriptor reads nothing, so that not even a device is opened before it is known where it lies.
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        if not _may_be_verified(_real_path(path)):
            raise _refusal(path) from None
        raise
    try:
        if not _may_be_verified(os.readlink(_DESCRIPTORS / str(place))):
            raise _refusal(path)
        try:
            descriptor = os.open(f"{_DESCRIPTORS}/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            error.filename = str(path)
            raise
    finally:
        os.close(place)
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _may_be_verified(real: str) -> bool:
    return _is_inside(real, (*_folders(), *_APP_FOLDERS, *_TEMPORARY)) or _is_inside(real, _linked())


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for files that this process makes and reads."""
    with tempfile.TemporaryDirectory(prefix="lisan-") as folder, temporary_file(folder):
        yield Path(folder)


@contextmanager
def temporary_file(path: str | Path) -> Iterator[None]:
    """Let this process read a temporary file of its own."""
    real = os.path.realpath(path)
    _TEMPORARY.add(real)
    try:
        yield
    finally:
        _TEMPORARY.discard(real)
