"""Clips of the base languages: drift clips, on which drift is measured, and clips that scope `full` replays.

They are prepared recordings, clips that come with the model, or sentences that the base synthesizes before the first
step. The last are stored in the run's folder, because a resumed run no longer has the base's weights. Of the last two
kinds every second clip is a drift clip and is never trained on, so drift is not measured on replayed clips. A model
without clips is probed with sentences of its languages over `LanguageModel.probe_features`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from config import confinement, foreign
from config.errors import UserError
from config.schema import FullOptions, TrainOptions
from core.dataset import languages
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.model import tensor_files
from core.model.loading import TTSModel
from core.training.dataloader import Utterance, make_sample, make_utterance, nearest_speaker
from core.training.weight_regularization import swap_weights
from core.workspace import Workspace
from data import manifest
from data.feature_cache import FeatureCache, FeaturePack
from data.front_end import probe_sentences
from data.manifest import HELD_OUT, TEST, ManifestClip, PreparedDataset
from models.base import Features, LanguageModel, Sample, Voice

SPOKEN_CLIPS = "spoken"  # name of two files in the run's folder, .json and .safetensors
_BATCH = 16  # sentences synthesized together
_PROBES = 16  # sentences over generated features, shared by the base languages


@dataclass(frozen=True)
class Replay:
    """Base-language clips by use."""

    replayed: tuple[Utterance, ...]
    drift_clips: tuple[Utterance, ...]


@dataclass(frozen=True)
class ProbeSample:
    """One teacher-forced sample of a base language."""

    language: str
    text: str
    sample: Sample


def load(tts: TTSModel, voices: Mapping[str, Voice]) -> Replay:
    """The clips that come with the base of `tts`; the speaker of a clip is the most similar voice of the model."""
    clips: list[Utterance] = []
    for index, (language, text, features) in enumerate(tts.family.load_replay_clips(tts.base_folder)):
        if language in tts.front_end.base_languages:
            speaker = f"{language} {_nearest_voice(features, voices, tts.lm)}"
            clips.append(make_utterance(f"replay-{index}", text, language, speaker, features, tts.front_end))
    return split_clips(clips) if clips else Replay((), _probe_clips(tts, voices))


def split_clips(clips: Sequence[Utterance]) -> Replay:
    """Every second clip of a language becomes a drift clip, the others are replayed."""
    drift_clips: list[Utterance] = []
    replayed: list[Utterance] = []
    for language in dict.fromkeys(item.language for item in clips):
        of_language = [item for item in clips if item.language == language]
        drift_clips += of_language[::2]
        replayed += of_language[1::2]
    return Replay(with_prompt_clips(replayed), tuple(drift_clips))


def probes(clips: Sequence[Utterance], lm: LanguageModel) -> list[ProbeSample]:
    """A sample of each drift clip, prompted by the clip of its language with the most similar voice."""
    samples = []
    for item in clips:
        candidates = [other for other in clips if other is not item and other.language == item.language]
        prompt = nearest_speaker(item, candidates or [item], lm)
        samples.append(ProbeSample(item.language, item.text, make_sample(item, prompt, lm)))
    return samples


def _probe_clips(tts: TTSModel, voices: Mapping[str, Voice]) -> tuple[Utterance, ...]:
    """Sentences of each base language over the same features; those that cannot be read or are too long are left out.

    A model of many languages gets one sentence of each, a model of few languages several.
    """
    features = tts.lm.probe_features(next(iter(voices.values()), None))
    base_languages, clips = tts.front_end.base_languages, list[Utterance]()
    per_language = max(1, _PROBES // len(base_languages))
    for language, text in probe_sentences(tts.base_folder)[1]:
        number = sum(clip.language == language for clip in clips)
        if language in base_languages and number < per_language:
            with suppress(UserError):  # a package for the language is missing: `reason_not_probed`
                name = f"probe-{language}" + (f"-{number}" if number else "")
                clip = make_utterance(name, text, language, "", features, tts.front_end)
                if len(clip.text_ids) <= tts.lm.max_text_length:
                    clips.append(clip)
    return tuple(clips)


def reason_not_probed(tts: TTSModel, language: str) -> str:
    """Why the probes of `tts` have no sample of a base language."""
    if tts.family.load_replay_clips(tts.base_folder):
        return "no clip of it comes with the model"
    sentences = [text for code, text in probe_sentences(tts.base_folder)[1] if code == language]
    try:
        for text in sentences:
            tts.front_end.encode(text, language)
    except UserError as error:
        return error.message.rstrip(".")
    return "its sample sentences are longer than the model reads" if sentences else "there is no sample sentence of it"


def _nearest_voice(features: Features, voices: Mapping[str, Voice], lm: LanguageModel) -> str:
    embedding = lm.speaker_embedding(features.conditioning)
    return max(voices, key=lambda name: float(embedding @ lm.speaker_embedding(voices[name].conditioning)), default="")


def with_prompt_clips(clips: Sequence[Utterance]) -> tuple[Utterance, ...]:
    """The clips whose speaker has another clip, to prompt them."""
    speakers = [item.speaker for item in clips]
    return tuple(item for item in clips if speakers.count(item.speaker) > 1)


def gather_replay_clips(options: TrainOptions, workspace: Workspace, tts: TTSModel, voices: Mapping[str, Voice],
                        run_dir: Path, warn: Callable[[str], None], progress: ProgressCallback = no_progress,
                        max_sentences: int | None = None) -> Replay:
    """The clips to replay and to measure drift on; none outside of scope `full`. `progress` may stop the synthesis.

    The first available source counts: `replay_datasets`, `replay_texts`, clips that come with the model.
    `max_sentences`: for a preflight, synthesize at most so many, and use them even if they do not reach a stop token.
    """
    if options.scope != "full":
        return Replay((), ())
    # The user's choice goes before clips of the model, and these before synthesis, which takes time.
    if options.full.replay_datasets.strip():
        replay_clips = _from_datasets(options.full, workspace, tts, warn)
    elif tts.family.load_replay_clips(tts.base_folder) and not options.full.replay_texts.strip():
        replay_clips = load(tts, voices)
    elif voices:
        replay_clips = split_clips(_synthesized_clips(options, tts, voices, run_dir, warn, progress, max_sentences))
    else:
        warn("The base model has neither clips nor a voice to synthesize them with: nothing is replayed.")
        return Replay((), ())

    # Without clips the base may drift unseen.
    if options.full.replay > 0 and not replay_clips.replayed:
        warn("There are no clips of base languages to replay: replay is off, expect more drift.")
    if not replay_clips.drift_clips:
        warn("There are no clips to measure the drift of the base languages on. Prepare the recordings to replay with "
             "a held-out share.")
    return replay_clips


def _from_datasets(options: FullOptions, workspace: Workspace, tts: TTSModel,
                   warn: Callable[[str], None]) -> Replay:
    """The prepared datasets of base languages: training clips are replayed, held-out ones are drift clips."""
    replayed: list[Utterance] = []
    drift_clips: list[Utterance] = []
    left_out = Counter[str]()
    for name in languages.split_names(options.replay_datasets):
        dataset = manifest.load(workspace.dataset(name))
        for language in dataset.card.languages:
            languages.check_replayed(name, language, tts.front_end.base_languages)
            fault = tts.front_end.unready(language)
            if fault:
                raise UserError(f"The texts of the dataset {name!r} cannot be read: {fault}",
                                "Install what is missing, or leave the dataset out of those to replay.")

        # Test clips are never used in a training.
        cache = FeatureCache(workspace.cache, tts.family.extractor_fingerprint(tts.base_folder))
        pack = cache.load_pack(dataset.card.fingerprint)
        for clip in dataset.clips:
            if clip.split == TEST:
                continue
            item = _usable_clip(clip, dataset, tts, cache, pack)
            if isinstance(item, str):
                left_out[item] += 1
            else:
                (drift_clips if clip.split == HELD_OUT else replayed).append(item)

    # A clip is prompted by another clip of its speaker.
    prompted = with_prompt_clips(replayed)
    alone = len(replayed) - len(prompted)
    if alone:
        left_out["are the only one of their speaker, which leaves none to prompt them"] = alone
    if left_out:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items())
        warn(f"Clips of {options.replay_datasets.strip()} that are not used: {reasons}.")
    return Replay(prompted, tuple(drift_clips))


def _usable_clip(clip: ManifestClip, dataset: PreparedDataset, tts: TTSModel, cache: FeatureCache,
                 pack: FeaturePack) -> Utterance | str:
    """The clip as the model sees it, or why it cannot be used, as the end of a sentence on it."""
    language, front_end, model = clip.language, tts.front_end, tts.lm
    if language not in dataset.card.languages:
        return f"are not in {dataset.card.language!r}"
    key = clip.feature_key
    if key not in pack and not cache.has(key):
        return f"have no features of this model: prepare them again with --model {tts.origin.model}"
    arrays = pack.arrays(key) if key in pack else cache.load(key)
    try:
        item = make_utterance(clip.id, clip.text, language, f"{dataset.card.name} {clip.speaker}", Features.of(arrays),
                             front_end)
    except UserError:
        if not front_end.unknown_characters(clip.text, language):
            raise
        return "have characters that the model does not know, such as digits: spell them out"
    fits = len(item.text_ids) <= model.max_text_length and len(item.speech_codes) <= model.max_speech_length
    return item if fits else "are longer than the model takes"


def sentences(options: FullOptions, tts: TTSModel) -> list[tuple[str, str]]:
    """Language and text of the sentences to synthesize: those of the user's file, or those that come with the app."""
    if not options.replay_texts.strip():
        pairs = list(probe_sentences(tts.base_folder)[1])
    else:
        path = confinement.open_path(options.replay_texts)
        pairs = []
        for number, line in enumerate(foreign.read_text(path).splitlines(), 1):
            language, tab, text = line.partition("\t")
            if line.strip() and (not tab or language not in tts.front_end.base_languages or not text.strip()):
                raise UserError(f"Line {number} of {path} is not a base language, a tab and a sentence: {line[:60]!r}.",
                                f"The base model's languages: {', '.join(tts.front_end.base_languages)}.")
            pairs += [(language, text.strip())] if line.strip() else []
    return [(language, text) for language, text in pairs if language in tts.front_end.base_languages]


