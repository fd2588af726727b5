"""What a job is about, and the name that a person gives it: shown everywhere, and nothing that refers to it breaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import PrepareOptions
from core.jobs import control
from core.jobs.events import CheckpointSaved, Progress, Queued, Started, append_event
from core.jobs.job import Job, create_job
from core.jobs.state import JobBoard, JobReader, JobState
from core.library.lineage import Model
from core.submission.job_subjects import subject
from core.workspace import Workspace
from scripts import jobs as command
from tests.unit.live_jobs import launch, running, train
from ui import job_views, titles


def state(verb: str, title: str = "", **options: object) -> JobState:
    return JobState(Job(Path(f"/w/runs/{verb}-1"), verb, "cpu", (), 1.0, options), title=title)


@pytest.mark.parametrize(("given", "about"), [
    (state("prepare", language="sw", dataset="mine", source="/data/clips.zip"), "Swahili, mine from clips.zip"),
    (state("prepare", language="am", dataset="demo", source="demo"), "Amharic, demo from demo"),
    (state("prepare", language="sw", dataset="mine", source=f"/uploads/{'a' * 64}/clips.zip"),
     "Swahili, mine from clips.zip"),
    (state("prepare", language="sw", dataset="m", source="https://me:secret@a.org/x.zip?key=1"),
     "Swahili, m from x.zip"),
    (state("train", "best so far", extension="tiny-sw", dataset="mine"), "best so far: tiny-sw on mine"),
    (state("compare", base="base:tiny", finetuned="run:first@400"), "base:tiny and run:first@400"),
    (state("export", run="run:first", export="voice"), "run:first as voice"),
    (state("export", run="run:train-20261123-084835-04ef", export="voice"), "run:04ef as voice"),
    (state("doctor", checkpoint="/else/t3.safetensors", language="am"), "t3.safetensors"),
    (state("synthesize", language="en", voice_model="base:tiny", text="a" * 99), f"English, base:tiny: {'a' * 60}..."),
    (state("synthesize", language="en", voice_model="base:tiny", text="", file=f"/{'a' * 99}/b.txt"),
     "English, base:tiny: b.txt"),
    (state("extend", extension="tiny-sw"), "tiny-sw"),
    (state("certify", run="run:first@400"), "run:first@400"),
    (state("listening_test", evaluation="evaluate-20261123-084835-04ef", kind="abx", language=""), "abx of 04ef"),
])
def test_a_job_says_what_it_is_about(given: JobState, about: str) -> None:
    assert subject(given) == about
    shown = titles.with_titles(given.job.workspace, about).partition(":")[0]
    assert shown in job_views.job_card(given)
    assert shown in job_views.history_view([given])
    assert shown in job_views.queue_view([given])


def test_a_training_is_in_the_language_of_its_dataset(workspace: Workspace) -> None:
    (workspace.datasets / "amharic-demo").mkdir()
    (workspace.datasets / "amharic-demo" / "dataset.yaml").write_text("language: sw\n")
    made = JobReader(train(workspace, "quick", name="first")).state()
    assert subject(made) == "Swahili, quick on amharic-demo"


def test_a_new_name_is_shown_and_nothing_that_refers_to_the_run_breaks(workspace: Workspace) -> None:
    job, board = train(workspace, "quick", name="first"), JobBoard(workspace)
    (job.directory / "checkpoints" / "step-000400").mkdir(parents=True)
    append_event(job.journal, CheckpointSaved(400, "checkpoints/step-000400", True))
    found = Model.open(workspace, "run:first@400")
    for name in ("Studio voice", "ስቱዲዮ", ""):
        control.rename(job, f" {name} ")
        assert board.state("first").title == name
        assert (name or "first") in job_views.run_name(board.state("first"))
        assert Model.open(workspace, "run:first@400") == found
    for wrong in ("a" * 65, "two\nlines", "\x1b[31m"):
        with pytest.raises(UserError, match="cannot be the name"):
            control.rename(job, wrong)


def test_a_running_job_is_renamed_and_keeps_its_name_when_it_starts_again(workspace: Workspace) -> None:
    job = launch(train(workspace, "patient"))
    running(job)
    control.rename(job, "mine")
    assert running(job).title == "mine"
    control.force_stop(job, grace_s=0.0)
    ended = JobReader(job).state()
    control.rename(job, "still mine")
    renamed = JobReader(job).state()
    assert (renamed.title, renamed.status, renamed.ended_at) == ("still mine", "stopped", ended.ended_at)
    append_event(job.journal, Queued())
    assert JobReader(job).state(worker_alive=True).title == "still mine"


def test_a_name_does_not_move_the_end_of_a_job_that_crashed(workspace: Workspace) -> None:
    job = train(workspace, "quick")
    for event in (Queued(), Started(1, 1), Progress(1, 2, "steps")):
        append_event(job.journal, event)
    crashed = JobReader(job).state()
    control.rename(job, "mine")
    assert JobReader(job).state().ended_at == crashed.ended_at
    assert JobReader(job).state().status == "crashed"


def test_the_list_of_jobs_says_what_each_is_about(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    job = create_job(workspace, "prepare", PrepareOptions(source="/data/clips.zip", dataset="mine", language="sw"))
    place = ["--workspace", str(workspace.path)]
    assert command.main(["rename", job.id, "the first", *place]) == 0
    capsys.readouterr()
    command.main(["list", *place])
    assert f"{job.id}  the first: Swahili, mine from clips.zip" in capsys.readouterr().out
    command.main(["list", "--json", *place])
    [line] = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["name"], json.loads(line)["about"]) == (
        "the first", "the first: Swahili, mine from clips.zip")


def test_a_notice_ends_with_the_job_it_speaks_of() -> None:
    """The style hides every notice of a job but those of living ones; a notice of no job stays."""
    alive = JobState(Job(Path("/w/runs/train-1"), "train", "cpu", (), 1.0, {}), "running")
    assert ':not([data-job="train-1"])' in job_views.living_jobs([alive])
    assert "train-1" not in job_views.living_jobs([JobState(alive.job, "finished")])
    assert "data-job" not in job_views.notice("Saved.")
