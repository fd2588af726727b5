"""Whether a training taught its new language: measurements, `decide_learning`, and the words for people.

The certificate proves what was preserved; this module says what was learned. The trainer measures at step 0 and at each
checkpoint and stores everything in the run's `learning.json`. Nothing here loads torch, because the page, the command
line, the card and the certificate read it.

The limits were set on the runs of `tests/data/learning_runs.json`, all of the built-in model. Text contrast there:
0.00 for shifted texts, a noise base and a reader whose model says nothing, 0.03 for a broken base, 0.2 at step 0 of
Amharic, 0.2 after 25 steps (CER 76%), 0.9 after 83 (CER 58%), and 7 to 8 for the base model in its own languages.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from config import foreign, loading
from config.errors import UserError
from config.languages import language_name
from core.library import workspace_key
from core.workspace import Workspace
from data.durable_files import write_json

LEARNING = "learning.json"  # file in a run's folder


class Learning(StrEnum):
    """The outcome of a training for its new languages."""

    LEARNED = "learned"
    PARTLY_LEARNED = "partly_learned"
    NOT_LEARNED = "not_learned"
    SILENT = "silent"
    NOT_MEASURED = "not_measured"

    @property
    def label(self) -> str:
        """The outcome in words; a silent model has learned no speech."""
        return "no speech" if self is Learning.SILENT else self.value.replace("_", " ")

    @property
    def bad(self) -> bool:
        """Whether it is shown in red, and exported only on request."""
        return self in (Learning.NOT_LEARNED, Learning.SILENT)


_WORST_FIRST = (Learning.SILENT, Learning.NOT_LEARNED, Learning.PARTLY_LEARNED, Learning.NOT_MEASURED, Learning.LEARNED)


class Finding(StrEnum):
    """A reason for an outcome."""

    NO_SPEECH = "no_speech"
    LOSS_ROSE = "loss_rose"
    NO_DECREASE = "no_decrease"
    TEXT_NOT_READ = "text_not_read"
    BROKEN_SPEECH = "broken_speech"
    WORSE_THAN_BASE = "worse_than_base"
    TEXT_READ_LITTLE = "text_read_little"
    FAULTY_SPEECH = "faulty_speech"
    NOT_BETTER_THAN_BASE = "not_better_than_base"
    MANY_ERRORS = "many_errors"
    NO_START = "no_start"
    NO_SENTENCES = "no_sentences"
    FEW_SENTENCES = "few_sentences"


@dataclass(frozen=True)
class LearningLimits:
    """Bounds of `decide_learning`. Losses are in nats a token, shares from 0 to 1."""

    min_decrease: float = 0.1  # decrease of the speech loss since step 0
    min_contrast: float = 0.15  # below: the text is not read
    learned_contrast: float = 2.0  # below, and without a recogniser: the text is read a little
    silent_share: float = 0.5  # share of the sentences
    broken_share: float = 0.5  # share of the sentences
    faulty_share: float = 0.2  # share of the sentences
    shortest: float = 0.4  # duration relative to the expected one
    longest: float = 2.5
    silent_duration: float = 0.2  # less sound than this share of the expected is no speech
    silent_db: float = 30.0  # under the recordings: no speech
    max_excess_cer: float = 0.3  # above that of the recordings
    max_recordings_cer: float = 0.5  # above: the recogniser cannot tell, or the texts are not those of the clips
    # Fewer sentences do not measure speech.
    min_sentences: int = 20
    # Fewer clips do not measure losses.
    min_clips: int = 8


LIMITS = LearningLimits()


@dataclass(frozen=True)
class Estimate:
    """A mean over clips or sentences, with a 95% confidence interval."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Estimate:
        """Mean and Student's interval of independent values, at least one; a single value has an infinite interval."""
        mean, count = statistics.fmean(values), len(values)
        if count == 1 or not math.isfinite(mean):
            return cls(mean, -math.inf, math.inf, count)
        margin = _student_quantile(count - 1) * statistics.stdev(values) / math.sqrt(count)
        return cls(mean, mean - margin, mean + margin, count)

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f}, {self.count} clips)"


def _student_quantile(freedom: int) -> float:
    """The 97.5% quantile of Student's t distribution: its Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5)."""
    z = 1.959964
    term_1, term_2 = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    term_3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + term_1 / freedom + term_2 / freedom**2 + term_3 / freedom**3


@dataclass(frozen=True)
class ClipLosses:
    """Losses of held-out clips in nats a token, in one order of the clips."""

    speech: tuple[float, ...]
    text: tuple[float, ...]
    contrast: tuple[float, ...]  # speech loss with the text of another clip minus that with the clip's own text


