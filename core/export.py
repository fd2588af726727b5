"""Write a finetuned model for others: weights under the published names, front-end, certificate, card and samples.

The export is whole or not there. The certificate is computed afresh, and the written files
are loaded again and held against the checkpoint, before the export takes its name.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError

from config.errors import UserError
from config.schema import ExportOptions, SamplingOptions
from core import compute
from core.job.journal import Plan, Progress, Result, Warned
from core.job.reporter import Reporter, Tell, check_stop, stage, telling
from core.library import exports, model_card, records
from core.library.aside import written_aside
from core.library.catalog import resolve
from core.library.exports_record import CERTIFICATE, RECORD, SUMS, ExportRecord, write_record
from core.library.model_card import CardFacts
from core.library.records import CheckpointRecord
from core.proof import certificate, certify
from core.proof.certificate import Certificate, Check
from core.speech import evaluate, originals
from core.speech.speak import Speaker, joined
from core.training import replay
from core.voice_model.loading import VoiceModel, load
from core.voice_model.prefix import base_tensors, hash_tensors, new_rows
from core.workspace import Workspace, resolve_inside
from data import audio, manifest
from models.base import ExportFile

_STOPPED = "Stopped on request: nothing was exported, and nothing of it is left. Resume begins the export again."
README, EXAMPLE, SAMPLES, TRAINING = "README.md", "load_example.py", "samples", "training.yaml"
_OWN_FILES = (
    (records.FRONT_END, "normaliser, tokenizer and language tags of every language"),
    (records.ADAPTER, "the adapters in peft's format; active for the new language alone, unless the scope is full"),
    (CERTIFICATE, "checks and errors, computed when the export was made"),
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
    ref = _checked(options, workspace)
    target = resolve_inside(workspace.exports, options.export)
    with stage(reporter, "certificate"):
        device = compute.prepare("cpu")  # the reference: bit equality is claimed for it
        proof = certify.certify(workspace, ref, device, telling(reporter, _STOPPED))
        _block(proof, options.override)
    check_stop(reporter, _STOPPED)
    model = load(workspace, ref, device)
    record = _record(workspace, ref, model, options.export, proof)
    overridden = tuple(name for name in proof.failed() if name in options.override)
    for name in overridden:
        reporter.emit(Warned(f"The check {name!r} failed and was overridden: {proof.check(name).seen}."))
    languages = ", ".join(record.languages)
    reporter.emit(Plan((f"{languages} and the languages of {record.origin.model}, from {ref} to {target.name}.",)))
    with stage(reporter, "write"), _disk_explained(target), written_aside(target) as aside:
        files = _write_model(aside, model, record, resolve(workspace, ref).folder)
        check_stop(reporter, _STOPPED)
        tell = telling(reporter, _STOPPED)
        proof = _with_reload(aside, model, proof, tell)
        certificate.write(aside / CERTIFICATE, proof)
        samples = _speak(aside, workspace, model, tell)
        _write_texts(aside, workspace, record, proof, files, samples, overridden)
        exports.write_sums(aside)
        exports.check(aside)
    return _result(target, record, proof, overridden)


def _checked(options: ExportOptions, workspace: Workspace) -> str:
    """The reference of the checkpoint, with its step; refuses what cannot be exported before any work."""
    if not options.run.startswith("run:"):
        raise UserError(f"{options.run!r} is not a run to export.", "Give run:ID (its best checkpoint) or run:ID@STEP.")
    if resolve_inside(workspace.exports, options.export).exists():
        message = f"There is already an export named {options.export!r} in {workspace.exports}."
        raise UserError(message, "Choose another name, or delete it first.")
    found = resolve(workspace, options.run)
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
    judge = model.family.judge(model.base_folder)
    for language in set(model.front_end.languages) - set(errors):
        if (error := originals.judge_error(workspace, model, judge, language)) is not None:
            errors[language] = error
    return ExportRecord(name, found.run, found.step, found.scope, found.dataset, new, model.origin,
                        originals.longest_texts(workspace, model), errors,
                        hash_tensors(base_tensors(model.model.module)) if model.changed else "")


def _write_model(folder: Path, model: VoiceModel, record: ExportRecord, checkpoint: Path) -> list[ExportFile]:
    """Weights, adapters, front-end and record into `folder`; the family's files."""
    tensors = plain_tensors(model)
    merged = {**tensors, **model.adapters.folded()} if model.adapters else None
    files = list(model.family.export(model.base_folder, folder, tensors, merged))
    if model.adapters:
        model.adapters.save(folder / records.ADAPTER)
    model.front_end.save(folder / records.FRONT_END)
    shutil.copy2(checkpoint / records.CONFIG, folder / TRAINING)
    write_record(folder, record)
    return files


