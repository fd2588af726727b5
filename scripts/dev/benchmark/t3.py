"""T3: milliseconds a code, the prefill, and what bfloat16 and 8 bits cost.

A code is timed as a step of `models.generate`: sampling, embedding, all layers, head, and the guard that watches the
alignment, as the package's does. The package is timed from one pass of its transformer to the next, inside its own
loop. It always computes both guidance rows, so it stands beside ours with guidance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from models import teacher_forcing
from models.base import LossOptions, PreparedVoice, Sample, Sampling, Voice
from models.chatterbox import codec, t3
from models.chatterbox.family import BASE_CODE_LIMIT, CODES_PER_TOKEN
from models.cuda_graph_decode import CUDAGraphStepper
from models.generate import Stepper, cache_capacity, prepare_voice
from models.language_model import TransformerLanguageModel
from models.speech_network import T3
from scripts.dev.benchmark import logits
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.gpu_decode import add_adapters, decode_rows
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Bound
from scripts.dev.benchmark.sizes import TEXT_ROWS, fill_randomly
from scripts.dev.benchmark.timing import Measure, measure_interleaved, seconds

PART = "T3"
_TIMES = {"float32": 1.3, "bfloat16": 1.8, "int8": 5.0}  # the package's speed, aimed at on two cores
_MS_A_CODE, _CODES_A_SECOND = Bound(1.0), Bound(15_000.0)  # milliseconds and codes a second on one H100, in bfloat16
_GUIDANCE = 0.5
Models = Mapping[str, T3]


def measure(bench: Bench) -> BenchmarkResults:
    """All rows of the part."""
    models = make(bench)
    if bench.reference is not None:
        bench.reference.ask("t3", layers=bench.sizes.package_layers)
    rows: list[BenchmarkRow] = []
    for guided in (True, False):
        for context in bench.sizes.contexts:
            bench.say(f"T3 at {context} positions, {'with' if guided else 'without'} guidance")
            rows += _codes(bench, models, context, guided)
    bench.say("T3: prefill and errors")
    rows += _prefills(bench, models)
    costs = logits.costs(bench, PART, models, [_sample(bench, seed) for seed in range(bench.sizes.samples)],
                         guided_logits)
    if bench.device.type == "cuda":
        rows += decode_rows(bench, PART, models, adapt, lambda model, texts, kind: _decoding(
            bench, model, bench.sizes.prefills[0], texts, _GUIDANCE, kind), _MS_A_CODE, _CODES_A_SECOND)
    return BenchmarkResults(tuple(rows), tuple(costs))


def adapt(bench: Bench, model: T3) -> None:
    add_adapters(TransformerLanguageModel(model, TEXT_ROWS, bench.device, codec.MAX_PROMPT_CODES, BASE_CODE_LIMIT,
                               CODES_PER_TOKEN), bench.device)


def make(bench: Bench) -> dict[str, T3]:
    """The same random weights in every precision that the device has."""
    full_model = t3.empty(bench.sizes.language).to_empty(device="cpu")
    full_model.tfmr.compute_frequencies()
    full_model.requires_grad_(False).eval().to(bench.device)
    fill_randomly(full_model)
    return logits.precisions(bench, full_model)


def _codes(bench: Bench, models: Models, context: int, guided: bool) -> list[BenchmarkRow]:
    """Milliseconds a code around `context` positions."""
    sizes, guidance = bench.sizes, _GUIDANCE if guided else 0.0
    decoded = sizes.codes * (sizes.repeats + 1)
    # The codes lie around the wanted number of positions.
    text = context - sizes.language.conditioning_length - 2 - decoded // 2
    measures = {name: _decoding(bench, model, text, 1, guidance) for name, model in models.items()}
    with _package(bench, guided, text, context - decoded // 2) as (_, ask):
        if ask is not None:
            measures["package"] = ask
        stats = measure_interleaved(measures, sizes.repeats)
    package = stats.pop("package", None)
    guidance_text = "with guidance" if guided else "without guidance"
    rows = [
        BenchmarkRow(PART, f"one code, {name}, {context} positions, {guidance_text}", "ms", spread, package,
            _TIMES[name] if guided and name in _TIMES else None, _MS_A_CODE if name == "bfloat16" else None)
        for name, spread in stats.items()
    ]
    bench.keep(rows)
    return rows


def _decoding(bench: Bench, model: T3, text: int, texts: int, guidance: float,
              kind: type[Stepper] | None = None) -> Measure:
    """Decodes some codes after texts of `text` ids, continuing at each call; milliseconds for one code of each."""
    sizes, device = bench.sizes, bench.device
    longest = sizes.codes * (sizes.repeats + 1)
    capacity = text + sizes.language.conditioning_length + 2 + longest
    kind = kind or (CUDAGraphStepper if device.type == "cuda" else Stepper)
    stepper = kind(model, texts, capacity, longest, device)
    begin(stepper, model, text, guidance, device)

    @torch.inference_mode()
    def decode() -> None:
        for _ in range(sizes.codes):
            stepper.advance()

    return lambda: 1000 * seconds(decode, device) / sizes.codes


@torch.inference_mode()
def begin(stepper: Stepper, model: T3, text: int, guidance: float, device: torch.device) -> None:
    """Prefill random texts of `text` ids, all in one voice."""
    random = np.random.default_rng(0)
    ids = [torch.from_numpy(random.integers(1, 250, text)).to(device) for _ in range(stepper.texts)]
    sampling = Sampling(temperature=0.8, min_p=0.05, repetition_penalty=2.0, guidance=guidance, alignment_guard=True)
    stepper.prefill(ids, [_voice(model, device)] * stepper.texts, sampling)


def _voice(model: T3, device: torch.device) -> PreparedVoice:
    random = np.random.default_rng(1)
    speaker = random.standard_normal(model.config.speaker_size).astype(np.float32)
    conditioning = {"speaker_embedding": speaker / np.linalg.norm(speaker),
                    "prompt_codes": random.integers(0, 6561, codec.MAX_PROMPT_CODES)}
    return prepare_voice(model, Voice(conditioning), device)


@contextmanager
def _package(bench: Bench, guided: bool, text: int, positions: int) -> Iterator[tuple[float, Measure | None]]:
    """The package's loop after a prefill of so many positions: the seconds of its prefill, and milliseconds a code."""
    reference, codes = bench.reference, bench.sizes.codes
    if reference is None or not guided:
        yield 0.0, None
        return
    text = min(text, bench.sizes.prefills[0])
    speech = max(1, positions - bench.sizes.language.conditioning_length - text - 1)
    took = reference.ask("begin", text=text, speech=speech)["seconds"]
    yield took, lambda: 1000 * reference.ask("decode", codes=codes)["seconds"] / codes
    reference.ask("done")


