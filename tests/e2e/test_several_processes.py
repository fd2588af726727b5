"""Two processes that share each step do what one does with twice the batch, and go on where they stopped."""

from __future__ import annotations

from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from config.errors import UserError
from core import jobs, train
from core.job import directory as job_files
from core.job import journal
from core.job.journal import Step
from core.job.reporter import StopRequested
from core.training import checkpoint, dataloader, distributed, setup
from core.training.distributed import ProcessGroup
from core.training.trainer import Trainer
from core.voice_model.loading import load_checkpoint
from core.voice_model.precision import Precision
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


@pytest.mark.parametrize("scope", ["gated", pytest.param("full", marks=pytest.mark.slow)])
def test_two_processes_give_the_losses_of_one_with_twice_the_batch(world: Workspace, scope: str) -> None:
    one, two = Listener(world.runs / "one"), Listener(world.runs / "two")
    train.run(train_options(scope=scope, batch_size=6, **SAME), world, one)
    train.run(train_options(scope=scope, batch_size=3, processes=2, **SAME), world, two)
    assert len(losses([two])) == 6
    for seen, wanted in zip(losses([two]), losses([one]), strict=True):
        assert seen == pytest.approx(wanted, rel=1e-4)
    tensors = [load_checkpoint(world, checkpoint.folder_of(listener.directory, 6), torch.device("cpu")).model.module
               .state_dict() for listener in (one, two)]
    for name, value in tensors[0].items():
        torch.testing.assert_close(tensors[1][name], value, rtol=1e-2, atol=1e-4)


def shared_trainer(world: Workspace, beside: ProcessGroup | None, most: list[int], told: list[str],
                   **changes: object) -> Trainer:
    """A trainer without dropout, whose process has memory for passes of `most[0]` clips."""
    options = train_options(**{**SAME, **changes})
    voice = setup.new_voice(options, world, CPU)
    losses = voice.model.losses

    def small(samples: list, *given: object, **named: object) -> object:
        if len(samples) > most[0]:
            raise torch.OutOfMemoryError("made up")
        return losses(samples, *given, **named)

    voice.model.losses = small
    trainer = Trainer(options, voice, dataloader.load_training_data(world, "demo-am", voice), (),
                      Precision("cpu", torch.float32, "for the test"), told.append, beside)
    if beside:
        beside.join(voice.model)
    return trainer


def short_of_memory(rank: int, path: Path, port: int, results: SimpleQueue) -> None:
    """A process of two: the second has memory for single clips from the first step on, and for none at the third."""
    torch.set_num_threads(1)
    distributed.connect(f"tcp://127.0.0.1:{port}", rank, 2, CPU)
    most, told = [1 if rank else 100], list[str]()
    trainer = shared_trainer(Workspace.open(path), ProcessGroup(), most, told, batch_size=3)
    seen = []
    for _ in range(2):
        if rank:
            assert trainer.company is not None
            assert trainer.company.hear() == (distributed.STEP, trainer.microbatch_plan)
        seen.append(trainer.train_step())
    most[0] = 0 if rank else 100
    try:
        if rank:
            trainer.company.hear()
        trainer.train_step()
        fault = ""
    except UserError as error:
        fault = error.message
    results.put((rank, seen, trainer.microbatch_plan, fault, told))
    distributed.leave()


def test_a_process_that_runs_out_of_memory_makes_all_halve_their_passes(world: Workspace) -> None:
    (_, first, microbatch_plan, fault, told), (_, second, *same) = two_do(short_of_memory, world.path)
    assert [microbatch_plan, fault, told] == same
    assert (microbatch_plan.parts, microbatch_plan.recompute) == (4,
                                                                  True)  # halved twice to single clips, and the rest at the end
    assert "did not suffice for a single clip at step 3" in fault
    assert "passes of 2 clips instead of 3" in told[0]
    alone = shared_trainer(world, None, [100], [], batch_size=6)
    for mine, theirs in zip((alone.train_step(), alone.train_step()), first, strict=True):
        assert (theirs.speech, theirs.text, theirs.gradient_norm) == pytest.approx(
            (mine.speech, mine.text, mine.gradient_norm), rel=1e-4)
    assert first == second


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
    voice = setup.new_voice(options, world, torch.device("cpu"))
    data = dataloader.load_training_data(world, "demo-am", voice)
    with pytest.raises(UserError, match="A batch of 6 clips cannot be shared by 9 processes"):
        Trainer(options, voice, data, (), Precision("cpu", torch.float32, "for the test"),
                company=SimpleNamespace(rank=0, size=9))  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_worker_starts_the_others_and_they_end_with_it(world: Workspace) -> None:
    job = job_files.create(world, "train", train_options(batch_size=3, processes=2, **SAME), name="job")
    jobs.start(job)
    assert jobs.wait(job, 300).status == "finished", jobs.log_tail(job)
    assert [event.step for event in journal.read(job.journal)[0] if isinstance(event, Step)] == [1, 2, 3, 4, 5, 6]
