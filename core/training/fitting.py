"""Will a run fit, and how long will it take: found by a few real forward and backward passes before the first step.

The passes leave nothing behind: random generators, gradients and the order of the clips are
as they were, so that a run is the same run with and without them. Where memory does not
suffice, activations are recomputed first, because that changes no result at all, and then
the passes of a step are made smaller.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from config.errors import UserError
from config.schema import TrainOptions
from core.training import memory

if TYPE_CHECKING:
    from core.training.trainer import Trainer

_SAFE = 0.9  # share of the free memory that may be planned with
_ENOUGH_S, _MOST_TRIALS = 3.0, 3
_SHORT, _LONG = 0.25, 0.75  # where in the order of lengths the clips stand whose passes are timed


@dataclass(frozen=True)
class Setting:
    """How a step is computed; neither its samples nor, but for rounding, its result hang on it."""

    parts: int = 1  # passes that each batch is divided into
    recompute: bool = False  # activations are computed again in the backward pass

    def size(self, batch_size: int) -> int:
        """Clips in one pass."""
        return -(-batch_size // self.parts)

    def halved(self, batch_size: int) -> Setting | None:
        """Passes of half the size; None when they have a single clip already."""
        return replace(self, parts=self.parts * 2) if self.size(batch_size) > 1 else None

    def tighter(self, batch_size: int, *, may_recompute: bool) -> Setting | None:
        """The next setting that takes less memory; None when there is none."""
        if may_recompute and not self.recompute:
            return replace(self, recompute=True)
        return self.halved(batch_size)


def first(options: TrainOptions, *, sharded: bool, before: Setting = Setting()) -> Setting:
    """The setting that a run begins with, or goes on with after `before`; in parts there is one throughout."""
    auto = options.activation_checkpointing == "auto" and (sharded or before.recompute)  # who shards is short of memory
    return Setting(1 if sharded else before.parts, options.activation_checkpointing == "on" or auto)


@dataclass(frozen=True)
class Estimate:
    """What a run will take. `free` is None where it cannot be known, `needed` where it did not fit in trying."""

    setting: Setting
    needed: int | None  # bytes beside the loaded model
    free: int | None
    seconds_a_step: tuple[float, float] = (0.0, 0.0)  # of short clips and of long ones; 0 where none was taken

    @property
    def fits(self) -> bool:
        return self.needed is not None and (self.free is None or self.needed <= _SAFE * self.free)


def estimate(trainer: Trainer) -> Estimate:
    """Choose the first setting, from the trainer's own on, that fits, and time it; the trainer is left with it.

    Where the model is in parts there is one setting, and too little memory for the longest clips ends the run.
    """
    options, free = trainer.options, memory.free(trainer.voice.device)
    if trainer.sharded:
        return _tried_in_parts(trainer, free)
    may_recompute = options.activation_checkpointing == "auto"
    sizes: dict[bool, tuple[int, int] | None] = {}
    while True:
        setting = trainer.setting
        if setting.recompute not in sizes:
            sizes[setting.recompute] = _measure(trainer)
        needed = _needed(trainer, sizes[setting.recompute])
        found = Estimate(setting, needed, free)
        following = None if found.fits else setting.tighter(options.batch_size, may_recompute=may_recompute)
        if following is None:
            return replace(found, seconds_a_step=_time(trainer)) if found.fits else found
        trainer.use(following)


def _tried_in_parts(trainer: Trainer, free: int | None) -> Estimate:
    """A pass of all processes over the longest clips, so that a shortage shows before the start, and then its time."""
    longest = trainer.by_length()[-trainer.setting.size(trainer.options.batch_size):]
    needed = None
    try:
        if trainer.voice.device.type == "cuda":  # whose allocator counts; tensors in parts cannot be followed otherwise
            needed = memory.peak(trainer.voice.device, lambda: trainer.attempt(longest)) + trainer.optimizer_bytes
        else:
            trainer.attempt(longest)
    except torch.OutOfMemoryError:
        after_shortage(trainer.setting, trainer.options, trainer.step + 1, sharded=True)
    return Estimate(trainer.setting, needed, free, _time(trainer))


def _measure(trainer: Trainer) -> tuple[int, int] | None:
    """Bytes at the peak for the longest clip, and for the two longest together; None where even they do not fit."""
    longest = trainer.by_length()[-2:]
    try:
        one, two = (memory.peak(trainer.voice.device, lambda clips=clips: trainer.attempt(clips))  # type: ignore[misc]
                    for clips in (longest[-1:], longest))
    except torch.OutOfMemoryError:
        return None
    return one, two


def _needed(trainer: Trainer, sizes: tuple[int, int] | None) -> int | None:
    """Bytes for a pass over clips as long as the longest, and for the optimizer."""
    if sizes is None:
        return None
    one, two = sizes
    size = trainer.setting.size(trainer.options.batch_size)
    return one + max(0, two - one) * (size - 1) + trainer.optimizer_bytes


def _time(trainer: Trainer) -> tuple[float, float]:
    """Seconds of a step of short clips, and of long ones, from passes as large as the training's are.

    The first pass of a size is not counted: it takes memory, chooses kernels or waits for what is loaded on first use,
    which no later one does. Of the others the fastest counts, for what else the machine does only ever slows them.
    """
    clips, size = trainer.by_length(), trainer.setting.size(trainer.options.batch_size)

    def passed(where: float) -> float:
        first = round(where * (len(clips) - 1)) - (size - 1) // 2
        begin = min(max(0, first), max(0, len(clips) - size))
        drawn = [clips[(begin + index) % len(clips)] for index in range(size)]
        began = time.perf_counter()
        trainer.attempt(drawn)  # ends with a look at the losses, so the device is done
        return (time.perf_counter() - began) / size * trainer.options.batch_size * trainer.options.gradient_accumulation

    passed(_LONG)
    took: list[tuple[float, float]] = []
    began = time.perf_counter()
    while not took or (len(took) < _MOST_TRIALS and time.perf_counter() - began < _ENOUGH_S):
        took.append((passed(_SHORT), passed(_LONG)))
    short, long = (min(times) for times in zip(*took, strict=True))
    return min(short, long), max(short, long)


def after_shortage(setting: Setting, options: TrainOptions, step: int, *, sharded: bool) -> tuple[Setting, str]:
    """After `step` ran out of memory: passes of half the size, and once they are single clips recomputed activations.

    The setting and what to say of it; `UserError` where there is no smaller one, or no way to agree on it.
    """
    if sharded:
        raise UserError(
            f"The memory of a device did not suffice at step {step}. A sharded run cannot make its passes smaller on "
            "the way: all processes take each of them.",
            "Start a run with half the batch_size and twice the accumulation, which takes the same steps.")
    smaller = setting.halved(options.batch_size)
    if smaller is None and not setting.recompute and options.activation_checkpointing == "auto":
        smaller = replace(setting, recompute=True)
    if smaller is None:
        raise UserError(
            f"The memory of the device did not suffice for a single clip at step {step}.",
            "Close what else uses the device, leave out the longest clips, or train where there is more memory.")
    again = " and activations computed again in the backward pass" if smaller.recompute else ""
    return smaller, (
        f"Out of memory at step {step}: passes of {smaller.size(options.batch_size)} clips instead of "
        f"{setting.size(options.batch_size)} from here on{again}, accumulated "
        f"{smaller.parts * options.gradient_accumulation} "
        f"times a step instead of {setting.parts * options.gradient_accumulation}. The step is taken again with the "
        "same samples.")
