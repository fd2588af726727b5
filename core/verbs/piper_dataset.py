"""The verb `piper_dataset`; its work is `core.piper_dataset`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import PiperDatasetOptions
from core.jobs.events import Result
from core.jobs.reporter import Reporter
from core.submission.job_subjects import Names
from core.submission.requirements import check_new_archive, check_speaks
from core.workspace import Workspace


def check(workspace: Workspace, options: PiperDatasetOptions) -> None:
    if not options.voice_model:
        raise UserError("There is no model to make a dataset with.", "Choose export:NAME or run:ID.")
    check_new_archive(options.archive)
    check_speaks(workspace, options.voice_model, filter(None, (options.language,)), options.voice)


def subject(names: Names) -> str:
    return names["voice_model"]


def run(options: PiperDatasetOptions, workspace: Workspace, reporter: Reporter) -> Result:
    from core import piper_dataset as work

    return work.run(options, workspace, reporter)
