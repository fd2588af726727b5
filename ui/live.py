"""Panels that follow the workspace: each is a pure function of what is chosen and of the jobs' state.

A timer asks again every second while a job lives and every few seconds otherwise. It only
reads, so a hidden tab, a reload or a second browser changes nothing. What a browser has
already been sent is not sent again, so that players and open folds are left alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import gradio as gr
from gradio.blocks import Block

from config.errors import UserError
from core.jobs.state import JobBoard, JobState
from core.workspace import Workspace
from ui import present

QUIET = {"queue": False, "show_progress": "hidden", "api_visibility": "private", "preprocess": False}
"""For every listener: answered at once, without a spinner, and not offered as an interface to others."""

BUSY_S, IDLE_S = 1.0, 3.0
_FILL = """(wishes, ...now) => {
  const wished = JSON.parse(wishes || "{}");
  const text = (value) => JSON.stringify(value ?? null);
  return now.map((value, at) => at in wished && text(wished[at].seen) === text(value) ? wished[at].wanted : value);
}"""
"""In the browser: what is wished goes into the widgets that hold what it was worked out from, at that moment."""
_LOG = logging.getLogger("lisan.page")


@dataclass(frozen=True)
class View:
    """What one browser looks at: the open tab, the values of watched widgets, and all jobs, newest first."""

    tab: str
    chosen: Mapping[str, str]
    jobs: tuple[JobState, ...]
    known: dict[tuple[str, ...], object] = field(default_factory=dict, repr=False, compare=False)
    """What was worked out once for all panels of a refresh, by what it was worked out from."""

    def job(self, name: str) -> JobState | None:
        return next((state for state in self.jobs if state.id == name), None)

    def newest(self, *verbs: str) -> JobState | None:
        """The job of these verbs, or of any, to show when none is chosen: one that runs, waits, else the last begun.

        Begun is also what failed, since it says why; but not a training that was stopped before its first step.
        """
        found = [state for state in self.jobs if state.verb in verbs or not verbs]
        begun = [state for state in found if state.status != "skipped" and not _is_empty(state)]
        runs = (state for state in found if state.status in ("running", "stopping"))
        return next(iter((*runs, *(state for state in found if state.alive), *begun, *found)), None)

    def looked_at(self, field: str, *verbs: str) -> JobState | None:
        """The job chosen in `field`; when none is, the newest of `verbs`. None: there is none, or it is gone."""
        name = self.chosen.get(field, "")
        return self.job(name) if name else self.newest(*verbs)

    def gone(self, field: str) -> str:
        """The job chosen in `field`, when its folder is not there any more."""
        name = self.chosen.get(field, "")
        return name if name and self.job(name) is None else ""

    def choices(self, field: str, titles: Mapping[str, str], shown: JobState | None) -> dict[str, object]:
        """What a chooser of jobs offers: id by title. One that is gone stays chosen, so none is taken for it."""
        offered = [(title, name) for name, title in titles.items()]
        if gone := self.gone(field):
            return {"choices": [(f"{gone} (gone)", gone), *offered], "value": gone}
        return {"choices": offered, "value": shown.id if shown else None}


def _is_empty(state: JobState) -> bool:
    """Whether a training was stopped with nothing to show and nothing to go on from."""
    return state.verb == "train" and state.status == "stopped" and not state.steps and not state.checkpoints


Render = Callable[[View], object]


@dataclass(frozen=True)
class _Panel:
    component: Block
    render: Render
    tab: str  # empty: on every tab


@dataclass
class Live:
    """Collects panels while the page is laid out; `attach` makes them live."""

    workspace: Workspace
    board: JobBoard
    panels: list[_Panel] = field(default_factory=list)
    watched: dict[str, Block] = field(default_factory=dict)
    pending: list[gr.events.Dependency] = field(default_factory=list)  # events to be followed by a refresh

    def panel(self, component: Block, render: Render, tab: str = "") -> None:
        """Keep `component` equal to `render(view)`: a value, or a `gr.update`."""
        self.panels.append(_Panel(component, render, tab))

    def watch(self, name: str, component: Block) -> None:
        """Let panels read the value of `component` as `view.chosen[name]`."""
        self.watched[name] = component

    def view(self, tab: str, chosen: Mapping[str, object]) -> View:
        texts = {name: "" if value is None else str(value) for name, value in chosen.items()}
        return View(tab, texts, tuple(self.board.states()))

    def attach(self, tab: gr.State) -> None:
        """Create the timer and the listeners that all refreshes go through. Call inside the Blocks, at the end."""
        self.sent, self.offered = gr.State({}), gr.State({})
        self.timer = gr.Timer(BUSY_S)
        self.panel(self.timer, lambda view: gr.update(value=BUSY_S if any(job.alive for job in view.jobs) else IDLE_S))
        watched = list(self.watched.values())
        self.inputs = [tab, self.sent, self.offered, *watched]
        self.stale, self.wishes = _flag(), _flag()
        self.behind = {name: _flag() for name in sorted({panel.tab for panel in self.panels} - {""})}
        self.timer.tick(self.look, self.inputs, [self.stale, *self.behind.values()], **QUIET)
        for name, flag in self.behind.items():
            flag.change(partial(self.refresh, only=name), self.inputs, self._outputs(name), **QUIET)
        controls = [panel.component for panel in self._panels(True).values()]
        self.stale.change(self.offer, [tab, self.offered, *watched], [self.offered, self.wishes, *controls], **QUIET,
                          ).then(None, [self.wishes, *watched], watched, js=_FILL, **QUIET)
        self.outputs = self._outputs()
        for event in self.pending:
            event.then(self.refresh, self.inputs, self.outputs, **QUIET)

    def _outputs(self, only: str = "") -> list[Block]:
        return [self.sent, self.stale, *(panel.component for panel in self._panels(False, only).values())]

    def _panels(self, watched: bool, only: str = "") -> dict[int, _Panel]:
        """The panels that are read as inputs too, or the others (of one tab and of every tab), by their number."""
        inputs = {component._id for component in self.watched.values()}
        return {at: panel for at, panel in enumerate(self.panels) if (panel.component._id in inputs) == watched
                and (not only or panel.tab in ("", only))}

    def look(self, tab: str, sent: dict[int, str], offered: dict[int, str], *values: object) -> list[object]:
        """Flags that make the browser ask for what has changed, if anything has: mostly nothing has.

        Gradio takes about a millisecond for each output, also for one that is skipped (seen in 6.31), and most
        ticks change nothing: so a tick has these few outputs, and a change those of its tab.
        """
        view = self._view(tab, values)
        behind = bool(self._changes(self._panels(False), view, dict(sent or {})))
        return [self._stale(view, offered), *(_now(behind and name == tab) for name in self.behind)]

    def refresh(self, tab: str, sent: dict[int, str], offered: dict[int, str], *values: object,
                only: str = "") -> list[object]:
        """What has changed since `sent`, for the panels of `tab` and those on every tab; and whether to `offer`.

        Gradio keeps for good what it made of an output that is an input as well (seen in 6.31). So the watched ones
        are no outputs here, but of `offer`, which is rare.
        """
        view, known = self._view(tab, values), dict(sent or {})
        panels = self._panels(False, only)
        changes = self._changes(panels, view, known)
        return [known, self._stale(view, offered), *(changes.get(at, gr.skip()) for at in panels)]

    def _stale(self, view: View, offered: dict[int, str]) -> object:
        """Whether something is to be offered anew."""
        return _now(bool(self._changes(self._panels(True), view, dict(offered or {}))))

    def offer(self, tab: str, offered: dict[int, str], *values: object) -> list[object]:
        """What has changed of the panels that are read as inputs too; their values as wishes, for the browser to fill.

        A person types and chooses while this is on its way. So a value does not go straight into its widget, but only
        where that still holds what was seen here.
        """
        view, known = self._view(tab, values), dict(offered or {})
        panels = self._panels(True)
        changes = self._changes(panels, view, known)
        places = {component._id: at for at, component in enumerate(self.watched.values())}
        wishes, updates = {}, []
        for at, panel in panels.items():
            update = changes.get(at, gr.skip())
            if isinstance(update, dict) and "value" in update:
                place = places[panel.component._id]
                wishes[place] = {"seen": values[place], "wanted": update["value"]}
                update = {key: value for key, value in update.items() if key != "value"}
            updates.append(update)
        return [known, json.dumps(wishes), *updates]

    def _view(self, tab: str, values: Sequence[object]) -> View:
        return self.view(tab, dict(zip(self.watched, values, strict=True)))

    def _changes(self, panels: Mapping[int, _Panel], view: View, known: dict[int, str]) -> dict[int, object]:
        """New values of those `panels` of the open tab that are not as `known` has them; `known` has them then."""
        changes = {}
        for at, panel in panels.items():
            if panel.tab in ("", view.tab):
                value = _rendered(panel, view)
                mark = hashlib.blake2b(repr(value).encode(), digest_size=12).hexdigest()
                if known.get(at) != mark:
                    known[at], changes[at] = mark, value
        return changes


def _flag() -> gr.Textbox:
    """Told to a browser outside the queue, unlike a state."""
    return gr.Textbox("", visible="hidden")


def _now(true: bool) -> object:
    """A new value for a flag, which its listeners hear; or none."""
    return str(time.monotonic_ns()) if true else gr.skip()


def _rendered(panel: _Panel, view: View) -> object:
    """The panel's value; a fault is shown in its place, where it can be."""
    try:
        return panel.render(view)
    except UserError as error:
        shown = present.fault(error.message, error.hint)
    except Exception as error:  # noqa: BLE001  the page's edge: one broken panel must not stop the others
        _LOG.exception("a panel of %s could not be shown", view.tab)
        shown = present.fault(f"This part could not be shown: {type(error).__name__}: {error}",
                              "The rest of the page goes on; the app's log has the details.")
    return shown if isinstance(panel.component, gr.HTML) else gr.skip()


def guarded(action: Callable[..., Sequence[object]], outputs: int) -> Callable[..., object]:
    """`action` with faults shown in its first output, a notice; the other outputs then stay as they are."""

    def run(*values: object) -> object:
        try:
            made = action(*values)
        except UserError as error:
            made = [present.fault(error.message, error.hint), *(gr.skip() for _ in range(outputs - 1))]
        except Exception as error:  # noqa: BLE001  the page's edge
            _LOG.exception("an action failed")
            shown = present.fault(f"That did not work: {type(error).__name__}: {error}",
                                  "The app's log has the details.")
            made = [shown, *(gr.skip() for _ in range(outputs - 1))]
        return made[0] if outputs == 1 else made  # Gradio takes the value of a single output as it is

    return run
