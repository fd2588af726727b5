"""What the verb `revise` refuses before its work, which is `core.revise`."""

from __future__ import annotations

from collections.abc import Mapping

from config.errors import UserError
from config.schema import ReviseOptions
from core.dataset import review
from core.library.artefacts import languages_of_dataset
from core.workspace import Workspace


def check(workspace: Workspace, options: ReviseOptions) -> None:
    corrected = options.language not in ("", ",".join(languages_of_dataset(workspace, options.dataset)))
    if not corrected and not review.read_decisions(workspace, options.dataset):
        raise UserError(f"Nothing was decided about {options.dataset!r} that differs from it.",
                        "Exclude or repair a clip, edit a transcript or correct the language first.")
    if options.save_as in workspace.list_datasets():
        raise UserError(f"There already is a dataset named {options.save_as!r}.",
                        "Choose another name: none is written over.")


def suggest_name(_workspace: Workspace, settings: Mapping[str, str]) -> str:
    return f"{settings['dataset']}-2"
