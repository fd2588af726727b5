"""S3Gen: speech tokenizer, speaker encoder, flow and vocoder, which are published in one file.

Waveform to codes, and codes to waveform in the timbre of a reference clip. State-dict keys are those of
resemble-ai/chatterbox (MIT). Sizes are read from the shapes of the tensors; what shapes do not determine is as
published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

from config.errors import UserError
from data.acoustics import audio
from models import weights
from models.campplus import CAMPPlus
from models.chatterbox.flow import Flow, FlowConfig, FlowPrompt
from models.chatterbox.flow_encoder import MEL_FRAMES_PER_CODE, FlowEncoderConfig
from models.chatterbox.flow_estimator import FlowEstimatorConfig
from models.chatterbox.hift import HiFT, HiFTConfig
from models.chatterbox.speech_tokenizer import SAMPLE_RATE as CODE_SAMPLE_RATE
from models.chatterbox.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig

SAMPLE_RATE = 24000  # Hz, of the synthesised waveform
CODE_RATE = 25  # codes per second
COMPUTED = ("tokenizer._mel_filters", "tokenizer.window")  # present in some published files only
MAX_PROMPT_S = 10.0  # seconds of a reference clip for the flow
_SILENCED_S = 0.02  # seconds at the start, where the reference clip can leak in; a fade-in of the same length follows
_HEAD_SIZE = 64  # width of a head in every attention


@dataclass(frozen=True)
class S3GenConfig:
    """Sizes of the parts; the defaults are the published ones."""

    tokenizer: SpeechTokenizerConfig = field(default_factory=SpeechTokenizerConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    vocoder: HiFTConfig = field(default_factory=HiFTConfig)


class S3Gen(nn.Module):
    """The four models under their published names."""

    def __init__(self, config: S3GenConfig | None = None) -> None:
        super().__init__()
        config = config or S3GenConfig()
        self.tokenizer = SpeechTokenizer(config.tokenizer)
        self.speaker_encoder = CAMPPlus()
        self.flow = Flow(config.flow)
        self.mel2wav = HiFT(config.vocoder)

    @torch.inference_mode()
    def timbre(self, waveform: torch.Tensor) -> dict[str, np.ndarray]:
        """The flow's prompt from the first ten seconds of a reference clip (S,) at 24 kHz: codes, mel and speaker."""
        prompt = waveform[:int(MAX_PROMPT_S * SAMPLE_RATE)].to(self.tokenizer.window.device)
        mel = audio.prompt_mel(prompt[None])[0].T  # (F, n_mels)
        narrow = audio.resample_windowed_sinc(prompt, SAMPLE_RATE, CODE_SAMPLE_RATE)
        codes = self.tokenizer.encode([narrow])[0]
        length = min(len(codes), len(mel) // MEL_FRAMES_PER_CODE)
        return {
            "codes": codes[:length].cpu().numpy().astype(np.int64),
            "mel": mel[:MEL_FRAMES_PER_CODE * length].cpu().numpy(),
            "speaker": self.speaker_encoder.embed(narrow).cpu().numpy(),
        }


def load(path: Path, device: torch.device) -> S3Gen:
    """The models in a published file, in evaluation mode, with weight norm folded."""
    tensors = weights.read(path)
    module = S3Gen(config_from_shapes({key: tuple(value.shape) for key, value in tensors.items()}, str(path)))
    weights.load_into(module, tensors, str(path), COMPUTED)
    module.mel2wav.fold_weight_norm()
    return module.eval().to(device)


def config_from_shapes(shapes: Mapping[str, tuple[int, ...]], source: str) -> S3GenConfig:
    """The configuration of a file's shapes; `UserError` naming `source` if it is no S3Gen."""
    try:
        return S3GenConfig(_tokenizer(shapes), _flow(shapes), _vocoder(shapes))
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{source} is no S3Gen file: it has {len(shapes)} tensors, and not the one for {error}.",
                        "Give one of the published s3gen files.") from error


def _tokenizer(shapes: Mapping[str, tuple[int, ...]]) -> SpeechTokenizerConfig:
    width, n_mels, _ = shapes["tokenizer.encoder.conv1.weight"]
    return SpeechTokenizerConfig(
        n_mels=n_mels, width=width, heads=width // _HEAD_SIZE, layers=_count(shapes, "tokenizer.encoder.blocks."),
        fsmn_kernel_size=shapes["tokenizer.encoder.blocks.0.attn.fsmn_block.weight"][2],
    )


def _flow(shapes: Mapping[str, tuple[int, ...]]) -> FlowConfig:
    n_codes, width = shapes["flow.input_embedding.weight"]
    n_mels, speaker_embedding_size = shapes["flow.spk_embed_affine_layer.weight"]
    encoder = FlowEncoderConfig(
        width=width, heads=shapes["flow.encoder.encoders.0.self_attn.pos_bias_u"][0],
        hidden=shapes["flow.encoder.encoders.0.feed_forward.w_1.weight"][0],
        blocks=_count(shapes, "flow.encoder.encoders."), up_blocks=_count(shapes, "flow.encoder.up_encoders."),
        lookahead=shapes["flow.encoder.pre_lookahead_layer.conv1.weight"][2] - 1,
    )
    start = "flow.decoder.estimator."
    inner, width = shapes[f"{start}mid_blocks.0.1.0.attn1.to_q.weight"]
    estimator = FlowEstimatorConfig(
        n_mels=n_mels, width=width, heads=inner // _HEAD_SIZE, head_size=_HEAD_SIZE,
        hidden=shapes[f"{start}mid_blocks.0.1.0.ff.net.0.proj.weight"][0],
        transformers=_count(shapes, f"{start}mid_blocks.0.1."), mid_blocks=_count(shapes, f"{start}mid_blocks."),
    )
    return FlowConfig(n_codes, speaker_embedding_size, encoder, estimator)


def _vocoder(shapes: Mapping[str, tuple[int, ...]]) -> HiFTConfig:
    channels, n_mels, _ = shapes["mel2wav.conv_pre.parametrizations.weight.original1"]
    return HiFTConfig(n_mels, channels=channels, f0_channels=shapes["mel2wav.f0_predictor.classifier.weight"][1])


def _count(shapes: Mapping[str, tuple[int, ...]], start: str) -> int:
    """The number of numbered submodules under `start`."""
    return 1 + max(int(key[len(start):].split(".")[0]) for key in shapes if key.startswith(start))


def flow_prompt(timbre: Mapping[str, np.ndarray], device: torch.device,
              max_clip_s: float = MAX_PROMPT_S) -> FlowPrompt:
    """The arrays of `S3Gen.timbre` as a prompt of at most `max_clip_s` seconds."""
    prompt = FlowPrompt(*(torch.from_numpy(timbre[name])[None].to(device) for name in ("codes", "mel", "speaker")))
    return prompt.last(round(max_clip_s * CODE_RATE))


def fade_in(waveform: torch.Tensor) -> torch.Tensor:
    """Waveform (..., S) with 20 ms of silence at the start, then a fade-in of 20 ms."""
    silent = min(round(_SILENCED_S * SAMPLE_RATE), waveform.shape[-1])
    length = min(silent, waveform.shape[-1] - silent)
    ramp = (torch.cos(torch.linspace(math.pi, 0, silent, device=waveform.device)) + 1) / 2
    gain = torch.cat([waveform.new_zeros(silent), ramp[:length]])
    return torch.cat([waveform[..., :silent + length] * gain, waveform[..., silent + length:]], -1)
