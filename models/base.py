"""The protocol of a model family: all that the trainer, the synthesizer and the proofs know of a model.

A family is a package `models/NAME` with a class that has the methods of `Family`; `models.registry` finds it by
name. A family provides

- a text front-end, text to ids: `Family.load_front_end`;
- an extractor, waveform to features: `Extractor`;
- a language model, text ids to speech codes: `LanguageModel`, with its losses, its logits for a proof (`probe`),
  `generate`, the tables that new tokens extend (`text_tables`) and the layers that adapters may wrap
  (`adapter_targets`);
- a vocoder, speech codes to waveform: `Vocoder`;
- optionally a recogniser for evaluation, and clips of its base languages;
- an export in the layout that its own ecosystem loads: `Family.export`.

A language model knows a speaker by conditioning: named arrays of a clip. Each family has its own names, and
the layers above only pass the arrays on. The dataclasses come first, the protocols after them. Shapes: B batch,
T text ids, U speech codes, S samples, D embedding size, V text rows, K speech rows. Ids of base tokens are below
`prefix_size`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import nn

from config.errors import UserError
from data.front_end import FrontEnd


@dataclass(frozen=True)
class Features:
    """What an extractor computes from one clip: plain arrays, so that they can be cached and sent."""

    speech_codes: np.ndarray  # (U,) uint16
    conditioning: Mapping[str, np.ndarray]  # arrays of one dimension or more: this clip as a prompt

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Features:
        """The features that have these `arrays`."""
        return cls(arrays["speech_codes"], {name: value for name, value in arrays.items() if name != "speech_codes"})

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name, as they are cached."""
        return {"speech_codes": self.speech_codes, **self.conditioning}


@dataclass(frozen=True)
class Sample:
    """One training sample: a text, its speech, and conditioning from a different clip of the speaker."""

    text_ids: np.ndarray  # (T,) int64, with start and stop
    speech_codes: np.ndarray  # (U,) int64, without start and stop
    conditioning: Mapping[str, np.ndarray]  # result of `LanguageModel.sample_conditioning`

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


PositionScheme = Literal["aligned", "published"]
"""Positions of decoded codes: as in training, or as the published code of the family decodes."""


@dataclass(frozen=True)
class Sampling:
    """How `generate` samples codes; see `config.schema.SamplingOptions`."""

    temperature: float = 0.2
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    guidance: float = 0.5
    seed: int = 0
    position_scheme: PositionScheme = "aligned"  # used if a family offers several
    alignment_guard: bool = False  # decide by attention to the text when to stop; see `models.alignment_guard`


@dataclass(frozen=True)
class Voice:
    """A speaker: the conditioning of a reference clip; `timbre` holds the arrays that the vocoder needs."""

    conditioning: Mapping[str, np.ndarray]
    timbre: Mapping[str, np.ndarray] = field(default_factory=dict)
    emotion: float = 0.5  # how lively: 0 to 1 and beyond; families are trained with 0.5
    duration_s: float = 0.0  # wanted of a text; 0 leaves it to the model


@dataclass(frozen=True)
class Emotion:
    """How a voice is to speak: like a second clip, or by weights in the order of `config.schema.EMOTIONS`."""

    clip: torch.Tensor | None = None  # (S,)
    sample_rate: int = 0  # Hz, of the clip
    strength: float = 1.0  # 0 to 1, of the clip or the weights; the rest is the reference clip's emotion
    weights: Sequence[float] | None = None  # 0 to 1
    balanced: bool = False  # scale the weights as the published page does


@dataclass(frozen=True)
class PreparedVoice:
    """A voice with the cached keys and values of its conditioning, valid until weights or adapters change."""

    voice: Voice
    keys_and_values: torch.Tensor  # (layers, 2, heads, conditioning length, head size)


