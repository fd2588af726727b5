"""Where the base was, while a run changes it: to speak as it did for a moment, and to be pulled back to.

L2-SP (Li et al. 2018, arXiv:1802.01483) pulls every number of the base back in proportion to
how far it has gone; EWC (Kirkpatrick et al. 2017, arXiv:1612.00796) weighs the pull by how much
the base languages depend on that number, by the diagonal of the Fisher information. Both are
quadratic, so their gradients are added as they are. The Fisher estimate is scaled to a mean of
1: equal weights of the two pull equally hard on the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import nn

from config.errors import UserError
from core.model.precision import Precision
from core.training import sharding, training_data
from core.training.in_place import in_place
from core.training.training_data import Utterance
from models.base import LossOptions, SpeechModel


class Anchors:
    """The values that `parameters` of the base had; nothing where none of it is trained."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], values: Mapping[str, torch.Tensor]) -> None:
        """`values` are the base's for those that have moved already, as in a run that goes on."""
        self._parameters = parameters
        self._values = {name: sharding.like(values.get(name, value), value).detach().to(value.device, value.dtype)
                        .clone() for name, value in parameters.items()}
        self.importance: dict[str, torch.Tensor] = {}

    def in_place(self) -> AbstractContextManager[None]:
        """Context in which the base is what it was; for passes without gradients."""
        return in_place(self._parameters, self._values)

    def estimate(self, samples: Sequence[Callable[[], torch.Tensor]]) -> None:
        """Set `importance` from the losses of base-language samples, with the base as it was.

        Each of `samples` gives the mean negative log-likelihood of one sample, which is differentiated.
        """
        sums = {name: torch.zeros_like(value) for name, value in self._parameters.items()}
        with self.in_place():
            for sample in samples:
                gradients = torch.autograd.grad(sample(), list(self._parameters.values()), allow_unused=True)
                for name, gradient in zip(sums, gradients, strict=True):
                    if gradient is not None:
                        sums[name] += gradient.square()
        count = sum(value.numel() for value in sums.values())
        mean = sum(value.sum().item() for value in sums.values()) / max(1, count)
        self.importance = {name: value / max(mean, 1e-30) for name, value in sums.items()}

    @torch.no_grad()
    def pull(self, l2_sp: float, ewc: float) -> None:
        """Add the gradients of `l2_sp / 2 |p - p0|^2` and `ewc / 2 F (p - p0)^2`."""
        for name, value in self._parameters.items():
            if value.grad is not None:
                gone = value - self._values[name]
                weight = l2_sp + ewc * self.importance[name] if ewc else l2_sp
                value.grad += weight * gone

    @torch.no_grad()
    def distance(self) -> float:
        """How far the base has gone, as a share of its own norm."""
        gone = sum((value - self._values[name]).square().sum().item() for name, value in self._parameters.items())
        own = sum(value.square().sum().item() for value in self._values.values())
        return float((gone / max(own, 1e-30)) ** 0.5)


def estimate_importance(anchors: Anchors, model: SpeechModel, precision: Precision,
                        clips: Sequence[Utterance]) -> None:
    """How much the base languages depend on each number of the base, from `clips` of them."""
    if not clips:
        raise UserError("The importance of the base's numbers (ewc) is estimated on clips to rehearse; there are none.",
                        "Set ewc to 0, or rehearse clips: see the options of replay.")

    def loss(item: Utterance) -> torch.Tensor:
        sample = training_data.sample(item, item, model.max_prompt_length)
        with precision.autocast():
            losses = model.losses([sample], LossOptions())
        return losses.speech_sum / losses.speech_count

    anchors.estimate([partial(loss, item) for item in clips])
