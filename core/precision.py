"""Whether a run computes in bfloat16: only where the hardware has it.

`torch.cuda.is_bf16_supported()` is not asked: it is true by emulation on cards that take
twice as long with it (a T4). Weights and optimizer stay float32; bfloat16 is for products.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from config.errors import UserError

_CPU_FEATURES = ("avx512_bf16", "amx_bf16")


@dataclass(frozen=True)
class Precision:
    """What products are computed in on `device`, and why."""

    device: str
    bfloat16: bool
    reason: str

    def autocast(self) -> AbstractContextManager[None]:
        """Context in which forward passes run."""
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.bfloat16)

    def __str__(self) -> str:
        return f"{'bfloat16' if self.bfloat16 else 'float32'} ({self.reason})"


def decide(asked: str, device: torch.device) -> Precision:
    """`asked` is `auto`, `float32` or `bfloat16`; the last is refused where it would be emulated."""
    has, reason = _hardware(device)
    if asked == "bfloat16" and not has:
        raise UserError(f"There is no bfloat16 on this device: {reason}.", "Choose the precision `auto` or `float32`.")
    if asked == "float32":
        return Precision(device.type, False, "asked for")
    return Precision(device.type, has, reason)


def _hardware(device: torch.device) -> tuple[bool, str]:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return major >= 8, f"compute capability {major}.{minor}"
    if device.type != "cpu":
        return False, f"not known for {device.type}"
    found = [name for name in _CPU_FEATURES if torch.cpu.get_capabilities().get(name)]
    return bool(found), f"the processor has {found[0] if found else 'neither ' + ' nor '.join(_CPU_FEATURES)}"
