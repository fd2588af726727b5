"""Import a dataset (`core.dataset.importing`) and cache its features.

Features are extracted from several recordings of like length at once and cached recording by
recording, so an interrupted preparation goes on where it was. Variants of the training clips
(`data.augmentation`) are made and cached the same way, because training opens no audio.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from config.errors import UserError
from config.schema import PrepareOptions
from core import compute
from core.dataset import languages, measuring, token_fit
from core.dataset.clip_index import ClipIndex
from core.dataset.importing import import_dataset
from core.dataset.languages import named
from core.dataset.lengths import tell_of_long, too_long
from core.dataset.token_fit import NO_TOKENIZER, TokenFit
from core.jobs.events import Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library.catalog import family_of
from core.text import text_rules
from core.workspace import Workspace
from data import audio, augmentation
from data.augmentation import Recipe, Variant
from data.features import FeatureCache
from data.front_end import FrontEnd
from data.manifest import TRAIN, Clip, Dataset
from data.normalise import for_language
from models.base import Extractor, Features
from models.registry import family

_BATCH_S, _BATCH_CLIPS = 120.0, 32  # most sound, in seconds with padding, and most clips that are extracted together


def run(options: PrepareOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `datasets/NAME` and its features; hands back the counts."""
    model_folder = workspace.model(options.model)
    with stage(reporter, "import"):
        front_end = family(family_of(workspace, options.model)).front_end(model_folder)
        _tell_known(options, front_end, reporter)
        dataset, state, report = import_dataset(options, front_end.style, workspace, reporter)
    with stage(reporter, "features"):
        extractor = family(family_of(workspace, options.model)).extractor(model_folder, compute.prepare(options.device))
        failed = extract_features(dataset, extractor, workspace, reporter, _recipe(options, dataset, reporter))
        longest = family(family_of(workspace, options.model)).longest_speech(model_folder)
        long = tell_of_long(dataset, FeatureCache(workspace.cache, extractor.fingerprint), longest, reporter)
    with stage(reporter, "measure"):
        found, fits = _index(options, workspace, dataset, front_end, extractor, reporter)
    speakers = ClipIndex(workspace, dataset.card.fingerprint).speakers(0)
    return {
        "dataset": options.dataset, "state": state, "clips": len(dataset.clips),
        "train": dataset.card.train_clips, "held_out": dataset.card.held_out_clips,
        "minutes": round(dataset.card.duration_s / 60, 2), "read_as": report.form,
        "left_out": len(report.errors), "warnings": len(report.warnings),
        "features": len(dataset.clips) - failed, "features_failed": failed,
        "too_long": long, "text_too_long": len(fits.too_long), "text_unknown": len(fits.unknown),
        "clips_with_findings": found, "speakers": speakers.count, "speakers_with_one_clip": speakers.alone,
        "folder": str(dataset.folder),
    }


def _tell_known(options: PrepareOptions, front_end: FrontEnd, reporter: Reporter) -> None:
    """Say what recordings in a language of the base are good for; it reads their texts as it always did."""
    if options.language not in front_end.base_languages:
        languages.tell_doubt(options.language, reporter)
        return
    known = f"The model {options.model!r} speaks {named(options.language)} already"
    if options.rules:
        raise UserError(f"{known} and reads it in its own way: the text rules {options.rules!r} do not apply.",
                        "Leave the text rules out, or give the code of the language that is to be added.")
    reporter.emit(WarningRaised(
        f"{known}, and nothing of it may change: these recordings are not for training on. A training in scope `full` "
        f"can rehearse them and measure its drift by them (--replay-datasets {options.dataset}). If they are in "
        "another language, prepare them under another name with its code."))


