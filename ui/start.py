"""Start tab: pick a language and a dataset, press one button, watch, then listen."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from config.errors import UserError
from config.languages import NAMES, NATIVE_NAMES, code_of, find_languages, language_title, typed_code
from config.loading import parse_options
from config.schema import (
    ANY_STEPS,
    AS_IS,
    BatchOptions,
    CompareOptions,
    ExtendOptions,
    LengthOptions,
    Options,
    PrepareOptions,
    TokenizerOptions,
    TrainOptions,
    option_value,
    with_values,
)
from core.dataset import languages, review
from core.dataset.review import check_texts_match
from core.jobs import checkpoint_names, control
from core.jobs.gpus import Gpu
from core.jobs.job import Job
from core.jobs.reporter import duration_text, pluralize, size_text
from core.jobs.state import JobState
from core.jobs.verbs import VERBS
from core.library import lineage, presets
from core.library.catalog import CATALOG, CatalogEntry, find_entry
from core.library.lineage import Model
from core.library.records import read_extension
from core.library.reference_voices import SPEAKER
from core.sources import source_preview
from core.submission import job_chains
from core.submission.jobs import submit
from core.text import text_rules
from core.verbs.extend import is_other_extension
from core.verbs.prepare import check_new_dataset
from core.verbs.tokenizer import is_other_tokenizer
from core.workspace import KINDS, Workspace, free_name
from ui import dataset as dataset_tab
from ui import job_views, records, uploads, verb_form
from ui.charts import chart
from ui.form import parse
from ui.live import QUIET, View, choice_update
from ui.markup import NOTHING, Html, div, element, paragraph, span
from ui.page import TABS, Page
from ui.run_views import loss_series
from ui.train import stop_button


def build(page: Page) -> None:
    """Lay out the tab and add its listeners."""
    live, workspace = page.live, page.workspace
    with gr.Row(elem_classes="hero"):
        with gr.Column(scale=5, min_width=300):
            gr.HTML(div(
                "intro", element("h1", "Teach a voice a new language"),
                paragraph("Lisan trains a text-to-speech model on a new language. The languages it speaks already "
                          "stay exactly as they are, and a certificate proves it."),
            ))
            # The four choices have a value before the page is first refreshed.
            with gr.Row(elem_classes="grid"):
                model = gr.Dropdown([(CATALOG[0].title, CATALOG[0].name)], value=CATALOG[0].name,
                                    label="Voice model", filterable=False, elem_id="start-model", min_width=200)
                dataset = gr.Dropdown([(OWN_LABEL, OWN), (DEMO_LABEL, DEMO)], value=DEMO,
                                      label="Recordings", filterable=False, elem_id="start-dataset", min_width=200)
                language = gr.Dropdown([("Amharic", "am")], value="am", label="New language", filterable=False,
                                       elem_id="start-language", min_width=140)
                length = gr.Dropdown([("Full: 5 min, up to 800 steps", FULL)], value=FULL,
                                     label="Training length", filterable=False, elem_id="start-length", min_width=200)
            own_fields = _build_own(page, model)

            about_data = gr.HTML(elem_id="start-data", elem_classes="notices")
            start = gr.Button("Train Amharic", variant="primary", size="lg", elem_id="teach")
            with gr.Group(visible=False, elem_classes="confirm") as confirm:
                short = gr.HTML(elem_id="start-short")
                with gr.Row(elem_classes="controls"):
                    longer = gr.Button("Train longer", variant="primary", size="md", elem_id="start-longer")
                    anyway = gr.Button("Train all the same", size="md", elem_id="start-anyway")
                    cancel = gr.Button("Cancel", size="md", elem_id="start-cancel")
            notice = gr.HTML(elem_classes="notices", elem_id="start-notice")
        with gr.Column(scale=4, min_width=300):
            steps = gr.HTML(elem_id="chain")
            with gr.Row(elem_classes="controls"):
                stop = gr.Button("Stop", size="md", visible=False, elem_id="start-stop", min_width=90)
                resume = gr.Button("Resume", variant="primary", size="md", visible=False, elem_id="start-resume",
                                   min_width=260)
                listen = gr.Button("Listen", variant="primary", size="md", visible=False, elem_id="start-listen",
                                   min_width=120)
                further = gr.Button("Train further", size="md", visible=False, elem_id="start-further", min_width=180)
                details = gr.Button("Details", size="md", visible=False, elem_id="start-details", min_width=90)

            curve = gr.HTML(elem_id="start-curve")
    followed = gr.State("")  # the training whose end opens Listen
    shown_run = gr.State("")  # the training whose choices this page has shown

    for name, widget in (("followed", followed), ("start_shown_run", shown_run), ("start_model", model),
                         ("start_language", language), ("start_dataset", dataset), ("start_length", length)):
        live.watch(name, widget)

    def resolved(view: View) -> View:
        return resolved_selection(workspace, view, shown_chain(view))

    def budget(view: View) -> StepBudget | None:
        return view.once(("budget",), lambda: step_budget(workspace, resolved(view), page.gpus()))

    def loss_curve(view: View) -> Html:
        state = _training(shown_chain(view))
        if state is None or not state.steps:
            return NOTHING
        return chart("Training loss (lower is better)", loss_series(state)[:2], x_most=state.steps[-1].total_steps)

    for component, render in (
        (model, lambda view: _choices(models(workspace, view.jobs), resolved(view).values["start_model"])),
        (language, lambda view: language_choices(workspace, resolved(view))),
        (dataset, lambda view: dataset_choices(workspace, resolved(view))),
        (length, lambda view: length_choices(workspace, resolved(view), page.gpus())),
        (shown_run, lambda view: _id_of(_last_training(shown_chain(view)))),
        (notice, notice_while_running), (start, lambda view: start_button(resolved(view), budget(view))),
        (own_fields.group, lambda view: gr.update(visible=_is_own(resolved(view)))),
        (about_data, lambda view: data_view(workspace, resolved(view))),
        (resume, lambda view: resume_button(shown_chain(view))),
        (further, lambda view: further_button(shown_chain(view))),
        (steps, lambda view: chain_view(shown_chain(view), pace(workspace, view),
                                        last_certificate_time(workspace, view))),
        (curve, loss_curve),
    ):
        live.panel(component, render, "start")

    live.panel(stop, lambda view: stop_button(shown_chain(view)), "start")
    for button, is_shown in (
        (listen, lambda states: any(state.verb == "train" and state.checkpoints for state in states)),
        (details, lambda states: _training(states) is not None),
    ):
        live.show_when(button, lambda view: shown_chain(view), is_shown, "start")

    def watched_to_the_end(view: View) -> bool:
        """Whether this browser watched the chain on Start until it could be used: Listen is opened then."""
        states = shown_chain(view)
        return bool(view.values["followed"] and view.tab == "start" and states
                    and all(state.status == "finished" for state in usable(states)))

    # Listen is opened once for the browser that waited for the training.
    live.panel(page.tabs, lambda view: gr.update(selected="listen") if watched_to_the_end(view) else gr.skip())
    live.panel(page.tab, lambda view: "listen" if watched_to_the_end(view) else gr.skip())
    live.panel(followed, follow)
    live.pending.append(dataset.input(lambda: None, None, None, **QUIET))  # shows the fields of own recordings at once

    fields = [model, language, dataset, length, *own_fields.fields]
    started = [notice, short, confirm, longer, followed, page.run, page.pair, length, *own_fields.fields]

    def budget_of(chosen: Sequence[object]) -> StepBudget | None:
        names = ("start_model", "start_language", "start_dataset", "start_length")
        values = {name: str(value or "") for name, value in zip(names, chosen, strict=False)}
        return step_budget(workspace, View("start", values, tuple(live.board.states())), page.gpus())

    def start_or_ask(*chosen: Any) -> Sequence[object]:
        """Start, or ask first if the time is known to be too short."""
        budget = budget_of(chosen)
        if budget is None or not budget.too_short:
            return start_now(*chosen)
        train_longer = gr.update(visible=bool(budget.longer), value=f"Train {budget.longer} minutes")
        return [NOTHING, too_short_notice(budget), gr.update(visible=True), train_longer,
                *(gr.skip() for _ in started[4:])]

    def start_now(*chosen: Any) -> Sequence[object]:
        start_notice, training, run, pair, *own_values = _start(page, *chosen)
        return [start_notice, NOTHING, gr.update(visible=False), gr.skip(), training, run, pair, chosen[3], *own_values]

    def start_longer(*chosen: Any) -> Sequence[object]:
        budget = budget_of(chosen)
        minutes = budget.longer if budget is not None and budget.longer else chosen[3]
        return start_now(*chosen[:3], minutes, *chosen[4:])

    page.on(start.click, start_or_ask, fields, started)
    page.on(anyway.click, start_now, fields, started)
    page.on(longer.click, start_longer, fields, started)
    page.on(cancel.click, lambda: [NOTHING, gr.update(visible=False)], [], [notice, confirm])

    page.on(stop.click, lambda: _stop(page), [], [notice])
    page.on(resume.click, lambda: _resume(page), [], [notice, followed])
    page.on(further.click, lambda length: _further(page, length), [length], [notice, followed, page.run, page.pair])
    page.go(listen, "listen")
    page.go(details, "train")


def notice_while_running(view: View) -> object:
    """A button's notice stays while a job of the chain lives; then the steps show the result."""
    return gr.skip() if any(state.alive for state in shown_chain(view)) else gr.update(value=NOTHING)


