"""Write a finetuned model for others: weights under the published names, front-end, certificate, card and samples.

The export is complete or not there. Its certificate is of the very files that are exported; one with the same inputs is
used again. The written files are loaded again and compared with the checkpoint before the export takes its name.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError

from config.errors import ErrorKind, UserError
from config.schema import ExportOptions, SamplingOptions
from core import compute
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import (
    CombinedProgress,
    Reporter,
    check_stop,
    duration_text,
    pluralize,
    progress_callback,
    stage,
)
from core.library import certificate, evaluation_report, learning, lineage, records, verification
from core.library.catalog import CatalogEntry, find_entry
from core.library.certificate import CERTIFICATE, Certificate, CertificateCheck
from core.library.learning import LearningReport
from core.library.lineage import Model
from core.library.records import (
    EXPORT_AGAIN_HINT,
    EXPORT_CARD,
    EXPORT_RECORD,
    EXPORT_SUMS,
    TRAINING_OPTIONS,
    ExportRecord,
    write_record,
)
from core.model import tensor_files
from core.model.loading import (
    TTSModel,
    assemble_export,
    export_record,
    load_checkpoint,
    load_merged,
    plain_tensors,
    write_earlier_trainings,
    write_sums,
)
from core.model.prefix import base_tensors, hash_tensors
from core.proof import certification
from core.speech import evaluation
from core.speech.scoring import load_recogniser_or_warn
from core.speech.synthesis import Synthesizer, join_chunks
from core.training.replay import ProbeSample
from core.workspace import Workspace, resolve_inside
from data import manifest
from data.acoustics import audio
from data.durable_files import atomic_directory, hash_file
from models.base import ExportFile

_STOPPED = ("Stopped on request: nothing was exported, and no partial files are left. The job can continue, with the "
            "certificate where that was made.")
# The bound relative to the largest logit: merged weights round otherwise than a sum of two products.
_MERGED_BOUND = 1e-3
# The file in the job's folder with the hash of `SUMS` of the export that it made.
_WRITTEN = "written.txt"
EXAMPLE, SAMPLES = "load_example.py", "samples"
_OWN_FILES = (
    (records.FRONT_END, "normaliser, tokenizer and language tags of every language"),
    (records.ADAPTER, "the adapters in peft's format; active for the new language alone, unless the scope is full"),
    (records.DECODER, "the decoder from codes to sound, trained on the recordings; used for the new language alone"),
    (records.EARLIER_TRAININGS, "rows and adapters of each earlier training; its adapters act on its languages alone"),
    (CERTIFICATE, "checks and errors, computed from the files that were exported"),
    (EXPORT_RECORD, "where the model comes from"),
    (TRAINING_OPTIONS, "the options it was trained with"),
    (EXAMPLE, "loads this export and speaks"),
    (EXPORT_SUMS, "SHA-256 of every file"),
)


def run(options: ExportOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write `exports/NAME`; a failed check of the certificate that no override names raises `UserError`."""
    target, note = resolve_inside(workspace.exports, options.export), reporter.directory / _WRITTEN
    # This job may have made the export before it was killed.
    if note.is_file() and (target / EXPORT_SUMS).is_file():
        records.check_export_files(target)
        if hash_file(target / EXPORT_SUMS) == note.read_text(encoding="utf-8"):
            proof = certificate.read(target / CERTIFICATE)
            result = verification.verify_export(workspace, target)
            if result.outcome.of_other_files:
                raise UserError(result.describe(), EXPORT_AGAIN_HINT)
            return _result(target, records.read_export_record(target), proof, _overridden(proof, options))
    run_ref = lineage.require_run(options.run)
    workspace.new_export(options.export)
    model_reference = Model.open(workspace, run_ref)
    ref, folder = f"run:{model_reference.name}@{model_reference.step}", model_reference.folder
    _check_learning(ref, learning.read_report(folder.parent.parent, records.read_checkpoint(folder).step), options)
    # Bit equality is claimed for the CPU.
    device = compute.setup_device("cpu")

    with stage(reporter, "certificate"):
        proof, model, count = _certificate(workspace, folder, device, reporter, speak=not options.unproven)
        check_names, overridden = [check.name for check in proof.checks], _overridden(proof, options)
        unknown = [name for name in options.override if name not in check_names]
        if unknown:
            raise UserError(f"There is no check named {', '.join(unknown)}.",
                            f"The checks are: {', '.join(check_names)}.")
        blocking = proof.blocking(options.override)
        if blocking:
            failed = [proof.check(name) for name in blocking]
            faults = "; ".join(f"{check.name}: wanted {check.expected}, got {check.actual}" for check in failed)
            raise UserError(f"The certificate of {proof.ref} has failed checks, so it is not exported: {faults}.",
                            f"Train again, or export it anyway (--override {' --override '.join(blocking)}; on the "
                            "page: Override failed checks).")
    check_stop(reporter, _STOPPED)

    record = _record(workspace, folder, model, options.export, proof)
    other_library = model.text_library_note()
    if other_library:
        reporter.emit(WarningRaised(other_library))
    if proof.learning.bad:
        reporter.emit(WarningRaised(f"{proof.describe()} The outcome was accepted."))
    for name in overridden:
        reporter.emit(WarningRaised(f"The check {name!r} failed and was overridden: {proof.check(name).actual}."))
    reporter.emit(Plan((f"{', '.join(record.languages)} and the languages of {record.origin.model}, from {ref} to "
                        f"{target.name}.",)))
    # The base, which the certificate compared with, is freed.
    gc.collect()
    with stage(reporter, "write"), atomic_directory(target) as aside:
        try:
            tensors = plain_tensors(model)
            merged = {**tensors, **model.adapters.merged_weights()} if model.adapters else None
            files = list(model.family.export(model.base_folder, aside, tensors, merged, model.front_end))
            if model.adapters:
                model.adapters.save(aside / records.ADAPTER)
            if model.decoder:
                tensor_files.write(aside / records.DECODER, model.decoder.tensors)
        except SafetensorError as error:
            raise UserError(f"{target} could not be written: {error}.", "Free space on the disk, then continue.",
                            ErrorKind.ENVIRONMENT) from error
        model.front_end.save(aside / records.FRONT_END)
        write_earlier_trainings(aside, model)
        records.write_training_options(aside, folder / records.CONFIG)
        write_record(aside / EXPORT_RECORD, record)
        check_stop(reporter, _STOPPED)

        texts = _sample_texts(workspace, model)
        # If the data is gone this is empty, and a voice of the model speaks.
        recording = evaluation.recording_of(workspace, model)
        checks, hashes = [], {name: hash_tensors({name: value}) for name, value in (merged or {}).items()}
        # These are gigabytes; two models at a time are enough to compare, and one to speak.
        del tensors, merged
        if hashes:
            checks.append(_merged_check(model, hashes, load_merged(aside, _merged_file(files), device), count))
        gc.collect()
        again = assemble_export(aside, device)
        checks.insert(0, _reload_check(workspace, model, again, count))
        del model
        gc.collect()

        # The codec must be the base's own, because the training could not change it.
        codec_check = certification.export_codec_check(workspace.model(record.origin.model), aside, again.family,
                                                       again.adapters is not None)
        if codec_check.result == "failed":
            raise UserError(f"The codec or vocoder of the export is not the base's: {codec_check.actual}.",
                            "Download the base model again, then export again.")
        of_checkpoint = (check for check in proof.checks if check.name != codec_check.name)
        proof = replace(proof, kind="export", checks=(*of_checkpoint, codec_check, *checks))
        certificate.write(aside / CERTIFICATE, proof)
        samples = _write_samples(aside, again, texts, recording, count)
        _write_texts(aside, workspace, record, proof, files, samples, overridden)
        checkpoint = f"run:{record.run}@{record.step}"
        evaluated = evaluation_report.find(
            workspace, record.run, record.step, lambda: verification.hash_model(workspace, checkpoint),
            lambda sentence: reporter.emit(WarningRaised(sentence)))
        if evaluated:
            proof = evaluation_report.attach(aside, *evaluated, proof)

        # The hashes are listed last, when every file is written.
        subject = verification.Subject.of_export(aside)
        proof = verification.bind(workspace, proof, verification.certified_files(subject),
                                  certificate.list_texts(aside))
        certificate.write(subject.certificate, proof)
        write_sums(aside)
        records.check_export_files(aside)
        note.write_text(hash_file(aside / EXPORT_SUMS), encoding="utf-8")
    return _result(target, record, proof, overridden)


