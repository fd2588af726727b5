"""A dataset of the hub, by its id, on this machine for as long as it is imported.

Parquet tables are taken where there are some, in the repository or where the hub keeps its own conversion; otherwise
the repository's recordings, texts, tables and archives. Where few clips are wanted, little more than these is
downloaded.

A Parquet table becomes recordings and lines of one `manifest.jsonl`; then it is deleted and noted, so that a job which
resumes the import starts with the next table, and the disk holds no more than it must. Of a table with more rows than
are wanted only the part with these is read. Never loads torch.

Tried instead: pyarrow over `huggingface_hub.HfFileSystem`. It downloads more of a large table, stores nothing for a job
that resumes, and reads wrong bytes from a hub without ranges, which three of our tests show.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import RawIOBase
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from config.errors import ErrorKind, UserError, join_names
from core.jobs.events import WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize, size_text
from core.sources.archives import SUFFIXES, unpack_archive
from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy, list_repository
from core.sources.hub import ByteStream, Hub, Interrupted, NoRevision, RemoteFile, RepositoryFiles
from core.sources.partial_downloads import SPARE_BYTES, check_disk, discard, find_started, partial_download
from data.disk_collections import DiskDict
from data.durable_files import ExpectedFile, FileHasher, hash_with_progress, write_json
from data.importers import AUDIO_SUFFIXES, SkippedRow, SourceRow, import_source, safe_id
from data.importers.parquet import FOLDER, MANIFEST, count_rows, write_out
from data.importers.rows import SPLIT_NAMES, TEXT_SUFFIXES

PREFIX = "hub:"
STOPPED = "Stopped before the dataset was written. What was downloaded is kept: continue it, or start it again."
CONVERTED = "refs/convert/parquet"  # revision with the tables that the hub made of other forms
_STATE, _TABLES, _PARTS = "tables.json", "tables", "parts"
_ADDRESS = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+?))?(?:/([\w.-]+))?(?:/[\w.-]+)?/?")
_SPLIT = re.compile(r"(train|test|validation|valid|dev|eval)", re.IGNORECASE)


@dataclass(frozen=True)
class DatasetAddress:
    """`hub:OWNER/NAME[@REVISION][/CONFIG]`, or the page of a dataset."""

    repository: str
    config: str = ""
    revision: str = ""

    @classmethod
    def parse(cls, source: str, endpoint: str = "https://huggingface.co") -> DatasetAddress | None:
        """The address; None for other sources, such as the address of a single file on the hub."""
        name = source
        if source.startswith(PREFIX):
            name = source.removeprefix(PREFIX)
        else:
            try:
                parts = urlsplit(source)
            except ValueError:
                raise UserError(f"{source[:200]!r} is not an address.", "Check the address.") from None
            if parts.hostname != urlsplit(endpoint).hostname or not parts.path.startswith("/datasets/"):
                return None
            name = unquote(parts.path.removeprefix("/datasets/"))
            # Addresses of single files are downloaded as they are.
            if re.search(r"/(resolve|blob|raw)/", name):
                return None
            name = re.sub(r"/(viewer|tree/main)(?=/|$)", "", name)
        # The rest names a repository, perhaps a revision and a configuration.
        match = _ADDRESS.fullmatch(name.strip())
        if match is None:
            raise UserError(f"{source!r} names no dataset of the hub.",
                            "Write hub:OWNER/NAME, or hub:OWNER/NAME/CONFIG.")
        return cls(match[1], match[3] or "", match[2] or "")


@dataclass(frozen=True)
class FetchedDataset:
    """A dataset of the hub on this machine, in a form that the importers know."""

    folder: Path
    notes: tuple[str, ...]
    skipped: tuple[SkippedRow, ...] = ()


@dataclass(frozen=True)
class _Request:
    """The dataset that was asked for, how much of it, and the means to download it."""

    address: DatasetAddress
    language: str
    max_clips: int  # 0: all
    hub: Hub
    downloads: Path
    reporter: Reporter
    retry: RetryPolicy

    @property
    def key(self) -> dict[str, str]:
        """What identifies the download of an earlier job."""
        address = self.address
        return {"hub": self.hub.host, "repository": address.repository, "revision": address.revision,
                "configuration": address.config, "language": self.language}

    def list(self, revision: str) -> RepositoryFiles:
        return list_repository(self.hub, self.address.repository, revision, self.reporter, self.retry)

    def download(self, listing: RepositoryFiles, names: Sequence[str], folder: Path,
                 progress: DownloadProgress) -> Sequence[Path]:
        """Files of the repository under their names in `folder`; files that exist are hashed and resumed."""
        folder.mkdir(exist_ok=True)
        paths = {name: _inside(folder, name) for name in names}

        # Files of an earlier attempt are hashed and continued.
        hashers: dict[str, FileHasher] = {}
        for name, path in paths.items():
            if path.is_file():
                hashers[name] = hash_with_progress(path, listing.files[name],
                                                   lambda size, file_name: progress.update(file_name))
                progress.done += hashers[name].size

        check_disk(folder, listing.size(names) - sum(hasher.size for hasher in hashers.values()),
                   f"What is wanted of {listing.repository}")

        downloader = Downloader(self.hub, progress, self.retry)
        for name, path in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            downloader.download(listing.file(name), path, hashers.get(name))
        return tuple(paths.values())


@contextmanager
def ensure_downloaded(address: DatasetAddress, downloads: Path, language: str, max_clips: int, hub: Hub,
                      reporter: Reporter,
                      retry: RetryPolicy = RetryPolicy()) -> Iterator[FetchedDataset]:  # noqa: B008  a frozen value
    """The dataset as long as the block lasts; about `max_clips` clips of it, all for 0.

    It lies in a separate folder within `downloads`. If the block or the download fails, what was downloaded stays
    there, and a later job resumes it at the same commit.
    """
    request = _Request(address, language, max_clips, hub, downloads, reporter, retry)
    listing = _look_up(request)
    tables = _tables(listing)
    config = _choose_config(request, list(tables)) if tables else address.config
    name = "-".join(filter(None, (address.repository.replace("/", "--"), listing.commit[:12], config)))
    with partial_download(downloads / safe_id(name), request.key, listing.commit, address.repository) as home:
        yield (_fetch_tables(request, listing, tables, config, home) if tables
               else _fetch_files(request, listing, home))


def _look_up(request: _Request) -> RepositoryFiles:
    """The files at the commit of an earlier job's download; else of the repository, or of the hub's conversion."""
    repository = request.address.repository
    started = find_started(request.downloads, request.key)
    if started:
        commit, home = started
        try:
            return request.list(commit)
        except NoRevision:
            beside = "" if discard(home) else ", beside another job that works on what it has of it"
            request.reporter.emit(WarningRaised(f"{repository} no longer has {commit[:12]}, at which this import "
                                                f"started; it starts again{beside}."))

    # Tables that the hub converted serve repositories without any.
    listing = request.list(request.address.revision or "main")
    if not _tables(listing) and not request.address.revision:
        with suppress(NoRevision):
            converted = request.list(CONVERTED)
            return converted if _tables(converted) else listing
    return listing


def _tables(listing: RepositoryFiles) -> dict[str, list[str]]:
    """Parquet files by the name of their configuration."""
    tables: dict[str, list[str]] = {}
    for name in sorted(_safe(listing)):
        if name.endswith(".parquet"):
            parts = PurePosixPath(name).parts
            config = parts[0] if len(parts) > 1 and parts[0] != "data" else "default"
            tables.setdefault(config, []).append(name)
    return tables


def _safe(listing: RepositoryFiles) -> list[str]:
    return [name for name in listing.files if ".." not in PurePosixPath(name).parts and not name.startswith("/")]


def _inside(folder: Path, name: str) -> Path:
    return folder.joinpath(*PurePosixPath(name).parts)


def _choose_config(request: _Request, configs: list[str]) -> str:
    """The configuration that was asked for, the only one, or that of the language."""
    requested, code = request.address.config, request.language
    fitting = [name for name in configs if re.split(r"[_-]", name.lower())[0] == code]
    for name in (requested,) if requested else (*(configs if len(configs) == 1 else ()), code, *fitting[:1], "default"):
        if name in configs:
            return name
    names = join_names(sorted(configs), 30)
    raise UserError(
        f"{request.address.repository} has {len(configs)} configurations, and none is {requested or code!r}: "
        f"{names}.",
        f"Name one: {PREFIX}{request.address.repository}/CONFIG.",
    )


def _fetch_files(request: _Request, listing: RepositoryFiles, home: Path) -> FetchedDataset:
    """Download recordings, texts and tables, and unpack archives."""

    config = request.address.config
    names = [name for name in _safe(listing) if name.lower().endswith((*AUDIO_SUFFIXES, *TEXT_SUFFIXES, *SUFFIXES))
             and (not config or name.startswith(f"{config}/")) and not name.startswith(".")]
    archives = [name for name in names if name.lower().endswith(SUFFIXES)]
    recordings = [name for name in names if name.lower().endswith(AUDIO_SUFFIXES)]
    if not recordings and not archives:
        raise UserError(f"{listing.repository} has no recordings, Parquet tables or archives that Lisan reads.",
                        "Look at its page; a dataset that a script makes cannot be read.")

    content = home / "content"
    content.mkdir(exist_ok=True)
    plain = [name for name in names if name not in archives]
    is_sample = bool(request.max_clips) and not archives
    progress = DownloadProgress(request.reporter, None if is_sample else listing.size(names), 0, STOPPED)

    # For a few clips, texts and tables come first; they tell which recordings are needed.
    if is_sample:
        request.download(listing, [name for name in plain if name not in recordings], content, progress)
        plain = _first_recordings(content, recordings, request)
    request.download(listing, plain, content, progress)
    skipped: list[SkippedRow] = []
    for path in request.download(listing, archives, home / "archives", progress):
        inside = content / f"{path.relative_to(home / 'archives')}.unpacked"

        # A job that was killed may have left a part.
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir(parents=True)
        skipped += unpack_archive(path, inside, shutil.disk_usage(inside).free,
                                  lambda size, name: progress.update(name))

    fetched = plain if is_sample else names
    origin = f"{listing.repository} of {request.hub.host} at {listing.commit[:12]}"
    return FetchedDataset(content, (f"{origin}: {len(fetched)} files, {size_text(listing.size(fetched))}.",),
                          tuple(skipped))


def _first_recordings(content: Path, recordings: list[str], request: _Request) -> list[str]:
    """The recordings that the first clips need; the importers choose them among empty files."""
    for name in recordings:
        path = _inside(content, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    rows = (entry for entry in import_source(content, request.language, foreign=True) if isinstance(entry, SourceRow))
    needed = {os.path.realpath(row.audio) for row in islice(rows, request.max_clips)}
    return [name for name in recordings if os.path.realpath(content / name) in needed]


@dataclass
class _WrittenTables:
    """The tables that were written, and the rows and bytes of the manifest after them."""

    tables: list[str] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    @classmethod
    def read(cls, home: Path) -> _WrittenTables:
        """What an earlier job wrote; nothing unless all its recordings exist with their sizes."""
        content = home / "content"
        try:
            tables = cls(**json.loads((home / _STATE).read_text(encoding="utf-8")))
            # The rows behind the last complete table are written again.
            os.truncate(content / MANIFEST, tables.bytes)
            if sum(not line["audio"] or (content / str(line["audio"])).stat().st_size == line["bytes"]
                   for line in _lines(content)) == tables.rows:
                return tables
        except (OSError, ValueError, KeyError, TypeError):
            pass
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        return cls()


def _lines(content: Path) -> Iterator[dict[str, object]]:
    if (content / MANIFEST).is_file():
        with open(content / MANIFEST, encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _fetch_tables(request: _Request, listing: RepositoryFiles, tables: dict[str, list[str]], config: str,
                  home: Path) -> FetchedDataset:
    """Write the tables of a configuration into `home`/content, up to `max_clips` rows, or those of an earlier job."""

    # Names of tables tell their splits.
    matches = {name: _SPLIT.search(name.removeprefix(f"{config}/")) for name in tables[config]}
    splits = {name: SPLIT_NAMES.get(match[1].lower(), "") if match else "" for name, match in matches.items()}
    if len(set(splits.values())) == 1:  # a single split separates nothing
        splits = dict.fromkeys(splits, "")

    # Training tables come first, so that a few clips are training clips.
    ordered = sorted(splits, key=lambda name: (splits[name] != "train", name))
    written_tables = _WrittenTables.read(home)
    tables_before = len(written_tables.tables)
    remaining = [name for name in ordered if name not in written_tables.tables]
    done_bytes, max_clips = listing.size(written_tables.tables), request.max_clips
    if not max_clips:
        stored_bytes = sum(path.stat().st_size for path in (home / _TABLES).rglob("*") if path.is_file())
        check_disk(home, listing.size(remaining) - stored_bytes, f"What is wanted of {listing.repository}")
    total = None if max_clips else done_bytes + listing.size(remaining)
    progress = DownloadProgress(request.reporter, total, done_bytes, STOPPED)
    clips = written_tables.rows

    # The ids of earlier tables stay taken.
    with DiskDict() as ids:
        for line in _lines(home / "content"):
            ids.replace(Path(str(line["audio"])).stem.casefold(), "")
        for name in remaining:
            clips_wanted = max_clips - clips if max_clips else None
            if clips_wanted is not None and clips_wanted <= 0:
                break
            with (_open_table(request, listing, home, name, clips_wanted, progress) as table,
                  closing(_write_rows(request, listing, table, home, splits[name], ids, name)) as sizes):
                rows = sum(1 for _ in islice(sizes, clips_wanted))
            clips += rows
            if rows == clips_wanted:  # the table may have more
                break
            manifest_bytes = (home / "content" / MANIFEST).stat().st_size
            written_tables = _WrittenTables([*written_tables.tables, name], clips, manifest_bytes)
            write_json(home / _STATE, asdict(written_tables))
            shutil.rmtree(home / _TABLES, ignore_errors=True)
    which = f", configuration {config}" if len(tables) > 1 else ""
    earlier_note = f", {tables_before} of which were here already" if tables_before else ""
    return FetchedDataset(home / "content", (
        f"{listing.repository} of {request.hub.host} at {listing.commit[:12]}{which}: {pluralize(clips, 'clip')} of "
        f"{len(ordered)} Parquet tables{earlier_note}.",))


def _write_rows(request: _Request, listing: RepositoryFiles, table: Path | RawIOBase, home: Path, split: str,
                ids: DiskDict, name: str) -> Generator[int, None, None]:
    """Write the rows of a table; the size of each. Stops before the disk is full."""
    content = home / "content"
    for size in write_out(table, PurePosixPath(name).name, content, split, ids):
        check_stop(request.reporter, STOPPED)
        if shutil.disk_usage(content).free < size + SPARE_BYTES:
            clips = sum(1 for _ in (content / FOLDER).iterdir())
            raise UserError(f"The disk of {content} is full after {pluralize(clips, 'clip')} of {listing.repository}.",
                            "Free space, then continue; or take fewer clips: --max-clips.", ErrorKind.ENVIRONMENT)
        yield size


@contextmanager
def _open_table(request: _Request, listing: RepositoryFiles, home: Path, name: str, max_rows: int | None,
                progress: DownloadProgress) -> Iterator[Path | RawIOBase]:
    """The table: whole, or read in parts if it has more rows than `max_rows` and the hub supports ranges."""
    if max_rows:
        parts = home / _PARTS / sha256(name.encode()).hexdigest()[:16]
        try:
            with HttpRangeFile(listing.file(name), parts, request.hub, progress, request.retry) as table:
                if count_rows(table, PurePosixPath(name).name) > max_rows:
                    yield table
                    return
        except RangesUnsupported:
            pass
    yield request.download(listing, [name], home / _TABLES, progress)[0]


if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK = 1 << 18  # bytes
_LONGEST_RUN = 64  # blocks in one request; a run is twice as long as the one before it


class RangesUnsupported(Exception):
    """The hub sends the file from its beginning only."""


@dataclass(frozen=True)
class _Window:
    """Serves the bytes of `table` from `start` on, as if they were a file."""

    hub: Hub
    table: RemoteFile
    start: int

    @property
    def host(self) -> str:
        return self.hub.host

    @contextmanager
    def open(self, file: RemoteFile, start: int, timeout_s: float) -> Iterator[ByteStream]:
        begin, size = self.start + start, self.table.expected.size
        with self.hub.open(self.table, begin, timeout_s, self.start + file.expected.size) as body:
            if body.start != begin:
                raise RangesUnsupported
            if body.total not in (None, size):
                raise Interrupted(f"the hub says that the file has {body.total} bytes, and its list says {size}")
            yield ByteStream(start, None, body.blocks)


class HttpRangeFile(io.RawIOBase):
    """`file`, opened for reading, with its blocks stored in `folder`.

    Reading raises what a `Downloader` raises, and `RangesUnsupported`.
    """

    def __init__(self, file: RemoteFile, folder: Path, hub: Hub, progress: DownloadProgress,
                 retry: RetryPolicy) -> None:
        self._file, self._folder, self._hub, self._progress, self._retry = file, folder, hub, progress, retry
        self._position = 0
        self._runs: dict[int, tuple[int, int]] = {}  # first block and length of the run that holds a block
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            first_block, _, count = path.name.partition("-")
            if path.stat().st_size == self._size(int(first_block), int(count)):
                self._add_run(int(first_block), int(count))
            else:
                path.unlink()  # its job was killed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.expected.size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill `buffer`; less only at the file's end."""
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._file.expected.size - self._position))
        filled = 0
        while filled < length:
            first_block, count = self._run(self._position // BLOCK)
            with open(self._folder / f"{first_block}-{count}", "rb") as reading:
                reading.seek(self._position - first_block * BLOCK)
                got = reading.readinto(view[filled:length])
            filled, self._position = filled + got, self._position + got
        return filled

    def _size(self, first_block: int, count: int) -> int:
        """The bytes of a run."""
        return min(self._file.expected.size, (first_block + count) * BLOCK) - first_block * BLOCK

    def _add_run(self, first_block: int, count: int) -> None:
        self._runs.update((number, (first_block, count)) for number in range(first_block, first_block + count))

    def _run(self, number: int) -> tuple[int, int]:
        """The run of the block, downloaded if it is not stored; its length is twice that of the run before it."""
        if number not in self._runs:
            previous_run = self._runs.get(number - 1)
            last = -(-self._file.expected.size // BLOCK)
            longest = min(_LONGEST_RUN, 2 * previous_run[1] if previous_run else 1)
            ends = (ahead for ahead in range(1, longest) if number + ahead == last or number + ahead in self._runs)
            count = next(ends, longest)
            name, size = f"{number}-{count}", self._size(number, count)
            part = RemoteFile(self._file.repository, self._file.commit, self._file.name, ExpectedFile(size))
            window = _Window(self._hub, self._file, number * BLOCK)
            Downloader(window, self._progress, self._retry).download(part, self._folder / name)
            self._add_run(number, count)
        return self._runs[number]
