"""A moving average of what is trained, and of nothing else: often a better model than the last step's.

It is measured, spoken with, saved and exported in place of the values that are trained. The
early steps count for little: the decay begins small and rises to the one asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn

from core.training import sharding
from core.training.in_place import in_place

_STEPS, _TRAINED = "averaged", "trained/"


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
        torch._foreach_lerp_([*self.values.values()], [*self._parameters.values()], 1 - decay)  # one launch for all

    def in_place(self) -> AbstractContextManager[None]:
        """Context in which the model has the averages."""
        return in_place(self._parameters, self.values)

    def state(self) -> dict[str, torch.Tensor]:
        """What goes on: how far the average is, and the values that are trained. Model files hold the average."""
        trained = {_TRAINED + name: value.detach().clone() for name, value in self._parameters.items()}
        return {_STEPS: torch.tensor(self.steps), **trained}

    @torch.no_grad()
    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the averages from the model, and the trained values from `state`, where an average was saved."""
        if _STEPS not in state:
            return
        self.steps = int(state[_STEPS])
        for name, value in self._parameters.items():
            self.values[name].copy_(value)
            value.copy_(sharding.like(state[_TRAINED + name], value))
