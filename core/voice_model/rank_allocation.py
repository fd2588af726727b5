"""AdaLoRA's sharing out of ranks (Zhang et al. 2023, arXiv:2303.10512), as peft does it, so that it can be resumed.

Every layer begins with more directions than it will keep. The importance of each is averaged
over the steps, and from a tenth of the run to its last third the least important ones of all
layers together are put to zero, until the budget is met.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from peft import AdaLoraModel

_IMPORTANCE, _UNCERTAINTY, _KEPT = "importance", "uncertainty", "kept"


class RankAllocation:
    """Importance and budget of the directions of one model's adapters."""

    def __init__(self, tuner: AdaLoraModel) -> None:
        self._tuner, self._allocator = tuner, tuner.rankallocator
        self._kept: dict[str, torch.Tensor] = {}  # directions that the last sharing out left, by factor
        tuner.peft_config[tuner.trainable_adapter_name].rank_pattern = None

    def follow(self, step: int) -> None:
        """After `step` optimizer steps, while the gradients of the last one are still there."""
        config = self._tuner.peft_config[self._tuner.trainable_adapter_name]
        config.rank_pattern = {name: kept.bool().tolist() for name, kept in self._kept.items()} or None
        self._tuner.update_and_allocate(step)
        found = config.rank_pattern or {}
        self._kept = {name: torch.tensor(kept, dtype=torch.uint8) for name, kept in found.items()}
        config.rank_pattern = None  # what is saved has all directions, those put to zero too

    def penalty(self) -> torch.Tensor:
        """How far the directions of a layer are from being orthogonal to each other, as the mean over the factors."""
        weight = self._tuner.peft_config[self._tuner.trainable_adapter_name].orth_reg_weight
        parts = []
        for name, value in self._tuner.model.named_parameters():
            if ".lora_A." in name or ".lora_B." in name:
                product = value @ value.T if ".lora_A." in name else value.T @ value
                parts.append(torch.linalg.matrix_norm(product - torch.eye(len(product), device=value.device)))
        return weight * torch.stack(parts).mean()

    def ranks(self) -> dict[str, int]:
        """Directions that each layer has left, by its name."""
        return {name: int((value != 0).sum()) for name, value in self._tuner.model.named_parameters()
                if ".lora_E." in name}

    def state(self) -> dict[str, torch.Tensor]:
        """What the next call of `follow` depends on beside the adapters."""
        parts = {_IMPORTANCE: self._allocator.exp_avg_ipt, _UNCERTAINTY: self._allocator.exp_avg_unc, _KEPT: self._kept}
        return {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put back what `state` gave."""
        self._allocator.reset_ipt()
        self._kept = {}
        named = dict(self._tuner.model.named_parameters())
        for path, value in state.items():
            part, _, name = path.partition("/")
            if part == _KEPT:
                self._kept[name] = value.cpu()
            else:
                mine = self._allocator.exp_avg_ipt if part == _IMPORTANCE else self._allocator.exp_avg_unc
                mine[name] = value.to(named[name].device)
                self._allocator.ipt[name] = torch.zeros_like(mine[name])
