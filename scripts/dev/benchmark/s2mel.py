"""IndexTTS2's S2Mel and BigVGAN: seconds of computing for a second of sound, by steps and prompt, and the cost.

Like `scripts.dev.benchmark.s3gen`: in half precision where the device has it, and in float32 at the package's steps and
prompt. Prompt and codes are random; the package's rotary tables and weights are as its modules are born.
"""

from __future__ import annotations

import copy

import torch

from models.indextts2.bigvgan import AntiAliasedSnake, BigVGAN
from models.indextts2.s2mel import MEL_FRAMES_PER_CODE, S2Mel, S2MelPrompt
from models.indextts2.vocoder import FRAME_RATE
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Cost, decibels
from scripts.dev.benchmark.sizes import fill_randomly
from scripts.dev.benchmark.timing import Measure, measure_interleaved, seconds

PART = "S2Mel"
_SAME, _FAST = 1.5, 5.0  # times the package's speed, aimed at on two cores: at its steps, and in the fast setting
_STEPS, _FAST_STEPS = 25, 8  # steps of the package, and ours in the fast setting


def measure(bench: Bench) -> BenchmarkResults:
    """All rows of the part."""
    bench.say("S2Mel: flow and BigVGAN")
    sizes = bench.sizes

    models = make(bench)
    vocoder = make_vocoder(bench)
    long_s, short_s = max(sizes.prompts_s), min(sizes.prompts_s)
    best = str(bench.half() or torch.float32).removeprefix("torch.")
    frames = int(MEL_FRAMES_PER_CODE * 2 * sizes.sound_codes)  # S3Gen's length, whose codes come at half the rate
    draw = torch.Generator().manual_seed(4)
    full_prompt = _prompt(bench, round(long_s * FRAME_RATE), draw)
    content = torch.randn(1, frames, sizes.s2mel.width, generator=draw).to(bench.device)
    length_s = frames / FRAME_RATE

    def flow(precision: str, steps: int, prompt_s: float) -> Measure:
        prompt = full_prompt.last(round(prompt_s * FRAME_RATE))
        return lambda: seconds(lambda: models[precision].mel(content, prompt, steps=steps), bench.device) / length_s

    # A setting that occurs twice is measured once.
    settings = dict.fromkeys([*((name, _STEPS, long_s) for name in models), (best, _FAST_STEPS, short_s)])
    measures = {_name(*setting): flow(*setting) for setting in settings}
    mel = models["float32"].mel(content, full_prompt, steps=1)
    measures["BigVGAN"] = lambda: seconds(lambda: vocoder.waveform(mel), bench.device) / length_s

    reference = bench.reference
    if reference is not None:
        reference.ask("s2mel")
        sizes_asked = {"frames": frames, "prompt": full_prompt.mel.shape[1], "steps": _STEPS}
        measures["package"] = lambda: reference.ask("mel", **sizes_asked)["seconds"] / length_s
        measures["package's BigVGAN"] = lambda: reference.ask("wave", frames=frames)["seconds"] / length_s
    stats = measure_interleaved(measures, sizes.repeats)

    package, package_wave = stats.get("package"), stats.get("package's BigVGAN")
    rows = [BenchmarkRow(PART, name, "s/s", stats[name], package,
                         _FAST if steps == _FAST_STEPS else _SAME, None)
            for name, (_, steps, _) in zip((_name(*setting) for setting in settings), settings, strict=True)]
    rows.append(BenchmarkRow(PART, "BigVGAN", "s/s", stats["BigVGAN"], package_wave, None, None))
    return BenchmarkResults(tuple(rows), tuple(_costs(bench, models, vocoder, content, full_prompt, short_s)))


def make(bench: Bench) -> dict[str, S2Mel]:
    """The same random weights in float32, and in each half precision that the device has."""
    full_model = S2Mel(bench.sizes.s2mel).requires_grad_(False).eval().to(bench.device)
    fill_randomly(full_model)
    models = {"float32": full_model}
    for name in bench.halves():
        models[name] = copy.deepcopy(full_model)
        models[name].estimator.cast_(getattr(torch, name))
    return models


def make_vocoder(bench: Bench) -> BigVGAN:
    """Random weights whose waveform is not cut at -1 and 1, where errors would vanish."""
    vocoder = BigVGAN(bench.sizes.bigvgan).requires_grad_(False).eval()
    fill_randomly(vocoder)
    vocoder.conv_post.weight.mul_(0.01)
    for part in vocoder.modules():
        if isinstance(part, AntiAliasedSnake):
            part.compute_filters()
    return vocoder.to(bench.device)


def _name(precision: str, steps: int, prompt_s: float) -> str:
    return f"{precision}, {steps} steps, prompt of {prompt_s:g} s"


def _prompt(bench: Bench, frames: int, draw: torch.Generator) -> S2MelPrompt:
    sizes = bench.sizes.s2mel
    shapes = (1, frames, sizes.width), (1, frames, sizes.n_mels), (1, sizes.style)
    return S2MelPrompt(*(torch.randn(shape, generator=draw).to(bench.device) for shape in shapes))


def _costs(bench: Bench, models: dict[str, S2Mel], vocoder: BigVGAN, content: torch.Tensor, prompt: S2MelPrompt,
           short_s: float) -> list[Cost]:
    """Signal-to-noise ratio of the mel against float32 on the CPU at the package's steps and prompt, same noise.

    On a GPU also of the waveform that BigVGAN, which stays in float32, makes of one mel.
    """
    def mel(model: S2Mel, steps: int, mel_prompt: S2MelPrompt) -> torch.Tensor:
        device = next(model.parameters()).device
        on_device = S2MelPrompt(*(part.to(device) for part in (mel_prompt.condition, mel_prompt.mel, mel_prompt.style)))
        return model.mel(content.to(device), on_device, steps=steps, generator=torch.Generator().manual_seed(0)).cpu()

    full_model = models["float32"]
    on_cpu = bench.on_cpu(full_model)
    short, true = prompt.last(round(short_s * FRAME_RATE)), mel(on_cpu, _STEPS, prompt)
    mels = {f"{name}: mel": mel(model, _STEPS, prompt) for name, model in models.items() if model is not on_cpu}
    mels[f"{_FAST_STEPS} steps: mel"] = mel(full_model, _FAST_STEPS, prompt)
    mels[f"{_FAST_STEPS} steps, prompt of {short_s:g} s: mel"] = mel(full_model, _FAST_STEPS, short)

    costs = [Cost(PART, name, decibels(true, value), "dB",
                  f"against float32 on the CPU with {_STEPS} steps and the whole prompt, at random weights")
             for name, value in mels.items()]

    if bench.device.type != "cpu":
        waveform, computed = bench.on_cpu(vocoder).waveform(true), vocoder.waveform(true.to(bench.device))
        costs.append(Cost(PART, "BigVGAN, float32: waveform", decibels(waveform, computed.cpu()), "dB",
                          "of the same mel, against float32 on the CPU"))
    return costs
