"""The part of the Certificate tab that uploads an export to the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence

import gradio as gr

from config.errors import UserError
from config.schema import PushOptions
from core.jobs import control
from core.jobs.events import Result
from ui import present
from ui.form import parse
from ui.live import View
from ui.markup import NOTHING, Html, element, join, paragraph
from ui.page import Page


def build(page: Page) -> None:
    """Lay out export, repository and button where the caller stands."""
    fields = PushOptions.model_fields
    gr.HTML(paragraph(
        "An export whose certificate has no failed check goes to a repository of huggingface.co, as one commit. "
        "The token comes from HF_TOKEN in the environment that Lisan was started in, and is kept nowhere.",
        class_="small"))
    with gr.Row(elem_classes="grid"):
        export = gr.Dropdown([], label="Export", elem_id="push-export", min_width=200)
        repository = gr.Textbox("", label="Repository", info=fields["repository"].description, max_lines=1,
                                placeholder="me/my-voice", elem_id="push-repository", min_width=200)
    public = gr.Checkbox(False, label="Let everyone see it", elem_id="push-public")
    with gr.Row(elem_classes="controls"):
        push = gr.Button("Push", variant="primary", size="md", scale=0, min_width=160, elem_id="push")
        stop = gr.Button("Stop", size="md", scale=0, min_width=110, elem_id="stop-push")
    notice = gr.HTML(elem_classes="notices")
    last = gr.HTML(elem_id="push-result")
    page.live.watch("push.export", export)
    page.live.panel(export, lambda view: _offer(page, view), "certificate")
    page.live.panel(stop, _stop_button, "certificate")
    page.live.panel(last, _last_push, "certificate")
    page.on(push.click, lambda *values: _push(page, *values), [export, repository, public], [notice])
    page.on(stop.click, lambda: _stop(page), [], [notice])


def _offer(page: Page, view: View) -> object:
    names = page.workspace.list_exports()
    current = view.chosen["push.export"]
    return gr.update(choices=names, value=current if current in names else names[0] if names else None)


def _push(page: Page, export: str | None, repository: str, public: bool) -> Sequence[object]:
    if not export:
        raise UserError("There is no export yet.", "Export a run first; then it can be pushed.")
    if not os.environ.get("HF_TOKEN"):
        raise UserError("HF_TOKEN is not set where Lisan was started.", "Make a token with write access in the "
                        "settings of the hub, set HF_TOKEN to it, and start Lisan again.")
    job = page.start("push", parse(PushOptions, {"export": export, "repository": repository, "public": public}))
    return [page.begun(job)]


def _stop_button(view: View) -> object:
    state = view.newest("push")
    return gr.update(visible=state is not None and state.alive and state.status != "stopping")


def _stop(page: Page) -> Sequence[object]:
    for state in page.live.board.states():
        if state.verb == "push" and state.alive:
            control.stop(state.job)
    return [present.notice("It stops; nothing is committed.")]


def _last_push(view: View) -> Html:
    state = view.newest("push")
    if state is None:
        return NOTHING
    plan = present.plan(state.plan.lines, "What is pushed") if state.plan else NOTHING
    if state.result is None:
        return join((present.job_card(state), plan))
    return join((present.job_card(state), result_view(state.result)))


def result_view(result: Result) -> Html:
    """Where it is, and what arrived."""
    url = str(result.get("url", ""))
    good = url.startswith(("http://", "https://"))
    link = element("a", url, href=url, target="_blank", rel="noopener") if good else url
    seen_by = "everyone" if result.get("public") else "its owner"
    return join((
        present.notice(join(("It is at ", link)), "good"),
        present.facts([("Commit", str(result.get("commit"))[:12]), ("Files", result.get("files")),
                       ("Size", present.size(float(result.get("bytes") or 0))), ("Seen by", seen_by)]),
    ))
