"""The protocol of a model family: all that the trainer, the synthesizer and the proofs know of a model.

A family is a package `models/NAME` with a class that has the methods of `Family`; `models.registry` finds it by
name. A family provides

- a text front-end, text to ids: `Family.load_front_end`;
- an extractor, waveform to features: `Extractor`;
- a speech model, text ids to speech codes: `SpeechModel`, with its losses, its logits for a proof (`probe`),
  `generate`, the tables that new tokens extend (`text_tables`) and the layers that adapters may wrap
  (`adapter_targets`);
- a vocoder, speech codes to waveform: `Vocoder`;
- optionally a recogniser for evaluation, and clips of its base languages;
- an export in the layout that its own ecosystem loads: `Family.export`.

The dataclasses come first, the protocols after them. Shapes: B batch, T text ids, U speech codes, P codes of a
prompt, S samples, D embedding size, V text rows, K speech rows. Ids of base tokens are below `prefix_size`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import nn

from data.front_end import FrontEnd


@dataclass(frozen=True)
class Features:
    """What an extractor computes from one clip: plain arrays, so that they can be cached and sent."""

    speech_codes: np.ndarray  # (U,) uint16
    speaker_embedding: np.ndarray  # (D,) float32
    prompt_codes: np.ndarray  # (P,) uint16, at most `max_prompt_length`: this clip as a prompt for other clips


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
    """Dropout of inputs and optional measures; the defaults give the plain next-token losses."""

    text_dropout: float = 0.0  # probability that the text of a sample is dropped, for classifier-free guidance
    code_dropout: float = 0.0  # largest share of a sample's input codes that is dropped
    count_top1: bool = False  # also count the speech tokens that the model ranks first
    attention: bool = False  # also compute the guided attention loss of the family's aligned heads


@dataclass(frozen=True)
class Losses:
    """Sums of next-token cross-entropy in nats, and the number of tokens in each sum."""

    text_sum: torch.Tensor
    text_count: int
    speech_sum: torch.Tensor
    speech_count: int
    attention_sum: torch.Tensor | None = None  # over the speech tokens; None without `LossOptions.attention`
    speech_top1: torch.Tensor | None = None  # speech tokens ranked first; None without `LossOptions.count_top1`
    text_divergence: torch.Tensor | None = None  # sum of Kullback-Leibler divergences from a teacher, if one was given
    speech_divergence: torch.Tensor | None = None


@dataclass(frozen=True)
class TokenLogits:
    """Teacher-forced logits of a batch at the N text and M speech tokens that the losses count.

    They are the targets of distillation: dropout is that of the losses, and the samples' tokens are concatenated.
    """

    text: torch.Tensor  # (N, V)
    speech: torch.Tensor  # (M, K)


@dataclass(frozen=True)
class SampleLogits:
    """Teacher-forced logits of one sample at all its tokens, without dropout.

    The certificate compares them: for base languages a training must not change them.
    """

    text_logits: torch.Tensor  # (T, V)
    speech_logits: torch.Tensor  # (U + 1, K)


@dataclass(frozen=True)
class Sampling:
    """How `generate` samples codes; see `config.schema.SamplingOptions`."""

    temperature: float = 0.2
    top_p: float = 1.0
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    guidance: float = 0.5
    seed: int = 0


@dataclass(frozen=True)
class Voice:
    """A speaker: an embedding and the codes of a reference clip; `timbre` holds the arrays that the vocoder needs."""

    speaker_embedding: np.ndarray  # (D,) float32
    prompt_codes: np.ndarray  # (P,) int64
    timbre: Mapping[str, np.ndarray] = field(default_factory=dict)
    emotion: float = 0.5  # how lively: 0 to 1 and beyond; families are trained with 0.5


@dataclass(frozen=True)
class PreparedVoice:
    """A voice with the cached keys and values of its conditioning, valid until weights or adapters change."""

    voice: Voice
    keys_and_values: torch.Tensor  # (layers, 2, heads, conditioning length, head size)


FinishReason = Literal["stop", "limit", "repetition"]


@dataclass(frozen=True)
class Generated:
    """The codes of one text, and why they end: stop token, length limit, or codes that repeat."""

    codes: np.ndarray  # (U,) int64, without start and stop
    finish_reason: FinishReason


@dataclass(frozen=True)
class VocoderOptions:
    """Options of a vocoder; see `config.schema.SoundOptions`. A family uses those it names in `sound_options`."""

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
    """One file of an export, relative to its folder, and its purpose."""

    path: str
    purpose: str = field(default="")


@dataclass(frozen=True)
class TensorLayout:
    """Which part of a family's language model a tensor belongs to, by the prefix of its name."""

    text_tables: tuple[str, ...]  # tensors with one row per text id; the first is the embedding
    parts: tuple[tuple[str, str], ...]  # (prefix of names, part); the part `unused` is read by no computation

    def part(self, name: str) -> str:
        """The part of a tensor, such as `layers`; `other` for an unknown name."""
        return next((part for start, part in self.parts if name.startswith(start)), "other")


