"""Jobs as text and HTML: titles, states, progress, results, errors. Functions of states, without Gradio."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache

from config.arguments import flags
from config.errors import UserError
from config.languages import NAMES
from config.languages import language_name as language_name
from config.schema import ANY_STEPS
from core.jobs.events import MAX_TIME, Progress
from core.jobs.job import NO_DEVICE
from core.jobs.reporter import duration_text, memory_text, pluralize, size_text
from core.jobs.state import STATUS_TITLES, JobState
from core.jobs.verbs import VERBS
from core.library import learning, verification
from core.library.learning import Learning, LearningReport
from core.submission.job_subjects import subject
from ui.markup import NOTHING, Html, div, element, escape, join, paragraph, span, table, with_code
from ui.titles import with_titles

VERB_TITLES: Mapping[str, str] = {name: verb.title for name, verb in VERBS.items()}
STAGE_TITLES: Mapping[str, str] = {
    "align": "Aligning text", "certificate": "Computing certificate", "check": "Checking data",
    "check what is here": "Checking existing files", "compare": "Comparing tensors",
    "compare texts": "Comparing clips with texts", "compile": "Compiling the model",
    "copied": "Copying files", "copy": "Copying files", "cut": "Segmenting at pauses",
    "decoder": "Training the decoder", "download": "Downloading",
    "download the language": "Downloading language files", "features": "Extracting features",
    "fit": "Fitting new rows", "hash": "Hashing files", "import": "Importing recordings",
    "score": "Transcribing samples (ASR)",
    "score recordings": "Transcribing original recordings (ASR)", "linked": "Linking files", "load": "Loading model",
    "look": "Inspecting recordings", "look up": "Resolving files", "map": "Counting characters",
    "measure": "Measuring", "pack": "Packing files", "plan": "Reading sentences", "report": "Writing the report",
    "new rows": "Initialising new rows", "setup": "Setting up the run",
    "strip": "Removing optimizer state",
    "prepare": "Extracting features", "probe": "Probing the base model", "memory plan": "Measuring memory and speed",
    "prove": "Checking base-language token ids", "read": "Reading texts", "read back": "Verifying written files",
    "recogniser": "Loading recogniser (ASR)", "reload": "Reloading checkpoint", "restore": "Restoring base rows",
    "store weights": "Storing the weights", "speak": "Synthesizing speech", "train": "Training",
    "transcribe": "Transcribing",
    "phonetic features": "Extracting phonetic features", "train recogniser": "Training the recogniser (ASR)",
    "held-out error": "Transcribing held-out recordings (ASR)",
    "two steps and save": "Training two steps", "upload": "Uploading",
    "unpack": "Verifying and writing files", "verify": "Verifying files",
    "version": "Writing dataset version", "write": "Writing files",
}
_STATUS_TONE = {"finished": "good", "failed": "bad", "crashed": "bad", "running": "busy", "stopping": "busy",
                "queued": "busy", "waiting": "wait", "stopped": "wait", "created": "wait", "skipped": "wait"}
_JOB_ID = re.compile(rf"\b({'|'.join(VERB_TITLES)})-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}\b")
_DEVICE = re.compile(r"(?<=^Waiting for )(cpu|cuda)(?=:)")
DEVICES: Mapping[str, str] = {"cpu": "the CPU", "cuda": "the GPU"}
_BEFORE_STEPS = ("load", "memory plan")  # stages of a training that end before it checks for a stop

_RESULT_TITLES: Mapping[str, str] = {
    "train": "Training clips", "held_out": "Held-out clips", "test": "Test clips", "left_out": "Skipped rows",
    "features": "Clips read",
    "features_failed": "Unreadable clips", "state": "Outcome", "ref": "Reference", "size": "Tokens",
    "base_size": "Base tokens", "unknown_rate_before": "Unknown characters, before",
    "unknown_rate": "Unknown characters, now", "tokens_per_character_before": "Tokens per character, before",
    "tokens_per_character": "Tokens per character, now", "base_unchanged": "Base-language ids unchanged",
    "old_rows_equal": "Base rows unchanged", "from_spelling": "Rows initialised from spelling",
    "from_mean": "Rows initialised from the mean",
    "best_step": "Best step", "best_value": "Best value", "chosen_by": "Best checkpoint by",
    "train_seconds": "Training time", "beside_programs_s": "Time beside other programs", "seconds": "Time",
    "seconds_a_step": "Time of a step",
    "duration_s": "Duration",
    "real_time_factor": "Real-time factor", "megabytes": "Size", "bytes": "Size", "bytes_fetched": "Downloaded",
    "minutes": "Duration", "minutes_recorded": "Recorded", "level_db": "Level", "error": "CER",
    "ready": "Ready to train", "texts_match": "Texts and clips",
    "features_alike": "Codes equal to the cache", "checkpoint": "Checkpoint size", "spoken_s": "Synthesized",
    "memory_bytes": "Memory", "training": "Estimated training time", "too_long": "Clips too long",
    "recordings_cer": "CER of original recordings", "trimmed_clips": "Clips trimmed", "trimmed_s": "Silence trimmed",
    "not_tried": "Not checked", "certificate": "Certificate", "preservation": "Old languages",
    "learning": "New language", "learning_outcome": "What was learned",
    "base": "Base files",
}
_WHEN = {"recordings": "original recordings"}
_SHARES = ("unknown_rate_before", "unknown_rate", "features_alike")
_DURATIONS = {"minutes": 60.0, "minutes_recorded": 60.0, "duration_s": 1.0, "seconds": 1.0, "train_seconds": 1.0,
              "beside_programs_s": 1.0, "trimmed_s": 1.0}
"""By name the seconds of one."""
_UNITS = {"seconds_a_step": "s", "level_db": "dB", "spoken_s": "s"}


def percent(share: float | None) -> str:
    """Such as "12.4%"; a dash when it was not measured."""
    return "–" if share is None or not math.isfinite(share) else f"{share:.1%}"


def clock(moment: float | None) -> str:
    """Local time of day, with the date when it is not today."""
    if moment is None or not 0 <= moment < MAX_TIME:
        return "–"
    return _clock(moment, time.strftime("%Y%m%d"))


@lru_cache(1 << 16)
def _clock(moment: float, today: str) -> str:
    local_time = time.localtime(moment)
    return time.strftime("%H:%M" if today == time.strftime("%Y%m%d", local_time) else "%d %b %H:%M", local_time)


def learning_of(state: JobState) -> Learning | None:
    """What a finished training taught, or that of the run that was certified or exported; None for other jobs.

    A run of an older version is not measured.
    """
    if state.status != "finished" or state.verb not in ("train", "certify", "export"):
        return None
    try:
        return Learning(str((state.result or {}).get("learning", Learning.NOT_MEASURED)))
    except ValueError:  # a file of another version
        return Learning.NOT_MEASURED


def learned_nothing(state: JobState) -> bool:
    """Whether it is red in every list."""
    outcome = learning_of(state)
    return outcome is not None and outcome.bad


def status_title(state: JobState) -> str:
    """The status; of a finished training with its outcome, such as "finished, no speech"."""
    outcome = learning_of(state)
    return f"{STATUS_TITLES[state.status]}, {outcome.label}" if outcome else STATUS_TITLES[state.status]


_LEARNING_TONE = {Learning.LEARNED: "good", Learning.PARTLY_LEARNED: "wait", Learning.NOT_MEASURED: "wait",
                  Learning.NOT_LEARNED: "bad", Learning.SILENT: "bad"}


def status_tone(state: JobState) -> str:
    """The tone of a job: green only where a training is known to have taught something.

    The journal of a run from another workspace is its sender's word.
    """
    outcome = learning_of(state)
    if outcome is Learning.LEARNED and (state.job.directory / verification.IMPORTED).exists():
        return "wait"
    return _LEARNING_TONE[outcome] if outcome else _STATUS_TONE[state.status]


def learning_view(report: LearningReport, *, claimed: bool = False) -> Html:
    """The outcome of a training in words, what to do, and the values that it was decided from.

    `claimed`: as a sender reported it, so that nothing is green, and a sentence says why.
    """
    tone = {"good": "unsure" if claimed else "good", "bad": "bad", "wait": "unsure"}[_LEARNING_TONE[report.learning]]
    words = learning.describe_report(report)
    advice = learning.advise(report)
    rows = learning.measurement_rows(report)
    several = len(report.languages) > 1
    values = table(("Language", "Measure", "Value") if several else ("Measure", "Value"),
                   [row if several else row[1:] for row in rows]) if rows else NOTHING
    banner = div(f"verdict {tone}", element("strong", f"{words[:1].upper()}{words[1:]}"),
                 paragraph(advice) if advice else NOTHING,
                 paragraph("Not verified here: it is what the model's maker, or an older version of Lisan, reported.",
                           class_="small") if claimed else NOTHING,
                 role="alert" if report.learning.bad else "status")
    return join((banner, element("details", element("summary", "What this was decided from"), values)
                 if rows else NOTHING))


def failing_report(state: JobState) -> LearningReport | None:
    """The last check of a running training, if that check and the one before it found that nothing is learned."""
    if state.verb != "train" or not state.alive:
        return None
    try:
        reports = learning.read_learning(state.job.directory).reports.values()
    except UserError:
        return None
    last = sorted((report for report in reports if report.step > 0), key=lambda report: report.step)[-2:]
    return last[-1] if len(last) == 2 and all(report.learning.bad for report in last) else None


def too_few_steps(state: JobState) -> tuple[int, int] | None:
    """Steps that the time limit of a running training lets it reach, and those planned, if it is less than a third."""
    planned_steps = state.job.settings.get("steps")
    if state.verb != "train" or not state.alive or not state.steps or not isinstance(planned_steps, int):
        return None
    # The step that the time limit allows is estimated from the pace so far.
    reached = time_limited_step(state) or state.steps[-1].total_steps
    return (reached, planned_steps) if planned_steps < ANY_STEPS and 3 * reached < planned_steps else None


def training_alarm(state: JobState) -> Html:
    """A banner for a running training that learns nothing, or that is too short to learn anything."""
    advice = "Press Stop: what is saved stays, and nothing of the base model has changed."
    report = failing_report(state)
    if report:
        words = learning.describe_report(report)
        return div("notice bad", element("strong", f"Two checks in a row failed. {words[:1].upper()}{words[1:]}."),
                   paragraph(learning.advise(report)), paragraph(advice), role="alert", data_alarm="failing")
    steps = too_few_steps(state)
    if steps:
        return div("notice bad", element("strong", f"Too short: about {steps[0]:,} of {steps[1]:,} steps fit into the "
                                                   "time limit."),
                   paragraph(f"With so few the model learns no speech. {advice} Then choose more time."),
                   role="alert", data_alarm="short")
    return NOTHING


def short_outcome(state: JobState) -> str:
    """The result of an ended job in a few words, such as "Hausa: no speech (20 of 20 sentences are silent)"."""
    outcome = learning_of(state)
    words = str((state.result or {}).get("learning_outcome", "")) if outcome else ""
    if outcome is Learning.NOT_MEASURED:
        return f"{words or 'not measured'}: please listen"
    return words or STATUS_TITLES[state.status]


def training_outcome_view(state: JobState) -> Html:
    """The outcome of a training's best checkpoint, or of the last one that was checked while it runs."""
    if state.verb != "train":
        return NOTHING
    claimed = verification.is_trained_elsewhere(state.job.directory)
    if state.status == "finished" and state.result:
        best = state.result.get("best_step")
        return learning_view(learning.read_report(state.job.directory, best if isinstance(best, int) else 0),
                             claimed=claimed)
    try:
        reports = learning.read_learning(state.job.directory).reports.values()
    except UserError:
        return NOTHING
    last = max(reports, key=lambda report: report.step, default=None)
    if last is None:
        return NOTHING
    return join((paragraph(f"Checked at step {last.step}:", class_="small"), learning_view(last, claimed=claimed)))


