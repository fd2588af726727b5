"""The state of each tab: done, needs attention, running or not started. The page's script draws it on the tabs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from config.errors import UserError
from core.dataset import review
from core.jobs.state import JobState
from core.jobs.verbs import VERBS
from core.machine import MachineCheck
from core.workspace import Workspace
from ui import job_views
from ui.live import View
from ui.markup import Html, span
from ui.page import PLACES, TABS


class TabState(Enum):
    """The state of the work of a tab."""

    DONE = "done"
    ATTENTION = "attention"
    RUNNING = "running"
    NOT_STARTED = "not started"


_DECISIVE: Mapping[str, Sequence[str]] = {
    "model": ("download", "import_model"),
    "data": ("segment", "transcribe", "align", "prepare", "revise"),
    "tokenizer": ("tokenizer",), "embeddings": ("extend",), "train": ("train", "sweep"),
    "listen": ("compare", "synthesize", "evaluate"), "share": ("certify", "export", "push", "pack"),
}
"""By tab the verbs whose last job decides its state; other jobs, such as a preflight, only show that it is busy."""


@dataclass(frozen=True)
class StatedTab:
    """A tab with its state; `reason` says in some words why it needs attention."""

    name: str
    label: str
    state: TabState
    reason: str = ""

    @property
    def description(self) -> str:
        """What a screen reader says, such as "Train: attention, no speech"."""
        return f"{self.label}: {self.state.value}{f', {self.reason}' if self.reason else ''}"


def tab_states(workspace: Workspace, view: View, chain: Sequence[JobState],
               findings: Sequence[MachineCheck] = ()) -> list[StatedTab]:
    """The state of each tab and of the drawer's; `chain` is what Start shows."""
    running = {VERBS[state.verb].tab for state in view.alive if state.status in _AT_WORK}
    stated = []
    for name, label in TABS:
        if name == "start":
            state, reason = _state_of_chain(chain)
        elif name in running:
            state, reason = TabState.RUNNING, ""
        else:
            state, reason = _state_of_work(workspace, view, name)
        stated.append(StatedTab(name, label, state, reason))

    failed = [check.name for check in findings if check.result == "fail"]
    drawer = {"jobs": (TabState.RUNNING if view.alive else TabState.NOT_STARTED, ""),
              "doctor": (TabState.RUNNING if "doctor" in running else TabState.NOT_STARTED, ""),
              "machine": (TabState.ATTENTION if failed else TabState.NOT_STARTED, ", ".join(failed))}
    return [*stated, *(StatedTab(name, label, *drawer.get(name, (TabState.NOT_STARTED, "")))
                       for name, label in PLACES[len(TABS):])]


_AT_WORK = ("running", "stopping")
_ENDED_BADLY = ("failed", "crashed")


def _state_of_chain(chain: Sequence[JobState]) -> tuple[TabState, str]:
    """The state of Start: that of the chain of jobs from the recordings to the comparison."""
    if not chain:
        return TabState.NOT_STARTED, ""
    jobs = [state for state in chain if state.verb != "certify"]
    if any(state.alive for state in jobs):
        return TabState.RUNNING, ""
    for state in jobs:
        if state.status in _ENDED_BADLY:
            return TabState.ATTENTION, f"{job_views.job_title(state)} {state.status}"
    training = next((state for state in reversed(jobs) if state.verb == "train"), None)
    return _state_of_job(training) if training is not None else (TabState.DONE, "")


def _state_of_job(state: JobState) -> tuple[TabState, str]:
    """The state after an ended job: done only where the outcome is known to be good."""
    if state.status == "finished" and job_views.status_tone(state) == "good":
        failed_check = str((state.result or {}).get("certificate", "")).startswith("failed")
        return (TabState.ATTENTION, "a check failed") if failed_check else (TabState.DONE, "")
    if state.status == "finished":
        return TabState.ATTENTION, job_views.short_outcome(state)
    return TabState.ATTENTION, state.status


def _state_of_work(workspace: Workspace, view: View, tab: str) -> tuple[TabState, str]:
    """The state of a tab by its last job that ended, else by what the workspace has."""
    # A trial that a sweep has stopped early needs no attention: its sweep decides.
    sweeps = [state.id for state in view.jobs if state.verb == "sweep"]
    last = next((state for state in view.jobs if state.verb in _DECISIVE[tab] and not state.alive
                 and state.status != "skipped" and state.started_at is not None
                 and state.id.rpartition("-")[0] not in sweeps), None)
    state, reason = _state_of_job(last) if last is not None else (TabState.NOT_STARTED, "")
    if tab == "data" and state is TabState.DONE and last is not None:
        reason = _mismatch(workspace, str(last.job.settings.get("save_as") or last.job.settings.get("dataset", "")))
        state = TabState.ATTENTION if reason else state

    # What was copied into the workspace counts as well.
    lists = {"model": workspace.list_models, "data": workspace.list_datasets,
             "tokenizer": workspace.list_tokenizers, "embeddings": workspace.list_extensions,
             "share": workspace.list_exports}
    if last is None and tab in lists and lists[tab]():
        state = TabState.DONE
    return state, reason


def _mismatch(workspace: Workspace, dataset: str) -> str:
    try:
        match = review.text_match_of(workspace, dataset) if dataset else None
    except (UserError, OSError):  # it was deleted since
        return ""
    return "texts and clips do not match" if match is not None and match.is_proven else ""


def states_view(stated: Sequence[StatedTab]) -> Html:
    """The states for the page's script."""
    rows = {tab.name: {"label": tab.label, "state": tab.state.value.replace(" ", "-"), "description": tab.description}
            for tab in stated}
    return span("states", "", data_states=json.dumps(rows, ensure_ascii=False), hidden=True)
