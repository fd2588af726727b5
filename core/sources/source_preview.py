"""A source before a job imports it (uploads, its form), and the report of its import. Never loads torch."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from config import confinement, foreign
from config.errors import UserError
from config.languages import script_doubt
from config.schema import AS_IS
from core.jobs.reporter import pluralize
from core.jobs.state import JobBoard
from core.library.segments import PREFIX
from core.sources.archives import is_archive, packed_files, unpack_archive
from core.workspace import BIN, KINDS, Workspace
from data.importers import WANTED, SkippedRow, SourceNote, import_source
from data.validation import ValidationReport as ValidationReport

REPORT_FILE = "report.json"
_UPLOADS = Path(KINDS["upload"]).name
_MAX_AGE_S = 24 * 3600.0
MOST_ENTRIES = 2000  # Later entries are not read.
_NAMED = 3
_LARGEST_ZIP, _LARGEST_TAR = 10_000_000_000, 200_000_000  # bytes; of a ZIP only texts are read, a TAR is read whole


def store_upload(workspace: Workspace, paths: Sequence[Path]) -> Path:
    """Link uploaded files into the workspace: the file, or a folder of several.

    Uploads of yesterday are deleted, except those that a job may still read.
    The files stay where they are as well: the page may send them again, together with what was missing.
    """
    if not paths:
        raise UserError("Nothing was uploaded.", "Choose a file, or several that belong together.")
    # Slashes and leading dots would lead out of the folder or hide the file.
    names = [re.sub(r"[/\\\0]", "_", path.name).lstrip(".") or "file" for path in paths]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), "")
    if twice:
        raise UserError(f"Two of the files are called {twice!r}.", "Pack them into an archive, or rename one.")

    home = workspace.uploads
    try:
        home.mkdir(parents=True, exist_ok=True)

        # Uploads that no job needs are deleted after a day.
        expired_folders = {folder for folder in home.iterdir() if folder.is_dir() and folder.name != BIN
                           and time.time() - folder.stat().st_mtime > _MAX_AGE_S}
        if expired_folders:
            expired_folders -= JobBoard(workspace).needed_paths()
        for expired_folder in expired_folders:
            shutil.rmtree(expired_folder, ignore_errors=True)

        folder = home / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        folder.mkdir()

        # Links take no space, and the browser's own copy stays.
        for path, name in zip(paths, names, strict=True):
            try:
                os.link(path, folder / name)
            except OSError:  # the folder is on another disk, or on one without links
                shutil.copyfile(path, folder / name)
    except OSError as error:
        message = f"The upload could not be stored: {error.strerror or error}."
        raise UserError(message, "Free some disk space.") from error
    return folder / names[0] if len(paths) == 1 else folder


def forget_upload(paths: Sequence[Path]) -> None:
    """Delete uploaded files that were stored and that the page does not show any more."""
    for path in paths:
        with suppress(OSError):
            path.unlink()


def preview(source: str, language: str) -> tuple[str, ...]:
    """The form of `source` and a summary of its first entries, a line each; `UserError` if it is no dataset."""
    try:
        lines = [_without_folder(line, source) for line in _describe(source, language)]
        return tuple(line.replace("the upload", "The upload", 1) if line.startswith("the upload") else line
                     for line in lines)
    except UserError as error:
        raise UserError(_without_folder(error.message, source), _without_folder(error.hint, source),
                        error.kind) from error


def read_report(folder: Path) -> ValidationReport | None:
    """The report of the check of the dataset in `folder`; None when there is none that can be read."""
    try:
        return ValidationReport.from_json(foreign.read_json(folder / REPORT_FILE))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _without_folder(text: str, source: str) -> str:
    """`text` without the folder that an upload is stored in, which means nothing to a person."""
    parts = Path(source).parts
    if _UPLOADS not in parts or parts.index(_UPLOADS) + 1 >= len(parts):
        return text
    folder = str(Path(*parts[:parts.index(_UPLOADS) + 2]))
    return text.replace(f"{folder}/", "").replace(folder, "the upload").replace(Path(folder).name, "the upload")


def script_question(source: str, language: str) -> str:
    """Why the first texts of `source` may be in another language or script; empty where they cannot be read here."""
    if unread(source):
        return ""
    with opened(source) as path:
        entries = islice(import_source(path, language, foreign=is_foreign(source)), MOST_ENTRIES) if path else ()
        return script_doubt(language, (entry.text for entry in entries if not isinstance(entry, SkippedRow)))


def _describe(source: str, language: str) -> tuple[str, ...]:
    if source.strip() in ("", "demo", AS_IS):
        return ()
    line = unread(source)
    if line:
        return (line,)
    with opened(source) as path:
        if path is None:
            return (f"{Path(source).name} is an archive: it is unpacked and recognised when the preparation starts.",)
        imported = import_source(path, language, foreign=is_foreign(source))
        looked_at = list(islice(imported, MOST_ENTRIES))

    # Rows without a text are skipped too, though they could be read.
    entries_read = [entry for entry in looked_at if not isinstance(entry, SourceNote)]
    left_out = [entry if isinstance(entry, SkippedRow) else SkippedRow(entry.location, "its text is empty")
                for entry in entries_read if isinstance(entry, SkippedRow) or not entry.text.strip()]
    prefix = "first " if len(looked_at) == MOST_ENTRIES else ""
    usable = len(entries_read) - len(left_out)
    entries = f"{prefix}{len(entries_read)} entr{'y' if len(entries_read) == 1 else 'ies'}"

    # The lines say what was recognised, then what is skipped and why.
    lines = [*imported.notes, f"Of its {entries} {usable} ha{'s' if usable == 1 else 've'} a recording and a text."]
    lines += [f"Skipped: {entry.location}: {entry.reason}." for entry in left_out[:_NAMED]]
    lines += [f"{entry.location}: {entry.reason}." for entry in looked_at if isinstance(entry, SourceNote)]
    if len(left_out) > _NAMED:
        lines.append(f"{len(left_out) - _NAMED} more are skipped; the report will name them all.")
    return tuple(lines)


def is_foreign(source: str) -> bool:
    """Whether the source may name no recording outside of its folder."""
    return confinement.is_confined() or _UPLOADS in Path(source).parts


def unread(source: str) -> str:
    """A line on a source that is not read before it is prepared; empty for one that is."""
    if source.strip() in ("", "demo", AS_IS):
        return "It is read when the preparation starts."
    if source.startswith(PREFIX):
        return f"{source.removeprefix(PREFIX)} was cut from long recordings; it can be prepared once it has texts."
    if source.lower().startswith(("http://", "https://", "hub:")):
        return "It is downloaded and recognised when the preparation starts."
    with confinement.opened(source, in_place=True) as path:
        return _unread_path(path)


def _unread_path(path: Path) -> str:
    if path.is_file() and is_archive(path):
        return ""
    tables, archives = packed_files(path)
    if tables or archives:
        packed = pluralize(len(archives), "archive") if archives else pluralize(len(tables), "table")
        return f"{path.name} has recordings in {packed}: it is unpacked and recognised when the preparation starts."
    if path == Path(path.anchor):
        raise UserError(f"{path} is no folder of recordings.", WANTED)
    # Walking /home or /usr takes too long for a page.
    if len(path.parts) < 3 and path.is_dir():
        return f"{path} is recognised when the preparation starts."
    return ""


@contextmanager
def opened(source: str) -> Iterator[Path | None]:
    """A folder or file to read entries from; of an archive its texts beside empty recordings, None for a large one."""
    with confinement.opened(source, in_place=True) as path, _opened_path(path) as readable:
        yield readable


@contextmanager
def _opened_path(path: Path) -> Iterator[Path | None]:
    if not (path.is_file() and is_archive(path)):
        yield path
        return
    if path.stat().st_size > (_LARGEST_ZIP if zipfile.is_zipfile(path) else _LARGEST_TAR):
        yield None
        return

    # Only texts are unpacked: recordings become empty files.
    with confinement.temporary_folder() as temporary:
        folder = temporary / path.name
        folder.mkdir()
        try:
            unpack_archive(path, folder, shutil.disk_usage(folder).free, texts_only=True)
            yield folder
        except UserError as error:
            error.rename({f"{folder}/": "", str(folder): path.name, str(temporary): "the archive"})
            raise