def readable(text: str) -> str:
    """`text` with job ids replaced by titles and device codes by names; a run's own name stays."""
    titled = _JOB_ID.sub(lambda match: f"“{VERB_TITLES[match[1]]}”", text)
    return _DEVICE.sub(lambda match: DEVICES[match[1]], titled)


def short_id(name: str) -> str:
    """The last part of a generated job id; a name that a person gave is returned whole."""
    return name.rpartition("-")[2] if _JOB_ID.fullmatch(name) else name


def run_name(state: JobState) -> str:
    """A training by the name that a person gave it, extension, dataset and time, else by the last part of its id."""
    settings = state.job.settings
    description = f"{settings.get('extension', '')} on {settings.get('dataset', '')}, {clock(state.job.created)}"
    if _JOB_ID.fullmatch(state.id):
        return f"{state.title}: {description}" if state.title else f"{description} ({short_id(state.id)})"
    return f"{state.title} ({state.id}): {description}" if state.title else f"{state.id}: {description}"


def progress_text(progress: Progress | None) -> str:
    """Such as "120 of 300 clips"."""
    if progress is None:
        return ""
    in_bytes = progress.unit == "bytes"
    counts = [size_text(value) if in_bytes else f"{value:g}" for value in (progress.done, progress.total)
              if value is not None]
    return f"{' of '.join(counts)} {'' if in_bytes else f'{progress.unit} '}{progress.note}".strip()


