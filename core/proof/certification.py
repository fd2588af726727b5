"""The computation of a certificate: a checkpoint is loaded from its files and compared with the base.

Only one input comes from the training process: the hash of the frozen tensors that the trainer wrote into the
checkpoint. Probes are teacher-forced samples of every base language, on which nothing was trained.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import random
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from config import foreign
from config.errors import UserError
from config.languages import language_name
from core import compute
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.library import catalog, certificate, published, records, verification, workspace_key
from core.library.certificate import BaseIdentity, Certificate, CertificateCheck, CheckOutcome, LanguageCER
from core.library.records import CheckpointRecord, ExportRecord
from core.model.loading import (
    TTSModel,
    check_checkpoint,
    load_checkpoint,
    load_export,
    load_extension,
    load_merged,
    model_before,
    plain_tensors,
)
from core.model.prefix import base_tensors, hash_tensors, is_of_earlier_training, rows_name
from core.sources import recognisers
from core.speech import evaluation
from core.speech.evaluation import CorpusScore, EvaluatedSentence, PreparedVoices, SpeechEvaluator
from core.speech.scoring import load_recogniser_or_warn, measured_by, unmeasured_reason
from core.training import replay
from core.training.dataloader import Utterance, make_utterance
from core.training.replay import ProbeSample
from core.workspace import Workspace
from data import manifest
from data.durable_files import (
    ExpectedFile,
    append_text,
    find_faults,
    hash_file,
    hash_tree,
    read_sums,
    write_bytes,
)
from data.manifest import HELD_OUT, HeldOutSentence
from models.base import Family, Generated, RecognitionScore, Sample, SampleLogits
from models.registry import family as family_named

SENTENCES = 40  # synthesized and scored in each language
_EARLIER_SENTENCES = 16  # probed in each language of an earlier training
PROGRESS_UNIT = "sentences"
_CHANGED_IN_MEMORY = "; the base's own tensors were changed in memory since they were loaded"
SELECTION_NOTE = " on the sentences that selected the checkpoint"


def _drop_warning(message: str) -> None:
    """Drop a warning."""


@dataclass(frozen=True)
class CertificateInputs:
    """Everything a certificate is computed from: both models, and the sentences that both synthesize."""

    base: TTSModel
    finetuned: TTSModel
    record: CheckpointRecord
    probes: list[ProbeSample]
    evaluator: SpeechEvaluator
    # Sentences by language, with the model to compare with.
    sentences: Mapping[str, tuple[TTSModel, list[HeldOutSentence]]]
    missing: Mapping[str, list[str]]  # languages that cannot be scored, by reason
    score_cache: ScoreCache
    input_hash: str = ""
    base_files: tuple[BaseIdentity, str] = ("not compared", "")  # see `Certificate`, with the note
    # The check of an export; a checkpoint uses the base's own files.
    codec_check: CertificateCheck | None = None

    @property
    def size(self) -> int:
        """Sentences to synthesize, recordings to score and probes to compare, if the base languages are unchanged."""
        counts = _sentence_counts(self, self.probed)
        return len(self.probes) + counts["decoded"] + counts["recordings"]

    @property
    def of_export(self) -> bool:
        """Whether an export is certified without its run."""
        return self.codec_check is not None

    @property
    def probed(self) -> set[str]:
        """Languages whose results may be bit-identical to the base's; the probes show whether they are."""
        return {item.language for item in self.probes} if self.finetuned.scope != "full" else set()


def compute_certificate(inputs: CertificateInputs, progress: ProgressCallback = no_progress) -> Certificate:
    """Compute the certificate; `progress` gets one count over all sentences and probes, and the time left."""
    work = CertificateProgress(progress)
    unchanged = inputs.probed
    work.plan(compared=len(inputs.probes), **_sentence_counts(inputs, unchanged))

    # The files are compared first, because that decides which error rates can be reused.
    record = inputs.record
    actual = inputs.finetuned.front_end.fingerprint
    with compute.deterministic():
        logits_check = _logits_check(inputs, work)
    proofs = (*_tensor_checks(inputs), logits_check, _tokens_check(inputs))
    codec_check = inputs.codec_check or base_codec_check(inputs.base.base_folder)
    languages_check = base_languages_check(inputs.base, inputs.probes)

    # If a check failed, no error rate of the base is reused, and the work is planned again.
    if not all(check.result == "passed" for check in proofs):
        work.plan(**_sentence_counts(inputs, unchanged, -1))
        unchanged = set()
        work.plan(**_sentence_counts(inputs, unchanged))

    # Speech is synthesized last: it takes most of the time.
    errors, reused = _language_errors(inputs, unchanged, work)
    rates = [f"{item.language} {item.after:.1%}{SELECTION_NOTE if item.used_for_selection else ''}"
             for item in errors if item.after is not None]
    rates += [f"{', '.join(codes)}: {reason}" for reason, codes in inputs.missing.items()] + reused

    checks = (
        *proofs,
        languages_check,
        _front_end_check(inputs),
        codec_check,
        CertificateCheck(certificate.ERROR_RATES, "measured" if errors else "not proven", "", "; ".join(rates),
                         "Character error rate of held-out sentences synthesized by the finetuned model."),
    )

    return Certificate(f"run:{record.run}@{record.step}", record.run, record.step, record.scope, record.origin.model,
                       record.extension, inputs.base.base_hash, actual, time.time(), checks, tuple(errors),
                       inputs.input_hash, inputs.finetuned.new_languages, *inputs.base_files)


def load_certificate_inputs(workspace: Workspace, folder: Path, device: torch.device, sentences: int = SENTENCES,
                            input_hash: str = "", warn: Callable[[str], None] = _drop_warning) -> CertificateInputs:
    """The inputs of the certificate of the checkpoint in `folder`; `input_hash` if the caller knows it.

    Warns if the recogniser of the training cannot be loaded. Such a certificate has no input hash, so it is not used
    again when the recogniser is available.
    """
    check_checkpoint(folder)
    record = records.read_checkpoint(folder)
    base = model_before(workspace, record.origin, folder, device)
    finetuned = load_checkpoint(workspace, folder, device, base=base)
    input_hash = input_hash or compute_input_hash(workspace, folder, device.type, sentences)
    inputs = _load_inputs(workspace, base, finetuned, record, sentences, warn)
    complete = not any(unmeasured_reason(inputs.evaluator.recogniser, code) for code in finetuned.front_end.languages)
    return replace(inputs, input_hash=input_hash if complete else "")


