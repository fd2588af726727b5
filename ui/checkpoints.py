"""The checkpoints of the chosen run: which are there, and which are kept by name. Part of the Train tab."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import gradio as gr

from config.errors import UserError
from core.jobs import checkpoint_names
from core.jobs.directory import load_job
from core.jobs.state import JobState
from ui import present
from ui.live import View
from ui.markup import NOTHING, Html, element, join, table
from ui.page import Page

Chosen = Callable[[View], JobState | None]


def build(page: Page, chosen: Chosen) -> None:
    """Lay out the list and the row that gives a name or takes one away."""
    with gr.Accordion("Checkpoints", open=False, elem_classes="fold", elem_id="run-kept"):
        listing = gr.HTML(elem_id="run-checkpoints")
        with gr.Row(elem_classes="controls"):
            step = gr.Dropdown([], label="Checkpoint of step", filterable=False, elem_id="keep-step", min_width=140)
            name = gr.Textbox(label="Keep it as", max_lines=1, elem_id="keep-name", min_width=140)
            keep = gr.Button("Keep", size="md", elem_id="keep", min_width=90)
            named = gr.Dropdown([], label="Name to take away", filterable=False, elem_id="kept-name", min_width=140)
            release = gr.Button("Let it go", size="md", elem_id="release", min_width=90)
        notice = gr.HTML(elem_classes="notices")
    page.live.panel(listing, lambda view: view_of(chosen(view)), "train")
    page.live.panel(step, lambda view: gr.update(choices=[str(at) for at in _steps(chosen(view))]), "train")
    page.live.panel(named, lambda view: gr.update(choices=list(_names(chosen(view)))), "train")
    page.on(keep.click, lambda run, at, called: _keep(page, run, at, called), [page.run, step, name], [notice])
    page.on(release.click, lambda run, called: _release(page, run, called), [page.run, named], [notice])


def view_of(state: JobState | None) -> Html:
    """Each checkpoint with its size, and why it is kept."""
    if state is None or not (there := _steps(state)):
        return present.empty("The checkpoints appear here. The last ones, the best and those with a name are kept.")
    names = _names(state)
    best = next((saved.step for saved in reversed(state.checkpoints) if saved.best), None)
    rows = [(f"{step:,}", _size(state.job.directory / checkpoint_names.CHECKPOINTS / f"step-{step:06d}"),
             ", ".join([*(["best"] if step == best else []), *(["last"] if step == there[-1] else []),
                        *(f"“{name}”" for name, at in names.items() if at == step)])) for step in there]
    return join((table(("Step", "Size", "Kept as"), rows),
                 element("p", f"A name stands for its checkpoint on Listen: run:{state.id}@NAME.", class_="hint")
                 if names else NOTHING))


def _keep(page: Page, run: str, step: str, name: str) -> Sequence[object]:
    if not step or not (name or "").strip():
        raise UserError("A checkpoint and a name are wanted.", "Choose a step, and write what it is to be called.")
    checkpoint_names.pin(load_job(page.workspace, run).directory, int(step), name.strip())
    return [present.notice(f"The checkpoint of step {step} is kept as {name.strip()}.")]


def _release(page: Page, run: str, name: str) -> Sequence[object]:
    if not name:
        raise UserError("No name is chosen.", "Choose the name that is to be taken away.")
    step = checkpoint_names.unpin(load_job(page.workspace, run).directory, name)
    return [present.notice(f"The checkpoint of step {step} has no name any more; the run may delete it.")]


def _steps(state: JobState | None) -> list[int]:
    return checkpoint_names.checkpoint_steps(state.job.directory) if state else []


def _names(state: JobState | None) -> dict[str, int]:
    return checkpoint_names.pinned_names(state.job.directory) if state else {}


def _size(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) / 1e6:,.1f} MB"
