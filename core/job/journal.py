"""The append-only record of a job: one typed JSON object a line, read from an offset. Never loads torch.

One writer at a time (whoever holds the job's lock), any number of readers. A line is written
with one `write` on a descriptor opened for appending, so a reader sees whole lines and at
most one torn line at the end, which it leaves for the next read. A worker that was killed
in the middle of a line leaves it torn for good; the next writer starts on a line of its own.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from pathlib import Path

from config.errors import UserError
from core.job.events import (
    TERMINAL,
    AudioMade,
    AudioPiece,
    CheckpointSaved,
    Evaluated,
    Event,
    Failed,
    Finished,
    Plan,
    Progress,
    Queued,
    Result,
    SampleMade,
    Scalar,
    Skipped,
    Stage,
    Started,
    Step,
    Stopped,
    Waiting,
    Warned,
    decode,
    encode,
)

__all__ = [  # the events too: whoever reads or writes a journal names both by this module
    "AudioMade", "AudioPiece", "CheckpointSaved", "Evaluated", "Event", "Failed", "Finished", "Journal", "Plan",
    "Progress", "Queued", "Result", "SampleMade", "Scalar", "Skipped", "Stage", "Started", "Step", "Stopped",
    "TERMINAL", "Waiting", "Warned", "decode", "encode", "read",
]


class Journal:
    """The writing end. Raises `UserError` when the disk will not take the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritable(path, error) from error

    def append(self, event: Event) -> Event:
        """Stamp and write `event`; a terminal event is on the disk when this returns."""
        stamped = dataclasses.replace(event, time=time.time())
        data = encode(stamped)
        try:
            if not self._at_line_start():
                data = b"\n" + data
            while data:
                data = data[os.write(self._descriptor, data):]
            if isinstance(event, TERMINAL):
                os.fsync(self._descriptor)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        return stamped

    def close(self) -> None:
        os.close(self._descriptor)

    def _at_line_start(self) -> bool:
        size = os.fstat(self._descriptor).st_size
        return size == 0 or os.pread(self._descriptor, 1, size - 1) == b"\n"


def read(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Whole lines of `path` from byte `offset` on, and the offset to go on from. No file is no events."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], 0
    whole = data[:data.rfind(b"\n") + 1]
    return [decode(line) for line in whole.split(b"\n") if line.strip()], offset + len(whole)


def _unwritable(path: Path, error: OSError) -> UserError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return UserError(
        f"The journal {path} could not be written: {error.strerror or error}.",
        "Free some disk space, then continue the run; what was saved before is intact." if full
        else "Check that the workspace can be written, then continue the run.",
    )