def load_export_inputs(workspace: Workspace, folder: Path, device: torch.device, sentences: int = SENTENCES,
                       warn: Callable[[str], None] = _drop_warning) -> CertificateInputs:
    """The inputs of the certificate of the export in `folder`, from its files and the base in this workspace alone."""
    export = records.read_export_record(folder)
    finetuned = load_export(folder, device)
    base = model_before(workspace, export.origin, folder, device)
    if export.scope == "full":
        originals, exported = base_tensors(base.lm.module), base_tensors(finetuned.lm.module)
        # The base's rows of the text tables are frozen in every scope.
        tables = set(base.lm.text_tables)
        changed = [name for name, value in originals.items()
                   if name not in tables and name in exported and not torch.equal(value, exported[name])]
        finetuned = replace(finetuned, changed=tuple(changed))
    record = CheckpointRecord(export.run, export.step, export.scope, "", export.dataset, "", "", export.origin,
                              recogniser=export.recogniser, recogniser_language=export.recogniser_language,
                              text_library=export.text_library)
    inputs = _load_inputs(workspace, base, finetuned, record, sentences, warn)
    codec_check = export_codec_check(base.base_folder, folder, base.family, finetuned.adapters is not None)
    faults = _export_settings_faults(workspace, base, finetuned, export)
    if faults and codec_check.result == "passed":
        codec_check = replace(codec_check, result="failed", actual=f"not as in the base: {', '.join(faults[:3])}")
    return replace(inputs, codec_check=codec_check)


def without_sentences(inputs: CertificateInputs) -> CertificateInputs:
    """The inputs of an incomplete certificate: without sentences, and not stored for later use."""
    languages = list(inputs.finetuned.front_end.languages)
    return replace(inputs, sentences={}, missing={certificate.NOT_PROVEN_YET: languages}, input_hash="")


def certify_folder(workspace: Workspace, folder: Path, device: torch.device, sentences: int = SENTENCES,
                   progress: ProgressCallback = no_progress,
                   warn: Callable[[str], None] = _drop_warning) -> Certificate:
    """Compute the certificate of the checkpoint in `folder`, of its files, signed by this workspace."""
    record = records.read_checkpoint(folder)
    subject = verification.Subject.of_checkpoint(workspace, folder, record)
    files = verification.certified_files(subject)
    inputs = load_certificate_inputs(workspace, folder, device, sentences, warn=warn)
    proof = compute_certificate(inputs, progress)
    verification.check_unchanged(subject, files)
    return verification.bind(workspace, proof, files)


def certify_export(workspace: Workspace, folder: Path, device: torch.device, sentences: int = SENTENCES,
                   progress: ProgressCallback = no_progress,
                   warn: Callable[[str], None] = _drop_warning) -> Certificate:
    """Compute the certificate of the export in `folder` alone; the caller binds it to the files."""
    inputs = load_export_inputs(workspace, folder, device, sentences, warn)
    proof = compute_certificate(inputs, progress)
    checks = proof.checks
    if inputs.finetuned.adapters is not None:
        checks = (*checks, merged_check(inputs.finetuned, folder))
    return replace(proof, kind="recomputed", extension="", input_hash="", checks=checks)


@torch.inference_mode()
def merged_check(model: TTSModel, folder: Path) -> CertificateCheck:
    """Whether the file with merged adapters in an export is the weights and adapters of `model`, but for rounding."""
    names = sorted(path.name for path in folder.iterdir() if "merged" in path.name and path.suffix in _CODEC_SUFFIXES)
    text = "The merged file, loaded again, has the weights of the model with its adapters."
    expected = f"the sums of weights and adapters, within {_MERGED_BOUND:.0e} of each tensor's largest value"
    assert model.adapters is not None
    if len(names) != 1:
        return CertificateCheck("merged_reloads", "failed", expected, f"{len(names)} merged files", text)
    tensors = {**plain_tensors(model), **model.adapters.merged_weights()}
    merged_model = load_merged(folder, names[0], model.device)
    merged = plain_tensors(merged_model)
    differing = [name for name, value in tensors.items() if name not in merged or merged[name].shape != value.shape
                 or not (merged[name] - value).abs().max() <= _MERGED_BOUND * value.abs().max()]
    differing += [name for name in merged if name not in tensors]
    merged_settings = network_settings(merged_model)
    differing_settings = [name for name, value in network_settings(model).items() if merged_settings[name] != value]

    actual = f"{len(differing)} of {len(tensors)} tensors differ" if differing else f"all {len(tensors)} tensors"
    if differing_settings:
        actual += f"; other settings: {', '.join(differing_settings)}"
    return CertificateCheck("merged_reloads", _passed(not differing and not differing_settings), expected, actual, text)


# The bound relative to a tensor's largest value: another machine rounds products otherwise.
_MERGED_BOUND = 1e-4


def certify_model(workspace: Workspace, base: TTSModel, finetuned: TTSModel, record: CheckpointRecord,
                  sentences: int = SENTENCES, progress: ProgressCallback = no_progress) -> Certificate:
    """Compute the certificate of `finetuned`, which `record` describes."""
    return compute_certificate(_load_inputs(workspace, base, finetuned, record, sentences, _drop_warning), progress)


def base_probes(model: TTSModel) -> list[ProbeSample]:
    """The base-language samples that come with the base of `model`."""
    clips = replay.load(model, model.family.load_voices(model.base_folder)).drift_clips
    return replay.probes(clips, model.lm)


def row_probes(model: TTSModel, languages: Sequence[str]) -> list[ProbeSample]:
    """Probes whose texts contain every row that was added for `languages`, over `LanguageModel.probe_features`."""
    voice = next(iter(model.family.load_voices(model.base_folder).values()), None)
    features = model.lm.probe_features(voice)
    codes = features.speech_codes.astype(np.int64)
    conditioning = model.lm.sample_conditioning(features.conditioning, features.conditioning, random.Random(0))
    probes = []
    for language in languages:
        rows = np.array([token.id for token in model.front_end.added_tokens() if token.language == language])
        probes += [ProbeSample(language, "", Sample(rows[start:start + model.lm.max_text_length], codes, conditioning))
                   for start in range(0, len(rows), model.lm.max_text_length)]
    return probes