@dataclass(frozen=True)
class SentenceHealth:
    """What is measured of one synthesized sentence without a recogniser."""

    sound_s: float  # seconds of frames that sound
    duration_ratio: float  # `sound_s` relative to the recording, or to what the number of letters predicts
    level_db: float  # level of the loud frames, relative to that of the recordings
    missing_stop: bool
    repetition: bool
    long_silence: bool
    no_speech: bool = False  # synthesis found only silence where the speech should begin, with three seeds

    def silent(self, limits: LearningLimits = LIMITS) -> bool:
        """Whether it has no speech: too little sound, or too quiet.

        A sentence that begins with silence may speak later, as recordings do whose edges were kept. So `no_speech`
        counts together with too short a sound.
        """
        too_short = limits.shortest if self.no_speech else limits.silent_duration
        return self.duration_ratio < too_short or self.level_db < -limits.silent_db

    def faulty(self, limits: LearningLimits = LIMITS) -> bool:
        """Whether a listener would hear a fault at once."""
        return (self.silent(limits) or self.no_speech or self.missing_stop or self.repetition or self.long_silence
                or not limits.shortest <= self.duration_ratio <= limits.longest)


@dataclass(frozen=True)
class SpeechHealth:
    """Counts over the synthesized sentences of a language, and medians."""

    sentences: int
    silent: int
    faulty: int
    missing_stop: int
    repetition: int
    long_silence: int
    wrong_duration: int
    duration_ratio: float
    level_db: float  # relative to the recordings

    @classmethod
    def from_sentences(cls, sentences: Sequence[SentenceHealth], limits: LearningLimits = LIMITS) -> SpeechHealth:
        """The health of at least one sentence."""
        return cls(
            len(sentences), sum(sentence.silent(limits) for sentence in sentences),
            sum(sentence.faulty(limits) for sentence in sentences),
            sum(sentence.missing_stop for sentence in sentences), sum(sentence.repetition for sentence in sentences),
            sum(sentence.long_silence for sentence in sentences),
            sum(not limits.shortest <= sentence.duration_ratio <= limits.longest for sentence in sentences),
            round(statistics.median(sentence.duration_ratio for sentence in sentences), 3),
            round(statistics.median(sentence.level_db for sentence in sentences), 1))


@dataclass(frozen=True)
class Intelligibility:
    """Character error rates of the same sentences, by one recogniser."""

    cer: float
    # The CER of the base model, which reads the romanised text.
    base_cer: float | None = None
    recordings_cer: float | None = None
    change: Estimate | None = None  # since the base, paired by sentence


@dataclass(frozen=True)
class LearningMeasurements:
    """What was measured of one language at one step; None where it could not be."""

    language: str
    warm_start: bool = False  # the run began with the weights of another run, so its loss need not fall
    speech_change: Estimate | None = None  # change of the loss since step 0
    text_change: Estimate | None = None
    contrast: Estimate | None = None
    initial_contrast: Estimate | None = None  # contrast at step 0
    speech: SpeechHealth | None = None
    intelligibility: Intelligibility | None = None


@dataclass(frozen=True)
class LearningStart:
    """What was measured of a language before the first step."""

    losses: ClipLosses
    base_errors: dict[str, float] = field(default_factory=dict)  # CER of the romanised base by sentence
    recordings_cer: float | None = None


@dataclass(frozen=True)
class LanguageOutcome:
    """The outcome for one language, with what it was decided from."""

    learning: Learning
    findings: tuple[Finding, ...]
    measurements: LearningMeasurements

    @property
    def language(self) -> str:
        return self.measurements.language


@dataclass(frozen=True)
class LearningReport:
    """The outcome of a training at one step."""

    step: int
    learning: Learning = Learning.NOT_MEASURED
    languages: tuple[LanguageOutcome, ...] = ()

    @classmethod
    def from_measurements(cls, step: int, measurements: Iterable[LearningMeasurements]) -> LearningReport:
        """The worst outcome of the languages counts for the training."""
        outcomes = tuple(map(decide_learning, measurements))
        learning = min((outcome.learning for outcome in outcomes), key=_WORST_FIRST.index,
                       default=Learning.NOT_MEASURED)
        return cls(step, learning, outcomes)