def _check_learning(ref: str, report: LearningReport, options: ExportOptions) -> None:
    """Raise `UserError` for a model that learned nothing, unless that outcome is accepted."""
    if report.learning.bad and not options.accept_learning:
        raise UserError(f"{ref} is not exported: {learning.describe_report(report)}.",
                        f"{learning.advise(report)} Or export it anyway (--accept-learning; on the page: the checkbox "
                        "that names the outcome).")


def _overridden(proof: Certificate, options: ExportOptions) -> tuple[str, ...]:
    return tuple(name for name in proof.failed() if name in options.override)


def _certificate(workspace: Workspace, folder: Path, device: torch.device, reporter: Reporter,
                 speak: bool) -> tuple[Certificate, TTSModel, CombinedProgress]:
    """The certificate, computed only where none has the same inputs; the model; and the count of the work to do.

    Without `speak` it has the checks of the files alone, and says that the error rates are not proven yet.
    """
    input_hash = certification.compute_input_hash(workspace, folder, device.type, certification.SENTENCES)
    stored = certification.find_certificate(workspace, folder.parent.parent, input_hash)
    record = records.read_checkpoint(folder)
    subject = verification.Subject.of_checkpoint(workspace, folder, record)
    files = () if stored else verification.certified_files(subject)
    inputs = None if stored else certification.load_certificate_inputs(
        workspace, folder, device, certification.SENTENCES, input_hash,
        lambda message: reporter.emit(WarningRaised(message)))
    model = inputs.finetuned if inputs else load_checkpoint(workspace, folder, device)
    if inputs and not speak:

        inputs = certification.without_sentences(inputs)
    size = inputs.size if inputs else 0
    probes = _probes(workspace, model)
    remaining = len(probes) + len(_merged_probes(model)) + len(_sample_texts(workspace, model))
    count = CombinedProgress(progress_callback(reporter, _STOPPED), size + remaining, certification.PROGRESS_UNIT)
    if stored:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(stored.created))
        reporter.emit(Plan((f"The certificate of {created} was computed from the same files: it is used as it is.",)))
        return _with_training(stored, folder.parent.parent), model, count

    assert inputs is not None
    if not speak:
        reporter.emit(WarningRaised("It is exported before its certificate is complete: the error rates are "
                                    f"{certificate.NOT_PROVEN_YET}. Export it again when they are."))
    # The files are compared before and after, so the certificate is of the files that were read.
    proof = certification.compute_certificate(inputs, count.part(size))
    verification.check_unchanged(subject, files)
    proof = verification.bind(workspace, proof, files)
    certification.store_certificate(workspace, proof)
    return _with_training(proof, folder.parent.parent), model, count


