"""Other values in the place of a model's own for a while: an average, or what the base was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


@contextmanager
def in_place(parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Context in which each parameter holds the value of its name in `values`, and `values` hold what it held.

    Values are copied, one tensor at a time: what is remembered of a parameter, as the norms of DoRA are, goes by its
    version, which a change of its storage leaves as it was.
    """
    _exchange(parameters, values)
    try:
        yield
    finally:
        _exchange(parameters, values)


@torch.no_grad()
def _exchange(parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in parameters.items():
        held = parameter.detach().clone()
        parameter.copy_(values[name])
        values[name].copy_(held)
