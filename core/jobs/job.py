"""One job: a directory in the workspace's `runs`, whose `config.yaml` holds its options.

It changes only while the job does not run, if it is resumed with other options (`rewrite_options`).
"""

from __future__ import annotations

import os
import re
import stat
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from config import foreign, resume_options
from config.errors import ErrorKind, UserError
from config.loading import SomeOptions, parse_options
from config.schema import SHARD_MERGE, Options, TrainOptions, option_value, with_values, without_sections
from core.jobs.events import MAX_TIME
from core.jobs.verbs import VERBS
from core.workspace import Workspace, resolve_inside
from data.durable_files import atomic_directory, atomic_path

NO_DEVICE = "none"
DEVICE_FILES = Path("/dev")  # the driver shows its GPUs here; a test shows others


@dataclass(frozen=True)
class Job:
    """A verb and its options; `options()` checks them.

    `settings` are the unchecked options of `config.yaml` by their names without sections, as a form names them.
    """

    directory: Path
    verb: str
    device: str  # the queue it waits in: "cpu", "cuda", or "none" for a verb that takes no device
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

    def request_stop(self, by: str = "") -> None:
        """Ask the worker to end; an earlier request is not changed. `by`: the signal that asks; empty for a person."""
        with suppress(FileExistsError), open(self.stop_file, "x", encoding="utf-8") as file:
            file.write(by)

    def stopped_by_person(self) -> bool:
        """Whether a person asked the worker to end."""
        try:
            return not self.stop_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return False

    def options(self) -> Options:
        """The checked options; `UserError` if this version of Lisan does not accept them."""
        return parse_options(VERBS[self.verb].options, self.settings)


def rewrite_options(job: Job, changes: Mapping[str, object]) -> tuple[Job, tuple[str, ...]]:
    """Write the options of a training with `changes`. Returns the job and what changed; for the holder of its lock."""
    options = parse_options(TrainOptions, job.settings)
    updated = resume_options.with_changes(job.id, options, changes)
    path = job.directory / "config.yaml"
    values = {**foreign.read_yaml(path), "options": updated.model_dump(mode="json")}
    try:
        with atomic_path(path) as temporary:
            temporary.touch(mode=stat.S_IMODE(path.stat().st_mode))  # a file with a password stays its owner's
            temporary.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror}.", "Free some disk space, then resume it.",
                        ErrorKind.ENVIRONMENT) from error
    return load_job_directory(job.directory), resume_options.describe_changes(options, updated)


_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{1,20}:[/\\]{1,3}"
_ADDRESS = re.compile(rf"({_SCHEME})([^/\\?#\s]*)((?:(?!{_SCHEME})[^?#\s])*)(?:[\r\n]*[?#]\S*)?")
"""An address anywhere in a text: scheme, authority, and path up to another address. `Path` makes one slash of two."""


def public_name(source: str) -> str:
    """`source` as others may read it: addresses without user, password and query, which may hold a signature.

    Of a text that begins with an address the query may go on behind a line end.
    """
    text = source.strip() if _ADDRESS.match(source.strip()) else source
    if text is not source or _ADDRESS.match(source):
        text = re.split("[?#]", text, maxsplit=1)[0]
    return _ADDRESS.sub(lambda address: f"{address[1]}{address[2].rpartition('@')[2]}{address[3]}", text)


def public_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """`settings` without user, password and query of the addresses in them, at any depth."""
    return {name: _public_value(value) for name, value in settings.items()}


def _public_value(value: object) -> object:
    if isinstance(value, str):
        return public_name(value)
    if isinstance(value, Mapping):
        return public_settings(value)
    return [_public_value(part) for part in value] if isinstance(value, list | tuple) else value


