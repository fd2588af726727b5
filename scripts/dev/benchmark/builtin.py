"""The built-in model on a GPU: one, eight and 32 texts together, with and without CUDA graphs and adapters.

With its own weights. On a CPU the demo shows how fast it speaks, and nothing is measured here.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.model import precision
from models import tiny
from models.base import Sampling
from models.generate import Stepper, prepare_voice
from models.language_model import TransformerLanguageModel
from models.registry import family
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.gpu_decode import add_adapters, decode_rows
from scripts.dev.benchmark.results import BenchmarkResults
from scripts.dev.benchmark.timing import Measure, seconds

PART = "built-in"
_PACK = Path(tiny.__file__).parent / "pack"
_TEXT = 40  # ids


def measure(bench: Bench) -> BenchmarkResults:
    """Rows of decoding; none on a CPU."""
    if bench.device.type != "cuda":
        return BenchmarkResults(())
    bench.say("The built-in model")
    whole: Any = family("tiny").load_language_model(_PACK, bench.device)
    lms = {"float32": whole}
    for name in bench.halves():
        lms[name] = copy.deepcopy(whole)
        precision.decide(name, bench.device).cast(lms[name].module, ())
    voice = next(iter(family("tiny").load_voices(_PACK).values()))

    def adapt(bench: Bench, lm: TransformerLanguageModel) -> None:
        add_adapters(lm, bench.device)

    def decoding(lm: TransformerLanguageModel, texts: int, kind: type[Stepper]) -> Measure:
        network, longest = lm.module, bench.sizes.codes * (bench.sizes.repeats + 1)
        stepper = kind(network, texts, _TEXT + network.config.conditioning_length + 2 + longest, longest, bench.device)
        ids = np.random.default_rng(0).integers(3, network.config.text_rows, _TEXT)
        with torch.inference_mode():
            prepared = prepare_voice(network, voice, bench.device)
            stepper.prefill([torch.from_numpy(ids).to(bench.device)] * texts, [prepared] * texts,
                            Sampling(temperature=0.8, guidance=0.5, alignment_guard=True))

        @torch.inference_mode()
        def decode() -> None:
            for _ in range(bench.sizes.codes):
                stepper.advance()

        return lambda: 1000 * seconds(decode, bench.device) / bench.sizes.codes

    return BenchmarkResults(tuple(decode_rows(bench, PART, lms, adapt, decoding, None)))
