"""The speech language model: conditioning, text and speech in one causal stream, two tables, two heads.

    [ speaker (1) | prompt through the perceiver (P) | emotion (1) ]
    [ start text ... stop ]      text_emb + text_pos_emb
    [ start speech ... stop ]    speech_emb + speech_pos_emb

The layout and the state-dict keys are those of Chatterbox's T3 (resemble-ai/chatterbox,
MIT); the built-in family is the same module at a small size. It does not know tokenizers
or sound. Losses are next-token: position i predicts token i + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from models.base import Losses, LossOptions, Probe, Sample
from models.decoder import Decoder, DecoderConfig
from models.guided_attention import GuidedAttention


@dataclass(frozen=True)
class SpeechLMConfig:
    """Sizes; text ids of start and stop come with the tokenizer, speech ids are here."""

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
    aligned_heads: tuple[tuple[int, int], ...] = ()  # (layer, head) that follow the text

    @property
    def conditioning_length(self) -> int:
        return self.prompt_queries + 2


@dataclass(frozen=True)
class Conditioning:
    """Who speaks, for a batch: everything before the text."""

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
        asked, given = self.norm(queries), self.norm(context)
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for layer, x in ((self.to_q, asked), (self.to_k, given), (self.to_v, given)))
        keep = None if mask is None else mask[:, None, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return queries + self.proj_out(mixed.transpose(1, 2).flatten(2))


class Perceiver(nn.Module):
    """Learned queries read the prompt, then themselves, with the same weights (Jaegle et al. 2021)."""

    def __init__(self, queries: int, width: int, heads: int) -> None:
        super().__init__()
        self.pre_attention_query = nn.Parameter(torch.randn(1, queries, width) / width**0.5)
        self.attn = PromptAttention(width, heads)

    def forward(self, prompt: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Prompt vectors (B, P, width) and mask (B, P) to (B, queries, width)."""
        read = self.attn(self.pre_attention_query.expand(prompt.shape[0], -1, -1), prompt, mask)
        return self.attn(read, read)


class ConditioningEncoder(nn.Module):
    """Speaker, prompt and emotion to the first positions of the stream."""

    def __init__(self, config: SpeechLMConfig) -> None:
        super().__init__()
        width = config.decoder.width
        self.spkr_enc = nn.Linear(config.speaker_size, width)
        self.emotion_adv_fc = nn.Linear(1, width, bias=False)
        self.perceiver = Perceiver(config.prompt_queries, width, config.prompt_heads)

    def forward(self, given: Conditioning, prompt: torch.Tensor) -> torch.Tensor:
        """Prompt vectors (B, P, width) to (B, queries + 2, width)."""
        mask = torch.arange(prompt.shape[1], device=prompt.device)[None] < given.prompt_lengths[:, None]
        return torch.cat([
            self.spkr_enc(given.speaker_embedding)[:, None],
            self.perceiver(prompt, mask),
            self.emotion_adv_fc(given.emotion[:, None])[:, None],
        ], 1)


