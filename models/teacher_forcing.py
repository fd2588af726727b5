"""Samples as batches, and what the speech language model makes of them when it is told the truth: losses and logits.

Rows are contiguous and padded on the right. Whatever depends on lengths is made on the host,
so that a GPU is never waited for. Losses are next-token: position i predicts token i + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from models.base import Losses, LossOptions, Predictions, Probe, Sample
from models.guided_attention import GuidedAttention
from models.speech_lm import Conditioning, SpeechLM, SpeechLMConfig

Moved = TypeVar("Moved")


@dataclass(frozen=True)
class Targets:
    """What the losses are over: places in the flattened rows (B * L), and the id that each predicts."""

    text_from: torch.Tensor  # (N,)
    text_ids: torch.Tensor  # (N,)
    speech_from: torch.Tensor  # (M,)
    speech_ids: torch.Tensor  # (M,)


@dataclass(frozen=True)
class Hiding:
    """What of a batch is hidden while it is learnt; 0 hides."""

    text: torch.Tensor  # (B,)
    codes: torch.Tensor  # (B, U + 1), the start is never hidden


@dataclass(frozen=True)
class Batch:
    """Samples as padded tensors; `stream` gathers each sample's parts into one contiguous row."""

    conditioning: Conditioning
    text_ids: torch.Tensor  # (B, T)
    text_lengths: torch.Tensor  # (B,)
    codes: torch.Tensor  # (B, U + 1), start first
    code_lengths: torch.Tensor  # (B,), start counted
    sources: torch.Tensor  # (B * L,), which of the flattened (B * (C + T + U + 1)) parts stands at each position
    targets: Targets
    hiding: Hiding | None = None


def collate(samples: Sequence[Sample], config: SpeechLMConfig, device: torch.device,
            options: LossOptions | None = None, seeds: Sequence[int] | None = None) -> Batch:
    """Pad each part of the samples on the right; what `options` hide of a sample follows from its seed."""
    text, text_lengths = _padded([sample.text_ids for sample in samples])
    codes, code_lengths = _padded([np.concatenate([[config.start_speech], s.speech_codes]) for s in samples])
    prompts, prompt_lengths = _padded([sample.prompt_codes for sample in samples])
    speakers = torch.from_numpy(np.stack([sample.speaker_embedding for sample in samples]))
    longest = int((config.conditioning_length + text_lengths + code_lengths).max())
    targets = _targets(text, text_lengths, codes, code_lengths, config, longest)
    hiding = None
    if options is not None and (options.text_dropout > 0 or options.code_dropout > 0):
        hiding = _hiding(code_lengths, options, seeds if seeds is not None else _new_seeds(len(samples)))
    given = Conditioning(speakers, prompts, prompt_lengths, torch.full((len(samples),), 0.5))
    sources = _sources(text, text_lengths, codes, code_lengths, config.conditioning_length, longest)
    return _moved(Batch(given, text, text_lengths, codes, code_lengths, sources, targets, hiding), device)


