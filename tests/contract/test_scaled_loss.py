"""The scale of a loss in float16: it falls for gradients that are too large, and not for a batch that has none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.training.trainer import Diverged
from models.base import LanguageModel, Losses
from tests.contract.conftest import World


class Broken:
    """A model whose losses are numbers and whose gradients are none, while `broken` says so."""

    def __init__(self, model: LanguageModel) -> None:
        self._model, self.broken, self.passes = model, False, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def losses(self, *given: object, **named: object) -> Losses:
        found = self._model.losses(*given, **named)  # type: ignore[arg-type]
        if not self.broken:
            return found
        self.passes += 1
        return replace(found, speech_sum=found.speech_sum + (found.speech_sum * 0.0).sqrt())  # whose slope is 0 / 0


def test_a_batch_without_gradients_leaves_the_scale_as_it_was(world: World) -> None:
    held: list[Broken] = []

    def wrap(model: LanguageModel) -> LanguageModel:
        held.append(Broken(model))
        return held[0]  # type: ignore[return-value]

    trainer = world.trainer(torch.float16, wrap=wrap, batch_size=2)
    trainer.train_step()
    state = trainer.state_dict()
    state.tensors["scaler"][0] = 8.0  # type: ignore[index]  # so that few passes reach the smallest
    trainer.load_state_dict(state)
    before = trainer.state_dict().tensors["scaler"]
    held[0].broken = True
    with pytest.raises(Diverged, match="gradient norm nan"):
        trainer.train_step()
    assert held[0].passes >= 3 * 4  # each of the three batches was tried at every scale
    assert torch.equal(trainer.state_dict().tensors["scaler"], before)
    held[0].broken = False
    trainer.train_step()
    assert trainer.state_dict().tensors["scaler"].tolist() == [before[0], before[1] + 1]


def test_a_norm_alone_that_is_no_number_is_not_tried_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = world.trainer(torch.float16, batch_size=2)
    monkeypatch.setattr("core.training.fsdp.full_value", lambda norm: norm * float("inf"))
    with pytest.raises(Diverged, match="gradient norm inf"):
        trainer.train_step()
