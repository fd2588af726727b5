"""The refresh of the page: each panel is a pure function of the watched widgets and of the jobs' state.

The page's script polls a hash of the workspace's state (`workspace_mark`) every three seconds, and every second while a
job is alive. It ticks if the hash has changed, after input, and once a minute. A tick sends the values of all watched
widgets, which costs the browser a third of a second. Panels only read, so a hidden tab, a reload or a second browser
changes nothing. A value that a browser has already is not sent again, so players and open accordions are not redrawn.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar, cast

import gradio as gr
from gradio.blocks import Block

from config import confinement
from config.errors import UserError
from core.jobs.checkpoint_names import CHECKPOINTS
from core.jobs.state import POSITION_FILE as QUEUE
from core.jobs.state import JobBoard, JobState
from core.jobs.verbs import SYNTHESIS_VERBS
from core.library.listening import ANSWERS
from core.sources import allowed
from core.workspace import KINDS, Workspace
from ui import job_views
from ui.markup import Html

QUIET = {"queue": False, "show_progress": "hidden", "show_progress_on": [], "api_visibility": "private",
         "preprocess": False}
"""Settings of every listener: no queue, no spinner on any component, no public API."""

BUSY_S, IDLE_S = 1.0, 3.0
_APPLY_IF_UNCHANGED = """(pending, ...current) => {
  const changes = JSON.parse(pending || "{}");
  const text = (value) => JSON.stringify(value ?? null);
  window.lisanTickSoon && window.lisanTickSoon();  // what depends on these values follows
  return current.map((value, at) =>
    at in changes && text(changes[at].seen) === text(value) ? changes[at].wanted : undefined);
}"""
"""In the browser: put a pending value into its widget only if the widget still has the value that the app saw.

Gradio leaves the widgets of undefined values alone (6.31); the values given would undo what was typed meanwhile.
"""
_LOG = logging.getLogger("lisan.page")
Found = TypeVar("Found")


@dataclass(frozen=True)
class View:
    """The state of one browser: its open tab, the values of watched widgets, and all jobs, newest first."""

    tab: str
    values: Mapping[str, str]  # a list is JSON, see `chosen`
    jobs: tuple[JobState, ...]
    cache: dict[tuple[str, ...], object] = field(default_factory=dict, repr=False, compare=False)
    """Results that several panels of a refresh share, by key."""
    memory: dict[Any, str] = field(default_factory=dict, repr=False, compare=False)
    """By key the value that this browser was shown last; only panels of watched widgets may store something here."""

    def once(self, key: tuple[str, ...], compute: Callable[[], Found]) -> Found:
        """The result of `compute`, which is called once for all panels of a refresh."""
        if key not in self.cache:
            self.cache[key] = compute()
        return cast("Found", self.cache[key])

    @property
    def alive(self) -> Sequence[JobState]:
        return self.once(("alive",), lambda: [state for state in self.jobs if state.alive])

    def job(self, name: str) -> JobState | None:
        return self.once(("by id",), lambda: {state.id: state for state in self.jobs}).get(name)

    def newest(self, *verbs: str) -> JobState | None:
        """The job of these verbs (or of any) to show by default: running, else waiting, else the last with a result."""
        return self.once(("newest", *verbs), lambda: self._newest(verbs))

    def _newest(self, verbs: Sequence[str]) -> JobState | None:
        candidates = [state for state in self.jobs if state.verb in verbs or not verbs]
        # A running job comes before one that waits, and that before one with a result.
        runs = (state for state in candidates if state.status in ("running", "stopping"))
        alive = (state for state in candidates if state.alive)
        return next(iter((*runs, *alive, *filter(_has_result, candidates), *candidates)), None)

    def selected_job(self, field: str, *verbs: str) -> JobState | None:
        """The job chosen in `field`; if none is chosen, the newest of `verbs`. None: no such job, or it was deleted."""
        name = self.values.get(field, "")
        return self.job(name) if name else self.newest(*verbs)

    def chosen(self, field: str) -> Sequence[str]:
        """What is chosen in a dropdown of several choices."""
        names: Sequence[str] = json.loads(self.values.get(field) or "[]")
        return names

    def deleted(self, field: str) -> str:
        """The id of the job chosen in `field` if it was deleted; else empty."""
        name = self.values.get(field, "")
        return name if name and self.job(name) is None else ""

    def follow(self, key: str, current: str, offered: Sequence[str], newest: str) -> str:
        """The value of a dropdown: `newest` until this browser has shown it once, then the `current` one.

        So a tab preselects the result of another tab, and a later choice of the person stays.
        """
        if newest not in offered or self.memory.get(key) == newest:
            return current
        if current == newest:
            self.memory[key] = newest
        return newest

    def choices(self, field: str, titles: Mapping[str, str], selected: JobState | None) -> dict[str, object]:
        """Choices and value of a dropdown of jobs. A deleted job stays chosen, so no other job replaces it silently."""
        choices = [(title, name) for name, title in titles.items()]
        deleted = self.deleted(field)
        if deleted:
            return {"choices": [(f"{deleted} (deleted)", deleted), *choices], "value": deleted}
        return {"choices": choices, "value": selected.id if selected else None}


def _has_result(state: JobState) -> bool:
    """Whether an ended job has something to show: audio, a training's steps, a failure; not if it never began."""
    if state.verb in SYNTHESIS_VERBS:
        return state.status == "finished" or bool(state.audio)
    if state.verb == "train" and state.status == "stopped":
        return bool(state.steps or state.checkpoints)
    return state.status != "skipped" and not (state.status == "stopped" and state.started_at is None)