def _with_training(proof: Certificate, run_dir: Path) -> Certificate:
    """`proof` with what the training measured, and whether it was in another workspace."""
    return replace(proof.with_learning(run_dir), trained_elsewhere=verification.is_trained_elsewhere(run_dir))


def _record(workspace: Workspace, checkpoint: Path, model: TTSModel, name: str, proof: Certificate) -> ExportRecord:
    source = records.read_checkpoint(checkpoint)
    errors = {item.language: item.recordings_cer for item in proof.errors if item.recordings_cer is not None}
    unmeasured = set(model.front_end.languages) - set(errors)
    # It warned before, so it is silent here.
    recogniser = load_recogniser_or_warn(workspace, model, lambda message: None, source, unmeasured)
    for language in unmeasured:
        error = evaluation.recordings_cer(workspace, model, recogniser, language)
        if error is not None:
            errors[language] = error
    new = tuple(code for code in model.front_end.languages if model.front_end.is_new(code))
    return ExportRecord(name, source.run, source.step, source.scope, source.dataset, new, model.origin,
                        evaluation.longest_texts(workspace, model), errors,
                        hash_tensors(base_tensors(model.lm.module)) if model.changed else "",
                        records.strip_folder(source.recogniser), source.recogniser_language, model.text_library,
                        source.imported)


def _probes(workspace: Workspace, model: TTSModel) -> list[ProbeSample]:
    """Samples of every language of `model`."""
    return [*certification.base_probes(model), *certification.earlier_language_probes(workspace, model),
            *certification.row_probes(model, model.new_languages)]


