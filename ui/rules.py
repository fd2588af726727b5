"""Text rules on the Tokenizer tab: edit, save and preview them."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from config.errors import UserError
from core.text import text_rules
from core.text.text_rules import FoldCost, RulesPreview
from ui import job_views, records
from ui.live import View, choice_update
from ui.markup import NOTHING, Html, div, element, escape, join, paragraph, table
from ui.page import Page

TAB = "tokenizer"
SAMPLE = {
    "am": "ዶ/ር አበበ በ1967 ዓ.ም. ከት/ቤቱ 50% አገኘ።\nስብሰባው ከ2:30 ሰዓት ጀምሮ $2.50 ያስከፍላል፤ USA እና Google ተጠቅሰዋል።",
    "ti": "ዶ/ር ኣበበ ብ1967 ዓ.ም 50% ረኺቡ።",
    "om": "Obb. Tolaan bara 1967 keessa 50% argate. Sa'aatii 2:30 irratti ETB 500 kaffale.",
}
_SHOWN, _MEASURED = 12, 5000  # texts before and after; texts that a cost is measured on
_OWN = "Your text"


def build(page: Page, chosen: gr.components.Component) -> None:
    """Lay out the part of the tab; `chosen` is the form's field of rules, which a save sets."""
    gr.HTML(div("lead", element("h2", "Text rules"), paragraph(
        "Rules that write out numbers, dates, abbreviations and foreign words as spoken, in preparation, training and "
        "synthesis alike. A tokenizer keeps its own copy.")))
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            _lay_out_rules(page, chosen)
        with gr.Column(scale=3, min_width=300):
            _lay_out_texts(page)


def _lay_out_rules(page: Page, chosen: gr.components.Component) -> None:
    name = gr.Dropdown(_all_names(page), value="am", label="Rules", allow_custom_value=True, elem_id="rules-name",
                       info="Built-in rules and your own. Changes are saved under a new name.")
    with gr.Row(elem_classes="grid"):
        latin = gr.Dropdown(["keep", "letters", "sound", "auto"], value="auto", label="Words in Latin letters",
                            filterable=False, elem_id="rules-latin",
                            info="auto: USA letter by letter, London by its sound.")
        folds = gr.Dropdown(["homophones", "labialised"], value=[], multiselect=True,
                            elem_classes="several-choices", label="Merge spelling variants",
                            elem_id="rules-folds", info="Empty keeps the spelling. Measure the effect below.")
    with gr.Row(elem_classes="grid"):
        table = gr.Dropdown(list(text_rules.TABLES), value="abbreviations", label="Table", filterable=False,
                            elem_id="rules-table")
        written_box = gr.Textbox(label="Written", max_lines=1, elem_id="rules-written")
        spoken_box = gr.Textbox(label="Spoken", max_lines=1, elem_id="rules-said")

    add = gr.Button("Add entry", size="md", elem_id="rules-add")
    with gr.Accordion("All rules", open=False, elem_classes="fold"):
        text = gr.Textbox(text_rules.read(page.workspace, "am"), label="Rules (YAML)", lines=16, max_lines=28,
                          elem_id="rules-text", elem_classes="code")
    save_as = gr.Textbox(text_rules.copy_name(page.workspace, "am"), label="Save as", max_lines=1,
                         elem_id="rules-save-as")
    save = gr.Button("Save rules", variant="primary", size="md", elem_id="rules-save")
    notice = gr.HTML(elem_classes="notices", elem_id="rules-notice")
    saved_rules = gr.HTML(elem_id="rules-known")

    # Every change is made in the text of the rules, which is what is saved.
    page.live.watch("rules.text", text)
    page.live.panel(name, lambda view: gr.update(choices=_all_names(page)), TAB)
    page.live.panel(saved_rules, lambda view: known_view(text_rules.list_rules(page.workspace, own=True)), TAB)
    page.on(name.input, lambda value: _open(page, str(value)), [name], [notice, text, save_as, latin, folds])
    page.on(add.click, lambda *values: _add(*map(str, values)), [text, table, written_box, spoken_box],
            [notice, text, written_box, spoken_box])
    page.on(latin.input, lambda value, source: [NOTHING, text_rules.with_latin(str(source), str(value))],
            [latin, text], [notice, text])
    page.on(folds.input, lambda value, source: [NOTHING, text_rules.with_folds(str(source), [*map(str, value or ())])],
            [folds, text], [notice, text])
    page.on(text.blur, lambda: [gr.skip()], [], [notice])
    page.on(save.click, lambda *values: _save(page, *map(str, values)), [save_as, text, name],
            [notice, name, save_as, chosen])


