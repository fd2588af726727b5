"""Comparison with stored outputs of a reference: relative errors, bounds and a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from config.errors import UserError

_AGAIN = "Make the reference files again."


@dataclass(frozen=True)
class ConformanceRow:
    """One compared output; `error` is at most `bound` when it passes."""

    component: str
    output: str
    error: float
    bound: float
    measure: str

    @property
    def passed(self) -> bool:
        return self.error <= self.bound  # not so when the error is no number


@dataclass(frozen=True)
class Vectors:
    """A file of stored inputs and outputs of a reference implementation."""

    path: Path
    seed: int
    metadata: Mapping[str, str]
    tensors: Mapping[str, torch.Tensor]

    @classmethod
    def read(cls, path: Path) -> Vectors:
        """The file at `path`; `UserError` when it is damaged or names no seed."""
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return cls(path, int(metadata["seed"]), metadata, tensors)
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise UserError(f"{path} holds no vectors with a seed: {error!r}.", _AGAIN) from error

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise UserError(f"{self.path} lacks {name!r}; it has {', '.join(self.tensors)}.",
                            _AGAIN)
        return self.tensors[name]


@dataclass
class Table:
    """The rows of one file, and which of its tensors were used."""

    component: str
    vectors: Vectors
    rows: list[ConformanceRow]

    def relative(self, name: str, output: torch.Tensor, bound: float) -> None:
        """Largest difference over the largest value of the reference; another shape is an infinite error."""
        expected = self.vectors[name].float()
        error = float("inf")
        if expected.shape == output.shape:
            error = float((output.float() - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        self.rows.append(ConformanceRow(self.component, name, error, bound, "relative"))

    def different(self, name: str, output: torch.Tensor, bound: float) -> None:
        """Share of ids that differ."""
        expected = self.vectors[name]
        error = 1.0
        if expected.shape == output.shape:
            error = float((output != expected).float().mean())
        self.rows.append(ConformanceRow(self.component, name, error, bound, "share that differs"))

    def complete(self, inputs: tuple[str, ...]) -> list[ConformanceRow]:
        """The rows; `UserError` if a stored output was not compared."""
        compared = {row.output for row in self.rows}
        uncompared = set(self.vectors.tensors) - compared - set(inputs)
        if uncompared:
            raise UserError(f"{self.vectors.path} holds {', '.join(sorted(uncompared))}, which is not compared.",
                            "Update Lisan, or remove it from the file.")
        return self.rows


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """A list of keys with shapes; `UserError` if it is none."""
    try:
        return {key: tuple(shape) for key, shape in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is no list of keys with shapes: {error!r}.", _AGAIN) from error


def compare_keys(component: str, path: Path, module: nn.Module) -> ConformanceRow:
    """The share of a key list's entries that are missing, additional or of another shape in `module`."""
    return compare_shapes(component, path.name, read_shapes(path), module.state_dict())


def compare_shapes(component: str, name: str, wanted: Mapping[str, tuple[int, ...]],
                   tensors: Mapping[str, torch.Tensor]) -> ConformanceRow:
    """The share of the wanted entries that are missing, additional or of another shape in `tensors`."""
    shapes = {key: tuple(value.shape) for key, value in tensors.items()}
    wrong = sum(wanted.get(key) != shapes.get(key) for key in wanted.keys() | shapes.keys())
    return ConformanceRow(component, name, wrong / max(1, len(wanted)), 0.0, f"of {len(wanted)} keys")


def show(rows: list[ConformanceRow]) -> str:
    """The table as text."""
    cells = [("component", "output", "error", "bound", "measure", "result")]
    cells += [(row.component, row.output, f"{row.error:.1e}", f"{row.bound:.0e}" if row.bound else "0", row.measure,
               "passed" if row.passed else "FAILED") for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in cells)
