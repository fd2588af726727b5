"""What the verb `preflight` refuses before its work, which is `core.preflight`."""

from __future__ import annotations

from config.schema import PreflightOptions
from core.verbs import train
from core.workspace import Workspace


def check(workspace: Workspace, options: PreflightOptions) -> None:
    train.check(workspace, options)
