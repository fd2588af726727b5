"""Recordings in a format that browsers play: most as they are, the others decoded to a WAV file in the cache.

A dataset keeps each recording as it was given, so no sample is lost. The decoded copies are for playback only: 16 bits,
the first ten minutes. The oldest copies are deleted.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import soundfile

from config.errors import UserError
from core.workspace import Workspace
from data.durable_files import atomic_path
from data.sound_files import examine, read_blocks

TYPES = {".wav": "audio/wav", ".flac": "audio/flac", ".mp3": "audio/mpeg", ".ogg": "audio/ogg", ".oga": "audio/ogg",
         ".opus": "audio/ogg"}
"""Suffixes that browsers play, with their MIME types (Opus as libsndfile reads it is in an Ogg file)."""
DECODED = (".aiff", ".aif", ".au", ".caf", ".w64")
"""Audio suffixes that hardly any browser plays."""
LONGEST_S = 600
MOST_BYTES = 1 << 30  # total size of decoded recordings


def playable(workspace: Workspace, path: Path) -> Path:
    """The recording at `path`, or a WAV file of its sound if browsers do not play it; `UserError` if unreadable."""
    if path.suffix.lower() not in DECODED:
        return path

    # The name changes with the file, so that an old copy is never played.
    home = workspace.cache / "playable"
    about = path.stat()
    name = sha256(f"{path} {about.st_mtime_ns} {about.st_size}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    wav = home / f"{name}.wav"
    if not wav.is_file():
        home.mkdir(parents=True, exist_ok=True)
        try:
            with atomic_path(wav, sync=False) as temporary:
                _decode(path, temporary)
        except OSError as error:
            # The usual reason is a full disk.
            free = shutil.disk_usage(home).free / 1e6
            raise UserError(f"{path.name} could not be decoded for playback: {error.strerror}, {free:.0f} MB free.",
                            "Free space on the disk, then play it again.") from error
        _clear(home)
    return wav


def _decode(path: Path, target: Path) -> None:
    facts = examine(path)
    remaining = int(LONGEST_S * facts.sample_rate)
    with soundfile.SoundFile(str(target), "w", facts.sample_rate, 1, "PCM_16", format="WAV") as file:
        for block in read_blocks(path):
            file.write(block[:remaining])
            remaining -= len(block[:remaining])
            if not remaining:
                break


def _clear(home: Path) -> None:
    """Keep the newest; another request may be clearing too."""
    files = []
    with os.scandir(home) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                about = entry.stat()
                files.append((about.st_mtime_ns, about.st_size, entry.path))
    total_bytes = 0
    for number, (_, size, path) in enumerate(sorted(files, reverse=True)):
        total_bytes += size
        if number and total_bytes > MOST_BYTES:
            Path(path).unlink(missing_ok=True)
