"""What the Start page can be asked for: which voice, which language, from which recordings, for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count

import gradio as gr

from config.errors import UserError
from config.schema import AS_IS, CompareOptions, Options, TokenizerOptions, TrainOptions
from core.jobs.gpus import Gpu
from core.jobs.state import JobState
from core.library import model_info, presets
from core.library.catalog import FAMILIES, ModelFamily, family, family_of
from core.submission import demo_chain
from core.text import text_rules
from core.workspace import Workspace
from ui import present, proof_time, records
from ui.live import View
from ui.proof_time import Past

DEMO = "demo"
DEMO_LABEL = "Built-in Amharic demo"
DEMO_DATASET = "amharic-demo"
FULL, QUICK = "full", "quick"
_QUICK: Mapping[str, Mapping[str, object]] = {
    "demo": {"steps": 100, "max_minutes": 2, "checkpoint_every": 50, "evaluation_sentences": 4},
    "chatterbox": {"steps": 20, "max_minutes": 20, "checkpoint_every": 10, "evaluation_sentences": 1},
}
"""What a quick try changes, by preset: enough to see every part at work, too little to speak well."""


def settled(workspace: Workspace, view: View, states: Sequence[JobState]) -> View:
    """`view` with the choices of Start as they shall stand: those of the chain `states`, told once to each page.

    So a reload shows what is being learnt, and what a person chooses after it stays.
    """
    training = next((state for state in states if state.verb == "train"), None)
    if training is None or view.chosen.get("start_told") == training.id:
        return view
    return replace(view, chosen={**view.chosen, **_choices_of(workspace, training, states)})


def _choices_of(workspace: Workspace, training: JobState, states: Sequence[JobState]) -> dict[str, str]:
    """What a chain was asked for, as the choices of Start have it; what its jobs do not say is left out."""
    model = next((str(state.job.settings["model"]) for state in states if "model" in state.job.settings), "")
    quick = training.job.settings.get("steps") == _quick(_family_or_first(workspace, model)).steps
    told = {"start_length": QUICK if quick else FULL} | ({"start_model": model} if model else {})
    dataset = str(training.job.settings.get("dataset", ""))
    if dataset == DEMO_DATASET:
        return told | {"start_dataset": DEMO, "start_language": "am"}
    if dataset in workspace.list_datasets():
        return told | {"start_dataset": dataset, "start_language": records.dataset(workspace, dataset).language}
    return told


def model_choices(workspace: Workspace, view: View) -> object:
    """Every base model; the chosen one stays."""
    return _offered(models(workspace), view.chosen["start_model"])


def _offered(choices: Sequence[tuple[str, str]], current: str) -> object:
    """`current` is shown where it is among the choices; else the widget keeps what it shows."""
    if current in [name for _, name in choices]:
        return gr.update(choices=choices, value=current)
    return gr.update(choices=choices)


def models(workspace: Workspace) -> list[tuple[str, str]]:
    """Label and name of each base model: those that are here, then those that the first step would get."""
    there = workspace.list_models()
    missing = [one for one in FAMILIES if one.available and one.name not in there]
    labels = {one.name: f"{one.title} ({_to_get(one)})" for one in missing}
    labels |= {name: _title(workspace, name) for name in there}
    order = [one.name for one in FAMILIES]
    return [(label, name) for name, label in sorted(
        labels.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))]


def _to_get(one: ModelFamily) -> str:
    return f"{one.size} to download" if one.variants else "ships with Lisan"


def _title(workspace: Workspace, name: str) -> str:
    one = family_of_model(workspace, name)
    return one.title if name == one.name else f"{one.title}: {name}"


def family_of_model(workspace: Workspace, name: str) -> ModelFamily:
    """The family of a base model, be it in the workspace or still to be got."""
    return family(family_of(workspace, name) if name in workspace.list_models() else name)


def language_choices(workspace: Workspace, view: View) -> object:
    """Amharic, for which recordings ship, and each language that recordings were prepared for."""
    spoken = [set(model_info.base_languages(workspace, model)) for model in workspace.list_models()]
    everywhere = set.intersection(*spoken) if spoken else set()  # recordings in these are there to be rehearsed
    codes = {"am"} | {found.language for found in records.datasets(workspace) if found.language} - everywhere
    return _offered([(present.language_name(code), code) for code in sorted(codes)], view.chosen["start_language"])


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
    """How long it may take: minutes where they were measured, steps where they hang on the data and the machine."""
    one = _family_or_first(workspace, view.chosen["start_model"])
    dataset = view.chosen.get("start_dataset", "")
    return _offered([(_length(workspace, one, dataset, length, gpus), length) for length in (FULL, QUICK)],
                    view.chosen.get("start_length", ""))


def pace(workspace: Workspace, view: View) -> str:
    """What to expect of the machine."""
    if _family_or_first(workspace, view.chosen["start_model"]).preset == "demo":
        return "A few minutes on an ordinary computer, without a network."
    return "Made for a GPU; the log tells the time that it will take on this machine."


def last_proof(workspace: Workspace, view: View) -> Past | None:
    """What the last proof of the chosen model took; of another model it would take another time."""
    return proof_time.last(view.jobs, lambda state: _model_of(workspace, state) == view.chosen["start_model"])


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
        return "A quick try (too short to speak well)" if short else (
            f"A quick try ({_quick(one).steps} steps, too few to speak well)")
    preset = chosen_preset(workspace, one, dataset, gpus)
    if short and dataset in ("", DEMO):  # what was measured
        return "Until it speaks (5 min)"
    return f"Preset {preset.title}: {preset.options.steps:,} steps{'' if short else ', wants a GPU'}"


def chosen_preset(workspace: Workspace, one: ModelFamily, dataset: str, gpus: Sequence[Gpu]) -> presets.FittedPreset:
    """The preset for what the dataset has and the GPUs hold, as the Train tab chooses it."""
    speech = presets.SpeechAmount() if dataset in ("", DEMO) else model_info.speech_amount_of(workspace, dataset)
    return presets.fit_preset(one.name, speech, gpus)


def _quick(one: ModelFamily) -> TrainOptions:
    """The quick try of a family."""
    return model_info.preset(one.name, "train", TrainOptions).model_copy(update=dict(_QUICK[one.preset]))


def chain_options(workspace: Workspace, model: str, language: str, dataset: str, length: str,
                  states: Sequence[JobState] = (), gpus: Sequence[Gpu] = ()) -> demo_chain.ChainOptions:
    """The chain for what was picked."""
    if not dataset:
        raise UserError(f"There are no recordings in {present.language_name(language)} yet.",
                        "Prepare some on the Data tab, then they can be chosen here.")
    one = family_of_model(workspace, model)
    picked = {} if dataset == DEMO else {"dataset": dataset, "source": AS_IS}
    train = _quick(one) if length == QUICK else chosen_preset(workspace, one, dataset, gpus).options
    made = demo_chain.ChainOptions(
        model=model, model_present=bool(one.variants) and model in workspace.list_models(), language=language,
        rules=language if text_rules.ships(language) else "",
        merges=model_info.preset(one.name, "tokenizer", TokenizerOptions).merges, train=train, **picked)
    return replace(made, extended_name=_free_name(workspace, made, states))


def _free_name(workspace: Workspace, options: demo_chain.ChainOptions, states: Sequence[JobState]) -> str:
    """A name for tokenizer and extension that nothing else has: MODEL-LANGUAGE, MODEL-DATASET, or that and a number."""
    first = options.extended
    names = (first, f"{options.model}-{options.dataset}"[:60].rstrip("._-"))
    for name in chain(names, (f"{names[1]}-{number}" for number in count(2))):
        if not _taken(workspace, replace(options, extended_name=name), states):
            return "" if name == first else name
    raise AssertionError("there is always another number")


def _taken(workspace: Workspace, options: demo_chain.ChainOptions, states: Sequence[JobState]) -> bool:
    """Whether a tokenizer or an extension of this name is there that no job is known to have made by these options."""
    folders = {"tokenizer": workspace.tokenizers, "extend": workspace.extensions}
    wanted = [(verb, settings) for verb, settings in demo_chain.chain_steps(options)
              if verb in folders and (folders[verb] / options.extended).exists()]
    return any(not any(state.verb == verb and state.status == "finished" and _says(state, settings)
                       for state in states) for verb, settings in wanted)


def _says(state: JobState, settings: Options) -> bool:
    """Whether a job was given these options; what a job of an earlier version does not name was the default."""
    defaults = type(settings)().model_dump()
    return {**defaults, **state.job.settings} == settings.model_dump()


def pair(workspace: Workspace, options: demo_chain.ChainOptions, run: str) -> CompareOptions:
    """What to listen to when `run` has trained; without texts a held-out sentence of each language is spoken."""
    ends: dict[str, object] = {"base": f"base:{options.model}", "finetuned": f"run:{run}"}
    if family_of_model(workspace, options.model).preset != "demo":
        return CompareOptions.model_validate(ends)
    texts = {} if options.source == DEMO else {"texts": ()}
    return demo_chain.demo_options("compare", CompareOptions).model_copy(update={**ends, **texts})