def _padded(rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    out = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for index, row in enumerate(rows):
        out[index, : len(row)] = torch.from_numpy(np.asarray(row, dtype=np.int64))
    return out, lengths


def _sources(text: torch.Tensor, text_lengths: torch.Tensor, codes: torch.Tensor, code_lengths: torch.Tensor,
             conditioning: int, longest: int) -> torch.Tensor:
    """Conditioning, text and speech of each row without the gaps between them; padding repeats the first position."""
    at = torch.arange(longest)[None]
    speech = conditioning + text_lengths[:, None]
    from_speech = at + text.shape[1] - text_lengths[:, None]
    column = torch.where(at < speech, at, torch.where(at < speech + code_lengths[:, None], from_speech, 0))
    rows = torch.arange(len(text))[:, None] * (conditioning + text.shape[1] + codes.shape[1])
    return (rows + column).flatten()


def _targets(text: torch.Tensor, text_lengths: torch.Tensor, codes: torch.Tensor, code_lengths: torch.Tensor,
             config: SpeechLMConfig, longest: int) -> Targets:
    """Next tokens: every text id but the first, every code, and the stop after the last code."""
    row, column = (torch.arange(text.shape[1] - 1) < text_lengths[:, None] - 1).nonzero(as_tuple=True)
    text_from, text_ids = row * longest + config.conditioning_length + column, text[row, column + 1]
    row, column = (torch.arange(codes.shape[1]) < code_lengths[:, None]).nonzero(as_tuple=True)
    following = F.pad(codes, (0, 1))[row, column + 1]
    last = column == code_lengths[row] - 1
    speech_from = row * longest + config.conditioning_length + text_lengths[row] + column
    return Targets(text_from, text_ids, speech_from, torch.where(last, config.stop_speech, following))


def _new_seeds(count: int) -> list[int]:
    return torch.randint(2**62, (count,)).tolist()


def _hiding(code_lengths: torch.Tensor, options: LossOptions, seeds: Sequence[int]) -> Hiding:
    """Drawn sample by sample, so that it does not depend on how samples are put together."""
    text = np.ones(len(code_lengths), np.float32)
    codes = np.ones((len(code_lengths), int(code_lengths.max())), np.float32)
    for index, (length, seed) in enumerate(zip(code_lengths.tolist(), seeds, strict=True)):
        noise = np.random.default_rng(seed)
        text[index] = noise.random() >= options.text_dropout
        codes[index, 1:length] = noise.random(length - 1) >= options.code_dropout * noise.random()
    return Hiding(torch.from_numpy(text), torch.from_numpy(codes))


def _moved(value: Moved, device: torch.device) -> Moved:
    """A dataclass of tensors on `device`; to a GPU from pinned memory, without waiting."""
    if device.type == "cpu":
        return value
    if isinstance(value, torch.Tensor):
        return value.pin_memory().to(device, non_blocking=True)  # type: ignore[return-value]
    if is_dataclass(value):
        parts = {part.name: _moved(getattr(value, part.name), device) for part in fields(value)}
        return replace(value, **parts)  # type: ignore[type-var]
    return value


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


def stream(model: SpeechLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Contiguous rows (B, L, width) and the places of text and speech in them."""
    text_at, codes_at = segment_index(batch, model.config.conditioning_length)
    text_keep, code_keep = (batch.hiding.text, batch.hiding.codes) if batch.hiding else (None, None)
    given = model.embed_conditioning(batch.conditioning)
    text = model.embed_text(batch.text_ids, text_keep)
    speech = model.embed_speech(batch.codes, code_keep)
    parts = torch.cat([given, text, speech], 1)  # in float32 where one of them is
    return parts.flatten(0, 1).index_select(0, batch.sources).unflatten(0, (len(parts), -1)), text_at, codes_at


def losses(model: SpeechLM, batch: Batch, options: LossOptions, teacher: Predictions | None = None) -> Losses:
    """Sums of next-token cross-entropy over real text and speech tokens (the stop included).

    A teacher of fewer text ids is taken to give the others no chance.
    """
    rows, text_at, codes_at = stream(model, batch)
    heads = model.config.aligned_heads if options.attention else ()
    with GuidedAttention(model.tfmr, heads) as guide:
        hidden = model.tfmr(rows)
        attention = guide.loss(text_at, codes_at, *_even_reading(batch)) if heads else None
    hidden, targets = hidden.flatten(0, 1), batch.targets
    text_logits = model.text_head(hidden.index_select(0, targets.text_from))
    speech_logits = model.speech_head(hidden.index_select(0, targets.speech_from))
    hits = (speech_logits.argmax(-1) == targets.speech_ids).sum() if options.hits else None
    return Losses(
        F.cross_entropy(text_logits.float(), targets.text_ids, reduction="sum"), len(targets.text_ids),
        F.cross_entropy(speech_logits.float(), targets.speech_ids, reduction="sum"), len(targets.speech_ids), attention,
        hits, *(() if teacher is None else (_divergence(teacher.text, text_logits),
                                            _divergence(teacher.speech, speech_logits))),
    )


def _divergence(teacher: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Sum of the Kullback-Leibler divergences, in nats, of `logits` (N, V) from a teacher's (N, V or fewer)."""
    known = logits.float().log_softmax(-1)[:, :teacher.shape[1]]
    return F.kl_div(known, teacher.float().log_softmax(-1), reduction="sum", log_target=True)


@torch.no_grad()
def predictions(model: SpeechLM, batch: Batch, text_ids: int) -> Predictions:
    """The logits that `losses` are of, for the first `text_ids` of the text."""
    hidden, targets = model.tfmr(stream(model, batch)[0]).flatten(0, 1), batch.targets
    return Predictions(model.text_head(hidden.index_select(0, targets.text_from))[:, :text_ids],
                       model.speech_head(hidden.index_select(0, targets.speech_from)))


def text_states(model: SpeechLM, samples: Sequence[Sample], device: torch.device) -> list[torch.Tensor]:
    """What stands, after the last layer, at each id of each sample's text: (T, width) of each."""
    rows, text_at, _ = stream(model, collate(samples, model.config, device))
    hidden = model.tfmr(rows)
    return [hidden[index, text_at[index, :len(sample.text_ids)]] for index, sample in enumerate(samples)]


def _even_reading(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The place in the text at each code (B, U + 1) if it were read at one pace, and which codes count."""
    columns = torch.arange(batch.codes.shape[1], device=batch.codes.device)[None]
    centres = (batch.text_lengths[:, None] - 1) * (columns + 0.5) / batch.code_lengths[:, None]
    weights = (columns < batch.code_lengths[:, None]).float()
    return centres, weights if batch.hiding is None else weights * batch.hiding.text[:, None]


@torch.inference_mode()
def probe(model: SpeechLM, sample: Sample, device: torch.device) -> Probe:
    """Teacher-forced logits of one sample: text (T, V) and speech (U + 1, K)."""
    rows, text_at, codes_at = stream(model, collate([sample], model.config, device))
    hidden = model.tfmr(rows)[0]
    return Probe(model.text_head(hidden[text_at[0]]), model.speech_head(hidden[codes_at[0]]))
