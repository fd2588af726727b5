"""Workspaces made by hand: job directories whose journals say what a real worker would have said."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile

from config.loading import parse_options
from config.schema import CompareOptions, DoctorOptions, Options, TrainOptions
from core import doctor
from core.jobs import control
from core.jobs.events import (
    AudioGenerated,
    CheckpointSaved,
    Evaluated,
    Event,
    Finished,
    Journal,
    Plan,
    Progress,
    Queued,
    SampleGenerated,
    Stage,
    Started,
    Step,
)
from core.jobs.job import Job, create_job, load_job
from core.library import certificate, diagnosis, lineage, records, verification
from core.library.certificate import Certificate, CertificateCheck, LanguageCER
from core.library.checkpoints import RankingMetric, read_ranking, write_ranking
from core.library.diagnosis import Diagnosis, ProbeDrift, TensorFinding, TokenizerFit
from core.library.records import CheckpointRecord, Origin
from core.submission import job_chains
from core.workspace import Workspace

SENTENCE = "ሰላም ለሁሉም"
SPOKEN = (SENTENCE, "ውሃ እፈልጋለሁ", "ዛሬ ጠዋት ወደ ገበያ ሄጄ ነበር፤ ቡና እና ዳቦ ገዛሁ")
_PNG = bytes.fromhex(  # one grey pixel
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c6368000000820081dd436af40000000049454e44ae426082"
)


def append(job: Job, *events: Event) -> None:
    """Add `events` to the journal of `job`."""
    journal = Journal(job.journal)
    for event in events:
        journal.append(event)
    journal.close()


def tone(path: Path, seconds: float = 1.2, frequency: float = 220.0) -> None:
    """A sound that is not silence, at 16 kHz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(int(16_000 * seconds)) / 16_000
    soundfile.write(path, 0.4 * np.sin(2 * math.pi * frequency * time), 16_000)


