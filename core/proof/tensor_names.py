"""Which tensor of a checkpoint from elsewhere is which of the base: by its name, else by its values.

Trainers put things before names (`t3.`, `model.`, `module.`, `_orig_mod.`), and adapters put
`.base_layer` into them. What is still without a partner is looked for by its values: a
tensor that was trained a little still points where it did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from models.base import WeightsFile

_WITHIN = (("_orig_mod.", ""), (".base_layer.", "."), (".parametrizations.weight.original", ".weight"))
_SAMPLES = 256  # values that a tensor is known by
_ALIKE = 0.9  # cosine of the samples of two tensors that are taken for one


@dataclass(frozen=True)
class Matching:
    """`found` gives the checkpoint's name for a base name; the rest is without a partner."""

    found: Mapping[str, str]
    prefix: str  # that stands before all of the names
    renamed: Mapping[str, str]  # found by their values: base name, and the name there
    missing: tuple[str, ...]  # of the base
    extra: tuple[str, ...]  # of the checkpoint

    @property
    def adapters(self) -> tuple[str, ...]:
        """Extra tensors that are low-rank factors and were not merged."""
        return tuple(name for name in self.extra if ".lora_" in f".{name}")


@dataclass
class _Known:
    """Samples of tensors by name, each read once."""

    file: WeightsFile
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def sample(self, name: str, rows: int) -> torch.Tensor:
        """Some values of the first `rows` rows, spread evenly, of length one."""
        key = f"{name}:{rows}"
        if key not in self.values:
            flat = self.file.tensor(name)[:rows].reshape(-1)
            picked = flat[torch.linspace(0, len(flat) - 1, min(_SAMPLES, len(flat))).long()].double()
            self.values[key] = picked / picked.norm().clamp(min=1e-30)
        return self.values[key]


def match(base: WeightsFile, other: WeightsFile, tables: Sequence[str]) -> Matching:
    """Partners of the base's tensors in `other`; `tables` may have more rows there."""
    clean = {_clean(name): name for name in other.names}
    prefix = _prefix(base.names, tuple(clean))
    found = {name: clean[prefix + name] for name in base.names if prefix + name in clean}
    missing = [name for name in base.names if name not in found]
    taken = set(found.values())
    extra = [name for name in other.names if name not in taken]
    renamed = _by_values(base, other, missing, extra, tables)
    found |= renamed
    return Matching(
        found, prefix, renamed, tuple(name for name in missing if name not in renamed),
        tuple(name for name in extra if name not in renamed.values()),
    )


def _clean(name: str) -> str:
    for inside, instead in _WITHIN:
        name = name.replace(inside, instead)
    return name


def _prefix(wanted: Sequence[str], there: Sequence[str]) -> str:
    """What stands most often before a name of the base; the shorter where two are as many."""
    known, counted = set(wanted), Counter[str]()
    for name in there:
        parts = name.split(".")
        starts = [".".join(parts[:cut]) + "." if cut else "" for cut in range(len(parts))]
        counted.update(start for start in starts if name[len(start):] in known)
    return min(counted, key=lambda start: (-counted[start], len(start)), default="")


def _by_values(base: WeightsFile, other: WeightsFile, missing: Sequence[str], extra: Sequence[str],
               tables: Sequence[str]) -> dict[str, str]:
    """Base tensors without a partner whose values stand under another name."""
    before, after = _Known(base), _Known(other)
    found: dict[str, str] = {}
    for name in missing:
        shape = base.shape(name)
        fitting = [one for one in extra if one not in found.values() and _fits(shape, other.shape(one), name in tables)]
        if not shape or not fitting:
            continue
        alike = {one: float(before.sample(name, shape[0]) @ after.sample(one, shape[0])) for one in fitting}
        best = max(alike, key=lambda one: alike[one])
        if alike[best] > _ALIKE:
            found[name] = best
    return found


def _fits(shape: tuple[int, ...], there: tuple[int, ...], grows: bool) -> bool:
    return shape == there or (grows and shape[1:] == there[1:] and len(there) > 0 and there[0] > shape[0])
