"""Tokenizer tab: build and check the merged tokenizer, compare candidates, map the characters of the script."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

import gradio as gr

from config.errors import UserError
from config.schema import NO_RULES, CompareTokenizersOptions, TokenizerOptions
from core.jobs.reporter import duration_text
from core.jobs.state import JobState
from core.text import pasted_text, text_rules
from core.text.script_coverage import MIN_OCCURRENCES, CharacterCount, ScriptBlock
from core.text.tokenizer_comparison import BASE, TokenizerCandidate, TokenizerComparison
from core.workspace import free_name
from ui import job_views, records, rules, verb_form
from ui.form import OptionsForm, parse
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span, table
from ui.page import Page

TAB = "tokenizer"
_FIELDS = CompareTokenizersOptions.model_fields
_SHARED = ("model", "dataset", "rules", "tokenizer_file", "byte_fallback")  # fields of the tokenizer's form
_OWN = ("sizes", "sentences", "text")
_SIZES = " ".join(map(str, CompareTokenizersOptions().sizes))
_SHADES = (0, 1, MIN_OCCURRENCES, 100, 1000)  # a cell's shade by how often training text has the character


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header(
        "Tokenizer", "Learn tokens for the new language and append them to the base tokenizer. Base token ids stay "
        "unchanged, which the report checks.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            choices = {"model": lambda view: view.once(("buildable",), lambda: verb_form.models_to_build_upon(
                page.workspace, view.jobs)),
                       "dataset": lambda view: page.workspace.list_datasets(),
                       "rules": lambda view: rules.rule_choices(page, view.values["tokenizer.dataset"])}
            verb_form.build_prerequisites(page, "tokenizer", "tokenizer", choices)
            form, _ = verb_form.build_verb_form(
                page, "tokenizer", "Build tokenizer", first=("model", "dataset", "tokenizer", "merges", "rules"),
                choices=choices,
                suggested={"tokenizer": (
                    lambda view: verb_form.free_tokenizer_name(page.workspace, view),
                    lambda view: verb_form.generated_names(page.workspace, view.jobs))})
        with gr.Column(scale=3, min_width=300):
            last = gr.HTML(elem_id="tokenizer-result")
            page.live.panel(last, verb_form.last_job_view(
                "tokenizer", "The report appears here: tokens added, characters covered, and the check of the base "
                "languages.", lambda state: report(page, state)), "tokenizer")
            verb_form.build_damaged(page, "tokenizer", "tokenizer")

    build_lab(page, form)
    rules.build(page, form.widget("rules"))


def report(page: Page, state: JobState) -> Html:
    """The report's numbers, then the check of each base language."""
    folder = page.workspace.tokenizers / str(state.job.settings.get("tokenizer", ""))
    numbers, values = records.tokenizer_numbers(folder), records.read_json(folder / "report.json")

    def number(name: str, form: str = "g") -> str:
        return format(numbers[name], form) if name in numbers else "–"

    counts = job_views.facts([
        ("Tokens added", f"{number('tokens_added')} after {number('prefix_size')}"),
        ("Characters covered", f"{number('characters_covered')} of {number('characters')}"),
        ("Unknown characters, before", number("unknown_rate_before", ".1%")),
        ("Unknown characters, now", number("unknown_rate", ".1%")),
        ("Tokens per character, before", number("tokens_per_character_before", ".2f")),
        ("Tokens per character, now", number("tokens_per_character", ".2f")),
    ]) if numbers else job_views.result_facts(state.result)
    changed = (paragraph(f"Text rules: {values['rules']}; {values.get('texts_written_out')} texts changed.",
                         class_="small") if values.get("rules") else NOTHING)
    return join((counts, changed, proof_view(records.proof_rows(folder))))


def proof_view(proof: Sequence[records.ProofRow]) -> Html:
    """Sentences of the base languages through both tokenizers."""
    if not proof:
        return NOTHING
    rows = [(job_views.language_name(row.language), row.text, row.before, row.after,
             span("badge good", "same ids") if row.same else span("badge bad", "different")) for row in proof]
    same = sum(row.same for row in proof)
    return join((
        element("h2", "Base languages"),
        paragraph(f"{same} of {len(proof)} sentences have the same token ids with the base and the new tokenizer. "
                  "The columns count tokens.", class_="small"),
        element("details", element("summary", f"All {len(proof)} sentences"),
                table(("Language", "Sentence", "Base", "New", "Result"), rows), open=same < len(proof)),
    ))


