"""Intelligibility: sentences are synthesized, vocoded and transcribed by a recogniser.

An error is the sum of edits over the sum of reference lengths, over all sentences. The CER of the original recordings
stands beside it, because a recogniser makes mistakes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard, TypeVar

import torch
from rapidfuzz.distance import Levenshtein

from config import foreign
from config.errors import UserError
from config.languages import language_name
from core.jobs.events import Progress
from core.jobs.reporter import ProgressCallback, no_progress
from core.library.records import ExportRecord
from core.library.reference_voices import reference_clip
from core.model.adapters import Adapters
from core.model.loading import TTSModel
from core.speech.scoring import Recogniser
from core.speech.synthesis import retry_without_speech
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from data.durable_files import check_no_link_out
from data.front_end import FrontEnd
from data.languages.latin import romanise
from data.manifest import HeldOutSentence
from models.base import (
    FinishReason,
    Generated,
    PreparedVoice,
    RecognitionScore,
    Sampling,
    Vocoder,
    VocoderOptions,
    Voice,
)

_BATCH = 16  # texts generated together
_MAX_RECORDINGS = 40  # scored for the CER of the original recordings
RECORDED_VOICE = "training recording"  # the voice of an adapted decoder, and of a model that comes without one

Some = TypeVar("Some")


@dataclass(frozen=True)
class TextInput:
    """What a side gets for a text; `note` says where that differs from the text."""

    text: str
    language: str
    note: str = ""


class SpeechItem(NamedTuple):
    """A text to speak in a voice."""

    language: str
    text: str
    voice: str


PreparedVoices = dict[tuple[str, Adapters | None], PreparedVoice]
"""By the name of the voice, and the adapters that it was prepared with."""


@dataclass(frozen=True)
class EvaluatedSentence:
    """A synthesized sentence; `score` is None where no recogniser knows the language."""

    text: str
    language: str
    voice: str
    waveform: torch.Tensor  # (S,)
    sample_rate: int  # Hz
    score: RecognitionScore | None
    finish_reason: FinishReason


@dataclass(frozen=True)
class CorpusScore:
    """The error over some sentences of a language; `left_out` cannot be encoded or are too long."""

    language: str
    sentences: int
    edits: int
    letters: int
    left_out: int = 0

    @property
    def error(self) -> float:
        return self.edits / max(1, self.letters)


@dataclass
class SpeechEvaluator:
    """Vocoder, voices and recogniser of a base model, loaded once; no `watermark` where the speech is not kept.

    `reader` is the voice of a training recording, in which languages with an adapted decoder speak.
    """

    vocoder: Vocoder
    voices: dict[str, Voice]
    recogniser: Recogniser | None
    watermark: bool = True
    reader: Voice | None = None

    @classmethod
    def of(cls, model: TTSModel, recogniser: Recogniser | None = None, recording: str = "",
           watermark: bool = True, as_reader: bool = False) -> SpeechEvaluator:
        """The evaluator of the base model of `model`; `recording` is its voice where it comes without one.

        `as_reader`: a language with an adapted decoder speaks in the voice of `recording`.
        """
        family, folder = model.family, model.base_folder
        voices, reader = family.load_voices(folder), None
        if recording and (as_reader or not voices):
            waveform, sample_rate = audio.read(Path(recording))
            reader = family.voice_from_recording(folder, model.device, waveform, sample_rate)
            voices = voices or {RECORDED_VOICE: reader}
        return cls(family.load_vocoder(folder, model.device), voices, recogniser, watermark, reader)

    def can_score(self, language: str) -> bool:
        """Whether an error can be measured for `language`."""
        return can_score(self.recogniser, language)

    def with_voices(self, model: TTSModel, texts: Sequence[tuple[str, str]]) -> list[SpeechItem]:
        """Each pair of language and text with a voice of the model, in rotation per language."""
        if texts and not self.voices:
            raise UserError(f"{model.origin.model} comes without a voice, and there is no recording to take one from.",
                            "Keep the dataset in the workspace, or give a reference recording.")
        # Each language counts its turns, so that its voices do not depend on other languages.
        turns, items = Counter[str](), []
        for language, text in texts:
            names = [RECORDED_VOICE] if self.reader and model.decoder_of(language) else sorted(self.voices)
            items.append(SpeechItem(language, text, names[turns[language] % len(names)]))
            turns[language] += 1
        return items

    def _voice(self, name: str) -> Voice:
        return self.reader if name == RECORDED_VOICE and self.reader else self.voices[name]

    def generate(self, model: TTSModel, batch: Sequence[SpeechItem], sampling: Sampling,
                 prepared: PreparedVoices) -> list[Generated]:
        """The codes of texts that share a batch; `prepared` keeps the voices for the next one."""
        # A voice is prepared once for each set of adapters, because it passes through the model.
        for item in batch:
            if (item.voice, model.adapters_of(item.language)) not in prepared:
                with model.adapters_for(item.language):
                    prepared[item.voice, model.adapters_of(item.language)] = model.lm.prepare(self._voice(item.voice))

        # Codes of all texts are generated together, each in its voice.
        voices = [prepared[item.voice, model.adapters_of(item.language)] for item in batch]
        text_ids = [model.front_end.encode(item.text, item.language) for item in batch]
        return model.generate(text_ids, [item.language for item in batch], voices, sampling, self.vocoder)

    def decode(self, model: TTSModel, item: SpeechItem, generated: Generated) -> EvaluatedSentence:
        """The speech of the codes, and its score."""
        return self._score(model, item, generated, self._waveform(model, item, generated))

    def _with_retries(self, model: TTSModel, item: SpeechItem, first_attempt: Generated, sampling: Sampling,
                      prepared: PreparedVoices) -> EvaluatedSentence:
        """The sentence, tried again if `first_attempt` has no speech."""
        def generate(retry: Sampling) -> Generated:
            return self.generate(model, [item], retry, prepared)[0]

        def decode(generated: Generated) -> torch.Tensor:
            return self._waveform(model, item, generated)

        generated, waveform = retry_without_speech(first_attempt, sampling, generate, decode, self.vocoder.sample_rate)
        return self._score(model, item, generated, waveform)

    def _waveform(self, model: TTSModel, item: SpeechItem, generated: Generated) -> torch.Tensor:
        options = VocoderOptions(watermark=self.watermark, decoder=model.decoder_of(item.language))
        return self.vocoder.decode(generated.codes, self._voice(item.voice), options, generated.hidden_states).cpu()

    def _score(self, model: TTSModel, item: SpeechItem, generated: Generated,
               waveform: torch.Tensor) -> EvaluatedSentence:
        reference = model.front_end.verbalize(item.text, item.language)  # recognisers write words, not digits
        rate = self.vocoder.sample_rate
        score = score_waveform(self.recogniser, waveform, rate, reference, item.language)
        return EvaluatedSentence(reference, item.language, item.voice, waveform, rate, score,
                                 generated.finish_reason)

    def speak(self, model: TTSModel, texts: Sequence[tuple[str, str]], sampling: Sampling,
              progress: ProgressCallback = no_progress) -> list[EvaluatedSentence]:
        """Each pair of language and text, in the model's voices in rotation per language, which can share batches.

        A sentence without speech is tried again, as in `Synthesizer`.
        """
        items, prepared = self.with_voices(model, texts), PreparedVoices()
        languages = list(dict.fromkeys(language for language, _ in texts))
        unit = f"{language_name(languages[0])} sentences" if len(languages) == 1 else "sentences"
        sentences: list[EvaluatedSentence] = []
        try:
            for batch in in_batches(items):
                progress(Progress(len(sentences), len(items), unit, "evaluated"))
                for item, attempt in zip(batch, self.generate(model, batch, sampling, prepared), strict=True):
                    sentences.append(self._with_retries(model, item, attempt, sampling, prepared))
                    progress(Progress(len(sentences), len(items), unit, "evaluated"))
        finally:
            model.lm.free_buffers()  # a training or another model needs the memory
            self.vocoder.free_buffers()
        return sentences


def in_batches(items: Sequence[SpeechItem]) -> list[Sequence[SpeechItem]]:
    """The items that are generated together."""
    return [items[start:start + _BATCH] for start in range(0, len(items), _BATCH)]


def evaluate_language(evaluator: SpeechEvaluator, model: TTSModel, language: str,
                      sentences: Sequence[HeldOutSentence], sampling: Sampling,
                      progress: ProgressCallback = no_progress) -> tuple[CorpusScore, list[EvaluatedSentence]]:
    """The error of some sentences of a language, and each of them."""
    return evaluate_languages(evaluator, model, {language: sentences}, sampling, progress)[language]


def evaluate_languages(evaluator: SpeechEvaluator, model: TTSModel,
                       sentences: Mapping[str, Sequence[HeldOutSentence]], sampling: Sampling,
                       progress: ProgressCallback = no_progress
                       ) -> dict[str, tuple[CorpusScore, list[EvaluatedSentence]]]:
    """`evaluate_language` for several languages, whose sentences can share batches."""
    results = evaluator.speak(model, readable_texts(model, sentences), sampling, progress)
    by_language = {}
    for language, listed in sentences.items():
        of_language = [item for item in results if item.language == language]
        scores = [item.score for item in of_language if item.score is not None]
        by_language[language] = corpus_score(language, scores, len(listed) - len(of_language)), of_language
    return by_language


def readable_texts(model: TTSModel, sentences: Mapping[str, Sequence[HeldOutSentence]]) -> list[tuple[str, str]]:
    """Language and text of the sentences that `model` can read: letters it knows, and no longer than its limit."""
    front_end, texts = model.front_end, []
    for language, listed in sentences.items():
        for text in (sentence.text for sentence in listed):
            readable = not front_end.unknown_characters(text, language) and front_end.normalise(text, language)
            if readable and len(front_end.encode(text, language)) <= model.lm.max_text_length:
                texts.append((language, text))
    return texts


def score_recording(evaluator: SpeechEvaluator, language: str, sentence: HeldOutSentence) -> RecognitionScore:
    """The score of a sentence's original recording."""
    assert evaluator.recogniser is not None
    assert sentence.original is not None
    rate = evaluator.vocoder.sample_rate
    return evaluator.recogniser.score(audio.load(sentence.original, rate), rate, sentence.text, language)


