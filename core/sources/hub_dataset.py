"""A dataset of the hub, by its id, on this machine for as long as it is imported.

Parquet tables are taken where there are some, in the repository or where the hub keeps its own conversion; otherwise
the repository's recordings, texts, tables and archives. The bytes come by `core.sources.downloader`: resumed, checked,
stoppable. Where few clips are wanted, little more than these is fetched. Never loads torch.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import RawIOBase
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from config.errors import UserError, listed
from core.job.journal import Warned
from core.job.reporter import Reporter, check_stop, size_text
from core.sources.archives import SUFFIXES, unpack_archive
from core.sources.base_models import SPARE_BYTES, check_disk
from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy, call_with_retries
from core.sources.http_range_file import HttpRangeFile, RangesUnsupported
from core.sources.hub import Hub, NoRevision, RemoteFile, RepositoryFiles
from core.sources.partial_downloads import discard, find_started, partial_download
from data.durable_files import FileHasher, hash_with_progress
from data.importers import AUDIO_SUFFIXES, Row, Skipped, import_source, safe_id
from data.importers.columns import SPLIT_NAMES
from data.importers.parquet import FOLDER, MANIFEST, count_rows, write_out
from data.kept import Kept

PREFIX = "hub:"
CONVERTED = "refs/convert/parquet"  # where the hub keeps the tables that it made of other forms
_TEXTS = (".txt", ".lab", ".srt", ".vtt", ".lrc", ".csv", ".tsv", ".json", ".jsonl", ".scp")
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
        """None for what is no dataset of the hub, such as the address of a file there."""
        rest = source
        if source.startswith(PREFIX):
            rest = source.removeprefix(PREFIX)
        else:
            parts = urlsplit(source)
            if parts.hostname != urlsplit(endpoint).hostname or not parts.path.startswith("/datasets/"):
                return None
            rest = unquote(parts.path.removeprefix("/datasets/"))
            if re.search(r"/(resolve|blob|raw)/", rest):
                return None
            rest = re.sub(r"/(viewer|tree/main)(?=/|$)", "", rest)
        match = _ADDRESS.fullmatch(rest.strip())
        if match is None:
            raise UserError(f"{source!r} names no dataset of the hub.",
                            "Write hub:OWNER/NAME, or hub:OWNER/NAME/CONFIG.")
        return cls(match[1], match[3] or "", match[2] or "")


@dataclass(frozen=True)
class FetchedDataset:
    """A dataset of the hub on this machine, in a form that the importers know."""

    folder: Path
    notes: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class _Order:
    address: DatasetAddress
    language: str
    most: int
    hub: Hub
    downloads: Path
    reporter: Reporter
    patience: RetryPolicy

    @property
    def wanted(self) -> dict[str, str]:
        """What was asked for, to find what an earlier job began."""
        address = self.address
        return {"hub": self.hub.host, "repository": address.repository, "revision": address.revision,
                "configuration": address.config, "language": self.language}

    def listing(self, revision: str) -> RepositoryFiles:
        return call_with_retries(lambda: self.hub.list(self.address.repository, revision, self.patience.stall_s),
                                 self.reporter,
                   self.patience, self.address.repository)

    def give(self, listing: RepositoryFiles) -> FileFetcher:
        return FileFetcher(self.hub, listing, self.reporter, self.patience)


@contextmanager
def ensure_downloaded(address: DatasetAddress, downloads: Path, language: str, most: int, hub: Hub, reporter: Reporter,
            patience: RetryPolicy = RetryPolicy()) -> Iterator[FetchedDataset]:  # noqa: B008  a frozen value
    """The dataset as long as the block lasts; about `most` clips of it, all for 0.

    It lies in a folder of its own within `downloads`. What has come stays there when the block, or the fetching, does
    not end well, and a later job goes on with it at the same commit.
    """
    order = _Order(address, language, most, hub, downloads, reporter, patience)
    listing = _listing(order)
    tables = _tables(listing)
    config = _chosen(order, list(tables)) if tables else address.config
    name = "-".join(filter(None, (address.repository.replace("/", "--"), listing.commit[:12], config)))
    with partial_download(downloads / safe_id(name), order.wanted, listing.commit, address.repository) as home:
        yield _by_tables(order, listing, tables, config, home) if tables else _by_files(order, listing, home)


def _listing(order: _Order) -> RepositoryFiles:
    """The files at the commit at which an earlier job began; else of the repository, or of the hub's conversion."""
    if before := find_started(order.downloads, order.wanted):
        commit, there = before
        try:
            return order.listing(commit)
        except NoRevision:
            again = "" if discard(there) else ", beside another job that is at work on what it has of it"
            order.reporter.emit(Warned(f"{order.address.repository} has no {commit[:12]} any more, with which this "
                                       f"import began; it begins again{again}."))
    listing = order.listing(order.address.revision or "main")
    if not _tables(listing) and not order.address.revision:
        try:
            converted = order.listing(CONVERTED)
            return converted if _tables(converted) else listing
        except NoRevision:
            pass
    return listing