def build_lab(page: Page, form: OptionsForm) -> None:
    """Lay out the accordion; model, dataset and rules are those of the tokenizer's `form`."""
    with gr.Accordion("Compare tokenizers", open=False, elem_classes="fold", elem_id="lab"):
        gr.HTML(paragraph(
            "Measures several tokenizers on the dataset above: characters alone, and BPE and SentencePiece pieces at "
            "several sizes; also your own tokenizer and byte fallback where Advanced names them. A character map "
            "shows what the recordings cover."))
        with gr.Row(elem_classes="grid"):
            sizes = gr.Textbox(_SIZES, label=_FIELDS["sizes"].title, info=_FIELDS["sizes"].description, max_lines=1,
                               elem_id="lab-sizes")
            sentences = gr.Number(CompareTokenizersOptions().sentences, label=_FIELDS["sentences"].title, precision=0,
                                  minimum=0, maximum=1000, info=_FIELDS["sentences"].description,
                                  elem_id="lab-sentences")
        text = gr.Textbox("", label=_FIELDS["text"].title, lines=3, max_lines=8, elem_id="lab-text",
                          info="Optional: paste text of the language, or the path of a text file on this machine. "
                               "Shows which characters the recordings lack, and what to record.")
        with gr.Row(elem_classes="controls"):
            start = gr.Button("Compare", variant="primary", size="md", elem_id="run-lab", min_width=140)
            make = gr.Button("Build recommended", size="md", elem_id="lab-make", visible=False, min_width=140)
        notice = gr.HTML(elem_classes="notices", elem_id="lab-notice")
        command = gr.HTML(elem_id="command-lab")
        result = gr.HTML(elem_id="lab-result")

    # Dataset, model and rules come from the form above, the other options from the accordion.
    chosen = [form.widget(name) for name in _SHARED]
    for name, widget in zip(_OWN, (sizes, sentences, text), strict=True):
        page.live.watch(f"lab.{name}", widget)
    page.live.panel(command, lambda view: _command(page, view), TAB)
    page.live.panel(result, _shown, TAB)
    page.live.panel(make, _offer, TAB)

    page.on(start.click, lambda *values: _start(page, *("" if value is None else str(value).strip()
                                                        for value in values)),
            [*chosen, sizes, sentences, text], [notice])
    page.on(make.click, lambda: _make(page), [],
            [notice, *(form.widget(name) for name in ("algorithm", "merges", "tokenizer_file", "rules", "tokenizer"))])


def lab_options(page: Page, values: Mapping[str, str], *, keep: bool) -> CompareTokenizersOptions:
    """Options from the accordion's values. Pasted text becomes a file of the workspace when `keep` is set.

    No rules in the form means none here too, as for the tokenizer itself.
    """
    text, limit = pasted_text_path(page, values["text"], keep=keep), values["sentences"]
    return parse(CompareTokenizersOptions, {
        **values, "rules": values["rules"] or NO_RULES, "byte_fallback": values["byte_fallback"] == "True",
        "text": text,
        "sizes": tuple(values["sizes"].replace(",", " ").split()), "sentences": int(float(limit)) if limit else 0})


def pasted_text_path(page: Page, text: str, *, keep: bool) -> str:
    """A path as it is; the path of a file with the pasted `text`, which is written when `keep` is set.

    Whether what looks like a path exists is checked at the start of the job.
    """
    if not text or ("\n" not in text and len(text) < 1000 and Path(text).expanduser().is_absolute()):
        return text
    return str((pasted_text.save_pasted if keep else pasted_text.pasted_path)(page.workspace, text))


def _start(page: Page, *values: str) -> Sequence[object]:
    named = dict(zip((*_SHARED, *_OWN), values, strict=True))
    verb_form.require_choices("compare_tokenizers", tuple(named), values)
    return [page.started_notice(page.start("compare_tokenizers", lab_options(page, named, keep=True)))]


