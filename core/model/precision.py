"""Precision of training and of synthesis: half precision if the hardware has it, for frozen weights too.

For synthesis on a CPU also where it only reads such weights faster.

`torch.cuda.is_bf16_supported()` is not used: it is true by emulation on cards that take twice as long with it (a T4).
Those compute in float16, which is as fast there; its small numbers vanish, so the loss is scaled up. Trained parameters
and their optimizer stay in float32.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from config.errors import UserError
from core import compute
from core.model.loading import TTSModel
from core.model.prefix import is_count
from models.base import Vocoder

_LARGE = 50_000_000  # parameters
_CPU_FEATURES = ("avx512_bf16", "amx_bf16")
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class Precision:
    """What products are computed in on `device`, and why."""

    device: str
    dtype: torch.dtype
    reason: str

    def autocast(self, *, keep_casts: bool = True) -> AbstractContextManager[None]:
        """Context in which forward passes of a training run; `keep_casts`: those of weights live until it ends."""
        return torch.autocast(self.device, dtype=self.dtype, enabled=self.dtype is not torch.float32,
                              cache_enabled=keep_casts)

    def cast(self, module: nn.Module, trained: Collection[str]) -> None:
        """Keep the tensors of a checkpoint of `module` in this precision, except for the `trained` parameters."""
        for name, value in module.state_dict(keep_vars=True).items():
            if name not in trained and not is_count(name) and value.is_floating_point():
                value.data = value.data.to(self.dtype)

    def scaler(self) -> GradScaler:
        """Scales the loss in float16, and does nothing otherwise."""
        return GradScaler(self.device, enabled=self.dtype is torch.float16)

    @property
    def name(self) -> str:
        """Of the type."""
        return _NAMES[self.dtype]

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def decide(requested: str, device: torch.device) -> Precision:
    """The precision `requested`: `auto`, or the name of a type; a type that the hardware would emulate is refused."""
    has, reason = _hardware(device)
    dtype = next((dtype for dtype, name in _NAMES.items() if name == requested), has[0])
    if dtype not in (*has, torch.float32):
        offered = " or ".join(f"`{name}`" for name in ("auto", *dict.fromkeys((_NAMES[has[0]], "float32"))))
        raise UserError(f"There is no {requested} on this device: {reason}.", f"Choose the precision {offered}.")
    return Precision(device.type, dtype, "asked for" if requested == "float32" else reason)


def _hardware(device: torch.device) -> tuple[tuple[torch.dtype, ...], str]:
    """The types that `device` multiplies fast, the best first, and how that is known."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        halves = (torch.bfloat16, torch.float16) if major >= 8 else (torch.float16,) if major == 7 else ()
        return (*halves, torch.float32), f"compute capability {major}.{minor}"
    if device.type != "cpu":
        return (torch.float32,), f"not known for {device.type}"
    features = [name for name in _CPU_FEATURES if compute.cpu_capabilities().get(name)]
    best = (torch.bfloat16, torch.float32) if features else (torch.float32,)
    return best, f"the processor has {features[0] if features else 'neither ' + ' nor '.join(_CPU_FEATURES)}"


def apply_synthesis_precision(requested: str, model: TTSModel, vocoder: Vocoder) -> str:
    """Cast or quantize both for synthesis to the precision `requested`, or the best for `auto`; returns a description.

    This cannot be undone: load the model again to prove anything. A CPU reads all weights for each code, so fewer bytes
    take less time for few rows, even if bfloat16 must be widened; a small model gains nothing.
    """

    module, device = model.lm.module, model.device
    if requested == "auto" and sum(value.numel() for value in module.parameters()) < _LARGE:
        return "float32 (the model is small)"

    if requested == "int8":
        if device.type != "cpu":
            raise UserError("8-bit weights are for the CPU; the device is CUDA.", "Choose the precision `auto`.")
        size = model.lm.quantize_("int8")
        return f"int8 weights, {size / 1e9:.2f} GB a step; the vocoder in float32"

    # Without fast bfloat16 products, bfloat16 still halves the bytes that a step reads.
    if (device.type == "cpu" and requested != "float32" and torch.bfloat16 not in _hardware(device)[0]
            and compute.reads_bfloat16_fast()):
        size = model.lm.quantize_("bfloat16")
        return f"bfloat16 weights, {size / 1e9:.2f} GB a step, computed in float32; the vocoder in float32"

    chosen = decide(requested, device)
    if chosen.dtype is torch.float32:
        return str(chosen)

    # The weights are stored as the products read them; the vocoder follows.
    if device.type == "cpu":
        model.lm.quantize_("bfloat16")
    else:
        chosen.cast(module, ())
    vocoder.cast_(chosen.dtype)
    return str(chosen)