def _synthesized_clips(options: TrainOptions, tts: TTSModel, voices: Mapping[str, Voice], run_dir: Path,
                       warn: Callable[[str], None], progress: ProgressCallback,
                       max_sentences: int | None) -> list[Utterance]:
    """The clips that the base synthesized for this run; they are synthesized now if they are not there."""
    texts, codes = run_dir / f"{SPOKEN_CLIPS}.json", run_dir / f"{SPOKEN_CLIPS}.safetensors"
    if not texts.is_file():
        if tts.changed and (not tts.base_values or checkpoint_steps(run_dir)):
            raise UserError(f"{texts} is missing: the sentences that the base synthesized for this run.",
                            f"Restore it, or start a new run from its weights: --init-from run:{run_dir.name}.")
        # After a warm start the weights differ from the base's, which must speak here.
        tensors = {**dict(tts.lm.module.named_buffers()), **dict(tts.lm.module.named_parameters())}
        with swap_weights({name: tensors[name] for name in tts.base_values}, tts.base_values):
            synthesized = _synthesize(options, tts, voices, warn, progress, max_sentences)
        tensor_files.write(codes, {str(index): torch.from_numpy(item.astype(np.int32))
                                   for index, (*_, item) in enumerate(synthesized)})
        texts.write_text(json.dumps([part[:3] for part in synthesized], ensure_ascii=False), encoding="utf-8")

    # A resumed run reads what the first attempt synthesized.
    rows = foreign.read_json(texts)
    stored = tensor_files.read(codes, "Delete it and its .json, and start a new run.")
    utterances = []
    for index, (language, text, name) in enumerate(rows):
        features = Features(stored[str(index)].numpy().astype(np.uint16), voices[name].conditioning)
        utterances.append(make_utterance(f"spoken-{index}", text, language, f"{language} {name}", features,
                                         tts.front_end))
    return utterances


