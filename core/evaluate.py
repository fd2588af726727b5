"""Evaluate models and references on the same sentences: intelligibility, speaker, naturalness, prosody, faults, speed.

Every clip is written as 16-bit audio and measured as it was written, so that its file and its values belong together.
Measures are cached by the hash of the audio: base languages that a training left bit-identical are measured once, and a
job that goes on measures and synthesizes nothing again. The report is `evaluation.json`, `.md` and `.html` in the job's
folder; an export that is evaluated gets a copy, a section in its card and an entry in its certificate.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from config import confinement, foreign
from config.errors import UserError
from config.languages import language_name
from config.schema import EvaluateOptions, SamplingOptions
from core import compute
from core.jobs.engines import Engine, LostBatch, run_batches
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, pluralize, stage
from core.library import certificate, evaluation_report, listening, records, verification, workspace_key
from core.library.evaluation_report import (
    EvaluatedClip,
    EvaluatedModel,
    EvaluationReport,
    MetricEstimate,
    PairedTest,
)
from core.library.lineage import Model
from core.library.verification import Outcome
from core.model.loading import TTSModel, write_sums
from core.sources import recognisers
from core.speech import clips, evaluation, evaluation_html, measures
from core.speech.evaluation import ListedSentence, base_input
from core.speech.model_cache import ModelCache
from core.speech.scoring import Recogniser, download_recogniser, load_recogniser_or_warn, measured_by
from core.speech.synthesis import finish_reason, join_chunks, unused_controls
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from data.durable_files import check_no_link_out, write_json
from data.front_end import probe_sentences
from data.manifest import HeldOutSentence
from data.measures import LEAST_VOICE, clipped_share, voice_power
from models.base import Extractor, Vocoder, Voice

ROMANISED = "+romanised"
RECORDINGS = "recordings"
_STOPPED = "Stopped on request: the clips so far are kept, and the job can continue."
_BATCH = 8  # texts generated together
_NAMED_SENTENCES = 5  # sentences named in a warning
# The clips that were synthesized, one a line, in the job's folder.
_CLIPS = "clips.jsonl"
_TESTED = ("cer", "wer", "similarity", "naturalness", "mcd")
_OF_SPEECH = ("naturalness", "similarity", "family_similarity", "rate", "rate_ratio", "f0_range", "f0_range_ratio",
              "mcd", "long_silence")
"""Metrics that say nothing of a clip without speech."""
_SOUNDS = (".wav", ".flac", ".ogg", ".mp3", ".opus")


@dataclass(frozen=True)
class _Sentence:
    """A sentence of the list; `recording` where there is one, and the speaker's group among the recordings."""

    language: str
    number: int
    text: str
    recording: Path | None
    speaker: str = ""
    category: str = ""
    reader: str = ""  # the speaker of the recording, as the dataset names it


@dataclass(frozen=True)
class _Task:
    """A clip to make: a sentence by a model, which reads `reading` as `reading_language`."""

    sentence: _Sentence
    reading: str
    reading_language: str
    voice: str
    seed: int


@dataclass(frozen=True)
class _MadeClip:
    """A clip that was written: audio relative to the job's folder; `synthesis_s` None where nothing was synthesized."""

    model: str
    language: str
    number: int
    reading: str
    voice: str
    seed: int
    audio: str
    sha256: str
    synthesis_s: float | None
    finish_reason: str
    weights: str = ""  # hash of the files of the model that spoke


def run(options: EvaluateOptions, workspace: Workspace, reporter: Reporter,
        model_cache: ModelCache | None = None) -> Result:
    """Synthesize, measure and report; see the module."""
    started = time.time()
    engine = Engine.from_options(options, options.device, reporter)
    warnings: list[str] = []

    def warn(message: str) -> None:
        warnings.append(message)
        reporter.emit(WarningRaised(message))

    with stage(reporter, "load"):
        weights = _hash_models(workspace, options.models)
        lead = _Lead.load(options, workspace, model_cache or ModelCache())
        if options.recogniser:
            download_recogniser(options, lead.new_languages(), workspace, reporter)
        sentences = _sentence_list(options, workspace, lead, warn)
        recogniser = load_recogniser_or_warn(workspace, lead.model, warn, options if options.recogniser else None,
                                             languages=set(sentences))
        measurer = _Measurer(workspace, lead, recogniser, options)
        sentences = {language: measurer.assign_speakers(listed) for language, listed in sentences.items()}

    with stage(reporter, "plan"):
        tasks = {name: _tasks(options, workspace, lead, name, sentences, warn) for name in options.models}
        total = sum(map(len, tasks.values()))
        counts = ", ".join(f"{language_name(code)} {len(listed)}" for code, listed in sentences.items())
        reporter.emit(Plan((f"{pluralize(total, 'clip')} of {len(options.models)} models; sentences: {counts}.",),
                           {"clips": total}))
    for name in options.models:
        note = verification.spoken_note(workspace, name.removesuffix(ROMANISED))
        if note:
            warn(note)
    with stage(reporter, "speak"):
        made_clips = _speak(options, lead, tasks, weights, engine, reporter, warn)
    with stage(reporter, "measure"):
        measured = _measure(options, lead, measurer, sentences, made_clips, engine, reporter, warn)
        # New languages come first.
        measured.sort(key=lambda clip: list(sentences).index(clip.language))

    # The figures are of the files that were there all the time.
    for name, digest in _hash_models(workspace, options.models).items():
        if digest != weights[name]:
            raise UserError(f"The files of {name} changed while it was evaluated, or it refers to another checkpoint "
                            "now.",
                            "Wait until nothing writes to them, then evaluate again; run:ID@STEP is one checkpoint.")
    with stage(reporter, "report"):
        estimates, tests = summarise(measured, options.models)
        report = EvaluationReport(
            started, round(time.time() - started, 1), options.model_dump(mode="json"), measurer.instruments(),
            _software(lead.device),
            tuple(replace(_about(workspace, name), weights=weights[name]) for name in options.models), estimates, tests,
            tuple(measured), tuple(dict.fromkeys(warnings)),
            listening.results(workspace, reporter.directory.name), evaluation_report.group_estimates(measured))
        evaluation_html.write(reporter.directory, report)
        report = evaluation_report.write_signed(workspace, reporter.directory, report)
        for name in options.models:
            if name.startswith("export:"):
                export = Model.open(workspace, name).folder
                records.check_export_files(export)
                # Figures of other files belong into no certificate.
                verified = verification.verify_export(workspace, export)
                if verified.outcome is Outcome.OTHER_FILES:
                    warn(f"{verified.describe()} The report is not added to {name}.")
                    continue
                proof = verified.proof
                changed = evaluation_report.attach(export, reporter.directory, report, name, proof)
                # A sender's certificate has no signature of this workspace, before and after.
                if verification.is_own(workspace, proof):
                    certificate.write(export / certificate.CERTIFICATE, verification.sign(workspace, changed))
                write_sums(export)
    result: Result = {"clips": len(measured), "report": evaluation_report.HTML, "seconds": report.seconds}
    for name, by_language in estimates.items():
        for language, metrics in by_language.items():
            if "cer" in metrics:
                result[f"error_{language}_{name}"] = evaluation_report.show("cer", metrics["cer"])
    return result


