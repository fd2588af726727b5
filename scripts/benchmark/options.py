"""What the options of the training engine cost and save: one by one and together, in turns, beside none of them.

Scope `gated` on the same made-up clips as the training part. Attention is torch's fused one and batches are of like
length in every row but the two that say otherwise: neither can be chosen in a training.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from torch.nn.attention import SDPBackend, sdpa_kernel

from core.training import memory_plan
from core.training.dataloader import Utterance
from core.training.trainer import Trainer
from data.batches import Clip
from scripts.benchmark import training
from scripts.benchmark.bench import Bench
from scripts.benchmark.extent import shallower
from scripts.benchmark.rows import Found, Row
from scripts.benchmark.timing import Measure, Spread, in_turns

PART = "options"
_LAYERS = 10  # all variants are held at once, and layers are alike
_NONE = "none"
CHOSEN: dict[str, Mapping[str, object]] = {
    _NONE: {},
    "activation checkpointing": {"activation_checkpointing": "on"},
    "averaging": {"ema": 0.999},
    "compiled layers": {"compile": "on"},
    "the three together": {"activation_checkpointing": "on", "ema": 0.999, "compile": "on"},
}


class _AnyLength(Utterance):
    """A clip that is put into batches as if all were of one length."""

    @property
    def order_clip(self) -> Clip:
        return Clip(1, self.speaker)


@dataclass(frozen=True)
class _Variant:
    trainer: Trainer
    fused: bool = True

    def attention(self) -> AbstractContextManager[None]:
        """The context of its steps."""
        return nullcontext() if self.fused else sdpa_kernel(SDPBackend.MATH)

    def speed(self) -> float:
        """Useful tokens a second over an epoch."""
        with self.attention():
            return training.epoch(self.trainer)

    def peak(self, bench: Bench) -> int:
        """Bytes of a step beyond what is held before it, and those of the model."""
        with self.attention():
            return memory_plan.peak_bytes(bench.device, self.trainer.train_step) + training.size(self.trainer)


def measure(bench: Bench) -> Found:
    """A row of speed and one of memory for each way to train."""
    bench = bench.smaller(shallower(bench.extent, min(_LAYERS, bench.extent.language.decoder.layers)))
    made: dict[str, _Variant] = {}
    for name, changes in CHOSEN.items():
        bench.say(f"Options: {name}")
        made[name] = _Variant(training.make(bench, "gated", **changes))
    made["batches of any length"] = _Variant(_unsorted(training.make(bench, "gated")))
    made["attention that is not fused"] = _Variant(training.make(bench, "gated"), fused=False)
    peaks = {name: variant.peak(bench) for name, variant in made.items()}
    measures: dict[str, Measure] = {name: variant.speed for name, variant in made.items()}
    speeds = in_turns(measures, bench.extent.epochs)
    layers = f"gated, {bench.extent.language.decoder.layers} layers"
    rows = [Row(PART, f"{layers}, {name}", "tokens/s", speed, None if name == _NONE else speeds[_NONE],
                more_is_better=True, against="none of them") for name, speed in speeds.items()]
    rows += [Row(PART, f"{layers}, {name}, peak memory with the model", "GiB", Spread.of([peak / 2**30]))
             for name, peak in peaks.items()]
    return Found(tuple(rows))


def _unsorted(trainer: Trainer) -> Trainer:
    """The same training on clips whose length the batches do not heed."""
    clips = tuple(_AnyLength(**vars(clip)) for clip in trainer.data.train)
    return Trainer(trainer.options, trainer.voice, replace(trainer.data, train=clips), (), trainer.precision)
