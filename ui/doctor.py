"""Doctor, in the drawer: compare a model that was fine-tuned elsewhere with its base, and restore its base rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median

import gradio as gr

from config.errors import UserError
from config.schema import DoctorOptions
from core.jobs.state import JobState
from core.library.diagnosis import DIAGNOSIS, Diagnosis, TensorFinding, read
from ui import job_views, verb_form
from ui.charts import Series, chart
from ui.form import Value, build_form, parse
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span, table
from ui.page import Page

_SHOWN = 12  # tensors in the table before the fold
_FIRST = ("base", "checkpoint", "tokenizer")
_TONES = {"good": "good", "changed": "unsure", "bad": "bad"}
_LANGUAGES = {"kept": "unchanged", "rounded": "unchanged except rounding", "changed": "may have changed: listen",
              "lost": "broken"}
_STATE_TONES = {"equal": "good", "new": "busy", "rounded": "good", "extra": "wait", "trained": "wait", "shrunk": "wait",
                "low rank": "wait"}
_LAYERS = 3  # the fewest that are drawn as a curve
_MEASURED = ("shrunk", "low rank", "trained")  # states for which the size of the change is shown
_LAYER = re.compile(r"\.(\d+)\.")
_COLOURS = {"attention": "var(--series-1)", "other": "var(--series-2)"}


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.drawer_header(
        "Doctor", "Compare a model that was fine-tuned elsewhere with its base: every tensor, the tokenizer, and "
        "whether the base languages still work. The files stay unchanged.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            _build_form(page)
        with gr.Column(scale=3, min_width=300):
            result = gr.HTML(elem_id="diagnosis")
            page.live.panel(result, _summary, "doctor")
            _build_restore(page)
    details = gr.HTML(elem_id="diagnosis-details")

    def show_details(view: View) -> Html:
        diagnosis = _shown(view)
        return details_view(diagnosis) if diagnosis else NOTHING

    page.live.panel(details, show_details, "doctor")


def _build_form(page: Page) -> None:
    """The checkpoint and its base, the button and the equal command."""
    form = build_form(DoctorOptions, first=_FIRST, leave_out=("part", "restore", "language"),
                      choices={"base": (), "checkpoint": ()})
    start = gr.Button("Diagnose", variant="primary", size="lg", elem_id="run-doctor")
    notice = gr.HTML(elem_classes="notices")
    command = verb_form.command_fold("doctor")
    for name, widget in zip(form.names, form.widgets, strict=True):
        page.live.watch(f"doctor.{name}", widget)
    page.live.panel(form.widget("base"), lambda view: _bases(page, view), "doctor")
    page.live.panel(form.widget("checkpoint"), lambda view: gr.update(
        choices=[f"export:{name}" for name in page.workspace.list_exports()]), "doctor")
    page.live.panel(command, lambda view: verb_form.command_view(page, "doctor", form.options(
        [view.values[f"doctor.{name}"] for name in form.names], part="model")), "doctor")

    def run(*values: Value) -> Sequence[object]:
        settings = {name: value or "" if name in _FIRST else value
                    for name, value in zip(form.names, values, strict=True)}
        options = parse(DoctorOptions, {**settings, "part": "model"})
        for name in ("base", "checkpoint"):
            if not getattr(options, name):
                title = DoctorOptions.model_fields[name].title
                raise UserError(f"{title} is missing.", f"{DoctorOptions.model_fields[name].description}")
        return [page.started_notice(page.start("doctor", options))]

    page.on(start.click, run, form.widgets, [notice])


def _bases(page: Page, view: View) -> object:
    """The models of the workspace; a path that was typed stays."""
    models = page.workspace.list_models()
    current = view.values["doctor.base"]
    return gr.update(choices=models, value=current or (models[0] if models else None))


def _build_restore(page: Page) -> None:
    """The form that restores base rows, shown where only rows were damaged."""
    fields = DoctorOptions.model_fields
    with gr.Column(visible=False, elem_classes="card", elem_id="restoring") as offer:
        gr.HTML(join((element("h2", "Restore the base rows"), paragraph(
            "Writes an export with all tensors of the base and the new rows of this checkpoint. Base languages use the "
            "base tokenizer, the new language the checkpoint's. Compare the export on Listen.",
            class_="small"))))
        with gr.Row(elem_classes="grid"):
            name = gr.Textbox("restored", label=fields["restore"].title, max_lines=1, min_width=150,
                              elem_id="restore-name")
            language = gr.Textbox("", label=fields["language"].title, max_lines=1, min_width=150,
                                  info="Language code, such as am.", elem_id="restore-language")
            tokenizer = gr.Textbox("", label=fields["tokenizer"].title, max_lines=1, min_width=150,
                                   info="Required unless one was diagnosed; empty uses that one.",
                                   elem_id="restore-tokenizer")
        button = gr.Button("Restore", variant="primary", size="lg", elem_id="restore")
        notice = gr.HTML(elem_classes="notices")

    def can_restore(view: View) -> bool:
        state, diagnosis = view.newest("doctor"), _shown(view)
        return (state is not None and diagnosis is not None and diagnosis.assessment.restorable and not state.alive
                and not (state.result is not None and "ref" in state.result))

    page.live.panel(offer, lambda view: gr.update(visible=can_restore(view)), "doctor")
    page.on(button.click, lambda *values: _restore(page, *values), [name, language, tokenizer], [notice])


def diagnosis_of(state: JobState | None) -> Diagnosis | None:
    """The diagnosis of a job; None before it is written."""
    if state is None or not (state.job.directory / DIAGNOSIS).is_file():
        return None
    return read(state.job.directory)


def examined(state: JobState | None, states: Sequence[JobState]) -> JobState | None:
    """The job whose diagnosis is shown with `state`: itself, or an earlier one where a restore ended without any."""
    if state is None or not state.job.settings.get("restore") or diagnosis_of(state):
        return state
    earlier = [other for other in states if other.verb == "doctor" and other.job.created < state.job.created
               and other.job.settings.get("checkpoint") == state.job.settings.get("checkpoint") and diagnosis_of(other)]
    return max(earlier, key=lambda other: other.job.created, default=state)


def _shown(view: View) -> Diagnosis | None:
    """The diagnosis on the page."""
    return diagnosis_of(examined(view.newest("doctor"), view.jobs))


def _restore(page: Page, name: str, language: str, tokenizer: str) -> Sequence[object]:
    """Diagnose the same checkpoint again, and restore."""
    states = [state for state in page.live.board.states() if state.verb == "doctor"]
    # The newest diagnosis is that on the page.
    state = examined(max(states, key=lambda job: job.job.created, default=None), states)
    diagnosis = diagnosis_of(state)
    if state is None or diagnosis is None:
        raise UserError("There is no diagnosis yet.", "Diagnose a checkpoint first.")

    diagnosed_tokenizer = diagnosis.tokenizer.path if diagnosis.tokenizer else ""
    if not (tokenizer.strip() or diagnosed_tokenizer) or not language.strip():
        raise UserError("The language or the tokenizer of the new rows is missing.",
                        "Enter the language code, and the tokenizer file where none was diagnosed.")
    if diagnosis.base not in page.workspace.list_models():
        raise UserError(f"{diagnosis.base} is not in the workspace; a restored model needs all files of its base.",
                        "Download it on the Model tab, diagnose the checkpoint with it as the base, then restore.")

    # The checkpoint is compared again, as its files may have changed since.
    options = parse(DoctorOptions, {**state.job.settings, "restore": name, "language": language.strip(),
                                    "tokenizer": tokenizer.strip() or diagnosed_tokenizer, "measure": False})
    return [page.started_notice(page.start("doctor", options))]


def _summary(view: View) -> Html:
    """The job's progress, then the result."""
    state = view.newest("doctor")
    if state is None:
        return job_views.empty("The diagnosis appears here: changed tensors, largest change first.")
    diagnosis = _shown(view)
    if diagnosis is None:
        return job_views.job_card(state)

    parts = [job_views.job_card(state)] if state.status != "finished" else []
    result = state.result
    if result and "ref" in result:
        parts.append(job_views.notice(
            f"Restored as {result['ref']}: {result['old_rows']} base rows and {result['new_rows']} new rows. Compare "
            "it on Listen; its certificate is on Certificate. The diagnosis below is of the checkpoint, which is "
            "unchanged.", "good"))
    return join((*parts, assessment_view(diagnosis)))


