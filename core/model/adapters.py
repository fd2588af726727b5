"""Low-rank adapters by `peft`: LoRA (Hu et al. 2021), DoRA (Liu et al. 2024) and AdaLoRA (Zhang et al. 2023).

The adapters of a module are enabled or disabled together, also for single rows of a batch. If they are disabled, each
wrapped layer computes exactly the product of its base layer, so the output is bit-identical to the base model's. In a
batch of several languages the base product is computed for all rows together, as in the base model, and the adapters'
output is added to some of the rows. Files are in peft's format: `PeftModel.from_pretrained` loads them.

`peft` is imported in functions: it takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from config import foreign
from config.errors import UserError
from config.schema import AdapterKind, AdapterOptions
from core.library.catalog import no_conditioner_layers
from core.model import tensor_files
from core.model.prefix import is_of_earlier_training

if TYPE_CHECKING:
    from peft import AdaLoraModel, LoraConfig

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PEFT_PREFIX = "base_model.model."  # prefix of the wrapped module's names in PeftModel
_NAME = "default"
_MARK = ".lora_"
_RANDOM_VALUES = 1 << 16  # possible values of the number that decides whether an element is dropped
_INITIAL_RANK_RATIO = 1.5  # AdaLoRA: rank at the start over the average rank at the end
_FOREIGN_HINT = "Take a checkpoint that Lisan made, or merge these adapters into their base where they were made."
_SETTABLE = frozenset((
    "peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "rank_pattern", "alpha_pattern", "use_dora",
    "target_r", "init_r", "total_step", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight",
    "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version", "auto_mapping"))
_IMPORTANCE, _UNCERTAINTY, _KEPT = "importance", "uncertainty", "kept"


@dataclass(frozen=True)
class AdapterPlan:
    """The adapters to make. `steps` are those of the run, over which AdaLoRA reduces its ranks."""

    kind: AdapterKind
    ranks: Mapping[str, int]  # rank by the last part of the name of a wrapped layer
    dropout: float = 0.0
    scale: float = 2.0  # alpha over rank
    steps: int = 1


def plan_adapters(options: AdapterOptions, targets: Mapping[str, Sequence[str]], steps: int) -> AdapterPlan:
    """The adapters of `options`; `targets` are the names of the layers by part of the model."""
    requested = {"attention": options.adapter_rank, "mlp": options.adapter_rank_mlp,
                 "heads": options.adapter_rank_heads, "conditioner": options.adapter_rank_conditioner}
    if options.adapter_rank_conditioner and "conditioner" not in targets:
        raise no_conditioner_layers(options.adapter_rank_conditioner)
    ranks = {part: options.adapter_rank if requested.get(part) is None else requested[part] or 0 for part in targets}
    if not any(ranks.values()):
        raise UserError("The adapters have rank 0 in every part of the model: there would be none.",
                        "Give one part a rank above 0, or choose the scope `rows`, which has no adapters.")

    # AdaLoRA moves ranks between layers, so parts cannot have ranks of their own.
    if options.adapter == "adalora" and len(set(ranks.values()) - {0}) > 1:
        listed = ", ".join(f"{part} {rank}" for part, rank in ranks.items())
        raise UserError(f"AdaLoRA allocates one budget of ranks over all layers; the options ask for: {listed}.",
                        "Leave the ranks of single parts empty, or 0 for no adapters there, or choose `lora`.")

    # Layers are found by the last part of their names.
    rank_of_layer: dict[str, int] = {}
    for part, names in targets.items():
        if ranks[part]:
            rank_of_layer |= dict.fromkeys(names, ranks[part])
    return AdapterPlan(options.adapter, rank_of_layer, options.adapter_dropout, options.adapter_scale, steps)


class Adapters:
    """The adapters of one training inside a module; disabled until `switch(True)`.

    A module may have adapters of several trainings, and at most one of these is enabled. Only those with the default
    name are trainable.
    """

    def __init__(self, module: nn.Module, config: LoraConfig, seed: int = 0, name: str = _NAME) -> None:
        """Wrap the layers of `module` that `config` names; `seed` draws the first factors."""
        from peft import AdaLoraModel, LoraModel
        from peft.tuners.lora import LoraLayer

        adaptive = config.peft_type == "ADALORA"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tuner = (AdaLoraModel if adaptive else LoraModel)(module, config, adapter_name=name)
        # Otherwise the next tuner of this module would share the configuration.
        del module.peft_config
        self.module, self.config, self.name = module, config, name
        self.allocation = RankAllocation(tuner) if adaptive and name == _NAME else None
        self._layers = [layer for layer in module.modules() if isinstance(layer, LoraLayer) and name in layer.scaling]
        self._masks: dict[int, torch.Tensor] = {}  # masks by length; a CUDA graph reads them in place

        for layer in self._layers:
            # At probability 0 peft has an identity.
            dropout = layer.lora_dropout[name]
            if isinstance(dropout, nn.Dropout):
                layer.lora_dropout[name] = FastCpuDropout(dropout.p)
        if getattr(config, "use_dora", False):
            for layer in self._layers:
                layer.lora_variant[name] = CachedNormDora()
        for path, value in module.named_parameters():
            # AdaLoRA's counts are no parameters to train, but peft unfreezes them when it moves them to a GPU.
            if ".ranknum." in path:
                value.requires_grad_(False)
        module.train(module.training)  # the new layers too
        self.on = False
        self.switch(False)

    @classmethod
    def fresh(cls, module: nn.Module, plan: AdapterPlan, seed: int) -> Adapters:
        """New adapters by `plan`; at first they have no effect, except rounding in DoRA."""
        from peft import AdaLoraConfig, LoraConfig

        rank = max(plan.ranks.values())
        if plan.kind == "adalora":
            # AdaLoRA starts with more ranks than it ends with.
            initial_rank = max(rank + 1, round(_INITIAL_RANK_RATIO * rank))
            return cls(module, AdaLoraConfig(
                target_r=rank, init_r=initial_rank, lora_alpha=plan.scale * initial_rank, lora_dropout=plan.dropout,
                target_modules=list(plan.ranks), bias="none", total_step=plan.steps, orth_reg_weight=0.1,
                tinit=plan.steps // 10, tfinal=plan.steps // 3, deltaT=max(1, plan.steps // 100),
            ), seed)

        # Parts with another rank keep the same scale.
        lower = {name: other for name, other in plan.ranks.items() if other != rank}
        return cls(module, LoraConfig(
            r=rank, lora_alpha=plan.scale * rank, lora_dropout=plan.dropout, target_modules=list(plan.ranks),
            bias="none", rank_pattern=lower, alpha_pattern={name: plan.scale * other for name, other in lower.items()},
            use_dora=plan.kind == "dora"), seed)

    @classmethod
    def load(cls, module: nn.Module, folder: Path, name: str = _NAME) -> Adapters:
        """The adapters that `save` wrote; `UserError` if they do not fit `module`."""
        from peft import PeftConfig

        check_settings(folder)
        with foreign.reading(folder / SETTINGS, _FOREIGN_HINT):
            adapters = cls(module, PeftConfig.from_pretrained(str(folder)), name=name)
        stored = tensor_files.read(folder / WEIGHTS, "Take another checkpoint.")
        # The weights are copied only if all names and shapes agree.
        tensors = {name.removeprefix(PEFT_PREFIX): value for name, value in stored.items()}
        expected = adapters.tensors()
        expected_shapes = {name: value.shape for name, value in expected.items()}
        if expected_shapes != {name: value.shape for name, value in tensors.items()}:
            raise UserError(
                f"The adapters in {folder} do not fit the model: {len(tensors)} tensors there, {len(expected)} wanted.",
                "They belong to another base model.",
            )
        with torch.no_grad():
            for path, value in expected.items():
                value.copy_(tensors[path])

        # The norms of DoRA are computed while the base's weights are still as they were loaded.
        for layer in adapters._layers:
            variant = layer.lora_variant.get(name)
            if variant is not None:
                variant.scale(layer, name)
        return adapters

    def save(self, folder: Path) -> None:
        """Write peft's two files into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.config.save_pretrained(str(folder))
        tensor_files.write(folder / WEIGHTS, {PEFT_PREFIX + name: value for name, value in self.tensors().items()})

    def parameters(self) -> dict[str, nn.Parameter]:
        """The factors by their names in the module."""
        factor_name = re.compile(rf"{re.escape(_MARK)}.*\.{re.escape(self.name)}(\.|$)")
        return {name: value for name, value in self.module.named_parameters() if factor_name.search(name)}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The factors by peft's names, without the adapter's own."""
        return {_stored_name(name, self.name): value for name, value in self.parameters().items()}

    @property
    def scale(self) -> float:
        """Alpha over rank."""
        return adapter_scale(self.config.to_dict())

    def carries_scale(self, name: str) -> bool:
        """Whether the adapter's output is proportional to this tensor, so that a scale can be multiplied into it."""
        return (".lora_E" if self.allocation else ".lora_B") in name

    @torch.no_grad()
    def merged_weights(self) -> dict[str, torch.Tensor]:
        """The wrapped weights by their names in the base, with the adapters merged into them."""
        from peft.tuners.lora import LoraLayer

        merged = {}
        for name, layer in self.module.named_modules():
            if isinstance(layer, LoraLayer) and self.name in layer.scaling:
                weight = layer.get_base_layer().weight + layer.get_delta_weight(self.name)
                variant = layer.lora_variant.get(self.name)
                merged[f"{name}.weight"] = (
                    weight if variant is None else variant.scale(layer, self.name)[:, None] * weight)
        return merged

    def switch(self, on: bool) -> None:
        """Enable or disable these adapters; those of other trainings in the module must be disabled."""
        for layer in self._layers:
            layer.enable_adapters(on)
            if on:
                layer.set_adapter([self.name], inference_mode=self.name != _NAME)
        self.on = on

    @contextmanager
    def uncast(self) -> Iterator[None]:
        """Context without peft's cast of the input to the adapters' type.

        For training under autocast, which casts too: casting twice costs a tenth of a step's time.
        """
        for layer in self._layers:
            layer.cast_input_dtype_enabled = False
        try:
            yield
        finally:
            for layer in self._layers:
                layer.cast_input_dtype_enabled = True

    @contextmanager
    def enabled(self, on: bool) -> Iterator[None]:
        """Context in which these adapters are enabled or disabled."""
        was_on = self.on
        self.switch(on)
        try:
            yield
        finally:
            self.switch(was_on)

    @contextmanager
    def enabled_for_rows(self, rows: Sequence[bool]) -> Iterator[None]:
        """Context in which the adapters act only on the rows of a batch that are True in `rows`; for inference.

        A batch may hold all rows several times, one copy after another, as with classifier-free guidance.
        """
        mask = torch.tensor(rows, device=next(self.module.parameters()).device)
        mask = self._masks.setdefault(len(rows), mask).copy_(mask)
        with self.enabled(True), ExitStack() as stack:
            for layer in self._layers:
                stack.enter_context(_gated(layer, mask))
            yield


