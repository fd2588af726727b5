"""Embeddings tab: rows for the new tokens, before anything is trained."""

from __future__ import annotations

import gradio as gr

from ui import needs, steps, suggest
from ui.live import View
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    steps.lead("Embeddings", "Each token is a row of numbers in the model. Here the new tokens get their rows, "
               "behind the old ones, which stay bit for bit. A row starts from what its letter sounds like in Latin "
               "letters, so that training begins near the goal.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            choices = {"model": lambda view: page.workspace.list_models(),
                       "tokenizer": lambda view: suggest.fitting_tokenizers(
                           page.workspace, view.chosen["extend.model"])}
            needs.build(page, "extend", "embeddings", choices)
            steps.step_form(page, "extend", "Add the rows", first=("model", "tokenizer", "extension", "initialisation"),
                            choices=choices,
                            suggested={"extension": (lambda view: _name(page, view),
                                                     lambda: suggest.made_up_names(page.workspace))})
        with gr.Column(scale=3, min_width=300):
            last = gr.HTML(elem_id="extend-result")
            page.live.panel(last, steps.last_job("extend", "How many rows were added, and whether the old ones are "
                                                 "as they were, appear here."), "embeddings")


def _name(page: Page, view: View) -> str:
    """The tokenizer's, so that what belongs together is called the same."""
    return view.chosen["extend.tokenizer"] or suggest.tokenizer_name(page.workspace, view.chosen["extend.model"], "")
