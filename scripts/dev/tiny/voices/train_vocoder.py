"""Train the vocoder: magnitudes of short-time spectra, log-mel, F0, and discriminators of spectra.

It hears the readers of `recordings`. Half of what it hears is the mel of a recording, the other half what the codec
makes of it, because it speaks from the latter.
"""

from __future__ import annotations

import copy
import time

import torch
from torch import nn

from data.acoustics.audio import log_mel
from models.tiny.decoder_adaptation import PatchDiscriminator
from models.tiny.vocoder import MelVocoder
from scripts.dev.tiny.voices.codec import Codec
from scripts.dev.tiny.voices.features import FRAMES_PER_CODE
from scripts.dev.tiny.voices.recordings import SETTINGS, Recordings, pitches
from scripts.dev.tiny.voices.train_decoder import codes_of

RESOLUTIONS = ((2048, 1200, 240), (1024, 600, 120), (512, 240, 50), (256, 120, 30), (128, 64, 16))  # FFT, window, hop
JUDGED = RESOLUTIONS[1:4]  # what a discriminator sees
SEGMENT = 96  # frames of a training segment
OCTAVES, ADVERSARIAL, FEATURES = 2.0, 0.1, 1.0  # weights of the losses
SHARPEN_FROM = 0.1  # share of the training after which the discriminators act


