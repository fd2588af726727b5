"""A language model in each precision, and what it costs: errors of the logits against float32 on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from core.model import precision
from models.base import Sample
from models.decoder import KVCache
from models.generate import cache_type
from models.speech_network import quantize_decoding_
from scripts.dev.benchmark.bench import Bench, ModuleT
from scripts.dev.benchmark.results import Cost


def precisions(bench: Bench, full_model: ModuleT) -> dict[str, ModuleT]:
    """The same float32 weights in every precision that the device has; on a CPU lower ones are quantized weights."""
    models = {"float32": full_model}
    for name in bench.quantized() if bench.device.type == "cpu" else bench.halves():
        models[name] = copy.deepcopy(full_model)
        if bench.device.type == "cpu":
            quantize_decoding_(models[name], name)
        else:
            precision.decide(name, bench.device).cast(models[name], ())
    return models


def costs(bench: Bench, part: str, models: Mapping[str, Any], samples: list[Sample],
          logits: Callable[[Any, Sample, torch.device, bool], torch.Tensor]) -> list[Cost]:
    """Relative error of the logits, and how often the top-1 code is the same, in each precision.

    `logits` of a model and a sample on a device are teacher-forced, (U + 1, codes), in float32, with guidance where the
    model has it: all in one pass or, if its last argument is true, code by code as while speaking. On a GPU steps in
    half precision have kernels of their own, so there the first sample is computed in steps too.
    """
    cpu, on_cpu = torch.device("cpu"), bench.on_cpu(models["float32"])
    expected = [logits(on_cpu, sample, cpu, False) for sample in samples]
    losses = []

    for name, model in models.items():
        if model is on_cpu:
            continue
        for by_steps in (False, True) if bench.device.type == "cuda" and name != "float32" else (False,):
            # Steps are slow, so one sample has to do.
            compared = samples[:1] if by_steps else samples
            computed = [logits(model, sample, bench.device, by_steps).cpu() for sample in compared]
            pairs = list(zip(computed, expected, strict=False))
            errors = [float((result - true).norm() / true.norm()) for result, true in pairs]
            same = torch.cat([(result.argmax(-1) == true.argmax(-1)).float() for result, true in pairs])
            note = f"{len(same)} teacher-forced contexts, against float32 on the CPU"
            title = f"{name}, in steps" if by_steps else name
            losses += [Cost(part, f"{title}: relative error of the logits", 100 * float(np.mean(errors)), "%", note),
                       Cost(part, f"{title}: top-1 code is the same", 100 * float(same.mean()), "%", note)]

    return losses


def hidden_states(model: Any, rows: torch.Tensor, first_position: int, by_steps: bool) -> torch.Tensor:
    """The states (T, width) of embedded rows (1, T, width); `by_steps`: each from position `first` on alone."""
    cache = KVCache(model.config.decoder, 1, rows.shape[1], rows.device, cache_type(model, rows))  # may be rounded too
    ends = range(first_position, rows.shape[1] + 1) if by_steps else [rows.shape[1]]
    states = [model.hidden_states(rows[:, start:end], cache, torch.arange(start, end, device=rows.device)[None])
              for start, end in pairwise([0, *ends])]
    return torch.cat(states, 1)[0]
