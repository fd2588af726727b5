"""What the verb `push` refuses before its work, which is `core.push`."""

from __future__ import annotations

from config.schema import PushOptions
from core.sources.hub import check_repository_name
from core.workspace import Workspace


def check(workspace: Workspace, options: PushOptions) -> None:
    check_repository_name(options.repository)
