"""A finder of clips for the tests of cutting, in a module that its workers import without torch."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np

from config.errors import UserError
from core.dataset.cutting import ClipFinder, FoundClip, LongRecording, RecordingClips


def load_failing_finder(is_killed: bool) -> ClipFinder:
    """A finder that writes a part of the files of `bad.wav`, then fails or is killed; another recording is one clip."""
    def find_clips(recording: LongRecording, folder: Path, progress: Callable[[float], None]) -> RecordingClips:
        if recording.name == "bad.wav":
            for name in (f"audio/{recording.key}.flac", f"work/{recording.key}-denoised.wav"):
                (folder / name).write_bytes(b"half")
            if is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise UserError("The disk is full.", "Free some space.")
        return RecordingClips([FoundClip(0.0, 1.0)], np.zeros(0, np.float32))

    return find_clips
