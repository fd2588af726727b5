"""The verb `pack`; its work is `core.pack`."""

from __future__ import annotations

from config.schema import PackOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.library import catalog
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: PackOptions) -> None:
    catalog.require_run_or_export(options.item)


def subject(names: Names) -> str:
    return names["item"]


def run(options: PackOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import pack as work

    return work.run(options, workspace, reporter)
