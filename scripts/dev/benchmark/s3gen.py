"""S3Gen: seconds of computing for a second of sound, by steps and prompt; and what half precision costs.

It speaks in half precision where the device has it (`core.model.precision`), and so it is
measured; float32 stands beside it for the package's own steps and prompt.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch

from models.base import VocoderOptions, Voice
from models.chatterbox import s3gen
from models.chatterbox.codec import ChatterboxVocoder
from models.chatterbox.flow_encoder import MEL_FRAMES_PER_CODE
from models.chatterbox.s3gen import S3Gen
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Bound, Cost, decibels
from scripts.dev.benchmark.sizes import fill_randomly
from scripts.dev.benchmark.timing import Measure, measure_interleaved, seconds

PART = "S3Gen"
_SAME, _FAST = 1.5, 5.0  # times the package's speed, aimed at on two cores: at its steps, and in the fast setting
_H100_S = 0.060  # seconds for the sound of 125 codes, on one H100
_DEFAULT_STEPS, _DEFAULT_PROMPT_S = 10, 10.0  # defaults of the package


@dataclass(frozen=True)
class SynthesisVariant:
    """One setting of the synthesis."""

    precision: str
    steps: int
    prompt_s: float

    def __str__(self) -> str:
        return f"{self.precision}, {self.steps} steps, prompt of {self.prompt_s:g} s"


def measure(bench: Bench) -> BenchmarkResults:
    """All rows of the part."""
    bench.say("S3Gen: flow and vocoder")
    models, voice = make(bench), random_voice(max(bench.sizes.prompts_s))
    codes = np.random.default_rng(2).integers(0, 6561, bench.sizes.sound_codes)
    length_s = len(codes) / s3gen.CODE_RATE  # ours then leaves out the last code's sound, after computing it

    best = str(bench.half() or torch.float32).removeprefix("torch.")
    # Only the best precision is measured in all settings.
    plain = [name for name in models if name != best]
    variants = [SynthesisVariant(name, bench.sizes.steps[0], bench.sizes.prompts_s[0]) for name in plain]
    variants += [SynthesisVariant(best, steps, prompt_s)
                 for steps in bench.sizes.steps for prompt_s in bench.sizes.prompts_s]

    measures: dict[str, Measure] = {}
    for variant in variants:
        measures[str(variant)] = _rendering(bench, models[variant.precision], variant, codes, voice, length_s)
    if bench.reference is not None:
        measures["package"] = _package(bench, length_s)
    stats = measure_interleaved(measures, bench.sizes.repeats)

    package = stats.pop("package", None)
    rows = [BenchmarkRow(PART, str(variant), "s/s", stats[str(variant)], package, _times(variant, bench),
                         _bound(variant, best, length_s))
            for variant in variants]
    bench.keep(rows)
    return BenchmarkResults(tuple(rows), tuple(_costs(bench, models, codes, voice)))


def make(bench: Bench) -> dict[str, S3Gen]:
    """The same random weights in float32, and in each half precision that the device has."""
    full_model = S3Gen(bench.sizes.sound)
    full_model.requires_grad_(False).eval().to(bench.device)
    fill_randomly(full_model)
    full_model.mel2wav.fold_weight_norm()
    models = {"float32": full_model}
    for name in bench.halves():
        models[name] = copy.deepcopy(full_model)
        models[name].flow.cast_(getattr(torch, name))
    return models


def _times(variant: SynthesisVariant, bench: Bench) -> float | None:
    """The target ratio: at the package's own steps and prompt, and the fewest steps with the shortest prompt."""
    if (variant.steps, variant.prompt_s) == (_DEFAULT_STEPS, _DEFAULT_PROMPT_S):
        return _SAME
    return _FAST if (variant.steps, variant.prompt_s) == (min(bench.sizes.steps), min(bench.sizes.prompts_s)) else None


def _bound(variant: SynthesisVariant, best: str, length_s: float) -> Bound | None:
    is_default = (variant.precision, variant.steps, variant.prompt_s) == (best, _DEFAULT_STEPS, _DEFAULT_PROMPT_S)
    return Bound(_H100_S / length_s) if is_default else None


def random_voice(max_clip_s: float) -> Voice:
    """A random reference clip of that length."""
    random, codes = np.random.default_rng(3), round(max_clip_s * s3gen.CODE_RATE)
    timbre: dict[str, np.ndarray] = {
        "codes": random.integers(0, 6561, codes), "speaker": random.standard_normal(192).astype(np.float32),
        "mel": random.standard_normal((codes * MEL_FRAMES_PER_CODE, 80)).astype(np.float32),
    }
    return Voice({}, timbre)


def _rendering(bench: Bench, model: S3Gen, variant: SynthesisVariant, codes: np.ndarray, voice: Voice,
               length_s: float) -> Measure:
    vocoder, rendering = ChatterboxVocoder(model), VocoderOptions(variant.steps, variant.prompt_s, watermark=False)
    return lambda: seconds(lambda: vocoder.decode(codes, voice, rendering), bench.device) / length_s


def _package(bench: Bench, length_s: float) -> Measure:
    assert (reference := bench.reference) is not None
    reference.ask("s3gen")
    sizes_asked = {"codes": bench.sizes.sound_codes, "prompt": round(_DEFAULT_PROMPT_S * s3gen.CODE_RATE),
                   "steps": _DEFAULT_STEPS}
    return lambda: reference.ask("render", **sizes_asked)["seconds"] / length_s


@torch.inference_mode()
def _costs(bench: Bench, models: dict[str, S3Gen], codes: np.ndarray, voice: Voice) -> list[Cost]:
    """Signal-to-noise ratio against float32 on the CPU of the mel, and of the waveform with the same excitation.

    On a GPU also of the waveform that HiFT, which stays in float32, makes of one mel.
    """
    device, cpu, costs = bench.device, torch.device("cpu"), list[Cost]()
    steps, prompt_s = bench.sizes.steps[0], max(bench.sizes.prompts_s)
    on_cpu, vocoder = bench.on_cpu(models["float32"]), models["float32"].mel2wav

    def mel(model: S3Gen, target: torch.device) -> torch.Tensor:
        prompt = s3gen.flow_prompt(voice.timbre, target, prompt_s)
        return model.flow.mel(torch.from_numpy(codes)[None].to(target), prompt, steps=steps,
                              generator=torch.Generator().manual_seed(0))

    expected = mel(on_cpu, cpu)
    source = on_cpu.mel2wav.source(on_cpu.mel2wav.f0(expected), torch.Generator().manual_seed(0))
    waveform = on_cpu.mel2wav.decode(expected, source)

    for name, model in models.items():
        if model is on_cpu:
            continue
        computed = mel(model, device)
        note = f"{steps} steps from the same noise, against float32 on the CPU"
        costs += [Cost(PART, f"{name}: mel", decibels(expected, computed.cpu()), "dB", note),
                  Cost(PART, f"{name}: waveform", decibels(waveform, vocoder.decode(computed, source.to(device)).cpu()),
                       "dB", note + ", the same excitation")]

    if device != cpu:
        computed = vocoder.decode(expected.to(device), source.to(device))
        costs.append(Cost(PART, "HiFT, float32: waveform", decibels(waveform, computed.cpu()), "dB",
                          "of the same mel and excitation, against float32 on the CPU"))
    return costs