def corpus_score(language: str, scores: Sequence[RecognitionScore], left_out: int = 0) -> CorpusScore:
    """The error over all letters of some scores."""
    return CorpusScore(language, len(scores), sum(item.edits for item in scores),
                       sum(len(item.reference) for item in scores), left_out)


def can_score(recogniser: Recogniser | None, language: str) -> TypeGuard[Recogniser]:
    """Whether there is a recogniser, and it knows `language`."""
    return recogniser is not None and language in recogniser.languages


def score_waveform(recogniser: Recogniser | None, waveform: torch.Tensor, sample_rate: int, text: str,
                   language: str) -> RecognitionScore | None:
    """The score of waveform (S,); None when no recogniser knows the language."""
    if not can_score(recogniser, language):
        return None
    return recogniser.score(waveform, sample_rate, text, language)


def spaced_transcript(recogniser: Recogniser | None, score: RecognitionScore | None, text: str, language: str) -> str:
    """The transcript of a score for people: recognisers are compared by letters, so its spaces are those of `text`.

    They stand where the aligned words of the text end; without spaces where these do not make up its letters.
    """
    if recogniser is None or score is None:
        return score.transcript if score else ""
    normalised = [recogniser.normalise(word, language) for word in text.split()]
    words = [letters for letters in normalised if letters]
    if "".join(words) != score.reference:
        return score.transcript

    # Cut the transcript where the last letter of each word of the text is aligned.
    alignment, parts, place, start = Levenshtein.opcodes(score.reference, score.transcript), [], 0, 0
    for word in words[:-1]:
        place += len(word)
        part = next(edit for edit in alignment if edit.src_start < place <= edit.src_end)
        cut = min(part.dest_start + place - part.src_start, part.dest_end)
        parts.append(score.transcript[start:cut])
        start = cut
    return " ".join(part for part in [*parts, score.transcript[start:]] if part)


