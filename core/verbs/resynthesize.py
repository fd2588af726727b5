"""The verb `resynthesize`; its work is `core.resynthesize`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import ResynthesizeOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.library import model_info
from core.submission.job_subjects import Names
from core.workspace import Workspace


def check(workspace: Workspace, options: ResynthesizeOptions) -> None:
    if bool(options.source) == bool(options.dataset):
        raise UserError("Give a source or a dataset: one of the two.",
                        "Give --source PATH for recordings that are not prepared, else --dataset NAME.")
    # The base must exist, or ship with the app.
    model_info.base_files(workspace, options.model)


def subject(names: Names) -> str:
    return f"{names['dataset'] or names.last_part('source')} through {names['model']}"


def run(options: ResynthesizeOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import resynthesize as work

    return work.run(options, workspace, reporter)
