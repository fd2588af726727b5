"""Facts about a model for the forms of the page: its family, languages, voices and options. Never loads torch.

They are read from files and the catalog alone. The page fills its forms from them, so that each value exists and suits
the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path
from typing import Literal

from config import foreign
from config.errors import UserError
from core.library import catalog, records, reference_voices
from core.library.catalog import CatalogEntry, ModelReference
from core.library.records import (
    CheckpointRecord,
    EarlierTrainingRecord,
    ExportRecord,
    ExtensionRecord,
    Origin,
    read_model_record,
)
from core.workspace import KINDS, Workspace, resolve_inside
from data.durable_files import hash_file
from data.front_end import SEGMENTERS, SETTINGS_FILE, FrontEnd

PACKAGES: Mapping[str, Mapping[str, str]] = {
    "chatterbox": {"zh": "spacy_pkuseg", "ja": "pykakasi", "ru": "russian_text_stresser"},
    "indextts2": {"zh": "wetext", "en": "wetext", "ja": "fugashi"},
}
"""The package that a family's own text of a language needs."""

_SOUNDS = (".ogg", ".wav", ".flac")
_FILE_OF = {"dataset": "dataset.yaml", "tokenizer": SETTINGS_FILE, "extension": records.EXTENSION,
            "segments": "segments.yaml"}


def model_hash(model: ModelReference, base_hash: str) -> str:
    """SHA-256 that names the weights: of an export's list of files, of a checkpoint's record, or of the base."""
    if model.kind == "export":
        return hash_file(model.folder / records.EXPORT_SUMS)
    if model.kind == "run":
        return hash_file(model.folder / records.CHECKPOINT)
    return hashlib.sha256(base_hash.encode()).hexdigest()


def model_of_extension(workspace: Workspace, name: str) -> str:
    """The base model that an extension was made for."""
    return _extension(workspace, name).origin.model


def base_of(workspace: Workspace, name: str) -> str:
    """The base model below a model to build upon; see `catalog.resolve_model`."""
    return base_model_of(catalog.resolve_model(workspace, name))


def spoken_languages(workspace: Workspace, name: str) -> tuple[str, ...]:
    """Codes of the languages of a model to build upon; none where it is not there or its record cannot be read."""
    try:
        return languages(workspace, catalog.resolve_model(workspace, name))
    except UserError:
        return ()


def training_records(workspace: Workspace, name: str) -> tuple[EarlierTrainingRecord, ...]:
    """The trainings of a model to extend, as an extension of it will record them."""
    return training_records_of(workspace, catalog.resolve_model(workspace, name))


def training_records_of(workspace: Workspace, model: ModelReference,
                      base: Sequence[str] | None = None) -> tuple[EarlierTrainingRecord, ...]:
    """As `training_records`, of a model that is known; `base`: the languages of its base, where they were looked up."""
    if model.kind == "base":
        return ()
    record = record_of(model)
    languages_of_base = base_languages(workspace, record.origin.model) if base is None else base
    earlier = {*record.origin.earlier_languages, *languages_of_base}
    last = ",".join(code for code in languages(workspace, model) if code not in earlier)
    return (*record.origin.earlier_trainings, EarlierTrainingRecord(last, model.reference, record.scope, record.dataset,
                                                record.origin.size, record.origin.fingerprint, ""))


def newest_first(workspace: Workspace, kind: str) -> list[str]:
    """Names of the datasets, tokenizers, extensions or segments, the last one made first.

    The time is that of their own file: a review writes into the folder of its dataset.
    """
    file = _FILE_OF[kind]
    files = (workspace.path / KINDS[kind]).glob(f"[!.]*/{file}")
    return [path.parent.name for path in sorted(files, key=lambda path: -path.stat().st_mtime_ns)]


def stem(workspace: Workspace, model: ModelReference) -> str:
    """What names begin with that are made of a model: that of its base and its added languages, such as `tiny-am`."""
    trainings = training_records_of(workspace, model)
    return "-".join((base_model_of(model), *chain.from_iterable(training.languages for training in trainings)))


