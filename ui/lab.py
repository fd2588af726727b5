"""The tokenizer lab on the Tokenizer tab: candidates beside each other, the one to make, and the map of the script."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import gradio as gr

from config.errors import UserError
from config.loading import parse_options
from config.schema import NO_RULES, CompareTokenizersOptions, TokenizerOptions
from core.jobs.state import JobState
from core.text import pasted_text, text_rules
from core.text.script_coverage import MIN_OCCURRENCES, CharacterCount, ScriptBlock
from core.text.tokenizer_comparison import BASE, FILE, TokenizerCandidate, TokenizerComparison
from ui import present, suggest
from ui.form import Form, command_line
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span
from ui.page import Page

TAB = "tokenizer"
_FIELDS = CompareTokenizersOptions.model_fields
_SHARED = ("model", "dataset", "rules", "tokenizer_file",
           "byte_fallback")  # fields of the tokenizer's form that the lab reads
_OWN = ("sizes", "sentences", "text")
_SIZES = " ".join(map(str, CompareTokenizersOptions().sizes))
_SHADES = (0, 1, MIN_OCCURRENCES, 100, 1000)  # a cell's shade by how often training text has the character


def build(page: Page, form: Form) -> None:
    """Lay out the fold; base, dataset and rules are those of the tokenizer's `form`."""
    with gr.Accordion("Which tokenizer suits the text?", open=False, elem_classes="fold", elem_id="lab"):
        gr.HTML(paragraph(
            "Characters alone, and longer pieces learned in two ways at several sizes, are measured on the dataset "
            "chosen above; so are the pieces of your own tokenizer and byte fallback, where More settings name "
            "them. Below the table stands which characters the recordings have and which they lack."))
        with gr.Row(elem_classes="grid"):
            sizes = gr.Textbox(_SIZES, label=_FIELDS["sizes"].title, info=_FIELDS["sizes"].description, max_lines=1,
                               elem_id="lab-sizes")
            most = gr.Number(CompareTokenizersOptions().sentences, label=_FIELDS["sentences"].title, precision=0,
                             minimum=0,
                             maximum=1000, info=_FIELDS["sentences"].description, elem_id="lab-sentences")
        text = gr.Textbox("", label=_FIELDS["text"].title, lines=3, max_lines=8, elem_id="lab-text",
                         info="Paste text of the language, or the path of a text file on this machine; it may be left "
                              "empty. It shows what the recordings lack, and what to record.")
        with gr.Row(elem_classes="controls"):
            start = gr.Button("Compare", variant="primary", size="md", elem_id="run-lab", min_width=140)
            make = gr.Button("Make the recommended one", size="md", elem_id="lab-make", visible=False, min_width=140)
        notice = gr.HTML(elem_classes="notices", elem_id="lab-notice")
        command = gr.HTML(elem_id="command-lab")
        shown = gr.HTML(elem_id="lab-result")
    chosen = [form.widget(name) for name in _SHARED]
    for name, widget in zip(_OWN, (sizes, most, text), strict=True):
        page.live.watch(f"lab.{name}", widget)
    page.live.panel(command, lambda view: _command(page, view), TAB)
    page.live.panel(shown, _shown, TAB)
    page.live.panel(make, _offer, TAB)
    page.on(start.click, lambda *values: _start(page, *map(_text, values)), [*chosen, sizes, most, text], [notice])
    page.on(make.click, lambda: _make(page), [],
            [notice, *(form.widget(name) for name in ("algorithm", "merges", "tokenizer_file", "rules", "tokenizer"))])


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def options(page: Page, said: Mapping[str, str], *, keep: bool) -> CompareTokenizersOptions:
    """What the fold says, by field. Pasted text becomes a file of the workspace when `keep` is set.

    No rules in the form are none here too: the tokenizer that it makes would have none.
    """
    text, most = said["text"], said["sentences"]
    if text and not _is_path(text):
        text = str((pasted_text.save_pasted if keep else pasted_text.pasted_path)(page.workspace, text))
    return parse_options(CompareTokenizersOptions, {
        **said, "rules": said["rules"] or NO_RULES, "byte_fallback": said["byte_fallback"] == "True", "text": text,
        "sizes": tuple(said["sizes"].replace(",", " ").split()), "sentences": int(float(most)) if most else 0})


def _is_path(text: str) -> bool:
    """Whether `text` looks like a path; one that leads nowhere is told of when the job is asked for."""
    return "\n" not in text and len(text) < 1000 and Path(text).expanduser().is_absolute()


