"""The place of a waiting job among the jobs of its device, which a person may change. Never loads torch.

A place is a number in the file `place` of the job's folder; without one it is the time at which the job was made. The
worker that waits reads it and renames its ticket (`core.job.queueing`), so moving a job is one file written by anyone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from config.errors import UserError
from core.job.directory import NO_DEVICE, Job
from core.job.state import JobState
from data.durable_files import write_text

FILE = "place"
Direction = Literal["first", "earlier", "later", "last"]
_APART = 1.0  # between the ends of a queue and what is moved beyond them


def place_of(job: Job) -> float:
    """Smaller is earlier. What cannot be read as a number counts as never moved."""
    try:
        place = float((job.directory / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return job.created
    return place if math.isfinite(place) else job.created


def in_order(states: Sequence[JobState]) -> list[JobState]:
    """Living jobs in the order in which they have or get their device."""
    return sorted(states, key=lambda state: (not _holds(state), place_of(state.job), state.id))


def move(states: Sequence[JobState], name: str, direction: Direction) -> None:
    """Give the waiting job `name` another place among the `states` that wait for the same device.

    Raises `UserError` for a job that does not wait in a queue.
    """
    moved = next((state for state in states if state.id == name), None)
    if moved is None or not moved.alive or _holds(moved) or moved.job.device == NO_DEVICE:
        raise UserError(f"{name} does not wait for a device: it is {moved.status if moved else 'not there'}.",
                        "Only a job that waits in the queue of a device can be moved.")
    others = [state for state in in_order(states) if state.alive and not _holds(state) and state.id != name
              and state.job.device == moved.job.device]
    places = [place_of(state.job) for state in others]
    own = sum((place, state.id) < (place_of(moved.job), name) for place, state in zip(places, others, strict=True))
    last = len(others)
    target = {"first": 0, "earlier": max(0, own - 1), "later": min(last, own + 1), "last": last}[direction]
    if target != own:
        _write(moved.job, _between(places, target))


def _between(places: Sequence[float], target: int) -> float:
    """A place before the one that is number `target` and after the one before it."""
    if target == 0:
        return places[0] - _APART
    if target == len(places):
        return places[-1] + _APART
    return (places[target - 1] + places[target]) / 2


def _holds(state: JobState) -> bool:
    return state.status in ("running", "stopping") and state.started_at is not None


def _write(job: Job, place: float) -> None:
    write_text(job.directory / FILE, f"{place!r}\n", sync=False)
