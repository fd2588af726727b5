"""The order of training: epochs of batches of similar length; each clip has a prompt from another clip of its speaker.

The seed, the epoch and the clips determine the order, so two numbers are the state of a sampler and a resumed run
continues exactly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from config.errors import UserError

_POOL = 200  # batches that are sorted by length together: less padding, and batches still vary


@dataclass(frozen=True)
class BatchClip:
    """What the order needs of a clip."""

    length: int  # tokens
    speaker: str


@dataclass(frozen=True)
class SamplerState:
    """Batches of `epoch` before `batch` are done."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class TargetPromptPair:
    """One sample of a batch: indices of the target clip and of its prompt."""

    target: int
    prompt: int


class LengthBucketedBatchSampler:
    """Endless batches over `clips`; batch `batch` of epoch `epoch` is the next one."""

    def __init__(self, clips: Sequence[BatchClip], batch_size: int, seed: int) -> None:
        if not clips:
            raise ValueError("there are no clips")
        self._clips, self._batch_size, self._seed = clips, batch_size, seed
        self._of_speaker: dict[str, list[int]] = {}
        for index, clip in enumerate(clips):
            self._of_speaker.setdefault(clip.speaker, []).append(index)
        single = [speaker for speaker, indices in self._of_speaker.items() if len(indices) < 2]
        if single:
            raise ValueError(f"speakers with a single clip cannot be prompted: {single[:5]}")
        self.load_state_dict(SamplerState())

    def __len__(self) -> int:
        """Number of batches in the current epoch."""
        return len(self._batches)

    @property
    def smallest(self) -> int:
        """Clips in the smallest batch, which is the same in every epoch."""
        return min(map(len, self._batches))

    def state_dict(self) -> SamplerState:
        """Where the sampler is."""
        return SamplerState(self.epoch, self.batch)

    def load_state_dict(self, state: SamplerState) -> None:
        """Continue from `state`; `UserError` if its epoch has fewer batches."""
        batches = self._epoch(state.epoch)
        if not 0 <= state.batch <= len(batches):
            raise UserError(f"There is no batch {state.batch} in epoch {state.epoch}, which has {len(batches)} "
                            f"of at most {self._batch_size} clips: the run did not begin with these batches.",
                            "Continue it with the clips, the batch size and as many processes as it began with.")
        self.epoch, self.batch, self._batches = state.epoch, state.batch, batches

    def next_batch(self) -> list[TargetPromptPair]:
        """The next batch, of about `batch_size` clips and never more: an epoch is divided evenly."""
        if self.batch == len(self._batches):
            self.load_state_dict(SamplerState(self.epoch + 1))
        self.batch += 1
        return self._batches[self.batch - 1]

    def _epoch(self, epoch: int) -> list[list[TargetPromptPair]]:
        shuffler = random.Random(f"{self._seed}/{epoch}")
        indices = list(range(len(self._clips)))
        shuffler.shuffle(indices)
        pairs = [TargetPromptPair(index, self._prompt(index, shuffler)) for index in indices]

        # Sorting only within a pool keeps padding small, and batches still differ between epochs.
        batches = []
        for pool in _even_parts(pairs, self._batch_size * _POOL):
            batches += _even_parts(sorted(pool, key=self._length), self._batch_size)
        shuffler.shuffle(batches)
        return batches

    def _length(self, pair: TargetPromptPair) -> int:
        return self._clips[pair.target].length

    def _prompt(self, target: int, shuffler: random.Random) -> int:
        """Another clip of the same speaker."""
        same_speaker = self._of_speaker[self._clips[target].speaker]
        chosen = same_speaker[shuffler.randrange(len(same_speaker) - 1)]
        return same_speaker[-1] if chosen == target else chosen


def _even_parts(pairs: list[TargetPromptPair], max_size: int) -> list[list[TargetPromptPair]]:
    """`pairs` in as few parts of at most `max_size` as possible, whose sizes differ by at most one."""
    count = -(-len(pairs) // max_size)
    ends = [len(pairs) * part // count for part in range(count + 1)]
    return [pairs[start:end] for start, end in zip(ends, ends[1:], strict=False)]
