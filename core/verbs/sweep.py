"""The verb `sweep`; its work is `core.sweep`."""

from __future__ import annotations

from config.schema import SweepOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.library import sweeps
from core.submission.job_subjects import Names
from core.verbs import train
from core.workspace import Workspace


def check(workspace: Workspace, options: SweepOptions) -> None:
    sweeps.check_sweep(options)
    train.check(workspace, options)


def subject(names: Names) -> str:
    return train.subject(names)


def run(options: SweepOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import sweep as work

    return work.run(options, workspace, reporter)
