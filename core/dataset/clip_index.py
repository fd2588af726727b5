"""What was measured of each recording, and the clips of a dataset sorted by their findings: both in SQLite files.

Measures are kept by the content of the recording, so they are taken once whatever dataset it is in. The index of a
dataset is made when its measures are there; pages are then read by rank, so the last of 100,000 clips is as near as the
first. Both lie in the cache: lost, they are made again. Never loads torch.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from config.errors import UserError
from core.dataset import speaker_table
from core.dataset.speaker_table import Speakers as Speakers
from core.workspace import Workspace
from data.clip_findings import ERROR, WARNING, ClipFinding, ClipLimits, Spoken, badness, speaking_rate
from data.clip_plots import LEARNABLE as LEARNABLE
from data.clip_plots import Histogram as Histogram
from data.clip_survey import Survey
from data.kept import Rows, in_parts
from data.manifest import Clip, Dataset
from data.measures import VERSION, Measures

_ASKED_AT_ONCE = 500
_TABLES = """
CREATE TABLE clips (rank INTEGER PRIMARY KEY, id TEXT UNIQUE, clip TEXT, spoken TEXT, measures TEXT, findings TEXT,
                    badness REAL);
CREATE TABLE kinds (kind TEXT, rank INTEGER, PRIMARY KEY (kind, rank)) WITHOUT ROWID;
CREATE TABLE summary (kind TEXT PRIMARY KEY, level TEXT, count INTEGER, errors INTEGER);
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT);
"""


class MeasureStore:
    """Measures by the SHA-256 of a recording's bytes."""

    def __init__(self, workspace: Workspace) -> None:
        self._path = workspace.cache / f"measures-{VERSION}.sqlite"

    def load(self, wanted: Iterable[str]) -> dict[str, Measures]:
        """Those of `wanted` that are there."""
        if not self._path.is_file():
            return {}
        found: dict[str, Measures] = {}
        with closing(self._open()) as database:
            for part in in_parts(wanted, _ASKED_AT_ONCE):
                rows = database.execute(f"SELECT sha256, value FROM measures WHERE sha256 IN ({_marks(part)})", part)
                found |= {sha256: Measures.from_json(json.loads(value)) for sha256, value in rows}
        return found

    def save(self, found: Mapping[str, Measures]) -> None:
        """Keep some, all or none."""
        with closing(self._open()) as database, database:
            database.executemany("INSERT OR REPLACE INTO measures VALUES (?, ?)",
                                 [(sha256, json.dumps(one.to_json())) for sha256, one in found.items()])

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=60)
        database.execute("CREATE TABLE IF NOT EXISTS measures (sha256 TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        return database


@dataclass(frozen=True)
class Judged:
    """A clip with what was found of it. `rank` counts from 0, the worst first."""

    rank: int
    clip: Clip
    spoken: str  # its text as rules and normaliser leave it
    measures: Measures | None
    findings: tuple[ClipFinding, ...]

    @property
    def rate(self) -> float | None:
        """Letters a second."""
        return speaking_rate(Spoken(self.clip.id, self.spoken, self.clip.speaker, self.measures))


@dataclass(frozen=True)
class Kind:
    """How many clips have a finding of a kind, its gravest level, and of how many clips it is an error."""

    kind: str
    level: str
    count: int
    errors: int

    @property
    def parts(self) -> str:
        """In words, where some are errors and some are warnings; empty otherwise."""
        warnings = self.count - self.errors
        return (f"{self.errors:,} error{'s' * (self.errors != 1)}, {warnings:,} warning{'s' * (warnings != 1)}"
                if self.errors and warnings else "")


@dataclass(frozen=True)
class Plots:
    """What there is to draw of a dataset."""

    histograms: tuple[Histogram, ...]
    characters: tuple[tuple[str, int], ...]  # the most frequent first
    rarest: tuple[tuple[str, int], ...] = ()  # of the others, and those that are too rare to be learnt

    @property
    def level_lufs(self) -> float | None:
        """The median level."""
        return next((one.median for one in self.histograms if one.unit == "LUFS"), None)


def build(workspace: Workspace, dataset: Dataset, spoken: Iterable[Spoken], about: Mapping[str, str]) -> int:
    """Judge the clips and write the index of `dataset`; how many have findings.

    `spoken` is in the order of the dataset's clips and is gone through once; `data.clip_survey` says what is held.
    """
    target = _path(workspace, dataset.card.fingerprint)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}-{os.getpid()}")
    aside.unlink(missing_ok=True)
    rows: Rows[Spoken] = Rows(_as_line, _from_line, target.parent)
    try:
        with (closing(sqlite3.connect(aside)) as database, database,
              Survey(ClipLimits(longest_text=int(about.get("longest_text", "0")))) as survey):
            for one in spoken:
                survey.add(one)
                rows.add(one)
            database.executescript(_TABLES)
            counts, faulty = _judge_into(database, dataset, rows, survey)
            database.executemany("INSERT INTO summary VALUES (?, ?, ?, ?)", counts)
            speaker_table.write(database)
            plots = {"histograms": [asdict(one) for one in survey.spread.histograms()],
                     "characters": survey.spread.characters(), "rarest": survey.spread.rarest()}
            database.executemany("INSERT INTO about VALUES (?, ?)", {**about, "plots": json.dumps(plots)}.items())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    return faulty