def _prefills(bench: Bench, models: Models) -> list[BenchmarkRow]:
    """Milliseconds from a text's ids to its first code, with guidance; the voice is prepared once and not counted."""
    rows = []
    for text in bench.sizes.prefills:
        measures: dict[str, Measure] = {name: _prefill(bench, model, text) for name, model in models.items()}
        if bench.reference is not None:
            measures["package"] = _package_prefill(bench, text)
        stats = measure_interleaved(measures, bench.sizes.repeats)
        package = stats.pop("package", None)
        rows += [BenchmarkRow(PART, f"prefill, {name}, {text} text ids, with guidance", "ms", spread, package)
                 for name, spread in stats.items()]
    bench.keep(rows)
    return rows


def _prefill(bench: Bench, model: T3, text: int) -> Measure:
    # On a GPU the first prefill runs as it is, and the second captures the graph.
    kind = CUDAGraphStepper if bench.device.type == "cuda" else Stepper
    stepper = kind(model, 1, cache_capacity(model.config, text, 64), 1, bench.device)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 250, (text,), generator=random).to(bench.device)
    voice, sampling = _voice(model, bench.device), Sampling(guidance=_GUIDANCE)

    @torch.inference_mode()
    def work() -> None:
        stepper.prefill([ids], [voice], sampling)

    return lambda: 1000 * seconds(work, bench.device)


def _package_prefill(bench: Bench, text: int) -> Measure:
    assert (reference := bench.reference) is not None

    def ask() -> float:
        took = reference.ask("begin", text=text, speech=1)["seconds"]
        reference.ask("done")
        return 1000 * took

    return ask


@torch.inference_mode()
def guided_logits(model: T3, sample: Sample, device: torch.device, by_steps: bool) -> torch.Tensor:
    """Teacher-forced speech logits with guidance (U + 1, codes), in float32; see `logits.costs`."""
    rows = [_speech_logits(model, sample, device, dropout, by_steps) for dropout in (0.0, 1.0)]
    return rows[0] + _GUIDANCE * (rows[0] - rows[1])


def _speech_logits(model: T3, sample: Sample, device: torch.device, text_dropout: float, by_steps: bool
                   ) -> torch.Tensor:
    batch = teacher_forcing.collate([sample], model.config, device, LossOptions(text_dropout), [0])
    rows, _, codes_at = teacher_forcing.embed_rows(model, batch)
    rows = rows.to(model.speech_emb.weight.dtype)
    hidden = logits.hidden_states(model, rows, int(codes_at[0, 0]) + 1, by_steps)
    return model.speech_head(hidden[codes_at[0]]).float()[:, :model.config.start_speech]


def _sample(bench: Bench, seed: int) -> Sample:
    random, (text, codes) = np.random.default_rng(seed), bench.sizes.compared
    speaker = random.standard_normal(bench.sizes.language.speaker_size).astype(np.float32)
    return Sample(random.integers(1, 250, text), random.integers(0, 6561, codes), {
        "speaker_embedding": speaker / np.linalg.norm(speaker),
        "prompt_codes": random.integers(0, 6561, codec.MAX_PROMPT_CODES)})