@contextmanager
def _gated(layer: nn.Module, mask: torch.Tensor) -> Iterator[None]:
    """Context in which one layer's adapter acts only on the rows of `mask`."""
    saved: list[torch.Tensor] = []

    def save(_module: nn.Module, _input: object, output: torch.Tensor) -> None:
        # The output is copied because AdaLoRA adds to the base product in place.
        saved[:] = [output.clone()]

    def blend(_module: nn.Module, _input: object, output: torch.Tensor) -> torch.Tensor:
        plain = saved.pop()
        # The batch may be a multiple of the mask's rows; the mask is then repeated.
        if len(plain) % len(mask):
            raise ValueError(f"a batch of {len(plain)} rows for a mask of {len(mask)}")
        switches = mask.repeat(len(plain) // len(mask)).reshape(-1, *[1] * (plain.dim() - 1))
        return torch.where(switches, output, plain)

    base_layer: nn.Module = layer.base_layer  # type: ignore[assignment]
    hooks = [base_layer.register_forward_hook(save), layer.register_forward_hook(blend)]
    layer.rows_switched = mask
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        del layer.rows_switched


def check_settings(folder: Path) -> None:
    """Raise `UserError` for adapters in `folder` of a kind that Lisan does not make, before anything is allocated.

    peft makes adapters as `adapter_config.json` says: of any rank, layers twice, other methods. Only what `fresh` sets
    may differ from peft's own defaults, and no rank may be larger than that of the stored factors.
    """
    from peft import AdaLoraConfig, LoraConfig

    path = folder / SETTINGS
    with foreign.reading(path, _FOREIGN_HINT):
        settings = foreign.read_json(path, 1 << 20)
        kind = {"LORA": LoraConfig, "ADALORA": AdaLoraConfig}[settings["peft_type"]]
        plain = kind(total_step=10, tinit=0, tfinal=0).to_dict() if kind is AdaLoraConfig else kind().to_dict()
        for name, value in settings.items():
            if name not in _SETTABLE and value and value != plain.get(name):
                raise UserError(f"{path} sets {name} to {str(value)[:60]!r}, which Lisan does not do.", _FOREIGN_HINT)

        names = settings["target_modules"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("target_modules is not a list of names")

        # A file could ask for ranks that need far more memory than its factors.
        ranks = [settings[name] for name in ("r", "init_r", "target_r") if settings.get(name) is not None]
        ranks += (settings.get("rank_pattern") or {}).values() if kind is LoraConfig else ()
        shapes = tensor_files.shapes(folder / WEIGHTS, _FOREIGN_HINT)
        stored = max((shape[0] for name, shape in shapes.items() if ".lora_A" in name and shape), default=0)
        for rank in ranks:
            if not isinstance(rank, int) or isinstance(rank, bool) or not 0 < rank <= max(stored, 8):
                raise UserError(f"{path} asks for rank {str(rank)[:40]}; the stored factors have rank {stored}.",
                                _FOREIGN_HINT)
        for scale in (settings["lora_alpha"], *(settings.get("alpha_pattern") or {}).values()):
            # NaN fails this comparison too.
            if not 0 < float(scale) < 1e6:
                raise UserError(f"{path} sets lora_alpha to {str(scale)[:40]}.", _FOREIGN_HINT)


def adapter_scale(config: Mapping[str, Any]) -> float:
    """Alpha over rank, by peft's own settings; `plan_adapters` asks for the same in every layer."""
    return float(config["lora_alpha"]) / float(config["init_r" if config.get("peft_type") == "ADALORA" else "r"])


def _stored_name(name: str, adapter: str) -> str:
    """peft leaves out the adapter's name, and the last part of a magnitude's; nor are layers below counted."""
    stored = re.sub(rf"\.{re.escape(adapter)}(?=\.|$)", "", name).replace(".base_layer.", ".")
    return stored.removesuffix(".weight") if ".lora_magnitude_vector." in stored else stored


class RankAllocation:
    """AdaLoRA's rank allocation (arXiv:2303.10512) as peft does it, with a state that can be resumed.

    Every layer begins with more directions than it will have at the end. The importance of each direction is averaged
    over the steps. From a tenth of the run to its last third the least important directions of all layers are set to
    zero, until the budget of ranks is met.
    """

    def __init__(self, tuner: AdaLoraModel) -> None:
        self._tuner, self._allocator = tuner, tuner.rankallocator
        self._kept: dict[str, torch.Tensor] = {}  # directions that the last allocation left, by factor
        tuner.peft_config[tuner.trainable_adapter_name].rank_pattern = None

    def update(self, step: int) -> None:
        """Allocate ranks after `step` optimizer steps; the gradients of the last step must still exist."""
        config = self._tuner.peft_config[self._tuner.trainable_adapter_name]
        config.rank_pattern = {name: mask.bool().tolist() for name, mask in self._kept.items()} or None
        self._tuner.update_and_allocate(step)
        rank_masks = config.rank_pattern or {}
        self._kept = {name: torch.tensor(mask, dtype=torch.uint8) for name, mask in rank_masks.items()}
        # Files hold all directions, including those set to zero.
        config.rank_pattern = None

    def penalty(self) -> torch.Tensor:
        """AdaLoRA's orthogonality penalty: distance of the directions from orthogonality, the mean over the factors."""
        weight = self._tuner.peft_config[self._tuner.trainable_adapter_name].orth_reg_weight
        parts = []
        for name, value in self._own():
            if ".lora_A." in name or ".lora_B." in name:
                product = value @ value.T if ".lora_A." in name else value.T @ value
                parts.append(torch.linalg.matrix_norm(product - torch.eye(len(product), device=value.device)))
        return weight * torch.stack(parts).mean()

    def ranks(self) -> dict[str, int]:
        """Number of directions that each layer has left, by its name."""
        return {name: int((value != 0).sum()) for name, value in self._own() if ".lora_E." in name}

    def _own(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters without those of earlier trainings, which are frozen."""
        return ((name, value) for name, value in self._tuner.model.named_parameters()
                if not is_of_earlier_training(name))

    def state(self) -> dict[str, torch.Tensor]:
        """What the next call of `update` depends on besides the adapters."""
        parts = {_IMPORTANCE: self._allocator.exp_avg_ipt, _UNCERTAINTY: self._allocator.exp_avg_unc, _KEPT: self._kept}
        state: dict[str, torch.Tensor] = {}
        for part, values in parts.items():
            state |= {f"{part}/{name}": value for name, value in values.items()}
        return state

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore what `state` returned."""
        self._allocator.reset_ipt()
        self._kept = {}
        named = dict(self._tuner.model.named_parameters())
        for path, value in state.items():
            part, _, name = path.partition("/")
            if part == _KEPT:
                self._kept[name] = value.cpu()
            else:
                averages = self._allocator.exp_avg_ipt if part == _IMPORTANCE else self._allocator.exp_avg_unc
                averages[name] = value.to(named[name].device)
                self._allocator.ipt[name] = torch.zeros_like(averages[name])


class FastCpuDropout(nn.Dropout):
    """Dropout whose masks are drawn faster than torch's on a CPU; torch's own on a GPU and under torch.compile.

    Each element has a 16-bit number of numpy's SFC64, whose seed torch's generator draws. So a checkpoint of torch's
    generator is enough to resume, and activation checkpointing recomputes the same mask. The probability is rounded to
    1/65536, and the kept elements are scaled by the rounded one.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape to the same."""
        dropped = round(self.p * _RANDOM_VALUES)
        plain = type(x) is torch.Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling()
        if not (plain and self.training and 0 < dropped < _RANDOM_VALUES):
            return super().forward(x)
        seed = int(torch.empty((), dtype=torch.int64).random_())
        words = np.random.SFC64(seed).random_raw(-(-x.numel() // 4))
        numbers = torch.from_numpy(words.view(np.int16)[:x.numel()]).view(x.shape)
        mask = torch.ge(numbers, dropped - _RANDOM_VALUES // 2, out=torch.empty_like(x))
        return x * mask.mul_(_RANDOM_VALUES / (_RANDOM_VALUES - dropped))


class CachedNormDora:
    """DoRA (arXiv:2402.09353) of one layer, in the place of peft's variant.

    A layer's output is `scale * (W x + s B A x)` with one scale a row: its learnt magnitude over the norm of that row
    of `W + s B A`. peft computes the norms from a dense `W + s B A` at every product, in the type of the activations.
    Here they are in float32, from the factors, and cached until a factor changes. So they also exist when the weights
    have been quantized for synthesis.
    """

    def __init__(self) -> None:
        self._norm: torch.Tensor | None = None  # (outputs,)
        self._seen: tuple[object, ...] = ()
        # Not as a decorator: that would import torch._dynamo, which takes as long as torch, in every process.
        self._norms = torch.compiler.disable(CachedNormDora._cached_norms)

    def forward(self, module, active_adapter: str, x: torch.Tensor, result: torch.Tensor, **_: object) -> torch.Tensor:
        """Rows (..., width) whose base product is `result` (..., outputs) to (..., outputs)."""
        factors = module.lora_B[active_adapter](module.lora_A[active_adapter](module.lora_dropout[active_adapter](x)))
        bias = getattr(module.get_base_layer(), "bias", None)
        plain = result if bias is None else result - bias
        output = self.scale(module, active_adapter) * (plain + factors * module.scaling[active_adapter])
        return output if bias is None else output + bias

    def scale(self, module, active_adapter: str) -> torch.Tensor:
        """(outputs,), with a gradient for the magnitude alone: the paper takes the norm as a constant."""
        return module.lora_magnitude_vector[active_adapter].weight / self._norms(self, module, active_adapter)

    def _cached_norms(self, module, active_adapter: str) -> torch.Tensor:
        factor_a, factor_b = module.lora_A[active_adapter].weight, module.lora_B[active_adapter].weight
        weight = getattr(module.get_base_layer(), "weight", None)
        plain = weight if isinstance(weight, nn.Parameter) else None  # None once it is quantized
        kind = self._seen[3:] if plain is None else (plain.dtype,)
        seen = (factor_a._version, factor_b._version, factor_a.device, *kind)
        if self._norm is None or seen != self._seen:
            assert plain is not None, "the norms must be computed before the weights are quantized"
            norm = _row_norms(plain, factor_a, factor_b, module.scaling[active_adapter])
            if self._norm is None or self._norm.device != norm.device:
                self._norm = norm
            else:
                # A CUDA graph reads the norms in place.
                self._norm.copy_(norm)
            self._seen = seen
        return self._norm


def _row_norms(weight: torch.Tensor, factor_a: torch.Tensor, factor_b: torch.Tensor, scaling: float) -> torch.Tensor:
    """Norms (outputs,) of the rows of `weight + scaling * factor_b @ factor_a`, in float32, without that matrix."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        plain, a, b = weight.detach().float(), factor_a.detach().float(), factor_b.detach().float()
        crossed = ((plain @ a.T) * b).sum(1)
        added = ((b @ (a @ a.T)) * b).sum(1)
        return (plain.square().sum(1) + 2 * scaling * crossed + scaling**2 * added).clamp(min=0).sqrt()