def earlier_language_probes(workspace: Workspace, model: TTSModel) -> list[ProbeSample]:
    """Probes of each language of an earlier training: all its rows, and held-out sentences if their dataset exists."""
    probes = row_probes(model, model.origin.earlier_languages)
    voice = next(iter(model.family.load_voices(model.base_folder).values()), None)
    features = model.lm.probe_features(voice)
    for language in model.origin.earlier_languages:
        clips = list[Utterance]()
        sentences = evaluation.held_out_recordings(workspace, model, language)
        for number, sentence in enumerate(evaluation.spread_evenly(sentences, _EARLIER_SENTENCES)):
            clip = make_utterance(f"{language}-{number}", sentence.text, language, "", features, model.front_end)
            if len(clip.text_ids) <= model.lm.max_text_length:
                clips.append(clip)
        probes += replay.probes(clips, model.lm)
    return probes


def probe_note(base: TTSModel) -> str:
    """A note if the base has neither clips nor a voice for its probes; else empty."""
    family, folder = base.family, base.base_folder
    if family.load_replay_clips(folder) or family.load_voices(folder):
        return ""
    return "; over generated codes and conditioning, because the model comes without clips and without a voice"


def equal_logits(base_logits: SampleLogits, logits: SampleLogits) -> bool:
    """Whether the logits are bit-identical, over the text ids that `base_logits` has."""
    old_text = logits.text_logits[:, :base_logits.text_logits.shape[1]]
    return (torch.equal(base_logits.text_logits, old_text)
            and torch.equal(base_logits.speech_logits, logits.speech_logits))


def _load_inputs(workspace: Workspace, base: TTSModel, finetuned: TTSModel, record: CheckpointRecord, count: int,
                 warn: Callable[[str], None]) -> CertificateInputs:
    recogniser = load_recogniser_or_warn(workspace, finetuned, warn, record)
    recording = ""
    if record.dataset in workspace.list_datasets():
        recording = evaluation.training_recording(manifest.load(workspace.dataset(record.dataset)))
    evaluator = SpeechEvaluator.of(base, recogniser, recording, watermark=False,
                                   as_reader=finetuned.decoder is not None)
    scorable: dict[str, tuple[TTSModel, list[HeldOutSentence]]] = {}
    skipped: dict[str, list[str]] = {}

    # A language that cannot be scored is listed with the reason.
    untrained: TTSModel | None = None
    for language in finetuned.front_end.languages:
        try:
            sentences = _held_out_sentences(workspace, base, finetuned, record, language)
            if not sentences:
                raise UserError("there are no held-out sentences")
            if not evaluator.can_score(language):
                reason = unmeasured_reason(recogniser, language)
                raise UserError(f"not measured, because {reason}" if reason else "no recogniser knows it")
            is_new = language not in base.front_end.languages
            if is_new and untrained is None:  # loaded only if needed
                untrained = load_extension(workspace, record.extension, base.device, base=base)
        except UserError as error:
            skipped.setdefault(error.message, []).append(language)
            continue
        scorable[language] = untrained if is_new and untrained else base, evaluation.spread_evenly(sentences, count)

    probes = [*base_probes(base), *earlier_language_probes(workspace, base)]

    # Scores are cached under everything that they depend on.
    values = [_SCORES_VERSION, hash_tree(base.base_folder), recognisers.identify(workspace, record.recogniser),
              record.recogniser_language, hash_file(Path(recording)) if recording else "",
              dataclasses.asdict(finetuned.sampling), compute.numeric_environment(base.device)]
    score_cache = ScoreCache(workspace, _hash(values))

    return CertificateInputs(base, finetuned, record, probes, evaluator, scorable, skipped, score_cache,
                             base_files=published.identify_base(workspace, base.name))


def _hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _held_out_sentences(workspace: Workspace, base: TTSModel, finetuned: TTSModel, record: CheckpointRecord,
              language: str) -> list[HeldOutSentence]:
    """Held-out sentences; `UserError` if the dataset, or the extension that synthesizes them too, was deleted.

    Sentences by which the checkpoint was selected are left out, unless there are no others; see
    `LanguageCER.used_for_selection`.
    """
    if language in base.front_end.languages:
        return evaluation.held_out_recordings(workspace, base, language)
    if not record.extension:
        raise UserError("an export does not name its extension, so there is no untrained model to compare with")
    if record.imported:
        raise UserError("not measured, because the recordings of the imported finetune are not known")
    dataset = manifest.load(workspace.dataset(record.dataset))
    extension = records.read_extension(workspace.extension(record.extension))
    if extension.rows_hash != record.rows_hash:
        raise UserError("the extension was replaced since")

    # Sentences that selected the checkpoint would flatter it.
    verbalize = finetuned.front_end.verbalize
    sentences = [HeldOutSentence(verbalize(clip.text, language), dataset.audio_path(clip))
                 for clip in dataset.split(HELD_OUT, language)]
    return [sentence for sentence in sentences if sentence.text not in record.scored] or sentences


def _and_earlier_languages(base: TTSModel) -> str:
    """The part of a sentence that names the languages of earlier trainings; empty without any."""
    languages = ", ".join(base.origin.earlier_languages)
    return f" and of the languages added earlier ({languages})" if languages else ""


def _passed(good: bool) -> CheckOutcome:
    return "passed" if good else "failed"


_CODEC_TEXT = "Codec, vocoder and the other files of weights and sound beside the language model are those of the base."
_CODEC_SUFFIXES = frozenset({".safetensors", ".pt", ".pth", ".bin", ".onnx", ".npz", ".npy", ".ogg", ".wav", ".flac"})
_OWN_FILES = (records.DECODER, f"{records.ADAPTER}/", f"{records.EARLIER_TRAININGS}/", "samples/", "evaluation/")
"""Files and folders of an export with such suffixes that the base does not have: what the training made."""


