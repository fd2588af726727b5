"""Training: useful tokens a second and peak memory of the three scopes, and of a full finetune of the packages.

The scopes are measured with Chatterbox, the full finetune with IndexTTS2 too. A useful token is a next-token target of
text or speech; padding and conditioning are not counted. The lengths of the random clips are log-normal. A package is
trained in float32, all parameters by AdamW, on the same clips in batches as they come, padded on the right. It needs
the memory for that: where it has less, both are measured with fewer layers, which the row says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from config.loading import parse_options
from config.schema import Scope, TrainOptions
from core import compute
from core.model import precision
from core.model.adapters import Adapters, plan_adapters
from core.model.loading import TTSModel, extend_model
from core.model.precision import Precision
from core.model.prefix import rows_name
from core.training import memory_plan, run_plan
from core.training.dataloader import TrainingData, Utterance
from core.training.trainer import Trainer
from data.front_end import FrontEnd
from models.chatterbox import codec, t3
from models.chatterbox.family import BASE_CODE_LIMIT, CODES_PER_TOKEN
from models.indextts2.unified_voice import IndexTTS2LanguageModel
from models.language_model import TransformerLanguageModel
from models.registry import family
from models.tiny.family import MAX_PROMPT_CODES
from scripts.dev.benchmark import builtin, gpt
from scripts.dev.benchmark.bench import Bench, release_memory
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Bound
from scripts.dev.benchmark.sizes import TEXT_ROWS, BenchmarkSizes, fill_randomly, shallower
from scripts.dev.benchmark.timing import Measure, MeasurementStats, measure_interleaved

PART = "training"
SCOPES: tuple[Scope, ...] = ("rows", "gated", "full")
_TIMES, _TOKENS_A_SECOND = 3.0, Bound(120_000.0)  # speed of `rows` against the package, and on one H100
_CODES_A_SECOND = {"chatterbox": 25, "indextts2": 50, "tiny": 25}
_IDS_A_SECOND = 13.75
_SPREAD = 0.5  # standard deviation of the logarithm of the lengths
NEW, _FIRST_NEW = "am", 0x1200  # the new language, and its first letter
_BYTES_A_PARAMETER = 16  # weight, gradient and AdamW's two, in float32
_SAFE = 0.8  # share of the free memory
_FEWER = (30, 24, 20, 10, 5, 3)  # layers


@dataclass(frozen=True)
class _Package:
    """A package's language model as it is finetuned in full: names of requests, and memory."""

    train: str
    layer_parameters: int
    other_parameters: int
    bytes_a_position: int  # bytes that a layer keeps: its products, and the attention weights of all heads


_PACKAGES = {
    "chatterbox": _Package("train", 16_800_000, 32_000_000, 220_000),
    "indextts2": _Package("train_gpt", 19_700_000, 53_000_000, 360_000),
}


def measure(bench: Bench) -> BenchmarkResults:
    """The comparison, which wants the most memory and so comes first; then a row of speed and one of memory a scope.

    On a GPU the scopes are those of both families, and Chatterbox's are measured in large batches too; on a CPU, which
    takes half an hour for one, they are Chatterbox's alone.
    """
    package_rows: list[BenchmarkRow] = []
    if bench.reference is not None:
        for name in _PACKAGES:
            rows_here = beside_package(bench, name)
            bench.keep(rows_here)
            package_rows += rows_here
            bench.tidy()

    rows: list[BenchmarkRow] = []
    settings = [("chatterbox", bench.sizes.batch_size)]
    if bench.device.type == "cuda":
        settings = [("chatterbox", bench.sizes.large_batch_size), *settings, ("indextts2", bench.sizes.batch_size)]

    for name, count in settings:
        for scope in SCOPES:
            bench.say(f"Training: {name}, {scope}, batches of {count}")
            rows_here = _scope(bench.smaller(with_batches(bench.sizes, count)), scope, name)
            bench.keep(rows_here)
            rows += rows_here
            release_memory()

    return BenchmarkResults((*rows, *package_rows))


def with_batches(sizes: BenchmarkSizes, count: int) -> BenchmarkSizes:
    """The same with batches of so many clips; of other sizes than its own an epoch has 16, to sort clips by length."""
    return sizes if count == sizes.batch_size else replace(sizes, batch_size=count, clips=16 * count)


