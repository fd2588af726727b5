"""The verb `book`: a book as an audiobook, sentence by sentence, so that a stop or a crash loses a batch at most.

The text is read in the order of the book (`data.books`), synthesized in batches by `core.speech.synthesis` as every
other text is, and each sentence is written to a file of the job with a line in `sentences.jsonl`. A resume takes the
sentences that are there. A sentence that fails the speech-health check of the trainings is synthesized again with
other seeds; the best attempt stays, and `resynthesized.csv` lists them all.
"""

from __future__ import annotations

import csv
import dataclasses
import filecmp
import hashlib
import io
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from config import foreign
from config.errors import UserError
from config.schema import BookOptions, SamplingOptions
from core import compute
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, duration_text, pluralize, stage
from core.library import verification
from core.library.learning import LIMITS, SentenceHealth
from core.serving.word_times import align_words, load_word_recogniser
from core.speech import audiobook, evaluation
from core.speech.audiobook import AudioChapter, BookLabels, SentenceAudio
from core.speech.evaluation import EvaluatedSentence
from core.speech.model_cache import CachedSynthesizer, ModelCache, synthesis_inputs
from core.speech.synthesis import MAX_BATCH_SIZE, Synthesizer, finish_reason, join_chunks, unused_controls
from core.speech.transcription import CTCModel
from core.text.manuscript import Manuscript, Sentence, describe, language_of, open_book, write_manuscript
from core.training.learning_evaluation import SpeechReference, count_letters, measure_sentence_health
from core.workspace import Workspace
from data.acoustics import audio
from data.books.reading import Book
from data.durable_files import append_text, copy_file, write_text
from data.importers.tables import safe_cell
from data.measures import integrated_loudness

FOLDER = "book"
"""The folder of a job with the finished files."""
RESYNTHESIZED = "resynthesized.csv"
_SENTENCES, _RECORDS = "sentences", "sentences.jsonl"
_WINDOW = 8 * MAX_BATCH_SIZE  # sentences among which those of like length share a batch
_RETRY_SEED_STEP = 7_000_003  # apart from the seeds of silent sentences, which are sampled again by the synthesis
_SHORT_LETTERS = 15  # the duration of a shorter sentence says little
_SILENT_LUFS = -70.0


@dataclass(frozen=True)
class SentenceRecord:
    """A sentence on the disk. `faults`: of each attempt, joined with commas; `best`: the attempt in the file."""

    number: int
    key: str  # A hash of text, model and settings.
    samples: int
    size: int  # bytes of its file
    loudness: float  # LUFS
    seconds: float  # computation of all attempts
    faults: tuple[str, ...] = ("",)
    best: int = 0  # index
    words: tuple[tuple[str, float, float], ...] = ()

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SentenceRecord:
        """The fields of a line of `sentences.jsonl`."""
        words = tuple((str(word), float(begin), float(end)) for word, begin, end in values["words"])
        return cls(int(values["number"]), str(values["key"]), int(values["samples"]), int(values["size"]),
                   float(values["loudness"]), float(values["seconds"]), tuple(map(str, values["faults"])),
                   int(values["best"]), words)


@dataclass(frozen=True)
class _Attempt:
    waveform: np.ndarray  # (S,)
    seconds: float
    health: SentenceHealth
    faults: tuple[str, ...]

    @property
    def badness(self) -> tuple[int, float]:
        """Fewer faults are better, then a duration nearer to the expected one."""
        return len(self.faults), abs(math.log(max(self.health.duration_ratio, 1e-3)))


