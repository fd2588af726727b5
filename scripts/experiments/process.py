"""What a process has used of the machine so far, as Linux counts it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from core.jobs.directory import Job

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Used:
    """Seconds of processor time, and the most memory that was held at once."""

    cpu_seconds: float
    peak_bytes: int


NOTHING = Used(0.0, 0)


def used_by(job: Job) -> Used | None:
    """What the job's worker has used."""
    return used(job.lock.read_text().partition(" ")[0].strip())


def used(pid: int | str) -> Used | None:
    """None when the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        # proc(5): utime and stime are fields 14 and 15, those after the name in brackets count from 3
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    peak = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return Used((int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND, peak)