def assessment_view(diagnosis: Diagnosis) -> Html:
    """The result, and what was compared."""
    # The assessment is one sentence; the details explain it.
    result = diagnosis.assessment
    banner = div(f"verdict {_TONES[result.level]}", element("strong", result.headline), paragraph(result.advice))
    about = job_views.facts([
        ("Base", diagnosis.base), ("Checkpoint", diagnosis.checkpoint.rpartition("/")[2]),
        ("Data types", ", ".join(diagnosis.dtypes)),
        ("Tensors", sum(finding.part != "new rows" for finding in diagnosis.findings)),
        ("Changed tensors", sum(finding.touched for finding in diagnosis.findings)),
        ("Base languages", _LANGUAGES[result.base_languages]),
    ])
    return join((banner, about))


def details_view(diagnosis: Diagnosis) -> Html:
    """Findings, the change of each layer, and the tensors, largest change first."""
    findings = element("ul", *(element("li", sentence) for sentence in diagnosis.assessment.sentences),
                       class_="findings")
    return join((element("h2", "Findings"), findings, _plot(diagnosis.findings), _table(diagnosis.findings)))


def _plot(findings: Sequence[TensorFinding]) -> Html:
    """The median relative change of each layer's matrices; nothing where there are too few."""
    moves: dict[str, dict[int, list[float]]] = {}
    for finding in findings:
        # Only matrices of numbered layers make a curve; vectors change on another scale.
        layer_number = _LAYER.search(finding.name)
        if layer_number and finding.part == "layers" and finding.touched and len(finding.shape) > 1 and finding.change:
            kind = "attention" if "attn" in finding.name else "other"
            moves.setdefault(kind, {}).setdefault(int(layer_number[1]), []).append(finding.change)

    series = []
    for kind, colour in _COLOURS.items():
        if kind in moves:
            points = [(float(layer), median(changes)) for layer, changes in sorted(moves[kind].items())]
            series.append(Series(kind, points, colour, "dots"))
    if not series or max(len(line.points) for line in series) < _LAYERS:
        return NOTHING
    return div("charts", chart("Relative change by layer", series, x_name="layer", y_percent=True, y_low=0.0))


