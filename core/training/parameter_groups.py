"""The parameters that a run trains, by name (rows, adapters, and in `full` the base itself), and their learning rates.

Weight decay applies to adapter factors alone. It would shrink the rows of characters that are rare in the clips. It
would pull tensors of the base towards zero, while `l2_sp` and `ewc` pull them towards their initial values
(`core.training.weight_regularization`); the same holds for DoRA's magnitudes, which start at the norms of the base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import nn

from config.schema import FullOptions, OptimizationOptions, TrainOptions
from core.jobs.reporter import pluralize
from core.model.loading import TTSModel
from core.model.prefix import is_of_base, is_of_earlier_training, parameter_name, whole_table
from models.base import LanguageModel

ROWS, ADAPTERS, MAGNITUDES, EMBEDDINGS, HEADS = "rows", "adapters", "magnitudes", "embeddings", "heads"
_FACTORS = (".lora_A.", ".lora_B.", ".lora_E")  # parts of the names of adapter factors, which start near zero
PARTS = (EMBEDDINGS, "layers", HEADS)  # parts of the base
_PARTS_OF_OPTION: Mapping[str, tuple[str, ...]] = {  # `full_trainable`
    "everything": PARTS, "layers": PARTS[1:], "heads": PARTS[2:]}
_MAX_WARMUP_SHARE = 1 / 5  # share of the steps, if a time limit or a number of epochs shortens them


@dataclass(frozen=True)
class LearningRateSchedule:
    """The number of steps, and the factor of the peak learning rates at each: linear warmup, then decay to `min_ratio`.

    At `start_step` the decay is at `start_progress` (0 to 1). From there it advances evenly, to 1 at the last step. A
    checkpoint holds the schedule, so a resumed run has the same learning rates.
    """

    kind: Literal["cosine", "linear", "constant"]
    steps: int
    warmup: int
    min_ratio: float
    start_step: int
    start_progress: float = 0.0

    @classmethod
    def from_options(cls, options: OptimizationOptions, steps: int) -> LearningRateSchedule:
        """The schedule over `steps` steps."""
        return cls(options.schedule, steps, options.warmup, options.min_lr_ratio, options.warmup)

    def factor(self, step: int) -> float:
        """The factor of the peak learning rates at `step`, which counts from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.kind == "constant":
            return 1.0
        progress = self._progress_at(step)
        decay = 1 - progress if self.kind == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        return self.min_ratio + (1 - self.min_ratio) * decay

    def _progress_at(self, step: int) -> float:
        """How much of the decay is done at `step`, 0 to 1."""
        advance = (1.0 - self.start_progress) * (step - self.start_step) / max(1, self.steps - self.start_step)
        return min(1.0, self.start_progress + advance)

    def with_last_step(self, steps: int, step: int) -> LearningRateSchedule:
        """This schedule with `steps` steps in all, from `step` on and without a jump of the learning rate."""
        if step == 0:
            warmup = min(self.warmup, max(1, int(steps * _MAX_WARMUP_SHARE))) if self.warmup else 0
            return replace(self, steps=steps, warmup=warmup, start_step=warmup, start_progress=0.0)
        start = max(step, self.warmup)
        return replace(self, steps=steps, start_step=start, start_progress=self._progress_at(start))


