"""The report of an evaluation: every clip with its values, intervals, paired tests and settings. Never loads torch.

Intervals and tests are of ratios of sums: bootstrap, sign-flip permutation and exact binomial, by scipy.

`evaluation.json` holds all of it; an estimate can be computed again from the clips alone. The page, the card of an
export and its certificate read it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import html
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from config import foreign, loading
from config.errors import UserError
from config.languages import language_name
from core.library import certificate, workspace_key
from core.library.certificate import CERTIFICATE, Certificate, CertificateCheck
from core.library.records import EXPORT_CARD
from core.workspace import Workspace
from data.durable_files import hash_file, write_json, write_text

JSON, MARKDOWN, HTML = "evaluation.json", "evaluation.md", "evaluation.html"
FILES = (JSON, MARKDOWN, HTML)
FOLDER = "evaluation"  # folder in an export
CHECK = "evaluation"  # name of the check in a certificate
SECTION = "## Evaluation"
_SUMMARISED = ("cer", "similarity", "naturalness")
GROUPS: Mapping[str, str] = {"category": "By category", "length": "By length of the text", "speaker": "By speaker"}
"""Kinds of groups of sentences, and their titles."""
_GROUPED = ("no_speech", "cer", "naturalness", "similarity", "missing_stop", "long_silence")
Values = NDArray[np.float64]
RESAMPLES, PERMUTATIONS = 2000, 9999
_LEAST_IN_QUARTILE = 2  # sentences
_SEED = 0


@dataclass(frozen=True)
class Metric:
    """One measure of speech. `percent`: shown as a percentage; `better` says which values are."""

    title: str
    better: Literal["lower", "higher", "near 1", ""]
    about: str
    percent: bool = False

    def show(self, value: float) -> str:
        return f"{100 * value:.1f}%" if self.percent else f"{value:.2f}"


METRICS: Mapping[str, Metric] = {
    "no_speech": Metric("No speech", "lower", "the clip holds only silence; its naturalness, speaker and prosody are "
                        "not measured", True),
    "cer": Metric("Character error (CER)", "lower", "edits of the transcript over letters of the text", True),
    "deletions": Metric("Deleted letters", "lower", "letters of the text that the transcript lacks", True),
    "wer": Metric("Word error", "lower", "words of the text with a wrong, missing or added letter; word spaces are not "
                  "recognised", True),
    "similarity": Metric("Speaker similarity", "higher", "cosine of an independent voice encoder"),
    "family_similarity": Metric("Speaker similarity (own)", "higher", "the same by the voice encoder of the model "
                                "family"),
    "naturalness": Metric("Naturalness (MOS)", "higher", "estimated mean opinion score, 1 to 5, without a reference"),
    "mcd": Metric("Mel-cepstral distance (dB)", "lower", "to the recording, 13 coefficients, dynamic time warping"),
    "f0_range": Metric("F0 range (semitones)", "", "between the 5th and 95th percentile of the pitch"),
    "f0_range_ratio": Metric("F0 range to recording", "near 1", "F0 range over that of the recording"),
    "rate": Metric("Speaking rate (letters/s)", "", "letters and signs of the text per second between the silent ends"),
    "rate_ratio": Metric("Rate to recording", "near 1", "speaking rate over that of the recording"),
    "missing_stop": Metric("Missing stop", "lower",
                           "the codes reached the length limit or ran in a circle, or there is no speech", True),
    "repetition": Metric("Repetition", "lower", "four or more letters that follow themselves, against the text", True),
    "long_silence": Metric("Long silence", "lower", "a pause of 0.8 s or more between two sounds", True),
    "clipping": Metric("Clipping", "lower", "more than a thousandth of the samples at full scale", True),
    "real_time_factor": Metric("Real-time factor", "lower", "seconds of synthesis per second of speech"),
}
"""In the order of the tables."""


@dataclass(frozen=True)
class MetricEstimate:
    """An estimate over sentences with its 95% interval."""

    value: float
    low: float
    high: float
    sentences: int


@dataclass(frozen=True)
class EvaluatedModel:
    """A model or a reference, as it was named; `run` and `step` of a checkpoint, also that of an export."""

    name: str
    about: str
    run: str = ""
    step: int | None = None
    # What `verification.hash_model` gave of the files that spoke; empty for what is no model.
    weights: str = ""


@dataclass(frozen=True)
class EvaluatedClip:
    """One clip. `values` holds a numerator and a denominator by metric: an estimate is the ratio of their sums.

    `audio` is relative to the report; an export has a copy of the report without the clips.
    """

    model: str
    language: str
    sentence: int  # number in the list of the language
    text: str
    # The text that the model read if it differs from the sentence; else empty.
    reading: str
    voice: str
    seed: int
    audio: str
    sha256: str  # hash of the samples, 16 bits
    duration_s: float
    reference: str  # letters that the transcript is compared with
    transcript: str
    finish_reason: str
    values: dict[str, tuple[float, float]] = field(default_factory=dict)
    category: str = ""  # category of the sentence, in a list with categories
    # The speaker of the recording of the sentence, else the voice.
    speaker: str = ""


@dataclass(frozen=True)
class GroupEstimate:
    """The estimates of one model over a group of the sentences of a language, by metric."""

    model: str
    language: str
    kind: str  # a key of GROUPS
    group: str
    estimates: dict[str, MetricEstimate]


@dataclass(frozen=True)
class PairedTest:
    """The difference of two models on the same sentences, second minus first; `p_value` two-sided, by permutation."""

    metric: str
    language: str
    first: str
    second: str
    difference: float
    low: float
    high: float
    p_value: float
    sentences: int


REFERENCE, ANCHOR = "recordings", "anchor"  # the models of a listening test that say who listens well
MISSED_CHECKS = 0.15
"""A listener is flagged above this share of pairs in which the anchor was not below the recording. ITU-R BS.1534-3
(4.1.2) leaves a listener out who rates the hidden reference too low in more than this share of the items."""
QUESTIONS: Mapping[str, str] = {
    "naturalness": "Naturalness (1 to 5)", "intelligibility": "Intelligibility (1 to 5)",
    "preference": "Preferred", "abx": "Told apart",
}


@dataclass(frozen=True)
class ListeningScore:
    """What listeners said of a model, a mean opinion score, or of two: a share of answers.

    Of a preference the share that chose `second` among those who chose; of ABX the share of right answers. `exact` is
    the interval of a binomial share, and `p_value` that of a half: two-sided for a preference, one-sided for ABX.
    """

    question: str  # a key of QUESTIONS
    first: str
    second: str  # empty for a mean opinion score
    value: float
    low: float  # 95%, bootstrap over listeners and sentences
    high: float
    answers: int
    ties: int = 0  # answers without a preference, which the share leaves out
    exact: tuple[float, float] | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class ListenerResult:
    """One listener: the scores, and in how many pairs the anchor was not below the recording."""

    name: str
    answers: int
    checks: int
    missed: int
    scores: tuple[ListeningScore, ...]

    @property
    def flagged(self) -> bool:
        """Whether this listener cannot tell the anchor from the recording."""
        return self.missed > MISSED_CHECKS * self.checks


@dataclass(frozen=True)
class ListeningResult:
    """What a listening test found; `reliable` are the scores without the flagged listeners, where there are some."""

    test: str
    kind: str
    language: str
    about: str
    scores: tuple[ListeningScore, ...]
    reliable: tuple[ListeningScore, ...]
    listeners: tuple[ListenerResult, ...]


@dataclass(frozen=True)
class EvaluationReport:
    """All of an evaluation. `instruments` names what measured what, `software` the versions and the hardware."""

    created: float  # seconds since 1970
    seconds: float
    settings: dict[str, JsonValue]
    instruments: dict[str, str]
    software: dict[str, str]
    models: tuple[EvaluatedModel, ...]
    estimates: dict[str, dict[str, dict[str, MetricEstimate]]]  # estimates by model, language and metric
    tests: tuple[PairedTest, ...]
    clips: tuple[EvaluatedClip, ...]
    notes: tuple[str, ...] = ()
    listening: tuple[ListeningResult, ...] = ()
    groups: tuple[GroupEstimate, ...] = ()
    page: str = ""  # SHA-256 of `evaluation.html` without the listening tests
    signature: str = ""  # HMAC by the key of the workspace that measured; not of the listening tests

    def model(self, name: str) -> EvaluatedModel:
        """The model called `name`."""
        return next(model for model in self.models if model.name == name)

    def languages(self) -> tuple[str, ...]:
        """Every language that was measured, in order."""
        return tuple(dict.fromkeys(clip.language for clip in self.clips))

    def metrics(self, language: str) -> tuple[str, ...]:
        """The metrics that some model has in `language`."""
        measured = set[str]()
        for by_language in self.estimates.values():
            measured.update(by_language.get(language, {}))
        return tuple(name for name in METRICS if name in measured)

    def worst(self, name: str, count: int = 10) -> list[EvaluatedClip]:
        """The worst clips of a model: faults first, then the error, then the naturalness."""
        def badness(clip: EvaluatedClip) -> tuple[float, float, float]:
            faults = sum(clip.values[fault][0] for fault in ("missing_stop", "repetition", "long_silence", "clipping")
                         if fault in clip.values)
            edits, letters = clip.values.get("cer", (0.0, 1.0))
            return -edits / max(letters, 1.0), -faults, clip.values.get("naturalness", (0.0, 1.0))[0]

        return sorted((clip for clip in self.clips if clip.model == name), key=badness)[:count]


def write(folder: Path, report: EvaluationReport) -> None:
    """Write `evaluation.json`."""
    write_json(folder / JSON, dataclasses.asdict(report))


_PURPOSE = "evaluation"
_ADDED_LATER = ("listening", "signature")
_MOST_PAGE_BYTES = 1 << 30  # it holds the worst clips


def write_signed(workspace: Workspace, folder: Path, report: EvaluationReport) -> EvaluationReport:
    """Write `evaluation.json` and `evaluation.md` beside `evaluation.html`, signed by this workspace.

    An export takes the figures of its run from a report, so that a certificate of this workspace repeats them.
    """
    report = dataclasses.replace(report, page=_hash_page(folder))
    content = _content(dataclasses.asdict(report))
    report = dataclasses.replace(report, signature=workspace_key.sign(workspace, _PURPOSE, content))
    write(folder, report)
    write_text(folder / MARKDOWN, markdown(report))
    return report


def is_own(workspace: Workspace, folder: Path) -> bool:
    """Whether an evaluation of this workspace wrote the report in `folder`, and its page, as they are."""
    try:
        values = foreign.read_json(folder / JSON, foreign.RECORD_BYTES)
        signature = str(values["signature"])
        return (workspace_key.is_signed(workspace, _PURPOSE, _content(values), signature)
                and values["page"] == _hash_page(folder))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _content(values: Mapping[str, object]) -> bytes:
    """What is signed of a report, from its values or from its file."""
    return json.dumps({name: value for name, value in values.items() if name not in _ADDED_LATER}, sort_keys=True
                      ).encode()


def _hash_page(folder: Path) -> str:
    """The hash of `evaluation.html` without the section of the listening tests, which is written again."""
    head, _, tail = foreign.read_bytes(folder / HTML, _MOST_PAGE_BYTES).partition(LISTENING_MARKS[0].encode())
    return hashlib.sha256(head + tail.partition(LISTENING_MARKS[1].encode())[2]).hexdigest()


def read(folder: Path) -> EvaluationReport:
    """The report in `folder`; `UserError` when it is missing or damaged."""
    return loading.read_record(folder / JSON, EvaluationReport, "Evaluate again: python -m scripts evaluate.")


def find(workspace: Workspace, run: str, step: int, hash_weights: Callable[[], str],
         warn: Callable[[str], None]) -> tuple[Path, EvaluationReport, str] | None:
    """Folder, report and model name of the newest evaluation of a checkpoint whose files have the hash of its weights.

    Only what this workspace measured counts: a run from elsewhere may bring a report that names any run. If there are
    others alone, `warn` gets a sentence about them. `hash_weights` reads the weights, if there is an evaluation.
    """
    evaluations: list[tuple[float, Path, EvaluationReport, EvaluatedModel]] = []
    for name in workspace.list_runs():
        folder = workspace.runs / name
        if (folder / JSON).is_file():
            with suppress(UserError):
                report = read(folder)
                evaluations += [(report.created, folder, report, model) for model in report.models
                                if (model.run, model.step) == (run, step)]
    if not evaluations:
        return None

    weights = hash_weights()
    usable = [(created, folder, report, model) for created, folder, report, model in evaluations
              if model.weights == weights and is_own(workspace, folder)]
    if not usable:
        warn(f"No evaluation of {run} at step {step} is added: an older version or another workspace measured it, it "
             "was changed, or its files were others. Evaluate again to have its figures in the card.")
        return None
    _, folder, report, model = max(usable, key=lambda evaluation: evaluation[0])
    return folder, report, model.name


def show(metric: str, estimate: MetricEstimate | None) -> str:
    """Such as `18.2% (14.9% to 21.7%)`."""
    if estimate is None:
        return "–"
    form = METRICS[metric].show
    return f"{form(estimate.value)} ({form(estimate.low)} to {form(estimate.high)})"


def show_test(test: PairedTest) -> str:
    """Such as `-20.1% (-25.0% to -15.2%), p = 0.0002`."""
    form = METRICS[test.metric].show
    return f"{form(test.difference)} ({form(test.low)} to {form(test.high)}), {_show_p(test.p_value)}"


def show_score(score: ListeningScore) -> str:
    """Such as `3.42 (3.10 to 3.71)`, or `78.0% (60.0% to 91.0%), exact 60.8% to 90.2%, p = 0.003`."""
    if score.exact is None:
        return f"{score.value:.2f} ({score.low:.2f} to {score.high:.2f})"
    if score.answers == score.ties:
        return "no preference"
    return (f"{score.value:.1%} ({score.low:.1%} to {score.high:.1%}), exact {score.exact[0]:.1%} to "
            f"{score.exact[1]:.1%}, {_show_p(score.p_value or 0.0)}")


def _show_p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def listening_tables(result: ListeningResult) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of each table of a listening test. The names of listeners are foreign text."""
    for title, scores in (("All listeners", result.scores), ("Without flagged listeners", result.reliable)):
        if scores:
            ties = result.kind == "preference"
            yield title, ["question", "model", "result", "answers", *(["without preference"] if ties else [])], [
                [QUESTIONS[score.question], _compared(score), show_score(score), str(score.answers),
                 *([str(score.ties)] if ties else [])] for score in scores]
    if result.listeners:
        yield "Listeners", ["listener", "answers", "anchor not below recording", "reliable", *(
            f"{QUESTIONS[score.question]}: {_compared(score)}" for score in result.scores)], [
            [listener.name, str(listener.answers), f"{listener.missed} of {listener.checks} pairs",
             "flagged" if listener.flagged else "yes" if listener.checks else "not checked", *(
                 next((show_score(own_score) for own_score in listener.scores
                       if (own_score.question, own_score.first, own_score.second)
                       == (score.question, score.first, score.second)), "–") for score in result.scores)]
            for listener in result.listeners]


