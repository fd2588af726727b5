"""The one error a person can mend: what is wrong, and the way out."""

from __future__ import annotations


class UserError(Exception):
    """A fault in what the user gave, with the thing, the value seen and wanted, and a hint.

    `str(error)` is the message alone; `hint` says what to do next.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