class WeightsFile(Protocol):
    """A checkpoint on disk that is read tensor by tensor."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors; the keys of nested tables are joined by dots."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def tensor(self, name: str) -> torch.Tensor: ...


class Extractor(Protocol):
    """Waveforms to features. Cached features are valid for one `fingerprint`: it changes whenever results could."""

    fingerprint: str
    sample_rate: int  # Hz, of the waveforms it takes

    def extract(self, waveform: torch.Tensor) -> Features:
        """Features of a waveform (S,) at `sample_rate`; they do not depend on earlier calls."""
        ...

    def extract_batch(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        """`extract` of each waveform, batched where that is faster; a clip's features do not depend on its batch.

        A clip that cannot be used raises `UserError`, which need not name the clip.
        """
        ...


class SpeechModel(Protocol):
    """The language model of a family: text ids and a voice to speech codes.

    The network is `module`; `models.language_model.LanguageModel` implements the protocol for a `SpeechLM`.
    It is loaded with every parameter of `module` frozen; the trainer adds new rows and adapters, or unfreezes.
    """

    module: nn.Module
    text_tables: tuple[str, ...]  # submodules with one row per text id, which new tokens extend: embedding, head
    adapter_targets: Mapping[str, tuple[str, ...]]  # by part (e.g. "attention"): last names of its linear layers
    prefix_size: int  # text rows of the base checkpoint, which training never changes
    max_prompt_length: int  # codes
    max_text_length: int  # text ids, start and stop included: the model's text positions
    preferred_max_text_length: int  # text ids of a long training sentence: longer texts are split
    max_speech_length: int  # codes, without start and stop

    def losses(self, samples: Sequence[Sample], options: LossOptions, seeds: Sequence[int] | None = None,
               teacher: TokenLogits | None = None) -> Losses:
        """Next-token losses; what a sample adds does not depend on the other samples of the batch.

        `seeds` decide the dropout of each sample; without them torch's generator does. The predictions of a
        `teacher` must be of the same samples, options and seeds; it may know only the first text ids.
        """
        ...

    def predictions(self, samples: Sequence[Sample], options: LossOptions,
                    seeds: Sequence[int] | None = None) -> TokenLogits:
        """Logits of the current weights at the tokens of `losses`, without gradients."""
        ...

    def text_hidden_states(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Last hidden states (T, width) at the text ids of each sample, with gradients."""
        ...

    def parameter_group(self, name: str) -> tuple[str, int]:
        """Group of a parameter of `module` (`embeddings`, `layers`, `heads`, `unused`) and its depth, for its rate.

        Depth counts from the output: 0 for heads, 1 for the last layer, highest for embeddings.
        """
        ...

    def shardable_layers(self, attention_loss: bool) -> Sequence[nn.Module]:
        """Layers whose parameters are read only in their own forward pass, so that FSDP may shard each as a unit.

        With `attention_loss`, those that the guided attention loss reads are left out.
        """
        ...

    def set_activation_checkpointing(self, enabled: bool) -> None:
        """Whether the backward pass recomputes activations: less memory, the same gradients."""
        ...

    def compile(self) -> None:
        """Compile the layers with torch at their first use; for CUDA."""
        ...

    def probe(self, sample: Sample) -> SampleLogits:
        """Logits of one sample without dropout, in evaluation mode."""
        ...

    def quantize_(self, kind: str) -> int:
        """Convert the layers' matrices to `bfloat16` or `int8` in place; returns the bytes that a step reads."""
        ...

    def prepare(self, voice: Voice) -> PreparedVoice:
        """Compute the conditioning of `voice` once for many texts."""
        ...

    def generate(self, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice],
                 sampling: Sampling) -> list[Generated]:
        """Codes for each text (T,), up to the stop token or a limit that depends on the length of the text."""
        ...

    def stream(self, text: np.ndarray, voice: Voice | PreparedVoice,
               sampling: Sampling) -> Iterator[np.ndarray | Generated]:
        """`generate` of one text: chunks of codes (n,) as they are decoded, then the complete result."""
        ...