@dataclass(frozen=True)
class LearningRecord:
    """`learning.json` of a run: what was measured at step 0 and at each checkpoint."""

    start: dict[str, LearningStart] = field(default_factory=dict)  # starts by language
    reports: dict[str, LearningReport] = field(default_factory=dict)  # reports by step
    signature: str = ""  # HMAC by the key of the workspace whose training measured

    def report(self, step: int) -> LearningReport:
        """The report of a step; "not measured" for a step without one."""
        return self.reports.get(str(step), LearningReport(step))

    def with_report(self, report: LearningReport) -> LearningRecord:
        """The record with `report`, and without those of later steps, which a resumed run repeats."""
        earlier = {step: recorded for step, recorded in self.reports.items() if recorded.step < report.step}
        return replace(self, reports={**earlier, str(report.step): report})

    def up_to(self, step: int) -> LearningRecord:
        """The record without the reports of later steps."""
        return replace(self, reports={key: report for key, report in self.reports.items() if report.step <= step})


_PURPOSE, _RUNS = "learning", "runs"


def write_learning(run_dir: Path, record: LearningRecord) -> None:
    """Write `learning.json`, signed by the workspace of the run unless others wrote what is there."""
    workspace, values = _workspace_of(run_dir), asdict(replace(record, signature=""))
    if workspace is not None and is_own(run_dir):
        # A key that cannot be read, such as a colleague's, is reported when the certificate is signed.
        with suppress(UserError):
            values["signature"] = workspace_key.sign(workspace, _PURPOSE, _content(run_dir, values))
    write_json(run_dir / LEARNING, values)


