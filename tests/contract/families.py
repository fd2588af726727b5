"""The families under contract: each knows how to write a small model, a dataset and a tokenizer into a workspace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.workspace import Workspace
from tests import chatterbox_world, worlds


@dataclass(frozen=True)
class Case:
    """One family. `codes` are the speech codes of its small model, without start and stop."""

    name: str
    extended_world: Callable[[Path], Workspace]  # its model, dataset `demo-am`, extension `tiny-am`
    model: str
    codes: int


FAMILIES = (
    Case("tiny", worlds.extended_world, "tiny", 27),
    Case("chatterbox", chatterbox_world.extended_world, "chatterbox", 6561),
)
