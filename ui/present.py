"""Jobs in plain words: states, numbers, faults and lists as HTML. Pure functions, without Gradio."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from config.languages import language_name as language_name
from core.job.journal import Progress
from core.job.state import JobState
from ui.facts import fact
from ui.markup import NOTHING, Html, div, element, escape, join, paragraph, span, table

VERB_TITLES: Mapping[str, str] = {
    "download": "Get the base model", "prepare": "Prepare the data", "tokenizer": "Learn the letters",
    "extend": "Make room for them", "train": "Practise speaking", "preflight": "Check first", "synthesize": "Speak",
    "compare": "Speak side by side", "export": "Export", "push": "Push to the hub",
    "doctor": "Examine a model", "lab": "Compare tokenizers",
    "revise": "Save the reviewed dataset", "segment": "Cut long recordings",
    "transcribe": "Write down what is said", "align": "Align a text",
}
STATUS_WORDS: Mapping[str, str] = {
    "created": "not started", "queued": "starting", "waiting": "waiting", "running": "running",
    "stopping": "stopping", "finished": "finished", "stopped": "stopped", "failed": "failed", "crashed": "crashed",
    "skipped": "not started",
}
STAGE_WORDS: Mapping[str, str] = {"certificate": "Making the certificate"}
_STATUS_TONE = {"finished": "good", "failed": "bad", "crashed": "bad", "running": "busy", "stopping": "busy",
                "queued": "busy", "waiting": "wait", "stopped": "wait", "created": "wait",
                "skipped": "wait"}


def duration(seconds: float | None) -> str:
    """Such as "8 s", "3 min 20 s" or "2 h 5 min"."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def percent(share: float | None) -> str:
    """An error or a share, such as "12.4%"; a dash when it was not measured."""
    return "–" if share is None or not math.isfinite(share) else f"{share:.1%}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:.0f} bytes"


def clock(moment: float | None) -> str:
    """Local time of day, with the date when it is not today."""
    if moment is None:
        return "–"
    then = time.localtime(moment)
    today = time.strftime("%Y%m%d") == time.strftime("%Y%m%d", then)
    return time.strftime("%H:%M" if today else "%d %b %H:%M", then)


def badge(state: JobState) -> Html:
    """The status as a small coloured word."""
    return span(f"badge {_STATUS_TONE[state.status]}", STATUS_WORDS[state.status])


def notice(message: object, tone: str = "info") -> Html:
    """One line that says what just happened."""
    return div(f"notice {tone}", escape(message), role="status")


def gone(name: str) -> Html:
    """That a job which is looked at was deleted."""
    return fault(f"The job {name} is gone: its folder was deleted.", "Choose another one in the list.")


def fault(message: str, hint: str = "") -> Html:
    """What is wrong, and the way out."""
    return div("notice bad", element("strong", message), paragraph(hint) if hint else NOTHING, role="alert")


def empty(message: object) -> Html:
    """What an empty place says: what will be here, and how to get it."""
    return div("nothing", escape(message))


def progress_words(progress: Progress | None) -> str:
    """Such as "120 of 300 clips"."""
    if progress is None:
        return ""
    in_bytes = progress.unit == "bytes"
    done = size(progress.done) if in_bytes else f"{progress.done:g}"
    if progress.total is None:
        return f"{done} {'' if in_bytes else progress.unit} {progress.note}".strip()
    total = size(progress.total) if in_bytes else f"{progress.total:g} {progress.unit}"
    return f"{done} of {total} {progress.note}".strip()


def progress_share(state: JobState) -> float | None:
    """0 to 1, or None where it cannot be known. A training is measured by its steps until it is certified."""
    if cut := cut_short(state):
        return cut[0] / cut[1]
    if state.status == "finished":
        return 1.0
    if state.verb == "train" and state.steps and _open_stage(state) != "certificate":
        return state.steps[-1].step / max(1, state.steps[-1].total_steps)
    progress = state.progress
    if progress is None or not progress.total:
        return None
    return min(1.0, progress.done / progress.total)


def bar(state: JobState) -> Html:
    """How far the job is. Only what was reported is drawn; unknown is shown as unknown."""
    share = progress_share(state)
    if share is None:
        return div("bar unknown" if state.alive else "bar", span("fill", style="width:0"))
    return div("bar", span(f"fill {_STATUS_TONE[state.status]}", style=f"width:{share:.1%}"),
               role="progressbar", aria_valuenow=f"{share * 100:.0f}", aria_valuemin="0", aria_valuemax="100")


def _open_stage(state: JobState) -> str:
    """The part of the work that is being done; empty when none was named."""
    return state.stages[-1].name if state.alive and state.stages and state.stages[-1].seconds is None else ""


def cut_short(state: JobState) -> tuple[int, int] | None:
    """The last step and the steps that were asked for, of a training that its time limit ended."""
    if state.verb != "train" or state.status != "finished" or not state.steps:
        return None
    done, wanted = state.steps[-1].step, state.steps[-1].total_steps
    return (done, wanted) if done < wanted else None


def title_of(state: JobState) -> str:
    """What the job does; a training that is certified says so."""
    if state.verb == "train" and _open_stage(state) == "certificate":
        return "Prove what it can say"
    return VERB_TITLES[state.verb]


