"""What `export.json` says of an export, and whether its files are those. Never loads torch."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from config.errors import UserError
from core.library.model_record import check_name
from core.library.records import Origin, hash_file

RECORD, SUMS, CERTIFICATE = "export.json", "SHA256SUMS.json", "certificate.json"
TRAINING = "training.yaml"  # the options of the run
AGAIN = "Copy the export again from where it was made, or make it again: python -m scripts.export."


@dataclass(frozen=True)
class ExportRecord:
    """What `export.json` says of an export."""

    name: str
    run: str
    step: int
    scope: str
    dataset: str
    languages: tuple[str, ...]  # that the base model does not have
    origin: Origin
    longest_texts: dict[str, int]  # text ids of the longest sentence trained or measured on, by language
    recogniser_errors: dict[str, float]  # the recogniser's own error on original recordings, by language
    weights_hash: str = ""  # of the base's tensors as they are here, where the training changed some
    recogniser: str = ""  # name of the chosen recogniser that scored the run, or of its folder; no copy
    recogniser_language: str = ""  # what it calls the language, where that was said


def write_record(folder: Path, record: ExportRecord) -> None:
    """Write `export.json`."""
    text = json.dumps(dataclasses.asdict(record), ensure_ascii=False, indent=1) + "\n"
    (folder / RECORD).write_text(text, encoding="utf-8")


def write_training(folder: Path, config: Path) -> None:
    """Write `training.yaml`: the options of the run in `config`, files and folders of this machine by their names."""
    values = yaml.safe_load(config.read_text(encoding="utf-8"))
    values["options"] = {name: name_alone(value) if isinstance(value, str) else value
                         for name, value in values["options"].items()}
    (folder / TRAINING).write_text(yaml.safe_dump(values), encoding="utf-8")


def name_alone(value: str) -> str:
    """`value`, of a path on this machine its last part: an export goes to others."""
    return Path(value).name if Path(value).is_absolute() else value


def read_record(folder: Path) -> ExportRecord:
    """What `folder` holds; `UserError` when it is no export or damaged."""
    path = folder / RECORD
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["origin"] = Origin(**values["origin"])
        values["languages"] = tuple(values["languages"])
        return ExportRecord(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} could not be read: {error}.", AGAIN) from error


def read_sums(folder: Path) -> dict[str, str]:
    """SHA-256 by name of every file that was exported."""
    try:
        sums = {str(name): str(digest) for name, digest in
                json.loads((folder / SUMS).read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / SUMS} could not be read: {error}.", AGAIN) from error
    for name in sums:
        check_name(name, folder / SUMS)
    return sums


def check(folder: Path) -> None:
    """Raise `UserError` naming the first file that is missing or not what was exported."""
    for name, wanted in read_sums(folder).items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing.", AGAIN)
        if hash_file(path) != wanted:
            size = path.stat().st_size
            raise UserError(f"{path} is damaged: its {size} bytes are not those that were exported.", AGAIN)
