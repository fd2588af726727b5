"""The verb `doctor`; its work is `core.doctor`."""

from __future__ import annotations

from config.schema import DoctorOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.submission.requirements import check_new_export
from core.workspace import Workspace


def check(workspace: Workspace, options: DoctorOptions) -> None:
    if options.restore:
        check_new_export(workspace, options.restore)


def subject(names: Names) -> str:
    return names.file("checkpoint")


def run(options: DoctorOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import doctor as work

    return work.run(options, workspace, reporter)