def shown_chain(view: View) -> list[JobState]:
    return view.once(("chain",), lambda: chain_of(view.jobs))


def chain_of(states: Sequence[JobState]) -> list[JobState]:
    """The chain to show: one with a job that runs, else one with a job that waits, else the newest.

    A certificate that is still to come does not count: it would hide a newer chain that has failed.
    """
    # A training that waited for other jobs belongs to a chain.
    trainings = [state for state in states if state.verb == "train" and state.job.after]
    ahead = {name for state in states if state.alive and not state.certifies for name in (state.id, *state.job.after)}
    alive = [_chain_with(state, states) for state in trainings if state.id in ahead]
    running = [jobs for jobs in alive if any(state.status in ("running", "stopping") for state in usable(jobs))]

    if alive:
        return (running or alive)[0]
    return _chain_with(trainings[0], states) if trainings else []


def _chain_with(training: JobState, states: Sequence[JobState]) -> list[JobState]:
    """The jobs before and after a training that waited for others, in order, with its newest certificate.

    The certificate may have been started on another tab.
    """
    # The chain is followed backwards from its training.
    by_id = {state.id: state for state in states}
    jobs = [training]
    while jobs[0].job.after and jobs[0].job.after[0] in by_id:
        jobs.insert(0, by_id[jobs[0].job.after[0]])

    jobs += [state for state in reversed(states) if training.id in state.job.after and not state.certifies]
    return jobs + [state for state in states if state.certifies == training.id][:1]


def usable(states: Sequence[JobState]) -> list[JobState]:
    """The jobs of a chain after which the run can be used: its certificate may come later."""
    return [state for state in states if state.verb != "certify"]


def chain_view(states: Sequence[JobState], pace: str, past: float | None) -> Html:
    """The steps of the chain, or before there is one, what will happen at which `pace`."""
    if states:
        trained = {state.id for state in states if state.verb == "train" and state.status == "finished"
                   and not job_views.learned_nothing(state)}
        notes = {state.id: job_views.certificate_note(state, past, state.certifies in trained)
                 or step_assessment(state) for state in states}
        buttons = {state.id: _step_button(state) for state in states}
        return div("card", element("h2", chain_title(states)), job_views.chain_view(states, notes, buttons))
    steps = (
        ("Train.", "Lisan gets the base model, prepares the recordings, builds the tokenizer and trains."),
        ("Watch.", f"{pace} You can close this page."),
        ("Compare.", "Hear the same sentence before and after, with a score for how well it can be understood."),
        ("Certificate.", job_views.certificate_preview(past)),
    )
    items = [element("li", span("mark", str(number)), div("step", element("strong", title), paragraph(text)),
                     class_="link wait") for number, (title, text) in enumerate(steps, 1)]
    return div("card", element("h2", "What will happen"), element("ol", *items, class_="chain"))


