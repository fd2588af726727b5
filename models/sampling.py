"""Logits to codes on the device: every control is a tensor, so that a captured step honours a changed one.

The order is guidance, repetition penalty, temperature, min-p, top-p, as in the published
Chatterbox loop. Noise is a function of the seed, the step and the code alone, and not of a
generator's state: a text's codes depend neither on its neighbours nor on the device's
random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.base import Sampling

_MASK = 0xFFFFFFFF
_COLDEST = 1e-6  # stands for temperature 0: the likeliest code, whatever the noise


class Sampler:
    """The state of B texts while they are spoken; its tensors stay where they are from one `begin` to the next."""

    def __init__(self, texts: int, allowed: torch.Tensor, stop: int) -> None:
        """`allowed` (V,) is True for the codes that may be chosen, of which `stop` never comes first."""
        device = allowed.device
        self.stop, self.guided, self.truncates = stop, False, False
        self.guidance, self.temperature, self.penalty, self.min_p, self.top_p = torch.zeros(5, device=device).unbind()
        self._forbidden = ~allowed
        self.used = torch.zeros(texts, len(allowed), dtype=torch.bool, device=device)
        self._seed = torch.zeros((), dtype=torch.int64, device=device)
        self._columns = torch.arange(len(allowed), device=device)

    def begin(self, sampling: Sampling, used: Sequence[int] = ()) -> None:
        """Start new texts; codes in `used` count as spoken already for the repetition penalty."""
        self.guided, self.truncates = sampling.guidance > 0, sampling.top_p < 1
        for held, value in ((self.guidance, sampling.guidance), (self.temperature, sampling.temperature),
                            (self.penalty, sampling.repetition_penalty), (self.min_p, sampling.min_p),
                            (self.top_p, sampling.top_p), (self._seed, sampling.seed & _MASK)):
            held.fill_(value)
        self.used.fill_(False)
        self.used[:, list(used)] = True

    def choose(self, logits: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """Codes (B,) of logits (B, V), or of (2 B, V) with the textless rows last; `step` () counts from 0."""
        logits = logits.float()
        if self.guided:
            with_text, without = logits.chunk(2)
            logits = with_text + self.guidance * (with_text - without)
        penalised = torch.where(logits > 0, logits / self.penalty, logits * self.penalty)
        logits = torch.where(self.used, penalised, logits).masked_fill(self._forbidden, -torch.inf)
        at_first = (step == 0) & (self._columns == self.stop)  # silence is not an answer
        logits = logits.masked_fill(at_first, -torch.inf)
        scores = (logits / self.temperature.clamp(min=_COLDEST)).log_softmax(-1)
        scores = self._truncated(scores)
        chosen = (scores + torch.where(self.temperature > 0, self._noise(step), 0.0)).argmax(-1)
        self.used.scatter_(1, chosen[:, None], True)
        return chosen

    def _truncated(self, scores: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (B, V) with the codes that min-p and top-p leave out at minus infinity."""
        weakest = scores.amax(-1, keepdim=True) + self.min_p.log()
        scores = scores.masked_fill(scores < weakest, -torch.inf)
        if not self.truncates:
            return scores
        ordered, order = scores.softmax(-1).sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= self.top_p
        return scores.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), -torch.inf)

    def _noise(self, step: torch.Tensor) -> torch.Tensor:
        """Gumbel noise (V,) of this step, the same for every text."""
        bits = _mixed(_mixed(_mixed(self._seed) ^ step) ^ self._columns)
        uniform = ((bits >> 9).float() + 0.5) / (1 << 23)  # never 0 or 1
        return -torch.log(-torch.log(uniform))


def _mixed(value: torch.Tensor) -> torch.Tensor:
    """A 32-bit integer hash (the finaliser of MurmurHash3, Appleby 2011) of int64 values."""
    value = value & _MASK
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK
    return value ^ (value >> 16)
