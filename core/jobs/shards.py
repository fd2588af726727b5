"""Shards: each of N commands takes every N-th batch of a verb, on machines that share the workspace's folder.

A shard that ends well writes a completion list with the keys that it has done. The merge goes on only if all N lists
exist, belong to these batches, and leave no gap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from config import foreign
from config.errors import ErrorKind, UserError, join_names
from config.schema import SHARD_MERGE
from data.durable_files import write_json

Batch = TypeVar("Batch")
_SHOWN = 5  # keys in a message
_MAX_LIST_BYTES = 1 << 30


@dataclass(frozen=True)
class Shard:
    """Number I of N, from 1; 0 is the merge."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard | None:
        """`I/N` or `merge/N`, as the options check it; None for no shard."""
        if "/" not in text:
            return None
        number, _, count = text.partition("/")
        return cls(0 if number == SHARD_MERGE else int(number), int(count))

    @property
    def is_merge(self) -> bool:
        return self.number == 0

    def select(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of this shard."""
        return islice(batches, self.number - 1, None, self.count)

    def __str__(self) -> str:
        return f"{self.number} of {self.count}"


@dataclass(frozen=True)
class ShardLists:
    """The completion lists of one piece of work; `batches`: the keys of all its batches, in their order."""

    folder: Path
    batches: Sequence[Sequence[str]]

    @property
    def _digest(self) -> str:
        return hashlib.sha256("\n".join(" ".join(batch) for batch in self.batches).encode()).hexdigest()

    def path(self, shard: Shard) -> Path:
        return self.folder / f"{shard.number}-of-{shard.count}.json"

    def save(self, shard: Shard, failed: Collection[str]) -> None:
        """Write the list of a shard that has ended; `failed`: keys that have no result."""
        keys, failed = [key for batch in shard.select(self.batches) for key in batch], set(failed)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path(shard), {"batches": self._digest, "done": [key for key in keys if key not in failed],
                                      "failed": [key for key in keys if key in failed]})

    def check(self, count: int, has_result: Callable[[str], bool]) -> frozenset[str]:
        """The keys that failed; `UserError` unless all `count` shards have done their batches and left no gap."""
        shards = [Shard(number, count) for number in range(1, count + 1)]
        absent = [str(shard.number) for shard in shards if not self.path(shard).is_file()]
        if absent:
            raise UserError(f"{len(absent)} of {count} shards have no completion list in {self.folder}: "
                            f"{join_names(absent)}.", "Run them, or run them again: what they have done is kept.",
                            ErrorKind.ENVIRONMENT)

        failed: set[str] = set()
        for shard in shards:
            path = self.path(shard)
            try:
                values = foreign.read_json(path, _MAX_LIST_BYTES)
                done, failed_here = set(values["done"]), set(values["failed"])
                digest = values["batches"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path} is not a completion list: {foreign.reason_of(error)}.",
                                f"Run shard {shard} again.", ErrorKind.ENVIRONMENT) from error
            if digest != self._digest:
                raise UserError(f"Shard {shard} was made of other batches than those of this source.",
                                f"Run it again with the options of the others: --shard {shard.number}/{count}.")
            expected = {key for batch in shard.select(self.batches) for key in batch}
            gaps = sorted(key for key in expected - failed_here if key not in done or not has_result(key))
            if gaps:
                raise UserError(f"Shard {shard} lacks {len(gaps)} of {len(expected)} results, such as "
                                f"{join_names(gaps, _SHOWN)}.", f"Run it again: --shard {shard.number}/{count}.",
                                ErrorKind.ENVIRONMENT)
            failed |= failed_here & expected
        return frozenset(failed)
