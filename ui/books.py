"""The Books section of the Listen tab: a book as an audiobook, with progress, stop, resume and the finished files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gradio as gr

from config.errors import UserError
from config.schema import BookOptions
from core.jobs.reporter import size_text
from core.jobs.state import JobState
from core.library import lineage, reference_voices
from core.library.lineage import Model
from core.sources import source_preview
from core.text.manuscript import describe, open_book, read_pronunciations
from core.workspace import Workspace
from ui import job_views, media, verb_form
from ui.form import Value, build_form, parse
from ui.live import View
from ui.markup import NOTHING, Html, element, join, paragraph
from ui.page import Page

TAB = "listen"
_FIRST = ("m4b", "mp3", "subtitles", "unknown")
_BESIDE = ("book", "voice_model", "language", "voice", "pronunciations", "output")
"""Options with widgets of their own, and the folder on this machine, which only the command line has."""
_BOOKS = [".epub", ".html", ".htm", ".xhtml", ".md", ".markdown", ".txt"]
_OF_BOOK, _FIRST_VOICE = ("As the book says", ""), ("First voice of the model", "")
_KINDS = ("export", "run", "base")  # The order in which models are offered.


def build(page: Page) -> None:
    """Lay out the section and add its listeners."""
    with gr.Accordion("Read a book", open=False, elem_classes="fold", elem_id="books"):
        gr.HTML(paragraph("EPUB, HTML, Markdown or plain text becomes an audiobook with chapters (M4B), a file for "
                          "each chapter (MP3) and subtitles. A stopped job resumes at the sentence where it ended.",
                          class_="small"))
        with gr.Row(elem_classes="grid"):
            upload = gr.File(label="Book", file_types=_BOOKS, elem_id="book-file", height=120,
                             min_width=280)
            list_upload = gr.File(label="Pronunciation list (word -> spelling, one a line)", file_types=[".txt"],
                                  elem_id="book-pronunciations", height=120, min_width=280)
        book_notice = gr.HTML(elem_classes="notices", elem_id="book-notice")
        list_notice = gr.HTML(elem_classes="notices")
        book, pronunciations = gr.Textbox("", visible="hidden"), gr.Textbox("", visible="hidden")
        with gr.Row(elem_classes="grid"):
            model = gr.Dropdown([], label="Model", elem_id="book-model", min_width=200)
            language = gr.Dropdown([_OF_BOOK], value="", label="Language", elem_id="book-language", min_width=150)
            voice = gr.Dropdown([_FIRST_VOICE], value="", label="Voice", elem_id="book-voice", min_width=150)
        form = build_form(BookOptions, first=_FIRST, leave_out=_BESIDE)
        with gr.Row(elem_classes="controls"):
            start = gr.Button("Read the book", variant="primary", size="md", scale=0, min_width=160, elem_id="run-book")
            stop = gr.Button("Stop", size="md", scale=0, min_width=110, elem_id="stop-book", visible=False)
            resume = gr.Button("Resume", size="md", scale=0, min_width=110, elem_id="resume-book", visible=False)
        notice = gr.HTML(elem_classes="notices")
        result = gr.HTML(elem_id="book-result")
        command = verb_form.command_fold("book")

    def options(*values: Value) -> BookOptions:
        chosen = dict(zip(("book", "pronunciations", "voice_model", "language", "voice"), values, strict=False))
        if not chosen["book"]:
            raise UserError("No book was given.", "Upload an EPUB, HTML, Markdown or text file.")
        if not chosen["voice_model"]:
            raise UserError("Model: nothing is chosen.", "Export a run first, or download a base model.")
        return parse(BookOptions, {**chosen, **dict(zip(form.names, values[len(chosen):], strict=True))})

    # The page remembers the fields, so that the command and the voices follow them.
    widgets = [book, pronunciations, model, language, voice, *form.widgets]
    names = ("book", "pronunciations", "voice_model", "language", "voice", *form.names)
    live = page.live
    for name, widget in zip(names, widgets, strict=True):
        live.watch(f"book.{name}", widget)
    live.panel(model, lambda view: _model_choices(page, view), TAB)
    live.panel(language, lambda view: _language_choices(page, view), TAB)
    live.panel(voice, lambda view: _voice_choices(page, view), TAB)
    live.panel(result, book_view, TAB)
    live.panel(command, lambda view: _command(page, view, options, names), TAB)
    live.show_when(stop, _shown_job, lambda job: job.alive and job.status != "stopping", TAB)
    live.show_when(resume, _shown_job, lambda job: job.resumable, TAB)

    page.on(upload.upload, partial(_uploaded_book, page.workspace), [upload], [book_notice, book], files=True)
    page.on(upload.clear, lambda: [NOTHING, ""], [], [book_notice, book])
    page.on(list_upload.upload, partial(_uploaded_list, page.workspace), [list_upload], [list_notice, pronunciations],
            files=True)
    page.on(list_upload.clear, lambda: [NOTHING, ""], [], [list_notice, pronunciations])
    page.on(start.click, lambda *values: [page.started_notice(page.start("book", options(*values)))], widgets, [notice])
    page.on(stop.click, lambda: page.stop(_newest_id(page)), [], [notice])
    page.on(resume.click, lambda: page.resume(_newest_id(page)), [], [notice])


def _shown_job(view: View) -> JobState | None:
    return view.newest("book")


def _newest_id(page: Page) -> str:
    state = _shown_job(View(TAB, {}, tuple(page.live.board.states())))
    if state is None:
        raise UserError("There is no job that reads a book.", "Start one.")
    return state.id


def _uploaded_book(workspace: Workspace, path: str | None) -> Sequence[object]:
    """Store the book for its job, and describe it; `UserError` for one that cannot be read."""
    if not path:
        return [NOTHING, ""]
    book = open_book(path)
    # The page's copy is deleted after a day; a job may be resumed later.
    stored = source_preview.store_upload(workspace, [Path(path)])
    return [job_views.notice(" ".join((describe(book), *book.notes))), str(stored)]


def _uploaded_list(workspace: Workspace, path: str | None) -> Sequence[object]:
    if not path:
        return [NOTHING, ""]
    count = len(read_pronunciations(path))
    stored = source_preview.store_upload(workspace, [Path(path)])
    return [job_views.notice(f"{count:,} word{'' if count == 1 else 's'}."), str(stored)]


def _models(page: Page, view: View) -> list[Model]:
    models = lineage.list_models(page.workspace, list(view.jobs))
    return sorted(models, key=lambda model: _KINDS.index(model.kind))


def _chosen(page: Page, view: View) -> Model | None:
    reference = view.values["book.voice_model"]
    return next((model for model in _models(page, view) if model.reference == reference), None)


def _model_choices(page: Page, view: View) -> object:
    references = [model.reference for model in _models(page, view)]
    name = verb_form.newest_made(view, "export")
    current = view.follow("book.voice_model", view.values["book.voice_model"], references,
                          f"export:{name}" if name else "")
    return gr.update(choices=verb_form.titled_choices(page.workspace, references),
                     value=current if current in references else next(iter(references), None))


def _language_choices(page: Page, view: View) -> object:
    model = _chosen(page, view)
    codes = _languages(page, model) if model is not None else ()
    current = view.values["book.language"]
    return gr.update(choices=[_OF_BOOK, *((job_views.language_name(code), code) for code in codes)],
                     value=current if current in codes else "")


def _languages(page: Page, model: Model) -> Sequence[str]:
    try:
        return model.languages
    except UserError:
        return ()  # a damaged model; the button says so


def _voice_choices(page: Page, view: View) -> object:
    """The voices of the model, speakers of its training data, and recordings of the workspace."""
    model = _chosen(page, view)
    offered = [_FIRST_VOICE]
    if model is not None:
        try:
            offered += [(name, name) for name in model.voices]
            if model.kind != "base":
                offered += [(f"{name or 'unnamed'} (training data)", f"{reference_voices.SPEAKER}{name}")
                            for name in model.speakers()]
        except UserError:
            pass  # a damaged model; the button says so
    offered += [(f"{path.stem} (recording)", str(path)) for path in reference_voices.list_recordings(page.workspace)]
    current = view.values["book.voice"]
    return gr.update(choices=offered, value=current if current in [value for _, value in offered] else "")


def _command(page: Page, view: View, options: Callable[..., BookOptions], names: Sequence[str]) -> Html:
    """The command that equals the form; nothing before a book is chosen."""
    if not view.values["book.book"]:
        return NOTHING
    return verb_form.command_view(page, "book", options(*(view.values[f"book.{name}"] for name in names)))


def book_view(view: View) -> Html:
    """The newest job that reads a book: its card, and the finished files."""
    state = _shown_job(view)
    if state is None:
        return NOTHING
    if state.status != "finished":
        return job_views.job_card(state)
    links = [element("li", element("a", path.name, href=media.book_url(state.id, path.name), download=True),
                     f" ({size_text(path.stat().st_size)})") for path in _files(state)]
    files = element("ul", *links, class_="findings") if links else paragraph("The files were deleted.")
    return join((job_views.job_card(state), job_views.result_facts(state.result), files))


def _files(state: JobState) -> list[Path]:
    folder = state.job.directory / media.BOOK
    return sorted(path for path in folder.iterdir() if path.suffix in media.BOOK_TYPES) if folder.is_dir() else []
