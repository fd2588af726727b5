"""Batches by length and the learning-rate shape shared by the three trainings of the pack."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def epoch(items: Sequence[Item], batch_size: int, shuffler: random.Random,
          length: Callable[[Item], int]) -> list[list[Item]]:
    """One pass over `items` in batches of nearly equal length, in random order."""
    shuffled = list(items)
    shuffler.shuffle(shuffled)
    batches = []
    for start in range(0, len(shuffled), batch_size * 20):
        pool = sorted(shuffled[start : start + batch_size * 20], key=length)
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    shuffler.shuffle(batches)
    return batches


def steps(items: Sequence[Item], batch_size: int, count: int, seed: int,
          length: Callable[[Item], int]) -> Iterator[tuple[int, list[Item]]]:
    """`count` numbered batches over as many epochs as that takes."""
    shuffler = random.Random(seed)
    step = 0
    while step < count:
        for batch in epoch(items, batch_size, shuffler, length):
            if step == count:
                return
            yield step, batch
            step += 1


def learning_rate(step: int, count: int, warmup: int, hold: float = 0.4, floor: float = 0.03) -> float:
    """Factor in (0, 1]: linear warmup, constant for the share `hold`, then linear to `floor`."""
    share = step / count
    decay = 1.0 if share < hold else 1.0 - (1.0 - floor) * (share - hold) / (1.0 - hold)
    return min(1.0, (step + 1) / warmup) * decay
