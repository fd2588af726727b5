"""A run that was stopped and resumed is the run that was never stopped, bit-identical on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core import train
from core.jobs import checkpoint_names
from core.jobs.events import Evaluated, Step
from core.jobs.reporter import StopRequested
from core.model.loading import load_checkpoint
from tests.contract.conftest import World
from tests.worlds import DEVICE, Listener, train_options

pytestmark = pytest.mark.covering

CHANGES = {"steps": 9, "checkpoint_every": 4, "adapter_dropout": 0.2, "gradient_accumulation": 2, "text_dropout": 0.3,
           "evaluation_sentences": 1}


def losses(listeners: list[Listener]) -> list[tuple[int, float, float, float]]:
    steps: list[Step] = [event for listener in listeners for event in listener.of("step")]
    return [(step.step, step.speech_loss, step.text_loss, step.gradient_norm) for step in steps]


def evaluations(listeners: list[Listener]) -> list[tuple[int, float, float]]:
    """What was measured; a family without a judge has no errors."""
    events: list[Evaluated] = [event for listener in listeners for event in listener.of("evaluated")]
    return [(event.step, event.speech_loss, event.errors.get("am", 0.0)) for event in events]


def trained_tensors(world: World, run: Path) -> dict[str, torch.Tensor]:
    tts = load_checkpoint(world.workspace, checkpoint_names.folder_of(run, 9), DEVICE)
    return dict(tts.lm.module.state_dict())


@pytest.mark.parametrize(("scope", "stops"), [
    ("gated", (3, 3)), ("rows", (4,)),
    pytest.param("full", (2,), marks=pytest.mark.slow)])  # of each family in test_full.py
def test_resume_equals_uninterrupted(world: World, scope: str, stops: tuple[int, ...]) -> None:
    options = train_options(scope=scope, replay_texts=world.few_sentences(), **CHANGES)
    whole = Listener(world.workspace.runs / f"whole-{scope}")
    train.run(options, world.workspace, whole)
    parts = []
    for stop_after in (*stops, None):
        parts.append(Listener(world.workspace.runs / f"parts-{scope}", stop_after))
        if stop_after is None:
            train.run(options, world.workspace, parts[-1])
        else:
            torch.manual_seed(99)  # nothing may hang on what the process drew before
            with pytest.raises(StopRequested):
                train.run(options, world.workspace, parts[-1])
    assert len(losses([whole])) == 9
    assert losses(parts) == losses([whole])
    assert evaluations(parts) == evaluations([whole])
    one, other = trained_tensors(world, whole.directory), trained_tensors(world, parts[0].directory)
    assert all(torch.equal(one[name], other[name]) for name in one)
