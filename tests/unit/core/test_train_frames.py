"""How deep a training step is: the functions of ours between the verb and the loss."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
import torch

from core import train
from core.workspace import Workspace
from tests.worlds import Listener, train_options

ROOT = Path(__file__).resolve().parents[3]
MOST = 8


def test_few_frames_lie_between_the_verb_and_the_loss(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[list[str]] = []
    cross_entropy = torch.nn.functional.cross_entropy

    def recorded(*given: object, **named: object) -> torch.Tensor:
        frames = [frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(ROOT)
                  and "site-packages" not in frame.filename]
        names = [f"{Path(frame.filename).relative_to(ROOT)}:{frame.name}" for frame in frames]
        if "core/training/trainer.py:train_step" in names:
            stacks.append(names[names.index("core/train.py:run"):-1])
        return cross_entropy(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", recorded)
    train.run(train_options(steps=1, evaluation_sentences=0), world, Listener(world.runs / "one"))
    assert stacks
    assert all(len(names) <= MOST for names in stacks), stacks[0]