class VocoderStream(Protocol):
    """Streaming decoder: codes in, waveform out, before all codes are known."""

    def push(self, codes: np.ndarray) -> torch.Tensor:
        """Take more codes (n,); return the samples (S,) that are final now, often none."""
        ...

    def finish(self) -> torch.Tensor:
        """The remaining samples (S,)."""
        ...


class Vocoder(Protocol):
    """Speech codes to waveform."""

    sample_rate: int  # Hz

    def decode(self, codes: np.ndarray, voice: Voice, options: VocoderOptions | None = None) -> torch.Tensor:
        """Waveform (S,) of codes (U,) in `voice`."""
        ...

    def stream(self, voice: Voice, options: VocoderOptions | None = None) -> VocoderStream | None:
        """A streaming `decode`; None if the family has none."""
        ...

    def cast_(self, dtype: torch.dtype) -> None:
        """Compute in `dtype` from now on where that keeps the quality."""
        ...


class CTCRecogniser(Protocol):
    """Recogniser that measures intelligibility; it knows `languages`. It writes letters, by CTC; 0 is blank."""

    languages: tuple[str, ...]
    letters: tuple[str, ...]  # letter i is written as i + 1
    sample_rate: int  # Hz, of the waveforms it takes
    frame_s: float  # between two frames of its output

    def log_probabilities(self, waveform: torch.Tensor, language: str) -> torch.Tensor:
        """Log-probabilities (F, letters + 1) of waveform (S,)."""
        ...

    def normalise(self, text: str, language: str) -> str:
        """`text` in the letters of the recogniser."""
        ...

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        """Compare the transcript of waveform (S,) with `text`."""
        ...


class Family(Protocol):
    """Loads the parts of one family from a model folder. Nothing is cached."""

    name: str
    sampling: Sampling  # recommended
    sound_options: tuple[str, ...]  # fields of `config.schema.SoundOptions` that have an effect
    tensor_layout: TensorLayout

    def load_front_end(self, folder: Path) -> FrontEnd:
        """The text front-end of the base model in `folder`, checked against the number of its text rows."""
        ...

    def load_speech_model(self, folder: Path, device: torch.device) -> SpeechModel:
        """The base language model, frozen, in evaluation mode."""
        ...

    def language_model_file(self, folder: Path) -> Path:
        """The file in `folder` that holds the language model; `UserError` if there is not exactly one."""
        ...

    def open_weights(self, path: Path) -> WeightsFile:
        """A file or folder of weights of any model; `UserError` if it is damaged or holds no weights."""
        ...

    def max_speech_length(self, folder: Path) -> int:
        """See `SpeechModel.max_speech_length`; reads headers only."""
        ...

    def max_text_length(self, folder: Path) -> int:
        """See `SpeechModel.max_text_length`; reads headers only."""
        ...

    def load_extractor(self, folder: Path, device: torch.device) -> Extractor: ...

    def extractor_fingerprint(self, folder: Path) -> str:
        """The fingerprint of the extractor, without loading it."""
        ...

    def load_vocoder(self, folder: Path, device: torch.device) -> Vocoder: ...

    def load_recogniser(self, folder: Path) -> CTCRecogniser | None:
        """The recogniser of the family, or None when it has none."""
        ...

    def load_voices(self, folder: Path) -> dict[str, Voice]:
        """The voices that come with the model, by name; the first is the default."""
        ...

    def voice_from_recording(self, folder: Path, device: torch.device, waveform: torch.Tensor,
                             sample_rate: int) -> Voice:
        """The voice of a reference clip (S,)."""
        ...

    def load_replay_clips(self, folder: Path) -> list[tuple[str, str, Features]]:
        """Clips of base languages that come with the model (language, text, features): for probes and replay."""
        ...

    def held_out_recordings(self, folder: Path, language: str) -> list[tuple[str, Path]]:
        """Held-out sentences of a base language and their recordings."""
        ...

    def export(self, base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
               merged: Mapping[str, torch.Tensor] | None) -> tuple[ExportFile, ...]:
        """Write a complete extended model into `folder`: the language model, and the other files from `base`.

        `tensors` is the language model under its published names, with extended text tables; `merged` is the same
        with the adapters merged into the weights. Afterwards `load_speech_model(folder)` loads it.
        """
        ...