Render = Callable[[View], object]


def choice_update(choices: Sequence[str] | Sequence[tuple[str, str]], current: str) -> dict[str, object]:
    """An update of a dropdown: its choices, and the `current` value if it is among them, else the first choice."""
    values = [choice if isinstance(choice, str) else choice[1] for choice in choices]
    update: dict[str, object] = gr.update(choices=choices, value=current if current in values else values[0] if values
                                          else None)
    return update


@dataclass(frozen=True)
class _Panel:
    component: Block
    render: Render
    tab: str  # empty: on every tab


@dataclass
class Live:
    """Collects panels while the page is laid out; `attach` creates the events that refresh them."""

    workspace: Workspace
    board: JobBoard
    panels: list[_Panel] = field(default_factory=list)
    watched: dict[str, Block] = field(default_factory=dict)
    pending: list[gr.events.Dependency] = field(default_factory=list)  # events to be followed by a refresh

    def panel(self, component: Block, render: Render, tab: str = "") -> None:
        """Keep `component` equal to `render(view)`: a value, or a `gr.update`."""
        self.panels.append(_Panel(component, render, tab))

    def show_when(self, component: Block, find: Callable[[View], Found | None], test: Callable[[Found], object],
                  tab: str) -> None:
        """Show `component` while `find(view)` finds something that passes `test`."""

        def visibility(view: View) -> object:
            selected = find(view)
            return gr.update(visible=selected is not None and bool(test(selected)))

        self.panel(component, visibility, tab)

    def watch(self, name: str, component: Block) -> None:
        """Let panels read the value of `component` as `view.values[name]`."""
        self.watched[name] = component

    def view(self, tab: str, values: Mapping[str, object], memory: dict[Any, str] | None = None) -> View:
        texts = {name: "" if value is None else json.dumps(value) if isinstance(value, list) else str(value)
                 for name, value in values.items()}
        for name, value in values.items():
            with suppress(UserError):
                if not is_text(self.watched.get(name)):
                    allowed.check_value(value)
                continue
            texts[name] = ""  # a path that may not be read; the button says so
        return View(tab, texts, tuple(self.board.states()), memory={} if memory is None else memory)

    def attach(self, tab: gr.State) -> None:
        """Create the events of all refreshes. Call it inside the Blocks, at the end."""
        self.sent_hashes, self.sent_input_hashes = gr.State({}), gr.State({})
        self.ticker = gr.Button(visible="hidden", elem_id="live-tick")  # the page's script clicks it
        # Refreshes send the values of all watched widgets, whichever tab is open.
        watched = list(self.watched.values())
        self.inputs = [tab, self.sent_hashes, self.sent_input_hashes, *watched]
        self.inputs_changed, self.pending_input_values = _flag(), _flag()
        tabs = {panel.tab for panel in self.panels} - {""}
        self.tab_changed = {name: _flag() for name in sorted(tabs)}
        self.ticker.click(self.check, self.inputs, [self.inputs_changed, *self.tab_changed.values()], **QUIET)
        for name, flag in self.tab_changed.items():
            flag.change(partial(self.refresh, only=name), self.inputs, self._outputs(name), **QUIET)
        controls = [panel.component for panel in self._panels(True).values()]
        self.inputs_changed.change(self.update_inputs, [tab, self.sent_input_hashes, *watched],
                                   [self.sent_input_hashes, self.pending_input_values, *controls], **QUIET,
                                   ).then(None, [self.pending_input_values, *watched], watched,
                                          js=_APPLY_IF_UNCHANGED, **QUIET)
        self.outputs = self._outputs()
        for event in self.pending:
            event.then(self.refresh, self.inputs, self.outputs, **QUIET)

    def _outputs(self, only: str = "") -> list[Block]:
        panels = self._panels(False, only).values()
        return [self.sent_hashes, self.inputs_changed, *(panel.component for panel in panels)]

    def _panels(self, watched: bool, only: str = "") -> dict[int, _Panel]:
        """By index the panels whose components are inputs too (`watched`), or the others, of one tab and every tab."""
        inputs = {component._id for component in self.watched.values()}
        return {index: panel for index, panel in enumerate(self.panels) if (panel.component._id in inputs) == watched
                and (not only or panel.tab in ("", only))}

    def check(self, tab: str, sent_hashes: dict[int, str], sent_input_hashes: dict[int, str],
              *values: object) -> list[object]:
        """Flags that let the browser request a refresh of the tab if something has changed.

        Gradio needs about a millisecond for each output, even for a skipped one (6.31), and most ticks change nothing.
        So a tick has only these outputs.
        """
        view = self._view(tab, values, dict(sent_input_hashes or {}))
        changed = bool(self._changes(self._panels(False), view, dict(sent_hashes or {})))
        return [self._flag_inputs(view, sent_input_hashes),
                *(_new_token(changed and name == tab) for name in self.tab_changed)]

    def refresh(self, tab: str, sent_hashes: dict[int, str], sent_input_hashes: dict[int, str], *values: object,
                only: str = "") -> list[object]:
        """The values that differ from `sent_hashes`, for the panels of `tab` and those on every tab.

        Gradio never frees the memory of an output that is an input too (6.31). So watched widgets are not outputs here,
        but only of `update_inputs`, which is called rarely.
        """
        view, sent = self._view(tab, values, dict(sent_input_hashes or {})), dict(sent_hashes or {})
        panels = self._panels(False, only)
        changes = self._changes(panels, view, sent)
        return [sent, self._flag_inputs(view, sent_input_hashes), *(changes.get(index, gr.skip()) for index in panels)]

    def _flag_inputs(self, view: View, sent_input_hashes: dict[int, str]) -> object:
        """A flag that calls `update_inputs` if a watched widget should change."""
        return _new_token(bool(self._changes(self._panels(True), view, dict(sent_input_hashes or {}))))

    def update_inputs(self, tab: str, sent_input_hashes: dict[int, str], *values: object) -> list[object]:
        """Updates of the watched widgets; their values as JSON for `_APPLY_IF_UNCHANGED`.

        A person may type while the answer is on its way. So the browser sets a value only if the widget still has the
        value that was seen here.
        """
        sent = dict(sent_input_hashes or {})
        view, panels = self._view(tab, values, sent), self._panels(True)
        changes = self._changes(panels, view, sent)
        # The browser knows widgets by their place among the inputs.
        places = {component._id: index for index, component in enumerate(self.watched.values())}

        pending, updates = {}, []
        for index, panel in panels.items():
            update = changes.get(index, gr.skip())
            if isinstance(update, dict) and "value" in update:
                place = places[panel.component._id]
                pending[place] = {"seen": values[place], "wanted": update["value"]}
                update = {key: value for key, value in update.items() if key != "value"}
            updates.append(update)
        return [sent, json.dumps(pending), *updates]

    def _view(self, tab: str, values: Sequence[object], memory: dict[Any, str]) -> View:
        return self.view(tab, dict(zip(self.watched, values, strict=True)), memory)

    def _changes(self, panels: Mapping[int, _Panel], view: View, sent: dict[int, str]) -> dict[int, object]:
        """New values of the `panels` of the open tab whose hashes differ from `sent`; updates `sent`."""
        changes = {}
        for index, panel in panels.items():
            if panel.tab in ("", view.tab):
                value = _rendered(panel, view)
                # Only the hash is kept between two refreshes.
                mark = hashlib.blake2b(repr(value).encode(), digest_size=12).hexdigest()
                if sent.get(index) != mark:
                    sent[index], changes[index] = mark, value
        return changes