@dataclass(frozen=True)
class Trainables:
    """Every trainable parameter by name; `base` are those of the base model."""

    rows: dict[str, nn.Parameter]
    adapters: dict[str, nn.Parameter]
    base: dict[str, nn.Parameter] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """All of them: rows, then adapters, then those of the base."""
        return {**self.rows, **self.adapters, **self.base}


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with the same peak learning rate and weight decay."""

    name: str
    parameters: Mapping[str, nn.Parameter]
    lr: float
    weight_decay: float = 0.0

    @property
    def size(self) -> int:
        """The number of scalar parameters."""
        return sum(value.numel() for value in self.parameters.values())

    def __str__(self) -> str:
        decayed = f"weight decay {self.weight_decay:g}" if self.weight_decay else "no weight decay"
        return (f"{self.name}: {self.size:,} parameters in {pluralize(len(self.parameters), 'tensor')}, learning rate "
                f"{self.lr:g}, {decayed}")


def has_adapters(options: TrainOptions) -> bool:
    """Whether a run with these options trains adapters."""
    return options.scope == "gated" or (options.scope == "full" and options.full.full_trainable == ADAPTERS)


def changed_parts(options: TrainOptions) -> tuple[str, ...]:
    """The parts of the base that a run with these options trains."""
    return _PARTS_OF_OPTION.get(options.full.full_trainable, ()) if options.scope == "full" else ()


def unfreeze_trainables(tts: TTSModel, options: TrainOptions) -> Trainables:
    """Set `requires_grad` on the parameters that the scope trains; all others stay frozen."""
    module = tts.lm.module
    rows = {name: module.get_parameter(name) for name in map(parameter_name, tts.lm.text_tables)}
    trained_parts = changed_parts(options)
    base = {name: value for name, value in module.named_parameters()
            if is_of_base(name) and not is_of_earlier_training(name)
            and tts.lm.parameter_group(name)[0] in trained_parts}
    trainables = Trainables(rows, tts.adapters.parameters() if tts.adapters else {}, base)
    for parameter in trainables.named.values():
        parameter.requires_grad_(True)
    unfrozen = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert unfrozen == set(trainables.named), unfrozen ^ set(trainables.named)
    return trainables


def make_parameter_groups(trainables: Trainables, options: OptimizationOptions, full: FullOptions,
                          lm: LanguageModel) -> list[ParameterGroup]:
    """The parameter groups in the optimizer's order; those of the base from the output to the input."""
    groups = [ParameterGroup(ROWS, trainables.rows, options.row_lr)]
    factors = {name: value for name, value in trainables.adapters.items() if any(mark in name for mark in _FACTORS)}
    if factors:
        groups.append(ParameterGroup(ADAPTERS, factors, options.adapter_lr, options.weight_decay))
    magnitudes = {name: value for name, value in trainables.adapters.items() if name not in factors}
    if magnitudes:
        groups.append(ParameterGroup(MAGNITUDES, magnitudes, options.adapter_lr))

    # Layers far from the output get lower learning rates.
    by_depth: dict[tuple[int, str], dict[str, nn.Parameter]] = {}
    for name, value in trainables.base.items():
        part, depth = lm.parameter_group(name)
        by_depth.setdefault((depth, part), {})[name] = value
    for (depth, part), parameters in sorted(by_depth.items(), key=lambda item: item[0]):
        lr = full.head_lr if part == HEADS else full.layer_lr
        name = f"layer {depth} from the top" if part == "layers" else part
        groups.append(ParameterGroup(name, parameters, lr * full.layer_lr_decay ** max(0, depth - 1)))
    return groups


def learning_rates(groups: Sequence[ParameterGroup], optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rates of the last step by group; if those of the layers differ, only the highest and the lowest."""
    rates = [(group.name, float(param_group["lr"]))
             for group, param_group in zip(groups, optimizer.param_groups, strict=True)
             if group.name != MAGNITUDES]  # the same learning rate as the adapters
    layers = [rate for name, rate in rates if name.startswith("layer")]
    by_group = {name: rate for name, rate in rates if not name.startswith("layer")}
    if layers:
        by_group |= {"layers": layers[0]} if min(layers) == max(layers) else {
            "top layer": max(layers), "bottom layer": min(layers)}
    return {name: float(f"{rate:.4g}") for name, rate in by_group.items()}


def describe_groups(groups: list[ParameterGroup]) -> tuple[str, ...]:
    """One line per group; neighbouring layers with the same learning rate share a line."""
    lines: list[ParameterGroup] = []
    for group in groups:
        last = lines[-1] if lines else None
        if last and group.name.startswith("layer") and last.name.startswith("layer") and last.lr == group.lr:
            lines[-1] = ParameterGroup("layers", {**last.parameters, **group.parameters}, group.lr,
                                       group.weight_decay)
        else:
            lines.append(group)
    return tuple(str(group) for group in lines)


@dataclass(frozen=True)
class ParameterCounts:
    """How much is trained and how much is frozen; `*_parameters` count scalars."""

    new_rows: int
    old_rows: int
    row_parameters: int
    adapter_parameters: int
    frozen_parameters: int  # scalars of the base
    changed_parameters: int = 0  # scalars of the base that scope `full` trains


def count_parameters(tts: TTSModel, trainables: Trainables) -> ParameterCounts:
    """Count the parameters of `tts` and those of `trainables`."""
    module, tables = tts.lm.module, tts.lm.text_tables
    rows, adapters, base = (sum(value.numel() for value in part.values())
                            for part in (trainables.rows, trainables.adapters, trainables.base))
    everything = sum(value.numel() for value in module.state_dict().values())
    new = len(next(iter(trainables.rows.values())))
    old = len(whole_table(module, tables[0])) - new
    return ParameterCounts(new, old, rows, adapters, everything - rows - adapters - base, base)
