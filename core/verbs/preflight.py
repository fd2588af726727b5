"""The verb `preflight`; its work is `core.preflight`."""

from __future__ import annotations

from config.schema import PreflightOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.verbs import train
from core.workspace import Workspace


def check(workspace: Workspace, options: PreflightOptions) -> None:
    train.check(workspace, options)


def subject(names: Names) -> str:
    return train.subject(names)


def run(options: PreflightOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import preflight as work

    return work.run(options, workspace, reporter)
