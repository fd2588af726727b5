"""Low-rank adapters (LoRA, Hu et al. 2021) by `peft`, with one switch for all of them.

Switched off, each wrapped layer makes exactly the product of its base layer, so the output
is that of the base model to the bit. On disk they are in peft's own format, and
`PeftModel.from_pretrained` loads them. `peft` is imported on use: it takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from config.errors import UserError
from core import tensor_files

if TYPE_CHECKING:
    from peft import LoraConfig

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
_PEFT_PREFIX = "base_model.model."  # where PeftModel keeps the wrapped module
_MARK = ".lora_"


class Adapters:
    """The adapters inside one module; off until switched on."""

    def __init__(self, module: nn.Module, config: LoraConfig, seed: int = 0) -> None:
        """Wrap the layers of `module` that `config` names; the first factors are drawn from `seed`."""
        from peft import inject_adapter_in_model
        from peft.tuners.tuners_utils import BaseTunerLayer

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, module)
        self.module, self.config = module, config
        self._layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
        self.on = False
        self.switch(False)

    @classmethod
    def fresh(cls, module: nn.Module, targets: Sequence[str], rank: int, dropout: float, seed: int) -> Adapters:
        """Adapters on the linear layers whose names end in one of `targets`; they start without effect."""
        from peft import LoraConfig

        return cls(module, LoraConfig(
            r=rank, lora_alpha=2 * rank, lora_dropout=dropout, target_modules=list(targets), bias="none",
        ), seed)

    @classmethod
    def load(cls, module: nn.Module, folder: Path) -> Adapters:
        """Adapters that `save` wrote; `UserError` when they do not fit `module`."""
        from peft import LoraConfig

        adapters = cls(module, LoraConfig.from_pretrained(str(folder)))
        stored = tensor_files.read(folder / WEIGHTS, "Take another checkpoint.")
        tensors = {name.removeprefix(_PEFT_PREFIX): value for name, value in stored.items()}
        own = adapters.tensors()
        if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in tensors.items()}:
            raise UserError(
                f"The adapters in {folder} do not fit the model: {len(tensors)} tensors there, {len(own)} wanted.",
                "They belong to another base model.",
            )
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(tensors[name])
        return adapters

    def save(self, folder: Path) -> None:
        """Write peft's two files into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(str(folder))
        tensor_files.write(folder / WEIGHTS, {_PEFT_PREFIX + name: value for name, value in self.tensors().items()})

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained factors by their names in the module."""
        return {name: value for name, value in self.module.named_parameters() if _MARK in name}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The trained factors by peft's names, without the adapter's own."""
        return {name.replace(".default.", "."): value for name, value in self.parameters().items()}

    def switch(self, on: bool) -> None:
        """Let every adapter act, or none."""
        for layer in self._layers:
            layer.enable_adapters(on)
        self.on = on

    @contextmanager
    def uncast(self) -> Iterator[None]:
        """Context in which rows go into the adapters as they are; peft casts them to the adapters' type otherwise.

        For training under autocast, which casts what it needs itself: casting twice costs a tenth of a step.
        """
        for layer in self._layers:
            layer.cast_input_dtype_enabled = False
        try:
            yield
        finally:
            for layer in self._layers:
                layer.cast_input_dtype_enabled = True

    @contextmanager
    def switched(self, on: bool) -> Iterator[None]:
        """`switch` for a while."""
        before = self.on
        self.switch(on)
        try:
            yield
        finally:
            self.switch(before)
