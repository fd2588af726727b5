"""Low-rank adapters by `peft`, with one switch for all of them, or for the rows of a batch.

LoRA (Hu et al. 2021), DoRA (Liu et al. 2024) and AdaLoRA (Zhang et al. 2023). Switched off,
each wrapped layer makes exactly the product of its base layer, so the output is that of the
base model to the bit. In a batch of several languages the base product is made of all rows
together, as the base model makes it, and what the adapters add is taken up by some rows
alone: the others stay equal to the bit. On disk they are in peft's own format, and
`PeftModel.from_pretrained` loads them. `peft` is imported on use: it takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from config.errors import UserError
from config.schema import AdapterKind, TrainOptions
from core.library import tensor_files
from core.voice_model.rank_allocation import RankAllocation

if TYPE_CHECKING:
    from peft import LoraConfig

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
_PEFT_PREFIX = "base_model.model."  # where PeftModel keeps the wrapped module
_NAME = "default"
_MARK = ".lora_"
_FIRST_SHARE = 1.5  # of the rank that AdaLoRA ends with on average, it begins with this much in every layer


@dataclass(frozen=True)
class AdapterPlan:
    """What adapters to make. `steps` are those of the run, over which AdaLoRA shares out its ranks."""

    kind: AdapterKind
    ranks: Mapping[str, int]  # by the last part of the names of the layers that are wrapped
    dropout: float = 0.0
    scale: float = 2.0  # alpha over rank
    steps: int = 1


def plan(options: TrainOptions, targets: Mapping[str, Sequence[str]]) -> AdapterPlan:
    """The adapters that `options` ask for on the layers of `targets`, by what they are part of."""
    asked = {"attention": options.adapter_rank, "mlp": options.adapter_rank_mlp, "heads": options.adapter_rank_heads}
    ranks = {part: options.adapter_rank if asked.get(part) is None else asked[part] or 0 for part in targets}
    if not any(ranks.values()):
        raise UserError("The adapters have rank 0 in every part of the model: there would be none.",
                        "Give one part a rank above 0, or choose the scope `rows`, which has no adapters.")
    if options.adapter == "adalora" and len(set(ranks.values()) - {0}) > 1:
        told = ", ".join(f"{part} {rank}" for part, rank in ranks.items())
        raise UserError(f"AdaLoRA shares one budget of ranks out over all layers; these ask for several: {told}.",
                        "Leave the ranks of single parts empty, or 0 for no adapters there, or choose `lora`.")
    return AdapterPlan(options.adapter, {name: ranks[part] for part, names in targets.items() for name in names
                                         if ranks[part]}, options.adapter_dropout, options.adapter_scale,
                       options.steps)


class Adapters:
    """The adapters inside one module; off until switched on."""

    def __init__(self, module: nn.Module, config: LoraConfig, seed: int = 0) -> None:
        """Wrap the layers of `module` that `config` names; the first factors are drawn from `seed`."""
        from peft import AdaLoraModel, LoraModel
        from peft.tuners.lora import LoraLayer

        allotting = config.peft_type == "ADALORA"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tuner = (AdaLoraModel if allotting else LoraModel)(module, config, adapter_name=_NAME)
        self.module, self.config = module, config
        self.allocation = RankAllocation(tuner) if allotting else None
        self._layers = [layer for layer in module.modules() if isinstance(layer, LoraLayer)]
        self._masks: dict[tuple[bool, ...], torch.Tensor] = {}  # kept: a captured step reads them where they are
        if getattr(config, "use_dora", False):
            from core.voice_model.dora import RememberedDora

            for layer in self._layers:
                layer.lora_variant[_NAME] = RememberedDora()
        module.train(module.training)  # what was put in, as the module around it
        self.on = False
        self.switch(False)

    @classmethod
    def fresh(cls, module: nn.Module, plan: AdapterPlan, seed: int) -> Adapters:
        """Adapters as planned; they start without effect, but for rounding in DoRA."""
        return cls(module, _config(plan), seed)

    @classmethod
    def load(cls, module: nn.Module, folder: Path) -> Adapters:
        """Adapters that `save` wrote; `UserError` when they do not fit `module`."""
        from peft import PeftConfig

        adapters = cls(module, PeftConfig.from_pretrained(str(folder)))
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
        adapters.settle()
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
        return {_stored_name(name): value for name, value in self.parameters().items()}

    @property
    def scale(self) -> float:
        """Alpha over rank."""
        return scale_of(self.config.to_dict())

    def carries_scale(self, name: str) -> bool:
        """Whether what the adapter adds is in proportion to this tensor, alone of its layer's."""
        return (".lora_E" if self.allocation else ".lora_B") in name

    def folded(self) -> dict[str, torch.Tensor]:
        """The weights that are wrapped, by their names in the base, with what the adapters add to them."""
        from peft.tuners.lora import LoraLayer

        layers = {name: layer for name, layer in self.module.named_modules() if isinstance(layer, LoraLayer)}
        with torch.no_grad():
            return {f"{name}.weight": _folded(layer) for name, layer in layers.items()}

    def switch(self, on: bool) -> None:
        """Let every adapter act, or none."""
        for layer in self._layers:
            layer.enable_adapters(on)
        self.on = on

    def settle(self) -> None:
        """Compute what the adapters keep of the base's weights, while these are still as they were loaded."""
        for layer in self._layers:
            if (variant := layer.lora_variant.get(_NAME)) is not None:
                variant.scale(layer, _NAME)

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

    @contextmanager
    def in_rows(self, rows: Sequence[bool]) -> Iterator[None]:
        """Context in which the adapters act on these rows of a batch alone; for speaking.

        A batch may hold the rows several times over, one copy after another, as guidance does.
        """
        wanted = tuple(rows)
        if wanted not in self._masks:
            self._masks[wanted] = torch.tensor(wanted, device=next(self.module.parameters()).device)
        with self.switched(True), ExitStack() as stack:
            for layer in self._layers:
                stack.enter_context(_gated(layer, self._masks[wanted], wanted))
            yield


