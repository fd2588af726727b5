"""Batches by length, the learning rate and the loop of the trainings of the pack and of the codec for people."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

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


class Training(Protocol):
    """A training that counts its steps; a step takes a batch and the share of the time that is over."""

    steps: int

    def step(self, batch: Any, share: float) -> Mapping[str, Any]: ...


def train_for(seconds: float, before: float, name: str, training: Training, draw: Callable[[], object],
              save: Callable[[], None], report_every: int, held_out: Callable[[], str] = str) -> None:
    """Train for `seconds` of processor time, `before` of them spent earlier.

    Every `report_every` steps it prints the mean losses and what `held_out` returns, and saves.
    """
    begin = time.process_time()
    sums: dict[str, float] = {}
    while (share := (before + time.process_time() - begin) / seconds) < 1:
        for loss, value in training.step(draw(), share).items():
            sums[loss] = sums.get(loss, 0.0) + float(value) / report_every

        if training.steps % report_every == 0:
            line = " ".join(f"{loss} {value:.4f}" for loss, value in sums.items())
            spent = before + time.process_time() - begin
            print(f"{name} step {training.steps} {line} {held_out()}{spent:.0f} s", flush=True)
            sums = {}
            save()
