"""The recordings of a reviewed version: linked, or written anew where they are mended."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from config.errors import UserError
from core.dataset.clip_index import ClipIndex, MeasureStore
from core.jobs.events import Progress, WarningRaised
from core.jobs.reporter import Reporter, check_stop
from core.review import Decision
from core.workspace import Workspace
from data import audio
from data.manifest import Clip, Dataset
from data.measures import Measures, measure
from data.mending import mend

ORIGINALS = "originals"


def write_audio(dataset: Dataset, clips: Sequence[Clip], left_out: Sequence[tuple[Clip, str]],
                 made: Mapping[str, Decision], folder: Path, workspace: Workspace,
                 reporter: Reporter) -> tuple[tuple[Clip, ...], tuple[str, ...]]:
    """The recordings of the version: linked, or written anew where they are mended, with the old one beside them.

    Hands back the clips, and the ids of those whose recording is another one now.
    """
    (folder / "audio").mkdir()
    for clip, _ in left_out:
        _link(dataset.audio_path(clip), folder / clip.audio)
    store = MeasureStore(workspace)
    there = store.load(clip.sha256 for clip in clips if clip.id in made and made[clip.id].fixes)
    level = ClipIndex(workspace, dataset.card.fingerprint).plots().level_lufs
    written, mended = [], []
    for at, clip in enumerate(clips, start=1):
        check_stop(reporter, "Stopped before the version was written; nothing is kept of it.")
        fixes = made[clip.id].fixes if clip.id in made else ()
        new = _mended(dataset, clip, there.get(clip.sha256), fixes, level, folder, reporter) if fixes else None
        if new is None:
            _link(dataset.audio_path(clip), folder / clip.audio)
            written.append(clip)
        else:
            store.save({new[0].sha256: new[1]})
            written.append(new[0])
            mended.append(clip.id)
            reporter.emit(Progress(at, len(clips), "clips", f"{clip.id} mended"))
    return tuple(written), tuple(mended)


def _mended(dataset: Dataset, clip: Clip, measures: Measures | None, fixes: Sequence[str], level: float | None,
            folder: Path, reporter: Reporter) -> tuple[Clip, Measures] | None:
    """The clip with its recording mended, as 24-bit FLAC; the old recording is kept under `originals`.

    None where there is nothing to mend, or it could not be read, which is said.
    """
    try:
        waveform, rate = audio.read(dataset.audio_path(clip))
    except UserError as error:
        reporter.emit(WarningRaised(f"{clip.id} is not mended, and stays as it is: {error.message}"))
        return None
    measures = measures or measure(waveform.numpy(), rate)
    target = measures.level_lufs if level is None else level
    done = mend(waveform.numpy(), rate, measures, fixes, target if target is not None else 0.0)
    if np.array_equal(done, waveform.numpy()):
        reporter.emit(WarningRaised(f"{clip.id} has nothing to mend, and stays as it is."))
        return None
    content = audio.as_flac(done, rate)
    path = f"audio/{clip.id}.flac"
    (folder / path).write_bytes(content)
    (folder / ORIGINALS).mkdir(exist_ok=True)
    _link(dataset.audio_path(clip), folder / ORIGINALS / Path(clip.audio).name)
    duration_s = len(done) / rate
    return (replace(clip, audio=path, sha256=hashlib.sha256(content).hexdigest(), duration_s=duration_s),
            measure(done, rate))


def _link(source: Path, target: Path) -> None:
    """The recording in another folder too, without another copy where the disk can do that."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
