"""Training: useful tokens a second and peak memory of the three scopes, and of a full finetune of the package.

A useful token is a next-token target of text or speech; padding and conditioning are not
counted. The lengths of the random clips are log-normal. The package is trained in float32,
all parameters by AdamW, on the same clips in batches as they come, padded on the right. It
needs the memory for that: where it has less, both are measured with fewer layers, which the
row says.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from config.schema import Scope, TrainOptions
from core.model import precision
from core.model.adapters import Adapters, plan_adapters
from core.model.loading import TTSModel, extend_model
from core.training import memory_plan, run_plan
from core.training.dataloader import TrainingData, Utterance
from core.training.trainer import Trainer
from data.front_end import FrontEnd
from models.chatterbox import codec, t3
from models.chatterbox.family import BASE_CODE_LIMIT, CODES_PER_TOKEN
from models.language_model import LanguageModel
from models.registry import family
from scripts.dev.benchmark.bench import Bench, release_memory
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Bound
from scripts.dev.benchmark.sizes import TEXT_ROWS, fill_randomly, shallower
from scripts.dev.benchmark.timing import Measure, MeasurementStats, measure_interleaved

PART = "training"
SCOPES: tuple[Scope, ...] = ("rows", "gated", "full")
_TIMES, _TOKENS_A_SECOND = 3.0, Bound(120_000.0)  # of `rows`: against the package; on one H100
_CODES_A_SECOND, _IDS_A_CODE = 25, 0.55
_SPREAD = 0.5  # standard deviation of the logarithm of the lengths
_NEW, _FIRST_NEW = "am", 0x1200  # the new language, and its first letter
_LAYER_PARAMETERS, _OTHER_PARAMETERS = 16_800_000, 32_000_000
_BYTES_A_PARAMETER = 16  # weight, gradient and AdamW's two, in float32
_BYTES_A_POSITION = 220_000  # of activations that a layer keeps: its products, and 16 heads of attention weights
_SAFE = 0.8  # of the free memory
_FEWER = (30, 20, 10, 5)  # layers


def measure(bench: Bench) -> BenchmarkResults:
    """The comparison, which wants the most memory and so comes first; then a row of speed and one of memory a scope."""
    beside: list[BenchmarkRow] = []
    if bench.reference is not None:
        bench.say("Training: beside a full finetune of the package")
        beside = _beside_package(bench)
        bench.tidy()
    rows: list[BenchmarkRow] = []
    for scope in SCOPES:
        bench.say(f"Training: {scope}")
        rows += _scope(bench, scope)
        release_memory()
    return BenchmarkResults((*rows, *beside))


def _scope(bench: Bench, scope: Scope) -> list[BenchmarkRow]:
    trainer = make(bench, scope)
    run_plan.estimate(trainer)  # as before any training: it leaves the trainer with what fits into the memory
    peak = memory_plan.peak_bytes(bench.device, trainer.train_step) + size(trainer)
    speed = measure_interleaved({scope: lambda: epoch(trainer)}, bench.sizes.epochs)[scope]
    how = f"{scope}, {_layers(bench)}, {trainer.precision}{_setting(trainer)}"
    return [
        BenchmarkRow(PART, how, "tokens/s", speed, bound=_TOKENS_A_SECOND if scope == "rows" else None,
                     more_is_better=True),
        BenchmarkRow(PART, f"{scope}, peak memory with the model", "GiB", MeasurementStats.of([peak / 2**30])),
    ]


def _beside_package(bench: Bench) -> list[BenchmarkRow]:
    """`rows` interleaved with a full finetune of the package, epoch by epoch."""
    assert (reference := bench.reference) is not None
    lengths = clip_lengths(bench)
    smaller = bench.smaller(shallower(bench.sizes, _affordable(bench, lengths)))
    trainer = make(smaller, "rows")
    trainer.train_step()
    reference.ask("train", layers=min(smaller.sizes.language.decoder.layers, bench.sizes.package_layers))
    count = bench.sizes.batch_size
    batches = [lengths[start:start + count] for start in range(0, len(lengths), count)]
    reference.ask("step", lengths=batches[0])

    def package() -> float:
        steps = [reference.ask("step", lengths=batch) for batch in batches]
        return sum(step["tokens"] for step in steps) / sum(step["seconds"] for step in steps)

    measures: dict[str, Measure] = {"ours": lambda: epoch(trainer), "package": package}
    found = measure_interleaved(measures, bench.sizes.epochs)
    peak = reference.ask("memory")["peak"]
    what = f"rows, {_layers(smaller)}, against a full finetune right-padded at batch {count}"
    return [
        BenchmarkRow(PART, what, "tokens/s", found["ours"], found["package"], times=_TIMES, more_is_better=True),
        BenchmarkRow(PART, f"the package's full finetune, {_layers(smaller)}, peak memory", "GiB",
                     MeasurementStats.of([peak / 2**30])),
    ]


def epoch(trainer: Trainer) -> float:
    """Useful tokens a second over as many steps as an epoch has."""
    tokens, took = 0, 0.0
    for _ in range(math.ceil(len(trainer.data.train) / trainer.options.batch_size)):
        tokens += trainer.train_step().tokens  # ends with a look at the losses, so the device is done
        took += trainer.step_seconds
    return tokens / took


def make(bench: Bench, scope: Scope, **changes: object) -> Trainer:
    """A trainer of random weights on random clips in a new language; `changes` are of its options."""
    sizes, device = bench.sizes, bench.device
    module = t3.empty(sizes.language).to_empty(device="cpu")
    module.tfmr.compute_frequencies()
    fill_randomly(module)
    module.requires_grad_(False).eval().to(device)
    letters = [chr(_FIRST_NEW + index) for index in range(sizes.new_rows - 1)]  # the language's tag has a row too
    base = replace(FrontEnd.base({"en": "latin"}, "abcdefghijklmnopqrstuvwxyz"), prefix_size=TEXT_ROWS)
    front_end = base.extended(_NEW, "ethiopic", letters, [])
    model: Any = LanguageModel(module, TEXT_ROWS, device, codec.MAX_PROMPT_CODES, BASE_CODE_LIMIT, CODES_PER_TOKEN)
    voice = TTSModel("benchmark", family("chatterbox"), "benchmark", Path(), "", model, base, device, scope="rows")
    rows = {name: torch.randn(sizes.new_rows, sizes.language.decoder.width) / 32 for name in model.text_tables}
    voice = extend_model(voice, front_end, rows)
    options = TrainOptions.model_validate({"scope": scope, "batch_size": sizes.batch_size, "steps": 10_000, **changes})
    if scope != "rows":
        adapters = Adapters.fresh(module, plan_adapters(options, model.adapter_targets), 0)
        module.to(device)
        voice = replace(voice, adapters=adapters, scope=scope)
    if options.compile == "on":
        model.compile()
    clips = _clips(bench)
    data = TrainingData(_NEW, "random", clips, clips, (), ())
    return Trainer(options, voice, data, clips if scope == "full" else (), precision.decide("auto", device))


def clip_lengths(bench: Bench) -> list[tuple[int, int]]:
    """Text ids and codes of each clip."""
    shortest, middle, longest = bench.sizes.clip_s
    drawn = np.random.default_rng(0).lognormal(math.log(middle), _SPREAD, bench.sizes.clips).clip(shortest, longest)
    codes = [round(length_s * _CODES_A_SECOND) for length_s in drawn]
    return [(2 + round(_IDS_A_CODE * count), count) for count in codes]


def _clips(bench: Bench) -> tuple[Utterance, ...]:
    """One speaker's clips, texts of new letters."""
    random = np.random.default_rng(1)
    speaker = random.standard_normal(bench.sizes.language.speaker_size).astype(np.float32)
    speaker /= np.linalg.norm(speaker)
    return tuple(
        Utterance(f"{index}", "", _NEW, "speaker", TEXT_ROWS + random.integers(0, bench.sizes.new_rows, text),
                  random.integers(0, 6561, codes).astype(np.uint16), speaker,
                  random.integers(0, 6561, codec.MAX_PROMPT_CODES).astype(np.uint16))
        for index, (text, codes) in enumerate(clip_lengths(bench)))


