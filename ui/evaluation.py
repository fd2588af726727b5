"""Evaluation on the Listen tab: which models and sentences, the last report with its intervals, and the worst clips.

From the last report a listening test is made, taken and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gradio as gr

from config import foreign
from config.errors import UserError
from config.languages import language_name
from config.schema import EvaluateOptions, ListeningTestOptions
from core.jobs.reporter import pluralize
from core.jobs.state import JobState
from core.library import evaluation_report, listening
from core.library.evaluation_report import (
    METRICS,
    EvaluatedClip,
    EvaluationReport,
    group_tables,
    interval_bar,
    listening_tables,
    show,
    show_test,
)
from core.library.learning import describe_report
from ui import job_views, media, records, verb_form, voice_settings
from ui.form import parse
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, player, span, table
from ui.page import Page
from ui.titles import title_of

_FIELDS = ("models", "languages", "sentences", "count", "dataset", "recogniser")
_KINDS = [("Rating, 1 to 5", "rating"), ("Preference, A or B", "preference"), ("ABX", "abx")]
_WORST = 3  # clips of each model on the page; the HTML report has ten


def build(page: Page) -> None:
    """Lay out the section."""
    fields = EvaluateOptions.model_fields
    with gr.Accordion("Evaluate: error, speaker, naturalness with intervals", open=False, elem_classes="fold",
                      elem_id="evaluate"):
        gr.HTML(paragraph("Speaks a list of sentences with each model, measures them all, and compares every two "
                          "models on the same sentences. Recordings are the upper bound; a base model that reads a new "
                          "language in Latin letters is the lower one.", class_="small"))
        models = gr.Dropdown([], label=fields["models"].title, multiselect=True,
                             elem_classes="several-choices", allow_custom_value=True,
                             elem_id="evaluate-models")
        with gr.Row(elem_classes="grid"):
            languages = gr.Textbox("", label=fields["languages"].title, max_lines=1, min_width=150,
                                   info="Codes, such as am en; empty is all.", elem_id="evaluate-languages")
            sentences = gr.Dropdown(["held-out", "shipped", "categories"], value="held-out",
                                    label=fields["sentences"].title,
                                    info="Or the path of a text file.", allow_custom_value=True, min_width=150,
                                    elem_id="evaluate-sentences")
            count = gr.Number(fields["count"].default, label=fields["count"].title, precision=0, minimum=1,
                              min_width=150, elem_id="evaluate-count")
            dataset = gr.Dropdown([], value=None, label=fields["dataset"].title, allow_custom_value=True, min_width=150,
                                  info="Empty: that of the first trained model.", elem_id="evaluate-dataset")
            recogniser = gr.Textbox("", label=fields["recogniser"].title, max_lines=1, min_width=150,
                                    info="Empty: that of the training, or the model's own.",
                                    elem_id="evaluate-recogniser")
        start = gr.Button("Evaluate", variant="primary", size="lg", elem_id="run-evaluate")
        notice = gr.HTML(elem_classes="notices")
        command = verb_form.command_fold("evaluate")
        result = gr.HTML(elem_id="evaluation")
        _build_listening(page)

    # The command below the form follows every change of it.
    inputs = [models, languages, sentences, count, dataset, recogniser]

    def run(*values: object) -> Sequence[object]:
        return [page.started_notice(page.start("evaluate", options_of(*values)))]

    # The lists are those of the workspace, and the result is that of the last evaluation.
    page.live.panel(models, lambda view: gr.update(choices=choices(page, view)), "listen")
    page.live.panel(dataset, lambda _view: gr.update(choices=["", *page.workspace.list_datasets()]), "listen")
    page.live.panel(result, last_view, "listen")
    page.on(start.click, run, inputs, [notice])
    for widget in inputs:
        page.on(widget.change, lambda *values: [verb_form.command_view(page, "evaluate", options_of(*values))],
                inputs, [command])


def _build_listening(page: Page) -> None:
    """Lay out the listening tests of the last evaluation."""
    fields = ListeningTestOptions.model_fields
    with gr.Accordion("Listening test", open=False, elem_classes="fold", elem_id="listening"):
        gr.HTML(paragraph("People rate or compare the clips of the evaluation above. They do not see which model is "
                          "which, and all clips are equally loud. With recordings in the evaluation, recordings are "
                          "hidden among the clips, and so is a damaged copy: who cannot tell them apart is flagged.",
                          class_="small"))
        with gr.Row(elem_classes="grid"):
            kind = gr.Dropdown(_KINDS, value="rating", label=fields["kind"].title, min_width=150,
                               elem_id="listening-kind")
            count = gr.Number(fields["count"].default, label=fields["count"].title, precision=0, minimum=1,
                              min_width=150, elem_id="listening-count")
            language = gr.Dropdown([""], value="", label=fields["language"].title, min_width=150,
                                   info="Empty: the first of the evaluation.", elem_id="listening-language")
        models = gr.Dropdown([], label=fields["models"].title, multiselect=True,
                             elem_classes="several-choices", info="Empty: all.",
                             elem_id="listening-models")
        make = gr.Button("Make listening test", variant="primary", size="lg", elem_id="run-listening")
        notice = gr.HTML(elem_classes="notices", elem_id="listening-notice")
        command = verb_form.command_fold("listening")
        tests = gr.HTML(elem_id="listening-tests")
        answers = gr.File(file_count="multiple", type="filepath", height=160, elem_id="listening-answers",
                          label="Import answers of listeners elsewhere (.json)")

    # A listening test is always of the newest evaluation.
    inputs = [kind, models, language, count]

    def options_now(kind: object, models: object, language: object, count: object) -> ListeningTestOptions:
        state = View("listen", {}, tuple(page.live.board.states())).newest("evaluate")
        if state is None:
            raise UserError("There is no evaluation to make a listening test from.", "Evaluate some models first.")
        chosen = tuple(models) if isinstance(models, list) else ()
        return parse(ListeningTestOptions, {"evaluation": state.id, "kind": kind, "models": chosen,
                                            "language": language or "", "count": count})

    def import_files(files: Sequence[str] | str | None) -> Sequence[object]:
        paths = [files] if isinstance(files, str) else list(files or ())
        added = [listening.add_answers(page.workspace, foreign.read_bytes(Path(path), listening.FILE_BYTES),
                                       Path(path).name) for path in paths]

        # Each report is written once, however many files of answers it got.
        for evaluation in dict.fromkeys(entry.test.evaluation for entry in added):
            listening.update_report(page.workspace, evaluation)
        return [job_views.notice(f"{pluralize(sum(entry.answers for entry in added), 'new answer')} from "
                                 f"{pluralize(len(added), 'file')}."), None]

    def report_of(view: View) -> EvaluationReport | None:
        state = view.newest("evaluate")
        is_written = state is not None and (state.job.directory / evaluation_report.JSON).is_file()
        return evaluation_report.read(state.job.directory) if state and is_written else None

    def model_choices(view: View) -> object:
        report = report_of(view)
        return gr.update(choices=[model.name for model in report.models] if report else [])

    def language_choices(view: View) -> object:
        report = report_of(view)
        return gr.update(choices=["", *(report.languages() if report else ())])

    # Models and languages to choose are those of that evaluation.
    page.live.panel(models, model_choices, "listen")
    page.live.panel(language, language_choices, "listen")
    page.live.panel(tests, lambda view: listening_view(view), "listen")
    page.on(make.click, lambda *values: [page.started_notice(page.start("listening_test", options_now(*values)))],
            inputs, [notice])
    page.on(answers.upload, import_files, [answers], [notice, answers], files=True)
    for widget in inputs:
        page.on(widget.change, lambda *values: [verb_form.command_view(page, "listening_test", options_now(*values))],
                inputs, [command])


def listening_view(view: View) -> Html:
    """The listening tests of the newest evaluation: links, and what listeners said so far."""
    evaluation, making = view.newest("evaluate"), view.newest("listening_test")
    parts = [job_views.job_card(making)] if making and making.status != "finished" else []
    folders = [state.job.directory for state in reversed(view.jobs) if evaluation and state.verb == "listening_test"
               and state.job.settings.get("evaluation") == evaluation.id]
    for folder in (path for path in folders if (path / listening.TEST).is_file()):
        try:
            test, outcome = listening.read_test(folder), listening.result_of(folder)
        except UserError as error:
            parts.append(job_views.fault(error.message, error.hint))
            continue

        # The first table is open; the others are folded.
        tables = [element("details", element("summary", title), table(head, rows), open=place == 0)
                  for place, (title, head, rows) in enumerate(listening_tables(outcome))]
        kind = next(title for title, name in _KINDS if name == test.kind)
        parts.append(div(
            "card", element("strong", f"{kind}: {language_name(test.language)}, {', '.join(test.models)}"),
            paragraph(element("a", "Take the test", href=media.listening_url(folder.name), target="_blank"), " · ",
                      element("a", "Download the test for listeners elsewhere",
                              href=media.listening_url(folder.name, download=True), download=True)),
            paragraph(outcome.about, class_="small"), *tables, data_test=test.id))
    return join(parts) if parts else job_views.empty("Tests and their results appear here.")


def options_of(models: object, languages: object, *values: object) -> EvaluateOptions:
    """The options from the widgets' values."""
    chosen = [str(model) for model in models] if isinstance(models, list) else []
    if not chosen:
        raise UserError("No model is chosen.", "Choose models, and the recordings as the upper bound.")
    codes = str(languages or "").replace(",", " ").split()
    return parse(EvaluateOptions, dict(zip(_FIELDS, (tuple(chosen), tuple(codes), *values), strict=True)))