def _reload_check(workspace: Workspace, model: TTSModel, again: TTSModel, count: CombinedProgress) -> CertificateCheck:
    """The written files, loaded `again`, give tensors and logits bit-identical to the checkpoint's."""
    probes, equal = _probes(workspace, model), 0
    progress = count.part(len(probes))
    for done_count, item in enumerate(probes, 1):
        equal += same_logits(model, again, item)
        progress(Progress(done_count, len(probes), "probes", "of the written files compared"))
    tensors, reread = ({**base_tensors(loaded.lm.module), **plain_tensors(loaded),
                        **(loaded.adapters.tensors() if loaded.adapters else {}),
                        **(loaded.decoder.tensors if loaded.decoder else {})} for loaded in (model, again))
    same = sum(torch.equal(tensors[name], reread[name]) for name in tensors if name in reread)
    actual = f"{same} tensors and {equal} samples bit-identical"
    if equal != len(probes) or same != len(tensors) or set(tensors) != set(reread):
        raise UserError(f"The export does not reload as it was: {actual}.",
                        "The disk may be failing; continue to try again.", ErrorKind.ENVIRONMENT)
    expected = f"{len(tensors)} tensors and {len(probes)} samples bit-identical"
    return CertificateCheck("export_reloads", "passed", expected, actual,
                            "The exported files, loaded again, are the checkpoint.")


def _merged_probes(model: TTSModel) -> list[ProbeSample]:
    """Samples of the languages whose adapters are merged; none without adapters."""
    return certification.row_probes(model, model.new_languages) if model.adapters else []


def _merged_file(files: Sequence[ExportFile]) -> str:
    """The file with the adapters merged into the weights; empty when there is none."""
    return next((file.path for file in files if "merged" in file.path), "")


@torch.inference_mode()
def _merged_check(model: TTSModel, hashes: Mapping[str, str], again: TTSModel,
                  count: CombinedProgress) -> CertificateCheck:
    """The merged file, loaded `again`, has the tensors with the `hashes`, and predicts what the adapters do."""
    reread, probes, furthest = plain_tensors(again), _merged_probes(model), 0.0
    same = sum(hashes.get(name) == hash_tensors({name: value}) for name, value in reread.items())
    progress = count.part(len(probes))
    for done_count, item in enumerate(probes, 1):
        with model.adapters_for(item.language):
            expected_logits = model.lm.probe(item.sample)
        merged_logits = again.lm.probe(item.sample)
        for adapter_values, merged_values in ((expected_logits.text_logits, merged_logits.text_logits),
                                              (expected_logits.speech_logits, merged_logits.speech_logits)):
            furthest = max(furthest, float((adapter_values - merged_values).abs().max() / adapter_values.abs().max()))
        progress(Progress(done_count, len(probes), "probes", "of the merged file compared"))
    actual = f"{same} tensors bit-identical, logits of {len(probes)} samples {furthest:.1g} apart"
    if same != len(hashes) or set(hashes) != set(reread) or not furthest <= _MERGED_BOUND:
        raise UserError(f"The file with the adapters merged does not reload as it was: {actual}.",
                        "The disk may be failing; continue to try again.", ErrorKind.ENVIRONMENT)
    expected = (f"{len(hashes)} tensors bit-identical, logits of {len(probes)} samples at most {_MERGED_BOUND:.0e} of "
                "the largest one apart")
    return CertificateCheck("merged_reloads", "passed", expected, actual,
                            "The merged file, loaded again, predicts the new language as the adapters do.")


@torch.inference_mode()
def same_logits(model: TTSModel, reloaded: TTSModel, item: ProbeSample) -> bool:
    """Whether two models give bit-identical logits for one sample."""
    with model.adapters_for(item.language), reloaded.adapters_for(item.language):
        return certification.equal_logits(model.lm.probe(item.sample), reloaded.lm.probe(item.sample))


def _sample_texts(workspace: Workspace, model: TTSModel) -> list[tuple[str, str]]:
    """A held-out sentence of each language, new languages first."""
    languages = sorted(model.front_end.languages, key=lambda code: not model.front_end.is_new(code))
    texts = []
    for language in languages:
        sentences = evaluation.held_out_recordings(workspace, model, language)
        if sentences:
            texts.append((language, sentences[0].text))
    return texts


