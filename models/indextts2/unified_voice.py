"""UnifiedVoice, IndexTTS2's language model: GPT-2 over conditioning, text and semantic codes.

    [ 32 speaker latents, the emotion vector added to each | duration | speed ]    34 positions
    [ start text ... stop ]      text_embedding + text_pos_embedding
    [ start codes ... stop ]     mel_embedding + mel_pos_embedding

In IndexTTS 2.5 the first part has three positions: a projection of the speaker's CAMPPlus style with the emotion vector
added, and two zeros. Each text position has the row of the text's language added, which the tag tells: it is the first
id behind the start. Its codes are 25 a second, its S2Mel takes no states.

The layout and the state-dict keys are those of indextts/gpt/model_v2.py in index-tts/index-tts, and in the package
indextts25-inference 0.2.0 for 2.5; the matrices of GPT-2
are output by input here (`models.gpt2`). Both heads read the states after `gpt.ln_f` and `final_norm`; the state that
predicts code k is also what S2Mel takes for code k. Losses are next-token: position i predicts token i + 1.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from data.segmenters import LANGUAGE_CODES
from models import weights
from models.base import Features, PositionScheme, TensorLayout, Voice
from models.decoder import DecoderConfig, KVCache
from models.gpt2 import GPT2, LayerNorm, transpose_matrices
from models.indextts2.conditioning import Conformer, ConformerConfig, PerceiverConfig, PositionTable, VoicePerceiver
from models.language_model import TransformerLanguageModel
from models.matmul_backends import Linear
from models.speech_network import LearnedPositions

_HEAD_SIZE = 64
_PLACEHOLDER = 1  # stands for every position before the codes where the published loop counts repetitions
_DROPPED = ("inference_model.", "gpt.wte.", "gpt.wpe.")  # copies of other tensors and unused ones in finetunes
_DROPPED_IN_2_5 = ("speed_emb.", "conditioning_encoder.", "perceiver_encoder.")  # parts of 2.0
LANGUAGE_TABLE = "lang_embedding.weight"  # exists in a GPT of 2.5 alone
_COMMON = LANGUAGE_CODES.index("common")
_DROPPED_BUFFERS = (".attn.bias", ".attn.masked_bias")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class UnifiedVoiceConfig:
    """Sizes and special speech ids, as far as decoding and training know them in `models.speech_network.T3Config`."""

    decoder: DecoderConfig
    text_rows: int
    speech_rows: int
    text_positions: int
    speech_positions: int
    speaker: tuple[ConformerConfig, PerceiverConfig] | None  # None in 2.5, which takes the style
    emotion: tuple[ConformerConfig, PerceiverConfig]
    style: int = 0  # numbers of a speaker's style, in 2.5
    languages: int = 0  # rows of the table of languages, in 2.5
    aligned_heads: tuple[tuple[int, int], ...] = ()  # none is known

    @property
    def start_speech(self) -> int:
        return self.speech_rows - 2

    @property
    def stop_speech(self) -> int:
        return self.speech_rows - 1

    @property
    def conditioning_length(self) -> int:
        return (self.speaker[1].latents if self.speaker else 1) + 2

    @property
    def max_codes(self) -> int:
        """Codes of the longest speech: 1815 of 1818 positions, as published."""
        return self.speech_positions - 3

    @property
    def code_rate(self) -> int:
        """Codes per second."""
        return 50 if self.speaker else 25

    @property
    def conditioning_shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays of a speaker and an emotion: `speaker_latents` or `style`, and `emotion_vector`."""
        width = self.decoder.width
        speaker = {"speaker_latents": (self.speaker[1].latents, width)} if self.speaker else {"style": (self.style,)}
        return {**speaker, "emotion_vector": (width,)}

    @property
    def conditioner_shapes(self) -> dict[str, tuple[int, ...]]:
        """The arrays from which the last layers of the voice conditioner compute `conditioning_shapes`.

        Only adapters of these layers need them.
        """
        speaker = {"speaker_hidden": (self.speaker[1].latents, self.decoder.width)} if self.speaker else {}
        return {**speaker, "emotion_latent": (self.emotion[1].width,)}

    def stack_conditioning(self, conditioning: Sequence[Mapping[str, np.ndarray]]) -> VoiceConditioning:
        """A batch of `conditioning_shapes` and, if asked for, `duration` (1,).

        `UserError` if an array is missing or has another shape: it was made with another model.
        """
        shapes = self.conditioning_shapes
        for arrays in conditioning:
            for name, shape in shapes.items():
                shape_found = arrays[name].shape if name in arrays else None
                if shape_found != shape:
                    raise UserError(
                        f"The conditioning's {name} is {shape_found or 'missing'}, and the model wants {shape}.",
                        "Make it again with this model.")

        # A duration of zero codes leaves the length to the model.
        durations = [int(arrays["duration"][0]) if "duration" in arrays else 0 for arrays in conditioning]
        if any(durations) and not self.speaker:
            raise UserError("The GPT of IndexTTS 2.5 has no place for a wanted duration.",
                            "Make the conditioning again with this model.")
        wrong = [codes for codes in durations if not 0 <= codes <= self.max_codes]
        if wrong:
            raise UserError(f"A duration of {wrong[0]} codes is wanted ({wrong[0] / self.code_rate:g} s); the model "
                            f"speaks up to {self.max_codes} ({self.max_codes / self.code_rate:g} s).",
                            "Split the text, or choose another duration or a higher speaking rate.")

        def stack(name: str) -> torch.Tensor:
            return torch.from_numpy(np.stack([arrays[name] for arrays in conditioning]))

        # The inputs of the conditioners are stacked only if every clip has them: adapters need them.
        speakers, vectors = map(stack, shapes)
        inputs = {}
        for name in self.conditioner_shapes:
            if all(name in arrays for arrays in conditioning):
                inputs[name] = stack(name)
        return VoiceConditioning(speakers, vectors, torch.tensor(durations), inputs.get("speaker_hidden"),
                                 inputs.get("emotion_latent"))


