"""What every tab's `build` is given: the workspace, the jobs, and how to become live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import gradio as gr
from gradio.blocks import Block

from config.schema import Options
from core.jobs import control
from core.jobs.directory import NO_DEVICE, Job, create_job
from core.jobs.gpus import CachedGpus
from core.submission import requirements
from core.workspace import Workspace
from ui import present, words
from ui.live import QUIET, Live, guarded
from ui.markup import Html

TABS: tuple[tuple[str, str], ...] = (
    ("start", "Start"), ("model", "Model"), ("data", "Data"), ("tokenizer", "Tokenizer"),
    ("embeddings", "Embeddings"), ("train", "Train"), ("listen", "Listen"), ("certificate", "Certificate"),
    ("doctor", "Doctor"), ("jobs", "Jobs"),
)
"""Ids and labels of the tabs, in the order of the work."""


@dataclass(frozen=True)
class Page:
    """Handed to each tab while the page is laid out."""

    workspace: Workspace
    live: Live
    tabs: gr.Tabs
    tab: gr.State
    run: gr.Dropdown  # the training that Train shows; also set by Start
    pair: gr.Dropdown  # the comparison that Listen shows; also set by Start
    gpus: CachedGpus = field(default_factory=CachedGpus)  # of this machine

    def on(self, event: Callable[..., gr.events.Dependency], action: Callable[..., Sequence[object]],
           inputs: Sequence[Block], outputs: Sequence[Block], *, files: bool = False) -> None:
        """Call `action` on `event`; its first output is a notice, where faults are shown. Then refresh.

        `files`: an input is an uploaded file, whose place Gradio must check and give as a path.
        """
        settings = {**QUIET, "preprocess": files}
        self._pending.append(event(guarded(action, len(outputs)), list(inputs), list(outputs), **settings))

    def go(self, button: gr.Button, tab: str) -> None:
        """Let `button` open `tab`."""
        self._pending.append(button.click(lambda: [gr.Tabs(selected=tab), tab], None, [self.tabs, self.tab], **QUIET))

    def show(self, name: str) -> object:
        """An update that makes a chooser show the job `name`, which it may not list yet."""
        return gr.update(choices=[name], value=name)

    @property
    def _pending(self) -> list[gr.events.Dependency]:
        return self.live.pending

    def start(self, verb: str, options: Options, after: Sequence[str] = ()) -> Job:
        """Queue a job and start its worker; refused when what it needs is neither there nor in the making.

        It waits for the jobs `after` too, and does not begin when one of them fails.
        """
        needed = requirements.check_requirements(self.workspace, verb, options)
        job = create_job(self.workspace, verb, options, after=tuple(dict.fromkeys([*needed, *after])))
        control.start(job)
        return job

    def begun(self, job: Job) -> Html:
        """A notice that `job` was started, or that it waits, and for what."""
        queue = self.live.board.queue()
        before = [state.id for state in queue if state.id in job.after]
        before += [state.id for state in queue if state.job.device == job.device != NO_DEVICE and state.id != job.id]
        name = words.named(job.id)
        return present.notice(f"{name} waits for {words.named(before[0])}." if before else f"{name} has started.")
