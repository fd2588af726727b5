"""Training data and its loader: cached features with the ids of their texts, and the batches of each step.

No audio file is opened: features come from the cache that `prepare` filled, mapped from the pack of the dataset. The
sampler needs their lengths alone, so a page of the pack is read when a batch needs it. A clip that cannot be used is
counted and named in a note.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np

from config.errors import UserError
from config.schema import TrainOptions
from core.dataset import languages
from core.jobs.reporter import pluralize
from core.model.loading import TTSModel
from core.workspace import Workspace
from data import augmentation, manifest
from data.augmentation import AugmentationRecipe
from data.batches import BatchClip, LengthBucketedBatchSampler, SamplerState, TargetPromptPair
from data.feature_cache import FeatureCache, FeaturePack
from data.front_end import FrontEnd
from data.manifest import HELD_OUT, TRAIN, HeldOutSentence, PreparedDataset
from models.base import Features, LanguageModel, Sample


@dataclass(frozen=True)
class Utterance:
    """One clip as the model sees it."""

    id: str
    text: str
    language: str
    speaker: str
    text_ids: np.ndarray  # (T,) int64
    speech_codes: np.ndarray  # (U,) uint16
    conditioning: Mapping[str, np.ndarray]  # see `models.base.Features`

    @property
    def batch_clip(self) -> BatchClip:
        """Length and speaker, by which the batch sampler orders the clips."""
        return BatchClip(len(self.text_ids) + len(self.speech_codes), self.speaker)


@dataclass(frozen=True)
class TrainingData:
    """The clips of a dataset as a model sees them."""

    languages: tuple[str, ...]  # the new languages
    fingerprint: str  # the dataset's
    train: tuple[Utterance, ...]
    held_out: tuple[Utterance, ...]
    sentences: tuple[HeldOutSentence, ...]  # texts and recordings of `held_out`, in the same order
    notes: tuple[str, ...]  # why clips were left out
    train_speech_s: float = 0.0  # speech in the training clips
    variants: Mapping[str, tuple[Utterance, ...]] = field(default_factory=dict)  # augmented, by id of the training clip
    full_data: TrainingData | None = None  # the whole data, if this is a subset for a preflight

    def sentences_in(self, language: str) -> tuple[HeldOutSentence, ...]:
        """The held-out sentences of a language."""
        return tuple(sentence for item, sentence in zip(self.held_out, self.sentences, strict=True)
                     if item.language == language)

    @cached_property
    def content_hash(self) -> str:
        """sha256 over the clips as the model sees them: ids, codes, conditioning, in their order."""
        digest = hashlib.sha256()
        augmented = chain.from_iterable(self.variants.get(item.id, ()) for item in self.train)
        for item in (*self.train, *self.held_out, *augmented):
            digest.update(f"{item.id} {item.speaker} {len(item.text_ids)} {len(item.speech_codes)}\n".encode())
            conditioning = (item.conditioning[name] for name in sorted(item.conditioning))
            for values in (item.text_ids, item.speech_codes, *conditioning):
                digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


def load_training_data(workspace: Workspace, name: str, tts: TTSModel, disjoint_by: str = "source", *,
                       augmented: bool = False) -> TrainingData:
    """The dataset `name` as `tts` sees it; `UserError` if no clip is left to train or to validate on.

    A held-out clip that shares its source with a training clip is left out, and with `disjoint_by` `speaker` also one
    that shares its speaker. `augmented`: load the augmented variants too, with which the dataset must be prepared.
    """
    dataset = manifest.load(workspace.dataset(name))
    targets = dataset.card.languages
    languages.check_targets(name, targets, tts.new_languages, tts.front_end.base_languages,
                            tts.origin.earlier_languages)

    # Clips in other languages, and held-out clips that share a source with training clips, are left out.
    cache = FeatureCache(workspace.cache, tts.family.extractor_fingerprint(tts.base_folder))
    reader = _UtteranceReader(tts, cache, cache.load_pack(dataset.card.fingerprint))
    train = reader.utterances([clip for clip in dataset.split(TRAIN) if reader.keep_language(clip, targets)])
    disjoint = reader.keep_disjoint(dataset.split(HELD_OUT), dataset.split(TRAIN), disjoint_by)
    held_out = reader.utterances([clip for clip in disjoint if reader.keep_language(clip, targets)])
    train = reader.with_prompt_clips(train)

    # Every language needs clips to train on and clips to validate on.
    for language in targets if len(targets) > 1 else ():
        for use, items in (("to train on", train), ("held out", held_out)):
            if not any(item.language == language for item in items):
                raise UserError(f"The dataset {name!r} has no clip in {languages.describe_language(language)} {use}.",
                                "Add recordings of this language, or hold out a larger share.")
    if not train:
        reasons = " ".join(reader.notes()) or "none is in the training split."
        raise UserError(f"The dataset {name!r} has no clip to train on: {reasons}", reader.hint())
    if not held_out:
        reasons = "".join(f" {note}" for note in reader.notes() if _SHARED in note)
        raise UserError(f"The dataset {name!r} has no held-out clip, so no checkpoint could be evaluated.{reasons}",
                        _HINTS[_SHARED] if reasons else "Prepare it with a held-out share above 0.")

    # Recordings, texts and durations come from the manifest.
    variants = reader.variants(dataset, train, augmentation.require(dataset.folder)) if augmented else {}
    paths = {clip.id: dataset.audio_path(clip) for clip in dataset.clips}
    verbalize = tts.front_end.verbalize  # recognisers write numbers as words
    sentences = tuple(HeldOutSentence(verbalize(item.text, item.language), paths[item.id]) for item in held_out)
    seconds = {clip.id: clip.duration_s for clip in dataset.clips}
    return TrainingData(targets, dataset.card.fingerprint, train, held_out, sentences, reader.notes(),
                        sum(seconds[item.id] for item in train), variants)


def make_sample(target: Utterance, prompt: Utterance, lm: LanguageModel, seed: str = "") -> Sample:
    """A training sample of `target`, conditioned on the clip `prompt`. Random choices depend on `seed` and the clip."""
    conditioning = lm.sample_conditioning(target.conditioning, prompt.conditioning,
                                          random.Random(f"{seed}/{target.id}"))
    return Sample(target.text_ids, target.speech_codes.astype(np.int64), conditioning)


def make_samples(pairs: Sequence[TargetPromptPair], clips: Sequence[Utterance], lm: LanguageModel,
                 seed: str = "") -> list[Sample]:
    """The samples of a batch, without augmentation."""
    return [make_sample(clips[pair.target], clips[pair.prompt], lm, seed) for pair in pairs]


def held_out_samples(held_out: Sequence[Utterance], train: Sequence[Utterance], lm: LanguageModel) -> list[Sample]:
    """Samples of held-out clips, prompted by the first training clip of their speaker, or of the most similar one."""
    # The voice must match the target as well as it can, or the loss measures the prompt.
    of_speaker: dict[str, Utterance] = {}
    for item in train:
        of_speaker.setdefault(item.speaker, item)
    return [make_sample(item, of_speaker.get(item.speaker) or nearest_speaker(item, train, lm), lm)
            for item in held_out]


def nearest_speaker(item: Utterance, candidates: Sequence[Utterance], lm: LanguageModel) -> Utterance:
    """The clip of `candidates` whose speaker is most similar to that of `item`."""
    embedding = lm.speaker_embedding(item.conditioning)
    return max(candidates, key=lambda other: float(embedding @ lm.speaker_embedding(other.conditioning)))


def make_utterance(name: str, text: str, language: str, speaker: str, features: Features,
                   front_end: FrontEnd) -> Utterance:
    """`text` and the features of its recording, ready for the model."""
    return Utterance(name, text, language, speaker, front_end.encode(text, language), features.speech_codes,
                     features.conditioning)


_SHOWN_CHARACTERS = 12
_LANGUAGE, _LENGTH = "in another language", "longer than the model takes"
_ALONE = "the only clip of the speaker, which leaves none to prompt it"
_VARIANTS = {"no features": "have no features in the cache", "too long": "are longer than the model takes"}
_FEATURES, _CHARACTERS = "no features in the cache", "characters outside the vocabulary"
_SHARED = "held out, but shared with a training clip"
_HINTS = {
    _SHARED: "Prepare it under another name with held-out clips apart by this (--split-disjoint-by), or let "
             "validation be apart by source alone.",
    _LANGUAGE: "Prepare a dataset of the language that the extension brings.",
    _ALONE: "Add more recordings of the same speaker, or name the speakers in the source: clips without one share one.",
    _FEATURES: "Prepare the dataset again, under the same name: what is cached is kept. One that came in an archive is "
               "its own source: --source as-is.",
    _CHARACTERS: "Make a new tokenizer from this dataset, extend the model with it, and train that extension.",
    _LENGTH: "Cut the recordings into shorter ones, with their texts, and prepare them under another name.",
}


class _UtteranceReader:
    """Makes utterances of clips, and records which clips are left out, and why."""

    def __init__(self, tts: TTSModel, cache: FeatureCache, pack: FeaturePack) -> None:
        self._front_end, self._lm, self._cache, self._pack = tts.front_end, tts.lm, cache, pack
        self._left_out: dict[str, list[str]] = {}
        self._unknown = Counter[str]()

    def utterances(self, clips: Sequence[manifest.ManifestClip]) -> tuple[Utterance, ...]:
        """Those of the clips that can be used."""
        utterances = [self._utterance(clip) for clip in clips]
        return tuple(item for item in utterances if item is not None)

    def keep_language(self, clip: manifest.ManifestClip, targets: Sequence[str]) -> bool:
        """Whether the clip is in one of the languages `targets`; one that is not is recorded as left out."""
        if clip.language not in targets:
            self._leave_out(f"{_LANGUAGE}: not {','.join(targets)!r}", clip.id)
        return clip.language in targets

    def keep_disjoint(self, held_out: Sequence[manifest.ManifestClip], train: Sequence[manifest.ManifestClip],
                 disjoint_by: str) -> list[manifest.ManifestClip]:
        """Held-out clips that share no known source with a training clip, and with `speaker` no speaker either.

        The others are recorded as left out.
        """
        sources = {clip.source for clip in train if clip.source}
        speakers = {clip.speaker for clip in train} if disjoint_by == "speaker" else set()
        disjoint = []
        for clip in held_out:
            if clip.source in sources or clip.speaker in speakers:
                self._leave_out(f"{_SHARED}: the {'source' if clip.source in sources else 'speaker'}", clip.id)
            else:
                disjoint.append(clip)
        return disjoint

    def with_prompt_clips(self, clips: tuple[Utterance, ...]) -> tuple[Utterance, ...]:
        """The clips whose speaker has another clip, because the prompt must not be the target."""
        count: dict[str, int] = {}
        for item in clips:
            count[item.speaker] = count.get(item.speaker, 0) + 1
        for item in clips:
            if count[item.speaker] < 2:
                self._leave_out(_ALONE, item.id)
        return tuple(item for item in clips if count[item.speaker] > 1)

    def variants(self, dataset: PreparedDataset, train: Sequence[Utterance],
                 recipe: AugmentationRecipe) -> dict[str, tuple[Utterance, ...]]:
        """The augmented variants of the training clips, by clip id, if they have features and are not too long."""
        clips = {clip.id: clip for clip in dataset.clips}
        variant_keys: list[tuple[Utterance, str]] = []
        for item in train:
            variant_keys += [(item, key) for key, _ in recipe.of(clips[item.id].feature_key)]

        variants: dict[str, tuple[Utterance, ...]] = {}
        for item, key in variant_keys:
            features = self._features(key)
            if features is None:
                self._leave_out("no features", item.id)
                continue
            # A variant has the text of its clip and features of its own.
            variant = replace(item, speech_codes=features.speech_codes, conditioning=features.conditioning)
            if _fits(variant, self._lm):
                variants[item.id] = (*variants.get(item.id, ()), variant)
            else:
                self._leave_out("too long", item.id)
        if not variants:
            raise UserError(f"None of the {len(variant_keys)} variants of {dataset.card.name!r} can be used: they have "
                            "no features of this model, or are longer than it holds.",
                            f"{_HINTS[_FEATURES]} Or train with augmentation 0.")
        return variants

    def notes(self) -> tuple[str, ...]:
        """One line per reason, with the first few clips."""
        return tuple(
            (f"{len(ids)} variants are not used, because they {_VARIANTS[reason]}, of " if reason in _VARIANTS else
             f"{pluralize(len(ids), 'clip')} left out ({reason}): ")
            + f"{', '.join(ids[:5])}{' ...' if len(ids) > 5 else ''}."
            f"{self._characters() if reason == _CHARACTERS else ''}" for reason, ids in self._left_out.items()
        )

    def _characters(self) -> str:
        characters = ", ".join(f"{name!r} in {count}" for name, count in self._unknown.most_common(_SHOWN_CHARACTERS))
        return f" The characters, and how many texts have them: {characters}."

    def hint(self) -> str:
        """What to do about the most frequent reason."""
        if not self._left_out:
            return "Prepare it with a smaller held-out share, or mark some clips as train in the source."
        return _HINTS[max(self._left_out, key=lambda reason: len(self._left_out[reason])).partition(":")[0]]

    def _utterance(self, clip: manifest.ManifestClip) -> Utterance | None:
        features = self._features(clip.feature_key)
        if features is None:
            self._leave_out(_FEATURES, clip.id)
            return None
        try:
            item = make_utterance(clip.id, clip.text, clip.language, clip.speaker, features, self._front_end)
        except UserError:
            unknown = self._front_end.unknown_characters(clip.text, clip.language)
            if not unknown:
                raise
            self._leave_out(_CHARACTERS, clip.id)
            self._unknown.update(unknown)
            return None
        if not _fits(item, self._lm):
            limits = f"{self._lm.max_text_length} text ids or {self._lm.max_speech_length} codes"
            self._leave_out(f"{_LENGTH}: more than its {limits}", clip.id)
            return None
        return item

    def _features(self, sha256: str) -> Features | None:
        if sha256 in self._pack:
            return Features.of(self._pack.arrays(sha256))
        return Features.of(self._cache.load(sha256)) if self._cache.has(sha256) else None

    def _leave_out(self, reason: str, name: str) -> None:
        self._left_out.setdefault(reason, []).append(name)


def _fits(item: Utterance, lm: LanguageModel) -> bool:
    return len(item.text_ids) <= lm.max_text_length and len(item.speech_codes) <= lm.max_speech_length


def subset(data: TrainingData, max_clips: int) -> TrainingData:
    """A part of the data for a preflight: at most `max_clips` training clips, longest first, and a few held-out clips.

    Each training clip comes with another clip of its speaker, to prompt it.
    """
    longest_first = sorted(data.train, key=lambda item: -item.batch_clip.length)
    # A clip whose speaker is not chosen yet needs a second clip, as its prompt.
    chosen: list[Utterance] = []
    for item in longest_first:
        if len(chosen) >= max_clips:
            break
        same_speaker = [other for other in longest_first if other.speaker == item.speaker and other is not item]
        alone = not any(other.speaker == item.speaker for other in chosen)
        if all(item is not other for other in chosen) and len(chosen) + 1 + alone <= max_clips:
            chosen += [item, same_speaker[0]] if alone else [item]
    # Keep the first two held-out clips, and the first of each language.
    held_out = list[int]()
    seen_languages = set[str]()
    for index, item in enumerate(data.held_out):
        if index < 2 or item.language not in seen_languages:
            held_out.append(index)
        seen_languages.add(item.language)
    return replace(data, train=tuple(chosen), held_out=tuple(data.held_out[index] for index in held_out),
                   sentences=tuple(data.sentences[index] for index in held_out), full_data=data)


@dataclass(frozen=True)
class TrainBatch:
    """The samples of a batch, over all ranks."""

    samples: list[Sample]
    clip_ids: list[str]
    replayed: bool = False  # clips of base languages
    seeds: Sequence[int] = ()  # seeds of the input dropout, one per sample


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward and backward pass."""

    samples: list[Sample]
    seeds: Sequence[int]
    replayed: bool = False
    weight: float = 1.0  # factor of its losses; 0 if a sharded rank has no clip for a pass that all ranks take