def _scope(bench: Bench, scope: Scope, name: str) -> list[BenchmarkRow]:
    trainer = make(bench, scope, name)
    run_plan.fit_memory_plan(trainer)  # the trainer gets what fits into the memory, like before any training
    peak = epoch_peak(bench.device, trainer)
    speed = measure_interleaved({scope: lambda: epoch(trainer)}, bench.sizes.epochs)[scope]
    layers = (bench.sizes.language if name == "chatterbox" else bench.sizes.voice).decoder.layers
    count = bench.sizes.batch_size
    how = f"{name}, {scope}, {layers} layers, batches of {count}, {trainer.precision}{_setting(trainer)}"
    bound = _TOKENS_A_SECOND if (name, scope) == ("chatterbox", "rows") else None
    return [
        BenchmarkRow(PART, how, "tokens/s", speed, bound=bound, more_is_better=True),
        BenchmarkRow(PART, f"{name}, {scope}, batches of {count}, peak memory with the model", "GiB",
                     MeasurementStats.of([peak / 2**30])),
    ]


def beside_package(bench: Bench, name: str) -> list[BenchmarkRow]:
    """`rows` interleaved with a full finetune of the package, epoch by epoch."""
    bench.say(f"Training: {name} beside a full finetune of the package")
    assert (reference := bench.reference) is not None

    package, lengths = _PACKAGES[name], clip_lengths(bench, name)
    # Both train the same number of layers, as many as the package's memory allows.
    layers = _affordable(bench, name)
    smaller = bench.smaller(shallower(bench.sizes, layers))
    trainer = make(smaller, "rows", name)
    trainer.train_step()
    package_depth = bench.sizes.package_layers if name == "chatterbox" else bench.sizes.package_gpt_layers
    reference.ask(package.train, layers=min(layers, package_depth))

    count = bench.sizes.batch_size
    batches = [lengths[start:start + count] for start in range(0, len(lengths), count)]
    reference.ask("step", lengths=batches[0])

    def full_finetune() -> float:
        steps = [reference.ask("step", lengths=batch) for batch in batches]
        return sum(step["tokens"] for step in steps) / sum(step["seconds"] for step in steps)

    measures: dict[str, Measure] = {"ours": lambda: epoch(trainer), "package": full_finetune}
    stats = measure_interleaved(measures, bench.sizes.epochs)
    peak = reference.ask("memory")["peak"]

    return [
        BenchmarkRow(PART, f"{name}, rows, {layers} layers, against a full finetune right-padded at batch {count}",
                     "tokens/s", stats["ours"], stats["package"], times=_TIMES, more_is_better=True),
        BenchmarkRow(PART, f"{name}, the package's full finetune, {layers} layers, peak memory", "GiB",
                     MeasurementStats.of([peak / 2**30])),
    ]


def epoch(trainer: Trainer) -> float:
    """Useful tokens a second over as many steps as an epoch has."""
    tokens, took = 0, 0.0
    for _ in range(math.ceil(len(trainer.data.train) / trainer.options.batches.batch_size)):
        tokens += trainer.train_step().tokens  # ends with a look at the losses, so the device is done
        took += trainer.step_seconds
    return tokens / took


def make(bench: Bench, scope: Scope, name: str = "chatterbox", chosen: Precision | None = None, **changes: object
         ) -> Trainer:
    """A trainer on random clips in a new language; `changes` are of its options.

    Weights are random, but for those of the built-in model, which is `tiny`.
    """
    sizes, device = bench.sizes, bench.device
    model = {"chatterbox": _chatterbox, "indextts2": _indextts2, "tiny": _builtin}[name](bench)

    letters = [chr(_FIRST_NEW + index) for index in range(sizes.new_rows - 1)]  # the language's tag has a row too
    base = replace(FrontEnd.base({"en": "latin"}, "abcdefghijklmnopqrstuvwxyz"), prefix_size=model.prefix_size)
    front_end = base.extended(NEW, "ethiopic", letters, [])
    voice = TTSModel("benchmark", family(name), "benchmark", Path(), "", model, base, device, scope="rows")

    width = model.module.config.decoder.width
    rows = {table: torch.randn(sizes.new_rows, *([] if table.endswith("bias") else [width])) / 32
            for table in map(rows_name, model.text_tables)}
    voice = extend_model(voice, front_end, rows)
    options = parse_options(TrainOptions, {"scope": scope, "batch_size": sizes.batch_size, "steps": 10_000, **changes})
    if scope != "rows":
        plan = plan_adapters(options.adapters, model.adapter_targets, options.length.steps)
        adapters = Adapters.fresh(model.module, plan, 0)
        model.module.to(device)
        voice = replace(voice, adapters=adapters, scope=scope)

    if options.hardware.compile == "on":
        model.compile()

    clips = _clips(bench, name, model)
    data = TrainingData((NEW,), "random", clips, clips, (), ())
    return Trainer(options, voice, data, clips if scope == "full" else (),
                   chosen or precision.decide("auto", device))


