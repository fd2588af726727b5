"""Two processes that each hold a part of the model do what one does with twice the batch, and write the same files."""

from __future__ import annotations

import os
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor, Shard

from config import schema
from config.errors import UserError
from config.schema import TrainOptions, with_values
from core import train
from core.jobs import checkpoint_names
from core.jobs.events import Result
from core.jobs.reporter import StopRequested
from core.model.precision import Precision
from core.training import checkpoint, dataloader, distributed, fsdp, setup
from core.training.dataloader import TrainBatch, split_microbatches
from core.training.distributed import ONE_PROCESS, ProcessGroup
from core.training.trainer import Trainer
from core.workspace import Workspace
from tests.processes import free_port, two_do
from tests.worlds import Listener, extended_world, losses, train_options

CPU = torch.device("cpu")
# Both layers have aligned heads, so that only without the loss on attention are they brought together one by one.
FULL = {"scope": "full", "steps": 6, "checkpoint_every": 3, "evaluation_sentences": 0, "text_dropout": 0.3,
        "replay": 0.34}
CASES = {
    "blocks": {"guided_attention_weight": 0.0},
    # One clip to rehearse in a batch, so that the second process has none for a pass that it must take.
    "held back": {"replay": 0.2, "l2_sp": 0.5, "distillation": 0.5, "ema": 0.9, "gradient_accumulation": 2},
    "layers": {"full_trainable": "layers", "replay": 0.0, "guided_attention_weight": 0.0,
               "activation_checkpointing": "off"},
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return extended_world(tmp_path / "workspace")


def run(world: Workspace, name: str, stop_after: int | None = None, **changes: object) -> tuple[Listener, Result]:
    listener = Listener(world.runs / name, stop_after)
    try:
        return listener, train.run(train_options(**{**FULL, **changes}), world, listener)
    except StopRequested:
        return listener, {}


def files(world: Workspace, name: str, step: int) -> dict[str, dict[str, torch.Tensor]]:
    folder = checkpoint_names.folder_of(world.runs / name, step)
    return {path.relative_to(folder).as_posix(): load_file(path) for path in folder.rglob("*.safetensors")}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_sharded_run_is_the_run_of_one_process_and_goes_on_in_one(world: Workspace, case: str) -> None:
    one, _ = run(world, "one", batch_size=6, **CASES[case])
    two, _ = run(world, "two", 3, batch_size=3, processes=2, sharding="full", **CASES[case])
    assert "The longest clips fit." in two.of("plan")[0].lines[-1]
    for name, tensors in files(world, "one", 3).items():
        seen = files(world, "two", 3)[name]
        assert {key for key in seen if not key.startswith("rank-1/")} == set(tensors)
        for key, value in tensors.items():
            torch.testing.assert_close(seen[key], value, rtol=1e-2, atol=1e-4)
    before, sharded = (checkpoint.load_state(world.runs / name, 3).base_losses for name in ("one", "two"))
    assert sharded == pytest.approx(before, rel=1e-2)
    alone, result = run(world, "two", batch_size=6, **CASES[case])
    assert len(losses([two])) == len(losses([alone])) == 3
    for mine, wanted in zip(losses([two, alone]), losses([one]), strict=True):
        assert mine == pytest.approx(wanted, rel=1e-4)
    assert result["certificate"] == "not proven yet"


def short_of_memory(rank: int, path: Path, port: int, results: SimpleQueue) -> None:
    """A process of two: after a step the second runs out of memory, while the first waits for its part of a layer."""
    torch.set_num_threads(1)
    distributed.init_process_group(f"tcp://127.0.0.1:{port}", rank, 2, CPU)
    options = train_options(**{**FULL, "batch_size": 3, "processes": 2, "sharding": "full", "replay": 0.0})
    trainer = trainer_of(Workspace.open(path), options, ProcessGroup(rank, 2))
    trainer.train_step()
    moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
    held = fsdp.local_bytes(value for value in (*trainer.trainables.named.values(), *moments) if value.ndim)
    whole = sum(value.nbytes for value in (*trainer.trainables.named.values(), *moments) if value.ndim)
    if rank:
        trainer.train_model.lm.losses = no_memory  # what the passes call
    try:
        trainer.train_step()
        fault = ""
    except UserError as error:
        fault = error.message
    results.put((rank, held, whole, fault))
    os._exit(0)  # as a process ends that others wait for


def no_memory(*_given: object, **_named: object) -> None:
    raise torch.OutOfMemoryError("made up")


@pytest.mark.slow
def test_each_process_holds_half_and_a_shortage_ends_all_with_words(world: Workspace) -> None:
    (_, first, whole, waited), (_, second, _, short) = two_do(short_of_memory, world.path)
    assert first + second == whole
    assert max(first, second) < 0.55 * whole
    assert "Out of memory at step 2. A sharded run cannot change the size of its micro-batches" in short
    assert "Another rank exited" in waited


def test_everything_that_is_trained_is_in_parts_and_a_step_is_the_same(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a single process, whose part is the whole, because several take long to start."""
    monkeypatch.setattr(schema, "check_sharding", lambda *given, **named: None)  # which refuses one process
    options = train_options(**{**FULL, "batch_size": 6, "sharding": "full", "replay": 0.0})
    distributed.init_process_group(f"tcp://127.0.0.1:{free_port()}", 0, 1, CPU)
    try:
        trainer, alone = trainer_of(world, options, ProcessGroup()), trainer_of(world, options, ONE_PROCESS)
        assert all(isinstance(value, DTensor) and value.placements == (Shard(0),)
                   for value in trainer.trainables.named.values())
        assert trainer.microbatch_plan.activation_checkpointing  # who shards is short of memory
        trainer.profile_forward_backward(trainer.loader.by_length()[-2:])  # which leaves no trace
        mine, wanted = (one.train_step() for one in (trainer, alone))
        assert (mine.speech, mine.text, mine.gradient_norm) == pytest.approx(
            (wanted.speech, wanted.text, wanted.gradient_norm), rel=1e-5)
        moments = [value for state in trainer.optimizer.state.values() for value in state.values() if value.ndim]
        assert moments
        assert all(isinstance(value, DTensor) for value in moments)
        with trainer.evaluation_weights():
            whole = dict(trainer.tts.lm.module.named_parameters())
            for name, value in alone.trainables.named.items():
                assert not isinstance(whole[name], DTensor)
                torch.testing.assert_close(whole[name], value, rtol=1e-5, atol=1e-7)
    finally:
        torch.distributed.destroy_process_group()


def trainer_of(world: Workspace, options: TrainOptions, group: ProcessGroup) -> Trainer:
    if group is ONE_PROCESS:
        options = with_values(options, {"sharding": "none"})
    tts = setup.new_model(options, world, CPU)
    return Trainer(options, tts, dataloader.load_training_data(world, "demo-am", tts), (),
                   Precision("cpu", torch.float32, "for the test"), group=group)


def test_a_rank_without_a_clip_for_a_pass_takes_it_at_weight_0() -> None:
    batches = [TrainBatch(["a", "b", "c", "d", "e"], list("abcde"), seeds=[1, 2, 3, 4, 5]),  # type: ignore[list-item]
               TrainBatch(["f"], ["f"], replayed=True, seeds=[6])]  # type: ignore[list-item]
    first, second = (split_microbatches(batches, 2, rank, 2, same_count=True) for rank in (0, 1))
    assert [(item.samples, item.seeds, item.replayed, item.weight) for item in first] == [
        (["a", "c"], [1, 3], False, 1.0), (["e"], [5], False, 1.0), (["f"], [6], True, 1.0)]
    assert [(item.samples, item.seeds, item.replayed, item.weight) for item in second] == [
        (["b", "d"], [2, 4], False, 1.0), (["b"], [0], False, 0.0), (["b"], [0], True, 0.0)]
    assert [item.samples for item in split_microbatches(batches, 2, 1, 2)] == [["b", "d"]]
    assert [item.samples for item in split_microbatches(batches, 4)] == [["a", "b", "c", "d"], ["e"], ["f"]]