def _compared(score: ListeningScore) -> str:
    if not score.second:
        return score.first
    return f"{score.second} over {score.first}" if score.question == "preference" else f"{score.first}, {score.second}"


def listening_html(results: Sequence[ListeningResult]) -> str:
    """The section of the HTML report between its two marks, which no escaped text can hold."""
    parts = []
    for result in results:
        parts.append(f"<h2>Listening test, {html.escape(language_name(result.language))}</h2>"
                     f"<p>{html.escape(result.about)}</p>")
        for title, head, rows in listening_tables(result):
            cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
            parts.append(f'<h3>{title}</h3><div class="scroll"><table><tr>{names}</tr>{cells}</table></div>')
    return f"{LISTENING_MARKS[0]}{''.join(parts)}{LISTENING_MARKS[1]}"


LISTENING_MARKS = "<!--listening-->", "<!--/listening-->"


def replace_listening(folder: Path, results: Sequence[ListeningResult]) -> None:
    """Write the report in `folder` again, in its three forms, with the results of its listening tests."""
    report = dataclasses.replace(read(folder), listening=tuple(results))
    write(folder, report)
    write_text(folder / MARKDOWN, markdown(report))
    if (folder / HTML).is_file():
        page = (folder / HTML).read_text(encoding="utf-8")
        # The results stand between two marks, so the rest of the page stays as it is.
        head, _, tail = page.partition(LISTENING_MARKS[0])
        after = tail.partition(LISTENING_MARKS[1])[2]
        write_text(folder / HTML, f"{head}{listening_html(results)}{after}")


