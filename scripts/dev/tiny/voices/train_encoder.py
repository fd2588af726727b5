"""Train the codec's encoder without a decoder: what the codes must hold is phones, phonetic states and prosody.

The encoder takes the features of a recording or of its copy at another speed. From the codes alone, heads predict the
states of the recording, its prosody and, where the words are known, its phones by CTC (Graves et al. 2006). Supervised
codes keep words better than those of reconstruction alone (Du et al. 2024, CosyVoice, arXiv:2407.05407). Features are
computed once, so a step is small.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from models.phonetic_encoder.ctc_head import ConvNeXtBlock, CTCHeadConfig
from scripts.dev.tiny.voices.codec import ContentEncoder
from scripts.dev.tiny.voices.features import FEATURES, FRAMES_PER_CODE, PROSODY_FEATURES, STATE_FEATURES
from scripts.dev.tiny.voices.recordings import Recordings

LOGITS_PER_CODE = 2  # phones come faster than codes
LONGEST = 250  # codes of a clip in a batch; a longer clip is cut, and its phones are not used
PHONES, PROSODY, STATES = 0.5, 1.0, 1.0  # weights of the losses
POOL = 4  # batches that are drawn at once, so that each has clips of about one length
DROPOUT = 0.1  # share of the features that are left out of a clip
CLAMP = 6.0  # standard deviations; a few states are far outside


class CodeHead(nn.Module):
    """Quantized values or other inputs (B, U, D) to CTC logits (B, 2 U, labels)."""

    def __init__(self, size: int, labels: int, width: int = 256, blocks: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        config = CTCHeadConfig(letters=labels - 1, width=width, dropout=dropout)
        self.input = nn.Linear(size, width)
        self.blocks = nn.ModuleList([ConvNeXtBlock(config) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, LOGITS_PER_CODE * labels)

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """States (B, U, width) before the logits."""
        states = self.input(inputs)
        for block in self.blocks:
            states = block(states)
        return self.norm(states)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        batch, length, _ = inputs.shape
        return self.output(self.hidden(inputs)).reshape(batch, LOGITS_PER_CODE * length, -1)


class CodeReader(nn.Module):
    """Phones, phonetic states and prosody from the codes alone; thrown away after the training."""

    def __init__(self, size: int, labels: int) -> None:
        super().__init__()
        self.phones = CodeHead(size, labels, blocks=2)
        self.rest = CodeHead(size, 1, blocks=1, dropout=0.0)
        self.features = nn.Linear(self.rest.input.out_features, FEATURES)

    def forward(self, quantized: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantized values (B, U, D) to CTC logits (B, 2 U, labels) and standardised features (B, U, FEATURES)."""
        return self.phones(quantized), self.features(self.rest.hidden(quantized))


def ctc_loss(logits: torch.Tensor, codes: torch.Tensor, targets: list[torch.Tensor]) -> torch.Tensor:
    """Mean over phones of the CTC loss of logits (B, 2 U, labels) whose clips have `codes` (B,)."""
    lengths = torch.tensor([len(target) for target in targets], device=logits.device)
    losses = F.ctc_loss(logits.float().log_softmax(-1).transpose(0, 1), torch.cat(targets), LOGITS_PER_CODE * codes,
                        lengths, reduction="none", zero_infinity=True)
    return losses.sum() / lengths.sum().clamp(min=1)


@dataclass(frozen=True)
class Batch:
    """Clips of about one length, padded with zeros."""

    inputs: torch.Tensor  # (B, U, FEATURES) standardised
    target: torch.Tensor  # (B, U, FEATURES) standardised, of the recording at its own speed
    mask: torch.Tensor  # (B, U, 1)
    codes: torch.Tensor  # (B,)
    phones: list[torch.Tensor]  # labels of each clip, none if they are not known


