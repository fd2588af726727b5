"""What can be chosen for a model, read from files and the catalog alone. Never loads torch.

The page preselects from this, so that what stands in a form is there, and suits the model.
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
from config.loading import parse_options, read_preset
from config.schema import Options
from core.library import catalog, records
from core.library.catalog import ModelFamily, ModelReference
from core.library.presets import SpeechAmount
from core.library.records import CheckpointRecord, ExtensionRecord, read_model_record
from core.workspace import Workspace

PRESETS = Path(__file__).resolve().parents[2] / "config" / "presets"
PACKAGES: Mapping[str, str] = {
    "zh": "spacy_pkuseg", "ja": "pykakasi", "he": "dicta_onnx", "ru": "russian_text_stresser"}
"""The package that Chatterbox's own text of a language needs."""

_SOUNDS = (".ogg", ".wav", ".flac")
OptionsT = TypeVar("Chosen", bound=Options)


@cache
def preset(family: str, verb: str, kind: type[OptionsT]) -> OptionsT:
    """Options of one verb as they suit a family."""
    return parse_options(kind, read_preset(PRESETS / f"{catalog.family(family).preset}.yaml", verb))


def model_of_extension(workspace: Workspace, name: str) -> str:
    """The base model that an extension was made for."""
    return _extension(workspace, name).origin.model


def languages_of_extension(workspace: Workspace, name: str) -> tuple[str, ...]:
    """The languages that an extension brings."""
    return _extension(workspace, name).languages


def family_of_extension(workspace: Workspace, name: str) -> ModelFamily:
    """The family that an extension belongs to."""
    return catalog.family(catalog.family_of(workspace, model_of_extension(workspace, name)))


def speech_amount_of(workspace: Workspace, dataset: str) -> SpeechAmount:
    """How much speech a prepared dataset has; nothing is known of one that is not there, or not readable."""
    try:
        about = yaml.safe_load((workspace.dataset(dataset) / "dataset.yaml").read_text(encoding="utf-8"))
        return SpeechAmount(int(about["clips"]), float(about["duration_s"]))
    except (UserError, OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return SpeechAmount()


def _extension(workspace: Workspace, name: str) -> ExtensionRecord:
    return records.read_record(workspace.extension(name) / records.EXTENSION, ExtensionRecord)


def base_model_of(workspace: Workspace, voice: ModelReference) -> str:
    """The base model that a model that can speak was made from."""
    if voice.kind == "base":
        return voice.name
    if voice.kind == "export":
        return records.read_export_record(voice.folder).origin.model
    return records.read_record(voice.folder / records.CHECKPOINT, CheckpointRecord).origin.model


def family_of_reference(workspace: Workspace, voice: ModelReference) -> ModelFamily:
    """The family of a model that can speak."""
    if voice.kind == "base":
        return catalog.family(catalog.family_of(workspace, voice.name))
    if voice.kind == "export":
        return catalog.family(records.read_export_record(voice.folder).origin.family)
    return catalog.family(records.read_record(voice.folder / records.CHECKPOINT, CheckpointRecord).origin.family)


def languages(workspace: Workspace, voice: ModelReference) -> tuple[str, ...]:
    """Codes of the languages that a model speaks, those it was taught here first."""
    folder = voice.folder if voice.kind == "base" else voice.folder / records.FRONT_END
    try:
        entries = json.loads((folder / "front_end.json").read_text(encoding="utf-8"))["languages"]
        return tuple(sorted(entries, key=lambda code: (entries[code]["tokenizer"] == "tokenizer.json", code)))
    except (OSError, ValueError, KeyError, TypeError):
        return _published_languages(workspace, voice)


def base_languages(workspace: Workspace, model: str) -> tuple[str, ...]:
    """Codes of the languages that a base model of the workspace came with; none where its record cannot be read."""
    try:
        return languages(workspace, ModelReference("", "base", model, workspace.model(model)))
    except UserError:
        return ()


def added_languages(workspace: Workspace, voice: ModelReference) -> tuple[str, ...]:
    """Codes of the languages that a model was taught here."""
    if voice.kind == "base":
        return ()
    base = ModelReference("", "base", base_model_of(workspace, voice),
                          workspace.models / base_model_of(workspace, voice))
    base_languages = languages(workspace, base) if base.folder.is_dir() else ()
    return tuple(code for code in languages(workspace, voice) if code not in base_languages)


def voice_names(workspace: Workspace, model: str) -> tuple[str, ...]:
    """Names of the voices that come with a base model."""
    folder = workspace.models / model
    found = {path.stem for path in (folder / "voices").glob("*") if path.suffix in _SOUNDS}
    try:
        own = catalog.family(catalog.family_of(workspace, model)).own_voice
    except UserError:
        own = None
    return (*sorted(found), *([own[1]] if own and (folder / own[0]).is_file() else []))


def missing_package(family: ModelFamily, language: str, taught: bool) -> str:
    """Which package text of a language still needs, as a sentence; empty when none does, as for one `taught` here."""
    package = PACKAGES.get(language)
    if taught or package is None or family.name != "chatterbox" or find_spec(package) is not None:
        return ""
    return (f"Text of this language needs the package {package.replace('_', '-')}, which is not installed "
            "(it is in requirements-languages.txt).")


def _published_languages(workspace: Workspace, voice: ModelReference) -> tuple[str, ...]:
    record = read_model_record(voice.folder) if voice.kind == "base" else None
    family = family_of_reference(workspace, voice)
    if record is None or not family.variants:
        return ()
    return catalog.variant(family, record.variant).codes
