"""The audio track of videos, and of what libsndfile does not read to its end: M4A, AAC, AMR, WMA, chained OGG.

ffmpeg runs without a shell, reads only files, and only as the containers in `_CONTAINERS`: a disguised playlist cannot
make it open something else.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from config import confinement
from config.errors import UserError
from data.durable_files import atomic_path

_CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,asf,aac,amr,flv,mp3,ogg,flac,wav,w64,aiff,au,"
               "caf")
_POLL_S = 0.1
_LONGEST_S = 4 * 3600.0
INSTALL = "Install ffmpeg (apt install ffmpeg, brew install ffmpeg, winget install ffmpeg), then do this again."


def ffmpeg_path() -> str | None:
    """Path of ffmpeg; None when it is not installed."""
    return shutil.which("ffmpeg")


def extract_audio(path: Path, target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Write the first audio track of `path` to the FLAC file `target`: 16 bits, with its own rate and channels.

    `check` is called while ffmpeg runs and may raise to end it. `UserError` for a file that ffmpeg cannot read.
    """
    program = ffmpeg_path()
    if program is None:
        raise UserError(f"{path.name} needs ffmpeg to be read, and ffmpeg is not on this machine.", INSTALL)
    # The formats are a closed list, and only local files are opened: a playlist could name a remote address.
    with confinement.verified(path) as source, atomic_path(target, sync=False) as temporary:
        command = [
            program, "-nostdin", "-v", "error", "-y", "-protocol_whitelist", "file", "-format_whitelist", _CONTAINERS,
            "-i", f"file:{source}", "-map", "0:a:0", "-map_metadata", "-1", "-flags", "+bitexact",
            "-fflags", "+bitexact", "-sample_fmt", "s16", "-c:a", "flac", "-f", "flac", f"file:{temporary}",
        ]
        fault = _run(command, check).replace(source, path.name)
        if fault:
            raise UserError(f"ffmpeg could not take the sound out of {path.name}: {fault}.",
                            "Check that it plays, and that it has a sound track.")


def _run(command: list[str], check: Callable[[], None]) -> str:
    """The last line of an error; empty on success."""
    began = time.monotonic()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, errors="replace") as process:
        try:
            while True:
                try:
                    _, errors = process.communicate(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    check()
                    if time.monotonic() - began > _LONGEST_S:
                        return f"it was not done after {_LONGEST_S / 3600:g} hours"
        finally:
            # A stop or an error leaves ffmpeg running, so it is killed.
            if process.poll() is None:
                process.kill()
    if process.returncode == 0:
        return ""

    # The last line of ffmpeg's messages names the cause.
    last = (errors.strip().splitlines() or [f"status {process.returncode}"])[-1]
    return "".join(letter for letter in last if letter.isprintable()).replace("file:", "")[:200].rstrip(".")
