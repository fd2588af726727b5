"""The recogniser of a dataset: a CTC head on the phonetic encoder, trained on the letters of the training split.

It measures speech in a language that no other recogniser knows. It is stored with the dataset and states its error on
the held-out split, which it is never trained on. Texts are compared by letters, without spaces, case and punctuation.
Its beam search knows sequences of letters of the training texts, so words that these have are read more easily.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from config import foreign
from config.errors import UserError
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.library import dataset_recognisers
from core.library.dataset_recognisers import TEXTS, WEIGHTS, DatasetRecogniserRecord, HeldOutCER
from core.model import precision
from core.speech.ctc_decoding import CharacterNGram, beam_search
from data.acoustics import audio
from data.languages.words import scored_letters
from models.base import RecognitionScore
from models.phonetic_encoder.ctc_head import CTCHead, CTCHeadConfig
from models.phonetic_encoder.encoder import FRAME_S, SAMPLE_RATE, PhoneticEncoder

_BATCH, _SMALL_BATCH, _FEW_CLIPS = 16, 8, 400  # clips in a step; of a dataset of few clips, in order to take more steps
_SORTED_TOGETHER = 16  # batches whose clips are sorted by length, so that little of a batch is padding
_LEARNING_RATE, _WARMUP, _LAST_RATE = 2e-3, 50, 0.02  # steps; the last rate relative to the first
_WEIGHT_DECAY, _EMA, _MAX_NORM = 0.01, 0.99, 1.0
_MASK_FRAMES, _FRAMES_PER_MASK = 20, 250  # the longest mask, and how many frames of a clip have one (SpecAugment)
_RESAMPLES, _SEED = 2000, 0  # resamples and seed of the bootstrap


class DatasetRecogniser:
    """See `models.base.CTCRecogniser`; of the languages whose error on held-out recordings is low enough."""

    sample_rate = SAMPLE_RATE
    frame_s = FRAME_S

    def __init__(self, record: DatasetRecogniserRecord, encoder: PhoneticEncoder, head: CTCHead,
                 language_model: CharacterNGram) -> None:
        self.record, self.languages, self.letters = record, record.languages, record.letters
        self._encoder, self._head, self._language_model = encoder, head, language_model

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> DatasetRecogniser:
        """The recogniser in the folder `recogniser` of a dataset; `UserError` if it is missing or damaged."""
        record = dataset_recognisers.read(folder)
        if record is None:
            raise UserError(f"There is no recogniser {folder}.", "Train it: python -m scripts recogniser.")
        head = CTCHead.load(folder / WEIGHTS, len(record.letters))
        texts = foreign.read_text(folder / TEXTS).splitlines()
        # The language model is counted from the training texts when it is loaded.
        language_model = CharacterNGram(encode_texts(texts, record.letters), len(record.letters))
        return cls(record, PhoneticEncoder.load().to(device), head.to(device), language_model)

    def log_probabilities(self, waveform: torch.Tensor, language: str) -> torch.Tensor:
        """See `models.base.CTCRecogniser`."""
        return self._head.log_probabilities(self._encoder.encode(waveform))

    def normalise(self, text: str, language: str) -> str:
        """See `models.base.CTCRecogniser`."""
        return scored_letters(text)

    def transcribe(self, waveform: torch.Tensor, language: str) -> str:
        """The letters of waveform (S,) at `sample_rate`."""
        log_probs = self.log_probabilities(waveform, language).numpy()
        return decode(log_probs, self.letters, self._language_model)

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        """See `models.base.CTCRecogniser`."""
        if language not in self.languages:
            raise UserError(f"The recogniser of the dataset {self.record.dataset} cannot measure {language!r}: "
                            f"{dataset_recognisers.unmeasured_reason(self.record, language)}.",
                            "Choose another recogniser (--recogniser).")
        resampled = audio.resample(waveform.float().cpu(), sample_rate, SAMPLE_RATE)
        return RecognitionScore.of(scored_letters(text), self.transcribe(resampled, language))


@dataclass(frozen=True)
class LabelledClip:
    """Features of a clip, and the labels of its letters."""

    features: torch.Tensor  # (F, 1024) float16
    labels: torch.Tensor  # (T,) int64
    language: int = 0  # index of a head of several languages


@dataclass(frozen=True)
class TrainedHead:
    """A head, and how long it was trained."""

    head: CTCHead
    epochs: float


def encode_texts(texts: Sequence[str], letters: Sequence[str]) -> list[list[int]]:
    """Texts of letters as labels, without letters that are not in `letters`."""
    labels = {letter: number for number, letter in enumerate(letters, 1)}

    def encode(text: str) -> list[int]:
        return [labels[letter] for letter in text if letter in labels]

    return list(map(encode, texts))


def fits(labels: torch.Tensor, frames: int) -> bool:
    """Whether CTC can write `labels` in so many frames: a blank stands between equal letters."""
    return len(labels) > 0 and len(labels) + int((labels[1:] == labels[:-1]).sum()) <= frames


def encode_clip(encoder: PhoneticEncoder, waveform: torch.Tensor) -> torch.Tensor:
    """Features (F, 1024) float16 of waveform (S,) at 16 kHz."""
    with precision.decide("auto", encoder.conv1.weight.device).autocast():
        return encoder.encode(waveform).half().cpu()


def train_head(clips: Sequence[LabelledClip], config: CTCHeadConfig, epochs: int, cpu_seconds: float,
               device: torch.device, seed: int = 0, progress: ProgressCallback = no_progress,
               start_head: CTCHead | None = None) -> TrainedHead:
    """Train a head for `epochs`, or as many as fit into `cpu_seconds` of processor time; its EMA is returned.

    `start_head`: the head of an earlier training, which goes on with its weights and its mean of features.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)

    # Features are standardised by statistics of a sample of the clips.
    network = CTCHead(config).to(device)
    if start_head is not None:
        network.load_state_dict(start_head.state_dict())
    else:
        sample = torch.cat([clip.features.float() for clip in rng.sample(clips, min(len(clips), 200))])
        network.mean.copy_(sample.mean(0))
        network.std.copy_(sample.std(0).clamp(min=1e-3))

    average = copy.deepcopy(network).eval()
    optimizer = torch.optim.AdamW(network.parameters(), _LEARNING_RATE, betas=(0.9, 0.98), weight_decay=_WEIGHT_DECAY)

    arithmetic = precision.decide("auto", device)
    if arithmetic.dtype is torch.float16:  # its losses would have to be scaled
        arithmetic = precision.decide("float32", device)

    # Train until the epochs or the time are used up; the rate falls with the share of either.
    batch_size = _SMALL_BATCH if len(clips) < _FEW_CLIPS else _BATCH
    steps_per_epoch = math.ceil(len(clips) / batch_size)
    start, step, share = time.process_time(), 0, 0.0
    for batch in _batches(clips, batch_size, rng):
        share = max(step / (epochs * steps_per_epoch), (time.process_time() - start) / cpu_seconds)
        if share >= 1:
            break
        decay = _LAST_RATE + (1 - _LAST_RATE) * (0.5 + 0.5 * math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * min(1, (step + 1) / _WARMUP) * decay

        # Some frames of each clip are masked.
        rows = [clip.features for clip in batch]
        frames = torch.tensor([len(row) for row in rows])
        features = network.standardise(nn.utils.rnn.pad_sequence(rows, batch_first=True).float().to(device))
        for number, row in enumerate(rows):
            features[number, len(row):] = 0
            for _ in range(round(len(row) / _FRAMES_PER_MASK) + 1):
                begin = rng.randrange(len(row))
                features[number, begin:begin + rng.randint(1, _MASK_FRAMES)] = 0

        with arithmetic.autocast():
            logits = network(features, torch.tensor([clip.language for clip in batch], device=device))
        labels = torch.cat([clip.labels for clip in batch])
        lengths = torch.tensor([len(clip.labels) for clip in batch])
        # The loss is a mean over letters, so long clips count more.
        loss = F.ctc_loss(logits.float().log_softmax(-1).transpose(0, 1), labels.to(device), frames.to(device),
                          lengths.to(device), reduction="sum", zero_infinity=True) / int(lengths.sum())

        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), _MAX_NORM)
        optimizer.step()
        step += 1

        with torch.no_grad():
            for mean, value in zip(average.parameters(), network.parameters(), strict=True):
                mean.lerp_(value, 1 - min(_EMA, step / (step + 9)))
        progress(Progress(round(100 * share), 100, "%", "trained"))
    return TrainedHead(average, step / steps_per_epoch)