def base_codec_check(folder: Path) -> CertificateCheck:
    """Whether the files of the base model in `folder` are those that its record or its list of hashes names."""

    record, files = records.read_model_record(folder), dict[str, ExpectedFile]()
    if record is not None:
        files = record.files
    elif (folder / catalog.SUMS).is_file():
        files = {name: ExpectedFile(sha256=digest) for name, digest in read_sums(folder / catalog.SUMS, "").items()}
    if not files:
        return CertificateCheck(certificate.CODEC, "not proven", "the files as they were downloaded",
                                "the base model has no record of its files", _CODEC_TEXT)

    unhashed = [name for name, file in files.items() if not file.hashed]
    try:
        faults = [fault for _name, fault in find_faults(folder, files)]
    except UserError as error:
        # A link is not followed, because its target may change.
        faults, unhashed = [], [error.message]

    # A file that no record names could be anything, and a loader may prefer it.
    faults += [f"{path.name} is not in its record." for path in sorted(folder.rglob("*"))
               if path.suffix.lower() in _CODEC_SUFFIXES and path.relative_to(folder).as_posix() not in files]

    values = [(name, *dataclasses.astuple(file)) for name, file in sorted(files.items())]
    listed = f"{len(files)} files, {_hash(values)}"
    if unhashed and not faults:
        return CertificateCheck(certificate.CODEC, "not proven", listed, f"no hash is recorded of {unhashed[0]}",
                                _CODEC_TEXT)
    return CertificateCheck(certificate.CODEC, _passed(not faults), listed, " ".join(faults[:3]) or listed,
                            _CODEC_TEXT)


def export_codec_check(base: Path, export: Path, family: Family, has_merged: bool = False) -> CertificateCheck:
    """Whether the files of weights and sound in an `export` are files of the `base`, but those of the training.

    A family may give a file another path in an export, so that the content decides; a file whose path the base has too
    must be the very same. None that speech needs may be missing: neither codec, vocoder nor a voice. `has_merged`: a
    file with merged adapters lies beside the language model, which has a check of its own.
    """

    base_check = base_codec_check(base)
    language_model = family.language_model_file(export).relative_to(export).as_posix()
    base_hashes, hashes = _hash_codec_files(base), _hash_codec_files(export)
    copied = {name: digest for name, digest in hashes.items()
              if name != language_model and not (has_merged and "merged" in name and "/" not in name)
              and not name.startswith(_OWN_FILES)}
    known_hashes = set(base_hashes.values())
    # The settings of the merged file are those of the base too.
    faults = []
    for path in sorted(export.rglob("*")):
        name = path.relative_to(export).as_posix()
        base_path = base / name.replace("-merged", "")
        is_of_base = path.suffix in _SETTINGS_SUFFIXES and name != catalog.SUMS and base_path.is_file()
        if is_of_base and not _same_settings(base_path, path):
            faults.append(f"{name} differs")
    faults += [f"{name} differs" for name, digest in copied.items()
               if base_hashes.get(name, digest) != digest or digest not in known_hashes]
    faults = faults or _missing_parts(base, export, family)

    if base_check.result == "failed":
        return base_check
    expected = f"{len(copied)} files, {_hash(sorted((name, base_hashes.get(name, '')) for name in copied))}"
    actual = (f"not as in the base: {', '.join(faults[:3])}" if faults
              else f"{len(copied)} files, {_hash(sorted(copied.items()))}")
    return CertificateCheck(certificate.CODEC, _passed(not faults), expected, actual, _CODEC_TEXT)


_SETTINGS_SUFFIXES = (".json", ".jsonl", ".yaml", ".tiktoken")


def _missing_parts(base: Path, export: Path, family: Family) -> list[str]:
    """What speech needs and an `export` lacks, whose files are all those of the `base`."""
    try:
        # Each family looks for codec and voice encoder too when it loads its vocoder.
        family.load_vocoder(export, torch.device("cpu"))
        base_voices, voices = list(family.load_voices(base)), list(family.load_voices(export))
    except UserError as error:
        return [error.message.rstrip(".")]
    missing = [f"the voice {name} is missing" for name in base_voices if name not in voices]
    return missing + [f"the voice {name} is new" for name in voices if name not in base_voices]


_REWRITTEN_SETTINGS = (("gpt", "number_text_tokens"), ("dataset", "bpe_model"))
"""Settings of a model that name the number of text rows and the tokenizer of an export, beside `gpt_checkpoint`."""


def _hash_codec_files(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in hash_tree(folder).items() if Path(name).suffix.lower() in _CODEC_SUFFIXES}


def _same_settings(base: Path, export: Path) -> bool:
    """Whether two files of settings are equal, but for what an export has to change."""
    if hash_file(base) == hash_file(export):
        return True
    if base.suffix != ".yaml":
        return False
    return _fixed_settings(base) == _fixed_settings(export)


def _fixed_settings(path: Path) -> dict[str, object]:
    """The settings in a file that an export may not change."""
    settings = {name: value for name, value in dict(foreign.read_yaml(path)).items() if name != "gpt_checkpoint"}
    for part, name in _REWRITTEN_SETTINGS:
        values = settings.get(part)
        settings[part] = {key: value for key, value in values.items() if key != name} if isinstance(
            values, dict) else values or {}
    return settings


_ROWS_SETTING = "text_rows"  # the one setting of a network that differs with its rows


def network_settings(model: TTSModel) -> dict[str, object]:
    """The settings of a language model's network that no training changes: sizes, start and stop codes, heads."""
    config: Any = model.lm.module.config  # a dataclass of the family
    return {name: value for name, value in dataclasses.asdict(config).items() if name != _ROWS_SETTING}


def _export_settings_faults(workspace: Workspace, base: TTSModel, exported: TTSModel,
                            record: ExportRecord) -> list[str]:
    """How the settings of an `exported` model, which are no tensors, change the speech of the languages of its base."""
    differing = [name for name, value in network_settings(base).items() if network_settings(exported)[name] != value]
    faults = [f"{name} of the language model differs" for name in differing]
    if exported.front_end.base_languages != base.front_end.base_languages:
        faults.append(f"its base languages are {', '.join(exported.front_end.base_languages)}")

    # Longer texts than these are spoken in parts. Another text library counts other sentences.
    if not exported.text_library_note():
        # Of languages that the base learned from a dataset, only who has that dataset knows the length.
        lengths = evaluation.longest_texts(workspace, base)
        for language in base.front_end.base_languages:
            length, length_in_export = lengths.get(language), record.longest_texts.get(language)
            if length_in_export != length:
                faults.append(f"the longest text of {language} has {length_in_export} ids, not {length}")
    return faults


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    """The Euclidean norm over all numbers of all tensors."""
    return sum(tensor.float().square().sum().item() for tensor in tensors) ** 0.5