def _hash_models(workspace: Workspace, names: Sequence[str]) -> dict[str, str]:
    """By entry of the option `models` the hash of all its files; empty for recordings and folders."""
    hashes = {}
    for name in names:
        kind, _, detail = name.removesuffix(ROMANISED).partition(":")
        reference = f"base:{detail}" if kind == "codec" else name.removesuffix(ROMANISED)
        is_model = kind in ("base", "run", "export", "codec")
        hashes[name] = verification.hash_model(workspace, reference, verification.hash_cache(workspace)
                                               ) if is_model else ""
    return hashes


@dataclass(frozen=True)
class _Lead:
    """The first trained model, else the first model: its sentences, voices, recogniser and encoder serve all."""

    cache: ModelCache
    workspace: Workspace
    options: EvaluateOptions
    device: torch.device
    model: TTSModel
    reference: str

    @classmethod
    def load(cls, options: EvaluateOptions, workspace: Workspace, cache: ModelCache) -> _Lead:
        models = [name.removesuffix(ROMANISED) for name in options.models if name.startswith(("base:", "run:",
                                                                                              "export:"))]
        models += [f"base:{name.partition(':')[2]}" for name in options.models if name.startswith("codec:")]
        if not models:
            raise UserError("No model is named, so there are no sentences and no voices.",
                            "Name a model beside the recordings, such as base:tiny.")
        reference = next((name for name in models if not name.startswith("base:")), models[0])
        device = compute.setup_device(options.device)
        loaded = cache.synthesizer(reference, workspace, device, options.precision, options.voices[0] if options.voices
                                   else "", options.sound)
        return cls(cache, workspace, options, device, loaded.synthesizer.model, reference)

    def new_languages(self) -> tuple[str, ...]:
        """The languages that a chosen recogniser scores."""
        languages = self.model.new_languages
        if not languages:
            raise UserError("The option `recogniser` is for the new language of a run or an export, and none of the "
                            "models has a new language.", "Add run:ID or export:NAME, or leave the recogniser out.")
        return languages


def _sentence_list(options: EvaluateOptions, workspace: Workspace, lead: _Lead,
                   warn: Callable[[str], None]) -> dict[str, list[_Sentence]]:
    """The sentences of each language, with their recordings where there are some."""
    model = lead.model
    recorded: dict[str, list[HeldOutSentence]] = {
        code: evaluation.recordings_of_test_set(workspace, model, code)
        or evaluation.held_out_recordings(workspace, model, code) for code in model.front_end.languages}
    if options.dataset:
        dataset = manifest.load(workspace.dataset(options.dataset))
        for code in dataset.card.languages:
            recorded[code] = (evaluation.dataset_sentences(dataset, model, code, manifest.TEST)
                              or evaluation.dataset_sentences(dataset, model, code, manifest.HELD_OUT))
    for code in recorded:
        recorded[code] = _without_selection(workspace, options, code, recorded[code], warn)

    # A listed sentence takes the recording of the held-out sentence with the same text.
    if options.sentences == "held-out":
        sentences = recorded
    else:
        listed = ([ListedSentence(*pair) for pair in dict.fromkeys(probe_sentences(model.base_folder)[1])]
                  if options.sentences == "shipped"
                  else evaluation.read_sentences(confinement.open_path(options.sentences)))
        originals = {(code, sentence.text): sentence for code, recordings in recorded.items()
                     for sentence in recordings}
        sentences = defaultdict(list)
        for item in listed:
            original = originals.get((item.language, item.text), HeldOutSentence(item.text, None))
            sentences[item.language].append(replace(original, category=item.category))
    chosen = options.languages or tuple(code for code in sentences if sentences[code]
                                        and (options.sentences == "held-out" or code in model.front_end.languages))
    without_sentences = [code for code in chosen if not sentences.get(code)]
    if without_sentences:
        raise UserError(f"There are no sentences in {', '.join(map(language_name, without_sentences))}.",
                        "Name a dataset with held-out clips (--dataset), or a text file (--sentences).")
    if not chosen:
        raise UserError("There are no sentences to speak.",
                        "Name a dataset with held-out clips (--dataset), or a text file (--sentences).")

    # New languages come first.
    ordered = sorted(chosen, key=lambda code: (code in model.front_end.base_languages, code))
    return {code: [_Sentence(code, number, sentence.text, sentence.original, category=sentence.category,
                             reader=sentence.speaker)
                   for number, sentence in
                   enumerate(evaluation.spread_evenly(sentences[code], options.count))] for code in ordered}


