"""The network of a language model: the protocol `SpeechNetwork`, and `T3`, which implements it.

T3 is a causal transformer over conditioning, text and speech codes, with an embedding and a head for each of the two.
A row of its input:

    [ speaker (1) | prompt through the perceiver (P) | emotion (1) ]
    [ start text ... stop ]      text_emb + text_pos_emb
    [ start speech ... stop ]    speech_emb + speech_pos_emb

The layout and the state-dict keys are those of Chatterbox's T3 (resemble-ai/chatterbox,
MIT); the built-in family is the same module at a small size. `models.teacher_forcing` computes
losses with it, `models.generate` decodes. Losses are next-token: position i predicts token i + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from models.base import PositionScheme, Voice
from models.decoder import Decoder, DecoderConfig, KVCache
from models.matmul_backends import Linear
from models.quantize import quantize_


class SpeechNetworkConfig(Protocol):
    """What decoding and teacher forcing read of a network's configuration."""

    @property
    def decoder(self) -> DecoderConfig: ...

    @property
    def conditioning_length(self) -> int: ...

    @property
    def start_speech(self) -> int: ...

    @property
    def stop_speech(self) -> int: ...

    @property
    def speech_rows(self) -> int: ...

    @property
    def max_codes(self) -> int: ...

    @property
    def code_rate(self) -> int: ...

    @property
    def aligned_heads(self) -> tuple[tuple[int, int], ...]: ...

    def stack_conditioning(self, conditioning: Sequence[Mapping[str, np.ndarray]]) -> Any: ...


