"""Rates by step, the optimizer that is asked for, batches that cannot be learnt from, and the moving average."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from config.errors import UserError
from config.schema import TrainOptions
from core import train
from core.jobs.checkpoint_names import checkpoint_steps
from core.model import tensor_files
from core.model.precision import Precision
from core.training import checkpoint, dataloader, parameter_groups, setup
from core.training.parameter_groups import LearningRateSchedule, ParameterGroup
from core.training.trainer import Diverged, Trainer, make_optimizer
from core.training.weight_regularization import ExponentialMovingAverage
from core.workspace import Workspace
from models.base import Losses
from tests.worlds import Listener, extended_world, train_options

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return extended_world(tmp_path_factory.mktemp("world"))


def made(world: Workspace, warnings: list[str] | None = None, **changes: object) -> Trainer:
    options = train_options(**changes)
    tts = setup.new_model(options, world, CPU)
    data = dataloader.load_training_data(world, options.dataset, tts)
    tell = (lambda message: None) if warnings is None else warnings.append
    dtype = torch.float16 if options.hardware.precision == "float16" else torch.float32
    return Trainer(options, tts, data, (), Precision("cpu", dtype, "for the test"), tell)


def schedule_of(options: TrainOptions) -> LearningRateSchedule:
    return LearningRateSchedule.from_options(options.optimization, options.length.steps)


@pytest.mark.parametrize(("schedule", "middle", "last"), [("cosine", 0.55, 0.1), ("linear", 0.55, 0.1),
                                                          ("constant", 1.0, 1.0)])
def test_rates_rise_to_the_peak_and_fall_to_the_floor(schedule: str, middle: float, last: float) -> None:
    options = train_options(schedule=schedule, steps=104, warmup=4, min_lr_ratio=0.1)
    factors = [schedule_of(options).factor(step) for step in range(105)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[54] == pytest.approx(middle)
    assert factors[104] == pytest.approx(last)
    assert all(one >= other - 1e-12 for one, other in zip(factors[4:], factors[5:], strict=False))


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_the_schedule_ends_where_the_time_ends_without_a_jump(kind: str) -> None:
    options = train_options(schedule=kind, steps=1000, warmup=30, min_lr_ratio=0.1)
    asked = schedule_of(options)
    fitting = asked.with_last_step(200, 0)
    slower, faster = fitting.with_last_step(150, 100), fitting.with_last_step(300, 100)
    for schedule in (fitting, slower, faster):
        assert schedule.factor(schedule.steps) == pytest.approx(0.1)
        assert schedule.factor(100) == fitting.factor(100)
        factors = [schedule.factor(step) for step in range(100, schedule.steps + 1)]
        assert factors == sorted(factors, reverse=True)
    assert asked.with_last_step(20, 0).warmup == 4  # a fifth of them


def test_epochs_are_the_steps_of_so_many_passes(world: Workspace) -> None:
    clips = len(made(world).data.train)
    trainer = made(world, steps=500, batch_size=2, max_epochs=3.0)
    assert trainer.schedule.steps == math.ceil(3 * clips / 2)
    assert made(world, steps=2, batch_size=2, max_epochs=3.0).schedule.steps == 2
    with pytest.raises(UserError, match="AdaLoRA reduces its ranks over 500 steps"):
        made(world, steps=500, max_epochs=3.0, adapter="adalora")


def test_a_resumed_run_keeps_the_steps_that_fit(world: Workspace) -> None:
    first, second, longer = (made(world, steps=500, max_minutes=minutes) for minutes in (1.0, 1.0, 2.0))
    first.fit_steps_to_time_limit(0.5)
    assert first.schedule.steps == 120
    first.train_step()
    first.seconds = 0.5
    state = first.state_dict()
    second.load_state_dict(state)
    assert second.schedule == first.schedule
    longer.load_state_dict(state)  # whose limit was changed
    assert longer.schedule.steps == 240


def test_the_cosine_falls_slower_at_first_than_the_line() -> None:
    cosine, linear = (schedule_of(train_options(schedule=kind, steps=100, warmup=0)).factor(25)
                      for kind in ("cosine", "linear"))
    assert cosine > linear + 0.05


@pytest.mark.parametrize(("decay", "layers"), [
    (1.0, {"layers": 1e-3}), (0.5, {"top layer": 1e-3, "bottom layer": 2.5e-4})])
def test_rates_are_told_by_group_and_of_many_layers_the_two_ends(decay: float, layers: dict[str, float]) -> None:
    rates = {"rows": 5e-3, **{f"layer {depth} from the top": 1e-3 * decay ** (depth - 1) for depth in (1, 2, 3)}}
    made = [ParameterGroup(name, {name: nn.Parameter(torch.zeros(2))}, rate) for name, rate in rates.items()]
    held = make_optimizer(made, "adamw", torch.device("cpu"))
    assert parameter_groups.learning_rates(made, held) == pytest.approx({"rows": 5e-3, **layers})


def test_8_bit_moments_are_refused_plainly_where_they_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [ParameterGroup("rows", {"w": nn.Parameter(torch.zeros(3))}, 0.1)]
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(UserError, match="needs the package bitsandbytes") as caught:
        make_optimizer(groups, "adamw8bit", CPU)
    assert "pip install bitsandbytes" in caught.value.hint


class Wrapped(torch.optim.AdamW):
    """What bitsandbytes 0.50 gives as its state: steps in an int, and the rest in a separate mapping."""

    def state_dict(self) -> dict[str, Any]:
        whole = super().state_dict()
        state = {index: {"step": int(entry["step"]), "__bnb_optimizer_quant_state__": {
            key: value for key, value in entry.items() if key != "step"}} for index, entry in whole["state"].items()}
        return {**whole, "state": state}

    def load_state_dict(self, given: dict[str, Any]) -> None:
        state = {index: {**entry, "step": torch.tensor(float(entry["step"]))}
                 for index, entry in given["state"].items() if isinstance(entry["step"], int)}
        super().load_state_dict({**given, "state": state})


@pytest.mark.parametrize("real", [False, True], ids=["its form", "bitsandbytes"])
def test_8_bit_moments_are_saved_and_go_on_to_the_bit(
        real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if real:
        pytest.importorskip("bitsandbytes.optim", reason="the package is a person's choice")
    else:
        package = ModuleType("bitsandbytes.optim")
        package.AdamW8bit = Wrapped  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "bitsandbytes.optim", package)

    def begin() -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
        torch.manual_seed(3)
        held = {"wide": nn.Parameter(torch.randn(128, 64)), "small": nn.Parameter(torch.randn(5))}
        groups = [ParameterGroup(name, {name: value}, 0.01) for name, value in held.items()]
        return held, make_optimizer(groups, "adamw8bit", CPU)

    def learn(held: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, steps: int) -> None:
        for _ in range(steps):
            sum((value - 1.0).pow(2).sum() for value in held.values()).backward()  # type: ignore[union-attr]
            optimizer.step()
            optimizer.zero_grad()

    whole, optimizer = begin()
    learn(whole, optimizer, 3)
    tensors = checkpoint.optimizer_tensors(optimizer, list(whole))
    if real:
        assert tensors["optimizer/wide/state1"].dtype == torch.uint8
    tensor_files.write(tmp_path / "state.safetensors", tensors)
    parts, again = begin()
    for name, value in whole.items():
        parts[name].data.copy_(value.data)
    checkpoint.restore_optimizer(again, list(parts), tensor_files.read(tmp_path / "state.safetensors", ""))
    learn(whole, optimizer, 3)
    learn(parts, again, 3)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def failing(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """Let these losses of training steps, counted from 0, be NaN."""
    loss, count = Trainer._loss, iter(range(1000))

    def nan_loss(self: Trainer, *given: object, **named: object) -> tuple[torch.Tensor, torch.Tensor]:
        total, parts = loss(self, *given, **named)  # type: ignore[arg-type]
        return (total * math.nan, parts * math.nan) if next(count) in calls else (total, parts)

    monkeypatch.setattr(Trainer, "_loss", nan_loss)


def test_a_batch_that_is_no_number_is_skipped_and_counted(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    trainer = made(world, warnings)
    failing(trainer, monkeypatch, {1, 2, 4})
    for _ in range(3):
        assert torch.isfinite(torch.tensor(trainer.train_step().speech))
    assert (trainer.step, trainer.skipped_batches) == (3, 3)
    assert len(warnings) == 3
    assert "A batch of step 2 was skipped: speech loss nan" in warnings[0]
    assert "Skipped so far: 3" in warnings[2]
    again = made(world)
    again.load_state_dict(trainer.state_dict())
    assert again.skipped_batches == 3


def test_with_a_scaled_loss_too_the_batch_after_a_skipped_one_is_learnt(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(world, precision="float16")
    losses, due = trainer.tts.lm.losses, list[bool]()

    def broken(*given: object, **named: object) -> Losses:
        found = losses(*given, **named)  # type: ignore[arg-type]
        return replace(found, speech_sum=found.speech_sum * float("nan")) if due and due.pop() else found

    monkeypatch.setattr(trainer.tts.lm, "losses", broken)
    trainer.train_step()
    before = trainer.state_dict().tensors["scaler"]
    due.append(True)
    trainer.train_step()
    assert (trainer.step, trainer.skipped_batches) == (2, 1)
    after = trainer.state_dict().tensors["scaler"]
    assert (after[0], after[1]) == (before[0], before[1] + 1)


def test_a_skipped_batch_leaves_no_trace(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(world)
    trainer.train_step()
    before = {name: value.detach().clone() for name, value in trainer.trainables.named.items()}
    moments = [value.clone() for state in trainer.optimizer.state.values() for value in state.values()]
    failing(trainer, monkeypatch, {0, 1, 2})
    with pytest.raises(Diverged, match="diverged at step 2: .* 3 batches in a row"):
        trainer.train_step()
    assert trainer.step == 1
    assert all(torch.equal(value, trainer.trainables.named[name]) for name, value in before.items())
    after = [value for state in trainer.optimizer.state.values() for value in state.values()]
    assert all(torch.equal(one, other) for one, other in zip(moments, after, strict=True))


def test_a_run_that_breaks_says_on_which_checkpoint_it_stopped(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = made(world)
    failing(trainer, monkeypatch, {4, 5, 6, 7, 8})  # two trial passes and two steps, then three batches in a row
    monkeypatch.setattr("core.training.run_plan._time_step", lambda trainer: (1.0, 1.0))
    listener = Listener(world.runs / "breaks")
    options = train_options(checkpoint_every=2, evaluation_sentences=0, steps=30)
    with pytest.raises(UserError, match=r"can resume from its last checkpoint, of step 2") as caught:
        train.run(options, world, listener)
    assert "lower learning rates" in caught.value.hint
    assert checkpoint_steps(listener.directory)[-1] == 2


def test_an_average_follows_and_changes_places() -> None:
    value = nn.Parameter(torch.tensor([0.0]))
    average = ExponentialMovingAverage({"w": value}, 0.9)
    wanted = 0.0
    for step in range(1, 200):
        with torch.no_grad():
            value.fill_(float(step))
        average.update()
        decay = min(0.9, step / (step + 9))
        wanted = decay * wanted + (1 - decay) * step
    assert average.values["w"].item() == pytest.approx(wanted, rel=1e-5)
    assert 185 < wanted < 195  # about ten steps behind
    with average.average_parameters():
        assert value.item() == pytest.approx(wanted, rel=1e-5)
    assert value.item() == 199.0


def test_the_average_is_of_what_is_trained_alone_and_is_what_is_saved(world: Workspace, tmp_path: Path) -> None:
    trainer = made(world, ema=0.5, scope="gated", adapter_dropout=0.0)
    for _ in range(4):
        trainer.train_step()
    average = trainer.ema
    assert average is not None
    assert set(average.values) == set(trainer.trainables.named)
    trained = {name: value.detach().clone() for name, value in trainer.trainables.named.items()}
    averages = {name: value.clone() for name, value in average.values.items()}
    assert not torch.equal(trained["text_emb.new"], averages["text_emb.new"])
    state = trainer.state_dict()
    state = replace(state, tensors={name: value.clone() for name, value in state.tensors.items()})  # as from a file
    with trainer.evaluation_weights():
        assert all(torch.equal(value, averages[name]) for name, value in trainer.trainables.named.items())
    again = made(world, ema=0.5, scope="gated", adapter_dropout=0.0)
    with torch.no_grad():
        for name, value in again.trainables.named.items():
            value.copy_(averages[name])  # as they stand in the model's files
    again.load_state_dict(state)
    assert all(torch.equal(value, trained[name]) for name, value in again.trainables.named.items())
    for one in (trainer, again):
        one.train_step()
    assert again.ema is not None
    assert all(torch.equal(value, average.values[name]) for name, value in again.ema.values.items())
