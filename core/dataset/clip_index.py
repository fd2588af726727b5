"""The measures of recordings, and the clip index of a dataset, sorted by findings: both are SQLite files.

Measures are stored by the content of the recording, so each is measured once, whatever dataset it is in. The index of a
dataset is built from its measures; pages are read by rank, so the last of 100,000 clips is read as fast as the first.
Both are in the cache: when they are lost, they are made again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from config.errors import UserError
from core.workspace import Workspace
from data.clip_findings import (
    ERROR,
    WARNING,
    AnalysedClip,
    ClipFinding,
    ClipLimits,
    DatasetSurvey,
    badness,
    speaking_rate,
)
from data.clip_findings import LEARNABLE as LEARNABLE
from data.clip_findings import Histogram as Histogram
from data.disk_collections import DiskList, chunked
from data.durable_files import atomic_path
from data.manifest import DatasetCard, ManifestClip, PreparedDataset
from data.measures import VERSION, Measures
from data.normalisers import TextNormaliser
from data.text_match import TextMatch

_PER_QUERY = 500  # ids or hashes
_TABLES = """
CREATE TABLE clips (rank INTEGER PRIMARY KEY, id TEXT UNIQUE, clip TEXT, spoken TEXT, measures TEXT, findings TEXT,
                    badness REAL);
