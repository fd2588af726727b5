"""Train the vocoder: magnitudes of short-time spectra, log-mel, and F0, on mel spectra of recordings and of the codec.

It hears every language but Amharic, in more voices than the pack has. It sees what the codec makes of a
recording as often as the recording's own mel, because it speaks from the former.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from config.errors import UserError
from core.speech.measures import pitch
from data.acoustics.audio import log_mel
from models.tiny.codec import Codec
from models.tiny.vocoder import MelVocoder, MelVocoderConfig
from scripts.dev.tiny import sentences
from scripts.dev.tiny.corpus import ESPEAK_NAMES, SETTINGS, VOICES
from scripts.dev.tiny.espeak import Espeak
from scripts.dev.tiny.schedule import learning_rate

CLIPS, FRAGMENTS = 1200, 12  # for each base language, and for each other language
VARIANTS = ("", "+f3", "+f1", "+f2", "+f4", "+f5", "+m1", "+m2", "+m3", "+m4", "+m5", "+m6", "+m7")
RESOLUTIONS = ((2048, 1200, 240), (1024, 600, 120), (512, 240, 50), (256, 120, 30), (128, 64, 16))  # FFT, window, hop
PITCH_FRAME_S = 0.0155  # from the start of a frame of `pitch` to its middle: half of 25 ms, and of a period of 6 ms
SEGMENT = 96  # frames of a training segment


@dataclass(frozen=True)
class SpokenClip:
    """Sound (S,), its log-mel and the codec's (n_mels, F), and F0 in Hz with its voicing (F,)."""

    waveform: np.ndarray
    mel: np.ndarray
    coded: np.ndarray
    f0: np.ndarray
    voiced: np.ndarray


def speak(codec: Codec, seed: int) -> list[SpokenClip]:
    """Sentences of the base languages, two in three in the pack's voices, and fragments of the other languages."""
    espeak, shuffler = Espeak(SETTINGS.sample_rate), random.Random(seed)
    wanted = []
    for language in ("en", "fr"):
        for index, text in enumerate(sentences.build(language, CLIPS, 40, seed).train):
            voices = VOICES[language]
            wanted.append((text, voices[index % 2] if index % 3 else voices[0] + shuffler.choice(VARIANTS)))
    for language in sentences.languages():
        if language not in VOICES:
            name = ESPEAK_NAMES.get(language, language)
            wanted += [(text, name + shuffler.choice(VARIANTS))
                       for text in sentences.fragments(language, FRAGMENTS, seed)]
    clips = []
    for text, voice in wanted:
        try:
            waveform = espeak.say(text, voice).waveform
        except UserError:  # a language that this espeak-ng does not speak
            continue
        if len(waveform) > (SEGMENT + 2) * SETTINGS.hop_length:
            clips.append(_clip(codec, waveform))
    return clips


def _clip(codec: Codec, waveform: np.ndarray) -> SpokenClip:
    mel = log_mel(torch.from_numpy(waveform)[None], SETTINGS)
    frames = mel.shape[-1]
    coded = codec.decode(codec.encode(mel), codec.embed_speaker(mel))[0, :, :frames]
    found = pitch(torch.from_numpy(waveform), SETTINGS.sample_rate)
    times = np.arange(len(found)) * SETTINGS.hop_length / SETTINGS.sample_rate + PITCH_FRAME_S
    wanted = np.arange(frames) * SETTINGS.hop_length / SETTINGS.sample_rate
    known = np.isfinite(found)
    f0 = np.exp(np.interp(wanted, times[known], np.log(found[known]))) if known.any() else np.full(frames, 120.0)
    nearest = np.clip(np.round((wanted - PITCH_FRAME_S) * 100).astype(int), 0, max(0, len(found) - 1))
    voiced = known[nearest] if len(found) else np.zeros(frames, bool)
    return SpokenClip(waveform, mel[0].numpy().astype(np.float16), coded.numpy().astype(np.float16),
                      f0.astype(np.float32), voiced)


def batches(clips: list[SpokenClip], size: int, count: int, seed: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """`count` times: mel (B, n_mels, SEGMENT), waveform (B, (SEGMENT - 1) * hop), F0 and voicing (B, SEGMENT)."""
    shuffler = random.Random(seed)
    for _ in range(count):
        rows = []
        for clip in shuffler.choices(clips, weights=[len(clip.f0) for clip in clips], k=size):
            start = shuffler.randrange(len(clip.f0) - SEGMENT)
            part = slice(start, start + SEGMENT)
            first = start * SETTINGS.hop_length
            mel = clip.coded if shuffler.random() < 0.5 else clip.mel
            rows.append((mel[:, part].astype(np.float32),
                         clip.waveform[first:first + (SEGMENT - 1) * SETTINGS.hop_length],
                         clip.f0[part], clip.voiced[part]))
        yield tuple(torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))


def spectral_loss(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean over `RESOLUTIONS`: L1 of the logarithms of the magnitudes, and half their spectral convergence."""
    total = made.new_zeros(())
    for n_fft, win, hop in RESOLUTIONS:
        window = torch.hann_window(win)
        one, other = (torch.stft(signal, n_fft, hop, win, window, return_complex=True).abs() / win**0.5
                      for signal in (made, wanted))
        logs = (torch.log(one + 1e-4) - torch.log(other + 1e-4)).abs().mean()
        total = total + logs + 0.5 * (one - other).norm() / other.norm()
    return total / len(RESOLUTIONS)


def losses(vocoder: MelVocoder, mel: torch.Tensor, waveform: torch.Tensor, f0: torch.Tensor, voiced: torch.Tensor,
           seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Spectral loss, L1 of log-mel, and error of F0 in octaves over voiced frames; pulses follow the true F0."""
    made, predicted = vocoder.synthesize(mel, f0, seed)
    mels = (log_mel(made, SETTINGS) - log_mel(waveform, SETTINGS)).abs().mean()
    octaves = ((torch.log2(predicted) - torch.log2(f0)).abs() * voiced).sum() / voiced.sum().clamp(min=1)
    return spectral_loss(made, waveform), mels, octaves


def train(clips: list[SpokenClip], config: MelVocoderConfig, count: int, seed: int, batch_size: int = 12,
          peak: float = 1e-3) -> MelVocoder:
    """Train for `count` steps; prints a line every 100."""
    torch.manual_seed(seed)
    vocoder = MelVocoder(config)
    optimizer = torch.optim.AdamW(vocoder.parameters(), peak, betas=(0.8, 0.99), weight_decay=0.01)
    begin, recent = time.time(), []
    for step, (mel, waveform, f0, voiced) in enumerate(batches(clips, batch_size, count, seed)):
        for group in optimizer.param_groups:
            group["lr"] = peak * learning_rate(step, count, warmup=200)
        spectra, mels, octaves = losses(vocoder, mel, waveform, f0, voiced, seed=step)
        optimizer.zero_grad()
        (spectra + mels + 2 * octaves).backward()
        nn.utils.clip_grad_norm_(vocoder.parameters(), 1.0)
        optimizer.step()
        recent.append((spectra.item(), mels.item(), octaves.item()))
        if (step + 1) % 100 == 0:
            means = np.mean(recent[-100:], axis=0).round(4)
            print(f"vocoder step {step + 1} spectra {means[0]} mel {means[1]} octaves {means[2]} "
                  f"{time.time() - begin:.0f} s", flush=True)
    return vocoder.eval()