def _command(page: Page, view: View) -> Html:
    values = {name: view.values[f"tokenizer.{name}"] for name in _SHARED}
    values |= {name: view.values[f"lab.{name}"].strip() for name in _OWN}
    if not values["model"] or not values["dataset"]:
        return NOTHING
    return verb_form.command_view(page, "compare_tokenizers", lab_options(page, values, keep=False))


def _finished(view: View) -> tuple[JobState, TokenizerComparison] | None:
    """The newest comparison, and its report."""
    state = view.newest("compare_tokenizers")
    if state is None or state.status != "finished":
        return None
    return state, TokenizerComparison.load(state.job.directory)


def _offer(view: View) -> object:
    comparison = _finished(view)
    if comparison is None:
        return gr.update(visible=False)
    return gr.update(visible=True, value=f"Build recommended: {comparison[1].recommendation.name}")


def _make(page: Page) -> Sequence[object]:
    """Build the tokenizer that the newest comparison recommends, and show its settings in the form."""
    comparison = _finished(View(TAB, {}, tuple(page.live.board.states())))
    if comparison is None:
        raise UserError("There is no finished comparison.", "Compare tokenizers first.")
    # The comparison fixes all options of the tokenizer.
    options, warning = recommended_options(page, comparison[1]), rules_warning(page, comparison[1])
    started = page.started_notice(page.start("tokenizer", options))
    return [join((started, job_views.notice(warning, "wait"))) if warning else started,
            options.algorithm, options.merges,
            options.tokenizer_file, options.rules, options.tokenizer]


def recommended_options(page: Page, report: TokenizerComparison) -> TokenizerOptions:
    """The options of the recommended tokenizer, under a free name or one with the candidate's."""
    best = report.candidate(report.recommendation.name)
    assert best is not None
    name = verb_form.tokenizer_name(page.workspace, report.model, report.dataset)
    if name in page.workspace.list_tokenizers():
        name = free_name(f"{name}-{best.name}"[:64], page.workspace.list_tokenizers().__contains__)
    how = {"tokenizer_file": report.own} if best.name == "own" else {"algorithm": best.algorithm,
                                                                     "merges": best.merges_asked}
    return TokenizerOptions.model_validate({
        "model": report.model, "dataset": report.dataset, "tokenizer": name, "rules": report.rules, **how})


def rules_warning(page: Page, report: TokenizerComparison) -> str:
    """A warning where the text rules changed since `report`; `UserError` where they are gone."""
    if not report.rules_hash:
        return ""
    if not report.rules:
        raise UserError(f"The comparison used the rules of the tokenizer {report.rules_from}, which are not saved "
                        "under a name.", "Choose text rules above, and compare again.")
    # A comparison under other rules has other numbers.
    current_rules = text_rules.load(page.workspace, report.rules)
    if text_rules.content_hash(current_rules) == report.rules_hash:
        return ""
    owner = f" of the tokenizer {report.rules_from}" if report.rules_from else ""
    return (f"The rules {report.rules!r}{owner} changed since the comparison. The new tokenizer uses the present "
            "rules, so its numbers may differ.")


def _shown(view: View) -> Html:
    state = view.newest("compare_tokenizers")
    if state is None:
        return job_views.empty("The comparison appears here: coverage, number of tokens, and tokens that are too rare "
                               "in the recordings to train.")
    comparison = _finished(view)
    return join((job_views.job_card(state), lab_report_view(comparison[1]) if comparison else NOTHING))


def lab_report_view(report: TokenizerComparison) -> Html:
    """The whole report of a comparison."""
    return join((
        div("plan", element("strong", f"Recommended: {report.recommendation.name}"),
            paragraph(report.recommendation.reason)),
        candidates_view(report), script_view(report), sentences_view(report)))


