"""Start tab: pick a language and a dataset, press one button, watch, then listen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count

import gradio as gr

from config.errors import UserError
from config.schema import AS_IS, CompareOptions, TokenizerOptions, TrainOptions
from core.jobs import checkpoint_names, control
from core.jobs.directory import create_job
from core.jobs.gpus import Gpu
from core.jobs.state import JobState
from core.library import model_info
from core.library.catalog import CATALOG, CatalogEntry, family_of, find_entry, resolve
from core.submission import demo_chain
from core.text import text_rules
from core.workspace import Workspace
from ui import job_views, records, verb_form
from ui.charts import chart
from ui.job_views import CertificateTime
from ui.live import View, choice_update
from ui.markup import NOTHING, Html, div, element, paragraph, span
from ui.page import Page
from ui.run_views import loss_series


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
            with gr.Row(elem_classes="grid"):
                model = gr.Dropdown([(CATALOG[0].title, CATALOG[0].name)], value=CATALOG[0].name,
                                    label="Voice model", filterable=False, elem_id="start-model", min_width=200)
                language = gr.Dropdown([("Amharic", "am")], value="am", label="New language", filterable=False,
                                       elem_id="start-language", min_width=140)
                dataset = gr.Dropdown([(DEMO_LABEL, DEMO)], value=DEMO,
                                      label="Recordings", filterable=False, elem_id="start-dataset", min_width=200)
                length = gr.Dropdown([("Full (about 5 min)", FULL)], value=FULL,
                                     label="Training length", filterable=False, elem_id="start-length", min_width=200)
            start = gr.Button("Train Amharic", variant="primary", size="lg", elem_id="teach")
            notice = gr.HTML(elem_classes="notices")
        with gr.Column(scale=4, min_width=300):
            steps = gr.HTML(elem_id="chain")
            with gr.Row(elem_classes="controls"):
                stop = gr.Button("Stop", size="md", visible=False, elem_id="start-stop", min_width=90)
                resume = gr.Button("Resume", variant="primary", size="md", visible=False, elem_id="start-resume",
                                   min_width=90)
                listen = gr.Button("Listen", variant="primary", size="md", visible=False, elem_id="start-listen",
                                   min_width=120)
                details = gr.Button("Details", size="md", visible=False, elem_id="start-details", min_width=90)
            curve = gr.HTML(elem_id="start-curve")
    followed = gr.State("")  # the training whose end opens Listen
    shown_run = gr.State("")  # the training whose choices this page has shown

    for name, widget in (("followed", followed), ("start_shown_run", shown_run), ("start_model", model),
                         ("start_language", language), ("start_dataset", dataset), ("start_length", length)):
        live.watch(name, widget)

    def resolved(view: View) -> View:
        return resolved_selection(workspace, view, chain_of(view.jobs))

    def loss_curve(view: View) -> Html:
        state = _training(chain_of(view.jobs))
        if state is None or not state.steps:
            return NOTHING
        return chart("Training loss (lower is better)", loss_series(state)[:2], x_most=state.steps[-1].total_steps)

    for component, render in (
        (model, lambda view: _choices(models(workspace, view.jobs), resolved(view).values["start_model"])),
        (language, lambda view: language_choices(workspace, resolved(view))),
        (dataset, lambda view: dataset_choices(workspace, resolved(view))),
        (length, lambda view: length_choices(workspace, resolved(view), page.gpus())),
        (shown_run, lambda view: next((state.id for state in chain_of(view.jobs) if state.verb == "train"), "")),
        (notice, notice_while_running), (start, _start_button),
        (steps, lambda view: chain_view(chain_of(view.jobs), pace(workspace, view),
                                        last_certificate_time(workspace, view))),
        (curve, loss_curve),
    ):
        live.panel(component, render, "start")
    for button, shown in (
        (stop, lambda states: any(state.alive and state.status != "stopping" for state in states)),
        (resume, _resumable),
        (listen, lambda states: any(state.verb == "train" and state.checkpoints for state in states)),
        (details, lambda states: _training(states) is not None),
    ):
        live.show_when(button, lambda view: chain_of(view.jobs), shown, "start")

    def watched_to_the_end(view: View) -> bool:
        """Whether this browser watched the chain on Start until it had finished: Listen is opened then."""
        states = chain_of(view.jobs)
        return bool(view.values["followed"] and view.tab == "start" and states
                    and all(state.status == "finished" for state in states))

    live.panel(page.tabs, lambda view: gr.update(selected="listen") if watched_to_the_end(view) else gr.skip())
    live.panel(page.tab, lambda view: "listen" if watched_to_the_end(view) else gr.skip())
    live.panel(followed, follow)
    page.on(start.click, lambda *chosen: _start(page, *chosen), [model, language, dataset, length],
            [notice, followed, page.run, page.pair])
    page.on(stop.click, lambda: _stop(page), [], [notice])
    page.on(resume.click, lambda: _resume(page), [], [notice, followed])
    page.go(listen, "listen")
    page.go(details, "train")


def notice_while_running(view: View) -> object:
    """A button's notice stays while a job of the chain lives; then the steps show the result."""
    return gr.skip() if any(state.alive for state in chain_of(view.jobs)) else gr.update(value=NOTHING)