def _affordable(bench: Bench, lengths: list[tuple[int, int]]) -> int:
    """Layers with which the package's full finetune fits into the free memory."""
    most = bench.sizes.language.decoder.layers
    positions = bench.sizes.batch_size * (max(text for text, _ in lengths) + max(codes for _, codes in lengths) + 36)
    free = memory_plan.free_bytes(bench.device)
    for layers in _FEWER:
        parameters = layers * _LAYER_PARAMETERS + _OTHER_PARAMETERS
        needed = parameters * _BYTES_A_PARAMETER + layers * positions * _BYTES_A_POSITION
        if layers <= most and (free is None or needed <= _SAFE * free):
            return layers
    return min(most, _FEWER[-1])


def _setting(trainer: Trainer) -> str:
    """How a step had to be computed to fit."""
    recomputed = ", activations computed twice" if trainer.microbatch_plan.activation_checkpointing else ""
    splits = trainer.microbatch_plan.splits
    return recomputed + (f", a batch in {splits} micro-batches" if splits > 1 else "")


def _layers(bench: Bench) -> str:
    return f"{bench.sizes.language.decoder.layers} layers"


def size(trainer: Trainer) -> int:
    """Bytes of the model, frozen and trained."""
    return sum(value.nbytes for value in trainer.voice.model.module.state_dict().values())
