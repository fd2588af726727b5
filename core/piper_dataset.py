"""The verb `piper_dataset`: a dataset in the layout of LJSpeech that a model speaks, to train a voice for Piper.

Piper's voices are small enough for phones and screen readers, and are trained on one speaker's recordings. Each
sentence is synthesized and transcribed; one whose character error rate (CER) is above the limit is synthesized again
with other seeds, and left out if none of them is good. `clips.zip` holds `wavs`, `metadata.csv` (id, text, and text as
it is spoken, in which numbers are words), `left_out.csv` and `README.md`.

Layout: piper1-gpl, docs/TRAINING.md and src/piper/train/vits/dataset.py, which take the last column as the text and add
`.wav` to an id.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
import statistics
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from config import confinement, foreign
from config.errors import UserError
from config.languages import language_name
from config.schema import PiperDatasetOptions, SamplingOptions
from core import compute
from core.jobs.events import CLIPS_ARCHIVE, Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, duration_text, pluralize, stage
from core.library import verification
from core.speech import evaluation
from core.speech.model_cache import ModelCache, synthesis_inputs
from core.speech.scoring import Recogniser, load_recogniser_or_warn
from core.speech.synthesis import MAX_BATCH_SIZE, Synthesizer, finish_reason, join_chunks
from core.workspace import Workspace
from data.acoustics import audio
from data.durable_files import append_text, atomic_path, copy_file

SAMPLE_RATE = 22_050
"""Of Piper's voices of medium quality, the only ones whose checkpoints can be continued without other settings."""
WAVES, TABLE, LEFT_OUT, README = "wavs", "metadata.csv", "left_out.csv", "README.md"
_SENTENCES = "sentences.jsonl"
_ATTEMPTS = 3
_SEED_STEP = 10_000  # between two attempts; more than a sentence has chunks, whose seeds follow each other
_FEW_S = 900.0  # seconds of speech below which a warning is raised


@dataclass(frozen=True)
class SpokenSentence:
    """A sentence and what became of it; `reason` says why it was left out, and is empty if it was not."""

    number: int
    text: str
    spoken_text: str = ""  # numbers as words, as the model reads it
    cer: float | None = None  # The best attempt's error rate.
    duration_s: float = 0.0
    attempts: int = 0
    reason: str = ""
    settings_hash: str = ""  # the first 24 digits of the SHA-256 of model, voice and settings

    @property
    def id(self) -> str:
        return f"{self.number:05d}"


def run(options: PiperDatasetOptions, workspace: Workspace, reporter: Reporter,
        model_cache: ModelCache | None = None) -> Result:
    """Write `clips.zip`; a resume speaks what is missing, and everything if the model or the settings changed."""
    with stage(reporter, "load"):
        loaded = (model_cache or ModelCache()).synthesizer(
            options.voice_model, workspace, compute.setup_device(options.device), options.precision, options.voice,
            options.sound, options.unknown)
        model = loaded.synthesizer.model
        language = options.language or next(iter(model.new_languages), "en")
        recogniser = load_recogniser_or_warn(
            workspace, model, lambda message: reporter.emit(WarningRaised(message)), languages=(language,))
    filtered = options.max_cer < 1
    if filtered and (recogniser is None or language not in recogniser.languages):
        raise UserError(f"No recogniser measures {language_name(language)}, so no sentence can be filtered by its CER.",
                        "Train one on recordings (python -m scripts recogniser --dataset NAME), or keep every "
                        "sentence (--max-cer 1).")

    texts = read_sentences(options, workspace, loaded.synthesizer, language)
    settings = [*synthesis_inputs(workspace, loaded, options), language, options.max_cer]
    settings_hash = hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()[:24]
    sentences = _spoken_before(reporter.directory, texts, settings_hash)
    reporter.emit(Plan((
        f"{pluralize(len(texts), 'sentence')} of {language_name(language)} with {model.ref} in the voice "
        f"{loaded.voice}; {loaded.precision}.",
        f"Left out is what has a CER above {options.max_cer:.0%} in {_ATTEMPTS} attempts." if filtered else
        "Every sentence stays, whatever its CER.",
        *([f"{pluralize(len(sentences), 'sentence')} were spoken before."] if sentences else ())),
        {"clips": len(texts)}))
    note = verification.spoken_note(workspace, options.voice_model)
    if note:
        reporter.emit(WarningRaised(note))

    with stage(reporter, "speak"):
        speaker = _Speaker(loaded.synthesizer, language, recogniser if filtered else None, options,
                           reporter.directory / WAVES)
        speaker.folder.mkdir(exist_ok=True)
        waiting = [(number, text) for number, text in enumerate(texts, 1) if number not in sentences]
        for start in range(0, len(waiting), MAX_BATCH_SIZE):
            batch = speaker.speak(waiting[start:start + MAX_BATCH_SIZE])
            batch = [replace(sentence, settings_hash=settings_hash) for sentence in batch]
            sentences |= {sentence.number: sentence for sentence in batch}
            lines = [json.dumps(asdict(sentence), ensure_ascii=False) + "\n" for sentence in batch]
            append_text(reporter.directory / _SENTENCES, "".join(lines))
            clip_count = sum(not sentence.reason for sentence in sentences.values())
            reporter.emit(Progress(len(sentences), len(texts), "sentences", f"{clip_count} kept"))
            check_stop(reporter, f"Stopped on request after {pluralize(len(sentences), 'sentence')}; a resume goes on "
                                 "with the others.")

    clips = [sentence for sentence in sentences.values() if not sentence.reason]
    if not clips:
        example = next(iter(sentences.values()))
        raise UserError(f"None of {pluralize(len(texts), 'sentence')} was kept; the first one: {example.reason}.",
                        "Listen to the model first; a larger --max-cer keeps more.")
    duration_s = sum(sentence.duration_s for sentence in clips)
    if duration_s < _FEW_S:
        reporter.emit(WarningRaised(f"{duration_text(duration_s)} of speech is little to train a voice with; LJSpeech "
                                    "has 24 hours. Give more texts (--file)."))
    with stage(reporter, "write"):
        readme = _readme(options, model.ref, loaded.voice, language, clips, len(texts))
        _write_archive(reporter.directory, sorted(sentences.values(), key=lambda sentence: sentence.number), readme)
        if options.archive:
            copy_file(reporter.directory / CLIPS_ARCHIVE, Path(options.archive))
    # After a copy that failed, a resume needs the separate files.
    shutil.rmtree(reporter.directory / WAVES)
    errors = [sentence.cer for sentence in clips if sentence.cer is not None]
    return {
        "clips": len(clips), "left_out": len(texts) - len(clips), "duration_s": round(duration_s, 1),
        "error": round(statistics.mean(errors), 4) if errors else None, "model": model.ref, "language": language,
        "archive": options.archive or CLIPS_ARCHIVE,
    }