def _fits(options: PrepareOptions, workspace: Workspace, dataset: Dataset, front_end: FrontEnd, longest: int,
          reporter: Reporter) -> TokenFit:
    """How the texts fit the tokenizer that will read them: the base's own, or the newest of the new language."""
    if options.language in front_end.base_languages:
        if missing := front_end.unready(options.language):
            reporter.emit(WarningRaised(f"The texts could not be counted, and cannot be rehearsed yet: {missing}"))
            return NO_TOKENIZER
        return token_fit.fit_own(dataset.clips, front_end, longest)
    tokenizer = token_fit.newest_tokenizer(workspace, front_end, options.language)
    return token_fit.fit(dataset.clips, workspace, tokenizer, longest) if tokenizer else NO_TOKENIZER


def _index(options: PrepareOptions, workspace: Workspace, dataset: Dataset, front_end: FrontEnd, extractor: Extractor,
           reporter: Reporter) -> tuple[int, TokenFit]:
    """Measure the recordings and sort the clips for review; how many have findings, and how texts fit a tokenizer."""
    chosen, folder = family(family_of(workspace, options.model)), workspace.model(options.model)
    longest = chosen.longest_speech(folder)
    over = {clip.id: f"{codes} codes of speech, the model holds {longest}"
            for clip, codes in too_long(dataset, FeatureCache(workspace.cache, extractor.fingerprint), longest)}
    reading = text_rules.reading(workspace, options.rules, options.language,
                                 for_language(options.language, front_end.style))
    longest_text = chosen.longest_text(folder) - 3  # start, tag and stop
    fits = _fits(options, workspace, dataset, front_end, longest_text, reporter)
    token_fit.tell(fits, reporter)
    return measuring.index(dataset, workspace, reporter, reading, options.rules, longest_text, over, fits), fits


def features_of(clip: Clip, cache: FeatureCache) -> Features:
    """The cached features of a clip."""
    return Features(**cache.load(clip.sha256))


def _recipe(options: PrepareOptions, dataset: Dataset, reporter: Reporter) -> Recipe | None:
    """The variants that were asked for, else those that the dataset was prepared with before."""
    before = augmentation.load(dataset.folder)
    if options.variants == 0:
        return before
    asked = Recipe(options.variants, options.variant_speed, options.variant_pitch, options.variant_noise, options.seed)
    if before not in (None, asked):
        reporter.emit(WarningRaised(f"The dataset's variants become others: {asked}; they were {before}. Those stay in "
                                    f"the "
                             "cache, and a run that learned from them goes on when they are asked for again."))
    return asked


def extract_features(dataset: Dataset, extractor: Extractor, workspace: Workspace, reporter: Reporter,
                     recipe: Recipe | None = None) -> int:
    """Cache the features of every clip that has none yet; the number of clips that failed, each named in a warning.

    With a `recipe` the variants of the training clips are cached as well.
    """
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    failed = _extract(_Wanted(dataset, cache), extractor, reporter, "clips")
    if failed == len(dataset.clips):
        raise UserError(f"None of the {failed} clips gave features.", "The warnings above name the reason of each.")
    keys: Iterator[str] = (clip.sha256 for clip in dataset.clips)
    if recipe is not None:
        varied = _Wanted(dataset, cache, recipe)
        _extract(varied, extractor, reporter, "variants")
        augmentation.save(dataset.folder, recipe)
        keys = chain(keys, (take.key for clip in dataset.clips for take in varied.of(clip)))
    cache.save_pack(dataset.card.fingerprint, keys)
    return failed


@dataclass(frozen=True)
class _Take:
    """A recording as it is, or a variant of it, and its key in the cache."""

    name: str
    clip: Clip
    key: str
    variant: Variant | None = None

    def load(self, dataset: Dataset, sample_rate: int) -> torch.Tensor:
        """Waveform (S,) at `sample_rate` Hz."""
        waveform = audio.load(dataset.audio_path(self.clip), sample_rate)
        if self.variant is None:
            return waveform
        return torch.from_numpy(augmentation.apply(waveform.numpy(), sample_rate, self.variant, self.key))