@torch.no_grad()
def decoded_mels(codec: Codec, data: Recordings, seed: int = 0) -> torch.Tensor:
    """What the codec makes of every clip, with another clip of its reader as reference: (frames, n_mels) float16."""
    coded, quantized = torch.empty_like(data.mels[0]), codes_of(data, codec)[0]
    generator = torch.Generator().manual_seed(seed)
    lengths, starts, readers = data.lengths.tolist(), data.starts.tolist(), data.readers.tolist()
    members: dict[int, list[int]] = {}
    for clip, reader in enumerate(readers):
        members.setdefault(reader, []).append(clip)
    for start, length, reader in zip(starts, lengths, readers, strict=True):
        other = members[reader][int(torch.randint(len(members[reader]), (1,), generator=generator))]
        reference = data.mels[0, starts[other] : starts[other] + min(lengths[other], 500)].float().T[None]
        codes = codec.quantizer.to_codes(quantized[start // FRAMES_PER_CODE : (start + length) // FRAMES_PER_CODE])
        decoded = codec.decode(codes[None], codec.embed_speaker(reference))
        coded[start : start + length] = decoded[0].T.half()
    return coded


class Segments:
    """Random segments of the recordings, readers drawn by the square root of their minutes."""

    def __init__(self, data: Recordings, clips: torch.Tensor, seed: int) -> None:
        self.data = data
        self.clips = clips[data.lengths[clips] > SEGMENT]
        self.generator = torch.Generator(data.mels.device).manual_seed(seed)
        readers = data.readers[self.clips]
        minutes = torch.zeros(len(data.names), device=data.mels.device)
        minutes.index_add_(0, readers, data.lengths[self.clips].float())
        self.weights = data.lengths[self.clips].float() / minutes[readers].sqrt()
        self.log_f0, self.voiced = pitches(data.waveform)

    def batch(self, size: int, coded: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Mel (B, n_mels, SEGMENT), waveform (B, (SEGMENT - 1) * hop), F0 in Hz and voicing (B, SEGMENT)."""
        data, device = self.data, self.data.mels.device
        chosen = torch.multinomial(self.weights, size, replacement=True, generator=self.generator)
        clips = self.clips[chosen]
        room = torch.rand(size, generator=self.generator, device=device)
        starts = data.starts[clips] + (room * (data.lengths[clips] - SEGMENT)).long()
        frames = starts[:, None] + torch.arange(SEGMENT, device=device)
        mel = data.mels[0][frames].float()
        if coded is not None:
            half = torch.rand(size, 1, 1, generator=self.generator, device=device) < 0.5
            mel = torch.where(half, coded[frames].float(), mel)
        length = (SEGMENT - 1) * SETTINGS.hop_length
        samples = starts[:, None] * SETTINGS.hop_length + torch.arange(length, device=device)
        return mel.transpose(1, 2), data.waveform[samples].float(), self.log_f0[frames].exp(), self.voiced[frames]


def magnitudes(waveform: torch.Tensor, resolution: tuple[int, int, int]) -> torch.Tensor:
    """Magnitudes (B, bins, frames) of waveform (B, S), scaled so that they do not depend on the window."""
    n_fft, win, hop = resolution
    window = torch.hann_window(win, device=waveform.device)
    return torch.stft(waveform, n_fft, hop, win, window, return_complex=True).abs() / win**0.5


def spectral_loss(made: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean over `RESOLUTIONS`: L1 of the logarithms of the magnitudes, and half their spectral convergence."""
    total = made.new_zeros(())
    for resolution in RESOLUTIONS:
        synthetic, real = magnitudes(made, resolution), magnitudes(target, resolution)
        logs = (torch.log(synthetic + 1e-4) - torch.log(real + 1e-4)).abs().mean()
        total = total + logs + 0.5 * (synthetic - real).norm() / real.norm()
    return total / len(RESOLUTIONS)


def views(waveform: torch.Tensor) -> list[torch.Tensor]:
    """Log magnitudes (B, frames, bins) that the discriminators see."""
    return [torch.log(magnitudes(waveform, resolution) + 1e-3).transpose(1, 2) / 3 + 1 for resolution in JUDGED]


class VocoderTraining:
    """Vocoder and discriminators with their optimizers; `step` is one update of all of them."""

    def __init__(self, vocoder: MelVocoder, peak: float) -> None:
        device = next(vocoder.parameters()).device
        self.vocoder, self.peak = vocoder, peak
        self.discriminators = nn.ModuleList([PatchDiscriminator() for _ in JUDGED]).to(device)
        self.optimizer = torch.optim.AdamW(vocoder.parameters(), peak, betas=(0.8, 0.99), weight_decay=0.01)
        self.critic_optimizer = torch.optim.AdamW(self.discriminators.parameters(), 3e-4, betas=(0.5, 0.9))
        self.average = copy.deepcopy(vocoder).requires_grad_(False)
        self.steps = 0

    def step(self, batch: tuple[torch.Tensor, ...], share: float) -> dict[str, torch.Tensor]:
        """One update at `share` (0 to 1) of the training; returns the losses. Pulses follow the true F0."""
        mel, waveform, f0, voiced = batch
        rate = self.peak * min(1.0, (self.steps + 1) / 200) * (1.0 if share < 0.4 else (1 - share) / 0.6 + 0.01)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        made, predicted = self.vocoder.synthesize(mel, f0, self.steps, mel.device)
        losses = {"spectra": spectral_loss(made, waveform),
                  "mel": (log_mel(made, SETTINGS) - log_mel(waveform, SETTINGS)).abs().mean(),
                  "octaves": ((torch.log2(predicted) - torch.log2(f0)).abs() * voiced).sum()
                  / voiced.sum().clamp(min=1)}
        total = losses["spectra"] + losses["mel"] + OCTAVES * losses["octaves"]
        sharpen = share > SHARPEN_FROM
        if sharpen:
            seen = [(critic(real), critic(synthetic)) for critic, real, synthetic in
                    zip(self.discriminators, views(waveform), views(made), strict=True)]
            losses["adversarial"] = torch.stack([(synthetic[-1] - 1).square().mean() for _, synthetic in seen]).mean()
            losses["features"] = torch.stack([
                (fake - true.detach()).abs().mean() / true.detach().abs().mean()
                for real, synthetic in seen for true, fake in zip(real[:-1], synthetic[:-1], strict=True)]).mean()
            total = total + ADVERSARIAL * losses["adversarial"] + FEATURES * losses["features"]
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(self.vocoder.parameters(), 1.0)
        self.optimizer.step()

        if sharpen:
            losses["critic"] = torch.stack([
                (critic(real)[-1] - 1).square().mean() + critic(synthetic)[-1].square().mean()
                for critic, real, synthetic in
                zip(self.discriminators, views(waveform), views(made.detach()), strict=True)]).mean()
            self.critic_optimizer.zero_grad(set_to_none=True)
            losses["critic"].backward()
            self.critic_optimizer.step()
        with torch.no_grad():
            decay = min(0.999, (self.steps + 1) / (self.steps + 20))
            torch._foreach_lerp_([*self.average.parameters()], [*self.vocoder.parameters()], 1 - decay)
        self.steps += 1
        return {name: value.detach() for name, value in losses.items()}


def train(vocoder: MelVocoder, data: Recordings, clips: torch.Tensor, seconds: float, seed: int,
          coded: torch.Tensor | None, batch_size: int = 32, peak: float = 1e-3, report_every: int = 500) -> MelVocoder:
    """Train on `clips` for `seconds`; half of the mels are those of `coded`, if given, see `decoded_mels`."""
    torch.manual_seed(seed)
    segments, training = Segments(data, clips, seed), VocoderTraining(vocoder, peak)
    begin = time.time()
    while (share := (time.time() - begin) / seconds) < 1:
        losses = training.step(segments.batch(batch_size, coded), share)
        if training.steps % report_every == 0:
            line = " ".join(f"{name} {float(value):.4f}" for name, value in losses.items())
            print(f"vocoder step {training.steps} {line} {time.time() - begin:.0f} s", flush=True)
    return training.average.eval()