def read_sentences(options: PiperDatasetOptions, workspace: Workspace, synthesizer: Synthesizer,
                   language: str) -> list[str]:
    """The lines of the text file, else the texts of the dataset that the model was trained on; each once."""
    if options.file:
        path = confinement.open_path(options.file)
        lines = [" ".join(line.split()) for line in foreign.read_text(path).splitlines()]
    else:
        lines = [" ".join(text.split()) for text in evaluation.training_texts(workspace, synthesizer.model, language)]
    texts = list(dict.fromkeys(filter(None, lines)))
    if not texts and options.file:
        raise UserError(f"{options.file} has no text.", "Write one sentence on each line.")
    if not texts:
        raise UserError(f"{synthesizer.model.ref} has no dataset of {language_name(language)} in this workspace, whose "
                        "texts it could speak.", "Give a text file with one sentence on each line (--file).")
    return texts[:options.most] if options.most else texts


@dataclass(frozen=True)
class _Speaker:
    """Speaks and scores sentences; without a `recogniser` none is left out for its CER."""

    synthesizer: Synthesizer
    language: str
    recogniser: Recogniser | None
    options: PiperDatasetOptions
    folder: Path

    def speak(self, batch: Sequence[tuple[int, str]]) -> list[SpokenSentence]:
        """Each sentence of a batch, with its WAV file if it is kept."""
        sentences: dict[int, SpokenSentence] = {}
        for number, text in batch:
            sentence = SpokenSentence(number, text)
            try:
                self.synthesizer.split(text, self.language)
                spoken_text = " ".join(self.synthesizer.front_end.verbalize(text, self.language).split())
                sentence = replace(sentence, spoken_text=spoken_text, reason="not spoken yet")
            except UserError as error:
                sentence = replace(sentence, reason=error.message.rstrip("."))
            sentences[number] = sentence

        # Sentences that failed are spoken again together, with another seed.
        due = [sentence for sentence in sentences.values() if sentence.spoken_text]
        # Greedy decoding has no other result.
        for attempt in range(_ATTEMPTS if self.synthesizer.sampling(self.options.sampling).temperature else 1):
            if not due:
                break
            sampling = self.options.sampling.model_copy(
                update={"seed": (self.options.sampling.seed or 0) + attempt * _SEED_STEP})
            for sentence, (waveform, fault) in zip(due, self._synthesize(due, sampling), strict=True):
                sentences[sentence.number] = self._scored(sentence, waveform, fault, attempt + 1)
            due = [sentences[sentence.number] for sentence in due if sentences[sentence.number].reason]
        return list(sentences.values())

    def _synthesize(self, due: Sequence[SpokenSentence],
                    sampling: SamplingOptions) -> list[tuple[torch.Tensor, str]]:
        """The waveform of each sentence, and why its speech is not whole; empty if it is."""
        faults = {"limit": "cut off at the longest speech", "repetition": "cut off where it repeated itself",
                  "no_speech": "silent"}
        results = []
        for chunks in self.synthesizer.synthesize_batch([(self.language, sentence.text) for sentence in due], sampling):
            parts = list(chunks)
            results.append((join_chunks(parts), faults.get(finish_reason(parts), "")))
        return results

    def _scored(self, sentence: SpokenSentence, waveform: torch.Tensor, fault: str, attempt: int) -> SpokenSentence:
        """The sentence after an attempt; its file is written if it is kept."""
        rate, cer = self.synthesizer.sample_rate, sentence.cer
        if self.recogniser is not None and not fault:
            error = self.recogniser.score(waveform, rate, sentence.spoken_text, self.language).error
            cer = error if cer is None else min(cer, error)
            fault = f"CER {error:.0%}" if error > self.options.max_cer else ""
        if fault:
            # The reason names the best attempt.
            reason = fault if cer is None else f"CER {cer:.0%} at best"
            return replace(sentence, cer=cer, attempts=attempt, reason=reason)
        resampled = audio.resample(waveform, rate, SAMPLE_RATE)
        audio.save(self.folder / f"{sentence.id}.wav", resampled, SAMPLE_RATE)
        return replace(sentence, cer=cer, attempts=attempt, duration_s=len(resampled) / SAMPLE_RATE, reason="")


