"""What a family must offer; the trainer, the synthesizer and the proofs know nothing else.

Families are loaded by name through `models.registry`. Shapes: B batch, T text ids, U codes,
S samples, D embedding size. Ids of base tokens are below `prefix_size`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn

from data.front_end import FrontEnd
from models.values import (
    Anatomy,
    Ending,
    ExportFile,
    Features,
    Generated,
    Losses,
    LossOptions,
    Predictions,
    PreparedVoice,
    Probe,
    RecognitionScore,
    Rendering,
    Sample,
    Sampling,
    Voice,
)

__all__ = [  # the values of `models.values` too: whoever knows a family names both by this module
    "Anatomy", "Ending", "ExportFile", "Extractor", "Family", "Features", "Generated", "CTCRecogniser", "LossOptions",
    "Losses", "Predictions", "PreparedVoice", "Probe", "Rendering", "Sample", "Sampling", "SoundStream",
    "SpeechModel", "RecognitionScore", "Vocoder", "Voice", "WeightsFile",
]


class WeightsFile(Protocol):
    """Weights on a disk of which one tensor at a time is read."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> tuple[str, ...]:
        """Of tensors; those in nested tables are joined by dots."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def tensor(self, name: str) -> torch.Tensor: ...


class Extractor(Protocol):
    """Waveforms to features; `fingerprint` changes when the result could."""

    fingerprint: str
    sample_rate: int

    def extract(self, waveform: torch.Tensor) -> Features:
        """Waveform (S,) at `sample_rate` to features, the same whatever was extracted before."""
        ...

    def extract_many(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        """`extract` of each, together where that is faster; what stands beside a clip changes nothing of it.

        A clip that cannot be used raises `UserError`, which need not say which one.
        """
        ...


class SpeechModel(Protocol):
    """The trainable language model of a family. Every tensor of `module` outside the new rows is frozen."""

    module: nn.Module
    text_tables: tuple[str, ...]  # names of the submodules with one row a text id, e.g. ("text_emb", "text_head")
    adapter_targets: Mapping[str, tuple[str, ...]]  # last parts of names of linear layers, by what they are part of
    prefix_size: int  # text rows of the base checkpoint
    prompt_length: int  # codes of a reference clip that are used at most
    longest_text: int  # text ids there are positions for, start and stop counted
    usual_text: int  # of a sentence as it was trained on, where nothing better is known
    longest_speech: int  # codes there are positions for, without start and stop

    def losses(self, samples: Sequence[Sample], options: LossOptions, seeds: Sequence[int] | None = None,
               teacher: Predictions | None = None) -> Losses:
        """Next-token losses; a sample's share does not depend on its neighbours.

        What is hidden of a sample follows from its seed; without seeds, from torch's own generator. A teacher's
        predictions are of the same samples, options and seeds; it may know fewer text ids, the first ones.
        """
        ...

    def predictions(self, samples: Sequence[Sample], options: LossOptions,
                    seeds: Sequence[int] | None = None) -> Predictions:
        """What the model as it is now predicts where `losses` would be over, without gradients."""
        ...

    def text_states(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """The states (T, width) that the model reaches at each id of the samples' texts; they can be differentiated."""
        ...

    def place(self, name: str) -> tuple[str, int]:
        """Part that a parameter of `module` belongs to (`embeddings`, `layers`, `heads`, or `unused`), and its depth.

        Heads are at depth 0, the last layer is at 1, and embeddings are below the first.
        """
        ...

    def blocks(self, guided: bool) -> Sequence[nn.Module]:
        """Layers whose parameters are read in their own forward pass alone; `guided`: also with a loss on attention."""
        ...

    def recompute(self, on: bool) -> None:
        """Whether training keeps little of a forward pass and computes it again: less memory, the same gradients."""
        ...

    def compile(self) -> None:
        """Let torch compile the layers as they are run first; for CUDA."""
        ...

    def probe(self, sample: Sample) -> Probe:
        """Logits of one sample without any hiding, in evaluation mode."""
        ...

    def shrink(self, kind: str) -> int:
        """Keep the layers' matrices in `bfloat16` or `int8` from now on, to speak faster; the bytes a step reads."""
        ...

    def prepare(self, voice: Voice) -> PreparedVoice:
        """Compute once what is the same for every text in `voice`."""
        ...

    def generate(self, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice],
                 sampling: Sampling) -> list[Generated]:
        """Codes for each text's ids; ends at the model's own stop, or a limit derived from the text."""
        ...

    def stream(self, text: np.ndarray, voice: Voice | PreparedVoice,
               sampling: Sampling) -> Iterator[np.ndarray | Generated]:
        """`generate` of one text: codes (n,) as they are spoken and, last, all of them."""
        ...


