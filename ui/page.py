"""`Page`, the argument of every tab's `build`: workspace, shared widgets, and how to add listeners and start jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import gradio as gr
from gradio.blocks import Block

from config.loading import parse_options
from config.resume_options import with_changes
from config.schema import Options, TrainOptions
from core.jobs import checkpoint_names, control
from core.jobs.gpus import CachedGpus
from core.jobs.job import NO_DEVICE, Job, load_job
from core.jobs.reporter import pluralize
from core.library import lineage
from core.submission import storage
from core.submission.jobs import submit, submit_certificate
from core.workspace import Workspace
from ui import job_views
from ui.live import QUIET, Live, guarded
from ui.markup import Html

TABS: tuple[tuple[str, str], ...] = (
    ("start", "Start"), ("model", "Model"), ("data", "Data"), ("tokenizer", "Tokenizer"),
    ("embeddings", "Embeddings"), ("train", "Train"), ("listen", "Listen"), ("share", "Share"),
)
"""Ids and labels of the tabs, in the order of the work."""
DRAWER: tuple[tuple[str, str], ...] = (
    ("jobs", "Jobs"), ("storage", "Storage"), ("doctor", "Doctor"), ("machine", "Machine"),
)
"""Ids and labels of the tabs in the drawer, which lies over the page."""
PLACES = (*TABS, *DRAWER)
FORMER_TABS: Mapping[str, str] = {"certificate": "share"}
"""By their former ids the tabs that took their place, for addresses that people have kept."""


@dataclass(frozen=True)
class Page:
    """The shared context of all tabs while the page is laid out."""

    workspace: Workspace
    live: Live
    tabs: gr.Tabs
    tab: gr.State
    run: gr.Dropdown  # the training on Train; Start sets it too
    pair: gr.Dropdown  # the comparison on Listen; Start sets it too
    gpus: CachedGpus = field(default_factory=CachedGpus)  # the GPUs of this machine

    def on(self, event: Callable[..., gr.events.Dependency], action: Callable[..., Sequence[object]],
           inputs: Sequence[Block], outputs: Sequence[Block], *, files: bool = False) -> None:
        """Call `action` on `event`, then refresh; its first output is a notice, which shows errors too.

        `files`: an input is an uploaded file, whose path Gradio must check.
        """
        settings = {**QUIET, "preprocess": files}
        run = guarded(action, len(outputs), self.workspace, inputs)
        self.live.pending.append(event(run, list(inputs), list(outputs), **settings))

    def go(self, button: gr.Button, tab: str) -> None:
        """Make `button` open `tab`."""
        self.live.pending.append(
            button.click(lambda: [gr.Tabs(selected=tab), tab], None, [self.tabs, self.tab], **QUIET))

    def show(self, name: str) -> object:
        """An update that selects the job `name` in a dropdown that may not list it yet."""
        return gr.update(choices=[name], value=name)

    def start(self, verb: str, options: Options, after: Sequence[str] = ()) -> Job:
        """Queue a job and start its worker; `UserError` if a prerequisite neither exists nor is being made.

        The job also waits for the jobs `after`, and is skipped if one of them fails. A training gets a second job that
        certifies it.
        """
        jobs = submit(self.workspace, verb, options, after=after)
        for job in jobs:
            control.start(job)
        return jobs[0]

    def stop(self, name: str) -> Sequence[object]:
        """Ask the job `name` to finish its step, save and end."""
        job = load_job(self.workspace, name)
        message = job_views.stop_message(control.read_state(job))
        control.stop(job)
        return [job_views.notice(message, job=name if control.read_state(job).alive else "")]

    def force_stop(self, name: str) -> Sequence[object]:
        """Kill the process of the job `name`."""
        job = load_job(self.workspace, name)
        control.force_stop(job)
        return [job_views.notice(f"Force-stopped. {checkpoint_names.resume_point(job)}")]

    def resume(self, name: str, changes: Mapping[str, object] | None = None,
               checkpoint: str = "") -> Sequence[object]:
        """Resume the job `name`, and the jobs that waited for it and were skipped.

        `changes` are options of a training that are to differ from here on. `checkpoint` is the step or name of an
        earlier checkpoint to return to; later ones go to the bin.
        """
        job = load_job(self.workspace, name)
        if changes:
            with_changes(job.id, parse_options(TrainOptions, job.settings), changes)  # before checkpoints are moved

        if checkpoint:
            step = lineage.find_checkpoint(job, checkpoint)
            storage.return_to_checkpoint(self.workspace, job.id, step, self.live.board)

        states = self.live.board.states()
        # Jobs that were skipped because of this one are queued again.
        resumed = control.resume_with_dependents(job, states, changes=changes)
        waited = len(resumed) - 1

        if checkpoint and any(state.certifies == job.id and state.status == "finished" for state in states):
            control.start(submit_certificate(job))  # the present certificate was of other steps
        remark = f" Queued again: {pluralize(waited, 'job')} that waited for it." if waited else ""
        return [job_views.notice(checkpoint_names.resume_point(job) + remark, job=name)]

    def started_notice(self, job: Job) -> Html:
        """A notice that `job` has started, or that it waits for another job."""
        queue = self.live.board.queue()
        # A job waits for those that it needs, then for the device.
        ahead = [state.id for state in queue if state.id in job.after]
        ahead += [state.id for state in queue if state.job.device == job.device != NO_DEVICE and state.id != job.id]
        name = job_views.readable(job.id)
        return job_views.notice(f"{name} waits for {job_views.readable(ahead[0])}." if ahead
                                else f"{name} has started.", job=job.id)
