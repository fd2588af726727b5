"""What the verb `listening_test` refuses before its work, which is `core.listening_test`."""

from __future__ import annotations

from config.schema import ListeningTestOptions
from core.library import evaluation_report, listening
from core.workspace import Workspace


def check(workspace: Workspace, options: ListeningTestOptions) -> None:
    listening.plan(evaluation_report.read(workspace.run(options.evaluation)), options)
