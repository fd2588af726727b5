"""IndexTTS2's GPT: milliseconds a code, and what bfloat16 and 8 bits cost.

Like `scripts.dev.benchmark.t3`. The published package decodes with three beams, its default, and so computes three rows
where one is computed here; it is timed from one pass of its transformer to the next, inside its own loop. All text that
fits its 602 positions stands for text and codes alike, since a code takes as long after either.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from models import teacher_forcing
from models.base import LossOptions, Sample, Sampling, Voice
from models.cuda_graph_decode import CUDAGraphStepper
from models.generate import Stepper, cache_capacity, prepare_voice
from models.indextts2 import unified_voice
from models.indextts2.conditioning import PositionTable
from models.indextts2.unified_voice import IndexTTS2LanguageModel, UnifiedVoice, UnifiedVoiceConfig
from scripts.dev.benchmark import logits
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.gpu_decode import add_adapters, decode_rows
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Bound
from scripts.dev.benchmark.sizes import fill_randomly
from scripts.dev.benchmark.timing import Measure, measure_interleaved, seconds

PART = "GPT"
_TIMES = {"bfloat16": 5.0, "int8": 5.0}  # the package's speed, aimed at on two cores
_MS_A_CODE = Bound(0.7)  # milliseconds on one H100, in bfloat16
Models = Mapping[str, UnifiedVoice]


def measure(bench: Bench) -> BenchmarkResults:
    """A row for each precision and number of positions, and the errors of the lower precisions."""
    models = make(bench)
    if bench.reference is not None:
        bench.reference.ask("gpt", layers=bench.sizes.package_gpt_layers)
    rows: list[BenchmarkRow] = []
    for context in bench.sizes.gpt_contexts:
        bench.say(f"GPT at {context} positions")
        rows_here = _codes(bench, models, context)
        bench.keep(rows_here)
        rows += rows_here

    bench.say("GPT: prefill and errors")
    rows_here = _prefills(bench, models)
    bench.keep(rows_here)
    rows += rows_here

    costs = logits.costs(bench, PART, models, [_sample(bench, seed) for seed in range(bench.sizes.samples)], _logits)
    if bench.device.type == "cuda":
        rows += decode_rows(bench, PART, models, adapt, lambda model, texts, kind: _decoding(
            bench, model, bench.sizes.prefills[0], texts, kind), _MS_A_CODE)
    return BenchmarkResults(tuple(rows), tuple(costs))


def adapt(bench: Bench, model: UnifiedVoice) -> None:
    add_adapters(IndexTTS2LanguageModel(model, model.config.text_rows, bench.device), bench.device)


def make(bench: Bench) -> dict[str, UnifiedVoice]:
    """The same random weights in every precision that the device has."""
    full_model = empty(bench.sizes.voice)
    full_model.requires_grad_(False).eval().to(bench.device)
    fill_randomly(full_model)
    return logits.precisions(bench, full_model)


def empty(config: UnifiedVoiceConfig) -> UnifiedVoice:
    """A model on the CPU whose weights are not set, but for its tables of positions."""
    module = unified_voice.empty(config).to_empty(device="cpu")
    for part in module.modules():
        if isinstance(part, PositionTable):
            part.compute()
    return module


def _codes(bench: Bench, models: Models, context: int) -> list[BenchmarkRow]:
    """Milliseconds a code around `context` positions."""
    sizes, config = bench.sizes, bench.sizes.voice
    decoded = sizes.codes * (sizes.repeats + 1)
    # The codes lie around the wanted number of positions.
    text = context - config.conditioning_length - 2 - decoded // 2
    measures = {name: _decoding(bench, model, text) for name, model in models.items()}
    reference = bench.reference
    if reference is not None:
        reference.ask("begin_gpt", text=text)
        measures["package"] = lambda: 1000 * reference.ask("decode", codes=sizes.codes)["seconds"] / sizes.codes
    stats = measure_interleaved(measures, sizes.repeats)
    if reference is not None:
        reference.ask("done")
    package = stats.pop("package", None)
    return [BenchmarkRow(PART, f"one code, {name}, {context} positions", "ms", spread, package, _TIMES.get(name),
                         _MS_A_CODE if name == "bfloat16" else None) for name, spread in stats.items()]


def _decoding(bench: Bench, model: UnifiedVoice, text: int, texts: int = 1, kind: type[Stepper] | None = None
              ) -> Measure:
    """Decodes some codes after texts of `text` ids, continuing at each call; milliseconds for one code of each."""
    sizes, device = bench.sizes, bench.device
    longest = sizes.codes * (sizes.repeats + 1)
    kind = kind or (CUDAGraphStepper if device.type == "cuda" else Stepper)
    stepper = kind(model, texts, text + model.config.conditioning_length + 2 + longest, longest, device)
    begin(stepper, model, text, device)

    @torch.inference_mode()
    def decode() -> None:
        for _ in range(sizes.codes):
            stepper.advance()

    return lambda: 1000 * seconds(decode, device) / sizes.codes


def _prefills(bench: Bench, models: Models) -> list[BenchmarkRow]:
    """Milliseconds from a text's ids to its first code; the voice is prepared once and not counted."""
    rows = []
    for text in bench.sizes.prefills:
        measures = {name: _prefill(bench, model, text) for name, model in models.items()}
        rows += [BenchmarkRow(PART, f"prefill, {name}, {text} text ids", "ms", spread)
                 for name, spread in measure_interleaved(measures, bench.sizes.repeats).items()]
    return rows


