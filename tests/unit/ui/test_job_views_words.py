"""What jobs are doing, in words for people: no stage's own name, no job's id, no promise that is not kept."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from core.jobs.events import Progress, Stage, Step
from core.jobs.job import Job
from core.jobs.state import JobState
from core.text.row_sources import SpelledRowCounts
from tests.serving import ROOT
from ui import embeddings, job_views


def job(verb: str = "train", device: str = "cpu") -> Job:
    return Job(Path(f"/w/runs/{verb}-1"), verb, device, (), 1.0, {})


def stages_in(source: Path) -> set[str]:
    """The names that `stage(reporter, NAME)` and `_part(reporter, NAME, ...)` are called with."""
    calls = (node for node in ast.walk(ast.parse(source.read_text("utf-8"))) if isinstance(node, ast.Call))
    return {str(call.args[1].value) for call in calls
            if isinstance(call.func, ast.Name) and call.func.id in ("stage", "_part") and len(call.args) > 1
            and isinstance(call.args[1], ast.Constant)}


def test_every_stage_of_every_job_has_words() -> None:
    found = {name for source in (ROOT / "core").rglob("*.py") for name in stages_in(source)}
    assert len(found) > 30
    assert sorted(found - set(job_views.STAGE_TITLES)) == []


def test_a_waiting_job_is_told_what_it_waits_for_by_what_that_does() -> None:
    reason = "Waiting for prepare-20261121-145347-1f2c to finish."
    shown = job_views.chain_view([JobState(job("tokenizer"), "waiting", reason=reason)])
    assert "Waiting for “Prepare dataset” to finish." in shown
    assert "prepare-2026" not in shown


def test_a_name_that_a_person_gave_a_run_stays() -> None:
    assert job_views.readable("Waiting for first to finish.") == "Waiting for first to finish."
    assert job_views.readable("Waiting for train-the-cat to finish.") == "Waiting for train-the-cat to finish."


def test_beside_its_verb_and_time_a_job_is_told_apart_by_four_digits_and_a_named_run_by_its_name() -> None:
    assert job_views.short_id("train-20261121-145347-1f80") == "1f80"
    assert job_views.short_id("first-try") == "first-try"


@pytest.mark.parametrize(("name", "said"), [
    ("train-20261121-145347-1f80", "tiny-am on mine, {clock} (1f80)"), ("first", "first: tiny-am on mine, {clock}")])
def test_a_run_is_offered_by_what_learned_from_what(name: str, said: str) -> None:
    made = Job(Path("/w/runs") / name, "train", "cpu", (), 1.0, {"extension": "tiny-am", "dataset": "mine"})
    assert job_views.run_name(JobState(made, "finished")) == said.format(clock=job_views.clock(1.0))


@pytest.mark.parametrize(("device", "said"), [
    ("cpu", "Waiting for the CPU: “Diagnose checkpoint” is using it."),
    ("cuda", "Waiting for the GPU: “Diagnose checkpoint” is using it."),
])
def test_a_device_is_called_what_people_call_it(device: str, said: str) -> None:
    assert job_views.readable(f"Waiting for {device}: doctor-20261121-145347-a1f3 is using it.") == said


def test_the_measuring_before_a_training_is_told_as_such() -> None:
    state = JobState(job(), "running", stages=(Stage("load", 1.0), Stage("memory plan")))
    assert job_views.status_line(state) == "Measuring memory and speed"


def test_a_stop_while_it_measures_does_not_speak_of_a_step() -> None:
    state = JobState(job(), "stopping", stages=(Stage("load", 1.0), Stage("memory plan")))
    assert job_views.status_line(state) == (
        "Stopping after this stage: measuring memory and speed.")
    assert "step" not in job_views.stop_message(state)
    assert "was trained" in job_views.stop_message(state)


def test_a_stop_while_it_trains_speaks_of_its_step() -> None:
    state = JobState(job(), "stopping", steps=(Step(7, 100, 4.0, 2.0, {"rows": 1e-3}, 0.5, 900.0, 3.5, 10.0),))
    assert job_views.status_line(state).startswith("Stopping after this step, then saving")
    assert job_views.stop_message(state) == "Stopping after this step; progress is saved."


def test_a_stop_of_what_waits_says_that_it_had_not_begun() -> None:
    assert job_views.stop_message(JobState(job(), "waiting")) == "Removed from the queue."


def test_a_stop_of_other_work_says_what_it_is_at() -> None:
    state = JobState(job("prepare"), "stopping", stages=(Stage("features"),), progress=Progress(3, 9, "clips"))
    assert job_views.status_line(state) == "Stopping, 3 of 9 clips."
    assert "step" not in job_views.stop_message(state)


def test_starts_of_rows_that_are_the_same_start_are_told() -> None:
    told = embeddings.coverage_text("tiny-am", SpelledRowCounts(80, {"neighbours": 0, "romanised": 80}))
    assert "neighbours 0, romanised 80" in told
    assert told.endswith("Without any, neighbours equals mean.")
    assert "Without any" not in embeddings.coverage_text("tiny-so",
                                                         SpelledRowCounts(4, {"neighbours": 3, "romanised": 4}))


def step(seconds: float) -> Step:
    return Step(100, 100, 3.0, 2.0, {"rows": 1e-3}, 0.5, 900.0, seconds)


def test_a_proof_is_told_by_the_last_one_of_a_comparable_training() -> None:
    training = JobState(job(), "running", started_at=1000.0, steps=(step(90.0),))
    ended = JobState(replace(job(), verb="certify", settings={"run": f"run:{training.id}@40"}), "finished",
                     stages=(Stage("certificate", 300.0),))
    past = job_views.last_certificate_time([ended, training], lambda one: one is training)
    assert past == 300.0
    assert job_views.last_certificate_time([ended, training], lambda one: False) is None
    assert job_views.last_certificate_time([ended], lambda one: True) is None  # its training was deleted
    assert "The run can be used meanwhile. The last one took 5 min." in job_views.certificate_note(training, past)
    assert "an estimate appears after some sentences" in job_views.certificate_note(training, None)
    waiting = replace(ended, status="waiting")
    assert job_views.certificate_note(waiting, past) == "Checks that the other languages are unchanged."
    assert "can use the trained model now" in job_views.certificate_note(waiting, past, trained=True)
    assert "not proven yet" in job_views.certificate_note(replace(ended, status="running"), past, trained=True)
    for quiet in ("stopping", "stopped", "finished"):
        assert job_views.certificate_note(replace(training, status=quiet), past) == ""  # type: ignore[arg-type]
