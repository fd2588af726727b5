"""Compute a certificate: the checkpoint is loaded again from its files and compared with the base.

Nothing comes from the memory of the run but one hash that the trainer wrote when it saved. Probes are teacher-forced
samples of every base language that were never trained on.
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from config.errors import UserError
from config.languages import language_name
from core import compute
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.library import certificate, records
from core.library.certificate import Certificate, CertificateCheck, CheckOutcome, LanguageCER
from core.library.records import MODEL_RECORD, CheckpointRecord, ExtensionRecord
from core.model.loading import TTSModel, load_checkpoint, load_extension, model_before
from core.model.prefix import base_tensors, hash_tensors, is_taught, rows_name
from core.sources import recognisers
from core.speech import evaluation
from core.speech.evaluation import CorpusScore, EvaluatedSentence, HeldOutSentence, PreparedVoices, SpeechEvaluator
from core.speech.scoring import load_recogniser_or_warn, unmeasured_reason
from core.training import replay
from core.training.dataloader import Utterance, make_utterance
from core.training.replay import ProbeSample
from core.workspace import Workspace
from data import manifest
from data.durable_files import append_text, hash_file, hash_tree, write_bytes
from data.manifest import HELD_OUT
from models.base import Generated, RecognitionScore, Sample, SampleLogits

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
    score_cache: ScoreCache
    input_hash: str = ""

    @property
    def size(self) -> int:
        """Sentences to speak, recordings to score and probes to compare, where the base languages did not change."""
        amount = _amount(self, self.probed)
        return len(self.probes) + amount["spoken"] + amount["recorded"]

    @property
    def probed(self) -> set[str]:
        """Languages whose path may be equal to the bit."""
        return {item.language for item in self.probes} if self.finetuned.scope != "full" else set()


def compute_certificate(inputs: CertificateInputs, progress: ProgressCallback = no_progress) -> Certificate:
    """The certificate; `progress` gets one count over every sentence and probe, and the time that is left."""
    work = Work(progress)
    probed = inputs.probed
    work.plan(compared=len(inputs.probes), **_amount(inputs, probed))
    record = inputs.record
    expected, actual = record.origin.fingerprint, inputs.finetuned.front_end.fingerprint
    with compute.deterministic():
        logits_check = _logits_check(inputs, work)
    proofs = (*_tensor_checks(inputs), logits_check, _tokens_check(inputs))
    if not all(check.result == "passed" for check in proofs):
        work.plan(**_amount(inputs, probed, -1))
        work.plan(**_amount(inputs, probed := set()))
    errors, reused = _language_errors(inputs, probed, work)
    rates = [f"{item.language} {item.after:.1%}{SELECTION_NOTE if item.used_for_selection else ''}"
             for item in errors if item.after is not None]
    rates += [f"{', '.join(codes)}: {reason}" for reason, codes in inputs.missing.items()] + reused
    checks = (
        *proofs,
        CertificateCheck("front_end", _passed(expected == actual), expected, actual,
                         "The tokenizer is the one of the new rows."),
        CertificateCheck(certificate.ERROR_RATES, "measured" if errors else "not proven", "", "; ".join(rates),
                         "Character error rate of held-out sentences synthesized by the finetuned model."),
    )
    return Certificate(f"run:{record.run}@{record.step}", record.run, record.step, record.scope, record.origin.model,
                       record.extension, inputs.base.base_hash, actual, time.time(), checks, tuple(errors),
                       inputs.input_hash, inputs.finetuned.new_languages)


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


def without_sentences(inputs: CertificateInputs) -> CertificateInputs:
    """The inputs of a certificate that is not complete: no sentence is spoken, and it is not used again."""
    languages = list(inputs.finetuned.front_end.languages)
    return replace(inputs, sentences={}, missing={certificate.NOT_PROVEN_YET: languages}, input_hash="")


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
    """Every row that was added for `languages`, as texts of them over `LanguageModel.probe_features`."""
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
    probes = row_probes(model, model.origin.taught_languages)
    voice = next(iter(model.family.load_voices(model.base_folder).values()), None)
    features = model.lm.probe_features(voice)
    for language in model.origin.taught_languages:
        clips = list[Utterance]()
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
    evaluator = SpeechEvaluator.of(base, recogniser, recording)
    found: dict[str, tuple[TTSModel, list[HeldOutSentence]]] = {}
    missing: dict[str, list[str]] = {}
    untrained: TTSModel | None = None
    for language in finetuned.front_end.languages:
        try:
            sentences = _held_out(workspace, base, finetuned, record, language)
            if not sentences:
                raise UserError("there are no held-out sentences")
            if not evaluator.can_score(language):
                reason = unmeasured_reason(recogniser, language)
                raise UserError(f"not measured, because {reason}" if reason else "no recogniser knows it")
            if (new := language not in base.front_end.languages) and untrained is None:  # a whole model more
                untrained = load_extension(workspace, record.extension, base.device)
        except UserError as error:
            missing.setdefault(error.message, []).append(language)
            continue
        found[language] = untrained if new and untrained else base, evaluation.spread_evenly(sentences, count)
    probes = [*base_probes(base), *taught_probes(workspace, base)]
    values = [_VERSION, hash_tree(base.base_folder), _recogniser(workspace, record.recogniser),
              record.recogniser_language, hash_file(Path(recording)) if recording else "",
              dataclasses.asdict(finetuned.sampling), compute.numeric_environment(base.device)]
    score_cache = ScoreCache(workspace.cache / _FOLDER, _hash(values))
    return CertificateInputs(base, finetuned, record, probes, evaluator, found, missing, score_cache)


def _hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _held_out(workspace: Workspace, base: TTSModel, finetuned: TTSModel, record: CheckpointRecord,
              language: str) -> list[HeldOutSentence]:
    """Held-out sentences; `UserError` when they, or the extension that is to speak them as well, are gone.

    Sentences that selected the checkpoint are left out, unless no other is held out; see
    `LanguageCER.used_for_selection`.
    """
    if language in base.front_end.languages:
        return evaluation.held_out_recordings(workspace, base, language)
    dataset = manifest.load(workspace.dataset(record.dataset))
    extension = records.read_record(workspace.extension(record.extension) / records.EXTENSION, ExtensionRecord)
    if extension.rows_hash != record.rows_hash:
        raise UserError("the extension was replaced since")
    verbalize = finetuned.front_end.verbalize
    sentences = [HeldOutSentence(verbalize(clip.text, language), dataset.audio_path(clip))
                 for clip in dataset.split(HELD_OUT, language)]
    return [one for one in sentences if one.text not in record.scored] or sentences


def _and_taught(base: TTSModel) -> str:
    """What is said of the languages that the base was taught before."""
    languages = ", ".join(base.origin.taught_languages)
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
def _logits_check(inputs: CertificateInputs, work: Work) -> CertificateCheck:
    """Whether all base-language logits are bit-identical, or their drift."""
    base, finetuned, count = inputs.base, inputs.finetuned, len(inputs.probes)
    if not count:
        return CertificateCheck("base_logits", "not proven", "bit-identical",
                                "there were no base-language samples that the model could read",
                                "Logits of base-language samples before and after.")
    equal, largest, divergence = 0, 0.0, 0.0
    for item in inputs.probes:
        with work.doing("compared", 1, "(probes compared)"):
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
                     work: Work) -> tuple[list[LanguageCER], list[str]]:
    """The errors of every language, before, after, and on the original recordings; and what is said of those reused.

    Where the path of a base language is `unchanged` to the bit, the finetuned model speaks a few of its sentences, and
    if they sound as the base's do, it has the base's errors. Otherwise both speak all: the base languages share
    batches, and a new one stands alone, because the base cannot read it. So before and after are computed in batches
    of the same shape, and what did not change is bit-identical and scored only once.
    """
    after = inputs.finetuned
    new_languages = [code for code in inputs.sentences if code in after.new_languages]
    reusable = [code for code in inputs.sentences if code not in new_languages and code in unchanged]
    others = [code for code in inputs.sentences if code not in (*new_languages, *reusable)]
    recordings = {code: _corpus_score(code, _score_recordings(inputs, code, sentences, work))
                  for code, (_, sentences) in inputs.sentences.items()}  # first: it tells the time left
    same_sound = bool(reusable) and _sound_the_same(inputs, reusable, work)
    if reusable and not same_sound:
        more = sum(len(inputs.sentences[code][1]) for code in reusable)
        work.plan(spoken=more, generated=more)
        others, reusable = [*reusable, *others], []

    errors: dict[str, tuple[CorpusScore, CorpusScore]] = {}
    for before, languages in ((inputs.base, reusable), (inputs.base, others),
                              *((inputs.sentences[code][0], [code]) for code in new_languages)):
        sentences = {code: inputs.sentences[code][1] for code in languages}
        scores = _speak(inputs, before, sentences, work) if languages else {}
        scores_after = scores if languages == reusable else _speak(inputs, after, sentences, work)
        errors |= {code: (_corpus_score(code, scores[code]), _corpus_score(code, scores_after[code]))
                   for code in languages}
    found, notes = [], list[str]()
    for code, (_, held_out) in inputs.sentences.items():
        before_cer, after_cer, original_cer = (score.error if score.sentences else None
                                               for score in (*errors[code], recordings[code]))
        used_for_selection = code in new_languages and any(one.text in inputs.record.scored for one in held_out)
        found.append(LanguageCER(code, code in new_languages, errors[code][1].sentences, before_cer, after_cer,
                                 original_cer, used_for_selection))
    if reusable:
        notes.append(f"{', '.join(reusable)}: measured on the base {inputs.base.base_hash[:12]}, kept as "
                     f"{inputs.score_cache.key[:12]}, from which the path does not differ by a bit; {_SPOT_CHECK} "
                     "sentences of each, spoken by both, are the same sound")
    return found, notes


def _amount(inputs: CertificateInputs, unchanged: Collection[str], sign: int = 1) -> dict[str, int]:
    """How many sentences are spoken and recorded where the languages in `unchanged` are spoken by the base alone."""
    spoken = recorded = 0
    for code, (_, sentences) in inputs.sentences.items():
        reusable = code in unchanged and code not in inputs.finetuned.new_languages
        spoken += len(sentences) + 2 * min(_SPOT_CHECK, len(sentences)) if reusable else 2 * len(sentences)
        recorded += sum(one.original is not None for one in sentences)
    return {"spoken": sign * spoken, "generated": sign * spoken, "recorded": sign * recorded}


_SPOT_CHECK = 4  # sentences of each base language that both models speak, where the path is equal to the bit


def _sound_the_same(inputs: CertificateInputs, languages: Sequence[str], work: Work) -> bool:
    """Whether base and finetuned model speak a few sentences of each of these languages as the same samples."""
    sentences = {code: evaluation.spread_evenly(inputs.sentences[code][1], _SPOT_CHECK) for code in languages}
    before, after = (_speak(inputs, model, sentences, work) for model in (inputs.base, inputs.finetuned))
    return all(before[code] and [one.sound for one in before[code]] == [one.sound for one in after[code]]
               for code in languages)


def _speak(inputs: CertificateInputs, model: TTSModel, sentences: Mapping[str, Sequence[HeldOutSentence]],
           work: Work) -> dict[str, list[SentenceScore]]:
    """The scores of the sentences that `model` can read, by language; those that are kept are not spoken again.

    A batch whose codes are there is not generated again, and equal codes in the same voice are the same sound.
    """
    evaluator, cache, prepared = inputs.evaluator, inputs.score_cache, PreparedVoices()
    items = evaluator.with_voices(model, evaluation.readable_texts(model, sentences))
    unreadable = sum(map(len, sentences.values())) - len(items)
    work.plan(spoken=-unreadable, generated=-unreadable)
    weights = cache.weights_hash(model)
    found: dict[str, list[SentenceScore]] = {code: [] for code in sentences}
    for batch in evaluation.in_batches(items):
        batch_key = _hash([cache.key, weights, model.front_end.fingerprint, model.scope, batch])
        keys = [f"{batch_key}-{number}" for number in range(len(batch))]
        if all(cache.find(key) for key in keys):
            generated = list[Generated]()
            work.plan(generated=-len(batch))
        else:
            generated = cache.read_batch(batch_key)
            note = f"({language_name(batch[0].language)} sentences generated)"
            with work.doing("generated", len(batch), note, known=bool(generated)):
                if not generated:
                    generated = evaluator.generate(model, batch, inputs.finetuned.sampling, prepared)
                    cache.write_batch(batch_key, generated)
        for number, (key, item) in enumerate(zip(keys, batch, strict=True)):
            codes, score = "", cache.find(key)
            if score is None:
                one = generated[number]
                states = b"" if one.hidden_states is None else one.hidden_states.float().cpu().numpy().tobytes()
                codes = _hash([cache.key, item, model.front_end.verbalize(item.text, item.language),
                               hashlib.sha256(one.codes.tobytes() + states).hexdigest()])
                score = cache.find(codes)
            with work.doing("spoken", 1, f"({language_name(item.language)} sentences spoken)", known=bool(score)):
                if score is None:
                    score = SentenceScore.of(evaluator.decode(model, item, one))
                if codes:
                    cache.add(score, key, codes)
            found[item.language].append(score)
        cache.remove_batch(batch_key)
    model.lm.free_buffers()
    return found


def _score_recordings(inputs: CertificateInputs, language: str, sentences: Sequence[HeldOutSentence],
                      work: Work) -> list[SentenceScore]:
    """The scores of the original recordings that are there."""
    evaluator, cache, found = inputs.evaluator, inputs.score_cache, []
    for one in sentences:
        if one.original is None:
            continue
        key = _hash([cache.key, language, one.text, hash_file(one.original)])
        score = cache.find(key)
        with work.doing("recorded", 1, f"({language_name(language)} sentences recorded)", known=bool(score)):
            if score is None:
                score = SentenceScore.of_recording(evaluation.score_recording(evaluator, language, one))
                cache.add(score, key)
        found.append(score)
    return found


def _corpus_score(language: str, scores: Sequence[SentenceScore]) -> CorpusScore:
    return CorpusScore(language, len(scores), sum(one.edits for one in scores), sum(one.letters for one in scores))


@dataclass(frozen=True)
class SentenceScore:
    """What a recogniser said of one sentence: edits to its transcript, and letters of the text."""

    edits: int
    letters: int
    sound: str = ""  # SHA-256 of the samples; empty for a recording

    @classmethod
    def of(cls, spoken: EvaluatedSentence) -> SentenceScore:
        """Of a sentence that was spoken and scored."""
        assert spoken.score is not None
        samples = spoken.waveform.float().cpu().contiguous().numpy().tobytes()
        return cls(spoken.score.edits, len(spoken.score.reference), hashlib.sha256(samples).hexdigest())

    @classmethod
    def of_recording(cls, score: RecognitionScore) -> SentenceScore:
        """Of an original recording."""
        return cls(score.edits, len(score.reference))


class ScoreCache:
    """The scores of sentences, appended to a file one by one, so that no sentence is spoken twice.

    `key` is the hash of what all of them depend on: base model, recogniser, sampling, machine. A sentence has keys of
    its own besides: the weights and the batch it was generated in, and its codes. A line that was cut off is left out.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.key, self._folder, self._path = key, folder, folder / f"scores-{key}.jsonl"
        self._known: dict[str, SentenceScore] = {}
        self._weights: dict[int, str] = {}
        folder.mkdir(parents=True, exist_ok=True)
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines() if self._path.is_file() else ()
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):
                values = json.loads(line)
                score = SentenceScore(int(values["edits"]), int(values["letters"]), str(values["sound"]))
                self._known |= {str(name): score for name in values["keys"]}

    def weights_hash(self, model: TTSModel) -> str:
        """The hash of every tensor of the language model, its rows and adapters among them."""
        if id(model) not in self._weights:
            self._weights[id(model)] = hash_tensors(model.lm.module.state_dict())
        return self._weights[id(model)]

    def find(self, key: str) -> SentenceScore | None:
        """The score that was kept for `key`."""
        return self._known.get(key)

    def add(self, score: SentenceScore, *keys: str) -> None:
        """Keep a score; it is in the file when this returns."""
        append_text(self._path, json.dumps({"keys": keys, **dataclasses.asdict(score)}) + "\n")
        self._known |= dict.fromkeys(keys, score)

    def write_batch(self, key: str, generated: Sequence[Generated]) -> None:
        """Keep the codes of a batch until its sentences are scored."""
        arrays = {f"codes-{number}": one.codes for number, one in enumerate(generated)}
        arrays |= {f"states-{number}": one.hidden_states.float().cpu().numpy() for number, one in enumerate(generated)
                   if one.hidden_states is not None}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        write_bytes(self._batch(key), buffer.getvalue(), sync=False)

    def read_batch(self, key: str) -> list[Generated]:
        """The codes of a batch; empty where there are none, or they are damaged."""
        with suppress(OSError, ValueError, KeyError, zipfile.BadZipFile), np.load(self._batch(key)) as arrays:
            return [Generated(arrays[f"codes-{number}"], "stop", torch.from_numpy(arrays[f"states-{number}"])
                              if f"states-{number}" in arrays else None)
                    for number in range(sum(name.startswith("codes-") for name in arrays))]
        return []

    def remove_batch(self, key: str) -> None:
        """Remove the codes of a batch."""
        self._batch(key).unlink(missing_ok=True)

    def _batch(self, key: str) -> Path:
        return self._folder / f"codes-{key}.npz"


