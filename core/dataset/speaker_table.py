"""Who speaks in a dataset, and how much: a table in the index of its clips. Never loads torch."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

_TABLE = "CREATE TABLE speakers (name TEXT PRIMARY KEY, clips INTEGER, seconds REAL)"
_LARGEST_FIRST = "ORDER BY seconds DESC, name"


@dataclass(frozen=True)
class Speaker:
    """One voice: its clips and their seconds."""

    name: str
    clips: int
    seconds: float


@dataclass(frozen=True)
class Speakers:
    """The voices of a dataset. One with a single clip leaves no pair of prompt and target."""

    count: int
    alone: int  # have one clip
    largest: tuple[Speaker, ...]  # by seconds, as many as were asked for
    some_alone: tuple[Speaker, ...]  # of those with one clip


NOBODY = Speakers(0, 0, (), ())


def write(database: sqlite3.Connection) -> None:
    """Count the speakers of the table `clips`."""
    database.execute(_TABLE)
    database.execute(
        "INSERT INTO speakers SELECT json_extract(clip, '$.speaker') AS name, COUNT(*), "
        "SUM(json_extract(clip, '$.duration_s')) FROM clips GROUP BY name")
    database.execute("CREATE INDEX speakers_by_seconds ON speakers (seconds DESC, name)")


def read(database: sqlite3.Connection, most: int) -> Speakers:
    """The speakers, of each kind at most so many by name; nobody in an index that was made before this was counted."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'speakers'").fetchone():
        return NOBODY
    count, alone = database.execute("SELECT COUNT(*), COALESCE(SUM(clips = 1), 0) FROM speakers").fetchone()
    largest, some_alone = (
        tuple(Speaker(*row) for row in database.execute(
            f"SELECT name, clips, seconds FROM speakers {which} {_LARGEST_FIRST} LIMIT ?", (most,)))
        for which in ("WHERE clips > 1", "WHERE clips = 1"))
    return Speakers(int(count), int(alone), largest, some_alone)
