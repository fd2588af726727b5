"""A dataset of the hub, by its id, on this machine for as long as it is imported.

Parquet tables are taken where there are some, in the repository or where the hub keeps its own conversion; otherwise
the repository's recordings, texts, tables and archives. The bytes come by `core.incoming.transfer`: resumed, checked,
stoppable. Where few clips are wanted, little more than these is fetched. Never loads torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from config.errors import UserError, join_names
from core.incoming.hub import Hub, Listing, NoRevision
from core.incoming.hub_tables import STOPPED, Give, write_tables
from core.incoming.transfer import Meter, Patience, ask
from core.incoming.unfinished import begun, give_up, unfinished
from core.incoming.unpack import SUFFIXES, unpack
from core.jobs.events import WarningRaised
from core.jobs.reporter import Reporter, size_text
from data.importers import AUDIO_SUFFIXES, Row, Skipped, import_source, safe_id
from data.importers.columns import SPLIT_NAMES

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
    """A dataset of the hub on this machine, in a form that the importers know."""

    folder: Path
    notes: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class _Order:
    address: Address
    language: str
    most: int
    hub: Hub
    downloads: Path
    reporter: Reporter
    patience: Patience

    @property
    def wanted(self) -> dict[str, str]:
        """What was asked for, to find what an earlier job began."""
        address = self.address
        return {"hub": self.hub.host, "repository": address.repository, "revision": address.revision,
                "configuration": address.config, "language": self.language}

    def listing(self, revision: str) -> Listing:
        return ask(lambda: self.hub.list(self.address.repository, revision, self.patience.stall_s), self.reporter,
                   self.patience, self.address.repository)

    def give(self, listing: Listing) -> Give:
        return Give(self.hub, listing, self.reporter, self.patience)


@contextmanager
def brought(address: Address, downloads: Path, language: str, most: int, hub: Hub, reporter: Reporter,
            patience: Patience = Patience()) -> Iterator[Brought]:  # noqa: B008  a frozen value
    """The dataset as long as the block lasts; about `most` clips of it, all for 0.

    It lies in a folder of its own within `downloads`. What has come stays there when the block, or the fetching, does
    not end well, and a later job goes on with it at the same commit.
    """
    order = _Order(address, language, most, hub, downloads, reporter, patience)
    listing = _listing(order)
    tables = _tables(listing)
    config = _chosen(order, list(tables)) if tables else address.config
    name = "-".join(filter(None, (address.repository.replace("/", "--"), listing.commit[:12], config)))
    with unfinished(downloads / safe_id(name), order.wanted, listing.commit, address.repository) as home:
        yield _by_tables(order, listing, tables, config, home) if tables else _by_files(order, listing, home)


def _listing(order: _Order) -> Listing:
    """The files at the commit at which an earlier job began; else of the repository, or of the hub's conversion."""
    if before := begun(order.downloads, order.wanted):
        commit, there = before
        try:
            return order.listing(commit)
        except NoRevision:
            again = "" if give_up(there) else ", beside another job that is at work on what it has of it"
            order.reporter.emit(WarningRaised(f"{order.address.repository} has no {commit[:12]} any more, with which "
                                              f"this "
                                       f"import began; it begins again{again}."))
    listing = order.listing(order.address.revision or "main")
    if not _tables(listing) and not order.address.revision:
        try:
            converted = order.listing(CONVERTED)
            return converted if _tables(converted) else listing
        except NoRevision:
            pass
    return listing


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


def _by_tables(order: _Order, listing: Listing, tables: dict[str, list[str]], config: str, home: Path) -> Brought:
    splits = {name: _split_of(name, config) for name in tables[config]}
    several = len(set(splits.values())) > 1  # a single one is no split at all
    ordered = sorted(tables[config], key=lambda name: (splits[name] != "train", name))
    rows, before = write_tables(order.give(listing), home, {name: splits[name] if several else "" for name in ordered},
                                order.most)
    which = f", configuration {config}" if len(tables) > 1 else ""
    there = f", {before} of which were here already" if before else ""
    return Brought(home / "content", (
        f"{listing.repository} of {order.hub.host} at {listing.commit[:12]}{which}: {rows} clips of {len(ordered)} "
        f"Parquet tables{there}.",))


def _chosen(order: _Order, configs: list[str]) -> str:
    """The configuration that was asked for, the only one, or that of the language."""
    asked, code = order.address.config, order.language
    fitting = [name for name in configs if re.split(r"[_-]", name.lower())[0] == code]
    for name in (asked,) if asked else (*(configs if len(configs) == 1 else ()), code, *fitting[:1], "default"):
        if name in configs:
            return name
    shown = join_names(sorted(configs), 30)
    raise UserError(
        f"{order.address.repository} has {len(configs)} configurations, and none is {asked or code!r}: {shown}.",
        f"Name one: {PREFIX}{order.address.repository}/CONFIG.",
    )


def _split_of(name: str, config: str) -> str:
    """The split that a table's name says; empty for none that Lisan knows."""
    found = _SPLIT.search(name.removeprefix(f"{config}/"))
    return SPLIT_NAMES.get(found[1].lower(), "") if found else ""


def _by_files(order: _Order, listing: Listing, home: Path) -> Brought:
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
    meter = Meter(order.reporter, None if some else sum(map(give.size, names)), 0, STOPPED)
    if some:
        give.fetch([name for name in plain if name not in heard], content, meter)
        plain = _first(content, heard, order)
    give.fetch(plain, content, meter)
    skipped: list[Skipped] = []
    for path in give.fetch(packed, home / "archives", meter):
        inside = content / f"{path.relative_to(home / 'archives')}.unpacked"
        shutil.rmtree(inside, ignore_errors=True)  # of a job that was killed
        inside.mkdir(parents=True)
        skipped += unpack(path, inside, shutil.disk_usage(inside).free, lambda size, name: meter.beat(name))
    fetched = plain if some else names
    origin = f"{listing.repository} of {order.hub.host} at {listing.commit[:12]}"
    return Brought(content, (f"{origin}: {len(fetched)} files, {size_text(sum(map(give.size, fetched)))}.",),
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
