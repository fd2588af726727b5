"""What a job tells of itself, by kind, and each as one line of JSON. Never loads torch."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

Scalar = str | int | float | bool | None
Result = dict[str, Scalar]
"""What a verb hands back: flat, shown in the page and printed by `--json`."""


@dataclass(frozen=True)
class Event:
    """Base of all events. `time` is in seconds since 1970, stamped by the writer."""

    kind: ClassVar[str] = ""
    time: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True)
class Queued(Event):
    """A worker was asked for."""

    kind: ClassVar[str] = "queued"


@dataclass(frozen=True)
class Waiting(Event):
    """The worker lives and waits for a device or another job."""

    kind: ClassVar[str] = "waiting"
    reason: str


@dataclass(frozen=True)
class Started(Event):
    """The verb runs; `attempt` counts from 1."""

    kind: ClassVar[str] = "started"
    pid: int
    attempt: int


@dataclass(frozen=True)
class Stage(Event):
    """A part of the work began (`seconds` is None) or ended."""

    kind: ClassVar[str] = "stage"
    name: str
    seconds: float | None = None


@dataclass(frozen=True)
class Plan(Event):
    """What will be done, said before it starts; `counts` are the numbers in `lines`."""

    kind: ClassVar[str] = "plan"
    lines: tuple[str, ...]
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress(Event):
    """`done` of `total` (None when it cannot be known) in `unit`.

    `per_second` and `seconds_left` are given where the work knows them better than the journal's times tell.
    """

    kind: ClassVar[str] = "progress"
    done: float
    total: float | None
    unit: str
    note: str = ""
    per_second: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class Step(Event):
    """One optimizer step. Losses in nats a token; `seconds` of training so far, over all attempts.

    The memory is the peak of rank 0: `gpu`, of tensors since the step told before; `process`, resident since its start.
    `rates` are those of the parameter groups by name, the rows' first, which is also `learning_rate`; it is empty in
    journals of before there was such a field.
    """

    kind: ClassVar[str] = "step"
    step: int
    total_steps: int
    speech_loss: float
    text_loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_s: float
    seconds: float
    seconds_left: float | None = None
    memory_bytes: int | None = None
    memory_of: str = ""
    rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluated(Event):
    """Held-out losses in nats a token, the share of codes that were the likeliest, and the judge's errors by language.

    `languages` holds the numbers of `core.training.checkpoint_evaluation.ValidationLosses` by language; the other
    losses are the new language's.
    """

    kind: ClassVar[str] = "evaluated"
    step: int
    speech_loss: float
    errors: dict[str, float] = field(default_factory=dict)  # 0 to about 1
    text_loss: float | None = None
    accuracy: float | None = None
    languages: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class SampleMade(Event):
    """A sentence spoken during training; `path` is relative to the job's directory."""

    kind: ClassVar[str] = "sample"
    step: int
    language: str
    text: str
    path: str
    error: float | None = None


@dataclass(frozen=True)
class AudioPiece(Event):
    """The next part of a clip still being made, so that it can be heard already."""

    kind: ClassVar[str] = "audio_piece"
    side: str
    index: int
    piece: int
    path: str
    duration_s: float


@dataclass(frozen=True)
class AudioMade(Event):
    """A finished clip; paths are relative to the job's directory, `seconds` is what it took to make."""

    kind: ClassVar[str] = "audio"
    side: str
    index: int
    path: str
    text: str
    language: str
    duration_s: float
    seconds: float = 0.0
    error: float | None = None
    heard: str = ""
    spectrogram: str = ""
    note: str = ""  # where what was spoken is not the text as it stands
    unmeasured: str = ""  # why there is no error, where the judge that was chosen cannot be had


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint folder is complete; `path` is relative to the job's directory."""

    kind: ClassVar[str] = "checkpoint"
    step: int
    path: str
    best: bool


@dataclass(frozen=True)
class Warned(Event):
    """Something a person should know that does not end the job."""

    kind: ClassVar[str] = "warned"
    message: str


@dataclass(frozen=True)
class Finished(Event):
    """The verb returned."""

    kind: ClassVar[str] = "finished"
    result: Result


@dataclass(frozen=True)
class Failed(Event):
    """The verb raised, or the process died (`exit_code` below 0 is a signal, as in `subprocess`)."""

    kind: ClassVar[str] = "failed"
    message: str
    hint: str = ""
    traceback: str = ""
    exit_code: int = 1


@dataclass(frozen=True)
class Stopped(Event):
    """Ended on request."""

    kind: ClassVar[str] = "stopped"
    message: str


@dataclass(frozen=True)
class Skipped(Event):
    """Ended before it began, because what it needs was not made; `hint` is the way to go on."""

    kind: ClassVar[str] = "skipped"
    message: str
    hint: str = ""


_KINDS: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (Queued, Waiting, Started, Stage, Plan, Progress, Step, Evaluated, SampleMade, AudioPiece,
                 AudioMade, CheckpointSaved, Warned, Finished, Failed, Stopped, Skipped)
}
TERMINAL = (Finished, Failed, Stopped, Skipped)


def encode(event: Event) -> bytes:
    """One line, with its newline. Half a surrogate pair (a file name that is not UTF-8) becomes its JSON escape."""
    values = {item.name: getattr(event, item.name) for item in dataclasses.fields(event)}
    text = json.dumps({"event": event.kind, **values}, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def decode(line: bytes) -> Event:
    """The event of one line; a line that is none becomes a warning that quotes it."""
    try:
        values: dict[str, Any] = json.loads(line)
        kind = _KINDS[values.pop("event")]
        known = {item.name for item in dataclasses.fields(kind)}
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items() if name in known
        }
        return kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        quote = line[:60].decode(errors="replace")
        return Warned(f"A line of the journal could not be read and is left out; it begins: {quote}")
