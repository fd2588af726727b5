"""Train a copy of a codec's decoder on the recordings of one dataset; the encoder stays, so codes keep their meaning.

A decoder that has never heard a reader loses most of the voice, and with it words. A few minutes of training on that
reader's recordings bring them back (docs/experiments.md). The losses are the L1 distance of the mel, the distance in
the feature space of the phonetic encoder, and a discriminator of mel patches with feature matching: L1 alone blurs the
harmonics, and without the phonetic loss sharp sounds are sometimes the wrong ones.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from models.phonetic_encoder import losses
from models.phonetic_encoder.encoder import PhoneticEncoder
from models.tiny.codec import CodecConfig, Quantizer, to_log_mel
from models.tiny.model_folder import load_module

DISCRIMINATOR = Path(__file__).parent / "discriminator.safetensors"
BATCH, CROP = 8, 256  # crops of a step, and frames of a crop
PEAK, LOWEST_SHARE = 5e-4, 0.01  # learning rate, and the share of it that is left at the end
WARMUP = 50  # steps
CRITIC_RATE = 3e-4  # learning rate of the discriminator
PHONETIC, ADVERSARIAL, MATCHING = 0.5, 0.15, 0.3  # weights of the losses beside L1
PHONETIC_LAYERS = 2  # The encoder's first layers, after its convolutions.
OTHER_SPEAKERS = 0.2  # share of the crops whose speaker embedding is of another voice
AVERAGING = 0.995  # decay of the average of the weights, which is the result


class AdaptableCodec(Protocol):
    """What the adaptation needs of a codec."""

    @property
    def config(self) -> CodecConfig: ...

    @property
    def quantizer(self) -> Quantizer: ...

    def normalise(self, mel: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to normalised frames (B, F', n_mels)."""
        ...

    def encode(self, mel: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to codes (B, U)."""
        ...

    def embed_speaker(self, mel: torch.Tensor) -> torch.Tensor:
        """Speaker embedding (B, speaker_size) of log-mel (B, n_mels, F)."""
        ...

    def decode_frames(self, quantized: torch.Tensor, mask: torch.Tensor,
                      speaker_embedding: torch.Tensor) -> torch.Tensor:
        """Quantized values (B, U, D), mask (B, U, 1) and speaker (B, speaker_size) to frames (B, F, n_mels)."""
        ...

    def decoder_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and weights of the decoder."""
        ...

    def state_dict(self) -> dict[str, torch.Tensor]: ...


class PatchDiscriminator(nn.Module):
    """Scores patches of a spectrogram (B, F, bands); returns the states of each layer, the scores last."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((1, 32, 5, 2), (32, 64, 5, 2), (64, 96, 3, (1, 2)), (96, 96, 3, 1), (96, 1, 3, 1))
        self.layers = nn.ModuleList([
            nn.utils.parametrizations.weight_norm(nn.Conv2d(channels, out_channels, size, stride, padding=size // 2))
            for channels, out_channels, size, stride in shapes])

    def forward(self, spectrogram: torch.Tensor) -> list[torch.Tensor]:
        states, hidden = [], spectrogram[:, None]
        for layer in self.layers[:-1]:
            hidden = F.leaky_relu(layer(hidden), 0.1)
            states.append(hidden)
        return [*states, self.layers[-1](hidden)]


@dataclass(frozen=True)
class _Clips:
    """The recordings as the codec knows them; a clip has four frames for each of its codes."""

    frames: list[torch.Tensor]  # (F, n_mels) normalised
    quantized: list[torch.Tensor]  # (F / 4, D)
    speakers: torch.Tensor  # (clips, speaker_size)


@dataclass(frozen=True)
class _Batch:
    target: torch.Tensor  # (B, CROP, n_mels) normalised, zero past the end of a clip
    quantized: torch.Tensor  # (B, CROP / 4, D)
    mask: torch.Tensor  # (B, CROP / 4, 1): inside the clip
    speakers: torch.Tensor  # (B, speaker_size), of another clip or voice


def adapt_decoder(codec: AdaptableCodec, mels: Sequence[torch.Tensor], seconds: float, seed: int,
                  report: Callable[[float], None] = lambda share: None,
                  other_speakers: Sequence[torch.Tensor] = (),
                  codes: Sequence[torch.Tensor] = ()) -> dict[str, torch.Tensor]:
    """The weights of a decoder that was trained for `seconds` on the log-mels (n_mels, F) of at least two clips.

    A share of the crops has a speaker embedding of `other_speakers`, so that the decoder speaks in the voice of its
    recordings whatever voice is chosen. `codes` are those (U,) of each clip, if the codec does not make them of the
    mel. `report` is called after each step with the share of the time that is over;
    what it raises ends the training. Time is counted, not steps, so that a run's limit holds; the result therefore
    differs from run to run.
    """
    adapted = copy.deepcopy(codec)
    decoder = dict(adapted.decoder_parameters())
    device = next(iter(decoder.values())).device
    generator = torch.Generator().manual_seed(seed)
    clips = _encode(adapted, mels, codes, device)
    other_embeddings = torch.stack(list(other_speakers)).to(device) if other_speakers else None

    phonetic_encoder = PhoneticEncoder.load().to(device)
    discriminator = load_module(DISCRIMINATOR, PatchDiscriminator()).train().to(device)
    weights = [parameter.requires_grad_(True) for parameter in decoder.values()]
    averages = [parameter.detach().clone() for parameter in weights]
    optimizer = torch.optim.AdamW(weights, PEAK, betas=(0.85, 0.98), weight_decay=0.01)
    critic_optimizer = torch.optim.AdamW(discriminator.parameters(), CRITIC_RATE, betas=(0.5, 0.9))

    step, start = 0, time.monotonic()
    while (share := (time.monotonic() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(1.0, (step + 1) / WARMUP) * (LOWEST_SHARE + 1 - share)
        batch = _draw(clips, other_embeddings, generator)

        # The decoder: near the recording in mel and in phonetic features, and sharp enough for the discriminator.
        with torch.autocast(device.type, dtype=torch.bfloat16):
            decoded = adapted.decode_frames(batch.quantized, batch.mask, batch.speakers)
            decoded = decoded * batch.mask.repeat_interleave(CROP // batch.mask.shape[1], 1)
            real, scored = discriminator(batch.target), discriminator(decoded)
            loss = ((decoded - batch.target).abs().mean()
                    + PHONETIC * losses.phonetic_distance(phonetic_encoder, to_log_mel(decoded, adapted.config),
                                                          to_log_mel(batch.target, adapted.config), PHONETIC_LAYERS)
                    + ADVERSARIAL * (scored[-1] - 1).square().mean()
                    + MATCHING * feature_distance(scored, real))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()

        # The discriminator: recordings score one, what was decoded scores zero.
        with torch.autocast(device.type, dtype=torch.bfloat16):
            real_score, decoded_score = discriminator(batch.target)[-1], discriminator(decoded.detach())[-1]
            critic_loss = (real_score - 1).square().mean() + decoded_score.square().mean()
        critic_optimizer.zero_grad(set_to_none=True)
        critic_loss.backward()
        critic_optimizer.step()

        step += 1
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 1 - min(AVERAGING, step / (step + 20)))
        report(share)
    return dict(zip(decoder, averages, strict=True))


def feature_distance(scored: Sequence[torch.Tensor], real: Sequence[torch.Tensor]) -> torch.Tensor:
    """Mean distance of the states of two outputs of the discriminator, relative to the size of the real ones."""
    distances = [(decoded - true.detach()).abs().mean() / true.detach().abs().mean()
                 for decoded, true in zip(scored[:-1], real[:-1], strict=True)]
    return torch.stack(distances).mean()


@torch.no_grad()
def _encode(codec: AdaptableCodec, mels: Sequence[torch.Tensor], codes: Sequence[torch.Tensor],
            device: torch.device) -> _Clips:
    frames, quantized, speakers = [], [], []
    for number, mel in enumerate(mels):
        mel = mel[None].to(device)
        frames.append(codec.normalise(mel)[0])
        codes_of_clip = codes[number][None].to(device) if codes else codec.encode(mel)
        quantized.append(codec.quantizer.dequantize(codes_of_clip)[0].clone())
        speakers.append(codec.embed_speaker(mel)[0].clone())
    return _Clips(frames, quantized, torch.stack(speakers))


def _draw(clips: _Clips, other_speakers: torch.Tensor | None, generator: torch.Generator) -> _Batch:
    """Random crops, long clips as often as they have crops, each with the speaker embedding of a random clip."""
    lengths = torch.tensor([float(len(codes)) for codes in clips.quantized])
    chosen = torch.multinomial(lengths, BATCH, replacement=True, generator=generator).tolist()
    speakers = clips.speakers[torch.randint(len(lengths), (BATCH,), generator=generator)]
    if other_speakers is not None:
        strangers = other_speakers[torch.randint(len(other_speakers), (BATCH,), generator=generator)]
        swapped = (torch.rand(BATCH, 1, generator=generator) < OTHER_SPEAKERS).to(speakers.device)
        speakers = torch.where(swapped, strangers, speakers)
    rate = len(clips.frames[0]) // len(clips.quantized[0])
    codes = CROP // rate

    target = clips.frames[0].new_zeros(BATCH, CROP, clips.frames[0].shape[1])
    quantized = target.new_zeros(BATCH, codes, clips.quantized[0].shape[1])
    mask = target.new_zeros(BATCH, codes, 1)
    for row, index in enumerate(chosen):
        room = max(0, len(clips.quantized[index]) - codes)
        start = int(torch.randint(room + 1, (1,), generator=generator))
        piece = clips.quantized[index][start:start + codes]
        quantized[row, : len(piece)] = piece
        mask[row, : len(piece)] = 1.0
        target[row, : rate * len(piece)] = clips.frames[index][rate * start:rate * (start + len(piece))]
    return _Batch(target, quantized, mask, speakers)


