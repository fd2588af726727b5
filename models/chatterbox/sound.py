"""Chatterbox's extractor, voices and vocoder: sound to codes and embeddings, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from config.errors import UserError
from data.acoustics import audio
from models import weights
from models.base import Features, Rendering, Voice
from models.chatterbox import s3gen, watermark
from models.chatterbox.flow import FlowPrompt
from models.chatterbox.s3gen import S3Gen
from models.chatterbox.speech_tokenizer import SAMPLE_RATE as CODE_SAMPLE_RATE
from models.chatterbox.streaming import Stream
from models.chatterbox.voice_encoder import VoiceEncoder

PROMPT = 150  # codes of a reference clip that T3 is given: six seconds
_PROMPT_S = PROMPT / s3gen.CODE_RATE
_SAMPLES_PER_CODE = s3gen.SAMPLE_RATE // s3gen.CODE_RATE


class ChatterboxExtractor:
    """Codes by the speech tokenizer, embedding by the voice encoder."""

    sample_rate = CODE_SAMPLE_RATE

    def __init__(self, models: S3Gen, encoder: VoiceEncoder, fingerprint: str) -> None:
        self.tokenizer, self.encoder, self.fingerprint = models.tokenizer, encoder, fingerprint

    def extract(self, waveform: torch.Tensor) -> Features:
        """Waveform (S,) at 16 kHz to features."""
        return self.extract_many([waveform])[0]

    def extract_many(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        """Waveforms (S,) at 16 kHz to features. A prompt is what the tokenizer makes of the first six seconds alone."""
        longest = round(_PROMPT_S * self.sample_rate)
        long = [waveform[:longest] for waveform in waveforms if len(waveform) > longest]
        codes = [row.cpu().numpy().astype(np.uint16) for row in self.tokenizer.encode([*waveforms, *long])]
        prompts = iter(codes[len(waveforms):])
        embeddings = self.encoder.embed_batch(waveforms).cpu().numpy()
        return [
            Features(row, embedding, (next(prompts) if len(waveform) > longest else row)[:PROMPT])
            for row, embedding, waveform in zip(codes, embeddings, waveforms, strict=False)
        ]


def voice_of(models: S3Gen, encoder: VoiceEncoder, waveform: torch.Tensor, sample_rate: int) -> Voice:
    """The voice heard in a reference clip (S,)."""
    extractor = ChatterboxExtractor(models, encoder, "")
    features = extractor.extract(audio.resample(waveform, sample_rate, extractor.sample_rate))
    timbre = models.timbre(waveform, sample_rate)
    return Voice(features.speaker_embedding, features.prompt_codes.astype(np.int64), timbre)


class ChatterboxVocoder:
    """Codes to mel by the flow, mel to sound by HiFT, in the timbre of a voice."""

    sample_rate = s3gen.SAMPLE_RATE

    def __init__(self, models: S3Gen) -> None:
        self._flow, self._vocoder = models.flow, models.mel2wav

    @torch.inference_mode()
    def decode(self, codes: np.ndarray, voice: Voice, rendering: Rendering | None = None) -> torch.Tensor:
        """Codes (U,) to waveform (960 (U - 1),): the sound of the code before the stop is noise and left out."""
        chosen = rendering or Rendering()
        prompt = self._prompt(voice, chosen)
        if not len(codes):
            return torch.zeros(0)
        generator = torch.Generator().manual_seed(chosen.seed)
        rows = torch.as_tensor(codes, dtype=torch.long, device=prompt.codes.device)[None]
        mel = self._flow.mel(rows, None, prompt, steps=chosen.flow_steps, generator=generator)
        waveform = s3gen.fade_in(self._vocoder.waveform(mel, generator))[0].cpu()
        waveform = waveform[:max(1, len(codes) - 1) * _SAMPLES_PER_CODE]
        return watermark.marked(waveform, self.sample_rate) if chosen.watermark else waveform

    def stream(self, voice: Voice, rendering: Rendering | None = None) -> ChatterboxStream:
        """See `models.base.Vocoder`."""
        chosen = rendering or Rendering()
        talk = Stream(self._flow, self._vocoder, self._prompt(voice, chosen), steps=chosen.flow_steps, seed=chosen.seed)
        return ChatterboxStream(talk, chosen.watermark)

    def _prompt(self, voice: Voice, chosen: Rendering) -> FlowPrompt:
        if not voice.timbre:
            raise UserError("The voice has no timbre: it was made for another family.",
                            "Use a voice of this model, or a reference recording.")
        return s3gen.prompt_of(voice.timbre, self._flow.input_embedding.weight.device, chosen.flow_prompt_s)

    def to_half(self, dtype: torch.dtype) -> None:
        """The flow's estimator alone; pitch and waveform stay in float32."""
        self._flow.to_half(dtype)


class ChatterboxStream:
    """`ChatterboxVocoder.decode` while the codes are still coming."""

    def __init__(self, talk: Stream, watermarked: bool) -> None:
        self._talk, self._begun = talk, False
        self._marking = watermark.Marking(s3gen.SAMPLE_RATE) if watermarked else None

    def push(self, codes: np.ndarray) -> torch.Tensor:
        """See `models.base.SoundStream`."""
        return self._marked(self._talk.push(torch.as_tensor(codes, dtype=torch.long)), last=False)

    def finish(self) -> torch.Tensor:
        """See `models.base.SoundStream`; the last code's sound is left out."""
        return self._marked(self._talk.finish(drop=1), last=True)

    @torch.inference_mode()
    def _marked(self, piece: torch.Tensor, last: bool) -> torch.Tensor:
        if len(piece) and not self._begun:
            piece, self._begun = s3gen.fade_in(piece), True
        if self._marking is None or not (len(piece) or last):
            return piece
        return self._marking.push(piece, last)


def load_voice_encoder(path: Path, device: torch.device) -> VoiceEncoder:
    """The published voice encoder."""
    module = VoiceEncoder()
    weights.load_into(module, weights.read(path), str(path))
    return module.eval().to(device)