def choices(page: Page, view: View) -> list[tuple[str, str]]:
    """Title and reference of every model, trained ones first, and the bounds."""
    references = [model.reference for model in voice_settings.references(page.workspace, view)]
    # Trained models come first, then bases and bounds.
    trained = [name for name in references if not name.startswith("base:")]
    bases = [name for name in references if name.startswith("base:")]
    names = [*trained, *bases, *(f"{name}+romanised" for name in bases),
             *(f"codec:{name.partition(':')[2]}" for name in bases), "recordings"]
    return [(title_of(page.workspace, name), name) for name in names]


def last_view(view: View) -> Html:
    """The newest evaluation: its progress, then its report."""
    state = view.newest("evaluate")
    if state is None:
        return job_views.empty("The report appears here: a table for each language, differences, and the worst clips.")
    parts = [job_views.job_card(state)] if state.status != "finished" else []
    if (state.job.directory / evaluation_report.JSON).is_file():
        report = evaluation_report.read(state.job.directory)
        parts += [outcomes_view(view, report), report_view(state, report)]
    return join(parts)


def outcomes_view(view: View, report: EvaluationReport) -> Html:
    """What the training of each evaluated model taught: no metric of a silent model says that it is silent."""
    notices = []
    for model in report.models:
        # A base model has no training, and an export's run may be deleted.
        run = view.job(model.run) if model.run else None
        if run is None or model.step is None:
            continue
        learned = records.learning_report(run, model.step)
        tone = "bad" if learned.learning.bad else "info"
        title = title_of(run.job.workspace, model.name)
        notices.append(div(f"notice {tone}", element("strong", f"{title}: {describe_report(learned)}."),
                           paragraph("The other values of this model say little: most of them are of silence or noise.")
                           if learned.learning.bad else NOTHING, role="alert" if learned.learning.bad else "status"))
    return join(notices)


