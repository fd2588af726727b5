"""The sources of a dataset: a path, an archive, a URL, or a dataset of the hub, opened as a folder or file.

A download stays in the workspace's cache until its import is whole, so that a stopped or failed import resumes it; an
unpacked archive stays as long as the import runs. What comes from elsewhere may name no file outside of its folder.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import data
from config import confinement
from config.errors import UserError
from core.jobs.events import Progress
from core.jobs.locks import locked
from core.jobs.reporter import Reporter, check_stop, pluralize
from core.library.segments import PREFIX as PREFIX_SEGMENTS
from core.library.segments import find_segments
from core.sources import allowed
from core.sources.archives import is_archive, packed_files, unpack_archive
from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy, call_with_retries, public_name
from core.sources.hub import ByteStream, Hub, Interrupted, RemoteFile, content_length, is_passing, part_of
from core.sources.hub_dataset import PREFIX, DatasetAddress, ensure_downloaded
from core.sources.partial_downloads import SPARE_BYTES, check_disk, temporary_folder
from core.workspace import Workspace
from data import ffmpeg_audio
from data.disk_collections import DiskDict
from data.durable_files import ExpectedFile, FileHasher, hash_with_progress, link_or_copy
from data.importers import (
    ImportedSource,
    Reread,
    SkippedRow,
    SourceEntry,
    SourceNote,
    SourceRow,
    import_source,
    is_audio,
    is_film,
    safe_id,
)
from data.importers.parquet import write_out
from data.importers.rows import TEXT_SUFFIXES, split_of_folders
from data.importers.sidecars import walk_folders

_UNSIZED_BYTES = 20_000_000_000  # limit of a download whose server does not give its size
_STOPPED = "Stopped before the dataset was written."


@dataclass(frozen=True)
class OpenSource:
    """What an import reads. `made` is a folder for files that it makes."""

    path: Path
    made: Path
    foreign: bool = False
    notes: tuple[str, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()
    title: str = ""  # name of the archive that was unpacked


@contextmanager
def open_source(source: str, language: str, workspace: Workspace, reporter: Reporter, max_clips: int = 0,
                retry: RetryPolicy = RetryPolicy()) -> Iterator[OpenSource]:  # noqa: B008  a frozen value
    """The files of `source`, as long as the block lasts. `max_clips` of a hub's dataset are downloaded (0: all)."""
    if source.startswith(PREFIX_SEGMENTS):
        yield OpenSource(find_segments(workspace, source), workspace.cache, True)  # others may have made them
        return
    downloads = workspace.cache / "downloads"
    with temporary_folder(workspace) as folder:
        made_folder = folder / "made"
        made_folder.mkdir()
        is_url = source.lower().startswith(("http://", "https://"))
        address = DatasetAddress.parse(source) if is_url or source.startswith(PREFIX) else None
        if address:
            hub = Hub.from_environment("dataset")
            with ensure_downloaded(address, downloads, language, max_clips, hub, reporter, retry) as fetched:
                yield OpenSource(fetched.folder, made_folder, True, fetched.notes, fetched.skipped)
            return

        if is_url:
            # A page of the hub that shows a file is no file itself.
            if source.startswith("https://huggingface.co/"):
                source = source.replace("/blob/", "/resolve/")
            path = download_url(source, downloads, reporter, retry)
        else:
            path = demo_dataset(language) if source == "demo" else confinement.open_path(source, in_place=True)

        # Files that the user did not write are not trusted with absolute paths and links.
        foreign = is_url or confinement.is_confined() or path.resolve().is_relative_to(workspace.path.resolve())
        opened = OpenSource(path, made_folder, foreign and source != "demo")
        archives = [path] if path.is_file() and is_archive(path) else packed_files(path)[1]
        if archives:
            opened = _unpacked(archives, path, folder / "unpacked", made_folder, workspace, reporter)
        tables = packed_files(opened.path)[0]
        if tables:
            opened = _written_out(tables, opened, folder / "tables", reporter)

        yield opened
        # The download is not needed any more: its clips are in the dataset.
        if path.is_relative_to(downloads):
            shutil.rmtree(path.parent, ignore_errors=True)


def read_rows(source: OpenSource, language: str, reporter: Reporter) -> ImportedSource:
    """The rows of the source; the sound of a film is extracted when its row is reached."""
    imported = import_source(source.path, language, foreign=source.foreign, title=source.title)
    listed = Reread(lambda: chain(source.skipped, imported.entries))
    entries = _WithFilmSound(listed, source.made, source.path, reporter)
    return replace(imported, entries=entries, notes=(*source.notes, *imported.notes))


def count_rows(imported: ImportedSource) -> int:
    """How many entries there are; no film is opened."""
    entries = imported.entries
    listed = entries.entries if isinstance(entries, _WithFilmSound) else entries
    return sum(not isinstance(entry, SourceNote) for entry in listed)


def texts(imported: ImportedSource) -> Iterator[str]:
    """The texts of the rows; no film is opened."""
    entries = imported.entries
    for entry in entries.entries if isinstance(entries, _WithFilmSound) else entries:
        if isinstance(entry, SourceRow):
            yield entry.text


