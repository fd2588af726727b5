"""What a training's proof does and how much of the work it is: told from what was measured, here or in the run itself.

The proof costs the same after many steps and after few, so a quick try may take longer to prove than to practise.
Pure functions, without Gradio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from core.jobs.state import JobState
from ui.words import duration, open_stage

PROOF = "certificate"  # the part of a training in which it is made
_ENOUGH_S = 10.0  # of a proof, before what is left of it can be told
_DOES = ("the voice as it was and as it is say the same sentences in each language that a judge knows, it hears them "
         "all, and what must not have moved is compared bit by bit.")
_UNKNOWN = "That has its own time, however short the practice; how long is told once it has begun."


@dataclass(frozen=True)
class Past:
    """Seconds of a proof that was made, and of the whole training that it ended."""

    proof_s: float
    whole_s: float

    @property
    def words(self) -> str:
        return (f"The last proof here took {duration(self.proof_s)}, {self.proof_s / self.whole_s:.0%} of the "
                f"{duration(self.whole_s)} of its training.")


def last(states: Iterable[JobState], alike: Callable[[JobState], bool]) -> Past | None:
    """Of `states`, newest first, the first training with a proof that is `alike`."""
    return next((past for state in states if (past := of(state)) is not None and alike(state)), None)


def of(state: JobState) -> Past | None:
    """What the proof of a finished training took, where it was measured."""
    proof_s = next((stage.seconds for stage in state.stages if stage.name == PROOF and stage.seconds), None)
    if state.verb != "train" or state.status != "finished" or proof_s is None or not state.steps:
        return None
    return Past(proof_s, proof_s + max(state.steps[-1].seconds, state.seconds - proof_s))


def before(past: Past | None) -> str:
    """What comes at the end of a training, and how long it took the last time."""
    return f"At the end it proves what it can say: {_DOES} {past.words if past else _UNKNOWN}"


def during(state: JobState, past: Past | None) -> str:
    """The same of a training that waits or runs; while it is proved, by its own parts. Empty for all else."""
    if state.verb != "train" or not state.alive or state.status == "stopping":
        return ""
    if open_stage(state) != PROOF:
        return before(past)
    return f"The practice is done and saved. Now the proof: {_DOES}{_parts(state)}"


def _parts(state: JobState) -> str:
    """How long practice and proof have taken, and how much of the whole the proof will be; nothing not measured yet."""
    begun, progress = state.stages[-1].time, state.progress
    if state.started_at is None or not state.steps or progress is None or progress.time < begun:
        return ""
    practice_s, proof_s = max(state.steps[-1].seconds, begun - state.started_at), progress.time - begun
    told = f" The work before it took {duration(practice_s)}"
    if state.eta_s is None or proof_s < _ENOUGH_S:
        return f"{told}."
    whole_s = practice_s + proof_s + state.eta_s
    return f"{told}; with what is to come, the proof is about {(proof_s + state.eta_s) / whole_s:.0%} of the whole."
