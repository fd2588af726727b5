"""Facts about a model for the forms of the page: its family, languages, voices and options. Never loads torch.

They are read from files and the catalog alone. The page fills its forms from them, so that each value exists and suits
the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import Options
from core.jobs.verbs import read_preset
from core.library import catalog, records
from core.library.catalog import ModelFamily, ModelReference
from core.library.presets import SpeechAmount
from core.library.records import CheckpointRecord, ExtensionRecord, Origin, read_model_record
from core.workspace import Workspace

PRESETS = Path(__file__).resolve().parents[2] / "config" / "presets"
PACKAGES: Mapping[str, str] = {
    "zh": "spacy_pkuseg", "ja": "pykakasi", "he": "dicta_onnx", "ru": "russian_text_stresser"}
"""The package that Chatterbox's own text of a language needs."""

_SOUNDS = (".ogg", ".wav", ".flac")
OptionsT = TypeVar("OptionsT", bound=Options)


@cache
def preset(family: str, verb: str, kind: type[OptionsT]) -> OptionsT:
    """The options of one verb that suit a family."""
    return parse_options(kind, read_preset(PRESETS / f"{catalog.family(family).preset}.yaml", verb))


def model_of_extension(workspace: Workspace, name: str) -> str:
    """The base model that an extension was made for."""
    return _extension(workspace, name).origin.model


def languages_of_extension(workspace: Workspace, name: str) -> tuple[str, ...]:
    """The languages that an extension adds."""
    return _extension(workspace, name).languages


def family_of_extension(workspace: Workspace, name: str) -> ModelFamily:
    """The family that an extension belongs to."""
    return catalog.family(catalog.family_of(workspace, model_of_extension(workspace, name)))


def speech_amount_of(workspace: Workspace, dataset: str) -> SpeechAmount:
    """How much speech a prepared dataset has; unknown for one that is missing or damaged."""
    try:
        about = yaml.safe_load((workspace.dataset(dataset) / "dataset.yaml").read_text(encoding="utf-8"))
        return SpeechAmount(int(about["clips"]), float(about["duration_s"]))
    except (UserError, OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return SpeechAmount()


def _extension(workspace: Workspace, name: str) -> ExtensionRecord:
    return records.read_record(workspace.extension(name) / records.EXTENSION, ExtensionRecord)


def base_model_of(workspace: Workspace, model: ModelReference) -> str:
    """The base model that a model was made from."""
    return model.name if model.kind == "base" else _origin(model).model


def family_of_reference(workspace: Workspace, model: ModelReference) -> ModelFamily:
    """The family of a model."""
    return catalog.family(catalog.family_of(workspace, model.name) if model.kind == "base" else _origin(model).family)


def _origin(model: ModelReference) -> Origin:
    """The origin of an export or a checkpoint."""
    if model.kind == "export":
        return records.read_export_record(model.folder).origin
    return records.read_record(model.folder / records.CHECKPOINT, CheckpointRecord).origin


def languages(workspace: Workspace, model: ModelReference) -> tuple[str, ...]:
    """Codes of the languages of a model, those that were added here first."""
    folder = model.folder if model.kind == "base" else model.folder / records.FRONT_END
    try:
        entries = json.loads((folder / "front_end.json").read_text(encoding="utf-8"))["languages"]
        return tuple(sorted(entries, key=lambda code: (entries[code]["tokenizer"] == "tokenizer.json", code)))
    except (OSError, ValueError, KeyError, TypeError):
        return _published_languages(workspace, model)


def base_languages(workspace: Workspace, model: str) -> tuple[str, ...]:
    """Codes of the languages of a base model; none where its record cannot be read."""
    try:
        return languages(workspace, ModelReference("", "base", model, workspace.model(model)))
    except UserError:
        return ()


def added_languages(workspace: Workspace, model: ModelReference) -> tuple[str, ...]:
    """Codes of the languages that were added to a model here."""
    if model.kind == "base":
        return ()
    before = base_languages(workspace, base_model_of(workspace, model))
    return tuple(code for code in languages(workspace, model) if code not in before)


def voice_names(workspace: Workspace, model: str) -> tuple[str, ...]:
    """Names of the voices that come with a base model."""
    folder = workspace.models / model
    found = {path.stem for path in (folder / "voices").glob("*") if path.suffix in _SOUNDS}
    try:
        own = catalog.family(catalog.family_of(workspace, model)).own_voice
    except UserError:
        own = None
    return (*sorted(found), *([own[1]] if own and (folder / own[0]).is_file() else []))


def text_package_hint(family: ModelFamily, language: str, taught: bool) -> str:
    """A sentence naming the package that text of a language lacks; empty for none, as for a language `taught` here."""
    package = PACKAGES.get(language)
    if taught or package is None or family.name != "chatterbox" or find_spec(package) is not None:
        return ""
    return (f"Text of this language needs the package {package.replace('_', '-')}, which is not installed "
            "(it is in requirements-languages.txt).")


def _published_languages(workspace: Workspace, model: ModelReference) -> tuple[str, ...]:
    record = read_model_record(model.folder) if model.kind == "base" else None
    family = family_of_reference(workspace, model)
    if record is None or not family.variants:
        return ()
    return catalog.variant(family, record.variant).codes
