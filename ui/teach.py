"""What the Start page can be asked for: which voice, which language, from which recordings, for how long."""

from __future__ import annotations

from collections.abc import Mapping

import gradio as gr

from config.errors import UserError
from config.schema import CompareOptions, TokenizerOptions, TrainOptions
from core import demo
from core.job.state import JobState
from core.library import offers
from core.library.catalog import FAMILIES, Family, family, family_of
from core.text import text_rules
from core.workspace import Workspace
from ui import present, records
from ui.live import View

DEMO = "demo"
DEMO_LABEL = "Built-in Amharic demo"
DEMO_DATASET = "amharic-demo"
FULL, QUICK = "full", "quick"
_QUICK: Mapping[str, Mapping[str, object]] = {
    "demo": {"steps": 100, "max_minutes": 2, "checkpoint_every": 50, "judged_sentences": 4},
    "chatterbox": {"steps": 20, "max_minutes": 20, "checkpoint_every": 10, "judged_sentences": 1},
}
"""What a quick try changes, by preset: enough to see every part at work, too little to speak well."""


def models(workspace: Workspace) -> list[tuple[str, str]]:
    """Label and name of each base model: those that are here, then those that the first step would get."""
    there = workspace.list_models()
    missing = [one for one in FAMILIES if one.available and one.name not in there]
    labels = {one.name: f"{one.title} ({_to_get(one)})" for one in missing}
    labels |= {name: _title(workspace, name) for name in there}
    order = [one.name for one in FAMILIES]
    return [(label, name) for name, label in sorted(
        labels.items(), key=lambda item: (order.index(item[0]) if item[0] in order else len(order), item[0]))]


def _to_get(one: Family) -> str:
    return f"{one.size} to download" if one.variants else "ships with Lisan"


def _title(workspace: Workspace, name: str) -> str:
    one = family_of_model(workspace, name)
    return one.title if name == one.name else f"{one.title}: {name}"


def family_of_model(workspace: Workspace, name: str) -> Family:
    """The family of a base model, be it in the workspace or still to be got."""
    return family(family_of(workspace, name) if name in workspace.list_models() else name)


def language_choices(workspace: Workspace) -> object:
    """Amharic, for which recordings ship, and each language that recordings were prepared for."""
    codes = {"am"} | {found.language for found in records.datasets(workspace) if found.language}
    return gr.update(choices=[(present.language_name(code), code) for code in sorted(codes)])


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


def length_choices(workspace: Workspace, view: View, newest: JobState | None) -> object:
    """How long it may take: minutes where they were measured, steps where they hang on the machine.

    The choice is that of the `newest` training, told once to each page that is opened, so that a reload keeps it.
    """
    one = _family_or_first(workspace, view.chosen["start_model"])
    choices = [(_length(one, length), length) for length in (FULL, QUICK)]
    if newest is None:
        return gr.update(choices=choices)
    quick = newest.job.settings.get("steps") == training(one, QUICK).steps
    return gr.update(choices=choices, value=QUICK if quick else FULL)


def pace(workspace: Workspace, view: View) -> str:
    """What to expect of the machine."""
    if _family_or_first(workspace, view.chosen["start_model"]).preset == "demo":
        return "A few minutes on an ordinary computer, without a network."
    return "Made for a GPU; the log tells the time that it will take on this machine."


def _family_or_first(workspace: Workspace, name: str) -> Family:
    try:
        return family_of_model(workspace, name) if name else FAMILIES[0]
    except UserError:  # its record cannot be read; the job that needs it says so
        return FAMILIES[0]


def _length(one: Family, length: str) -> str:
    if one.preset == "demo":
        return "Until it speaks (5 min)" if length == FULL else "A quick try (too short to speak well)"
    steps = training(one, length).steps
    if length == FULL:
        return f"The whole preset ({steps:,} steps; wants a GPU)"
    return f"A quick try ({steps} steps, too few to speak well)"


def training(one: Family, length: str) -> TrainOptions:
    """The preset's training of a family, or its quick try."""
    found = offers.preset(one.name, "train", TrainOptions)
    return found.model_copy(update=dict(_QUICK[one.preset])) if length == QUICK else found


def chain_options(workspace: Workspace, model: str, language: str, dataset: str, length: str) -> demo.ChainOptions:
    """The chain for what was picked."""
    if not dataset:
        raise UserError(f"There are no recordings in {present.language_name(language)} yet.",
                        "Prepare some on the Data tab, then they can be chosen here.")
    one = family_of_model(workspace, model)
    picked = {} if dataset == DEMO else {"dataset": dataset, "source": records.dataset_source(workspace, dataset)}
    return demo.ChainOptions(
        model=model, there=bool(one.variants) and model in workspace.list_models(), language=language,
        rules=language if text_rules.ships(language) else "",
        merges=offers.preset(one.name, "tokenizer", TokenizerOptions).merges, train=training(one, length), **picked)


def pair(workspace: Workspace, options: demo.ChainOptions, run: str) -> CompareOptions:
    """What to listen to when `run` has trained; without texts a held-out sentence of each language is spoken."""
    ends: dict[str, object] = {"base": f"base:{options.model}", "finetuned": f"run:{run}"}
    if family_of_model(workspace, options.model).preset != "demo":
        return CompareOptions.model_validate(ends)
    texts = {} if options.source == DEMO else {"texts": ()}
    return demo.preset("compare", CompareOptions).model_copy(update={**ends, **texts})
