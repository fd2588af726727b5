"""The events of a job, and its journal: an append-only file with one JSON object per line.

There is one writer at a time, the holder of the job's lock (except for `Renamed`), and any number of readers. A line is
written with one `write` on a descriptor opened for appending. So a reader sees complete lines and perhaps one
incomplete line at the end, which it reads again later. If a worker is killed while it writes, its line stays
incomplete, and the next writer starts a new line.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config import foreign
from config.errors import ErrorKind, UserError

MAX_TIME = 1e11  # seconds since 1970; later times cannot be shown as dates
Scalar = str | int | float | bool | None
Result = dict[str, Scalar]
"""What a verb returns: flat, shown in the page and printed by `--json`."""


@dataclass(frozen=True)
class Event:
    """Base of all events. `time` is in seconds since 1970, stamped by the writer."""

    time: float = field(default=0.0, kw_only=True)

    @property
    def kind(self) -> str:
        """Its name in the journal."""
        return _NAMES[type(self)]


@dataclass(frozen=True)
class Queued(Event):
    """A new attempt was requested; no worker runs yet.

    `device` is the one whose queue the job joins, which may differ from attempt to attempt. `restart`: the app
    requested it, because the job was alive when the machine went down. `changes`: options that differ from those of
    the attempt before, for people; `config.yaml` has them.
    """

    device: str = ""
    restart: bool = False
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Waiting(Event):
    """The worker waits for a device or another job."""

    reason: str


@dataclass(frozen=True)
class Started(Event):
    """The verb runs; `attempt` counts from 1."""

    pid: int
    attempt: int


@dataclass(frozen=True)
class Stage(Event):
    """A stage of the work began (`seconds` is None) or ended."""

    name: str
    seconds: float | None = None


@dataclass(frozen=True)
class Plan(Event):
    """What the job will do, before it starts; `counts` are the numbers in `lines`."""

    lines: tuple[str, ...]
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress(Event):
    """`done` of `total` (None if unknown) in `unit`.

    `per_second` and `seconds_left` are set if the verb knows them better than an estimate from the journal's times.
    """

    done: float
    total: float | None
    unit: str
    note: str = ""
    per_second: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class Step(Event):
    """One optimizer step. Losses in nats a token; `seconds` of training so far, over all attempts.

    `memory_bytes` is the peak of rank 0. `memory_of` `gpu`: of tensors since the last such event; `process`: of
    resident memory since its start. `learning_rates` are by parameter group.
    """

    step: int
    total_steps: int
    speech_loss: float
    text_loss: float
    learning_rates: dict[str, float]
    gradient_norm: float
    tokens_per_s: float
    seconds: float
    seconds_left: float | None = None
    memory_bytes: int | None = None
    memory_of: str = ""


@dataclass(frozen=True)
class Evaluated(Event):
    """A validation: held-out losses in nats a token, top-1 accuracy of the codes, character error rates by language.

    `languages` holds the fields of `core.training.checkpoint_evaluation.ValidationLosses` by language; the other
    losses and the accuracy are means over the new languages.
    """

    step: int
    speech_loss: float
    errors: dict[str, float] = field(default_factory=dict)  # 0 to about 1
    text_loss: float | None = None
    accuracy: float | None = None
    languages: dict[str, dict[str, float]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)  # means over the new languages' samples, see `METRICS`


@dataclass(frozen=True)
class SampleGenerated(Event):
    """A sentence synthesized during training; `path` is relative to the job's directory."""

    step: int
    language: str
    text: str
    path: str
    error: float | None = None


@dataclass(frozen=True)
class AudioChunk(Event):
    """The next chunk of a clip that is still being synthesized, for streaming playback."""

    side: str
    index: int
    chunk: int
    path: str
    duration_s: float


@dataclass(frozen=True)
class AudioGenerated(Event):
    """A finished clip; paths are relative to the job's directory, `seconds` is the time that synthesis took."""

    side: str
    index: int
    path: str
    text: str
    language: str
    duration_s: float
    seconds: float = 0.0
    error: float | None = None
    transcript: str = ""  # the recogniser's
    spectrogram: str = ""
    note: str = ""  # how the synthesized text differs from `text`
    unmeasured: str = ""  # why there is no error, if the chosen recogniser is not available
    scoring: bool = False  # the event is repeated later with the score
    finish_reason: str = "stop"  # see `models.base.FinishReason`
    measured_by: str = ""  # the recogniser of the dataset, if that measured the error