class TrainLoader:
    """Endless batches of training clips, and in `full` of replayed clips; `world_size` ranks share each batch.

    Seed, epoch and clip decide which variant of a clip is used, so the samplers have the whole state of the loader.
    """

    def __init__(self, options: TrainOptions, data: TrainingData, replayed: Sequence[Utterance], lm: LanguageModel,
                 world_size: int = 1) -> None:
        self._options, self._data, self._replayed, self._lm = options, data, replayed, lm
        size = options.batches.batch_size * world_size
        replayed_size = min(round(options.full.replay * size), size - 1) if replayed and options.scope == "full" else 0
        self._sampler = LengthBucketedBatchSampler([item.batch_clip for item in data.train], size - replayed_size,
                                                   options.seed)
        # Every rank needs a clip of each batch.
        if self._sampler.smallest < world_size:
            raise UserError(f"A batch of {self._sampler.smallest} clips cannot be shared by {world_size} processes.",
                            "Use larger batches or fewer processes, or add recordings.")
        self._replay_sampler = LengthBucketedBatchSampler([item.batch_clip for item in replayed], replayed_size,
                                                          options.seed) if replayed_size else None

    def state_dict(self) -> tuple[SamplerState, SamplerState]:
        """The states of the two samplers: of the training clips, and of the replayed clips."""
        return (self._sampler.state_dict(),
                self._replay_sampler.state_dict() if self._replay_sampler else SamplerState())

    def load_state_dict(self, sampler: SamplerState, replay_sampler: SamplerState) -> None:
        """Continue from the states of the two samplers."""
        self._sampler.load_state_dict(sampler)
        if self._replay_sampler:
            self._replay_sampler.load_state_dict(replay_sampler)

    def next_batches(self) -> list[TrainBatch]:
        """The next batch; in `full` a second one of replayed clips, as a batch holds clips of similar length."""
        pairs, epoch = self._sampler.next_batch(), self._sampler.epoch
        targets = [choose_variant(self._data, pair.target, self._options, epoch) for pair in pairs]
        prompts = [self._data.train[pair.prompt] for pair in pairs]
        seed = f"conditioning/{self._options.seed}/{epoch}"
        batches = [TrainBatch([make_sample(target, prompt, self._lm, seed)
                               for target, prompt in zip(targets, prompts, strict=True)],
                              [target.id for target in targets])]
        if self._replay_sampler:
            # The replayed clips have epochs of their own.
            pairs = self._replay_sampler.next_batch()
            seed = f"conditioning/{self._options.seed}/{self._replay_sampler.epoch}"
            batches.append(TrainBatch(make_samples(pairs, self._replayed, self._lm, seed),
                                      [self._replayed[pair.target].id for pair in pairs], replayed=True))
        return batches

    def by_length(self) -> list[TargetPromptPair]:
        """The training clips from the shortest to the longest, each as its own prompt, to measure memory and time.

        They are the clips of the whole dataset, also in a preflight: it estimates the whole training.
        """
        lengths = [self._longest_variant(index).batch_clip.length for index in range(len(self._full_data.train))]
        return [TargetPromptPair(index, index) for index in sorted(range(len(lengths)), key=lengths.__getitem__)]

    def profiling_samples(self, pairs: Sequence[TargetPromptPair]) -> list[Sample]:
        """Samples of these clips, each of its longest variant."""
        return [make_sample(self._longest_variant(pair.target), self._full_data.train[pair.prompt], self._lm)
                for pair in pairs]

    @property
    def _full_data(self) -> TrainingData:
        return self._data.full_data or self._data

    def _longest_variant(self, index: int) -> Utterance:
        item = self._full_data.train[index]
        return max((item, *self._full_data.variants.get(item.id, ())), key=lambda variant: variant.batch_clip.length)


