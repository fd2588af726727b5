"""One job: a directory in the workspace's `runs` whose `config.yaml` never changes."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import Options
from core.jobs.verbs import VERBS
from core.workspace import Workspace, resolve_inside
from data.durable_files import atomic_directory

NO_DEVICE = "none"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where it was built: ten times as fast


@dataclass(frozen=True)
class Job:
    """A verb and its options. `settings` are the options as they stand in `config.yaml`, not yet checked."""

    directory: Path
    verb: str
    device: str  # "cpu", "cuda", or "none" for a verb that takes no device
    after: tuple[str, ...]  # ids of jobs that must finish first
    created: float  # seconds since 1970
    settings: dict[str, object] = field(hash=False)

    @property
    def id(self) -> str:
        return self.directory.name

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.directory.parent.parent)

    @property
    def journal(self) -> Path:
        return self.directory / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.directory / "output.log"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    @property
    def stop_file(self) -> Path:
        return self.directory / "stop"

    def options(self) -> Options:
        """The checked options; `UserError` when they do not fit this version of Lisan."""
        return parse_options(VERBS[self.verb].options, self.settings)


def create_job(workspace: Workspace, verb: str, options: Options, *, after: Sequence[str] = (),
           name: str | None = None) -> Job:
    """Write a new job, not yet started. Its options are frozen from here on.

    `after` names jobs of this workspace that must finish first; `name` is the id (default:
    the verb, the time and four hex digits). The directory appears whole or not at all.
    """
    assert isinstance(options, VERBS[verb].options), f"{verb} does not take {type(options).__name__}"
    for earlier in after:
        workspace.run(earlier)
    directory = resolve_inside(workspace.runs, name or _new_id(workspace, verb))
    job = Job(directory, verb, _device(verb, options), tuple(after), time.time(), options.model_dump(mode="json"))
    try:
        with atomic_directory(directory, "Free some disk space or choose another workspace.") as temporary:
            _write_config(job, temporary / "config.yaml")
    except UserError:
        check_name_free(workspace, directory.name)
        raise
    return job


def check_name_free(workspace: Workspace, name: str) -> None:
    """Raise `UserError` when there is a run `name` already."""
    if resolve_inside(workspace.runs, name).exists():
        raise UserError(f"A run named {name!r} already exists.", "Choose another name, or resume that run.")


def load_job(workspace: Workspace, name: str) -> Job:
    """The job `name` of `workspace`."""
    return load_job_directory(workspace.run(name))


def load_job_directory(directory: Path) -> Job:
    """The job in `directory`; `UserError` when its `config.yaml` is missing or not a job's."""
    path = directory / "config.yaml"
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
        job = Job(
            directory=directory.absolute(), verb=str(values["verb"]), device=str(values["device"]),
            after=tuple(str(name) for name in values["after"]), created=float(values["created"]),
            settings=dict(values["options"]),
        )
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not the configuration of a job: {error!r}.", "Start the job again.") from error
    if job.verb not in VERBS:
        raise UserError(f"{path} asks for the verb {job.verb!r}, which is unknown.", f"Known: {', '.join(VERBS)}.")
    return job


def _write_config(job: Job, path: Path) -> None:
    values = {"verb": job.verb, "device": job.device, "after": list(job.after), "created": job.created,
              "options": job.settings}
    path.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _new_id(workspace: Workspace, verb: str) -> str:
    """Verb, time and four hex digits, which repeat among some hundred jobs a second: a taken id is drawn again."""
    while True:
        name = f"{verb}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        if not (workspace.runs / name).exists():
            return name


def _device(verb: str, options: Options) -> str:
    """The device whose queue the job stands in. `auto` asks the system, because torch must not be loaded here."""
    if not VERBS[verb].takes_device:
        return NO_DEVICE
    device = str(getattr(options, "device", "auto"))
    if device != "auto":
        return device
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return "cuda" if not hidden and any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"
