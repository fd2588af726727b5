"""Warnings of a training loss that rises, and of one that does not fall."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from core import train
from core.jobs.events import Step, append_event
from core.train import LossWatch
from core.workspace import Workspace
from tests.worlds import Listener, train_options


def step(number: int, loss: float, steps: int, text_loss: float | None = None) -> Step:
    text_loss = 2 * 0.99**number if text_loss is None else text_loss
    return Step(number, steps, loss, text_loss, {"rows": 1e-3}, 1.0, 100.0, float(number))


def warnings(losses: list[float], warmup: int = 0) -> dict[int, str]:
    """What is said, by step, of a run with these losses."""
    watch = LossWatch(len(losses), warmup)
    said = {number: watch.observe(step(number, loss, len(losses))) for number, loss in enumerate(losses, 1)}
    return {number: text for number, text in said.items() if text}


def falling(steps: int, noise: float = 0.3) -> list[float]:
    chance = random.Random(0)
    return [2 + 3 * 0.05**(number / steps) + chance.uniform(-noise, noise) for number in range(steps)]


@pytest.mark.parametrize("steps", [5, 19, 200, 1000])
def test_a_run_that_learns_is_not_warned_of(steps: int) -> None:
    assert not warnings(falling(steps))


def test_a_loss_that_rises_is_said_again_when_it_rises_further() -> None:
    losses = falling(200)
    said = warnings(losses[:150] + [loss * 3 for loss in losses[150:]])
    assert 150 < min(said) <= 160
    risen = [text for text in said.values() if "has risen" in text]
    assert 1 < len(risen) < 8


def test_a_plateau_is_said_again_after_each_tenth() -> None:
    losses = falling(100, 0.05)
    said = warnings(losses + [losses[-1]] * 100)
    assert len(said) >= 3
    assert all("has not improved for" in text for text in said.values())
    assert min(said) >= 120


def test_a_flat_text_loss_is_said_while_the_speech_loss_falls() -> None:
    watch = LossWatch(200, 0)
    said = [watch.observe(step(number, loss, 200, 1.0)) for number, loss in enumerate(falling(200), 1)]
    said = [text for text in said if text]
    assert len(said) >= 2
    assert all("text loss is flat" in text for text in said)


def test_a_single_bad_batch_is_no_rise() -> None:
    losses = falling(200)
    losses[120] *= 4
    assert not warnings(losses)


@pytest.mark.parametrize(("warmup", "first"), [(0, 50), (100, 200)])
def test_a_loss_that_does_not_fall_is_said_after_a_tenth_and_after_the_warmup(warmup: int, first: int) -> None:
    chance = random.Random(1)
    losses = [5 + chance.uniform(0, 0.001) * number / 500 for number in range(500)]
    said = warnings(losses, warmup)
    assert min(said) == first
    assert f"in {first} of 500 steps" in said[first]
    assert min(said.keys() - {first}) == first + 50  # it can come again


def test_a_resumed_run_does_not_say_it_again(tmp_path: Path) -> None:
    for number in range(1, 61):
        append_event(tmp_path / "events.jsonl", step(number, 5.0, 100))
    whole, resumed = (LossWatch(100, 0) for _ in range(2))
    said = {number: text for number in range(1, 61) if (text := whole.observe(step(number, 5.0, 100)))}
    resumed.read_journal(tmp_path, 40)
    again = {number: text for number in range(41, 61) if (text := resumed.observe(step(number, 5.0, 100)))}
    assert again == {number: text for number, text in said.items() if number > 40}
    assert vars(resumed) == vars(whole)


def test_a_run_whose_weights_stay_warns_on_the_page(world: Workspace) -> None:
    listener = Listener(world.runs / "one")
    train.run(train_options(steps=24, warmup=0, row_lr=1e-12, adapter_lr=1e-12,
                            evaluation_sentences=0, checkpoint_every=24), world, listener)
    assert any("The speech loss has not fallen in" in event.message for event in listener.of("warning"))