def _tensor_checks(inputs: CertificateInputs) -> list[CertificateCheck]:
    base, finetuned = inputs.base, inputs.finetuned
    originals, trained = base_tensors(base.lm.module), base_tensors(finetuned.lm.module)

    tables = [*base.lm.text_tables,
              *(name for name in originals if is_of_earlier_training(name) and ".lora_" not in name)]
    expected = hash_tensors({name: originals[name] for name in tables})
    actual = hash_tensors({name: trained[name] for name in tables if name in trained})
    equal = sum(name in trained and torch.equal(originals[name], trained[name]) for name in originals)
    # Another scope changes nothing of the base, whatever tensors its checkpoint brings.
    changed = set(finetuned.changed) & set(originals) if finetuned.scope == "full" else set[str]()
    frozen = hash_tensors({name: value for name, value in originals.items() if name not in changed})
    frozen_after = hash_tensors({name: value for name, value in trained.items() if name not in changed})
    # Both models share the tensors that the checkpoint does not bring: a write into them would change both alike.
    is_as_loaded = (hash_tensors(originals) if changed else frozen) == base.frozen_hash
    moved_rows = _moved_rows(originals, trained, [table for table in base.lm.text_tables if table in changed])

    # Rows and frozen tensors are compared by hash and by value.
    checks = [
        CertificateCheck("prefix_rows", "measured" if moved_rows else _passed(expected == actual and is_as_loaded),
                         expected, moved_rows or f"{actual}{'' if is_as_loaded else _CHANGED_IN_MEMORY}",
                         f"The {base.front_end.size} base rows of {' and '.join(map(rows_name, base.lm.text_tables))} "
                         f"are those of the base file"
                         f"{' and of the languages added earlier' if base.earlier_trainings else ''}."),
        CertificateCheck("frozen_tensors", _passed(frozen == frozen_after and is_as_loaded),
                         f"{len(originals) - len(changed)} tensors, {frozen}",
                         f"{equal} equal, {frozen_after}{'' if is_as_loaded else _CHANGED_IN_MEMORY}",
                         f"Every tensor of the base model{_and_earlier_languages(base)} is unchanged."
                         if not changed else
                         "Every frozen tensor of the base model is unchanged."),
    ]
    # Only scope `full` changes tensors of the base.
    if changed:
        moved = {name: (trained[name].float() - originals[name].float()) for name in changed}
        size = sum(value.numel() for value in moved.values())
        values = sum(int((value != 0).sum()) for value in moved.values())
        moved_norm = _norm(moved.values())
        base_norm = _norm(originals[name] for name in changed)
        checks.append(CertificateCheck(
            "changed_tensors", "measured", "", f"{len(changed)} of {len(originals)} tensors; {values:,} of {size:,} "
            f"numbers; by {moved_norm / max(base_norm, 1e-30):.3%} of their norm",
            "What the training changed of the base model itself."))

    # What the trainer saw in its memory is reported, not computed here.
    if inputs.record.imported:
        return [*checks, CertificateCheck(
            "frozen_in_training", "not proven", base.frozen_hash, f"{inputs.record.imported} was trained elsewhere",
            "The hash of the frozen tensors that the trainer took when it saved this checkpoint is the base's.")]
    trainer_hash = inputs.record.frozen_hash
    outcome: CheckOutcome = "not proven" if inputs.of_export else _passed(trainer_hash == base.frozen_hash)
    checks.append(CertificateCheck("frozen_in_training", outcome, base.frozen_hash,
                                   "an export does not hold what its trainer reported" if inputs.of_export
                                   else trainer_hash,
                                   "The hash of the frozen tensors that the trainer took when it saved this "
                                   "checkpoint is the base's."))
    return checks


def _moved_rows(originals: Mapping[str, torch.Tensor], imported: Mapping[str, torch.Tensor],
                tables: Sequence[str]) -> str:
    """How many of the base's rows an imported finetune changed, by text table; empty if there are no such `tables`."""
    counts = {table: int((originals[table].reshape(len(originals[table]), -1) != imported[table].reshape(
        len(originals[table]), -1)).any(1).sum()) for table in tables}
    return "; ".join(f"{count} of {len(originals[table])} rows of {rows_name(table)} differ from the base file"
                     for table, count in counts.items())


@torch.inference_mode()
def _logits_check(inputs: CertificateInputs, work: CertificateProgress) -> CertificateCheck:
    """Whether all base-language logits are bit-identical; else their drift."""
    base, finetuned, count = inputs.base, inputs.finetuned, len(inputs.probes)
    if not count:
        return CertificateCheck("base_logits", "not proven", "bit-identical",
                                "there were no base-language samples that the model could read",
                                "Logits of base-language samples before and after.")

    equal, largest, divergence = 0, 0.0, 0.0
    for item in inputs.probes:
        with work.measure("compared", 1, "(probes compared)"):
            # Each model uses its own adapters for an earlier language.
            with base.adapters_for(item.language):
                expected = base.lm.probe(item.sample)
            with finetuned.adapters_for(item.language):
                after = finetuned.lm.probe(item.sample)
        old_text = after.text_logits[:, :expected.text_logits.shape[1]]
        equal += equal_logits(expected, after)
        largest = max(largest, (expected.text_logits - old_text).abs().max().item(),
                      (expected.speech_logits - after.speech_logits).abs().max().item())
        divergence += F.kl_div(after.speech_logits.float().log_softmax(-1),
                               expected.speech_logits.float().log_softmax(-1), log_target=True,
                               reduction="batchmean").item()

    languages = sorted({item.language for item in inputs.probes})
    actual = f"{equal} of {count} samples ({', '.join(languages)}) bit-identical{probe_note(base)}"
    if equal < count:
        actual += f"; largest difference {largest:.3g}, mean divergence {divergence / count:.3g} nats a code"
    outcome: CheckOutcome = "measured" if finetuned.scope == "full" else _passed(equal == count)
    return CertificateCheck("base_logits", outcome, "bit-identical", actual,
                            f"Logits of base-language samples{_and_earlier_languages(base)} before and after, computed "
                            f"one after the other on {compute.numeric_environment(base.device)}.")


def base_languages_check(base: TTSModel, probes: Sequence[ProbeSample]) -> CertificateCheck:
    """Whether each base language has a probe; else "not proven", with the languages and the reasons."""
    languages, probed = base.front_end.base_languages, {item.language for item in probes}
    reasons: dict[str, list[str]] = {}
    for language in languages:
        if language not in probed:
            reasons.setdefault(replay.reason_not_probed(base, language), []).append(language)
    unprobed = "; ".join(f"{', '.join(codes)}: {reason}" for reason, codes in reasons.items())
    return CertificateCheck(certificate.BASE_LANGUAGES, "not proven" if unprobed else "passed",
                            f"all {len(languages)} base languages", unprobed or f"all {len(languages)}",
                            "Samples of each base language were compared.")


