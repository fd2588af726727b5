"""The families under contract: each knows how to write a small model, a dataset and a tokenizer into a workspace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.workspace import Workspace
from tests.worlds import extended_world


@dataclass(frozen=True)
class Case:
    """One family. `codes` are the speech codes of its small model, without start and stop."""

    name: str
    extended_world: Callable[[Path], Workspace]  # model `tiny`-like, dataset `demo-am`, extension `tiny-am`
    model: str
    codes: int


FAMILIES = (Case("tiny", extended_world, "tiny", 27),)
