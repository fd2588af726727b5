"""The records beside models: `model.json`, `extension.json`, `checkpoint.json` and `export.json`. Never loads torch.

Each says where files come from, and with which hashes whether they are still those.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

import yaml

from config import foreign, loading
from config.errors import UserError
from data.durable_files import ExpectedFile, check_relative_path, find_faults, read_sums, write_json, write_text

MODEL_RECORD, EXTENSION, CHECKPOINT, EXPORT_RECORD = "model.json", "extension.json", "checkpoint.json", "export.json"
ROWS, FRONT_END, ADAPTER, CONFIG = "rows.safetensors", "front_end", "adapter", "config.yaml"
DECODER = "decoder.safetensors"  # trained on the dataset's recordings, where the run did that
EARLIER_TRAININGS = "earlier_trainings"  # a folder for the rows and adapters of each training before the last extension
CHANGED = "changed.safetensors"  # tensors of the base that were trained, in `full`
EXPORT_SUMS, EXPORT_CARD = "SHA256SUMS.json", "README.md"
TRAINING_OPTIONS = "training.yaml"  # the options of the run that was exported
Record = TypeVar("Record")
EXPORT_AGAIN_HINT = "Copy the export again from where it was made, or make it again: python -m scripts export."


ProbeOutcome = Literal["speaks", "broken", "not probed"]


@dataclass(frozen=True)
class BaseProbe:
    """What was measured of a new base model; losses, chance and entropy in nats a code, chance of equal probabilities.

    None: not measured. Of the synthesized sentences the numbers of those that ended with a stop token, and that have a
    duration and a level that speech can have.
    """

    outcome: ProbeOutcome
    words: str  # the outcome, with what was measured
    languages: tuple[str, ...] = ()
    seconds: float = 0.0  # time that the probe took
    device: str = ""
    # The loss of recordings with their own texts.
    speech_loss: float | None = None
    speech_chance: float | None = None
    text_loss: float | None = None
    text_chance: float | None = None
    text_contrast: float | None = None  # speech loss with another text less that with the own one
    entropy: float | None = None  # entropy of the predictions at the generated codes
    sentences: int = 0
    stops: int = 0
    durations: int = 0
    decoded: int = 0  # sentences whose sound was made
    levels: int = 0


@dataclass(frozen=True)
class ModelRecord:
    """A base model that came from the hub or from a folder.

    `revision` is the commit, empty where a folder does not say it; `requested_revision` may be a branch.
    """

    family: str
    variant: str
    repository: str
    revision: str
    requested_revision: str
    files: dict[str, ExpectedFile]
    companions: dict[str, str] = field(default_factory=dict)  # commit by repository, where files came from others too
    # The published hashes of files that were stripped.
    originals: dict[str, ExpectedFile] = field(default_factory=dict)
    licences: tuple[str, ...] = ()  # names of the accepted licences
    accepted_unknown: tuple[str, ...] = ()  # files that differ from the published ones, and were accepted by name
    probe: BaseProbe | None = None  # None: the model was not probed


@dataclass(frozen=True)
class EarlierTrainingRecord:
    """A training of a model before it was extended again; its rows and adapters are frozen."""

    # The language that it added; several codes are separated by commas.
    language: str
    source: str  # `run:ID@STEP` or `export:NAME` that it was taken from
    scope: str  # scope of its training
    dataset: str  # dataset of its training
    size: int  # text rows up to and with its own
    fingerprint: str  # fingerprint of the front-end that ends with it
    # The hash of every tensor up to and with its own, see `core.model.prefix.base_tensors`.
    frozen_hash: str

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of its languages."""
        return tuple(self.language.split(","))

    @property
    def folder(self) -> str:
        """The name of its folder in `EARLIER_TRAININGS`, and of its adapters."""
        return self.language.replace(",", "_")


@dataclass(frozen=True)
class Origin:
    """The base that rows and adapters belong to, and the front-end that makes their ids."""

    family: str
    model: str  # name in the workspace's `models`
    # The hash of every tensor of the base language model, see `core.model.prefix.hash_tensors`.
    base_hash: str
    prefix_size: int  # text rows of the base
    size: int  # text rows with the new ones
    fingerprint: str  # fingerprint of the extended front-end
    earlier_trainings: tuple[EarlierTrainingRecord, ...] = ()  # since the base, before the last extension

    @property
    def earlier_languages(self) -> tuple[str, ...]:
        """The codes of the languages between the base and the new ones."""
        return tuple(chain.from_iterable(training.languages for training in self.earlier_trainings))

    @property
    def first_new_row(self) -> int:
        """The id of the first new row, behind those of the base and of the earlier trainings."""
        return self.earlier_trainings[-1].size if self.earlier_trainings else self.prefix_size


@dataclass(frozen=True)
class ExtensionRecord:
    """An extended, untrained model."""

    name: str
    tokenizer: str
    languages: tuple[str, ...]  # languages that the extension brings
    initialisation: str
    seed: int
    rows_hash: str
    origin: Origin
    from_spelling: int | None = None  # new rows that start from base tokens that spell them; None: not counted