def tables(report: EvaluationReport, language: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of one language: a metric a row, a model a column."""
    names = [model.name for model in report.models if language in report.estimates.get(model.name, {})]
    rows = [[METRICS[metric].title, *(show(metric, report.estimates[name][language].get(metric)) for name in names)]
            for metric in report.metrics(language)]
    return ["", *names], rows


def interval_bar(metric: str, estimate: MetricEstimate, row: Sequence[MetricEstimate]) -> str:
    """SVG of an interval on the scale that it shares with `row`: a line, and a dot at the estimate."""
    low = min([0.0] * METRICS[metric].percent + [other.low for other in row])
    span = max(other.high for other in row) - low or 1.0
    start, value, end = (4 + 112 * (point - low) / span for point in (estimate.low, estimate.value, estimate.high))
    return (f'<svg class="interval" viewBox="0 0 120 12" role="img" aria-label="{show(metric, estimate)}">'
            f'<line x1="2" x2="118" y1="6" y2="6" class="scale"/>'
            f'<line x1="{start:.1f}" x2="{end:.1f}" y1="6" y2="6" class="range"/>'
            f'<circle cx="{value:.1f}" cy="6" r="3.5"/></svg>')


def markdown(report: EvaluationReport) -> str:
    """The report without its clips, as Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: EvaluationReport) -> Iterator[str]:
    yield "# Evaluation"
    yield ("\nEstimates over sentences with 95% bootstrap intervals. Differences are paired by sentence, second minus "
           "first, with the p-value of a permutation test; p-values are not corrected for the number of tests.")

    # Each language has its estimates, its tests and its groups.
    for language in report.languages():
        yield f"\n## {language_name(language)}\n"
        sizes = {name: by_language[language] for name, by_language in report.estimates.items()
                 if language in by_language}
        estimates = chain.from_iterable(metrics.values() for metrics in sizes.values())
        sentences = max((estimate.sentences for estimate in estimates), default=0)
        yield f"{sentences} sentences.\n"
        yield from _table(*tables(report, language))
        tests = [test for test in report.tests if test.language == language]
        if tests:
            yield "\n" + "\n".join(f"- {METRICS[test.metric].title}, {test.second} minus {test.first}: "
                                   f"{show_test(test)}" for test in tests)
        for title, head, rows in group_tables(report, language):
            yield f"\n{title}:\n"
            yield from _table(head, [list(map(_cell, row)) for row in rows])

    # Listening tests follow the measurements.
    for result in report.listening:
        yield f"\n## Listening test, {language_name(result.language)}\n\n{result.about}"
        for title, head, rows in listening_tables(result):
            yield f"\n{title}:\n"
            yield from _table(list(map(_cell, head)), [list(map(_cell, row)) for row in rows])

    # The end says how the figures came about.
    yield "\n## Models\n"
    yield from (f"- `{model.name}`: {model.about}" for model in report.models)
    yield "\n## How it was measured\n"
    yield from (f"- {name}: {text}" for name, text in report.instruments.items())
    yield from (f"- {METRICS[name].title}: {METRICS[name].about}"
                + (f"; better is {METRICS[name].better}" if METRICS[name].better else "") for name in METRICS)

    if report.notes:
        yield "\n## Notes\n"
        yield from (f"- {note}" for note in report.notes)

    yield "\n## Settings\n"
    yield from (f"- {name}: {value}" for name, value in {**report.settings, **report.software}.items())
    yield f"- took: {report.seconds:.0f} s"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    """Foreign text as it stands in a table of Markdown."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(text, quote=False))


def group_tables(report: EvaluationReport, language: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of the table of each kind of group: a group of one model a row."""
    for kind, title in GROUPS.items():
        groups = [group for group in report.groups if (group.language, group.kind) == (language, kind)]
        metrics = [metric for metric in _GROUPED if any(metric in group.estimates for group in groups)]
        if groups and metrics:
            rows = [[group.group, group.model, str(max(estimate.sentences for estimate in group.estimates.values())),
                     *(show(metric, group.estimates.get(metric)) for metric in metrics)] for group in groups]
            yield title, [kind, "model", "sentences", *(METRICS[metric].title for metric in metrics)], rows


