"""The record of a recogniser that was trained on a dataset and is stored in its folder. Never loads torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config import loading
from config.errors import UserError
from config.languages import language_name
from config.schema import DATASET_RECOGNISER
from core.workspace import Workspace
from data import manifest
from data.durable_files import ExpectedFile, find_faults

FOLDER, RECORD = "recogniser", "recogniser.json"
WEIGHTS, TEXTS = "head.safetensors", "texts.txt"
CLIPS = "clips.jsonl"  # the edits of each clip that was read, and whether the head was trained on it
# The CER of held-out recordings above which speech is not measured.
MAX_CER = 0.5
# The length of a dataset whose preparation trains a recogniser.
MIN_MINUTES = 10.0


@dataclass(frozen=True)
class HeldOutCER:
    """Character error rate on held-out recordings of a language, with its 95% interval (bootstrap over clips)."""

    clips: int
    letters: int
    edits: int
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.edits / max(1, self.letters)


@dataclass(frozen=True)
class DatasetRecogniserRecord:
    """What a recogniser was trained on, and how well it reads recordings that it was not trained on."""

    dataset: str
    fingerprint: str  # fingerprint of the dataset
    encoder: str  # SHA-256 of the encoder's files
    files: dict[str, str]  # SHA-256 of head and texts
    letters: tuple[str, ...]
    train_clips: int
    train_minutes: float
    left_out: int  # training clips that were not used: see `core.recogniser`
    epochs: float
    cpu_seconds: float
    # Error rates by language; a language without held-out clips is missing.
    held_out: dict[str, HeldOutCER]

    def measures(self, language: str) -> bool:
        """Whether its own error on held-out recordings is known and low enough to measure speech."""
        return language in self.held_out and self.held_out[language].error <= MAX_CER

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that it can measure."""
        return tuple(language for language in self.held_out if self.measures(language))


def folder_of(workspace: Workspace, dataset: str) -> Path:
    """Where the recogniser of a dataset is, whether it exists or not."""
    return workspace.datasets / dataset / FOLDER


def read(folder: Path) -> DatasetRecogniserRecord | None:
    """The record of the recogniser in `folder`; None if there is none; `UserError` if it is damaged."""
    if not (folder / RECORD).is_file():
        return None
    hint = f"Delete {folder} and train the recogniser again."
    record = loading.read_record(folder / RECORD, DatasetRecogniserRecord, hint)
    for _, fault in find_faults(folder, {name: ExpectedFile(sha256=digest) for name, digest in record.files.items()}):
        raise UserError(fault, hint)
    return record


def dataset_of(recogniser: str) -> str:
    """The dataset whose recogniser is named `dataset:NAME`; empty for any other recogniser."""
    return recogniser.removeprefix(DATASET_RECOGNISER) if recogniser.startswith(DATASET_RECOGNISER) else ""


def find(workspace: Workspace, dataset: str) -> DatasetRecogniserRecord | None:
    """The record of the recogniser of a dataset; None if it has none, or the clips have changed since."""
    if dataset not in workspace.list_datasets():
        return None
    record = read(folder_of(workspace, dataset))
    if record is None or record.fingerprint != manifest.load_card(workspace.dataset(dataset)).fingerprint:
        return None
    return record


def default_name(workspace: Workspace, dataset: str) -> str:
    """`dataset:NAME` if the dataset has a recogniser that can measure a language; else empty."""
    record = find(workspace, dataset)
    return f"{DATASET_RECOGNISER}{dataset}" if record is not None and record.languages else ""


def describe(record: DatasetRecogniserRecord, language: str) -> str:
    """Who measured: "a recogniser trained on 54 minutes of this dataset (CER 11% on held-out recordings)"."""
    rate = record.held_out[language]
    return (f"a recogniser trained on {record.train_minutes:.0f} minutes of this dataset "
            f"(CER {rate.error:.0%} on held-out recordings)")


def unmeasured_reason(record: DatasetRecogniserRecord, language: str) -> str:
    """Why it does not measure `language`; empty if it does."""
    if record.measures(language):
        return ""
    if language not in record.held_out:
        return f"the dataset {record.dataset} holds out no clip of {language_name(language)} to test its recogniser on"
    return (f"the recogniser of the dataset {record.dataset} has a CER of {record.held_out[language].error:.0%} on "
            f"held-out recordings, above {MAX_CER:.0%}")
