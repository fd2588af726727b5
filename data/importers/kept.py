"""Names and what belongs to them, on the disk: a dictionary whose size costs no memory."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Self


class Kept:
    """A temporary database that vanishes when it is closed. An empty name makes SQLite put it in a file of its own."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA cache_size = -2000")  # KiB
        self._database.execute("CREATE TABLE kept (name BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        self._database.execute("BEGIN")  # never committed: nobody reads it later

    def put(self, name: str, value: str) -> str | None:
        """Keep `value` under `name` if that is new; else what is there already."""
        try:
            self._database.execute("INSERT INTO kept VALUES (?, ?)", (_bytes(name), _bytes(value)))
        except sqlite3.IntegrityError:
            return self.get(name)
        return None

    def get(self, name: str) -> str | None:
        found = self._database.execute("SELECT value FROM kept WHERE name = ?", (_bytes(name),)).fetchone()
        return found[0].decode("utf-8", "surrogatepass") if found else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._database.close()


def _bytes(text: str) -> bytes:
    """As bytes, because JSON can hold half a surrogate pair, which SQLite's texts cannot."""
    return text.encode("utf-8", "surrogatepass")