def _without_selection(workspace: Workspace, options: EvaluateOptions, language: str,
                       sentences: Sequence[HeldOutSentence], warn: Callable[[str], None]) -> list[HeldOutSentence]:
    """The sentences that selected no checkpoint of the runs; all of them, with a warning, where none would be left."""
    # A checkpoint looks better on the sentences that selected it.
    selected: set[str] = set()
    for name in options.models:
        if name.startswith("run:"):
            folder = Model.open(workspace, name).folder
            selected |= set(records.read_checkpoint(folder).scored)
    remaining = [sentence for sentence in sentences if sentence.text not in selected]
    if sentences and not remaining:
        warn(f"{language_name(language)}: measured on the sentences that selected the checkpoint, because no others "
             "are held out; on other sentences the error can be higher.")
    return remaining or list(sentences)


def _about(workspace: Workspace, name: str) -> EvaluatedModel:
    """One entry of the option `models`."""
    kind, _, detail = name.removesuffix(ROMANISED).partition(":")
    if name == RECORDINGS:
        return EvaluatedModel(name, "the recordings of the sentences: the upper bound")
    if kind == "codec":
        return EvaluatedModel(name, f"the recordings through the codec and vocoder of {detail}: the most that its "
                                    "language model can reach")
    if kind == "folder":
        return EvaluatedModel(name, f"the sound files of the folder {Path(detail).name}")
    model = Model.open(workspace, name.removesuffix(ROMANISED))
    if kind == "run":
        return EvaluatedModel(name, f"run {model.name}, step {model.step}", model.name, model.step)
    if kind == "export":
        record = records.read_export_record(model.folder)
        return EvaluatedModel(name, f"export of run {record.run}, step {record.step}", record.run, record.step)
    spelling = "; a language that it lacks is read in Latin letters: lower bound" if name.endswith(ROMANISED) else ""
    return EvaluatedModel(name, f"base model {detail}{spelling}")


def _tasks(options: EvaluateOptions, workspace: Workspace, lead: _Lead, name: str,
           sentences: Mapping[str, Sequence[_Sentence]], warn: Callable[[str], None]) -> list[_Task]:
    """The clips of one model; sentences that it cannot speak are counted in a warning."""
    all_sentences = list(chain.from_iterable(sentences.values()))
    if name == RECORDINGS or name.startswith("codec:"):
        return [_Task(sentence, "", sentence.language, "", 0) for sentence in all_sentences if sentence.recording]
    if name.startswith("folder:"):
        folder = confinement.open_path(name.removeprefix("folder:"))
        clip_tasks = [_Task(sentence, str(path), sentence.language, "", 0)
                      for sentence, path in _folder_clips(folder, all_sentences)]
        if not clip_tasks:
            raise UserError(f"No text in {name[7:]} is one of the sentences.",
                            "Put a .txt with the sentence beside each sound file, with the same name.")
        return clip_tasks

    model = lead.cache.synthesizer(name.removesuffix(ROMANISED), workspace, lead.device, options.precision,
                                   options.voices[0] if options.voices else "", options.sound,
                                   trained_on=lead.model).synthesizer.model
    unused = unused_controls(options.sound, model.family)
    if unused:
        warn(f"{', '.join(unused)}: no effect, because {model.family.name} has no such control.")
    voices = _Voices.of(options, lead, model)

    # A sentence that the model cannot read is counted, by language.
    tasks, unread, changed = [], dict[str, list[str]](), dict[str, list[str]]()
    for sentence in all_sentences:
        reading = None
        if sentence.language in model.front_end.languages:
            if not model.front_end.unready(sentence.language) and model.front_end.normalise(sentence.text,
                                                                                            sentence.language):
                # rules write digits and signs out; only what they leave unknown is left out
                text, unknown = evaluation.without_unknown(
                    model.front_end, model.front_end.verbalize(sentence.text, sentence.language), sentence.language)
                if not unknown:
                    reading = (sentence.text, sentence.language)
                elif text and options.unknown == "leave_out":
                    reading = (text, sentence.language)
                    changed.setdefault(sentence.language, []).append(f"“{sentence.text}” (without {' '.join(unknown)})")
        elif name.endswith(ROMANISED) and (spelled := base_input(model, sentence.text, sentence.language)):
            reading = (spelled.text, spelled.language)
        if reading is None:
            unread.setdefault(sentence.language, []).append(f"“{sentence.text}”")
            continue
        tasks += [_Task(sentence, *reading, voice, seed) for voice in voices.of_sentence(sentence)
                  for seed in options.seeds]

    for language, texts in unread.items():
        warn(f"{name} cannot read {len(texts)} of {len(sentences[language])} sentences in {language_name(language)}: "
             f"they are left out. {_named(texts)}")
    for language, texts in changed.items():
        warn(f"{name} lacks letters of {len(texts)} of {len(sentences[language])} sentences in "
             f"{language_name(language)}: it speaks them without these. {_named(texts)}")
    return tasks