def workspace_mark(board: JobBoard, other_state: object = None) -> dict[str, object]:
    """A hash of the jobs, the folders and files of the workspace, and `other_state`; and the time until the next poll.

    While a job is alive it changes every second, because the page shows times.
    """
    workspace, states = board.workspace, board.states()
    alive = any(state.alive for state in states)
    marks: list[object] = [other_state, int(time.time()) if alive else 0]

    # The marks of a job are the times of its files.
    for state in states:
        home = str(state.job.directory)
        files = _MARKED if state.verb != "listening_test" else (*_MARKED, f"/{ANSWERS}")
        marks.append((state.id, state.status, *[_changed(f"{home}{name}") for name in files]))

    # A folder's time changes when an entry is added or removed.
    for folder in (workspace.path, workspace.models, workspace.datasets, workspace.tokenizers, workspace.extensions,
                   workspace.exports, workspace.voices, workspace.rules, workspace.segments, workspace.recognisers,
                   workspace.path / KINDS["recording"]):
        with suppress(OSError):
            marks += [(entry.path, entry.stat().st_mtime_ns) for entry in os.scandir(folder)]
    digest = hashlib.blake2b(repr(marks).encode(), digest_size=12).hexdigest()
    return {"mark": digest, "again_ms": round(1000 * (BUSY_S if alive else IDLE_S))}


