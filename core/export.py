"""Write a finetuned model for others: weights under the published names, front-end, certificate, card and samples.

The export is whole or not there. Its certificate is of the very files that are exported: one
that rests on the same is taken, and else it is computed. The written files are loaded again and
held against the checkpoint before the export takes its name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError

from config.errors import UserError
from config.schema import ExportOptions, SamplingOptions
from core import compute
from core.job.counting import OneCount
from core.job.journal import Plan, Progress, Result, Warned
from core.job.reporter import Reporter, check_stop, counted, stage, telling
from core.library import catalog, exports, exports_record, model_card, records
from core.library.aside import written_aside
from core.library.catalog import resolve
from core.library.exports_record import CERTIFICATE, RECORD, SUMS, TRAINING, ExportRecord, write_record
from core.library.model_card import CardFacts
from core.library.records import CheckpointRecord, hash_file
from core.proof import certificate, certify, rests_on
from core.proof.certificate import Certificate, Check
from core.speech import evaluate, originals
from core.speech.judges import judge_of
from core.speech.speak import Speaker, joined
from core.training import replay
from core.voice_model.loading import VoiceModel, load_checkpoint
from core.voice_model.prefix import base_tensors, hash_tensors, new_rows
from core.workspace import Workspace, resolve_inside
from data import audio, manifest
from models.base import ExportFile

_STOPPED = ("Stopped on request: nothing was exported, and nothing half made is left. The job can continue, with the "
            "certificate where that was made.")
_WRITTEN = "written.txt"  # in the job's folder: the hash of `SUMS` of the export that it made
README, EXAMPLE, SAMPLES = "README.md", "load_example.py", "samples"
_OWN_FILES = (
    (records.FRONT_END, "normaliser, tokenizer and language tags of every language"),
    (records.ADAPTER, "the adapters in peft's format; active for the new language alone, unless the scope is full"),
    (CERTIFICATE, "checks and errors, computed from the files that were exported"),
    (RECORD, "where the model comes from"),
    (TRAINING, "the options it was trained with"),
    (EXAMPLE, "loads this export and speaks"),
    (SUMS, "SHA-256 of every file"),
)


@dataclass(frozen=True)
class Sample:
    """A spoken sentence in the export."""

    path: str
    language: str
    text: str


def run(options: ExportOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write `exports/NAME`; a failed check of the certificate that no override names raises `UserError`."""
    target = resolve_inside(workspace.exports, options.export)
    if _made_before(target, reporter.directory):
        record, proof = exports_record.read_record(target), certificate.read(target / CERTIFICATE)
        return _result(target, record, proof, _overridden(proof, options))
    ref = _checked(options, workspace)
    folder, device = resolve(workspace, ref).folder, compute.prepare("cpu")  # bit equality is claimed for it
    with stage(reporter, "certificate"):
        proof, model, tell = _certified(workspace, folder, device, reporter)
        _block(proof, options.override)
    check_stop(reporter, _STOPPED)
    record = _record(workspace, ref, model, options.export, proof)
    overridden = _overridden(proof, options)
    for name in overridden:
        reporter.emit(Warned(f"The check {name!r} failed and was overridden: {proof.check(name).seen}."))
    languages = ", ".join(record.languages)
    reporter.emit(Plan((f"{languages} and the languages of {record.origin.model}, from {ref} to {target.name}.",)))
    with stage(reporter, "write"), _disk_explained(target), written_aside(target) as aside:
        files = _write_model(aside, model, record, folder)
        check_stop(reporter, _STOPPED)
        proof = _with_reload(aside, model, proof, tell)
        certificate.write(aside / CERTIFICATE, proof)
        samples = _speak(aside, workspace, model, tell)
        _write_texts(aside, workspace, record, proof, files, samples, overridden)
        exports.write_sums(aside)
        exports.check(aside)
        (reporter.directory / _WRITTEN).write_text(hash_file(aside / SUMS), encoding="utf-8")
    return _result(target, record, proof, overridden)


def _made_before(target: Path, job: Path) -> bool:
    """Whether this job, before it was cut off, has made just the export that is there."""
    note = job / _WRITTEN
    if not note.is_file() or not (target / SUMS).is_file():
        return False
    exports_record.check(target)
    return hash_file(target / SUMS) == note.read_text(encoding="utf-8")


