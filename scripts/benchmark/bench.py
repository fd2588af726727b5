"""What every part is given: how much to measure, on what, and the package to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from core.training import memory_plan
from core.voice_model import precision
from scripts.benchmark.extent import Extent
from scripts.benchmark.reference import Reference


@dataclass(frozen=True)
class Bench:
    """`say` hears how far the benchmark is; `reference` is None when ours alone is measured."""

    extent: Extent
    device: torch.device
    reference: Reference | None
    say: Callable[[str], None]

    def half(self) -> torch.dtype | None:
        """The half precision of the hardware, None where it has none."""
        found = precision.decide("auto", self.device).dtype
        return None if found is torch.float32 else found

    def smaller(self, extent: Extent) -> Bench:
        """The same with another extent."""
        return replace(self, extent=extent)

    def tidy(self) -> None:
        """Give back what a part held, here and in the package."""
        memory_plan.release_memory()
        if self.reference is not None:
            self.reference.ask("drop")
