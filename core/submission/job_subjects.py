"""What a job is about, in some words: the language, and the names of what it reads and makes.

The table of verbs says which names; here they are shortened and put together. Never loads torch.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from config import foreign
from config.errors import UserError
from config.languages import language_name
from core.jobs.job import Job
from core.jobs.state import JobState
from core.jobs.verbs import VERBS
from core.sources.downloader import public_name
from core.workspace import resolve_inside

_GENERATED = re.compile(r"\b[a-z_]+-\d{8}-\d{6}-([0-9a-f]{4})\b")
_SHOWN = 60  # letters of a text or a source
_REMEMBERED_S = 5.0  # how long the language of a dataset is not read again


def subject(state: JobState) -> str:
    """Such as "Swahili, tiny-sw on my-voice"; a name that a person gave the job comes first."""
    templates = VERBS[state.verb].subject
    names = (template.format_map(_Names(state.job)).strip()
             for template in ([templates] if isinstance(templates, str) else templates))
    # Only the last four digits of a generated id are shown.
    about = _GENERATED.sub(r"\1", next(filter(None, names), ""))
    detail = ", ".join(part for part in (_language(state), about) if part)
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


class _Names:
    """The options of a job by name as its subject shows them: without passwords, short, and "" for what is not set."""

    def __init__(self, job: Job) -> None:
        self._settings, self._needs = job.settings, VERBS[job.verb].needs

    def __getitem__(self, option: str) -> str:
        value = self._settings.get(option) or ""
        if isinstance(value, list | tuple):
            return ", ".join(_short(public_name(str(item))) for item in value)
        name, kind = public_name(str(value)), self._needs.get(option)

        # Only the last part of a path or an address is shown.
        if kind == "file":
            return name.rpartition("/")[2]
        return _short(name.rpartition("/")[2] or name if kind == "source" else name)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN].rstrip() + "..."
