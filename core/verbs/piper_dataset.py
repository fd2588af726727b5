"""What the verb `piper_dataset` refuses before its work, which is `core.piper_dataset`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import PiperDatasetOptions
from core.submission.requirements import check_new_archive, check_speaks
from core.workspace import Workspace


def check(workspace: Workspace, options: PiperDatasetOptions) -> None:
    if not options.voice_model:
        raise UserError("There is no model to make a dataset with.", "Choose export:NAME or run:ID.")
    check_new_archive(options.archive)
    check_speaks(workspace, options.voice_model, filter(None, (options.language,)), options.voice)