def _prefill(bench: Bench, model: UnifiedVoice, text: int) -> Measure:
    device = bench.device
    # On a GPU the first prefill runs as it is, and the second captures the graph.
    kind = CUDAGraphStepper if device.type == "cuda" else Stepper
    stepper = kind(model, 1, cache_capacity(model.config, text, 64), 1, device)
    ids = torch.from_numpy(_text(np.random.default_rng(0), text, model.config)).to(device)
    voice, sampling = prepare_voice(model, Voice(conditioning(model.config)), device), Sampling(guidance=0.0)

    @torch.inference_mode()
    def work() -> None:
        stepper.prefill([ids], [voice], sampling)

    return lambda: 1000 * seconds(work, device)


@torch.inference_mode()
def begin(stepper: Stepper, model: UnifiedVoice, text: int, device: torch.device) -> None:
    """Prefill random texts of `text` ids, all in one voice."""
    ids = torch.from_numpy(_text(np.random.default_rng(0), text, model.config)).to(device)
    voice = prepare_voice(model, Voice(conditioning(model.config)), device)
    sampling = Sampling(temperature=0.8, top_k=30, top_p=0.8, repetition_penalty=10.0, guidance=0.0)
    stepper.prefill([ids] * stepper.texts, [voice] * stepper.texts, sampling)


def _text(random: np.random.Generator, length: int, config: UnifiedVoiceConfig) -> np.ndarray:
    """Random ids, none of them start or stop."""
    return random.integers(2, config.text_rows - 1, length)


def conditioning(config: UnifiedVoiceConfig) -> dict[str, np.ndarray]:
    """A random voice, as clips are conditioned on it."""
    random = np.random.default_rng(1)
    return {name: random.standard_normal(shape).astype(np.float32)
            for name, shape in config.conditioning_shapes.items()}


@torch.inference_mode()
def _logits(model: UnifiedVoice, sample: Sample, device: torch.device, by_steps: bool) -> torch.Tensor:
    """Teacher-forced logits of the codes (U + 1, codes), in float32; see `logits.costs`."""
    batch = teacher_forcing.collate([sample], model.config, device, LossOptions(), [0])
    rows, _, codes_at = teacher_forcing.embed_rows(model, batch)
    hidden = logits.hidden_states(model, rows, int(codes_at[0, 0]) + 1, by_steps)
    return model.speech_head(hidden[codes_at[0]]).float()[:, :model.config.start_speech]


def _sample(bench: Bench, seed: int) -> Sample:
    random, (text, codes), config = np.random.default_rng(seed), bench.sizes.compared, bench.sizes.voice
    return Sample(_text(random, text, config), random.integers(0, config.start_speech, codes), conditioning(config))
