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
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import data
from config.errors import UserError
from core.jobs.events import Progress
from core.jobs.locks import FileLock
from core.jobs.reporter import Reporter, check_stop
from core.library.segments import PREFIX as PREFIX_SEGMENTS
from core.library.segments import find_segments
from core.sources.archives import is_archive, unpack_archive
from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy, call_with_retries
from core.sources.hub import ByteStream, Hub, Interrupted, RemoteFile, is_passing, part_of
from core.sources.hub_dataset import PREFIX, DatasetAddress, ensure_downloaded
from core.sources.partial_downloads import SPARE_BYTES, check_disk, temporary_folder
from core.sources.source_preview import UPLOADS
from core.workspace import Workspace
from data import ffmpeg_audio
from data.durable_files import ExpectedFile, FileHasher, hash_with_progress
from data.importers import FILM_SUFFIXES, ImportedSource, SkippedRow, SourceEntry, SourceRow, import_source, safe_id

_STOPPED = "Stopped before the dataset was written."


@dataclass(frozen=True)
class OpenSource:
    """What an import reads. `made` is a folder for files that it makes."""

    path: Path
    made: Path
    foreign: bool = False
    notes: tuple[str, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()


@contextmanager
def open_source(source: str, language: str, workspace: Workspace, reporter: Reporter, max_clips: int = 0,
                retry: RetryPolicy = RetryPolicy()) -> Iterator[OpenSource]:  # noqa: B008  a frozen value
    """The files of `source`, as long as the block lasts. Of a hub's dataset `max_clips` are downloaded (0: all)."""
    if source.startswith(PREFIX_SEGMENTS):
        yield OpenSource(find_segments(workspace, source), workspace.cache)
        return
    downloads = workspace.cache / "downloads"
    with temporary_folder(workspace) as folder:
        made = folder / "made"
        made.mkdir()
        if address := _on_the_hub(source):
            hub = Hub.from_environment("dataset")
            with ensure_downloaded(address, downloads, language, max_clips, hub, reporter, retry) as fetched:
                yield OpenSource(fetched.folder, made, True, fetched.notes, fetched.skipped)
            return
        if _is_url(source):
            path = download_url(_as_file(source), downloads, reporter, retry)
        else:
            path = demo_dataset(language) if source == "demo" else Path(source).expanduser()
        if path.is_file() and is_archive(path):
            yield _unpacked(path, folder / "unpacked", made, workspace, reporter)
        else:
            yield OpenSource(path, made, _is_url(source) or path.is_relative_to(workspace.cache / UPLOADS))
        if path.is_relative_to(downloads):  # its clips are in the dataset now
            shutil.rmtree(path.parent, ignore_errors=True)


def _is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def _on_the_hub(source: str) -> DatasetAddress | None:
    return DatasetAddress.parse(source) if _is_url(source) or source.startswith(PREFIX) else None


def _as_file(url: str) -> str:
    """The address of the file itself, where a page of the hub that shows it was given."""
    return url.replace("/blob/", "/resolve/") if url.startswith("https://huggingface.co/") else url


def read_rows(source: OpenSource, language: str, reporter: Reporter) -> ImportedSource:
    """The rows of the source; the sound of a film is extracted when its row is reached."""
    imported = import_source(source.path, language, foreign=source.foreign)
    listed = _Chain(source.skipped, imported.entries)
    entries = _WithFilmSound(listed, source.made, source.path, reporter)
    return replace(imported, entries=entries, notes=(*source.notes, *imported.notes))


def count_rows(imported: ImportedSource) -> int:
    """How many entries there are; no film is opened."""
    entries = imported.entries
    return sum(1 for _ in (entries.entries if isinstance(entries, _WithFilmSound) else entries))


def demo_dataset(language: str) -> Path:
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


def _unpacked(path: Path, folder: Path, made: Path, workspace: Workspace, reporter: Reporter) -> OpenSource:
    folder.mkdir()
    done = 0

    def on_block(size: int, name: str) -> None:
        nonlocal done
        done += size
        check_stop(reporter, _STOPPED)
        reporter.emit(Progress(done, None, "bytes", Path(name).name[:60]))

    skipped = unpack_archive(path, folder, workspace.free_bytes(), on_block)
    return OpenSource(folder, made, True, (f"{path.name} is an archive; it was unpacked.",), tuple(skipped))


@dataclass(frozen=True)
class _Chain:
    """Skipped entries, then the others; may be iterated more than once."""

    first: tuple[SkippedRow, ...]
    then: Iterable[SourceEntry]

    def __iter__(self) -> Iterator[SourceEntry]:
        yield from self.first
        yield from self.then


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
            if not isinstance(entry, SourceRow) or entry.audio.suffix.lower() not in FILM_SUFFIXES:
                yield entry
                continue
            sound = self.folder / _sound_name(entry.audio, self.root)
            if (fault is None or fault[0] != entry.audio) and not sound.is_file():
                fault = self._extract_sound(entry.audio, sound)
            if fault is not None and fault[0] == entry.audio:
                yield SkippedRow(entry.where, fault[1])
            else:
                yield replace(entry, audio=sound)

    def _extract_sound(self, path: Path, sound: Path) -> tuple[Path, str] | None:
        try:
            ffmpeg_audio.extract_audio(path, sound, lambda: check_stop(self.reporter, _STOPPED))
        except UserError as error:
            return path, f"{error.message} {error.hint}"
        return None


def _sound_name(path: Path, root: Path) -> str:
    """The name of a film's sound, the same at each import, wherever the film was unpacked."""
    inside = path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
    return f"{safe_id(path.stem)}-{sha256(str(inside).encode('utf-8', 'surrogateescape')).hexdigest()[:8]}.flac"


if TYPE_CHECKING:
    from httpx2 import Response


@dataclass(frozen=True)
class WebFile:
    """What a server says of a file; `size` is None where it does not say, `version` changes with the content."""

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
        return urlsplit(self.url).hostname or "the address"

    @property
    def shown(self) -> str:
        """The address without a password and without what follows a question mark."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{self.host}{parts.path}"[:200]

    def describe(self, timeout_s: float) -> WebFile:
        """What is there; only the head of the response is read."""
        with self._answer({}, timeout_s) as response:
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise UserError(f"{self.shown} is a web page, not a file.",
                                "Give the address of the file itself, as the page's download button has it.")
            length = response.headers.get("Content-Length", "")
            plain = not response.headers.get("Content-Encoding") and length.isdigit()
            version = response.headers.get("ETag", "") or response.headers.get("Last-Modified", "")
            return WebFile(_name_of(response), int(length) if plain else None, version)

    @contextmanager
    def open(self, file: RemoteFile, start: int, timeout_s: float) -> Iterator[ByteStream]:
        """The bytes from `start` on; from 0 on where the server does not support ranges."""
        with self._answer({"Range": f"bytes={start}-"} if start else {}, timeout_s) as response:
            if start and response.status_code == 416:
                yield ByteStream(start, None, iter(()))
                return
            first, total = part_of(response)
            yield ByteStream(first, total, response.iter_bytes())

    @contextmanager
    def _answer(self, headers: dict[str, str], timeout_s: float) -> Iterator[Response]:
        import httpx2

        headers = {"Accept-Encoding": "identity", "User-Agent": "lisan", **headers}
        try:
            with (httpx2.Client(follow_redirects=True, max_redirects=10, timeout=timeout_s) as client,
                  client.stream("GET", self.url, headers=headers) as response):
                if response.status_code >= 400 and response.status_code != 416:
                    raise self._refusal(response)
                yield response
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects):
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
    lock = FileLock.take(home / "lock")
    if lock is None:
        raise UserError(f"{web.shown} is being downloaded by another job.", "Watch that one, or stop it first.")
    try:
        found = call_with_retries(lambda: web.describe(retry.stall_s), reporter, retry, web.shown)
        path = home / found.name
        if found.size is None:
            _stream(web, path, reporter, retry)
        else:
            _complete(web, path, found, reporter, retry)
        return path
    finally:
        lock.close()


def _complete(web: WebAddress, path: Path, found: WebFile, reporter: Reporter, retry: RetryPolicy) -> None:
    assert found.size is not None
    expected = ExpectedFile(found.size)
    mark = path.with_name("version")
    version = f"{found.size} {found.version}"
    partial = None
    if path.is_file():
        same = mark.is_file() and mark.read_text("utf-8") == version and path.stat().st_size <= found.size
        if same:
            partial = hash_with_progress(path, expected, lambda size, name: None)
        else:
            path.unlink()
    mark.write_text(version, "utf-8")
    check_disk(path.parent, found.size - (partial.size if partial else 0), f"The file {found.name}")
    progress = DownloadProgress(reporter, found.size, partial.size if partial else 0)
    Downloader(web, progress, retry).download(RemoteFile(web.host, "", found.name, expected), path,
                                              partial or FileHasher(expected))


def _stream(web: WebAddress, path: Path, reporter: Reporter, retry: RetryPolicy) -> None:
    """Download a file of unknown size in one connection, as far as the disk allows."""
    room = shutil.disk_usage(path.parent).free - SPARE_BYTES
    file = RemoteFile(web.host, "", path.name, ExpectedFile(0))
    Downloader(web, DownloadProgress(reporter, None), retry).download_unsized(file, path, room)


def _name_of(response: Response) -> str:
    """The file's name from the response's headers or from the address; safe as the name of a file."""
    given = re.search(r"filename\*?=(?:UTF-8'')?\"?([^\";]+)", response.headers.get("Content-Disposition", ""))
    name = unquote(given[1]) if given else unquote(response.url.path.rpartition("/")[2])
    return safe_id(name.replace("\\", "/").rpartition("/")[2].strip() or "download")
