"""Data tab: import recordings, check them, and show the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import gradio as gr

from config.errors import UserError
from core.dataset.review import index_of
from core.jobs.reporter import duration_text, pluralize
from core.jobs.state import JobState
from core.library import dataset_recognisers
from core.sources import source_preview
from core.sources.source_preview import ValidationReport
from core.text import text_rules
from ui import clip_review, job_views, long_audio, recording, records, uploads, verb_form
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, table, with_code
from ui.page import Page

_SHOWN_FINDINGS, _MOST_FINDINGS = 5, 80  # shown at once, and shown with those in a fold
_STAYS = "What you uploaded stays in the list: add what is missing to it."


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header(
        "Recordings", "Clips with their texts, in almost any form: it is detected, and unusable clips are listed.")
    choices = {"model": lambda view: page.workspace.list_models(),
               "add_to": lambda view: ["", *page.workspace.list_datasets()],
               "rules": lambda view: ["", *text_rules.choices(
                   page.workspace, view.values["prepare.language"].strip().lower())]}
    verb_form.build_prerequisites(page, "prepare", "data", choices)

    # The upload and what was found in it are on the left; the form and its results are on the right.
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            upload = gr.File(file_count="multiple", type="filepath", height=160, elem_id="prepare-upload",
                             label="Upload an archive or several files")
            gr.HTML(uploads.format_help())
            listen_to_recording = recording.build(page)
            notice = gr.HTML(elem_classes="notices", elem_id="prepare-look")
            listen_to_voice = _build_voice(page)
        with gr.Column(scale=3, min_width=300):
            form, start = verb_form.build_verb_form(
                page, "prepare", "Prepare dataset", choices=choices, defaults={"source": ""},
                first=("source", "dataset", "language", "model"))
            last = gr.HTML(elem_id="prepare-result")

    def result(view: View) -> Html:
        last_view = verb_form.last_job_view("prepare", "", lambda state: report(page, state))
        return last_view(view) if view.newest("prepare") else NOTHING

    page.live.panel(last, result, "data")

    # What follows the upload is shown when there is something to do.
    long_audio.build(page, form, notice)
    long_audio.build_results(page, form, notice)
    long_audio.build_typing(page)
    clip_review.build(page)
    _build_recogniser(page)
    listing = gr.HTML()
    page.live.panel(listing, lambda view: dataset_list(page, view), "data")

    # The source is assessed as soon as it is typed or uploaded.
    source, language = form.widget("source"), form.widget("language")
    page.on(upload.upload, lambda *values: _take(page, *values), [upload, language, form.widget("model")],
            [notice, source, upload], files=True)
    for event in (source.submit, source.blur, language.submit, language.blur):
        page.on(event, lambda text, code: [look(page, text, code)], [source, language], [notice])
    page.on(start.click, lambda text, code: [_keep_preview(text, code)], [source, language], [notice])
    listen_to_recording(form, notice)
    listen_to_voice()


def look(page: Page, source: str, language: str) -> Html:
    """The assessment of the source, and its detected format."""
    source, language = str(source or "").strip(), str(language or "").strip().lower()
    detected = preview(source, language)  # raises what is wrong with it
    return join((uploads.assessment_view(page.workspace, source, language), detected))


def _build_voice(page: Page) -> Callable[[], None]:
    """The voice of the source, or of the reviewed dataset, through the chosen model; a function that adds the listener.
    """
    with gr.Column(visible=False) as block:
        button = gr.Button("Hear this voice through the model", size="md", elem_id="prepare-hear")
        notice = gr.HTML(elem_classes="notices")
        listening = gr.HTML(elem_id="prepare-voice")

    def newest(view: View) -> JobState | None:
        model, source = view.values["prepare.model"], view.values["prepare.source"].strip()
        return uploads.newest_reproduction(view, model, source, "" if source else view.values["review.dataset"])

    def start(source: str | None, language: str | None, model: str | None, dataset: str | None) -> Sequence[object]:
        source = (source or "").strip()
        if not source and not dataset:
            raise UserError("There are no recordings yet.", "Upload some, or give a path as the source.")
        uploads.start_reproduction(page, model or "tiny", source, (language or "").strip().lower(),
                                   "" if source else dataset or "")
        return [NOTHING]

    def listen() -> None:
        names = ("prepare.source", "prepare.language", "prepare.model", "review.dataset")
        page.on(button.click, start, [page.live.watched[name] for name in names], [notice])

    page.live.panel(listening, lambda view: uploads.reproduction_view(newest(view)), "data")
    page.live.panel(block, lambda view: gr.update(visible=bool(
        view.values["prepare.source"].strip() or page.workspace.list_datasets())), "data")
    return listen


def _build_recogniser(page: Page) -> None:
    """The fold that trains the recogniser of a dataset, and its result."""
    with gr.Accordion("Recogniser of a dataset", open=False, visible=False, elem_id="recogniser-fold",
                      elem_classes="fold") as fold:
        gr.HTML(paragraph(
            "A recogniser (ASR) that is trained on the dataset measures speech in its language. Preparing 10 minutes "
            "or more trains it; here it is trained for an older or a smaller dataset. At most 3 minutes on two cores "
            "per hour of speech.", class_="small"))
        verb_form.build_verb_form(page, "recogniser", "Train recogniser", first=("dataset", "again"),
                                  choices={"dataset": lambda view: page.workspace.list_datasets()})
        last = gr.HTML(elem_id="recogniser-result")
        page.live.panel(fold, lambda view: gr.update(visible=bool(page.workspace.list_datasets())), "data")
        page.live.panel(last, verb_form.last_job_view("recogniser", "What it was trained on and its error appear "
                                                                    "here."), "data")


def save_upload(page: Page, files: Sequence[str] | str | None, language: str) -> Sequence[object]:
    """Save what was uploaded and make it the source: what was recognised, the path, and an update of the list.

    Files that are refused stay in the list, as their text or recording may be added to them.
    """
    paths = [Path(path) for path in ([files] if isinstance(files, str) else files or ())]
    saved = str(source_preview.store_upload(page.workspace, paths))
    try:
        report_html = join((uploads.assessment_view(page.workspace, saved, language), preview(saved, language)))
    except UserError as error:
        return [job_views.fault(error.message, f"{error.hint} {_STAYS}".strip()), saved, gr.skip()]
    source_preview.forget_upload(paths)
    return [report_html, saved, None]


def _take(page: Page, files: Sequence[str] | str | None, language: str, model: str | None) -> Sequence[object]:
    """Save what was uploaded, and let a job pass three clips through the codec and vocoder of the model."""
    report_html, saved, remaining = save_upload(page, files, language)
    if remaining is None:  # nothing was refused
        uploads.start_reproduction(page, model or "tiny", str(saved), str(language or "").strip().lower())
    return [report_html, saved, remaining]


def preview(source: str, language: str) -> Html:
    """The detected format of the source, before it is prepared."""
    source, language = str(source or "").strip(), str(language or "").strip().lower()
    lines = source_preview.preview(source, language)
    # A text in an unexpected script usually has the wrong language code.
    question = source_preview.script_question(source, language) if lines and language else ""
    notice = div("notice wait", element("strong", with_code(question)), paragraph(
        "Is the language right? “Accept any script” imports the texts as they are."))
    return join((div("notice info", *(paragraph(with_code(line)) for line in lines)) if lines else NOTHING,
                 notice if question else NOTHING))


def _keep_preview(source: str, language: str) -> object:
    """Keep a preview, but drop its error: the start shows it beside its own button."""
    try:
        source_preview.preview(str(source or "").strip(), language)
    except UserError:
        return NOTHING
    return gr.skip()


def report(page: Page, state: JobState) -> Html:
    """The report of a dataset's check, and its speakers."""
    name = str(state.job.settings.get("dataset", ""))
    check = source_preview.read_report(page.workspace.datasets / name)
    if check is None:
        return job_views.result_facts(state.result)
    try:
        speakers = clip_review.speakers_view(index_of(page.workspace, name).speakers(clip_review.SHOWN_SPEAKERS))
    except UserError:  # its clips are not measured
        speakers = NOTHING
    return join((clip_review.match_view(check.text_match), report_view(check), speakers))