def step_assessment(state: JobState) -> str:
    """What a finished step made, in a sentence; empty where its result does not say. A training has its outcome."""
    result = state.result or {}

    def count(name: str) -> int:
        value = result[name]
        return int(value) if isinstance(value, int | float) else 0

    try:
        match state.verb if state.status == "finished" else "":
            case "download":
                return f"{pluralize(count('files'), 'file')}, {size_text(count('bytes'))}."
            case "prepare":
                duration = duration_text(60 * float(str(result["minutes"])))
                return (f"{duration} of speech in {pluralize(count('clips'), 'clip')}, {count('clips_with_findings')} "
                        "of them with findings.")
            case "tokenizer":
                covered, characters = count("characters_covered"), count("characters")
                return f"New tokens: {count('tokens_added'):,}. Characters covered: {covered:,} of {characters:,}."
            case "extend":
                old = f" The {count('old_rows'):,} old ones are unchanged." if result["old_rows_equal"] is True else ""
                return f"New embeddings: {count('new_rows'):,}.{old}"
            case "compare":
                return f"Texts spoken by both models: {count('texts')}."
            case "certify":
                return f"Old languages: {result['preservation']}."
    except (KeyError, ValueError):  # a job of an earlier version
        return ""
    return ""


def _step_button(state: JobState) -> Html:
    """A button that opens the tab of a step; none for one that has not begun. The page's script opens the tab."""
    tab = VERBS[state.verb].tab
    if state.status in ("waiting", "skipped") or tab not in dict(TABS):
        return NOTHING
    return div("controls", element("button", f"Open {dict(TABS)[tab]}", type="button", class_="small-button",
                                   data_open_tab=tab, data_label=dict(TABS)[tab]))


def _training(states: Sequence[JobState]) -> JobState | None:
    return next((state for state in reversed(states) if state.verb == "train" and (state.steps or state.alive)), None)


def _last_training(states: Sequence[JobState]) -> JobState | None:
    return next((state for state in reversed(states) if state.verb == "train"), None)


def _id_of(state: JobState | None) -> str:
    return state.id if state else ""


def _resumable(states: Sequence[JobState]) -> bool:
    return not any(state.alive for state in states) and any(state.resumable for state in states)


def chain_title(states: Sequence[JobState]) -> str:
    """The language and the dataset of a chain, such as `Swahili from my-voice`."""
    dataset = next((str(state.job.settings.get("dataset", "")) for state in states if state.verb == "train"), "")
    language = next((str(state.job.settings.get("language", "")) for state in states if state.verb == "prepare"), "")
    if not language:
        return dataset
    return f"{job_views.language_name(language)} from {'the built-in demo' if dataset == DEMO_DATASET else dataset}"


def resume_button(states: Sequence[JobState]) -> object:
    """Resume, named by what it resumes."""
    return gr.update(visible=bool(states) and _resumable(states), value=f"Resume {chain_title(states)}")


def start_button(view: View, budget: StepBudget | None = None) -> object:
    """`Train` and the language, `again` where its recordings were trained on before; it says what is known too short.
    """
    states = shown_chain(view)
    if any(state.alive for state in usable(states)):
        return gr.update(value=f"Training {chain_title(states)}", interactive=False, variant="primary")

    chosen = {DEMO: DEMO_DATASET, OWN: view.values["start_own_name"]}.get(view.values["start_dataset"],
                                                                         view.values["start_dataset"])
    trainings = [state for state in view.jobs if state.verb == "train" and state.job.settings.get("dataset") == chosen]
    again = any(state.steps or state.status == "finished" for state in trainings)

    code = typed_code(view.values["start_own_language"]) if _is_own(view) else view.values["start_language"] or "am"
    name = job_views.language_name(code) if code else "my recordings"
    # A click on the pale button asks whether to train longer.
    if budget is not None and budget.too_short:
        return gr.update(value=f"Train {name}: too short, {budget.fitting:,} of {budget.needed:,} steps",
                         interactive=True, variant="secondary")

    to_resume = _resumable(states) and any(state in trainings for state in states)
    return gr.update(value=f"Train {name}{' again' if again else ''}", interactive=True,
                     variant="secondary" if to_resume else "primary")


def data_view(workspace: Workspace, view: View) -> Html:
    """How much speech the chosen dataset has and holds out, and what of it is too little."""
    name = DEMO_DATASET if view.values["start_dataset"] == DEMO else view.values["start_dataset"]
    if name not in workspace.list_datasets():
        return NOTHING
    card = records.dataset(workspace, name)
    if not card.clips or card.duration_s is None:
        return NOTHING
    # The held-out clips choose the best checkpoint, so their number is shown.
    held_out = card.held_out_clips or 0

    lines = [f"{duration_text(card.duration_s)} of speech in {pluralize(card.clips, 'clip')}, {held_out} "
             f"of them held out ({held_out / card.clips:.0%})."]
    if card.duration_s < presets.MIN_TRAIN_SPEECH_S:
        lines.append(f"That is little: {duration_text(presets.MIN_TRAIN_SPEECH_S)} is the least that has "
                     "worked, 30 minutes or more is better.")

    # The last training tells more about the recordings than their amount.
    last = next((state for state in view.jobs if state.verb == "train" and state.job.settings.get("dataset") == name
                 and job_views.learning_of(state)), None)
    failed = last is not None and job_views.learned_nothing(last)
    if last is not None and failed:
        lines.append(f"The last training on these recordings: {job_views.short_outcome(last)}.")
    if held_out < presets.FEW_HELD_OUT:
        lines.append("So few held-out clips choose the best checkpoint by next to nothing: add recordings, or prepare "
                     "them with a larger held-out share on the Data tab.")

    # A model cannot learn from texts that belong to other clips.
    match = review.text_match_of(workspace, name)
    if match is not None and match.is_finding:
        lines.append(f"{match.message} {match.hint}")
        failed = failed or match.is_proven

    tone = "bad" if failed else "wait" if len(lines) > 1 else "info"
    return div(f"notice {tone}", *map(paragraph, lines), role="alert" if failed else None)


