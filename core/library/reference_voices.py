"""Reference recordings for voice cloning: reading, checks, and the workspace's `voices`. Never loads torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from config.errors import UserError
from core.workspace import Workspace
from data.durable_files import atomic_path

SHORTEST_S, LONGEST_S = 0.5, 30.0
_SILENT_PEAK = 1e-3  # -60 dB of full scale
_LOW_RATE = 16_000  # Hz; what is below lacks the sounds that make a voice clear
_SHORT_S = 3.0
_HINT = "Give a few seconds of clear speech by one person."


@dataclass(frozen=True)
class ReferenceRecording:
    """The part of a recording that is used: waveform (S,) float32, and notes for the user."""

    waveform: np.ndarray
    sample_rate: int
    notes: tuple[str, ...]


def read_recording(path: Path, title: str = "") -> ReferenceRecording:
    """The first 30 s of the recording at `path` as one channel; `UserError` when there is no voice in it.

    Messages name it by `title`, else by its path.
    """
    name = title or str(path)
    try:
        with soundfile.SoundFile(str(path)) as file:
            rate, channels, whole_s = file.samplerate, file.channels, file.frames / file.samplerate
            samples = file.read(int(LONGEST_S * rate), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(
            f"{name} could not be read as audio: {str(error).rstrip('.')}.",
            "Give a WAV, FLAC, OGG, Opus or MP3 file; convert others with ffmpeg.",
        ) from error
    waveform = samples.mean(axis=1)
    duration_s = len(waveform) / rate
    if duration_s < SHORTEST_S:
        raise UserError(
            f"The reference recording {name} lasts {duration_s:.2f} s; at least {SHORTEST_S} s are needed.", _HINT)
    if not np.isfinite(waveform).all():
        raise UserError(f"The reference recording {name} holds samples that are no numbers.", "Convert it again.")
    peak = float(np.abs(waveform).max())
    if peak < _SILENT_PEAK:
        raise UserError(f"The reference recording {name} is silent: its peak is {peak:.5f} of full scale.", _HINT)

    notes = []  # where it can be used, but not at its best
    if whole_s > LONGEST_S:
        notes.append(f"It lasts {whole_s:.0f} s; the first {LONGEST_S:.0f} s are used.")
    elif whole_s < _SHORT_S:
        notes.append(f"It lasts {whole_s:.1f} s; five to ten seconds give a better likeness.")
    if channels > 1:
        notes.append(f"Its {channels} channels are mixed into one.")
    if rate < _LOW_RATE:
        notes.append(f"At {rate} samples a second the voice will sound muffled.")
    return ReferenceRecording(waveform, rate, tuple(notes))


def save_recording(workspace: Workspace, path: Path, title: str) -> tuple[Path, ReferenceRecording]:
    """Write the part that is used to the workspace's `voices`, under a name made of `title`."""
    reference = read_recording(path, title)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(title).stem).strip("-._")[:40] or "recording"
    number, target = 1, workspace.voices / f"{stem}.wav"
    while target.exists():
        number += 1
        target = workspace.voices / f"{stem}-{number}.wav"
    try:
        workspace.voices.mkdir(exist_ok=True)
        with atomic_path(target) as temporary:
            soundfile.write(str(temporary), reference.waveform, reference.sample_rate, subtype="PCM_16", format="WAV")
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(f"{target} could not be written: {error}.", "Free some disk space.") from error
    return target, reference


def list_recordings(workspace: Workspace) -> list[Path]:
    """The recordings in the workspace, the newest first."""
    found = [path for path in workspace.voices.glob("*.wav") if not path.name.startswith(".")]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
