"""Train the codec on recordings of many readers.

The encoder hears a clip at one speed of playback and the decoder makes it at another, with a second clip of that
reader, at that speed, as reference: what differs between readers then has to come from the reference. Heads on the
codes predict the phonetic encoder's states and the relative pitch, so the codes carry words before timbre. A loss in
that encoder's feature space, and a discriminator of mel patches with feature matching, sharpen what L1 alone blurs.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from models.phonetic_encoder.encoder import WIDTH, PhoneticEncoder
from models.phonetic_encoder.losses import phonetic_distance
from models.tiny.codec import ConvNeXtBlock, to_log_mel
from models.tiny.decoder_adaptation import DISCRIMINATOR, PatchDiscriminator, feature_distance
from models.tiny.model_folder import load_module
from scripts.dev.tiny.voices.codec import READER, Codec, CodecConfig
from scripts.dev.tiny.voices.recordings import HOPS, SETTINGS, Recordings

CROP = 256  # frames of a training crop
CONTENT, PITCH, SPEAKER, PHONETIC, ADVERSARIAL, FEATURES = 0.3, 0.2, 0.02, 0.5, 0.15, 0.3  # weights of the losses
PHONETIC_LAYERS = 2  # of the loss on decoded mel, after the stem
SHARPEN_FROM = 0.15  # share of the training after which the discriminator acts


class CodeReader(nn.Module):
    """Phonetic states and pitch, from the quantised codes alone, without the speaker; thrown away in the end."""

    def __init__(self, config: CodecConfig, width: int = 256) -> None:
        super().__init__()
        self.codes_in = nn.Linear(len(config.levels), width)
        self.blocks = nn.ModuleList([ConvNeXtBlock(width), ConvNeXtBlock(width)])
        self.content = nn.Linear(width, WIDTH * config.frames_per_code // 2)
        self.pitch = nn.Linear(width, 2 * config.frames_per_code)
        self.speaker = nn.Linear(config.speaker_size, 2)

    def forward(self, quantized: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantized values (B, U, D) to states (B, F / 2, 512), and relative log F0 and voicing (B, F, 2)."""
        hidden = self.codes_in(quantized)
        for block in self.blocks:
            hidden = block(hidden, mask)
        batch, length, _ = hidden.shape
        return self.content(hidden).reshape(batch, -1, WIDTH), self.pitch(hidden).reshape(batch, -1, 2)


@dataclass(frozen=True)
class CodecBatch:
    """Crops of B clips: what the encoder hears, what the decoder should make, and the reference of its reader."""

    heard: torch.Tensor  # (B, CROP, n_mels) normalised
    target: torch.Tensor  # (B, CROP, n_mels) normalised
    reference: torch.Tensor  # (B, CROP, n_mels) normalised
    mask: torch.Tensor  # (B, CROP, 1): inside the clip
    reference_mask: torch.Tensor  # (B, CROP, 1)
    content: torch.Tensor  # (B, CROP / 2, 512)
    pitch: torch.Tensor  # (B, CROP): log F0 relative to the clip's mean
    voiced: torch.Tensor  # (B, CROP)
    reference_pitch: torch.Tensor  # (B, 2): mean and standard deviation of the reference's log F0


