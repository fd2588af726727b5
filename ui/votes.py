"""Votes of the blind comparison, one JSON object a line in the workspace's `votes.jsonl`."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    votes = []
    for line in lines:
        try:
            vote = Vote(**json.loads(line))
        except (ValueError, TypeError):
            continue  # a line that was cut off, or of another version, counts for nobody
        if vote.choice in CHOICES:
            votes.append(vote)
    return votes


def tally(votes: Sequence[Vote]) -> Counter[tuple[str, Choice]]:
    """Votes by language and choice."""
    return Counter((vote.language, vote.choice) for vote in votes)
