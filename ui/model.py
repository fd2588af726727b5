"""Model tab: the base models, and the download of one from the Hub or its import from a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gradio as gr

from config.schema import DownloadOptions
from core.jobs import control
from core.jobs.events import Result
from core.jobs.job import Job
from core.jobs.reporter import size_text
from core.jobs.state import JobState
from core.library import artefacts
from core.library.catalog import CATALOG, CatalogEntry, ModelVariant, require_licences, variant
from core.library.lineage import Model
from core.library.records import read_model_record
from core.sources import unknown_files
from core.sources.base_models import licence_lines
from ui import job_views, verb_form
from ui.doctor import assessment_view, diagnosis_of
from ui.form import parse
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span, with_code
from ui.page import Page

_IMPORTED = ("base", "checkpoint", "tokenizer", "language")
_CHOICES = ("variant", "folder", "save_as", "revision", "accept_licence", "accept_unknown", "probe")


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header("Base models", "A multilingual text-to-speech model to add a language to.",
                         "To use a model that was fine-tuned elsewhere: Import a finetune, at the end. To inspect one "
                         "only, open Doctor (under System).")
    for family in CATALOG:
        with gr.Column(elem_classes="family"):
            _build_family(page, family)
    _build_import(page)
    verb_form.build_damaged(page, "model", "model")


def _build_import(page: Page) -> None:
    """The form that imports a finetune, its job, and what it changed of its base."""
    with gr.Column(elem_classes="card", elem_id="import-finetune"):
        gr.HTML(join((element("h2", "Import a finetune"), paragraph(
            "A checkpoint that was fine-tuned elsewhere becomes a run: synthesize with it, evaluate, certify, train it "
            "further and export it. Every tensor is compared with the base; what it changed is measured, never called "
            "preserved. Its files stay unchanged.", class_="small"))))
        verb_form.build_verb_form(page, "import_model", "Import", first=_IMPORTED,
                                  choices={"base": lambda _view: page.workspace.list_models()})
        result = gr.HTML(elem_id="imported-finetune")
        render = verb_form.last_job_view("import_model", "No finetune was imported yet.", _imported_view)
        page.live.panel(result, render, "model")


def _imported_view(state: JobState) -> Html:
    """What was imported, and what it changed of its base."""
    result = state.result or {}
    facts = job_views.facts([("Run", result.get("ref")), ("Extension", result.get("extension")),
                             ("New rows", result.get("new_rows")), ("Changed tensors", result.get("changed")),
                             ("Scope", result.get("scope"))])
    diagnosis = diagnosis_of(state)
    return join((facts, assessment_view(diagnosis) if diagnosis else NOTHING))


def _build_family(page: Page, family: CatalogEntry) -> None:
    """The card of a family, and the choices, buttons and progress of its download."""
    card = gr.HTML(elem_id=f"family-{family.name}")
    chosen = _lay_out_choices(page, family) if family.variants else []
    with gr.Row(elem_classes="controls"):
        get = gr.Button("Download", variant="primary", size="md", scale=0, min_width=160, elem_id=f"get-{family.name}")
        stop = gr.Button("Stop", size="md", scale=0, min_width=110, elem_id=f"stop-{family.name}")
        resume = gr.Button("Resume", size="md", scale=0, min_width=110, elem_id=f"resume-{family.name}")
    notice = gr.HTML(elem_classes="notices")
    progress = gr.HTML(elem_id=f"progress-{family.name}")

    live = page.live
    # The card tells what is in the workspace and what of it is damaged.
    def show_card(_view: View) -> Html:
        downloaded = _downloaded(page, family)
        return family_card(family, downloaded, _broken(page, downloaded))

    live.panel(card, show_card, "model")
    live.panel(get, lambda view: _download_button(page, family, view), "model")
    for button, test in ((stop, lambda job: job.alive and job.status != "stopping"),
                         (resume, lambda job: job.resumable)):
        live.show_when(button, lambda view: _newest(view.jobs, family) if family.variants else None, test, "model")
    live.panel(progress, lambda view: _progress(view, family), "model")
    page.on(get.click, lambda *values: _start(page, family, values), chosen, [notice])

    def act(action: Callable[[Job], None], message: str) -> Sequence[object]:
        state = _newest(live.board.states(), family)
        if state is not None:
            action(state.job)
        return [job_views.notice(message)]

    page.on(stop.click, lambda: act(control.stop, "Download paused; progress is saved."), [], [notice])
    page.on(resume.click, lambda: act(control.resume, "Download resumed."), [], [notice])


def _lay_out_choices(page: Page, family: CatalogEntry) -> list[gr.components.Component]:
    """Variant and source; the widgets are in the order of `_CHOICES`."""
    fields = DownloadOptions.model_fields

    def text(name: str, value: str = "") -> gr.Textbox:
        return gr.Textbox(value, label=fields[name].title, info=fields[name].description, max_lines=1, min_width=200,
                          elem_id=f"{family.name}-{name.replace('_', '-')}")


    which = gr.Dropdown([(entry.title, entry.name) for entry in family.variants], value=family.variants[0].name,
                        label="Variant", filterable=False, elem_id=f"{family.name}-variant", min_width=200)
    about = gr.HTML(elem_id=f"about-{family.name}")
    accept = gr.Checkbox(False, label=f"I have read and accept: {'; '.join(item.title for item in family.licences)}",
                         visible=bool(family.licences), elem_id=f"{family.name}-accept-licence")
    with gr.Accordion("Import from a local folder", open=False, elem_classes="fold"):
        folder = text("folder")
    with gr.Accordion("Name and revision", open=False, elem_classes="fold"), gr.Row(elem_classes="grid"):
        save_as, revision = text("save_as"), text("revision", str(fields["revision"].default))
    # Other files than the published ones are used only if a person accepts them.
    unknown = gr.CheckboxGroup([], label="Accept as a base model", visible=False,
                               elem_id=f"{family.name}-accept-unknown",
                               info="These files are not the published ones; certificates then say “unknown base”.")
    probe = gr.Checkbox(True, label=fields["probe"].title, info=fields["probe"].description,
                        elem_id=f"{family.name}-probe")
    command = verb_form.command_fold(family.name)

    # The widgets are in the order of `_CHOICES`, by which their values are named.
    widgets = [which, folder, save_as, revision, accept, unknown, probe]
    for name, widget in zip(_CHOICES, widgets, strict=True):
        page.live.watch(f"{family.name}.{name}", widget)

    page.live.panel(about, lambda view: variant_view(family, variant(family, view.values[f"{family.name}.variant"])),
                    "model")
    page.live.panel(unknown, lambda view: _offer_unknown(family, view), "model")
    page.live.panel(command, lambda view: verb_form.command_view(
        page, "download", _options(family, [view.values[f"{family.name}.{name}"] for name in _CHOICES])), "model")
    page.on(which.input, lambda: [gr.skip()], [], [about])
    return widgets


def _offer_unknown(family: CatalogEntry, view: View) -> object:
    """The unknown files that the newest download refused, each to be accepted by name."""
    state = _newest(view.jobs, family)
    files = unknown_files.read(state.job.directory) if state is not None and state.status == "failed" else ()
    return gr.update(choices=[(f"{file.path}: {file.reason}", file.path) for file in files], visible=bool(files))


def variant_view(family: CatalogEntry, chosen: ModelVariant) -> Html:
    """The files of a variant, with size, and the licence of each part."""
    files = [(part.repository, ", ".join(choice[0] for choice in part.files)) for part in chosen.parts]
    terms = [("Languages", chosen.languages), ("Licence", family.licence), ("Size", family.size), *files]
    licences = [paragraph(line, class_="small") for line in licence_lines(chosen)]
    return div("family-card", _terms(terms), *licences)


def _downloaded(page: Page, family: CatalogEntry) -> list[str]:
    """Names of the models of this family in the workspace."""
    damaged = artefacts.damaged(page.workspace, "model")
    return [name for name in page.workspace.list_models()
            if name not in damaged and Model.open(page.workspace, f"base:{name}").family_name == family.name]


def _broken(page: Page, downloaded: Sequence[str]) -> list[str]:
    """Those of the models that their probe found broken."""
    records = ((name, read_model_record(page.workspace.model(name))) for name in downloaded)
    return [name for name, record in records if record and record.probe and record.probe.outcome == "broken"]


def family_card(family: CatalogEntry, downloaded: Sequence[str], broken: Sequence[str] = ()) -> Html:
    """One family: description, languages, licence and size, and its models in the workspace."""
    if downloaded:
        own_name = list(downloaded) == [family.name]
        state = span("badge good", "in the workspace" + ("" if own_name else f" as {', '.join(downloaded)}"))
        if broken:
            state = span("badge bad", f"broken: {', '.join(broken)}")
    else:
        state = span("badge wait", "not downloaded")
    terms = [] if family.variants else [
        ("Languages", family.languages), ("Licence", family.licence), ("Size", family.size)]
    return div("family-card", div("ends", element("h2", family.title), state), paragraph(family.what), _terms(terms),
               paragraph(with_code(family.note), class_="small"))


def _terms(pairs: Sequence[tuple[str, str]]) -> Html:
    if not pairs:
        return NOTHING
    return element("dl", *(join((element("dt", name), element("dd", value))) for name, value in pairs))


def _newest(states: Sequence[JobState], family: CatalogEntry) -> JobState | None:
    """The download of this family to show: a living one, else the newest."""
    jobs = [state for state in states if state.verb == "download" and state.job.settings.get("model") == family.name]
    return next((state for state in jobs if state.alive), jobs[0] if jobs else None)


def _download_button(page: Page, family: CatalogEntry, view: View) -> object:
    downloaded = bool(_downloaded(page, family))
    state = _newest(view.jobs, family)
    busy = state is not None and state.alive
    label = "Downloading" if busy else "Download again" if downloaded and not family.variants else "Download"
    return gr.update(value=label, interactive=not busy, variant="secondary" if downloaded else "primary")


def _progress(view: View, family: CatalogEntry) -> Html:
    state = _newest(view.jobs, family)
    if state is None:
        return NOTHING
    variant_name = state.job.settings.get("variant")
    title = f"Download {family.title}" + (f", {variant_name}" if variant_name else "")
    card = job_views.job_card(state, title)

    if state.result is not None and family.variants:
        return join((card, result_view(state.result)))
    return join((card, job_views.plan(state.plan.lines, "Files to download") if state.plan else NOTHING))


def result_view(result: Result) -> Html:
    """The result of a download, as tiles."""
    return job_views.facts([
        ("Outcome", result.get("outcome")), ("Probe", result.get("probe") or "not probed"),
        ("Name", result.get("model")), ("Files", result.get("files")),
        ("Size", size_text(float(result.get("bytes") or 0))),
        ("Downloaded", size_text(float(result.get("bytes_fetched") or 0))),
        ("Commit", str(result.get("revision") or "unknown")[:12]),
    ])


def _options(family: CatalogEntry, values: Sequence[object]) -> DownloadOptions:
    """The options of a download; the tick stands for the licences of the variant."""
    chosen = dict(zip(_CHOICES, values, strict=False))
    chosen["accept_unknown"] = tuple(chosen.get("accept_unknown") or ())  # type: ignore[arg-type]
    if chosen.pop("accept_licence", False):
        chosen["accept_licence"] = tuple(licence.name for licence in variant(family, str(chosen["variant"])).licences)
    return parse(DownloadOptions, {"model": family.name, **chosen})


def _start(page: Page, family: CatalogEntry, values: Sequence[object]) -> Sequence[object]:
    """Start the download, once the licences of all parts are accepted."""
    options = _options(family, values)
    if family.variants and not _downloaded(page, family):
        require_licences(family, variant(family, options.variant), options.accept_licence)
    return [page.started_notice(page.start("download", options))]


