"""The verb `evaluate`; its work is `core.evaluate`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import EvaluateOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: EvaluateOptions) -> None:
    if not options.models:
        raise UserError("There is nothing to evaluate.", "Give models: --models base:tiny run:ID recordings.")


def subject(names: Names) -> str:
    return ", ".join(names.each("models"))


def run(options: EvaluateOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import evaluate as work

    return work.run(options, workspace, reporter)
