"""The context of every part of the benchmark: sizes, device and the published package."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from config.errors import UserError
from core import compute
from core.model import precision
from scripts.dev.benchmark.reference import PublishedPackage
from scripts.dev.benchmark.results import BenchmarkRow
from scripts.dev.benchmark.sizes import BenchmarkSizes

ModuleT = TypeVar("ModuleT", bound=nn.Module)


@dataclass(frozen=True)
class Bench:
    """`say` prints progress, `keep` writes rows before their part ends; `reference` is None without a comparison."""

    sizes: BenchmarkSizes
    device: torch.device
    reference: PublishedPackage | None
    say: Callable[[str], None]
    keep: Callable[[Sequence[BenchmarkRow]], None] = lambda rows: None

    def half(self) -> torch.dtype | None:
        """The half precision of the hardware, or None."""
        dtype = precision.decide("auto", self.device).dtype
        return None if dtype is torch.float32 else dtype

    def halves(self) -> list[str]:
        """The names of all half precisions that the hardware has."""
        names = []
        for name in ("bfloat16", "float16"):
            with suppress(UserError):
                names.append(precision.decide(name, self.device).name)
        return names

    def quantized(self) -> list[str]:
        """The kinds of quantized weights that a CPU speaks with."""
        return ["bfloat16", "int8"] if self.halves() or compute.reads_bfloat16_fast() else ["int8"]

    def on_cpu(self, module: ModuleT) -> ModuleT:
        """The module, or on another device a copy on the CPU, which errors are measured against."""
        return module if self.device.type == "cpu" else copy.deepcopy(module).to("cpu")

    def smaller(self, sizes: BenchmarkSizes) -> Bench:
        """The same with other sizes."""
        return replace(self, sizes=sizes)

    def tidy(self) -> None:
        """Free the memory of a part, here and in the package."""
        release_memory()
        if self.reference is not None:
            self.reference.ask("drop")


def release_memory() -> None:
    """Hand memory that nothing uses any more back to the system, which an allocator else keeps for the next time."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    compute.trim_memory()