def now_line(state: JobState) -> str:
    """What the job does at this moment, in one line."""
    if state.status == "waiting":
        return state.reason
    if state.status in ("failed", "crashed", "stopped", "skipped"):
        return state.message
    if state.status == "finished":
        took = f"Took {duration(state.seconds)}."
        cut = cut_short(state)
        return f"Ended by the time limit at step {cut[0]} of {cut[1]}. {took}" if cut else took
    if not state.alive:
        return ""
    stage = _open_stage(state)
    left = f"about {duration(state.eta_s)} left" if state.eta_s is not None else ""
    words = (STAGE_WORDS.get(stage, stage), progress_words(state.progress), _rate_words(state), left)
    return ", ".join(part for part in words if part) or "Starting."


def _rate_words(state: JobState) -> str:
    """How fast bytes come; other work is told by the time that is left."""
    if state.rate is None or state.progress is None or state.progress.unit != "bytes":
        return ""
    return f"{size(state.rate)}/s"


def job_card(state: JobState, title: str | None = None) -> Html:
    """A job as a card: what it is, how far, and what went wrong."""
    return div(
        "card job",
        div("ends", element("strong", title or title_of(state)), badge(state)),
        bar(state), _now(state), warnings(state.warnings), ending(state),
    )


def _now(state: JobState) -> Html:
    """The line of the moment; a failure is told by `ending`, once."""
    return NOTHING if state.status in ("failed", "crashed") else paragraph(now_line(state), class_="now")


def warnings(messages: Sequence[str]) -> Html:
    """Warnings in full while they are few, counted when they are many."""
    if not messages:
        return NOTHING
    items = [element("li", message) for message in messages[:6]]
    if len(messages) > 6:
        items.append(element("li", f"and {len(messages) - 6} more, in the log"))
    return element("ul", *items, class_="warnings")


def ending(state: JobState) -> Html:
    """The failure with its hint and traceback; nothing for a job that did not fail."""
    if state.status not in ("failed", "crashed"):
        return NOTHING
    trace = (element("details", element("summary", "Traceback"), element("pre", state.traceback))
             if state.traceback else NOTHING)
    return div("notice bad", element("strong", state.message), paragraph(state.hint), trace, role="alert")


def log(text: str) -> Html:
    """The tail of a log."""
    return element("pre", text.strip() or "The log is empty.", class_="log")


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """Numbers with their names, in tiles."""
    return div("facts", *(div("fact", span("fact-name", name), span("fact-value", value)) for name, value in pairs))


def result_facts(result: Mapping[str, object] | None) -> Html:
    """A job's flat result, as it was reported."""
    if not result:
        return NOTHING
    return facts([fact(name, value) for name, value in result.items()])


def plan(lines: Sequence[str], title: str = "What will change") -> Html:
    """What will be done, said before the start."""
    if not lines:
        return NOTHING
    return div("plan", element("strong", title), element("ul", *(element("li", line) for line in lines)))


def chain(states: Sequence[JobState]) -> Html:
    """Jobs that follow each other, as steps."""
    why = next((state for state in states if state.status == "skipped"), None)  # told once, at the first
    return element("ol", *(_link(number, state, told=state.status == "skipped" and state is not why)
                           for number, state in enumerate(states, 1)), class_="chain")


def _link(number: int, state: JobState, *, told: bool) -> Html:
    tone = _STATUS_TONE[state.status]
    mark = {"finished": "✓", "failed": "!", "crashed": "!"}.get(state.status, str(number))
    show_bar = cut_short(state) or state.status in ("running", "stopping") or (state.alive and state.progress)
    return element(
        "li", span("mark", mark),
        div("step", div("ends", element("strong", title_of(state)), badge(state)),
            bar(state) if show_bar else NOTHING, NOTHING if told else _now(state), ending(state)),
        class_=f"link {tone}",
    )


def queue(states: Sequence[JobState]) -> Html:
    """Living jobs by device, in the order in which they get it."""
    if not states:
        return empty("Nothing is running. Jobs wait here when a device is busy: one job at a time on each.")
    devices = sorted({state.job.device for state in states})
    return join(
        div("card", element("h4", "No device needed" if device == "none" else f"Device {device}"),
            table(("Place", "Job", "State", "Now"),
                  [(place, state.id, badge(state), now_line(state)) for place, state in enumerate(
                      (state for state in states if state.job.device == device), 1)]))
        for device in devices
    )


def history(states: Sequence[JobState], most: int = 60) -> Html:
    """All jobs, newest first."""
    if not states:
        return empty("No job has run in this workspace yet.")
    rows = [
        (state.id, VERB_TITLES[state.verb], badge(state), clock(state.job.created),
         duration(state.seconds) if state.started_at else "–", now_line(state) if not state.alive else "")
        for state in states[:most]
    ]
    more = paragraph(f"{len(states) - most} older jobs are not listed.") if len(states) > most else NOTHING
    return join((table(("Job", "What", "State", "Made", "Took", "Outcome"), rows), more))


def table_of(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """A table of ready cells."""
    return table(head, rows)


def yes_no(good: bool, yes: str = "yes", no: str = "no") -> Html:
    """A verdict in green or red."""
    return span("badge good" if good else "badge bad", yes if good else no)


def tone_word(level: str) -> Html:
    """The level of a finding as a badge."""
    return span(f"badge {'bad' if level == 'error' else 'wait'}", level)
