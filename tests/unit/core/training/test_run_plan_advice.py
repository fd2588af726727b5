"""What is said before a training starts, of made-up trainings: how often clips are heard, rates, and the disk."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from core.training import run_plan
from core.training.dataloader import TrainingData
from core.workspace import Workspace
from tests.unit.core.training.test_trainer import made
from tests.worlds import extended_world, train_options


def planned(processes: int = 1, clips: int = 10) -> SimpleNamespace:
    """As much of a trainer as the advice looks at."""
    train = tuple(SimpleNamespace(speaker=f"s{index % 2}", text_ids=()) for index in range(clips))
    data = TrainingData(("am",), "", train, train, (), (), train_speech_s=3600.0)  # type: ignore[arg-type]
    tts = SimpleNamespace(family=SimpleNamespace(name="tiny"), front_end=SimpleNamespace(added_tokens=tuple))
    return SimpleNamespace(data=data, tts=tts, group=SimpleNamespace(world_size=processes), options=None)


def test_clips_are_counted_as_all_processes_hear_them() -> None:
    options = train_options(batch_size=5, steps=150)
    assert list(run_plan._data_warnings(planned(), options)) == []
    (said,) = run_plan._data_warnings(planned(processes=2), options)
    assert "Each of the 10 clips is used 150 times in 150 steps" in said
    preflight = planned()
    assert list(run_plan._data_warnings(preflight, train_options(batch_size=5, steps=150, processes=2))) == [said]


@pytest.mark.parametrize(("changes", "told"), [
    ({"scope": "full", "layer_lr": 0.5, "head_lr": 0.5}, ["layers", "heads"]),
    ({"scope": "full", "full_trainable": "heads", "layer_lr": 0.5, "head_lr": 0.5}, ["heads"]),
    ({"scope": "full", "full_trainable": "adapters", "layer_lr": 0.5, "adapter_lr": 0.5}, ["adapters"]),
    ({"scope": "full", "adapter_lr": 0.5}, []), ({"scope": "gated", "layer_lr": 0.5, "head_lr": 0.5}, [])])
def test_the_rates_of_what_is_trained_are_held_against_the_preset(changes: dict[str, object], told: list[str]) -> None:
    said = list(run_plan._learning_rate_warnings(planned(), train_options(**changes)))
    assert [line.removeprefix("The learning rate of the ").partition(" ")[0] for line in said] == told
    assert all("the training may diverge" in line for line in said)


def test_a_warmup_as_long_as_the_training_is_told() -> None:
    (said,) = run_plan._learning_rate_warnings(planned(), train_options(steps=40, warmup=5000))
    assert said.startswith("The warmup of 5000 steps is not shorter than the training of 40 steps: the learning rates "
                           "only reach 0.008 times their peak")
    assert list(run_plan._learning_rate_warnings(planned(), train_options(steps=40, warmup=39))) == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return extended_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("changes", [{}, {"ema": 0.9}], ids=["plain", "averaged"])
def test_the_disk_is_asked_for_what_a_checkpoint_holds(world: Workspace, changes: dict[str, float]) -> None:
    trainer = made(world, **changes)
    trainer.train_step()
    tensors = {name: value for name, value in trainer.state_dict().tensors.items()
               if value.ndim and name.startswith(("optimizer/", "trained/"))}
    held = [*tensors.values(), *trainer.trainables.named.values()]
    assert run_plan.checkpoint_bytes(trainer) == sum(value.nbytes for value in held)


def test_the_bytes_of_moments_in_8_bits() -> None:
    """What tests/unit/core/training/test_trainer.py saves of bitsandbytes: from 4,096 numbers on, a byte each."""
    assert run_plan._moment_bytes_8bit(torch.zeros(4095)) == 2 * 4 * 4095
    assert run_plan._moment_bytes_8bit(torch.zeros(64, 256)) == 2 * (64 * 256 + 4 * 64 + 4 * 256)