def chain_of(states: Sequence[JobState]) -> list[JobState]:
    """The newest training that waited for other jobs, with those before and after it, in order."""
    by_id = {state.id: state for state in states}
    last = next((state for state in states if state.verb == "train" and state.job.after), None)
    if last is None:
        return []
    found = [last]
    while found[0].job.after and found[0].job.after[0] in by_id:
        found.insert(0, by_id[found[0].job.after[0]])
    found += [state for state in reversed(states) if last.id in state.job.after]
    return found


def chain_view(states: Sequence[JobState], pace: str, past: CertificateTime | None) -> Html:
    """The steps of the chain, or before there is one, what will happen at which `pace`."""
    if states:
        notes = {state.id: job_views.certificate_note(state, past) for state in states}
        return div("card", job_views.chain_view(states, notes))
    steps = (
        ("Train.", "Lisan gets the base model, prepares the recordings, builds the tokenizer and trains."),
        ("Watch.", f"{pace} You can close this page."),
        ("Certificate.", job_views.certificate_preview(past)),
        ("Compare.", "Hear the same sentence before and after, with a score for how well it can be understood."),
    )
    items = [element("li", span("mark", str(number)), div("step", element("strong", title), paragraph(text)),
                     class_="link wait") for number, (title, text) in enumerate(steps, 1)]
    return div("card", element("h3", "What will happen"), element("ol", *items, class_="chain"))


def _training(states: Sequence[JobState]) -> JobState | None:
    return next((state for state in states if state.verb == "train" and (state.steps or state.alive)), None)


def _resumable(states: Sequence[JobState]) -> bool:
    return not any(state.alive for state in states) and any(state.resumable for state in states)


def _start_button(view: View) -> object:
    name = job_views.language_name(view.values["start_language"] or "am")
    states = chain_of(view.jobs)
    if any(state.alive for state in states):
        return gr.update(value=f"Training {name}", interactive=False, variant="primary")
    again = _resumable(states) or (bool(states) and all(state.status == "finished" for state in states))
    return gr.update(value=f"Train {name}{' again' if again else ''}", interactive=True,
                     variant="secondary" if _resumable(states) else "primary")


def _start(page: Page, model: str, language: str, dataset: str, length: str) -> Sequence[object]:
    """Queue the chain and a comparison after it, and start all of it."""
    states = page.live.board.states()
    if any(state.alive for state in chain_of(states)):
        raise UserError("A training is running already.", "Wait for it, or stop it first.")
    options = chain_options(page.workspace, model, language, dataset, length, states, page.gpus())
    made = demo_chain.create_chain(page.workspace, options)
    training = made[-1]
    compared = comparison_options(page.workspace, options, training.id)
    comparison = create_job(page.workspace, "compare", compared, after=(training.id,))
    for job in (*made, comparison):
        control.start(job)
    return [job_views.notice("Training started. It continues when you close this page."), training.id,
            page.show(training.id), page.show(comparison.id)]


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
            next((state.id for state in states if state.verb == "train"), "")]


def follow(view: View) -> str:
    """The training that this browser watches; none when the chain has finished and another tab is open.

    On Start it stays: Listen is opened by it, in another answer than this one.
    """
    states = chain_of(view.jobs)
    if view.tab != "start" and all(state.status == "finished" for state in states):
        return ""
    running = next((state.id for state in states if state.verb == "train" and state.alive), "")
    return running or view.values["followed"]


DEMO = "demo"
DEMO_LABEL = "Built-in Amharic demo"
DEMO_DATASET = "amharic-demo"
FULL, QUICK = "full", "quick"
_QUICK: Mapping[str, Mapping[str, object]] = {
    "demo": {"steps": 100, "max_minutes": 2, "checkpoint_every": 50, "evaluation_sentences": 4},
    "chatterbox": {"steps": 20, "max_minutes": 20, "checkpoint_every": 10, "evaluation_sentences": 1},
}
"""What a quick test changes, by preset: enough to run every step, too little to speak well."""