def _front_end_check(inputs: CertificateInputs) -> CertificateCheck:
    """Whether the front-end is that of the new rows, and its part for the languages of the base is the base's.

    The sentences of `base_tokens` are samples: a normaliser or a table that changes other sentences is seen here.
    """
    base, finetuned = inputs.base.front_end, inputs.finetuned.front_end
    expected, actual = inputs.record.origin.fingerprint, finetuned.fingerprint
    last = base.languages[-1]
    of_base = finetuned.up_to(last).fingerprint if last in finetuned.languages else f"without {last}"
    if of_base != base.fingerprint:
        expected, actual = f"{expected}, of the base {base.fingerprint}", f"{actual}, of the base {of_base}"
    return CertificateCheck("front_end", _passed(expected == actual), expected, actual,
                            "The tokenizer is the one of the new rows; for the languages of the base it is the base's.")


def _tokens_check(inputs: CertificateInputs) -> CertificateCheck:
    """Whether base-language sentences are encoded as before."""
    texts: list[tuple[str, str]] = []
    for language in inputs.base.front_end.base_languages:
        texts += [(language, sentence.text) for sentence in evaluation.base_recordings(inputs.base, language)]
    texts += [(item.language, item.text) for item in inputs.probes if item.text]
    base, extended = inputs.base.front_end, inputs.finetuned.front_end
    same = sum(np.array_equal(base.encode(text, language), extended.encode(text, language)) for language, text in texts)
    return CertificateCheck("base_tokens", _passed(same == len(texts)) if texts else "not proven",
                            f"{len(texts)} sentences with unchanged ids", f"{same} sentences",
                            "Sentences of the base languages are encoded as before.")


def _language_errors(inputs: CertificateInputs, unchanged: Collection[str],
                     work: CertificateProgress) -> tuple[list[LanguageCER], list[str]]:
    """CER of every language before, after and of the original recordings; and notes about reused results.

    For base languages that are bit-identical (`unchanged`) both models synthesize a few sentences. If the audio is the
    same, the base's CER is reused. Otherwise both models synthesize all sentences. Base languages share batches; a new
    language has separate ones, because the base cannot read it. So both models compute batches of the same shape, and
    what did not change is bit-identical and scored only once.
    """
    finetuned = inputs.finetuned
    new_languages = [code for code in inputs.sentences if code in finetuned.new_languages]
    reusable = [code for code in inputs.sentences if code not in new_languages and code in unchanged]
    compared = [code for code in inputs.sentences if code not in (*new_languages, *reusable)]
    recordings = {code: _corpus_score(code, _score_recordings(inputs, code, sentences, work))
                  # Recordings are scored before any synthesis, to estimate the time left.
                  for code, (_, sentences) in inputs.sentences.items()}

    # A few sentences decide whether the base's rates can be reused.
    same_audio = bool(reusable) and _same_audio(inputs, reusable, work)
    if reusable and not same_audio:
        additional = sum(len(inputs.sentences[code][1]) for code in reusable)
        work.plan(decoded=additional, generated=additional)
        compared, reusable = [*reusable, *compared], []

    errors: dict[str, tuple[CorpusScore, CorpusScore]] = {}
    for reference, languages in ((inputs.base, reusable), (inputs.base, compared),
                                 *((inputs.sentences[code][0], [code]) for code in new_languages)):
        sentences = {code: inputs.sentences[code][1] for code in languages}
        scores = _score_speech(inputs, reference, sentences, work) if languages else {}
        scores_after = scores if languages == reusable else _score_speech(inputs, finetuned, sentences, work)
        errors |= {code: (_corpus_score(code, scores[code]), _corpus_score(code, scores_after[code]))
                   for code in languages}

    rates, notes = [], list[str]()
    for code, (_, held_out) in inputs.sentences.items():
        before_cer, after_cer, original_cer = (score.error if score.sentences else None
                                               for score in (*errors[code], recordings[code]))
        used_for_selection = code in new_languages and any(
            sentence.text in inputs.record.scored for sentence in held_out)
        rates.append(LanguageCER(code, code in new_languages, errors[code][1].sentences, before_cer, after_cer,
                                 original_cer, used_for_selection,
                                 measured_by(inputs.evaluator.recogniser, code)))

    if reusable:
        notes.append(f"{', '.join(reusable)}: measured on the base {inputs.base.base_hash[:12]} (scores "
                     f"{inputs.score_cache.key[:12]}); logits are bit-identical to the base's, and both models "
                     f"synthesize {_SPOT_CHECK_SENTENCES} sentences of each as the same audio")
    return rates, notes


def _sentence_counts(inputs: CertificateInputs, unchanged: Collection[str], sign: int = 1) -> dict[str, int]:
    """How many sentences are synthesized and recordings scored, if the CER of `unchanged` base languages is reused."""
    synthesized = recordings = 0
    for code, (_, sentences) in inputs.sentences.items():
        if code in unchanged and code not in inputs.finetuned.new_languages:
            synthesized += len(sentences) + 2 * min(_SPOT_CHECK_SENTENCES, len(sentences))
        else:
            synthesized += 2 * len(sentences)
        recordings += sum(sentence.original is not None for sentence in sentences)
    return {"decoded": sign * synthesized, "generated": sign * synthesized, "recordings": sign * recordings}


# Sentences of each bit-identical base language, which both models synthesize.
_SPOT_CHECK_SENTENCES = 4


def _same_audio(inputs: CertificateInputs, languages: Sequence[str], work: CertificateProgress) -> bool:
    """Whether base and finetuned model synthesize a few sentences of each language as the same samples."""
    sentences = {code: evaluation.spread_evenly(inputs.sentences[code][1], _SPOT_CHECK_SENTENCES) for code in languages}
    base_scores, scores = (_score_speech(inputs, model, sentences, work) for model in (inputs.base, inputs.finetuned))
    for code in languages:
        base_audio = [score.audio_hash for score in base_scores[code]]
        if not base_audio or base_audio != [score.audio_hash for score in scores[code]]:
            return False
    return True