@dataclass(frozen=True)
class _OwnFields:
    """The fields of own recordings, and the group that shows them; `fields`: source, name, language, any script."""

    group: gr.Group
    fields: tuple[Component, ...]


def _build_own(page: Page, model: gr.Dropdown) -> _OwnFields:
    """The fields for own recordings, which show what was recognised at once."""
    with gr.Group(visible=False) as group:
        upload = gr.File(file_count="multiple", type="filepath", height=140, elem_id="own-upload",
                         label="Drop an archive or files with their texts")
        gr.HTML(uploads.format_help(), elem_id="own-help")
        with gr.Row(elem_classes="grid"):
            source = gr.Textbox("", label="Or a path or URL", max_lines=1, elem_id="own-source", min_width=200)
            name = gr.Textbox("", label="Name of the recordings", max_lines=1, elem_id="own-name", min_width=140)
            language = gr.Dropdown(sorted((language_title(code), code) for code in {**NAMES, **NATIVE_NAMES}),
                                   value=None, allow_custom_value=True, label="Language (any name, or its code)",
                                   elem_id="own-language", min_width=140)
        meant = gr.Radio([], label="Which language is meant?", visible=False, elem_id="own-meant",
                         info="Of the 8,000 languages of ISO 639. For one that is not listed, write a code of your own "
                              "from qaa to qtz.")
        assessment = gr.HTML(elem_id="own-found", elem_classes="notices")
        any_script = gr.Checkbox(False, label="Accept any script", visible=False, elem_id="own-any-script")
        clean = gr.Checkbox(True, label="Clean up", elem_id="own-clean",
                            info="Cuts the silence at the ends of the clips, and takes out of the texts what is not "
                                 "spoken, such as [laughs]. Your files stay as they are.")
        voice = gr.HTML(elem_id="own-voice")
        # The event of an upload has Gradio check its inputs, and a dropdown answers a foreign value with an error page.
        model_name = gr.Textbox(CATALOG[0].name, visible=False)
    page.live.watch("start_own_source", source)
    page.live.watch("start_own_name", name)
    page.live.watch("start_own_language", language)

    page.live.panel(model_name, lambda view: view.values["start_model"], "start")
    page.live.panel(voice, lambda view: uploads.reproduction_view(uploads.newest_reproduction(
        view, view.values["start_model"], view.values["start_own_source"].strip())), "start")

    def look(source: str | None, language: str, name: str, model: str) -> Sequence[object]:
        source, code = (source or "").strip(), typed_code(language)
        return show(dataset_tab.look(page, source, code), source, code, name, model)

    def show(detected: object, source: str, code: str, name: str, model: str) -> Sequence[object]:
        """What follows from what was `detected` in a source: its voice is measured, and it gets a name."""
        question = bool(source and code) and source_preview.script_question(source, code)
        if source and "data-assessment" in str(detected):
            uploads.start_reproduction(page, model or CATALOG[0].name, source, code)
        return [detected, gr.update(visible=bool(question)),
                name or free_name(suggested_name(source, code), page.workspace.list_datasets().__contains__)]

    def take(files: Sequence[str] | str | None, language: str, name: str, model: str) -> Sequence[object]:
        code = typed_code(language)
        report, saved, remaining = dataset_tab.save_upload(page, files, code)
        if remaining is not None:  # refused
            return [report, gr.skip(), gr.skip(), saved, remaining]
        return [*show(report, str(saved), code, name, model), saved, remaining]

    page.on(upload.upload, take, [upload, language, name, model_name], [assessment, any_script, name, source, upload],
            files=True)

    def suggest(language: str | None) -> Sequence[object]:
        """Languages that may be meant by what was typed; none where it names one."""
        text = (language or "").strip()
        # A name or code that is understood needs no question.
        codes = [] if not text or code_of(text) or _is_private(text) else find_languages(text)
        return [NOTHING, gr.update(choices=[(language_title(code), code) for code in codes], value=None,
                                   visible=bool(codes))]

    language_notice = gr.HTML(elem_classes="notices")
    page.on(language.change, suggest, [language], [language_notice, meant])
    page.on(meant.input, lambda code: [NOTHING, code, gr.update(visible=False)], [meant],
            [language_notice, language, meant])
    for event in (source.submit, source.blur, language.change, model.input):
        page.on(event, look, [source, language, name, model], [assessment, any_script, name])
    return _OwnFields(group, (source, name, language, any_script, clean))


def suggested_name(source: str, language: str = "") -> str:
    """A dataset name from that of a file or folder; of several uploaded files, whose folder has none, the language's.
    """
    path = Path(source.strip())
    name = path.name.partition(".")[0] if source.strip() else ""
    if path.parent.name == Path(KINDS["upload"]).name:
        name = job_views.language_name(language).lower() if language else ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:60]


def own_recordings(workspace: Workspace, model: str, source: str, name: str, language: str,
                   any_script: object, clean: object = True) -> PrepareOptions:
    """The import of own recordings; `UserError` for what can be told before it: a name, a format, a script."""
    source, name = source or "", name or ""
    if not source.strip():
        raise UserError("No recordings were given.", "Drop an archive or files, or give a path.")
    options = parse(PrepareOptions, {"source": source, "dataset": name.strip(), "language": typed_code(language),
                                     "any_script": bool(any_script), "keep_edges": not clean,
                                     "remove_unspoken": bool(clean)})
    check_new_dataset(workspace, options)
    base: tuple[str, ...] = ()
    with suppress(UserError):  # a model that is not here yet is downloaded first
        base = (Model.find(workspace, model).base_languages
                if ":" in model or model in workspace.list_models() else find_entry(model).codes)
    languages.check_new(options.dataset, options.language, base,
                        lineage.languages_of(workspace, model) if ":" in model else ())
    source_preview.preview(options.source, options.language)
    question = "" if any_script else source_preview.script_question(options.source, options.language)
    if question:
        raise UserError(question, "Correct the language, or tick “Accept any script”.")
    return options


