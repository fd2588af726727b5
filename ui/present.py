"""Jobs in plain words: states, numbers, faults and lists as HTML. Pure functions, without Gradio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from config.languages import language_name as language_name
from core.jobs.state import JobState
from ui.facts import fact
from ui.markup import NOTHING, Html, div, element, escape, join, paragraph, span, table
from ui.words import STATUS_WORDS as STATUS_WORDS
from ui.words import VERB_TITLES as VERB_TITLES
from ui.words import clock as clock
from ui.words import cut_short as cut_short
from ui.words import device_title, limited_to, named, open_stage
from ui.words import duration as duration
from ui.words import now_line as now_line
from ui.words import percent as percent
from ui.words import progress_words as progress_words
from ui.words import run_name as run_name
from ui.words import short_id as short_id
from ui.words import size as size
from ui.words import stop_words as stop_words
from ui.words import title_of as title_of

_STATUS_TONE = {"finished": "good", "failed": "bad", "crashed": "bad", "running": "busy", "stopping": "busy",
                "queued": "busy", "waiting": "wait", "stopped": "wait", "created": "wait",
                "skipped": "wait"}


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


def progress_share(state: JobState) -> float | None:
    """0 to 1, or None where it cannot be known. A training is measured by its steps until it is certified."""
    if cut := cut_short(state):
        return cut[0] / cut[1]
    if state.status == "finished":
        return 1.0
    if state.verb == "train" and state.steps and open_stage(state) != "certificate":
        last = state.steps[-1]
        return min(1.0, last.step / max(1, limited_to(state) or last.total_steps))
    progress = state.progress
    if progress is None or not progress.total:
        return None
    return min(1.0, progress.done / progress.total)


def bar(state: JobState) -> Html:
    """How far the job is. Only what was reported is drawn; unknown is shown as unknown."""
    share = progress_share(state)
    if share is None:
        return div("bar unknown" if state.alive else "bar", span("fill", style="width:0"))
    return div("bar", span(f"fill {_STATUS_TONE[state.status]}", style=f"width:{share:.1%}"), role="progressbar",
               aria_label=title_of(state), aria_valuenow=f"{share * 100:.0f}", aria_valuemin="0", aria_valuemax="100")


def job_card(state: JobState, title: object = None, note: str = "") -> Html:
    """A job as a card: what it is, how far, and what went wrong; `note` is told beside how far."""
    return div(
        "card job",
        div("ends", element("strong", title or title_of(state)), badge(state)),
        bar(state), _now(state), paragraph(note, class_="small") if note else NOTHING, warnings(state.warnings),
        ending(state),
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
    return div("notice bad", element("strong", named(state.message)), paragraph(named(state.hint)), trace, role="alert")


def log(text: str) -> Html:
    """The tail of a log. The style sheet keeps it at its end, where the newest lines are."""
    return div("log-box", element("pre", text.strip() or "The log is empty.", class_="log"), tabindex=0, role="region",
               aria_label="Log, the newest line last")


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


def chain(states: Sequence[JobState], notes: Mapping[str, str] | None = None) -> Html:
    """Jobs that follow each other, as steps; under some of them a note, by the job's id."""
    why = next((state for state in states if state.status == "skipped"), None)  # told once, at the first
    links = (_link(number, state, (notes or {}).get(state.id, ""), told=state.status == "skipped" and state is not why)
             for number, state in enumerate(states, 1))
    return element("ol", *links, class_="chain")


def _link(number: int, state: JobState, note: str, *, told: bool) -> Html:
    tone = _STATUS_TONE[state.status]
    mark = {"finished": "✓", "failed": "!", "crashed": "!"}.get(state.status, str(number))
    show_bar = cut_short(state) or state.status in ("running", "stopping") or (state.alive and state.progress)
    return element(
        "li", span("mark", mark),
        div("step", div("ends", element("strong", title_of(state)), badge(state)),
            bar(state) if show_bar else NOTHING, NOTHING if told else _now(state), ending(state),
            paragraph(note, class_="small") if note else NOTHING),
        class_=f"link {tone}",
    )


def queue(states: Sequence[JobState]) -> Html:
    """Living jobs by device, in the order in which they get it."""
    if not states:
        return empty("Nothing is running. Jobs wait here when a device is busy: one job at a time on each.")
    devices = sorted({state.job.device for state in states})
    return join(
        div("card", element("h4", device_title(device)),
            table(("Place", "What", "State", "Now", "Job"),
                  [(place, title_of(state), badge(state), now_line(state), _id(state)) for place, state in enumerate(
                      (state for state in states if state.job.device == device), 1)]))
        for device in devices
    )


def history(states: Sequence[JobState], most: int = 60) -> Html:
    """All jobs, newest first."""
    if not states:
        return empty("No job has run in this workspace yet.")
    rows = [
        (VERB_TITLES[state.verb], badge(state), clock(state.job.created),
         duration(state.seconds) if state.started_at else "–", _outcome(state), _id(state))
        for state in states[:most]
    ]
    more = paragraph(f"{len(states) - most} older jobs are not listed.") if len(states) > most else NOTHING
    return join((table(("What", "State", "Made", "Took", "Outcome", "Job"), rows), more))


def _id(state: JobState) -> Html:
    """As commands want it."""
    return span("id", state.id)


def _outcome(state: JobState) -> str:
    """What came of a job that ended, where its state and its time do not say it."""
    return "" if state.alive or (state.status == "finished" and not cut_short(state)) else now_line(state)


def table_of(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """A table of ready cells."""
    return table(head, rows)


def yes_no(good: bool, yes: str = "yes", no: str = "no") -> Html:
    """A verdict in green or red."""
    return span("badge good" if good else "badge bad", yes if good else no)


def tone_word(level: str) -> Html:
    """The level of a finding as a badge."""
    return span(f"badge {'bad' if level == 'error' else 'wait'}", level)
