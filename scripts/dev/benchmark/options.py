"""Speed and memory of the options of a training: each alone, all together, and none, measured interleaved.

Scope `gated` on the same random clips as the training part. Attention is torch's fused one and batches are of similar
length, except in the two rows that say otherwise: these two are no options of a training.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

from core.training.dataloader import Utterance
from core.training.trainer import Trainer
from data.batches import BatchClip
from scripts.dev.benchmark import training
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow
from scripts.dev.benchmark.sizes import shallower
from scripts.dev.benchmark.timing import Measure, MeasurementStats, measure_interleaved

PART = "options"
_LAYERS = 10  # all variants are held at once, and layers are alike
_NONE = "none"
CHOSEN: dict[str, Mapping[str, Any]] = {
    _NONE: {},
    "activation checkpointing": {"activation_checkpointing": "on"},
    "averaging": {"ema": 0.999},
    "compiled layers": {"compile": "on"},
    "the three together": {"activation_checkpointing": "on", "ema": 0.999, "compile": "on"},
}


class _AnyLength(Utterance):
    """A clip that is put into batches as if all were of one length."""

    @property
    def batch_clip(self) -> BatchClip:
        return BatchClip(1, self.speaker)


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
        """Bytes of the steps of an epoch at their peak, with those of the model and its optimizer."""
        with self.attention():
            return training.epoch_peak(bench.device, self.trainer)


def measure(bench: Bench) -> BenchmarkResults:
    """A row of speed and one of memory for each way to train."""
    bench = bench.smaller(shallower(bench.sizes, min(_LAYERS, bench.sizes.language.decoder.layers)))
    variants: dict[str, _Variant] = {}
    for name, changes in CHOSEN.items():
        bench.say(f"Options: {name}")
        variants[name] = _Variant(training.make(bench, "gated", "chatterbox", **changes))
    variants["batches of any length"] = _Variant(_unsorted(training.make(bench, "gated")))
    variants["attention that is not fused"] = _Variant(training.make(bench, "gated"), fused=False)

    # Memory is measured first, while nothing else runs.
    peaks = {name: variant.peak(bench) for name, variant in variants.items()}
    measures: dict[str, Measure] = {name: variant.speed for name, variant in variants.items()}
    speeds = measure_interleaved(measures, bench.sizes.epochs)

    layers = f"gated, {bench.sizes.language.decoder.layers} layers"
    rows = [BenchmarkRow(PART, f"{layers}, {name}", "tokens/s", speed, None if name == _NONE else speeds[_NONE],
                more_is_better=True, against="none of them") for name, speed in speeds.items()]
    rows += [BenchmarkRow(PART, f"{layers}, {name}, peak memory with the model", "GiB",
                          MeasurementStats.of([peak / 2**30]))
             for name, peak in peaks.items()]
    return BenchmarkResults(tuple(rows))


def _unsorted(trainer: Trainer) -> Trainer:
    """The same training on clips whose length the batches do not heed."""
    clips = tuple(_AnyLength(**vars(clip)) for clip in trainer.data.train)
    return Trainer(trainer.options, trainer.tts, replace(trainer.data, train=clips), (), trainer.precision)
