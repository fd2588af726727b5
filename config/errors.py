"""The error that a person can mend: it has the fault, and a way out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

REQUIREMENTS = "requirements-languages.txt"


class ErrorKind(StrEnum):
    """What code must know of an error. People read its message and its hint, which no control flow reads."""

    INPUT = "input"
    """The same options and files fail again."""
    ENVIRONMENT = "environment"
    """The disk, the network or another program failed: the same job may succeed later."""
    OTHER_COMMAND = "other_command"
    """The hint has the command that continues the work; a plain resume fails again."""
    TRUNCATED_FILE = "truncated_file"
    """A file ends before its end."""
    NO_TEXT = "no_text"
    """Recordings without a text: the same import fails again, and they can be segmented and transcribed first."""


class UserError(Exception):
    """A fault in what the user gave, with the thing, the value seen and wanted, and a hint.

    `str(error)` is the message alone; `hint` says what to do next.
    """

    def __init__(self, message: str, hint: str = "", kind: ErrorKind = ErrorKind.INPUT) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind

    def rename(self, names: Mapping[str, str]) -> None:
        """Replace names in the message and the hint, such as paths that the user did not give."""
        message, hint = self.message, self.hint
        for name, replacement in names.items():
            message, hint = message.replace(name, replacement), hint.replace(name, replacement)
        self.message, self.hint, self.args = message, hint, (message, *self.args[1:])


CODE = re.compile(r"`([^`\n]+)`")
"""What a text marks as code: the page shows it as such, a terminal without the marks."""


def join_names(names: Sequence[str], limit: int = 12) -> str:
    """The first `limit` names and the number of the others; `none` without names."""
    remaining = len(names) - limit
    return (", ".join(names[:limit]) + (f" and {remaining} more" if remaining > 0 else "")) or "none"
def without_code_marks(text: str) -> str:
    """`text` for a terminal."""
    return CODE.sub(r"\1", text)




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