class Sampler:
    """Random clips; readers are drawn by the square root of their minutes, so that rare readers count."""

    def __init__(self, data: Recordings, alphabet: str, encoder: ContentEncoder, clips: torch.Tensor,
                 seed: int) -> None:
        self.data, self.encoder, self.clips = data, encoder, clips
        self.generator = torch.Generator().manual_seed(seed)
        readers, lengths = data.readers[clips].cpu(), data.lengths[clips].float().cpu()
        minutes = torch.zeros(len(data.names)).index_add_(0, readers, lengths)
        self.weights = lengths / minutes[readers].sqrt()
        labels = {phone: label for label, phone in enumerate(alphabet, 1)}
        self.labels = [torch.tensor([labels[phone] for phone in text], dtype=torch.long, device=data.features.device)
                       for text in data.phones]
        self.pool: list[list[int]] = []

    def batch(self, size: int) -> Batch:
        """`size` random clips, each as it was recorded or at another speed."""
        if not self.pool:
            drawn = self.clips[torch.multinomial(self.weights, POOL * size, True, generator=self.generator)]
            ordered = sorted(drawn.tolist(), key=lambda clip: int(self.data.lengths[clip]))
            self.pool = [ordered[start : start + size] for start in range(0, len(ordered), size)]
            order = torch.randperm(POOL, generator=self.generator).tolist()
            self.pool = [self.pool[number] for number in order]
        chosen = self.pool.pop()

        codes = [min(LONGEST, int(self.data.lengths[clip]) // FRAMES_PER_CODE) for clip in chosen]
        shape, device = (size, max(codes), FEATURES), self.data.features.device
        inputs, target = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        mask = torch.zeros(size, max(codes), 1, device=device)
        phones = []
        versions = torch.randint(2, (size,), generator=self.generator).tolist()
        for row, (clip, length, version) in enumerate(zip(chosen, codes, versions, strict=True)):
            inputs[row, :length] = self.data.clip_features(version, clip)[:length]
            target[row, :length] = self.data.clip_features(0, clip)[:length]
            mask[row, :length] = 1.0
            whole = length * FRAMES_PER_CODE == int(self.data.lengths[clip])
            phones.append(self.labels[clip] if whole else self.labels[clip][:0])
        return Batch(self.encoder.standardise(inputs) * mask, self.encoder.standardise(target) * mask, mask,
                     torch.tensor(codes, device=device), phones)


class EncoderTraining:
    """Encoder and heads with their optimizer; `step` is one update."""

    def __init__(self, encoder: ContentEncoder, alphabet: str, peak: float) -> None:
        self.encoder, self.peak = encoder.train(), peak
        device = encoder.out.weight.device
        self.reader = CodeReader(len(encoder.config.levels), len(alphabet) + 1).to(device)
        self.weights = [*encoder.content_parameters(), *self.reader.parameters()]
        self.optimizer = torch.optim.AdamW(self.weights, peak, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
        self.average = copy.deepcopy(encoder).eval().requires_grad_(False)
        self.steps = 0

    def step(self, batch: Batch, share: float) -> dict[str, torch.Tensor]:
        """One update at `share` (0 to 1) of the training; returns the losses."""
        for group in self.optimizer.param_groups:
            decay = 1.0 if share < 0.3 else (1 - share) / 0.7 + 0.01
            group["lr"] = self.peak * min(1.0, (self.steps + 1) / 100) * decay
        with torch.autocast(batch.inputs.device.type, dtype=torch.bfloat16):
            quantized = self.encoder(F.dropout1d(batch.inputs.transpose(1, 2), DROPOUT).transpose(1, 2), batch.mask)
            logits, features = self.reader(quantized * batch.mask)
            losses = self.losses(logits, features, batch)
            total = STATES * losses["states"] + PROSODY * losses["prosody"] + PHONES * losses["phones"]
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.steps += 1
        with torch.no_grad():
            decay = min(0.998, self.steps / (self.steps + 20))
            torch._foreach_lerp_([*self.average.parameters()], [*self.encoder.parameters()], 1 - decay)
        return {name: value.detach() for name, value in losses.items()}

    def losses(self, logits: torch.Tensor, features: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Squared errors, 1 for a guess of the mean, and nats of each phone."""
        squares = (features.float() - batch.target.clamp(-CLAMP, CLAMP)).square() * batch.mask
        means = squares.sum((0, 1)) / batch.mask.sum()
        known = [row for row, phones in enumerate(batch.phones) if len(phones)]
        loss = 0 * means[0]
        if known:
            loss = ctc_loss(logits[known], batch.codes[known], [batch.phones[row] for row in known])
        return {"states": means[:STATE_FEATURES].mean(), "prosody": means[-PROSODY_FEATURES:].mean(), "phones": loss}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All weights: of the encoder, its average and the heads."""
        parts = {"encoder": self.encoder, "average": self.average, "reader": self.reader}
        return {f"{part}.{name}": value for part, module in parts.items()
                for name, value in module.state_dict().items()}

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over the weights of `state_dict`; the optimizer begins anew."""
        for part, module in {"encoder": self.encoder, "average": self.average, "reader": self.reader}.items():
            module.load_state_dict({name.removeprefix(f"{part}."): value for name, value in tensors.items()
                                    if name.startswith(f"{part}.")})
