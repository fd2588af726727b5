"""Journals folded into states, without a worker."""

import json
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from core.jobs import control
from core.jobs import state as job_reader
from core.jobs.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Failed,
    Finished,
    Journal,
    Progress,
    Queued,
    SampleGenerated,
    Skipped,
    Stage,
    Started,
    Stopped,
    Waiting,
    WarningRaised,
    append_event,
)
from core.jobs.state import JobBoard, JobReader
from core.workspace import Workspace
from tests.unit.fake_verbs import step
from tests.unit.live_jobs import train
from ui import job_views


def test_a_reader_reads_only_what_was_appended(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    job = train(workspace, "quick")
    journal = Journal(job.journal)
    journal.append(Queued())
    journal.append(Failed("no"))
    reader = JobReader(job)
    first = reader.state()
    assert reader.state() is first
    journal.append(Queued())
    opened: list[int] = []
    true_read = job_reader.read_events
    monkeypatch.setattr(job_reader, "read_events",
                        lambda path, offset: opened.append(offset) or true_read(path, offset))
    reader.state()
    reader.state()
    assert len(opened) == 1
    assert opened[0] > 0


def test_a_run_made_anew_under_the_same_name_is_read_anew(workspace: Workspace):
    job = train(workspace, "quick", name="same")
    Journal(job.journal).append(Failed("old"))
    board = JobBoard(workspace)
    assert board.state("same").status == "failed"
    for path in job.directory.iterdir():
        path.unlink()
    job.directory.rmdir()
    assert board.states() == []
    train(workspace, "quick", name="same")
    assert board.state("same").status == "created"


def test_steps_done_again_after_a_resume_take_the_place_of_the_first(workspace: Workspace):
    job = train(workspace, "quick")
    journal = Journal(job.journal)
    for event in (Queued(), Started(1, 1), step(1), step(2), CheckpointSaved(2, "checkpoints/2", True), step(3),
                  Evaluated(3, 1.0), SampleGenerated(3, "am", "x", "x.wav"), Queued(), Started(2, 2)):
        journal.append(event)
    assert [event.step for event in control.read_state(job).steps] == [1, 2, 3]
    journal.append(step(3, loss=9.0))
    state = control.read_state(job)
    assert [event.speech_loss for event in state.steps] == [1.0, 1.0, 9.0]
    assert (state.evaluations, state.samples) == ((), ())
    assert [event.step for event in state.checkpoints] == [2]


def test_the_time_of_a_resumed_job_is_that_of_all_attempts(workspace: Workspace):
    job = train(workspace, "quick")
    lines = [{"event": "queued", "time": 100.0}, {"event": "started", "time": 100.0, "pid": 1, "attempt": 1},
             {"event": "stopped", "time": 315.0, "message": "Stopped."},
             {"event": "renamed", "time": 900.0, "name": "a"},
             {"event": "queued", "time": 1000.0}, {"event": "started", "time": 1001.0, "pid": 2, "attempt": 2}]
    lines += [{"event": "stage", "time": 1011.0, "name": "load"},  # killed here
              {"event": "queued", "time": 2000.0}, {"event": "started", "time": 2000.0, "pid": 3, "attempt": 3},
              {"event": "finished", "time": 2072.0, "result": {}}]
    job.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    state = control.read_state(job)
    assert (state.earlier_s, state.seconds) == (225.0, 297.0)
    assert job_views.status_line(state) == "Took 4 min 57 s in 3 attempts."


def test_a_checkpoint_said_twice_counts_once(workspace: Workspace):
    job = train(workspace, "quick")
    journal = Journal(job.journal)
    for event in (Queued(), Started(1, 1), step(2), CheckpointSaved(2, "checkpoints/2", False), Queued(), Started(2, 2),
                  CheckpointSaved(2, "checkpoints/2", True)):
        journal.append(event)
    [saved] = control.read_state(job).checkpoints
    assert saved.best


@pytest.mark.parametrize("end", [Stopped("Stopped before it began."), Failed("no"), Skipped("no", "go on")])
def test_a_job_that_ended_waits_for_nothing(workspace: Workspace, end: Event):
    job = train(workspace, "quick")
    journal = Journal(job.journal)
    journal.append(Queued())
    journal.append(Waiting("quick uses GPU 0."))
    assert JobReader(job).state().reason == "quick uses GPU 0."
    journal.append(end)
    assert JobReader(job).state().reason == ""


def test_a_new_part_of_the_work_forgets_the_counts_of_the_last(workspace: Workspace):
    job = train(workspace, "quick")
    journal = Journal(job.journal)
    for event in (Queued(), Started(1, 1), step(376, 800), Stage("certificate")):
        journal.append(event)
    state = JobReader(job).state(worker_alive=True)
    assert (state.progress, state.eta_s) == (None, None)


def test_the_time_left_of_steps_is_the_trainings_own(workspace: Workspace):
    job = train(workspace, "quick")
    journal = Journal(job.journal)
    for event in (Queued(), Started(1, 1), Stage("train"), replace(step(3, 10), seconds_left=42.0)):
        journal.append(event)
    assert JobReader(job).state(worker_alive=True).eta_s == 42.0
    journal.append(Progress(1, 20, "Amharic sentences"))
    journal.append(Stage("train", 1.0))
    assert JobReader(job).state(worker_alive=True).eta_s == 42.0


def test_rate_and_time_left_are_measured(workspace: Workspace):
    job = train(workspace, "quick")
    lines = [{"event": "queued", "time": 100.0}, {"event": "started", "time": 100.0, "pid": 1, "attempt": 1}]
    lines += [{"event": "progress", "time": 100.0 + n, "done": 5 * n, "total": 100, "unit": "clips"} for n in (1, 2, 3)]
    job.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    state = JobReader(job).state(worker_alive=True)
    assert (state.units_per_s, state.eta_s) == (5.0, 17.0)
    last = {"event": "progress", "time": 104.0, "done": 100, "total": 100, "unit": "clips"}
    with open(job.journal, "a", encoding="utf-8") as journal:
        print(json.dumps(last), file=journal)
    assert JobReader(job).state(worker_alive=True).eta_s is None  # what follows the last clip has not been timed
    Journal(job.journal).append(Progress(1, 10, "sentences"))
    assert JobReader(job).state(worker_alive=True).eta_s is None  # another count: nothing measured yet


_STEPS = some.integers(1, 9)
_EVENTS = some.lists(some.one_of(
    some.builds(step, _STEPS), some.builds(lambda number: Evaluated(number, 3.0, {"am": 0.5}), _STEPS),
    some.builds(lambda number: CheckpointSaved(number, f"checkpoints/step-{number:06d}", False), _STEPS),
    some.builds(Stage, some.sampled_from(["load", "train"]), some.sampled_from([None, 2.0])),
    some.builds(WarningRaised, some.text(max_size=5)), some.sampled_from([
        Queued(), Queued(restart=True), Waiting("for the CPU"), Started(1, 1), Progress(3, 9, "clips"),
        Stopped("ended"), Failed("no", "hint", "traceback", 1), Stopped("down", terminated=True)])), max_size=25)


@settings(max_examples=40, deadline=None)
@given(_EVENTS, some.sampled_from([Finished({"a": float("inf"), "b": None, "c": "\u1208"}), Stopped("by a person"),
                                   Failed("no"), Skipped("another failed")]))
def test_a_remembered_job_is_what_its_journal_says(events: list[Event], last: Event):
    with TemporaryDirectory() as folder:
        workspace = Workspace.open(folder)
        job = train(workspace, "quick", name="run")
        for event in (*events, last):
            append_event(job.journal, event)
        wanted = JobReader(job).state()
        board = JobBoard(workspace)
        again = JobBoard(workspace)
        for found in (*board.states(), *board.states(), *again.states(), again.state("run")):
            for item in fields(found):
                value, expected = getattr(found, item.name), getattr(wanted, item.name)
                assert (tuple(value), len(value)) == (expected, len(expected)) if isinstance(expected, tuple) \
                    else value == expected, item.name
            assert not wanted.steps or found.steps[-1] == wanted.steps[-1]


def test_a_remembered_job_is_read_again_when_its_files_change(workspace: Workspace):
    job = train(workspace, "quick", name="run")
    for event in (Queued(), Started(1, 1), step(1), Stopped("by a person")):
        append_event(job.journal, event)
    JobBoard(workspace).states()
    board = JobBoard(workspace)
    assert board.state("run").status == "stopped"
    append_event(job.journal, Queued())
    append_event(job.journal, step(2))
    append_event(job.journal, Finished({}))
    assert [state.status for state in board.states()] == ["finished"]
    assert [one.step for one in JobBoard(workspace).states()[0].steps] == [1, 2]
    config = job.directory / "config.yaml"
    config.write_text("not a job")
    assert JobBoard(workspace).states() == []


@pytest.mark.parametrize("change", [
    lambda path: path.unlink(), lambda path: path.write_bytes(b"\0" * 100), lambda path: path.write_text("[" * 99999),
    lambda path: path.write_text("\n".join(["{}", "5", '{"name": "run"}', path.read_text()[:200]])),
    lambda path: path.write_text(path.read_text().replace('"finished"', '"running"'))])
def test_what_is_wrong_with_the_list_of_ended_jobs_is_left_out(change, workspace: Workspace):
    job = train(workspace, "quick", name="run")
    append_event(job.journal, Finished({}))
    JobBoard(workspace).states()
    remembered: Path = workspace.cache / "jobs.jsonl"
    change(remembered)
    assert [state.status for state in JobBoard(workspace).states()] == ["finished"]