def _chatterbox(bench: Bench) -> Any:
    module = t3.empty(bench.sizes.language).to_empty(device="cpu")
    module.tfmr.compute_frequencies()
    module.requires_grad_(False).eval().to(bench.device)
    fill_randomly(module)
    return TransformerLanguageModel(module, TEXT_ROWS, bench.device, codec.MAX_PROMPT_CODES, BASE_CODE_LIMIT,
                                    CODES_PER_TOKEN)


def _indextts2(bench: Bench) -> Any:
    module = gpt.empty(bench.sizes.voice)
    module.requires_grad_(False).eval().to(bench.device)
    fill_randomly(module)
    return IndexTTS2LanguageModel(module, bench.sizes.voice.text_rows, bench.device)


def _builtin(bench: Bench) -> Any:
    return family("tiny").load_language_model(builtin.PACK, bench.device)


def clip_lengths(bench: Bench, name: str = "chatterbox") -> list[tuple[int, int]]:
    """Text ids and codes of each clip."""
    shortest, middle, longest = bench.sizes.clip_s
    drawn = np.random.default_rng(0).lognormal(math.log(middle), _SPREAD, bench.sizes.clips).clip(shortest, longest)
    rate = _CODES_A_SECOND[name]
    codes = [round(length_s * rate) for length_s in drawn]
    return [(2 + round(_IDS_A_SECOND / rate * count), count) for count in codes]


def _clips(bench: Bench, name: str, model: Any) -> tuple[Utterance, ...]:
    """One speaker's clips, texts of new letters."""
    random = np.random.default_rng(1)
    if name == "indextts2":
        conditioning, limit = gpt.conditioning(bench.sizes.voice), bench.sizes.voice.start_speech
    else:
        config = model.module.config
        limit, prompt = ((config.start_speech, MAX_PROMPT_CODES) if name == "tiny" else
                         (6561, codec.MAX_PROMPT_CODES))
        speaker = random.standard_normal(config.speaker_size).astype(np.float32)
        conditioning = {"speaker_embedding": speaker / np.linalg.norm(speaker),
                        "prompt_codes": random.integers(0, limit, prompt).astype(np.uint16)}
    return tuple(
        Utterance(f"{index}", "", NEW, "speaker", model.prefix_size + random.integers(0, bench.sizes.new_rows, text),
                  random.integers(0, limit, codes).astype(np.uint16), conditioning)
        for index, (text, codes) in enumerate(clip_lengths(bench, name)))


def _affordable(bench: Bench, name: str) -> int:
    """Layers with which the package's full finetune fits into the free memory."""
    config = bench.sizes.language if name == "chatterbox" else bench.sizes.voice
    package, lengths, depth = _PACKAGES[name], clip_lengths(bench, name), config.decoder.layers
    # Right-padding makes every clip as long as the longest.
    positions = bench.sizes.batch_size * (max(text for text, _ in lengths) + max(codes for _, codes in lengths) + 36)
    free = compute.free_bytes(bench.device)
    for layers in _FEWER:
        parameters = layers * package.layer_parameters + package.other_parameters
        needed = parameters * _BYTES_A_PARAMETER + layers * positions * package.bytes_a_position
        if layers <= depth and (free is None or needed <= _SAFE * free):
            return layers
    return min(depth, _FEWER[-1])


def _setting(trainer: Trainer) -> str:
    """How a step had to be computed to fit."""
    recomputed = ", activations computed twice" if trainer.microbatch_plan.activation_checkpointing else ""
    splits = trainer.microbatch_plan.splits
    return recomputed + (f", a batch in {splits} micro-batches" if splits > 1 else "")


def epoch_peak(device: torch.device, trainer: Trainer) -> int:
    """Peak bytes of the steps of an epoch, with the model, moments and averages; the trainer has made no step yet.

    Its first step is not among them, as it makes the moments at its end, when the activations are gone.
    """
    assert not trainer.optimizer.state
    averages = trainer.ema.values.values() if trainer.ema else ()
    held = size(trainer) + trainer.optimizer_bytes + sum(value.nbytes for value in averages)
    trainer.train_step()
    trainer.optimizer.zero_grad(set_to_none=True)  # gradients would be freed within the measurement on a GPU
    return held + memory_plan.peak_bytes(device, lambda: epoch(trainer))


def size(trainer: Trainer) -> int:
    """Bytes of the model, frozen and trained."""
    return sum(value.nbytes for value in trainer.tts.lm.module.state_dict().values())
