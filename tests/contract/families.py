"""The families under contract: each knows how to write a small model, a dataset and a tokenizer into a workspace."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from core.workspace import Workspace
from tests import chatterbox_world, indextts2_world, indextts25_world, worlds
from tests.worlds import ENGLISH, FRENCH


@dataclass(frozen=True)
class Case:
    """One family. `codes` are the speech codes of its small model, without start and stop."""

    name: str
    extended_world: Callable[[Path], Workspace]  # its model, dataset `demo-am`, extension `tiny-am`
    model: str
    codes: int
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"en": ENGLISH, "fr": FRENCH})  # it can read


FAMILIES = (
    Case("tiny", worlds.extended_world, "tiny", 27),
    Case("chatterbox", chatterbox_world.extended_world, "chatterbox", 6561),
    Case("indextts2", indextts2_world.extended_world, "indextts2", indextts2_world.CODES,
         {"en": ENGLISH, "zh": indextts2_world.CHINESE}),
    # It shares the trunk with the one before, so the default tests leave it to its own unit tests.
    pytest.param(Case("indextts25", indextts25_world.extended_world, "indextts2", indextts2_world.CODES,
                      {"en": ENGLISH, "zh": indextts2_world.CHINESE, "es": indextts25_world.SPANISH}),
                 marks=() if "LISAN_ALL_CASES" in os.environ else pytest.mark.slow, id="indextts25"),
)