def _synthesize(options: TrainOptions, tts: TTSModel, voices: Mapping[str, Voice], warn: Callable[[str], None],
                progress: ProgressCallback, max_sentences: int | None) -> list[tuple[str, str, str, np.ndarray]]:
    """Language, text, voice and codes of the sentences that the base synthesized to their end."""
    texts_to_speak, names = sentences(options.full, tts), list(voices)
    # Two sentences in a row have the same voice, because a clip is prompted by another one of its speaker.
    readable: list[tuple[str, str, str, np.ndarray]] = []
    for index, (language, text) in enumerate(texts_to_speak):
        name = names[index // 2 % len(names)]
        with suppress(UserError):  # a package for its text is missing; the plan names the measured languages
            readable.append((language, text, name, tts.front_end.encode(text, language)))
    # One language and one voice: of few sentences in several none would have a clip to prompt it.
    if max_sentences is not None:
        readable = [(language, text, names[0], ids) for language, text, _, ids in readable
                    if language == readable[0][0]][:max_sentences]

    # Keep the sentences that end by themselves; in a preflight all of them.
    sampling = replace(tts.sampling, seed=options.seed)
    completed: list[tuple[str, str, str, np.ndarray]] = []
    base = replace(tts, adapters=None)
    try:
        with tts.adapters.enabled(False) if tts.adapters else nullcontext():
            prepared = {name: tts.lm.prepare(reference) for name, reference in voices.items()}
            for start in range(0, len(readable), _BATCH):
                progress(Progress(start, len(readable), "sentences", "spoken by the base, for replay"))
                part = readable[start:start + _BATCH]
                speakers = [prepared[name] for _, _, name, _ in part]
                texts, languages = [ids for *_, ids in part], [language for language, *_ in part]
                outputs = base.generate(texts, languages, speakers, sampling)
                completed += [(language, text, name, output.codes)
                              for (language, text, name, _), output in zip(part, outputs, strict=True)
                              if len(output.codes) and (output.finish_reason == "stop" or max_sentences is not None)]
    finally:
        tts.lm.free_buffers()
    if max_sentences is None:
        left_out = len(texts_to_speak) - len(completed)
        warn(f"The base model spoke {len(completed)} of {len(texts_to_speak)} sentences for replay and drift"
             + (f"; {left_out} could not be read, or did not end." if left_out else "."))
    return completed