def report_view(report: ValidationReport) -> Html:
    """Counts as tiles, then each error and warning with its place."""
    parts = [*(paragraph(line, class_="small") for line in report.notes), job_views.facts([
        ("Found", pluralize(report.found, "clip")), ("Usable", pluralize(report.kept, "clip")),
        ("Speech", duration_text(report.duration_s)), ("Characters", len(report.characters)),
        ("Silence trimmed", f"{duration_text(report.trimmed_s)} of {pluralize(report.trimmed_clips, 'clip')}"
                            if report.trimmed_clips else "none"),
    ])]
    if report.dropped:
        removed = ", ".join(f"{character} {count} times" for character, count in report.dropped.items())
        parts.append(paragraph(f"Punctuation removed by normalisation: {removed}.", class_="small"))

    findings = [(job_views.level_badge(level), finding.where, with_code(finding.message))
                for level, listed in (("error", report.errors), ("warning", report.warnings)) for finding in listed]
    if not findings:
        return join((*parts, job_views.notice("No problems found.", "good")))

    # The worst are in the open; more of them are in a fold, and the rest in the file.
    head = ("", "Where", "Problem")
    parts.append(table(head, findings[:_SHOWN_FINDINGS]))
    folded = findings[_SHOWN_FINDINGS:_MOST_FINDINGS]
    if folded:
        parts.append(element("details", element("summary", f"{len(folded)} more"), table(head, folded)))
    unlisted = len(findings) - _MOST_FINDINGS
    if unlisted > 0:
        parts.append(paragraph(f"{unlisted} more are in the dataset's report.json.", class_="small"))
    return join(parts)


def dataset_list(page: Page, view: View) -> Html:
    """The datasets of the workspace."""
    datasets = records.datasets(page.workspace)
    if not datasets:
        return NOTHING
    rows = [
        (dataset.name, job_views.language_name(dataset.language), *("–" if count is None else str(count) for count in (
            dataset.clips, dataset.held_out_clips)), duration_text(dataset.duration_s),
         _recogniser_text(page, dataset.name), dataset.damage or dataset.licence or "not given")
        for dataset in datasets
    ]
    return element("details", element("summary", f"{pluralize(len(datasets), 'dataset')} in the workspace"),
                   table(("Dataset", "Language", "Clips", "Held out", "Speech", "Recogniser", "Licence"), rows))


def _recogniser_text(page: Page, dataset: str) -> str:
    """The held-out error of the recogniser of a dataset, by language."""
    try:
        record = dataset_recognisers.find(page.workspace, dataset)
    except UserError:
        return "damaged"
    if record is None:
        return "none"
    return ", ".join(f"{language} CER {rate.error:.1%}" for language, rate in record.held_out.items()) or "not tested"