def _is_private(code: str) -> bool:
    """Whether it is a code for private use (RFC 5646, 2.2.1)."""
    return code.startswith("x-") or (len(code) == 3 and "qaa" <= code.lower() <= "qtz")


def _is_own(view: View) -> bool:
    return view.values.get("start_dataset") == OWN


def _start(page: Page, model: str, language: str, dataset: str, length: str, source: str, name: str,
           own_language: str, any_script: object, clean: object = True) -> Sequence[object]:
    """Queue the chain, a comparison and the certificate after it, and start all of it."""
    states = page.live.board.states()
    if any(state.alive for state in usable(chain_of(states))):
        raise UserError("A training is running already.", "Wait for it, or stop it first.")

    prepare = None
    if dataset == OWN:
        prepare = own_recordings(page.workspace, model, source or "", name or "", own_language or "", any_script, clean)
        language, dataset = prepare.language, prepare.dataset

    options = chain_options(page.workspace, model, language, dataset, length, states, page.gpus(), prepare)
    jobs = job_chains.submit_chain(page.workspace, options, comparison=comparison_options(page.workspace, options))
    *_, training, comparison, _certificate = jobs
    for job in jobs:
        control.start(job)
    return [job_views.notice("Training started. It continues when you close this page."), training.id,
            page.show(training.id), page.show(comparison.id), "", "", None, False, True]


def _stop(page: Page) -> Sequence[object]:
    alive = [state for state in chain_of(page.live.board.states()) if state.alive]
    for state in reversed(alive):
        control.stop(state.job)
    return [job_views.notice(job_views.stop_message(alive[0]) if alive else "It has ended already.")]


def _resume(page: Page) -> Sequence[object]:
    states = chain_of(page.live.board.states())
    for state in states:
        if state.resumable:
            control.resume(state.job)
    last = next((state.job for state in reversed(states) if state.resumable and state.started_at), None)
    return [job_views.notice(checkpoint_names.resume_point(last) if last else "Resumed."),
            _id_of(_last_training(states))]


def further_button(states: Sequence[JobState]) -> object:
    """The button that starts a new training from the weights of the last one; visible when a training has ended."""
    ended = bool(states) and not any(state.alive for state in usable(states)) and not _resumable(states)
    return gr.update(visible=ended, value=f"Train {chain_title(states).partition(' from ')[0]} further")


def further_options(workspace: Workspace, states: Sequence[JobState], length: str,
                    gpus: Sequence[Gpu] = ()) -> TrainOptions:
    """Options of a new training of this length from the weights of the chain's last one, otherwise with its options."""
    training = _last_training(states)
    if training is None:
        raise UserError("There is no training to continue.", "Train first.")
    # The new training differs from the last one in its length alone.
    settings = training.job.settings
    family = find_entry(read_extension(workspace.extension(str(settings.get("extension", "")))).origin.family)
    _, length_options = training_options(workspace, family, str(settings.get("dataset", "")), length, gpus)
    length_of = {name: option_value(length_options, name) for name in ("steps", "max_minutes", "checkpoint_every")}
    return parse_options(TrainOptions, {**settings, **length_of, "init_from": f"run:{training.id}"})


def _further(page: Page, length: str) -> Sequence[object]:
    states = chain_of(page.live.board.states())
    options = further_options(page.workspace, states, length, page.gpus())
    # The last comparison is made again with the new training.
    comparisons = [state.job.settings for state in states if state.verb == "compare"]
    comparison = parse_options(CompareOptions, comparisons[-1]) if comparisons else None
    jobs = submit(page.workspace, "train", options, after=(_id_of(_last_training(states)),), comparison=comparison)
    for job in jobs:
        control.start(job)
    return [job_views.notice("Training started on the weights of the last one."), jobs[0].id, page.show(jobs[0].id),
            page.show(jobs[1].id) if comparison else gr.skip()]


def follow(view: View) -> str:
    """The training that this browser watches; none when the chain has finished and another tab is open.

    On Start it stays: Listen is opened by it, in another answer than this one.
    """
    states = shown_chain(view)
    if view.tab != "start" and all(state.status == "finished" for state in usable(states)):
        return ""
    running = next((state.id for state in states if state.verb == "train" and state.alive), "")
    return running or view.values["followed"]


OWN = "own"
OWN_LABEL = "My own recordings"
DEMO = "demo"
DEMO_LABEL = "Built-in Amharic demo"
DEMO_DATASET = "amharic-demo"
FULL, QUICK = "full", "quick"
MINUTES = ("15", "60")
"""Lengths in minutes: as many steps as fit."""
LEAST_SHARE = 1 / 3
"""Of the steps needed; a training of fewer is known to be too short."""
_EXTENSION = TrainOptions.model_fields["extension"].default
_TIMED_STEPS = 5  # fewer say little of a step's time
_LONGEST_STEP_S = 1e6  # others may have written any number
_QUICK: Mapping[str, Mapping[str, object]] = {
    "demo": {"steps": 100, "max_minutes": 2, "checkpoint_every": 50, "evaluation_sentences": 4},
    "chatterbox": {"steps": 20, "max_minutes": 20, "checkpoint_every": 10, "evaluation_sentences": 1},
}
"""What a quick test changes, by preset: enough to run every step, too little to speak well."""