def picture(path: Path) -> None:
    """A small PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_PNG)


def chain(workspace: Workspace, *, steps: int = 400, total: int = 700, finished: bool = False) -> list[Job]:
    """A demo chain with its first four jobs finished and training at `steps`, or finished too."""
    options = job_chains.ChainOptions(train=parse_options(TrainOptions, {"steps": total}))
    made = job_chains.submit_chain(workspace, options, certificate=False)
    for job in made[:-1]:
        append(job, Queued(), Started(1, 1), Progress(300, 300, "clips"), Finished({"folder": job.id, "seconds": 2.5}))
    train(made[-1], steps, total, finished=finished)
    return made


def train(job: Job, steps: int, total: int, *, finished: bool = False) -> None:
    """Events of a training run up to `steps`."""
    append(job, Queued(), Started(1, 1), Plan(
        ("81 new rows of 2535 are trained; 0 of 2454 old rows.", "Adapters with 196,608 numbers, for Amharic only."),
        {"new_rows": 81, "rows": 2535, "old_rows": 2454}), Stage("train"))
    for step in range(1, steps + 1):
        speech = 1.6 + 3.2 * math.exp(-step / 120) + 0.12 * math.sin(step * 1.7)
        append(job, Step(step, total, speech, 2.0 * math.exp(-step / 90) + 0.5,
                         {"rows": 5e-3 * min(1, step / 30)}, 0.8, 5200.0, step * 0.42, (total - step) * 0.42,
                         3_100_000_000 + 2_000_000 * step, "gpu"))
        if step % 100 == 0:
            checkpoint(job, step, speech)
    if finished:
        append(job, Finished({"best_step": steps, "error_am": 0.18, "minutes": 4.8}))


def checkpoint(job: Job, step: int, speech: float) -> None:
    """A checkpoint with its record, evaluation and samples, of which the last gets worse."""
    folder = job.directory / "checkpoints" / f"step-{step:06d}"
    (folder / records.FRONT_END).mkdir(parents=True, exist_ok=True)
    records.write_record(folder / records.CHECKPOINT, CheckpointRecord(
        job.id, step, "gated", "tiny-am", "amharic-demo", "", "", Origin("tiny", "tiny", "", 2454, 2535, "")))
    (folder / records.FRONT_END / "front_end.json").write_text(
        json.dumps({"languages": {"en": {}, "fr": {}, "am": {}}, "base_languages": ["en", "fr"]}), "utf-8")
    error = 0.15 + 0.7 * math.exp(-step / 200)
    for number, text in enumerate(SPOKEN, start=1):
        sample = f"samples/step-{step:06d}/{number:02d}-am.wav"
        tone(job.directory / sample)
        append(job, SampleGenerated(step, "am", text, sample, error if number < len(SPOKEN) else 1.0 - error))
    write_ranking(job.directory, replace(read_ranking(job.directory), metric=RankingMetric.CER).with_value(step, error))
    measured = {"speech_loss": speech + 0.1, "text_loss": 0.6, "accuracy": 0.3}
    append(job, Evaluated(step, speech + 0.1, {"am": error}, 0.6, 0.3, {"am": measured}),
           CheckpointSaved(step, f"checkpoints/step-{step:06d}", True))


def compare(workspace: Workspace, run: str, *, finished: bool = True, texts: tuple[tuple[str, str], ...] = (
        ("am", SENTENCE), ("en", "The old boat came home before the rain."))) -> Job:
    """A comparison with both sides of each text."""
    job = make(workspace, "compare", CompareOptions(finetuned=f"run:{run}", texts=texts))
    append(job, Queued(), Started(1, 1))
    for index, (language, text) in enumerate(texts):
        for side, frequency in (("base", 220.0), ("finetuned", 330.0)):
            sound, drawing = f"audio/{index}-{side}.wav", f"audio/{index}-{side}.png"
            tone(job.directory / sound, 1.4, frequency)
            picture(job.directory / drawing)
            error = 0.06 if language != "am" else 0.91 if side == "base" else 0.17
            append(job, AudioGenerated(side, index, sound, text, language, 1.4, 0.6, error, text, drawing))
    if finished:
        append(job, Finished({"texts": len(texts), "error_am_recordings": 0.021, "error_en_recordings": 0.03}))
    return job


def make(workspace: Workspace, verb: str, options: Options) -> Job:
    """A job that no worker was started for."""
    return create_job(workspace, verb, options)


def dataset(workspace: Workspace, name: str = "amharic-demo") -> None:
    """A prepared dataset with a report that complains of two clips."""
    folder = workspace.datasets / name
    folder.mkdir(parents=True, exist_ok=True)
    clips = [{"id": f"c{number}", "audio": f"audio/c{number}.ogg", "text": text, "language": "am", "split": split,
              "duration_s": 2.0, "speaker": "one", "sha256": "0" * 64}
             for number, (text, split) in enumerate([(SENTENCE, "held_out"), ("ውሃ እፈልጋለሁ", "train")])]
    lines = "".join(json.dumps(clip, ensure_ascii=False) + "\n" for clip in clips)
    (folder / "manifest.jsonl").write_text(lines, "utf-8")
    (folder / "dataset.yaml").write_text(
        f"name: {name}\nlanguage: am\nsource: demo\nclips: 300\ntrain_clips: 260\nheld_out_clips: 40\n"
        "duration_s: 812.4\nfingerprint: abc\n", "utf-8")
    (folder / "report.json").write_text(json.dumps({
        "found": 302, "kept": 300, "duration_s": 812.4, "characters": {"ሰ": 40, "ላ": 32}, "dropped": {"።": 120},
        "errors": [{"kind": "silent", "where": "clips/am-017.ogg", "message": "The clip is silent (peak 0.001)."}],
        "warnings": [{"kind": "rare", "where": "ኧ", "message": "Occurs 2 times; it will be learned badly."}],
    }, ensure_ascii=False), "utf-8")


def tokenizer(workspace: Workspace, name: str = "tiny-am") -> None:
    """A tokenizer's report."""
    folder = workspace.tokenizers / name
    folder.mkdir(parents=True, exist_ok=True)
    sentences = [{"text": text, "tokens_before": 14, "tokens_after": 14, "same": True}
                 for text in ("The old boat came home.", "She opened the window.")]
    (folder / "report.json").write_text(json.dumps({
        "tokens_added": 81, "prefix_size": 2454, "size": 2535, "characters": 80, "characters_covered": 80,
        "unknown_rate_before": 0.83, "unknown_rate": 0.0,
        "tokens_per_character_before": 1.0, "tokens_per_character": 0.98,
        "proofs": [{"language": "en", "sentences": sentences, "same": True}],
    }, ensure_ascii=False), "utf-8")