def _judge_into(database: sqlite3.Connection, dataset: Dataset, rows: Iterable[Spoken],
                survey: Survey) -> tuple[list[tuple[str, str, int, int]], int]:
    """Write the clips by rank; how many have findings of each kind, and of any."""
    counts: dict[str, tuple[int, int]] = {}
    database.execute("CREATE TEMP TABLE judged (id, clip, spoken, measures, findings, badness REAL)")
    for clip, one in zip(dataset.clips, rows, strict=True):
        found = survey.find_problems(one)
        _count(counts, found)
        database.execute("INSERT INTO judged VALUES (?, ?, ?, ?, ?, ?)",
                         (clip.id, *_columns(clip, one, found), badness(found)))
    sorted_rows = database.execute("SELECT * FROM judged ORDER BY badness DESC, id")
    database.executemany("INSERT INTO clips VALUES (?, ?, ?, ?, ?, ?, ?)",
                         ((rank, *row) for rank, row in enumerate(sorted_rows)))
    database.executemany("INSERT OR IGNORE INTO kinds VALUES (?, ?)", (
        (one["kind"], rank) for rank, found in
        database.execute("SELECT rank, findings FROM clips WHERE badness > 0") for one in json.loads(found)))
    faulty = database.execute("SELECT COUNT(*) FROM clips WHERE badness > 0").fetchone()[0]
    summary = [(kind, ERROR if errors else WARNING, count, errors) for kind, (count, errors) in counts.items()]
    return summary, int(faulty)


def _as_line(one: Spoken) -> str:
    return json.dumps(asdict(one))


def _from_line(line: bytes) -> Spoken:
    values = json.loads(line)
    measures = values.pop("measures")
    return Spoken(**values, measures=Measures.from_json(measures) if measures else None)


def _columns(clip: Clip, spoken: Spoken, found: Sequence[ClipFinding]) -> tuple[str, str, str, str]:
    measures = json.dumps(spoken.measures.to_json()) if spoken.measures else ""
    return (json.dumps(asdict(clip)), json.dumps(spoken.text), measures, json.dumps([asdict(one) for one in found]))


def _count(counts: dict[str, tuple[int, int]], found: Sequence[ClipFinding]) -> None:
    """Count a clip with findings of each kind, and among them those with an error."""
    grave = {one.kind for one in found if one.level == ERROR}
    for kind in dict.fromkeys(one.kind for one in found):
        count, errors = counts.get(kind, (0, 0))
        counts[kind] = (count + 1, errors + (kind in grave))