def resolved_selection(workspace: Workspace, view: View, states: Sequence[JobState]) -> View:
    """`view` with the choices of the chain `states`, applied once per page.

    A reload shows what is being trained, and what a person chooses afterwards stays.
    """
    training = _last_training(states)
    if training is None or view.values.get("start_shown_run") == training.id:
        return view
    model = next((str(state.job.settings["model"]) for state in states if "model" in state.job.settings), "")
    steps, minutes = (training.job.settings.get(name) for name in ("steps", "max_minutes"))
    # The length is read back from the options, which do not name it.
    quick = steps == _quick(_family_or_first(workspace, model)).length.steps
    timed = next((length for length in MINUTES if steps == ANY_STEPS and minutes == float(length)), FULL)
    chosen = {"start_length": QUICK if quick else timed} | ({"start_model": model} if model else {})

    # A dataset that is still being prepared has no language yet; its job has one.
    dataset = str(training.job.settings.get("dataset", ""))
    if dataset == DEMO_DATASET:
        chosen |= {"start_dataset": DEMO, "start_language": "am"}
    elif dataset in workspace.list_datasets():
        chosen |= {"start_dataset": dataset, "start_language": records.dataset(workspace, dataset).language}
    elif preparing := [state for state in states if state.alive and _makes(state, dataset)]:
        chosen |= {"start_dataset": dataset, "start_language": str(preparing[0].job.settings.get("language", ""))}
    return replace(view, values={**view.values, **chosen})


def _choices(choices: Sequence[tuple[str, str]], current: str) -> object:
    """An update that shows `current` where it is among the choices; else the widget keeps its value."""
    if current in [name for _, name in choices]:
        return gr.update(choices=choices, value=current)
    return gr.update(choices=choices)


def models(workspace: Workspace, jobs: Sequence[JobState] = ()) -> list[tuple[str, str]]:
    """Label and name of each base model, in the workspace or to download; then of runs and exports to build upon."""
    present = workspace.list_models()
    # Models with licences are downloaded on the Model tab, where these are accepted.
    absent = [entry for entry in CATALOG if entry.name not in present and not entry.licences]
    labels = {entry.name: f"{entry.title} ({f'{entry.size} download' if entry.variants else 'included'})"
              for entry in absent}
    for name in present:
        with suppress(UserError):  # damaged, as the Model tab says
            family = family_of_model(workspace, name)
            labels[name] = family.title if name == family.name else f"{family.title}: {name}"

    order = [entry.name for entry in CATALOG]
    bases = [(label, name) for name, label in sorted(
        labels.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))]
    # Such as `Built-in tiny model with Amharic (export tiny-am)`.
    trained = [(f"{model.family} with {', '.join(map(job_views.language_name, model.codes))} "
                f"({model.model.kind} {job_views.short_id(model.model.name)})", model.model.reference)
               for model in verb_form.extendable(workspace, jobs)]
    return [*bases, *trained]


def family_of_model(workspace: Workspace, name: str) -> CatalogEntry:
    """The family of a base model, downloaded or not, or of a run or an export."""
    if ":" in name:
        return Model.open(workspace, name).family
    return Model.open(workspace, f"base:{name}").family if name in workspace.list_models() else find_entry(name)


def language_choices(workspace: Workspace, view: View) -> Mapping[str, object]:
    """Amharic, which has built-in recordings, and the language of each dataset; hidden beside own recordings."""
    languages_by_model = [set(lineage.languages_of(workspace, f"base:{model}")) for model in workspace.list_models()]
    everywhere = set.intersection(*languages_by_model) if languages_by_model else set()  # their datasets are for replay
    chosen = view.values.get("start_model", "")
    if ":" in chosen:  # a language that it has is not added again
        everywhere |= set(lineage.languages_of(workspace, chosen))

    # Languages of recordings that are being imported are offered already.
    preparing = {str(state.job.settings.get("language", "")) for state in view.jobs
                 if state.verb == "prepare" and state.alive}
    prepared = {dataset.language for dataset in records.datasets(workspace) if dataset.language}
    codes = {code for code in {"am"} | preparing | prepared if code and not set(code.split(",")) & everywhere}
    titled = [(job_views.language_name(code), code) for code in sorted(codes)]
    return {**choice_update(titled, view.values["start_language"]), "visible": not _is_own(view)}


def dataset_choices(workspace: Workspace, view: View) -> object:
    """Own recordings; the demo for Amharic, and every dataset of the language that is prepared or being so."""
    language, current = view.values["start_language"] or "am", view.values["start_dataset"]
    offered = [(DEMO_LABEL, DEMO)] if language == "am" else []
    datasets = workspace.list_datasets()
    offered += [
        (card.name if card.clips is None else f"{card.name} ({pluralize(card.clips, 'clip')})", card.name)
        for card in records.datasets(workspace) if card.language == language and card.name != DEMO_DATASET
    ]
    preparing = [state for state in view.jobs
                 if state.verb == "prepare" and state.job.settings.get("language") == language]
    offered += [(f"{name} (being prepared)", name) for state in preparing if state.alive
                and (name := str(state.job.settings.get("dataset", ""))) not in (*datasets, DEMO_DATASET)]
    if current not in [name for _, name in offered] and not any(_makes(state, current) for state in view.jobs):
        current = offered[0][1] if offered and current != OWN else OWN
    return choice_update([(OWN_LABEL, OWN), *offered], current)


def _makes(state: JobState, dataset: str) -> bool:
    return state.verb == "prepare" and state.job.settings.get("dataset") == dataset


def length_choices(workspace: Workspace, view: View, gpus: Sequence[Gpu] = ()) -> object:
    """Training lengths in minutes and in the steps that fit into them, where a step was timed on this machine."""
    family = _family_or_first(workspace, view.values["start_model"])
    offered = []
    for length in (FULL, QUICK, *MINUTES):
        preset, options = training_options(workspace, family, view.values.get("start_dataset", ""), length, gpus)
        name = {FULL: "Full" if options.length.max_minutes else f"Preset {preset}", QUICK: "Quick test"}.get(length, "")
        step_s = step_seconds(workspace, view, options.batches, gpus)
        offered.append((length_title(name, options.length, step_s), length))
    return _choices(offered, view.values.get("start_length", ""))


