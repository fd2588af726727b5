"""What a run learns from, batch by batch: the new language's clips, in `full` some of the base's, and variants.

It knows no model. Which variant of a clip is heard follows from the seed, the epoch and the
clip, so that two positions say all of where it stands.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from config.errors import UserError
from config.schema import TrainOptions
from core.training import training_data
from core.training.training_data import TrainingData, Utterance
from data.batches import BatchOrder, BatchPosition, TrainingPair
from models.base import Sample


@dataclass(frozen=True)
class Batch:
    """Samples with the names of their clips."""

    samples: list[Sample]
    clips: list[str]
    rehearsed: bool = False


class Feed:
    """Endless batches for `processes` that share each."""

    def __init__(self, options: TrainOptions, data: TrainingData, rehearsed: Sequence[Utterance],
                 max_prompt_length: int,
                 processes: int = 1) -> None:
        self._options, self._data, self._rehearsed, self._prompt_length = options, data, rehearsed, max_prompt_length
        size = options.batch_size * processes
        replayed = round(options.replay * size) if rehearsed and options.scope == "full" else 0
        replayed = min(replayed, size - 1)
        self._order = BatchOrder([item.order_clip for item in data.train], size - replayed, options.seed)
        if self._order.smallest < processes:
            raise UserError(f"A batch of {self._order.smallest} clips cannot be shared by {processes} processes.",
                            "Ask for larger batches, fewer processes, or add recordings.")
        self._replay = BatchOrder([item.order_clip for item in rehearsed], replayed, options.seed) if replayed else None

    @property
    def positions(self) -> tuple[BatchPosition, BatchPosition]:
        """Where the order of the new language's clips and that of the rehearsed ones stand."""
        return self._order.position, self._replay.position if self._replay else BatchPosition()

    def move_to(self, order: BatchPosition, replay: BatchPosition) -> None:
        """Stand at `positions` of before."""
        self._order.move_to(order)
        if self._replay:
            self._replay.move_to(replay)

    def draw(self) -> list[Batch]:
        """The next batch; `full` adds one of clips to rehearse, apart, because their lengths are others."""
        draws = self._order.next()  # and the epoch it is of
        heard = [variant(self._data, draw.target, self._options, self._order.position.epoch) for draw in draws]
        drawn = [self._batch(draws, self._data.train, heard)]
        if self._replay:
            draws = self._replay.next()
            drawn.append(replace(self._batch(draws, self._rehearsed), rehearsed=True))
        return drawn

    def by_length(self) -> list[TrainingPair]:
        """The training clips from the shortest to the longest, each as its own prompt; for trials.

        They are those of the whole dataset, also where the steps take a few of them alone: what a training takes is
        asked of these.
        """
        longest = [item.order_clip.length for item in map(self._longest, range(len(self._whole.train)))]
        return [TrainingPair(index, index) for index in sorted(range(len(longest)), key=longest.__getitem__)]

    def trial(self, draws: Sequence[TrainingPair]) -> list[Sample]:
        """Samples of these clips, each as long as it is ever heard."""
        return self._batch(draws, self._whole.train, [self._longest(draw.target) for draw in draws]).samples

    @property
    def _whole(self) -> TrainingData:
        return self._data.cut_from or self._data

    def _longest(self, index: int) -> Utterance:
        item = self._whole.train[index]
        return max((item, *self._whole.variants.get(item.id, ())), key=lambda one: one.order_clip.length)

    def _batch(self, draws: Sequence[TrainingPair], clips: Sequence[Utterance],
               heard: Sequence[Utterance] | None = None) -> Batch:
        """`heard`: what is learnt in the place of the drawn clips; prompts are as they were recorded."""
        names = [clips[draw.target].id for draw in draws]
        if heard is None:
            return Batch(training_data.samples(draws, clips, self._prompt_length), names)
        return Batch([training_data.sample(target, clips[draw.prompt], self._prompt_length)
                      for target, draw in zip(heard, draws, strict=True)], names)


def shared(drawn: Sequence[Batch], seeds: Sequence[int], rank: int, size: int) -> tuple[list[Batch], list[int]]:
    """What the process `rank` of `size` learns of each batch, with the seeds; together the processes have all."""
    own, own_seeds, waiting = [], list[int](), list(seeds)
    for batch in drawn:
        part, waiting = waiting[:len(batch.samples)], waiting[len(batch.samples):]
        own.append(replace(batch, samples=batch.samples[rank::size]))
        own_seeds += part[rank::size]
    return own, own_seeds


def passes(drawn: Sequence[Batch], size: int, shares: Sequence[int] = ()) -> list[tuple[list[Sample], bool]]:
    """The samples of the batches, in their order, cut into at most `size`, and whether they are rehearsed.

    `shares`: clips in the largest share of each batch. A smaller share then ends with passes of nothing, as many as
    the others still take.
    """
    lengths = shares or [len(batch.samples) for batch in drawn]
    return [(batch.samples[start:start + size], batch.rehearsed)
            for batch, length in zip(drawn, lengths, strict=True) for start in range(0, length, size)]


def variant(data: TrainingData, index: int, options: TrainOptions, epoch: int) -> Utterance:
    """The training clip `index` as it is heard in `epoch`: itself, or one of its variants."""
    item = data.train[index]
    there = data.variants.get(item.id, ()) if options.augmentation else ()
    chance = random.Random(f"{options.seed}/{epoch}/{item.id}")
    return chance.choice(there) if there and chance.random() < options.augmentation else item