def _write_samples(folder: Path, model: TTSModel, texts: Sequence[tuple[str, str]],
                   voice: str, count: CombinedProgress) -> list[tuple[str, str, str]]:
    """A sentence of each language by the exported model in `voice`; path, language and text of each."""
    (folder / SAMPLES).mkdir()
    if not texts:
        return []
    synthesizer, samples = Synthesizer(model, voice, export_record(model).longest_texts), []
    streams = synthesizer.synthesize_batch(texts, SamplingOptions(), count.part(len(texts)))
    for (language, text), chunks in zip(texts, streams, strict=True):
        path = f"{SAMPLES}/{language}.wav"
        audio.save(folder / path, join_chunks(list(chunks)), synthesizer.sample_rate)
        samples.append((path, language, text))
    return samples


def _write_texts(folder: Path, workspace: Workspace, record: ExportRecord, proof: Certificate,
                 files: Sequence[ExportFile], samples: Sequence[tuple[str, str, str]],
                 overridden: tuple[str, ...]) -> None:
    source, clips, licence = "a source that is no longer in the workspace", "an unknown number of clips", ""
    if record.dataset in workspace.list_datasets():
        dataset = manifest.load_card(workspace.dataset(record.dataset))
        source, licence = f"`{Path(dataset.source).name or dataset.source}`", dataset.licence
        clips = f"{pluralize(dataset.clips, 'clip')} ({duration_text(dataset.duration_s)})"
    own_files = [(path, purpose) for path, purpose in _OWN_FILES if path in (EXAMPLE,
                                                                             EXPORT_SUMS) or (folder / path).exists()]
    facts = CardFacts(source, clips, (*((file.path, file.purpose) for file in files), *own_files), tuple(samples),
                      overridden, _merged_file(files), licence)
    (folder / EXPORT_CARD).write_text(card(record, proof, facts), encoding="utf-8")
    _, language, text = samples[0] if samples else ("", record.languages[0], "")
    (folder / EXAMPLE).write_text(load_example(language, text), encoding="utf-8")


def _result(target: Path, record: ExportRecord, proof: Certificate, overridden: Sequence[str]) -> Result:
    files = [path for path in target.rglob("*") if path.is_file()]
    return {
        "export": record.name, "path": f"exports/{record.name}", "ref": f"export:{record.name}",
        "run": record.run, "step": record.step, "scope": record.scope, "files": len(files),
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 2),
        **({} if proof.complete else {"certificate": certificate.NOT_PROVEN_YET}),
        "preservation": proof.describe_preservation(), "learning": proof.learning.value,
        "learning_outcome": learning.describe_report(proof.learning_report),
        "overridden": json.dumps(list(overridden)) if overridden else "",
        **{f"error_{item.language}": item.after for item in proof.errors},
        **{check.name: check.result for check in proof.checks},
    }


_SCOPES = {
    "rows": "Only the new rows were trained; the base languages are computed exactly as before.",
    "gated": "New rows were trained, and adapters that act on texts of the new language alone; "
             "the base languages are computed exactly as before.",
    "full": "New rows were trained, and the base's own weights or adapters, which act on every language; the "
            "certificate says how far the base languages moved, where it could be measured.",
}


_IMPORTED = {
    "rows": "It has new rows, and every tensor of the base as it was; the base languages are computed exactly as "
            "before.",
    "full": "It has new rows, and changed tensors of the base, which act on every language; the certificate says what "
            "was changed, and how far the base languages moved, where it could be measured.",
}


def _not_proven(certificate: Certificate) -> str:
    """What the card adds where no base-language results could be compared, or the sentences were not spoken yet."""
    check, languages = certificate.check("base_logits"), certificate.unproven_languages()
    base = ""
    if check.result == "not proven":
        base = f" **Not proven for the base languages**: {check.actual}."
    elif languages:
        base = f" **Not proven for some base languages**: {languages}."
    return base if certificate.complete else (
        f"{base} **Not proven yet**: it was exported before its certificate was complete; no error rate is known.")


