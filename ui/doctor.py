"""Doctor tab: what a model that was finetuned elsewhere changed against its base, and its base rows put back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median

import gradio as gr

from config.errors import UserError
from config.schema import DoctorOptions
from core.job.state import JobState
from core.proof.diagnosis import FILE, Diagnosis, Finding, read
from ui import job_views, verb_form
from ui.charts import Series, chart
from ui.form import Value, build_form, command_line, parse
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span, table
from ui.page import Page

_SHOWN = 12  # tensors in the table before the fold
_FIRST = ("base", "checkpoint", "tokenizer")
_TONES = {"good": "good", "changed": "unsure", "bad": "bad"}
_LANGUAGES = {"kept": "work exactly as before", "rounded": "work as before but for rounding",
              "changed": "must be heard", "lost": "cannot work as they did"}
_STATE_TONES = {"equal": "good", "new": "busy", "rounded": "good", "extra": "wait", "trained": "wait", "shrunk": "wait",
                "low rank": "wait"}
_LAYERS = 3  # fewer make no curve
_MEASURED = ("shrunk", "low rank", "trained")  # of the others, the length of the difference says nothing
_LAYER = re.compile(r"\.(\d+)\.")
_COLOURS = {"attention": "var(--series-1)", "the rest": "var(--series-2)"}


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header("Doctor", "A model was finetuned elsewhere, and an old language sounds wrong, or you want to "
                                   "know "
               "before you use it. Give it and the base it was made from: every tensor is compared, and you read what "
               "moved, whether its tokenizer fits, and whether the old languages can still work. The files stay "
               "as they are.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            _lay_out_question(page)
        with gr.Column(scale=3, min_width=300):
            verdict = gr.HTML(elem_id="diagnosis")
            page.live.panel(verdict, lambda view: _answer(_newest(view), examined(_newest(view), view.jobs)), "doctor")
            _lay_out_restoring(page)
    details = gr.HTML(elem_id="diagnosis-details")
    page.live.panel(details, lambda view: _details(examined(_newest(view), view.jobs)), "doctor")


def _lay_out_question(page: Page) -> None:
    """What to compare, the button and the equal command."""
    form = build_form(DoctorOptions, first=_FIRST, leave_out=("part", "restore", "language"), choices={"base": ()})
    start = gr.Button("Examine it", variant="primary", size="lg", elem_id="run-doctor")
    notice = gr.HTML(elem_classes="notices")
    with gr.Accordion("The same on the command line", open=False, elem_classes="fold"):
        command = gr.HTML(elem_id="command-doctor")
    for name, widget in zip(form.names, form.widgets, strict=True):
        page.live.watch(f"doctor.{name}", widget)
    page.live.panel(form.widget("base"), lambda view: _bases(page, view), "doctor")
    page.live.panel(command, lambda view: element("pre", command_line("doctor", form.options(
        _values(form.names, view), part="model"), page.workspace.path), class_="command"), "doctor")

    def run(*values: Value) -> Sequence[object]:
        options = parse(DoctorOptions, {**dict(zip(form.names, values, strict=True)), "part": "model"})
        for name in ("base", "checkpoint"):
            if not getattr(options, name):
                title = DoctorOptions.model_fields[name].title
                raise UserError(f"{title}: nothing was given.", f"{DoctorOptions.model_fields[name].description}")
        return [page.started_notice(page.start("doctor", options))]

    page.on(start.click, run, form.widgets, [notice])


def _values(names: Sequence[str], view: View) -> list[Value]:
    """What the form holds; a switch tells itself as a word."""
    return [view.chosen[f"doctor.{name}"] for name in names]


def _bases(page: Page, view: View) -> object:
    """Models of the workspace; a path that was typed stays."""
    there = page.workspace.list_models()
    current = view.chosen["doctor.base"]
    return gr.update(choices=there, value=current or (there[0] if there else None))


def _lay_out_restoring(page: Page) -> None:
    """The offer, shown where rows alone were damaged."""
    fields = DoctorOptions.model_fields
    with gr.Column(visible=False, elem_classes="card", elem_id="restoring") as offer:
        gr.HTML(join((element("h3", "Put the base's rows back"), paragraph(
            "An export is written beside: all of the base, and the new rows of this checkpoint behind. The old "
            "languages are read by the base's own tokenizer, the new one by the checkpoint's. It is then on Listen.",
            class_="small"))))
        with gr.Row(elem_classes="grid"):
            name = gr.Textbox("restored", label=fields["restore"].title, max_lines=1, min_width=150,
                              elem_id="restore-name")
            language = gr.Textbox("", label=fields["language"].title, max_lines=1, min_width=150,
                                  info="Its code, such as am.", elem_id="restore-language")
            tokenizer = gr.Textbox("", label=fields["tokenizer"].title, max_lines=1, min_width=150,
                                   info="Needed where none was examined; empty takes the one that was.",
                                   elem_id="restore-tokenizer")
        button = gr.Button("Restore", variant="primary", size="lg", elem_id="restore")
        notice = gr.HTML(elem_classes="notices")
    page.live.panel(offer, lambda view: gr.update(visible=_can_restore(
        _newest(view), examined(_newest(view), view.jobs))), "doctor")
    page.on(button.click, lambda *values: _restore(page, *values), [name, language, tokenizer], [notice])


def _newest(view: View) -> JobState | None:
    return view.newest("doctor")


def diagnosis_of(state: JobState | None) -> Diagnosis | None:
    """What a job of the doctor found; None before it did."""
    if state is None or not (state.job.directory / FILE).is_file():
        return None
    return read(state.job.directory)


def examined(state: JobState | None, states: Sequence[JobState]) -> JobState | None:
    """The examination to show beside `state`: its own, or the one before where restoring ended before it looked."""
    if state is None or not state.job.settings.get("restore") or diagnosis_of(state):
        return state
    before = [one for one in states if one.verb == "doctor" and one.job.created < state.job.created
              and one.job.settings.get("checkpoint") == state.job.settings.get("checkpoint") and diagnosis_of(one)]
    return max(before, key=lambda one: one.job.created, default=state)


def _can_restore(state: JobState | None, looked: JobState | None) -> bool:
    found = diagnosis_of(looked)
    restored = state is not None and state.result is not None and "ref" in state.result
    return found is not None and found.verdict.restorable and not restored and state is not None and not state.alive


def _restore(page: Page, name: str, language: str, tokenizer: str) -> Sequence[object]:
    """Examine the same again, and restore."""
    states = [state for state in page.live.board.states() if state.verb == "doctor"]
    state = examined(max(states, key=lambda one: one.job.created, default=None), states)
    found = diagnosis_of(state)
    if state is None or found is None:
        raise UserError("Nothing was examined yet.", "Examine a checkpoint first.")
    known = found.tokenizer.path if found.tokenizer else ""
    if not (tokenizer.strip() or known) or not language.strip():
        raise UserError("The language of the new rows and their tokenizer must be known.",
                        "Give the language's code, and the tokenizer's file where it was not examined.")
    if found.base not in page.workspace.list_models():
        raise UserError(f"{found.base} is not in the workspace, and the restored model needs all of its files.",
                        "Get it first (on Model), examine the checkpoint with its name as the base, then restore.")
    options = parse(DoctorOptions, {**state.job.settings, "restore": name, "language": language.strip(),
                                    "tokenizer": tokenizer.strip() or known, "measure": False})
    return [page.started_notice(page.start("doctor", options))]


def _answer(state: JobState | None, looked: JobState | None) -> Html:
    """How it goes, then the verdict."""
    if state is None:
        return job_views.empty("The verdict appears here: what moved, tensor by tensor, the worst first.")
    found = diagnosis_of(looked)
    card = job_views.job_card(state)
    if found is None:
        return card
    return join((card if state.status != "finished" else NOTHING, _restored(state.result), verdict_view(found)))


def _details(state: JobState | None) -> Html:
    found = diagnosis_of(state)
    return details_view(found) if found else NOTHING


def _restored(result: Mapping[str, object] | None) -> Html:
    if not result or "ref" not in result:
        return NOTHING
    return job_views.notice(f"Restored as {result['ref']}, with {result['new_rows']} new rows behind the "
                          f"{result['old_rows']} of the base. Hear it on Listen; its proof is on Certificate. "
                          "What was found below is of the checkpoint, which stays as it is.", "good")


def verdict_view(found: Diagnosis) -> Html:
    """The verdict, and what was compared."""
    verdict = found.verdict
    banner = div(f"verdict {_TONES[verdict.level]}", element("strong", verdict.headline), paragraph(verdict.advice))
    about = job_views.facts([
        ("Base", found.base), ("Checkpoint", found.checkpoint.rpartition("/")[2]),
        ("Stored as", ", ".join(found.dtypes)), ("Tensors", sum(one.part != "new rows" for one in found.findings)),
        ("Changed", sum(one.touched for one in found.findings)), ("Old languages", _LANGUAGES[verdict.base_languages]),
    ])
    return join((banner, about))


def details_view(found: Diagnosis) -> Html:
    """Sentences, how far each layer moved, and the tensors, the worst first."""
    said = element("ul", *(element("li", sentence) for sentence in found.verdict.sentences), class_="findings")
    return join((element("h3", "What was found"), said, _plot(found.findings), _table(found.findings)))


def _plot(findings: Sequence[Finding]) -> Html:
    """How far the matrices of each layer moved; nothing where none did, or there are too few."""
    moves: dict[str, dict[int, list[float]]] = {}
    for one in findings:
        place = _LAYER.search(one.name)
        if place and one.part == "layers" and one.touched and len(one.shape) > 1 and one.change:
            kind = "attention" if "attn" in one.name else "the rest"
            moves.setdefault(kind, {}).setdefault(int(place[1]), []).append(one.change)
    series = [Series(kind, [(float(layer), median(found)) for layer, found in sorted(moves[kind].items())],
                     _COLOURS[kind], "dots") for kind in _COLOURS if kind in moves]
    if not series or max(len(one.points) for one in series) < _LAYERS:
        return NOTHING
    return div("charts", chart("How far each layer moved, of its length", series, x_name="layer", y_percent=True,
                               y_low=0.0))


def _table(findings: Sequence[Finding]) -> Html:
    """Those that changed, then in a fold those that did not."""
    changed = [one for one in findings if one.state not in ("equal", "rounded")]
    rounded, equal = ([one for one in findings if one.state == state] for state in ("rounded", "equal"))
    shown, rest = changed[:_SHOWN], changed[_SHOWN:]
    return join((
        element("h3", "Tensors, the worst first"),
        _sheet(shown) if shown else paragraph("No tensor changed.", class_="small"),
        element("details", element("summary", f"{len(rest)} more that changed"), _sheet(rest)) if rest else NOTHING,
        element("details", element("summary", f"{len(rounded)} that are equal but for rounding"), _sheet(rounded))
        if rounded else NOTHING,
        element("details", element("summary", f"{len(equal)} that are equal to the bit"), _sheet(equal))
        if equal else NOTHING,
    ))


def _sheet(findings: Sequence[Finding]) -> Html:
    head = ("Tensor", "Part", "State", "Moved by", "Rows moved", "What")
    return table(head, [_row(one) for one in findings])


def _row(one: Finding) -> tuple[object, ...]:
    badge = span(f"badge {_STATE_TONES.get(one.state, 'bad')}", one.state)
    moved = f"{one.change:.2%}" if one.state in _MEASURED else ""
    return element("code", one.name), span("part", one.part), badge, moved, _rows(one), one.words


def _rows(one: Finding) -> str:
    return f"{one.rows_moved} of {one.rows}" if one.part == "old rows" and one.touched else ""
