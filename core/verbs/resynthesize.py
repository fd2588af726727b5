"""What the verb `resynthesize` refuses before its work, which is `core.resynthesize`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import ResynthesizeOptions
from core.library import lineage
from core.workspace import Workspace


def check(workspace: Workspace, options: ResynthesizeOptions) -> None:
    if bool(options.source) == bool(options.dataset):
        raise UserError("Give a source or a dataset: one of the two.",
                        "Give --source PATH for recordings that are not prepared, else --dataset NAME.")
    # The base must exist, or ship with the app.
    lineage.find_base_or_shipped(workspace, options.model)
