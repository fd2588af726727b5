"""A dataset of the hub, by its id, into a folder: table by table, so that no more lies on the disk than is wanted.

Parquet tables are taken where there are some, in the repository or where the hub keeps its own conversion; otherwise
the repository's recordings, texts, tables and archives. The bytes come by
`core.incoming.transfer`: resumed, checked, stoppable. Never loads torch.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from config.errors import UserError
from core.incoming.fetch import SPARE_BYTES, check_disk
from core.incoming.hub import Hub, Listing, NoRevision, RemoteFile
from core.incoming.transfer import Fetcher, Meter, Patience, ask
from core.incoming.unpack import SUFFIXES, unpack
from core.job.reporter import Reporter, check_stop, size_text
from data.importers import AUDIO_SUFFIXES, Skipped
from data.importers.columns import SPLIT_NAMES
from data.importers.parquet import write_out
from data.kept import Kept

PREFIX = "hub:"
CONVERTED = "refs/convert/parquet"  # where the hub keeps the tables that it made of other forms
_TEXTS = (".txt", ".lab", ".srt", ".vtt", ".lrc", ".csv", ".tsv", ".json", ".jsonl", ".scp")
_ADDRESS = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+?))?(?:/([\w.-]+))?(?:/[\w.-]+)?/?")
_SPLIT = re.compile(r"(train|test|validation|valid|dev|eval)", re.IGNORECASE)


@dataclass(frozen=True)
class Address:
    """`hub:OWNER/NAME[@REVISION][/CONFIG]`, or the page of a dataset."""

    repository: str
    config: str = ""
    revision: str = ""

    @classmethod
    def parse(cls, source: str, endpoint: str = "https://huggingface.co") -> Address | None:
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
class Brought:
    """What lies in the folder now."""

    notes: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class _Order:
    address: Address
    language: str
    most: int
    hub: Hub
    folder: Path
    reporter: Reporter
    patience: Patience

    def listing(self, revision: str) -> Listing:
        return ask(lambda: self.hub.list(self.address.repository, revision, self.patience.stall_s), self.reporter,
                   self.patience, self.address.repository)

    def fetch(self, listing: Listing, names: list[str], folder: Path) -> list[Path]:
        """Files of the repository, under their last names in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [RemoteFile(listing.repository, listing.commit, name, listing.files[name]) for name in names]
        total = sum(file.expected.size for file in files)
        check_disk(folder, total, f"What is wanted of {listing.repository}")
        fetcher = Fetcher(self.hub, Meter(self.reporter, total, stopped="Stopped before the dataset was written."),
                          self.patience)
        paths = []
        for file in files:
            path = folder.joinpath(*PurePosixPath(file.name).parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            fetcher.fetch(file, path)
            paths.append(path)
        return paths


def bring(address: Address, folder: Path, language: str, most: int, hub: Hub, reporter: Reporter,
          patience: Patience = Patience()) -> Brought:  # noqa: B008  a frozen value
    """Fetch the dataset into `folder` in a form that the importers know; about `most` clips of it, all for 0."""
    order = _Order(address, language, most, hub, folder, reporter, patience)
    listing = order.listing(address.revision or "main")
    tables = _tables(listing)
    if not tables and not address.revision:
        try:
            converted = order.listing(CONVERTED)
            listing, tables = (converted, _tables(converted)) if _tables(converted) else (listing, tables)
        except NoRevision:
            pass
    return _by_tables(order, listing, tables) if tables else _by_files(order, listing)


def _tables(listing: Listing) -> dict[str, list[str]]:
    """Parquet files by the name of their configuration."""
    found: dict[str, list[str]] = {}
    for name in sorted(_safe(listing)):
        if name.endswith(".parquet"):
            parts = PurePosixPath(name).parts
            config = parts[0] if len(parts) > 1 and parts[0] != "data" else "default"
            found.setdefault(config, []).append(name)
    return found


def _safe(listing: Listing) -> list[str]:
    return [name for name in listing.files if ".." not in PurePosixPath(name).parts and not name.startswith("/")]


def _by_tables(order: _Order, listing: Listing, tables: dict[str, list[str]]) -> Brought:
    config = _chosen(order, list(tables))
    splits = {name: _split_of(name, config) for name in tables[config]}
    several = len(set(splits.values())) > 1  # a single one is no split at all
    rows = 0
    with Kept() as ids:
        for name in sorted(tables[config], key=lambda name: (splits[name] != "train", name)):
            (path,) = order.fetch(listing, [name], order.folder / "tables")
            for size in write_out(path, order.folder, splits[name] if several else "", ids):
                rows += 1
                check_stop(order.reporter, "Stopped before the dataset was written.")
                if shutil.disk_usage(order.folder).free < size + SPARE_BYTES:
                    raise UserError(f"The disk of {order.folder} is full after {rows} clips of {listing.repository}.",
                                    "Free space, or take fewer clips: --most-clips.")
                if rows == order.most:
                    break
            path.unlink()
            if rows == order.most:
                break
    which = f", configuration {config}" if len(tables) > 1 else ""
    return Brought((f"{listing.repository} of {order.hub.host} at {listing.commit[:12]}{which}: {rows} clips of "
                    f"{len(tables[config])} Parquet tables.",))


def _chosen(order: _Order, configs: list[str]) -> str:
    """The configuration that was asked for, the only one, or that of the language."""
    asked, code = order.address.config, order.language
    fitting = [name for name in configs if re.split(r"[_-]", name.lower())[0] == code]
    for name in (asked,) if asked else (*(configs if len(configs) == 1 else ()), code, *fitting[:1], "default"):
        if name in configs:
            return name
    shown = ", ".join(sorted(configs)[:30])
    raise UserError(
        f"{order.address.repository} has {len(configs)} configurations, and none is {asked or code!r}: {shown}.",
        f"Name one: {PREFIX}{order.address.repository}/CONFIG.",
    )


def _split_of(name: str, config: str) -> str:
    """The split that a table's name says; empty for none that Lisan knows."""
    found = _SPLIT.search(name.removeprefix(f"{config}/"))
    return SPLIT_NAMES.get(found[1].lower(), "") if found else ""


def _by_files(order: _Order, listing: Listing) -> Brought:
    config = order.address.config
    names = [name for name in _safe(listing) if name.lower().endswith((*AUDIO_SUFFIXES, *_TEXTS, *SUFFIXES))
             and (not config or name.startswith(f"{config}/")) and not name.startswith(".")]
    if not any(name.lower().endswith((*AUDIO_SUFFIXES, *SUFFIXES)) for name in names):
        raise UserError(f"{listing.repository} has no recordings, Parquet tables or archives that Lisan reads.",
                        "Look at its page; a dataset that a script makes cannot be read.")
    skipped: list[Skipped] = []
    for path in order.fetch(listing, names, order.folder):
        if path.name.lower().endswith(SUFFIXES):
            inside = path.with_name(f"{path.name}.unpacked")
            inside.mkdir()
            skipped += unpack(path, inside, shutil.disk_usage(inside).free)
            path.unlink()
    total = size_text(sum(listing.files[name].size for name in names))
    origin = f"{listing.repository} of {order.hub.host} at {listing.commit[:12]}"
    return Brought((f"{origin}: {len(names)} files, {total}.",), tuple(skipped))
