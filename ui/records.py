"""What finished work left in the workspace, read for the page: datasets, tokenizers, certificates.

Files of another version are shown as far as they can be read; a missing value is missing, never made up.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from core.jobs.state import JobState
from core.library.certificate import CERTIFICATE
from core.workspace import Workspace

_RECORDINGS_CER = re.compile("error_(.+)_recordings")


@dataclass(frozen=True)
class DatasetSummary:
    """A prepared dataset."""

    name: str
    language: str
    clips: int | None
    held_out_clips: int | None = None
    duration_s: float | None = None
    licence: str = ""


@dataclass(frozen=True)
class DatasetFinding:
    """One thing that a dataset's check found; `level` is "error" or "warning"."""

    level: str
    where: str
    message: str


@dataclass(frozen=True)
class ProofRow:
    """One sentence of a base language through the base tokenizer and the merged one, as counts of ids."""

    language: str
    text: str
    before: int | None
    after: int | None
    same: bool


@dataclass(frozen=True)
class DatasetReport:
    """What the check of a dataset counted and found."""

    found: int | None
    kept: int | None
    duration_s: float | None
    characters: int | None
    dropped: str  # punctuation that the normaliser leaves out, with counts
    findings: tuple[DatasetFinding, ...]
    notes: tuple[str, ...] = ()  # what the source was recognised as, and why


def read_json(path: Path) -> dict[str, object]:
    """The object in `path`; empty when there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_yaml(path: Path) -> dict[str, object]:
    """The mapping in `path`; empty when there is none that can be read."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}


def datasets(workspace: Workspace) -> list[DatasetSummary]:
    """All prepared datasets, by name."""
    return [dataset(workspace, name) for name in workspace.list_datasets()]


def dataset(workspace: Workspace, name: str) -> DatasetSummary:
    """What is known of one prepared dataset."""
    about = read_yaml(workspace.datasets / name / "dataset.yaml")
    return DatasetSummary(name, str(about.get("language", "")), _count(about.get("clips")),
                          _count(about.get("held_out_clips")), _measure(about.get("duration_s")),
                          str(about.get("licence") or ""))


def dataset_report(folder: Path) -> DatasetReport | None:
    """The report of a dataset's check; None when there is none."""
    values = read_json(folder / "report.json")
    if not values:
        return None
    characters, dropped = _mapping(values.get("characters")), _mapping(values.get("dropped"))
    return DatasetReport(
        _count(values.get("found")), _count(values.get("kept")), _measure(values.get("duration_s")), len(characters),
        ", ".join(f"{character} {count} times" for character, count in dropped.items()),
        tuple(_finding("error", item) for item in _items(values.get("errors")))
        + tuple(_finding("warning", item) for item in _items(values.get("warnings"))),
        _lines(values.get("notes")),
    )


def held_out_texts(workspace: Workspace, name: str, most: int = 6) -> list[str]:
    """Sentences that a dataset keeps from training, the shorter first."""
    try:
        with open(workspace.datasets / name / "manifest.jsonl", encoding="utf-8-sig") as file:
            clips = (json.loads(line) for line in file if line.strip())
            texts = (str(clip.get("text", "")) for clip in clips if clip.get("split") == "held_out")
            return heapq.nsmallest(most, filter(None, texts), key=len)
    except (OSError, ValueError):
        return []


def _lines(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def _finding(level: str, item: Mapping[str, object]) -> DatasetFinding:
    return DatasetFinding(level, str(item.get("where", "")), str(item.get("message", "")))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _measure(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def certificate_path(workspace: Workspace, reference: str) -> Path:
    """Where the certificate of `run:ID` or `export:NAME` lies, or would lie."""
    kind, _, name = reference.partition(":")
    return (workspace.runs if kind == "run" else workspace.exports) / name / CERTIFICATE


def originals(state: JobState) -> dict[str, float]:
    """The judge's error on original recordings by language, as the job that spoke measured it."""
    one = _measure((state.result or {}).get("recordings_cer"))
    found = {} if one is None else {str(state.job.settings.get("language", "")): one}
    for name, value in (state.result or {}).items():
        error = _measure(value)
        if (match := _RECORDINGS_CER.fullmatch(name)) and error is not None:
            found[match[1]] = error
    return found


def proof_rows(folder: Path) -> list[ProofRow]:
    """The sample sentences of base languages in a tokenizer's report."""
    return [
        ProofRow(str(entry.get("language", "")), str(line.get("text", "")), _count(line.get("tokens_before")),
                 _count(line.get("tokens_after")), line.get("same") is True)
        for entry in _items(read_json(folder / "report.json").get("proofs"))
        for line in _items(entry.get("sentences"))
    ]


def tokenizer_numbers(folder: Path) -> dict[str, float]:
    """The numbers of a tokenizer's report, by name."""
    values = read_json(folder / "report.json")
    return {name: number for name, value in values.items() if (number := _measure(value)) is not None}
