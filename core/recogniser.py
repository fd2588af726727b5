"""Train the recogniser of a dataset: see `core.speech.dataset_recogniser`.

The time is limited, in processor time, to three minutes of two cores per hour of speech, and to two hours of speech.
Clips whose text has digits, whose words are not known then, or more letters than frames are not used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import torch

from config.errors import UserError
from config.languages import language_name
from config.schema import RecogniserOptions
from core import compute
from core.dataset.clip_index import ClipIndex
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize, progress_callback, stage
from core.library import dataset_recognisers
from core.library.dataset_recognisers import CLIPS, RECORD, TEXTS, WEIGHTS, DatasetRecogniserRecord
from core.model import tensor_files
from core.speech import dataset_recogniser
from core.speech.ctc_decoding import CharacterNGram, greedy
from core.speech.dataset_recogniser import LabelledClip
from core.speech.evaluation import spread_evenly
from core.text import text_rules
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from data.durable_files import atomic_directory, hash_file, write_json, write_text
from data.languages.words import scored_letters
from data.manifest import HELD_OUT, TRAIN, ManifestClip, PreparedDataset
from data.normalisers import TextNormaliser
from models.base import RecognitionScore
from models.phonetic_encoder import encoder as phonetic_encoder
from models.phonetic_encoder.ctc_head import CTCHeadConfig
from models.phonetic_encoder.encoder import SAMPLE_RATE, PhoneticEncoder

# Seconds of a CPU for an hour of speech, for features and training; 360 are promised.
CPU_SECONDS_PER_HOUR = 345.0
MAX_TRAIN_S = 7200.0  # seconds of speech
MAX_HELD_OUT = 200  # clips that are scored
EPOCHS = 12  # over an hour of speech; of less speech more, with the square root
_FEW_EPOCHS, _MANY_EPOCHS = 8, 30
_DOUBTFUL = 0.8  # CER of a clip whose text is probably another one
_SHOWN = 5


@dataclass(frozen=True)
class _Clip:
    """A clip, its text in scored letters, and its features."""

    clip: ManifestClip
    letters: str
    features: torch.Tensor


def run(options: RecogniserOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Train and store the recogniser of `datasets/NAME`; returns what it was trained on, and its held-out CER."""
    dataset = manifest.load(workspace.dataset(options.dataset))
    record = None if options.again else dataset_recognisers.find(workspace, options.dataset)
    state = "already there"
    if record is None:
        record = train(dataset, workspace, compute.setup_device(options.device), reporter, options.seed)
        state = "written"
    return {"state": state, **summarize(record)}


def summarize(record: DatasetRecogniserRecord) -> Result:
    """The record as the result of a job."""
    rates = record.held_out
    return {
        "dataset": record.dataset, "train_clips": record.train_clips, "train_minutes": record.train_minutes,
        "left_out": record.left_out, "held_out_clips": sum(rate.clips for rate in rates.values()),
        **{f"cer_{language}": round(rate.error, 4) for language, rate in rates.items()},
        **{f"cer_{language}_interval": f"{rate.low:.1%} to {rate.high:.1%}" for language, rate in rates.items()},
        "measures": ", ".join(record.languages) or "nothing", "cpu_seconds": record.cpu_seconds,
    }


