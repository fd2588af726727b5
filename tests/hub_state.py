"""What the loopback hub has and remembers, apart from how it speaks."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_BLOCK = 16_384


@dataclass
class Faults:
    """What goes wrong with a file. Counts go down as they happen; -1 is for ever."""

    drop_after: int | None = None  # bytes of an answer, then the connection is cut
    stall_after: int | None = None  # bytes of an answer, then nothing comes
    times: int = -1  # of dropping and stalling
    bytes_per_s: float | None = None
    no_ranges: bool = False
    truncate_to: int | None = None  # the file is shorter than the list says
    content: bytes | None = None  # other bytes than the list says
    lies: int = -1  # how often they come
    status: int = 0  # instead of the file
    refusals: int = -1  # how often it comes
    retry_after: str = ""


@dataclass(frozen=True)
class Blob:
    """A file, in memory or on the disk."""

    source: bytes | Path

    @cached_property
    def size(self) -> int:
        return self.source.stat().st_size if isinstance(self.source, Path) else len(self.source)

    @cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
        return digest.hexdigest()

    @cached_property
    def sha1(self) -> str:
        digest = hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        for block in self.blocks():
            digest.update(block)
        return digest.hexdigest()

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        if isinstance(self.source, bytes):
            yield from (self.source[at:at + _BLOCK] for at in range(start, self.size, _BLOCK))
            return
        with open(self.source, "rb") as file:
            file.seek(start)
            while block := file.read(_BLOCK):
                yield block


@dataclass
class Repository:
    """Files by name at each commit; `main` is the newest."""

    private: bool = False
    gated: bool = False
    kind: str = "model"  # or "dataset"
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    main: str = ""
    refs: dict[str, str] = field(default_factory=dict)  # commits by other names

    def commit(self, files: Mapping[str, Blob]) -> str:
        names = "".join(f"{name} {blob.sha1}\n" for name, blob in sorted(files.items()))
        self.main = hashlib.sha1(f"{self.main}{names}".encode(), usedforsecurity=False).hexdigest()
        self.commits[self.main] = dict(files)
        return self.main


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    server: str  # "hub" or "storage"
    method: str
    path: str
    authorization: str | None
    range: str | None


class HubState:
    """What a hub has, what goes wrong with it, and what it was asked. Its handlers run in threads."""

    def __init__(self) -> None:
        self.url = self.storage = ""  # the addresses of hub and storage
        self.repositories: dict[str, Repository] = {}
        self.faults: dict[str, Faults] = {}  # by the name of the file; also "list" and "upload"
        self.tokens: dict[str, str] = {}  # what each token may do: "read", "write", "gated" (has not accepted)
        self.asked: list[Asked] = []
        self.sent: Counter[str] = Counter()  # bytes of bodies, by the name of the file
        self.uploaded: dict[str, bytes] = {}  # by SHA-256
        self.closing = threading.Event()
        self._guard = threading.Lock()

    def add(self, name: str, files: Mapping[str, bytes | Path], *, private: bool = False, gated: bool = False,
            kind: str = "model") -> str:
        """A repository with one more commit, and its hash."""
        repository = self.repositories.setdefault(name, Repository(private, gated, kind))
        return repository.commit({path: Blob(source) for path, source in files.items()})

    def fault(self, file: str, **how: object) -> Faults:
        """Let things go wrong with all files of this name."""
        self.faults[file] = Faults(**how)  # type: ignore[arg-type]
        return self.faults[file]

    def note(self, asked: Asked) -> None:
        with self._guard:
            self.asked.append(asked)

    def count(self, name: str, size: int) -> None:
        with self._guard:
            self.sent[name] += size

    def spend(self, faults: Faults, field_name: str) -> bool:
        """Whether the fault happens this time."""
        with self._guard:
            left = getattr(faults, field_name)
            if left > 0:
                setattr(faults, field_name, left - 1)
            return bool(left)
