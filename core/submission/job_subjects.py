"""What a job is about, in some words: the language, and the names of what it reads and makes. Never loads torch."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from config import foreign
from config.errors import UserError
from config.languages import language_name
from core.jobs.state import JobState
from core.sources.downloader import public_name
from core.workspace import resolve_inside

_GENERATED = re.compile(r"\b[a-z_]+-\d{8}-\d{6}-([0-9a-f]{4})\b")
_SHOWN = 60  # letters of a text or a source
_REMEMBERED_S = 5.0  # how long the language of a dataset is not read again


def subject(state: JobState) -> str:
    """Such as "Swahili, tiny-sw on my-voice"; a name that a person gave the job comes first."""
    # Only the last four digits of a generated id are shown.
    names = _GENERATED.sub(r"\1", _names(state.verb, state.job.settings))
    detail = ", ".join(part for part in (_language(state), names) if part)
    return f"{state.title}: {detail}" if state.title and detail else state.title or detail


def _language(state: JobState) -> str:
    """The name of the language that the options give, else that of the dataset; empty where neither says it."""
    code = state.job.settings.get("language")
    dataset = state.job.settings.get("dataset")
    if not code and dataset:
        with suppress(UserError):  # a job of others may name anything
            folder = resolve_inside(state.job.workspace.datasets, str(dataset))
            code = _language_of(folder, int(time.monotonic() / _REMEMBERED_S))
    return language_name(str(code)) if code and state.verb != "doctor" else ""


@lru_cache(maxsize=1000)
def _language_of(dataset: Path, _now: int) -> str:
    with suppress(OSError, ValueError, AttributeError):
        return str(foreign.read_yaml(dataset / "dataset.yaml").get("language", ""))
    return ""


def _names(verb: str, options: Mapping[str, object]) -> str:
    def given(name: str) -> str:
        return _short(public_name(str(options.get(name) or "")))

    match verb:
        case "download":
            return given("save_as") or " ".join(filter(None, (given("model"), given("variant"))))
        case "segment" | "transcribe" | "align":
            return given("segments")
        case "prepare":
            return f"{given('dataset')} from {given('source').rpartition('/')[2] or given('source')}"
        case "resynthesize":
            source = given("source").rpartition("/")[2] or given("source")
            return f"{given('dataset') or source} through {given('model')}"
        case "revise":
            return f"{given('dataset')} as {given('save_as')}"
        case "tokenizer":
            return given("tokenizer")
        case "extend":
            return given("extension")
        case "train" | "preflight" | "sweep":
            return f"{given('extension')} on {given('dataset')}"
        case "compare":
            return f"{given('base')} and {given('finetuned')}"
        case "synthesize":
            return f"{given('voice_model')}: {given('text') or _file(options.get('file'))}"
        case "book":
            return f"{_file(options.get('book'))} by {given('voice_model')}"
        case "piper_dataset":
            return given("voice_model")
        case "evaluate":
            models = options.get("models")
            return ", ".join(_short(str(model)) for model in models) if isinstance(models, list | tuple) else ""
        case "listening_test":
            return f"{given('kind')} of {given('evaluation')}"
        case "certify":
            return given("run")
        case "export":
            return f"{given('run')} as {given('export')}"
        case "push":
            return f"{given('export')} to {given('repository')}"
        case "doctor" | "import_model":
            return _file(options.get("checkpoint"))
        case "pack":
            return given("item")
        case "unpack":
            return _file(options.get("archive"))
    return given("dataset")


def _file(path: object) -> str:
    return str(path or "").rpartition("/")[2]


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN].rstrip() + "..."