def recordings_cer(workspace: Workspace, model: TTSModel, recogniser: Recogniser | None,
                   language: str) -> float | None:
    """The CER of the original recordings of `language`; None when there is nothing to measure it on."""
    if not can_score(recogniser, language):
        return None
    sentences = spread_evenly(held_out_recordings(workspace, model, language), _MAX_RECORDINGS)
    scores = [recogniser.score(*audio.read(sentence.original), sentence.text, language)
              for sentence in sentences if sentence.original]

    # An export brings the measurement along, because the recordings may not be here.
    if scores:
        return corpus_score(language, scores).error
    return model.record.recordings_cer.get(language) if isinstance(model.record, ExportRecord) else None


@dataclass(frozen=True)
class ListedSentence:
    """A line of a text file of sentences; `category` may be empty."""

    language: str
    text: str
    category: str = ""


def read_sentences(path: Path) -> list[ListedSentence]:
    """Each line of a file: language code, tab, sentence, and perhaps a tab and a category; no sentence twice."""
    sentences: dict[tuple[str, str], ListedSentence] = {}
    for number, line in enumerate(foreign.read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        # Two empty columns make the category optional.
        language, text, category, *surplus = (*(part.strip() for part in line.split("\t")), "", "")
        if not (language and text) or any(surplus):
            raise UserError(f"Line {number} of {path} is not a language code, a tab and a sentence: {line[:60]!r}.",
                            "Write lines such as `am`, a tab, and a sentence; a category may follow after a tab.")
        sentences.setdefault((language, text), ListedSentence(language, text, category))
    return list(sentences.values())


def without_unknown(front_end: FrontEnd, text: str, language: str) -> tuple[str, tuple[str, ...]]:
    """`text` without the characters that the tokenizer lacks, and these; the text is empty if no letter is left."""
    unknown = front_end.unknown_characters(text, language)
    if not unknown:
        return text, ()
    characters = [character for character in text if not front_end.unknown_characters(character, language)]
    remainder = " ".join("".join(characters).split())
    readable = (bool(remainder) and not front_end.unknown_characters(remainder, language)
                and front_end.can_read(remainder, language))
    return (remainder if readable else ""), unknown


def base_input(model: TTSModel, text: str, language: str) -> TextInput | None:
    """What `model` gets for a text: itself, or its romanised spelling when it lacks the language; None for neither."""
    if language in model.front_end.languages:
        return TextInput(text, language)
    return romanised_input(model, text, language)


def romanised_input(model: TTSModel, text: str, language: str) -> TextInput | None:
    """The romanised spelling of a text as one of the base languages; None if none of them can read it."""
    # English is tried first, then the other languages in the model's order.
    spelled = romanise(text)
    for code in sorted(model.front_end.base_languages, key=lambda code: code != "en"):
        if model.front_end.unready(code):
            continue
        if model.front_end.normalise(spelled, code) and not model.front_end.unknown_characters(spelled, code):
            note = f"The base model has no {language!r}: it reads the romanised spelling {spelled!r} as {code!r}."
            return TextInput(spelled, code, note)
    return None


def spread_evenly(sentences: Sequence[Some], count: int) -> list[Some]:
    """`count` of the sentences, evenly spread over their order."""
    if count >= len(sentences):
        return list(sentences)
    return [sentences[index * len(sentences) // count] for index in range(count)]


def base_recordings(model: TTSModel, language: str) -> list[HeldOutSentence]:
    """Held-out sentences of a base language that come with the model."""
    return [HeldOutSentence(text, path) for text, path in model.family.held_out_recordings(model.base_folder, language)]


def held_out_recordings(workspace: Workspace, model: TTSModel, language: str) -> list[HeldOutSentence]:
    """Held-out sentences of `language` with recordings; none when they are not on this machine."""
    if not model.front_end.is_new(language):
        return base_recordings(model, language)
    dataset = _dataset(workspace, model, language)
    if dataset is None:
        return []
    return dataset_sentences(dataset, model, language, manifest.HELD_OUT)


def recordings_of_test_set(workspace: Workspace, model: TTSModel, language: str) -> list[HeldOutSentence]:
    """Sentences of the test set of the dataset that `model` was trained on, which selected no checkpoint."""
    dataset = _dataset(workspace, model, language) if model.front_end.is_new(language) else None
    return dataset_sentences(dataset, model, language, manifest.TEST) if dataset else []


def dataset_sentences(dataset: manifest.PreparedDataset, model: TTSModel, language: str,
                      split: str) -> list[HeldOutSentence]:
    """The sentences of a split in words, as recognisers write them, with their recordings and speakers."""
    knows = language in model.front_end.languages
    return [HeldOutSentence(model.front_end.verbalize(clip.text, language) if knows else clip.text,
                            dataset.audio_path(clip), clip.speaker) for clip in dataset.split(split, language)]


def longest_texts(workspace: Workspace, model: TTSModel) -> dict[str, int]:
    """Text ids of the longest sentence that each language was trained or measured on.

    Positions beyond it exist, but how they sound is not known, so longer texts are synthesized in parts.
    """
    lengths = dict(model.record.longest_texts) if isinstance(model.record, ExportRecord) else {}
    for language in model.front_end.languages:
        # A new language was trained on its dataset, which has more texts than the held-out ones.
        texts = [sentence.text for sentence in held_out_recordings(workspace, model, language)]
        dataset = _dataset(workspace, model, language) if model.front_end.is_new(language) else None
        if dataset is not None:
            texts = [clip.text for clip in dataset.clips if clip.language == language]
        readable = [text for text in texts if not model.front_end.unknown_characters(text, language)]
        if readable:
            lengths[language] = max(len(model.front_end.encode(text, language)) for text in readable)
    return lengths


def training_texts(workspace: Workspace, model: TTSModel, language: str) -> list[str]:
    """The texts of the dataset that `model` was trained on, in `language`; none when it is not on this machine."""
    dataset = _dataset(workspace, model, language) if model.front_end.is_new(language) else None
    return [clip.text for clip in dataset.clips if clip.language == language] if dataset else []


def training_recording(dataset: manifest.PreparedDataset) -> str:
    """Path of a training clip that serves as a reference recording; empty when there is none.

    The first of 4 to 15 seconds, else the longest.
    """
    path = reference_clip((clip.audio, clip.duration_s) for clip in dataset.clips if clip.split == manifest.TRAIN)
    return str(check_no_link_out(dataset.folder, path)) if path else ""


def recording_of(workspace: Workspace, model: TTSModel) -> str:
    """Path of a clip that `model` was trained on, to serve as a reference recording; empty when there is none."""
    dataset = _dataset(workspace, model)
    return training_recording(dataset) if dataset else ""


def _dataset(workspace: Workspace, model: TTSModel, language: str = "") -> manifest.PreparedDataset | None:
    """The dataset that `model`, or a `language` of an earlier training, was trained on, when it is in the workspace.
    """
    # A language of an earlier training has a dataset of its own.
    earlier = [training.record.dataset for training in model.earlier_trainings if language in training.record.languages]
    name = earlier[0] if earlier else model.record.dataset if model.record else ""
    return manifest.load(workspace.dataset(name)) if name in workspace.list_datasets() else None