class ClipIndex:
    """The clips of one dataset, the worst first."""

    def __init__(self, workspace: Workspace, fingerprint: str) -> None:
        self._path = _path(workspace, fingerprint)
        if not self._path.is_file():
            raise UserError("The recordings of this dataset have not been measured yet.",
                            "Prepare it once more with its settings: what is there stays, and the rest is measured.")

    @staticmethod
    def exists(workspace: Workspace, fingerprint: str) -> bool:
        """Whether the clips of this dataset were judged."""
        return _path(workspace, fingerprint).is_file()

    def count(self, kind: str = "") -> int:
        """Clips with a finding of `kind`, or all."""
        table, words = ("kinds WHERE kind = ?", (kind,)) if kind else ("clips", ())
        with self._database() as database:
            return int(database.execute(f"SELECT COUNT(*) FROM {table}", words).fetchone()[0])

    def faulty(self) -> int:
        """Clips with any finding."""
        with self._database() as database:
            found = database.execute("SELECT MIN(rank) FROM clips WHERE badness = 0").fetchone()[0]
            return int(found) if found is not None else self.count()

    def page(self, start: int, size: int, kind: str = "") -> list[Judged]:
        """`size` clips from the one number `start`, the worst first; only those with a finding of `kind`, if given."""
        columns = "clips.rank, clip, spoken, measures, findings"
        with self._database() as database:
            if kind:
                rows = database.execute(
                    f"SELECT {columns} FROM (SELECT rank FROM kinds WHERE kind = ? ORDER BY rank LIMIT ? OFFSET ?) "
                    "AS chosen JOIN clips ON clips.rank = chosen.rank ORDER BY clips.rank", (kind, size, start))
            else:
                rows = database.execute(f"SELECT {columns} FROM clips WHERE rank >= ? ORDER BY rank LIMIT ?",
                                        (start, size))
            return [_judged(*row) for row in rows]

    def clip(self, name: str) -> Judged | None:
        """The clip with this id."""
        with self._database() as database:
            row = database.execute("SELECT rank, clip, spoken, measures, findings FROM clips WHERE id = ?",
                                   (name,)).fetchone()
        return _judged(*row) if row else None

    def named(self, ids: Iterable[str]) -> dict[str, Judged]:
        """The clips with these ids, as far as there are such."""
        found: dict[str, Judged] = {}
        with self._database() as database:
            for part in in_parts(ids, _ASKED_AT_ONCE):
                rows = database.execute("SELECT rank, clip, spoken, measures, findings FROM clips "
                                        f"WHERE id IN ({_marks(part)})", part)
                found |= {one.clip.id: one for one in (_judged(*row) for row in rows)}
        return found

    def all(self) -> Iterator[Judged]:
        """Every clip, the worst first."""
        with self._database() as database:
            for row in database.execute("SELECT rank, clip, spoken, measures, findings FROM clips ORDER BY rank"):
                yield _judged(*row)

    def kinds(self) -> list[Kind]:
        """What was found, errors first, then the most frequent."""
        with self._database() as database:
            rows = database.execute("SELECT * FROM summary").fetchall()
        found = [Kind(kind, level, count, errors[0] if errors else count * (level == ERROR))  # not counted before
                 for kind, level, count, *errors in rows]
        return sorted(found, key=lambda one: (one.level != ERROR, -one.count))

    def about(self) -> dict[str, str]:
        """What the index was made with."""
        with self._database() as database:
            return dict(database.execute("SELECT key, value FROM about"))

    def plots(self) -> Plots:
        """How the clips are spread; empty in an index that was made before this was counted."""
        found = json.loads(self.about().get("plots", "{}"))
        made = (Histogram(**{**one, "counts": tuple(one["counts"])}) for one in found.get("histograms", ()))
        characters, rarest = (tuple((str(name), int(count)) for name, count in found.get(which, ()))
                              for which in ("characters", "rarest"))
        return Plots(tuple(made), characters, rarest)

    def speakers(self, most: int) -> Speakers:
        """Who speaks, and how much; by name at most so many with several clips, and with one."""
        with self._database() as database:
            return speaker_table.read(database, most)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=10)) as database:
            yield database


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _judged(rank: int, clip: str, spoken: str, measures: str, findings: str) -> Judged:
    return Judged(rank, Clip(**json.loads(clip)), json.loads(spoken),
                  Measures.from_json(json.loads(measures)) if measures else None,
                  tuple(ClipFinding(**one) for one in json.loads(findings)))


def _path(workspace: Workspace, fingerprint: str) -> Path:
    return workspace.cache / "review" / f"{fingerprint}.sqlite"
