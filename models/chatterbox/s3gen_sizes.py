"""The sizes of an S3Gen, read from the shapes of its tensors; what shapes cannot tell is as published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from config.errors import UserError
from models.chatterbox.flow import FlowConfig
from models.chatterbox.flow_encoder import EncoderConfig
from models.chatterbox.flow_estimator import EstimatorConfig
from models.chatterbox.hift import HiFTConfig
from models.chatterbox.speech_tokenizer import SpeechTokenizerConfig

_HEAD_SIZE = 64  # of every attention in it


@dataclass(frozen=True)
class S3GenConfig:
    """Sizes of the parts that have a choice; the defaults are the published ones."""

    tokenizer: SpeechTokenizerConfig = field(default_factory=SpeechTokenizerConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    vocoder: HiFTConfig = field(default_factory=HiFTConfig)


def config_of(shapes: Mapping[str, tuple[int, ...]], source: str) -> S3GenConfig:
    """The configuration that fits a file's shapes; `UserError` naming `source` when it is no S3Gen."""
    try:
        return S3GenConfig(_tokenizer(shapes), _flow(shapes), _vocoder(shapes))
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{source} is no S3Gen file: it has {len(shapes)} tensors, and not the one for {error}.",
                        "Give one of the published s3gen files.") from error


def _tokenizer(shapes: Mapping[str, tuple[int, ...]]) -> SpeechTokenizerConfig:
    width, n_mels, _ = shapes["tokenizer.encoder.conv1.weight"]
    memory = shapes["tokenizer.encoder.blocks.0.attn.fsmn_block.weight"][2]
    layers = _count(shapes, "tokenizer.encoder.blocks.")
    return SpeechTokenizerConfig(n_mels, width, width // _HEAD_SIZE, layers, memory)


def _flow(shapes: Mapping[str, tuple[int, ...]]) -> FlowConfig:
    codes, width = shapes["flow.input_embedding.weight"]
    n_mels, speaker = shapes["flow.spk_embed_affine_layer.weight"]
    encoder = EncoderConfig(
        width, shapes["flow.encoder.encoders.0.self_attn.pos_bias_u"][0],
        shapes["flow.encoder.encoders.0.feed_forward.w_1.weight"][0], _count(shapes, "flow.encoder.encoders."),
        _count(shapes, "flow.encoder.up_encoders."), shapes["flow.encoder.pre_lookahead_layer.conv1.weight"][2] - 1,
    )
    start = "flow.decoder.estimator."
    inner, hidden = shapes[f"{start}mid_blocks.0.1.0.attn1.to_q.weight"]
    estimator = EstimatorConfig(
        n_mels, hidden, inner // _HEAD_SIZE, _HEAD_SIZE, shapes[f"{start}mid_blocks.0.1.0.ff.net.0.proj.weight"][0],
        _count(shapes, f"{start}mid_blocks.0.1."), _count(shapes, f"{start}mid_blocks."),
    )
    return FlowConfig(codes, speaker, encoder, estimator)


def _vocoder(shapes: Mapping[str, tuple[int, ...]]) -> HiFTConfig:
    channels, n_mels, _ = shapes["mel2wav.conv_pre.parametrizations.weight.original1"]
    return HiFTConfig(n_mels, channels=channels, f0_channels=shapes["mel2wav.f0_predictor.classifier.weight"][1])


def _count(shapes: Mapping[str, tuple[int, ...]], start: str) -> int:
    """How many numbered parts there are under `start`."""
    return 1 + max(int(key[len(start):].split(".")[0]) for key in shapes if key.startswith(start))
