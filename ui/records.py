"""What finished work left in the workspace, read for the page: datasets, tokenizers, certificates.

Files of another version are shown as far as they can be read; a missing value is missing, never made up.
"""

from __future__ import annotations

import heapq
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import foreign
from config.errors import UserError
from core.jobs.state import JobState
from core.library import verification
from core.library.certificate import CERTIFICATE, NOT_PROVEN_YET
from core.library.learning import LearningReport, read_report
from core.library.lineage import run_model
from core.library.verification import HashFile, NotHashed, Verification, hash_cache
from core.workspace import Workspace, resolve_inside

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
    damage: str = ""  # why its card cannot be read

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of its languages."""
        return tuple(self.language.split(","))


@dataclass(frozen=True)
class ProofRow:
    """One sentence of a base language through the base tokenizer and the merged one, as counts of ids."""

    language: str
    text: str
    before: int
    after: int
    same: bool


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when there is none that can be read."""
    try:
        value = foreign.read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_yaml(path: Path) -> dict[str, object]:
    """The mapping in `path`; empty when there is none that can be read."""
    try:
        value = foreign.read_yaml(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def datasets(workspace: Workspace) -> list[DatasetSummary]:
    """All prepared datasets, by name."""
    return [dataset(workspace, name) for name in workspace.list_datasets()]


def dataset(workspace: Workspace, name: str) -> DatasetSummary:
    """What is known of one prepared dataset."""
    path, damage = workspace.datasets / name / "dataset.yaml", ""
    try:
        resolve_inside(workspace.datasets, name)  # the page or a job of others may name anything
        about = foreign.read_yaml(path)
        if not isinstance(about, dict):
            raise foreign.DamagedFile(f"{path} is damaged: it holds no names with values.", "Prepare it again.")
    except OSError as error:
        about, damage = {}, f"{path} is damaged: {foreign.reason_of(error)}."
    except (UserError, ValueError) as error:
        about, damage = {}, str(error)
    return DatasetSummary(name, str(about.get("language", "")), _count(about.get("clips")),
                          _count(about.get("held_out_clips")), _measure(about.get("duration_s")),
                          str(about.get("licence") or ""), damage)


def held_out_texts(workspace: Workspace, name: str, limit: int = 6, language: str = "") -> list[str]:
    """Sentences that a dataset keeps from training, the shorter first; of one `language`, where it has several."""
    try:
        with foreign.open_plain(resolve_inside(workspace.datasets, name) / "manifest.jsonl") as file:
            clips = (foreign.loads(line) for line in file if line.strip())
            texts = (str(clip.get("text", "")) for clip in clips
                     if isinstance(clip, dict) and clip.get("split") == "held_out"
                     and language in ("", clip.get("language")))
            return heapq.nsmallest(limit, filter(None, texts), key=len)
    except (OSError, ValueError, UserError):
        return []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _measure(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None  # type: ignore[arg-type]


def certificate_path(workspace: Workspace, reference: str) -> Path:
    """Where the certificate of `run:ID` or `export:NAME` lies, or would lie."""
    kind, _, name = reference.partition(":")
    return (workspace.runs if kind == "run" else workspace.exports) / name / CERTIFICATE


_INLINE_BYTES = 64 << 20  # read at once by the page; more is read beside it
_HASHING = ThreadPoolExecutor(1, "hash")
_WAITING: set[tuple[Path, str]] = set()


def verify(workspace: Workspace, reference: str) -> Verification | None:
    """The certificate of `run:ID` or `export:NAME` beside its files; None while large ones are read for the first time.

    `UserError` if there is none, or it is damaged. A run's certificate is verified with the checkpoint that it names.
    """
    cache = hash_cache(workspace)
    try:
        return _verify(workspace, reference, cache.at_most(_INLINE_BYTES))
    except NotHashed:
        key = workspace.path, reference
        if key not in _WAITING:
            _WAITING.add(key)
            _HASHING.submit(_hash_files, key, workspace, reference)
        return None


def _verify(workspace: Workspace, reference: str, hash_one: HashFile) -> Verification:
    path = certificate_path(workspace, reference)
    verify_folder = verification.verify_run if reference.startswith("run:") else verification.verify_export
    return verify_folder(workspace, path.parent, hash_one)


def _hash_files(key: tuple[Path, str], workspace: Workspace, reference: str) -> None:
    try:
        with suppress(UserError, OSError):  # the page says what is wrong when it asks again
            _verify(workspace, reference, hash_cache(workspace))
    finally:
        _WAITING.discard(key)


@foreign.cached_by_file(4096)
def proven_step(certificate: Path) -> int | None:
    """The step that the certificate of a run is of; None where there is none that can be read."""
    return _count(read_json(certificate).get("step"))


def is_unproven(state: JobState) -> bool:
    """Whether the run refers to a checkpoint that has no certificate."""
    selected = run_model(state)
    return selected is not None and proven_step(state.job.directory / CERTIFICATE) != selected.step


def unproven_note(state: JobState) -> str:
    """A note to append to a run's name while the checkpoint that it refers to has no certificate; else empty."""
    return f", {NOT_PROVEN_YET}" if is_unproven(state) else ""


def is_imported(state: JobState) -> bool:
    """Whether what the trainer of a run reported is the word of others, so that it is not shown in green."""
    return verification.is_trained_elsewhere(state.job.directory)


def learning_report(state: JobState, step: int | None = None) -> LearningReport:
    """What the training taught up to a step; None is the checkpoint that the run refers to."""
    if step is None:
        # Step 0 stands for a run without a checkpoint.
        checkpoint = run_model(state)
        step = checkpoint.step if checkpoint else None
    return read_report(state.job.directory, step or 0)


def learning_note(state: JobState, step: int | None = None) -> str:
    """A note to append to a run's name if its training taught nothing up to `step`; else empty."""
    learning = learning_report(state, step).learning
    return f", {learning.label}" if learning.bad else ""


def originals(state: JobState) -> dict[str, float]:
    """The judge's error on original recordings by language, as the job that spoke measured it."""
    cer = _measure((state.result or {}).get("recordings_cer"))
    errors = {} if cer is None else {str(state.job.settings.get("language", "")): cer}
    for name, value in (state.result or {}).items():
        error = _measure(value)
        match = _RECORDINGS_CER.fullmatch(name)
        if match and error is not None:
            errors[match[1]] = error
    return errors


def proof_rows(folder: Path) -> list[ProofRow]:
    """The sample sentences of base languages in a tokenizer's report."""
    path = folder / "report.json"
    with foreign.reading(path, "Build the tokenizer again."):
        rows = []
        for entry in read_json(path).get("proofs", ()):
            for line in entry["sentences"]:
                rows.append(ProofRow(entry["language"], line["text"], int(line["tokens_before"]),
                                     int(line["tokens_after"]), bool(line["same"])))
        return rows


def tokenizer_numbers(folder: Path) -> dict[str, float]:
    """The numbers of a tokenizer's report, by name."""
    values = read_json(folder / "report.json")
    numbers = {name: _measure(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if number is not None}