@contextmanager
def _gated(layer: nn.Module, mask: torch.Tensor, rows: tuple[bool, ...]) -> Iterator[None]:
    """Let one layer's adapter act on the rows of `mask` alone."""
    kept: list[torch.Tensor] = []

    def keep(_module: nn.Module, _given: object, made: torch.Tensor) -> None:
        kept[:] = [made.clone()]  # AdaLoRA adds to the base product in place

    def blend(_module: nn.Module, _given: object, made: torch.Tensor) -> torch.Tensor:
        plain = kept.pop()
        if len(plain) % len(mask):
            raise ValueError(f"{len(plain)} rows for {len(mask)} switches")
        switches = mask.repeat(len(plain) // len(mask)).reshape(-1, *[1] * (plain.dim() - 1))
        return torch.where(switches, made, plain)

    hooks = [layer.base_layer.register_forward_hook(keep), layer.register_forward_hook(blend)]  # type: ignore[union-attr]
    layer.rows_switched = rows  # type: ignore[assignment]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        del layer.rows_switched


def _config(plan: AdapterPlan) -> LoraConfig:
    """peft's own settings."""
    from peft import AdaLoraConfig, LoraConfig

    targets = list(plan.ranks)
    if plan.kind == "adalora":
        wanted = max(plan.ranks.values())
        first = max(wanted + 1, round(_FIRST_SHARE * wanted))
        return AdaLoraConfig(
            target_r=wanted, init_r=first, lora_alpha=plan.scale * first, lora_dropout=plan.dropout,
            target_modules=targets, bias="none", total_step=plan.steps, orth_reg_weight=0.1,
            tinit=plan.steps // 10, tfinal=plan.steps // 3, deltaT=max(1, plan.steps // 100),
        )
    most = max(plan.ranks.values())
    fewer = {name: rank for name, rank in plan.ranks.items() if rank != most}
    alphas = {name: plan.scale * rank for name, rank in fewer.items()}
    return LoraConfig(r=most, lora_alpha=plan.scale * most, lora_dropout=plan.dropout, target_modules=targets,
                      bias="none", rank_pattern=fewer, alpha_pattern=alphas, use_dora=plan.kind == "dora")


def scale_of(config: Mapping[str, Any]) -> float:
    """Alpha over rank, by peft's own settings; `plan` asks for the same in every layer."""
    return float(config["lora_alpha"]) / float(config["init_r" if config.get("peft_type") == "ADALORA" else "r"])


def _folded(layer) -> torch.Tensor:
    folded = layer.get_base_layer().weight + layer.get_delta_weight(_NAME)
    variant = layer.lora_variant.get(_NAME)
    return folded if variant is None else variant.scale(layer, _NAME)[:, None] * folded


def _stored_name(name: str) -> str:
    """peft leaves out the adapter's name, and the last part of a magnitude's."""
    stored = re.sub(rf"\.{_NAME}(?=\.|$)", "", name)
    return stored.removesuffix(".weight") if ".lora_magnitude_vector." in stored else stored