class Sampler:
    """Random crops; readers are drawn by the square root of their minutes, so that rare readers count."""

    def __init__(self, data: Recordings, config: CodecConfig, clips: torch.Tensor, seed: int) -> None:
        self.data, self.config, self.clips = data, config, clips
        self.device = data.mels.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        minutes = torch.zeros(len(data.names), device=self.device)
        minutes.index_add_(0, data.readers[clips], data.lengths[clips].float())
        readers = data.readers[clips]
        self.weights = data.lengths[clips].float() / minutes[readers].sqrt()
        self.of_reader = [clips[readers == reader] for reader in range(len(data.names))]
        longest = max(map(len, self.of_reader))
        self.table = torch.zeros(len(data.names), longest, dtype=torch.long, device=self.device)
        for reader, members in enumerate(self.of_reader):
            self.table[reader, : len(members)] = members
        self.counts = torch.tensor([len(members) for members in self.of_reader], device=self.device)
        bands = torch.arange(config.n_mels, device=self.device) + 0.5
        self.curves = torch.cos(math.pi * torch.arange(4, device=self.device)[:, None] * bands / config.n_mels)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.generator, device=self.device)

    def crop_starts(self, clips: torch.Tensor) -> torch.Tensor:
        """A random even frame in each clip (B,), such that a crop fits where the clip is long enough."""
        room = (self.data.lengths[clips] - CROP).clamp(min=0)
        return ((self.uniform(len(clips)) * (room + 1)).long() // 2) * 2

    def mels(self, clips: torch.Tensor, starts: torch.Tensor, hops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised mel (B, CROP, n_mels) and mask (B, CROP, 1); silence past the end of a clip."""
        offsets = torch.arange(CROP, device=self.device)
        inside = (starts[:, None] + offsets < self.data.lengths[clips][:, None])[..., None]
        places = (self.data.starts[clips] + starts)[:, None] + offsets
        places = places.clamp(max=self.data.mels.shape[1] - 1)
        mel = (self.data.mels[hops[:, None], places].float() - self.config.mel_mean) / self.config.mel_std
        return torch.where(inside, mel, torch.full_like(mel, self.config.silence)), inside.float()

    def coloured(self, mel: torch.Tensor, curve: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
        """`mel` through another microphone, `curve` (B, 1, n_mels), with a noise floor (B, 1, n_mels)."""
        mixed = torch.logaddexp((mel + curve) * self.config.mel_std, floor * self.config.mel_std) / self.config.mel_std
        return mixed.clamp(min=self.config.silence)

    def batch(self, size: int, augment: bool = True) -> CodecBatch:
        """`size` random crops."""
        chosen = torch.multinomial(self.weights, size, replacement=True, generator=self.generator)
        clips = self.clips[chosen]
        readers = self.data.readers[clips]
        partner = self.table[readers, (self.uniform(size) * self.counts[readers]).long()]
        hops = heard_hops = torch.zeros(size, dtype=torch.long, device=self.device)
        if augment:
            hops, others = ((self.uniform(size) * len(HOPS)).long() for _ in range(2))
            heard_hops = torch.where(self.uniform(size) < 0.5, hops, others)

        starts = self.crop_starts(clips)
        target, mask = self.mels(clips, starts, hops)
        heard, _ = self.mels(clips, starts, heard_hops)
        reference, reference_mask = self.mels(partner, self.crop_starts(partner), hops)
        if augment:
            # Another room for clip and reference alike, in half of the crops; a slightly other one for the encoder.
            altered = (self.uniform(size, 1, 1) < 0.5).float()
            curve, shift = ((self.uniform(size, 1, 4) - 0.5) @ self.curves * altered * width for width in (0.9, 0.3))
            noisy = (self.uniform(size, 1, 1) < 0.25).float()
            level = -0.2 - 1.2 * self.uniform(size, 1, 1)
            floor = noisy * level + (1 - noisy) * self.config.silence
            floor = floor + noisy * ((self.uniform(size, 1, 4) - 0.5) @ self.curves * 0.6)
            target, heard = self.coloured(target, curve, floor), self.coloured(heard, curve + shift, floor)
            reference = self.coloured(reference, curve, floor)

        offsets = torch.arange(CROP, device=self.device)
        places = ((self.data.starts[clips] + starts)[:, None] + offsets).clamp(max=len(self.data.log_f0) - 1)
        halves = (places[:, ::2] // 2).clamp(max=len(self.data.content) - 1)
        f0, voiced = self.data.log_f0[places], self.data.voiced[places] * mask[..., 0]
        mean = (f0 * voiced).sum(1, keepdim=True) / voiced.sum(1, keepdim=True).clamp(min=1)
        return CodecBatch(heard, target, reference, mask, reference_mask, self.data.content[halves].float(),
                          f0 - mean, voiced, self.reference_pitch(partner, hops))

    def reference_pitch(self, clips: torch.Tensor, hops: torch.Tensor) -> torch.Tensor:
        """Mean and standard deviation of log F0 over each reference clip's first frames, (B, 2)."""
        offsets = torch.arange(CROP, device=self.device)
        places = (self.data.starts[clips][:, None] + offsets).clamp(max=len(self.data.log_f0) - 1)
        inside = (offsets < self.data.lengths[clips][:, None]) & self.data.voiced[places]
        count = inside.sum(1).clamp(min=1)
        f0 = self.data.log_f0[places]
        mean = (f0 * inside).sum(1) / count
        deviation = ((f0 - mean[:, None]).square() * inside).sum(1).div(count).add(1e-6).sqrt()
        ratios = torch.log(SETTINGS.hop_length / torch.tensor(HOPS, device=self.device).float())
        return torch.stack([mean + ratios[hops] - 5.0, deviation], 1)


def l1(decoded: torch.Tensor, batch: CodecBatch) -> torch.Tensor:
    """Mean difference of the normalised mels inside the clips."""
    return ((decoded - batch.target).abs() * batch.mask).sum() / batch.mask.sum() / decoded.shape[-1]


def run(codec: Codec, heard: CodecBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantized values (B, U, D), speaker embeddings (B, D) and decoded mel (B, CROP, n_mels)."""
    mask = heard.mask[:, :: codec.config.frames_per_code]
    quantized = codec.encoder(heard.heard, mask)
    speaker = codec.encoder.speaker_encoder(heard.reference, heard.reference_mask)
    return quantized, speaker, codec.decoder(quantized, mask, speaker)


class CodecTraining:
    """Codec, heads and discriminator with their optimizers; `step` is one update of all of them."""

    def __init__(self, codec: Codec, encoder: PhoneticEncoder, peak: float) -> None:
        device = next(codec.parameters()).device
        self.codec, self.encoder, self.peak = codec, encoder, peak
        self.reader = CodeReader(codec.config).to(device)
        self.discriminator = PatchDiscriminator().to(device)
        self.trained = [*codec.parameters(), *self.reader.parameters()]
        self.optimizer = torch.optim.AdamW(self.trained, peak, betas=(0.85, 0.98), weight_decay=0.01)
        self.critic_optimizer = torch.optim.AdamW(self.discriminator.parameters(), 3e-4, betas=(0.5, 0.9))
        self.average = copy.deepcopy(codec).requires_grad_(False)
        self.steps = 0

    def step(self, batch: CodecBatch, share: float) -> dict[str, torch.Tensor]:
        """One update at `share` (0 to 1) of the training; returns the losses."""
        rate = self.peak * min(1.0, (self.steps + 1) / 200) * (1.0 if share < 0.3 else (1 - share) / 0.7 + 0.01)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sharpen = share > SHARPEN_FROM
        device = batch.heard.device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            quantized, speaker, decoded = run(self.codec, batch)
            losses = {"l1": l1(decoded, batch)}
            losses["phonetic"] = phonetic_distance(self.encoder, to_log_mel(decoded, self.codec.config),
                                                   to_log_mel(batch.target, self.codec.config), PHONETIC_LAYERS)
            total = losses["l1"] + PHONETIC * losses["phonetic"]
            losses |= self.head_losses(quantized, speaker, batch)
            total = total + CONTENT * losses["content"] + PITCH * losses["pitch"] + SPEAKER * losses["speaker"]
            if sharpen:
                true = self.discriminator(batch.target)
                scored = self.discriminator(decoded)
                losses["adversarial"] = (scored[-1] - 1).square().mean()
                losses["features"] = feature_distance(scored, true)
                total = total + ADVERSARIAL * losses["adversarial"] + FEATURES * losses["features"]
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()

        if sharpen:
            with torch.autocast(device, dtype=torch.bfloat16):
                true, made = (self.discriminator(mel)[-1] for mel in (batch.target, decoded.detach()))
                losses["critic"] = (true - 1).square().mean() + made.square().mean()
            self.critic_optimizer.zero_grad(set_to_none=True)
            losses["critic"].backward()
            self.critic_optimizer.step()
        self.update_average(min(0.999, (self.steps + 1) / (self.steps + 20)))
        self.steps += 1
        return {name: value.detach() for name, value in losses.items()}

    def head_losses(self, quantized: torch.Tensor, speaker: torch.Tensor, batch: CodecBatch) -> dict[str, torch.Tensor]:
        """What the heads miss: the phonetic encoder's states, relative pitch and voicing, and the reference's pitch."""
        mask = batch.mask[:, :: self.codec.config.frames_per_code]
        content, pitch = self.reader(quantized, mask)
        inside = batch.mask[:, ::2]
        missed = ((content.float() - batch.content).square() * inside).sum() / inside.sum() / WIDTH
        off = ((pitch[..., 0].float() - 5 * batch.pitch).abs() * batch.voiced).sum() / batch.voiced.sum().clamp(min=1)
        voicing = F.binary_cross_entropy_with_logits(pitch[..., 1].float(), batch.voiced.float(), reduction="none")
        voicing = (voicing * batch.mask[..., 0]).sum() / batch.mask.sum()
        reference = (self.reader.speaker(speaker).float() - 5 * batch.reference_pitch).abs().mean()
        return {"content": missed, "pitch": off + voicing, "speaker": reference}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights: of the codec, its average, the heads and the discriminator."""
        parts = {"codec": self.codec, "average": self.average, "reader": self.reader, "critic": self.discriminator}
        return {f"{part}.{name}": value for part, module in parts.items()
                for name, value in module.state_dict().items()}

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of `state_dict`; the optimizers begin anew."""
        parts = {"codec": self.codec, "average": self.average, "reader": self.reader, "critic": self.discriminator}
        for part, module in parts.items():
            module.load_state_dict({name.removeprefix(f"{part}."): value for name, value in tensors.items()
                                    if name.startswith(f"{part}.")})

    def load_weights(self, folder: Path) -> None:
        """Begin with the codec and the heads in `folder`, and the discriminator that ships."""
        for codec in (self.codec, self.average):
            codec.load_state_dict(Codec.load(folder).state_dict())
        load_module(folder / READER, self.reader).train()
        load_module(DISCRIMINATOR, self.discriminator).train()

    @torch.no_grad()
    def update_average(self, decay: float) -> None:
        averages: list[torch.Tensor] = [*self.average.parameters()]
        values: list[torch.Tensor] = [*self.codec.parameters()]
        torch._foreach_lerp_(averages, values, 1 - decay)


@torch.no_grad()
def held_out(codec: Codec, sampler: Sampler, count: int = 4) -> float:
    """L1 on crops of readers that are not trained on, without augmentation."""
    sampler.generator.manual_seed(1)
    errors = []
    for _ in range(count):
        batch = sampler.batch(64, augment=False)
        _, _, decoded = run(codec, batch)
        errors.append(l1(decoded, batch))
    return float(torch.stack(errors).mean())


def train(training: CodecTraining, data: Recordings, seconds: float, before: float, seed: int, batch_size: int,
          held_out_readers: tuple[str, ...], save: Callable[[], None], report_every: int = 500) -> None:
    """Train until `seconds` are over, `before` of them spent earlier; prints and saves every `report_every` steps."""
    torch.manual_seed(seed)
    config, device = training.codec.config, data.mels.device
    known = torch.tensor([name not in held_out_readers for name in data.names], device=device)[data.readers]
    sampler = Sampler(data, config, known.nonzero()[:, 0], seed + round(before))
    judge = Sampler(data, config, (~known).nonzero()[:, 0], seed) if held_out_readers else None
    begin = time.time()
    while (share := (before + time.time() - begin) / seconds) < 1:
        losses = training.step(sampler.batch(batch_size), share)
        if training.steps % report_every == 0:
            line = " ".join(f"{name} {float(value):.4f}" for name, value in losses.items())
            judged = f"held-out l1 {held_out(training.average, judge):.4f} " if judge else ""
            print(f"codec step {training.steps} {line} {judged}{before + time.time() - begin:.0f} s", flush=True)
            save()