def _lay_out_texts(page: Page) -> None:
    typed = gr.Textbox(SAMPLE["am"], label=_OWN, info="One text per line.", lines=3, max_lines=8, elem_id="rules-own")
    dataset = gr.Dropdown([_OWN], value=_OWN, label="Preview", filterable=False, elem_id="rules-dataset",
                          info="Your text, or the texts of a dataset that the rules may change.")
    preview = gr.HTML(elem_id="rules-shown")
    measure = gr.Button("Measure the effect of merging", size="md", elem_id="rules-measure")
    cost = gr.HTML(elem_id="rules-cost")
    page.live.watch("rules.own", typed)
    page.live.watch("rules.dataset", dataset)
    page.live.panel(dataset, lambda view: _offer(page, view), TAB)
    page.live.panel(preview, lambda view: _shown(page, view), TAB)
    page.on(typed.input, lambda: [gr.skip()], [], [cost])
    page.on(dataset.input, lambda: [gr.skip()], [], [cost])
    page.on(measure.click, lambda *values: [_costs(page, *map(str, values))],
            [page.live.watched["rules.text"], typed, dataset], [cost])


def _open(page: Page, name: str) -> Sequence[object]:
    text = text_rules.read(page.workspace, name)
    rules = text_rules.checked(text)
    save_as = name if not text_rules.ships(name) else text_rules.copy_name(page.workspace, name)
    return [NOTHING, text, save_as, rules.latin.words, gr.update(choices=list(rules.folds), value=list(rules.fold))]


def _add(text: str, table: str, spelling: str, reading: str) -> Sequence[object]:
    changed = text_rules.with_entry(text, table, spelling, reading)
    text_rules.checked(changed)
    return [job_views.notice(f"Added to {table}: {spelling.strip()}. Not saved yet."), changed, "", ""]


def _save(page: Page, name: str, text: str, opened: str) -> Sequence[object]:
    if name.strip() != opened and (page.workspace.rules / f"{name.strip()}.yaml").is_file():
        raise UserError(f"Other rules named {name.strip()!r} exist.",
                        f"Open them to change them, or save as {text_rules.copy_name(page.workspace, name.strip())!r}.")
    # Equal rules are not written again.
    saved = text_rules.save(page.workspace, name.strip(), text)
    outcome = "exists already" if saved.state == "already there" else "saved"
    message = job_views.notice(f"{saved.name} {outcome} and selected for the next tokenizer.", "good")
    names = _all_names(page)
    return [message, gr.update(choices=names, value=saved.name), saved.name,
            gr.update(choices=["", *names], value=saved.name)]


def _all_names(page: Page) -> list[str]:
    return text_rules.choices(page.workspace)


def rule_choices(page: Page, dataset: str) -> list[str]:
    """The rules for the language of `dataset`, after no rules; of several languages all that ship come first."""
    codes = records.dataset(page.workspace, dataset).languages if dataset in page.workspace.list_datasets() else ("",)
    if codes == ("",):
        return ["", *_all_names(page)]
    shipped = ",".join(filter(text_rules.ships, codes)) if len(codes) > 1 else ""
    names = [shipped] if shipped else []
    for code in codes:
        names += text_rules.choices(page.workspace, code)
    return ["", *dict.fromkeys(names)]