CLIPS_ARCHIVE = "clips.zip"
"""In the folder of a job that synthesizes: the audio of all `AudioGenerated`, and a table of them."""


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint folder is complete; `path` is relative to the job's directory.

    The event is repeated with `best` once the checkpoint was evaluated and is the best so far.
    """

    step: int
    path: str
    best: bool = False


@dataclass(frozen=True)
class WarningRaised(Event):
    """A warning; the job goes on."""

    message: str


@dataclass(frozen=True)
class Finished(Event):
    """The verb returned."""

    result: Result


@dataclass(frozen=True)
class Failed(Event):
    """The verb raised, or the process died (`exit_code` below 0 is a signal, as in `subprocess`).

    `error_kind` is a `config.errors.ErrorKind`.
    """

    message: str
    hint: str = ""
    traceback: str = ""
    exit_code: int = 1
    error_kind: str = ErrorKind.INPUT.value


@dataclass(frozen=True)
class Stopped(Event):
    """Ended on request. `terminated`: by SIGTERM, as when the machine shuts down, and not by a person.

    `unsaved`: within a step, so that nothing was saved for it.
    """

    message: str
    terminated: bool = False
    unsaved: bool = False


@dataclass(frozen=True)
class Skipped(Event):
    """Ended before it began, because a job that it depends on did not finish; `hint` says what to do."""

    message: str
    hint: str = ""


@dataclass(frozen=True)
class Renamed(Event):
    """The job got a display name (empty: none). Any process may append it, also while the worker writes."""

    name: str


_KINDS: dict[str, type[Event]] = {
    "queued": Queued, "waiting": Waiting, "started": Started, "stage": Stage, "plan": Plan, "progress": Progress,
    "step": Step, "evaluated": Evaluated, "sample": SampleGenerated, "audio_chunk": AudioChunk,
    "audio": AudioGenerated, "checkpoint": CheckpointSaved, "warning": WarningRaised, "finished": Finished,
    "failed": Failed, "stopped": Stopped, "skipped": Skipped, "renamed": Renamed,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > _MAX_NUMBER


_MAX_NUMBER = 1e300
_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63,
    "bool": lambda value: isinstance(value, bool),
    "float": _is_number,
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(isinstance(element, str) for element in value),
    "Result": lambda value: isinstance(value, dict) and all(
        entry is None or isinstance(entry, str | bool) or _is_number(entry) for entry in value.values()),
    "dict[str, float]": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "dict[str, dict[str, float]]": lambda value: isinstance(value, dict) and all(
        isinstance(entry, dict) and all(map(_is_number, entry.values())) for entry in value.values()),
}
_TYPE_CHECKS["dict[str, int]"] = _TYPE_CHECKS["dict[str, float]"]


def _field_check(item: dataclasses.Field[Any]) -> Callable[[Any], bool]:
    """A check that a value from a journal has the type of the field; the journal may be damaged or foreign."""
    if item.name == "time":
        return lambda value: _is_number(value) and 0 <= value < MAX_TIME
    of_type = _TYPE_CHECKS[str(item.type).removesuffix(" | None")]
    return (lambda value: value is None or of_type(value)) if str(item.type).endswith(" | None") else of_type


def _field_checks(kind: type[Event]) -> dict[str, Callable[[Any], bool]]:
    return {item.name: _field_check(item) for item in dataclasses.fields(kind)}


_CHECKS = {kind: _field_checks(kind) for kind in _NAMES}
TERMINAL = (Finished, Failed, Stopped, Skipped)


def encode(event: Event) -> bytes:
    """One line, with its newline. A lone surrogate (of a file name that is not UTF-8) becomes a JSON escape."""
    values = {item.name: getattr(event, item.name) for item in dataclasses.fields(event)}
    text = json.dumps({"event": event.kind, **values}, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def decode(line: bytes) -> Event:
    """The event of one line; a line that cannot be read becomes a warning that quotes it."""
    try:
        values: dict[str, Any] = foreign.loads(line)
        kind = _KINDS[values.pop("event")]
        # Fields of a newer version are ignored.
        checks = _CHECKS[kind]
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items() if name in checks
        }
        if not all(checks[name](value) for name, value in fields.items()):
            raise TypeError("a field has a wrong type")
        return kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        quote = line[:60].decode(errors="replace")
        return WarningRaised(f"A line of the journal could not be read and is ignored; it begins: {quote}")


class Journal:
    """Writer of a journal. Raises `UserError` if the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _write_error(path, error) from error

    def append(self, event: Event) -> Event:
        """Stamp and write `event`; a terminal event is on the disk when this returns."""
        stamped = dataclasses.replace(event, time=time.time())
        data = encode(stamped)
        try:
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":  # the line of a writer that was killed
                data = b"\n" + data
            # A write may take only a part of the line.
            while data:
                data = data[os.write(self._descriptor, data):]
            if isinstance(event, TERMINAL):
                os.fsync(self._descriptor)
        except OSError as error:
            raise _write_error(self.path, error) from error
        return stamped

    def close(self) -> None:
        os.close(self._descriptor)


def append_event(path: Path, event: Event) -> None:
    """Append one event to the journal at `path`; for a holder of the job's lock that is not its worker."""
    with closing(Journal(path)) as journal:
        journal.append(event)


def read_events(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """The events of the complete lines of `path` from byte `offset`, and the offset after them; none without a file."""
    try:
        with foreign.open_plain(path) as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], 0
    # The last line may still be in writing.
    lines = data[:data.rfind(b"\n") + 1]
    return [decode(line) for line in lines.split(b"\n") if line.strip()], offset + len(lines)


def _write_error(path: Path, error: OSError) -> UserError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return UserError(
        f"The journal {path} could not be written: {error.strerror or error}.",
        "Free some disk space, then resume the job; what was saved before is intact." if full
        else "Check that the workspace can be written, then resume the job.",
        ErrorKind.ENVIRONMENT,
    )
