"""Two processes that share each step do what one does with twice the batch, and go on where they stopped."""

from __future__ import annotations

import os
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from config.errors import UserError
from core import compute, train
from core.jobs import checkpoint_names, control, events
from core.jobs import job as job_files
from core.jobs.events import Step
from core.jobs.reporter import StopRequested
from core.model.loading import load_checkpoint
from core.model.precision import Precision
from core.training import dataloader, distributed, setup
from core.training.distributed import ONE_PROCESS, AbortedByRank0, ProcessGroup
from core.training.memory_plan import MicrobatchPlan
from core.training.trainer import Trainer
from core.workspace import Workspace
from tests.processes import two_do
from tests.worlds import Listener, extended_world, losses, train_options

CPU = torch.device("cpu")
# Dropout draws from each process's own generator; what is hidden of a clip follows from the clip's seed.
SAME = {"steps": 6, "checkpoint_every": 3, "evaluation_sentences": 0, "adapter_dropout": 0.0, "text_dropout": 0.3,
        "gradient_accumulation": 2}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return extended_world(tmp_path / "workspace")


@pytest.mark.long
@pytest.mark.parametrize("scope", ["gated", pytest.param("full", marks=pytest.mark.slow)])
def test_two_processes_give_the_losses_of_one_with_twice_the_batch(world: Workspace, scope: str) -> None:
    one, two = Listener(world.runs / "one"), Listener(world.runs / "two")
    train.run(train_options(scope=scope, batch_size=6, **SAME), world, one)
    train.run(train_options(scope=scope, batch_size=3, processes=2, **SAME), world, two)
    assert len(losses([two])) == 6
    for seen, wanted in zip(losses([two]), losses([one]), strict=True):
        assert seen == pytest.approx(wanted, rel=1e-4)
    tensors = [load_checkpoint(world, checkpoint_names.folder_of(listener.directory, 6), torch.device("cpu")).lm.module
               .state_dict() for listener in (one, two)]
    for name, value in tensors[0].items():
        torch.testing.assert_close(tensors[1][name], value, rtol=1e-2, atol=1e-4)


def shared_trainer(world: Workspace, group: ProcessGroup, most: list[int], warnings: list[str],
                   **changes: object) -> Trainer:
    """A trainer without dropout, whose process has memory for micro-batches of `most[0]` clips."""
    options = train_options(**{**SAME, **changes})
    tts = setup.new_model(options, world, CPU)
    losses = tts.lm.losses

    def small(samples: list, *given: object, **named: object) -> object:
        if len(samples) > most[0]:
            raise torch.OutOfMemoryError("made up")
        return losses(samples, *given, **named)

    tts.lm.losses = small
    return Trainer(options, tts, dataloader.load_training_data(world, "demo-am", tts), (),
                   Precision("cpu", torch.float32, "for the test"), warnings.append, group)


def short_of_memory(rank: int, path: Path, port: int, results: SimpleQueue) -> None:
    """A rank of two: the second has memory for single clips from the first step on, and for none at the third."""
    torch.set_num_threads(1)
    distributed.init_process_group(f"tcp://127.0.0.1:{port}", rank, 2, CPU)
    group, most, warnings = ProcessGroup(rank, 2), [1 if rank else 100], list[str]()
    trainer = shared_trainer(Workspace.open(path), group, most, warnings, batch_size=3)
    steps = [trainer.train_step() for _ in range(2)]
    most[0] = 0 if rank else 100
    try:
        trainer.train_step()
        fault = ""
    except UserError as error:
        fault = error.message
    results.put((rank, steps, trainer.microbatch_plan, fault, warnings))
    group.close()


@pytest.mark.long
def test_a_process_that_runs_out_of_memory_makes_all_halve_their_micro_batches(world: Workspace) -> None:
    (_, first, plan, fault, warnings), (_, second, *same) = two_do(short_of_memory, world.path)
    assert [plan, fault, warnings] == same
    assert plan == MicrobatchPlan(4, activation_checkpointing=True)  # halved twice, to single clips, and then the rest
    assert "Out of memory at step 3, with micro-batches of a single clip" in fault
    assert "micro-batches of 2 clips instead of 3" in warnings[0]
    alone = shared_trainer(world, ONE_PROCESS, [100], [], batch_size=6)
    for mine, theirs in zip((alone.train_step(), alone.train_step()), first, strict=True):
        assert (theirs.speech, theirs.text, theirs.gradient_norm) == pytest.approx(
            (mine.speech, mine.text, mine.gradient_norm), rel=1e-4)
    assert first == second


def not_finite(rank: int, path: Path, port: int, results: SimpleQueue) -> None:
    """A rank of two; at the second step the loss of rank 1 alone is not finite."""
    torch.set_num_threads(1)
    distributed.init_process_group(f"tcp://127.0.0.1:{port}", rank, 2, CPU)
    group, warnings = ProcessGroup(rank, 2), list[str]()
    trainer = shared_trainer(Workspace.open(path), group, [100], warnings, batch_size=3, gradient_accumulation=1)
    losses, calls = trainer._loss, iter(range(100))

    def broken(*given: object, **named: object) -> tuple[torch.Tensor, torch.Tensor]:
        loss, parts = losses(*given, **named)
        return (loss * float("nan"), parts * float("nan")) if next(calls) == 1 and rank else (loss, parts)

    trainer._loss = broken  # type: ignore[method-assign]
    steps = [trainer.train_step() for _ in range(3)]
    results.put((rank, steps, trainer.skipped_batches, warnings))
    group.close()