_MARKED = ("", f"/{CHECKPOINTS}", f"/{QUEUE}", "/events.jsonl")
"""Paths in a job's folder that are part of the hash: the folder and files that change in place (text, for speed)."""


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _flag() -> gr.Textbox:
    """A hidden text box: unlike that of a `gr.State`, its change event does not use the queue."""
    return gr.Textbox("", visible="hidden")


def _new_token(changes: bool) -> object:
    """A new value for a flag, which triggers its change event, if `changes`."""
    return str(time.monotonic_ns()) if changes else gr.skip()


def _rendered(panel: _Panel, view: View) -> object:
    """The panel's value; if it fails, the error in an HTML panel, and no change in others."""
    try:
        with confinement.pinned():
            return panel.render(view)
    except UserError as error:
        fault = job_views.fault(error.message, error.hint)
    except OSError as error:
        fault = _file_fault(error)
    except Exception as error:  # noqa: BLE001  the page's edge: one broken panel must not stop the others
        _LOG.exception("a panel of %s could not be shown", view.tab)
        fault = job_views.fault(f"This part could not be shown: {type(error).__name__}: {error}",
                                "The rest of the page works. Details are in the app's log.")
    return fault if isinstance(panel.component, gr.HTML) else gr.skip()


def _file_fault(error: OSError) -> Html:
    """An error of the file system, such as a name of 300 letters."""
    return job_views.fault(f"{str(error.filename or 'A file')[:200]}: {error.strerror or error}.",
                           "Give another name, or look at the disk and its permissions.")


def is_text(component: Block | None) -> bool:
    """Whether a widget takes a text of several lines, which is never a path."""
    return isinstance(component, gr.Textbox) and component.lines > 1


def guarded(action: Callable[..., Sequence[object]], outputs: int, workspace: Workspace,
            inputs: Sequence[Block] = ()) -> Callable[..., object]:
    """`action` with errors shown in its first output, a notice; then the other outputs do not change."""

    def run(*values: object) -> object:
        try:
            for component, value in zip_longest(inputs, values):
                if not is_text(component):
                    allowed.check_value(value)
            with confinement.pinned():
                values_out = action(*values)
        except UserError as error:
            values_out = [job_views.fault(error.message, error.hint), *(gr.skip() for _ in range(outputs - 1))]
        except OSError as error:
            values_out = [_file_fault(error), *(gr.skip() for _ in range(outputs - 1))]
        except Exception as error:  # noqa: BLE001  the page's edge
            _LOG.exception("an action failed")
            fault = job_views.fault(f"Unexpected error: {type(error).__name__}: {error}",
                                    "Details are in the app's log.")
            values_out = [fault, *(gr.skip() for _ in range(outputs - 1))]
        return values_out[0] if outputs == 1 else values_out  # Gradio takes the value of a single output as it is

    return run