@dataclass(frozen=True)
class CardFacts:
    """What the card says beyond record and certificate. `overridden` are failed checks that did not block."""

    dataset_source: str
    dataset_clips: str  # number and length of the clips, in words
    files: tuple[tuple[str, str], ...]  # path and purpose
    samples: tuple[tuple[str, str, str], ...]  # path, language and text
    overridden: tuple[str, ...]
    merged: str  # file with merged adapters; empty when there are none
    dataset_licence: str = ""  # licence named when the dataset was prepared


def card(record: ExportRecord, certificate: Certificate, facts: CardFacts) -> str:
    """README.md of the export."""

    base = find_entry(record.origin.family)
    languages = ", ".join(record.languages)
    parts = [
        f"# {record.name}",
        (f"{base.title} fine-tuned for {languages} elsewhere, and imported into Lisan from `{record.imported}` "
         f"(`{record.run}`, step {record.step})." if record.imported else
         f"{base.title} fine-tuned for {languages} with Lisan. Run `{record.run}`, step {record.step}."),
        (_IMPORTED[record.scope] if record.imported else _SCOPES[record.scope]) + _not_proven(certificate),
        *([f"**Base**: {certificate.base_note}."] if certificate.base_note else []),
        *_earlier_languages(record),
        f"**{certificate.describe()}**",
        *_failed(certificate, facts.overridden),
        "## What was learned", _learned(certificate),
        "## Intelligibility", _errors(certificate),
        "## What was preserved", _checks(certificate),
        "The certificate was computed from these files when the export was made: `certificate.json`. "
        f"{verification.NO_PROOF_OF_ORIGIN} Compare it with the files: `python -m scripts certify --check "
        f"export:{record.name}`. Compute it again: `python -m scripts certify --again --run export:{record.name}`.",
        "## Data and licence",
        f"- Base model: {base.title}, licence {base.licence}.\n"
        + ("- Its training data is not known here: make sure that its licence allows what you do with this model."
           if record.imported and not record.dataset else
           f"- Dataset `{record.dataset}`: {facts.dataset_clips}, from {facts.dataset_source}"
           f"{_licence(facts.dataset_licence)}"),
        *_licence_notices(base),
        "## How to load it",
        "With a checkout of Lisan and its requirements installed:\n\n"
        "    PYTHONPATH=path/to/lisan python load_example.py\n\n"
        "Copied into `exports/` of a workspace, it is `export:" + record.name + "` in the app and on the command line.",
        *_merged(record, facts.merged),
        "## Samples", "\n".join(f"- [{path}]({path}) ({language}): {text}" for path, language, text in facts.samples)
        or "None: there were no held-out sentences.",
        "## Files", "\n".join(f"- `{path}`: {purpose}" for path, purpose in facts.files),
    ]
    return "\n\n".join(parts) + "\n"


def _earlier_languages(record: ExportRecord) -> list[str]:
    """The languages that the model had before the last extension, besides those of the base."""
    earlier = record.origin.earlier_trainings
    listed = ", ".join(f"{', '.join(training.languages)} (`{training.source}`)" for training in earlier)
    return [f"Earlier trainings added: {listed}. Each has its rows and adapters in `{records.EARLIER_TRAININGS}`, "
            "which this training could not change; the checks below cover these languages like those of the base."
            ] if earlier else []


def _licence(licence: str) -> str:
    if licence:
        return f", licence {' '.join(licence.split())}."
    return ". Its licence is not recorded here: make sure that it allows what you do with this model."


def _licence_notices(base: CatalogEntry) -> list[str]:
    """The licences that the base's parts come under, and what they want to be said word for word."""
    terms = [f"- {licence.name}: [{licence.title}]({licence.url}). {licence.terms}"
             + (f" Its text: {', '.join(f'[{name}]({name})' for name in licence.files)}." if licence.files else "")
             for licence in base.licences]
    notices = [f"> {licence.notice}" for licence in base.licences if licence.notice]
    return ["Parts of the base model come under these licences, which bind whoever uses this model:",
            "\n".join(terms), *notices] if terms else []


def _failed(certificate: Certificate, overridden: Sequence[str]) -> list[str]:
    if not overridden:
        return []
    rows = "\n".join(f"- `{name}`: wanted {certificate.check(name).expected}; got {certificate.check(name).actual}"
                     for name in overridden)
    return [f"**Exported in spite of failed checks:**\n\n{rows}"]


