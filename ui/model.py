"""Model tab: which base models there are, which are here, and getting one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gradio as gr

from config.schema import DownloadOptions
from core.catalog import FAMILIES, Family
from ui import present
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    gr.HTML(div("lead", element("h2", "Base models"), paragraph(
        "A base model is a voice that speaks some languages already. Lisan adds one more to it. "
        "Everything it knew stays as it was.")))
    notice = gr.HTML(elem_classes="notices")
    for family in FAMILIES:
        with gr.Column(elem_classes="family"):
            card = gr.HTML(elem_id=f"family-{family.name}")
            page.live.panel(card, _card_of(page, family), "model")
            if family.available:
                button = gr.Button("Get it", variant="primary", size="md", elem_id=f"get-{family.name}")
                page.live.panel(button, _button_of(page, family), "model")
                page.on(button.click, _get(page, family), [], [notice])
    progress = gr.HTML()
    page.live.panel(progress, _last_download, "model")


def _card_of(page: Page, family: Family) -> Callable[[View], Html]:
    return lambda view: family_card(family, family.name in page.workspace.list_models())


def family_card(family: Family, present_here: bool) -> Html:
    """One family: what it is, its languages, licence and size, and whether it is here."""
    if present_here:
        state = span("badge good", "in the workspace")
    elif family.available:
        state = span("badge wait", "not here yet")
    else:
        state = span("badge", "comes later")
    terms = [("Languages", family.languages), ("Licence", family.licence), ("Size", family.size)]
    return div(
        "family-card" + ("" if family.available else " later"),
        div("ends", element("h3", family.title), state), paragraph(family.what),
        element("dl", *(join((element("dt", name), element("dd", value))) for name, value in terms)),
        paragraph(family.note, class_="small"),
    )


def _button_of(page: Page, family: Family) -> Callable[[View], object]:
    def render(view: View) -> object:
        here = family.name in page.workspace.list_models()
        busy = any(job.alive for job in view.jobs if job.verb == "download")
        label = "Getting it" if busy else "Get it again" if here else "Get it"
        return gr.update(value=label, interactive=not busy, variant="secondary" if here else "primary")

    return render


def _get(page: Page, family: Family) -> Callable[[], Sequence[object]]:
    def run() -> Sequence[object]:
        job = page.start("download", DownloadOptions(model=family.name))
        return [present.notice(f"Started as {job.id}.")]

    return run


def _last_download(view: View) -> Html:
    state = view.newest("download")
    return present.job_card(state) if state is not None else NOTHING
