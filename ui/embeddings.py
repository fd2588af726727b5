"""Embeddings tab: embedding rows for the new tokens, before training."""

from __future__ import annotations

import gradio as gr

from config.schema import ExtendOptions
from core.library import artefacts
from core.text import row_sources
from core.text.row_sources import SpelledRowCounts
from core.verbs.extend import is_other_extension
from core.workspace import free_name
from ui import verb_form
from ui.live import View
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header("Embeddings", "Append embedding rows for the new tokens to the base model. The rows of the "
                         "base stay bit-identical.")

    def name(view: View) -> str:
        """The tokenizer's name, so that both are called the same, or one with a number where that is taken."""
        settings = [view.values[f"extend.{field}"] for field in ("tokenizer", "initialisation", "seed")]
        name = settings[0] or verb_form.tokenizer_name(page.workspace, view.values["extend.model"], "")
        return free_name(name, lambda extension: is_other_extension(page.workspace, extension, *settings))

    def initialisation_info(view: View) -> object:
        about, tokenizer = ExtendOptions.model_fields["initialisation"].description, view.values["extend.tokenizer"]
        row_counts = row_sources.count_rows_of_tokenizer(page.workspace, tokenizer)
        return gr.update(info=about if row_counts is None else f"{about} {coverage_text(tokenizer, row_counts)}")

    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            choices = {"model": lambda view: view.once(("buildable",), lambda: verb_form.models_to_build_upon(
                page.workspace, view.jobs)),
                       "tokenizer": lambda view: artefacts.matching_tokenizers(
                           page.workspace, view.values["extend.model"])}
            verb_form.build_prerequisites(page, "extend", "embeddings", choices)
            form, _ = verb_form.build_verb_form(
                page, "extend", "Extend embeddings", first=("model", "tokenizer", "extension", "initialisation"),
                choices=choices,
                suggested={"extension": (
                    name, lambda view: verb_form.generated_names(page.workspace, view.jobs))})
            page.live.panel(form.widget("initialisation"), initialisation_info, "embeddings")
        with gr.Column(scale=3, min_width=300):
            last = gr.HTML(elem_id="extend-result")
            page.live.panel(last, verb_form.last_job_view(
                "extend", "The number of new rows, and the check that the base rows are unchanged, appear here."),
                            "embeddings")
            verb_form.build_damaged(page, "extension", "embeddings")


def coverage_text(name: str, row_counts: SpelledRowCounts) -> str:
    """For how many new rows of a tokenizer each initialisation finds base tokens."""
    counts = ", ".join(f"{strategy} {count}" for strategy, count in row_counts.spelled.items())
    text = f"Of the {row_counts.rows} new rows of {name} (without tags), rows with base tokens: {counts}."
    # A strategy that finds no base token falls back to the mean.
    empty = [strategy for strategy, count in row_counts.spelled.items() if count == 0]
    return f"{text} Without any, {' and '.join(empty)} equal{'s' * (len(empty) == 1)} mean." if empty else text
