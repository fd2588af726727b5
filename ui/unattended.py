"""What the app is about to do by itself, on every tab: resume jobs after a restart, run a command when the queue is
empty. Each can be ended here.
"""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from core.jobs.job import choose_device
from core.jobs.state import JobState
from core.jobs.unattended import IdleCommand, RestartOffer
from ui import job_views
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph
from ui.page import Page


def build(page: Page, restart: RestartOffer | None, idle: IdleCommand | None) -> None:
    """Lay out what applies; nothing where there is nothing to resume and no command."""
    if restart and (restart.interrupted.jobs or restart.interrupted.withheld):
        countdown = gr.HTML(elem_id="restart", elem_classes="notices")
        page.live.panel(countdown, lambda view: restart_view(restart, view))
        with gr.Row(elem_classes="controls", visible=False) as row:
            accept = gr.Button("Resume now", size="md", scale=0, min_width=140, elem_id="restart-accept")
            decline = gr.Button("Do not resume", size="md", scale=0, min_width=140, elem_id="restart-decline")
        page.live.show_when(row, lambda _view: restart.seconds_left(), lambda _seconds: True, "")

        def accepted() -> Sequence[object]:
            restart.accept()
            return [NOTHING]

        def declined() -> Sequence[object]:
            restart.decline()
            return [NOTHING]

        page.on(accept.click, accepted, [], [countdown])
        page.on(decline.click, declined, [], [countdown])
    if idle:
        announced = gr.HTML(elem_id="idle-command", elem_classes="notices")
        page.live.panel(announced, lambda _view: idle_view(idle))
        cancel = gr.Button("Cancel the command", size="md", visible=False, elem_id="idle-cancel")
        page.live.show_when(cancel, lambda _view: idle.seconds_left(), lambda _seconds: True, "")

        def cancelled() -> Sequence[object]:
            idle.cancel()
            return [NOTHING]

        page.on(cancel.click, cancelled, [], [announced])


def restart_view(offer: RestartOffer, view: View) -> Html:
    """The countdown, the jobs in their order with their devices, and those that only a person may resume.

    Later the jobs that were resumed, while they live.
    """
    # The countdown is shown until a person decides or it ends.
    seconds = offer.seconds_left()
    parts = []
    if seconds is not None:
        count = len(offer.interrupted.jobs)
        title = f"{count} jobs were" if count > 1 else "A job was"
        parts.append(div(
            "notice info", element("strong", f"{title} alive when the machine went down. Resume in {seconds:.0f} s."),
            element("ol", *(element("li", _line(state)) for state in offer.interrupted.jobs)), role="status"))

    # A job that was started again by hand since is not listed.
    resumed = []
    for state, point in offer.resumed:
        latest = view.job(state.id)
        if latest is not None and latest.alive and latest.attempt <= state.attempt + 1:
            resumed.append((state, point))
    if resumed:
        parts.append(div(
            "notice info", element("strong", "Resumed, as the machine had gone down:"),
            element("ul", *(element("li", f"{job_views.job_title(state)}. {point}" if point else
                                    f"{job_views.job_title(state)}, which waits") for state, point in resumed)),
            role="status"))

    # Neither is a job that a person dealt with since.
    withheld = []
    for state, reason in offer.interrupted.withheld:
        latest = view.job(state.id)
        if latest is not None and latest.resumable and latest.attempt == state.attempt:
            withheld.append((state, reason))
    if withheld:
        parts.append(div(
            "notice info", element("strong", "Not resumed automatically:"),
            element("ul", *(element("li", f"{job_views.job_title(state)}: {job_views.readable(reason)}")
                            for state, reason in withheld)),
            paragraph("Resume it on the Jobs tab (under System)."), role="status"))

    return join(parts)


def _line(state: JobState) -> str:
    device, old_device = choose_device(state.verb, state.job.settings), state.job.device
    place = "" if device not in job_views.DEVICES else f", on {job_views.DEVICES[device]}"
    return (f"{job_views.job_title(state)}{place}"
            + (f" (before: {job_views.DEVICES[old_device]})" if device != old_device else ""))


def idle_view(idle: IdleCommand) -> Html:
    """The command that is about to run."""
    seconds = idle.seconds_left()
    if seconds is None:
        return NOTHING
    return div("notice info", element("strong", f"The queue is empty. This command runs in {seconds:.0f} s:"),
               element("pre", idle.text), role="status")
