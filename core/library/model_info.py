"""Facts about a model for the forms of the page: its family, languages, voices and options. Never loads torch.

They are read from files and the catalog alone. The page fills its forms from them, so that each value exists and suits
the model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml

from config import foreign
from config.errors import UserError
from config.loading import parse_options
from config.schema import Options, TrainOptions
from core.jobs.gpus import Gpu
from core.jobs.reporter import duration_text
from core.jobs.verbs import PRESET_ABOUT, read_preset
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

PRESETS = Path(__file__).resolve().parents[2] / "config" / "presets"
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "chatterbox": {"zh": "spacy_pkuseg", "ja": "pykakasi", "ru": "russian_text_stresser"},
    "indextts2": {"zh": "wetext", "en": "wetext", "ja": "fugashi"},
}
"""The package that a family's own text of a language needs."""

_SOUNDS = (".ogg", ".wav", ".flac")
_FILE_OF = {"dataset": "dataset.yaml", "tokenizer": SETTINGS_FILE, "extension": records.EXTENSION,
            "segments": "segments.yaml"}
OptionsT = TypeVar("OptionsT", bound=Options)


@cache
def preset(family: str, verb: str, kind: type[OptionsT]) -> OptionsT:
    """The options of one verb that suit a family."""
    return parse_options(kind, read_preset(PRESETS / f"{catalog.find_entry(family).preset}.yaml", verb))


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


def speech_amount_of(workspace: Workspace, dataset: str) -> SpeechAmount:
    """How much speech a prepared dataset has; unknown for one that is missing or damaged."""
    try:
        about = foreign.read_yaml(workspace.dataset(dataset) / "dataset.yaml")
        return SpeechAmount(int(about["clips"]), float(about["duration_s"]))
    except (UserError, OSError, ValueError, KeyError, TypeError, ArithmeticError):
        return SpeechAmount()


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


Name = Literal["demo", "small-data", "standard", "large"]
Memory = Literal["auto", "16", "24", "80"]
NAMES: tuple[str, ...] = get_args(Name)
MEMORY_CLASSES_GB = (16, 24, 80)
TITLES: Mapping[str, str] = {"demo": "Demo (up to 1 h)", "small-data": "Small data (1 to 5 h)",
                             "standard": "Standard (5 to 50 h)", "large": "Large (50 h and more)"}
NOT_MEASURED = "Not yet measured: its values are a first guess from known practice, with the sources in its file."
# With 11 minutes the built-in model learns, with 16% CER; with 43, with 6%.
MIN_TRAIN_SPEECH_S = 600.0
FEW_HELD_OUT = 3  # clips; fewer choose the best checkpoint by next to nothing
LETTERS_PER_SECOND = 15  # about; text ids beside the codes
# The length of a clip if no dataset says how long its clips are.
_CLIP_S = 6.0
_SHARE = 0.88  # a card of "16 GB" reports 15.0 GiB, one of "24 GB" 22.5
_NOT_IN_PRESETS = ("extension", "dataset", "device", "seed")
_MAX_CLIPS = 512  # clips in one batch, by the schema


@dataclass(frozen=True)
class SpeechAmount:
    """Clips and seconds of a dataset; None where not known."""

    clips: int | None = None
    seconds: float | None = None

    @property
    def clip_s(self) -> float:
        return self.seconds / self.clips if self.clips and self.seconds else _CLIP_S


@dataclass(frozen=True)
class FittedPreset:
    """A preset fitted to a family, a dataset and a memory class, with the reasons for the choice."""

    name: str
    title: str
    about: str
    measured: bool
    values: Mapping[str, str | int | float | bool | None]  # options of a training that it sets
    reasons: tuple[str, ...]  # reasons for the preset and the memory class

    @property
    def options(self) -> TrainOptions:
        return parse_options(TrainOptions, self.values)

    @property
    def words(self) -> str:
        """Its purpose, and whether it was measured."""
        return self.about if self.measured else f"{self.about} {NOT_MEASURED}"


def preset_for_speech(speech: SpeechAmount) -> tuple[str, str]:
    """The preset for an amount of speech, and the reason."""
    if speech.seconds is None:
        return "demo", "No dataset says how much speech there is, so it is the smallest preset."
    hours = speech.seconds / 3600
    name = next(name for name in NAMES if hours < _about(name, _ANY)["hours"][1])
    return name, f"Chosen by the dataset's {duration_text(speech.seconds)} of speech."


def memory_class_for(gpus: Sequence[Gpu], *, on_cpu: bool = False) -> tuple[int | None, str]:
    """The memory class of the smallest GPU, None without GPUs or `on_cpu`; and the reason."""
    if on_cpu or not gpus:
        subject = "Device is cpu" if on_cpu else "No GPU was found on this machine"
        return None, (f"{subject}: batches are those for 16 GB, and a CPU takes far "
                      "longer for each step.")
    # All processes take batches of one size, so the smallest GPU decides.
    smallest = min(gpus, key=lambda gpu: gpu.total_mib)
    seen = f"{len(gpus)} times " if len(gpus) > 1 else ""
    seen += f"{smallest.name} with {smallest.total_gib:.0f} GiB"
    fitting = [size for size in MEMORY_CLASSES_GB if smallest.total_gib >= _SHARE * size]
    if not fitting:
        return MEMORY_CLASSES_GB[0], (f"Found: {seen}. That is less than the smallest class, 16 GB: check first "
                                      "whether it fits.")
    return fitting[-1], f"Found: {seen}, so it is the class of {fitting[-1]} GB."


