"""The outcome of a training: what is decided from which measurements, and in which words."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from core.library import learning
from core.library.learning import (
    ClipLosses,
    Estimate,
    Finding,
    Intelligibility,
    Learning,
    LearningMeasurements,
    LearningRecord,
    LearningReport,
    LearningStart,
    SentenceHealth,
    SpeechHealth,
    decide_learning,
)

SOUND = SentenceHealth(2.0, 1.0, 0.0, missing_stop=False, repetition=False, long_silence=False)
SILENT = SentenceHealth(0.03, 0.01, -58.0, missing_stop=True, repetition=True, long_silence=False)


def estimate(mean: float, spread: float = 0.05, count: int = 40) -> Estimate:
    return Estimate(mean, mean - spread, mean + spread, count)


def health(faults: int = 0, fault: SentenceHealth = SILENT, sentences: int = 20) -> SpeechHealth:
    return SpeechHealth.from_sentences([fault] * faults + [SOUND] * (sentences - faults))


HEALTHY = LearningMeasurements(
    "ha", speech_change=estimate(-1.2), text_change=estimate(-0.8), contrast=estimate(4.0),
    initial_contrast=estimate(0.4), speech=health())


def rates(cer: float, base: float, recordings: float = 0.02, spread: float = 0.05) -> Intelligibility:
    return Intelligibility(cer, base, recordings, estimate(cer - base, spread, 20))


CASES = [
    ("healthy", HEALTHY, Learning.LEARNED, None),
    ("well read", replace(HEALTHY, intelligibility=rates(0.06, 0.7)), Learning.LEARNED, None),
    ("silent", replace(HEALTHY, speech=health(20)), Learning.SILENT, Finding.NO_SPEECH),
    ("half of it silent", replace(HEALTHY, speech=health(10)), Learning.SILENT, Finding.NO_SPEECH),
    ("loss as before", replace(HEALTHY, speech_change=estimate(-0.001)), Learning.NOT_LEARNED, Finding.NO_DECREASE),
    ("loss rose", replace(HEALTHY, speech_change=estimate(0.8)), Learning.NOT_LEARNED, Finding.LOSS_ROSE),
    ("loss is NaN", replace(HEALTHY, speech_change=estimate(math.nan)), Learning.NOT_LEARNED, Finding.LOSS_ROSE),
    ("text not read", replace(HEALTHY, contrast=estimate(0.04)), Learning.NOT_LEARNED, Finding.TEXT_NOT_READ),
    ("no stop anywhere", replace(HEALTHY, speech=health(20, replace(SOUND, missing_stop=True))), Learning.NOT_LEARNED,
     Finding.BROKEN_SPEECH),
    ("worse than the base", replace(HEALTHY, intelligibility=rates(0.64, 0.4)), Learning.NOT_LEARNED,
     Finding.WORSE_THAN_BASE),
    ("no better than the base", replace(HEALTHY, intelligibility=rates(0.40, 0.41)), Learning.PARTLY_LEARNED,
     Finding.NOT_BETTER_THAN_BASE),
    ("many letters wrong", replace(HEALTHY, intelligibility=rates(0.45, 0.7)), Learning.PARTLY_LEARNED,
     Finding.MANY_ERRORS),
    ("some faults", replace(HEALTHY, speech=health(6)), Learning.PARTLY_LEARNED, Finding.FAULTY_SPEECH),
    ("text read a little", replace(HEALTHY, contrast=estimate(0.9)), Learning.PARTLY_LEARNED,
     Finding.TEXT_READ_LITTLE),
    ("well read, whatever the contrast", replace(HEALTHY, contrast=estimate(0.9), intelligibility=rates(0.06, 0.7)),
     Learning.LEARNED, None),
    ("recogniser that understands no recording", replace(
        HEALTHY, contrast=estimate(0.9), intelligibility=rates(0.9, 0.95, 0.9)), Learning.PARTLY_LEARNED,
     Finding.TEXT_READ_LITTLE),
    ("few sentences", replace(HEALTHY, speech=health(sentences=4)), Learning.NOT_MEASURED, Finding.FEW_SENTENCES),
    ("no sentences", replace(HEALTHY, speech=None), Learning.NOT_MEASURED, Finding.NO_SENTENCES),
    ("no sentences, no text", replace(HEALTHY, speech=None, contrast=estimate(0.0)), Learning.NOT_LEARNED,
     Finding.TEXT_NOT_READ),
    ("nothing measured", LearningMeasurements("ha"), Learning.NOT_MEASURED, Finding.NO_START),
    ("three clips", replace(HEALTHY, speech_change=estimate(-1.2, count=3)), Learning.NOT_MEASURED, Finding.NO_START),
    ("continued run", replace(HEALTHY, warm_start=True, speech_change=estimate(-0.01)), Learning.LEARNED, None),
]


@pytest.mark.parametrize(("name", "measured", "outcome", "first"), CASES, ids=[case[0] for case in CASES])
def test_outcome_of_measurements(name: str, measured: LearningMeasurements, outcome: Learning,
                                 first: Finding | None) -> None:
    decided = decide_learning(measured)
    assert decided.learning is outcome
    assert (decided.findings[0] if decided.findings else None) is first
    words = learning.describe_outcome(decided)
    assert words.startswith(f"Hausa: {outcome.label} (")
    if first:
        assert learning.advise(LearningReport.from_measurements(1, [measured]))


def test_words_of_a_silent_run() -> None:
    report = LearningReport.from_measurements(743, [replace(HEALTHY, speech=health(20))])
    assert learning.describe_report(report) == "Hausa: no speech (20 of 20 sentences are silent)"
    assert "silence" in learning.advise(report)


@pytest.mark.parametrize("sentence", [
    SentenceHealth(2.4, 1.2, -60.0, missing_stop=False, repetition=False, long_silence=False),  # long and quiet
    SentenceHealth(0.23, 0.06, -5.0, missing_stop=False, repetition=False, long_silence=False),  # loud and short
    # Three seeds gave silence where the speech should begin, and what follows is a third of a sentence.
    SentenceHealth(0.8, 0.3, -2.0, missing_stop=True, repetition=False, long_silence=True, no_speech=True),
])
def test_a_sentence_without_speech_is_too_quiet_or_too_short(sentence: SentenceHealth) -> None:
    assert sentence.silent()
    assert not SOUND.silent()


def test_speech_after_a_long_silence_is_a_fault_and_not_silence() -> None:
    """So begin recordings whose edges were kept."""
    sentence = SentenceHealth(2.4, 1.0, -2.0, missing_stop=True, repetition=False, long_silence=True, no_speech=True)
    assert not sentence.silent()
    assert sentence.faulty()


def test_advice_is_about_the_cause() -> None:
    diverged = replace(HEALTHY, speech=health(20), speech_change=estimate(3.0))
    report = LearningReport.from_measurements(5, [diverged])
    assert "no speech" in learning.describe_report(report)
    assert "lower learning rates" in learning.advise(report)


def test_recordings_that_are_not_understood_are_named() -> None:
    measured = replace(HEALTHY, contrast=estimate(0.0), intelligibility=rates(0.78, 0.51, 0.85))
    report = LearningReport.from_measurements(54, [measured])
    assert report.languages[0].findings == (Finding.TEXT_NOT_READ,)
    assert "85% of the letters of the recordings wrong" in learning.advise(report)


def test_worst_language_decides() -> None:
    silent = replace(HEALTHY, language="am", speech=health(20))
    report = LearningReport.from_measurements(5, [HEALTHY, silent])
    assert report.learning is Learning.SILENT
    assert learning.describe_report(report).startswith("Hausa: learned")
    assert "Amharic: no speech" in learning.describe_report(report)
    assert learning.advise(report) == learning.advise(LearningReport.from_measurements(5, [silent]))


def test_interval_is_that_of_students_t() -> None:
    chance = random.Random(0)
    for count in (2, 5, 8, 20, 40):
        values = [chance.gauss(1.0, 2.0) for _ in range(count)]
        found = Estimate.from_values(values)
        low, high = stats.t.interval(0.95, count - 1, found.mean, stats.sem(values))
        tolerance = 0.4 if count == 2 else 0.01
        assert found.low == pytest.approx(low, rel=tolerance, abs=0.01)
        assert found.high == pytest.approx(high, rel=tolerance, abs=0.01)


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    start = LearningStart(ClipLosses((4.0, 5.0), (3.0, 3.5), (0.3, math.nan)), {"ab": 0.5}, 0.02)
    report = LearningReport.from_measurements(100, [HEALTHY, replace(HEALTHY, contrast=Estimate.from_values([0.5]))])
    diverged = LearningReport.from_measurements(200, [replace(HEALTHY, speech_change=estimate(math.nan))])
    record = LearningRecord({"ha": start}).with_report(report).with_report(diverged)
    learning.write_learning(tmp_path, record)
    again = learning.read_learning(tmp_path)
    assert str(again) == str(record)  # NaN is not equal to itself
    assert again.report(100) == report
    assert learning.read_report(tmp_path, 200).learning is Learning.NOT_LEARNED
    assert learning.read_report(tmp_path, 300) == LearningReport(300)


def test_a_resumed_run_drops_later_reports() -> None:
    reports = [LearningReport.from_measurements(step, [HEALTHY]) for step in (50, 100, 75)]
    record = LearningRecord()
    for report in reports:
        record = record.with_report(report)
    assert list(record.reports) == ["50", "75"]


def test_old_run_is_not_measured(tmp_path: Path) -> None:
    report = learning.read_report(tmp_path, 100)
    assert report.learning is Learning.NOT_MEASURED
    assert learning.describe_report(report).startswith("not measured")
    (tmp_path / learning.LEARNING).write_text("{}]")
    assert learning.read_report(tmp_path, 100).learning is Learning.NOT_MEASURED


def test_a_foreign_record_without_values_has_words() -> None:
    for finding in Finding:
        assert learning.describe_finding(finding, LearningMeasurements("ha"))


def test_every_measurement_is_shown_with_its_value() -> None:
    report = LearningReport.from_measurements(1, [replace(HEALTHY, intelligibility=rates(0.06, 0.7))])
    rows = {title: value for _, title, value in learning.measurement_rows(report)}
    assert rows["Text contrast (nats)"] == "+4.00 (+3.95 to +4.05, 40 clips)"
    assert rows["Silent sentences"] == "0 of 20"
    assert rows["Character error rate"] == "CER 6%; base model 70%, recordings 2%"
    assert "not measured" not in rows.values()
