"""A folder of peft (`adapter_config.json`, `adapter_model.safetensors`) as the weights it stands for, merged tensor by
tensor into those of its base.

Read are LoRA (Hu et al. 2021), with rsLoRA's scale (Kalajdzievski 2023), patterns of rank and alpha, DoRA's magnitudes
(Liu et al. 2024), factors of embeddings, and whole tensors that were trained beside the factors (`modules_to_save`,
biases, tables that were extended). The names are those of peft 0.17 (`peft/utils/save_and_load.py`). A program may have
wrapped the whole model or a part of it, so a module is found by the end of its name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from config import foreign
from config.errors import UserError
from models.base import Family, WeightsFile

SETTINGS, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
_FACTOR = re.compile(r"(.+)\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
                     r"(?:\.default)?(?:\.weight)?")
_WRAPPERS = ("base_model.model.", "base_model.")
_INSIDE = ((".modules_to_save.default.", "."), (".modules_to_save.", "."), (".base_layer.", "."), ("_orig_mod.", ""))
_HINT = "Merge the adapters with the program that trained them (merge_and_unload), and give the merged weights."


def is_peft_folder(path: Path) -> bool:
    """Whether `path` is a folder of adapters."""
    return path.is_dir() and (path / SETTINGS).is_file()


@dataclass(frozen=True)
class _Factors:
    """What is merged into one tensor of the base. `down` (r, in), `up` (out, r), `magnitude` (out,)."""

    down: str = ""
    up: str = ""
    magnitude: str = ""
    scale: float = 1.0
    transposed: bool = False  # the base stores (in, out), as GPT-2 does
    embedding: bool = False


@dataclass(frozen=True)
class MergedAdapters:
    """The base's tensors with adapters merged in, read one at a time; see `models.base.WeightsFile`."""

    path: Path
    base: WeightsFile = field(repr=False)
    adapters: WeightsFile = field(repr=False)
    factors: Mapping[str, _Factors] = field(repr=False)  # Keys are names of base tensors.
    whole: Mapping[str, str] = field(repr=False)  # name in the folder, of a tensor that was trained as a whole

    @property
    def names(self) -> tuple[str, ...]:
        return self.base.names

    def shape(self, name: str) -> tuple[int, ...]:
        return self.adapters.shape(self.whole[name]) if name in self.whole else self.base.shape(name)

    def dtype(self, name: str) -> torch.dtype:
        if name in self.whole:
            return self.adapters.dtype(self.whole[name])
        return torch.float32 if name in self.factors else self.base.dtype(name)

    def tensor(self, name: str) -> torch.Tensor:
        value = self.adapters.tensor(self.whole[name]) if name in self.whole else self.base.tensor(name)
        factors = self.factors.get(name)
        if factors is None:
            return value
        down, up = self.adapters.tensor(factors.down).float(), self.adapters.tensor(factors.up).float()
        change = factors.scale * (up @ down)
        weight = value.float().T if factors.transposed or factors.embedding else value.float()  # (out, in)
        merged = weight + change
        if factors.magnitude:  # DoRA: the norm of each output row is learned apart from its direction
            magnitude = self.adapters.tensor(factors.magnitude).float().reshape(-1, 1)
            merged = magnitude * merged / merged.norm(dim=1, keepdim=True)
        return merged.T.contiguous() if factors.transposed or factors.embedding else merged


def open_merged(folder: Path, base: WeightsFile, family: Family) -> MergedAdapters:
    """The weights of `base` with the adapters in `folder`; `UserError` if they are of another kind or another model."""
    settings = _read_settings(folder / SETTINGS)
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise UserError(f"{folder} has {SETTINGS}, but no {WEIGHTS[0]}.", "Copy the whole folder that peft wrote.")
    adapters = family.open_weights(file)
    parts: dict[str, dict[str, str]] = {}
    whole_tensors: dict[str, str] = {}
    unknown: list[str] = []
    for name in adapters.names:
        match = _FACTOR.fullmatch(name)
        plain = _plain(match[1] if match else name)
        base_name = _find(base.names, f"{plain}.weight" if match else plain)
        if base_name is None:
            unknown.append(name)
        elif match:
            parts.setdefault(base_name, {})[match[2]] = name
        else:
            whole_tensors[base_name] = name
    if unknown:
        raise UserError(f"{file} has {len(unknown)} of {len(adapters.names)} tensors that belong to none of the base's "
                        f"{len(base.names)}, such as {unknown[0]}.",
                        "It was trained on another model; give the base it was made from.")
    factors = {name: _factors(file, base, adapters, name, factor_names, settings)
               for name, factor_names in parts.items()}
    return MergedAdapters(file, base, adapters, factors, whole_tensors)


