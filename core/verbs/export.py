"""What the verb `export` refuses before its work, which is `core.export`."""

from __future__ import annotations

from collections.abc import Mapping

from config.errors import UserError
from config.schema import ExportOptions
from core.library import certificate, lineage
from core.submission.requirements import check_new_export
from core.workspace import Reference, Workspace, free_name


def check(workspace: Workspace, options: ExportOptions) -> None:
    lineage.require_run(options.run)
    check_new_export(workspace, options.export)
    unknown = [name for name in options.override if name not in certificate.CHECKS]
    if unknown:
        raise UserError(f"There is no check named {', '.join(unknown)}.",
                        f"The checks are: {', '.join(certificate.CHECKS)}.")


def suggest_name(workspace: Workspace, settings: Mapping[str, str]) -> str:
    """A free name made of that of the extension of the run; "" without a run."""
    if not settings["run"]:
        return ""
    run_name = Reference.parse(lineage.require_run(settings["run"])).name
    training = lineage.find_training(workspace, run_name)
    # A run that was imported has its own name alone.
    return free_name(str(training.settings.get("extension", training.id)), workspace.list_exports().__contains__)
