"""What a person gives, before a job imports it: uploads are kept, and a source is recognised. Never loads torch."""

from __future__ import annotations

import re
import shutil
import time
import uuid
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from config.errors import UserError
from config.schema import AS_IS
from core.incoming.unpack import is_archive
from core.segments.folder import PREFIX
from core.workspace import Workspace
from data.importers import KNOWN_FORMS, SkippedRow, import_source

UPLOADS = "uploads"
_KEPT_S = 7 * 24 * 3600.0
_FIRST = 2000  # entries that are looked at
_NAMED = 3


def keep(workspace: Workspace, paths: Sequence[Path]) -> Path:
    """Take uploaded files into the workspace: the file, or a folder of several; those of a week ago go."""
    if not paths:
        raise UserError("Nothing was uploaded.", "Choose a file, or several that belong together.")
    home = workspace.cache / UPLOADS
    try:
        home.mkdir(parents=True, exist_ok=True)
        for old in home.iterdir():
            if old.is_dir() and time.time() - old.stat().st_mtime > _KEPT_S:
                shutil.rmtree(old, ignore_errors=True)
        folder = home / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        folder.mkdir()
        for path in paths:
            name = re.sub(r"[/\\\0]", "_", path.name).lstrip(".") or "file"
            if (folder / name).exists():
                raise UserError(f"Two of the files are called {name!r}.", "Pack them into an archive, or rename one.")
            shutil.move(path, folder / name)
    except OSError as error:
        raise UserError(f"The upload could not be kept: {error.strerror or error}.", "Free some disk space.") from error
    return folder / name if len(paths) == 1 else folder


def look(source: str, language: str) -> tuple[str, ...]:
    """What `source` was recognised as and what its first entries come to, a line each; `UserError` for no dataset."""
    try:
        return tuple(_without_place(line, source) for line in _look(source, language))
    except UserError as error:
        raise UserError(_without_place(error.message, source), _without_place(error.hint, source)) from error


def _without_place(words: str, source: str) -> str:
    """`words` without the folder that an upload is kept in, which says nothing to who uploaded it."""
    parts = Path(source).parts
    if UPLOADS not in parts or parts.index(UPLOADS) + 1 >= len(parts):
        return words
    kept = str(Path(*parts[:parts.index(UPLOADS) + 2]))
    return words.replace(f"{kept}/", "").replace(kept, "the upload").replace(Path(kept).name, "the upload")


def _look(source: str, language: str) -> tuple[str, ...]:
    if source.strip() in ("", "demo", AS_IS):
        return ()
    if source.startswith(PREFIX):
        return (f"{source.removeprefix(PREFIX)} was cut from long recordings; it can be prepared once it has texts.",)
    if source.lower().startswith(("http://", "https://", "hub:")):
        return ("It is fetched and recognised when the preparation begins.",)
    path = Path(source).expanduser()
    if path.is_file() and is_archive(path):
        return (f"{path.name} is an archive: it is unpacked and recognised when the preparation begins.",)
    if len(path.parts) < 3:
        raise UserError(f"{path} is no folder of recordings.", f"Lisan knows {KNOWN_FORMS}.")
    found = import_source(path, language)
    first = list(islice(found, _FIRST))
    left_out = [entry if isinstance(entry, SkippedRow) else SkippedRow(entry.where,
                                                                       "its text is empty") for entry in first
                if isinstance(entry, SkippedRow) or not entry.text.strip()]
    more = "first " if len(first) == _FIRST else ""
    usable = len(first) - len(left_out)
    lines = [*found.notes, f"Of its {more}{len(first)} entries {usable} have a recording and a text."]
    lines += [f"Left out: {entry.where}: {entry.reason}." for entry in left_out[:_NAMED]]
    if len(left_out) > _NAMED:
        lines.append(f"{len(left_out) - _NAMED} more are left out; the report will name them all.")
    return tuple(lines)
