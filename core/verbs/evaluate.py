"""What the verb `evaluate` refuses before its work, which is `core.evaluate`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import EvaluateOptions
from core.workspace import Workspace


def check(workspace: Workspace, options: EvaluateOptions) -> None:
    if not options.models:
        raise UserError("There is nothing to evaluate.", "Give models: --models base:tiny run:ID recordings.")
