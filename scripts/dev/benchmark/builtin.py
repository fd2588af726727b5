"""The built-in model on a GPU: one, eight and 32 texts together, with and without CUDA graphs and adapters.

With its own weights, so that the errors of lower precision are those of a trained model. On a CPU they alone are
measured: the demo shows how fast it speaks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from data.acoustics import audio
from models import tiny
from models.base import Sample, Sampling, Voice
from models.generate import Stepper, prepare_voice
from models.language_model import TransformerLanguageModel
from models.registry import family
from models.speech_network import T3
from models.tiny.family import BASE_CODE_LIMIT, CODES_PER_TOKEN, MAX_PROMPT_CODES
from scripts.dev.benchmark import logits, t3
from scripts.dev.benchmark.bench import Bench
from scripts.dev.benchmark.gpu_decode import add_adapters, decode_rows
from scripts.dev.benchmark.results import BenchmarkResults, Cost, decibels
from scripts.dev.benchmark.timing import Measure, seconds

PART = "built-in"
PACK = Path(tiny.__file__).parent / "pack"
_TEXT = 40  # ids
_CPU = torch.device("cpu")


def measure(bench: Bench) -> BenchmarkResults:
    """Errors of each precision; on a GPU those of the vocoder and rows of decoding, too."""
    bench.say("The built-in model")
    models, samples = logits.precisions(bench, load(bench)), _samples(bench)
    costs = logits.costs(bench, PART, models, samples, t3.guided_logits)
    if bench.device.type != "cuda":
        return BenchmarkResults((), tuple(costs))
    costs.append(_vocoder_cost(bench, samples))

    def decoding(network: T3, texts: int, kind: type[Stepper]) -> Measure:
        longest = bench.sizes.codes * (bench.sizes.repeats + 1)
        stepper = kind(network, texts, _TEXT + network.config.conditioning_length + 2 + longest, longest, bench.device)
        begin(stepper, network, _TEXT, bench.device)

        @torch.inference_mode()
        def decode() -> None:
            for _ in range(bench.sizes.codes):
                stepper.advance()

        return lambda: 1000 * seconds(decode, bench.device) / bench.sizes.codes

    return BenchmarkResults(tuple(decode_rows(bench, PART, models, adapt, decoding, None)), tuple(costs))


def load(bench: Bench) -> T3:
    """The network in float32."""
    lm = family("tiny").load_language_model(PACK, bench.device)
    assert isinstance(lm, TransformerLanguageModel)
    return lm.module


def adapt(bench: Bench, model: T3) -> None:
    """Put adapters around the layers, as by default, all on."""
    add_adapters(TransformerLanguageModel(model, model.config.text_rows, bench.device, MAX_PROMPT_CODES,
                                          BASE_CODE_LIMIT, CODES_PER_TOKEN), bench.device)


@torch.inference_mode()
def begin(stepper: Stepper, model: T3, text: int, device: torch.device) -> None:
    """Prefill random texts of `text` ids, all in one voice."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, model.config.text_rows, text)).to(device)
    voice = prepare_voice(model, next(iter(family("tiny").load_voices(PACK).values())), device)
    stepper.prefill([ids] * stepper.texts, [voice] * stepper.texts,
                    Sampling(temperature=0.8, guidance=0.5, alignment_guard=True))


def _samples(bench: Bench) -> list[Sample]:
    """Held-out recordings of both languages, each prompted by the voice that is most similar."""
    tiny_family = family("tiny")
    front_end, extractor = tiny_family.load_front_end(PACK), tiny_family.load_extractor(PACK, _CPU)
    prompts = [voice.conditioning for voice in tiny_family.load_voices(PACK).values()]
    samples = []
    for language in ("en", "fr"):
        for text, path in tiny_family.held_out_recordings(PACK, language)[:bench.sizes.recordings]:
            features = extractor.extract(audio.load(path, extractor.sample_rate))
            speaker = features.conditioning["speaker_embedding"]
            prompt = max(prompts, key=lambda conditioning: float(conditioning["speaker_embedding"] @ speaker))
            samples.append(Sample(front_end.encode(text, language), features.speech_codes.astype(np.int64), prompt))
    return samples


def _vocoder_cost(bench: Bench, samples: list[Sample]) -> Cost:
    """The vocoder stays in float32."""
    vocoders = [family("tiny").load_vocoder(PACK, device) for device in (_CPU, bench.device)]
    expected, actual = (torch.cat([vocoder.decode(sample.speech_codes, Voice(sample.conditioning))
                                   for sample in samples])
                        for vocoder in vocoders)
    return Cost(PART, "vocoder, float32: waveform", decibels(expected, actual), "dB",
                f"of the codes of {len(samples)} recordings, against float32 on the CPU")