def current_stage(state: JobState) -> str:
    """The stage that is running; empty when none is."""
    return state.stages[-1].name if state.alive and state.stages and state.stages[-1].seconds is None else ""


def job_title(state: JobState) -> str:
    """The verb's title."""
    return VERB_TITLES[state.verb]


def ended_by_time_limit(state: JobState) -> tuple[int, int] | None:
    """The last step and the planned steps of a training that its time limit ended."""
    if state.verb != "train" or state.status != "finished" or not state.steps:
        return None
    last_step, planned_steps = state.steps[-1].step, state.steps[-1].total_steps
    return (last_step, planned_steps) if last_step < planned_steps else None


def time_limited_step(state: JobState) -> int | None:
    """The step that a training reaches by its time limit at its present speed; None where it can finish."""
    minutes = state.job.settings.get("max_minutes")
    if not (state.verb == "train" and state.steps and state.eta_s is not None and isinstance(minutes, int | float)):
        return None
    last = state.steps[-1]
    by_limit = minutes and last.seconds and abs(last.seconds + state.eta_s - 60 * minutes) < 1
    return round(last.step * (1 + state.eta_s / last.seconds)) if by_limit else None


def status_line(state: JobState) -> str:
    """What the job is doing, or how it ended, in one line."""
    if state.status == "waiting":
        return readable(state.reason)
    if state.status in ("failed", "crashed", "stopped", "skipped"):
        return readable(state.message)
    if state.status == "finished":
        took = f"Took {duration_text(state.seconds)}{f' in {state.attempt} attempts' if state.earlier_s else ''}."
        limit = ended_by_time_limit(state)
        return f"Time limit reached at step {limit[0]} of {limit[1]}. {took}" if limit else took

    if not state.alive:
        return ""
    if state.status == "stopping":
        return _stopping_line(state)

    # A living job shows stage, progress, speed and the time that is left.
    time_left = f"about {duration_text(state.eta_s)} left" if state.eta_s is not None else ""
    last = time_limited_step(state)
    if last is not None:
        time_left += f" until the time limit, at about step {last}"
    in_bytes = state.units_per_s is not None and state.progress is not None and state.progress.unit == "bytes"
    stage = current_stage(state)
    parts = (STAGE_TITLES.get(stage, stage), progress_text(state.progress),
             f"{size_text(state.units_per_s or 0.0)}/s" if in_bytes else "", time_left)
    return ", ".join(part for part in parts if part) or "Starting."


