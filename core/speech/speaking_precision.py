"""What the language model and the vocoder compute in while they speak. For good: load a model again to prove anything.

A processor reads all weights for each code, so that fewer bytes are less time; the built-in
model is too small for that to matter. On CUDA half precision follows `core.voice_model.precision`.
"""

from __future__ import annotations

import torch

from config.errors import UserError
from core.voice_model import precision
from core.voice_model.loading import VoiceModel
from models.base import Vocoder

_LARGE = 50_000_000  # parameters


def apply(asked: str, model: VoiceModel, vocoder: Vocoder) -> str:
    """Put both into the precision `asked` for, or the best one for `auto`; what was done, in words."""
    module, device = model.model.module, model.device
    if asked == "auto" and sum(value.numel() for value in module.parameters()) < _LARGE:
        return "float32 (the model is small)"
    if asked == "int8":
        if device.type != "cpu":
            raise UserError("8-bit weights are for the CPU; the device is CUDA.", "Choose the precision `auto`.")
        size = model.model.quantize_("int8")
        return f"int8 weights, {size / 1e9:.2f} GB a step; the vocoder in float32"
    chosen = precision.decide(asked, device)
    if chosen.dtype is torch.float32:
        return str(chosen)
    if device.type == "cpu":
        model.model.quantize_("bfloat16")
    else:
        chosen.cast(module, ())
    vocoder.to_half(chosen.dtype)
    return str(chosen)
