"""Jobs, in the drawer: the queue by device, a job's details and log, the history."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import gradio as gr

from core.jobs import control
from core.jobs.job import NO_DEVICE
from core.jobs.queue import Direction, move_in_queue
from core.jobs.state import JobState, queue_order
from core.sources.downloader import public_name
from ui import job_views, verb_form
from ui.live import View
from ui.markup import NOTHING, Html, element, join, shortened
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.drawer_header("Jobs", "Each job is a separate process: it continues when you close or reload this page "
                            "or restart the app.")
    queue = gr.HTML(elem_id="queue")
    page.live.panel(queue, lambda view: job_views.queue_view(
        queue_order(view.alive)), "jobs")
    gr.HTML(element("h2", "Job details"))
    with gr.Row(elem_classes="controls"):
        chosen = gr.Dropdown([], label="Job", elem_id="job-choice", scale=4)
        stop = gr.Button("Stop", size="md", scale=0, min_width=110)
        force = gr.Button("Force stop", variant="stop", size="md", scale=0, min_width=110)
        resume = gr.Button("Resume", size="md", scale=0, min_width=110)
        earlier = gr.Button("Move up", size="md", scale=0, min_width=110, elem_id="job-earlier")
        later = gr.Button("Move down", size="md", scale=0, min_width=110, elem_id="job-later")
    notice = gr.HTML(elem_classes="notices")
    verb_form.build_rename(page, chosen, "job")
    detail = gr.HTML(elem_id="job-detail")
    gr.HTML(element("h2", "History"))
    history = gr.HTML(elem_id="history")

    page.live.panel(history, lambda view: join((
        job_views.history_view(view.jobs),
        job_views.damaged_view(page.live.board.damaged, "Runs that cannot be read"))), "jobs")

    # The details and the buttons follow the chosen job.
    page.live.watch("job", chosen)
    page.live.panel(chosen, job_choices, "jobs")
    page.live.panel(detail, job_detail, "jobs")

    def movable(state: JobState) -> bool:
        return state.status == "waiting" and state.job.device != NO_DEVICE

    for button, test, action in (
        (stop, lambda job: job.alive, page.stop), (force, lambda job: job.status == "stopping", page.force_stop),
        (resume, lambda job: job.resumable, page.resume), (earlier, movable, partial(move_job, page, "earlier")),
        (later, movable, partial(move_job, page, "later")),
    ):
        page.live.show_when(button, lambda view: view.selected_job("job"), test, "jobs")
        page.on(button.click, action, [chosen], [notice])


def job_choices(view: View) -> object:
    """All jobs; when none is chosen, a living one, else the newest."""
    titles = {job.id: f"{job_views.clock(job.job.created)} {job_views.VERB_TITLES[job.verb]} "
              f"{shortened(job_views.titled_subject(job), 60)} ({job_views.short_id(job.id)})" for job in view.jobs}
    return gr.update(**view.choices("job", titles, view.selected_job("job")))


def job_detail(view: View) -> Html:
    """Status, options, result and log of the chosen job."""
    state = view.selected_job("job")
    deleted = view.deleted("job")
    if deleted:
        return job_views.job_deleted(deleted)
    if state is None:
        return job_views.empty("No jobs yet. Start one on any tab.")
    options = [(name, shortened(public_name(str(value)))) for name, value in state.job.settings.items()]
    return join((
        job_views.job_card(state), job_views.training_outcome_view(state), job_views.result_facts(state.result),
        element("details", element("summary", "Options"), job_views.facts(options)),
        element("h3", "Log"), job_views.log(control.log_tail(state.job, 16_384)),
    ))


def move_job(page: Page, direction: Direction, name: str) -> Sequence[object]:
    """Move a waiting job in the queue of its device."""
    move_in_queue(page.live.board.queue(), name, direction)
    return [NOTHING]