def split_microbatches(batches: Sequence[TrainBatch], micro_batch_size: int, rank: int = 0, world_size: int = 1, *,
                       same_count: bool = False) -> list[MicroBatch]:
    """The samples of `rank` among `world_size` ranks, in micro-batches of at most `micro_batch_size` clips.

    `same_count`: every rank gets the same number of micro-batches, as FSDP requires. A rank with fewer samples gets
    micro-batches of one clip at weight 0.
    """
    micro_batches = []
    for batch in batches:
        samples, seeds = batch.samples[rank::world_size], batch.seeds[rank::world_size]
        share = -(-len(batch.samples) // world_size) if same_count else len(samples)
        for start in range(0, share, micro_batch_size):
            end = start + micro_batch_size
            micro_batches.append(MicroBatch(samples[start:end], seeds[start:end], batch.replayed))

    # Ranks without samples repeat one of their clips at weight 0.
    filler = next((batch.samples[:1] for batch in micro_batches if batch.samples), [])
    return [batch if batch.samples else replace(batch, samples=filler, seeds=[0], weight=0.0)
            for batch in micro_batches]


def choose_variant(data: TrainingData, index: int, options: TrainOptions, epoch: int) -> Utterance:
    """The training clip `index` as it is used in `epoch`: itself, or one of its variants."""
    # The choice depends on seed, epoch and clip only, so a resumed run makes the same choice.
    item = data.train[index]
    variants = data.variants.get(item.id, ()) if options.data.augmentation else ()
    rng = random.Random(f"{options.seed}/{epoch}/{item.id}")
    return rng.choice(variants) if variants and rng.random() < options.data.augmentation else item
