"""What weight decay draws to zero: what began there, and nothing else."""

from __future__ import annotations

import pytest
import torch

from core.training import parameter_groups
from core.training.trainer import Trainer
from core.workspace import Workspace
from tests.unit.core.training.test_trainer import made
from tests.worlds import extended_world

DECAYED = {"weight_decay": 0.5, "adapter_lr": 0.1, "warmup": 0}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return extended_world(tmp_path_factory.mktemp("world"))


def moved_by_decay_alone(trainer: Trainer) -> set[str]:
    """The kinds of adapters' tensors that a step without gradients moves; rows never are."""
    before = {name: value.detach().clone() for name, value in trainer.trainables.named.items()}
    for value in trainer.trainables.named.values():
        value.grad = torch.zeros_like(value)
    trainer.optimizer.step()
    moved = {name for name, value in trainer.trainables.named.items() if not torch.equal(value, before[name])}
    assert moved <= set(trainer.trainables.adapters)
    return {name.partition(".lora_")[2].partition(".")[0] for name in moved}


@pytest.mark.parametrize("kind", ["lora", "dora", "adalora"])
def test_of_adapters_the_factors_alone_are_decayed(world: Workspace, kind: str) -> None:
    trainer = made(world, adapter=kind, **DECAYED)
    magnitudes = [name for name in trainer.trainables.adapters if "magnitude" in name]
    assert bool(magnitudes) == (kind == "dora")
    with torch.no_grad():
        for value in trainer.trainables.adapters.values():
            value += 1.0
    assert moved_by_decay_alone(trainer) == {"A", "B"} | ({"E"} if kind == "adalora" else set())
    assert list(parameter_groups.learning_rates(trainer.parameter_groups, trainer.optimizer)) == ["rows", "adapters"]