CREATE TABLE kinds (kind TEXT, rank INTEGER, PRIMARY KEY (kind, rank)) WITHOUT ROWID;
CREATE TABLE summary (kind TEXT PRIMARY KEY, level TEXT, count INTEGER, errors INTEGER);
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE speakers (name TEXT PRIMARY KEY, clips INTEGER, seconds REAL);
"""
_SPEAKERS = """
INSERT INTO speakers SELECT json_extract(clip, '$.speaker') AS name, COUNT(*), SUM(json_extract(clip, '$.duration_s'))
FROM clips GROUP BY name;
CREATE INDEX speakers_by_seconds ON speakers (seconds DESC, name);
"""
_TEXT_MATCH = "text_match"  # key in `about`
_COLUMNS = "clips.rank, clip, spoken, measures, findings"


class MeasureStore:
    """Measures by the SHA-256 of a recording's bytes."""

    def __init__(self, workspace: Workspace) -> None:
        self._path = workspace.cache / f"measures-{VERSION}.sqlite"

    def load(self, hashes: Iterable[str]) -> dict[str, Measures]:
        """The stored measures of the recordings `hashes`; a recording without any is left out."""
        if not self._path.is_file():
            return {}
        measures: dict[str, Measures] = {}
        with closing(self._open()) as database:
            for part in chunked(hashes, _PER_QUERY):
                rows = database.execute(f"SELECT sha256, value FROM measures WHERE sha256 IN ({_marks(part)})", part)
                measures |= {sha256: Measures.from_json(json.loads(value)) for sha256, value in rows}
        return measures

    def save(self, measures: Mapping[str, Measures]) -> None:
        """Save `measures` in one transaction."""
        with closing(self._open()) as database, database:
            database.executemany("INSERT OR REPLACE INTO measures VALUES (?, ?)",
                                 [(sha256, json.dumps(values.to_json())) for sha256, values in measures.items()])

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=60)
        database.execute("CREATE TABLE IF NOT EXISTS measures (sha256 TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
        return database


def trimmed_measures(clip: ManifestClip, measures: Mapping[str, Measures]) -> Measures | None:
    """The measures of the part of a recording that `clip` uses; `measures`: of whole recordings, by hash."""
    recording_measures = measures.get(clip.sha256)
    return None if recording_measures is None else recording_measures.trimmed(clip.trimmed_start_s, clip.trimmed_end_s)


@dataclass(frozen=True)
class IndexedClip:
    """A clip with its measures and findings. `rank` counts from 0, the worst first."""

    rank: int
    clip: ManifestClip
    spoken: str  # its text after text rules and normaliser
    measures: Measures | None
    findings: tuple[ClipFinding, ...]

    @property
    def rate(self) -> float | None:
        """Letters a second."""
        return speaking_rate(AnalysedClip(self.clip.id, self.spoken, self.clip.speaker, self.measures))


@dataclass(frozen=True)
class FindingSummary:
    """How many clips have a finding of a kind, its worst level, and for how many clips it is an error."""

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
class SpeakerTotal:
    """One speaker's clips and their seconds."""

    name: str
    clips: int
    seconds: float


@dataclass(frozen=True)
class SpeakerSummary:
    """The speakers of a dataset. One with a single clip gives no pair of prompt and target."""

    count: int
    alone: int  # have one clip
    largest: tuple[SpeakerTotal, ...]  # sorted by seconds, as many as were asked for
    some_alone: tuple[SpeakerTotal, ...]  # speakers with one clip


@dataclass(frozen=True)
class DatasetPlots:
    """The histograms of a dataset, and its characters."""

    histograms: tuple[Histogram, ...]
    characters: tuple[tuple[str, int], ...]  # the most frequent first
    rarest: tuple[tuple[str, int], ...] = ()  # other characters, and those that are too rare to be learnt

    @property
    def level_lufs(self) -> float | None:
        """The median level."""
        return next((histogram.median for histogram in self.histograms if histogram.unit == "LUFS"), None)


def reading_names(card: DatasetCard, readings: Mapping[str, TextNormaliser]) -> dict[str, str]:
    """What `ClipIndex.readings` reads: rules and normalisers, for each language of the dataset, commas between them."""
    return {"rules": ",".join(readings[code].rules for code in card.languages),
            "normaliser": ",".join(readings[code].normaliser for code in card.languages)}


def build_index(workspace: Workspace, dataset: PreparedDataset, analysed: Iterable[AnalysedClip],
                about: Mapping[str, str]) -> int:
    """Write the clip index of `dataset`, and return how many of the clips have findings.

    `analysed` is in the order of the dataset's clips and is read once; `data.clip_findings` says what stays in memory.
    """
    target = _path(workspace, dataset.card.fingerprint)
    target.parent.mkdir(parents=True, exist_ok=True)
    rows: DiskList[AnalysedClip] = DiskList(lambda row: json.dumps(asdict(row)), _from_line, target.parent)
    with (atomic_path(target, sync=False) as temporary, closing(sqlite3.connect(temporary)) as database, database,
          DatasetSurvey(ClipLimits(max_text_length=int(about.get("max_text_length", "0")))) as survey):

        # The survey needs all clips before it can judge one of them.
        for clip in analysed:
            survey.add(clip)
            rows.add(clip)

        database.executescript(_TABLES)
        counts = _write_clips(database, dataset, rows, survey)
        with_findings = database.execute("SELECT COUNT(*) FROM clips WHERE badness > 0").fetchone()[0]
        database.executemany(
            "INSERT INTO summary VALUES (?, ?, ?, ?)",
            [(kind, ERROR if errors else WARNING, count, errors) for kind, (count, errors) in counts.items()])

        # Totals are stored too, so that the page does not count 100,000 clips each time.
        database.executescript(_SPEAKERS)
        plots = {"histograms": [asdict(histogram) for histogram in survey.spread.histograms()],
                 "characters": survey.spread.characters(), "rarest": survey.spread.rarest()}
        survey_results = {"plots": json.dumps(plots), _TEXT_MATCH: json.dumps(survey.text_match().to_json())}
        database.executemany("INSERT INTO about VALUES (?, ?)", {**about, **survey_results}.items())
    return int(with_findings)


def _write_clips(database: sqlite3.Connection, dataset: PreparedDataset, rows: Iterable[AnalysedClip],
                 survey: DatasetSurvey) -> dict[str, tuple[int, int]]:
    """Write the clips by rank; for each kind of finding, how many clips have it, and for how many it is an error."""
    counts: dict[str, tuple[int, int]] = {}
    database.execute("CREATE TEMP TABLE judged (id, clip, spoken, measures, findings, badness REAL)")

    # Findings decide the rank, so clips are first collected in a table without ranks.
    for clip, row in zip(dataset.clips, rows, strict=True):
        findings = survey.find_problems(row)
        with_error = {finding.kind for finding in findings if finding.level == ERROR}
        for kind in {finding.kind: None for finding in findings}:
            count, errors = counts.get(kind, (0, 0))
            counts[kind] = (count + 1, errors + (kind in with_error))
        measures = json.dumps(row.measures.to_json()) if row.measures else ""
        database.execute("INSERT INTO judged VALUES (?, ?, ?, ?, ?, ?)", (
            clip.id, json.dumps(asdict(clip)), json.dumps(row.text), measures,
            json.dumps([asdict(finding) for finding in findings]), badness(findings)))

    # The worst clips come first.
    sorted_rows = database.execute("SELECT * FROM judged ORDER BY badness DESC, id")
    database.executemany("INSERT INTO clips VALUES (?, ?, ?, ?, ?, ?, ?)",
                         ((rank, *row) for rank, row in enumerate(sorted_rows)))

    # For each kind of finding, store the ranks of its clips.
    with_findings = database.execute("SELECT rank, findings FROM clips WHERE badness > 0")
    for rank, findings_json in with_findings:
        database.executemany("INSERT OR IGNORE INTO kinds VALUES (?, ?)",
                             [(finding["kind"], rank) for finding in json.loads(findings_json)])
    return counts


def _from_line(line: bytes) -> AnalysedClip:
    values = json.loads(line)
    measures = values.pop("measures")
    return AnalysedClip(**values, measures=Measures.from_json(measures) if measures else None)


class ClipIndex:
    """The clips of one dataset, the worst first."""

    def __init__(self, workspace: Workspace, fingerprint: str) -> None:
        self._path = _path(workspace, fingerprint)
        if not self._path.is_file():
            raise UserError("The recordings of this dataset have not been measured yet.",
                            "Prepare it once more with its settings: what is there stays, and the rest is measured.")

    @classmethod
    def readings(cls, workspace: Workspace, card: DatasetCard) -> dict[str, tuple[str, str]]:
        """By language, the text rules (a name or nothing) and the normaliser that the clips of a dataset were read by.
        """
        about = cls(workspace, card.fingerprint).about()
        names = zip(about["rules"].split(","), about["normaliser"].split(","), strict=True)
        return dict(zip(card.languages, names, strict=True))

    @staticmethod
    def exists(workspace: Workspace, fingerprint: str) -> bool:
        """Whether the clips of this dataset were judged."""
        return _path(workspace, fingerprint).is_file()

    def count(self, kind: str = "") -> int:
        """Clips with a finding of `kind`, or all."""
        table, words = ("kinds WHERE kind = ?", (kind,)) if kind else ("clips", ())
        with self._database() as database:
            return int(database.execute(f"SELECT COUNT(*) FROM {table}", words).fetchone()[0])

    def count_with_findings(self) -> int:
        """Clips with any finding."""
        with self._database() as database:
            first_without = database.execute("SELECT MIN(rank) FROM clips WHERE badness = 0").fetchone()[0]
            return int(first_without) if first_without is not None else self.count()

    def page(self, start: int, size: int, kind: str = "") -> list[IndexedClip]:
        """`size` clips from the one number `start`, the worst first; only those with a finding of `kind`, if given."""
        with self._database() as database:
            if kind:
                rows = database.execute(
                    f"SELECT {_COLUMNS} FROM (SELECT rank FROM kinds WHERE kind = ? ORDER BY rank LIMIT ? OFFSET ?) "
                    "AS chosen JOIN clips ON clips.rank = chosen.rank ORDER BY clips.rank", (kind, size, start))
            else:
                rows = database.execute(f"SELECT {_COLUMNS} FROM clips WHERE rank >= ? ORDER BY rank LIMIT ?",
                                        (start, size))
            return [_reviewed_clip(*row) for row in rows]

    def clip(self, name: str) -> IndexedClip | None:
        """The clip with this id."""
        with self._database() as database:
            row = database.execute(f"SELECT {_COLUMNS} FROM clips WHERE id = ?", (name,)).fetchone()
        return _reviewed_clip(*row) if row else None

    def named(self, ids: Iterable[str]) -> dict[str, IndexedClip]:
        """The clips with these ids, as far as there are such."""
        clips: dict[str, IndexedClip] = {}
        with self._database() as database:
            for part in chunked(ids, _PER_QUERY):
                rows = database.execute(f"SELECT {_COLUMNS} FROM clips WHERE id IN ({_marks(part)})", part)
                clips |= {indexed.clip.id: indexed for indexed in (_reviewed_clip(*row) for row in rows)}
        return clips

    def all(self) -> Iterator[IndexedClip]:
        """Every clip, the worst first."""
        with self._database() as database:
            for row in database.execute(f"SELECT {_COLUMNS} FROM clips ORDER BY rank"):
                yield _reviewed_clip(*row)

    def kinds(self) -> list[FindingSummary]:
        """The kinds of findings, errors first, then the most frequent."""
        with self._database() as database:
            summaries = [FindingSummary(*row) for row in database.execute("SELECT * FROM summary")]
        return sorted(summaries, key=lambda summary: (summary.level != ERROR, -summary.count))

    def about(self) -> dict[str, str]:
        """The settings that the index was made with."""
        with self._database() as database:
            return dict(database.execute("SELECT key, value FROM about"))

    def plots(self) -> DatasetPlots:
        """How the clips are distributed."""
        plots = json.loads(self.about()["plots"])
        histograms = (Histogram(**{**histogram, "counts": tuple(histogram["counts"])})
                      for histogram in plots["histograms"])
        characters, rarest = (tuple((str(name), int(count)) for name, count in plots[which])
                              for which in ("characters", "rarest"))
        return DatasetPlots(tuple(histograms), characters, rarest)

    def text_match(self) -> TextMatch | None:
        """Whether the lengths of the texts fit the durations; None in an index that an older version made."""
        stored = self.about().get(_TEXT_MATCH)
        return TextMatch.from_json(json.loads(stored)) if stored else None

    def speakers(self, limit: int) -> SpeakerSummary:
        """The speakers; at most `limit` names each of those with several clips and with one clip."""
        with self._database() as database:
            count, alone = database.execute("SELECT COUNT(*), COALESCE(SUM(clips = 1), 0) FROM speakers").fetchone()
            largest, some_alone = (
                tuple(SpeakerTotal(*row) for row in database.execute(
                    f"SELECT * FROM speakers WHERE {which} ORDER BY seconds DESC, name LIMIT ?", (limit,)))
                for which in ("clips > 1", "clips = 1"))
        return SpeakerSummary(int(count), int(alone), largest, some_alone)

    def _database(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self._path, timeout=10))


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))


def _reviewed_clip(rank: int, clip: str, spoken: str, measures: str, findings: str) -> IndexedClip:
    return IndexedClip(rank, ManifestClip(**json.loads(clip)), json.loads(spoken),
                       Measures.from_json(json.loads(measures)) if measures else None,
                       tuple(ClipFinding(**finding) for finding in json.loads(findings)))


def _path(workspace: Workspace, fingerprint: str) -> Path:
    return workspace.cache / "review" / f"{fingerprint}.sqlite"