def is_own(run_dir: Path) -> bool:
    """Whether `learning.json` of a run is as a training of this workspace wrote it; true if there is none."""
    path, workspace = run_dir / LEARNING, _workspace_of(run_dir)
    if not path.exists():
        return True
    try:
        values = json.loads(foreign.read_bytes(path))
        return workspace is not None and workspace_key.is_signed(workspace, _PURPOSE, _content(run_dir, values),
                                                                 str(values["signature"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, UserError):
        return False


def _workspace_of(run_dir: Path) -> Workspace | None:
    folder = run_dir.absolute()
    return Workspace(folder.parent.parent) if folder.parent.name == _RUNS else None


def _content(run_dir: Path, values: Mapping[str, object]) -> bytes:
    """What is signed: the name of the run, whose folder may be copied, and all values."""
    unsigned = {name: value for name, value in values.items() if name != "signature"}
    return json.dumps([run_dir.name, unsigned], sort_keys=True).encode()


def read_learning(run_dir: Path) -> LearningRecord:
    """`learning.json` of a run; an empty record for a run of an older version, which did not measure this."""
    path = run_dir / LEARNING
    if not path.is_file():
        return LearningRecord()
    return loading.read_record(path, LearningRecord, "Delete the file: the outcome is then shown as not measured.")


def read_report(run_dir: Path, step: int) -> LearningReport:
    """The outcome of a run's checkpoint; "not measured" where the file is missing or damaged."""
    try:
        return read_learning(run_dir).report(step)
    except UserError:
        return LearningReport(step)


def paired_change(start_losses: Sequence[float], losses: Sequence[float]) -> Estimate | None:
    """The mean change of the same clips; None without clips, or if the clips differ."""
    if not start_losses or len(start_losses) != len(losses):
        return None
    return Estimate.from_values([later - earlier for earlier, later in zip(start_losses, losses, strict=True)])


def decide_learning(measured: LearningMeasurements, limits: LearningLimits = LIMITS) -> LanguageOutcome:
    """The outcome of one language. Findings come in the order of their weight: the first decides."""
    findings = [*_fatal_findings(measured, limits)]
    if findings:
        silent = findings[0] is Finding.NO_SPEECH
        return LanguageOutcome(Learning.SILENT if silent else Learning.NOT_LEARNED, tuple(findings), measured)

    unmeasured, partial = _missing_measurements(measured, limits), _partial_findings(measured, limits)
    if partial and not {Finding.NO_START, Finding.NO_SENTENCES} & set(unmeasured):
        return LanguageOutcome(Learning.PARTLY_LEARNED, tuple(partial), measured)
    if unmeasured:
        return LanguageOutcome(Learning.NOT_MEASURED, (*unmeasured, *partial), measured)
    return LanguageOutcome(Learning.LEARNED, (), measured)


def _fatal_findings(measured: LearningMeasurements, limits: LearningLimits) -> Iterable[Finding]:
    """Why nothing was learned."""
    speech, change, contrast = measured.speech, measured.speech_change, measured.contrast
    rates = _usable_rates(measured, limits)
    cer = rates.change if rates else None
    if speech and speech.silent >= limits.silent_share * speech.sentences:
        yield Finding.NO_SPEECH
    # Comparisons are written so that NaN, the loss of a diverged model, is a finding.
    if change and not change.mean <= limits.min_decrease:
        yield Finding.LOSS_ROSE
    elif change and not measured.warm_start and not change.mean <= -limits.min_decrease:
        yield Finding.NO_DECREASE
    if contrast and not contrast.mean >= limits.min_contrast:
        yield Finding.TEXT_NOT_READ
    if speech and speech.faulty >= limits.broken_share * speech.sentences:
        yield Finding.BROKEN_SPEECH
    if cer and cer.low > 0:
        yield Finding.WORSE_THAN_BASE


def _usable_rates(measured: LearningMeasurements, limits: LearningLimits) -> Intelligibility | None:
    """The error rates, if the recogniser understands the recordings."""
    rates = measured.intelligibility
    return rates if rates and (rates.recordings_cer or 0.0) <= limits.max_recordings_cer else None


def _partial_findings(measured: LearningMeasurements, limits: LearningLimits) -> list[Finding]:
    """Why it was learned in part only."""
    speech, contrast, findings = measured.speech, measured.contrast, list[Finding]()
    rates = _usable_rates(measured, limits)
    if contrast and rates is None and contrast.mean < limits.learned_contrast:
        findings.append(Finding.TEXT_READ_LITTLE)
    if speech and speech.faulty > limits.faulty_share * speech.sentences:
        findings.append(Finding.FAULTY_SPEECH)
    if rates:
        if rates.change and rates.change.high >= 0:
            findings.append(Finding.NOT_BETTER_THAN_BASE)
        if rates.cer - (rates.recordings_cer or 0.0) > limits.max_excess_cer:
            findings.append(Finding.MANY_ERRORS)
    return findings


def _missing_measurements(measured: LearningMeasurements, limits: LearningLimits) -> list[Finding]:
    """What was not measured and must be, before anything is called learned."""
    change, speech = measured.speech_change, measured.speech
    if change is None or measured.contrast is None or change.count < limits.min_clips:
        return [Finding.NO_START]
    if speech is None:
        return [Finding.NO_SENTENCES]
    return [Finding.FEW_SENTENCES] if speech.sentences < limits.min_sentences else []


def describe_report(report: LearningReport) -> str:
    """The outcome in words, a sentence a language: "Hausa: no speech (20 of 20 sentences are silent)"."""
    return "; ".join(map(describe_outcome, report.languages)) or "not measured (no measurement of this checkpoint)"


def describe_outcome(outcome: LanguageOutcome) -> str:
    """Language, outcome and reason."""
    return f"{language_name(outcome.language)}: {outcome.learning.label} ({_reason(outcome)})"


def _reason(outcome: LanguageOutcome) -> str:
    if not outcome.findings:
        rates = _usable_rates(outcome.measurements, LIMITS)
        if rates is None:
            return ("its speech is sound and follows the text; no recogniser measured how intelligible it is, so "
                    "listen to it")
        return _describe_rates(rates)
    return describe_finding(outcome.findings[0], outcome.measurements)


def describe_finding(finding: Finding, measured: LearningMeasurements) -> str:
    """A finding with its values, as part of a sentence; by its name if a foreign record lacks the values."""
    speech, rates = measured.speech, measured.intelligibility

    match finding:
        case Finding.NO_SPEECH if speech:
            return f"{speech.silent} of {speech.sentences} sentences are silent"
        case Finding.LOSS_ROSE:
            return f"the held-out speech loss rose since step 0: {measured.speech_change} nats"
        case Finding.NO_DECREASE:
            return f"the held-out speech loss did not fall since step 0: {measured.speech_change} nats"
        case Finding.TEXT_NOT_READ:
            return f"the text makes no difference to the speech: text contrast {measured.contrast} nats"
        case Finding.TEXT_READ_LITTLE:
            return f"the text makes little difference to the speech: text contrast {measured.contrast} nats"
        case Finding.BROKEN_SPEECH | Finding.FAULTY_SPEECH if speech:
            return f"{speech.faulty} of {speech.sentences} sentences have faults: {_describe_faults(speech)}"

        # Error rates are compared with those of the base model.
        case Finding.WORSE_THAN_BASE if rates:
            return f"it is read worse than by the base model without training: {_describe_rates(rates)}"
        case Finding.NOT_BETTER_THAN_BASE if rates:
            return f"no better than the base model without training: {_describe_rates(rates)}"
        case Finding.MANY_ERRORS if rates:
            return f"many letters are wrong: {_describe_rates(rates)}"

        # These findings say why the outcome is uncertain.
        case Finding.NO_START:
            return "the losses at step 0 were not measured, or of fewer than 8 held-out clips"
        case Finding.NO_SENTENCES:
            return "no sentence was synthesized"
        case Finding.FEW_SENTENCES if speech:
            return f"only {speech.sentences} sentences were synthesized, 20 are needed"

    return finding.value.replace("_", " ")


def _describe_faults(speech: SpeechHealth) -> str:
    counts = {"silent": speech.silent, "without a stop": speech.missing_stop, "with repetition": speech.repetition,
              "with a long silence": speech.long_silence, "of a wrong duration": speech.wrong_duration}
    return ", ".join(f"{count} {title}" for title, count in counts.items() if count)


def _describe_rates(rates: Intelligibility) -> str:
    compared_rates = {"base model": rates.base_cer, "recordings": rates.recordings_cer}
    parts = [f"{title} {value:.0%}" for title, value in compared_rates.items() if value is not None]
    return f"CER {rates.cer:.0%}" + (f"; {', '.join(parts)}" if parts else "")


_ADVICE: Mapping[Finding, str] = {
    Finding.NO_SPEECH: "The model has learned the silence of the clips. Cut the silence at their ends (preparing the "
                       "dataset does it), check their level on the Data tab, and train for more steps.",
    Finding.LOSS_ROSE: "Train again with lower learning rates.",
    Finding.NO_DECREASE: "Train for more steps, or with higher learning rates.",
    Finding.TEXT_NOT_READ: "Check by ear on the Data tab that each clip says its text; if it does, train for more "
                           "steps, and check that the base model itself speaks.",
    Finding.BROKEN_SPEECH: "Listen to the samples, and train for more steps. If the loss rises, lower the learning "
                           "rates.",
    Finding.WORSE_THAN_BASE: "Train for more steps; the base model reads the romanised text better so far.",
    Finding.TEXT_READ_LITTLE: "Train for more steps, or on more clips.",
    Finding.FAULTY_SPEECH: "Listen to the samples, and train for more steps.",
    Finding.NOT_BETTER_THAN_BASE: "Train for more steps, or on more clips.",
    Finding.MANY_ERRORS: "Train for more steps, or on more clips.",
    Finding.NO_START: "Train again with this version, and hold out at least 8 clips.",
    Finding.NO_SENTENCES: "Set Evaluation sentences to 20, and evaluate the checkpoint.",
    Finding.FEW_SENTENCES: "Set Evaluation sentences to 20, hold out more clips, or listen yourself.",
}


def advise(report: LearningReport) -> str:
    """What to do for the worst language; empty if everything was learned.

    A loss that rose or did not fall is the cause of silence or faults, so its advice comes first.
    """
    for outcome in report.languages:
        if outcome.learning is report.learning and outcome.findings:
            causes = [cause for cause in (Finding.LOSS_ROSE, Finding.NO_DECREASE) if cause in outcome.findings]
            advice, rates = _ADVICE[(causes or outcome.findings)[0]], outcome.measurements.intelligibility
            if rates and _usable_rates(outcome.measurements, LIMITS) is None:
                advice += (f" The recogniser gets {rates.recordings_cer:.0%} of the letters of the recordings wrong: "
                           "their texts may belong to other clips, or it does not know the language.")
            return advice
    return "" if report.languages else "Train again with this version to have it measured, or listen yourself."


def measurement_rows(report: LearningReport) -> list[tuple[str, str, str]]:
    """Language, measure and value, for a table of everything that the outcome was decided from."""
    rows = []
    for outcome in report.languages:
        measured, speech = outcome.measurements, outcome.measurements.speech
        values: dict[str, object] = {
            "Held-out speech loss since step 0 (nats)": measured.speech_change,
            "Held-out text loss since step 0 (nats)": measured.text_change,
            "Text contrast (nats)": measured.contrast,
            "Text contrast at step 0 (nats)": measured.initial_contrast,
            "Silent sentences": f"{speech.silent} of {speech.sentences}" if speech else None,
            "Sentences with faults": speech and f"{speech.faulty} of {speech.sentences}"
            + (f": {_describe_faults(speech)}" if speech.faulty else ""),
            "Duration relative to the recordings": f"{speech.duration_ratio:.2f}" if speech else None,
            "Level relative to the recordings (dB)": f"{speech.level_db:+.0f}" if speech else None,
            "Character error rate": measured.intelligibility and _describe_rates(measured.intelligibility),
        }

        # A measure without a value was not measured.
        rows += [(language_name(outcome.language), title, "not measured" if value is None else str(value))
                 for title, value in values.items()]
    return rows