def certify(workspace: Workspace, run: str, *, failed: bool = False) -> None:
    """A certificate of the run's files; with `failed`, the old rows have moved. It is complete."""
    one, other = "4f9a" * 16, "77b0" * 16
    checkpoint = lineage.run_model(control.read_state(load_job(workspace, run)))
    step = checkpoint.step if checkpoint else 700
    proof = Certificate(
        f"run:{run}@{step}", run, step, "gated", "tiny", "tiny-am", "", "", 1_790_000_000.0,
        (CertificateCheck("prefix_rows", "failed" if failed else "passed", one, other if failed else one,
               "The 2454 old rows of text_emb and text_head are those of the base file."),
         CertificateCheck("frozen_tensors", "passed", f"182 tensors, {one}", f"182 equal, {one}",
               "Every tensor of the base model is unchanged."),
         CertificateCheck("base_logits", "passed", "bit-identical", "16 of 16 samples (en, fr) bit-identical",
               "Logits of base-language samples before and after."),
         *(CertificateCheck(name, "passed", one, one, "As in the base.") for name in certificate.CHECKS
           if name not in ("prefix_rows", "frozen_tensors", "base_logits", "changed_tensors"))),
        (LanguageCER("en", False, 40, 0.061, 0.061, 0.032), LanguageCER("fr", False, 40, 0.073, 0.073, 0.041),
         LanguageCER("am", True, 40, 0.731, 0.184, 0.022)))
    subject = verification.Subject.of_run(workspace, workspace.runs / run, proof)
    certificate.write(subject.certificate,
                      verification.bind(workspace, proof, verification.certified_files(subject)))


def examine(workspace: Workspace) -> Job:
    """An examination of a finetune from elsewhere whose rows alone were damaged."""
    job = make(workspace, "doctor", DoctorOptions(part="model", base="tiny", checkpoint="/elsewhere/t3_am.safetensors"))
    rows = [TensorFinding(f"{table}.weight", "old rows", "shrunk", "shrunk to 0.99 of what it was: weight decay",
                    (2535, 1024), "float32", 0.01, 2454, 2454, 0.0101, 0.01) for table in ("text_emb", "text_head")]
    rows += [TensorFinding(f"{table}.weight", "new rows", "new", "their length is 0.97 times that of the old rows",
                     (81, 1024), "float32", rows=81) for table in ("text_emb", "text_head")]
    layers = [TensorFinding(f"tfmr.layers.{layer}.self_attn.{name}_proj.weight", "layers", "equal", "bit-identical",
                      (1024, 1024), "float32") for layer in range(30) for name in "qkvo"]
    fit = TokenizerFit("/elsewhere/tokenizer.json", 2535, 2535, 2454, 0, (), 0, (), 0, 0, (), 0, 81, 0)
    heard = ProbeDrift(16, 0, 0.83, 0.214, ("en", "fr"))
    found = doctor.worst_first([*rows, *layers])
    diagnosis.write(job.directory, Diagnosis("tiny", "/elsewhere/t3_am.safetensors", "tiny", "", ("float32",), found,
                                             fit, heard, doctor.assess(found, fit, heard)))
    append(job, Queued(), Started(1, 1), Finished({"assessment": "changed", "restorable": True}))
    return job
