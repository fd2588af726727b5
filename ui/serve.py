"""The Serve section of the Share tab: a server of OpenAI's speech API, with its address, key and an example."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

import gradio as gr

from config.errors import UserError
from config.schema import ServeOptions
from core.jobs import control
from core.jobs.state import JobState
from core.library import lineage
from ui import job_views, verb_form
from ui.form import Value, parse
from ui.live import View, choice_update
from ui.markup import NOTHING, Html, element, join, paragraph
from ui.page import Page
from ui.titles import title_of

TAB = "share"
_FIELDS = ("models", "host", "port", "key_file", "accept_outcome")
_KEY_VARIABLE = "LISAN_SERVE_KEY"


def build(page: Page) -> None:
    """Lay out model, address, key and buttons."""
    fields = ServeOptions.model_fields
    gr.HTML(paragraph(
        "Other programs can use a model over OpenAI's speech API. The server holds the device as a job does: a "
        "training that is started meanwhile waits for it.", class_="small"))
    with gr.Row(elem_classes="grid"):
        model = gr.Dropdown([], label="Model", elem_id="serve-model", min_width=200)
        host = gr.Textbox(fields["host"].default, label=fields["host"].title, info=fields["host"].description,
                          max_lines=1, elem_id="serve-host", min_width=150)
        port = gr.Number(fields["port"].default, label=fields["port"].title, info=fields["port"].description,
                         precision=0, minimum=0, maximum=65535, elem_id="serve-port", min_width=110)
    key_file = gr.Textbox("", label=fields["key_file"].title, info=fields["key_file"].description, max_lines=1,
                          elem_id="serve-key-file")
    accept = gr.Checkbox(False, label=fields["accept_outcome"].title, info=fields["accept_outcome"].description,
                         elem_id="serve-accept")
    widgets = (model, host, port, key_file, accept)
    with gr.Row(elem_classes="controls"):
        start = gr.Button("Serve", variant="primary", size="md", scale=0, min_width=160, elem_id="serve")
        stop = gr.Button("Stop", size="md", scale=0, min_width=110, elem_id="stop-serve")
    notice = gr.HTML(elem_classes="notices")
    server = gr.HTML(elem_id="serve-result")
    command = verb_form.command_fold("serve")

    # The command below the form follows what is typed.
    for name, widget in zip(_FIELDS, widgets, strict=True):
        page.live.watch(f"serve.{name}", widget)

    def model_choices(view: View) -> object:
        offered = _references(page, view)
        return choice_update(offered, view.follow("serve.models", view.values["serve.models"],
                                                   [reference for _, reference in offered], _newest(view)))

    page.live.panel(model, model_choices, TAB)
    page.live.panel(server, server_view, TAB)
    page.live.panel(command, lambda view: verb_form.command_view(
        page, "serve", _options([view.values[f"serve.{name}"] for name in _FIELDS])), TAB)
    page.live.show_when(stop, lambda view: view.newest("serve"),
                        lambda job: job.alive and job.status != "stopping", TAB)

    def begin(*values: Value) -> Sequence[object]:
        return [page.started_notice(page.start("serve", _options(values)))]

    def stop_all() -> Sequence[object]:
        for state in page.live.board.states():
            if state.verb == "serve" and state.alive:
                control.stop(state.job)
        return [job_views.notice("Stopping. Requests that are computed may end.")]

    page.on(start.click, begin, list(widgets), [notice])
    page.on(stop.click, stop_all, [], [notice])


def _options(values: Sequence[Value]) -> ServeOptions:
    settings = dict(zip(_FIELDS, values, strict=True))
    if not settings["models"]:
        raise UserError("Model: nothing is chosen.", "Export a run first, or download a base model.")
    return parse(ServeOptions, {**settings, "models": (str(settings["models"]),)})


def _references(page: Page, view: View) -> list[tuple[str, str]]:
    """Title and reference of exports, runs and base models."""
    models = lineage.list_models(page.workspace, list(view.jobs))
    kinds = ("export", "run", "base")
    return [(title_of(page.workspace, model.reference), model.reference)
            for model in sorted(models, key=lambda model: kinds.index(model.kind))]


def _newest(view: View) -> str:
    name = verb_form.newest_made(view, "export")
    return f"export:{name}" if name else ""


def server_view(view: View) -> Html:
    """The newest server: its card, where it is reached and how, and who holds the device."""
    state = view.newest("serve")
    if state is None:
        return NOTHING
    holder = next((other for other in view.alive if other.has_device and other.job.device == state.job.device), None)
    held = job_views.job_title(holder) if holder is not None else "nobody"
    facts: list[tuple[str, object]] = []
    example = NOTHING
    address = server_address(state) if state.alive else None
    if address:
        facts += [("Address", address), ("Key", _key_text(state))]
        example = element("pre", curl_command(state, address), class_="command")
    if state.alive:
        facts.append((f"Device {state.job.device} is held by", held))
    return join((job_views.job_card(state), job_views.facts(facts) if facts else NOTHING, example))


def server_address(state: JobState) -> str:
    """The base address for clients; empty until it listens."""
    port = state.plan.counts.get("port") if state.plan is not None else None
    if not port or not state.has_device:
        return ""
    host = str(state.job.settings.get("host", ServeOptions.model_fields["host"].default))
    return f"http://{f'[{host}]' if ':' in host else host}:{port:.0f}/v1"


def _has_key(state: JobState) -> bool:
    return state.plan is not None and bool(state.plan.counts.get("key"))


def _key_text(state: JobState) -> str:
    if not _has_key(state):
        return "none needed on this machine"
    file = str(state.job.settings.get("key_file", ""))
    return f"in {file}" if file else f"in {_KEY_VARIABLE}"


def curl_command(state: JobState, address: str) -> str:
    """A command that saves a sentence as MP3; it takes the key from where it is stored."""
    body = json.dumps({"model": "tts-1", "voice": "default", "input": "..."})
    words = ["curl", f"{address}/audio/speech", "-H", "Content-Type: application/json", "-d", body, "-o", "speech.mp3"]
    command = shlex.join(words)
    if not _has_key(state):
        return command
    file = str(state.job.settings.get("key_file", ""))
    key = f"$(cat {shlex.quote(file)})" if file else f"${_KEY_VARIABLE}"
    return f'{command} -H "Authorization: Bearer {key}"'