def group_estimates(clips: Sequence[EvaluatedClip]) -> tuple[GroupEstimate, ...]:
    """The estimates by category, by quartile of the length of the text, and by speaker, where there are two or more."""
    group_rows: list[GroupEstimate] = []
    for language in dict.fromkeys(clip.language for clip in clips):
        of_language = [clip for clip in clips if clip.language == language]
        quartiles = _length_quartiles(of_language)
        for kind in GROUPS:
            by_name: dict[str, list[EvaluatedClip]] = {}
            for clip in of_language:
                name = {"category": clip.category, "length": quartiles[clip.text], "speaker": clip.speaker}[kind]
                by_name.setdefault(name, []).append(clip)
            # Clips without a category or a speaker belong to no group.
            by_name.pop("", None)
            for name, group_clips in sorted(by_name.items()) if len(by_name) > 1 else ():
                for model in dict.fromkeys(clip.model for clip in group_clips):
                    estimates = _estimates([clip for clip in group_clips if clip.model == model])
                    if estimates:
                        group_rows.append(GroupEstimate(model, language, kind, name, estimates))
    return tuple(group_rows)


def _length_quartiles(clips: Sequence[EvaluatedClip]) -> dict[str, str]:
    """By text the quartile of its length, such as `1: up to 21 letters`; empty for few sentences."""
    lengths = {clip.text: len(clip.text.replace(" ", "")) for clip in clips}
    edges = np.quantile(list(lengths.values()), (0.25, 0.5, 0.75)) if lengths else np.zeros(3)
    if len(lengths) < 4 * _LEAST_IN_QUARTILE or len(set(edges)) < 3:
        return dict.fromkeys(lengths, "")
    names = [*(f"{number}: up to {int(edge)} letters" for number, edge in enumerate(edges, 1)),
             f"4: more than {int(edges[-1])} letters"]
    return {text: names[int(np.searchsorted(np.floor(edges), length))] for text, length in lengths.items()}


