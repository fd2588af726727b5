"""The verb `listening_test`; its work is `core.listening_test`."""

from __future__ import annotations

from config.schema import ListeningTestOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.library import evaluation_report, listening
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: ListeningTestOptions) -> None:
    listening.plan(evaluation_report.read(workspace.run(options.evaluation)), options)


def subject(names: Names) -> str:
    return f"{names['kind']} of {names['evaluation']}"


def run(options: ListeningTestOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import listening_test as work

    return work.run(options, workspace, reporter)
