"""Decoding on a GPU: one, eight and 32 texts together, with and without CUDA graphs, without and with an adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from config.schema import AdapterOptions
from core.model.adapters import Adapters, plan_adapters
from core.model.precision import Precision
from models.cuda_graph_decode import CUDAGraphStepper
from models.generate import Stepper
from models.language_model import TransformerLanguageModel
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.results import BenchmarkRow, Bound
from scripts.dev.benchmark.timing import Measure, MeasurementStats, measure_interleaved

TEXTS = (1, 8, 32)
_KINDS: dict[str, type[Stepper]] = {"graphs": CUDAGraphStepper, "no graphs": Stepper}


def add_adapters(lm: TransformerLanguageModel, device: torch.device) -> None:
    """The adapters that a run has by default, switched on, in the precision of the model's first matrix."""
    dtype = next(value.dtype for value in lm.module.parameters() if value.ndim == 2)
    adapters = Adapters.fresh(lm.module, plan_adapters(AdapterOptions(), lm.adapter_targets, steps=1), seed=0)
    lm.module.to(device).eval()
    Precision(device.type, dtype, "of the benchmark").cast(lm.module, ())
    adapters.switch(True)


def decode_rows(bench: Bench, part: str, models: Mapping[str, Any], adapt: Callable[[Bench, Any], None],
                decoding: Callable[[Any, int, type[Stepper]], Measure], ms_a_code: Bound | None,
                codes_a_second: Bound | None = None) -> list[BenchmarkRow]:
    """Milliseconds a code of one text, and codes a second of several, in half precision.

    `adapt` puts adapters into the model, which keeps them. The bounds, of one text and of 32, are for adapters that act
    and for graphs.
    """
    rows, dtype = [], bench.half() or torch.float32
    precision = str(dtype).removeprefix("torch.")

    model = models[precision]
    for variant in ("no adapter", "adapter"):
        if variant == "adapter":
            # The model keeps its adapters, so that they come second.
            adapt(bench, model)
        for texts in TEXTS:
            bench.say(f"{part}: {texts} texts together, {variant}")
            stats = measure_interleaved({name: decoding(model, texts, kind) for name, kind in _KINDS.items()},
                                        bench.sizes.repeats)
            for name, spread in stats.items():
                title = f"{texts} texts together, {precision}, {variant}, {name}"
                has_bound = (variant, name) == ("adapter", "graphs")
                if texts == 1:
                    rows.append(BenchmarkRow(part, title, "ms", spread, bound=ms_a_code if has_bound else None))
                else:
                    speed = MeasurementStats(1000 * texts / spread.median, 1000 * texts / spread.most,
                                             1000 * texts / spread.least, spread.count)
                    rows.append(BenchmarkRow(part, title, "codes/s", speed, more_is_better=True,
                                             bound=codes_a_second if has_bound and texts == TEXTS[-1] else None))

            bench.keep(rows[-len(stats):])
    return rows