def _offer(page: Page, view: View) -> object:
    names = [_OWN, *page.workspace.list_datasets()]
    return choice_update(names, view.values["rules.dataset"])


def _texts(page: Page, typed: str, dataset: str, limit: int) -> list[str]:
    if dataset and dataset != _OWN:
        return text_rules.dataset_texts(page.workspace, dataset, limit)
    return [line for line in typed.splitlines() if line.strip()][:limit]


def _shown(page: Page, view: View) -> Html:
    rules = text_rules.checked(view.values["rules.text"])
    texts = _texts(page, view.values["rules.own"], view.values["rules.dataset"], _SHOWN)
    return shown_view(text_rules.preview(rules, texts))


def shown_view(lines: Sequence[RulesPreview]) -> Html:
    """Each text before and after, with the changes marked; the tooltip names the rule."""
    if not lines:
        return job_views.empty("Enter a text above to preview the rules.")
    changed = sum(bool(line.changes) for line in lines)
    count = paragraph(f"{changed} of {len(lines)} texts change.", class_="small")
    return join((count, *(_line(line) for line in lines)))


def _line(line: RulesPreview) -> Html:
    old_parts, new_parts = [], []
    old = new = 0

    # Between two changes the text is the same in both.
    for change in line.changes:
        rules = ", ".join(change.rules)
        old_parts += [line.before[old:change.start], _mark("old", change.before, rules)]
        new_parts += [line.after[new:change.after_start], _mark("new", change.after, rules)]
        old, new = change.end, change.after_start + len(change.after)

    old_parts.append(line.before[old:])
    new_parts.append(line.after[new:])
    lost = paragraph(f"Removed: {' '.join(line.left_out)}", class_="small") if line.left_out else NOTHING
    return div("turned", div("before", *old_parts), div("after", *new_parts), lost)


def _mark(kind: str, text: str, rules: str) -> Html:
    return element("mark", escape(text), class_=kind, title=rules) if text.strip() else escape(text)


def known_view(entries: Sequence[text_rules.RulesInfo]) -> Html:
    """A person's own rules: which tokenizers use them, and whether they were edited since."""
    users = [entry for entry in entries if entry.own]
    if not users:
        return NOTHING
    rows = []
    for entry in users:
        state = entry.fault or (f"Used by: {', '.join(entry.used_by)}" if entry.used_by else "Not used")
        if entry.edited and not entry.fault:
            state = (f"Edited after {', '.join(entry.edited)} was built, which keeps its copy. New tokenizers use the "
                     "edit.")
        rows.append((entry.name, entry.language or "any", state))
    return join((element("h2", "Your own rules"), table(("Rules", "Language", "Status"), rows)))


def _costs(page: Page, text: str, typed: str, dataset: str) -> Html:
    texts = _texts(page, typed, dataset, _MEASURED)
    if not texts:
        raise UserError("There is no text to measure.", "Enter one, or choose a dataset.")
    costs = text_rules.fold_costs(text_rules.checked(text), texts)
    return (costs_view(costs, len(texts)) if costs
            else job_views.notice("These rules have no spelling variants to merge."))


def costs_view(costs: Sequence[FoldCost], count: int) -> Html:
    """The effect of each merge on the texts."""
    parts = [paragraph(f"Measured on {count} text{'s' if count != 1 else ''}.", class_="small")]
    for cost in costs:
        facts = job_views.facts([
            ("Distinct words", f"{cost.words} → {cost.words_after}"),
            ("Words merged", cost.merged_word_count),
            ("Characters to learn", f"{cost.letters} → {cost.letters_after}"),
            ("Words respelled", job_views.percent(cost.occurrences / cost.total if cost.total else 0.0)),
        ])
        same = "; ".join(" = ".join(group) for group in cost.merged)
        parts += [element("h2", cost.name), paragraph(cost.about, class_="small"), facts]
        if same:
            parts.append(paragraph(f"Merged: {same}", class_="small"))
    return join(parts)
