"""Chatterbox's extractor and vocoder: waveforms to codes and embeddings, and back."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from config.errors import UserError
from data.acoustics import audio
from data.acoustics.voice_encoder import VoiceEncoder
from data.augmentation import import_librosa
from models import weights
from models.base import Features, VocoderOptions, Voice
from models.chatterbox import s3gen
from models.chatterbox.flow import FLOW_STEPS, FlowPrompt
from models.chatterbox.s3gen import S3Gen
from models.chatterbox.speech_tokenizer import SAMPLE_RATE as CODE_SAMPLE_RATE
from models.chatterbox.streaming import StreamingSynthesizer

MAX_PROMPT_CODES = 150  # codes of a reference clip for T3: six seconds
_PROMPT_S = MAX_PROMPT_CODES / s3gen.CODE_RATE
_SAMPLES_PER_CODE = s3gen.SAMPLE_RATE // s3gen.CODE_RATE


class ChatterboxExtractor:
    """Codes by the speech tokenizer, embedding by the voice encoder."""

    sample_rate = CODE_SAMPLE_RATE

    def __init__(self, models: S3Gen, encoder: VoiceEncoder, fingerprint: str) -> None:
        self.tokenizer, self.encoder, self.fingerprint = models.tokenizer, encoder, fingerprint

    def extract(self, waveform: torch.Tensor) -> Features:
        """Waveform (S,) at 16 kHz to features."""
        return self.extract_batch([waveform])[0]

    def extract_batch(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        """Waveforms (S,) at 16 kHz to features. A prompt is tokenized from the first six seconds alone."""
        max_samples = round(_PROMPT_S * self.sample_rate)
        cut = [waveform[:max_samples] for waveform in waveforms if len(waveform) > max_samples]
        codes = [row.cpu().numpy().astype(np.uint16) for row in self.tokenizer.encode([*waveforms, *cut])]
        prompts = iter(codes[len(waveforms):])
        embeddings = self.encoder.embed_batch(waveforms).cpu().numpy()
        return [
            Features(row, {"speaker_embedding": embedding, "prompt_codes": (
                next(prompts) if len(waveform) > max_samples else row)[:MAX_PROMPT_CODES]})
            for row, embedding, waveform in zip(codes, embeddings, waveforms, strict=False)
        ]


def voice_from_clip(models: S3Gen, encoder: VoiceEncoder, waveform: torch.Tensor, sample_rate: int) -> Voice:
    """The voice of a reference clip (S,).

    As published, the clip is resampled to 24 kHz, and from there to the 16 kHz of the prompt codes and the voice
    encoder (`prepare_conditionals` in chatterbox/mtl_tts.py of resemble-ai/chatterbox).
    """
    extractor = ChatterboxExtractor(models, encoder, "")
    waveform_24k = audio.resample(waveform, sample_rate, s3gen.SAMPLE_RATE)
    features = extractor.extract(audio.resample(waveform_24k, s3gen.SAMPLE_RATE, extractor.sample_rate))
    timbre = models.timbre(waveform_24k)
    return Voice(features.conditioning, timbre)


class ChatterboxVocoder:
    """Codes to mel by the flow, mel to waveform by HiFT, in the timbre of a voice."""

    sample_rate = s3gen.SAMPLE_RATE

    def __init__(self, models: S3Gen) -> None:
        self._flow, self._vocoder = models.flow, models.mel2wav

    @torch.inference_mode()
    def decode(self, codes: np.ndarray, voice: Voice, options: VocoderOptions | None = None,
               hidden_states: torch.Tensor | None = None) -> torch.Tensor:
        """Codes (U,) to waveform (960 (U - 1),): the last code sounds like noise and is left out."""
        options = options or VocoderOptions()
        prompt = self._prompt(voice, options)
        if not len(codes):
            return torch.zeros(0)
        generator = torch.Generator().manual_seed(options.seed)
        rows = torch.as_tensor(codes, dtype=torch.long, device=prompt.codes.device)[None]
        mel = self._flow.mel(rows, prompt, steps=options.flow_steps or FLOW_STEPS, generator=generator)
        waveform = s3gen.fade_in(self._vocoder.waveform(mel, generator))[0].cpu()
        waveform = waveform[:max(1, len(codes) - 1) * _SAMPLES_PER_CODE]
        return add_watermark(waveform, self.sample_rate) if options.watermark else waveform

    def stream(self, voice: Voice, options: VocoderOptions | None = None) -> ChatterboxStream:
        """See `models.base.Vocoder`."""
        options = options or VocoderOptions()
        synthesizer = StreamingSynthesizer(self._flow, self._vocoder, self._prompt(voice, options),
                                           steps=options.flow_steps or FLOW_STEPS, seed=options.seed)
        return ChatterboxStream(synthesizer, options.watermark)

    def _prompt(self, voice: Voice, options: VocoderOptions) -> FlowPrompt:
        if not voice.timbre:
            raise UserError("The voice has no timbre: it was made for another family.",
                            "Use a voice of this model, or a reference recording.")
        return s3gen.flow_prompt(voice.timbre, self._flow.input_embedding.weight.device,
                                 options.flow_prompt_s or s3gen.MAX_PROMPT_S)

    def cast_(self, dtype: torch.dtype) -> None:
        """Convert the flow's estimator alone; pitch and waveform stay float32."""
        self._flow.cast_(dtype)

    def free_buffers(self) -> None:
        """See `models.base.Vocoder`."""
        self._flow.graphs.clear()
        self._vocoder.graphs.clear()