def run(options: BookOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write `book/`: the audiobook, MP3 files, subtitles and the list of sentences that were synthesized again."""
    with stage(reporter, "read"):
        book = open_book(options.book)
    with stage(reporter, "load"):
        loaded = ModelCache(1).synthesizer(
            options.voice_model, workspace, compute.setup_device(options.device), options.precision, options.voice,
            options.sound, options.unknown)
        synthesizer, model = loaded.synthesizer, loaded.synthesizer.model
        language = language_of(book, options, tuple(synthesizer.front_end.languages))
        reference = SpeechReference.from_recordings(evaluation.held_out_recordings(workspace, model, language))
        recogniser = _word_recogniser(options, workspace, synthesizer, language, reporter)
    manuscript = write_manuscript(workspace, book, options, synthesizer.front_end, language)
    _check_chunks(synthesizer, manuscript, language)
    keys = _keys(manuscript, options, workspace, loaded, language)
    spoken = _read_spoken(reporter.directory, keys, synthesizer.sample_rate)

    letters = sum(count_letters(sentence.spoken) for sentence in manuscript.sentences)
    pauses_s = sum(sentence.pause_s for sentence in manuscript.sentences)
    expected_s = letters * reference.letter_s + pauses_s
    resume_note = f" {pluralize(len(spoken), 'sentence')} of an earlier attempt are there already." if spoken else ""
    reporter.emit(Plan((
        describe(book),
        f"{pluralize(len(manuscript.titles), 'chapter')} with text, {pluralize(len(keys), 'sentence')}, about "
        f"{duration_text(expected_s)} of speech, with {model.ref} in the voice {loaded.voice}; "
        f"{loaded.precision}.{resume_note}",
    ), {"chapters": len(manuscript.titles), "sentences": len(keys), "present": len(spoken)}))
    unused = unused_controls(options.sound, model.family)
    note = verification.spoken_note(workspace, options.voice_model)
    for warning in (*manuscript.notes, *filter(None, [note]),
                    *([f"{', '.join(unused)}: no effect, because {model.family.name} has no such control."]
                      if unused else [])):
        reporter.emit(WarningRaised(warning))

    with stage(reporter, "speak"):
        _speak(options, synthesizer, manuscript, keys, spoken, language, reference, recogniser, reporter)
    sentences = [spoken[number] for number in range(len(keys))]
    with stage(reporter, "write"):
        files = _write_files(options, book, manuscript, sentences, synthesizer.sample_rate, language, reporter)

    # The finished files hold all speech, so the sentences make room.
    shutil.rmtree(reporter.directory / _SENTENCES, ignore_errors=True)
    speech_s = sum(sentence.samples for sentence in sentences) / synthesizer.sample_rate
    synthesis_s = sum(sentence.seconds for sentence in sentences)
    resynthesized = sum(len(sentence.faults) > 1 for sentence in sentences)
    return {
        "title": book.title, "chapters": len(manuscript.titles), "sentences": len(sentences),
        "duration_s": round(speech_s + pauses_s, 3), "seconds": round(synthesis_s, 1),
        "real_time_factor": round(synthesis_s / max(speech_s, 1e-9), 3), "resynthesized": resynthesized,
        "faulty": sum(bool(sentence.faults[sentence.best]) for sentence in sentences),
        "model": model.ref, "language": language, "voice": options.voice, "files": len(files),
        "output": options.output or FOLDER,
    }


def _word_recogniser(options: BookOptions, workspace: Workspace, synthesizer: Synthesizer, language: str,
                     reporter: Reporter) -> CTCModel | None:
    if options.subtitles != "words":
        return None
    return load_word_recogniser(workspace, options.voice_model, language, synthesizer.model.new_languages,
                                synthesizer.model.device.type, reporter)


def _check_chunks(synthesizer: Synthesizer, manuscript: Manuscript, language: str) -> None:
    """Refuse a sentence that cannot be synthesized now, and not after hours."""
    for sentence in manuscript.sentences:
        try:
            synthesizer.split(sentence.spoken, language)
        except UserError as error:
            title = manuscript.titles[sentence.chapter]
            raise UserError(f"Chapter {title[:60]!r}, {sentence.text[:60]!r}: {error.message}", error.hint) from error


def _keys(manuscript: Manuscript, options: BookOptions, workspace: Workspace, loaded: CachedSynthesizer,
          language: str) -> list[str]:
    """A hash for each sentence of its text, the weights of the model, the voice's recording and the settings."""
    settings = [*synthesis_inputs(workspace, loaded, options), language, options.retries, options.subtitles == "words"]
    common = hashlib.sha256(json.dumps(settings, ensure_ascii=True, default=str).encode())
    keys: list[str] = []
    for sentence in manuscript.sentences:
        digest = common.copy()
        digest.update(sentence.spoken.encode("utf-8", "surrogatepass"))
        keys.append(digest.hexdigest()[:24])
    return keys


def _sentence_path(directory: Path, number: int) -> Path:
    return directory / _SENTENCES / f"{number:06d}.flac"


def _read_spoken(directory: Path, keys: Sequence[str], sample_rate: int) -> dict[int, SentenceRecord]:
    """The sentences of an earlier attempt by number, whose files are whole and whose text and settings are the same."""
    path = directory / _RECORDS
    if not path.is_file():
        return {}
    spoken: dict[int, SentenceRecord] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            sentence = SentenceRecord.from_json(foreign.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line that a kill cut off
        if 0 <= sentence.number < len(keys) and sentence.key == keys[sentence.number]:
            spoken[sentence.number] = sentence
    return {number: sentence for number, sentence in spoken.items()
            if _is_whole(_sentence_path(directory, number), sentence, sample_rate)}


def _is_whole(path: Path, sentence: SentenceRecord, sample_rate: int) -> bool:
    # The header alone would not show that the end of the file is missing.
    try:
        header = soundfile.info(str(path))
        size = path.stat().st_size
    except (soundfile.SoundFileError, OSError):
        return False
    return (header.frames, header.samplerate, size) == (sentence.samples, sample_rate, sentence.size)


def _speak(options: BookOptions, synthesizer: Synthesizer, manuscript: Manuscript, keys: Sequence[str],
           spoken: dict[int, SentenceRecord], language: str, reference: SpeechReference,
           recogniser: CTCModel | None, reporter: Reporter) -> None:
    """Synthesize the sentences that `spoken` lacks, in batches of like length, and add them to it."""
    (reporter.directory / _SENTENCES).mkdir(exist_ok=True)
    pending = [number for number in range(len(keys)) if number not in spoken]
    total = len(keys)
    reporter.emit(Progress(total - len(pending), total, "sentences"))
    for start in range(0, len(pending), _WINDOW):
        window = sorted(pending[start:start + _WINDOW], key=lambda number: len(manuscript.sentences[number].spoken))
        for batch_start in range(0, len(window), MAX_BATCH_SIZE):
            check_stop(reporter, f"Stopped on request after {len(spoken):,} of {pluralize(total, 'sentence')}; a "
                                 "resume continues there.")
            batch = window[batch_start:batch_start + MAX_BATCH_SIZE]
            texts = [manuscript.sentences[number].spoken for number in batch]
            attempts = _attempts(options, synthesizer, texts, language, reference)

            lines: list[str] = []
            for number, tried in zip(batch, attempts, strict=True):
                sentence = _store(reporter.directory, number, keys[number], tried, synthesizer, language,
                                  manuscript.sentences[number], recogniser)
                spoken[number] = sentence
                lines.append(json.dumps(dataclasses.asdict(sentence), ensure_ascii=False) + "\n")
            append_text(reporter.directory / _RECORDS, "".join(lines))
            title = manuscript.titles[manuscript.sentences[batch[-1]].chapter]
            reporter.emit(Progress(len(spoken), total, "sentences", title[:80]))


def _attempts(options: BookOptions, synthesizer: Synthesizer, texts: Sequence[str], language: str,
              reference: SpeechReference) -> list[list[_Attempt]]:
    """The attempts at each text, in order: a faulty one is followed by another, with another seed."""
    attempts: list[list[_Attempt]] = [[] for _ in texts]
    due = list(range(len(texts)))
    # Greedy decoding has no other result.
    retries = options.retries if synthesizer.sampling(options.sampling).temperature else 0
    for number in range(retries + 1):
        sampling = _with_seed(options.sampling, number)
        generated = synthesizer.synthesize_batch([(language, texts[index]) for index in due], sampling)
        for index, chunk_iterator in zip(due, generated, strict=True):
            chunks = list(chunk_iterator)
            text = synthesizer.front_end.verbalize(texts[index], language)
            sentence = EvaluatedSentence(text, language, "", join_chunks(chunks), synthesizer.sample_rate, None,
                                         finish_reason(chunks))
            health = measure_sentence_health(sentence, None, reference)
            synthesis_s = sum(chunk.synthesis_s for chunk in chunks)
            attempts[index].append(_Attempt(audio.to_numpy(sentence.waveform), synthesis_s, health,
                                            _faults(health, count_letters(text))))
        due = [index for index in due if attempts[index][-1].faults]
        if not due:
            break
    return attempts


def _with_seed(sampling: SamplingOptions, attempt: int) -> SamplingOptions:
    return sampling.model_copy(update={"seed": sampling.seed + attempt * _RETRY_SEED_STEP})


def _faults(health: SentenceHealth, letters: int) -> tuple[str, ...]:
    """What a listener would hear at once; the duration of a short sentence does not count."""
    if letters < _SHORT_LETTERS:
        health = dataclasses.replace(health, duration_ratio=1.0)
    wrong_duration = not LIMITS.shortest <= health.duration_ratio <= LIMITS.longest
    faults = {"silent": health.silent(), "no speech": health.no_speech,
              "repetition": health.repetition,
              "cut off": health.missing_stop and not health.repetition and not health.no_speech,
              "long pause": health.long_silence, "wrong duration": wrong_duration and not health.silent()}
    return tuple(name for name, occurs in faults.items() if occurs)


def _store(directory: Path, number: int, key: str, attempts: Sequence[_Attempt], synthesizer: Synthesizer,
           language: str, sentence: Sentence, recogniser: CTCModel | None) -> SentenceRecord:
    """Write the best attempt as a file."""
    best = min(range(len(attempts)), key=lambda index: attempts[index].badness)
    waveform, rate = attempts[best].waveform, synthesizer.sample_rate
    path = _sentence_path(directory, number)
    try:
        soundfile.write(str(path), waveform, rate, format="FLAC", subtype="PCM_16")
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(f"{path} could not be written: {error}.", "Free space on the disk, then continue.") from error
    loudness = integrated_loudness(waveform, rate)
    words = _words(synthesizer.front_end.verbalize(sentence.spoken, language), waveform, rate, recogniser)
    level = _SILENT_LUFS if loudness is None else round(loudness, 2)
    return SentenceRecord(number, key, len(waveform), path.stat().st_size, level,
                          round(sum(attempt.seconds for attempt in attempts), 3),
                          tuple(", ".join(attempt.faults) for attempt in attempts), best, words)


def _words(text: str, waveform: np.ndarray, sample_rate: int,
           recogniser: CTCModel | None) -> tuple[tuple[str, float, float], ...]:
    """The time of each word as it is spoken; a word without letters of the recogniser joins the one before it."""
    if recogniser is None:
        return ()
    try:
        aligned = align_words(text, waveform, sample_rate, recogniser)
    except UserError:
        return ()  # no letters: the sentence is one cue
    times: list[tuple[str, float, float]] = []
    for word in aligned:
        if word.start_s is not None and word.end_s is not None:
            times.append((word.word, word.start_s, max(word.end_s, word.start_s)))
        elif times:
            times[-1] = (f"{times[-1][0]} {word.word}", *times[-1][1:])
    return tuple(times)


def _write_files(options: BookOptions, book: Book, manuscript: Manuscript, spoken: Sequence[SentenceRecord],
                 sample_rate: int, language: str, reporter: Reporter) -> list[Path]:
    """Write all files into a new folder, and copy them to the output folder; their paths."""
    folder = reporter.directory / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        cover = audiobook.jpeg_cover(book.cover)
    except UserError as error:
        cover = b""
        reporter.emit(WarningRaised(f"{error.message} {error.hint}"))
    labels, stem = BookLabels(book.title, book.authors, language, cover), audiobook.file_stem(book.title, "book")
    check = _StopCheck(reporter)
    chapters = _chapters(reporter.directory, manuscript, spoken, sample_rate)
    if options.m4b or options.mp3:
        levels = _loudness_by_chapter(manuscript, spoken)
        for number, (chapter, level) in enumerate(zip(chapters, levels, strict=True)):
            chapters[number] = audiobook.with_loudness(chapter, options.loudness, level, sample_rate, check)
            reporter.emit(Progress(number + 1, len(chapters), "chapters", "levelled"))
    files: list[Path] = []

    if options.m4b:
        files.append(folder / f"{stem}.m4b")
        audiobook.write_m4b(files[-1], chapters, labels, sample_rate, check)
    if options.mp3:
        width = len(str(len(chapters)))
        for number, chapter in enumerate(chapters, 1):
            files.append(folder / f"{number:0{width}d}-{audiobook.file_stem(chapter.title, 'chapter')}.mp3")
            audiobook.write_mp3(files[-1], chapter, number, len(chapters), labels, sample_rate, check)
            reporter.emit(Progress(number, len(chapters), "chapters", "written"))
    if options.subtitles != "none":
        files += audiobook.write_subtitles(folder, stem, audiobook.sentence_cues(chapters, sample_rate))
    if options.subtitles == "words":
        files += audiobook.write_subtitles(folder, f"{stem}.words", audiobook.word_cues(chapters, sample_rate))
    files.append(folder / RESYNTHESIZED)
    write_text(files[-1], _resynthesized_table(manuscript, spoken, chapters, sample_rate))

    if options.output:
        _copy(files, Path(options.output))
    return files


@dataclass
class _StopCheck:
    """Called for each sentence that is encoded; looks for a stop every hundredth time."""

    reporter: Reporter
    count: int = field(default=0)

    def __call__(self) -> None:
        self.count += 1
        if self.count % 100 == 0:
            check_stop(self.reporter, "Stopped on request while the files were written; all sentences are kept.")


def _chapters(directory: Path, manuscript: Manuscript, spoken: Sequence[SentenceRecord],
              sample_rate: int) -> list[AudioChapter]:
    clips: list[list[SentenceAudio]] = [[] for _ in manuscript.titles]
    for sentence, record in zip(manuscript.sentences, spoken, strict=True):
        clips[sentence.chapter].append(SentenceAudio(
            _sentence_path(directory, record.number), record.samples, round(sentence.pause_s * sample_rate),
            sentence.text, record.words))
    return [AudioChapter(title, tuple(chapter_clips))
            for title, chapter_clips in zip(manuscript.titles, clips, strict=True)]


def _loudness_by_chapter(manuscript: Manuscript, spoken: Sequence[SentenceRecord]) -> list[float]:
    levels: list[list[tuple[int, float]]] = [[] for _ in manuscript.titles]
    for sentence, record in zip(manuscript.sentences, spoken, strict=True):
        levels[sentence.chapter].append((record.samples, record.loudness))
    return [_loudness(level) for level in levels]


def _loudness(levels: Sequence[tuple[int, float]]) -> float:
    """LUFS of sentences together: the mean of their powers by length, without silence, as the standard gates it."""
    sounding = [(samples, lufs) for samples, lufs in levels if lufs > _SILENT_LUFS]
    if not sounding:
        return _SILENT_LUFS
    gate = _mean_loudness(sounding) - 10.0
    return _mean_loudness([entry for entry in sounding if entry[1] >= gate] or sounding)


def _mean_loudness(levels: Sequence[tuple[int, float]]) -> float:
    power = sum(samples * 10 ** (lufs / 10) for samples, lufs in levels)
    return 10 * math.log10(power / sum(samples for samples, _ in levels))


def _resynthesized_table(manuscript: Manuscript, spoken: Sequence[SentenceRecord], chapters: Sequence[AudioChapter],
                         sample_rate: int) -> str:
    """A line for each sentence with more than one attempt, or with a fault that stayed."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["chapter", "time", "text", "attempts", "faults", "outcome"])
    cues = audiobook.sentence_cues(chapters, sample_rate)
    for sentence, record, cue in zip(manuscript.sentences, spoken, cues, strict=True):
        if not any(record.faults):
            continue
        outcome = f"attempt {record.best + 1} kept: {record.faults[record.best] or 'no fault'}"
        faults = "; ".join(fault or "none" for fault in record.faults)
        cells = (manuscript.titles[sentence.chapter], audiobook.cue_time(cue.start_s), sentence.text,
                 str(len(record.faults)), faults, outcome)
        writer.writerow(map(safe_cell, cells))
    return "\ufeff" + table.getvalue()  # byte order mark: spreadsheets read it as UTF-8


def _copy(files: Sequence[Path], folder: Path) -> None:
    """Copy the finished files; existing ones with other content stay, and the fault names one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in files:
            target = folder / path.name
            if target.exists() and not filecmp.cmp(path, target, shallow=False):
                raise UserError(f"There already is another file {target}.",
                                "Give a new folder with --output, or move the file away; then continue.")
            copy_file(path, target)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.",
                        "Give a folder that can be written, with --output.") from error