def _start(page: Page, *values: str) -> Sequence[object]:
    said = dict(zip((*_SHARED, *_OWN), values, strict=True))
    suggest.missing("compare_tokenizers", tuple(said), values)
    return [page.begun(page.start("compare_tokenizers", options(page, said, keep=True)))]


def _command(page: Page, view: View) -> Html:
    said = {name: view.chosen[f"tokenizer.{name}"] for name in _SHARED}
    said |= {name: view.chosen[f"lab.{name}"].strip() for name in _OWN}
    if not said["model"] or not said["dataset"]:
        return NOTHING
    return element("pre", command_line("compare_tokenizers", options(page, said, keep=False), page.workspace.path),
                   class_="command")


def _finished(view: View) -> tuple[JobState, TokenizerComparison] | None:
    """The newest comparison, and its report."""
    state = view.newest("compare_tokenizers")
    if state is None or state.status != "finished":
        return None
    return state, _load(state.job.directory, _changed_ns(state.job.directory / FILE))


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4)
def _load(folder: Path, changed_ns: int) -> TokenizerComparison:
    """The page asks every second or two."""
    return TokenizerComparison.load(folder)


def _offer(view: View) -> object:
    found = _finished(view)
    if found is None:
        return gr.update(visible=False)
    return gr.update(visible=True, value=f"Make the recommended one: {found[1].recommendation.name}")


def _make(page: Page) -> Sequence[object]:
    """Start the tokenizer that the newest comparison recommends, and show its settings in the form."""
    found = _finished(View(TAB, {}, tuple(page.live.board.states())))
    if found is None:
        raise UserError("There is no finished comparison.", "Compare first.")
    wanted, others = made_of(page, found[1]), other_rules(page, found[1])
    begun = page.begun(page.start("tokenizer", wanted))
    return [join((begun, present.notice(others, "wait"))) if others else begun, wanted.algorithm, wanted.merges,
            wanted.tokenizer_file, wanted.rules, wanted.tokenizer]


def made_of(page: Page, report: TokenizerComparison) -> TokenizerOptions:
    """The options that make what `report` recommends, under a name that is free, or says which candidate it is."""
    best = report.candidate(report.recommendation.name)
    assert best is not None
    name = suggest.tokenizer_name(page.workspace, report.model, report.dataset)
    if name in page.workspace.list_tokenizers():
        name = f"{name}-{best.name}"[:64]
    how = {"tokenizer_file": report.own} if best.name == "own" else {"algorithm": best.algorithm,
                                                                     "merges": best.merges_asked}
    return TokenizerOptions.model_validate({
        "model": report.model, "dataset": report.dataset, "tokenizer": name, "rules": report.rules, **how})


def other_rules(page: Page, report: TokenizerComparison) -> str:
    """What to say where the rules are not those any more that `report` read by; `UserError` where they are gone."""
    if not report.rules_hash:
        return ""
    if not report.rules:
        raise UserError(f"The comparison read by the rules of the tokenizer {report.rules_from}, which have no name "
                        "that a new tokenizer could take them by.", "Choose text rules above, and compare again.")
    now = text_rules.load(page.workspace, report.rules)
    if text_rules.content_hash(now) == report.rules_hash:
        return ""
    had = f", which the tokenizer {report.rules_from} has," if report.rules_from else ""
    return (f"The rules {report.rules!r}{had} were changed since: the new tokenizer takes them as they are now, "
            "and its numbers may differ from the comparison's.")


def _shown(view: View) -> Html:
    state = view.newest("compare_tokenizers")
    if state is None:
        return present.empty("The comparison appears here: how much of the text each candidate covers, how many tokens "
                             "it takes, and which of its rows the recordings could not teach.")
    found = _finished(view)
    return join((present.job_card(state), report_view(found[1]) if found else NOTHING))


def report_view(report: TokenizerComparison) -> Html:
    """All of a comparison."""
    return join((
        div("plan", element("strong", f"Recommended: {report.recommendation.name}"),
            paragraph(report.recommendation.reason)),
        candidates_view(report), script_view(report), sentences_view(report)))