class ChatterboxStream:
    """`ChatterboxVocoder.decode` for codes that arrive in chunks."""

    def __init__(self, synthesizer: StreamingSynthesizer, watermarked: bool) -> None:
        self._synthesizer, self._faded_in = synthesizer, False
        self._watermark = StreamingWatermark(s3gen.SAMPLE_RATE) if watermarked else None

    def push(self, codes: np.ndarray) -> torch.Tensor:
        """See `models.base.VocoderStream`."""
        return self._finished(self._synthesizer.push(torch.as_tensor(codes, dtype=torch.long)), last=False)

    def finish(self) -> torch.Tensor:
        """See `models.base.VocoderStream`; the last code is left out."""
        return self._finished(self._synthesizer.finish(drop=1), last=True)

    @torch.inference_mode()
    def _finished(self, piece: torch.Tensor, last: bool) -> torch.Tensor:
        if len(piece) and not self._faded_in:
            piece, self._faded_in = s3gen.fade_in(piece), True
        if self._watermark is None or not (len(piece) or last):
            return piece
        return self._watermark.push(piece, last)


def load_voice_encoder(path: Path, device: torch.device) -> VoiceEncoder:
    """The published voice encoder."""
    module = VoiceEncoder()
    weights.load_into(module, weights.read(path), str(path))
    return module.eval().to(device)


_CONTEXT_S, _FADE_S = 0.2, 0.02
_MIN_DURATION_S = 0.1  # the watermark is in the spectrogram, of which a shorter waveform has too little


def add_watermark(waveform: torch.Tensor, sample_rate: int) -> torch.Tensor:
    """Waveform (S,) with the watermark, of the same length."""
    if len(waveform) < _MIN_DURATION_S * sample_rate:
        return waveform
    marked = torch.from_numpy(_watermarker().apply_watermark(waveform.float().numpy(), sample_rate=sample_rate))
    return torch.nn.functional.pad(marked, (0, max(0, len(waveform) - len(marked))))[:len(waveform)].to(waveform.dtype)


class StreamingWatermark:
    """The watermark for a waveform in chunks: each is marked together with its predecessor and cross-faded."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._context = torch.zeros(0)  # end of the waveform so far, without watermark
        self._held_back = torch.zeros(0)  # marked, for the next cross-fade

    def push(self, chunk: torch.Tensor, last: bool = False) -> torch.Tensor:
        """A chunk (n,) to marked samples (S,); all but the last one hold back 20 ms."""
        together = torch.cat([self._context, chunk])
        fade = len(self._held_back)
        marked = add_watermark(together, self._sample_rate)[len(self._context) - fade:]
        ramp = torch.linspace(0, 1, fade + 2)[1:-1]
        marked = torch.cat([torch.lerp(self._held_back, marked[:fade], ramp), marked[fade:]])
        hold = 0 if last else min(len(marked), round(_FADE_S * self._sample_rate))
        self._context = together[-round(_CONTEXT_S * self._sample_rate):]
        self._held_back = marked[len(marked) - hold:]
        return marked[:len(marked) - hold]


@lru_cache(maxsize=1)
def _watermarker() -> Any:
    try:
        # It prints, uses the random generator to initialise, and is reused by calls in any mode.
        with (contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]),
              torch.inference_mode(mode=False), warnings.catch_warnings()):
            warnings.simplefilter("ignore")  # warnings about the package's deprecated imports
            import_librosa()  # the package imports it too
            from perth import PerthImplicitWatermarker

            return PerthImplicitWatermarker()
    except (ImportError, TypeError) as error:  # the package sets a name it could not import to None
        raise UserError(
            f"The watermark cannot be made: the package resemble-perth does not load ({error}).",
            "Install it: pip install -r requirements.txt. Or switch the watermark off.",
        ) from error