def _score_speech(inputs: CertificateInputs, model: TTSModel, sentences: Mapping[str, Sequence[HeldOutSentence]],
           work: CertificateProgress) -> dict[str, list[SentenceScore]]:
    """Synthesize and score the sentences that `model` can read, by language; cached scores are not computed again.

    Neither is a batch whose codes are cached, nor a sentence whose codes and voice have a cached score.
    """
    evaluator, cache, prepared = inputs.evaluator, inputs.score_cache, PreparedVoices()
    items = evaluator.with_voices(model, evaluation.readable_texts(model, sentences))
    unreadable = sum(map(len, sentences.values())) - len(items)
    work.plan(decoded=-unreadable, generated=-unreadable)
    weights = cache.weights_hash(model)
    scores: dict[str, list[SentenceScore]] = {code: [] for code in sentences}

    try:
        for batch in evaluation.in_batches(items):
            batch_key = _hash([cache.key, weights, model.front_end.fingerprint, model.scope, batch])
            keys = [f"{batch_key}-{number}" for number in range(len(batch))]
            # A batch whose sentences are all scored is not generated again.
            if all(cache.find(key) for key in keys):
                generated = list[Generated]()
                work.plan(generated=-len(batch))
            else:
                generated = cache.read_batch(batch_key)
                note = f"({language_name(batch[0].language)} sentences generated)"
                with work.measure("generated", len(batch), note, cached=bool(generated)):
                    if not generated:
                        generated = evaluator.generate(model, batch, inputs.finetuned.sampling, prepared)
                        cache.write_batch(batch_key, generated)
            for number, (key, item) in enumerate(zip(keys, batch, strict=True)):
                codes, score = "", cache.find(key)
                # The same codes in the same voice give the same sound, so a score for them is used.
                if score is None:
                    spoken_codes = generated[number]
                    states = (b"" if spoken_codes.hidden_states is None
                              else spoken_codes.hidden_states.float().cpu().numpy().tobytes())
                    codes = _hash([cache.key, item, model.front_end.verbalize(item.text, item.language),
                                   hashlib.sha256(spoken_codes.codes.tobytes() + states).hexdigest()])
                    score = cache.find(codes)
                note = f"({language_name(item.language)} sentences spoken)"
                with work.measure("decoded", 1, note, cached=bool(score)):
                    if score is None:
                        score = SentenceScore.of(evaluator.decode(model, item, spoken_codes))
                    if codes:
                        cache.add(score, key, codes)
                scores[item.language].append(score)
            cache.remove_batch(batch_key)
    finally:
        model.lm.free_buffers()
    return scores


def _score_recordings(inputs: CertificateInputs, language: str, sentences: Sequence[HeldOutSentence],
                      work: CertificateProgress) -> list[SentenceScore]:
    """The scores of the sentences that have an original recording."""
    evaluator, cache, scores = inputs.evaluator, inputs.score_cache, []
    for sentence in sentences:
        if sentence.original is None:
            continue
        key = _hash([cache.key, language, sentence.text, hash_file(sentence.original)])
        score = cache.find(key)
        with work.measure("recordings", 1, f"({language_name(language)} recordings scored)", cached=bool(score)):
            if score is None:
                score = SentenceScore.of_recording(evaluation.score_recording(evaluator, language, sentence))
                cache.add(score, key)
        scores.append(score)
    return scores


def _corpus_score(language: str, scores: Sequence[SentenceScore]) -> CorpusScore:
    return CorpusScore(language, len(scores), sum(item.edits for item in scores), sum(item.letters for item in scores))


@dataclass(frozen=True)
class SentenceScore:
    """The score of one sentence: edits between transcript and text, and letters of the text."""

    edits: int
    letters: int
    audio_hash: str = ""  # SHA-256 of the samples; empty for a recording

    @classmethod
    def of(cls, sentence: EvaluatedSentence) -> SentenceScore:
        """The score of a synthesized sentence."""
        assert sentence.score is not None
        samples = sentence.waveform.float().cpu().contiguous().numpy().tobytes()
        return cls(sentence.score.edits, len(sentence.score.reference), hashlib.sha256(samples).hexdigest())

    @classmethod
    def of_recording(cls, score: RecognitionScore) -> SentenceScore:
        """The score of an original recording."""
        return cls(score.edits, len(score.reference))


class ScoreCache:
    """A cache of sentence scores: a file to which they are appended one by one, so none is computed twice.

    `key` is the hash of what all scores depend on: base model, recogniser, sampling, machine. Each score has further
    keys: the hash of the weights and the batch in which it was generated, and the hash of its codes.

    The workspace signs each line and each batch, because a certificate is signed that was computed from them: who can
    write to the cache alone cannot choose the error rates. Damaged and foreign lines are ignored.
    """

    _PURPOSE = "sentence score"
    _MAC_BYTES = 64  # hex digits before the arrays of a batch

    def __init__(self, workspace: Workspace, key: str) -> None:
        folder = workspace.cache / certificate.FOLDER
        self.key, self._workspace, self._folder = key, workspace, folder
        self._path = folder / f"scores-{key}.jsonl"
        self._known: dict[str, SentenceScore] = {}
        self._weights: dict[int, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines() if self._path.is_file() else ()
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):
                values = json.loads(line)
                mac = str(values.pop("mac"))
                if not workspace_key.is_signed(workspace, self._PURPOSE, self._content(values), mac):
                    continue
                score = SentenceScore(int(values["edits"]), int(values["letters"]), str(values["audio_hash"]))
                self._known |= {str(name): score for name in values["keys"]}

    def _content(self, values: Mapping[str, object]) -> bytes:
        """What is signed of a line; the key of the cache too, so that no line fits another cache."""
        return json.dumps([self.key, values], sort_keys=True).encode()

    def weights_hash(self, model: TTSModel) -> str:
        """The hash of every tensor of the language model, including rows and adapters."""
        if id(model) not in self._weights:
            self._weights[id(model)] = hash_tensors(model.lm.module.state_dict())
        return self._weights[id(model)]

    def find(self, key: str) -> SentenceScore | None:
        """The cached score for `key`."""
        return self._known.get(key)

    def add(self, score: SentenceScore, *keys: str) -> None:
        """Store a score; it is in the file when this returns."""
        values = {"keys": list(keys), **dataclasses.asdict(score)}
        mac = workspace_key.sign(self._workspace, self._PURPOSE, self._content(values))
        append_text(self._path, json.dumps({**values, "mac": mac}) + "\n")
        self._known |= dict.fromkeys(keys, score)

    def write_batch(self, key: str, generated: Sequence[Generated]) -> None:
        """Store the codes of a batch until its sentences are scored."""
        arrays = {f"codes-{number}": item.codes for number, item in enumerate(generated)}
        arrays |= {f"states-{number}": item.hidden_states.float().cpu().numpy() for number, item in enumerate(generated)
                   if item.hidden_states is not None}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        content = buffer.getvalue()
        mac = workspace_key.sign(self._workspace, self._PURPOSE, self._batch_content(key, content))
        write_bytes(self._batch(key), mac.encode() + content, sync=False)

    def _batch_content(self, key: str, arrays: bytes) -> bytes:
        return f"{self.key} {key} {hashlib.sha256(arrays).hexdigest()}".encode()

    def read_batch(self, key: str) -> list[Generated]:
        """The codes of a batch; empty if there are none, or their file is damaged or not of this workspace."""
        try:
            stored = self._batch(key).read_bytes()
        except OSError:
            return []
        mac, content = stored[:self._MAC_BYTES].decode("ascii", "replace"), stored[self._MAC_BYTES:]
        if not workspace_key.is_signed(self._workspace, self._PURPOSE, self._batch_content(key, content), mac):
            return []
        with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile), np.load(io.BytesIO(content)) as arrays:
            return [Generated(arrays[f"codes-{number}"], "stop", torch.from_numpy(arrays[f"states-{number}"])
                              if f"states-{number}" in arrays else None)
                    for number in range(sum(name.startswith("codes-") for name in arrays))]
        return []

    def remove_batch(self, key: str) -> None:
        """Remove the codes of a batch."""
        self._batch(key).unlink(missing_ok=True)

    def _batch(self, key: str) -> Path:
        return self._folder / f"codes-{key}.npz"


