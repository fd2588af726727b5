"""Codes from text: prefill once, then one code a step with a static cache, several texts together.

It does not know sound or languages. Code k stands at speech position k + 1 in cached
decoding, as in training. Noise is drawn per text from its own generator, so a text's
codes do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from models.base import Sample, Sampling, Voice
from models.decoder import Cache
from models.speech_lm import Batch, SpeechLM, collate, stream


@torch.inference_mode()
def generate(model: SpeechLM, texts: Sequence[np.ndarray], voices: Sequence[Voice], sampling: Sampling,
             caps: Sequence[int], device: torch.device) -> list[np.ndarray]:
    """Codes (U,) for each text's ids (T,); a text ends at the model's stop, or after its cap in codes."""
    batch = _prompt(model, texts, voices, device)
    guided = sampling.guidance > 0
    keep = torch.ones(len(texts), device=device)
    if guided:
        batch = _doubled(batch)
        keep = torch.cat([keep, torch.zeros_like(keep)])
    rows, _, codes_at = stream(model, batch, text_keep=keep)
    lengths = codes_at[:, 0] + 1  # the start of speech is each row's last position
    longest = min(max(caps), model.config.speech_positions - 1)
    cache = Cache(model.config.decoder, len(rows), rows.shape[1] + longest, device, rows.dtype)
    everywhere = torch.arange(rows.shape[1], device=device)[None].expand(len(rows), -1)
    hidden = model.tfmr(rows, cache, everywhere)
    hidden = hidden.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[-1]))
    sampler = Sampler(model, len(texts), sampling, device)
    codes: list[torch.Tensor] = []
    open_rows = torch.ones(len(texts), dtype=torch.bool, device=device)
    limits = torch.tensor(list(caps), device=device)
    for step in range(longest):
        chosen = sampler.choose(model.speech_head(hidden[:, 0]).float(), first=step == 0)
        codes.append(torch.where(open_rows, chosen, model.config.stop_speech))
        open_rows = open_rows & (chosen != model.config.stop_speech) & (step + 1 < limits)
        if not bool(open_rows.any()):
            break
        given = torch.cat([chosen, chosen]) if guided else chosen
        embedded = model.speech_emb(given) + model.speech_pos_emb.emb.weight[step + 1]
        hidden = model.tfmr(embedded[:, None].to(rows.dtype), cache, (lengths + step)[:, None])
    stacked = torch.stack(codes, 1).cpu().numpy()
    return [row[row != model.config.stop_speech] for row in stacked]


class Sampler:
    """Turns logits into codes with the controls of `Sampling`; remembers what each text has used."""

    def __init__(self, model: SpeechLM, texts: int, sampling: Sampling, device: torch.device) -> None:
        rows = model.config.speech_rows
        self.sampling, self.texts, self.stop = sampling, texts, model.config.stop_speech
        self.forbidden = torch.arange(rows, device=device) >= model.config.start_speech
        self.forbidden[self.stop] = False
        self.used = torch.zeros(texts, rows, dtype=torch.bool, device=device)
        self.generators = [torch.Generator().manual_seed(sampling.seed) for _ in range(texts)]

    def choose(self, logits: torch.Tensor, first: bool = False) -> torch.Tensor:
        """Logits (B, V), or (2 B, V) with the textless rows last, to codes (B,)."""
        if self.sampling.guidance > 0:
            with_text, without = logits.chunk(2)
            logits = with_text + self.sampling.guidance * (with_text - without)
        logits = logits.masked_fill(self.forbidden, -torch.inf)
        if first:  # silence is not an answer
            logits[:, self.stop] = -torch.inf
        if self.sampling.repetition_penalty != 1.0:
            factor = self.sampling.repetition_penalty
            logits = torch.where(self.used, torch.where(logits > 0, logits / factor, logits * factor), logits)
        chosen = self._draw(logits)
        self.used.scatter_(1, chosen[:, None], True)
        return chosen

    def _draw(self, logits: torch.Tensor) -> torch.Tensor:
        if self.sampling.temperature == 0:
            return logits.argmax(-1)
        scores = (logits / self.sampling.temperature).log_softmax(-1)
        scores = _truncate(scores, self.sampling)
        noise = torch.stack([torch.rand(scores.shape[1], generator=g) for g in self.generators])
        gumbel = -torch.log(-torch.log(noise.clamp(1e-20, 1 - 1e-7))).to(scores.device)
        return (scores + gumbel).argmax(-1)


def _truncate(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities (B, V) with the codes that min-p and top-p leave out at minus infinity."""
    probabilities = scores.exp()
    if sampling.min_p > 0:
        weak = probabilities < sampling.min_p * probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(weak, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = scores.exp().sort(-1, descending=True)
        ordered = ordered / ordered.sum(-1, keepdim=True)
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p
        scores = scores.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), -torch.inf)
    return scores


def _prompt(model: SpeechLM, texts: Sequence[np.ndarray], voices: Sequence[Voice], device: torch.device) -> Batch:
    nothing = np.zeros(0, dtype=np.int64)
    samples = [Sample(text, nothing, voice.speaker_embedding, voice.prompt_codes)
               for text, voice in zip(texts, voices, strict=True)]
    return collate(samples, model.config, device)


def _doubled(batch: Batch) -> Batch:
    def twice(value):
        return torch.cat([value, value])

    given = batch.conditioning
    return Batch(
        type(given)(twice(given.speaker_embedding), twice(given.prompt_codes),
                    twice(given.prompt_lengths), twice(given.emotion)),
        twice(batch.text_ids), twice(batch.text_lengths), twice(batch.codes), twice(batch.code_lengths),
    )