FinishReason = Literal["stop", "limit", "repetition", "no_speech"]
"""Why the speech of a text ends: stop token, length limit, codes that repeat, or no speech.

`no_speech` marks a sentence that has only silence where its speech should begin. A language model gives it to codes
that repeat and sound silent, if nothing before them sounds. `core.speech.synthesis.Synthesizer` and
`core.speech.evaluation.SpeechEvaluator.speak` then try two other seeds, as for every sentence that is silent throughout
or for more than 0.6 s at its start. They give it to a sentence of which the last attempt is so too; it replaces the
reason for which the codes ended.
"""


@dataclass(frozen=True)
class Generated:
    """The codes of one text, and why they end."""

    codes: np.ndarray  # (U,) int64, without start and stop
    finish_reason: FinishReason
    hidden_states: torch.Tensor | None = None  # (U, width) that predicted the codes, where the vocoder wants them


@dataclass(frozen=True)
class AdaptedDecoder:
    """A decoder of codes that was trained on the recordings of one dataset, made by `Family.load_adapted_decoder`."""

    tensors: Mapping[str, torch.Tensor]  # The tensors of the file.
    module: nn.Module  # The module that the family's vocoder decodes with.


@dataclass(frozen=True)
class DecodedCodes:
    """New codes of a text in a continuous batch, and its result if it has ended."""

    key: int  # A text's key in the batch.
    codes: np.ndarray  # (n,) int64, since the last ones
    result: Generated | None


