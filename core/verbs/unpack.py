"""The verb `unpack`; its work is `core.unpack`."""

from __future__ import annotations

from config.schema import UnpackOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: UnpackOptions) -> None:
    """Its needs are all that can be checked before the work."""


def subject(names: Names) -> str:
    return names.file("archive")


def run(options: UnpackOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import unpack as work

    return work.run(options, workspace, reporter)
