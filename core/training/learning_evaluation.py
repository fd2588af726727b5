"""Measurements of what a training learned; `core.library.learning` decides the outcome from them.

Losses are measured on held-out clips one by one, so that a step can be compared with step 0 clip by clip. The text
contrast is the speech loss of a clip with the text of another clip, minus that with its own text: a model that does not
read the text has a contrast of 0, however low its loss is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from config.errors import UserError
from core.library.learning import (
    ClipLosses,
    Estimate,
    Intelligibility,
    LearningMeasurements,
    LearningStart,
    SentenceHealth,
    SpeechHealth,
    paired_change,
)
from core.model.loading import TTSModel
from core.model.precision import Precision
from core.speech import evaluation, measures
from core.speech.evaluation import EvaluatedSentence, PreparedVoices, SpeechEvaluator
from data.acoustics import audio
from data.manifest import HeldOutSentence
from data.measures import Samples, frame_powers
from models.base import LossOptions, Sample, Sampling

CLIPS = 40  # clips of a language whose losses are measured
_RECORDINGS = 40  # recordings from which level and speaking rate are taken
_HOP_S = 0.01  # hop of `frame_powers`
_SOUND_DB = 30.0  # under the loud frames of the recordings: a frame that sounds
_QUIETEST_DB = -60.0  # dB of full scale; a frame below it never sounds
_DEFAULT_LEVEL_DB = -20.0  # dB of full scale, without recordings
_DEFAULT_LETTER_S = 0.08  # without recordings; about 12 letters a second


@dataclass(frozen=True)
class SpeechReference:
    """What the recordings of a language say of its speech."""

    level_db: float = _DEFAULT_LEVEL_DB  # median of their loud frames
    letter_s: float = _DEFAULT_LETTER_S  # median sound a letter

    @property
    def sound_db(self) -> float:
        """The level of a frame from which on it sounds."""
        return max(self.level_db - _SOUND_DB, _QUIETEST_DB)

    @classmethod
    def from_recordings(cls, sentences: Sequence[HeldOutSentence]) -> SpeechReference:
        """Medians over at most 40 recordings; unreadable ones are left out."""
        recordings = list[tuple[Samples, int, int]]()
        for sentence in evaluation.spread_evenly(sentences, _RECORDINGS):
            with suppress(UserError):
                if sentence.original is not None:
                    waveform, sample_rate = audio.read(sentence.original)
                    recordings.append((audio.to_numpy(waveform), sample_rate, count_letters(sentence.text)))
        if not recordings:
            return cls()
        # The speaking rate depends on what counts as sound, and this on the level.
        reference = cls(float(np.median([loud_level_db(waveform, rate) for waveform, rate, _ in recordings])))
        rates = [sound_seconds(waveform, rate, reference.sound_db) / letters
                 for waveform, rate, letters in recordings if letters]
        return replace(reference, letter_s=max(float(np.median(rates)), 1e-3)) if rates else reference


def count_letters(text: str) -> int:
    """Letters and digits of a text."""
    return sum(character.isalnum() for character in text)


def loud_level_db(waveform: Samples, sample_rate: int) -> float:
    """Level of the loud frames (95th percentile) in dB of full scale; -100 for digital silence or no samples."""
    powers = frame_powers(waveform, sample_rate) if len(waveform) else np.zeros(1)
    return float(10 * np.log10(max(np.percentile(powers, 95), 1e-10)))


def sound_seconds(waveform: Samples, sample_rate: int, threshold_db: float) -> float:
    """Seconds of the frames that are louder than `threshold_db` of full scale."""
    if not len(waveform):
        return 0.0
    return float((frame_powers(waveform, sample_rate) > 10 ** (threshold_db / 10)).sum() * _HOP_S)


def measure_sentence_health(sentence: EvaluatedSentence, original: Path | None,
                            reference: SpeechReference) -> SentenceHealth:
    """The health of a synthesized sentence; its duration is compared with its recording, else with its letters."""
    waveform = audio.to_numpy(sentence.waveform)
    expected_s = reference.letter_s * max(1, count_letters(sentence.text))
    if original is not None:
        with suppress(UserError):  # unreadable now: the letters remain
            recording, sample_rate = audio.read(original)
            expected_s = sound_seconds(audio.to_numpy(recording), sample_rate, reference.sound_db) or expected_s

    # Compare the sound with what is expected, without the pauses.
    sound_s = sound_seconds(waveform, sentence.sample_rate, reference.sound_db)
    pause_s = measures.longest_pause(waveform, sentence.sample_rate) if len(waveform) else 0.0
    return SentenceHealth(
        sound_s, sound_s / expected_s, loud_level_db(waveform, sentence.sample_rate) - reference.level_db,
        missing_stop=sentence.finish_reason != "stop", repetition=sentence.finish_reason == "repetition",
        long_silence=pause_s >= measures.LONG_PAUSE_S, no_speech=sentence.finish_reason == "no_speech")


def other_texts(samples: Sequence[Sample]) -> list[Sample | None]:
    """Each sample with the text of another one: the different text of nearest length; None if all are the same."""
    swapped = list[Sample | None]()
    for number, sample in enumerate(samples):
        length = len(sample.text_ids)
        different = [other for other in samples if not np.array_equal(other.text_ids, sample.text_ids)]
        if not different:
            swapped.append(None)
            continue
        # Samples with the same nearest length take turns, so that not all get the same text.
        nearest = min(abs(len(other.text_ids) - length) for other in different)
        candidates = [other for other in different if abs(len(other.text_ids) - length) == nearest]
        swapped.append(replace(sample, text_ids=candidates[number % len(candidates)].text_ids))
    return swapped


@torch.no_grad()
def measure_clip_losses(tts: TTSModel, language: str, samples: Sequence[Sample], precision: Precision) -> ClipLosses:
    """The losses of samples one by one, with the adapters of the language and without input dropout."""
    chosen = evaluation.spread_evenly(samples, CLIPS)

    def losses(sample: Sample) -> torch.Tensor:
        with precision.autocast():
            sums = tts.lm.losses([sample], LossOptions())
        return torch.stack([sums.speech_sum.float() / sample.speech_targets,
                            sums.text_sum.float() / max(1, sample.text_targets)])

    with tts.adapters_for(language):
        own_losses = torch.stack([losses(sample) for sample in chosen]).tolist()
        pairs = [(number, swapped) for number, swapped in enumerate(other_texts(chosen)) if swapped is not None]
        other = torch.stack([losses(swapped)[0] for _, swapped in pairs]).tolist() if pairs else []
    contrast = tuple(loss - own_losses[number][0] for (number, _), loss in zip(pairs, other, strict=True))
    return ClipLosses(tuple(speech for speech, _ in own_losses), tuple(text for _, text in own_losses), contrast)


def measure_romanised_base(evaluator: SpeechEvaluator, base: TTSModel, language: str, texts: Sequence[str],
                           sampling: Sampling) -> dict[str, float]:
    """CER by text of the base model, which reads the romanised spelling; without texts that it cannot read."""
    # Leave out texts that the base cannot read even in their romanised spelling.
    inputs = []
    for text in texts:
        romanised = evaluation.romanised_input(base, text, language)
        if romanised:
            inputs.append((text, romanised))
    items = evaluator.with_voices(base, [(spelling.language, spelling.text) for _, spelling in inputs])

    # The score is by the original spelling, because the recogniser writes that; the romanised one is not scored.
    unscored = replace(evaluator, recogniser=None)
    errors, prepared = dict[str, float](), PreparedVoices()
    input_texts = [text for text, _ in inputs]
    try:
        for batch in evaluation.in_batches(items):
            for item, generated in zip(batch, evaluator.generate(base, batch, sampling, prepared), strict=True):
                sentence, text = unscored.decode(base, item, generated), input_texts[len(errors)]
                score = evaluation.score_waveform(evaluator.recogniser, sentence.waveform, sentence.sample_rate, text,
                                                  language)
                assert score is not None
                errors[text] = score.error
    finally:
        base.lm.free_buffers()
        evaluator.vocoder.free_buffers()
    return errors


def measure_recordings_cer(evaluator: SpeechEvaluator, language: str,
                           sentences: Sequence[HeldOutSentence]) -> float | None:
    """The recogniser's CER on the recordings of these sentences; None without a recording that can be read."""
    scores = []
    for sentence in sentences:
        with suppress(UserError):  # features are cached: a training does not need its recordings
            if sentence.original is not None:
                scores.append(evaluation.score_recording(evaluator, language, sentence))
    return evaluation.corpus_score(language, scores).error if scores else None


