"""Jobs tab: the queue by device, a job's details and log, the history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import gradio as gr

from core.jobs import checkpoint_names, control
from core.jobs.directory import NO_DEVICE, load_job
from core.jobs.queue import Direction, move_in_queue
from core.jobs.state import JobState, queue_order
from ui import job_views, verb_form
from ui.live import View
from ui.markup import NOTHING, Html, element, join, shortened
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header("Jobs", "Each job is a separate process: it continues when you close or reload this page or "
                         "restart the app.")
    queue = gr.HTML(elem_id="queue")
    page.live.panel(queue, lambda view: job_views.queue_view(
        queue_order([job for job in view.jobs if job.alive])), "jobs")
    gr.HTML(element("h3", "Job details"))
    with gr.Row(elem_classes="controls"):
        chosen = gr.Dropdown([], label="Job", elem_id="job-choice", scale=4)
        stop = gr.Button("Stop", size="md", scale=0, min_width=110)
        force = gr.Button("Force stop", variant="stop", size="md", scale=0, min_width=110)
        resume = gr.Button("Resume", size="md", scale=0, min_width=110)
        earlier = gr.Button("Move up", size="md", scale=0, min_width=110, elem_id="job-earlier")
        later = gr.Button("Move down", size="md", scale=0, min_width=110, elem_id="job-later")
    notice = gr.HTML(elem_classes="notices")
    detail = gr.HTML(elem_id="job-detail")
    gr.HTML(element("h3", "History"))
    history = gr.HTML(elem_id="history")
    page.live.panel(history, lambda view: job_views.history_view(view.jobs), "jobs")
    page.live.watch("job", chosen)
    page.live.panel(chosen, job_choices, "jobs")
    page.live.panel(detail, job_detail, "jobs")

    def visible_when(view: View, test: Callable[[JobState], bool]) -> object:
        state = view.selected_job("job")
        return gr.update(visible=state is not None and test(state))

    def movable(state: JobState) -> bool:
        return state.status == "waiting" and state.job.device != NO_DEVICE

    for button, test in ((stop, lambda job: job.alive), (force, lambda job: job.status == "stopping"),
                         (resume, lambda job: job.resumable), (earlier, movable), (later, movable)):
        page.live.panel(button, partial(visible_when, test=test), "jobs")
    page.on(stop.click, lambda name: stop_job(page, name), [chosen], [notice])
    page.on(force.click, lambda name: force_job(page, name), [chosen], [notice])
    page.on(resume.click, lambda name: resume_job(page, name), [chosen], [notice])
    page.on(earlier.click, lambda name: move_job(page, name, "earlier"), [chosen], [notice])
    page.on(later.click, lambda name: move_job(page, name, "later"), [chosen], [notice])


def job_choices(view: View) -> object:
    """All jobs; when none is chosen, a living one, else the newest."""
    titles = {job.id: f"{job_views.clock(job.job.created)} {job_views.VERB_TITLES[job.verb]} "
              f"({job_views.short_id(job.id)})" for job in view.jobs}
    return gr.update(**view.choices("job", titles, view.selected_job("job")))


def job_detail(view: View) -> Html:
    """Status, options, result and log of the chosen job."""
    state = view.selected_job("job")
    if deleted := view.deleted("job"):
        return job_views.job_deleted(deleted)
    if state is None:
        return job_views.empty("No jobs yet. Start one on any tab.")
    options = [(name, shortened(str(value))) for name, value in state.job.settings.items()]
    return join((
        job_views.job_card(state), job_views.result_facts(state.result),
        element("details", element("summary", "Options"), job_views.facts(options)),
        element("h4", "Log"), job_views.log(control.log_tail(state.job, 16_384)),
    ))


def stop_job(page: Page, name: str) -> Sequence[object]:
    """Ask a job to finish its step, save and end."""
    job = load_job(page.workspace, name)
    message = job_views.stop_message(control.read_state(job))
    control.stop(job)
    return [job_views.notice(message)]


def force_job(page: Page, name: str) -> Sequence[object]:
    """Kill a job's process."""
    job = load_job(page.workspace, name)
    control.force_stop(job)
    return [job_views.notice(f"Force-stopped. {checkpoint_names.resume_point(job)}")]


def move_job(page: Page, name: str, direction: Direction) -> Sequence[object]:
    """Move a waiting job in the queue of its device."""
    move_in_queue(page.live.board.queue(), name, direction)
    return [NOTHING]


def resume_job(page: Page, name: str) -> Sequence[object]:
    """Resume a job, and the jobs that waited for it and were skipped."""
    job = load_job(page.workspace, name)
    resumed = control.resume_with_dependents(job, page.live.board.states())
    more = f" {len(resumed) - 1} jobs that waited for it are queued again." if len(resumed) > 1 else ""
    return [job_views.notice(checkpoint_names.resume_point(job) + more)]