def _certified(workspace: Workspace, folder: Path, device: torch.device,
               reporter: Reporter) -> tuple[Certificate, VoiceModel, OneCount]:
    """The certificate, made only where none rests on the same; the model; and the count of what is still to do."""
    wanted = rests_on.content(workspace, folder, device.type, certify.SENTENCES)
    kept = rests_on.find(workspace, folder.parent.parent, wanted)
    work = None if kept else certify.prepare(workspace, folder, device, certify.SENTENCES, wanted,
                                             lambda message: reporter.emit(Warned(message)))
    model = work.finetuned if work else load_checkpoint(workspace, folder, device)
    size = work.size if work else 0
    still = len(_probes(model)) + len(_texts(workspace, model))
    count = OneCount(telling(reporter, _STOPPED), size + still, certify.COUNTED)
    if kept:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(kept.created))
        reporter.emit(Plan((f"The certificate of {made} rests on the same files: it is taken as it is.",)))
        return kept, model, count
    assert work is not None
    proof = work.make(count.part(size))
    rests_on.keep(workspace, proof)
    return proof, model, count


def _overridden(proof: Certificate, options: ExportOptions) -> tuple[str, ...]:
    return tuple(name for name in proof.failed() if name in options.override)


def _checked(options: ExportOptions, workspace: Workspace) -> str:
    """The reference of the checkpoint, with its step; refuses what cannot be exported before any work."""
    wanted = catalog.run_to_export(options.run)
    workspace.new_export(options.export)
    found = resolve(workspace, wanted)
    return f"run:{found.name}@{found.step}"


def _block(proof: Certificate, override: Sequence[str]) -> None:
    known = [check.name for check in proof.checks]
    if unknown := [name for name in override if name not in known]:
        raise UserError(f"There is no check named {', '.join(unknown)}.", f"The checks are: {', '.join(known)}.")
    if blocking := proof.blocking(override):
        failed = [proof.check(name) for name in blocking]
        faults = "; ".join(f"{check.name}: wanted {check.expected}, seen {check.seen}" for check in failed)
        raise UserError(
            f"The certificate of {proof.ref} has failed checks, so it is not exported: {faults}.",
            f"Train again, or export in spite of it with --override {' --override '.join(blocking)}.",
        )


def _record(workspace: Workspace, ref: str, model: VoiceModel, name: str, proof: Certificate) -> ExportRecord:
    found = records.read(resolve(workspace, ref).folder / records.CHECKPOINT, CheckpointRecord)
    new = tuple(code for code in model.front_end.languages if model.front_end.is_new(code))
    errors = {item.language: item.original for item in proof.errors if item.original is not None}
    left = set(model.front_end.languages) - set(errors)
    judge = judge_of(workspace, model, lambda message: None, found, left)  # the certificate has told what it lacks
    for language in left:
        if (error := originals.judge_error(workspace, model, judge, language)) is not None:
            errors[language] = error
    return ExportRecord(name, found.run, found.step, found.scope, found.dataset, new, model.origin,
                        originals.longest_texts(workspace, model), errors,
                        hash_tensors(base_tensors(model.model.module)) if model.changed else "",
                        exports_record.name_alone(found.judge), found.recogniser_language)


def _write_model(folder: Path, model: VoiceModel, record: ExportRecord, checkpoint: Path) -> list[ExportFile]:
    """Weights, adapters, front-end and record into `folder`; the family's files."""
    tensors = plain_tensors(model)
    merged = {**tensors, **model.adapters.folded()} if model.adapters else None
    files = list(model.family.export(model.base_folder, folder, tensors, merged))
    if model.adapters:
        model.adapters.save(folder / records.ADAPTER)
    model.front_end.save(folder / records.FRONT_END)
    exports_record.write_training(folder, checkpoint / records.CONFIG)
    write_record(folder, record)
    return files


def plain_tensors(model: VoiceModel) -> dict[str, torch.Tensor]:
    """The language model under the base's names without adapters; each text table is one table again."""
    tensors = base_tensors(model.model.module)
    for table, rows in new_rows(model.model.module, model.model.text_tables).items():
        tensors[f"{table}.weight"] = torch.cat([tensors[f"{table}.weight"], rows.detach()])
    return tensors


def _with_reload(folder: Path, model: VoiceModel, proof: Certificate, count: OneCount) -> Certificate:
    """`proof` with one more check: the files, loaded again, give the checkpoint's logits to the bit."""
    again = exports.assemble(folder, model.device)
    probes = _probes(model)
    tell = count.part(len(probes))
    equal = 0
    for done, item in enumerate(probes, 1):
        equal += same_logits(model, again, item)
        tell(Progress(done, len(probes), "probes", "of the written files compared"))
    tensors, reread = _all_tensors(model), _all_tensors(again)
    kept = sum(torch.equal(tensors[name], reread[name]) for name in tensors if name in reread)
    good = equal == len(probes) and kept == len(tensors) and set(tensors) == set(reread)
    seen = f"{kept} tensors and {equal} samples equal to the bit"
    if not good:
        raise UserError(f"The export does not reload as it was: {seen}.",
                        "The disk may be failing; continue to try again.")
    wanted = f"{len(tensors)} tensors and {len(probes)} samples equal to the bit"
    check = Check("export_reloads", "passed", wanted, seen, "The exported files, loaded again, are the checkpoint.")
    return replace(proof, checks=(*proof.checks, check))


