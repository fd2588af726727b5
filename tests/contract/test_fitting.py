"""A run fits into memory or says so: finding out changes nothing, and a step that failed is taken again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from core import compute
from core.library.records import CheckpointRecord
from core.training import checkpoint, memory_plan, run_plan
from core.training.memory_plan import MicrobatchPlan
from core.training.trainer import Trainer
from data.batches import TargetPromptPair
from models.base import LanguageModel, Losses, LossOptions, Sample
from tests.contract.conftest import World
from tests.worlds import DEVICE

pytestmark = pytest.mark.covering

EVEN = {"batch_size": 6, "adapter_dropout": 0.0, "text_dropout": 0.4, "code_dropout": 0.5}
NOISY = {"adapter_dropout": 0.3, "text_dropout": 0.3, "gradient_accumulation": 2}


class Cramped:
    """A model on a device with room for a few samples, and for others where activations are recomputed."""

    def __init__(self, model: LanguageModel, room: int, room_recomputing: int = 0) -> None:
        self._model, self._rooms, self._recomputing = model, (room, max(room, room_recomputing)), False
        self.asked: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def set_activation_checkpointing(self, enabled: bool) -> None:
        self._recomputing = enabled
        self._model.set_activation_checkpointing(enabled)

    def losses(self, samples: Sequence[Sample], options: LossOptions, seeds: Sequence[int] | None = None) -> Losses:
        self.asked.append(len(samples))
        if len(samples) > self._rooms[self._recomputing]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self._model.losses(samples, options, seeds)


def trained(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.trainables.named.items()}


def test_a_step_without_memory_is_taken_again_in_smaller_passes(world: World) -> None:
    warnings: list[str] = []
    roomy = world.trainer(**EVEN)
    wanted = [roomy.train_step() for _ in range(3)]
    cramped = world.trainer(wrap=lambda model: Cramped(model, 2), warn=warnings.append, **EVEN)
    for step in wanted:
        seen = cramped.train_step()
        assert seen.tokens == step.tokens
        assert seen.speech == pytest.approx(step.speech, rel=1e-5)
        assert seen.gradient_norm == pytest.approx(step.gradient_norm, rel=1e-4)
    for name, value in trained(roomy).items():
        torch.testing.assert_close(cramped.trainables.named[name], value, rtol=1e-3, atol=1e-5)
    assert cramped.tts.lm.asked == [6, 3, *[2] * 9]
    assert [warning.partition(" from here on")[0] for warning in warnings] == [
        f"Out of memory at step 1: micro-batches of {now} clips instead of {before}"
        for now, before in ((3, 6), (2, 3))]
    assert warnings[1].endswith("The step is repeated with the same samples.")


def test_single_clips_are_the_last_but_one_resort(world: World) -> None:
    warnings: list[str] = []
    trainer = world.trainer(wrap=lambda model: Cramped(model, 0, 1), warn=warnings.append, **EVEN)
    trainer.train_step()
    assert trainer.microbatch_plan == MicrobatchPlan(splits=8, activation_checkpointing=True)
    assert warnings[-1].startswith("Out of memory at step 1: activation checkpointing from here on.")
    with pytest.raises(UserError, match="Out of memory at step 1, with micro-batches of a single clip"):
        world.trainer(wrap=lambda model: Cramped(model, 0), **EVEN).train_step()
    trainer = world.trainer(wrap=lambda model: Cramped(model, 0, 1), activation_checkpointing="off", **EVEN)
    with pytest.raises(UserError, match="single clip"):
        trainer.train_step()


def test_the_setting_and_the_scale_of_the_loss_are_in_the_checkpoint(world: World, tmp_path: Path) -> None:
    trainer = world.trainer(torch.float16, wrap=lambda model: Cramped(model, 3), **EVEN)
    trainer.train_step()
    tts, options = trainer.tts, trainer.options
    record = CheckpointRecord("run", 1, options.scope, options.extension, options.dataset, "", "", tts.origin)
    checkpoint.save(tmp_path, record, tts, options, trainer.state_dict())
    state = checkpoint.load_state(tmp_path, 1)
    again = world.trainer(torch.float16, **EVEN)
    again.load_state_dict(state)
    assert again.microbatch_plan == trainer.microbatch_plan == MicrobatchPlan(splits=2)
    assert torch.equal(again.state_dict().tensors["scaler"], trainer.state_dict().tensors["scaler"])
    assert float(trainer.state_dict().tensors["scaler"][1]) == 1  # steps since the scale last changed


def test_gradients_too_large_for_float16_take_the_step_again_with_a_smaller_scale(world: World) -> None:
    options = {**EVEN, "max_grad_norm": 1e3}
    usual = world.trainer(torch.float16, **options)
    wanted = usual.train_step()
    steep = world.trainer(torch.float16, **options)
    state = steep.state_dict()
    state.tensors["scaler"][0] = 2.0**24  # type: ignore[index]
    steep.load_state_dict(state)
    seen = steep.train_step()
    assert float(steep.state_dict().tensors["scaler"][0]) < 2.0**24
    assert (seen.speech, seen.text, steep.step) == (wanted.speech, wanted.text, 1)
    assert seen.gradient_norm == pytest.approx(wanted.gradient_norm, rel=0.02)


def test_what_is_found_out_before_a_run_changes_nothing(world: World) -> None:
    plain = world.trainer(**NOISY)
    wanted = [plain.train_step() for _ in range(3)]
    probed = world.trainer(**NOISY)
    seen = []
    for _ in range(3):
        found = run_plan.fit_memory_plan(probed)
        seen.append(probed.train_step())
    assert seen == wanted
    assert all(torch.equal(value, probed.trainables.named[name]) for name, value in trained(plain).items())
    assert found.fits
    assert found.microbatch_plan == MicrobatchPlan()
    assert 0 < found.seconds_a_step[0] <= found.seconds_a_step[1]


@pytest.mark.parametrize("scope", ["rows", "full"])
def test_the_memory_that_is_planned_is_that_of_the_longest_batch(world: World, scope: str) -> None:
    """In `full` gradients of the base take more than the activations of few clips."""
    trainer = world.trainer(**{**EVEN, "scope": scope})
    needed = run_plan.fit_memory_plan(trainer).needed
    assert needed is not None
    longest = trainer.loader.by_length()[-6:]
    peak = memory_plan.peak_bytes(DEVICE, lambda: trainer.profile_forward_backward(longest))
    assert needed == pytest.approx(peak + trainer.optimizer_bytes, rel=0.02)


def test_a_run_that_would_not_fit_recomputes_and_then_halves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(free: int | None, **changes: object) -> run_plan.Estimate:
        monkeypatch.setattr(compute, "free_bytes", lambda device: free)
        trainer = world.trainer(**{**EVEN, **changes})
        estimate = run_plan.fit_memory_plan(trainer)
        assert trainer.microbatch_plan == estimate.microbatch_plan
        return estimate

    roomy = found(None).needed
    saving = found(None, activation_checkpointing="on").needed
    single = found(None, activation_checkpointing="on", batch_size=1).needed
    assert roomy is not None
    assert saving is not None
    assert single is not None
    assert single < saving < roomy
    assert found(2 * roomy).microbatch_plan == MicrobatchPlan()
    assert found(int(saving / 0.9) + 1000).microbatch_plan == MicrobatchPlan(activation_checkpointing=True)
    halved = found(int((saving + single) / 2 / 0.9))
    assert (halved.microbatch_plan.activation_checkpointing, halved.fits) == (True, True)
    assert halved.microbatch_plan.splits in (2, 4)
    assert not found(int(saving / 0.9) + 1000, activation_checkpointing="off").microbatch_plan.activation_checkpointing
    nothing = found(single // 2)
    assert (nothing.fits, nothing.microbatch_plan) == (False, MicrobatchPlan(8, True))


def test_a_trial_that_runs_out_of_memory_is_not_planned_with(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = world.trainer(wrap=lambda model: Cramped(model, 1, 6), **EVEN)
    assert run_plan.fit_memory_plan(trainer).microbatch_plan == MicrobatchPlan(activation_checkpointing=True)
    monkeypatch.setattr(compute, "free_bytes", lambda device: 24 * 2**30)
    trainer = world.trainer(wrap=lambda model: Cramped(model, 0), **EVEN)
    estimate = run_plan.fit_memory_plan(trainer)
    assert (estimate.fits, estimate.needed) == (False, None)
    assert run_plan.plan_event(trainer, estimate).lines[-1] == (
        "A single clip does not fit into the 24.0 GiB of free memory: the run may run out of memory.")


def test_the_time_of_a_step_is_that_of_whole_batches_of_short_and_long_clips_without_the_first_pass(
        world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a preflight of few clips too. A clip takes a second here, its length a little, and the first pass an hour."""
    trainer = world.trainer(**{**EVEN, "batch_size": 2, "gradient_accumulation": 3})
    lengths = sorted(item.batch_clip.length for item in trainer.data.train)
    passes: list[list[int]] = []
    now = 0.0

    def profile_forward_backward(draws: Sequence[TargetPromptPair]) -> None:
        nonlocal now
        passes.append([trainer.data.train[draw.target].batch_clip.length for draw in draws])
        now += sum(1.0 + length / 1000 for length in passes[-1]) + (3600.0 if len(passes) == 1 else 0.0)

    monkeypatch.setattr(trainer, "profile_forward_backward", profile_forward_backward)
    monkeypatch.setattr(run_plan, "_MAX_TIMING_ROUNDS", 3)
    monkeypatch.setattr(run_plan, "_TIMING_S", 3600.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    short, long = run_plan._time_step(trainer)
    assert [len(clips) for clips in passes] == [2] * 7
    assert 6.0 + 6 * lengths[0] / 1000 <= short < long <= 6.0 + 6 * lengths[-1] / 1000
