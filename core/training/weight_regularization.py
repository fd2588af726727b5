"""Copies of weights beside those in training: the initial ones, to which `full` is regularized, and the EMA.

L2-SP (Li et al. 2018, arXiv:1802.01483) pulls every weight of the base back in proportion to its distance from its
initial value. EWC (Kirkpatrick et al. 2017, arXiv:1612.00796) scales this pull by the importance of the weight for the
base languages, the diagonal of the Fisher information. Both penalties are quadratic, so their gradients are added in
closed form. The importance is scaled to a mean of 1, so that equal factors of the two pull equally on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn

from config.errors import UserError
from core.model.precision import Precision
from core.training import dataloader, fsdp
from core.training.dataloader import Utterance
from models.base import LanguageModel, LossOptions

_STEPS, _TRAINED = "ema_steps", "trained/"  # keys in the tensors of a checkpoint


@contextmanager
def swap_weights(parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Context in which `parameters` and `values` have exchanged their contents, name by name.

    The contents are copied, one tensor at a time, because a copy increments the parameter's version. Caches such as
    DoRA's norms depend on the version, which an exchange of the storage would not change.
    """
    _exchange(parameters, values)
    try:
        yield
    finally:
        _exchange(parameters, values)


@torch.no_grad()
def _exchange(parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in parameters.items():
        previous = parameter.detach().clone()
        parameter.copy_(values[name])
        values[name].copy_(previous)


class WeightRegularizer:
    """The initial values of `parameters` of the base, and the gradients that pull the parameters back to them."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], values: Mapping[str, torch.Tensor]) -> None:
        """`values`: the base's values of parameters that have changed already, as in a resumed run."""
        self._parameters = parameters
        self._values = {name: fsdp.shard_like(values.get(name, value), value).detach().to(value.device, value.dtype)
                        .clone() for name, value in parameters.items()}
        self.importance: dict[str, torch.Tensor] = {}

    def initial_weights(self) -> AbstractContextManager[None]:
        """Context in which the parameters have their initial values; no gradients inside."""
        return swap_weights(self._parameters, self._values)

    def estimate_importance(self, lm: LanguageModel, precision: Precision, clips: Sequence[Utterance]) -> None:
        """Set `importance` from squared gradients of the loss on `clips` of base languages, at the initial values."""
        if not clips:
            raise UserError("The importance of the base's weights (ewc) is estimated on replayed clips; there are "
                            "none.", "Set ewc to 0, or replay clips: see the options of replay.")
        sums = {name: torch.zeros_like(value) for name, value in self._parameters.items()}
        with self.initial_weights():
            # One clip at a time: the Fisher information is a mean of squares, not the square of a mean.
            for item in clips:
                with precision.autocast():
                    losses = lm.losses([dataloader.make_sample(item, item, lm)], LossOptions())
                gradients = torch.autograd.grad(losses.speech_sum / losses.speech_count,
                                                list(self._parameters.values()), allow_unused=True)
                for name, gradient in zip(sums, gradients, strict=True):
                    if gradient is not None:
                        sums[name] += gradient.square()

        # Scale to a mean of 1.
        count = sum(value.numel() for value in sums.values())
        mean = sum(value.sum().item() for value in sums.values()) / max(1, count)
        self.importance = {name: value / max(mean, 1e-30) for name, value in sums.items()}

    @torch.no_grad()
    def add_gradients(self, l2_sp: float, ewc: float) -> None:
        """Add the gradients of `l2_sp / 2 |p - p0|^2` and `ewc / 2 F (p - p0)^2`."""
        for name, value in self._parameters.items():
            if value.grad is not None:
                weight = l2_sp + ewc * self.importance[name] if ewc else l2_sp
                value.grad += weight * (value - self._values[name])


class ExponentialMovingAverage:
    """Moving averages of `parameters`; they are evaluated, saved and exported instead of the trained values."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self.values = {name: value.detach().clone() for name, value in parameters.items()}
        self.steps = 0

    @torch.no_grad()
    def update(self) -> None:
        """Update the averages after a step."""
        self.steps += 1
        # EMA warm-up as tf.train.ExponentialMovingAverage(num_updates).
        decay = min(self._decay, self.steps / (self.steps + 9))
        # One kernel launch for all tensors.
        torch._foreach_lerp_([*self.values.values()], [*self._parameters.values()], 1 - decay)

    def average_parameters(self) -> AbstractContextManager[None]:
        """Context in which the parameters have the values of their averages."""
        return swap_weights(self._parameters, self.values)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The number of updates, and the trained values. The model files hold the averages."""
        trained = {_TRAINED + name: value.detach().clone() for name, value in self._parameters.items()}
        return {_STEPS: torch.tensor(self.steps), **trained}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take the averages from the model, and the trained values from `state`."""
        self.steps = int(state[_STEPS])
        for name, value in self._parameters.items():
            self.values[name].copy_(value)
            value.copy_(fsdp.shard_like(state[_TRAINED + name], value))
