"""Settings of another training program on the Train tab: what each key corresponds to here, and the form filled in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import gradio as gr
import yaml

from config import foreign_settings
from config.errors import UserError
from config.foreign_settings import Translation
from config.schema import TrainOptions, in_sections, option_fields
from core.jobs.reporter import pluralize
from core.sources import source_preview
from ui import job_views
from ui.form import OptionsForm
from ui.markup import NOTHING, Html, element, join, paragraph, table
from ui.page import Page

_LONGEST_VALUE = 60  # characters that are shown


def build(page: Page, form: OptionsForm) -> None:
    """Lay out the section; `form` is that of a new run, which a button fills in."""
    with gr.Accordion("Settings of another program", open=False, elem_classes="fold", elem_id="foreign-settings"):
        gr.HTML(paragraph("A YAML file such as training_config.yaml of another finetuning project: each of its keys is "
                          "looked up, and those that have an option here can be filled in above. At a command line: ",
                          element("code", "python -m scripts import_config FILE --output preset.yaml"), class_="small"))
        upload = gr.File(file_count="single", type="filepath", height=100, elem_id="foreign-settings-upload",
                         label="Settings (YAML)")
        notice = gr.HTML(elem_classes="notices")
        key_table = gr.HTML(elem_id="foreign-settings-table")
        fill = gr.Button("Fill in the form", size="md", visible=False, elem_id="foreign-settings-fill", scale=0,
                         min_width=160)
        options = gr.State("")  # JSON: the options of the last file
        page.on(upload.upload, _read, [upload], [notice, key_table, fill, options, upload], files=True)
        page.on(fill.click, partial(_fill, form), [options], [notice, *form.widgets])


def _read(path: str | None) -> Sequence[object]:
    """Translate an uploaded file, which is deleted then."""
    paths = [Path(path)] if path else []
    if not paths:
        raise UserError("No file was uploaded.", "Choose a YAML file of settings.")
    try:
        translation = foreign_settings.read(paths[0])
    finally:
        source_preview.forget_upload(paths)
    count = len(translation.options)
    message = (f"{pluralize(len(translation.keys), 'key')} in the file, and {pluralize(count, 'option')} here. Nothing "
               "is filled in yet." if count else "None of its keys is an option here.")
    return [job_views.notice(message, "good" if count else ""), settings_view(translation),
            gr.update(visible=bool(count)), json.dumps(dict(translation.options)), None]


def settings_view(translation: Translation) -> Html:
    """A row for each key of the file, and the options as a preset file."""
    rows = []
    for entry in translation.keys:
        value = str(entry.value)
        short = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"
        option = f"{entry.option}: {translation.options[entry.option]}" if entry.option else "–"
        rows.append((element("code", entry.key), short, element("code", option), entry.here))
    options = in_sections(TrainOptions, translation.options)
    preset = yaml.safe_dump(options, sort_keys=False) if options else ""
    file = element("details", element("summary", "As a preset file (--config)"),
                   element("pre", element("code", preset))) if preset else NOTHING
    return join((table(("Key there", "Value", "Option here", "Why"), rows), file))


def _fill(form: OptionsForm, options: str) -> Sequence[object]:
    """The widgets of the options that the file gives; the others stay."""
    if not options:
        raise UserError("No file of settings was read.", "Upload one first.")
    values = json.loads(options)
    fields = option_fields(TrainOptions)
    titles = [fields[name].title or name for name in values if name in form.names]
    updates = []
    for name, widget in zip(form.names, form.widgets, strict=True):
        # A field that may be empty is a text box.
        value = str(values.get(name)) if isinstance(widget, gr.Textbox) else values.get(name)
        updates.append(gr.update(value=value) if name in values else gr.skip())
    return [job_views.notice(f"Filled in: {', '.join(titles)}. They count as your changes to the preset.", "good"),
            *updates]