def train(dataset: PreparedDataset, workspace: Workspace, device: torch.device, reporter: Reporter,
          seed: int = 0) -> DatasetRecogniserRecord:
    """Train the recogniser of `dataset` and store it in its folder."""
    start = time.process_time()
    train_clips, held_out_clips, left_out = _choose(dataset, workspace)
    seconds = sum(clip.duration_s for clip, _ in train_clips)
    budget = CPU_SECONDS_PER_HOUR * seconds / 3600

    with stage(reporter, "phonetic features"):
        encoder = PhoneticEncoder.load().to(device)
        training = _encode(encoder, dataset, train_clips, reporter)
        held_out = _encode(encoder, dataset, held_out_clips, reporter)

    texts = [clip.letters for clip in training]
    letters = tuple(sorted(set(chain.from_iterable(texts))))
    labels_of_texts = dataset_recogniser.encode_texts(texts, letters)
    labelled = [LabelledClip(clip.features, torch.tensor(labels))
                for clip, labels in zip(training, labels_of_texts, strict=True)]
    # CTC cannot learn from a clip that has more letters than frames.
    usable = [clip for clip in labelled if dataset_recogniser.fits(clip.labels, len(clip.features))]
    if not usable:
        raise UserError(f"The dataset {dataset.card.name!r} has no training clip that a recogniser could learn from: "
                        "each has digits in its text, or more letters than its sound has room for.",
                        "Give text rules that write out numbers (prepare --rules), or check texts and recordings.")
    left_out += len(labelled) - len(usable)

    # Encoding counts against the budget of CPU time, too.
    with stage(reporter, "train recogniser"):
        seconds_left = max(1.0, budget - (time.process_time() - start))
        epochs = min(_MANY_EPOCHS, max(_FEW_EPOCHS, round(EPOCHS * (3600 / seconds) ** 0.5)))
        trained = dataset_recogniser.train_head(usable, CTCHeadConfig(len(letters)), epochs, seconds_left, device, seed,
                                                progress_callback(reporter, "Stopped; the recogniser was not stored."))

    with stage(reporter, "held-out error"):
        texts = [clip.letters for clip in training]
        # The language model learns from the training texts alone, so held-out texts stay unseen.
        language_model = CharacterNGram(dataset_recogniser.encode_texts(texts, letters), len(letters))
        scores: dict[str, list[RecognitionScore]] = {}
        rows = []
        for clip in held_out:
            log_probs = trained.head.log_probabilities(clip.features).numpy()
            score = RecognitionScore.of(clip.letters, dataset_recogniser.decode(log_probs, letters, language_model))
            scores.setdefault(clip.clip.language, []).append(score)
            rows.append(_row(clip, score))
            check_stop(reporter)

        # Training clips are read without the language model, which has learned their texts.
        for clip in training:
            labels = greedy(trained.head.log_probabilities(clip.features).numpy())
            rows.append(_row(clip, RecognitionScore.of(clip.letters, "".join(letters[label - 1] for label in labels))))

    # An older recogniser of this dataset is replaced.
    folder = dataset.folder / dataset_recognisers.FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    with atomic_directory(folder) as temporary:
        tensor_files.write(temporary / WEIGHTS,
                           {name: value.half() for name, value in trained.head.state_dict().items()})
        write_text(temporary / TEXTS, "".join(f"{text}\n" for text in texts))
        write_text(temporary / CLIPS, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        record = DatasetRecogniserRecord(
            dataset.card.name, dataset.card.fingerprint, _encoder_hash(),
            {name: hash_file(temporary / name) for name in (WEIGHTS, TEXTS)}, letters, len(usable),
            round(seconds / 60, 2), left_out, round(trained.epochs, 1), round(time.process_time() - start, 1),
            {language: dataset_recogniser.held_out_error(scores_of_language)
             for language, scores_of_language in scores.items()})
        write_json(temporary / RECORD, asdict(record))
    _report(record, dataset, rows, reporter)
    return record


def _choose(dataset: PreparedDataset,
            workspace: Workspace) -> tuple[list[tuple[ManifestClip, str]], list[tuple[ManifestClip, str]], int]:
    """Clips to train on and held-out clips, each with its letters; and how many training clips are left out."""
    readings = _readings(dataset, workspace)

    def spell(clips: Sequence[ManifestClip]) -> list[tuple[ManifestClip, str]]:
        spelled = [(clip, scored_letters(readings[clip.language].verbalize(clip.text))) for clip in clips]
        return [(clip, letters) for clip, letters in spelled if letters and not any(map(str.isdigit, letters))]

    train_clips = dataset.split(TRAIN)
    spelled = spell(train_clips)
    total = sum(clip.duration_s for clip, _ in spelled)
    # At most two hours of speech are used, spread over the whole dataset.
    if total > MAX_TRAIN_S:
        spelled = spread_evenly(spelled, int(len(spelled) * MAX_TRAIN_S / total))
    if not spelled:
        raise UserError(f"The dataset {dataset.card.name!r} has no training clip with a text of letters alone.",
                        "Give text rules that write out numbers (prepare --rules).")
    return spelled, spread_evenly(spell(dataset.split(HELD_OUT)), MAX_HELD_OUT), len(train_clips) - len(spelled)


def _readings(dataset: PreparedDataset, workspace: Workspace) -> Mapping[str, TextNormaliser]:
    """By language, how texts are read: as the dataset was prepared, else as they stand."""
    names = dict.fromkeys(dataset.card.languages, ("", "generic"))
    if ClipIndex.exists(workspace, dataset.card.fingerprint):
        names = ClipIndex.readings(workspace, dataset.card)
    return {language: text_rules.reading(workspace, rules, language, normaliser)
            for language, (rules, normaliser) in names.items()}


def _encode(encoder: PhoneticEncoder, dataset: PreparedDataset, clips: Sequence[tuple[ManifestClip, str]],
            reporter: Reporter) -> list[_Clip]:
    encoded = []
    for number, (clip, letters) in enumerate(clips, 1):
        check_stop(reporter, "Stopped; the recogniser was not stored.")
        try:
            waveform = audio.load(dataset.audio_path(clip), SAMPLE_RATE)
        except UserError as error:
            reporter.emit(WarningRaised(f"{clip.id} is not used for the recogniser: {error.message}"))
            continue
        encoded.append(_Clip(clip, letters, dataset_recogniser.encode_clip(encoder, waveform)))
        reporter.emit(Progress(number, len(clips), "clips", clip.id))
    return encoded


def _row(clip: _Clip, score: RecognitionScore) -> dict[str, object]:
    return {"id": clip.clip.id, "split": clip.clip.split, "edits": score.edits, "letters": len(score.reference),
            "transcript": score.transcript}


def _encoder_hash() -> str:
    digest = hashlib.sha256()
    for name in phonetic_encoder.FILES:
        digest.update(hash_file(phonetic_encoder.FOLDER / name).encode())
    return digest.hexdigest()


def _report(record: DatasetRecogniserRecord, dataset: PreparedDataset, rows: Sequence[dict[str, object]],
            reporter: Reporter) -> None:
    """Say what it can measure, and name clips that it reads as something else than their text."""
    for language in dataset.card.languages:
        reason = dataset_recognisers.unmeasured_reason(record, language)
        if reason:
            reporter.emit(WarningRaised(f"{language_name(language)} is not measured: {reason}."))
        else:
            rate = record.held_out[language]
            reporter.emit(Plan((f"{language_name(language)} is measured by "
                                f"{dataset_recognisers.describe(record, language)}; 95% interval {rate.low:.1%} to "
                                f"{rate.high:.1%} over {pluralize(rate.clips, 'clip')}.",)))
    if not record.languages:
        return
    doubtful = sorted((row for row in rows if int(str(row["edits"])) > _DOUBTFUL * int(str(row["letters"]))),
                      key=lambda row: str(row["id"]))
    if doubtful:
        names = ", ".join(str(row["id"]) for row in doubtful[:_SHOWN]) + (" ..." if len(doubtful) > _SHOWN else "")
        reporter.emit(WarningRaised(f"The recogniser reads {pluralize(len(doubtful), 'clip')} as something else than "
                                    f"the text ({names}): listen to them. {CLIPS} has its readings."))
