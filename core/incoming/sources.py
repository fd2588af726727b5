"""From what a person names to a folder or file on this machine: a path, an archive, a URL, or a dataset of the hub.

What is fetched lies in the workspace's cache until its import is whole, so that one that was stopped or failed goes on
with it; what is unpacked, as long as the import runs. It came from elsewhere, so it may name no file outside of its own
folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import data
from config.errors import UserError
from core.incoming.hub import Hub
from core.incoming.hub_dataset import PREFIX, Address, brought
from core.incoming.looking import UPLOADS
from core.incoming.scratch import scratch
from core.incoming.transfer import Patience
from core.incoming.unpack import is_archive, unpack
from core.incoming.web import fetch
from core.jobs.events import Progress
from core.jobs.reporter import Reporter, check_stop
from core.segments.folder import PREFIX as PREFIX_SEGMENTS
from core.segments.folder import find
from core.workspace import Workspace
from data import film
from data.importers import FILM_SUFFIXES, Entry, Imported, Row, Skipped, import_source, safe_id

_STOPPED = "Stopped before the dataset was written."


@dataclass(frozen=True)
class Gathered:
    """What an import reads. `made` is where what it needs on the way may be put."""

    path: Path
    made: Path
    foreign: bool = False
    notes: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()


@contextmanager
def gathered(source: str, language: str, workspace: Workspace, reporter: Reporter, most: int = 0,
             patience: Patience = Patience()) -> Iterator[Gathered]:  # noqa: B008  a frozen value
    """What `source` names, here as long as the block lasts. Of a hub's dataset, `most` clips are fetched (0: all)."""
    if source.startswith(PREFIX_SEGMENTS):
        yield Gathered(find(workspace, source), workspace.cache)
        return
    downloads = workspace.cache / "downloads"
    with scratch(workspace) as folder:
        made = folder / "made"
        made.mkdir()
        if address := _on_the_hub(source):
            hub = Hub.from_environment("dataset")
            with brought(address, downloads, language, most, hub, reporter, patience) as there:
                yield Gathered(there.folder, made, True, there.notes, there.skipped)
            return
        if _is_url(source):
            path = fetch(_as_file(source), downloads, reporter, patience)
        else:
            path = demo(language) if source == "demo" else Path(source).expanduser()
        if path.is_file() and is_archive(path):
            yield _unpacked(path, folder / "unpacked", made, workspace, reporter)
        else:
            yield Gathered(path, made, _is_url(source) or path.is_relative_to(workspace.cache / UPLOADS))
        if path.is_relative_to(downloads):  # its clips are in the dataset now
            shutil.rmtree(path.parent, ignore_errors=True)


def _is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def _on_the_hub(source: str) -> Address | None:
    return Address.parse(source) if _is_url(source) or source.startswith(PREFIX) else None


def _as_file(url: str) -> str:
    """The address of the file itself, where a page of the hub that shows it was given."""
    return url.replace("/blob/", "/resolve/") if url.startswith("https://huggingface.co/") else url


def read(source: Gathered, language: str, reporter: Reporter) -> Imported:
    """The rows of what was gathered; the sound of films is taken out as they are reached."""
    imported = import_source(source.path, language, foreign=source.foreign)
    listed = _Chain(source.skipped, imported.entries)
    heard = _Heard(listed, source.made, source.path, reporter)
    return replace(imported, entries=heard, notes=(*source.notes, *imported.notes))


def count(imported: Imported) -> int:
    """How many entries there are, without opening a film."""
    entries = imported.entries
    return sum(1 for _ in (entries.entries if isinstance(entries, _Heard) else entries))


def demo(language: str) -> Path:
    """The dataset of `language` that ships with the app."""
    demos = Path(str(data.__file__)).parent / "demo"
    folder = demos / language
    if not folder.is_dir():
        there = ", ".join(sorted(path.name for path in demos.glob("*") if path.is_dir())) or "none"
        raise UserError(
            f"There is no demo dataset for the language {language!r} (there: {there}).",
            "Choose one of these languages, or give a folder or table of your own as source.",
        )
    return folder


def _unpacked(path: Path, folder: Path, made: Path, workspace: Workspace, reporter: Reporter) -> Gathered:
    folder.mkdir()
    done = 0

    def tell(size: int, name: str) -> None:
        nonlocal done
        done += size
        check_stop(reporter, _STOPPED)
        reporter.emit(Progress(done, None, "bytes", Path(name).name[:60]))

    skipped = unpack(path, folder, workspace.free_bytes(), tell)
    return Gathered(folder, made, True, (f"{path.name} is an archive; it was unpacked.",), tuple(skipped))


@dataclass(frozen=True)
class _Chain:
    """One after the other, on each pass."""

    first: tuple[Skipped, ...]
    then: Iterable[Entry]

    def __iter__(self) -> Iterator[Entry]:
        yield from self.first
        yield from self.then


@dataclass(frozen=True)
class _Heard:
    """Entries whose recordings can be read as they are: for films, the sound that was taken out into `folder`."""

    entries: Iterable[Entry]
    folder: Path
    root: Path
    reporter: Reporter

    def __iter__(self) -> Iterator[Entry]:
        fault: tuple[Path, str] | None = None
        for entry in self.entries:
            if not isinstance(entry, Row) or entry.audio.suffix.lower() not in FILM_SUFFIXES:
                yield entry
                continue
            sound = self.folder / _sound_name(entry.audio, self.root)
            if (fault is None or fault[0] != entry.audio) and not sound.is_file():
                fault = self._take_out(entry.audio, sound)
            if fault is not None and fault[0] == entry.audio:
                yield Skipped(entry.where, fault[1])
            else:
                yield replace(entry, audio=sound)

    def _take_out(self, path: Path, sound: Path) -> tuple[Path, str] | None:
        try:
            film.sound_of(path, sound, lambda: check_stop(self.reporter, _STOPPED))
        except UserError as error:
            return path, f"{error.message} {error.hint}"
        return None


def _sound_name(path: Path, root: Path) -> str:
    """A name for the sound of a film that is the same each time it is imported, wherever it was unpacked."""
    inside = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
    return f"{safe_id(path.stem)}-{sha256(str(inside).encode('utf-8', 'surrogateescape')).hexdigest()[:8]}.flac"
