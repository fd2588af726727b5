"""A moving average of what is trained, and of nothing else: often a better model than the last step's.

It is measured, spoken with, saved and exported in place of the values that are trained. The
early steps count for little: the decay begins small and rises to the one asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn


class Average:
    """The averages of `parameters`, by name."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self.values = {name: value.detach().clone() for name, value in parameters.items()}
        self.steps = 0

    @torch.no_grad()
    def follow(self) -> None:
        """Take in the values after a step."""
        self.steps += 1
        decay = min(self._decay, self.steps / (self.steps + 9))
        for name, value in self._parameters.items():
            self.values[name].lerp_(value, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the model has the averages."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, value in self._parameters.items():
            held = value.clone()
            value.copy_(self.values[name])
            self.values[name].copy_(held)