@dataclass(frozen=True)
class CheckpointRecord:
    """A model in training. `frozen_hash` is that of the base while its tensors in the trainer's memory have not moved.

    The trainer may hold them in half precision; they are then compared with what they were after the cast.
    """

    run: str
    step: int
    scope: str
    extension: str
    dataset: str
    rows_hash: str  # hash of the untrained rows the run started with
    frozen_hash: str
    origin: Origin
    adapter_rank: int | None = None
    recogniser: str = ""  # the chosen recogniser that scored the new language
    # The recogniser's name of the language, if one was given.
    recogniser_language: str = ""
    text_library: str = ""  # package and version that wrote out numbers of base languages; empty: none, or not stored
    scored: tuple[str, ...] = ()  # texts whose scores selected the best checkpoint; no final score counts them
    imported: str = ""  # the file of a finetune that was trained elsewhere; empty: trained here
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 by path in the folder


@dataclass(frozen=True)
class ExportRecord:
    """What `export.json` says of an export."""

    name: str
    run: str
    step: int
    scope: str
    dataset: str
    languages: tuple[str, ...]  # languages that the base model does not have
    origin: Origin
    longest_texts: dict[str, int]  # text ids of the longest sentence trained or measured on, by language
    recordings_cer: dict[str, float]  # the recogniser's own error on original recordings, by language
    # The hash of the base's tensors in this export, if the training changed some.
    weights_hash: str = ""
    recogniser: str = ""  # recogniser of one's choice that judged the run, no copy: its name, or that of its folder
    recogniser_language: str = ""  # its own name of the language, where one was given
    text_library: str = ""  # see `CheckpointRecord`
    imported: str = ""  # see `CheckpointRecord`


def write_record(path: Path, record: ModelRecord | ExtensionRecord | CheckpointRecord | ExportRecord) -> None:
    """Write `record` as JSON."""
    write_json(path, dataclasses.asdict(record))


def read_record(path: Path, kind: type[Record]) -> Record:
    """The record in `path`; `UserError` when it is missing or damaged."""
    hint = "The folder was probably cut off or edited; delete it and take another, or make it again."
    return loading.read_record(path, kind, EXPORT_AGAIN_HINT if kind is ExportRecord else hint)


def read_extension(folder: Path) -> ExtensionRecord:
    """What `folder` holds; `UserError` when it is no extension or damaged."""
    return read_record(folder / EXTENSION, ExtensionRecord)


def read_checkpoint(folder: Path) -> CheckpointRecord:
    """What `folder` holds; `UserError` when it is no checkpoint or damaged."""
    return read_record(folder / CHECKPOINT, CheckpointRecord)


def read_export_record(folder: Path) -> ExportRecord:
    """What `folder` holds; `UserError` when it is no export or damaged."""
    return read_record(folder / EXPORT_RECORD, ExportRecord)


def read_model_record(folder: Path) -> ModelRecord | None:
    """What `folder` says of itself, None when it has no `model.json`; `UserError` when that is damaged."""
    path = folder / MODEL_RECORD
    if not path.exists():
        return None
    record = loading.read_record(path, ModelRecord, "Move the folder away, and get the model again.")
    for name in record.files:
        check_relative_path(name, path)
    return record


def write_training_options(folder: Path, config: Path) -> None:
    """Write `training.yaml`: the options of the run in `config`, files and folders of this machine by their names."""
    values = foreign.read_yaml(config)
    write_text(folder / TRAINING_OPTIONS, yaml.safe_dump({**values, "options": _strip_folders(values["options"])}))


def _strip_folders(value: object) -> object:
    """`value` with `strip_folder` for each text in it, those in sections among them."""
    if isinstance(value, dict):
        return {name: _strip_folders(inner) for name, inner in value.items()}
    return strip_folder(value) if isinstance(value, str) else value


def strip_folder(value: str) -> str:
    """`value`, of a path on this machine its last part: an export goes to others."""
    return Path(value).name if Path(value).is_absolute() else value


def find_damage(folder: Path) -> str | None:
    """The first fault of a checkpoint's files as a sentence, None when all are whole."""
    try:
        record = read_checkpoint(folder)
    except UserError as error:
        return error.message
    return _first_fault(folder, record.files)


def read_export_sums(folder: Path) -> dict[str, str]:
    """SHA-256 by name of every file that was exported."""
    return read_sums(folder / EXPORT_SUMS, EXPORT_AGAIN_HINT)


def check_export_files(folder: Path) -> None:
    """Raise `UserError` naming the first file that is missing or not what was exported."""
    fault = _first_fault(folder, read_export_sums(folder))
    if fault:
        raise UserError(fault, EXPORT_AGAIN_HINT)


def _first_fault(folder: Path, sums: dict[str, str]) -> str | None:
    files = {name: ExpectedFile(sha256=digest) for name, digest in sums.items()}
    return next((fault for _, fault in find_faults(folder, files)), None)
