"""The models that a server speaks with: their names, voices and languages, whether they may be served, and reloads.

A model is taken from the cache of the process, which loads it again if one of its files has changed. Requests that
have begun keep the model that they began with.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from config.errors import UserError, join_names
from config.schema import EMOTIONS, EmotionOptions, ServeOptions, SoundOptions
from core.jobs.events import Event
from core.library import certificate, learning, reference_voices, verification
from core.library.lineage import Model
from core.library.reference_voices import SPEAKER
from core.library.verification import Outcome
from core.model.loading import TTSModel
from core.serving.word_times import load_word_recogniser
from core.speech.model_cache import CachedSynthesizer, ModelCache
from core.speech.synthesis import Synthesizer
from core.speech.transcription import CTCModel
from core.workspace import Workspace

OPENAI_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
OPENAI_VOICES = ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage",
                 "shimmer", "verse")
"""Names that clients send which cannot be configured: they mean the first model, and its default voice."""
DEFAULT_VOICE = "default"
_LAST_SYNTHESIZERS = 32


class _NoReporter:
    """A reporter for work that is no job."""

    directory = Path()

    def emit(self, event: Event) -> None:
        pass

    def stop_requested(self) -> bool:
        return False


class UnknownName(UserError):
    """A model or voice that is not served; `field` is that of the request."""

    def __init__(self, field: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.field = field


@dataclass(frozen=True)
class ServedModel:
    """A model that is served, by its reference."""

    reference: str
    languages: tuple[str, ...]
    default_language: str
    voices: tuple[str, ...]
    model_hash: str
    created: int  # seconds since 1970


@dataclass(frozen=True)
class LoadedVoice:
    """A model with a voice, for a request."""

    synthesizer: Synthesizer
    language: str
    model_hash: str


class ServedModels:
    """Loads models for requests. Threads may share it: one loads at a time."""

    def __init__(self, options: ServeOptions, workspace: Workspace, device: torch.device) -> None:
        self._options, self._workspace, self._device = options, workspace, device
        self.references = tuple(dict.fromkeys(map(workspace.whole_reference, options.models)))
        self._cache = ModelCache(len(self.references))
        self._guard = threading.Lock()
        self._synthesizers: dict[tuple[str, str, str], CachedSynthesizer] = {}
        self._voice_names: dict[str, tuple[weakref.ref[TTSModel], tuple[str, ...]]] = {}
        # By reference what its certificate says, as far as it did not pass; and what was not reported yet.
        self._known_notes: dict[str, str] = {}
        self._notes: list[str] = []
        for reference in self.references:
            _check_outcome(workspace, Model.open(workspace, reference), options.accept_outcome)

    def take_notes(self) -> list[str]:
        """Sentences about certificates that are not those of this workspace, each once; also after a reload."""
        notes, self._notes = self._notes, []
        return notes

    def find(self, name: str) -> str:
        """The reference of the model that a request names; `UnknownName` lists them."""
        if not name or name in OPENAI_MODELS:
            return self.references[0]
        for reference in self.references:
            if name in (reference, reference.partition(":")[2]):
                return reference
        raise UnknownName("model", f"There is no model {name[:80]!r} here.",
                          f"The models are: {join_names(self.references)}.")

    def describe(self, reference: str) -> ServedModel:
        """What clients may know of a model."""
        with self._guard:
            synthesizer = self._load(reference, "", SoundOptions()).synthesizer
        model = Model.open(self._workspace, reference)
        languages = tuple(synthesizer.front_end.languages)
        return ServedModel(reference, languages, self._default_language(synthesizer),
                           self.voices(reference, synthesizer),
                           model.weights_hash(synthesizer.model.origin.base_hash),
                           int(model.folder.stat().st_mtime))

    def voices(self, reference: str, synthesizer: Synthesizer) -> tuple[str, ...]:
        """The names of voices: the default one, those of the model, recordings of the workspace, and speakers."""
        model_voices = self._own_voices(reference, synthesizer)
        recordings = [path.stem for path in reference_voices.list_recordings(self._workspace)]
        speakers = [f"{SPEAKER}{name}" for name in self._speakers(reference) if name]
        return tuple(dict.fromkeys((DEFAULT_VOICE, *model_voices, *recordings, *speakers)))

    def open(self, reference: str, voice: str, language: str, instructions: str) -> LoadedVoice:
        """The model in a voice, for a language that it speaks; loaded if it is not, or if its files have changed."""
        sound = SoundOptions(emotion=_emotion_of(instructions)) if instructions else SoundOptions()
        with self._guard:
            synthesizer = self._load(reference, voice, sound).synthesizer
        if instructions and "emotion" not in synthesizer.model.family.sound_options:
            raise UserError(f"The model {reference} takes no instructions.", "Leave out `instructions`.")
        language = language.strip().lower().replace("_", "-") or self._default_language(synthesizer)
        languages = tuple(synthesizer.front_end.languages)
        if language not in languages:
            raise UnknownName("language", f"The model {reference} does not speak {language[:40]!r}.",
                              f"Its languages are: {join_names(languages, 40)}.")
        model_hash = Model.open(self._workspace, reference).weights_hash(synthesizer.model.origin.base_hash)
        return LoadedVoice(synthesizer, language, model_hash)

    def recogniser(self, reference: str, voice: LoadedVoice) -> CTCModel:
        """The recogniser of a language that gives the time of each letter; `UserError` if there is none."""
        return load_word_recogniser(self._workspace, reference, voice.language,
                                    voice.synthesizer.model.new_languages, self._device.type, _NoReporter())

    def _load(self, reference: str, voice: str, sound: SoundOptions) -> CachedSynthesizer:
        path = self._voice_option(reference, voice)
        loaded = self._cache.synthesizer(reference, self._workspace, self._device, self._options.precision, path, sound,
                                         self._options.unknown)
        key = (reference, path, sound.model_dump_json())
        current = self._synthesizers.pop(key, None)
        # The current synthesizer has the voice's prepared keys and values.
        if current is None or current.synthesizer.model is not loaded.synthesizer.model or (
                current.synthesizer.voice.conditioning is not loaded.synthesizer.voice.conditioning):
            current = loaded
            # Its files may have changed since the server began.
            _check_outcome(self._workspace, Model.open(self._workspace, reference), self._options.accept_outcome)
            self._note(reference)
        self._synthesizers = {old: cached for old, cached in self._synthesizers.items()
                              if old[0] != reference or cached.synthesizer.model is current.synthesizer.model}
        self._synthesizers[key] = current
        while len(self._synthesizers) > _LAST_SYNTHESIZERS:
            del self._synthesizers[next(iter(self._synthesizers))]
        return current

    def _note(self, reference: str) -> None:
        """Keep what a person should know of the certificate of a model that was loaded."""
        model = Model.open(self._workspace, reference)
        note = verification.spoken_note(self._workspace, reference)
        if not note and model.kind != "base" and _is_uncertified(model):
            note = f"{reference} has no certificate: nothing of it was compared with its base model."
        if note and self._known_notes.get(reference) != note:
            self._notes.append(note)
        self._known_notes[reference] = note

    def _voice_option(self, reference: str, voice: str) -> str:
        """The option of a voice by its name. A name is looked up in lists, and never taken for a path."""
        if voice in ("", DEFAULT_VOICE):
            return self._options.voice
        default = self._load(reference, "", SoundOptions()).synthesizer
        if voice in self._own_voices(reference, default):
            return voice
        for path in reference_voices.list_recordings(self._workspace):
            if voice == path.stem:
                return str(path)
        if voice.startswith(SPEAKER) and voice.removeprefix(SPEAKER) in filter(None, self._speakers(reference)):
            return voice
        if voice in OPENAI_VOICES:
            return self._options.voice
        raise UnknownName("voice", f"The model {reference} has no voice {voice[:80]!r}.",
                          f"Its voices are: {join_names(self.voices(reference, default), 40)}.")

    def _own_voices(self, reference: str, synthesizer: Synthesizer) -> tuple[str, ...]:
        """The voices that come with a model; they are read once, as that takes as long as a sentence."""
        model = synthesizer.model
        cached = self._voice_names.get(reference)
        if cached is None or cached[0]() is not model:
            names = tuple(model.family.load_voices(model.base_folder))
            # A weak reference, because a model that was replaced would stay until somebody lists its voices.
            cached = self._voice_names[reference] = weakref.ref(model), names
        return cached[1]

    def _speakers(self, reference: str) -> Sequence[str]:
        model = Model.open(self._workspace, reference)
        return tuple(model.speakers())

    def _default_language(self, synthesizer: Synthesizer) -> str:
        """The option, else the first new language of the model, else English, else its first language."""
        languages = tuple(synthesizer.front_end.languages)
        preferences = (self._options.language, *synthesizer.model.new_languages, "en")
        return next((code for code in preferences if code in languages), languages[0])


def _check_outcome(workspace: Workspace, model: Model, accepted: bool) -> None:
    """`UserError` for a model of other files than its certificate's, with failed checks, or that learned nothing.

    Nothing is raised if `accepted`.
    """
    if accepted or model.kind == "base":
        return
    hint = "Serve it anyway with --accept-outcome."
    path = model.certificate_path
    if path.is_file():
        proof = certificate.read(path)
        if model.step in (None, proof.step):
            # Nothing of a certificate of other files is known to hold.
            result = verification.verify(workspace, model.reference, verification.hash_cache(workspace))
            if result.outcome is Outcome.OTHER_FILES:
                raise UserError(f"{model.reference} is not served. {result.describe()}", f"{result.hint} {hint}")
            if proof.preservation.bad:
                raise UserError(f"{model.reference} is not served: {proof.describe_preservation()}.", hint)
        if model.kind == "export" and proof.learning.bad:
            raise UserError(
                f"{model.reference} is not served: {learning.describe_report(proof.learning_report)}.", hint)
    if model.kind == "run":
        report = learning.read_report(model.folder.parent.parent, model.record.step)
        if report.learning.bad:
            raise UserError(f"{model.reference} is not served: {learning.describe_report(report)}.", hint)


def _is_uncertified(model: Model) -> bool:
    """Whether there is no certificate, or only one of another step."""
    path = model.certificate_path
    return not path.is_file() or model.step not in (None, certificate.read(path).step)


def _emotion_of(instructions: str) -> EmotionOptions:
    """Weights of emotions, written as `happy` or `happy 0.6, calm 0.2`; `UserError` for any other text."""
    weights: dict[str, float] = {}
    for part in instructions.lower().split(","):
        name, _, number = part.strip().partition(" ")
        try:
            weight = float(number) if number else 1.0
        except ValueError:
            weight = -1.0
        if name not in EMOTIONS or not 0 <= weight <= 1:
            raise UserError(f"The instructions {instructions[:80]!r} name no emotion.",
                            f"Write emotions with weights from 0 to 1, such as `happy 0.6, calm 0.2`: "
                            f"{', '.join(EMOTIONS)}.")
        weights[name] = weight
    total = sum(weights.values())
    if total > 1:
        raise UserError(f"The weights of the emotions sum to {total:g}; the sum must be at most 1.", "Lower them.")
    return EmotionOptions.model_validate(weights)
