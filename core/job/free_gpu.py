"""A job that waits until a GPU has room, or nobody's work, beside other programs of the machine. Never loads torch.

The worker asks at the job's turn, so that jobs of this workspace keep their order, and stands aside while there is no
such GPU (`core.job.queueing`). The GPUs that were found free are then the only ones that the work sees: else it would
take the first one, whichever had room.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from config.schema import TrainOptions
from core.job import gpus
from core.job.directory import Job
from core.job.gpus import Gpu, Probe
from core.job.journal import Warned
from core.job.reporter import Reporter

IDLE_LOAD, IDLE_USED_MIB = 5, 600  # percent, and what a driver or a screen takes


class FreeGpu:
    """What stands between a job and the GPUs that its options ask for."""

    def __init__(self, job: Job, reporter: Reporter, probe: Probe = gpus.look) -> None:
        self._job, self._reporter, self._probe = job, reporter, probe
        self._said = ""

    def obstacle(self) -> str:
        """Why the job does not begin now. Empty when as many GPUs as it has processes are free: it sees these alone.

        On a processor, or where the driver does not answer, that is said and nothing is waited for. Numbers that alone
        changed since the last time are left as they were, so that nobody is told anew.
        """
        options = self._job.options()
        if not isinstance(options, TrainOptions) or not (options.wait_for_gpu_gib or options.wait_for_idle_gpu):
            return ""
        if self._job.device != "cuda":
            self._reporter.emit(Warned("To wait for a GPU does not apply: this job runs on the processor."))
            return ""
        seen = self._probe()
        if not seen:
            self._reporter.emit(Warned("It cannot wait for a free GPU: nvidia-smi does not answer here. "
                                       "It starts now."))
            return ""
        free = [gpu for gpu in seen if fits(gpu, options.wait_for_gpu_gib, options.wait_for_idle_gpu)]
        if len(free) >= min(options.processes, len(seen)):
            _take(sorted(free, key=lambda gpu: -gpu.free_mib))
            return ""
        reason = why(seen, options)
        if _without_numbers(reason) != _without_numbers(self._said):
            self._said = reason
        return self._said


def fits(gpu: Gpu, free_gib: float, idle: bool) -> bool:
    """Whether `gpu` has so much free memory and, where it is to be `idle`, nobody's work."""
    used = gpu.total_mib - gpu.free_mib
    at_work = (gpu.load or 0) > IDLE_LOAD or used > IDLE_USED_MIB
    return gpu.free_gib >= free_gib and not (idle and at_work)


def why(seen: Sequence[Gpu], options: TrainOptions) -> str:
    """What is waited for, and what there is."""
    wanted = " and ".join(part for part in (
        f"{options.wait_for_gpu_gib:g} GiB of free memory" if options.wait_for_gpu_gib else "",
        "no other program at work" if options.wait_for_idle_gpu else "") if part)
    count = "a GPU" if options.processes == 1 else f"{min(options.processes, len(seen))} GPUs"
    there = "; ".join(f"GPU {gpu.index} has {gpu.free_gib:.1f} of {gpu.total_gib:.1f} GiB free"
                      + (f", {gpu.load}% load" if gpu.load is not None else "") for gpu in seen)
    return f"Waiting for {count} with {wanted}: {there}."


def _without_numbers(reason: str) -> str:
    return "".join(letter for letter in reason if not letter.isdigit())


def _take(free: Sequence[Gpu]) -> None:
    """Let the work see these GPUs alone, the emptiest first."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in free)
    sys.stdout.write("Free GPUs: " + ", ".join(f"{gpu.index} ({gpu.name}, {gpu.free_gib:.1f} GiB)" for gpu in free)
                     + "\n")
