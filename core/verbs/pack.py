"""What the verb `pack` refuses before its work, which is `core.pack`."""

from __future__ import annotations

from config.schema import PackOptions
from core.library import lineage
from core.workspace import Workspace


def check(workspace: Workspace, options: PackOptions) -> None:
    lineage.require_run_or_export(options.item)
