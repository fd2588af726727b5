"""The length of a training in steps, epochs or minutes, and the batch that a device and a preset suggest."""

from __future__ import annotations

import argparse
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from config.arguments import add_arguments, given_values, to_arguments
from config.errors import UserError
from config.loading import parse_options
from config.schema import ANY_STEPS, AUTO_BATCH, TrainOptions
from core import compute, train
from core.training import memory_plan, run_plan
from core.training.run_plan import BatchChoice
from core.training.trainer import Trainer
from core.workspace import Workspace
from scripts.command import without_other_lengths
from tests.worlds import Listener, train_options


@pytest.mark.parametrize(("values", "steps"), [
    ({}, 800), ({"max_epochs": 1000}, ANY_STEPS), ({"max_minutes": "0,5"}, ANY_STEPS),
    ({"steps": "", "max_epochs": 0}, 800), ({"steps": 0, "max_epochs": 2}, ANY_STEPS),
    ({"steps": 100, "max_epochs": 2}, 100), ({"steps": 7}, 7)])
def test_the_unit_that_is_given_decides_the_length(values: dict[str, object], steps: int) -> None:
    options = parse_options(TrainOptions, values)
    assert options.length.steps == steps
    assert parse_options(TrainOptions, options.model_dump()) == options
    assert ("--steps" in to_arguments(options)) is (steps not in (800, ANY_STEPS))  # the equal command has the unit


def test_the_flag_alone_scales_by_the_square_root() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, TrainOptions)
    for words, rule in (([], None), (["--scale-lr"], "sqrt"), (["--scale-lr", "linear"], "linear")):
        values = given_values(parser.parse_args([*words, "--batch-size", "auto"]), TrainOptions)
        assert values.get("scale_lr") == rule
        assert parse_options(TrainOptions, values).batches.batch_size == AUTO_BATCH


def test_no_length_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="1 or more, if neither epochs nor minutes are given"):
        parse_options(TrainOptions, {"steps": 0, "max_epochs": 0, "max_minutes": "0"})


def test_a_length_on_the_command_line_replaces_that_of_a_preset() -> None:
    preset = {"steps": 800, "max_minutes": 5, "row_lr": 0.1}
    assert without_other_lengths(preset, {"max_epochs": 3}) == {"row_lr": 0.1}
    assert without_other_lengths(preset, {"steps": "20"}) == {"row_lr": 0.1}
    for no_length in ({"max_minutes": 0}, {"seed": 3}):
        assert without_other_lengths(preset, no_length) == preset


def prepared(world: Workspace, name: str = "one", **changes: object) -> tuple[Trainer, Listener]:
    listener = Listener(world.runs / name)
    return train.prepare_run(train_options(**changes), world, listener)[0].trainer, listener


def test_epochs_alone_are_trained_to_their_end_and_steps_that_end_them_first_are_named(world: Workspace) -> None:
    trainer, listener = prepared(world, steps=0, max_epochs=300.0, batch_size=2)
    assert trainer.schedule.steps == math.ceil(300 * len(trainer.data.train) / 2) > 800
    assert not [event for event in listener.of("warning") if "max_epochs" in event.message]
    assert "300 of 300 epochs" in "\n".join(listener.of("plan")[-1].lines)

    trainer, listener = prepared(world, "two", steps=3, max_epochs=300.0, batch_size=2)
    [warning] = [event.message for event in listener.of("warning") if "max_epochs" in event.message]
    assert "Steps 3 ends the training after 0.5 epochs: max_epochs 300 would be 1,800 steps." in warning