def make_measurements(language: str, losses: ClipLosses, start: LearningStart | None,
                      sentences: Sequence[EvaluatedSentence], health: Sequence[SentenceHealth],
                      warm_start: bool) -> LearningMeasurements:
    """Everything that is known of a language at a step."""
    return LearningMeasurements(
        language, warm_start,
        paired_change(start.losses.speech, losses.speech) if start else None,
        paired_change(start.losses.text, losses.text) if start else None,
        Estimate.from_values(losses.contrast) if losses.contrast else None,
        Estimate.from_values(start.losses.contrast) if start and start.losses.contrast else None,
        SpeechHealth.from_sentences(health) if health else None,
        _intelligibility(language, start, sentences))


def _intelligibility(language: str, start: LearningStart | None,
                     sentences: Sequence[EvaluatedSentence]) -> Intelligibility | None:
    scores = {sentence.text: sentence.score for sentence in sentences if sentence.score is not None}
    if not scores:
        return None
    cer = evaluation.corpus_score(language, list(scores.values())).error
    base_errors: Mapping[str, float] = start.base_errors if start else {}

    # Compare the base sentence by sentence, where both were measured.
    paired = [(base_errors[text], score.error) for text, score in scores.items() if text in base_errors]
    return Intelligibility(
        cer, float(np.mean([base for base, _ in paired])) if paired else None, start.recordings_cer if start else None,
        Estimate.from_values([error - base for base, error in paired]) if len(paired) > 1 else None)
