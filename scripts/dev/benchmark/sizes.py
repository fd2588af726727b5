"""Model sizes and numbers of measurements: the published sizes, or narrow models that try the benchmark in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from models.chatterbox import t3
from models.chatterbox.flow import FlowConfig
from models.chatterbox.flow_encoder import FlowEncoderConfig
from models.chatterbox.flow_estimator import FlowEstimatorConfig
from models.chatterbox.hift import HiFTConfig
from models.chatterbox.s3gen import S3GenConfig
from models.chatterbox.speech_tokenizer import SpeechTokenizerConfig
from models.decoder import DecoderConfig, RotaryScaling
from models.indextts2.bigvgan import BigVGANConfig
from models.indextts2.conditioning import ConformerConfig, PerceiverConfig
from models.indextts2.s2mel import S2MelConfig
from models.indextts2.semantic_codec import SemanticCodecConfig
from models.indextts2.unified_voice import UnifiedVoiceConfig
from models.indextts2.w2v_bert import W2vBertConfig
from models.speech_network import T3Config

TEXT_ROWS, SPEECH_ROWS = 2454, 8194
_LAYERS = 30  # the published depth


@dataclass(frozen=True)
class ExtractorSizes:
    """Sizes of IndexTTS2's extractor, without the conditioning networks, which are those of its GPT."""

    states: W2vBertConfig = W2vBertConfig()
    codec: SemanticCodecConfig = SemanticCodecConfig()


_GPT = UnifiedVoiceConfig(
    DecoderConfig(1280, 24, 20, 5120, rotary_theta=None), 12001, 8194, 602, 1818,
    (ConformerConfig(), PerceiverConfig()),
    (ConformerConfig(heads=4, mlp_width=1024, blocks=4),
     PerceiverConfig(latents=1, width=1024, inner=256, mlp_width=1365)),
)


@dataclass(frozen=True)
class BenchmarkSizes:
    """Model sizes and numbers of measurements. Lengths of speech in codes, 25 per second."""

    language: T3Config
    sound: S3GenConfig
    s2mel: S2MelConfig = field(default_factory=S2MelConfig)
    bigvgan: BigVGANConfig = field(default_factory=BigVGANConfig)
    voice: UnifiedVoiceConfig = _GPT
    package_layers: int = _LAYERS  # layers of the package's T3
    package_gpt_layers: int = _GPT.decoder.layers
    repeats: int = 5
    contexts: tuple[int, ...] = (100, 400, 800)  # positions in the cache
    gpt_contexts: tuple[int, ...] = (100, 300, 600)
    codes: int = 8  # decoded in one measurement
    prefills: tuple[int, ...] = (60, 250)  # text ids
    compared: tuple[int, ...] = (60, 150)  # text ids and codes of a sample whose logits are compared
    samples: int = 4  # samples of that size
    recordings: int = 40  # recordings of each language, as samples of the built-in model
    sound_codes: int = 125
    steps: tuple[int, ...] = (10, 5, 4)
    prompts_s: tuple[float, ...] = (10.0, 3.0)
    clips: int = 32  # clips of an epoch
    clip_s: tuple[float, float, float] = (1.5, 4.5, 12.0)  # shortest, middle, longest
    new_rows: int = 200
    batch_size: int = 8
    large_batch_size: int = 64  # about the 16,000 positions of a preset on a GPU of 80 GB
    epochs: int = 2
    clip_durations_s: tuple[float, ...] = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 12.0)  # durations of extracted clips
    demo_clips: int = 380  # all demo clips of the built-in model
    certificate: tuple[int, int, int] = (40, 90, 164)  # sentences, their ids, and their codes: 6.5 s
    extractor: ExtractorSizes = ExtractorSizes()


def language_model(layers: int = _LAYERS, width: int = 1024) -> T3Config:
    """T3 at its published size, or with fewer layers, or narrower.

    The heads that the alignment guard and the guided attention loss read are the published ones, or the nearest ones.
    """
    decoder = DecoderConfig(width, layers, width // 64, 4 * width, rotary_scaling=RotaryScaling())
    heads = [(min(layer, layers - 1), min(head, decoder.heads - 1)) for layer, head in t3.ALIGNED_HEADS]
    return T3Config(decoder, TEXT_ROWS, SPEECH_ROWS, t3.START_SPEECH, t3.STOP_SPEECH, 2050, 4100, 256,
                    unused_tokens=8, doubled_start=True, aligned_heads=tuple(dict.fromkeys(heads)))


_CONFORMER = ConformerConfig(16, 31, 2, 16, 1)
FULL = BenchmarkSizes(language_model(), S3GenConfig())
QUICK = BenchmarkSizes(
    language_model(2, 64),
    S3GenConfig(
        SpeechTokenizerConfig(width=128, heads=2, layers=1),
        FlowConfig(encoder=FlowEncoderConfig(width=64, heads=1, hidden=64, blocks=1, up_blocks=1),
                   estimator=FlowEstimatorConfig(width=64, heads=1, hidden=64, transformers=1, mid_blocks=1)),
        HiFTConfig(channels=32, f0_channels=32),
    ),
    S2MelConfig(width=64, heads=1, hidden=64, layers=3, wave_layers=2), BigVGANConfig(channels=64),
    voice=UnifiedVoiceConfig(DecoderConfig(64, 1, 1, 64, rotary_theta=None), 100, 102, 102, 203,
                             (_CONFORMER, PerceiverConfig(4, 64, 16, 64, 32)),
                             (_CONFORMER, PerceiverConfig(1, 64, 16, 64, 32))),
    package_layers=14, package_gpt_layers=2, repeats=2, contexts=(100,), gpt_contexts=(60,), codes=2, prefills=(20,),
    compared=(10, 20), samples=1, recordings=1,
    sound_codes=25, steps=(4, 2), prompts_s=(3.0, 1.0), clips=4, clip_s=(0.8, 1.0, 1.5), new_rows=10, batch_size=2,
    large_batch_size=3, epochs=1, clip_durations_s=(1.0, 1.5), demo_clips=6, certificate=(3, 12, 10),
    extractor=ExtractorSizes(W2vBertConfig(64, 4, 64, 1), SemanticCodecConfig(64, 16, 32, 1)),
)


def shallower(sizes: BenchmarkSizes, layers: int) -> BenchmarkSizes:
    """The same with fewer layers in the language models."""
    return replace(sizes, language=language_model(layers, sizes.language.decoder.width),
                   voice=replace(sizes.voice, decoder=replace(sizes.voice.decoder, layers=layers)))


@torch.no_grad()
def fill_randomly(module: nn.Module, seed: int = 0) -> None:
    """Random values on the scales of `scripts.dev.random_weights`, which takes minutes for half a billion.

    They are drawn where the module is: a GPU takes no time for what a CPU takes seconds for.
    """
    on_cpu = next(module.parameters()).device.type == "cpu"
    generator = torch.Generator().manual_seed(seed) if on_cpu else None
    if generator is None:

        torch.cuda.manual_seed(seed)
    for key, value in module.state_dict().items():
        match key.rpartition(".")[2]:
            case "window" | "_mel_filters":
                continue
            case "num_batches_tracked" | "running_mean":
                value.zero_()
            case "original0":  # magnitude of a weight-normalised layer
                value.fill_(0.6)
            case "bias":
                value.normal_(0.0, 0.02, generator=generator)
            case "alpha":
                value.fill_(1.0)
            case _ if value.ndim < 2:  # gains and scalars
                value.fill_(1.0)
            case _:
                value.normal_(0.0, 1 / math.sqrt(math.prod(value.shape[1:])), generator=generator)
