"""The verb `transcribe`; its work is `core.transcribe`."""

from __future__ import annotations

from config.schema import TranscribeOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: TranscribeOptions) -> None:
    """Its needs are all that can be checked before the work."""


def subject(names: Names) -> str:
    return names["segments"]


def run(options: TranscribeOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import transcribe as work

    return work.run(options, workspace, reporter)
