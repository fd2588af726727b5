"""Parquet tables of the hub into recordings and one `manifest.jsonl`, table by table. Never loads torch.

A table that was written out is deleted and noted, so that a job which takes up after another begins with the next, and
no more lies on the disk than is wanted. Of a table with more rows than are wanted only the part with these is read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import RawIOBase
from itertools import islice
from pathlib import Path, PurePosixPath

from config.errors import UserError
from core.incoming.fetch import SPARE_BYTES, check_disk
from core.incoming.hub import Hub, Listing, RemoteFile
from core.incoming.ranged import NoRanges, Ranged
from core.incoming.transfer import Fetcher, Meter, Patience
from core.jobs.reporter import Reporter, check_stop
from core.library.model_record import Hasher, hash_file
from data.importers.parquet import FOLDER, MANIFEST, count_rows, write_out
from data.kept import Kept

STOPPED = "Stopped before the dataset was written. What has come is kept: continue it, or start it again."
_STATE, _TABLES, _PARTS = "tables.json", "tables", "parts"


@dataclass(frozen=True)
class Give:
    """Where files come from, and how they are told of."""

    hub: Hub
    listing: Listing
    reporter: Reporter
    patience: Patience

    def file(self, name: str) -> RemoteFile:
        return RemoteFile(self.listing.repository, self.listing.commit, name, self.listing.files[name])

    def size(self, name: str) -> int:
        return self.listing.files[name].size

    def fetch(self, names: list[str], folder: Path, meter: Meter) -> list[Path]:
        """Files of the repository under their names in `folder`; what has come of them before is gone on with."""
        folder.mkdir(exist_ok=True)
        begun = {name: there for name in names if (there := self._begun(name, folder, meter)) is not None}
        check_disk(folder, sum(map(self.size, names)) - sum(there.size for there in begun.values()),
                   f"What is wanted of {self.listing.repository}")
        fetcher, paths = Fetcher(self.hub, meter, self.patience), []
        for name in names:
            paths.append(_path(folder, name))
            paths[-1].parent.mkdir(parents=True, exist_ok=True)
            fetcher.fetch(self.file(name), paths[-1], begun.get(name))
        return paths

    def _begun(self, name: str, folder: Path, meter: Meter) -> Hasher | None:
        """What is there of a file, read again so that it is checked as a whole."""
        path = _path(folder, name)
        if not path.is_file():
            return None
        there = hash_file(path, self.listing.files[name], lambda size, of: meter.beat(of))
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


def write_tables(give: Give, home: Path, tables: Mapping[str, str], most: int) -> tuple[int, int]:
    """Write the tables, each with its split, into `home`/content: how many rows there are, and tables from before.

    `most` rows, or more that were there before; all for 0.
    """
    state = _State.read(home)
    before, left = len(state.tables), [name for name in tables if name not in state.tables]
    done = sum(map(give.size, state.tables))
    if not most:
        here = sum(path.stat().st_size for path in (home / _TABLES).rglob("*") if path.is_file())
        check_disk(home, sum(map(give.size, left)) - here, f"What is wanted of {give.listing.repository}")
    meter = Meter(give.reporter, None if most else done + sum(map(give.size, left)), done, STOPPED)
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


def _rows(give: Give, table: Path | RawIOBase, home: Path, split: str, ids: Kept,
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
def _table(give: Give, home: Path, name: str, most: int, meter: Meter) -> Iterator[Path | RawIOBase]:
    """The table: whole, or to be read by parts where it has more rows than are wanted and the hub can do that."""
    if most:
        parts = home / _PARTS / sha256(name.encode()).hexdigest()[:16]
        try:
            with Ranged(give.file(name), parts, give.hub, meter, give.patience) as table:
                if count_rows(table, PurePosixPath(name).name) > most:
                    yield table
                    return
        except NoRanges:
            pass
    yield give.fetch([name], home / _TABLES, meter)[0]