def _stopping_line(state: JobState) -> str:
    stage = current_stage(state)
    if state.verb == "train" and stage in _BEFORE_STEPS:
        title = STAGE_TITLES[stage]
        return f"Stopping after this stage: {title[0].lower()}{title[1:]}."
    progress = progress_text(state.progress)
    if state.verb == "train" and not stage:
        return "Stopping after this step, then saving" + (f" ({progress})." if progress else ".")
    return f"Stopping, {progress}." if progress else "Stopping."


def stop_message(state: JobState) -> str:
    """What a stop does to the job in its present state."""
    if state.status in ("created", "queued", "waiting"):
        return "Removed from the queue."
    if state.verb == "certify":
        return "Stopping. The run can be used; the certificate resumes at the same sentence."
    if state.verb != "train":
        return "Stopping."
    stage = current_stage(state)
    if stage in _BEFORE_STEPS:
        lost = "no step is lost" if state.steps else "nothing was trained yet"
        return f"Stopping when the model is loaded and measured; {lost}."
    return "Stopping after this step; progress is saved."


def last_certificate_time(states: Sequence[JobState], comparable: Callable[[JobState], bool]) -> float | None:
    """Seconds that the newest certificate of a `comparable` training took; `states` newest first."""
    trainings = {f"run:{state.id}": state for state in states if state.verb == "train"}
    for state in states:
        training = trainings.get(str(state.job.settings.get("run", "")).partition("@")[0])
        if state.verb == "certify" and state.status == "finished" and training is not None and comparable(training):
            return sum(stage.seconds or 0.0 for stage in state.stages)
    return None