def _estimates(clips: Sequence[EvaluatedClip]) -> dict[str, MetricEstimate]:
    """The grouped metrics over the sentences of `clips`; clips of one sentence add up."""
    estimates = {}
    for metric in _GROUPED:
        sums: dict[int, np.ndarray] = {}
        for clip in clips:
            if metric in clip.values:
                sums[clip.sentence] = sums.get(clip.sentence, np.zeros(2)) + np.array(clip.values[metric])
        if sums:
            numerators, denominators = np.array(list(sums.values())).T
            if denominators.sum() > 0:
                estimates[metric] = MetricEstimate(ratio(numerators, denominators), *bootstrap_interval(
                    numerators, denominators), len(sums))
    return estimates


def attach(export: Path, folder: Path, report: EvaluationReport, name: str, proof: Certificate) -> Certificate:
    """Copy the report in `folder` into an export of the model `name`; returns its certificate `proof` with the report.

    The certificate is written without a new signature, and the list of hashes is out of date. Who signs the certificate
    signs what this returns: the file may be another one meanwhile.
    """
    target = export / FOLDER
    target.mkdir(exist_ok=True)
    for file in (JSON, HTML):
        shutil.copyfile(folder / file, target / file)
    write_text(target / MARKDOWN, markdown(report))
    check = certificate_check(report, name, target / JSON)

    card = export / EXPORT_CARD
    write_text(card, with_section(card.read_text(encoding="utf-8"), card_section(report, name)))
    # The certificate lists the card and the report by their hashes, so a changed one is noticed.
    changed = dataclasses.replace(
        proof, checks=(*(earlier for earlier in proof.checks if earlier.name != check.name), check),
        texts=certificate.list_texts(export) if proof.texts else ())
    certificate.write(export / CERTIFICATE, changed)
    return changed


