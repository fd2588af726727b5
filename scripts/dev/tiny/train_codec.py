"""Train the codec: L1 on normalised log-mel, and the phoneme of every frame read off the codes.

The second loss makes the codes represent phonemes before timbre; its classifier
is thrown away. Amharic is never seen.
"""

from __future__ import annotations

import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from models.tiny.codec import Codec, CodecConfig, ConvNeXtBlock
from scripts.dev.tiny.corpus import SETTINGS, Corpus, CorpusClip, frame_phonemes
from scripts.dev.tiny.schedule import learning_rate, steps

FRAME_RATE = SETTINGS.sample_rate / SETTINGS.hop_length
SILENT = float(np.log(SETTINGS.floor))
MAX_FRAMES = 350  # a few fragments of other languages run to 9 s


class PhonemeReader(nn.Module):
    """Phoneme logits of each mel frame from the quantised codes alone, without the speaker."""

    def __init__(self, config: CodecConfig, n_phonemes: int, width: int = 192) -> None:
        super().__init__()
        self.frames_per_code = config.frames_per_code
        self.inward = nn.Linear(len(config.levels), width)
        self.blocks = nn.ModuleList([ConvNeXtBlock(width), ConvNeXtBlock(width)])
        self.outward = nn.Linear(width, n_phonemes * config.frames_per_code)

    def forward(self, grid: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.inward(grid)
        for block in self.blocks:
            hidden = block(hidden, mask)
        logits = self.outward(hidden)
        return logits.reshape(grid.shape[0], grid.shape[1] * self.frames_per_code, -1)


def phoneme_index(corpora: list[Corpus], least: int = 20) -> dict[str, int]:
    """Ids from 1 for every phoneme that occurs at least `least` times; 0 is silence and the rest."""
    counts: dict[str, int] = {}
    for corpus in corpora:
        for clip in corpus.clips:
            for name, _ in clip.phonemes:
                if name and not name.startswith("("):
                    counts[name] = counts.get(name, 0) + 1
    return {name: i + 1 for i, name in enumerate(sorted(n for n, c in counts.items() if c >= least))}


def collate(batch: list[tuple[Corpus, CorpusClip]], index: dict[str, int], multiple: int):
    """Log-mel (B, n_mels, F), frame lengths (B,), phoneme labels (B, F) padded with -100."""
    lengths = torch.tensor([clip.frames for _, clip in batch])
    longest = -(-int(lengths.max()) // multiple) * multiple
    mel = np.full((len(batch), longest, SETTINGS.n_mels), SILENT, np.float32)
    labels = np.full((len(batch), longest), -100, np.int64)
    for row, (corpus, clip) in enumerate(batch):
        mel[row, : clip.frames] = corpus.mel(clip)
        labels[row, : clip.frames] = frame_phonemes(clip, index, FRAME_RATE)
    return torch.from_numpy(mel).transpose(1, 2), lengths, torch.from_numpy(labels)


def partners(batch: list[tuple[Corpus, CorpusClip]], shuffler: random.Random) -> torch.Tensor:
    """For each clip the row of another clip of the same voice, (B,): the speaker, not the text."""
    rows = []
    for row, (_, clip) in enumerate(batch):
        candidates = [i for i, (_, other) in enumerate(batch) if other.voice == clip.voice and i != row]
        rows.append(shuffler.choice(candidates) if candidates else row)
    return torch.tensor(rows)


def losses(codec: Codec, reader: PhonemeReader, mel, lengths, labels, partner) -> tuple[torch.Tensor, torch.Tensor]:
    """L1 of normalised mel on real frames, and cross-entropy of the frames' phonemes."""
    frames = codec.normalise(mel)
    inside = (torch.arange(frames.shape[1])[None] < lengths[:, None])[..., None].float()
    mask = inside[:, :: codec.config.frames_per_code]
    grid = codec.quantizer.quantize(codec.encode_latent(frames, mask))
    speaker = codec.speaker_encoder(frames, inside)[partner]
    decoded = codec.predict_frames(codec.decode_hidden(grid, mask, speaker), mask)
    l1 = ((decoded.float() - frames).abs() * inside).sum() / inside.sum() / SETTINGS.n_mels
    phonemes = F.cross_entropy(reader(grid, mask).float().flatten(0, 1), labels.flatten(), ignore_index=-100)
    return l1, phonemes


def train(corpora: list[Corpus], config: CodecConfig, count: int, seed: int, batch_size: int = 32,
          phoneme_weight: float = 0.2, peak: float = 2e-3) -> Codec:
    """Train for `count` steps; prints a line every 100."""
    torch.manual_seed(seed)
    index = phoneme_index(corpora)
    codec, reader = Codec(config), PhonemeReader(config, len(index) + 1)
    parameters = [*codec.parameters(), *reader.parameters()]
    optimizer = torch.optim.AdamW(parameters, peak, betas=(0.9, 0.98), weight_decay=0.01)
    clips = [(corpus, clip) for corpus in corpora for clip in corpus.split("train") if clip.frames <= MAX_FRAMES]

    shuffler, begin, recent = random.Random(seed), time.time(), []
    for step, batch in steps(clips, batch_size, count, seed, lambda item: item[1].frames):
        for group in optimizer.param_groups:
            group["lr"] = peak * learning_rate(step, count, warmup=200)

        mel, lengths, labels = collate(batch, index, config.frames_per_code)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            l1, phonemes = losses(codec, reader, mel, lengths, labels, partners(batch, shuffler))

        optimizer.zero_grad()
        (l1 + phoneme_weight * phonemes).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

        recent.append((l1.item(), phonemes.item()))
        if (step + 1) % 100 == 0:
            means = np.mean(recent[-100:], axis=0).round(4)
            print(f"codec step {step + 1} l1 {means[0]} phonemes {means[1]} {time.time() - begin:.0f} s", flush=True)

    return codec.eval()