def plain_tensors(model: VoiceModel) -> dict[str, torch.Tensor]:
    """The language model under the base's names without adapters; each text table is one table again."""
    tensors = base_tensors(model.model.module)
    for table, rows in new_rows(model.model.module, model.model.text_tables).items():
        tensors[f"{table}.weight"] = torch.cat([tensors[f"{table}.weight"], rows.detach()])
    return tensors


def _with_reload(folder: Path, model: VoiceModel, proof: Certificate, tell: Tell) -> Certificate:
    """`proof` with one more check: the files, loaded again, give the checkpoint's logits to the bit."""
    again = exports.assemble(folder, model.device)
    clips = replay.load(model, model.family.voices(model.base_folder)).probing
    probes = replay.probes(clips, model.model.prompt_length)
    equal = 0
    for done, item in enumerate(probes):
        tell(Progress(done, len(probes), "probes", "of the written files compared"))
        equal += same_logits(model, again, item)
    tensors, reread = _all_tensors(model), _all_tensors(again)
    kept = sum(torch.equal(tensors[name], reread[name]) for name in tensors if name in reread)
    good = equal == len(probes) and kept == len(tensors) and set(tensors) == set(reread)
    seen = f"{kept} tensors and {equal} samples equal to the bit"
    if not good:
        raise UserError(f"The export does not reload as it was: {seen}.", "The disk may be failing; try again.")
    wanted = f"{len(tensors)} tensors and {len(probes)} samples equal to the bit"
    check = Check("export_reloads", "passed", wanted, seen, "The exported files, loaded again, are the checkpoint.")
    return replace(proof, checks=(*proof.checks, check))


def _all_tensors(model: VoiceModel) -> dict[str, torch.Tensor]:
    adapters = model.adapters.tensors() if model.adapters else {}
    return {**plain_tensors(model), **adapters}


@torch.inference_mode()
def same_logits(one: VoiceModel, other: VoiceModel, item: replay.ProbeSample) -> bool:
    """Whether two models give the same logits, to the bit, for one sample."""
    with one.speaking(item.language), other.speaking(item.language):
        first, second = one.model.probe(item.sample), other.model.probe(item.sample)
    return torch.equal(first.text_logits, second.text_logits) and torch.equal(first.speech_logits, second.speech_logits)


def _speak(folder: Path, workspace: Workspace, model: VoiceModel, tell: Tell) -> list[Sample]:
    """A held-out sentence of each language by the exported model, new languages first, spoken together."""
    (folder / SAMPLES).mkdir()
    again = exports.assemble(folder, model.device)
    speaker = Speaker(again, longest=exports.record_of(again).longest_texts)
    languages = sorted(model.front_end.languages, key=lambda code: not model.front_end.is_new(code))
    texts = [(language, evaluate.chosen(sentences, 1)[0].text) for language in languages
             if (sentences := originals.recordings(workspace, model, language))]
    made = []
    for (language, text), segments in zip(texts, speaker.say_each(texts, SamplingOptions(), tell), strict=True):
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
    clips = f"{found.clips} clips ({found.duration_s / 60:.1f} minutes)"
    return f"`{Path(found.source).name or found.source}`", clips, found.licence


@contextmanager
def _disk_explained(target: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        message = f"{target} could not be written: {error}."
        raise UserError(message, "Free space on the disk, then export again.") from error


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
