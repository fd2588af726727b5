"""What was learned is shown beside what was preserved: results, lists, certificate, card and export."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import ExportOptions
from core import export
from core.jobs.job import Job
from core.jobs.state import JobState
from core.library import learning
from core.library.certificate import Certificate, CertificateCheck, LanguageCER, Preservation
from core.library.learning import Learning, LearningMeasurements, LearningRecord, LearningReport
from core.workspace import Workspace
from tests.unit.core.library.test_learning import HEALTHY, health
from ui import certificate as certificate_tab
from ui import job_views

SILENT = LearningReport.from_measurements(743, [replace(HEALTHY, language="mdw", speech=health(20))])
LEARNED = LearningReport.from_measurements(743, [HEALTHY])
WORDS = "Mbosi: no speech (20 of 20 sentences are silent)"


def finished(folder: Path, report: LearningReport | None, verb: str = "train") -> JobState:
    """A finished run with its `learning.json`; without a report it is of an older version."""
    job = Job(folder, verb, "cpu", (), 1.0, {"extension": "tiny-mdw", "dataset": "mboshi"})
    result: dict = {"run": folder.name, "best_step": 743}
    if report is not None:
        learning.write_learning(folder, LearningRecord().with_report(report))
        result |= {"learning": report.learning.value, "learning_outcome": learning.describe_report(report)}
    return JobState(job, "finished", result=result, started_at=time.time(), ended_at=time.time())


def proof(report: LearningReport, logits: str = "passed", errors: tuple[LanguageCER, ...] = ()) -> Certificate:
    checks = (CertificateCheck("frozen_tensors", "passed", "a", "a", "Unchanged."),
              CertificateCheck("base_logits", logits, "", "", "Logits."))  # type: ignore[arg-type]
    return Certificate("run:r@743", "r", 743, "gated", "tiny", "tiny-mdw", "b", "f", 1.7e9, checks, errors,
                       new_languages=("mdw",), learning=report.learning, learning_languages=report.languages)


def test_a_silent_run_is_red_in_every_list(tmp_path: Path) -> None:
    state = finished(tmp_path, SILENT)
    for shown in (job_views.badge(state), job_views.history_view([state]), job_views.chain_view([state]),
                  job_views.job_card(state)):
        assert "badge bad" in shown
        assert "badge good" not in shown
        assert "finished, no speech" in shown
    assert WORDS in job_views.history_view([state])
    chain = job_views.chain_view([state])
    assert WORDS in chain
    assert "✓" not in chain
    assert "Cut the silence" in chain


def test_a_run_that_learned_is_green_and_an_old_run_is_not_measured(tmp_path: Path) -> None:
    for name, report, title, tone in (("new", LEARNED, "finished, learned", "good"),
                                      ("old", None, "finished, not measured", "wait")):
        (tmp_path / name).mkdir()
        badge = job_views.badge(finished(tmp_path / name, report))
        assert title in badge
        assert f"badge {tone}" in badge
    assert "Not measured" in job_views.training_outcome_view(finished(tmp_path / "old", None))


def test_jobs_that_are_no_trainings_have_no_outcome(tmp_path: Path) -> None:
    state = finished(tmp_path, None, "prepare")
    assert "finished</span>" in job_views.badge(state)


def test_the_outcome_is_shown_with_reason_advice_and_values(tmp_path: Path) -> None:
    shown = job_views.training_outcome_view(finished(tmp_path, SILENT))
    for part in (WORDS, "Cut the silence", "Text contrast", "20 of 20", "verdict bad"):
        assert part in shown


def test_a_report_that_is_not_signed_is_not_green_and_says_why(workspace: Workspace) -> None:
    """As one that a sender, or an older version, wrote."""
    run = workspace.runs / "first"
    run.mkdir()
    own = job_views.training_outcome_view(finished(run, LEARNED))
    assert "verdict good" in own
    assert "Not verified here" not in own
    values = json.loads((run / learning.LEARNING).read_text("utf-8"))
    (run / learning.LEARNING).write_text(json.dumps({**values, "signature": ""}), "utf-8")
    shown = job_views.training_outcome_view(JobState(Job(run, "train", "cpu", (), 1.0, {}), "finished",
                                                     result={"best_step": 743}))
    assert "verdict unsure" in shown
    assert "Not verified here: it is what" in shown


def test_a_certificate_shows_preservation_and_learning_together() -> None:
    made = proof(SILENT)
    shown = certificate_tab.certificate_view(made)
    assert WORDS in shown
    assert "verdict bad" in shown
    assert made.describe() == f"Old languages: unchanged (logits bit-identical). New language: {WORDS}."


@pytest.mark.parametrize(("logits", "after", "preservation"), [
    ("passed", None, Preservation.UNCHANGED), ("failed", None, Preservation.FAILED),
    ("not proven", None, Preservation.NOT_PROVEN), ("measured", 0.06, Preservation.CHANGED),
    ("measured", 0.95, Preservation.BROKEN)])
def test_preservation_of_a_certificate(logits: str, after: float | None, preservation: Preservation) -> None:
    errors = (LanguageCER("en", False, 40, 0.05, after, 0.02),)
    made = proof(LEARNED, logits, errors)
    assert made.preservation is preservation
    if preservation is Preservation.BROKEN:
        assert "English: CER 5% before, 95% after" in made.describe()
        assert "English: CER 5%" in certificate_tab.certificate_view(made)


def test_the_card_says_what_was_preserved_and_learned() -> None:
    text = export._learned(proof(SILENT))
    assert text.startswith(WORDS)
    assert "| Mbosi | Silent sentences | 20 of 20 |" in text


def test_exporting_a_silent_run_needs_an_option() -> None:
    with pytest.raises(UserError, match="no speech") as refused:
        export._check_learning("run:r@743", SILENT, ExportOptions(run="run:r"))
    assert "--accept-learning" in refused.value.hint
    assert "checkbox" in job_views.on_page(refused.value.hint)
    export._check_learning("run:r@743", SILENT, ExportOptions(run="run:r", accept_learning=True))
    export._check_learning("run:r@743", LEARNED, ExportOptions(run="run:r"))
    export._check_learning("run:r@743", LearningReport(743), ExportOptions(run="run:r"))


def test_only_two_outcomes_are_bad() -> None:
    assert [outcome for outcome in Learning if outcome.bad] == [Learning.NOT_LEARNED, Learning.SILENT]
    assert LearningMeasurements("ha").speech is None