def _tables(listing: RepositoryFiles) -> dict[str, list[str]]:
    """Parquet files by the name of their configuration."""
    found: dict[str, list[str]] = {}
    for name in sorted(_safe(listing)):
        if name.endswith(".parquet"):
            parts = PurePosixPath(name).parts
            config = parts[0] if len(parts) > 1 and parts[0] != "data" else "default"
            found.setdefault(config, []).append(name)
    return found


def _safe(listing: RepositoryFiles) -> list[str]:
    return [name for name in listing.files if ".." not in PurePosixPath(name).parts and not name.startswith("/")]


def _by_tables(order: _Order, listing: RepositoryFiles, tables: dict[str, list[str]], config: str,
               home: Path) -> FetchedDataset:
    splits = {name: _split_of(name, config) for name in tables[config]}
    several = len(set(splits.values())) > 1  # a single one is no split at all
    ordered = sorted(tables[config], key=lambda name: (splits[name] != "train", name))
    rows, before = write_tables(order.give(listing), home, {name: splits[name] if several else "" for name in ordered},
                                order.most)
    which = f", configuration {config}" if len(tables) > 1 else ""
    there = f", {before} of which were here already" if before else ""
    return FetchedDataset(home / "content", (
        f"{listing.repository} of {order.hub.host} at {listing.commit[:12]}{which}: {rows} clips of {len(ordered)} "
        f"Parquet tables{there}.",))


def _chosen(order: _Order, configs: list[str]) -> str:
    """The configuration that was asked for, the only one, or that of the language."""
    asked, code = order.address.config, order.language
    fitting = [name for name in configs if re.split(r"[_-]", name.lower())[0] == code]
    for name in (asked,) if asked else (*(configs if len(configs) == 1 else ()), code, *fitting[:1], "default"):
        if name in configs:
            return name
    shown = listed(sorted(configs), 30)
    raise UserError(
        f"{order.address.repository} has {len(configs)} configurations, and none is {asked or code!r}: {shown}.",
        f"Name one: {PREFIX}{order.address.repository}/CONFIG.",
    )


def _split_of(name: str, config: str) -> str:
    """The split that a table's name says; empty for none that Lisan knows."""
    found = _SPLIT.search(name.removeprefix(f"{config}/"))
    return SPLIT_NAMES.get(found[1].lower(), "") if found else ""


def _by_files(order: _Order, listing: RepositoryFiles, home: Path) -> FetchedDataset:
    config, give = order.address.config, order.give(listing)
    names = [name for name in _safe(listing) if name.lower().endswith((*AUDIO_SUFFIXES, *_TEXTS, *SUFFIXES))
             and (not config or name.startswith(f"{config}/")) and not name.startswith(".")]
    packed = [name for name in names if name.lower().endswith(SUFFIXES)]
    heard = [name for name in names if name.lower().endswith(AUDIO_SUFFIXES)]
    if not heard and not packed:
        raise UserError(f"{listing.repository} has no recordings, Parquet tables or archives that Lisan reads.",
                        "Look at its page; a dataset that a script makes cannot be read.")
    content = home / "content"
    content.mkdir(exist_ok=True)
    plain = [name for name in names if name not in packed]
    some = bool(order.most) and not packed
    meter = DownloadProgress(order.reporter, None if some else sum(map(give.size, names)), 0, STOPPED)
    if some:
        give.fetch([name for name in plain if name not in heard], content, meter)
        plain = _first(content, heard, order)
    give.fetch(plain, content, meter)
    skipped: list[Skipped] = []
    for path in give.fetch(packed, home / "archives", meter):
        inside = content / f"{path.relative_to(home / 'archives')}.unpacked"
        shutil.rmtree(inside, ignore_errors=True)  # of a job that was killed
        inside.mkdir(parents=True)
        skipped += unpack_archive(path, inside, shutil.disk_usage(inside).free, lambda size, name: meter.beat(name))
    fetched = plain if some else names
    origin = f"{listing.repository} of {order.hub.host} at {listing.commit[:12]}"
    return FetchedDataset(content, (f"{origin}: {len(fetched)} files, {size_text(sum(map(give.size, fetched)))}.",),
                   tuple(skipped))


