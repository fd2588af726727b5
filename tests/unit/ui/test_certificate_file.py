"""The archive that Share offers is of the files of the chosen run or export, and of no other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.jobs.job import Job
from core.jobs.state import JobState, Status
from core.workspace import Workspace
from ui import certificate, media
from ui.live import View
from ui.page import Page

File = Callable[[str, list[JobState]], str]


@pytest.fixture
def offered(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> File:
    """What Share shows for a reference and the jobs, the newest first."""
    monkeypatch.setattr(media, "archive_path", lambda workspace, job: workspace.path / job)

    def shown(reference: str, jobs: list[JobState]) -> str:
        monkeypatch.setattr(certificate, "_chosen", lambda page, view: reference)
        page = cast(Page, SimpleNamespace(workspace=workspace))
        return str(certificate._file(page, View("share", {}, tuple(jobs))))

    return shown


def job(workspace: Workspace, name: str, verb: str, status: Status = "finished", **settings: Any) -> JobState:
    result = {"archive": f"{name}.tar", "bytes": 5.0} if verb == "pack" else {}
    return JobState(Job(workspace.runs / name, verb, "cpu", (), 1.0, settings), status, started_at=1.0, result=result)


def test_the_archive_of_a_runs_newest_export_is_offered(workspace: Workspace, offered: File) -> None:
    export = job(workspace, "e", "export", run="run:a", export="voice")
    jobs = [job(workspace, "new", "pack", item="export:voice"), export,
            job(workspace, "old", "pack", item="export:voice")]
    assert "new.tar" in offered("run:a", jobs)
    assert "new.tar" in offered("export:voice", jobs)
    assert offered("run:a", jobs[1:]) == offered("export:voice", jobs[1:]) == ""  # an archive of earlier files


def test_an_archive_of_a_whole_run_is_not_the_model(workspace: Workspace, offered: File) -> None:
    assert offered("run:a", [job(workspace, "p", "pack", item="run:a")]) == ""


def test_another_runs_export_of_the_same_name_is_not_offered(workspace: Workspace, offered: File) -> None:
    packed = job(workspace, "p", "pack", item="export:voice")
    other = job(workspace, "b", "export", run="run:b", export="voice")
    failed = job(workspace, "a", "export", "failed", run="run:a", export="voice")
    assert offered("run:a", [packed, other, failed]) == ""
    assert offered("run:a", [packed, failed, other]) == ""
    assert "p.tar" in offered("run:b", [packed, other, failed])
