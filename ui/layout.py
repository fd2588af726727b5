"""The page as a whole: header, tabs, and which tab is open."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from core.jobs import app_instances
from core.jobs.state import JobBoard
from core.workspace import Workspace
from ui import certificate, dataset, doctor, embeddings, job_views, jobs, listen, model, start, tokenizer, train
from ui.live import QUIET, Live, View
from ui.markup import NOTHING, Html, div, element, span
from ui.page import TABS, Page

_BUILDERS = {
    "start": start.build, "model": model.build, "data": dataset.build, "tokenizer": tokenizer.build,
    "embeddings": embeddings.build, "train": train.build, "listen": listen.build,
    "certificate": certificate.build, "doctor": doctor.build, "jobs": jobs.build,
}
_LABELS = dict(TABS)


def build(workspace: Workspace) -> gr.Blocks:
    """The whole page over `workspace`."""
    live = Live(workspace, JobBoard(workspace))
    with gr.Blocks(title="Lisan", analytics_enabled=False, fill_width=False) as blocks:
        tab = gr.State("start")
        header = gr.HTML(_header(NOTHING), elem_id="header")
        live.panel(header, header_view)
        others = gr.HTML(elem_id="other-apps", elem_classes="notices")
        live.panel(others, lambda _view: others_view(app_instances.running_apps(workspace)))
        with gr.Tabs(selected="start", elem_id="tabs") as tabs:
            run = gr.Dropdown([], label="Run", elem_id="run-choice", scale=4, render=False)
            pair = gr.Dropdown([], label="Comparison", elem_id="pair-choice", render=False)
            page = Page(workspace, live, tabs, tab, run, pair)
            for name, label in TABS:
                with gr.Tab(label, id=name, elem_id=f"tab-{name}"):
                    _BUILDERS[name](page)
        live.attach(tab)
        _follow_tabs(blocks, page)
    return blocks


def header_view(view: View) -> Html:
    """The name, and the running job, on every tab."""
    alive = [state for state in view.jobs if state.alive]
    running = next((state for state in alive if state.status in ("running", "stopping")), None)
    if running is not None:
        share = job_views.progress_share(running)
        text = job_views.job_title(running) + (f", {share:.0%}" if share is not None else "")
        pill = span("pill busy", span("pulse"), text)
    elif alive:
        pill = span("pill wait", "Job waiting")
    else:
        pill = span("pill", "No job running")
    return _header(pill)


def others_view(open_pages: tuple[Path, ...]) -> Html:
    """A notice while the workspace is open in several apps."""
    if len(open_pages) < 2:
        return NOTHING
    where = ", ".join(app_instances.app_addresses(open_pages))
    return job_views.notice(f"This workspace is open in {len(open_pages)} apps ({where}). All of them show the same "
                            f"jobs.")


def _header(pill: Html) -> Html:
    """The logo (three bars and a new one), the name and the state of the jobs."""
    bars = ((7, 13, 8), (13, 9, 16), (19, 12, 10))
    drawn = [element("rect", x=x, y=y, width=3.4, height=height, rx=1.7, fill="#fff") for x, y, height in bars]
    logo = element("svg", element("rect", width=34, height=34, rx=10, fill="var(--primary-600)"), *drawn,
                   element("rect", x=25, y=7, width=3.4, height=20, rx=1.7, fill="#f2b04c"),
                   viewBox="0 0 34 34", class_="brand-mark", aria_hidden="true")
    return div("top", div("brand", logo, element("span", "Lisan", class_="brand-name")), pill)


def _follow_tabs(blocks: gr.Blocks, page: Page) -> None:
    """Open the tab that the address names, keep the address up to date, refresh on each change."""
    live = page.live

    def tab_of(event: gr.SelectData) -> str:
        return next((name for name, label in TABS if label == event.value), "start")

    def loaded(request: gr.Request) -> list[object]:
        name = request.query_params.get("tab", "start")
        if name == "start" or name not in _LABELS:
            return [gr.skip(), gr.skip()]  # open already, unless a person was faster than this answer
        return [gr.Tabs(selected=name), name]

    page.tabs.select(tab_of, None, [page.tab], **QUIET).then(live.refresh, live.inputs, live.outputs, **QUIET)
    page.tabs.change(None, None, None, js="() => { window.lisanRememberTab && window.lisanRememberTab(); }")
    blocks.load(loaded, None, [page.tabs, page.tab], **QUIET).then(
        live.refresh, live.inputs, live.outputs, **QUIET)
