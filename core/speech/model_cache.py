"""LRU cache of loaded models; an entry is invalid when one of its files has changed.

The key of a model is its reference, precision and device, with the state of every file that it was loaded from: path,
size, inode, and the times of the last write (mtime) and change (ctime, which a user cannot set). The state is taken
before the files are read. So if a file changes while it is read, it is read again at the next request.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch

from config.errors import UserError, join_names
from config.schema import (
    BookOptions,
    EmotionOptions,
    PiperDatasetOptions,
    SoundOptions,
    SpeakingPrecision,
    UnknownCharacters,
)
from core.library import records
from core.library.lineage import Model
from core.library.reference_voices import SPEAKER
from core.model.loading import TTSModel, load
from core.model.precision import apply_synthesis_precision
from core.speech import evaluation
from core.speech.synthesis import Synthesizer, find_voice
from core.workspace import Workspace
from data.durable_files import hash_file
from models.base import Vocoder, Voice

_MAX_MODELS = 2  # those of one comparison
_MAX_VOICES = 16  # voices of a model

FileState = tuple[str, int, int, int, int]
Key = tuple[str, SpeakingPrecision, str, frozenset[FileState]]


@dataclass(frozen=True)
class CachedSynthesizer:
    """A synthesizer for one request; `precision` and `voice` describe it; `cached`: its model was loaded before."""

    synthesizer: Synthesizer
    precision: str
    voice: str
    cached: bool


def synthesis_inputs(workspace: Workspace, loaded: CachedSynthesizer,
                     options: BookOptions | PiperDatasetOptions) -> list[object]:
    """What the speech of a text depends on: hashes of the model and of recordings, and the options of its synthesis."""
    model = loaded.synthesizer.model
    weights = Model.open(workspace, options.voice_model).weights_hash(model.origin.base_hash)
    recordings = [Path(name).expanduser() for name in (options.voice, options.sound.emotion.emotion_clip) if name]
    recording_hashes = [hash_file(path) for path in recordings if path.is_file()]
    return [model.ref, weights, model.front_end.fingerprint, options.voice, loaded.voice, recording_hashes,
            options.sampling.model_dump(), options.sound.model_dump(), options.precision, options.unknown]


@dataclass(frozen=True)
class _CachedModel:
    model: TTSModel
    vocoder: Vocoder
    vocoder_key: tuple[object, ...]
    precision: str
    max_text_ids: dict[str, int]
    has_voices: bool  # whether the base model comes with voices
    voices: dict[tuple[str, EmotionOptions, frozenset[FileState]], Voice] = field(default_factory=dict)


class ModelCache:
    """LRU cache of the models of synthesizers; an entry is invalid when one of its files changed."""

    def __init__(self, max_models: int = _MAX_MODELS) -> None:
        self._models: dict[Key, _CachedModel] = {}  # least recently used first
        self._max_models = max_models

    def synthesizer(self, ref: str, workspace: Workspace, device: torch.device, precision: SpeakingPrecision,
                    voice: str, sound: SoundOptions, unknown: UnknownCharacters = "refuse",
                    max_text_ids: dict[str, int] | None = None,
                    trained_on: TTSModel | None = None) -> CachedSynthesizer:
        """The model `ref` with `voice`; loaded if it is not cached, or if one of its files has changed.

        `max_text_ids` overrides, by language, the longest texts of the model's training data. A model without voices
        uses the voice of a clip of its training data, or of that of `trained_on`.
        """
        key = (ref, precision, str(device), _file_states(_sources(workspace, ref)))
        cached = self._models.pop(key, None)
        model = cached or self._load(workspace, ref, device, precision)
        self._models[key] = model  # now the last one used

        # The voice: a file, a speaker of the training data, or a training clip if the model has none.
        described = voice or "of the model"
        if voice.startswith(SPEAKER):
            name, clip = _speaker_clip(workspace, (trained_on or model.model).ref, voice.removeprefix(SPEAKER))
            described, voice = f"of the speaker {name}" if name else "of the recordings", str(clip)
        if not voice and not model.has_voices:
            voice = evaluation.recording_of(workspace, trained_on or model.model)
            described = f"of the training clip {Path(voice).name}"

        # A recording that changed is another voice.
        recordings = [Path(name).expanduser() for name in (voice, sound.emotion.emotion_clip) if name]
        voice_key = voice, sound.emotion, _file_states(path for path in recordings if path.is_file())
        if voice_key not in model.voices:
            while len(model.voices) >= _MAX_VOICES:
                del model.voices[next(iter(model.voices))]
            model.voices[voice_key] = find_voice(model.model, voice, sound.emotion)

        synthesizer = Synthesizer(model.model, model.voices[voice_key], max_text_ids or model.max_text_ids, sound,
                                  model.vocoder, unknown)
        return CachedSynthesizer(synthesizer, model.precision, described, cached is not None)

    def _load(self, workspace: Workspace, ref: str, device: torch.device, precision: SpeakingPrecision) -> _CachedModel:
        """Load a model, after dropping older versions of it and the least recently used models."""
        # Free memory before the new model needs it.
        for key in [key for key in self._models if key[:2] == (ref, precision)]:
            del self._models[key]
        while len(self._models) >= self._max_models:
            del self._models[next(iter(self._models))]
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()

        # Models of one base share its vocoder.
        model = load(workspace, ref, device)
        vocoder_key = (model.family.name, _file_states([model.base_folder]), precision, str(device))
        shared = next((other.vocoder for other in self._models.values() if other.vocoder_key == vocoder_key), None)
        vocoder = shared or model.family.load_vocoder(model.base_folder, device)
        described = apply_synthesis_precision(precision, model, vocoder)
        return _CachedModel(model, vocoder, vocoder_key, described, evaluation.longest_texts(workspace, model),
                            bool(model.family.load_voices(model.base_folder)))


def _speaker_clip(workspace: Workspace, ref: str, name: str) -> tuple[str, Path]:
    """A speaker of the training data of `ref`, and a clip of it; without a name the one with the most speech."""
    clips = Model.open(workspace, ref).speakers()
    name = name or next(iter(clips), "") if "" not in clips else name
    if name not in clips:
        raise UserError(f"{name!r} is no speaker of the data of {ref}.", f"Its speakers: {join_names(list(clips))}.")
    return name, clips[name]


def _sources(workspace: Workspace, ref: str) -> list[Path]:
    """The files and folders of a model, and those of its dataset, whose texts determine the length of text chunks."""
    kind, _, name = ref.partition(":")
    if kind == "extension":
        extension = records.read_extension(workspace.extension(name))
        return [workspace.extension(name), workspace.model(extension.origin.model)]
    model = Model.open(workspace, ref)
    if model.kind == "base":
        return [model.folder]
    # An export has the weights of its base.
    folders = [model.folder] if model.kind == "export" else [model.folder, model.base.folder]
    dataset = model.record.dataset
    # The texts of the dataset decide how long chunks may be.
    if dataset in workspace.list_datasets():
        texts = workspace.datasets / dataset
        folders += [texts / "manifest.jsonl", texts / "dataset.yaml"]
    return folders


def _file_states(paths: Iterable[Path]) -> frozenset[FileState]:
    """The state of every file in `paths`."""
    files = chain.from_iterable(path.rglob("*") if path.is_dir() else [path] for path in paths)
    states = ((str(file), os.stat(file)) for file in files if file.is_file())
    return frozenset((path, stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in states)