def card_section(report: EvaluationReport, name: str) -> str:
    """The section of an export's card about the model `name`, with references and other models beside it."""
    links = ", ".join(f"[{path}]({path})" for path in (f"{FOLDER}/{MARKDOWN}", f"{FOLDER}/{HTML}"))
    parts = [SECTION, f"Means over sentences with 95% intervals; this model is `{name}`. Every metric, the paired "
                      f"tests and the settings: {links}."]
    for language in report.languages():
        head, rows = tables(report, language)
        titles = {METRICS[metric].title for metric in _SUMMARISED}
        parts.append(f"{language_name(language)}:\n\n"
                     + "\n".join(_table(head, [row for row in rows if row[0] in titles])))
    return "\n\n".join(parts)


def with_section(card: str, section: str) -> str:
    """The card of an export with `section` before what was preserved, in the place of an earlier one."""
    without = re.sub(rf"{re.escape(SECTION)}\n.*?(?=\n## )\n", "", card, flags=re.DOTALL)
    return without.replace("## What was preserved", f"{section}\n\n## What was preserved", 1)


def certificate_check(report: EvaluationReport, name: str, path: Path) -> CertificateCheck:
    """What a certificate says of the evaluation of the model `name`, whose report is the file `path`."""
    summary = []
    for language, metrics in report.estimates[name].items():
        summary += [f"{language} {METRICS[metric].title} {show(metric, metrics[metric])}"
                    for metric in _SUMMARISED if metric in metrics]
    return CertificateCheck(CHECK, "measured", "", f"{'; '.join(summary)}; {FOLDER}/{JSON} {hash_file(path)[:12]}",
                            "Estimates over sentences, with 95% intervals, of the report in the export.")