def _spoken_before(folder: Path, texts: Sequence[str], settings_hash: str) -> dict[int, SpokenSentence]:
    """The sentences that an earlier start of this job spoke with the same settings, by number, if their files exist."""
    path = folder / _SENTENCES
    sentences: dict[int, SpokenSentence] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            sentence = SpokenSentence(**json.loads(line))
        except (ValueError, TypeError):  # the process ended while it wrote the line
            continue
        same_text = 0 < sentence.number <= len(texts) and texts[sentence.number - 1] == sentence.text
        same_inputs = same_text and sentence.settings_hash == settings_hash
        if same_inputs and (sentence.reason or (folder / WAVES / f"{sentence.id}.wav").is_file()):
            sentences[sentence.number] = sentence
    return sentences


def _write_archive(folder: Path, sentences: Sequence[SpokenSentence], readme: str) -> None:
    """Write `clips.zip`."""
    clips = [sentence for sentence in sentences if not sentence.reason]
    table = _csv([(sentence.id, sentence.text, sentence.spoken_text) for sentence in clips])
    left_out = _csv([(sentence.id, sentence.text, sentence.reason) for sentence in sentences if sentence.reason])
    with atomic_path(folder / CLIPS_ARCHIVE) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, text in ((README, readme), (TABLE, table), (LEFT_OUT, left_out)):
            archive.writestr(name, text)
        for sentence in clips:
            archive.write(folder / WAVES / f"{sentence.id}.wav", f"{WAVES}/{sentence.id}.wav")


def _csv(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows as Piper reads them: divided by `|`, without a heading; programs that do not unquote get no quotes."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="|", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
    writer.writerows([[cell.replace("|", ",").replace('"', "'") for cell in row] for row in rows])
    return text.getvalue()


def _readme(options: PiperDatasetOptions, model: str, voice: str, language: str, clips: Sequence[SpokenSentence],
            total: int) -> str:
    duration_s = sum(sentence.duration_s for sentence in clips)
    errors = [sentence.cer for sentence in clips if sentence.cer is not None]
    measured = (f"Mean CER of the kept sentences: {statistics.mean(errors):.1%}; the limit was {options.max_cer:.0%}."
                if errors else "The sentences were not filtered.")
    return f"""# Dataset for a Piper voice

Synthetic speech of {language_name(language)} by {model}, in the voice {voice}. {len(clips)} of {total} sentences,
{duration_text(duration_s)}, {SAMPLE_RATE} Hz, 16 bits, mono. {measured}
`{LEFT_OUT}` lists the other sentences and why they were left out. The licence of the model also covers its speech.

`{TABLE}` has a line `id|text|text as it is spoken` for each file `{WAVES}/id.wav`. With piper1-gpl:

```sh
python3 -m piper.train fit --data.voice_name {language}-lisan --data.csv_path {TABLE} --data.audio_dir {WAVES} \\
  --model.sample_rate {SAMPLE_RATE} --data.espeak_voice {language} --data.cache_dir cache \\
  --data.config_path {language}-lisan-medium.onnx.json --data.batch_size 32 --ckpt_path medium.ckpt
```

`medium.ckpt` is one of Piper's checkpoints of medium quality, of any language. If `espeak-ng --voices` does not list
`{language}`, add `--data.phoneme_type text`: Piper then learns letters instead of phonemes.
"""