def _errors(certificate: Certificate) -> str:
    if not certificate.complete:
        return "Not proven yet: it was exported before its certificate was complete."
    if not certificate.errors:
        actual = next((f" ({check.actual})" for check in certificate.checks
                       if check.name == "character_error_rates" and check.actual), "")
        return f"Not measured: there were no held-out sentences in a language that the recogniser knows{actual}."
    rows = [f"| {item.language}{' (new)' if item.new else ''} | {item.sentences} | {_percent(item.before)} | "
            f"{_percent(item.after)} | {_percent(item.recordings_cer)} |" for item in certificate.errors]
    return ("Character error rate of held-out sentences, by the recogniser that comes with the model or, for a new "
            "language, by the one that `training.yaml` names as `recogniser`. Its own error on original recordings is "
            "the last column: no synthesized speech can be expected below it.\n\n"
            "| language | sentences | before | after | recordings |\n|---|---|---|---|---|\n" + "\n".join(rows)
            + "".join(f"\n\n{item.language}: measured by {item.measured_by}, which is not independent of it."
                      for item in certificate.errors if item.measured_by)
            + _selection_note([item.language for item in certificate.errors if item.used_for_selection]))


def _learned(certificate: Certificate) -> str:
    """The outcome of the training, and what it was decided from."""
    report = certificate.learning_report
    rows = [f"| {language} | {title} | {value} |" for language, title, value in learning.measurement_rows(report)]
    table = "| language | measure | value |\n|---|---|---|\n" + "\n".join(rows) if rows else ""
    advice = f" {learning.advise(report)}" if report.learning.bad else ""
    words = learning.describe_report(report)
    return "\n\n".join(filter(None, [f"{words[:1].upper()}{words[1:]}.{advice}", table]))


def _selection_note(languages: Sequence[str]) -> str:
    """The bias of a CER on the sentences that selected the checkpoint."""
    if not languages:
        return ""
    return (f"\n\nThe error of {', '.join(languages)} was measured on the sentences that selected the checkpoint, "
            "because no others were held out: on sentences that had no part in the training it can be higher.")


def _checks(certificate: Certificate) -> str:
    rows = [f"| `{check.name}` | {check.result} | {check.what} | {_short(check.actual)} |"
            for check in certificate.checks]
    return "| check | result | what | got |\n|---|---|---|---|\n" + "\n".join(rows)


def _merged(record: ExportRecord, merged: str) -> list[str]:
    if not merged:
        return []
    earlier = record.origin.earlier_languages
    languages = ", ".join(code for code in record.languages if code not in earlier)
    return [f"`{merged}` has the adapters merged into the weights, for programs that know no adapters. It speaks "
            f"{languages} like the rest of this export, but it CHANGES the {', '.join(['base languages', *earlier])}: "
            "the certificate does not hold for it."]


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"


def _short(text: str) -> str:
    return (text if len(text) <= 80 else text[:77] + "...").replace("|", "/")


def load_example(language: str, text: str) -> str:
    """A script that stands in the export, loads it and speaks."""
    return f'''"""Load this export with Lisan and speak.

PYTHONPATH=path/to/lisan python load_example.py [LANGUAGE TEXT [VOICE]]

VOICE is a voice of the model, or a reference recording: a model that comes without voices needs one.
"""

import sys
from pathlib import Path

import torch

from config.schema import SamplingOptions
from core.model.loading import export_record, load_export
from core.speech.synthesis import Synthesizer, join_chunks
from data.acoustics import audio

folder = Path(__file__).resolve().parent
language, text = sys.argv[1:3] if len(sys.argv) > 2 else ({language!r}, {text!r})
voice = sys.argv[3] if len(sys.argv) > 3 else ""

model = load_export(folder, torch.device("cpu"))
synthesizer = Synthesizer(model, voice, export_record(model).longest_texts)
chunks = list(synthesizer.synthesize(text, language, SamplingOptions()))
audio.save("speech.wav", join_chunks(chunks), synthesizer.sample_rate)
print(f"speech.wav: {{sum(len(chunk.waveform) for chunk in chunks) / synthesizer.sample_rate:.2f}} s")
'''
