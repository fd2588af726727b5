"""What stands in a form before a person changes it: names that are there, and values that suit the chosen model.

A value that a person typed is left alone; one that Lisan put there follows what else is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import gradio as gr

from config.errors import UserError
from core.dataset import languages
from core.jobs.verbs import VERBS
from core.library import model_info
from core.library.catalog import FAMILIES, ModelFamily
from core.workspace import Workspace
from ui import records
from ui.form import Value, same
from ui.live import View

Offered = Callable[[View], Sequence[str]]
Wanted = Callable[[View], Value]
_FIRST_LANGUAGE = "am"


def settled(view: View, verb: str, choices: Mapping[str, Offered]) -> View:
    """`view` with what the dropdowns of a form will show: what is there, or what a job is making; else nothing.

    Of what is there, the schema's default comes first.
    """
    chosen = dict(view.chosen)
    for name, offered in choices.items():
        field = f"{verb}.{name}"
        names = offered(replace(view, chosen=chosen))
        if chosen[field] not in names and chosen[field] not in in_the_making(view, name):
            usual = VERBS[verb].options.model_fields[name].default
            chosen[field] = usual if usual in names else names[0] if names else ""
    return replace(view, chosen=chosen)


def in_the_making(view: View, field: str) -> set[str]:
    """Names in `field` that living jobs were given."""
    return {str(state.job.settings.get(field)) for state in view.jobs if state.alive and field in state.job.settings}


def free(current: str, wanted: Value, own: Iterable[Value]) -> object:
    """`wanted` in the place of what Lisan itself put there, one of `own`; else what was typed stays."""
    return gr.update(value=wanted) if any(same(current, value) for value in own) else gr.skip()


def fitting_tokenizers(workspace: Workspace, model: str) -> list[str]:
    """Merged tokenizers that begin with the tokenizer file of `model`, byte for byte."""
    if model not in workspace.list_models():
        return []
    own = {path.read_bytes() for path in workspace.model(model).glob("*.json") if path.name != "model.json"}
    return [name for name in workspace.list_tokenizers()
            if (file := workspace.tokenizers / name / "tokenizer.json").is_file() and file.read_bytes() in own]


def fitting_datasets(workspace: Workspace, extension: str) -> list[str]:
    """The datasets that can be learnt from, those in a language of `extension` first."""
    try:
        spoken = model_info.languages_of_extension(workspace, extension)
    except UserError:
        spoken = ()
    known = _known(workspace, extension)
    found = sorted(records.datasets(workspace), key=lambda one: (one.language not in spoken, one.name))
    return [one.name for one in found if one.language not in known]


def replayable_datasets(workspace: Workspace, extension: str, chosen: str) -> list[str]:
    """Nothing, each dataset in a language that the base of `extension` speaks, all of them, and those `chosen`."""
    known = _known(workspace, extension)
    names = [one.name for one in records.datasets(workspace) if one.language in known]
    several = [", ".join(names)] if len(names) > 1 else []
    picked = languages.split_names(chosen)
    return list(dict.fromkeys(["", *names, *several, *([chosen] if picked and set(picked) <= set(names) else [])]))


def _known(workspace: Workspace, extension: str) -> tuple[str, ...]:
    """The languages of the base of `extension`."""
    try:
        return model_info.base_languages(workspace, model_info.model_of_extension(workspace, extension))
    except UserError:
        return ()


def tokenizer_name(workspace: Workspace, model: str, dataset: str) -> str:
    """Such as `tiny-am`."""
    language = records.dataset(workspace, dataset).language if dataset in workspace.list_datasets() else ""
    return f"{model or FAMILIES[0].name}-{language or _FIRST_LANGUAGE}"


def made_up_names(workspace: Workspace) -> set[str]:
    """Every name that Lisan may have put into a form for a tokenizer, an extension or an export."""
    models = {*workspace.list_models(), *(one.name for one in FAMILIES)}
    languages = {_FIRST_LANGUAGE, *(one.language for one in records.datasets(workspace))}
    return {f"{model}-{language}" for model in models for language in languages} | {
        *workspace.list_tokenizers(), *workspace.list_extensions()}


def family_of_extension(workspace: Workspace, extension: str) -> ModelFamily:
    """The family that an extension belongs to; the built-in one while there is none."""
    try:
        return model_info.family_of_extension(workspace, extension)
    except UserError:
        return FAMILIES[0]


def missing(verb: str, names: Sequence[str], values: Sequence[Value]) -> None:
    """Raise `UserError` when nothing is chosen where something that is there must be."""
    for name, value in zip(names, values, strict=True):
        if name in _WHERE and not str(value or "").strip():
            title = VERBS[verb].options.model_fields[name].title
            raise UserError(f"{title}: nothing is chosen.", _WHERE[name])


_WHERE = {
    "model": "Choose one; where there is none, the Model tab gets one.",
    "dataset": "Choose one; where there is none, the Data tab prepares your recordings.",
    "tokenizer": "Choose one; where there is none for this model, the Tokenizer tab makes one.",
    "extension": "Choose one; where there is none, the Embeddings tab makes one.",
}