class SoundStream(Protocol):
    """Codes in, sound out, before all codes are known."""

    def push(self, codes: np.ndarray) -> torch.Tensor:
        """More codes (n,) to the samples (S,) that they allow, often none."""
        ...

    def finish(self) -> torch.Tensor:
        """The rest (S,)."""
        ...


class Vocoder(Protocol):
    """Codes to sound."""

    sample_rate: int

    def decode(self, codes: np.ndarray, voice: Voice, rendering: Rendering | None = None) -> torch.Tensor:
        """Codes (U,) in `voice` to waveform (S,)."""
        ...

    def stream(self, voice: Voice, rendering: Rendering | None = None) -> SoundStream | None:
        """`decode` piece by piece; None where the family cannot."""
        ...

    def to_half(self, dtype: torch.dtype) -> None:
        """Compute in `dtype` from now on what does not suffer from it."""
        ...


class CTCRecogniser(Protocol):
    """Recogniser that measures intelligibility in its `languages`. It outputs letters, by CTC; 0 is blank."""

    languages: tuple[str, ...]
    letters: tuple[str, ...]  # letter i is written as i + 1
    sample_rate: int  # Hz
    frame_s: float  # between two frames of its output

    def log_probabilities(self, waveform: torch.Tensor, language: str) -> torch.Tensor:
        """Log-probabilities (F, letters + 1) of waveform (S,)."""
        ...

    def normalise(self, text: str, language: str) -> str:
        """`text` in the recogniser's letters."""
        ...

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        """Compare the transcript of waveform (S,) with `text`."""
        ...


class Family(Protocol):
    """Everything of one family, loaded from a model folder. Methods load on call and keep nothing."""

    name: str
    sampling: Sampling  # what the model speaks best with
    sound_controls: tuple[str, ...]  # fields of `config.schema.SoundOptions` that reach something
    anatomy: Anatomy

    def check(self, folder: Path) -> None:
        """Raise `UserError` when a file is missing, truncated or belongs to another model."""
        ...

    def front_end(self, folder: Path) -> FrontEnd:
        """The base front-end of the model in `folder`, checked against its weights."""
        ...

    def speech_model(self, folder: Path, device: torch.device) -> SpeechModel:
        """The base language model, frozen, in evaluation mode."""
        ...

    def language_model_file(self, folder: Path) -> Path:
        """The file of a model's folder that holds the language model; `UserError` when there is not one."""
        ...

    def open_weights(self, path: Path) -> WeightsFile:
        """A file or folder of weights, of whatever model; `UserError` when it is damaged or no weights."""
        ...

    def longest_speech(self, folder: Path) -> int:
        """Codes of a clip that the language model has positions for, from the headers of its files alone."""
        ...

    def longest_text(self, folder: Path) -> int:
        """Text ids that the language model has positions for, start and stop counted, from the headers alone."""
        ...

    def extractor(self, folder: Path, device: torch.device) -> Extractor: ...

    def extractor_fingerprint(self, folder: Path) -> str:
        """The fingerprint that `extractor` would have, without loading it."""
        ...

    def vocoder(self, folder: Path, device: torch.device) -> Vocoder: ...

    def recogniser(self, folder: Path) -> CTCRecogniser | None:
        """The family's recogniser, or None when it has none."""
        ...

    def voices(self, folder: Path) -> dict[str, Voice]:
        """The voices that come with the model, by name, the one to use by default first."""
        ...

    def voice(self, folder: Path, device: torch.device, waveform: torch.Tensor, sample_rate: int) -> Voice:
        """The voice heard in a reference clip (S,)."""
        ...

    def replay(self, folder: Path) -> list[tuple[str, str, Features]]:
        """Base-language clips shipped with the model: language, text, features; used to probe and replay."""
        ...

    def held_out(self, folder: Path, language: str) -> list[tuple[str, Path]]:
        """Held-out sentences of a base language with their original recordings."""
        ...

    def export(self, base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
               merged: Mapping[str, torch.Tensor] | None) -> tuple[ExportFile, ...]:
        """Write an extended model into `folder`, with all of `base` that speaking needs; what the files are.

        `tensors` is the language model under the published names, its text tables at their new
        size; `merged` the same with adapters folded in. `speech_model(folder)` then reads it back.
        """
        ...
