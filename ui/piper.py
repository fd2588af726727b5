"""The Piper section of the Share tab: a dataset that a model speaks, to train a voice for Piper."""

from __future__ import annotations

import gradio as gr

from core.jobs.reporter import duration_text, pluralize
from core.jobs.state import JobState
from core.library import lineage
from ui import job_views, media, verb_form
from ui.live import View
from ui.markup import Html, element, join, paragraph
from ui.page import Page

TAB = "share"


def build(page: Page) -> None:
    """Lay out the form and the newest dataset."""
    gr.HTML(paragraph(
        "Piper's voices run on phones and in screen readers, and are trained on one speaker's recordings. The model "
        "speaks the sentences, and those that a recogniser does not understand are left out. The ZIP file has the "
        "layout of LJSpeech, with the command for piper1-gpl.", class_="small"))

    def references(view: View) -> list[str]:
        models = lineage.list_models(page.workspace, list(view.jobs))
        exports = [model.reference for model in models if model.kind == "export"]
        return exports + [model.reference for model in models if model.kind == "run"]

    verb_form.build_verb_form(page, "piper_dataset", "Make dataset",
                              first=("voice_model", "language", "file", "most", "max_cer"),
                              choices={"voice_model": references})
    result = gr.HTML(elem_id="piper-result")
    page.live.panel(result, verb_form.last_job_view("piper_dataset", "The dataset appears here, to be downloaded.",
                                                    dataset_view), TAB)


def dataset_view(state: JobState) -> Html:
    """How much was kept, and the link to the dataset."""
    result = state.result or {}
    count = int(result.get("clips") or 0)
    error = result.get("error")
    facts: list[tuple[str, object]] = [
        ("Kept", f"{pluralize(count, 'sentence')}, {duration_text(float(result.get('duration_s') or 0))}"),
        ("Left out", pluralize(int(result.get("left_out") or 0), "sentence")),
        ("Mean CER of those kept", "not measured" if error is None else job_views.percent(float(error))),
    ]
    link = paragraph(element("a", "Download the dataset (ZIP)", href=media.clips_url(state.id),
                             download=True), class_="small download")
    return join((job_views.facts(facts), link))
