"""What a run trains, by name, and at which rate: rows, adapters, and in `full` the base itself.

Rows are not decayed, or the letters that a clip does not have would fade. Tensors of the
base are not decayed either: zero is not where they came from; `l2_sp` and `ewc` pull them
back to where they were (`core.training.anchors`). Nor are DoRA's magnitudes, which begin at
the norms of the base's own weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from config.schema import TrainOptions
from core.model.loading import VoiceModel
from core.model.prefix import is_of_base, new_rows
from models.base import SpeechModel

ROWS, ADAPTERS, MAGNITUDES, EMBEDDINGS, HEADS = "rows", "adapters", "magnitudes", "embeddings", "heads"
_FACTORS = (".lora_A.", ".lora_B.", ".lora_E")  # that are about zero when they begin
PARTS = (EMBEDDINGS, "layers", HEADS)  # of the base
_CHANGED: Mapping[str, tuple[str, ...]] = {"everything": PARTS, "layers": PARTS[1:], "heads": PARTS[2:]}


@dataclass(frozen=True)
class Trainables:
    """Every parameter that may change, by name; `base` are the base's own."""

    rows: dict[str, nn.Parameter]
    adapters: dict[str, nn.Parameter]
    base: dict[str, nn.Parameter] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """Rows, then adapters, then the base's."""
        return {**self.rows, **self.adapters, **self.base}


@dataclass(frozen=True)
class Group:
    """Parameters that are trained at one peak rate."""

    name: str
    parameters: Mapping[str, nn.Parameter]
    rate: float
    decay: float = 0.0

    @property
    def size(self) -> int:
        """Numbers in it."""
        return sum(value.numel() for value in self.parameters.values())

    def __str__(self) -> str:
        decayed = f"weight decay {self.decay:g}" if self.decay else "no weight decay"
        return f"{self.name}: {self.size:,} parameters in {len(self.parameters)} tensors, rate {self.rate:g}, {decayed}"


def has_adapters(options: TrainOptions) -> bool:
    """Whether a run with these options trains adapters."""
    return options.scope == "gated" or (options.scope == "full" and options.full_trainable == ADAPTERS)


def changed_parts(options: TrainOptions) -> tuple[str, ...]:
    """The parts of the base that a run with these options trains."""
    return _CHANGED.get(options.full_trainable, ()) if options.scope == "full" else ()


def trainables(voice: VoiceModel, options: TrainOptions) -> Trainables:
    """Open to training what the scope allows; all else of the module stays frozen."""
    module = voice.model.module
    rows = {f"{name}.new": rows for name, rows in new_rows(module, voice.model.text_tables).items()}
    changed = changed_parts(options)
    base = {name: value for name, value in module.named_parameters()
            if is_of_base(name) and voice.model.parameter_group(name)[0] in changed}
    found = Trainables(rows, voice.adapters.parameters() if voice.adapters else {}, base)
    for parameter in found.named.values():
        parameter.requires_grad_(True)
    open_names = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert open_names == set(found.named), open_names ^ set(found.named)
    return found


def groups(found: Trainables, options: TrainOptions, model: SpeechModel) -> list[Group]:
    """The parameters in the optimizer's order, each group with its peak rate; the base's from the output down."""
    made = [Group(ROWS, found.rows, options.row_lr)]
    factors = {name: value for name, value in found.adapters.items() if any(mark in name for mark in _FACTORS)}
    if factors:
        made.append(Group(ADAPTERS, factors, options.adapter_lr, options.weight_decay))
    if others := {name: value for name, value in found.adapters.items() if name not in factors}:
        made.append(Group(MAGNITUDES, others, options.adapter_lr))
    places: dict[tuple[int, str], dict[str, nn.Parameter]] = {}
    for name, value in found.base.items():
        part, depth = model.parameter_group(name)
        places.setdefault((depth, part), {})[name] = value
    for (depth, part), parameters in sorted(places.items(), key=lambda item: item[0]):
        top = options.head_lr if part == HEADS else options.layer_lr
        name = f"layer {depth} from the top" if part == "layers" else part
        made.append(Group(name, parameters, top * options.layer_lr_decay ** max(0, depth - 1)))
    return made


def decayed_as(saved: Mapping[str, float], made: Sequence[Group], optimizer: torch.optim.Optimizer) -> list[Group]:
    """The groups, decayed as in the run that goes on: by name in `saved`, which is empty in checkpoints of before.

    They were made when all of the adapters was decayed.
    """
    own = {group.name: group.decay for group in made}
    own |= saved or {MAGNITUDES: own.get(ADAPTERS, 0.0)}
    found = [replace(group, decay=own[group.name]) for group in made]
    for group, held in zip(found, optimizer.param_groups, strict=True):
        held["weight_decay"] = group.decay
    return found


def rates(made: Sequence[Group], optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The rates of the last step by group; of layers whose rates differ, the highest and the lowest."""
    now = [(group.name, float(held["lr"])) for group, held in zip(made, optimizer.param_groups, strict=True)
           if group.name != MAGNITUDES]  # theirs is that of the adapters
    layers = [rate for name, rate in now if name.startswith("layer")]
    found = {name: rate for name, rate in now if not name.startswith("layer")}
    if layers:
        found |= {"layers": layers[0]} if min(layers) == max(layers) else {
            "top layer": max(layers), "bottom layer": min(layers)}
    return {name: float(f"{rate:.4g}") for name, rate in found.items()}


def table(made: list[Group]) -> tuple[str, ...]:
    """A line a group; layers that share a rate, as without layer decay, are one line."""
    lines: list[Group] = []
    for group in made:
        last = lines[-1] if lines else None
        if last and group.name.startswith("layer") and last.name.startswith("layer") and last.rate == group.rate:
            lines[-1] = Group("layers", {**last.parameters, **group.parameters}, group.rate, group.decay)
        else:
            lines.append(group)
    return tuple(str(group) for group in lines)
