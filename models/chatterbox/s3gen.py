"""S3Gen: speech tokenizer, speaker encoder, flow and vocoder, as they stand together in the published file.

It makes codes of sound, and sound of codes in the timbre of a reference clip. State-dict
keys are those of resemble-ai/chatterbox (MIT).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from data.acoustics import audio
from models import weights
from models.chatterbox.campplus import CAMPPlus
from models.chatterbox.flow import Flow, FlowPrompt
from models.chatterbox.hift import HiFT
from models.chatterbox.s3gen_sizes import S3GenConfig, config_of
from models.chatterbox.speech_tokenizer import SAMPLE_RATE as CODE_SAMPLE_RATE
from models.chatterbox.speech_tokenizer import SpeechTokenizer

SAMPLE_RATE = 24000  # Hz, of the sound that is made
CODE_RATE = 25  # codes a second
FRAMES_PER_CODE = 2
COMPUTED = ("tokenizer._mel_filters", "tokenizer.window")  # in some published files, and not in others
LONGEST_PROMPT_S = 10.0  # of a reference clip that the flow is given
_SILENCED_S = 0.02  # at the beginning, where the reference clip can spill over; as long again is faded in


class S3Gen(nn.Module):
    """Holds the four models under their published names."""

    def __init__(self, config: S3GenConfig | None = None) -> None:
        super().__init__()
        config = config or S3GenConfig()
        self.tokenizer = SpeechTokenizer(config.tokenizer)
        self.speaker_encoder = CAMPPlus()
        self.flow = Flow(config.flow)
        self.mel2wav = HiFT(config.vocoder)

    @torch.inference_mode()
    def timbre(self, waveform: torch.Tensor, sample_rate: int) -> dict[str, np.ndarray]:
        """What the flow needs of a reference clip (S,): its first ten seconds as codes and mel, and who speaks."""
        first = waveform[:int(LONGEST_PROMPT_S * sample_rate)].to(self.tokenizer.window.device)
        mel = audio.prompt_mel(audio.resample(first, sample_rate, SAMPLE_RATE)[None])[0].T  # (F, n_mels)
        narrow = audio.resample(first, sample_rate, CODE_SAMPLE_RATE)
        codes = self.tokenizer.encode([narrow])[0]
        length = min(len(codes), len(mel) // FRAMES_PER_CODE)
        return {
            "codes": codes[:length].cpu().numpy().astype(np.int64),
            "mel": mel[:FRAMES_PER_CODE * length].cpu().numpy(),
            "speaker": self.speaker_encoder.embed(narrow).cpu().numpy(),
        }


def prompt_of(timbre: Mapping[str, np.ndarray], device: torch.device,
              max_clip_s: float = LONGEST_PROMPT_S) -> FlowPrompt:
    """The arrays of `S3Gen.timbre` for the flow, at most `max_clip_s` seconds of them."""
    prompt = FlowPrompt(*(torch.from_numpy(timbre[name])[None].to(device) for name in ("codes", "mel", "speaker")))
    return prompt.last(round(max_clip_s * CODE_RATE))


def fade_in(waveform: torch.Tensor) -> torch.Tensor:
    """Waveform (..., S) with its first 20 ms silent and the next 20 ms faded in."""
    silent = min(round(_SILENCED_S * SAMPLE_RATE), waveform.shape[-1])
    length = min(silent, waveform.shape[-1] - silent)
    ramp = (torch.cos(torch.linspace(math.pi, 0, silent, device=waveform.device)) + 1) / 2
    gain = torch.cat([waveform.new_zeros(silent), ramp[:length]])
    return torch.cat([waveform[..., :silent + length] * gain, waveform[..., silent + length:]], -1)


def load(path: Path, device: torch.device) -> S3Gen:
    """The models in a published file, in evaluation mode and ready to speak."""
    tensors = weights.read(path)
    module = S3Gen(config_of({key: tuple(value.shape) for key, value in tensors.items()}, str(path)))
    weights.load_into(module, tensors, str(path), COMPUTED)
    module.mel2wav.fold_weight_norm()
    return module.eval().to(device)