@dataclass(frozen=True)
class VocoderOptions:
    """Options of a vocoder; see `config.schema.SoundOptions`. A family uses those it names in `sound_options`."""

    flow_steps: int | None = None  # None: the family's default
    flow_prompt_s: float | None = None
    watermark: bool = True
    seed: int = 0
    duration_s: float = 0.0  # wanted of the sound, where the vocoder decides it; 0 leaves it to the codes
    decoder: AdaptedDecoder | None = None  # It replaces the base's; see `Family.adapt_decoder`.


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
    language_table: str = ""  # tensor with one row per language, which a variant may have

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

    @property
    def sample_rate(self) -> int:
        """Hz of the waveforms that it takes."""
        ...

    def extract(self, waveform: torch.Tensor) -> Features:
        """Features of a waveform (S,) at `sample_rate`; they do not depend on earlier calls."""
        ...

    def extract_batch(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        """`extract` of each waveform, batched if that is faster; a clip's features do not depend on its batch.

        A clip that cannot be used raises `UserError`, which need not name the clip.
        """
        ...


class LanguageModel(Protocol):
    """The language model of a family: text ids and a voice to speech codes.

    The network is `module` (a `models.speech_network.SpeechNetwork`). `models.language_model.TransformerLanguageModel`
    implements the protocol for a `T3`. Every parameter of `module` is frozen when it is loaded; the trainer adds new
    rows and adapters, or unfreezes.
    """

    text_tables: tuple[str, ...]  # tensors with a row per text id, which new tokens extend: of embedding, head, bias
    language_table: str  # the one of `text_tables` that has a row per language instead, and a new one a tag; or empty
    adapter_targets: Mapping[str, tuple[str, ...]]  # last names of the linear layers by part, such as "attention"
    prefix_size: int  # text rows of the base checkpoint, which training never changes

    @property
    def module(self) -> nn.Module:
        """The network."""
        ...

    @property
    def max_text_length(self) -> int:
        """Text ids, start and stop included: the model's text positions."""
        ...

    @property
    def preferred_max_text_length(self) -> int:
        """Text ids of a long training sentence: longer texts are split."""
        ...

    @property
    def max_speech_length(self) -> int:
        """Codes, without start and stop."""
        ...

    def assign_languages(self, tags: Sequence[int]) -> None:
        """Tell the model, once its tables are extended, which ids are the tags of new languages, in their order."""
        ...

    def sample_conditioning(self, target: Mapping[str, np.ndarray], prompt: Mapping[str, np.ndarray],
                            rng: random.Random) -> Mapping[str, np.ndarray]:
        """Conditioning of a training sample, from that of its own clip and of another clip of its speaker.

        Where it is random, `rng` alone decides.
        """
        ...

    def speaker_embedding(self, conditioning: Mapping[str, np.ndarray]) -> np.ndarray:
        """Speaker embedding (D,) of a clip: the larger the dot product of two, the more alike they sound."""
        ...

    def probe_features(self, voice: Voice | None) -> Features:
        """Features to probe a base model with that comes without clips: of its `voice`, or generated ones.

        Whether logits are bit-identical can be seen on any codes.
        """
        ...

    def losses(self, samples: Sequence[Sample], options: LossOptions, seeds: Sequence[int] | None = None,
               teacher: TokenLogits | None = None) -> Losses:
        """Next-token losses; the loss of a sample does not depend on the other samples of the batch.

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

    def generate(self, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice], sampling: Sampling,
                 vocoder: Vocoder | None = None) -> list[Generated]:
        """Codes for each text (T,), up to the stop token or a limit that depends on the length of the text.

        Codes that repeat end a text, unless the `vocoder` gives silence for them; without a vocoder they always do.
        """
        ...

    def decode_bytes(self, text_length: int, sampling: Sampling) -> int:
        """Memory that `generate` takes for each text of a batch whose longest has so many ids; the cache of keys."""
        ...

    @property
    def merges_adapters(self) -> bool:
        """Whether `generate` merges adapters into weights that all rows of a batch read."""
        ...

    def bytes_to_merge(self) -> int:
        """Memory that `generate` and `stream` take for merging the adapters that are on; 0 if that is done already."""
        ...

    def has_buffers(self, texts: int, text_length: int, sampling: Sampling) -> bool:
        """Whether buffers for such a batch are left of an earlier one, so that it takes no more memory."""
        ...

    def free_buffers(self) -> None:
        """Free what `generate` keeps for the next texts; without a GPU it keeps nothing."""
        ...

    def stream(self, text: np.ndarray, voice: Voice | PreparedVoice, sampling: Sampling,
               vocoder: Vocoder | None = None) -> Iterator[np.ndarray | Generated]:
        """`generate` of one text: chunks of codes (n,) as they are decoded, then the complete result."""
        ...

    def continuous_batch(self, vocoder: Vocoder | None = None) -> ContinuousBatch:
        """An empty batch that texts join one by one; for `vocoder` see `generate`."""
        ...

    def code_limit(self, text_length: int) -> int:
        """The largest number of codes for a text of so many ids; `UserError` if it is too long for the model."""
        ...


class ContinuousBatch(Protocol):
    """Texts that are decoded together and join and leave one by one. Their sampling differs by the seed alone."""

    @property
    def keys(self) -> list[int]:
        """The texts in the order of their rows."""
        ...

    def join(self, key: int, text: np.ndarray, voice: PreparedVoice, sampling: Sampling, limit: int) -> None:
        """Prefill a text (T,), which `decode` then decodes with the others, up to `limit` codes."""
        ...

    def leave(self, keys: Collection[int]) -> None:
        """Free the rows of these texts; keys of texts that have ended are ignored."""
        ...

    def decode(self) -> list[DecodedCodes]:
        """Decode a few codes of each text. A text that has ended leaves the batch."""
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

    def decode(self, codes: np.ndarray, voice: Voice, options: VocoderOptions | None = None,
               hidden_states: torch.Tensor | None = None) -> torch.Tensor:
        """Waveform (S,) of codes (U,) in `voice`; `hidden_states` as in `Generated`."""
        ...

    def stream(self, voice: Voice, options: VocoderOptions | None = None) -> VocoderStream | None:
        """A streaming `decode`; None if the family has none."""
        ...

    def cast_(self, dtype: torch.dtype) -> None:
        """Compute in `dtype` from now on if that keeps the quality."""
        ...

    def free_buffers(self) -> None:
        """Free what `decode` keeps for the next codes; without a GPU it keeps nothing."""
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
    """Loads the parts of one family from a model folder. Nothing is cached.

    A family inherits from it: what has a value here is what a family without that part has.
    """

    name: str
    sampling: Sampling  # recommended; see `sampling_for`
    sound_options: tuple[str, ...]  # fields of `config.schema.SoundOptions` that have an effect
    tensor_layout: TensorLayout

    def sampling_for(self, languages: Sequence[str]) -> Sampling:
        """What is recommended for a base model of these languages."""
        return self.sampling

    def load_front_end(self, folder: Path) -> FrontEnd:
        """The text front-end of the base model in `folder`, checked against the number of its text rows."""
        ...

    def load_language_model(self, folder: Path, device: torch.device) -> LanguageModel:
        """The base language model, frozen, in evaluation mode."""
        ...

    def language_model_file(self, folder: Path) -> Path:
        """The file in `folder` that holds the language model; `UserError` if there is not exactly one."""
        ...

    def open_weights(self, path: Path) -> WeightsFile:
        """A file or folder of weights of any model; `UserError` if it is damaged or holds no weights."""
        ...

    def strip_file(self, path: Path, target: Path) -> bool:
        """Write `path`, a downloaded file that the catalog names as `stripped`, to `target` without what is never read.

        False, with nothing written, if everything is read.
        """
        return False

    def max_speech_length(self, folder: Path) -> int:
        """See `LanguageModel.max_speech_length`; reads headers only."""
        ...

    def max_text_length(self, folder: Path) -> int:
        """See `LanguageModel.max_text_length`; reads headers only."""
        ...

    def load_extractor(self, folder: Path, device: torch.device) -> Extractor: ...

    def extractor_fingerprint(self, folder: Path) -> str:
        """The fingerprint of the extractor, without loading it."""
        ...

    def load_vocoder(self, folder: Path, device: torch.device) -> Vocoder: ...

    adapts_decoder: bool = False
    """Whether a run may train its own copy of the decoder from codes to sound; codes and the base stay as they are."""

    def adapt_decoder(self, folder: Path, device: torch.device, waveforms: Sequence[torch.Tensor], seconds: float,
                      seed: int, report: Callable[[float], None]) -> dict[str, torch.Tensor]:
        """Weights of a decoder trained for `seconds` on recordings (S,) at the extractor's sample rate.

        `report` is called with the share of the time that is over; what it raises ends the training. `ValueError` for
        a family without `adapts_decoder`.
        """
        raise ValueError(f"the family {self.name} adapts no decoder")

    def load_adapted_decoder(self, folder: Path, device: torch.device,
                             tensors: Mapping[str, torch.Tensor]) -> AdaptedDecoder:
        """The decoder with the weights of `adapt_decoder`; `UserError` if they do not fit the model in `folder`."""
        raise UserError(f"{folder} belongs to the family {self.name}, which has no adapted decoder.",
                        "Take another checkpoint.")

    def load_recogniser(self, folder: Path) -> CTCRecogniser | None:
        """The recogniser of the family, or None when it has none."""
        return None

    def load_voices(self, folder: Path) -> dict[str, Voice]:
        """The voices that come with the model, by name; the first is the default."""
        return {}

    def voice_from_recording(self, folder: Path, device: torch.device, waveform: torch.Tensor, sample_rate: int,
                             emotion: Emotion | None = None) -> Voice:
        """The voice of a reference clip (S,), with another `emotion` where `sound_options` names it."""
        ...

    def load_replay_clips(self, folder: Path) -> list[tuple[str, str, Features]]:
        """Clips of base languages that come with the model (language, text, features): for probes and replay."""
        return []

    def held_out_recordings(self, folder: Path, language: str) -> list[tuple[str, Path]]:
        """Held-out sentences of a base language and their recordings."""
        return []

    def export(self, base: Path, folder: Path, tensors: Mapping[str, torch.Tensor],
               merged: Mapping[str, torch.Tensor] | None, front_end: FrontEnd) -> tuple[ExportFile, ...]:
        """Write a complete extended model into `folder`: the language model, and the other files from `base`.

        `tensors` is the language model under its published names, with extended text tables; `merged` is the same
        with the adapters merged into the weights; `front_end` is the model's. Afterwards `load_language_model(folder)`
        loads it.
        """
        ...
