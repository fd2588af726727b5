"""Lists of what the workspace holds, for forms and commands: the newest, those that fit, the damaged. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, product
from pathlib import Path
from typing import Literal

from config import foreign
from config.errors import UserError
from core.library import catalog, records
from core.library.lineage import Model
from core.workspace import KINDS, Workspace
from data.front_end import SEGMENTERS, SETTINGS_FILE

_FILE_OF = {"dataset": "dataset.yaml", "tokenizer": SETTINGS_FILE, "extension": records.EXTENSION,
            "segments": "segments.yaml"}


def newest_first(workspace: Workspace, kind: str) -> list[str]:
    """Names of the datasets, tokenizers, extensions or segments, the last one made first.

    The time is that of their own file: a review writes into the folder of its dataset.
    """
    file = _FILE_OF[kind]
    files = (workspace.path / KINDS[kind]).glob(f"[!.]*/{file}")
    return [path.parent.name for path in sorted(files, key=lambda path: -path.stat().st_mtime_ns)]


def languages_of_dataset(workspace: Workspace, dataset: str) -> tuple[str, ...]:
    """The languages of a prepared dataset; none for one that is missing or damaged."""
    try:
        card = foreign.read_yaml(workspace.dataset(dataset) / "dataset.yaml")
        return tuple(filter(None, str(card["language"]).split(",")))
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return ()


def matching_tokenizers(workspace: Workspace, model: str) -> list[str]:
    """Merged tokenizers that begin with the tokenizer file of `model`, byte for byte, and with its added languages."""
    try:
        model_to_extend = Model.find(workspace, model)
        base = model_to_extend.base.folder
    except UserError:
        return []

    def content(path: Path) -> bytes | None:
        try:
            return foreign.read_bytes(path)
        except (OSError, ValueError):
            return None

    paths = chain.from_iterable(base.glob(pattern) for pattern in ("*.json", "*.model", "*.tiktoken"))
    files = {content(path) for path in paths if path.name != "model.json"} - {None}
    earlier = {} if model_to_extend.kind == "base" else _added_entries(model_to_extend.folder / records.FRONT_END)
    matching = []
    for name, kind in product(workspace.list_tokenizers(), SEGMENTERS.values()):
        path = workspace.tokenizers / name / kind.base_file
        if path.is_file() and content(path) in files and _is_made_upon(workspace.tokenizers / name, earlier):
            matching.append(name)
    return matching


def _is_made_upon(tokenizer: Path, earlier: Mapping[str, object]) -> bool:
    """Whether a merged tokenizer was made for a model with these `earlier` entries; its report names the new ones."""
    entries = _added_entries(tokenizer)
    new = list(entries)[len(earlier):]
    try:
        named = str(foreign.read_json(tokenizer / "report.json")["language"]).split(",")
    except (OSError, ValueError, KeyError, TypeError):
        named = new[:1]
    return list(entries.items())[:len(earlier)] == list(earlier.items()) and new == named != []


def _added_entries(folder: Path) -> dict[str, object]:
    """By code, how a front-end writes each language that was added to its base; none where it cannot be read."""
    try:
        front_end = foreign.read_json(folder / SETTINGS_FILE)
        return {code: entry for code, entry in front_end["languages"].items()
                if code not in front_end["base_languages"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def damaged(workspace: Workspace, kind: Literal["model", "tokenizer", "extension", "export"]) -> dict[str, str]:
    """The items of a kind that cannot be used as they are, with the reason."""
    folder = workspace.path / KINDS[kind]

    def read(name: str) -> None:
        match kind:
            case "model":
                settings = folder / name / SETTINGS_FILE
                if settings.exists():
                    _check_object(settings)
                catalog.find_entry(Model.open(workspace, f"base:{name}").family_name)
            case "tokenizer":
                for file in (SETTINGS_FILE, "report.json"):
                    _check_object(folder / name / file)
            case "extension":
                records.read_extension(folder / name)
            case "export":
                records.read_export_record(folder / name)

    return find_damaged({"model": workspace.list_models, "tokenizer": workspace.list_tokenizers,
                         "extension": workspace.list_extensions, "export": workspace.list_exports}[kind](), read)


def find_damaged(names: Iterable[str], read: Callable[[str], object]) -> dict[str, str]:
    """Those of `names` that `read` refuses, with the reason."""
    faults = {}
    for name in names:
        try:
            with foreign.reading(name, "Move it away."):
                read(name)
        except UserError as error:
            faults[name] = error.message
    return faults


def _check_object(path: Path) -> None:
    """Raise `DamagedFile` where `path` holds no names with values."""
    if not isinstance(foreign.read_json(path), dict):
        raise foreign.DamagedFile(f"{path} is damaged: it holds no names with values.", "Move it away.")
