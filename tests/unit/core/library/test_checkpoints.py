"""The best checkpoint: the run's folder says which one it is, and the journal reports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.errors import UserError
from core import train
from core.jobs import control
from core.jobs.checkpoint_names import folder_of
from core.jobs.events import CheckpointSaved, Event, Finished, Journal, append_event, read_events
from core.jobs.job import Job, create_job
from core.jobs.reporter import JournalReporter
from core.jobs.state import JobReader
from core.library import checkpoints, lineage
from core.library.checkpoints import Ranking, RankingMetric
from core.library.lineage import Model
from core.submission import storage
from core.workspace import Workspace
from tests.unit.short_runs import measured_as
from tests.worlds import train_options

OPTIONS = {"evaluation_sentences": 0, "checkpoint_every": 2, "steps": 4, "select_best_by": "speech_loss"}


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class KilledReporter(JournalReporter):
    """Ends the process before it reports step 4 as the best."""

    def emit(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved) and event.best and event.step == 4:
            raise Killed
        super().emit(event)


def train_job(job: Job, world: Workspace, reporter: type[JournalReporter]) -> None:
    journal = Journal(job.journal)
    try:
        train.run(train_options(**OPTIONS), world, reporter(journal, lambda: False))
    finally:
        journal.close()


def reported_best(job: Job) -> list[int]:
    return [event.step for event in read_events(job.journal)[0] if isinstance(event, CheckpointSaved) and event.best]


def test_a_kill_between_ranking_and_journal_is_repaired(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    job = create_job(world, "train", train_options(**OPTIONS), job_id="killed")
    measured_as(monkeypatch, iter([3.0, 2.0]))
    with pytest.raises(Killed):
        train_job(job, world, KilledReporter)
    assert (reported_best(job), checkpoints.read_ranking(job.directory).best) == ([2], 4)
    assert Model.open(world, "run:killed").step == 4
    reference = lineage.run_model(JobReader(job).state())
    assert reference is not None
    assert reference.step == 4

    train_job(job, world, JournalReporter)
    assert reported_best(job) == [2, 4]
    train_job(job, world, JournalReporter)
    assert reported_best(job) == [2, 4]  # the journal is complete, so nothing is repeated
    assert checkpoints.read_ranking(job.directory).values == {2: 3.0, 4: 2.0}


def test_a_run_that_returns_to_a_checkpoint_takes_the_same_steps_again(world: Workspace) -> None:
    """Optimizer, schedule and the order of the clips are those of the checkpoint."""
    job = create_job(world, "train", train_options(**OPTIONS), job_id="again")
    train_job(job, world, JournalReporter)
    folder = folder_of(job.directory, 4)
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.safetensors")}
    assert len(files) >= 2
    append_event(job.journal, Finished({}))

    storage.return_to_checkpoint(world, "again", 2)
    assert not folder.exists()
    assert control.read_state(job).status == "stopped"
    train_job(job, world, JournalReporter)
    assert {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.safetensors")} == files


def test_a_run_whose_best_checkpoint_was_deleted_goes_on_with_the_best_of_the_others(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    job = create_job(world, "train", train_options(**OPTIONS), job_id="less")
    measured_as(monkeypatch, iter([1.0, 2.0]))
    train_job(job, world, JournalReporter)
    storage.delete(world, storage.parse("run:less@2"))
    assert checkpoints.read_ranking(job.directory).best == 4
    train_job(job, world, JournalReporter)
    assert checkpoints.read_ranking(job.directory) == Ranking(RankingMetric.SPEECH_LOSS, 4, {2: 1.0, 4: 2.0})
    assert reported_best(job)[-1] == 4


@pytest.fixture
def run_dir(workspace: Workspace) -> Path:
    job = create_job(workspace, "train", train_options(), job_id="one")
    for step in (100, 200, 300):
        folder_of(job.directory, step).mkdir(parents=True)
    return job.directory


def test_without_a_ranking_the_last_checkpoint_is_the_best(run_dir: Path, workspace: Workspace) -> None:
    assert checkpoints.best_step(run_dir) == 300
    checkpoints.write_ranking(run_dir, Ranking(RankingMetric.CER).with_value(100, 0.2).with_value(200, 0.1))
    assert checkpoints.best_step(run_dir) == 200
    folder_of(run_dir, 200).rmdir()
    assert checkpoints.best_step(run_dir) == 100
    assert Model.open(workspace, "run:one@best").step == 100


@pytest.mark.parametrize("content", ["{", '{"metric": "cer", "best": 900, "values": {"100": 1}}',
                                     '{"metric": "beauty", "best": null, "values": {}}', "[]"])
def test_a_damaged_ranking_is_refused_and_lists_show_the_last_checkpoint(
        run_dir: Path, workspace: Workspace, content: str) -> None:
    (run_dir / "checkpoints" / "best.json").write_text(content)
    with pytest.raises(UserError, match=r"best\.json is damaged"):
        Model.open(workspace, "run:one")
    reference = lineage.run_model(JobReader(lineage.find_training(workspace, "one")).state())
    assert reference is not None
    assert reference.step == 300


@pytest.mark.parametrize("metric", RankingMetric)
def test_a_ranking_is_read_as_it_was_written_by_name_and_by_title(run_dir: Path, metric: RankingMetric) -> None:
    ranking = Ranking(metric).with_value(100, 0.5)
    checkpoints.write_ranking(run_dir, ranking)
    assert checkpoints.read_ranking(run_dir) == ranking
    path = run_dir / "checkpoints" / "best.json"
    path.write_text(path.read_text().replace(f'"{metric.value}"', f'"{metric.label}"'))
    assert checkpoints.read_ranking(run_dir) == ranking