def _first(content: Path, heard: list[str], order: _Order) -> list[str]:
    """The recordings that the first clips want; the others are there as names without a byte.

    Which these are, the importers say, who look whether a recording is there and do not open it.
    """
    for name in heard:
        path = content.joinpath(*PurePosixPath(name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    rows = (entry for entry in import_source(content, order.language, foreign=True) if isinstance(entry, Row))
    wanted = {os.path.realpath(row.audio) for row in islice(rows, order.most)}
    return [name for name in heard if os.path.realpath(content / name) in wanted]


STOPPED = "Stopped before the dataset was written. What has come is kept: continue it, or start it again."
_STATE, _TABLES, _PARTS = "tables.json", "tables", "parts"


@dataclass(frozen=True)
class FileFetcher:
    """Where files come from, and how they are told of."""

    hub: Hub
    listing: RepositoryFiles
    reporter: Reporter
    patience: RetryPolicy

    def file(self, name: str) -> RemoteFile:
        return RemoteFile(self.listing.repository, self.listing.commit, name, self.listing.files[name])

    def size(self, name: str) -> int:
        return self.listing.files[name].size

    def fetch(self, names: list[str], folder: Path, meter: DownloadProgress) -> list[Path]:
        """Files of the repository under their names in `folder`; what has come of them before is gone on with."""
        folder.mkdir(exist_ok=True)
        begun = {name: there for name in names if (there := self._begun(name, folder, meter)) is not None}
        check_disk(folder, sum(map(self.size, names)) - sum(there.size for there in begun.values()),
                   f"What is wanted of {self.listing.repository}")
        fetcher, paths = Downloader(self.hub, meter, self.patience), []
        for name in names:
            paths.append(_path(folder, name))
            paths[-1].parent.mkdir(parents=True, exist_ok=True)
            fetcher.fetch(self.file(name), paths[-1], begun.get(name))
        return paths

    def _begun(self, name: str, folder: Path, meter: DownloadProgress) -> FileHasher | None:
        """What is there of a file, read again so that it is checked as a whole."""
        path = _path(folder, name)
        if not path.is_file():
            return None
        there = hash_with_progress(path, self.listing.files[name], lambda size, of: meter.beat(of))
        meter.done += there.size
        return there


def _path(folder: Path, name: str) -> Path:
    return folder.joinpath(*PurePosixPath(name).parts)


@dataclass
class _State:
    """What is written out: tables by name, and how many rows and bytes of the manifest that came to."""

    tables: list[str] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    @classmethod
    def read(cls, home: Path) -> _State:
        """What an earlier job did; nothing where its recordings are not all there, whole."""
        content = home / "content"
        try:
            state = cls(**json.loads((home / _STATE).read_text(encoding="utf-8")))
            os.truncate(content / MANIFEST, state.bytes)  # what it was at when it ended is written anew
            if sum(_is_whole(content, line) for line in _lines(content)) == state.rows:
                return state
        except (OSError, ValueError, KeyError, TypeError):
            pass
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        return cls()

    def write(self, home: Path) -> None:
        aside = home / f".{_STATE}"
        aside.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        os.replace(aside, home / _STATE)


def _lines(content: Path) -> Iterator[dict[str, object]]:
    if (content / MANIFEST).is_file():
        with open(content / MANIFEST, encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _is_whole(content: Path, line: dict[str, object]) -> bool:
    return not line["audio"] or (content / str(line["audio"])).stat().st_size == line["bytes"]


def write_tables(give: FileFetcher, home: Path, tables: Mapping[str, str], most: int) -> tuple[int, int]:
    """Write the tables, each with its split, into `home`/content: how many rows there are, and tables from before.

    `most` rows, or more that were there before; all for 0.
    """
    state = _State.read(home)
    before, left = len(state.tables), [name for name in tables if name not in state.tables]
    done = sum(map(give.size, state.tables))
    if not most:
        here = sum(path.stat().st_size for path in (home / _TABLES).rglob("*") if path.is_file())
        check_disk(home, sum(map(give.size, left)) - here, f"What is wanted of {give.listing.repository}")
    meter = DownloadProgress(give.reporter, None if most else done + sum(map(give.size, left)), done, STOPPED)
    with Kept() as ids:
        for line in _lines(home / "content"):
            ids.replace(Path(str(line["audio"])).stem.casefold(), "")
        for name in left:
            wanted = most - state.rows
            if most and wanted <= 0:
                break
            with (_table(give, home, name, wanted if most else 0, meter) as table,
                  closing(_rows(give, table, home, tables[name], ids, name)) as written):
                rows = sum(1 for _ in islice(written, wanted if most else None))
            if most and rows == wanted:  # nobody looked whether that was all of it
                return most, before
            state = _State([*state.tables, name], state.rows + rows,
                           (home / "content" / MANIFEST).stat().st_size)
            state.write(home)
            shutil.rmtree(home / _TABLES, ignore_errors=True)
    return state.rows, before


def _rows(give: FileFetcher, table: Path | RawIOBase, home: Path, split: str, ids: Kept,
          name: str) -> Generator[int, None, None]:
    content = home / "content"
    for size in write_out(table, PurePosixPath(name).name, content, split, ids):
        check_stop(give.reporter, STOPPED)
        if shutil.disk_usage(content).free < size + SPARE_BYTES:
            there = sum(1 for _ in (content / FOLDER).iterdir())
            raise UserError(f"The disk of {content} is full after {there} clips of {give.listing.repository}.",
                            "Free space, then continue; or take fewer clips: --max-clips.")
        yield size


@contextmanager
def _table(give: FileFetcher, home: Path, name: str, most: int, meter: DownloadProgress) -> Iterator[Path | RawIOBase]:
    """The table: whole, or to be read by parts where it has more rows than are wanted and the hub can do that."""
    if most:
        parts = home / _PARTS / sha256(name.encode()).hexdigest()[:16]
        try:
            with HttpRangeFile(give.file(name), parts, give.hub, meter, give.patience) as table:
                if count_rows(table, PurePosixPath(name).name) > most:
                    yield table
                    return
        except RangesUnsupported:
            pass
    yield give.fetch([name], home / _TABLES, meter)[0]