def fit_preset(family: str, speech: SpeechAmount, gpus: Sequence[Gpu], name: str = "auto",
               memory: str = "auto", *, on_cpu: bool = False) -> FittedPreset:
    """The preset `name` for a memory class in GB; `auto` chooses by the speech there is and the GPUs found.

    `on_cpu`: the training uses none of the `gpus`.
    """
    gpus = () if on_cpu else gpus

    reasons = []
    if name in ("", "auto"):
        name, reason = preset_for_speech(speech)
        reasons.append(reason)
    elif name not in NAMES:
        raise UserError(f"There is no preset named {name!r}.", f"There are auto, {', '.join(NAMES)}.")

    size, reason = memory_class_for(gpus, on_cpu=on_cpu)
    if memory not in ("", "auto"):
        if memory not in get_args(Memory):
            raise UserError(f"There is no memory class {memory!r}.", "There are auto, 16, 24 and 80 (GB).")
        size, reason = int(memory), _chosen_memory(int(memory), size, gpus, on_cpu=on_cpu)
    reasons.append(reason)

    about = _about(name, family)
    processes = max(1, len(gpus)) if about.get("every_gpu") else 1
    if about.get("every_gpu") and processes == 1:
        reasons.append("It is made for several GPUs; here it is one process, with batches added up to the same step.")
    batch_values = {**dict(about["memory"][size or MEMORY_CLASSES_GB[0]]), **about.get("families", {}).get(family, {})}
    if size is None:
        # A CPU's memory is measured before the start instead.
        batch_values.pop("activation_checkpointing", None)
    clip_tokens = speech.clip_s * tokens_per_second(family)
    values = {**_training(_file(name, family)), **_batches(batch_values, about, clip_tokens, processes)}
    preset_values = {field: value for field, value in values.items() if field not in _NOT_IN_PRESETS}
    return FittedPreset(name, TITLES[name], about["about"], bool(about.get("measured")), preset_values, tuple(reasons))


def preset_fields() -> tuple[str, ...]:
    """Training options that some preset sets, in the schema's order."""
    names: set[str] = {"processes"}
    for family in catalog.CATALOG:
        for name in NAMES:
            names |= set(fit_preset(family.name, SpeechAmount(), (), name, "16").values)
    return tuple(name for name in TrainOptions.model_fields if name in names)


def tokens_per_second(family: str) -> float:
    """Codes and text ids of a second of speech, about."""
    return catalog.find_entry(family).codes_per_second + LETTERS_PER_SECOND


def _batches(batch_values: dict[str, Any], about: Mapping[str, Any], clip_tokens: float,
             processes: int) -> dict[str, Any]:
    """Clips in a batch, batches in a step, and processes, for the tokens that they should hold."""
    tokens = batch_values.pop("batch_tokens", None)
    if tokens is None:
        return batch_values
    clip = max(1.0, clip_tokens)
    # The product of a rounded quotient could exceed the tokens.
    batch = min(_MAX_CLIPS, max(1, int(tokens // clip)))
    clips_per_step = max(1, round(about["step_tokens"] / clip))  # clips in a step
    batch = min(batch, max(1, math.ceil(clips_per_step / processes)))
    accumulation = min(256, max(1, round(clips_per_step / (batch * processes))))
    return {**batch_values, "batch_size": batch, "gradient_accumulation": accumulation, "processes": processes}


def _chosen_memory(chosen_gb: int, found_gb: int | None, gpus: Sequence[Gpu], *, on_cpu: bool) -> str:
    """The reason for a memory class that the user chose."""
    if found_gb is None:
        reason = "the device is cpu" if on_cpu else "no GPU was found on this machine"
        return f"For {chosen_gb} GB, as requested; {reason}."
    least = min(gpu.total_gib for gpu in gpus)
    short = " It has less than that." if chosen_gb > found_gb else ""
    return f"For {chosen_gb} GB, as requested; the GPU of this machine has {least:.0f} GiB.{short}"


_ANY = "tiny"  # bounds of hours are the same for all families


def _file(name: str, family: str) -> Path:
    return PRESETS / f"{catalog.find_entry(family).preset if name == 'demo' else name}.yaml"


def _about(name: str, family: str) -> Mapping[str, Any]:
    return _section(_file(name, family))


@cache
def _section(path: Path) -> Mapping[str, Any]:
    values: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))[PRESET_ABOUT]
    return values


@cache
def _training(path: Path) -> Mapping[str, object]:
    return read_preset(path, "train")


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
