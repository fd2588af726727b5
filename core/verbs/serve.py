"""The verb `serve`; its work is `core.serve`."""

from __future__ import annotations

from config.schema import ServeOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: ServeOptions) -> None:
    """Its needs are all that can be checked before the work."""


def subject(names: Names) -> str:
    return ", ".join(names.each("models"))


def run(options: ServeOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import serve as work

    return work.run(options, workspace, reporter)