class Positions(nn.Module):
    """Learned absolute positions, counted from the start of a segment."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(count, width)

    def forward(self, length: int) -> torch.Tensor:
        """(length, width)"""
        return self.emb.weight[:length]


class SpeechLM(nn.Module):
    """See the module's first lines for the stream."""

    def __init__(self, config: SpeechLMConfig) -> None:
        super().__init__()
        self.config = config
        width = config.decoder.width
        self.tfmr = Decoder(config.decoder, config.unused_tokens)
        self.cond_enc = ConditioningEncoder(config)
        self.text_emb = nn.Embedding(config.text_rows, width)
        self.speech_emb = nn.Embedding(config.speech_rows, width)
        self.text_pos_emb = Positions(config.text_positions, width)
        self.speech_pos_emb = Positions(config.speech_positions, width)
        self.text_head = nn.Linear(width, config.text_rows, bias=False)
        self.speech_head = nn.Linear(width, config.speech_rows, bias=False)

    def embed_conditioning(self, given: Conditioning) -> torch.Tensor:
        """(B, conditioning length, width)"""
        prompt = self.speech_emb(given.prompt_codes) + self.speech_pos_emb(given.prompt_codes.shape[1])
        return self.cond_enc(given, prompt)

    def embed_text(self, text_ids: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Ids (B, T) to (B, T, width); rows with keep (B,) 0 lose their text and keep its positions."""
        embedded = self.text_emb(text_ids)
        if keep is not None:
            embedded = embedded * keep[:, None, None]
        return embedded + self.text_pos_emb(text_ids.shape[1])

    def embed_speech(self, codes: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Codes with start in front (B, U + 1) to (B, U + 1, width); keep (B, U + 1) 0 hides a code."""
        embedded = self.speech_emb(codes)
        if keep is not None:
            embedded = embedded * keep[..., None]
        return embedded + self.speech_pos_emb(codes.shape[1])


@dataclass(frozen=True)
class Batch:
    """Samples as padded tensors; `rows` gathers each sample's parts into one contiguous row."""

    conditioning: Conditioning
    text_ids: torch.Tensor  # (B, T)
    text_lengths: torch.Tensor  # (B,)
    codes: torch.Tensor  # (B, U + 1), start first
    code_lengths: torch.Tensor  # (B,), start counted


def collate(samples: Sequence[Sample], config: SpeechLMConfig, device: torch.device) -> Batch:
    """Pad each part of the samples on the right."""
    text, text_lengths = _padded([sample.text_ids for sample in samples])
    codes, code_lengths = _padded([np.concatenate([[config.start_speech], s.speech_codes]) for s in samples])
    prompts, prompt_lengths = _padded([sample.prompt_codes for sample in samples])
    speakers = torch.from_numpy(np.stack([sample.speaker_embedding for sample in samples]))
    given = Conditioning(speakers.to(device), prompts.to(device), prompt_lengths.to(device),
                         torch.full((len(samples),), 0.5, device=device))
    return Batch(given, text.to(device), text_lengths.to(device), codes.to(device), code_lengths.to(device))


def _padded(rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    out = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for index, row in enumerate(rows):
        out[index, : len(row)] = torch.from_numpy(np.asarray(row, dtype=np.int64))
    return out, lengths


def segment_index(batch: Batch, conditioning_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where text (B, T) and speech (B, U + 1) stand in contiguous rows; padding points past the row's end."""
    device = batch.text_ids.device
    text = torch.arange(batch.text_ids.shape[1], device=device)[None]
    codes = torch.arange(batch.codes.shape[1], device=device)[None]
    width = conditioning_length + batch.text_ids.shape[1] + batch.codes.shape[1]
    text_at = torch.where(text < batch.text_lengths[:, None], conditioning_length + text, width)
    codes_at = torch.where(codes < batch.code_lengths[:, None],
                           conditioning_length + batch.text_lengths[:, None] + codes, width)
    return text_at, codes_at


def stream(
    model: SpeechLM, batch: Batch, text_keep: torch.Tensor | None = None, code_keep: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Contiguous rows (B, L, width) and the places of text and speech in them."""
    text_at, codes_at = segment_index(batch, model.config.conditioning_length)
    given = model.embed_conditioning(batch.conditioning)
    text = model.embed_text(batch.text_ids, text_keep)
    speech = model.embed_speech(batch.codes, code_keep)
    longest = int((model.config.conditioning_length + batch.text_lengths + batch.code_lengths).max())
    rows = given.new_zeros(given.shape[0], given.shape[1] + text.shape[1] + speech.shape[1] + 1, given.shape[2])
    everything = torch.cat([given, text.to(given.dtype), speech.to(given.dtype)], 1)
    places = torch.cat([
        torch.arange(given.shape[1], device=given.device)[None].expand(given.shape[0], -1), text_at, codes_at], 1)
    rows = rows.scatter(1, places[..., None].expand_as(everything), everything)
    return rows[:, :longest], text_at, codes_at


def losses(model: SpeechLM, batch: Batch, options: LossOptions, generator: torch.Generator | None = None) -> Losses:
    """Sums of next-token cross-entropy over real text and speech tokens (the stop included)."""
    text_keep = code_keep = None
    device = batch.codes.device
    if options.text_dropout > 0:
        text_keep = torch.rand(len(batch.codes), generator=generator).ge(options.text_dropout).float().to(device)
    if options.code_dropout > 0:
        rate = options.code_dropout * torch.rand(len(batch.codes), 1, generator=generator)
        code_keep = torch.rand(batch.codes.shape, generator=generator).ge(rate).float().to(device)
        code_keep[:, 0] = 1.0  # the start is never hidden
    rows, text_at, codes_at = stream(model, batch, text_keep, code_keep)
    heads = model.config.aligned_heads if options.attention else ()
    with GuidedAttention(model.tfmr, heads) as guide:
        hidden = model.tfmr(rows)
        attention = guide.loss(text_at, codes_at, *_even_reading(batch, text_keep)) if heads else None
    text_from, text_target = _text_targets(batch, text_at)
    speech_from, speech_target = _speech_targets(batch, codes_at, model.config.stop_speech)
    text_logits = model.text_head(hidden[text_from])
    speech_logits = model.speech_head(hidden[speech_from])
    return Losses(
        F.cross_entropy(text_logits.float(), text_target, reduction="sum"), len(text_target),
        F.cross_entropy(speech_logits.float(), speech_target, reduction="sum"), len(speech_target), attention,
    )


def _even_reading(batch: Batch, text_keep: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The place in the text at each code (B, U + 1) if it were read at one pace, and which codes count."""
    columns = torch.arange(batch.codes.shape[1], device=batch.codes.device)[None]
    centres = (batch.text_lengths[:, None] - 1) * (columns + 0.5) / batch.code_lengths[:, None]
    weights = (columns < batch.code_lengths[:, None]).float()
    return centres, weights if text_keep is None else weights * text_keep[:, None]


def _text_targets(batch: Batch, text_at: torch.Tensor):
    real = torch.arange(batch.text_ids.shape[1] - 1, device=text_at.device)[None] < batch.text_lengths[:, None] - 1
    row, column = real.nonzero(as_tuple=True)
    return (row, text_at[row, column]), batch.text_ids[row, column + 1]


def _speech_targets(batch: Batch, codes_at: torch.Tensor, stop: int):
    real = torch.arange(batch.codes.shape[1], device=codes_at.device)[None] < batch.code_lengths[:, None]
    row, column = real.nonzero(as_tuple=True)
    following = F.pad(batch.codes, (0, 1))[row, column + 1]
    last = column == batch.code_lengths[row] - 1
    return (row, codes_at[row, column]), torch.where(last, stop, following)


@torch.inference_mode()
def probe(model: SpeechLM, sample: Sample, device: torch.device) -> Probe:
    """Teacher-forced logits of one sample: text (T, V) and speech (U + 1, K)."""
    rows, text_at, codes_at = stream(model, collate([sample], model.config, device))
    hidden = model.tfmr(rows)[0]
    return Probe(model.text_head(hidden[text_at[0]]), model.speech_head(hidden[codes_at[0]]))
