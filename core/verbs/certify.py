"""The verb `certify`; its work is `core.certify`."""

from __future__ import annotations

from config.schema import CertifyOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: CertifyOptions) -> None:
    """Its needs are all that can be checked before the work."""


def subject(names: Names) -> str:
    return names["run"]


def run(options: CertifyOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import certify as work

    return work.run(options, workspace, reporter)