@dataclass(frozen=True)
class _Wanted:
    """The recordings of a dataset, or with a recipe the variants of those that are trained on and have features."""

    dataset: Dataset
    cache: FeatureCache
    recipe: Recipe | None = None

    def of(self, clip: Clip) -> list[_Take]:
        """The takes of one clip."""
        if self.recipe is None:
            return [_Take(clip.id, clip, clip.sha256)]
        if clip.split != TRAIN or not self.cache.has(clip.sha256):
            return []
        return [_Take(f"{clip.id}, variant {number}", clip, key, variant)
                for number, (key, variant) in enumerate(self.recipe.of(clip.sha256), 1)]


def _extract(wanted: _Wanted, extractor: Extractor, reporter: Reporter, unit: str) -> int:
    """Cache the features of the takes that have none; how many failed."""
    total, waiting = _waiting(wanted)
    done, failed = total - len(waiting), 0
    if done:
        reporter.emit(Progress(done, total, unit, "cached before"))
    for batch in _batches(wanted, waiting):
        check_stop(reporter, f"Stopped after {done} of {total} {unit}; they are kept.")
        found = _extracted(batch, wanted.dataset, extractor, reporter)
        for take, features in found:
            wanted.cache.save(take.key, vars(features))
        failed += len(batch) - len(found)
        done += len(batch)
        reporter.emit(Progress(done, total, unit, batch[-1].name))
    return failed


def _waiting(wanted: _Wanted) -> tuple[int, np.ndarray]:
    """How many takes there are; and (W, 2) numbers of clip and take of those without features, the longest first."""
    total = 0
    found, seconds = array("i"), array("f")
    for at, clip in enumerate(wanted.dataset.clips):
        for number, take in enumerate(wanted.of(clip)):
            total += 1
            if not wanted.cache.has(take.key):
                found.extend((at, number))
                seconds.append(clip.duration_s)
    order = np.argsort(-np.array(seconds), kind="stable")
    return total, np.array(found, dtype=np.int32).reshape(-1, 2)[order]


def _batches(wanted: _Wanted, waiting: np.ndarray) -> Iterator[list[_Take]]:
    """Clips of like length together, the longest first: memory that will not suffice shows at the start."""
    batch: list[_Take] = []
    room = 0
    for at, number in waiting:
        take = wanted.of(wanted.dataset.clips[at])[number]
        if room == 0 and batch:
            yield batch
            batch = []
        if not batch:
            room = max(1, min(_BATCH_CLIPS, int(_BATCH_S / max(take.clip.duration_s, 0.1))))
        batch.append(take)
        room -= 1
    if batch:
        yield batch


def _extracted(batch: Sequence[_Take], dataset: Dataset, extractor: Extractor,
               reporter: Reporter) -> list[tuple[_Take, Features]]:
    """The clips of `batch` with their features; each that gives none is named in a warning."""
    heard: list[tuple[_Take, torch.Tensor]] = []
    for take in batch:
        try:
            heard.append((take, take.load(dataset, extractor.sample_rate)))
        except UserError as error:
            reporter.emit(WarningRaised(f"{take.name} has no features: {error.message}"))
    try:
        made = extractor.extract_many([waveform for _, waveform in heard]) if heard else []
        return [(take, features) for (take, _), features in zip(heard, made, strict=True)]
    except (UserError, torch.OutOfMemoryError):
        return _one_by_one(heard, extractor, reporter)


def _one_by_one(heard: Sequence[tuple[_Take, torch.Tensor]], extractor: Extractor,
                reporter: Reporter) -> list[tuple[_Take, Features]]:
    """After a batch failed: what each clip gives, so that the bad one is named and the others are kept."""
    found = []
    for take, waveform in heard:
        try:
            found.append((take, extractor.extract(waveform)))
        except (UserError, torch.OutOfMemoryError) as error:
            reason = error.message if isinstance(error, UserError) else "it does not fit in the memory of the device."
            reporter.emit(WarningRaised(f"{take.name} has no features: {reason}"))
    return found
