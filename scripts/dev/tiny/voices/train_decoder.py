"""Train the codec's decoder and speaker path on the codes of an encoder that stays as it is.

The decoder makes a recording, or its copy at another speed, from codes of either, with a second clip of that reader at
that speed as reference: what differs between readers has to come from the reference. A loss in the feature space of the
phonetic encoder, and a discriminator of mel patches with feature matching, sharpen what L1 alone blurs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from config.errors import UserError
from models.phonetic_encoder.encoder import PhoneticEncoder
from models.phonetic_encoder.losses import phonetic_distance
from models.tiny.codec import to_log_mel
from models.tiny.decoder_adaptation import DISCRIMINATOR, PatchDiscriminator, feature_distance
from models.tiny.model_folder import load_module
from scripts.dev.tiny.voices.codec import Codec, CodecConfig, ContentEncoder
from scripts.dev.tiny.voices.features import FRAMES_PER_CODE
from scripts.dev.tiny.voices.recordings import HOPS, Recordings

CROP = 256  # frames of a training crop
SPEAKER, PHONETIC, ADVERSARIAL, MATCHING = 0.02, 0.5, 0.15, 0.3  # weights of the losses beside L1
PHONETIC_LAYERS = 2  # of the loss on decoded mel, after the convolutions
BLURRED_STEPS = 400  # before the discriminator acts
OTHER_CODES = 0.5  # share of the crops whose codes are of a random version of the clip


@torch.no_grad()
def codes_of(data: Recordings, codec: Codec) -> torch.Tensor:
    """Quantized values (2, codes, D) of both versions of all clips; the codec has an encoder on phonetic states."""
    encoder = codec.encoder
    if not isinstance(encoder, ContentEncoder):
        raise UserError("The codec encodes mels, and these recordings were prepared as phonetic states.",
                        "Train an encoder on them first: --stages encoder.")
    quantized = torch.zeros(*data.features.shape[:2], len(encoder.config.levels), device=data.features.device)
    for version in range(2):
        for clip in range(len(data.lengths)):
            features = encoder.standardise(data.clip_features(version, clip).float())
            start = int(data.starts[clip]) // FRAMES_PER_CODE
            quantized[version, start : start + len(features)] = encoder(
                features[None], features.new_ones(1, len(features), 1))[0]
    return quantized


@dataclass(frozen=True)
class DecoderBatch:
    """Crops of B clips: the codes, what the decoder should make of them, and the reference of its reader."""

    quantized: torch.Tensor  # (B, CROP / 4, D)
    target: torch.Tensor  # (B, CROP, n_mels) normalised
    reference: torch.Tensor  # (B, CROP, n_mels) normalised
    mask: torch.Tensor  # (B, CROP, 1): inside the clip
    reference_mask: torch.Tensor  # (B, CROP, 1)
    level: torch.Tensor  # (B, 2): mean and deviation of the reference's log F0


class Sampler:
    """Random crops; readers are drawn by the square root of their minutes, so that rare readers count."""

    def __init__(self, data: Recordings, quantized: torch.Tensor, config: CodecConfig, clips: torch.Tensor,
                 seed: int) -> None:
        self.data, self.quantized, self.config, self.clips = data, quantized, config, clips
        self.device = data.mels.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        readers = data.readers[clips]
        minutes = torch.zeros(len(data.names), device=self.device)
        minutes.index_add_(0, readers, data.lengths[clips].float())
        self.weights = data.lengths[clips].float() / minutes[readers].sqrt()
        bands = torch.arange(config.n_mels, device=self.device) + 0.5
        self.curves = torch.cos(math.pi * torch.arange(4, device=self.device)[:, None] * bands / config.n_mels)

        # A reader at another speed is another reader: clips that sound alike, by version.
        speeds = torch.tensor([HOPS.index(hop) + 1 for hop in data.hops[clips].tolist()], device=self.device)
        self.voices = torch.stack([readers * (len(HOPS) + 1), readers * (len(HOPS) + 1) + speeds])
        self.members = {int(voice): clips[self.voices[version] == voice]
                        for version in range(2) for voice in self.voices[version].unique()}

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=self.generator, device=self.device)

    def crop_starts(self, clips: torch.Tensor) -> torch.Tensor:
        """The first frame, of a code, of a random crop of each clip (B,) that fits where the clip is long enough."""
        room = (self.data.lengths[clips] - CROP).clamp(min=0)
        return (self.uniform(len(clips)) * (room + 1)).long() // FRAMES_PER_CODE * FRAMES_PER_CODE

    def mels(self, versions: torch.Tensor, clips: torch.Tensor, starts: torch.Tensor
             ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised mel (B, CROP, n_mels) and mask (B, CROP, 1); silence past the end of a clip."""
        offsets = torch.arange(CROP, device=self.device)
        inside = (starts[:, None] + offsets < self.data.lengths[clips][:, None])[..., None]
        places = ((self.data.starts[clips] + starts)[:, None] + offsets).clamp(max=self.data.mels.shape[1] - 1)
        mel = (self.data.mels[versions[:, None], places].float() - self.config.mel_mean) / self.config.mel_std
        return torch.where(inside, mel, torch.full_like(mel, self.config.silence)), inside.float()

    def coloured(self, mel: torch.Tensor, curve: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
        """`mel` through another microphone, `curve` (B, 1, n_mels), with a noise floor (B, 1, n_mels)."""
        mixed = torch.logaddexp((mel + curve) * self.config.mel_std, floor * self.config.mel_std) / self.config.mel_std
        return mixed.clamp(min=self.config.silence)

    def batch(self, size: int, augment: bool = True) -> DecoderBatch:
        """`size` random crops."""
        chosen = torch.multinomial(self.weights, size, replacement=True, generator=self.generator)
        clips = self.clips[chosen]
        versions = code_versions = torch.zeros(size, dtype=torch.long, device=self.device)
        if augment:
            versions, others = ((self.uniform(size) * 2).long() for _ in range(2))
            code_versions = torch.where(self.uniform(size) < OTHER_CODES, others, versions)
        voices = self.voices[versions, chosen].tolist()
        partners = torch.stack([self.members[voice][int(share * len(self.members[voice]))]
                                for voice, share in zip(voices, self.uniform(size).tolist(), strict=True)])

        starts = self.crop_starts(clips)
        target, mask = self.mels(versions, clips, starts)
        reference, reference_mask = self.mels(versions, partners, self.crop_starts(partners))
        places = (self.data.starts[clips] + starts)[:, None] // FRAMES_PER_CODE
        places = places + torch.arange(CROP // FRAMES_PER_CODE, device=self.device)
        quantized = self.quantized[code_versions[:, None], places.clamp(max=self.quantized.shape[1] - 1)]
        quantized = quantized * mask[:, ::FRAMES_PER_CODE]
        if augment:
            # Another room for clip and reference alike, in half of the crops.
            altered = (self.uniform(size, 1, 1) < 0.5).float()
            curve = (self.uniform(size, 1, 4) - 0.5) @ self.curves * altered * 0.9
            noisy = (self.uniform(size, 1, 1) < 0.15).float()
            floor = noisy * (-0.2 - 1.2 * self.uniform(size, 1, 1)) + (1 - noisy) * self.config.silence
            target, reference = (self.coloured(mel, curve, floor) for mel in (target, reference))
        level = self.data.levels[versions, partners] - torch.tensor([5.0, 0.0], device=self.device)
        return DecoderBatch(quantized, target, reference, mask, reference_mask, level)


def l1(decoded: torch.Tensor, batch: DecoderBatch) -> torch.Tensor:
    """Mean difference of the normalised mels inside the clips."""
    return ((decoded - batch.target).abs() * batch.mask).sum() / batch.mask.sum() / decoded.shape[-1]


def run(codec: Codec, batch: DecoderBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Speaker embeddings (B, D) and decoded mel (B, CROP, n_mels)."""
    speaker = codec.encoder.speaker_encoder(batch.reference, batch.reference_mask)
    return speaker, codec.decoder(batch.quantized, batch.mask[:, ::FRAMES_PER_CODE], speaker)


class DecoderTraining:
    """Decoder, speaker path and discriminator with their optimizers; `step` is one update of all of them."""

    def __init__(self, codec: Codec, phonetic_encoder: PhoneticEncoder, peak: float) -> None:
        device = codec.decoder.out.weight.device
        self.codec, self.phonetic_encoder, self.peak = codec, phonetic_encoder, peak
        self.modules = {"decoder": codec.decoder, "speaker": codec.encoder.speaker_encoder}
        self.averages = {name: copy.deepcopy(module).requires_grad_(False) for name, module in self.modules.items()}
        self.level = nn.Linear(codec.config.speaker_size, 2).to(device)
        self.discriminator = load_module(DISCRIMINATOR, PatchDiscriminator()).train().to(device)
        self.weights = [value for module in (*self.modules.values(), self.level) for value in module.parameters()]
        for value in self.weights:
            value.requires_grad_(True)
        self.optimizer = torch.optim.AdamW(self.weights, peak, betas=(0.85, 0.98), weight_decay=0.01, fused=True)
        self.critic_optimizer = torch.optim.AdamW(self.discriminator.parameters(), 3e-4, betas=(0.5, 0.9))
        self.steps = 0  # of this codec, in all its trainings

    def step(self, batch: DecoderBatch, share: float) -> dict[str, torch.Tensor]:
        """One update at `share` (0 to 1) of the training; returns the losses."""
        for group in self.optimizer.param_groups:
            decay = 1.0 if share < 0.5 else 2 * (1 - share) + 0.01
            group["lr"] = self.peak * min(1.0, (self.steps + 1) / 200) * decay
        sharpen, device = self.steps >= BLURRED_STEPS, batch.target.device.type
        config = self.codec.config
        with torch.autocast(device, dtype=torch.bfloat16):
            speaker, decoded = run(self.codec, batch)
            losses = {"l1": l1(decoded, batch), "level": (self.level(speaker).float() - batch.level).abs().mean(),
                      "phonetic": phonetic_distance(self.phonetic_encoder, to_log_mel(decoded, config),
                                                    to_log_mel(batch.target, config), PHONETIC_LAYERS)}
            total = losses["l1"] + PHONETIC * losses["phonetic"] + SPEAKER * losses["level"]
            if sharpen:
                real, scored = self.discriminator(batch.target), self.discriminator(decoded)
                losses["adversarial"] = (scored[-1] - 1).square().mean()
                losses["features"] = feature_distance(scored, real)
                total = total + ADVERSARIAL * losses["adversarial"] + MATCHING * losses["features"]
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()

        if sharpen:
            with torch.autocast(device, dtype=torch.bfloat16):
                real_score, score = (self.discriminator(mel)[-1] for mel in (batch.target, decoded.detach()))
                losses["critic"] = (real_score - 1).square().mean() + score.square().mean()
            self.critic_optimizer.zero_grad(set_to_none=True)
            losses["critic"].backward()
            self.critic_optimizer.step()
        self.steps += 1
        self.update_averages(min(0.999, self.steps / (self.steps + 20)))
        return {name: value.detach() for name, value in losses.items()}

    @torch.no_grad()
    def update_averages(self, decay: float) -> None:
        for name, module in self.modules.items():
            torch._foreach_lerp_([*self.averages[name].parameters()], [*module.parameters()], 1 - decay)

    def averaged(self) -> Codec:
        """The codec with the averages of its weights."""
        codec = copy.deepcopy(self.codec).eval()
        codec.decoder.load_state_dict(self.averages["decoder"].state_dict())
        codec.encoder.speaker_encoder.load_state_dict(self.averages["speaker"].state_dict())
        return codec

    def parts(self) -> dict[str, nn.Module]:
        return {**self.modules, **{f"average_{name}": module for name, module in self.averages.items()},
                "level": self.level, "critic": self.discriminator}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights that this trains, and their averages."""
        return {f"{part}.{name}": value for part, module in self.parts().items()
                for name, value in module.state_dict().items()}

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of `state_dict`; the optimizers begin anew."""
        for part, module in self.parts().items():
            module.load_state_dict({name.removeprefix(f"{part}."): value for name, value in tensors.items()
                                    if name.startswith(f"{part}.")})

    def start_from(self, folder: Path) -> None:
        """Begin with the decoder and the speaker path of another codec, whose codes have another meaning."""
        other = Codec.load(folder)
        for modules in (self.modules, self.averages):
            modules["decoder"].load_state_dict({name: value for name, value in other.decoder.state_dict().items()
                                                if not name.startswith("codes_in.")}, strict=False)
            modules["speaker"].load_state_dict(other.encoder.speaker_encoder.state_dict())


@torch.no_grad()
def held_out(codec: Codec, sampler: Sampler, count: int = 4) -> float:
    """L1 on crops of readers that are not trained on, without augmentation."""
    sampler.generator.manual_seed(1)
    errors = []
    for _ in range(count):
        batch = sampler.batch(16, augment=False)
        errors.append(l1(run(codec, batch)[1], batch))
    return float(torch.stack(errors).mean())
