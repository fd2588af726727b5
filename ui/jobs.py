"""Jobs tab: the queue by device, the history, and a job's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gradio as gr

from core import jobs
from core.job import kept, places
from core.job.directory import NO_DEVICE
from core.job.state import JobState
from ui import job_views
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, shortened
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    gr.HTML(div("lead", element("h2", "Jobs"), paragraph(
        "Each piece of work is a process of its own. Close this page, reload it or restart the app: "
        "the work goes on, and this list shows the same.")))
    queue = gr.HTML(elem_id="queue")
    page.live.panel(queue, lambda view: job_views.queue_view(places.in_order([job for job in view.jobs if job.alive])),
                    "jobs")
    gr.HTML(element("h3", "Look into one"))
    with gr.Row(elem_classes="controls"):
        chosen = gr.Dropdown([], label="Job", elem_id="job-choice", scale=4)
        stop = gr.Button("Stop", size="md", scale=0, min_width=110)
        force = gr.Button("Force stop", variant="stop", size="md", scale=0, min_width=110)
        resume = gr.Button("Continue", size="md", scale=0, min_width=110)
        earlier = gr.Button("Earlier", size="md", scale=0, min_width=110, elem_id="job-earlier")
        later = gr.Button("Later", size="md", scale=0, min_width=110, elem_id="job-later")
    notice = gr.HTML(elem_classes="notices")
    detail = gr.HTML(elem_id="job-detail")
    gr.HTML(element("h3", "History"))
    history = gr.HTML(elem_id="history")
    page.live.panel(history, lambda view: job_views.history_view(view.jobs), "jobs")
    page.live.watch("job", chosen)
    page.live.panel(chosen, job_choices, "jobs")
    page.live.panel(detail, job_detail, "jobs")
    for button, shown in ((stop, lambda job: job.alive), (force, lambda job: job.status == "stopping"),
                          (resume, lambda job: job.resumable), (earlier, _waits), (later, _waits)):
        page.live.panel(button, _visible_when(shown), "jobs")
    page.on(stop.click, lambda name: stop_job(page, name), [chosen], [notice])
    page.on(force.click, lambda name: force_job(page, name), [chosen], [notice])
    page.on(resume.click, lambda name: resume_job(page, name), [chosen], [notice])
    page.on(earlier.click, lambda name: move_job(page, name, "earlier"), [chosen], [notice])
    page.on(later.click, lambda name: move_job(page, name, "later"), [chosen], [notice])


def _chosen(view: View) -> JobState | None:
    return view.selected_job("job")


def job_choices(view: View) -> object:
    """All jobs to choose from, by what they do; when none is chosen, one that lives, else the newest."""
    titles = {job.id: f"{job_views.clock(job.job.created)} {job_views.VERB_TITLES[job.verb]} "
                      f"({job_views.short_id(job.id)})"
              for job in view.jobs}
    return gr.update(**view.choices("job", titles, _chosen(view)))


def _waits(state: JobState) -> bool:
    return state.status == "waiting" and state.job.device != NO_DEVICE


def _visible_when(shown: Callable[[JobState], bool]) -> Callable[[View], object]:
    def render(view: View) -> object:
        job = _chosen(view)
        return gr.update(visible=job is not None and shown(job))

    return render


def job_detail(view: View) -> Html:
    """State, options, result and log of the chosen job."""
    state = _chosen(view)
    if gone := view.deleted("job"):
        return job_views.job_deleted(gone)
    if state is None:
        return job_views.empty("Start something, and it appears here.")
    options = [(name, shortened(str(value))) for name, value in state.job.settings.items()]
    return join((
        job_views.job_card(state), job_views.result_facts(state.result),
        element("details", element("summary", "Options, as they were when it was queued"), job_views.facts(options)),
        element("h4", "Log"), job_views.log(jobs.log_tail(state.job, 16_384)),
    ))


def stop_job(page: Page, name: str) -> Sequence[object]:
    """Ask a job to finish its step, save and end."""
    job = jobs.load(page.workspace, name)
    told = job_views.stop_message(jobs.state(job))
    jobs.stop(job)
    return [job_views.notice(told)]


def force_job(page: Page, name: str) -> Sequence[object]:
    """End a job's process now."""
    job = jobs.load(page.workspace, name)
    jobs.force_stop(job)
    return [job_views.notice(f"Stopped by force. {kept.words(job)}")]


def move_job(page: Page, name: str, direction: places.Direction) -> Sequence[object]:
    """Give a waiting job another place in the queue of its device."""
    places.move(page.live.board.queue(), name, direction)
    return [NOTHING]


def resume_job(page: Page, name: str) -> Sequence[object]:
    """Go on with a job."""
    job = jobs.load(page.workspace, name)
    resumed = jobs.resume_with_next(job, page.live.board.states())
    more = f" {len(resumed) - 1} more that waited for it go on after it." if len(resumed) > 1 else ""
    return [job_views.notice(kept.words(job) + more)]