def demo_dataset(language: str) -> Path:
    """The dataset of `language` that ships with the app."""
    demos = Path(str(data.__file__)).parent / "demo"
    folder = demos / language
    if not folder.is_dir():
        available = ", ".join(sorted(path.name for path in demos.glob("*") if path.is_dir())) or "none"
        raise UserError(
            f"There is no demo dataset for the language {language!r} (there: {available}).",
            "Choose one of these languages, or give a folder or table of your own as source.",
        )
    return folder


def _written_out(tables: list[Path], source: OpenSource, folder: Path, reporter: Reporter) -> OpenSource:
    """The recordings of Parquet or Arrow tables as files."""
    folder.mkdir()
    root = source.path if source.path.is_dir() else source.path.parent

    # Names of tables tell their splits; a single split separates nothing.
    splits = {table: split_of_folders(re.split(r"[/.]", str(table.relative_to(root)))) for table in tables}
    if len(set(splits.values())) == 1:
        splits = dict.fromkeys(splits, "")
    rows = 0
    with DiskDict() as ids:
        for table, split in splits.items():
            for _ in write_out(table, table.name, folder, split, ids, keep_paths=not source.foreign):
                rows += 1
                check_stop(reporter, _STOPPED)
                reporter.emit(Progress(rows, None, "rows", table.name[:60]))
    note = f"The recordings of {pluralize(len(tables), 'table')} were written out."
    return replace(source, path=folder, notes=(*source.notes, note))


def _unpacked(paths: list[Path], source: Path, folder: Path, made_folder: Path, workspace: Workspace,
              reporter: Reporter) -> OpenSource:
    """An archive, or those of a folder, each in a separate folder beside the folder's texts and recordings."""
    folder.mkdir()
    unpacked_bytes = 0

    def on_block(size: int, name: str) -> None:
        nonlocal unpacked_bytes
        unpacked_bytes += size
        check_stop(reporter, _STOPPED)
        reporter.emit(Progress(unpacked_bytes, None, "bytes", Path(name).name[:60]))

    # A single archive is the whole source.
    if paths == [source]:
        skipped = unpack_archive(source, folder, workspace.free_bytes(), on_block)
        note = f"{source.name} is an archive; it was unpacked."
        return OpenSource(folder, made_folder, True, (note,), tuple(skipped), source.name)

    # In a folder, each archive is unpacked beside the other files.
    skipped = []
    for place, names in walk_folders(source):
        for path in (place / name for name in names):
            inside = folder / path.relative_to(source)
            inside.parent.mkdir(parents=True, exist_ok=True)
            if path in paths:
                # The suffix keeps the folder apart from a file of the same name.
                inside = inside.with_name(f"{inside.name}.unpacked")
                inside.mkdir()
                skipped += unpack_archive(path, inside, workspace.free_bytes(), on_block)
            elif path.name.lower().endswith(TEXT_SUFFIXES) or is_audio(path.name):
                with confinement.verified(path) as readable:
                    link_or_copy(Path(readable), inside)
    note = f"{pluralize(len(paths), 'archive')} of {source.name} were unpacked."
    return OpenSource(folder, made_folder, True, (note,), tuple(skipped), source.name)


@dataclass(frozen=True)
class _WithFilmSound:
    """Entries whose recordings can be read as they are: of a film, its sound, extracted into `folder`."""

    entries: Iterable[SourceEntry]
    folder: Path
    root: Path
    reporter: Reporter

    def __iter__(self) -> Iterator[SourceEntry]:
        fault: tuple[Path, str] | None = None
        for entry in self.entries:
            if not isinstance(entry, SourceRow) or not is_film(entry.audio):
                yield entry
                continue
            # The name is the same at each import, wherever the film was unpacked.
            path = entry.audio
            inside = path.relative_to(self.root) if path.is_relative_to(self.root) else Path(path.name)
            digest = sha256(str(inside).encode("utf-8", "surrogateescape")).hexdigest()[:8]
            sound = self.folder / f"{safe_id(path.stem)}-{digest}.flac"
            if (fault is None or fault[0] != path) and not sound.is_file():
                try:
                    ffmpeg_audio.extract_audio(path, sound, lambda: check_stop(self.reporter, _STOPPED))
                except UserError as error:
                    fault = path, f"{error.message} {error.hint}"
            if fault is not None and fault[0] == path:
                yield SkippedRow(entry.location, fault[1])
            else:
                yield replace(entry, audio=sound)


if TYPE_CHECKING:
    from httpx2 import Response


@dataclass(frozen=True)
class WebFile:
    """A server's description of a file; `size` is None if the server omits it, `version` changes with the content."""

    name: str
    size: int | None
    version: str


