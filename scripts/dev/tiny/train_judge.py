"""Train the judge on separate sentences, with letters and phonemes at once."""

from __future__ import annotations

import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from rapidfuzz.distance import Levenshtein
from torch import nn

from models.tiny.recogniser import RecogniserConfig, RecogniserNetwork, letters_of
from scripts.dev.tiny.corpus import Corpus, CorpusClip
from scripts.dev.tiny.schedule import learning_rate, steps
from scripts.dev.tiny.train_codec import collate, phoneme_index

PHONEME_WEIGHT = 0.5


def phonemes_of(clip: CorpusClip, phoneme_ids: dict[str, int]) -> list[str]:
    """The clip's phonemes in order, without pauses and rare ones."""
    return [name for name, _ in clip.phonemes if name in phoneme_ids]


def configure(corpora: dict[str, Corpus]) -> RecogniserConfig:
    """Letters and phonemes that occur in the corpora."""
    letters = sorted({c for lang, corpus in corpora.items() for clip in corpus.clips
                      for c in letters_of(clip.text, lang)})
    return RecogniserConfig(tuple(corpora), tuple(letters), tuple(phoneme_index(list(corpora.values()))))


def augment(mel: torch.Tensor, shuffler: random.Random) -> torch.Tensor:
    """Gain, noise, blur in time or frequency, and a missing band: what vocoders do to a mel (B, n_mels, F)."""
    mel = mel + 0.4 * torch.randn(len(mel), 1, 1) + torch.randn_like(mel) * torch.rand(len(mel), 1, 1)
    if shuffler.random() < 0.3:
        mel = F.avg_pool1d(F.pad(mel, (1, 1), mode="replicate"), 3, 1)
    if shuffler.random() < 0.3:
        mel = F.avg_pool1d(F.pad(mel.transpose(1, 2), (1, 1), mode="replicate"), 3, 1).transpose(1, 2)
    low = shuffler.randrange(70)
    mel[:, low : low + shuffler.randrange(10)] = -5.0
    return mel


def _ctc(logits: torch.Tensor, targets: list[list[int]], lengths: torch.Tensor) -> torch.Tensor:
    flat = torch.tensor([symbol for target in targets for symbol in target])
    sizes = torch.tensor([len(target) for target in targets])
    return F.ctc_loss(logits.float().log_softmax(-1).transpose(0, 1), flat, (lengths + 1) // 2, sizes,
                      zero_infinity=True)


def train(corpora: dict[str, Corpus], count: int, seed: int, batch_size: int = 32,
          peak: float = 1.5e-3) -> RecogniserNetwork:
    """Train for `count` steps; prints a line every 100."""
    torch.manual_seed(seed)
    config = configure(corpora)
    recogniser = RecogniserNetwork(config)

    letter_id = {c: i + 1 for i, c in enumerate(config.letters)}
    phoneme_id = {p: i + 1 for i, p in enumerate(config.phonemes)}
    optimizer = torch.optim.AdamW(recogniser.parameters(), peak, weight_decay=0.01)
    clips = [(corpus, clip) for corpus in corpora.values() for clip in corpus.split("train")]

    shuffler, begin, recent = random.Random(seed), time.time(), []
    for step, batch in steps(clips, batch_size, count, seed, lambda item: item[1].frames):
        for group in optimizer.param_groups:
            group["lr"] = peak * learning_rate(step, count, warmup=200)

        mel, lengths, _ = collate(batch, {}, 4)
        languages = torch.tensor([config.languages.index(clip.language) for _, clip in batch])
        letters, phonemes = recogniser(augment(mel, shuffler), languages)

        letter_loss = _ctc(letters, [[letter_id[c] for c in letters_of(clip.text, clip.language)]
                                     for _, clip in batch], lengths)
        phoneme_loss = _ctc(phonemes, [[phoneme_id[p] for p in phonemes_of(clip, phoneme_id)]
                                       for _, clip in batch], lengths)

        optimizer.zero_grad()
        (letter_loss + PHONEME_WEIGHT * phoneme_loss).backward()
        nn.utils.clip_grad_norm_(recogniser.parameters(), 5.0)
        optimizer.step()

        recent.append((letter_loss.item(), phoneme_loss.item()))
        if (step + 1) % 100 == 0:
            means = np.mean(recent[-100:], axis=0).round(3)
            spent = time.time() - begin
            print(f"judge step {step + 1} letters {means[0]} phonemes {means[1]} {spent:.0f} s", flush=True)

    return recogniser.eval()


@torch.inference_mode()
def error(recogniser: RecogniserNetwork, items: list[tuple[CorpusClip, torch.Tensor]]) -> tuple[float, float]:
    """Letter and phoneme error of (clip, log-mel (n_mels, F)) pairs: edits over reference length."""
    phoneme_ids = dict.fromkeys(recogniser.config.phonemes, 0)
    edits = np.zeros(2)
    total = np.zeros(2)
    for clip, mel in items:
        reference = letters_of(clip.text, clip.language), phonemes_of(clip, phoneme_ids)
        recognised = recogniser.letters(mel, clip.language), recogniser.phonemes(mel, clip.language)
        edits += [Levenshtein.distance(w, h) for w, h in zip(reference, recognised, strict=True)]
        total += [len(w) for w in reference]
    letters, phonemes = edits / total
    return float(letters), float(phonemes)