def create_job(workspace: Workspace, verb: str, options: Options, *, after: Sequence[str] = (),
               job_id: str | None = None) -> Job:
    """Create the directory of a new job, without starting it and without a check: `core.submission.jobs.submit` does.

    `after` are ids of jobs of this workspace that must finish first. The default of `job_id` is the verb, the time and
    four hex digits. The directory is created atomically.
    """
    assert isinstance(options, VERBS[verb].options), f"{verb} does not take {type(options).__name__}"
    for earlier in after:
        workspace.run(earlier)

    # Short ids are completed now, because later jobs may have ids that begin in the same way.
    directory = resolve_inside(workspace.runs, job_id or new_job_id(workspace, verb))
    values = with_whole_ids(workspace, verb, options).model_dump(mode="json")
    settings = without_sections(VERBS[verb].options, values)
    job = Job(directory, verb, choose_device(verb, settings), tuple(after), time.time(), settings)

    # The folder appears with its configuration or not at all.
    try:
        with atomic_directory(directory, "Free some disk space or choose another workspace.") as temporary:
            config = {"verb": verb, "device": job.device, "after": list(after), "created": job.created,
                      "options": values}
            path = temporary / "config.yaml"
            # A resume needs an address as it was given, with its password.
            path.touch(mode=0o644 if public_settings(settings) == settings else 0o600)
            path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except UserError:
        check_id_free(workspace, directory.name)
        raise
    return job


def with_whole_ids(workspace: Workspace, verb: str, options: SomeOptions) -> SomeOptions:
    """`options` with the whole ids of jobs for short ones; `UserError` if a short id is that of several."""
    changes = dict[str, object]()
    for name, kind in VERBS[verb].needs.items():
        value = option_value(options, name)
        full = (tuple(map(workspace.whole_reference, value)) if isinstance(value, tuple)
                else workspace.whole_id(value) if kind == "run" else workspace.whole_reference(value))
        if full != value:
            changes[name] = full
    return with_values(options, changes) if changes else options


def check_id_free(workspace: Workspace, job_id: str) -> None:
    """Raise `UserError` if a job has the id `job_id`."""
    if resolve_inside(workspace.runs, job_id).exists():
        raise UserError(f"A job named {job_id!r} already exists.", "Choose another name, or resume that job.")


def load_job(workspace: Workspace, job_id: str) -> Job:
    """The job `job_id` of `workspace`."""
    return load_job_directory(workspace.run(job_id))


def load_job_directory(directory: Path) -> Job:
    """The job in `directory`; `UserError` if its `config.yaml` is missing or invalid."""
    path = directory / "config.yaml"
    try:
        values = foreign.read_yaml(path)
        verb, settings = str(values["verb"]), dict(values["options"])
        if verb in VERBS:
            settings = without_sections(VERBS[verb].options, settings, strict=False)
        job = Job(
            directory=directory.absolute(), verb=verb, device=str(values["device"]),
            after=tuple(str(other) for other in values["after"]), created=float(values["created"]),
            settings=settings,
        )
        if not 0 <= job.created < MAX_TIME or not all(isinstance(name, str) for name in job.settings):
            raise ValueError("its time or its options have a wrong type")
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise UserError(f"{path} is not the configuration of a job: {foreign.reason_of(error)}.",
                        "Start the job again.") from error
    except UserError as error:
        raise UserError(f"{path} is not the configuration of a job: {error.message}", error.hint) from error
    if job.verb not in VERBS:
        raise UserError(f"{path} asks for the verb {job.verb!r}, which is unknown.", f"Known: {', '.join(VERBS)}.")
    return job


def new_job_id(workspace: Workspace, verb: str) -> str:
    """Verb, time and four random hex digits; another id is drawn if a job has it already."""
    while True:
        job_id = f"{verb}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
        if not (workspace.runs / job_id).exists():
            return job_id


def choose_device(verb: str, settings: Mapping[str, object]) -> str:
    """The device whose queue a job with these options joins now.

    `auto` is decided by the device files of the system, because torch must not be loaded here. The machine may have
    another device at the next start of the job.
    """
    if not VERBS[verb].takes_device:
        return NO_DEVICE
    # Shards run at the same time, each on a machine that a cluster's own queue gave it.
    shard = str(settings.get("shard", ""))
    if shard and not shard.startswith(SHARD_MERGE):
        return NO_DEVICE
    device = str(settings.get("device", "auto"))
    return device if device != "auto" else "cuda" if gpu_is_visible() else "cpu"


def gpu_is_visible() -> bool:
    """Whether the system shows an NVIDIA GPU that is not hidden by CUDA_VISIBLE_DEVICES."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(DEVICE_FILES.glob("nvidia[0-9]*"))
