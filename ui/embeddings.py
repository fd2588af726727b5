"""Embeddings tab: rows for the new tokens, before anything is trained."""

from __future__ import annotations

import gradio as gr

from config.schema import ExtendOptions
from core.text import row_starts
from core.text.row_starts import Found
from ui import verb_form
from ui.live import View
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header("Embeddings", "Each token is a row of numbers in the model. Here the new tokens get their "
                                       "rows, "
               "behind the old ones, which stay bit for bit. A row starts from what its letter sounds like in Latin "
               "letters, so that training begins near the goal.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            choices = {"model": lambda view: page.workspace.list_models(),
                       "tokenizer": lambda view: verb_form.matching_tokenizers(
                           page.workspace, view.chosen["extend.model"])}
            verb_form.build_prerequisites(page, "extend", "embeddings", choices)
            step = verb_form.build_verb_form(page, "extend", "Add the rows",
                                   first=("model", "tokenizer", "extension", "initialisation"), choices=choices,
                                   suggested={"extension": (lambda view: _name(page, view),
                                                            lambda: verb_form.generated_names(page.workspace))})
            page.live.panel(step.form.widget("initialisation"), lambda view: gr.update(info=_starts(page, view)),
                            "embeddings")
        with gr.Column(scale=3, min_width=300):
            last = gr.HTML(elem_id="extend-result")
            page.live.panel(last, verb_form.last_job_view("extend",
                                                      "How many rows were added, and whether the old ones are "
                                                 "as they were, appear here."), "embeddings")


def _name(page: Page, view: View) -> str:
    """The tokenizer's, so that what belongs together is called the same."""
    return view.chosen["extend.tokenizer"] or verb_form.tokenizer_name(page.workspace, view.chosen["extend.model"], "")


def _starts(page: Page, view: View) -> str:
    """What the starts are, and how many rows each of them finds for the chosen tokenizer."""
    about, name = str(ExtendOptions.model_fields["initialisation"].description), view.chosen["extend.tokenizer"]
    found = row_starts.found_for(page.workspace, name)
    return about if found is None else f"{about} {found_words(name, found)}"


def found_words(name: str, found: Found) -> str:
    """How many of a tokenizer's new rows the base can spell, and which start is therefore another one's."""
    words = [f"{strategy} {count}" for strategy, count in found.spelled.items()]
    same = [strategy for strategy, count in found.spelled.items() if count == 0]
    said = f"Of the {found.rows} new rows of {name}, tags aside, so many find tokens of the base: {', '.join(words)}."
    return f"{said} So here {' and '.join(same)} {_IS[len(same) > 1]} the same start as mean." if same else said


_IS = {False: "is", True: "are"}