def certificate_preview(past: float | None) -> str:
    """What the certificate after a training does, and how long it took the last time."""
    took = f"The last one took {duration_text(past)}." if past else (
        "Its duration does not depend on the number of steps; an estimate appears after some sentences.")
    return ("After the training, the certificate: base and trained model synthesize sentences, a recogniser (ASR) "
            f"scores them, and frozen tensors are compared bit by bit. The run can be used meanwhile. {took}")


def certificate_note(state: JobState, past: float | None, trained: bool = False) -> str:
    """A note on the certificate of a training that waits or runs, or of one that is to come or is being computed.

    `trained`: the training of the certificate has finished.
    """
    if not state.alive or state.status == "stopping":
        return ""
    if state.verb == "certify":
        return ("You can use the trained model now. That its other languages are unchanged is not proven yet. This job "
                "waits while you listen or import.") if trained else "Checks that the other languages are unchanged."
    return certificate_preview(past) if state.verb == "train" else ""


def result_fact(name: str, value: object) -> tuple[str, str]:
    """The title and the formatted value of one entry of a job's result."""
    # Error rates are stored by language, with a suffix for those before training.
    kind, _, error_key = name.partition("_")
    title = _RESULT_TITLES.get(name, name.replace("_", " ").capitalize())
    if kind == "error" and error_key:
        language, _, when = error_key.partition("_")  # `error_am` or `error_am_before`
        when = f", {_WHEN.get(when, when)}" if when else ""
        title = f"CER, {language_name(language) if language in NAMES else language}{when}"
    return title, _result_value(name, value)