def extendable_finetuned_models(references: Sequence[ModelReference]) -> list[ModelReference]:
    """The models of `references` that are not base models and can be extended again."""
    extendable = []
    for reference in references:
        if reference.kind != "base":
            # An incomplete or damaged model is left out.
            with suppress(UserError):
                if record_of(reference).scope != "full":
                    extendable.append(reference)
    return extendable


def matching_tokenizers(workspace: Workspace, model: str) -> list[str]:
    """Merged tokenizers that begin with the tokenizer file of `model`, byte for byte, and with its added languages."""
    try:
        reference = catalog.resolve_model(workspace, model)
        base = workspace.model(base_model_of(reference))
    except UserError:
        return []

    def content(path: Path) -> bytes | None:
        try:
            return foreign.read_bytes(path)
        except (OSError, ValueError):
            return None

    paths = chain.from_iterable(base.glob(pattern) for pattern in ("*.json", "*.model", "*.tiktoken"))
    files = {content(path) for path in paths if path.name != "model.json"} - {None}
    earlier = {} if reference.kind == "base" else _added_entries(reference.folder / records.FRONT_END)
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


def languages_of_extension(workspace: Workspace, name: str) -> tuple[str, ...]:
    """The languages that an extension adds."""
    return _extension(workspace, name).languages


def earlier_languages_of_extension(workspace: Workspace, name: str) -> tuple[str, ...]:
    """The languages of an extension's model that earlier trainings added."""
    return _extension(workspace, name).origin.earlier_languages


def family_of_extension(workspace: Workspace, name: str) -> CatalogEntry:
    """The family that an extension belongs to."""
    return catalog.find_entry(catalog.family_of(workspace, model_of_extension(workspace, name)))


def languages_of_dataset(workspace: Workspace, dataset: str) -> tuple[str, ...]:
    """The languages of a prepared dataset; none for one that is missing or damaged."""
    try:
        return tuple(str(foreign.read_yaml(workspace.dataset(dataset) / "dataset.yaml")["language"]).split(","))
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return ()


def _extension(workspace: Workspace, name: str) -> ExtensionRecord:
    return records.read_record(workspace.extension(name) / records.EXTENSION, ExtensionRecord)


def base_model_of(model: ModelReference) -> str:
    """The base model that a model was made from."""
    return model.name if model.kind == "base" else _origin(model).model


def family_of_reference(workspace: Workspace, model: ModelReference) -> CatalogEntry:
    """The family of a model."""
    return catalog.find_entry(catalog.family_of(workspace,
                                                model.name) if model.kind == "base" else _origin(model).family)


def record_of(model: ModelReference) -> CheckpointRecord | ExportRecord:
    """The record of an export or a checkpoint."""
    if model.kind == "export":
        return records.read_export_record(model.folder)
    return records.read_record(model.folder / records.CHECKPOINT, CheckpointRecord)


def _origin(model: ModelReference) -> Origin:
    """The origin of an export or a checkpoint."""
    return record_of(model).origin


def languages(workspace: Workspace, model: ModelReference) -> tuple[str, ...]:
    """Codes of the languages of a model, those that were added here first."""
    folder = model.folder if model.kind == "base" else model.folder / records.FRONT_END
    try:
        return _front_end_languages(folder / SETTINGS_FILE)
    except (OSError, ValueError, KeyError, TypeError):
        return _published_languages(workspace, model)


@foreign.cached_by_file(1 << 14)  # Start names the languages of every run
def _front_end_languages(path: Path) -> tuple[str, ...]:
    front_end = foreign.read_json(path)
    codes, base = list(front_end["languages"]), list(front_end["base_languages"])
    if not all(isinstance(code, str) for code in (*codes, *base)):
        raise ValueError("a code of a language is no text")
    return tuple(sorted(codes, key=lambda code: (code in base, code)))


