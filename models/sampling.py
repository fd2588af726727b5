"""Sampling of codes from logits on the device. Options are tensors, so that a captured CUDA graph sees new values.

The order is guidance, alignment guard, repetition penalty, temperature, min-p, top-k, top-p: that of the published
Chatterbox loop, and of transformers, which IndexTTS2 uses. Noise is a function of the seed, the step and the code, not
of a generator's state: the codes of a text depend neither on the other texts of the batch nor on the device's random
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.alignment_guard import AlignmentGuard
from models.base import Sampling

_MASK = 0xFFFFFFFF
_MIN_TEMPERATURE = 1e-6  # stands for temperature 0: greedy, noise is off


class Sampler:
    """The sampling state of B texts; its tensors keep their addresses across `reset`."""

    def __init__(self, texts: int, allowed: torch.Tensor, stop: int, max_codes: int) -> None:
        """`allowed` (V,) is True for codes that may be sampled; `stop` is never sampled first."""
        device = allowed.device
        self.uses_guidance, self.uses_top_p, self.top_k, self.stop = False, False, 0, stop
        self.guidance, self.temperature, self.penalty, self.log_min_p, self.top_p, self.noise_scale = torch.zeros(
            6, device=device).unbind()
        self.used = torch.zeros(texts, len(allowed), dtype=torch.bool, device=device)
        self.columns = torch.arange(len(allowed), device=device)
        self.is_stop = self.columns == stop
        self.forbidden = torch.stack([~allowed | self.is_stop, ~allowed])  # The first step, and later ones.
        self.keys = torch.zeros(texts, max_codes, dtype=torch.int64, device=device)  # Seeds by text and step.

    def reset(self, sampling: Sampling, used: Sequence[int] = ()) -> None:
        """Start new texts; the repetition penalty applies to the codes in `used` from the first step."""
        assert sampling.repetition_penalty >= 1
        self.uses_guidance, self.uses_top_p = sampling.guidance > 0, sampling.top_p < 1
        self.top_k = min(sampling.top_k, len(self.columns))
        for tensor, value in ((self.guidance, sampling.guidance), (self.penalty, sampling.repetition_penalty),
                              (self.temperature, max(sampling.temperature, _MIN_TEMPERATURE)),
                              (self.log_min_p, sampling.min_p), (self.top_p, sampling.top_p),
                              (self.noise_scale, float(sampling.temperature > 0))):
            tensor.fill_(value)
        self.log_min_p.log_()
        # On the host: on a GPU these integers would take two dozen launches of a prefill.
        steps = torch.arange(self.keys.shape[1])
        self.keys.copy_(_hash(_hash(torch.full_like(steps, sampling.seed & _MASK)) ^ steps))
        self.used.fill_(False)
        self.used.index_fill_(1, torch.as_tensor(list(used), dtype=torch.long, device=self.used.device), True)

    def sample(self, logits: torch.Tensor, step: torch.Tensor, guard: AlignmentGuard | None = None) -> torch.Tensor:
        """Codes (B,) from logits (B, V), with guidance (2 B, V), rows without text last.

        `step`, (B,) or () if it is the same for all, counts from 0.

        What can be computed once is in `reset`. Without top-k and top-p a GPU with Triton computes the same in one
        kernel, `models.triton_sampling.sample`.
        """
        logits, step = logits.float(), step.expand(len(self.used))
        if self.uses_guidance:
            with_text, without = logits.chunk(2)
            logits = with_text + self.guidance * (with_text - without)
        if guard is not None:
            logits = guard.apply(logits, self.is_stop)
        penalised = torch.minimum(logits / self.penalty, logits * self.penalty)  # it is at least 1
        forbidden = self.forbidden.index_select(0, step.clamp(max=1))  # no empty speech
        logits = torch.where(self.used, penalised, logits).masked_fill(forbidden, -torch.inf)
        scores = self._truncated((logits / self.temperature).log_softmax(-1))
        sampled = torch.addcmul(scores, self.noise_scale, self._noise(step)).argmax(-1)
        self.used.scatter_(1, sampled[:, None], True)
        return sampled

    def _truncated(self, scores: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B, V), minus infinity for codes that min-p, top-k and top-p exclude."""
        weakest = scores.amax(-1, keepdim=True) + self.log_min_p
        scores = scores.masked_fill(scores < weakest, -torch.inf)
        if self.top_k:
            best, order = scores.topk(self.top_k)
            if self.uses_top_p:
                ordered = best.softmax(-1)
                best = best.masked_fill(ordered.cumsum(-1) - ordered >= self.top_p, -torch.inf)
            return torch.full_like(scores, -torch.inf).scatter(1, order, best)
        if not self.uses_top_p:
            return scores
        ordered, order = scores.softmax(-1).sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= self.top_p
        return scores.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), -torch.inf)

    def _noise(self, step: torch.Tensor) -> torch.Tensor:
        """Gumbel noise (B, V) of the steps (B,), the same for all texts of one seed at one step."""
        bits = _hash(self.keys.gather(1, step[:, None]) ^ self.columns)
        uniform = ((bits >> 9) + 0.5) / (1 << 23)  # never 0 or 1
        return -torch.log(-torch.log(uniform))


def _hash(value: torch.Tensor) -> torch.Tensor:
    """A 32-bit integer hash (the finaliser of MurmurHash3, Appleby 2011) of int64 values from 0 to 2^32 - 1."""
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK
    return value ^ (value >> 16)