def _named(texts: Sequence[str]) -> str:
    """The first few sentences, and the number of the others."""
    further = len(texts) - _NAMED_SENTENCES
    return f"{'; '.join(texts[:_NAMED_SENTENCES])}{f'; and {further} more' if further > 0 else ''}."


@dataclass(frozen=True)
class _Voices:
    """The voices that a model speaks in: those that were asked for, else its own, chosen by the recording."""

    asked: tuple[str, ...]
    embeddings: Mapping[str, np.ndarray]  # embeddings of the speakers of its own voices, (D,)
    model: TTSModel
    extractor: Extractor | None

    @classmethod
    def of(cls, options: EvaluateOptions, lead: _Lead, model: TTSModel) -> _Voices:
        own_voices = {} if options.voices else model.family.load_voices(model.base_folder)
        embeddings = {name: model.lm.speaker_embedding(voice.conditioning) for name, voice in own_voices.items()}
        recording = "" if own_voices or options.voices else evaluation.recording_of(lead.workspace, lead.model)
        extractor = model.family.load_extractor(model.base_folder, model.device) if len(own_voices) > 1 else None
        return cls(options.voices or ((recording,) if recording else ()), embeddings, model, extractor)

    def of_sentence(self, sentence: _Sentence) -> tuple[str, ...]:
        """One's own choice, else the voice that is most like the recording; without a recording they take turns."""
        if self.asked or not self.embeddings:
            return self.asked or ("",)
        names = sorted(self.embeddings)
        if sentence.recording is None or self.extractor is None:
            return (names[sentence.number % len(names)],)
        features = self.extractor.extract(audio.load(sentence.recording, self.extractor.sample_rate))
        embedding = self.model.lm.speaker_embedding(features.conditioning)
        return (max(names, key=lambda name: measures.cosine(self.embeddings[name], embedding)),)


