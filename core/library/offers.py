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
from config.loading import parse_options
from config.schema import Options
from core.jobs.verbs import read_preset
from core.library import catalog, exports_record, records
from core.library.catalog import Family, VoiceModel
from core.library.model_record import read_record
from core.library.presets import Speech
from core.library.records import CheckpointRecord, ExtensionRecord
from core.workspace import Workspace

PRESETS = Path(__file__).resolve().parents[2] / "config" / "presets"
PACKAGES: Mapping[str, str] = {
    "zh": "spacy_pkuseg", "ja": "pykakasi", "he": "dicta_onnx", "ru": "russian_text_stresser"}
"""The package that Chatterbox's own text of a language needs."""

_SOUNDS = (".ogg", ".wav", ".flac")
Chosen = TypeVar("Chosen", bound=Options)


@cache
def preset(family: str, verb: str, kind: type[Chosen]) -> Chosen:
    """Options of one verb as they suit a family."""
    return parse_options(kind, read_preset(PRESETS / f"{catalog.family(family).preset}.yaml", verb))


def model_of_extension(workspace: Workspace, name: str) -> str:
    """The base model that an extension was made for."""
    return _extension(workspace, name).origin.model


def languages_of_extension(workspace: Workspace, name: str) -> tuple[str, ...]:
    """The languages that an extension brings."""
    return _extension(workspace, name).languages


def family_of_extension(workspace: Workspace, name: str) -> Family:
    """The family that an extension belongs to."""
    return catalog.family(catalog.family_of(workspace, model_of_extension(workspace, name)))


def speech_of(workspace: Workspace, dataset: str) -> Speech:
    """How much speech a prepared dataset has; nothing is known of one that is not there, or not readable."""
    try:
        about = yaml.safe_load((workspace.dataset(dataset) / "dataset.yaml").read_text(encoding="utf-8"))
        return Speech(int(about["clips"]), float(about["duration_s"]))
    except (UserError, OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return Speech()


def _extension(workspace: Workspace, name: str) -> ExtensionRecord:
    return records.read(workspace.extension(name) / records.EXTENSION, ExtensionRecord)


def model_of_voice(workspace: Workspace, voice: VoiceModel) -> str:
    """The base model that a model that can speak was made from."""
    if voice.kind == "base":
        return voice.name
    if voice.kind == "export":
        return exports_record.read_record(voice.folder).origin.model
    return records.read(voice.folder / records.CHECKPOINT, CheckpointRecord).origin.model


def family_of_voice(workspace: Workspace, voice: VoiceModel) -> Family:
    """The family of a model that can speak."""
    if voice.kind == "base":
        return catalog.family(catalog.family_of(workspace, voice.name))
    if voice.kind == "export":
        return catalog.family(exports_record.read_record(voice.folder).origin.family)
    return catalog.family(records.read(voice.folder / records.CHECKPOINT, CheckpointRecord).origin.family)


def languages(workspace: Workspace, voice: VoiceModel) -> tuple[str, ...]:
    """Codes of the languages that a model speaks, those it was taught here first."""
    folder = voice.folder if voice.kind == "base" else voice.folder / records.FRONT_END
    try:
        entries = json.loads((folder / "front_end.json").read_text(encoding="utf-8"))["languages"]
        return tuple(sorted(entries, key=lambda code: (entries[code]["tokenizer"] == "tokenizer.json", code)))
    except (OSError, ValueError, KeyError, TypeError):
        return _published_languages(workspace, voice)


def known(workspace: Workspace, model: str) -> tuple[str, ...]:
    """Codes of the languages that a base model of the workspace came with; none where its record cannot be read."""
    try:
        return languages(workspace, VoiceModel("", "base", model, workspace.model(model)))
    except UserError:
        return ()


def taught(workspace: Workspace, voice: VoiceModel) -> tuple[str, ...]:
    """Codes of the languages that a model was taught here."""
    if voice.kind == "base":
        return ()
    base = VoiceModel("", "base", model_of_voice(workspace, voice), workspace.models / model_of_voice(workspace, voice))
    known = languages(workspace, base) if base.folder.is_dir() else ()
    return tuple(code for code in languages(workspace, voice) if code not in known)


def voices(workspace: Workspace, model: str) -> tuple[str, ...]:
    """Names of the voices that come with a base model."""
    folder = workspace.models / model
    found = {path.stem for path in (folder / "voices").glob("*") if path.suffix in _SOUNDS}
    try:
        own = catalog.family(catalog.family_of(workspace, model)).own_voice
    except UserError:
        own = None
    return (*sorted(found), *([own[1]] if own and (folder / own[0]).is_file() else []))


def unready(family: Family, language: str, taught: bool) -> str:
    """Which package text of a language still needs, as a sentence; empty when none does, as for one `taught` here."""
    package = PACKAGES.get(language)
    if taught or package is None or family.name != "chatterbox" or find_spec(package) is not None:
        return ""
    return (f"Text of this language needs the package {package.replace('_', '-')}, which is not installed "
            "(it is in requirements-languages.txt).")


def _published_languages(workspace: Workspace, voice: VoiceModel) -> tuple[str, ...]:
    record = read_record(voice.folder) if voice.kind == "base" else None
    family = family_of_voice(workspace, voice)
    if record is None or not family.variants:
        return ()
    return catalog.variant(family, record.variant).codes
