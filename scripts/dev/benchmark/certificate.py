"""The certificate's speech: sentences of the new language by the base and by the finetuned model, in float32.

Time and peak memory of Chatterbox beside both models and the vocoder; the first use of each is in it, as in a
certificate. Random weights never end, so that the embeddings of later positions are moved towards the stop: a sentence
has as many codes as speech of its length. A recogniser, which is another model, is not in it. On a CPU it takes an
hour and is left out.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from core.model.loading import TTSModel
from core.model.precision import Precision
from core.speech.evaluation import SpeechEvaluator
from core.training import memory_plan
from models.base import Sampling, Voice
from models.chatterbox.codec import ChatterboxVocoder
from scripts.dev.benchmark import s3gen, training
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.results import BenchmarkResults, BenchmarkRow, Bound
from scripts.dev.benchmark.sizes import FULL
from scripts.dev.benchmark.timing import MeasurementStats

PART = "certificate"
_H100_S, _H100_GIB = Bound(60.0), Bound(8.0)
_SAMPLING = Sampling(temperature=0.8, min_p=0.05, repetition_penalty=2.0, guidance=0.5, alignment_guard=False)
_PULL = 1000.0  # length of the stop's direction, against which random weights are small


def measure(bench: Bench) -> BenchmarkResults:
    """A row of time and one of memory; none on a CPU, but for the narrow models of `--quick`."""
    sentences, text, codes = bench.sizes.certificate
    if bench.device.type != "cuda" and bench.sizes.certificate == FULL.certificate:
        return BenchmarkResults(())
    bench.say(f"Certificate: {sentences} sentences by both models")

    wide = Precision(bench.device.type, torch.float32, "as a certificate is computed")
    models = [_ending(training.make(bench, scope, chosen=wide).tts, codes) for scope in ("rows", "gated")]
    evaluator = SpeechEvaluator(ChatterboxVocoder(s3gen.make(bench)["float32"]), {"a voice": _voice(bench)}, None,
                                watermark=False)  # as for a certificate
    letters = [token.text for token in models[0].front_end.added_tokens() if token.kind == "character"]

    random, texts, syntheses = np.random.default_rng(0), list[tuple[str, str]](), list[Any]()
    for _ in range(sentences):
        texts.append((training.NEW, "".join(random.choice(letters, text))))

    def work() -> None:
        for model in models:
            syntheses.extend(evaluator.speak(model, texts, _SAMPLING))

    start = time.perf_counter()
    # Time and memory are measured in the same pass.
    peak = memory_plan.peak_bytes(bench.device, work)
    duration_s = time.perf_counter() - start
    assert {synthesis.finish_reason for synthesis in syntheses} == {"stop"}

    seconds = sum(len(synthesis.waveform) / synthesis.sample_rate for synthesis in syntheses) / len(syntheses)
    title = f"{sentences} sentences of {text} ids, {seconds:.1f} s each, by both models, float32"
    return BenchmarkResults((
        BenchmarkRow(PART, title, "s", MeasurementStats.of([duration_s]), bound=_H100_S),
        BenchmarkRow(PART, f"{title}: peak memory beside the models", "GiB", MeasurementStats.of([peak / 2**30]),
                     bound=_H100_GIB),
    ))


@torch.no_grad()
def _ending(tts: TTSModel, codes: int) -> TTSModel:
    """The model, whose speech ends after so many codes."""
    module: Any = tts.lm.module
    stop = module.speech_head.weight[module.config.stop_speech]
    module.speech_pos_emb.emb.weight[codes:] += (_PULL * stop / stop.norm()).to(module.speech_pos_emb.emb.weight.dtype)
    return tts


def _voice(bench: Bench) -> Voice:
    random, timbre = np.random.default_rng(1), s3gen.random_voice(max(bench.sizes.prompts_s)).timbre
    speaker = random.standard_normal(bench.sizes.language.speaker_size).astype(np.float32)
    prompt = random.integers(0, 6561, 150).astype(np.uint16)
    return Voice({"speaker_embedding": speaker / np.linalg.norm(speaker), "prompt_codes": prompt}, timbre)