_MEASURED_SENTENCES = 3  # spoken before the time that is left is told


class Work:
    """Counts what a certificate does, and says what time is left by what each kind of it took so far.

    A batch is generated at once and then decoded sentence by sentence, so that a plain rate would be wrong by far.
    What was kept is counted, and takes no time.
    """

    def __init__(self, progress: ProgressCallback, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress, self._clock = progress, clock
        self._left, self._done, self._timed = Counter[str](), Counter[str](), Counter[str]()
        self._seconds = dict.fromkeys(("compared", "generated", "spoken", "recorded"), 0.0)

    def plan(self, **more: int) -> None:
        """Add so much work of each kind; a negative number is not to be done after all."""
        self._left.update(more)

    @contextmanager
    def doing(self, kind: str, count: int, note: str, known: bool = False) -> Iterator[None]:
        """Report before a piece of work, and count it after; `known`: it was kept."""
        self._report(note)
        start = self._clock()
        yield
        self._left[kind] -= count
        self._done[kind] += count
        if not known:
            self._timed[kind] += count
            self._seconds[kind] += self._clock() - start
        self._report(note)

    def seconds_left(self) -> float | None:
        """None until some sentences were spoken, unless nothing is left to speak."""
        if self._timed["spoken"] < _MEASURED_SENTENCES and self._left["spoken"] > 0:
            return None
        each = {kind: self._seconds[kind] / self._timed[kind] for kind in self._seconds if self._timed[kind]}
        return sum(each.get(kind, 0.0) * max(0, count) for kind, count in self._left.items())

    def _report(self, note: str) -> None:
        done, left = (sum(counts[kind] for kind in ("compared", "spoken", "recorded"))
                      for counts in (self._done, self._left))
        seconds_left = self.seconds_left()
        rate = 0.0 if seconds_left is None else self._timed["spoken"] / max(1e-9, self._seconds["spoken"])
        self._progress(Progress(done, done + left, COUNTED, note, round(rate, 3),
                                None if seconds_left is None else round(seconds_left, 1)))


_VERSION = 4  # of what `core.proof.certify` computes; a new one makes all certificates out of date
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
    return _hash(values)


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