def _result_value(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "not measured" if name.startswith("error") else "–"
    if not isinstance(value, int | float):
        return (str(value).replace("_", " ") if name == "learning" else str(value)) or "none"
    if name.startswith("error") or name in _SHARES:
        return f"{value:.1%}"
    if name in ("bytes", "bytes_fetched"):
        return size_text(value)
    if name == "megabytes":
        return size_text(value * 1e6)
    if name in _DURATIONS:
        return duration_text(value * _DURATIONS[name])
    if name == "memory_bytes":
        return memory_text(value)
    number = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return f"{number} {_UNITS.get(name, '')}".rstrip()


@cache
def _titles_of_flags() -> Mapping[str, str]:
    """The label of the field on the page by its flag on the command line."""
    titles: dict[str, str] = {}
    # If two verbs share a flag, the verb that comes first in the table names it.
    for verb in reversed(list(VERBS.values())):
        titles.update({flag.name: flag.field.title for flag in flags(verb.options) if flag.field.title})
    return titles


_FLAG = r"--[a-z][\w-]*(?: (?!(?:and|or|with|to|out|leaves|compares)\b)[\w:@./][\w:@./-]*(?<=[\w:@/]))?"
"""A flag, and its value where one follows."""
_FLAGS = rf"{_FLAG}(?: {_FLAG})*"
_COMMAND = r"python -m scripts \w+(?:[^;().]|\.(?!\s|$))*?"
_SAID_TWICE = re.compile(rf"(?<![\w.])(?:{_COMMAND}|{_FLAGS}); on the page: ")
"""What a terminal needs, in front of its words for the page."""
_DRAWER_TAB = re.compile(r"\b(Jobs|Storage|Doctor|Machine) tab\b(?! \()")
_TAB_OR_COMMAND = re.compile(rf"(\b[A-Z]\w+ tab), or {_COMMAND}(?=[;)]|\.\s|\.?$)")


def on_page(text: str) -> str:
    """`text` with the labels of fields and tabs in place of flags and commands, and where the drawer's tabs are.

    Of `COMMAND; on the page: PLACE` and of `PLACE tab, or COMMAND` the place is left.
    """
    def command(match: re.Match[str]) -> str:
        tab = VERBS[match[1]].tab.capitalize() if match[1] in VERBS else ""
        return f"{tab} tab, {match[2].strip()}" if tab and match[2] else f"the {tab} tab" if tab else match[0]

    def fields(match: re.Match[str]) -> str:
        return ", ".join(field(*flag.partition(" ")) for flag in re.findall(_FLAG, match[0]))

    def field(name: str, _space: str, value: str) -> str:
        # A flag that no form has stays as it is.
        title = _titles_of_flags().get(name)
        if title is None:
            return f"{name} {value}".rstrip()
        return f"“{title}”: {value}" if value and not value.isupper() else f"“{title}”"

    if "--" not in text and "scripts " not in text or "torchrun" in text:
        return _DRAWER_TAB.sub(r"\1 tab (under System)", text)
    # Flags are replaced after commands, as these contain flags.
    text = _SAID_TWICE.sub("", text.replace("--resume", "Resume"))
    text = _TAB_OR_COMMAND.sub(r"\1", text)
    text = re.sub(rf"python -m scripts (\w+)((?: {_FLAG})*)", command, text)
    text = re.sub(rf"`?(?<![\w-])({_FLAGS})`?", fields, text)
    return _DRAWER_TAB.sub(r"\1 tab (under System)", text)


def notice(message: object, tone: str = "info", job: str = "") -> Html:
    """One line that says what just happened; one of a living `job` is shown as long as that lives (`living_jobs`)."""
    return div(f"notice {tone}", with_code(message), role="status", data_job=job or None)


def living_jobs(states: Sequence[JobState]) -> Html:
    """A style that hides the notices of jobs that have ended."""
    alive = "".join(f':not([data-job="{state.id}"])' for state in states if state.alive)
    return element("style", Html(f".notices:has(> * .notice[data-job]{alive}) {{ display: none !important; }}"))


def fault(message: str, hint: str = "") -> Html:
    """An error and what to do about it."""
    return div("notice bad", element("strong", with_code(on_page(message))),
               paragraph(with_code(on_page(hint))) if hint else NOTHING, role="alert")


def job_deleted(name: str) -> Html:
    """The error of a chosen job whose folder is missing."""
    return fault(f"Job {name} was deleted.", "Choose another one in the list.")


def empty(message: object) -> Html:
    """The text of an empty place: what appears here, and when."""
    return div("nothing", escape(message))


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """Names and values as tiles."""
    return div("facts", *(div("fact", span("fact-name", name), span("fact-value", value)) for name, value in pairs))


def result_facts(result: Mapping[str, object] | None) -> Html:
    """A job's flat result as tiles."""
    return facts([result_fact(name, value) for name, value in result.items()]) if result else NOTHING


def run_plan(state: JobState) -> Html:
    """What a training changes; of one that has trained and ended, what it changed."""
    trained = state.ended and bool(state.steps)
    return plan(state.plan.lines, "What changed" if trained else "What will change") if state.plan else NOTHING


def plan(lines: Sequence[str], title: str = "What will change") -> Html:
    """What a job will do."""
    if not lines:
        return NOTHING
    return div("plan", element("strong", title), element("ul", *(element("li", with_code(line)) for line in lines)))


def warnings(messages: Sequence[str]) -> Html:
    """The first six warnings, and the number of the others."""
    if not messages:
        return NOTHING
    items = [element("li", with_code(on_page(message))) for message in messages[:6]]
    if len(messages) > 6:
        items.append(element("li", f"and {len(messages) - 6} more, in the log"))
    return element("ul", *items, class_="warnings")


def log(text: str) -> Html:
    """The tail of a log. The style sheet keeps it at its end, where the newest lines are."""
    return div("log-box", element("pre", text.strip() or "The log is empty.", class_="log"), tabindex=0, role="region",
               aria_label="Log, the newest line last")


def level_badge(level: str) -> Html:
    """The level of a finding."""
    return span(f"badge {'bad' if level == 'error' else 'wait'}", level)


def error_badge(error: float | None) -> Html:
    """A clip's character error rate, coloured by its height."""
    if error is None:
        return NOTHING
    tone = "good" if error <= 0.2 else "wait" if error <= 0.5 else "bad"
    return span(f"badge {tone}", f"CER {error:.0%}", title="Character error rate")


def badge(state: JobState) -> Html:
    """The status of a job."""
    return span(f"badge {status_tone(state)}", status_title(state))


def progress_share(state: JobState) -> float | None:
    """0 to 1, or None where it is unknown. A training is measured by its steps."""
    limit = ended_by_time_limit(state)
    if limit:
        return limit[0] / limit[1]
    if state.status == "finished":
        return 1.0
    if state.verb == "train" and state.steps:
        last = state.steps[-1]
        return min(1.0, last.step / max(1, time_limited_step(state) or last.total_steps))
    progress = state.progress
    if progress is None or not progress.total:
        return None
    return min(1.0, progress.done / progress.total)


def bar(state: JobState) -> Html:
    """A progress bar of what was reported; unknown progress is shown as unknown."""
    share = progress_share(state)
    if share is None:
        return div("bar unknown" if state.alive else "bar", span("fill", style="width:0"))
    return div("bar", span(f"fill {status_tone(state)}", style=f"width:{share:.1%}"), role="progressbar",
               aria_label=job_title(state), aria_valuenow=f"{share * 100:.0f}", aria_valuemin="0", aria_valuemax="100")


def job_card(state: JobState, title: object = None, note: str = "") -> Html:
    """A job as a card: title, status, progress, `note`, warnings and failure."""
    return div(
        "card job",
        div("ends", element("strong", title or job_title(state)), badge(state)), about(state),
        bar(state), _status_paragraph(state), paragraph(note, class_="small") if note else NOTHING,
        warnings(state.warnings), failure(state),
    )


def titled_subject(state: JobState) -> str:
    """What a job is about, with the titles of models."""
    return with_titles(state.job.workspace, subject(state))


def about(state: JobState) -> Html:
    """What a job is about: its language, and the names of what it reads and makes."""
    text = titled_subject(state)
    return paragraph(text, class_="small about") if text else NOTHING


def _status_paragraph(state: JobState) -> Html:
    """Nothing for a failed job: `failure` shows its message."""
    return NOTHING if state.status in ("failed", "crashed") else paragraph(with_code(status_line(state)), class_="now")


def failure(state: JobState) -> Html:
    """The message, hint and traceback of a job that failed."""
    if state.status not in ("failed", "crashed"):
        return NOTHING
    trace = (element("details", element("summary", "Traceback"), element("pre", state.traceback))
             if state.traceback else NOTHING)
    return div("notice bad", element("strong", with_code(on_page(readable(state.message)))),
               paragraph(with_code(on_page(readable(state.hint)))), trace, role="alert")


def chain_view(states: Sequence[JobState], notes: Mapping[str, str] | None = None,
               buttons: Mapping[str, Html] | None = None) -> Html:
    """Jobs that follow each other as numbered steps; `notes` and `buttons` by job id. Only the first skipped job says
    why.
    """
    first_skipped = next((state for state in states if state.status == "skipped"), None)
    items = []
    for number, state in enumerate(states, 1):
        note = (notes or {}).get(state.id, "")
        mark = {"finished": "✓", "failed": "!", "crashed": "!"}.get(state.status, str(number))
        mark = "!" if learned_nothing(state) else mark
        show_bar = ended_by_time_limit(state) or state.status in ("running", "stopping") or (
            state.alive and state.progress)
        repeats = state.status == "skipped" and state is not first_skipped
        items.append(element(
            "li", span("mark", mark),
            div("step", div("ends", element("strong", job_title(state)), badge(state)), about(state),
                bar(state) if show_bar else NOTHING, NOTHING if repeats else _status_paragraph(state),
                training_alarm(state), failure(state), _folded_warnings(state),
                _outcome(state), paragraph(note, class_="small") if note else NOTHING,
                (buttons or {}).get(state.id, NOTHING)),
            class_=f"link {status_tone(state)}",
        ))
    return element("ol", *items, class_="chain")


def _outcome(state: JobState) -> Html:
    """What a finished training taught, in words; for a bad outcome with what to do."""
    words = str((state.result or {}).get("learning_outcome", "")) if state.verb == "train" else ""
    if not words or learning_of(state) is None:
        return NOTHING
    if not learned_nothing(state):
        return paragraph(f"{words}.", class_="small")
    best = (state.result or {}).get("best_step")
    advice = learning.advise(learning.read_report(state.job.directory, best if isinstance(best, int) else 0))
    return div("notice bad", element("strong", f"{words}."), paragraph(advice) if advice else NOTHING, role="alert")


def _folded_warnings(state: JobState) -> Html:
    """The warnings of a job, folded away behind their number."""
    if not state.warnings:
        return NOTHING
    return element("details", element("summary", pluralize(len(state.warnings), "warning")), warnings(state.warnings))


def queue_view(states: Sequence[JobState], limit: int = 60) -> Html:
    """Living jobs by device, in the order of the queue; of each device the first `limit`."""
    if not states:
        return empty("No job is running. Each device runs one job at a time; the others wait here.")
    cards = []
    for device in sorted({state.job.device for state in states}):
        title = "No device needed" if device == NO_DEVICE else f"On {DEVICES.get(device, device)}"
        device_jobs = [state for state in states if state.job.device == device]
        cards.append(div("card", element("h2", title), table(
            ("Position", "Job", "About", "Status", "Progress", "Id"),
            [(position, job_title(state), titled_subject(state), badge(state), status_line(state),
              span("id", state.id))
             for position, state in enumerate(device_jobs[:limit], 1)]),
            paragraph(f"{len(device_jobs) - limit} more wait behind them.") if len(device_jobs) > limit else NOTHING))
    return join(cards)


def damaged_view(damaged: Mapping[str, str], title: str) -> Html:
    """Folders that cannot be read, with the reason."""
    if not damaged:
        return NOTHING
    rows = [(span("id", name), reason) for name, reason in list(damaged.items())[:60]]
    remark = paragraph(f"{len(damaged) - 60} more are not shown.", class_="small") if len(damaged) > 60 else NOTHING
    return join((element("h2", title), table(("Damaged", "Reason"), rows), remark))


def history_view(states: Sequence[JobState], limit: int = 60) -> Html:
    """All jobs, newest first; status and time of a finished job need no further outcome."""
    if not states:
        return empty("No jobs in this workspace yet.")
    rows = []
    for state in states[:limit]:
        # The status says everything about an ordinary job.
        plain = state.alive or (state.status == "finished" and not ended_by_time_limit(state))
        outcome = str((state.result or {}).get("learning_outcome", "")) if learning_of(state) else ""
        line = ". ".join(filter(None, (outcome, "" if plain else status_line(state))))
        rows.append((VERB_TITLES[state.verb], titled_subject(state), badge(state), clock(state.job.created),
                     duration_text(state.seconds) if state.started_at else "–",
                     with_code(line), span("id", state.id)))
    remark = paragraph(f"{len(states) - limit} older jobs are not shown.") if len(states) > limit else NOTHING
    return join((table(("Job", "About", "Status", "Created", "Time", "Outcome", "Id"), rows), remark))
