"""A training is resumed with the options that may change, and from an earlier checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import resume_options
from config.errors import UserError
from config.schema import TrainOptions, option_fields
from core.jobs import checkpoint_names, control
from core.jobs.checkpoint_names import folder_of
from core.jobs.events import CheckpointSaved, Finished, Queued, Started, Stopped, append_event
from core.jobs.job import Job, create_job, load_job
from core.jobs.state import JobBoard
from core.library import checkpoints
from core.library.checkpoints import Ranking, RankingMetric
from core.library.lineage import Model
from core.submission import storage
from core.workspace import Workspace
from scripts import command
from scripts import storage as scripts_storage
from tests.unit import fake_verbs

STEPS = (100, 200, 300)


@pytest.fixture
def job(workspace: Workspace) -> Job:
    """A training that was stopped, with three checkpoints of which the second is the best."""
    job = create_job(workspace, "train", TrainOptions(extension="quick", dataset="mine", device="cpu"), job_id="one")
    for event in (Queued("cpu"), Started(1, 1)):
        append_event(job.journal, event)
    for step in STEPS:
        folder_of(job.directory, step).mkdir(parents=True)
        append_event(job.journal, CheckpointSaved(step, f"checkpoints/step-{step:06d}", best=step < 300))
    values = {100: 0.5, 200: 0.2, 300: 0.4}
    checkpoints.write_ranking(job.directory, Ranking(RankingMetric.CER, 200, values))
    append_event(job.journal, Stopped("Stopped."))
    return job


def test_every_option_may_change_or_has_a_reason() -> None:
    assert set(resume_options.CHANGEABLE) < set(option_fields(TrainOptions))
    for name in option_fields(TrainOptions).keys() - set(resume_options.CHANGEABLE):
        assert resume_options.reason(name)



@pytest.mark.parametrize(("changes", "part"), [
    ({"row_lr": 0.1}, "row_lr is 0.005 and cannot become 0.1 (the optimizer's parameter groups depend on it)"),
    ({"steps": 900}, "steps is 800 and cannot become 900 (the learning rate depends on it, and would jump)"),
    ({"batch_size": 8}, "batch_size is 16 and cannot become 8 (the order of the clips depends on it)"),
    ({"evaluation_sentences": 0}, "evaluation_sentences is 20 and cannot become 0"),
    ({"adapter_rank": 4}, "adapter_rank is 16 and cannot become 4"),
])
def test_an_option_that_would_change_steps_is_refused_with_the_reason(changes: dict[str, object], part: str) -> None:
    with pytest.raises(UserError) as caught:
        resume_options.with_changes("one", TrainOptions(), changes)
    assert part in caught.value.message
    assert "--init-from run:one" in caught.value.hint


def test_processes_and_batch_may_change_together() -> None:
    changed = resume_options.with_changes("one", TrainOptions(), {"batch_size": 8, "processes": 2})
    assert (changed.batches.batch_size, changed.hardware.processes) == (8, 2)


def resume(workspace: Workspace, *arguments: str) -> int:
    return command.run_verb("train", ["--workspace", str(workspace.path), "--no-certificate", *arguments])


@pytest.fixture
def fake_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.jobs.worker.import_work", lambda name: fake_verbs.train)


@pytest.mark.usefixtures("fake_train")
def test_the_command_line_changes_options_of_the_run(job: Job, workspace: Workspace,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert resume(workspace, "--resume", "run:one", "--max-minutes", "30", "--keep-last", "5") == command.DONE
    assert "Changed: max_minutes: 30.0 (before: 0.0)" in capsys.readouterr().out
    changed = load_job(workspace, "one")
    assert (changed.settings["max_minutes"], changed.settings["keep_last"]) == (30.0, 5)
    assert changed.settings["extension"] == "quick"
    state = JobBoard(workspace).state("one")
    assert state.job.settings["keep_last"] == 5
    assert len(state.changes) == 2


def test_a_reader_that_follows_the_run_sees_the_new_options(job: Job) -> None:
    reader = control.JobReader(job)
    assert reader.state().job.settings["keep_last"] == 2
    control.enqueue(job, resuming=True, changes={"keep_last": 4}).release()
    assert reader.state(worker_alive=True).job.settings["keep_last"] == 4


@pytest.mark.usefixtures("fake_train")
def test_a_refused_option_changes_nothing(job: Job, workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    before = (job.directory / "config.yaml").read_text()
    assert resume(workspace, "--resume", "one@100", "--row-lr", "0.1") == command.USAGE_ERROR
    assert "row_lr is 0.005" in capsys.readouterr().err
    assert (job.directory / "config.yaml").read_text() == before
    assert checkpoint_names.checkpoint_steps(job.directory) == list(STEPS)


@pytest.mark.usefixtures("fake_train")
@pytest.mark.parametrize("reference", ["one@100", "run:one@100"])
def test_a_run_returns_to_an_earlier_checkpoint_and_later_ones_can_be_restored(
        job: Job, workspace: Workspace, reference: str) -> None:
    append_event(job.journal, Finished({}))  # a finished run can return, too
    assert resume(workspace, "--resume", reference) == command.DONE
    assert checkpoint_names.checkpoint_steps(job.directory) == [100]
    assert checkpoints.read_ranking(job.directory) == Ranking(RankingMetric.CER, 100, {100: 0.5})
    deleted = [entry.item.reference for entry in storage.list_deleted(workspace)]
    assert sorted(deleted) == ["run:one@200", "run:one@300"]
    assert Model.open(workspace, "run:one").step == 100
    storage.restore(workspace, "run:one@200")
    assert checkpoint_names.checkpoint_steps(job.directory) == [100, 200]


def test_a_pinned_later_checkpoint_stops_the_return(job: Job, workspace: Workspace) -> None:
    checkpoint_names.pin(job.directory, 300, "good")
    with pytest.raises(UserError, match="run:one@300 is pinned as 'good'"):
        storage.return_to_checkpoint(workspace, "one", 100)
    assert checkpoint_names.checkpoint_steps(job.directory) == list(STEPS)


def test_one_checkpoint_is_deleted_and_the_next_best_takes_its_place(
        job: Job, workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--workspace", str(workspace.path))
    assert scripts_storage.main([*where, "show", "run:one@200"]) == command.DONE
    assert "not here" not in capsys.readouterr().out
    assert scripts_storage.main([*where, "delete", "run:one@200"]) == command.DONE
    assert "run:one@200 is in the bin" in capsys.readouterr().out
    assert Model.open(workspace, "run:one").step == 300
    assert scripts_storage.main([*where, "restore", "run:one@200"]) == command.DONE
    assert Model.open(workspace, "run:one").step == 200
    assert scripts_storage.main([*where, "delete", "run:one@200"]) == command.DONE
    assert scripts_storage.main([*where, "empty"]) == command.DONE
    assert not any(storage.list_deleted(workspace))
    for reference, part in (("run:one@200", "(there: one@100, one@300)"), ("run:nope@200", "(there: none)")):
        assert scripts_storage.main([*where, "delete", reference]) == command.USAGE_ERROR
        assert part in capsys.readouterr().err


def test_a_checkpoint_in_use_or_pinned_is_not_deleted(job: Job, workspace: Workspace) -> None:
    checkpoint_names.pin(job.directory, 100, "good")
    with pytest.raises(UserError, match="is pinned as 'good'"):
        storage.delete(workspace, storage.parse("run:one@100"))
    lock = control.enqueue(job, resuming=True)
    try:
        with pytest.raises(UserError, match="run:one@300 is in use"):
            storage.delete(workspace, storage.parse("run:one@300"))
    finally:
        lock.release()


def test_the_bin_of_a_run_counts_once(job: Job, workspace: Workspace) -> None:
    (folder_of(job.directory, 100) / "rows").write_bytes(b"0" * 100_000)
    before = storage.take_inventory(workspace).total
    storage.delete(workspace, storage.parse("run:one@100"))
    inventory = storage.take_inventory(workspace)
    assert abs(inventory.total - before) < 50_000
    [usage] = inventory.deleted.values()
    assert usage.size >= 100_000


def test_the_bin_behind_a_link_of_a_run_stays_as_it_is(workspace: Workspace, tmp_path: Path) -> None:
    kept = tmp_path / "outside" / ".bin" / "20260101-000000-000000001.step-000100"
    kept.mkdir(parents=True)
    other = create_job(workspace, "train", TrainOptions(), job_id="linked")
    (other.directory / "checkpoints").symlink_to(tmp_path / "outside")
    assert not storage.list_deleted(workspace)
    assert storage.empty_bin(workspace) == 0
    assert kept.is_dir()


def test_a_checkpoint_of_a_deleted_run_goes_with_it(job: Job, workspace: Workspace) -> None:
    storage.delete(workspace, storage.parse("run:one@100"))
    storage.delete(workspace, storage.parse("run:one"))
    assert [entry.item.reference for entry in storage.list_deleted(workspace)] == ["run:one"]
    storage.restore(workspace, "run:one")
    assert [entry.item.reference for entry in storage.list_deleted(workspace)] == ["run:one@100"]