def _batches(clips: Sequence[LabelledClip], batch_size: int, rng: random.Random) -> Iterator[list[LabelledClip]]:
    """Batches of clips of like length, for ever; the order is another in each epoch."""
    together = batch_size * _SORTED_TOGETHER
    while True:
        shuffled = list(clips)
        rng.shuffle(shuffled)
        batches = []
        for start in range(0, len(shuffled), together):
            # Clips of like length share a batch, which wastes little on padding.
            block = sorted(shuffled[start:start + together], key=lambda clip: len(clip.features))
            batches += [block[begin:begin + batch_size] for begin in range(0, len(block), batch_size)]
        rng.shuffle(batches)
        yield from batches


def decode(log_probs: np.ndarray, letters: Sequence[str], language_model: CharacterNGram) -> str:
    """The transcript of (F, letters + 1)."""
    return "".join(letters[label - 1] for label in beam_search(log_probs, language_model))


def held_out_error(scores: Sequence[RecognitionScore]) -> HeldOutCER:
    """The CER over clips, with the 95% interval of a bootstrap over them."""
    edits = np.array([score.edits for score in scores])
    letters = np.array([len(score.reference) for score in scores])

    # The bootstrap draws whole clips, because errors within a clip are not independent.
    drawn = np.random.default_rng(_SEED).integers(0, len(scores), (_RESAMPLES, len(scores)))
    rates = edits[drawn].sum(1) / np.maximum(1, letters[drawn].sum(1))
    low, high = (float(value) for value in np.percentile(rates, (2.5, 97.5)))
    return HeldOutCER(len(scores), int(letters.sum()), int(edits.sum()), round(low, 4), round(high, 4))
