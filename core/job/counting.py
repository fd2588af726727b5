"""One count over parts of a work that each count for themselves. Never loads torch."""

from __future__ import annotations

from core.job.journal import Progress
from core.job.reporter import Tell


class OneCount:
    """Tells the counts of several parts, one after another, as one count of `total` in `unit`."""

    def __init__(self, tell: Tell, total: int, unit: str) -> None:
        self._tell, self._total, self._unit = tell, total, unit
        self._before = 0

    def part(self, size: int) -> Tell:
        """What the next part tells; its own count, of whatever it is, goes from 0 to `size` of the whole."""
        before, self._before = self._before, self._before + size

        def told(progress: Progress) -> None:
            share = progress.done / progress.total if progress.total else 0.0
            note = progress.note if progress.unit == self._unit else f"({progress.unit} {progress.note})"
            self._tell(Progress(before + round(size * share), self._total, self._unit, note))

        return told