def test_a_loss_that_is_not_finite_on_one_rank_skips_the_batch_on_all(world: Workspace) -> None:
    first, second = two_do(not_finite, world.path)
    assert first[1:] == second[1:]
    assert first[2] == 1
    assert "A batch of step 2 was skipped: speech loss nan" in first[3][0]


def as_torchrun_starts_it(rank: int, path: Path, port: int, results: SimpleQueue, *, device: str) -> None:
    """A rank of two, with a `device` as rank 0 was given it. A GPU seems to be in the machine of rank 1 until it has
    chosen its device, and for `cpu` in that of rank 0 too.
    """
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    available, set_up = torch.cuda.is_available, compute.setup_device
    seen = available if rank == 0 and device == "auto" else lambda: True

    def choose(chosen: str) -> torch.device:
        torch.cuda.is_available = seen
        try:
            return set_up(chosen)
        finally:
            torch.cuda.is_available = available

    torch.cuda.is_available, compute.setup_device = seen, choose
    workspace, listener = Workspace.open(path), Listener(path / "runs" / "one")
    if rank == 0:
        train.run(train_options(**{**SAME, "steps": 1}, device=device), workspace, listener)
    else:
        train.run_other_rank(workspace)
    results.put((rank, len(losses([listener]))))


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_ranks_of_torchrun_train_on_the_device_of_rank_0(world: Workspace, device: str) -> None:
    assert two_do(partial(as_torchrun_starts_it, device=device), world.path) == ((0, 1), (1, 0))


def agree(rank: int, path: Path, port: int, results: SimpleQueue) -> None:
    """A rank of two: what each collective gives, and how an error of rank 0 ends the other."""
    distributed.init_process_group(f"tcp://127.0.0.1:{port}", rank, 2, CPU)
    group, ended = ProcessGroup(rank, 2), list[str]()
    unused, reached = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    if rank:
        reached.grad = torch.ones(3)
    group.all_reduce_gradients([unused, reached])
    seen = [group.broadcast(rank + 5), group.any_rank(bool(rank)), group.any_rank(False),
            group.run_on_rank0(lambda: rank + 7),
            group.all_reduce_sum(torch.tensor([rank + 1.0])).tolist(), unused.grad is None, reached.grad.tolist(),
            group.for_rank(group.gather({"x": torch.tensor([rank])})
                           or {"rank-1/x": torch.tensor([1])}).keys() == {"x"}]

    def fail() -> None:
        raise UserError("made up", "a hint")

    for part in ("run_on_rank0", "rank0_first"):
        try:
            if part == "run_on_rank0":
                group.run_on_rank0(fail)
            else:
                with group.rank0_first():
                    fail()
        except (UserError, AbortedByRank0) as error:
            ended.append(f"{type(error).__name__}: {error}")
    results.put((rank, seen, ended))
    group.close()


def test_what_rank_0_alone_knows_is_known_to_all(world: Workspace) -> None:
    (_, first, errors), (_, second, stops) = two_do(agree, world.path)
    assert first[:-1] == second[:-1] == [5, True, False, 7, [3.0], True, [1.0, 1.0, 1.0]]
    assert second[-1]
    assert errors == ["UserError: made up"] * 2
    assert stops == ["AbortedByRank0: made up"] * 2


def test_a_run_of_one_process_uses_no_collective(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_given: object, **_named: object) -> None:
        raise AssertionError("a collective in a run of one process")

    for name in ("broadcast_object_list", "all_reduce", "gather_object", "new_group"):
        monkeypatch.setattr(torch.distributed, name, unwanted)
    trainer = shared_trainer(world, ONE_PROCESS, [100], [])
    trainer.train_step()
    trainer.state_dict()
    assert ONE_PROCESS.run_on_rank0(lambda: 3) == 3


@pytest.mark.long
def test_a_shared_run_goes_on_as_if_it_had_not_stopped(world: Workspace) -> None:
    options = train_options(batch_size=3, processes=2, **{**SAME, "adapter_dropout": 0.3})
    whole = Listener(world.runs / "whole")
    train.run(options, world, whole)
    parts = [Listener(world.runs / "parts", 2), Listener(world.runs / "parts")]
    with pytest.raises(StopRequested):
        train.run(options, world, parts[0])
    train.run(options, world, parts[1])
    assert losses(parts) == losses([whole])


def test_too_few_clips_to_share_are_refused(world: Workspace) -> None:
    options = train_options(batch_size=1, processes=9, **SAME)
    tts = setup.new_model(options, world, torch.device("cpu"))
    data = dataloader.load_training_data(world, "demo-am", tts)
    with pytest.raises(UserError, match="A batch of 6 clips cannot be shared by 9 processes"):
        Trainer(options, tts, data, (), Precision("cpu", torch.float32, "for the test"),
                group=SimpleNamespace(rank=0, world_size=9))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_worker_starts_the_others_and_they_end_with_it(world: Workspace) -> None:
    job = job_files.create_job(world, "train", train_options(batch_size=3, processes=2, **SAME), job_id="job")
    control.start(job)
    assert control.wait(job, 300).status == "finished", control.log_tail(job)
    assert [event.step for event in events.read_events(job.journal)[0] if isinstance(event, Step)] == [1, 2, 3, 4, 5, 6]