def resolved_selection(workspace: Workspace, view: View, states: Sequence[JobState]) -> View:
    """`view` with the choices of the chain `states`, applied once per page.

    A reload shows what is being trained, and what a person chooses afterwards stays.
    """
    training = next((state for state in states if state.verb == "train"), None)
    if training is None or view.values.get("start_shown_run") == training.id:
        return view
    model = next((str(state.job.settings["model"]) for state in states if "model" in state.job.settings), "")
    quick = training.job.settings.get("steps") == _quick(_family_or_first(workspace, model)).steps
    chosen = {"start_length": QUICK if quick else FULL} | ({"start_model": model} if model else {})
    dataset = str(training.job.settings.get("dataset", ""))
    if dataset == DEMO_DATASET:
        chosen |= {"start_dataset": DEMO, "start_language": "am"}
    elif dataset in workspace.list_datasets():
        chosen |= {"start_dataset": dataset, "start_language": records.dataset(workspace, dataset).language}
    return replace(view, values={**view.values, **chosen})


def _choices(choices: Sequence[tuple[str, str]], current: str) -> object:
    """An update that shows `current` where it is among the choices; else the widget keeps its value."""
    if current in [name for _, name in choices]:
        return gr.update(choices=choices, value=current)
    return gr.update(choices=choices)


def models(workspace: Workspace, jobs: Sequence[JobState] = ()) -> list[tuple[str, str]]:
    """Label and name of each base model, in the workspace or to download; then of runs and exports to build upon."""
    there = workspace.list_models()
    missing = [one for one in CATALOG if one.name not in there and not one.licences]  # those are accepted in Model
    labels = {one.name: f"{one.title} ({f'{one.size} download' if one.variants else 'included'})" for one in missing}
    for name in there:
        one = family_of_model(workspace, name)
        labels[name] = one.title if name == one.name else f"{one.title}: {name}"
    order = [one.name for one in CATALOG]
    bases = [(label, name) for name, label in sorted(
        labels.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))]
    taught = [name for name in verb_form.models_to_build_upon(workspace, jobs) if name not in there]
    return [*bases, *((_taught_label(workspace, name), name) for name in taught)]


def _taught_label(workspace: Workspace, name: str) -> str:
    """Such as `Built-in tiny model with Amharic (export:tiny-am)`."""
    languages = [job_views.language_name(one.language) for one in model_info.taught_records(workspace, name)]
    return f"{family_of_model(workspace, name).title} with {', '.join(languages)} ({name})"


def family_of_model(workspace: Workspace, name: str) -> CatalogEntry:
    """The family of a base model, downloaded or not, or of a run or an export."""
    if ":" in name:
        return model_info.family_of_reference(workspace, resolve(workspace, name))
    return find_entry(family_of(workspace, name) if name in workspace.list_models() else name)


def language_choices(workspace: Workspace, view: View) -> object:
    """Amharic, which has built-in recordings, and the language of each dataset."""
    spoken = [set(model_info.base_languages(workspace, model)) for model in workspace.list_models()]
    everywhere = set.intersection(*spoken) if spoken else set()  # their datasets are for replay
    chosen = view.values.get("start_model", "")
    if ":" in chosen:  # what it was taught is not taught again
        everywhere |= set(model_info.spoken_languages(workspace, chosen))
    codes = ({"am"} | {found.language for found in records.datasets(workspace) if found.language}) - everywhere
    return choice_update([(job_views.language_name(code), code) for code in sorted(codes)],
                         view.values["start_language"])


def dataset_choices(workspace: Workspace, view: View) -> object:
    """The demo for Amharic, and every prepared dataset of the language."""
    language = view.values["start_language"] or "am"
    offered = [(DEMO_LABEL, DEMO)] if language == "am" else []
    offered += [
        (found.name if found.clips is None else f"{found.name} ({found.clips} clips)", found.name)
        for found in records.datasets(workspace) if found.language == language and found.name != DEMO_DATASET
    ]
    return choice_update(offered, view.values["start_dataset"])


def length_choices(workspace: Workspace, view: View, gpus: Sequence[Gpu] = ()) -> object:
    """Training lengths: minutes where they were measured, else steps."""
    one = _family_or_first(workspace, view.values["start_model"])
    dataset = view.values.get("start_dataset", "")
    return _choices([(_length(workspace, one, dataset, length, gpus), length) for length in (FULL, QUICK)],
                    view.values.get("start_length", ""))


def pace(workspace: Workspace, view: View) -> str:
    """What to expect of this machine."""
    if _family_or_first(workspace, view.values["start_model"]).preset == "demo":
        return "A few minutes on an ordinary computer, no internet needed."
    return "Needs a GPU to be fast. The log shows the estimated time on this machine."


def last_certificate_time(workspace: Workspace, view: View) -> CertificateTime | None:
    """How long the last certificate of the chosen model took."""
    def same_model(training: JobState) -> bool:
        try:
            extension = str(training.job.settings.get("extension", ""))
            return model_info.model_of_extension(workspace, extension) == model_info.base_of(
                workspace, view.values["start_model"])
        except UserError:  # it was deleted since
            return False

    return job_views.last_certificate_time(view.jobs, same_model)


