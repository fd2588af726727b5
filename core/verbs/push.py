"""The verb `push`; its work is `core.push`."""

from __future__ import annotations

from config.schema import PushOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.sources.hub import check_repository_name
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: PushOptions) -> None:
    check_repository_name(options.repository)


def subject(names: Names) -> str:
    return f"{names['export']} to {names['repository']}"


def run(options: PushOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import push as work

    return work.run(options, workspace, reporter)
