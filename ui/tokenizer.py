"""Tokenizer tab: the new language's letters and pieces, merged into the base tokenizer, with a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import gradio as gr

from core.jobs.state import JobState
from ui import lab, needs, present, records, rules, steps, suggest
from ui.live import View
from ui.markup import NOTHING, Html, element, join, paragraph
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    steps.lead("Tokenizer", "The model reads pieces of text, called tokens. Here the letters of the new language are "
               "added behind the ones it knows. The old ones keep their numbers, and the report proves it.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            choices = {"model": lambda view: page.workspace.list_models(),
                       "dataset": lambda view: page.workspace.list_datasets(),
                       "rules": lambda view: rules.offered(page, view.chosen["tokenizer.dataset"])}
            needs.build(page, "tokenizer", "tokenizer", choices)
            step = steps.step_form(
                page, "tokenizer", "Make the tokenizer", first=("model", "dataset", "tokenizer", "merges", "rules"),
                choices=choices,
                suggested={"tokenizer": (lambda view: _name(page, view),
                                         lambda: suggest.made_up_names(page.workspace))})
        with gr.Column(scale=3, min_width=300):
            last = gr.HTML(elem_id="tokenizer-result")
            page.live.panel(last, steps.last_job("tokenizer", "The report appears here: tokens added, letters covered, "
                                                 "and the proof that the old languages read as before.",
                                                 lambda state: report(page, state)), "tokenizer")
    lab.build(page, step.form)
    rules.build(page, step.form.widget("rules"))


def _name(page: Page, view: View) -> str:
    return suggest.tokenizer_name(page.workspace, view.chosen["tokenizer.model"], view.chosen["tokenizer.dataset"])


def report(page: Page, state: JobState) -> Html:
    """The report's numbers, then the proof for each base language."""
    folder = page.workspace.tokenizers / str(state.job.settings.get("tokenizer", ""))
    numbers = records.tokenizer_numbers(folder)
    counts = numbers_view(numbers) if numbers else present.result_facts(state.result)
    return join((counts, rules_view(records.read_json(folder / "report.json")), proof_view(records.proof(folder))))


def rules_view(report: Mapping[str, object]) -> Html:
    """Which text rules a tokenizer has, and how many texts they wrote out."""
    name, changed = report.get("rules"), report.get("texts_written_out")
    return paragraph(f"Text rules: {name}; {changed} texts are written out.", class_="small") if name else NOTHING


def numbers_view(numbers: Mapping[str, float]) -> Html:
    """What was added and covered, before and after."""

    def count(name: str) -> str:
        return f"{numbers[name]:g}" if name in numbers else "–"

    def rate(name: str) -> str:
        return present.percent(numbers.get(name))

    def ratio(name: str) -> str:
        return f"{numbers[name]:.2f}" if name in numbers else "–"

    return present.facts([
        ("Tokens added", f"{count('tokens_added')} after {count('prefix_size')}"),
        ("Letters covered", f"{count('characters_covered')} of {count('characters')}"),
        ("Unknown, before", rate("unknown_rate_before")), ("Unknown, now", rate("unknown_rate")),
        ("Tokens a letter, before", ratio("tokens_per_character_before")),
        ("Tokens a letter, now", ratio("tokens_per_character")),
    ])


def proof_view(proof: Sequence[records.ProofRow]) -> Html:
    """Sentences of the old languages through both tokenizers."""
    if not proof:
        return NOTHING
    rows = [(present.language_name(one.language), one.text, one.before, one.after,
             present.yes_no(one.same, "same ids", "differ")) for one in proof]
    same = sum(one.same for one in proof)
    return join((
        element("h3", "The old languages read as before"),
        paragraph(f"{same} of {len(proof)} sentences have the very same ids through the base tokenizer and through "
                  "the new one. The numbers are tokens.", class_="small"),
        element("details", element("summary", f"All {len(proof)} sentences"),
                present.table_of(("Language", "Sentence", "Base", "New", "Verdict"), rows), open=same < len(proof)),
    ))