def _folder_clips(folder: Path, sentences: Sequence[_Sentence]) -> Iterator[tuple[_Sentence, Path]]:
    """The sound file of each sentence that a text file in `folder` has."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Give a folder of sound files with a .txt beside each.")

    texts = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _SOUNDS and path.with_suffix(".txt").is_file():
            texts[" ".join(foreign.read_text(path.with_suffix(".txt")).split())] = path
    for sentence in sentences:
        match = texts.get(" ".join(sentence.text.split()))
        if match:
            yield sentence, match


def _read_clips(folder: Path, weights: Mapping[str, str]) -> dict[tuple[str, str, int, str, int], _MadeClip]:
    """What the job has synthesized before with the same weights.

    A clip whose file is gone, or not what was written, is made again.
    """
    made_clips = {}
    if (folder / _CLIPS).is_file():
        for line in (folder / _CLIPS).read_text(encoding="utf-8").splitlines():
            try:
                clip = _MadeClip(**foreign.loads(line))
                path = check_no_link_out(folder, clip.audio)
            except (ValueError, TypeError, UserError):
                # The line of a job that was killed, or of another program, is skipped.
                continue
            if clip.weights == weights.get(clip.model) and path.is_file() and _hash_file(path) == clip.sha256:
                made_clips[clip.model, clip.language, clip.number, clip.voice, clip.seed] = clip
    return made_clips


_ClipKey = tuple[str, str, int, str, int]
"""Of a clip: model, language, number of the sentence, voice and seed."""


def _speak(options: EvaluateOptions, lead: _Lead, tasks: Mapping[str, Sequence[_Task]], weights: Mapping[str, str],
           engine: Engine, reporter: Reporter, warn: Callable[[str], None]) -> list[_MadeClip]:
    """The clips of all models, model by model; those of an earlier attempt are taken as they are."""
    (reporter.directory / clips.FOLDER).mkdir(exist_ok=True)
    known_clips = _read_clips(reporter.directory, weights)
    # By model the keys of its clips, in the order of the report, and of a clip that is made twice the key of the first.
    keys: dict[str, list[_ClipKey]] = {name: [] for name in tasks}
    first_keys: dict[_ClipKey, _ClipKey] = {}
    batches: list[list[tuple[str, _Task]]] = []
    for name, clip_tasks in tasks.items():
        pending, plain = [], name.removesuffix(ROMANISED)
        earlier_keys = set(chain.from_iterable(keys.values())) | known_clips.keys()
        for task in clip_tasks:
            place = task.sentence.language, task.sentence.number, task.voice, task.seed
            if (name, *place) not in known_clips:
                # What the model reads as it stands is the same clip.
                if not (name != plain and task.reading == task.sentence.text and (plain, *place) in earlier_keys):
                    pending.append(task)
                    continue
                first_keys[name, *place] = (plain, *place)
            keys[name].append((name, *place))

        # Batches have one shape for every model; references are taken one by one.
        groups: dict[tuple[str, str, int], list[_Task]] = defaultdict(list)
        for task in pending:
            groups[task.sentence.language, task.voice, task.seed].append(task)
        size = 1 if name == RECORDINGS or name.startswith(("folder:", "codec:")) else _BATCH
        for group in groups.values() if size > 1 else (pending,):
            keys[name] += [(name, task.sentence.language, task.sentence.number, task.voice, task.seed)
                           for task in group]
            batches += [[(name, task) for task in group[start:start + size]] for start in range(0, len(group), size)]

    total = sum(map(len, keys.values()))
    done_count = total - sum(map(len, batches))
    reporter.emit(Progress(done_count, total, "clips", "made"))
    load: Callable[[Reporter], _SynthesisWorker] = partial(_SynthesisWorker.load, options, lead.workspace)
    if engine.name == "here":
        load = partial(_SynthesisWorker, options, lead)
    for batch, new_clips in run_batches(load, _SynthesisWorker.speak, batches, engine, reporter, lambda: _STOPPED):
        name = batch[0][0]
        if isinstance(new_clips, LostBatch):
            warn(f"{name} has no clip of {batch[0][1].sentence.text!r}: {new_clips.reason}.")
            new_clips = []
        for new_clip in new_clips:
            clip = replace(new_clip, weights=weights[name])
            known_clips[name, clip.language, clip.number, clip.voice, clip.seed] = clip
            with open(reporter.directory / _CLIPS, "a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.asdict(clip), ensure_ascii=False) + "\n")
        done_count += len(batch)
        reporter.emit(Progress(done_count, total, "clips", f"made, {name}"))

    made_clips = []
    for name, model_keys in keys.items():
        for key in model_keys:
            made_clip = known_clips.get(first_keys.get(key, key))
            if made_clip is not None:
                made_clips.append(replace(made_clip, model=name))
    return made_clips


@dataclass(frozen=True)
class _SynthesisWorker:
    """Synthesizes the clips of one model at a time."""

    options: EvaluateOptions
    lead: _Lead
    reporter: Reporter

    @classmethod
    def load(cls, options: EvaluateOptions, workspace: Workspace, reporter: Reporter) -> _SynthesisWorker:
        return cls(options, _Lead.load(options, workspace, ModelCache()), reporter)

    def speak(self, batch: Sequence[tuple[str, _Task]]) -> list[_MadeClip]:
        """Write the clips of a batch, which has one model, language, voice and seed."""
        name, first_task = batch[0]
        tasks = [task for _, task in batch]
        if name == RECORDINGS or name.startswith("folder:"):
            made_clips = []
            for task in tasks:
                source = task.sentence.recording if name == RECORDINGS else Path(task.reading)
                assert source is not None
                made_clips.append(self._write(name, replace(task, reading=task.sentence.text), *audio.read(source),
                                              None))
            return made_clips

        # The codec alone speaks the recordings again.
        if name.startswith("codec:"):
            extractor, vocoder, voice = _codec(self.lead, name.partition(":")[2])
            made_clips = []
            for task in tasks:
                assert task.sentence.recording is not None
                waveform = audio.load(task.sentence.recording, extractor.sample_rate)
                features = extractor.extract(waveform)
                sound = vocoder.decode(features.speech_codes, voice(waveform, extractor.sample_rate))
                made_clips.append(self._write(name, replace(task, reading=task.sentence.text), sound,
                                              vocoder.sample_rate, None))
            return made_clips

        synthesizer = self.lead.cache.synthesizer(
            name.removesuffix(ROMANISED), self.lead.workspace, self.lead.device, self.options.precision,
            first_task.voice, self.options.sound, trained_on=self.lead.model).synthesizer
        streams = synthesizer.synthesize_batch([(task.reading_language, task.reading) for task in tasks],
                                               SamplingOptions(seed=first_task.seed))
        made_clips = []
        for task, stream in zip(tasks, streams, strict=True):
            chunks = list(stream)
            made_clips.append(self._write(name, task, join_chunks(chunks), synthesizer.sample_rate,
                                          sum(chunk.synthesis_s for chunk in chunks), finish_reason(chunks)))
        return made_clips

    def _write(self, name: str, task: _Task, waveform: torch.Tensor, sample_rate: int, synthesis_s: float | None,
               reason: str = "") -> _MadeClip:
        sentence, options = task.sentence, self.options
        place = list(options.models).index(name)
        turn = options.voices.index(task.voice) if task.voice in options.voices else 0
        path = f"{clips.FOLDER}/{place}-{sentence.language}-{sentence.number:04d}-{turn}-{task.seed}.wav"
        audio.save(self.reporter.directory / path, waveform, sample_rate)
        return _MadeClip(name, sentence.language, sentence.number,
                         task.reading if task.reading != sentence.text else "", task.voice, task.seed, path,
                         _hash_file(self.reporter.directory / path), synthesis_s, reason)


def _measure(options: EvaluateOptions, lead: _Lead, measurer: _Measurer, sentences: Mapping[str, Sequence[_Sentence]],
             made_clips: Sequence[_MadeClip], engine: Engine, reporter: Reporter,
             warn: Callable[[str], None]) -> list[EvaluatedClip]:
    """The values of all clips, in their order."""
    # Equal sounds share a file of the cache, so one worker measures them.
    by_sound: dict[str, list[tuple[int, _MadeClip]]] = defaultdict(list)
    for index, clip in enumerate(made_clips):
        by_sound[clip.sha256 if engine.name != "here" else str(index)].append((index, clip))

    measured: dict[int, EvaluatedClip] = {}
    done_count = 0
    load: Callable[[Reporter], _ClipMeasurer] = partial(_ClipMeasurer.load, options, lead.workspace, sentences)
    if engine.name == "here":
        load = partial(_ClipMeasurer, measurer, sentences)
    for batch, values in run_batches(load, _ClipMeasurer.measure, by_sound.values(), engine, reporter,
                                     lambda: _STOPPED):
        if isinstance(values, LostBatch):
            warn(f"{batch[0][1].audio} of {batch[0][1].model} was not measured: {values.reason}.")
        else:
            measured |= zip((index for index, _ in batch), values, strict=True)
        done_count += len(batch)
        reporter.emit(Progress(done_count, len(made_clips), "clips", f"measured, {batch[-1][1].model}"))
    return [measured[index] for index in sorted(measured)]


@dataclass(frozen=True)
class _ClipMeasurer:
    """Measures clips of the job's folder."""

    measurer: _Measurer
    sentences: Mapping[str, Sequence[_Sentence]]
    reporter: Reporter

    @classmethod
    def load(cls, options: EvaluateOptions, workspace: Workspace, sentences: Mapping[str, Sequence[_Sentence]],
             reporter: Reporter) -> _ClipMeasurer:
        """Load models and recogniser again, in a worker; the driver has given the warnings and the speakers."""
        lead = _Lead.load(options, workspace, ModelCache())
        recogniser = load_recogniser_or_warn(workspace, lead.model, lambda _message: None,
                                             options if options.recogniser else None, languages=set(sentences))
        measurer = _Measurer(workspace, lead, recogniser, options)
        for listed in sentences.values():
            measurer.assign_speakers(listed)
        return cls(measurer, sentences, reporter)

    def measure(self, batch: Sequence[tuple[int, _MadeClip]]) -> list[EvaluatedClip]:
        return [self.measurer.measure(clip, self.sentences[clip.language][clip.number], self.reporter.directory)
                for _, clip in batch]


