"""The generators that a training draws from: its own for what is hidden of a sample, and torch's for dropout."""

from __future__ import annotations

from collections.abc import Mapping

import torch

_HIDING, _TORCH, _CUDA = "generator/hiding", "generator/torch", "generator/cuda"


class Randomness:
    """All of them, seeded; torch's differ by `rank`, because each process drops out other activations."""

    def __init__(self, seed: int, rank: int, device: torch.device) -> None:
        self._device = device
        self._hiding = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed + rank)

    def seeds(self, count: int) -> list[int]:
        """One a sample."""
        drawn: list[int] = torch.randint(2**62, (count,), generator=self._hiding).tolist()
        return drawn

    def state(self) -> dict[str, torch.Tensor]:
        """Where they stand."""
        states = {_HIDING: self._hiding.get_state(), _TORCH: torch.get_rng_state()}
        if self._device.type == "cuda":
            states[_CUDA] = torch.cuda.get_rng_state(self._device)
        return states

    def restore(self, states: Mapping[str, torch.Tensor]) -> None:
        """Stand where `state` was taken."""
        self._hiding.set_state(states[_HIDING])
        torch.set_rng_state(states[_TORCH])
        if self._device.type == "cuda" and _CUDA in states:
            torch.cuda.set_rng_state(states[_CUDA], self._device)
