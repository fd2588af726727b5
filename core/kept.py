"""What of a job outlives its worker, in words: nothing is claimed that is not on the disk. Never loads torch."""

from __future__ import annotations

from core.job import Job

CHECKPOINTS = "checkpoints"
_GOES_ON = ("prepare", "download", "push")  # they find what they did before


def checkpoint_steps(job: Job) -> list[int]:
    """Steps of a training with a checkpoint, ascending."""
    folders = (job.directory / CHECKPOINTS).glob("step-*")
    return sorted(int(path.name.removeprefix("step-")) for path in folders if path.is_dir())


def words(job: Job) -> str:
    """What a resume of `job` begins with."""
    if steps := checkpoint_steps(job):
        return f"The checkpoint of step {steps[-1]} is saved; it goes on from there."
    if job.verb in _GOES_ON:
        return "What was done before is kept; it goes on from there."
    return "Nothing was saved yet; it begins again."
