"""When to give up: counters of validations, kept in the checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Patience:
    """Validations since the best value; a checkpoint holds it, so that a resumed run ends where the whole one does."""

    step: int = 0  # of the last validation that counted
    best_step: int = 0
    best: float = math.inf
    stale: int = 0  # validations since the best

    def after(self, step: int, value: float) -> Patience:
        """This after `step` was worth `value` (lower is better); a step counts once."""
        if step <= self.step:
            return self
        if value < self.best:
            return Patience(step, step, value)
        return Patience(step, self.best_step, self.best, self.stale + 1)

    def exhausted(self, most: int) -> bool:
        """Whether `most` validations in a row brought nothing; 0 is never."""
        return 0 < most <= self.stale