def test_a_batch_far_from_the_presets_is_named_unless_the_rates_are_scaled(world: Workspace) -> None:
    usual = run_plan.preset_clips_a_step("tiny")
    trainer, _ = prepared(world, steps=3, batch_size=2)

    def warnings(**changes: object) -> str:
        return " ".join(run_plan._batch_warnings(trainer, train_options(**changes)))

    assert f"A step has {3 * usual} clips" in warnings(batch_size=usual, gradient_accumulation=3)
    assert "0.125 times" in warnings(batch_size=usual // 8)
    for size in (usual // 2, usual, 2 * usual):
        assert warnings(batch_size=size) == ""
    assert warnings(batch_size=1, scale_lr="sqrt") == ""


def test_rates_are_scaled_by_the_clips_of_a_step_and_a_resumed_run_keeps_them(world: Workspace) -> None:
    size = run_plan.preset_clips_a_step("tiny") // 4
    options: dict[str, object] = {"steps": 2, "batch_size": size, "scale_lr": "sqrt", "checkpoint_every": 2,
                                  "evaluation_sentences": 0, "row_lr": 4e-3}
    listener = Listener(world.runs / "one")
    train.run(train_options(**options), world, listener)
    assert "Learning rates times 0.5" in "\n".join(listener.of("plan")[-1].lines)
    trainer, _ = prepared(world, **options)
    assert (trainer.step, trainer.options.optimization.row_lr) == (2, 2e-3)
    assert [group.lr for group in trainer.parameter_groups if group.name == "rows"] == [2e-3]
    assert trainer.optimizer.param_groups[0]["initial_lr"] == 2e-3

    # The other rule, for a run of its own.
    (world.runs / "two").mkdir()
    choice = run_plan.choose_batch(trainer, train_options(**{**options, "scale_lr": "linear"}), world.runs / "two")
    assert choice.lr_factor == 0.25


def test_an_automatic_batch_on_a_cpu_is_that_of_the_preset(world: Workspace) -> None:
    trainer, listener = prepared(world, steps=2, batch_size=AUTO_BATCH)
    assert trainer.options.batches.batch_size == 16
    assert "Batch size auto: 16, that of the preset for tiny" in "\n".join(listener.of("plan")[-1].lines)
    assert run_plan.read_batch_choice(listener.directory) == BatchChoice(16, 1.0, trainer_notes(listener))


def trainer_notes(listener: Listener) -> tuple[str, ...]:
    return tuple(line for line in listener.of("plan")[-1].lines if line.startswith("Batch size auto"))


@pytest.mark.parametrize(("room", "most", "batch"), [(100, 512, 90), (1000, 64, 64), (1, 512, 1), (8, 512, 7),
                                                      (10**6, 3, 3)])
def test_an_automatic_batch_fills_the_device(monkeypatch: pytest.MonkeyPatch, room: int, most: int, batch: int) -> None:
    """A pass over a clip takes one unit of memory, of which nine tenths may be used. To an eighth at least."""
    tried = list[int]()

    def profile(pairs: list[int]) -> None:
        tried.append(len(pairs))
        if len(pairs) > room:
            raise torch.OutOfMemoryError

    trainer = SimpleNamespace(sharded=False, tts=SimpleNamespace(device=torch.device("cuda")), optimizer_bytes=0,
                              loader=SimpleNamespace(by_length=lambda: list(range(600))),
                              profile_forward_backward=profile)
    monkeypatch.setattr(compute, "free_bytes", lambda device: room)

    def peak_bytes(_device: torch.device, work: Any) -> int:
        work()
        return tried[-1]

    monkeypatch.setattr(memory_plan, "peak_bytes", peak_bytes)
    found = run_plan.largest_batch(cast(Trainer, trainer), most)
    assert found <= max(1, 0.9 * room)
    assert batch - max(1, batch // 8) <= found <= batch
    assert len(tried) < 16


def test_a_sharded_run_needs_a_number() -> None:
    with pytest.raises(UserError, match="sharded run cannot be found by trial"):
        run_plan.largest_batch(cast(Trainer, SimpleNamespace(sharded=True)), 8)


def test_strengths_of_ewc_reach_those_of_its_papers() -> None:
    assert parse_options(TrainOptions, {"ewc": 1e4}).full.ewc == 1e4
    with pytest.raises(UserError, match="ewc"):
        parse_options(TrainOptions, {"ewc": 1e5})