def candidates_view(report: TokenizerComparison) -> Html:
    """The candidates beside each other, the recommended one marked."""
    rows = [(_named(one, report.recommendation.name), one.tokens_added or "–", _rare(one),
             f"{one.characters_covered} of {one.characters}", _unknown(one), f"{one.tokens_per_character:.2f}",
             f"{one.tokens_per_second:.1f}", f"{one.over_limit} of {report.texts}") for one in report.candidates]
    head = ("Candidate", "New rows", "Seen under ten times", "Characters", "Unknown", "Tokens a character",
            "Tokens a second", f"Over {report.limit} tokens")
    proven = (f"{len(report.proven)} base languages keep the ids of their sample sentences with the recommended one: "
              f"{', '.join(present.language_name(code) for code in report.proven)}.")
    return join((element("h4", "Candidates"), present.table_of(head, rows),
                 paragraph(f"{report.texts} texts, {present.duration(report.seconds)} of audio, read "
                           f"{_read_by(report)}. {proven}", class_="small"),
                 element("details", element("summary", f"{len(report.left_out)} were left out"),
                         *map(paragraph, report.left_out)) if report.left_out else NOTHING))


def _read_by(report: TokenizerComparison) -> str:
    if not report.rules and not report.rules_from:
        return "without text rules"
    name = f" {report.rules}" if report.rules else ""
    return f"by the text rules{name}{f' of the tokenizer {report.rules_from}' if report.rules_from else ''}"


def _named(one: TokenizerCandidate, recommended: str) -> Html:
    badge = (" ", span("badge good", "recommended")) if one.name == recommended else ()
    return element("div", one.name, *badge)


def _rare(one: TokenizerCandidate) -> Html | str:
    if not one.rare:
        return "none" if one.name != BASE else "–"
    pieces = " ".join(f"{text} {count}" for text, count in one.rare_pieces)
    more = " …" if one.rare > len(one.rare_pieces) else ""
    return element("details", element("summary", str(one.rare)), paragraph(pieces + more, class_="small"))


def _unknown(one: TokenizerCandidate) -> str:
    given = f"; {one.given_unknown_rate:.1%} of your text" if one.given_unknown_rate is not None else ""
    return f"{one.unknown_rate:.1%}{given}"


def script_view(report: TokenizerComparison) -> Html:
    """The heat map: every character by its block, darker where training text has it more often."""
    key = div("legend script-key", *(span(f"cell shade-{shade}", word) for shade, word in enumerate(
        ("none", f"under {MIN_OCCURRENCES}", f"{MIN_OCCURRENCES} and more", "100 and more", "1000 and more"))),
        span("cell shade-0 wanted", "only in your text"))
    return join((element("h4", "Characters of the script"), paragraph(
        "How often the training text has each character, as the model reads it. A character that is seen fewer than "
        f"{MIN_OCCURRENCES} times cannot be learnt well.", class_="small"), key, *map(_block, report.script)))


def _block(block: ScriptBlock) -> Html:
    present_now = sum(cell.train > 0 for cell in block.cells)
    rare = sum(0 < cell.train < MIN_OCCURRENCES for cell in block.cells)
    of = f"{present_now} of {len(block.cells)} {'letters and signs' if block.whole else 'characters of the texts'}"
    return join((element("h5", block.name),
                 paragraph(f"{of}; {rare} fewer than {MIN_OCCURRENCES} times.", class_="small"),
                 div("script", *map(_cell, block.cells))))


def _cell(cell: CharacterCount) -> Html:
    shade = max(number for number, least in enumerate(_SHADES) if cell.train >= least)
    wanted = " wanted" if cell.given and not cell.train else ""
    name = unicodedata.name(cell.character, "without a name")
    told = [f"U+{ord(cell.character):04X} {name}: {cell.train} times in training text"]
    told += [f"{cell.held_out} held out"] if cell.held_out else []
    told += [f"{cell.given} in your text"] if cell.given else []
    mark = "\u25cc" if unicodedata.combining(cell.character) or unicodedata.category(cell.character)[0] == "M" else ""
    return span(f"cell shade-{shade}{wanted}", mark + cell.character, title=", ".join(told))


def sentences_view(report: TokenizerComparison) -> Html:
    """What to record to close the gaps, for the text that was given."""
    if not report.gaps:
        return NOTHING
    head = join((element("h4", "What to record"), paragraph(
        f"Your text has {len(report.gaps)} characters that the training text has fewer than {MIN_OCCURRENCES} times: "
        f"{' '.join(report.gaps)}", class_="small")))
    rows = [(number, one.text, " ".join(one.characters)) for number, one in enumerate(report.sentences, 1)]
    rest = (f"{len(report.still_rare)} stay below {MIN_OCCURRENCES} with these: {' '.join(report.still_rare)}"
            if report.still_rare else f"With these recorded, each is seen at least {MIN_OCCURRENCES} times.")
    return join((head, present.table_of(("Order", "Sentence", "Brings"), rows) if rows else NOTHING,
                 paragraph(rest, class_="small")))