def _read_settings(path: Path) -> Mapping[str, Any]:
    settings = foreign.read_json(path)
    kind = settings.get("peft_type") if isinstance(settings, dict) else None
    if kind != "LORA":
        raise UserError(f"{path} has the peft_type {kind!r}; only 'LORA' can be merged here.", _HINT)
    if settings.get("layer_replication") or settings.get("megatron_config"):
        raise UserError(f"{path} has layer_replication or megatron_config, which cannot be merged here.", _HINT)
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(settings.get(name) or {}, dict):
            raise UserError(f"{path} has the {name} {settings[name]!r}; a table of numbers is expected.", _HINT)
    return settings


def _factors(file: Path, base: WeightsFile, adapters: WeightsFile, name: str, factor_names: Mapping[str, str],
             settings: Mapping[str, Any]) -> _Factors:
    """The factors of one tensor, whose shapes must fit it."""
    embedding = "lora_embedding_A" in factor_names
    kind = "lora_embedding_" if embedding else "lora_"
    down, up = factor_names.get(f"{kind}A", ""), factor_names.get(f"{kind}B", "")
    if not down or not up:
        raise UserError(f"{file} has only one of two factors of {name}: {', '.join(factor_names.values())}.",
                        "Copy the whole folder that peft wrote.")
    (rank, inputs), (outputs, columns) = _matrix(adapters, down), _matrix(adapters, up)
    shape = base.shape(name)
    transposed = bool(settings.get("fan_in_fan_out")) and not embedding
    expected_shape = (inputs, outputs) if transposed or embedding else (outputs, inputs)
    if columns != rank or shape != expected_shape:
        raise UserError(f"{file}: the factors of {name} are {(rank, inputs)} and {(outputs, columns)}; its shape in "
                        f"the base is {shape}.", "They belong to another model, or the file is damaged.")
    alpha = _pattern(settings, "alpha_pattern", name, settings.get("lora_alpha"))
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise UserError(f"{file.parent / SETTINGS} has the lora_alpha {alpha!r} for {name}; a number is expected.",
                        _HINT)
    scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    return _Factors(down, up, factor_names.get("lora_magnitude_vector", ""), scale, transposed, embedding)


def _matrix(adapters: WeightsFile, name: str) -> tuple[int, int]:
    shape = adapters.shape(name)
    if len(shape) != 2:
        raise UserError(f"{adapters.path}: the factor {name} has the shape {shape}; a matrix is expected.", _HINT)
    return shape


def _pattern(settings: Mapping[str, Any], pattern: str, name: str, otherwise: object) -> object:
    """The value of the entry of a pattern whose key is the end of the module's name."""
    module = name.removesuffix(".weight")
    entries = settings.get(pattern) or {}
    return next((value for key, value in entries.items()
                 if f".{module}".endswith(f".{str(key).lstrip('^').rstrip('$')}")), otherwise)


def _plain(name: str) -> str:
    """A name without the wrappers of peft and of compilation."""
    for inside, instead in _INSIDE:
        name = name.replace(inside, instead)
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def _find(names: Sequence[str], target: str) -> str | None:
    """The tensor of the base that `wanted` names: the whole name, or the end of either."""
    if target in names:
        return target
    longer = [name for name in names if name.endswith(f".{target}")]
    if len(longer) == 1:
        return longer[0]
    parts = target.split(".")
    shorter = (".".join(parts[cut:]) for cut in range(1, len(parts) - 1))
    return next((name for name in shorter if name in names), None)