@dataclass(frozen=True)
class WebAddress:
    """One address, as a server for `Downloader`."""

    url: str

    @property
    def host(self) -> str:
        """The server's name, without a password."""
        try:
            return urlsplit(self.url).hostname or "the address"
        except ValueError:
            raise UserError(f"{public_name(self.url)[:200]} is not an address.", "Check the address.") from None

    @property
    def shown(self) -> str:
        """The address without a password and without what follows a question mark."""
        host = self.host
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{host}{parts.path}"[:200]

    def describe(self, timeout_s: float) -> WebFile:
        """Name, size and version of the file; only the head of the response is read."""
        with self._answer({}, timeout_s) as response:
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise UserError(f"{self.shown} is a web page, not a file.",
                                "Give the address of the file itself, as the page's download button has it.")
            version = response.headers.get("ETag", "") or response.headers.get("Last-Modified", "")
            return WebFile(_name_of(response), content_length(response), version)

    @contextmanager
    def open(self, file: RemoteFile, start: int, timeout_s: float) -> Iterator[ByteStream]:
        """The bytes from `start` on; from 0 on if the server does not support ranges."""
        with self._answer({"Range": f"bytes={start}-"} if start else {}, timeout_s) as response:
            if start and response.status_code == 416:
                yield ByteStream(start, None, iter(()))
                return
            start_byte, total = part_of(response)
            yield ByteStream(start_byte, total, response.iter_bytes())

    @contextmanager
    def _answer(self, headers: dict[str, str], timeout_s: float) -> Iterator[Response]:
        import httpx2

        headers = {"Accept-Encoding": "identity", "User-Agent": "lisan", **headers}
        try:
            client = httpx2.Client(follow_redirects=True, max_redirects=10, timeout=timeout_s)
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            raise allowed.proxy_fault(error) from None
        # The guard checks each address before a connection is made.
        allowed.guard(client)
        try:
            with client, client.stream("GET", self.url, headers=headers) as response:
                if response.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
                    raise UserError(f"{self.shown} is sent compressed, which was not asked for.",
                                    "Download it in a browser, and give the file.")
                # Status 416: the requested range begins at the end of the file.
                if response.status_code >= 400 and response.status_code != 416:
                    raise self._refusal(response)
                yield response
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, UnicodeError):
            raise UserError(f"{self.shown} leads nowhere.", "Check the address.") from None
        except httpx2.TimeoutException:
            raise Interrupted(f"{self.host} did not answer in time") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Interrupted(f"the connection to {self.host} failed ({type(error).__name__})") from None

    def _refusal(self, response: Response) -> Exception:
        if is_passing(response.status_code):
            return Interrupted(f"{self.host} answered {response.status_code}")
        return UserError(f"{self.shown} cannot be downloaded: {self.host} answered {response.status_code}.",
                         "Check the address in a browser; a file that asks for a login must be downloaded there first.")


def download_url(url: str, folder: Path, reporter: Reporter,
                 retry: RetryPolicy = RetryPolicy()) -> Path:  # noqa: B008  a frozen value
    """The file at `url`, in a separate folder within `folder`; an earlier download is resumed."""
    web = WebAddress(url)
    home = folder / sha256(url.encode()).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "lock", 0.5, f"{web.shown} is being downloaded by another job.",
                "Watch that one, or stop it first."):
        web_file = call_with_retries(lambda: web.describe(retry.stall_s), reporter, retry, web.shown,
                                  "Check the network and the address, then continue; or download it in a browser and "
                                  "give the file.")
        path = home / web_file.name

        # A file of unknown size is fetched in one connection, as far as the disk allows.
        if web_file.size is None:
            room = min(_UNSIZED_BYTES, shutil.disk_usage(home).free - SPARE_BYTES)
            file = RemoteFile(web.host, "", path.name, ExpectedFile(0))
            Downloader(web, DownloadProgress(reporter, None), retry).download_unsized(file, path, room)
        else:
            _complete(web, path, web_file, reporter, retry)
        return path


def _complete(web: WebAddress, path: Path, web_file: WebFile, reporter: Reporter, retry: RetryPolicy) -> None:
    assert web_file.size is not None
    expected = ExpectedFile(web_file.size)
    mark = path.with_name("version")
    version = f"{web_file.size} {web_file.version}"

    # A part is continued only if it is of the same version.
    partial = None
    if path.is_file():
        same = mark.is_file() and mark.read_text("utf-8") == version and path.stat().st_size <= web_file.size
        if same:
            partial = hash_with_progress(path, expected, lambda size, name: None)
        else:
            path.unlink()

    mark.write_text(version, "utf-8")
    check_disk(path.parent, web_file.size - (partial.size if partial else 0), f"The file {web_file.name}")
    progress = DownloadProgress(reporter, web_file.size, partial.size if partial else 0)
    Downloader(web, progress, retry).download(RemoteFile(web.host, "", web_file.name, expected), path,
                                              partial or FileHasher(expected))


def _name_of(response: Response) -> str:
    """The file's name from the response's headers or from the address; safe as the name of a file."""
    header_name = re.search(r"filename\*?=(?:UTF-8'')?\"?([^\";]+)", response.headers.get("Content-Disposition", ""))
    name = unquote(header_name[1]) if header_name else unquote(response.url.path.rpartition("/")[2])
    return safe_id(name.replace("\\", "/").rpartition("/")[2].strip() or "download")