def _probes(model: VoiceModel) -> list[replay.ProbeSample]:
    clips = replay.load(model, model.family.voices(model.base_folder)).probe_clips
    return replay.probes(clips, model.model.prompt_length)


def _all_tensors(model: VoiceModel) -> dict[str, torch.Tensor]:
    adapters = model.adapters.tensors() if model.adapters else {}
    return {**plain_tensors(model), **adapters}


@torch.inference_mode()
def same_logits(one: VoiceModel, other: VoiceModel, item: replay.ProbeSample) -> bool:
    """Whether two models give the same logits, to the bit, for one sample."""
    with one.speaking(item.language), other.speaking(item.language):
        first, second = one.model.probe(item.sample), other.model.probe(item.sample)
    return torch.equal(first.text_logits, second.text_logits) and torch.equal(first.speech_logits, second.speech_logits)


def _texts(workspace: Workspace, model: VoiceModel) -> list[tuple[str, str]]:
    """A held-out sentence of each language, new languages first."""
    languages = sorted(model.front_end.languages, key=lambda code: not model.front_end.is_new(code))
    return [(language, evaluate.chosen(sentences, 1)[0].text) for language in languages
            if (sentences := originals.recordings(workspace, model, language))]


def _speak(folder: Path, workspace: Workspace, model: VoiceModel, count: OneCount) -> list[Sample]:
    """A sentence of each language by the exported model, spoken together."""
    (folder / SAMPLES).mkdir()
    again = exports.assemble(folder, model.device)
    speaker = Speaker(again, longest=exports.record_of(again).longest_texts)
    texts, made = _texts(workspace, model), []
    heard = speaker.say_each(texts, SamplingOptions(), count.part(len(texts)))
    for (language, text), segments in zip(texts, heard, strict=True):
        path = f"{SAMPLES}/{language}.wav"
        audio.save(folder / path, joined(list(segments)), speaker.sample_rate)
        made.append(Sample(path, language, text))
    return made


def _write_texts(folder: Path, workspace: Workspace, record: ExportRecord, proof: Certificate,
                 files: Sequence[ExportFile], samples: Sequence[Sample], overridden: tuple[str, ...]) -> None:
    source, clips, licence = _dataset_facts(workspace, record.dataset)
    own = [(path, purpose) for path, purpose in _OWN_FILES if path in (EXAMPLE, SUMS) or (folder / path).exists()]
    facts = CardFacts(
        source, clips, (*((file.path, file.purpose) for file in files), *own),
        tuple((item.path, item.language, item.text) for item in samples), overridden,
        next((file.path for file in files if "merged" in file.path), ""), licence,
    )
    (folder / README).write_text(model_card.card(record, proof, facts), encoding="utf-8")
    first = samples[0] if samples else Sample("", record.languages[0], "")
    (folder / EXAMPLE).write_text(model_card.load_example(first.language, first.text), encoding="utf-8")


def _dataset_facts(workspace: Workspace, name: str) -> tuple[str, str, str]:
    if name not in workspace.list_datasets():
        return "a source that is no longer in the workspace", "a number of clips that is no longer known", ""
    found = manifest.load_card(workspace.dataset(name))
    clips = f"{counted(found.clips, 'clip')} ({found.duration_s / 60:.1f} minutes)"
    return f"`{Path(found.source).name or found.source}`", clips, found.licence


@contextmanager
def _disk_explained(target: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        message = f"{target} could not be written: {error}."
        raise UserError(message, "Free space on the disk, then continue.") from error


def _result(target: Path, record: ExportRecord, proof: Certificate, overridden: Sequence[str]) -> Result:
    files = [path for path in target.rglob("*") if path.is_file()]
    errors = {f"error_{item.language}": item.after for item in proof.errors}
    verdicts = {check.name: check.verdict for check in proof.checks}
    return {
        "export": record.name, "path": f"exports/{record.name}", "ref": f"export:{record.name}",
        "run": record.run, "step": record.step, "scope": record.scope, "files": len(files),
        "megabytes": round(sum(path.stat().st_size for path in files) / 1e6, 2),
        "overridden": json.dumps(list(overridden)) if overridden else "", **errors, **verdicts,
    }