def _table(findings: Sequence[TensorFinding]) -> Html:
    """Changed tensors, then the others in collapsed tables."""
    changed = [finding for finding in findings if finding.state not in ("equal", "rounded")]
    # Tensors that did not change are folded, as there are hundreds.
    rounded = [finding for finding in findings if finding.state == "rounded"]
    equal = [finding for finding in findings if finding.state == "equal"]
    listed, unlisted = changed[:_SHOWN], changed[_SHOWN:]

    def sheet(group: Sequence[TensorFinding]) -> Html:
        return table(("Tensor", "Part", "State", "Change", "Rows changed", "Details"), map(_row, group))

    folded = [element("details", element("summary", f"{len(group)} {title}"), sheet(group)) for group, title in (
        (unlisted, "more changed"), (rounded, "equal except rounding"), (equal, "bit-identical")) if group]
    return join((element("h2", "Tensors by size of change"),
                 sheet(listed) if listed else paragraph("No tensor changed.", class_="small"), *folded))


def _row(finding: TensorFinding) -> tuple[object, ...]:
    badge = span(f"badge {_STATE_TONES.get(finding.state, 'bad')}", finding.state)
    change = f"{finding.change:.2%}" if finding.state in _MEASURED else ""
    rows = f"{finding.rows_moved} of {finding.rows}" if finding.part == "old rows" and finding.touched else ""
    return element("code", finding.name), span("part", finding.part), badge, change, rows, finding.words
