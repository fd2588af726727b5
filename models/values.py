"""What a family's parts give each other: features, samples, losses, voices.

Shapes: B batch, T text ids, U codes, S samples, D embedding size. Everyone else names them by `models.base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein


@dataclass(frozen=True)
class Features:
    """What an extractor keeps of one clip; plain arrays, so that they can be cached and sent."""

    speech_codes: np.ndarray  # (U,) uint16
    speaker_embedding: np.ndarray  # (D,) float32
    prompt_codes: np.ndarray  # (P,) uint16, the clip as a prompt for others, at most the model's `prompt_length`


@dataclass(frozen=True)
class Sample:
    """One training sample: a text, its speech, and a prompt from a different clip of the speaker."""

    text_ids: np.ndarray  # (T,) int64, with start and stop
    speech_codes: np.ndarray  # (U,) int64, without start and stop
    speaker_embedding: np.ndarray  # (D,) float32
    prompt_codes: np.ndarray  # (P,) int64, may be empty

    @property
    def text_targets(self) -> int:
        """Text tokens the loss is over: all but the first."""
        return len(self.text_ids) - 1

    @property
    def speech_targets(self) -> int:
        """Speech tokens the loss is over: every code and the stop."""
        return len(self.speech_codes) + 1


@dataclass(frozen=True)
class LossOptions:
    """Random hiding during training; all zero gives the plain next-token losses."""

    text_dropout: float = 0.0
    code_dropout: float = 0.0
    hits: bool = False  # also count the speech tokens that were the likeliest
    attention: bool = False  # also measure how far the family's aligned heads look from an even reading of the text


@dataclass(frozen=True)
class Losses:
    """Sums of next-token cross-entropy in nats, and how many tokens each is over."""

    text_sum: torch.Tensor
    text_count: int
    speech_sum: torch.Tensor
    speech_count: int
    attention_sum: torch.Tensor | None = None  # over the speech tokens; None where it was not asked for
    speech_hits: torch.Tensor | None = None  # speech tokens that were the likeliest; None where it was not asked for
    text_divergence: torch.Tensor | None = None  # Kullback-Leibler from a teacher; None where there was none
    speech_divergence: torch.Tensor | None = None


@dataclass(frozen=True)
class Predictions:
    """Logits at the text (N, V) and speech (M, K) tokens that losses are over; what one model teaches another."""

    text: torch.Tensor
    speech: torch.Tensor


@dataclass(frozen=True)
class Probe:
    """Logits of one sample, teacher-forced: the thing that must not move."""

    text_logits: torch.Tensor  # (T, V)
    speech_logits: torch.Tensor  # (U + 1, K)


@dataclass(frozen=True)
class Sampling:
    """How codes are drawn; see `config.schema.SamplingOptions`."""

    temperature: float = 0.2
    top_p: float = 1.0
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    guidance: float = 0.5
    seed: int = 0


@dataclass(frozen=True)
class Voice:
    """Who speaks: an embedding and the codes of a reference clip; `timbre` is what the vocoder needs beside."""

    speaker_embedding: np.ndarray  # (D,) float32
    prompt_codes: np.ndarray  # (P,) int64
    timbre: Mapping[str, np.ndarray] = field(default_factory=dict)
    emotion: float = 0.5  # how lively, 0 to 1 and beyond; what each family was trained with is 0.5


@dataclass(frozen=True)
class PreparedVoice:
    """A voice with the keys and values of its conditioning, valid while weights and adapters stay as they are."""

    voice: Voice
    keys_and_values: torch.Tensor  # (layers, 2, heads, conditioning length, head size)


Ending = Literal["stop", "limit", "repetition"]


@dataclass(frozen=True)
class Generated:
    """What was spoken for one text, and why it ended: at the model's stop, at a limit, or repeating itself."""

    codes: np.ndarray  # (U,) int64, without start and stop
    ending: Ending


@dataclass(frozen=True)
class Rendering:
    """How codes become sound; see `config.schema.SoundOptions`. A family uses what it names in `sound_controls`."""

    flow_steps: int = 10
    flow_prompt_s: float = 10.0
    watermark: bool = True
    seed: int = 0


@dataclass(frozen=True)
class RecognitionScore:
    """One clip's transcript against its reference; error = edits / len(reference), may exceed 1."""

    reference: str
    transcript: str
    edits: int

    @classmethod
    def of(cls, reference: str, transcript: str) -> RecognitionScore:
        """Counts insertions, deletions and substitutions of characters."""
        return cls(reference, transcript, Levenshtein.distance(reference, transcript))

    @property
    def error(self) -> float:
        return self.edits / max(1, len(self.reference))


@dataclass(frozen=True)
class ExportFile:
    """One file of an export, relative to its folder, with what it is for."""

    path: str
    purpose: str = field(default="")


@dataclass(frozen=True)
class Anatomy:
    """What the tensors of a family's language model are, told by how their names begin."""

    text_tables: tuple[str, ...]  # tensors with one row a text id; the first is the embedding
    parts: tuple[tuple[str, str], ...]  # beginning of a name, and what it belongs to; `unused`: read by nobody

    def part(self, name: str) -> str:
        """What a tensor belongs to, such as `layers`; `other` for one that is not known."""
        return next((part for start, part in self.parts if name.startswith(start)), "other")
