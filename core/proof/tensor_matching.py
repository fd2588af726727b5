"""Which tensor of a checkpoint from elsewhere is which of the base: by its name, else by its values.

Trainers put prefixes before names (`t3.`, `model.`, `module.`, `_orig_mod.`), and adapters put `.base_layer` into them.
Tensors without a match by name are matched by their values: a tensor that was trained a little still has its direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from models.base import WeightsFile

_WITHIN = (("_orig_mod.", ""), (".base_layer.", "."), (".parametrizations.weight.original", ".weight"))
_SAMPLES = 256  # values of a tensor that are compared
_ALIKE = 0.9  # cosine of the samples of two tensors that match


@dataclass(frozen=True)
class TensorMatching:
    """`found` gives the checkpoint's name for a base name; the rest has no match."""

    found: Mapping[str, str]
    prefix: str  # before all of the names
    renamed: Mapping[str, str]  # matched by their values: base name, and the name there
    missing: tuple[str, ...]  # of the base
    extra: tuple[str, ...]  # of the checkpoint

    @property
    def adapters(self) -> tuple[str, ...]:
        """Extra tensors that are low-rank factors and were not merged."""
        return tuple(name for name in self.extra if ".lora_" in f".{name}")


def match_tensors(base: WeightsFile, other: WeightsFile, tables: Sequence[str]) -> TensorMatching:
    """Matches of the base's tensors in `other`; `tables` may have more rows there."""
    clean = {}
    for name in other.names:
        plain = name
        for inside, instead in _WITHIN:
            plain = plain.replace(inside, instead)
        clean[plain] = name
    prefix = _prefix(base.names, tuple(clean))
    found = {name: clean[prefix + name] for name in base.names if prefix + name in clean}
    missing = [name for name in base.names if name not in found]
    extra = sorted(set(other.names) - set(found.values()), key=other.names.index)
    renamed = _match_values(base, other, missing, extra, tables)
    return TensorMatching(
        found | renamed, prefix, renamed, tuple(name for name in missing if name not in renamed),
        tuple(name for name in extra if name not in renamed.values()),
    )


def _prefix(wanted: Sequence[str], there: Sequence[str]) -> str:
    """The most frequent prefix before names of the base; the shorter where two are as frequent."""
    known, counted = set(wanted), Counter[str]()
    for name in there:
        parts = name.split(".")
        starts = [".".join(parts[:cut]) + "." if cut else "" for cut in range(len(parts))]
        counted.update(start for start in starts if name[len(start):] in known)
    return min(counted, key=lambda start: (-counted[start], len(start)), default="")


def _match_values(base: WeightsFile, other: WeightsFile, missing: Sequence[str], extra: Sequence[str],
                  tables: Sequence[str]) -> dict[str, str]:
    """Base tensors without a match by name whose values stand under another name."""
    samples: dict[tuple[str, int], torch.Tensor] = {}  # of the checkpoint, each read once
    found: dict[str, str] = {}
    for name in missing:
        shape, grows = base.shape(name), name in tables
        fitting = [one for one in extra if one not in found.values() and _fits(shape, other.shape(one), grows)]
        if not shape or not fitting:
            continue
        own, alike = _sample(base, name, shape[0]), {}
        for one in fitting:
            if (one, shape[0]) not in samples:
                samples[one, shape[0]] = _sample(other, one, shape[0])
            alike[one] = float(own @ samples[one, shape[0]])
        best = max(alike, key=lambda one: alike[one])
        if alike[best] > _ALIKE:
            found[name] = best
    return found


def _sample(file: WeightsFile, name: str, rows: int) -> torch.Tensor:
    """Some values of the first `rows` rows, spread evenly, of length one."""
    flat = file.tensor(name)[:rows].reshape(-1)
    picked = flat[torch.linspace(0, len(flat) - 1, min(_SAMPLES, len(flat))).long()].double()
    return picked / picked.norm().clamp(min=1e-30)


def _fits(shape: tuple[int, ...], there: tuple[int, ...], grows: bool) -> bool:
    return shape == there or (grows and shape[1:] == there[1:] and len(there) > 0 and there[0] > shape[0])