def ratio(numerators: Values, denominators: Values) -> float:
    """The ratio of the sums of (N,) and (N,)."""
    return float(numerators.sum() / denominators.sum())


def bootstrap_interval(numerators: Values, denominators: Values) -> tuple[float, float]:
    """The 95% percentile interval of the ratio of sums over resampled sentences; its own value for one sentence."""
    from scipy import stats  # slow to import

    value = ratio(numerators, denominators)
    if len(numerators) < 2:
        return value, value
    bootstrap = stats.bootstrap((numerators, denominators), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True,
                                vectorized=True, n_resamples=RESAMPLES, method="percentile", confidence_level=0.95,
                                rng=np.random.default_rng(_SEED))
    return float(bootstrap.confidence_interval.low), float(bootstrap.confidence_interval.high)


def paired_test(first: tuple[Values, Values], second: tuple[Values, Values]) -> tuple[float, float, float, float]:
    """Difference of two ratios over the same sentences, second minus first, its 95% interval, and the p-value.

    Sentences are resampled for the interval. For the two-sided p-value the two models are exchanged at random in each
    sentence; equal values everywhere give 1.
    """
    from scipy import stats  # slow to import

    difference = ratio(*second) - ratio(*first)
    if len(first[0]) < 2 or (np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])):
        return difference, difference, difference, 1.0
    bootstrap = stats.bootstrap(
        (*first, *second), lambda a, b, c, d, axis: c.sum(axis) / d.sum(axis) - a.sum(axis) / b.sum(axis), paired=True,
        vectorized=True, n_resamples=RESAMPLES, method="percentile", confidence_level=0.95,
        rng=np.random.default_rng(_SEED))

    # Each permutation exchanges the two models in about half of the sentences, chosen at random.
    flips = np.random.default_rng(_SEED).random((PERMUTATIONS, len(first[0]))) < 0.5
    sums = [np.where(flips, chosen, other).sum(1) for chosen, other in (
        (second[0], first[0]), (second[1], first[1]), (first[0], second[0]), (first[1], second[1]))]
    exchanged = np.abs(sums[2] / sums[3] - sums[0] / sums[1])
    p_value = (1 + int((exchanged >= abs(difference) - 1e-12).sum())) / (1 + PERMUTATIONS)
    return difference, float(bootstrap.confidence_interval.low), float(bootstrap.confidence_interval.high), p_value


def crossed_interval(numerators: Values, denominators: Values, listeners: Sequence[object],
                     sentences: Sequence[object]) -> tuple[float, float]:
    """The 95% percentile interval of the ratio of sums of (N,) and (N,), answers of `listeners` to `sentences`.

    Listeners and sentences are drawn apart, each with replacement, and an answer counts as often as both were drawn
    (the pigeonhole bootstrap: A. B. Owen 2007), so that many answers of one person are not many persons. What there
    is one of is not drawn.
    """
    rng = np.random.default_rng(_SEED)
    weights = np.ones((RESAMPLES, len(numerators)))
    for names in (listeners, sentences):
        kinds, places = np.unique(np.array([str(name) for name in names]), return_inverse=True)
        if len(kinds) > 1:
            weights *= rng.multinomial(len(kinds), np.full(len(kinds), 1 / len(kinds)), RESAMPLES)[:, places]
    # A draw without any answer has no ratio, so it is left out.
    drawn = weights @ denominators
    values = (weights @ numerators)[drawn > 0] / drawn[drawn > 0]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def exact_binomial(successes: int, trials: int, alternative: Literal["two-sided", "greater"] = "two-sided"
                   ) -> tuple[float, float, float]:
    """The 95% interval of a share (Clopper and Pearson 1934), and the p-value of a half; no trial says nothing."""
    from scipy import stats  # slow to import

    if trials == 0:
        return 0.0, 1.0, 1.0
    interval = stats.binomtest(successes, trials, 0.5).proportion_ci(0.95, "exact")
    return float(interval.low), float(interval.high), float(
        stats.binomtest(successes, trials, 0.5, alternative).pvalue)