@dataclass(frozen=True)
class VoiceConditioning:
    """The speakers and emotions of a batch: everything before the text."""

    speaker: torch.Tensor  # latents (B, latents, width), or styles (B, 192) in 2.5
    emotion_vector: torch.Tensor  # (B, width)
    durations: torch.Tensor  # (B,) codes of the speech, 0 where its length is left to the model
    speaker_hidden: torch.Tensor | None = None  # (B, latents, width), see `conditioner_shapes`
    emotion_latent: torch.Tensor | None = None  # (B, width of the emotion's perceiver)


class VoiceConditioner(nn.Module):
    """The part of `UnifiedVoice` that turns features of a clip into a speaker and an emotion; training freezes it."""

    def __init__(self, config: UnifiedVoiceConfig) -> None:
        super().__init__()
        self.config = config
        width = config.decoder.width
        if config.speaker:
            self.conditioning_encoder = Conformer(config.speaker[0])
            self.perceiver_encoder = VoicePerceiver(config.speaker[1])
        self.emo_conditioning_encoder = Conformer(config.emotion[0])
        self.emo_perceiver_encoder = VoicePerceiver(config.emotion[1])
        self.emovec_layer = Linear(config.emotion[1].width, width)
        self.emo_layer = Linear(width, width)

    def speaker_latents(self, features: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Standardised w2v-bert features (B, T, 1024), of `lengths` (B,) frames, to (B, latents, width)."""
        return self.perceiver_encoder(*self.conditioning_encoder(features, lengths))

    def emotion_vector(self, features: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Features as of `speaker_latents` to (B, width).

        An emotion clip acts on a prompt with a strength a by prompt's vector + a (clip's vector - prompt's vector).
        """
        return self.emo_layer(self.emovec_layer(self.emotion_latent(features, lengths)))

    def emotion_latent(self, features: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Features as of `speaker_latents` to (B, width of the perceiver), from which the vector is made."""
        return self.emo_perceiver_encoder(*self.emo_conditioning_encoder(features, lengths))[:, 0]

    def speaker_hidden(self, features: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Features as of `speaker_latents` to what the perceiver's last feed-forward layer makes the latents of."""
        return self.perceiver_encoder.last_hidden(*self.conditioning_encoder(features, lengths))


class UnifiedVoice(VoiceConditioner):
    """See the docstring of the module for the layout of a row.

    `Sampling.position_scheme` decides the position of a decoded code. In training code k has position k, and `aligned`
    decodes so, equal to teacher forcing. The published loop gives code k position k + 1 and never uses 1: `published`
    does the same. Which of the two sounds better, only the published weights can tell. The package of 2.5 decodes with
    the positions of training; there the schemes differ in what the repetition penalty counts.
    """

    guided = False  # no row without text: the network was not trained for classifier-free guidance
    recomputes_conditioning = False  # whether adapters of the conditioner are merged into its weights
    keeps_hidden_states: bool  # S2Mel of 2.5 takes the codes alone
    language_of: torch.Tensor  # (N,) row of `lang_embedding` by the id of a tag, for 2.5

    def __init__(self, config: UnifiedVoiceConfig) -> None:
        super().__init__(config)
        width = config.decoder.width
        self.keeps_hidden_states = config.speaker is not None
        # 2.0 has latents of the speaker and a duration; 2.5 has a style and languages.
        if config.speaker:
            self.speed_emb = nn.Embedding(2, width)
        else:
            self.spk_emb_proj = nn.Linear(config.style, width)
            self.lang_embedding = nn.Embedding(config.languages, width)
        self.text_embedding = nn.Embedding(config.text_rows, width)
        self.text_pos_embedding = LearnedPositions(config.text_positions, width)
        self.mel_embedding = nn.Embedding(config.speech_rows, width)
        self.mel_pos_embedding = LearnedPositions(config.speech_positions, width)
        self.gpt = GPT2(config.decoder)
        self.final_norm = LayerNorm(width)
        self.text_head = nn.Linear(width, config.text_rows)
        self.mel_head = Linear(width, config.speech_rows)

    def embed_conditioning(self, conditioning: VoiceConditioning) -> torch.Tensor:
        """(B, conditioning length, width). A requested duration takes the position embedding of that code."""
        kind = self.mel_embedding.weight.dtype
        speaker, emotion = self._adapted(conditioning, kind)
        emotion = emotion[:, None]
        # In 2.5, a style and the emotion are one position, and two positions stay empty.
        if not self.config.speaker:
            return F.pad(self.spk_emb_proj(speaker)[:, None] + emotion, (0, 0, 0, 2))
        latents = speaker + emotion
        speed, duration = self.speed_emb.weight
        codes = conditioning.durations[:, None]
        duration = torch.where(codes > 0, self.mel_pos_embedding.emb(codes[:, 0]), duration)
        return torch.cat([latents, duration[:, None], speed.expand(len(latents), 1, -1)], 1)

    def _adapted(self, conditioning: VoiceConditioning, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Speaker and emotion vector, changed as the adapters of the conditioner's last layers change them.

        What was cached is the base's result. The difference that adapters make is added to it: of rows without
        adapters it is exactly zero, because both sides are the same products, so these rows keep their bits.
        """
        speaker, emotion = conditioning.speaker.to(kind), conditioning.emotion_vector.to(kind)
        layers = [self.get_submodule(name) for name in conditioner_layers(self.config) if name != "spk_emb_proj"]
        is_on = any(hasattr(layer, "base_layer") and not layer.disable_adapters for layer in layers)
        if not is_on and not self.recomputes_conditioning:
            return speaker, emotion

        latent, hidden = conditioning.emotion_latent, conditioning.speaker_hidden
        if latent is None or (hidden is None and self.config.speaker):
            raise UserError("Adapters of the voice conditioner need more of each clip than these features hold.",
                            "Extract the features again: python -m scripts prepare --source as-is; make voices again.")
        changed = self.emo_layer(self.emovec_layer(latent.to(kind)))
        finished = self.perceiver_encoder.finish(hidden.to(kind)) if hidden is not None else speaker
        if self.recomputes_conditioning:
            return finished, changed
        with _without_adapters(layers):
            plain = self.emo_layer(self.emovec_layer(latent.to(kind)))
            plain_speaker = self.perceiver_encoder.finish(hidden.to(kind)) if hidden is not None else speaker
        return speaker + (finished - plain_speaker), emotion + (changed - plain)

    def embed_voice(self, voice: Voice, device: torch.device) -> torch.Tensor:
        """The conditioning of one voice, (1, conditioning length, width)."""
        duration = {"duration": np.array([round(voice.duration_s * self.config.code_rate)])}
        # In 2.5 the vocoder decides the duration.
        timed = voice.duration_s and self.config.speaker
        stacked = self.config.stack_conditioning([{**voice.conditioning, **(duration if timed else {})}])
        arrays = {part.name: getattr(stacked, part.name) for part in fields(stacked)}
        on_device = {name: array.to(device) for name, array in arrays.items() if array is not None}
        return self.embed_conditioning(replace(stacked, **on_device))

    def embed_text(self, text_ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Ids with start and stop (B, T) to (B, T, width); where keep (B,) is 0 only the positions remain."""
        embedded = self.text_embedding(text_ids)
        # Without a known tag, the text has the language `common`.
        if not self.config.speaker:
            tag = text_ids[:, 1]
            known_tag = tag.clamp(max=len(self.language_of) - 1)
            row = torch.where(tag == known_tag, self.language_of[known_tag], _COMMON)
            embedded = embedded + self.lang_embedding(row)[:, None]
        if keep is not None:
            embedded = embedded * keep[:, None, None]
        return embedded + self.text_pos_embedding(text_ids.shape[1])

    def embed_speech(self, codes: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Codes with start in front (B, U + 1) to (B, U + 1, width); keep (B, U + 1) 0 drops a code."""
        embedded = self.mel_embedding(codes)
        if keep is not None:
            embedded = embedded * keep[..., None]
        return embedded + self.mel_pos_embedding(codes.shape[1])

    def embed_start(self) -> torch.Tensor:
        """The start of speech as decoding begins with it, (1, width)."""
        return (self.mel_embedding.weight[self.config.start_speech] + self.mel_pos_embedding.emb.weight[0])[None]

    def embed_code(self, codes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Decoded codes (B,) at their positions (B,) to (B, width)."""
        return self.mel_embedding(codes) + self.mel_pos_embedding.emb.weight.index_select(0, positions)

    def hidden_states(self, rows: torch.Tensor, cache: KVCache | None = None,
                      positions: torch.Tensor | None = None) -> torch.Tensor:
        """Rows (B, L, width) to the states (B, L, width) that the heads read."""
        return self.final_norm(self.gpt(rows, cache, positions))

    def assign_languages(self, rows: Mapping[int, int]) -> None:
        """Give texts that begin with a tag the row of `lang_embedding` that `rows` names for it, for 2.5.

        A text with another beginning has the language `common`, as published.
        """
        new_rows = max(0, 1 + max(rows) - len(self.language_of))
        self.language_of = F.pad(self.language_of, (0, new_rows), value=_COMMON)
        self.language_of[list(rows)] = torch.tensor(list(rows.values()), device=self.language_of.device)

    @property
    def transformer(self) -> GPT2:
        return self.gpt

    @property
    def speech_head(self) -> nn.Module:
        return self.mel_head

    def decoding_start(self, scheme: PositionScheme) -> tuple[int, tuple[int, ...]]:
        """The position before the first code, and the codes that the repetition penalty counts from the first step.

        The published loop fills the places before the codes with the id 1, which thus counts as a code that was used.
        """
        if scheme == "aligned":
            return 0, (self.config.start_speech,)
        return int(self.config.speaker is not None), (_PLACEHOLDER, self.config.start_speech)


@contextmanager
def _without_adapters(layers: Sequence[Any]) -> Iterator[None]:
    """Context in which adapted layers compute their base's product alone, also if adapters act by row."""
    wrapped = [layer for layer in layers if hasattr(layer, "base_layer")]
    for layer in wrapped:
        layer.forward = layer.base_layer.forward
    # Hooks of adapters that act by row expect an adapted product.
    hooks = [(layer, dict(layer._forward_hooks)) for layer in wrapped]
    for layer, _ in hooks:
        layer._forward_hooks.clear()
    try:
        yield
    finally:
        for layer, saved in hooks:
            layer._forward_hooks.update(saved)
            del layer.forward


Network = TypeVar("Network", bound=VoiceConditioner)
Value = TypeVar("Value")  # a tensor or its shape


def config_from_shapes(shapes: Shapes, source: str) -> UnifiedVoiceConfig:
    """The configuration of a published checkpoint's shapes; `UserError` naming `source` if it is no GPT of IndexTTS2.

    A table of languages makes it one of 2.5.

    What shapes do not determine: 64 dimensions per head, and the kernel of the conformers.
    """
    try:
        width, mlp_width = shapes["gpt.h.0.mlp.c_fc.weight"]
        layers = _count(shapes, "gpt.h.")
        is_2_5 = LANGUAGE_TABLE in shapes
        def of_clip(prefix: str) -> tuple[ConformerConfig, PerceiverConfig]:
            return (_conformer_config(shapes, f"{prefix}conditioning_encoder."),
                    _perceiver_config(shapes, f"{prefix}perceiver_encoder."))

        # In 2.5, the speaker is a style instead of latents.
        speaker = None if is_2_5 else of_clip("")
        emotion = of_clip("emo_")
        return UnifiedVoiceConfig(
            DecoderConfig(width, layers, width // _HEAD_SIZE, mlp_width, rotary_theta=None),
            shapes["text_embedding.weight"][0], shapes["mel_embedding.weight"][0],
            shapes["text_pos_embedding.emb.weight"][0], shapes["mel_pos_embedding.emb.weight"][0], speaker, emotion,
            *((shapes["spk_emb_proj.weight"][1], shapes[LANGUAGE_TABLE][0]) if is_2_5 else ()),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{source} is no GPT of IndexTTS2: it has {len(shapes)} tensors, and not the one for {error}.",
                        "Give the published gpt.pth, or a finetune of it.") from error


def _conformer_config(shapes: Shapes, prefix: str) -> ConformerConfig:
    width, inputs = shapes[f"{prefix}embed.out.0.weight"]
    first_layer = f"{prefix}encoders.0."
    return ConformerConfig(width, inputs // width, shapes[f"{first_layer}self_attn.pos_bias_u"][0],
                           shapes[f"{first_layer}feed_forward.w_1.weight"][0], _count(shapes, f"{prefix}encoders."),
                           shapes[f"{first_layer}conv_module.depthwise_conv.weight"][2])


def _perceiver_config(shapes: Shapes, prefix: str) -> PerceiverConfig:
    width, context = shapes[f"{prefix}proj_context.weight"]
    return PerceiverConfig(shapes[f"{prefix}latents"][0], width, context, shapes[f"{prefix}layers.0.0.to_q.weight"][0],
                           shapes[f"{prefix}layers.0.1.2.weight"][1], _count(shapes, f"{prefix}layers."))


def _count(shapes: Shapes, prefix: str) -> int:
    """How many numbered modules follow `prefix`."""
    return 1 + max(int(name.removeprefix(prefix).split(".")[0]) for name in shapes if name.startswith(prefix))


def used_tensors(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Without what finetunes add to a published file: copies for decoding, and GPT-2's own tables and masks."""
    dropped = (*_DROPPED, *(_DROPPED_IN_2_5 if LANGUAGE_TABLE in tensors else ()))
    return {name: value for name, value in tensors.items()
            if not name.startswith(dropped) and not name.endswith(_DROPPED_BUFFERS)}


def load(tensors: Mapping[str, torch.Tensor], source: str) -> UnifiedVoice:
    """The model of a published file's tensors, in float32 and evaluation mode; `UserError` naming `source`."""
    return _filled(UnifiedVoice, used_tensors(tensors), source)


def load_voice_conditioner(tensors: Mapping[str, torch.Tensor], source: str) -> VoiceConditioner:
    """The voice conditioner from a published file; its other tensors are not read."""
    return _filled(VoiceConditioner, used_tensors(tensors), source)


def empty(config: UnifiedVoiceConfig) -> UnifiedVoice:
    """A model on the meta device, which takes no memory before weights are loaded."""
    return _empty(UnifiedVoice, config)


def _filled(kind: type[Network], tensors: Mapping[str, torch.Tensor], source: str) -> Network:
    module = _empty(kind, config_from_shapes({name: tuple(value.shape) for name, value in tensors.items()}, source))
    if not isinstance(module, UnifiedVoice):
        parts = tuple(f"{name}." for name, _ in module.named_children())
        tensors = {name: value for name, value in tensors.items() if name.startswith(parts)}
    tables = [name for name in module.state_dict() if name.endswith(".pe")]
    weights.load_into(module, transpose_matrices(tensors), source, tables)
    if isinstance(module, UnifiedVoice):
        module.register_buffer("language_of", torch.full((module.config.text_rows,), _COMMON), persistent=False)
    return module.eval()


def _empty(kind: type[Network], config: UnifiedVoiceConfig) -> Network:
    with torch.device("meta"):
        module = kind(config)
    for part in module.modules():
        if isinstance(part, PositionTable):
            part.compute()
    return module


TENSOR_LAYOUT = TensorLayout(("text_embedding.weight", "text_head.weight", "text_head.bias"), (
    ("text_embedding.", "text table"), ("text_head.", "text head"), ("mel_embedding.", "speech table"),
    ("mel_head.", "speech head"), ("gpt.", "layers"), ("final_norm.", "layers"),
    ("conditioning_encoder.", "conditioning"),
    ("perceiver_encoder.", "conditioning"), ("emo", "conditioning"), ("speed_emb.", "conditioning"),
    ("text_pos_embedding.", "positions"), ("mel_pos_embedding.", "positions"),
    ("lang_embedding.", "language table"), ("spk_emb_proj.", "conditioning"),
), LANGUAGE_TABLE)
_VOICE_CONDITIONER = ("conditioning_encoder.", "perceiver_encoder.", "emo")  # its results are cached with the features
_PROBED_CODES = 150


@dataclass
class IndexTTS2LanguageModel(TransformerLanguageModel):
    """A `TransformerLanguageModel` of IndexTTS2, without classifier-free guidance.

    Its conditioning is `speaker_latents` (latents, width), or `style` (192,) in 2.5, and `emotion_vector` (width,), in
    float16 or float32. In training the speaker comes from the prompt, the emotion vector mostly from the target clip:
    taken from the prompt alone, emotion becomes flat. A voice may have a `duration` (1,), the wanted number of codes.
    """

    module: UnifiedVoice  # type: ignore[assignment]
    max_prompt_length: int = 0  # a prompt has no codes
    base_code_limit: int = 100  # two seconds
    codes_per_token: int = 30  # 0.6 s
    text_tables: tuple[str, ...] = TENSOR_LAYOUT.text_tables
    adapter_targets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {
        "attention": ("attn.c_attn", "attn.c_proj"), "mlp": ("mlp.c_fc", "mlp.c_proj"), "heads": ("mel_head",)})
    target_emotion_ratio: float = 0.75  # share of samples whose emotion is that of the target clip

    def sample_conditioning(self, target: Mapping[str, np.ndarray], prompt: Mapping[str, np.ndarray],
                            rng: random.Random) -> Mapping[str, np.ndarray]:
        emotion = target if rng.random() < self.target_emotion_ratio else prompt
        names = [name for name in ("emotion_vector", "emotion_latent") if name in emotion]
        return {**prompt, **{name: emotion[name] for name in names}}

    def speaker_embedding(self, conditioning: Mapping[str, np.ndarray]) -> np.ndarray:
        """See `models.base.LanguageModel`; the mean of the latents, or the style, at length 1."""
        speaker = conditioning["speaker_latents" if self.module.config.speaker else "style"].astype(np.float32)
        mean = speaker.reshape(-1, speaker.shape[-1]).mean(0)
        return mean / max(float(np.linalg.norm(mean)), 1e-12)

    def probe_features(self, voice: Voice | None) -> Features:
        """See `models.base.LanguageModel`; the codes are generated from a fixed seed, and so is a missing voice."""
        config, noise = self.module.config, np.random.default_rng(0)
        codes = noise.integers(0, config.start_speech, _PROBED_CODES).astype(np.uint16)
        if voice is not None:
            return Features(codes, voice.conditioning)
        conditioning = {name: noise.standard_normal(shape).astype(np.float32)
                        for name, shape in {**config.conditioning_shapes, **config.conditioner_shapes}.items()}
        # What is cached of a clip is what the base makes of the rest.
        layers = [self.module.get_submodule(name) for name in conditioner_layers(config)]
        with torch.inference_mode(), _without_adapters(layers):
            kind = self.module.mel_embedding.weight
            latent = torch.from_numpy(conditioning["emotion_latent"])[None].to(kind)
            vector = self.module.emo_layer(self.module.emovec_layer(latent))[0]
            conditioning["emotion_vector"] = vector.float().cpu().numpy()
            if config.speaker:
                hidden = torch.from_numpy(conditioning["speaker_hidden"])[None].to(kind)
                speaker = self.module.perceiver_encoder.finish(hidden)[0]
                conditioning["speaker_latents"] = speaker.float().cpu().numpy()
        return Features(codes, conditioning)

    def parameter_group(self, name: str) -> tuple[str, int]:
        """See `models.base.LanguageModel`; the voice conditioner is `unused`, since its results are cached."""
        layers = len(self.module.gpt.h)
        if name.startswith("gpt.h."):
            return "layers", layers - int(name.split(".")[2])
        if name.startswith(("gpt.ln_f.", "final_norm.", "mel_head.")):
            return "heads", 0
        return ("unused" if name.startswith(_VOICE_CONDITIONER) else "embeddings"), layers + 1

    def assign_languages(self, tags: Sequence[int]) -> None:
        """See `models.base.LanguageModel`; their rows of the table of languages come after the base's."""
        if self.language_table:
            self.module.assign_languages(dict(zip(tags, count(len(self.module.lang_embedding.weight)), strict=False)))


def conditioner_layers(config: UnifiedVoiceConfig) -> tuple[str, ...]:
    """Names of the conditioner's layers that may have adapters: those that read what is cached of a clip.

    They make the emotion vector, and the speaker: the perceiver's last feed-forward layer, or in 2.5 the projection of
    the style. All before them would need the w2v-bert features of each clip, 100 KB a second.
    """
    emotion = ("emovec_layer", "emo_layer")
    if not config.speaker:
        return (*emotion, "spk_emb_proj")
    last = f"perceiver_encoder.layers.{config.speaker[1].layers - 1}.1"
    return (*emotion, f"{last}.0", f"{last}.2")


def language_model(module: UnifiedVoice, device: torch.device,
                   max_preferred_text_length: int) -> IndexTTS2LanguageModel:
    """The language model of a network of either variant."""
    model = IndexTTS2LanguageModel(module, module.config.text_rows, device,
                                   max_preferred_text_length=max_preferred_text_length)
    model.adapter_targets = {**model.adapter_targets, "conditioner": conditioner_layers(module.config)}
    if not module.config.speaker:
        model.base_code_limit, model.codes_per_token = model.base_code_limit // 2, model.codes_per_token // 2
        model.text_tables, model.language_table = (*model.text_tables, LANGUAGE_TABLE), LANGUAGE_TABLE
    return model
