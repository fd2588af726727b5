"""Titles of models: `run:9d83` is "Amharic (run 9d83)", `base:tiny+romanised` "Built-in tiny model, Latin letters"."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache

from config.errors import UserError
from config.languages import language_name
from core.jobs.job import load_job
from core.library.catalog import find_entry
from core.library.lineage import Model
from core.workspace import Reference, Workspace
from ui import records

_REFERENCE = re.compile(r"\b(?:base|run|export|codec):[\w.-]*\w(?:@[\w.-]*\w)?(?:\+romanised)?")
_GENERATED = re.compile(r"[a-z_]+-\d{8}-\d{6}-([0-9a-f]{4})")


def title_of(workspace: Workspace, reference: str) -> str:
    """The title of `base:NAME`, `run:ID` (or `@STEP`), `export:NAME` or `codec:NAME`; another text as it is."""
    kind, name, step, reading = Reference.parse(reference)
    match kind if name else "":
        case "base":
            title = base_title(workspace, name)
        case "codec":
            title = f"{base_title(workspace, name)}, codec alone"
        case "run":
            title = _run_title(workspace, name)
        case "export":
            title = f"export {name}"
        case _:
            return "Original recordings" if reference == "recordings" else reference
    title += f", step {step}" if step.isdigit() else f", {step}" if step else ""
    return f"{title}, Latin letters" if reading else title


def with_titles(workspace: Workspace, text: str) -> str:
    """`text` with the titles of models in place of their references."""
    return _REFERENCE.sub(lambda match: title_of(workspace, match[0]), text)


def base_title(workspace: Workspace, name: str) -> str:
    """The title of a base model's family, and its own name where that is another."""
    try:
        family = Model.open(workspace, f"base:{name}").family if name in workspace.list_models() else find_entry(name)
    except (UserError, OSError):  # unknown or damaged, as the Model tab says
        return f"base model {name}"
    return family.title if name == family.name else f"{family.title} {name}"


def _run_title(workspace: Workspace, name: str) -> str:
    short = _GENERATED.sub(r"\1", name)
    language = ""
    with suppress(UserError, OSError):  # a run that was deleted since
        language = _language_of_run(workspace, name)
    return f"{language} (run {short})" if language else f"run {short}"


@lru_cache(maxsize=4096)
def _language_of_run(workspace: Workspace, name: str) -> str:
    """The names of the languages of a run's dataset; `UserError` where neither is known yet."""
    run = workspace.whole_reference(f"run:{name}").removeprefix("run:")
    settings = load_job(workspace, run).settings
    dataset = records.dataset(workspace, str(settings.get("dataset", "")))
    codes = dataset.languages if dataset.language else (str(settings.get("language", "")),)
    if not any(codes):
        raise UserError(f"The language of {name} is not known.")
    return ", ".join(language_name(code) for code in codes if code)