@dataclass(frozen=True)
class StepBudget:
    """Steps that fit into a training length on this machine, beside the steps that the preset needs to learn."""

    fitting: int
    needed: int
    step_s: float
    longer: str = ""  # a length in minutes that is not too short; empty if none is
    longer_steps: int = 0  # steps that fit into it

    @property
    def too_short(self) -> bool:
        return self.fitting < LEAST_SHARE * self.needed

    @property
    def needed_time(self) -> str:
        """The time of the steps needed, such as "2 h"."""
        return duration_text(self.needed * self.step_s)


def step_budget(workspace: Workspace, view: View, gpus: Sequence[Gpu] = ()) -> StepBudget | None:
    """The steps that fit into the chosen length; None where no step was timed on this machine, or for a quick test.

    A quick test is chosen for being too short.
    """
    length = view.values.get("start_length", FULL)
    if length == QUICK:
        return None
    family, dataset = _family_or_first(workspace, view.values["start_model"]), view.values.get("start_dataset", "")
    # The preset's number of steps is the measure of enough.
    needed = training_options(workspace, family, dataset, FULL, gpus)[1].length.steps

    def fitting(length: str) -> int | None:
        options = training_options(workspace, family, dataset, length, gpus)[1]
        step_s = step_seconds(workspace, view, options.batches, gpus)
        if step_s is None:
            return None
        steps, max_minutes = options.length.steps, options.length.max_minutes
        return min(steps, int(60 * max_minutes / step_s)) if max_minutes else steps

    chosen = fitting(length)
    step_s = step_seconds(workspace, view, training_options(workspace, family, dataset, length, gpus)[1].batches, gpus)
    if chosen is None or step_s is None:
        return None

    # Of the lengths that suffice, the shortest is suggested.
    by_minutes = {minutes: fitting(minutes) or 0 for minutes in MINUTES}
    enough = [minutes for minutes, steps in by_minutes.items() if steps >= needed]
    better = [minutes for minutes, steps in by_minutes.items() if steps >= LEAST_SHARE * needed]
    longer = (enough or better or [""])[0]
    return StepBudget(chosen, needed, step_s, longer, min(needed, by_minutes.get(longer, 0)))


def too_short_notice(budget: StepBudget) -> Html:
    """Why a training of this length learns nothing, and what is enough."""
    enough = (f"{budget.longer} minutes are enough for {budget.longer_steps:,} steps." if budget.longer else
              "No length that is offered here is enough: use a machine with a GPU.")
    title = f"Too short: {budget.fitting:,} of {budget.needed:,} steps fit into this time on this machine."
    return div("notice bad", element("strong", title), paragraph(
        f"With less than a third of the steps the model learns no speech. {budget.needed:,} steps take about "
        f"{budget.needed_time} here. {enough}"), role="alert")


def length_title(name: str, options: LengthOptions, step_s: float | None) -> str:
    """Such as `Full: 5 min, about 620 of 800 steps here`; `step_s`: seconds of a step, where they were measured."""
    minutes, steps = options.max_minutes, options.steps
    if not minutes:
        took = f"about {duration_text(steps * step_s)} here" if step_s else "timed before the first"
        return f"{name}: {steps:,} steps, {took}"
    if step_s is None:
        held = f"up to {steps:,} steps" if steps < ANY_STEPS else "as many steps as fit"
    else:
        fitting = min(steps, max(1, int(60 * minutes / step_s)))
        held = f"about {fitting:,}{f' of {steps:,}' if fitting < steps < ANY_STEPS else ''} steps here"
        minutes = min(minutes, max(1, math.ceil(fitting * step_s / 60)))
    return f"{name}{': ' if name else ''}{minutes:g} min, {held}"


def step_seconds(workspace: Workspace, view: View, options: BatchOptions, gpus: Sequence[Gpu]) -> float | None:
    """Seconds of a step with this batch of the chosen model on this machine, by the last training or preflight.

    One that is alive does not count: each of its steps would change the labels.
    """
    device, batch = "cuda" if gpus else "cpu", options.clips_a_step(1)
    model = view.values["start_model"]
    return view.once(("timed", model), lambda: _timed(workspace, view.jobs, model)).get((device, batch))


def _timed(workspace: Workspace, jobs: Sequence[JobState], model: str) -> dict[tuple[str, int], float]:
    """Seconds of a step of a model by device and batch, of the last such job that ended."""
    seconds_by_batch: dict[tuple[str, int], float] = {}
    fitting: dict[object, bool] = {}  # whether the extension is of this model, by extension
    for state in jobs:
        extension = state.job.settings.get("extension", _EXTENSION)
        # Steps are as fast in every extension of the same model.
        if state.verb in ("train", "preflight") and not state.alive and isinstance(extension, str):
            if extension not in fitting:
                fitting[extension] = False
                with suppress(UserError):  # the extension or its model was deleted since
                    base = Model.find(workspace, model).base_name
                    fitting[extension] = read_extension(workspace.extension(extension)).origin.model == base

            # A step's time depends on device and batch.
            batch = _batch_of(state.job) if fitting[extension] else None
            if batch is None:
                continue
            key = state.job.device, batch
            if key in seconds_by_batch:
                continue

            # A preflight measures a step; a training with enough steps shows its mean.
            timed = (state.result or {}).get("seconds_a_step") if state.verb == "preflight" else None
            if not isinstance(timed, int | float) and len(state.steps) >= _TIMED_STEPS:
                timed = state.steps[-1].seconds / max(1, state.steps[-1].step)
            if isinstance(timed, int | float) and 0 < timed < _LONGEST_STEP_S:
                seconds_by_batch[key] = float(timed)
    return seconds_by_batch


@lru_cache(1 << 14)
def _batch_of(job: Job) -> int | None:
    """The batch of a training or preflight; None for those of another version."""
    try:
        options = parse_options(TrainOptions, job.settings)
    except UserError:
        return None
    return options.batches.clips_a_step(1)