def candidates_view(report: TokenizerComparison) -> Html:
    """The candidates as a table, with the recommended one marked."""
    # The recommended candidate is marked in the table.
    recommended = (" ", span("badge good", "recommended"))

    rows = [(element("div", entry.name, *(recommended if entry.name == report.recommendation.name else ())),
             entry.tokens_added or "–", _rare(entry), f"{entry.characters_covered} of {entry.characters}",
             f"{entry.unknown_rate:.1%}" + (f"; {entry.given_unknown_rate:.1%} of your text"
                                            if entry.given_unknown_rate is not None else ""),
             f"{entry.tokens_per_character:.2f}",
             f"{entry.tokens_per_second:.1f}", f"{entry.over_limit} of {report.texts}") for entry in report.candidates]
    head = ("Candidate", "New rows", "Seen < 10 times", "Characters", "Unknown", "Tokens per character",
            "Tokens per second", f"Over {report.limit} tokens")

    preserved = (f"With the recommended one, {len(report.proven)} base languages keep their token ids: "
                 f"{', '.join(job_views.language_name(code) for code in report.proven)}.")
    name = f" {report.rules}" if report.rules else ""
    owner = f" of the tokenizer {report.rules_from}" if report.rules_from else ""
    rules_used = f"with the text rules{name}{owner}" if name or owner else "without text rules"

    return join((element("h2", "Candidates"), table(head, rows),
                 paragraph(f"{report.texts} texts, {duration_text(report.seconds)} of audio, {rules_used}. "
                           f"{preserved}", class_="small"),
                 element("details", element("summary", f"{len(report.left_out)} skipped"),
                         *map(paragraph, report.left_out)) if report.left_out else NOTHING))


def _rare(entry: TokenizerCandidate) -> Html | str:
    if not entry.rare:
        return "none" if entry.name != BASE else "–"
    pieces = " ".join(f"{text} {count}" for text, count in entry.rare_pieces)
    ellipsis = " …" if entry.rare > len(entry.rare_pieces) else ""
    return element("details", element("summary", str(entry.rare)), paragraph(pieces + ellipsis, class_="small"))


def script_view(report: TokenizerComparison) -> Html:
    """The heat map: every character by Unicode block, darker where it is more frequent."""
    key = div("legend script-key", *(span(f"cell shade-{shade}", word) for shade, word in enumerate(
        ("none", f"under {MIN_OCCURRENCES}", f"{MIN_OCCURRENCES} and more", "100 and more", "1000 and more"))),
              span("cell shade-0 wanted", "only in your text"))
    return join((element("h2", "Character map"), paragraph(
        "Counts of each character in the training text, after text rules. A character seen fewer than "
        f"{MIN_OCCURRENCES} times is too rare to learn.", class_="small"), key, *map(_block, report.script)))


def _block(block: ScriptBlock) -> Html:
    present_now = sum(cell.train > 0 for cell in block.cells)
    rare = sum(0 < cell.train < MIN_OCCURRENCES for cell in block.cells)
    amount = f"{present_now} of {len(block.cells)} {'letters and signs' if block.whole else 'characters of the texts'}"
    return join((element("h3", block.name),
                 paragraph(f"{amount}; {rare} fewer than {MIN_OCCURRENCES} times.", class_="small"),
                 div("script", *map(_cell, block.cells))))


def _cell(cell: CharacterCount) -> Html:
    shade = max(number for number, least in enumerate(_SHADES) if cell.train >= least)
    marker = " wanted" if cell.given and not cell.train else ""
    name = unicodedata.name(cell.character, "unnamed")

    counts = [f"U+{ord(cell.character):04X} {name}: {cell.train} times in training text"]
    counts += [f"{cell.held_out} held out"] if cell.held_out else []
    counts += [f"{cell.given} in your text"] if cell.given else []

    mark = "\u25cc" if unicodedata.combining(cell.character) or unicodedata.category(cell.character)[0] == "M" else ""
    return span(f"cell shade-{shade}{marker}", mark + cell.character, title=", ".join(counts))


def sentences_view(report: TokenizerComparison) -> Html:
    """Sentences to record for the characters that are too rare, chosen from the given text."""
    if not report.gaps:
        return NOTHING
    head = join((element("h2", "What to record"), paragraph(
        f"{len(report.gaps)} characters of your text occur fewer than {MIN_OCCURRENCES} times in the training text: "
        f"{' '.join(report.gaps)}", class_="small")))
    rows = [(number, entry.text, " ".join(entry.characters)) for number, entry in enumerate(report.sentences, 1)]
    remark = (f"{len(report.still_rare)} remain below {MIN_OCCURRENCES}: {' '.join(report.still_rare)}"
              if report.still_rare else f"With these recordings, each occurs at least {MIN_OCCURRENCES} times.")
    return join((head, table(("No.", "Sentence", "Adds"), rows) if rows else NOTHING,
                 paragraph(remark, class_="small")))
