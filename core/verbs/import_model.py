"""The verb `import_model`; its work is `core.import_model`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import ImportModelOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: ImportModelOptions) -> None:
    """Base, checkpoint and language must be given; the job compares the files."""
    for field in ("base", "checkpoint", "language"):
        if not getattr(options, field):
            title = ImportModelOptions.model_fields[field].title
            raise UserError(f"{title} is missing.", f"{ImportModelOptions.model_fields[field].description}")


def subject(names: Names) -> str:
    return names.file("checkpoint")


def run(options: ImportModelOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import import_model as work

    return work.run(options, workspace, reporter)