def _codec(lead: _Lead, base: str) -> tuple[Extractor, Vocoder, Callable[[torch.Tensor, int], Voice]]:
    """Extractor and vocoder of a base model, and the voice of a recording."""
    model = lead.cache.synthesizer(f"base:{base}", lead.workspace, lead.device, lead.options.precision, "",
                                   lead.options.sound, trained_on=lead.model).synthesizer.model
    family, folder = model.family, model.base_folder

    def voice(waveform: torch.Tensor, sample_rate: int) -> Voice:
        return family.voice_from_recording(folder, model.device, waveform, sample_rate)

    return family.load_extractor(folder, model.device), family.load_vocoder(folder, model.device), voice


def _hash_file(path: Path) -> str:
    """SHA-256 of the samples of a sound file and their rate."""
    waveform, rate = audio.read(path)
    return _hash(waveform, rate)


def _hash(waveform: torch.Tensor, sample_rate: int) -> str:
    return hashlib.sha256(f"{sample_rate} ".encode() + waveform.numpy().tobytes()).hexdigest()


class _Measurer:
    """Measures clips; what depends on the sound alone is computed once for each sound, in this workspace."""

    def __init__(self, workspace: Workspace, lead: _Lead, recogniser: Recogniser | None,
                 options: EvaluateOptions) -> None:
        self._workspace, self._folder = workspace, workspace.cache / "evaluation"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._model, self._recogniser, self._options = lead.model, recogniser, options
        family, base = lead.model.family, lead.model.base_folder
        self._extractor = family.load_extractor(base, lead.device)
        self._recogniser_key = _recogniser_key(options, lead)
        self._speakers: dict[tuple[str, str], dict[int, tuple[np.ndarray, np.ndarray]]] = defaultdict(dict)
        self._recordings: dict[Path, dict[str, Any]] = {}
        self._cepstra: dict[Path, np.ndarray] = {}

    def instruments(self) -> dict[str, str]:
        """What measured what, for the report."""
        recogniser_name = self._options.recogniser or f"that of the training, else of {self._model.family.name}"
        languages = ", ".join(self._recogniser.languages) if self._recogniser else "none"
        for language in self._recogniser.languages if self._recogniser else ():
            description = measured_by(self._recogniser, language)
            if description:
                languages += f"; {language}: {description}"
        return {
            "Recogniser": f"{recogniser_name}; languages: {languages}", "Naturalness": measures.NATURALNESS,
            "Speaker similarity": measures.SPEAKER,
            "Speaker similarity (own)": f"voice encoder of {self._model.family.name} ({self._extractor.fingerprint})",
            "Intervals": f"95%, percentile bootstrap over sentences, {evaluation_report.RESAMPLES} resamples",
            "Tests": f"permutation of the two models within sentences, {evaluation_report.PERMUTATIONS} permutations",
        }

    def assign_speakers(self, sentences: Sequence[_Sentence]) -> list[_Sentence]:
        """The sentences with the speaker of each recording: the most similar of the model's own voices, else one."""
        voices = self._model.family.load_voices(self._model.base_folder)
        embeddings = {name: self._model.lm.speaker_embedding(voice.conditioning) for name, voice in voices.items()}
        assigned = []
        for sentence in sentences:
            if sentence.recording is None:
                assigned.append(sentence)
                continue
            values = self._of_recording(sentence.recording)
            family_embedding = np.array(values["family_speaker"])
            speaker = max(sorted(embeddings), key=lambda name: measures.cosine(embeddings[name], family_embedding),
                          default="one")
            self._speakers[sentence.language, speaker][sentence.number] = np.array(values["speaker"]), family_embedding
            assigned.append(replace(sentence, speaker=speaker))
        return assigned

    def measure(self, clip: _MadeClip, sentence: _Sentence, folder: Path) -> EvaluatedClip:
        """All values of a clip; those that cannot be computed are left out."""
        waveform, rate = audio.read(folder / clip.audio)
        cached = self._cached(clip.sha256)
        values: dict[str, tuple[float, float]] = {}
        reference = transcript = ""
        language, front_end = sentence.language, self._model.front_end
        text = front_end.verbalize(sentence.text, language) if language in front_end.languages else sentence.text

        # The error needs a recogniser of the language; its transcript is cached by the sound.
        if evaluation.can_score(self._recogniser, language):
            key = f"{self._recogniser_key} {language} {text}"
            if key not in cached:
                score = self._recogniser.score(waveform, rate, text, language)
                cached[key] = [score.reference, score.transcript]
                self._save(clip.sha256, cached)
            reference, transcript = cached[key]
            recogniser = self._recogniser
            values |= measures.transcript_values(text, reference, transcript,
                                                 lambda part: recogniser.normalise(part, language), clip.finish_reason)

        # Similarity compares the clip with the other recordings of the same speaker.
        sound = self._of_sound(clip.sha256, waveform, rate)
        group = self._speakers.get((language, clip.voice if clip.voice in self._options.voices
                                    and (language, clip.voice) in self._speakers else sentence.speaker), {})
        other_vectors = [vectors for number, vectors in group.items() if number != sentence.number]
        # A reference recording is the speaker.
        if Path(clip.voice).is_file():
            prompt = self._of_recording(confinement.open_path(clip.voice))
            other_vectors = [(np.array(prompt["speaker"]), np.array(prompt["family_speaker"]))]
        if other_vectors and sound["speaker"] is not None:
            for name, key, column in (("similarity", "speaker", 0), ("family_similarity", "family_speaker", 1)):
                centre = np.mean([vectors[column] / np.linalg.norm(vectors[column]) for vectors in other_vectors],
                                 axis=0)
                values[name] = (measures.cosine(np.array(sound[key]), centre), 1.0)

        # Naturalness, rate and pitch depend on the sound alone.
        values["naturalness"] = (sound["naturalness"], 1.0)
        # Letters are counted as in `clip_findings.speaking_rate`, whatever a recogniser writes.
        letter_count = float(len(text.replace(" ", "")))
        if sound["speech_s"] > 0:
            values["rate"] = (letter_count / sound["speech_s"], 1.0)
        if sound["f0_range"] is not None:
            values["f0_range"] = (sound["f0_range"], 1.0)

        # A recording of the sentence gives a spectral distance and ratios.
        if sentence.recording is not None and clip.model != RECORDINGS:
            recorded = self._of_recording(sentence.recording)
            key = f"mcd {recorded['sha256']}"
            if key not in cached:
                cached[key] = measures.mel_cepstral_distance(measures.mel_cepstra(waveform, rate),
                                                             self._cepstra_of(sentence.recording))
            values["mcd"] = (cached[key], 1.0)
            if sound["speech_s"] > 0 and recorded["speech_s"] > 0:
                values["rate_ratio"] = (recorded["speech_s"] / sound["speech_s"], 1.0)
            if sound["f0_range"] is not None and recorded["f0_range"]:
                values["f0_range_ratio"] = (sound["f0_range"] / recorded["f0_range"], 1.0)

        # Faults are 1 or 0, so that their mean is a share.
        values |= measures.fault_values(sound["pause_s"], sound["clipped"])
        duration_s = len(waveform) / rate
        if clip.synthesis_s is not None:
            silent = voice_power(audio.to_numpy(waveform), rate) < LEAST_VOICE
            # The values would be those of silence: Distill-MOS gives it about 2 of 5.
            if silent:
                values = {name: value for name, value in values.items() if name not in _OF_SPEECH}
            values["no_speech"] = (float(silent), 1.0)
            values["missing_stop"] = (float(clip.finish_reason != "stop"), 1.0)
            values["real_time_factor"] = (clip.synthesis_s, duration_s)

        cached.update(sound)
        self._save(clip.sha256, cached)
        return EvaluatedClip(clip.model, language, sentence.number, sentence.text, clip.reading, clip.voice, clip.seed,
                             clip.audio, clip.sha256, round(duration_s, 3), reference, transcript, clip.finish_reason,
                             {name: (round(value, 6), weight) for name, (value, weight) in values.items()},
                             sentence.category, sentence.reader or clip.voice)

    def _of_recording(self, path: Path) -> dict[str, Any]:
        """The measures of a recording, and its hash."""
        if path not in self._recordings:
            waveform, rate = audio.read(path)
            # The recording is rounded as the clip that is written of it.
            waveform = (waveform.clamp(-1, 1) * 32767).round() / 32768
            digest = _hash(waveform, rate)
            values = self._of_sound(digest, waveform, rate)
            self._save(digest, {**self._cached(digest), **values})
            self._recordings[path] = {**values, "sha256": digest}
        return self._recordings[path]

    def _cepstra_of(self, path: Path) -> np.ndarray:
        if path not in self._cepstra:
            self._cepstra[path] = measures.mel_cepstra(*audio.read(path))
        return self._cepstra[path]

    def _of_sound(self, digest: str, waveform: torch.Tensor, rate: int) -> dict[str, Any]:
        """What depends on the sound alone; speakers are None for a clip without sound."""
        cached = self._cached(digest)
        if cached.get("fingerprint") == self._extractor.fingerprint:
            names = ("fingerprint", "naturalness", "f0_range", "pause_s", "speech_s", "clipped", "speaker",
                     "family_speaker")
            return {name: cached[name] for name in names}
        samples = audio.to_numpy(waveform)
        try:
            features = self._extractor.extract(audio.resample(waveform, rate, self._extractor.sample_rate))
            embeddings: tuple[list[float] | None, list[float] | None] = (
                measures.similarity_embedding(waveform, rate).tolist(),
                self._model.lm.speaker_embedding(features.conditioning).tolist())
        except UserError:
            # A silent or too short clip has no speaker.
            embeddings = None, None
        return {
            "fingerprint": self._extractor.fingerprint, "naturalness": measures.naturalness(waveform, rate),
            "f0_range": measures.pitch_range(measures.pitch(waveform, rate)),
            "pause_s": measures.longest_pause(samples, rate), "speech_s": measures.speech_seconds(samples, rate),
            "clipped": clipped_share(samples), "speaker": embeddings[0], "family_speaker": embeddings[1],
        }

    def _cached(self, digest: str) -> dict[str, Any]:
        """The measures of a sound; none where there are none, or others wrote them, since a report is signed."""
        name = f"{digest}-{measures.VERSION}"
        try:
            values = dict(json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8")))
            mac = str(values.pop("mac"))
        except (OSError, ValueError, TypeError, KeyError):
            return {}
        return values if workspace_key.is_signed(self._workspace, _MEASURES, _signed(name, values), mac) else {}

    def _save(self, digest: str, values: Mapping[str, Any]) -> None:
        name = f"{digest}-{measures.VERSION}"
        mac = workspace_key.sign(self._workspace, _MEASURES, _signed(name, values))
        write_json(self._folder / f"{name}.json", {**values, "mac": mac}, sync=False)


_MEASURES = "measures of a sound"


def _signed(name: str, values: Mapping[str, Any]) -> bytes:
    return json.dumps([name, values], sort_keys=True).encode()


def _recogniser_key(options: EvaluateOptions, lead: _Lead) -> str:
    """What tells one recogniser from another: its name, and the state of the files of the model that it came with."""
    choice = options.recogniser, options.recogniser_language
    record = lead.model.record
    if not options.recogniser and record is not None:
        choice = record.recogniser, record.recogniser_language
    hash_one = verification.hash_cache(lead.workspace)
    names = sorted((path.name, hash_one(path)) for path in lead.model.base_folder.glob("*recogniser*"))
    files = recognisers.identify(lead.workspace, choice[0])
    return hashlib.sha256(json.dumps([lead.model.family.name, choice, names, files]).encode()).hexdigest()[:16]


def summarise(measured: Sequence[EvaluatedClip], models: Sequence[str]
              ) -> tuple[dict[str, dict[str, dict[str, MetricEstimate]]], tuple[PairedTest, ...]]:
    """Estimates by model, language and metric, and the tests of every two models on the sentences of both."""
    sums: dict[tuple[str, str, str], dict[int, np.ndarray]] = defaultdict(dict)
    for clip in measured:
        for metric, pair in clip.values.items():
            sentence_sums = sums[clip.model, clip.language, metric]
            # Voices and seeds of a sentence add up.
            sentence_sums[clip.sentence] = sentence_sums.get(clip.sentence, np.zeros(2)) + np.array(pair)

    estimates: dict[str, dict[str, dict[str, MetricEstimate]]] = {}
    for (model, language, metric), sentence_sums in sums.items():
        numerators, denominators = np.array(list(sentence_sums.values())).T
        interval = evaluation_report.bootstrap_interval(numerators, denominators)
        estimates.setdefault(model, {}).setdefault(language, {})[metric] = MetricEstimate(
            evaluation_report.ratio(numerators, denominators), *interval, len(sentence_sums))

    # Every two models are compared on the sentences that both spoke.
    tests = []
    for language in dict.fromkeys(clip.language for clip in measured):
        for metric in _TESTED:
            for place, first_model in enumerate(models):
                for second_model in models[place + 1:]:
                    sums_1, sums_2 = (sums.get((name, language, metric), {}) for name in (first_model, second_model))
                    shared = [number for number in sums_1 if number in sums_2]
                    if shared:
                        a, b = (np.array([model_sums[number] for number in shared]).T
                                for model_sums in (sums_1, sums_2))
                        tests.append(PairedTest(metric, language, first_model, second_model,
                                                *evaluation_report.paired_test(
                            (a[0], a[1]), (b[0], b[1])), len(shared)))
    return estimates, tuple(tests)


def _software(device: torch.device) -> dict[str, str]:
    """Versions and hardware, for the report."""
    return {"processor": compute.device_name(device), "threads": str(torch.get_num_threads()),
            "torch": torch.__version__, "distillmos": version("distillmos"), "Resemblyzer": version("Resemblyzer")}
