"""The error that a person can mend: it has the fault, and a way out."""

from __future__ import annotations

import re
from collections.abc import Sequence

REQUIREMENTS = "requirements-languages.txt"


class UserError(Exception):
    """A fault in what the user gave, with the thing, the value seen and wanted, and a hint.

    `str(error)` is the message alone; `hint` says what to do next.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


CODE = re.compile(r"`([^`\n]+)`")
"""What a text marks as code: the page shows it as such, a terminal without the marks."""


def join_names(names: Sequence[str], limit: int = 12) -> str:
    """The first `limit` names and the number of the others; `none` without names."""
    remaining = len(names) - limit
    return (", ".join(names[:limit]) + (f" and {remaining} more" if remaining > 0 else "")) or "none"


class MissingTool(UserError):
    """A language needs a package or model that is not installed."""


def missing_package(language: str, package: str, install: str) -> MissingTool:
    """`package` is not installed; `install` is what pip needs."""
    return MissingTool(
        f"{language} text needs the package {package}, which is not installed.",
        f"Install it: python -m pip install {install} (it is in {REQUIREMENTS}), then start again.",
    )


def missing_model(language: str, package: str, reason: object, hint: str) -> MissingTool:
    """`package` is installed, its model is not."""
    return MissingTool(f"{language} text needs the model of {package}, which could not be loaded: {reason}.", hint)
