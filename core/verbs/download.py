"""The verb `download`; its work is `core.download`."""

from __future__ import annotations

from config.schema import DownloadOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: DownloadOptions) -> None:
    """Its needs are all that can be checked before the work."""


def subject(names: Names) -> str:
    return names["save_as"] or " ".join(filter(None, (names["model"], names["variant"])))


def run(options: DownloadOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import download as work

    return work.run(options, workspace, reporter)
