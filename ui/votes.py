"""Votes of the blind comparison, one JSON object a line in the workspace's `votes.jsonl`.

A comparison that was asked for blind is noted there too, so that no reload and no second browser uncovers it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Choice = Literal["base", "finetuned", "same"]
CHOICES: tuple[Choice, ...] = ("base", "finetuned", "same")


@dataclass(frozen=True)
class Vote:
    """One answer: which side of clip `index` of the comparison `job` was better, without knowing which is which."""

    job: str
    index: int
    language: str
    text: str
    choice: Choice
    finetuned: str  # reference of the model on the finetuned side
    time: float = 0.0


def order(job: str, index: int) -> tuple[str, str]:
    """Sides behind A and B for one clip: as good as random, yet the same after a reload."""
    flipped = hashlib.blake2b(f"{job} {index}".encode()).digest()[0] % 2
    return ("finetuned", "base") if flipped else ("base", "finetuned")


def save(path: Path, vote: Vote) -> None:
    """Append `vote`."""
    line = json.dumps({**asdict(vote), "time": vote.time or time.time()}, ensure_ascii=False)
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def read(path: Path) -> list[Vote]:
    """All votes that can be read."""
    votes = []
    for row in _rows(path):
        try:
            vote = Vote(**row)
        except TypeError:
            continue  # of another version, or no vote
        if vote.choice in CHOICES:
            votes.append(vote)
    return votes


def cover(path: Path, job: str, on: bool = True) -> None:
    """Note that the comparison `job` is heard blind; or, with `on` false, that it was uncovered without a vote."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps({"job": job, "covered": on, "time": time.time()}) + "\n")


def is_covered(path: Path, job: str) -> bool:
    """Whether a comparison was asked for blind, and nobody uncovered it."""
    told = [row["covered"] for row in _rows(path) if row.get("job") == job and "covered" in row]
    return bool(told and told[-1])


def _rows(path: Path) -> list[dict[str, Any]]:
    """The lines that can be read; one that was cut off counts for nobody."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def tally(votes: Sequence[Vote]) -> Counter[tuple[str, Choice]]:
    """Votes by language and choice."""
    return Counter((vote.language, vote.choice) for vote in votes)
