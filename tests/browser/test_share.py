"""From a trained run to its file, by at most four clicks; and the report of an evaluation as a page without scripts."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from config.schema import EvaluateOptions
from core.jobs import control
from core.jobs.events import Finished, Queued, Started
from core.jobs.state import JobBoard
from core.library import evaluation_report
from tests.browser import scenes
from tests.browser.conftest import PATIENCE_MS, Take, open_tab
from tests.serving import served
from tests.trained import RUN, trained_world
from ui import media

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]


def test_the_file_of_a_run_takes_four_clicks(tmp_path: Path, open_page: Visit, take: Take) -> None:
    workspace = trained_world(tmp_path)
    training = next(state.job for state in JobBoard(workspace).states() if state.id == RUN)
    scenes.append(training, Queued(), Started(1, 1), Finished({"best_step": 8}))
    with served(workspace.path) as app:
        page = open_page(app.url)
        try:
            open_tab(page, "Share")
            expect(page.locator("#export-name")).to_be_visible()
            # Its certificate was never computed, which a person has to accept.
            page.locator("#unproven input").check()
            page.locator("#share-file").click()
            link = page.locator("#share-result a.download-button")
            link.wait_for(timeout=4 * PATIENCE_MS)
            take(page, "share-file-1280-light")
            # The export is chosen now, and it has its name. What can be packed is offered by its title.
            expect(page.locator("#proof-choice input")).to_have_value(re.compile("^Export "))
            expect(page.locator("#export-name")).to_be_hidden()
            page.locator("#share-archive > button").click()
            expect(page.locator("#pack-field-item input")).to_have_value(re.compile(r"^(export |Amharic \(run )"))
            with page.expect_download() as download:
                link.click()
        finally:
            for state in JobBoard(workspace).queue():
                control.force_stop(state.job)
        with tarfile.open(download.value.path()) as archive:
            manifest = json.load(archive.extractfile("lisan.json"))  # type: ignore[arg-type]
    assert manifest["items"] == [f"export:{name}" for name in workspace.list_exports()]
    assert any(file["path"].endswith(".safetensors") for file in manifest["files"])


def test_a_report_is_read_without_its_scripts_and_downloaded(tmp_path: Path, open_page: Visit) -> None:
    workspace = trained_world(tmp_path)
    job = scenes.make(workspace, "evaluate", EvaluateOptions(models=(f"run:{RUN}", "recordings")))
    scenes.append(job, Queued(), Started(1, 1), Finished({"clips": 2}))
    report = "<title>Report</title><h1>Evaluation</h1><script>document.title = 'changed'</script>"
    (job.directory / evaluation_report.HTML).write_text(report, "utf-8")
    with served(workspace.path) as app:
        page = open_page(f"{app.url}?tab=share")
        page.locator("#share-report > button").click()
        expect(page.locator("#report-links .card")).to_contain_text(f"run {RUN}")
        with page.expect_download() as download:
            page.locator("#report-links a", has_text="Download").click()
        assert download.value.path().read_text("utf-8") == report
        answer = page.goto(app.url + media.report_url(job.id))
        assert answer is not None
        assert answer.headers["content-security-policy"].endswith("; sandbox")
        expect(page.locator("h1")).to_have_text("Evaluation")
        assert page.title() == "Report"
        assert page.request.get(app.url + media.report_url(RUN)).status == 404  # it is no evaluation
