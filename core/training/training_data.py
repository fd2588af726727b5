"""What a run trains on and is measured by: cached features with the ids of their texts.

No audio file is opened: features come from the cache that `prepare` filled, and all of them
are held in memory (100 hours of speech are 9 million codes of two bytes). A clip that cannot
be used is counted and named, never lost in silence.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from config.errors import UserError
from core.dataset import languages
from core.model.loading import VoiceModel
from core.speech.evaluation import HeldOutSentence
from core.workspace import Workspace
from data import augmentation, manifest
from data.augmentation import AugmentationRecipe
from data.batches import BatchClip, TrainingPair
from data.feature_cache import FeatureCache, FeaturePack
from data.front_end import FrontEnd
from data.manifest import HELD_OUT, TRAIN, PreparedDataset
from models.base import Features, Sample, SpeechModel


@dataclass(frozen=True)
class Utterance:
    """One clip as the model sees it."""

    id: str
    text: str
    language: str
    speaker: str
    text_ids: np.ndarray  # (T,) int64
    speech_codes: np.ndarray  # (U,) uint16
    speaker_embedding: np.ndarray  # (D,) float32
    prompt_codes: np.ndarray  # (P,) uint16

    @property
    def order_clip(self) -> BatchClip:
        """What the order of training asks of a clip."""
        return BatchClip(len(self.text_ids) + len(self.speech_codes), self.speaker)


@dataclass(frozen=True)
class TrainingData:
    """Clips by use; `notes` name what was left out."""

    language: str
    fingerprint: str  # of the dataset
    train: tuple[Utterance, ...]
    held_out: tuple[Utterance, ...]
    sentences: tuple[HeldOutSentence, ...]
    notes: tuple[str, ...]
    train_s: float = 0.0  # speech in the training clips
    variants: Mapping[str, tuple[Utterance, ...]] = field(default_factory=dict)  # of training clips, by their ids
    cut_from: TrainingData | None = None  # all of it, where this is a part for a trial

    @cached_property
    def content(self) -> str:
        """sha256 over the clips as the model sees them: ids, codes, embeddings, in their order."""
        digest = hashlib.sha256()
        varied = (one for item in self.train for one in self.variants.get(item.id, ()))
        for item in (*self.train, *self.held_out, *varied):
            digest.update(f"{item.id} {item.speaker} {len(item.text_ids)} {len(item.speech_codes)}\n".encode())
            for values in (item.text_ids, item.speech_codes, item.speaker_embedding, item.prompt_codes):
                digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


def load(workspace: Workspace, name: str, voice: VoiceModel, apart: str = "source", *,
         varied: bool = False) -> TrainingData:
    """The dataset `name` as `voice` sees it; `UserError` when nothing is left to train or to measure on.

    No held-out clip shares its `apart` (`source` or `speaker`) with a training clip; one that does is left out.
    `varied`: with the variants of the training clips, which the dataset must have been prepared with.
    """
    dataset = manifest.load(workspace.dataset(name))
    language = dataset.card.language
    _check_language(name, language, voice.front_end)
    cache = FeatureCache(workspace.cache, voice.family.extractor_fingerprint(voice.base_folder))
    reader = _Reader(voice, cache, cache.load_pack(dataset.card.fingerprint))
    train = reader.utterances([clip for clip in dataset.split(TRAIN) if reader.speaks(clip, language)])
    apart_clips = reader.apart(dataset.split(HELD_OUT), dataset.split(TRAIN), apart)
    held_out = reader.utterances([clip for clip in apart_clips if reader.speaks(clip, language)])
    train = reader.with_company(train)
    if not train:
        why = " ".join(reader.notes()) or "none is in the training split."
        raise UserError(f"The dataset {name!r} has no clip to train on: {why}", reader.way_out())
    if not held_out:
        why = "".join(f" {note}" for note in reader.notes() if _SHARED in note)
        raise UserError(f"The dataset {name!r} has no held-out clip, so no checkpoint could be judged.{why}",
                        _WAYS_OUT[_SHARED] if why else "Prepare it with a held-out share above 0.")
    variants = reader.variants(dataset, train, augmentation.require(dataset.folder)) if varied else {}
    paths = {clip.id: dataset.audio_path(clip) for clip in dataset.clips}
    verbalize = voice.front_end.verbalize  # a judge hears words, no digits
    sentences = tuple(HeldOutSentence(verbalize(item.text, language), paths[item.id]) for item in held_out)
    seconds = {clip.id: clip.duration_s for clip in dataset.clips}
    return TrainingData(language, dataset.card.fingerprint, train, held_out, sentences, reader.notes(),
                        sum(seconds[item.id] for item in train), variants)


def sample(target: Utterance, prompt: Utterance, max_prompt_length: int) -> Sample:
    """`target` to learn in the voice of another clip."""
    return Sample(target.text_ids, target.speech_codes.astype(np.int64), prompt.speaker_embedding,
                  prompt.prompt_codes[:max_prompt_length].astype(np.int64))


def samples(draws: Sequence[TrainingPair], clips: Sequence[Utterance], max_prompt_length: int) -> list[Sample]:
    """The samples of a batch."""
    return [sample(clips[draw.target], clips[draw.prompt], max_prompt_length) for draw in draws]


def measured(held_out: Sequence[Utterance], train: Sequence[Utterance], max_prompt_length: int) -> list[Sample]:
    """Held-out samples, each prompted by the first training clip of its speaker, or of the nearest one."""
    of_speaker: dict[str, Utterance] = {}
    for item in train:
        of_speaker.setdefault(item.speaker, item)
    return [sample(item, of_speaker.get(item.speaker) or nearest(item, train), max_prompt_length) for item in held_out]


def nearest(item: Utterance, others: Sequence[Utterance]) -> Utterance:
    """The clip of `others` whose speaker embedding points most like that of `item`."""
    return max(others, key=lambda other: float(item.speaker_embedding @ other.speaker_embedding))


def _check_language(name: str, language: str, front_end: FrontEnd) -> None:
    base = front_end.base_languages
    languages.check_target(name, language, [code for code in front_end.languages if code not in base], base)


def utterance(name: str, text: str, language: str, speaker: str, features: Features, front_end: FrontEnd) -> Utterance:
    """`text` and the features of its recording, ready for the model."""
    return Utterance(name, text, language, speaker, front_end.encode(text, language), features.speech_codes,
                     features.speaker_embedding.astype(np.float32, copy=False), features.prompt_codes)


_SHOWN_CHARACTERS = 12
_LANGUAGE, _LENGTH = "in another language", "longer than the model takes"
_ALONE = "the only clip of the speaker, which leaves none to prompt it"
_VARIANTS = {"no features": "have no features in the cache", "too long": "are longer than the model takes"}
_FEATURES, _CHARACTERS = "no features in the cache", "characters outside the vocabulary"
_SHARED = "held out, but shared with a training clip"
_WAYS_OUT = {
    _SHARED: "Prepare it under another name with held-out clips apart by this (--split-disjoint-by), or let validation "
             "be "
             "apart by source alone.",
    _LANGUAGE: "Prepare a dataset of the language that the extension brings.",
    _ALONE: "Add more recordings of the same speaker, or name the speakers in the source: clips without one share one.",
    _FEATURES: "Prepare the dataset again, under the same name: what is cached is kept.",
    _CHARACTERS: "Make a new tokenizer from this dataset, extend the model with it, and train that extension.",
    _LENGTH: "Cut the recordings into shorter ones, with their texts, and prepare them under another name.",
}


class _Reader:
    """Clips to utterances, keeping account of those left out."""

    def __init__(self, voice: VoiceModel, cache: FeatureCache, pack: FeaturePack) -> None:
        self._front_end, self._model, self._cache, self._pack = voice.front_end, voice.model, cache, pack
        self._left_out: dict[str, list[str]] = {}
        self._unknown = Counter[str]()

    def utterances(self, clips: Sequence[manifest.ManifestClip]) -> tuple[Utterance, ...]:
        made = [self._utterance(clip) for clip in clips]
        return tuple(item for item in made if item is not None)

    def speaks(self, clip: manifest.ManifestClip, language: str) -> bool:
        if clip.language != language:
            self._leave_out(f"{_LANGUAGE}: not {language!r}", clip.id)
        return clip.language == language

    def apart(self, held_out: Sequence[manifest.ManifestClip], train: Sequence[manifest.ManifestClip],
              what: str) -> list[manifest.ManifestClip]:
        """Held-out clips of no training clip's source (where it is known), nor speaker if `what` says so."""
        sources = {clip.source for clip in train if clip.source}
        speakers = {clip.speaker for clip in train} if what == "speaker" else set()
        found = []
        for clip in held_out:
            if clip.source in sources or clip.speaker in speakers:
                self._leave_out(f"{_SHARED}: the {'source' if clip.source in sources else 'speaker'}", clip.id)
            else:
                found.append(clip)
        return found

    def with_company(self, clips: tuple[Utterance, ...]) -> tuple[Utterance, ...]:
        """Only clips whose speaker has another one: the prompt must not be the target."""
        count: dict[str, int] = {}
        for item in clips:
            count[item.speaker] = count.get(item.speaker, 0) + 1
        for item in clips:
            if count[item.speaker] < 2:
                self._leave_out(_ALONE, item.id)
        return tuple(item for item in clips if count[item.speaker] > 1)

    def variants(self, dataset: PreparedDataset, train: Sequence[Utterance],
                 recipe: AugmentationRecipe) -> dict[str, tuple[Utterance, ...]]:
        """The variants of the clips that are trained on, as far as they have features and fit."""
        clips = {clip.id: clip for clip in dataset.clips}
        wanted = [(item, key) for item in train for key, _ in recipe.of(clips[item.id].sha256)]
        found: dict[str, tuple[Utterance, ...]] = {}
        for item, key in wanted:
            if (features := self._features(key)) is None:
                self._leave_out("no features", item.id)
                continue
            one = replace(item, speech_codes=features.speech_codes, prompt_codes=features.prompt_codes,
                          speaker_embedding=features.speaker_embedding.astype(np.float32, copy=False))
            if _fits(one, self._model):
                found[item.id] = (*found.get(item.id, ()), one)
            else:
                self._leave_out("too long", item.id)
        if not found:
            raise UserError(f"None of the {len(wanted)} variants of {dataset.card.name!r} can be used: they have no "
                            "features of this model, or are longer than it holds.",
                            f"{_WAYS_OUT[_FEATURES]} Or train with augmentation 0.")
        return found

    def notes(self) -> tuple[str, ...]:
        """One line a reason, with the first names."""
        return tuple(
            (f"{len(ids)} variants are not heard, because they {_VARIANTS[reason]}, of " if reason in _VARIANTS else
             f"{len(ids)} clips left out ({reason}): ") + f"{', '.join(ids[:5])}{' ...' if len(ids) > 5 else ''}."
            f"{self._characters() if reason == _CHARACTERS else ''}" for reason, ids in self._left_out.items()
        )

    def _characters(self) -> str:
        said = ", ".join(f"{name!r} in {count}" for name, count in self._unknown.most_common(_SHOWN_CHARACTERS))
        return f" The characters, and how many texts have them: {said}."

    def way_out(self) -> str:
        """What would let the clips of the most frequent reason be used."""
        if not self._left_out:
            return "Prepare it with a smaller held-out share, or mark some clips as train in the source."
        return _WAYS_OUT[max(self._left_out, key=lambda reason: len(self._left_out[reason])).partition(":")[0]]

    def _utterance(self, clip: manifest.ManifestClip) -> Utterance | None:
        features = self._features(clip.sha256)
        if features is None:
            self._leave_out(_FEATURES, clip.id)
            return None
        try:
            item = utterance(clip.id, clip.text, clip.language, clip.speaker, features, self._front_end)
        except UserError:
            unknown = self._front_end.unknown_characters(clip.text, clip.language)
            if not unknown:
                raise
            self._leave_out(_CHARACTERS, clip.id)
            self._unknown.update(unknown)
            return None
        if not _fits(item, self._model):
            limits = f"{self._model.max_text_length} text ids or {self._model.max_speech_length} codes"
            self._leave_out(f"{_LENGTH}: more than its {limits}", clip.id)
            return None
        return item

    def _features(self, sha256: str) -> Features | None:
        if sha256 in self._pack:
            return Features(**self._pack.arrays(sha256))
        return Features(**self._cache.load(sha256)) if self._cache.has(sha256) else None

    def _leave_out(self, reason: str, name: str) -> None:
        self._left_out.setdefault(reason, []).append(name)


def _fits(item: Utterance, model: SpeechModel) -> bool:
    return len(item.text_ids) <= model.max_text_length and len(item.speech_codes) <= model.max_speech_length


def some(data: TrainingData, most: int) -> TrainingData:
    """At most `most` training clips, the longest among them, each with another of its speaker; and two held out."""
    longest_first = sorted(data.train, key=lambda item: -item.order_clip.length)
    chosen: list[Utterance] = []
    for item in longest_first:
        if len(chosen) >= most:
            break
        others = [other for other in longest_first if other.speaker == item.speaker and other is not item]
        alone = not any(other.speaker == item.speaker for other in chosen)
        if all(item is not other for other in chosen) and len(chosen) + 1 + alone <= most:
            chosen += [item, others[0]] if alone else [item]
    return replace(data, train=tuple(chosen), held_out=data.held_out[:2], sentences=data.sentences[:2], cut_from=data)