_MIN_TIMED_SENTENCES = 3  # synthesized before the time left is estimated


class CertificateProgress:
    """Progress and time left of a certificate, from the time that each kind of work took so far.

    The kinds: probes `compared`, sentences `generated` (codes) and `decoded` (audio and score), `recordings` scored. A
    batch is generated at once and then decoded sentence by sentence, so a single rate would be far off. Cached work is
    counted, and takes no time.
    """

    def __init__(self, progress: ProgressCallback, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress, self._clock = progress, clock
        self._left, self._done, self._timed = Counter[str](), Counter[str](), Counter[str]()
        self._seconds = dict.fromkeys(("compared", "generated", "decoded", "recordings"), 0.0)

    def plan(self, **counts: int) -> None:
        """Add work of each kind; a negative number removes work."""
        self._left.update(counts)

    @contextmanager
    def measure(self, kind: str, count: int, note: str, cached: bool = False) -> Iterator[None]:
        """Context of `count` pieces of work: reports before and after it, and takes its time unless it is `cached`."""
        self._report(note)
        start = self._clock()
        yield
        self._left[kind] -= count
        self._done[kind] += count
        if not cached:
            self._timed[kind] += count
            self._seconds[kind] += self._clock() - start
        self._report(note)

    def seconds_left(self) -> float | None:
        """None until some sentences were synthesized, unless none is left."""
        if self._timed["decoded"] < _MIN_TIMED_SENTENCES and self._left["decoded"] > 0:
            return None
        seconds_of_kind = {kind: self._seconds[kind] / self._timed[kind] for kind in self._seconds if self._timed[kind]}
        return sum(seconds_of_kind.get(kind, 0.0) * max(0, count) for kind, count in self._left.items())

    def _report(self, note: str) -> None:
        done_count, left_count = (sum(counts[kind] for kind in ("compared", "decoded", "recordings"))
                                  for counts in (self._done, self._left))
        seconds_left = self.seconds_left()
        rate = 0.0 if seconds_left is None else self._timed["decoded"] / max(1e-9, self._seconds["decoded"])
        self._progress(Progress(done_count, done_count + left_count, PROGRESS_UNIT, note, round(rate, 3),
                                None if seconds_left is None else round(seconds_left, 1)))


_VERSION = 8  # increased when this module computes something else: then older certificates are not used again
_SCORES_VERSION = 5  # the same of the scores of sentences


def compute_input_hash(workspace: Workspace, folder: Path, device: str, sentences: int) -> str:
    """The hash of all inputs of the certificate of the checkpoint in `folder`, on `device`, with so many sentences."""
    record = records.read_checkpoint(folder)
    dataset = rows = ""
    with suppress(UserError):
        dataset = manifest.load_card(workspace.dataset(record.dataset)).fingerprint
    with suppress(UserError):
        rows = records.read_extension(workspace.extension(record.extension)).rows_hash
    base = hash_tree(workspace.model(record.origin.model))
    recogniser = recognisers.identify(workspace, record.recogniser)
    values = [_VERSION, device, sentences, dataclasses.asdict(record), dataset, rows, base, recogniser,
              _unread_languages(workspace, record)]
    return _hash(values)


def _unread_languages(workspace: Workspace, record: CheckpointRecord) -> list[str]:
    """The base languages whose texts need what is not installed: when it is, they can be compared."""
    front_end = family_named(record.origin.family).load_front_end(workspace.model(record.origin.model))
    return [language for language in front_end.base_languages if front_end.unready(language)]


def find_certificate(workspace: Workspace, run: Path, input_hash: str) -> Certificate | None:
    """A certificate with this input hash that this workspace computed from these files: of the run, or a stored one."""
    for path in (run / certificate.CERTIFICATE, _path(workspace, input_hash)):
        with suppress(UserError):
            stored = certificate.read(path)
            if stored.input_hash != input_hash or not verification.is_own(workspace, stored):
                continue
            subject = verification.Subject.of_run(workspace, run, stored)
            if not verification.verify_proof(workspace, subject, stored).outcome.of_other_files:
                return stored
    return None


def store_certificate(workspace: Workspace, proof: Certificate) -> None:
    """Store a certificate for the next export of the same checkpoint, unless it is incomplete."""
    if not proof.input_hash:
        return
    path = _path(workspace, proof.input_hash)
    path.parent.mkdir(parents=True, exist_ok=True)
    certificate.write(path, proof)


def _path(workspace: Workspace, input_hash: str) -> Path:
    return workspace.cache / certificate.FOLDER / f"{input_hash}.json"
