"""Reference recordings for voice cloning: reading, checks, the workspace's `voices`, and speakers of datasets.

Never loads torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from config import foreign
from config.errors import UserError
from core.workspace import Workspace
from data import manifest
from data.channels import Mix
from data.durable_files import atomic_path, check_no_link_out
from data.sound_files import read_sound

SHORTEST_S, LONGEST_S = 0.5, 30.0
_SILENT_PEAK = 1e-3  # -60 dB of full scale
_LOW_RATE = 16_000  # Hz; what is below lacks the sounds that make a voice clear
_SHORT_S = 3.0
_REFERENCE_S = (4.0, 15.0)  # duration of a good reference recording
SPEAKER = "speaker:"
"""In the place of a voice, before the name of a speaker of the data that a model was trained on."""
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
        sound = read_sound(path, LONGEST_S)
    except UserError as error:
        error.rename({str(path): name})
        raise
    waveform, rate, whole_s = sound.waveform, sound.facts.sample_rate, sound.facts.duration_s
    duration_s = len(waveform) / rate
    if duration_s < SHORTEST_S:
        raise UserError(
            f"The reference recording {name} lasts {duration_s:.2f} s; at least {SHORTEST_S} s are needed.", _HINT)
    peak = float(np.abs(waveform).max())
    if peak < _SILENT_PEAK:
        raise UserError(f"The reference recording {name} is silent: its peak is {peak:.5f} of full scale.", _HINT)

    # The notes say why a usable recording is not at its best.
    notes = []
    if whole_s > LONGEST_S:
        notes.append(f"It lasts {whole_s:.0f} s; the first {LONGEST_S:.0f} s are used.")
    elif whole_s < _SHORT_S:
        notes.append(f"It lasts {whole_s:.1f} s; five to ten seconds give a better likeness.")
    notes += [f"{finding.message[0].upper()}{finding.message[1:]}." for finding in sound.facts.findings()]
    if sound.facts.channels > 1 and sound.facts.downmix.mix in (Mix.PLAIN, Mix.WEIGHTED):
        notes.append(f"Its {sound.facts.channels} channels are mixed into one.")
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
    recordings = [path for path in workspace.voices.glob("[!.]*.wav") if path.is_file()]
    return sorted(recordings, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def reference_clip(clips: Iterable[tuple[str, float]]) -> str:
    """Of paths with durations in seconds the first of 4 to 15 s, else the longest; empty when there is none."""
    longest, longest_s = "", 0.0
    for path, duration_s in clips:
        if _REFERENCE_S[0] <= duration_s <= _REFERENCE_S[1]:
            return path
        if duration_s > longest_s:
            longest, longest_s = path, duration_s
    return longest


def list_speakers(dataset: Path) -> Mapping[str, Path]:
    """Speakers of the training clips in the folder of a dataset, who speaks most first, and a clip of each.

    Empty where the dataset is not there or cannot be read.
    """
    try:
        return _list_speakers(dataset / manifest.MANIFEST_FILE)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError):
        return {}


@foreign.cached_by_file(64)  # it may have 200,000 lines
def _list_speakers(path: Path) -> Mapping[str, Path]:
    seconds: dict[str, float] = {}
    clips: dict[str, tuple[str, float]] = {}
    with foreign.open_plain(path) as file:
        for line in file:
            if not line.strip():
                continue
            clip = foreign.loads(line)
            if clip["split"] == manifest.HELD_OUT:
                continue
            name, candidate = str(clip["speaker"]), (str(clip["audio"]), float(clip["duration_s"]))
            seconds[name] = seconds.get(name, 0.0) + candidate[1]
            chosen = reference_clip((clips[name], candidate)) if name in clips else candidate[0]
            clips[name] = candidate if chosen == candidate[0] else clips[name]
    # The speaker with the most speech comes first.
    order = sorted(clips, key=lambda name: -seconds[name])
    return {name: check_no_link_out(path.parent, clips[name][0]) for name in order}
