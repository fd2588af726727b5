"""Models that stay loaded between requests, each as long as its files are what was read.

A model is kept under its reference, precision and device together with the state of every
file it came from: place, size, inode, and the times of the last write and the last change,
of which the latter cannot be set by hand. The state is taken before the files are read, so a
file that changes while it is read is read again at the next request.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from config.schema import SoundOptions, SpeakingPrecision
from core.library import records
from core.library.catalog import resolve
from core.library.records import CheckpointRecord, ExtensionRecord
from core.speech import originals, speaking_precision
from core.speech.speak import Speaker, find_voice
from core.voice_model.loading import VoiceModel, load
from core.workspace import Workspace
from models.base import Vocoder, Voice

_MOST = 2  # models kept: those of one comparison

FileState = tuple[str, int, int, int, int]
Key = tuple[str, SpeakingPrecision, str, frozenset[FileState]]


@dataclass(frozen=True)
class Ready:
    """A speaker for one request, and what its model computes in; `kept`: it was loaded for an earlier one."""

    speaker: Speaker
    computed_in: str
    kept: bool


@dataclass(frozen=True)
class _Kept:
    model: VoiceModel
    vocoder: Vocoder
    sound: tuple[object, ...]  # what the vocoder was made from
    computed_in: str
    longest: dict[str, int]
    voices: dict[tuple[str, frozenset[FileState]], Voice] = field(default_factory=dict)


class Shelf:
    """Loads speakers, and keeps the models of the last ones."""

    def __init__(self) -> None:
        self._kept: dict[Key, _Kept] = {}  # the one used last stands last

    def speaker(self, ref: str, workspace: Workspace, device: torch.device, precision: SpeakingPrecision,
                voice: str, sound: SoundOptions, longest: dict[str, int] | None = None) -> Ready:
        """`ref` with `voice`; loaded when it is not here, or when a file of it is not what was read.

        `longest` takes the place of what is known of the model's own texts.
        """
        key = (ref, precision, str(device), _state_of(_sources(workspace, ref)))
        found = self._kept.pop(key, None)
        if found is None:
            self._make_room(ref, precision)
        kept = found or self._load(workspace, ref, device, precision)
        self._kept[key] = kept
        speaker = Speaker(kept.model, _voice(kept, voice), longest or kept.longest, sound, kept.vocoder)
        return Ready(speaker, kept.computed_in, found is not None)

    def _make_room(self, ref: str, precision: SpeakingPrecision) -> None:
        """Drop what is of no use any more, then the one that was not used for longest."""
        for key in [key for key in self._kept if key[:2] == (ref, precision)]:
            del self._kept[key]
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _load(self, workspace: Workspace, ref: str, device: torch.device, precision: SpeakingPrecision) -> _Kept:
        model = load(workspace, ref, device)
        sound = (model.family.name, _state_of([model.base_folder]), precision, str(device))
        same = next((kept.vocoder for kept in self._kept.values() if kept.sound == sound), None)
        vocoder = same or model.family.vocoder(model.base_folder, device)
        computed_in = speaking_precision.apply(precision, model, vocoder)
        return _Kept(model, vocoder, sound, computed_in, originals.longest_texts(workspace, model))


def _voice(kept: _Kept, name: str) -> Voice:
    """The voice `name`, which is a voice of the model or a recording; a recording that changed is heard anew."""
    path = Path(name).expanduser()
    key = name, _state_of([path] if name and path.is_file() else [])
    if key not in kept.voices:
        kept.voices.clear()
        kept.voices[key] = find_voice(kept.model, name)
    return kept.voices[key]


def _sources(workspace: Workspace, ref: str) -> list[Path]:
    """Files and folders that a model is made from, and the texts that say how long a piece may be."""
    kind, _, name = ref.partition(":")
    if kind == "extension":
        extension = records.read_record(workspace.extension(name) / records.EXTENSION, ExtensionRecord)
        return [workspace.extension(name), workspace.model(extension.origin.model)]
    found = resolve(workspace, ref)
    if found.kind == "base":
        return [found.folder]
    if found.kind == "export":
        return [found.folder, *_texts(workspace, records.read_export_record(found.folder).dataset)]
    record = records.read_record(found.folder / records.CHECKPOINT, CheckpointRecord)
    return [found.folder, workspace.model(record.origin.model), *_texts(workspace, record.dataset)]


def _texts(workspace: Workspace, dataset: str) -> list[Path]:
    folder = workspace.datasets / dataset
    return [folder / "manifest.jsonl", folder / "dataset.yaml"] if dataset and folder.is_dir() else []


def _state_of(places: Iterable[Path]) -> frozenset[FileState]:
    """Of every file in `places`."""
    files = (file for place in places for file in (place.rglob("*") if place.is_dir() else [place]))
    return frozenset(_file_state(file) for file in files if file.is_file())


def _file_state(path: Path) -> FileState:
    seen = os.stat(path)
    return str(path), seen.st_size, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns
