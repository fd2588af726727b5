"""Compute a certificate: the checkpoint is loaded again from its files and compared with the base.

Nothing comes from the memory of the run but one hash that the trainer wrote when it saved. Probes are teacher-forced
samples of every base language that were never trained on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from config import loading
from config.errors import UserError
from core import compute
from core.jobs.events import Progress
from core.jobs.reporter import CombinedProgress, ProgressCallback, no_progress
from core.library import certificate, records
from core.library.certificate import Certificate, CertificateCheck, CheckOutcome, LanguageCER
from core.library.records import MODEL_RECORD, CheckpointRecord, ExtensionRecord
from core.model.loading import TTSModel, load_checkpoint, load_extension, model_before
from core.model.prefix import base_tensors, hash_tensors, is_taught, rows_name
from core.sources import recognisers
from core.speech import evaluation
from core.speech.evaluation import CorpusScore, HeldOutSentence, SpeechEvaluator
from core.speech.scoring import load_recogniser_or_warn, unmeasured_reason
from core.training import replay
from core.training.dataloader import Utterance, make_utterance
from core.training.replay import ProbeSample
from core.workspace import Workspace
from data import manifest
from data.durable_files import hash_file, hash_tree, write_json
from data.manifest import HELD_OUT
from models.base import Sample, SampleLogits

SENTENCES = 40  # synthesized and scored in each language
_TAUGHT_SENTENCES = 16  # probed of each language that the base was taught before
COUNTED = "sentences"
SELECTION_NOTE = " on the sentences that selected the checkpoint"


def _ignore(message: str) -> None:
    """Drop a warning."""


@dataclass(frozen=True)
class CertificateInputs:
    """All that a certificate is computed from: both models, and what both synthesize."""

    base: TTSModel
    finetuned: TTSModel
    record: CheckpointRecord
    probes: list[ProbeSample]
    evaluator: SpeechEvaluator
    sentences: Mapping[str, tuple[TTSModel, list[HeldOutSentence]]]  # by language, with the model to compare with
    missing: Mapping[str, list[str]]  # languages that cannot be scored, by reason
    input_hash: str = ""
    base_scores: Path | None = None  # where those of the base are kept; None where they depend on more than it

    @property
    def spoken(self) -> int:
        """Sentences that each model synthesizes."""
        return sum(len(sentences) for _, sentences in self.sentences.values())

    @property
    def recordings(self) -> int:
        """Recordings to score."""
        return sum(one.original is not None for _, sentences in self.sentences.values() for one in sentences)

    @property
    def size(self) -> int:
        """Sentences to synthesize, twice, recordings to score and probes to compare."""
        return 2 * self.spoken + self.recordings + len(self.probes)


def compute_certificate(inputs: CertificateInputs, progress: ProgressCallback = no_progress) -> Certificate:
    """The certificate; `progress` gets one count over every sentence and probe."""
    count = CombinedProgress(progress, inputs.size, COUNTED)
    record = inputs.record
    expected, actual = record.origin.fingerprint, inputs.finetuned.front_end.fingerprint
    with compute.deterministic():
        logits_check = _logits_check(inputs, count.part(len(inputs.probes)))
    proofs = (*_tensor_checks(inputs), logits_check, _tokens_check(inputs))
    unchanged = all(check.result == "passed" for check in proofs) and inputs.finetuned.scope != "full"
    errors, reused = _language_errors(inputs, {item.language for item in inputs.probes} if unchanged else (), count)
    rates = [f"{item.language} {item.after:.1%}{SELECTION_NOTE if item.used_for_selection else ''}"
             for item in errors if item.after is not None]
    rates += [f"{', '.join(codes)}: {reason}" for reason, codes in inputs.missing.items()] + reused
    checks = (
        *proofs,
        CertificateCheck("front_end", _passed(expected == actual), expected, actual,
                         "The tokenizer is the one of the new rows."),
        CertificateCheck("character_error_rates", "measured" if errors else "not proven", "", "; ".join(rates),
                         "Character error rate of held-out sentences synthesized by the finetuned model."),
    )
    return Certificate(f"run:{record.run}@{record.step}", record.run, record.step, record.scope, record.origin.model,
                       record.extension, inputs.base.base_hash, actual, time.time(), checks, tuple(errors),
                       inputs.input_hash)


def load_certificate_inputs(workspace: Workspace, folder: Path, device: torch.device, sentences: int = SENTENCES,
                            input_hash: str = "", warn: Callable[[str], None] = _ignore) -> CertificateInputs:
    """The inputs of the certificate of the checkpoint in `folder`; `input_hash` where it is known.

    `warn` gets the reason when the recogniser of the training cannot be loaded. Such a certificate has no input hash,
    so it is not used again when the recogniser is back.
    """
    record = records.read_record(folder / records.CHECKPOINT, CheckpointRecord)
    finetuned = load_checkpoint(workspace, folder, device)
    base = model_before(workspace, record.origin, folder, device)
    input_hash = input_hash or compute_input_hash(workspace, folder, device.type, sentences)
    inputs = _load_inputs(workspace, base, finetuned, record, sentences, warn)
    complete = not any(unmeasured_reason(inputs.evaluator.recogniser, code) for code in finetuned.front_end.languages)
    return replace(inputs, input_hash=input_hash if complete else "")


def certify_folder(workspace: Workspace, folder: Path, device: torch.device, sentences: int = SENTENCES,
                   progress: ProgressCallback = no_progress, warn: Callable[[str], None] = _ignore) -> Certificate:
    """The certificate of the checkpoint in `folder`, computed now."""
    return compute_certificate(load_certificate_inputs(workspace, folder, device, sentences, warn=warn), progress)


def certify_model(workspace: Workspace, base: TTSModel, finetuned: TTSModel, record: CheckpointRecord,
                  sentences: int = SENTENCES, progress: ProgressCallback = no_progress) -> Certificate:
    """The certificate of `finetuned`, which `record` describes."""
    return compute_certificate(_load_inputs(workspace, base, finetuned, record, sentences, _ignore), progress)


def base_probes(model: TTSModel) -> list[ProbeSample]:
    """The base-language samples that come with the base of `model`."""
    clips = replay.load(model, model.family.load_voices(model.base_folder)).drift_clips
    return replay.probes(clips, model.lm)


def row_probes(model: TTSModel, languages: Sequence[str]) -> list[ProbeSample]:
    """Every row that was added for `languages`, as texts of them over `SpeechModel.probe_features`."""
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


def taught_probes(workspace: Workspace, model: TTSModel) -> list[ProbeSample]:
    """For each language that `model` was taught before: all of its rows, and held-out sentences where they are here."""
    probes = row_probes(model, [one.record.language for one in model.taught])
    voice = next(iter(model.family.load_voices(model.base_folder).values()), None)
    features = model.lm.probe_features(voice)
    for one in model.taught:
        language, clips = one.record.language, list[Utterance]()
        sentences = evaluation.held_out_recordings(workspace, model, language)
        for number, sentence in enumerate(evaluation.spread_evenly(sentences, _TAUGHT_SENTENCES)):
            clip = make_utterance(f"{language}-{number}", sentence.text, language, "", features, model.front_end)
            if len(clip.text_ids) <= model.lm.max_text_length:
                clips.append(clip)
        probes += replay.probes(clips, model.lm)
    return probes


def probe_note(base: TTSModel) -> str:
    """What is to be said of the probes of a base that has neither clips nor a voice; else empty."""
    family, folder = base.family, base.base_folder
    if family.load_replay_clips(folder) or family.load_voices(folder):
        return ""
    return "; over generated codes and conditioning, because the model comes without clips and without a voice"


def equal_logits(before: SampleLogits, after: SampleLogits) -> bool:
    """Whether the logits are bit-identical; of `after` only the ids that `before` has count."""
    old_text = after.text_logits[:, :before.text_logits.shape[1]]
    return torch.equal(before.text_logits, old_text) and torch.equal(before.speech_logits, after.speech_logits)


def _load_inputs(workspace: Workspace, base: TTSModel, finetuned: TTSModel, record: CheckpointRecord, count: int,
                 warn: Callable[[str], None]) -> CertificateInputs:
    recogniser = load_recogniser_or_warn(workspace, finetuned, warn, record)
    recording = ""
    if record.dataset in workspace.list_datasets():
        recording = evaluation.training_recording(manifest.load(workspace.dataset(record.dataset)))
    evaluator = SpeechEvaluator.of(base, recogniser, remember=True, recording=recording)
    found: dict[str, tuple[TTSModel, list[HeldOutSentence]]] = {}
    missing: dict[str, list[str]] = {}
    for language in finetuned.front_end.languages:
        try:
            before, sentences = _held_out(workspace, base, finetuned, record, language)
            if not sentences:
                raise UserError("there are no held-out sentences")
            if not evaluator.can_score(language):
                reason = unmeasured_reason(recogniser, language)
                raise UserError(f"not measured, because {reason}" if reason else "no recogniser knows it")
        except UserError as error:
            missing.setdefault(error.message, []).append(language)
            continue
        found[language] = before, evaluation.spread_evenly(sentences, count)
    probes = [*base_probes(base), *taught_probes(workspace, base)]
    base_scores = None
    if not base.taught and recogniser is not None and evaluation.RECORDED_VOICE not in evaluator.voices:
        texts = {code: [one.text for one in sentences] for code, (_, sentences) in found.items()
                 if code in base.front_end.languages}
        values = [_VERSION, base.base_hash, hash_tree(base.base_folder), _recogniser(workspace, record.recogniser),
                  texts, dataclasses.asdict(finetuned.sampling), compute.numeric_environment(base.device)]
        key = hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
        base_scores = workspace.cache / _FOLDER / f"base-{key}.json"
    return CertificateInputs(base, finetuned, record, probes, evaluator, found, missing, base_scores=base_scores)


def _held_out(workspace: Workspace, base: TTSModel, finetuned: TTSModel, record: CheckpointRecord,
              language: str) -> tuple[TTSModel, list[HeldOutSentence]]:
    """The model to compare with, and held-out sentences; `UserError` when one of them is gone.

    Sentences that selected the checkpoint are left out, unless no other is held out; see
    `LanguageCER.used_for_selection`.
    """
    if language in base.front_end.languages:
        return base, evaluation.held_out_recordings(workspace, base, language)
    dataset = manifest.load(workspace.dataset(record.dataset))
    extension = records.read_record(workspace.extension(record.extension) / records.EXTENSION, ExtensionRecord)
    if extension.rows_hash != record.rows_hash:
        raise UserError("the extension was replaced since")
    untrained = load_extension(workspace, record.extension, base.device)
    verbalize = untrained.front_end.verbalize
    sentences = [HeldOutSentence(verbalize(clip.text, language), dataset.audio_path(clip))
                 for clip in dataset.split(HELD_OUT) if clip.language == language]
    return untrained, [one for one in sentences if one.text not in record.scored] or sentences


def _and_taught(base: TTSModel) -> str:
    """What is said of the languages that the base was taught before."""
    languages = ", ".join(one.record.language for one in base.taught)
    return f" and of the languages taught before ({languages})" if languages else ""


def _passed(good: bool) -> CheckOutcome:
    return "passed" if good else "failed"


def _tensor_checks(inputs: CertificateInputs) -> list[CertificateCheck]:
    base, finetuned = inputs.base, inputs.finetuned
    before, after = base_tensors(base.lm.module), base_tensors(finetuned.lm.module)
    tables = [*base.lm.text_tables, *(name for name in before if is_taught(name) and ".lora_" not in name)]
    expected = hash_tensors({name: before[name] for name in tables})
    actual = hash_tensors({name: after[name] for name in tables if name in after})
    equal = sum(name in after and torch.equal(before[name], after[name]) for name in before)
    changed = set(finetuned.changed) & set(before)
    frozen, frozen_after = (hash_tensors({name: value for name, value in tensors.items() if name not in changed})
                            for tensors in (before, after))
    checks = [
        CertificateCheck("prefix_rows", _passed(expected == actual), expected, actual,
                         f"The {base.front_end.size} base rows of {' and '.join(map(rows_name, base.lm.text_tables))} "
                         f"are those of the base file{' and of the languages taught before' if base.taught else ''}."),
        CertificateCheck("frozen_tensors", _passed(frozen == frozen_after),
                         f"{len(before) - len(changed)} tensors, {frozen}", f"{equal} equal, {frozen_after}",
                         f"Every tensor of the base model{_and_taught(base)} is unchanged." if not changed else
                         "Every frozen tensor of the base model is unchanged."),
    ]
    if changed:  # by the scope `full`
        moved = {name: (after[name].float() - before[name].float()) for name in changed}
        size = sum(value.numel() for value in moved.values())
        values = sum(int((value != 0).sum()) for value in moved.values())
        norms = [sum(part.float().square().sum().item() for part in parts) ** 0.5
                 for parts in (moved.values(), [before[name] for name in changed])]
        checks.append(CertificateCheck(
            "changed_tensors", "measured", "", f"{len(changed)} of {len(before)} tensors; {values:,} of {size:,} "
            f"numbers; by {norms[0] / max(norms[1], 1e-30):.3%} of their norm",
            "What the training changed of the base model itself."))
    trainer_hash = inputs.record.frozen_hash
    checks.append(CertificateCheck("frozen_in_training", _passed(trainer_hash == base.frozen_hash), base.frozen_hash,
                                   trainer_hash,
                                   "The hash of the frozen tensors that the trainer took when it saved this "
                                   "checkpoint is the base's."))
    return checks


@torch.inference_mode()
def _logits_check(inputs: CertificateInputs, progress: ProgressCallback) -> CertificateCheck:
    """Whether all base-language logits are bit-identical, or their drift."""
    base, finetuned, count = inputs.base, inputs.finetuned, len(inputs.probes)
    if not count:
        return CertificateCheck("base_logits", "not proven", "bit-identical",
                                "there were no base-language samples that the model could read",
                                "Logits of base-language samples before and after.")
    equal, largest, divergence = 0, 0.0, 0.0
    for done, item in enumerate(inputs.probes):
        progress(Progress(done, count, "probes", "compared"))
        with base.adapters_for(item.language):
            before = base.lm.probe(item.sample)
        with finetuned.adapters_for(item.language):
            after = finetuned.lm.probe(item.sample)
        old_text = after.text_logits[:, :before.text_logits.shape[1]]
        equal += equal_logits(before, after)
        largest = max(largest, (before.text_logits - old_text).abs().max().item(),
                      (before.speech_logits - after.speech_logits).abs().max().item())
        divergence += F.kl_div(after.speech_logits.float().log_softmax(-1),
                               before.speech_logits.float().log_softmax(-1), log_target=True,
                               reduction="batchmean").item()
    progress(Progress(count, count, "probes", "compared"))
    languages = {item.language for item in inputs.probes}
    actual = f"{equal} of {count} samples ({', '.join(sorted(languages))}) bit-identical"
    actual += probe_note(base)
    if unprobed := set(base.front_end.base_languages) - languages:
        actual += f"; not probed: {', '.join(sorted(unprobed))}"
    if equal < count:
        actual += f"; largest difference {largest:.3g}, mean divergence {divergence / count:.3g} nats a code"
    outcome: CheckOutcome = "measured" if finetuned.scope == "full" else _passed(equal == count)
    return CertificateCheck("base_logits", outcome, "bit-identical", actual,
                            f"Logits of base-language samples{_and_taught(base)} before and after, computed one after "
                            f"the other on {compute.numeric_environment(base.device)}.")


def _tokens_check(inputs: CertificateInputs) -> CertificateCheck:
    """Whether base-language sentences are encoded as before."""
    texts = [(language, sentence.text) for language in inputs.base.front_end.base_languages
             for sentence in evaluation.base_recordings(inputs.base, language)]
    texts += [(item.language, item.text) for item in inputs.probes if item.text]
    before, after = inputs.base.front_end, inputs.finetuned.front_end
    same = sum(np.array_equal(before.encode(text, language), after.encode(text, language)) for language, text in texts)
    return CertificateCheck("base_tokens", _passed(same == len(texts)) if texts else "not proven",
                            f"{len(texts)} sentences with unchanged ids", f"{same} sentences",
                            "Sentences of the base languages are encoded as before.")


def _language_errors(inputs: CertificateInputs, unchanged: Collection[str],
                     count: CombinedProgress) -> tuple[list[LanguageCER], list[str]]:
    """The errors of every language, before, after, and on the original recordings; and what is said of those reused.

    Where the path of a base language is `unchanged` to the bit, the finetuned model speaks a few of its sentences, and
    if they sound as the base's do, it has the base's errors. Otherwise both speak all: the base languages share
    batches, and a new one stands alone, because the base cannot read it. So before and after are computed in batches
    of the same shape, and what did not change is bit-identical and scored only once.
    """
    after = inputs.finetuned
    new_languages = [code for code in inputs.sentences if code in after.new_languages]
    reusable = [code for code in inputs.sentences if code not in new_languages and code in unchanged]
    same_sound = bool(reusable) and _sound_the_same(inputs, reusable)
    if not same_sound:
        reusable = []
    spoken_by_both = [code for code in inputs.sentences if code not in (*new_languages, *reusable)]
    found: dict[str, LanguageCER] = {}
    notes = []
    if reusable:
        scores = _base_scores(inputs, reusable, count)
        for code in reusable:
            spoken, recorded = (one.error if one.sentences else None for one in (scores.spoken[code],
                                                                                 scores.recorded[code]))
            found[code] = LanguageCER(code, False, scores.spoken[code].sentences, spoken, spoken, recorded)
        kept = f", kept as {inputs.base_scores.stem[5:17]}" if inputs.base_scores else ""
        notes.append(f"{', '.join(reusable)}: measured on the base {inputs.base.base_hash[:12]}{kept}, from which the "
                     f"path does not differ by a bit; {_SPOT_CHECK} sentences of each, spoken by both, are the same "
                     "sound")
    groups = [(inputs.base, spoken_by_both)] if spoken_by_both else []
    groups += [(inputs.sentences[code][0], [code]) for code in new_languages]
    for before, languages in groups:
        sentences = {code: inputs.sentences[code][1] for code in languages}
        size = sum(map(len, sentences.values()))
        results = [evaluation.evaluate_languages(inputs.evaluator, model, sentences, after.sampling,
                                                 count.part(size)) for model in (before, after)]
        for language, some in sentences.items():
            progress = count.part(sum(one.original is not None for one in some))
            three = [*(result[language][0] for result in results),
                     evaluation.evaluate_recordings(inputs.evaluator, language, some, progress)]
            before_cer, after_cer, original_cer = (score.error if score.sentences else None for score in three)
            new = language in new_languages
            used_for_selection = new and any(one.text in inputs.record.scored for one in some)
            found[language] = LanguageCER(language, new, three[1].sentences, before_cer, after_cer, original_cer,
                                          used_for_selection)
    return [found[language] for language in inputs.sentences], notes


_SPOT_CHECK = 4  # sentences of each base language that both models speak, where the path is equal to the bit


def _sound_the_same(inputs: CertificateInputs, languages: Sequence[str]) -> bool:
    """Whether base and finetuned model speak a few sentences of each of these languages as the same samples."""
    sentences = {code: evaluation.spread_evenly(inputs.sentences[code][1], _SPOT_CHECK) for code in languages}
    before, after = (evaluation.evaluate_languages(inputs.evaluator, model, sentences, inputs.finetuned.sampling)
                     for model in (inputs.base, inputs.finetuned))
    return all(len(before[code][1]) == len(after[code][1]) > 0
               and all(torch.equal(one.waveform, other.waveform)
                       for one, other in zip(before[code][1], after[code][1], strict=True)) for code in languages)


@dataclass(frozen=True)
class BaseScores:
    """Of a base model by language: the scores of what it speaks, and of the original recordings."""

    spoken: dict[str, CorpusScore]
    recorded: dict[str, CorpusScore]


def _base_scores(inputs: CertificateInputs, languages: Sequence[str], count: CombinedProgress) -> BaseScores:
    """The scores of these languages, computed once for a base model, a recogniser, sentences and a machine."""
    sentences = {code: inputs.sentences[code][1] for code in languages}
    spoken_size = 2 * sum(map(len, sentences.values()))  # of both models, as the count expects
    recorded_size = sum(one.original is not None for some in sentences.values() for one in some)
    path = inputs.base_scores
    if path is not None and path.is_file():
        with suppress(UserError):  # a damaged one is made again
            kept = loading.read_record(path, BaseScores, "It is made again.")
            if set(languages) <= set(kept.spoken):
                count.part(spoken_size + recorded_size)(Progress(1, 1, COUNTED, "measured before"))
                return kept
    spoken = evaluation.evaluate_languages(inputs.evaluator, inputs.base, sentences, inputs.finetuned.sampling,
                                           count.part(spoken_size))
    recorded = {code: evaluation.evaluate_recordings(inputs.evaluator, code, some,
                                                     count.part(sum(one.original is not None for one in some)))
                for code, some in sentences.items()}
    made = BaseScores({code: score for code, (score, _) in spoken.items()}, recorded)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dataclasses.asdict(made))
    return made


_VERSION = 3  # of what `core.proof.certify` computes; a new one makes all certificates out of date
_FOLDER = "certificates"  # in the workspace's cache


def compute_input_hash(workspace: Workspace, folder: Path, device: str, sentences: int) -> str:
    """The hash for the checkpoint in `folder`, computed on a kind of `device` with so many sentences a language."""
    record = records.read_record(folder / records.CHECKPOINT, CheckpointRecord)
    dataset = rows = ""
    with suppress(UserError):
        dataset = manifest.load_card(workspace.dataset(record.dataset)).fingerprint
    with suppress(UserError):
        rows = records.read_record(workspace.extension(record.extension) / records.EXTENSION, ExtensionRecord).rows_hash
    base = hash_tree(workspace.model(record.origin.model))
    recogniser = _recogniser(workspace, record.recogniser)
    values = [_VERSION, device, sentences, dataclasses.asdict(record), dataset, rows, base, recogniser]
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _recogniser(workspace: Workspace, name: str) -> object:
    """The identity of a recogniser: its record, or the state of files that the user has put there."""
    if name in ("", recognisers.BUILT_IN):
        return name
    try:
        folder = recognisers.locate(workspace, name)
    except UserError as error:  # its record is damaged, and it scores nothing
        return error.message
    assert folder is not None
    if (folder / MODEL_RECORD).is_file():
        return hash_file(folder / MODEL_RECORD)
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def find_certificate(workspace: Workspace, run: Path, input_hash: str) -> Certificate | None:
    """A certificate with this input hash: the run's own, or one that an export made."""
    for path in (run / certificate.CERTIFICATE, _path(workspace, input_hash)):
        with suppress(UserError):
            found = certificate.read(path)
            if found.input_hash == input_hash:
                return found
    return None


def store_certificate(workspace: Workspace, made: Certificate) -> None:
    """Store a certificate for the next export of the same; not where its recogniser was unavailable."""
    if not made.input_hash:
        return
    path = _path(workspace, made.input_hash)
    path.parent.mkdir(parents=True, exist_ok=True)
    certificate.write(path, made)


def _path(workspace: Workspace, input_hash: str) -> Path:
    return workspace.cache / _FOLDER / f"{input_hash}.json"
