"""The form of one verb: prerequisites, fields with their choices and suggestions, start button, command, last job.

A value that a person typed is never overwritten; a suggested value changes with the other choices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Literal

import gradio as gr
from gradio.blocks import Block

from config.errors import UserError
from config.loading import parse_options
from config.schema import Options, TokenizerOptions, option_fields
from core.dataset import languages
from core.jobs import control
from core.jobs.job import Job, load_job
from core.jobs.state import JobState
from core.jobs.verbs import VERBS
from core.library import artefacts, lineage
from core.library.catalog import CATALOG, CatalogEntry, find_entry
from core.library.lineage import Model
from core.library.records import read_extension
from core.verbs.tokenizer import is_other_tokenizer
from core.workspace import Workspace, free_name
from ui import job_views, records
from ui.form import FieldGroup, OptionsForm, Value, build_form, command_line, same_value
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph
from ui.page import TABS, Page
from ui.terms import help_view
from ui.titles import title_of

ChoiceSource = Callable[[View], Sequence[str]]
Suggested = tuple[Callable[[View], Value], Callable[[View], Collection[Value]]]
"""Two functions: the value to suggest for a field, and every value that may have been suggested before."""
OnStarted = Mapping[Block, Callable[[Job], object]]
"""Updates of other components after the button has started a job."""
_PREREQUISITES: Mapping[str, tuple[str, str, str]] = {
    "model": ("No base model yet. Download one on the Model tab.", "model",
              "Choose one, or download one on the Model tab."),
    "dataset": ("No dataset yet. Prepare your recordings on the Data tab.", "data",
                "Choose one, or prepare your recordings on the Data tab."),
    "tokenizer": ("No tokenizer for this model yet. Build one on the Tokenizer tab.", "tokenizer",
                  "Choose one, or build one for this model on the Tokenizer tab."),
    "extension": ("No extended model yet. Add embedding rows on the Embeddings tab.", "embeddings",
                  "Choose one, or add embedding rows on the Embeddings tab."),
}
"""By kind of artefact: the notice if there is none, the tab that makes one, and the hint if none is chosen."""
_FIRST_LANGUAGE = "am"


def tab_header(title: str, *texts: str) -> gr.HTML:
    """The title of a tab and its purpose."""
    return gr.HTML(div("lead", element("h1", title), *(paragraph(text) for text in texts), help_view(title)))


def drawer_header(title: str, *texts: str) -> gr.HTML:
    """The title of a tab in the drawer, which lies over the page with its first heading, and its purpose."""
    return gr.HTML(div("lead", element("h2", title), *(paragraph(text) for text in texts), help_view(title)))


def command_fold(name: str) -> gr.HTML:
    """A fold for the command that equals a form; `command_view` fills it."""
    with gr.Accordion("Command line", open=False, elem_classes="fold"):
        return gr.HTML(elem_id=f"command-{name}")


def command_view(page: Page, verb: str, options: Options) -> Html:
    """The command that equals a form."""
    return element("pre", command_line(verb, options, page.workspace.path), class_="command")


def build_damaged(page: Page, kind: Literal["model", "tokenizer", "extension", "export"], tab: str) -> None:
    """The list of the artefacts of a kind that cannot be read; nothing where there are none."""
    page.live.panel(gr.HTML(elem_id=f"damaged-{kind}s"), lambda _view: job_views.damaged_view(
        artefacts.damaged(page.workspace, kind), f"{kind.title()}s that cannot be read"), tab)


def build_verb_form(page: Page, verb: str, button: str, *, first: Sequence[str], choices: Mapping[str, ChoiceSource],
                    suggested: Mapping[str, Suggested] | None = None, on_started: OnStarted | None = None,
                    preset: Callable[[View], Mapping[str, Value]] | None = None,
                    second: tuple[str, str] | None = None,
                    defaults: Mapping[str, Value] | None = None) -> tuple[OptionsForm, gr.Button]:
    """The form of `verb`, its start button and the equivalent command; `choices` are read again on each refresh.

    `suggested` values change with the other choices until a person types something else. The headings of the field
    groups name the values that differ from `preset`. `second`: another verb with the same options, and its button.
    """
    tab = VERBS[verb].tab
    # Choices are filled in by the first refresh.
    form = build_form(VERBS[verb].options, first=first, choices=dict.fromkeys(choices, ()), defaults=defaults)
    with gr.Row(elem_classes="controls"):
        start = gr.Button(button, variant="primary", size="lg", elem_id=f"run-{verb}", min_width=140)
        if second:
            second_start = gr.Button(second[1], size="lg", elem_id=f"run-{second[0]}", min_width=140)
    notice = gr.HTML(elem_classes="notices")
    command = command_fold(verb)

    def choice(view: View, name: str) -> object:
        view = resolved_selection(view, verb, choices)
        field, offered = f"{verb}.{name}", list(choices[name](view))
        # A field that may be empty gets no suggestion.
        newest = "" if "" in offered else newest_made(view, VERBS[verb].needs.get(name, ""))
        chosen = view.follow(field, view.values[field], offered, newest)
        return gr.update(choices=titled_choices(page.workspace, offered), value=chosen or None)

    def suggestion(view: View, name: str) -> object:
        suggest, suggested_before = (suggested or {})[name]
        return suggest_value(view.values[f"{verb}.{name}"], suggest(resolved_selection(view, verb, choices)),
                             suggested_before(view))

    def heading(view: View, group: FieldGroup) -> object:
        values: dict[str, Value] = {field.name: view.values[f"{verb}.{field.name}"] for field in group.fields}
        return gr.update(label=group.label(values, preset(view) if preset else {}))

    def equal_command(view: View) -> Html:
        values = [view.values[f"{verb}.{name}"] for name in form.names]
        require_choices(verb, form.names, values)
        return command_view(page, verb, form.options(values))

    def run(*values: Value) -> Sequence[object]:
        require_choices(verb, form.names, values)
        job = page.start(verb, form.options(values))
        return [page.started_notice(job), *(update(job) for update in (on_started or {}).values())]

    def run_second(*values: Value, verb: str) -> Sequence[object]:
        require_choices(verb, form.names, values)
        options = parse_options(VERBS[verb].options, form.options(values).model_dump())
        return [page.started_notice(page.start(verb, options))]

    # Choices and suggestions are read again on each refresh of the tab.
    for name in choices:
        page.live.panel(form.widget(name), partial(choice, name=name), tab)
    for name in suggested or {}:
        page.live.panel(form.widget(name), partial(suggestion, name=name), tab)
    for name, widget in zip(form.names, form.widgets, strict=True):
        page.live.watch(f"{verb}.{name}", widget)
    for group in form.groups:
        page.live.panel(group.block, partial(heading, group=group), tab)
    page.live.panel(command, equal_command, tab)

    page.on(start.click, run, form.widgets, [notice, *(on_started or {})])
    if second:
        page.on(second_start.click, partial(run_second, verb=second[0]), form.widgets, [notice])
    return form, start


def titled_choices(workspace: Workspace, values: Sequence[str]) -> list[tuple[str, str]]:
    """Label and value of each choice: a reference to a model, such as `run:9d83`, has its title as label."""
    return [(title_of(workspace, value) if ":" in value else value, value) for value in values]


def last_job_view(verb: str, empty: str, result: Callable[[JobState], Html] | None = None) -> Callable[[View], Html]:
    """A panel with the newest job of `verb` and its result; the text `nothing` before there is one."""

    def render(view: View) -> Html:
        state = view.newest(verb)
        if state is None:
            return job_views.empty(empty)
        if result is not None and state.status == "finished":
            return join((job_views.job_card(state), result(state)))
        return join((job_views.job_card(state), job_views.result_facts(state.result)))

    return render


def build_rename(page: Page, chosen: gr.Dropdown, name: str) -> None:
    """A fold in which a person sets the display name of the job in `chosen`; its id does not change."""

    def rename(job: str | None, title: str) -> Sequence[object]:
        if not job:
            raise UserError("No job is chosen.", "Choose one in the list.")
        display_name = control.rename(load_job(page.workspace, job), title or "")
        return [job_views.notice(f"Named “{display_name}”." if display_name else "The name was removed."), ""]

    with gr.Accordion("Name", open=False, elem_classes="fold", elem_id=f"{name}-rename"):
        with gr.Row(elem_classes="controls"):
            title = gr.Textbox("", label="Name", max_lines=1, elem_id=f"{name}-title", scale=4, max_length=64,
                               info="Shown in lists and on cards. The id does not change. Empty: no name.")
            button = gr.Button("Rename", size="md", scale=0, min_width=110, elem_id=f"{name}-rename-button")
        notice = gr.HTML(elem_classes="notices")
    page.on(button.click, rename, [chosen, title], [notice, title])


def build_prerequisites(page: Page, verb: str, tab: str, choices: Mapping[str, ChoiceSource]) -> None:
    """A notice and buttons that are visible only while a field of the form has nothing to choose."""

    def visible(view: View, name: str) -> object:
        fields = missing_prerequisites(view, verb, choices)
        return gr.update(visible=name in fields if name else bool(fields))

    labels = dict(TABS)
    notice = gr.HTML(elem_id=f"{verb}-needs", elem_classes="notices")
    page.live.panel(notice, lambda view: prerequisites_view(missing_prerequisites(view, verb, choices)), tab)
    with gr.Row(elem_classes="controls"):
        for name in (*(name for name in choices if name in _PREREQUISITES), ""):
            target = _PREREQUISITES[name][1] if name else "start"
            button = gr.Button(f"Open {labels[target]}", size="md", visible=False, min_width=150,
                               elem_id=f"{verb}-needs-{name or 'start'}")
            page.live.panel(button, partial(visible, name=name), tab)
            page.go(button, target)


def missing_prerequisites(view: View, verb: str, choices: Mapping[str, ChoiceSource]) -> tuple[str, ...]:
    """Fields of a form with nothing to choose, and no job that makes it."""
    resolved = resolved_selection(view, verb, choices)
    return tuple(name for name in choices if name in _PREREQUISITES and not resolved.values[f"{verb}.{name}"]
                 and not names_being_created(view, verb, name))


def prerequisites_view(names: Sequence[str]) -> Html:
    """What is missing, and where it is made."""
    if not names:
        return NOTHING
    return div("notice info", element("strong", "A previous step is missing"),
               *(paragraph(_PREREQUISITES[name][0]) for name in names),
               paragraph("Or open Start, which runs every step with one button."), role="status")


def resolved_selection(view: View, verb: str, choices: Mapping[str, ChoiceSource]) -> View:
    """`view` with the values that the form's dropdowns will show: names that exist or that a job is making; else empty.

    If the chosen value is not valid, the schema's default is preferred.
    """
    chosen = dict(view.values)
    for name, source in choices.items():
        field = f"{verb}.{name}"
        names = source(replace(view, values=chosen))
        if chosen[field] not in names and chosen[field] not in names_being_created(view, verb, name):
            default = option_fields(VERBS[verb].options)[name].default
            chosen[field] = default if default in names else names[0] if names else ""
    return replace(view, values=chosen)


def newest_made(view: View, kind: str) -> str:
    """The name of the artefact of a kind that was made last; empty if there is none."""
    key = ("newest made",)
    if key not in view.cache:
        names: dict[str, str] = {}
        for state in sorted((job for job in view.jobs if job.status == "finished"), key=lambda job: job.ended_at or 0):
            for field, artefact in VERBS[state.verb].makes.items():
                name = state.id if field == "job" else state.job.settings.get(field) or state.job.settings.get("model")
                names[artefact] = str(name)
        view.cache[key] = names
    newest_names = view.cache[key]
    assert isinstance(newest_names, dict)
    return str(newest_names.get(kind, ""))


def names_being_created(view: View, verb: str, field: str) -> set[str]:
    """Names of artefacts for `field` of `verb` that jobs are making now."""
    kind = VERBS[verb].needs.get(field)
    names = set()
    for state in view.alive:
        for made_in, artefact in VERBS[state.verb].makes.items():
            if artefact == kind:  # a download without `save_as` is named after its model
                names.add(str(state.job.settings.get(made_in) or state.job.settings.get("model")))
    return names


def suggest_value(current: str, proposal: Value, suggested: Iterable[Value]) -> object:
    """Replace the current value by `proposal` if it is one of the `suggested` ones; a typed value stays."""
    return gr.update(value=proposal) if any(same_value(current, value) for value in suggested) else gr.skip()


def prerequisite_of(verb: str, name: str) -> str:
    """The kind of artefact without which `verb` cannot start, if the field `name` chooses one; else empty.

    It is the verb's table that says so: a field is not a prerequisite because of its name. A field that is empty by
    default may be left empty, and what the verb makes gets a name.
    """
    kind = VERBS[verb].needs.get(name, "")
    required = kind in _PREREQUISITES and name not in VERBS[verb].makes
    return kind if required and option_fields(VERBS[verb].options)[name].default != "" else ""


def require_choices(verb: str, names: Sequence[str], values: Sequence[Value]) -> None:
    """Raise `UserError` if a prerequisite is not chosen."""
    for name, value in zip(names, values, strict=True):
        kind = prerequisite_of(verb, name)
        if kind and not str(value or "").strip():
            title = option_fields(VERBS[verb].options)[name].title
            raise UserError(f"{title}: nothing is chosen.", _PREREQUISITES[kind][2])


def trainable_datasets(workspace: Workspace, extension: str) -> list[str]:
    """The datasets in new languages; those in the languages of `extension` first."""
    new_languages, old_languages = set[str](), set(_base_languages(workspace, extension))
    with suppress(UserError):
        record = read_extension(workspace.extension(extension))
        new_languages = set(record.languages)
        old_languages |= set(record.origin.earlier_languages)
    datasets = sorted(records.datasets(workspace), key=lambda card: (set(card.languages) != new_languages, card.name))
    return [card.name for card in datasets if not old_languages.intersection(card.languages)]


def replayable_datasets(workspace: Workspace, extension: str, chosen: str) -> list[str]:
    """The choices of `replay_datasets`: none, each dataset in base languages, all of them, and the `chosen` ones."""
    base = _base_languages(workspace, extension)
    # Replay is of base languages, so that the model does not forget them.
    names = [dataset.name for dataset in records.datasets(workspace) if set(dataset.languages) <= set(base)]
    several = [", ".join(names)] if len(names) > 1 else []
    picked = languages.split_names(chosen)
    return list(dict.fromkeys(["", *names, *several, *([chosen] if picked and set(picked) <= set(names) else [])]))


def _base_languages(workspace: Workspace, extension: str) -> tuple[str, ...]:
    try:
        base = read_extension(workspace.extension(extension)).origin.model
    except UserError:
        return ()
    return lineage.languages_of(workspace, f"base:{base}")


def models_to_build_upon(workspace: Workspace, jobs: Sequence[JobState]) -> list[str]:
    """The base models, then the exports and ended runs that can be extended by another language."""
    return [*workspace.list_models(), *(model.reference for model in extendable_models(workspace, jobs))]


def extendable_models(workspace: Workspace, jobs: Sequence[JobState]) -> list[Model]:
    """The exports and ended runs that can be extended by another language."""
    return [entry.model for entry in extendable(workspace, jobs)]


@dataclass(frozen=True)
class ExtendableModel:
    """A run or export to extend, with its base, the title of its family and the languages of its trainings."""

    model: Model
    base: str
    family: str
    codes: tuple[str, ...]


_EXTENDABLE: list[tuple[tuple[object, ...], list[Model], list[ExtendableModel]]] = []
"""A cache of the last call of `extendable`: stamp, references and result."""


def extendable(workspace: Workspace, jobs: Sequence[JobState]) -> list[ExtendableModel]:
    """Like `extendable_models`, with details of each; cached while nothing changes."""
    # Running trainings are left out, as their weights still change.
    references = lineage.list_models(workspace, [state for state in jobs if not state.alive])
    # Reading the records of many runs takes too long for each refresh.
    stamp = lineage.models_stamp(workspace, references)

    # The list is kept until a reference or its record changes.
    for cached_stamp, _references, models in _EXTENDABLE:
        if cached_stamp == stamp:
            return models

    models = []
    for model in references:
        if model.kind == "base":
            continue
        # A damaged model is left out, one whose family is unknown here, and one whose base was trained.
        with suppress(UserError):
            record = model.record
            if record.scope != "full":
                codes = tuple(chain.from_iterable(training.languages for training in model.trainings))
                family = find_entry(record.origin.family)
                models.append(ExtendableModel(model, record.origin.model, family.title, codes))

    _EXTENDABLE[:] = [(stamp, references, models)]
    return models


def tokenizer_name(workspace: Workspace, model: str, dataset: str) -> str:
    """A name such as `tiny-am`, or `tiny-am-el` for a model that has learned Amharic before."""
    language = records.dataset(workspace, dataset).language if dataset in workspace.list_datasets() else ""
    return f"{model_stem(workspace, model)}-{in_a_name(language or _FIRST_LANGUAGE)}"


def free_tokenizer_name(workspace: Workspace, view: View) -> str:
    """`tokenizer_name` for the choices of the form, with a number where other options made one of that name."""
    settings = {field: view.values[f"tokenizer.{field}"] for field in TokenizerOptions.model_fields}
    return free_name(tokenizer_name(workspace, settings["model"], settings["dataset"]),
                     lambda name: is_other_tokenizer(workspace, name, settings, view.jobs))


def in_a_name(languages: str) -> str:
    """Language codes joined by hyphens, for use in a name."""
    return languages.replace(",", "-")


def model_stem(workspace: Workspace, model: str) -> str:
    """The start of a suggested name: the base model, and the languages of a run or export, such as `tiny-am`."""
    if ":" not in model:
        return model or CATALOG[0].name
    try:
        return Model.open(workspace, model).stem
    except UserError:  # it was deleted since
        return CATALOG[0].name


def generated_names(workspace: Workspace, jobs: Sequence[JobState] = ()) -> set[str]:
    """Every name that may have been suggested for a tokenizer, an extension or an export."""
    models = {*(family.name for family in CATALOG), *workspace.list_models(),
              *("-".join((model.base, *model.codes)) for model in extendable(workspace, jobs))}
    codes = {_FIRST_LANGUAGE, *(in_a_name(dataset.language) for dataset in records.datasets(workspace))}
    names = {f"{model}-{code}" for model, code in product(models, codes)} | {
        *workspace.list_tokenizers(), *workspace.list_extensions()}

    # A taken name was suggested with a number behind it.
    existing = {*workspace.list_tokenizers(), *workspace.list_extensions(), *workspace.list_exports()}
    numbers = range(2, len(existing) + 2)
    numbered = {f"{name[:60]}-{number}" for name, number in product(names & existing, numbers)}
    return names | numbered


def family_of_extension(workspace: Workspace, extension: str) -> CatalogEntry:
    """The family of an extension; the built-in family if it is unknown."""
    try:
        return find_entry(read_extension(workspace.extension(extension)).origin.family)
    except UserError:
        return CATALOG[0]
