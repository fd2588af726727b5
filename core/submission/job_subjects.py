"""What a job is about, in some words: the language, and the names of what it reads and makes.

Each verb says which names (`core.verbs`); here they are shortened and put together. Never loads torch.
"""

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
from core.jobs.verbs import verb_module
from core.sources.downloader import public_name
from core.workspace import resolve_inside

_GENERATED = re.compile(r"\b[a-z_]+-\d{8}-\d{6}-([0-9a-f]{4})\b")
_SHOWN = 60  # letters of a text or a source
_REMEMBERED_S = 5.0  # how long the language of a dataset is not read again


def subject(state: JobState) -> str:
    """Such as "Swahili, tiny-sw on my-voice"; a name that a person gave the job comes first."""
    # Only the last four digits of a generated id are shown.
    names = _GENERATED.sub(r"\1", verb_module(state.verb).subject(Names(state.job.settings)))
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


class Names:
    """The settings of a job as its subject shows them: without passwords, short, and "" for what is not set."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings

    def __getitem__(self, option: str) -> str:
        return _short(self._public(option))

    def each(self, option: str) -> list[str]:
        """The values of an option that is a list."""
        values = self._settings.get(option)
        return [_short(public_name(str(value))) for value in values] if isinstance(values, list | tuple) else []

    def file(self, option: str) -> str:
        """The file name of a path."""
        return self._public(option).rpartition("/")[2]

    def last_part(self, option: str) -> str:
        """The last part of a path or an address, else the whole."""
        whole = self._public(option)
        return _short(whole.rpartition("/")[2] or whole)

    def _public(self, option: str) -> str:
        return public_name(str(self._settings.get(option) or ""))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN].rstrip() + "..."
