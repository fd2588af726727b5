"""The choices of the Start tab (model, language, dataset, length) and the chain of jobs that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count

import gradio as gr

from config.errors import UserError
from config.schema import AS_IS, CompareOptions, TokenizerOptions, TrainOptions
from core.jobs.gpus import Gpu
from core.jobs.state import JobState
from core.library import model_info, presets
from core.library.catalog import FAMILIES, ModelFamily, family, family_of
from core.submission import demo_chain
from core.text import text_rules
from core.workspace import Workspace
from ui import job_views, records
from ui.job_views import ProofTime
from ui.live import View

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
    if training is None or view.chosen.get("start_shown_run") == training.id:
        return view
    model = next((str(state.job.settings["model"]) for state in states if "model" in state.job.settings), "")
    quick = training.job.settings.get("steps") == _quick(_family_or_first(workspace, model)).steps
    chosen = {"start_length": QUICK if quick else FULL} | ({"start_model": model} if model else {})
    dataset = str(training.job.settings.get("dataset", ""))
    if dataset == DEMO_DATASET:
        chosen |= {"start_dataset": DEMO, "start_language": "am"}
    elif dataset in workspace.list_datasets():
        chosen |= {"start_dataset": dataset, "start_language": records.dataset(workspace, dataset).language}
    return replace(view, chosen={**view.chosen, **chosen})


def model_choices(workspace: Workspace, view: View) -> object:
    """Every base model."""
    return _choices(models(workspace), view.chosen["start_model"])


def _choices(choices: Sequence[tuple[str, str]], current: str) -> object:
    """An update that shows `current` where it is among the choices; else the widget keeps its value."""
    if current in [name for _, name in choices]:
        return gr.update(choices=choices, value=current)
    return gr.update(choices=choices)


def models(workspace: Workspace) -> list[tuple[str, str]]:
    """Label and name of each base model: those in the workspace and those that can be downloaded."""
    there = workspace.list_models()
    missing = [one for one in FAMILIES if one.available and one.name not in there]
    labels = {one.name: f"{one.title} ({f'{one.size} download' if one.variants else 'included'})" for one in missing}
    for name in there:
        one = family_of_model(workspace, name)
        labels[name] = one.title if name == one.name else f"{one.title}: {name}"
    order = [one.name for one in FAMILIES]
    return [(label, name) for name, label in sorted(
        labels.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))]


def family_of_model(workspace: Workspace, name: str) -> ModelFamily:
    """The family of a base model, downloaded or not."""
    return family(family_of(workspace, name) if name in workspace.list_models() else name)


def language_choices(workspace: Workspace, view: View) -> object:
    """Amharic, which has built-in recordings, and the language of each dataset."""
    spoken = [set(model_info.base_languages(workspace, model)) for model in workspace.list_models()]
    everywhere = set.intersection(*spoken) if spoken else set()  # their datasets are for replay
    codes = {"am"} | {found.language for found in records.datasets(workspace) if found.language} - everywhere
    return _choices([(job_views.language_name(code), code) for code in sorted(codes)], view.chosen["start_language"])


def dataset_choices(workspace: Workspace, view: View) -> object:
    """The demo for Amharic, and every prepared dataset of the language."""
    language = view.chosen["start_language"] or "am"
    offered = [(DEMO_LABEL, DEMO)] if language == "am" else []
    offered += [
        (found.name if found.clips is None else f"{found.name} ({found.clips} clips)", found.name)
        for found in records.datasets(workspace) if found.language == language and found.name != DEMO_DATASET
    ]
    names = [name for _, name in offered]
    current = view.chosen["start_dataset"]
    return gr.update(choices=offered, value=current if current in names else names[0] if names else None)


def length_choices(workspace: Workspace, view: View, gpus: Sequence[Gpu] = ()) -> object:
    """Training lengths: minutes where they were measured, else steps."""
    one = _family_or_first(workspace, view.chosen["start_model"])
    dataset = view.chosen.get("start_dataset", "")
    return _choices([(_length(workspace, one, dataset, length, gpus), length) for length in (FULL, QUICK)],
                    view.chosen.get("start_length", ""))


def pace(workspace: Workspace, view: View) -> str:
    """What to expect of this machine."""
    if _family_or_first(workspace, view.chosen["start_model"]).preset == "demo":
        return "A few minutes on an ordinary computer, no internet needed."
    return "Needs a GPU to be fast. The log shows the estimated time on this machine."


def last_proof(workspace: Workspace, view: View) -> ProofTime | None:
    """How long the last certificate of the chosen model took."""
    return job_views.last_proof_time(view.jobs,
                                     lambda state: _model_of(workspace, state) == view.chosen["start_model"])


def _model_of(workspace: Workspace, training: JobState) -> str:
    try:
        return model_info.model_of_extension(workspace, str(training.job.settings.get("extension", "")))
    except UserError:  # it was deleted since
        return ""


def _family_or_first(workspace: Workspace, name: str) -> ModelFamily:
    try:
        return family_of_model(workspace, name) if name else FAMILIES[0]
    except UserError:  # its record cannot be read; the job that needs it says so
        return FAMILIES[0]


def _length(workspace: Workspace, one: ModelFamily, dataset: str, length: str, gpus: Sequence[Gpu]) -> str:
    short = one.preset == "demo"
    if length == QUICK:
        return "Quick test (too short for good speech)" if short else (
            f"Quick test ({_quick(one).steps} steps, too few for good speech)")
    preset = chosen_preset(workspace, one, dataset, gpus)
    if short and dataset in ("", DEMO):  # what was measured
        return "Full (about 5 min)"
    return f"Preset {preset.title}: {preset.options.steps:,} steps{'' if short else ', needs a GPU'}"


def chosen_preset(workspace: Workspace, one: ModelFamily, dataset: str, gpus: Sequence[Gpu]) -> presets.FittedPreset:
    """The preset for the size of the dataset and the memory of the GPUs, as on the Train tab."""
    speech = presets.SpeechAmount() if dataset in ("", DEMO) else model_info.speech_amount_of(workspace, dataset)
    return presets.fit_preset(one.name, speech, gpus)


def _quick(one: ModelFamily) -> TrainOptions:
    """The training options of a quick test."""
    return model_info.preset(one.name, "train", TrainOptions).model_copy(update=dict(_QUICK[one.preset]))


def chain_options(workspace: Workspace, model: str, language: str, dataset: str, length: str,
                  states: Sequence[JobState] = (), gpus: Sequence[Gpu] = ()) -> demo_chain.ChainOptions:
    """The chain of jobs for these choices."""
    if not dataset:
        raise UserError(f"There are no recordings in {job_views.language_name(language)} yet.",
                        "Prepare a dataset on the Data tab first.")
    one = family_of_model(workspace, model)
    picked = {} if dataset == DEMO else {"dataset": dataset, "source": AS_IS}
    train = _quick(one) if length == QUICK else chosen_preset(workspace, one, dataset, gpus).options
    made = demo_chain.ChainOptions(
        model=model, model_present=bool(one.variants) and model in workspace.list_models(), language=language,
        rules=language if text_rules.ships(language) else "",
        merges=model_info.preset(one.name, "tokenizer", TokenizerOptions).merges, train=train, **picked)
    return replace(made, extended_name=_free_name(workspace, made, states))


def _free_name(workspace: Workspace, options: demo_chain.ChainOptions, states: Sequence[JobState]) -> str:
    """A free name for tokenizer and extension: MODEL-LANGUAGE, MODEL-DATASET, or that and a number."""
    first = options.extended
    names = (first, f"{options.model}-{options.dataset}"[:60].rstrip("._-"))
    for name in chain(names, (f"{names[1]}-{number}" for number in count(2))):
        if not _taken(workspace, replace(options, extended_name=name), states):
            return "" if name == first else name
    raise AssertionError("there is always another number")


def _taken(workspace: Workspace, options: demo_chain.ChainOptions, states: Sequence[JobState]) -> bool:
    """Whether a tokenizer or an extension of this name exists that no known job made with these options."""
    folders = {"tokenizer": workspace.tokenizers, "extend": workspace.extensions}
    wanted = [(verb, settings) for verb, settings in demo_chain.chain_steps(options)
              if verb in folders and (folders[verb] / options.extended).exists()]
    return any(not any(state.verb == verb and state.status == "finished"
                       and {**type(settings)().model_dump(), **state.job.settings} == settings.model_dump()
                       for state in states) for verb, settings in wanted)


def pair(workspace: Workspace, options: demo_chain.ChainOptions, run: str) -> CompareOptions:
    """The comparison to make when `run` has finished; without texts, a held-out sentence of each language."""
    ends: dict[str, object] = {"base": f"base:{options.model}", "finetuned": f"run:{run}"}
    if family_of_model(workspace, options.model).preset != "demo":
        return CompareOptions.model_validate(ends)
    texts = {} if options.source == DEMO else {"texts": ()}
    return demo_chain.demo_options("compare", CompareOptions).model_copy(update={**ends, **texts})
