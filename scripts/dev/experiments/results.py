"""The result of a trial, from its journal and certificate; several seeds as mean and standard deviation."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from core.jobs.job import Job
from core.jobs.state import JobState
from core.library import certificate
from core.library.certificate import Certificate

RESULT = "experiment.json"
_TRAINED = ("row_parameters", "adapter_parameters", "changed_parameters")
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    """Seconds of processor time, and the most memory that was held at once."""

    cpu_seconds: float
    peak_bytes: int


NOTHING = Used(0.0, 0)


@dataclass(frozen=True)
class TrialResult:
    """One training. Errors are shares of letters; `errors` and `before` are by language."""

    trial: str
    seed: int
    steps: int
    cpu_seconds: float  # seconds of the whole job, with its judging and certificate; a job beside it changes little
    peak_bytes: int  # the most that the process held
    trained: int  # numbers that the optimizer moved
    equal: str  # number of the base's tensors that stayed as they were
    logits: str  # result of the check on base-language samples
    errors: dict[str, float] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)  # held-out speech, nats a code, by step

    def write(self, folder: Path) -> None:
        (folder / RESULT).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> TrialResult | None:
    """What `write` wrote; None when the training was not measured to its end."""
    try:
        values = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    values["losses"] = {int(step): loss for step, loss in values["losses"].items()}
    return TrialResult(**values)


def of(trial: str, seed: int, state: JobState, used: Used) -> TrialResult:
    """A finished training."""
    counts = state.plan.counts if state.plan else {}
    losses = {event.step: event.speech_loss for event in state.evaluations}
    proof = certificate.read(state.job.directory / certificate.CERTIFICATE)
    return replace(proven(trial, seed, proof, used), losses=losses,
                   trained=sum(int(counts.get(name, 0)) for name in _TRAINED))


def proven(trial: str, seed: int, proof: Certificate, used: Used) -> TrialResult:
    """What a certificate says of a training."""
    errors = {item.language: item.after for item in proof.errors if item.after is not None}
    base_errors = {item.language: item.before for item in proof.errors if item.before is not None}
    return TrialResult(trial, seed, proof.step, used.cpu_seconds, used.peak_bytes, 0, _equal(proof),
                    proof.check("base_logits").actual.split(";")[0], errors, base_errors)


def _equal(proof: Certificate) -> str:
    check = proof.check("frozen_tensors")
    return f"{check.actual.split(',')[0]} of {check.expected.split(',')[0]}"


def spread(values: Sequence[float], unit: str = "", digits: int = 1) -> str:
    """Mean and sample standard deviation of several seeds; the value alone of one."""
    if not values:
        return "not measured"
    mean = f"{statistics.fmean(values):,.{digits}f}"
    apart = f" ± {statistics.stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{mean}{apart}{unit}"


def used_by(job: Job) -> Used | None:
    """What the job's worker has used."""
    return used_by_pid(job.lock.read_text().partition(" ")[0].strip())


def used_by_pid(pid: int | str) -> Used | None:
    """None when the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        # proc(5): utime and stime are fields 14 and 15, those after the name in brackets count from 3
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    peak = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return Used((int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND, peak)