def base_files(workspace: Workspace, model: str) -> tuple[str, str, Path]:
    """Name, family and folder of a base model; the shipped files of one that is included and not in the workspace."""
    shipped = next((entry for entry in catalog.CATALOG if entry.name == model and not entry.variants), None)
    if shipped is not None and model not in workspace.list_models():
        return model, shipped.name, catalog.pack_folder(shipped.name)
    name = base_of(workspace, model)
    return name, catalog.family_of(workspace, name), workspace.model(name)


def front_end_of(model: ModelReference) -> FrontEnd:
    """The text front-end of a model, which is read once; `UserError` if it cannot be read."""
    return _front_end((model.folder if model.kind == "base" else model.folder / records.FRONT_END) / SETTINGS_FILE)


@foreign.cached_by_file(4)  # a tokenizer takes some megabytes
def _front_end(path: Path) -> FrontEnd:
    return FrontEnd.load(path.parent)


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
    languages_of_base = base_languages(workspace, base_model_of(model))
    return tuple(code for code in languages(workspace, model) if code not in languages_of_base)


def voice_names(workspace: Workspace, model: str) -> tuple[str, ...]:
    """Names of the voices that come with a base model."""
    try:
        folder = resolve_inside(workspace.models, model)  # a record of others may name anything
    except UserError:
        return ()
    names = {path.stem for path in (folder / "voices").glob("*") if path.suffix in _SOUNDS}
    try:
        built_in = catalog.find_entry(catalog.family_of(workspace, model)).own_voice
    except UserError:
        built_in = None
    return (*sorted(names), *([built_in[1]] if built_in and (folder / built_in[0]).is_file() else []))


def speakers(workspace: Workspace, model: ModelReference, language: str = "") -> Mapping[str, Path]:
    """Speakers of the data that a model was trained on, and a clip of each; none of a base model.

    Those of the data of `language` come first. A model that cannot be read has none.
    """
    try:
        record = None if model.kind == "base" else record_of(model)
    except UserError:
        record = None
    if record is None:
        return {}
    datasets: dict[str, str] = {}
    for training in record.origin.earlier_trainings:
        datasets |= dict.fromkeys(training.languages, training.dataset)
    clips: dict[str, Path] = {}
    names = [datasets.get(language, record.dataset), record.dataset, *datasets.values()]
    for name in filter(None, dict.fromkeys(names)):
        with suppress(UserError):  # a record of others may name anything
            for speaker, clip in reference_voices.list_speakers(resolve_inside(workspace.datasets, name)).items():
                clips.setdefault(speaker, clip)
    return clips


def text_package_hint(family: CatalogEntry, language: str, added: bool) -> str:
    """A sentence naming the package that text of a language lacks; empty for none, as for a language `added` here."""
    package = PACKAGES.get(family.name, {}).get(language)
    if added or package is None or find_spec(package) is not None:
        return ""
    return (f"Text of this language needs the package {package.replace('_', '-')}, which is not installed "
            "(it is in requirements-languages.txt).")


def _published_languages(workspace: Workspace, model: ModelReference) -> tuple[str, ...]:
    record = read_model_record(model.folder) if model.kind == "base" else None
    family = family_of_reference(workspace, model)
    if record is None or not family.variants:
        return ()
    return catalog.variant(family, record.variant).codes


def damaged(workspace: Workspace, kind: Literal["model", "tokenizer", "extension", "export"]) -> dict[str, str]:
    """The items of a kind that cannot be used as they are, with the reason."""
    folder = workspace.path / KINDS[kind]

    def read(name: str) -> None:
        match kind:
            case "model":
                settings = folder / name / SETTINGS_FILE
                if settings.exists():
                    _check_object(settings)
                catalog.find_entry(catalog.family_of(workspace, name))
            case "tokenizer":
                for file in (SETTINGS_FILE, "report.json"):
                    _check_object(folder / name / file)
            case "extension":
                records.read_record(folder / name / records.EXTENSION, ExtensionRecord)
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
