"""The speech language model: a causal transformer over conditioning, text and speech, with a table and a head each.

    [ speaker (1) | prompt through the perceiver (P) | emotion (1) ]
    [ start text ... stop ]      text_emb + text_pos_emb
    [ start speech ... stop ]    speech_emb + speech_pos_emb

The layout and the state-dict keys are those of Chatterbox's T3 (resemble-ai/chatterbox,
MIT); the built-in family is the same module at a small size. `models.teacher_forcing` computes
losses with it, `models.generate` decodes. Losses are next-token: position i predicts token i + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from models.decoder import Decoder, DecoderConfig
from models.matmul_backends import Linear


@dataclass(frozen=True)
class SpeechLMConfig:
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


@dataclass(frozen=True)
class Conditioning:
    """The speakers of a batch: everything before the text."""

    speaker_embedding: torch.Tensor  # (B, D)
    prompt_codes: torch.Tensor  # (B, P) padded
    prompt_lengths: torch.Tensor  # (B,)
    emotion: torch.Tensor  # (B,)


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

    def __init__(self, config: SpeechLMConfig) -> None:
        super().__init__()
        width = config.decoder.width
        self.spkr_enc = nn.Linear(config.speaker_size, width)
        self.emotion_adv_fc = nn.Linear(1, width, bias=False)
        self.perceiver = Perceiver(config.prompt_queries, width, config.prompt_heads)

    def forward(self, conditioning: Conditioning, prompt: torch.Tensor) -> torch.Tensor:
        """Prompt vectors (B, P, width) to (B, queries + 2, width)."""
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


class SpeechLM(nn.Module):
    """See the docstring of the module for the layout of a row."""

    def __init__(self, config: SpeechLMConfig) -> None:
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