def training_options(workspace: Workspace, family: CatalogEntry, dataset: str, length: str,
                     gpus: Sequence[Gpu]) -> tuple[str, TrainOptions]:
    """The title of the preset, and the options of a training of this length."""
    if length == QUICK:
        return "", _quick(family)
    preset = chosen_preset(workspace, family, dataset, gpus)
    if length not in MINUTES:
        return preset.title, preset.options
    return preset.title, with_values(preset.options, {"steps": ANY_STEPS, "max_minutes": float(length)})


def pace(workspace: Workspace, view: View) -> str:
    """What to expect of this machine."""
    if _family_or_first(workspace, view.values["start_model"]).preset == "demo":
        return "A few minutes on an ordinary computer, no internet needed."
    return "Needs a GPU to be fast. The log shows the estimated time on this machine."


def last_certificate_time(workspace: Workspace, view: View) -> float | None:
    """How long the last certificate of the chosen model took."""
    def same_model(training: JobState) -> bool:
        try:
            extension = str(training.job.settings.get("extension", ""))
            base = Model.find(workspace, view.values["start_model"]).base_name
            return read_extension(workspace.extension(extension)).origin.model == base
        except UserError:  # it was deleted since
            return False

    return job_views.last_certificate_time(view.jobs, same_model)


def _family_or_first(workspace: Workspace, name: str) -> CatalogEntry:
    try:
        return family_of_model(workspace, name) if name else CATALOG[0]
    except UserError:  # its record cannot be read; the job that needs it says so
        return CATALOG[0]


def chosen_preset(workspace: Workspace, family: CatalogEntry, dataset: str,
                  gpus: Sequence[Gpu]) -> presets.FittedPreset:
    """The preset for the size of the dataset and the memory of the GPUs, as on the Train tab."""
    speech = presets.SpeechAmount() if dataset in ("", DEMO) else presets.speech_amount_of(workspace, dataset)
    return presets.fit(family.name, speech, gpus)


def _quick(family: CatalogEntry) -> TrainOptions:
    """The training options of a quick test."""
    return with_values(presets.for_family(family.name, "train", TrainOptions), _QUICK[family.preset])


def chain_options(workspace: Workspace, model: str, language: str, dataset: str, length: str,
                  states: Sequence[JobState] = (), gpus: Sequence[Gpu] = (),
                  own: PrepareOptions | None = None) -> job_chains.ChainOptions:
    """The chain of jobs for these choices; `own`: of recordings that are still to be imported."""
    if not language:
        raise UserError("There are no recordings in a language that this model does not speak yet.",
                        "Choose “My own recordings”.")
    if not dataset:
        raise UserError(f"There are no recordings in {job_views.language_name(language)} yet.",
                        "Choose “My own recordings”, or prepare a dataset on the Data tab.")

    family, stem = family_of_model(workspace, model), verb_form.model_stem(workspace, model)
    # Prepared recordings are taken as they are; own ones are imported first.
    picked: dict[str, Any] = {} if dataset == DEMO else {"dataset": dataset, "source": AS_IS}
    if own is not None and own.dataset not in workspace.list_datasets():
        picked |= {"source": own.source, "any_script": own.any_script, "keep_edges": own.keep_edges,
                   "remove_unspoken": own.remove_unspoken}

    _, train = training_options(workspace, family, dataset, length, gpus)
    train = with_values(train, {"mismatch_action": "stop"})  # nobody may be there to read a warning
    if dataset in workspace.list_datasets():
        check_texts_match(workspace, dataset, "stop")

    options = job_chains.ChainOptions(
        model=model, model_present=":" in model or (bool(family.variants) and model in workspace.list_models()),
        language=language,
        extended_name=f"{stem}-{verb_form.in_a_name(language)}" if ":" in model else "",
        rules=",".join(filter(text_rules.ships, language.split(","))),
        merges=presets.for_family(family.name, "tokenizer", TokenizerOptions).merges, train=train, **picked)
    return replace(options, extended_name=_free_name(workspace, options, states))


def _free_name(workspace: Workspace, options: job_chains.ChainOptions, states: Sequence[JobState]) -> str:
    """A free name for tokenizer and extension: MODEL-LANGUAGE, MODEL-DATASET, or that and a number."""
    preferred = options.extended
    # The shortest free name is the easiest to recognise.
    names = (preferred, f"{verb_form.model_stem(workspace, options.model)}-{options.dataset}"[:60].rstrip("._-"))
    for name in chain(names, (f"{names[1]}-{number}" for number in count(2))):
        if not _taken(workspace, replace(options, extended_name=name), states):
            return options.extended_name if name == preferred else name
    raise AssertionError("there is always another number")


def _taken(workspace: Workspace, options: job_chains.ChainOptions, states: Sequence[JobState]) -> bool:
    """Whether another tokenizer or extension than the chain would make has this name."""
    name = options.extended

    def is_other(step: Options) -> bool:
        if isinstance(step, TokenizerOptions):
            return is_other_tokenizer(workspace, name, step.model_dump(), states)
        return isinstance(step, ExtendOptions) and is_other_extension(
            workspace, name, step.tokenizer, step.initialisation, str(step.seed))

    return any(is_other(step) for _, step in job_chains.chain_steps(options))


def comparison_options(workspace: Workspace, options: job_chains.ChainOptions) -> CompareOptions:
    """The comparison to make when the chain has finished; without texts, a held-out sentence of each language.

    It is in the voice of the recordings, except for the demo, whose voices the base has.
    """
    base = options.model if ":" in options.model else f"base:{options.model}"
    ends: dict[str, object] = {"base": base}
    if options.source != DEMO:
        ends["voice"] = SPEAKER
    if family_of_model(workspace, options.model).preset != "demo":
        return CompareOptions.model_validate(ends)
    texts = {} if options.source == DEMO else {"texts": ()}
    return job_chains.demo_options("compare", CompareOptions).model_copy(update={**ends, **texts})