def report_view(state: JobState, report: EvaluationReport) -> Html:
    """Tables, differences and the worst clips of a report."""
    parts = [job_views.warnings(report.notes) if report.notes else NOTHING]
    for place, language in enumerate(report.languages()):
        names = [entry.name for entry in report.models if language in report.estimates.get(entry.name, {})]
        titles = [title_of(state.job.workspace, name) for name in names]
        rows = [(METRICS[metric].title, *(_cell(report, name, language, metric, names) for name in names))
                for metric in report.metrics(language)]

        tests = []
        for test in report.tests:
            if test.language == language:
                first, second = (title_of(state.job.workspace, name) for name in (test.first, test.second))
                tests.append(element("li", f"{METRICS[test.metric].title}, {second} minus {first}: {show_test(test)}"))
        differences = element("details", element("summary", "Paired differences"), element("ul", *tests))
        groups = [element("details", element("summary", title), table(head, group_rows))
                  for title, head, group_rows in group_tables(report, language)]
        parts.append(element("details", element("summary", element("strong", language_name(language))),
                             table(("Metric", *titles), rows), differences if tests else NOTHING, *groups,
                             open=place == 0))

    # The worst clips of each model can be played.
    for model in report.models:
        worst = report.worst(model.name, _WORST)
        if worst:
            title = title_of(state.job.workspace, model.name)
            parts.append(element("details", element("summary", f"Worst clips of {title}"),
                                 *(_clip(state, clip) for clip in worst)))

    folder = Path("runs") / state.id
    paths = join((element("code", folder / name) for name in evaluation_report.FILES), ", ")
    parts.append(paragraph("Reports in the workspace: ", paths, class_="small"))
    return join(parts)


def _cell(report: EvaluationReport, name: str, language: str, metric: str, names: Sequence[str]) -> Html:
    estimates = {other: report.estimates[other][language][metric] for other in names
                 if metric in report.estimates[other][language]}
    if name not in estimates:
        return span("small", "–")
    tone = "estimate badge bad" if metric == "no_speech" and estimates[name].value > 0 else "estimate"
    return join((span(tone, show(metric, estimates[name])),
                 Html(interval_bar(metric, estimates[name], list(estimates.values())))))


def _clip(state: JobState, clip: EvaluatedClip) -> Html:
    edits, letters = clip.values.get("cer", (0.0, 0.0))
    score = job_views.error_badge(edits / letters) if letters else NOTHING
    return div("card", element("blockquote", clip.text, lang=clip.language), score,
               player(media.url("runs", state.id, clip.audio), clip.text),
               paragraph("Transcript (ASR): ", element("q", clip.transcript, lang=clip.language), class_="small")
               if clip.transcript else NOTHING)