def _family_or_first(workspace: Workspace, name: str) -> CatalogEntry:
    try:
        return family_of_model(workspace, name) if name else CATALOG[0]
    except UserError:  # its record cannot be read; the job that needs it says so
        return CATALOG[0]


def _length(workspace: Workspace, one: CatalogEntry, dataset: str, length: str, gpus: Sequence[Gpu]) -> str:
    short = one.preset == "demo"
    if length == QUICK:
        return "Quick test (too short for good speech)" if short else (
            f"Quick test ({_quick(one).steps} steps, too few for good speech)")
    preset = chosen_preset(workspace, one, dataset, gpus)
    if short and dataset in ("", DEMO):  # what was measured
        return "Full (about 5 min)"
    return f"Preset {preset.title}: {preset.options.steps:,} steps{'' if short else ', needs a GPU'}"


def chosen_preset(workspace: Workspace, one: CatalogEntry, dataset: str,
                  gpus: Sequence[Gpu]) -> model_info.FittedPreset:
    """The preset for the size of the dataset and the memory of the GPUs, as on the Train tab."""
    speech = model_info.SpeechAmount() if dataset in ("", DEMO) else model_info.speech_amount_of(workspace, dataset)
    return model_info.fit_preset(one.name, speech, gpus)


def _quick(one: CatalogEntry) -> TrainOptions:
    """The training options of a quick test."""
    return model_info.preset(one.name, "train", TrainOptions).model_copy(update=dict(_QUICK[one.preset]))


def chain_options(workspace: Workspace, model: str, language: str, dataset: str, length: str,
                  states: Sequence[JobState] = (), gpus: Sequence[Gpu] = ()) -> demo_chain.ChainOptions:
    """The chain of jobs for these choices."""
    if not language:
        raise UserError("There are no recordings in a language that this model does not speak yet.",
                        "Prepare a dataset in another language on the Data tab first.")
    if not dataset:
        raise UserError(f"There are no recordings in {job_views.language_name(language)} yet.",
                        "Prepare a dataset on the Data tab first.")
    one = family_of_model(workspace, model)
    picked = {} if dataset == DEMO else {"dataset": dataset, "source": AS_IS}
    train = _quick(one) if length == QUICK else chosen_preset(workspace, one, dataset, gpus).options
    made = demo_chain.ChainOptions(
        model=model, model_present=":" in model or (bool(one.variants) and model in workspace.list_models()),
        language=language,
        extended_name=f"{verb_form.model_stem(workspace, model)}-{language}" if ":" in model else "",
        rules=language if text_rules.ships(language) else "",
        merges=model_info.preset(one.name, "tokenizer", TokenizerOptions).merges, train=train, **picked)
    return replace(made, extended_name=_free_name(workspace, made, states))


def _free_name(workspace: Workspace, options: demo_chain.ChainOptions, states: Sequence[JobState]) -> str:
    """A free name for tokenizer and extension: MODEL-LANGUAGE, MODEL-DATASET, or that and a number."""
    first = options.extended
    names = (first, f"{verb_form.model_stem(workspace, options.model)}-{options.dataset}"[:60].rstrip("._-"))
    for name in chain(names, (f"{names[1]}-{number}" for number in count(2))):
        if not _taken(workspace, replace(options, extended_name=name), states):
            return options.extended_name if name == first else name
    raise AssertionError("there is always another number")


def _taken(workspace: Workspace, options: demo_chain.ChainOptions, states: Sequence[JobState]) -> bool:
    """Whether a tokenizer or an extension of this name exists that no known job made with these options."""
    folders = {"tokenizer": workspace.tokenizers, "extend": workspace.extensions}
    wanted = [(verb, settings) for verb, settings in demo_chain.chain_steps(options)
              if verb in folders and (folders[verb] / options.extended).exists()]
    return any(not any(state.verb == verb and state.status == "finished"
                       and {**type(settings)().model_dump(), **state.job.settings} == settings.model_dump()
                       for state in states) for verb, settings in wanted)


def comparison_options(workspace: Workspace, options: demo_chain.ChainOptions, run: str) -> CompareOptions:
    """The comparison to make when `run` has finished; without texts, a held-out sentence of each language."""
    base = options.model if ":" in options.model else f"base:{options.model}"
    ends: dict[str, object] = {"base": base, "finetuned": f"run:{run}"}
    if family_of_model(workspace, options.model).preset != "demo":
        return CompareOptions.model_validate(ends)
    texts = {} if options.source == DEMO else {"texts": ()}
    return demo_chain.demo_options("compare", CompareOptions).model_copy(update={**ends, **texts})
