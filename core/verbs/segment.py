"""The verb `segment`; its work is `core.segment`."""

from __future__ import annotations

from config.schema import SegmentOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: SegmentOptions) -> None:
    """Its needs are all that can be checked before the work."""


def subject(names: Names) -> str:
    return names["segments"]


def run(options: SegmentOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import segment as work

    return work.run(options, workspace, reporter)