class SpeechNetwork(Protocol):
    """What decoding and teacher forcing use of a network over conditioning, text and speech; `T3` implements it."""

    guided: bool  # whether it was trained with dropped texts, for classifier-free guidance
    keeps_hidden_states: bool  # whether its vocoder wants the states that predicted the codes

    @property
    def config(self) -> SpeechNetworkConfig: ...

    @property
    def transformer(self) -> nn.Module: ...

    @property
    def text_head(self) -> nn.Module: ...

    @property
    def speech_head(self) -> nn.Module: ...

    def decoding_start(self, scheme: PositionScheme) -> tuple[int, tuple[int, ...]]: ...

    def embed_voice(self, voice: Voice, device: torch.device) -> torch.Tensor: ...

    def embed_conditioning(self, conditioning: Any) -> torch.Tensor: ...

    def embed_text(self, text_ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor: ...

    def embed_speech(self, codes: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor: ...

    def embed_start(self) -> torch.Tensor: ...

    def embed_code(self, codes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor: ...

    def hidden_states(self, rows: torch.Tensor, cache: KVCache | None = None,
                      positions: torch.Tensor | None = None) -> torch.Tensor: ...

    def modules(self) -> Iterator[nn.Module]: ...


@dataclass(frozen=True)
class T3Config:
    """Sizes and special speech ids; special text ids belong to the tokenizer."""

    decoder: DecoderConfig
    text_rows: int
    speech_rows: int
    start_speech: int
    stop_speech: int
    text_positions: int
    speech_positions: int
    speaker_size: int
    prompt_queries: int = 32
    prompt_heads: int = 4
    unused_tokens: int = 0
    doubled_start: bool = False  # decoding begins with two start-of-speech tokens, both at position 0
    aligned_heads: tuple[tuple[int, int], ...] = ()  # (layer, head) that follow the text

    @property
    def conditioning_length(self) -> int:
        return self.prompt_queries + 2

    @property
    def max_codes(self) -> int:
        """Codes of the longest speech; the start takes a position."""
        return self.speech_positions - 1

    @property
    def code_rate(self) -> int:
        """Codes per second."""
        return 25

    def stack_conditioning(self, conditioning: Sequence[Mapping[str, np.ndarray]]) -> Conditioning:
        """A batch of `speaker_embedding` (D,) and `prompt_codes` (P,), padded on the right, at the trained emotion."""
        prompts, lengths = padded([clip["prompt_codes"] for clip in conditioning])
        speakers = torch.from_numpy(np.stack([clip["speaker_embedding"] for clip in conditioning]))
        return Conditioning(speakers, prompts, lengths, torch.full((len(conditioning),), 0.5))


@dataclass(frozen=True)
class Conditioning:
    """The speakers of a batch: everything before the text."""

    speaker_embedding: torch.Tensor  # (B, D)
    prompt_codes: torch.Tensor  # (B, P) padded
    prompt_lengths: torch.Tensor  # (B,)
    emotion: torch.Tensor  # (B,)


def padded(rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (T,) of several rows as (B, T) with zeros on the right, and their lengths (B,)."""
    lengths = torch.tensor([len(row) for row in rows])
    out = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for index, row in enumerate(rows):
        out[index, : len(row)] = torch.from_numpy(np.asarray(row, dtype=np.int64))
    return out, lengths


class PromptAttention(nn.Module):
    """Residual attention of normalised queries over normalised context."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(width, width)
        self.to_v = nn.Linear(width, width)
        self.proj_out = nn.Linear(width, width)

    def forward(self, queries: torch.Tensor, context: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Queries (B, Q, width), context (B, P, width), mask (B, P) True = keep, to (B, Q, width)."""
        queries_in, context_in = self.norm(queries), self.norm(context)
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for layer, x in ((self.to_q, queries_in), (self.to_k, context_in), (self.to_v, context_in)))
        keep = None if mask is None else mask[:, None, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return queries + self.proj_out(mixed.transpose(1, 2).flatten(2))


class Perceiver(nn.Module):
    """Learned queries attend to the prompt, then to themselves, with the same weights (Jaegle et al. 2021)."""

    def __init__(self, queries: int, width: int, heads: int) -> None:
        super().__init__()
        self.pre_attention_query = nn.Parameter(torch.randn(1, queries, width) / width**0.5)
        self.attn = PromptAttention(width, heads)

    def forward(self, prompt: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Prompt vectors (B, P, width) and mask (B, P) to (B, queries, width)."""
        read = self.attn(self.pre_attention_query.expand(prompt.shape[0], -1, -1), prompt, mask)
        return self.attn(read, read)


class ConditioningEncoder(nn.Module):
    """Speaker, prompt and emotion to the first positions of a row."""

    def __init__(self, config: T3Config) -> None:
        super().__init__()
        width = config.decoder.width
        self.spkr_enc = nn.Linear(config.speaker_size, width)
        self.emotion_adv_fc = nn.Linear(1, width, bias=False)
        self.perceiver = Perceiver(config.prompt_queries, width, config.prompt_heads)

    def forward(self, conditioning: Conditioning, prompt: torch.Tensor) -> torch.Tensor:
        """Prompt vectors (B, P, width) to (B, queries + 2, width)."""
        # Prompts have different lengths, so their padding is masked.
        mask = torch.arange(prompt.shape[1], device=prompt.device)[None] < conditioning.prompt_lengths[:, None]
        kind = self.spkr_enc.weight.dtype
        return torch.cat([
            self.spkr_enc(conditioning.speaker_embedding.to(kind))[:, None],
            self.perceiver(prompt, mask),
            self.emotion_adv_fc(conditioning.emotion[:, None].to(kind))[:, None],
        ], 1)


class LearnedPositions(nn.Module):
    """Learned absolute positions within a segment."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(count, width)

    def forward(self, length: int) -> torch.Tensor:
        """(length, width)"""
        return self.emb.weight[:length]


class T3(nn.Module):
    """Chatterbox's T3; the layout of a row of its input is in the module's docstring."""

    guided = True
    keeps_hidden_states = False

    def __init__(self, config: T3Config) -> None:
        super().__init__()
        self.config = config
        width = config.decoder.width
        self.tfmr = Decoder(config.decoder, config.unused_tokens)
        self.cond_enc = ConditioningEncoder(config)
        self.text_emb = nn.Embedding(config.text_rows, width)
        self.speech_emb = nn.Embedding(config.speech_rows, width)
        self.text_pos_emb = LearnedPositions(config.text_positions, width)
        self.speech_pos_emb = LearnedPositions(config.speech_positions, width)
        self.text_head = nn.Linear(width, config.text_rows, bias=False)
        self.speech_head = Linear(width, config.speech_rows, bias=False)

    def embed_conditioning(self, conditioning: Conditioning) -> torch.Tensor:
        """(B, conditioning length, width)"""
        prompt = self.speech_emb(conditioning.prompt_codes) + self.speech_pos_emb(conditioning.prompt_codes.shape[1])
        return self.cond_enc(conditioning, prompt)

    def embed_voice(self, voice: Voice, device: torch.device) -> torch.Tensor:
        """The conditioning of one voice, (1, conditioning length, width)."""
        prompt = voice.conditioning["prompt_codes"]
        codes = torch.as_tensor(prompt, dtype=torch.long, device=device)[None]
        # An empty prompt is one masked position.
        if not codes.numel():
            codes = codes.new_zeros(1, 1)
        length = torch.tensor([len(prompt)], device=device)
        kind = self.speech_emb.weight.dtype
        speaker = torch.as_tensor(voice.conditioning["speaker_embedding"], device=device, dtype=kind)[None]
        emotion = torch.full((1,), voice.emotion, device=device, dtype=kind)
        return self.embed_conditioning(Conditioning(speaker, codes, length, emotion))

    def embed_text(self, text_ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Ids (B, T) to (B, T, width); where keep (B,) is 0 only the positions remain."""
        embedded = self.text_emb(text_ids)
        if keep is not None:
            embedded = embedded * keep[:, None, None]
        return embedded + self.text_pos_emb(text_ids.shape[1])

    def embed_speech(self, codes: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Codes with start in front (B, U + 1) to (B, U + 1, width); keep (B, U + 1) 0 drops a code."""
        embedded = self.speech_emb(codes)
        if keep is not None:
            embedded = embedded * keep[..., None]
        return embedded + self.speech_pos_emb(codes.shape[1])

    def embed_start(self) -> torch.Tensor:
        """The start of speech as decoding begins with it, (1 or 2, width)."""
        start = self.speech_emb.weight[self.config.start_speech] + self.speech_pos_emb.emb.weight[0]
        return start[None].repeat(1 + self.config.doubled_start, 1)

    def embed_code(self, codes: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Decoded codes (B,) at their positions (B,) to (B, width)."""
        return self.speech_emb(codes) + self.speech_pos_emb.emb.weight.index_select(0, positions)

    def hidden_states(self, rows: torch.Tensor, cache: KVCache | None = None,
                      positions: torch.Tensor | None = None) -> torch.Tensor:
        """Rows (B, L, width) to the states (B, L, width) that the heads read."""
        return self.tfmr(rows, cache, positions)

    @property
    def transformer(self) -> Decoder:
        return self.tfmr

    def decoding_start(self, scheme: PositionScheme) -> tuple[int, tuple[int, ...]]:
        """The position before the first code, and the codes that the repetition penalty counts from the first step."""
        return 0, (self.config.start_speech,)


def quantize_decoding_(network: Any, kind: str) -> int:
    """`models.quantize.quantize_` of what a step of a `SpeechNetwork` reads; returns these bytes."""
    parts = (network.transformer.layers, network.speech_head)
    names = [name for name, module in network.named_modules() if any(module is part for part in parts)]
    return sum(quantize_(network, kind, name) for name in names)
