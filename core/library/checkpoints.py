"""The ranking of a run's checkpoints: `best.json` in the run's folder, the only source for which one is the best.

The journal reports the best checkpoint to its readers; a process that is killed between the two writes leaves a journal
that is one report short, and the resumed run adds it. Never loads torch.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from config import foreign
from config.errors import ErrorKind, UserError
from core.jobs.checkpoint_names import CHECKPOINTS, checkpoint_steps
from data.durable_files import write_json

RANKING = "best.json"


class RankingMetric(StrEnum):
    """What ranks the checkpoints of a run, by the names of the option `select_best_by`."""

    SPEECH_LOSS = "speech_loss"
    CER = "cer"
    WER = "wer"
    DELETIONS = "deletions"
    SIMILARITY = "similarity"
    NATURALNESS = "naturalness"
    MCD = "mcd"
    REPETITION = "repetition"
    MISSING_STOP = "missing_stop"
    LONG_SILENCE = "long_silence"
    CLIPPING = "clipping"

    @property
    def ideal(self) -> float | None:
        """The value from which the distance is ranked, where higher is better."""
        return {RankingMetric.SIMILARITY: 1.0, RankingMetric.NATURALNESS: 5.0}.get(self)

    @property
    def label(self) -> str:
        """Its name for people."""
        if self is RankingMetric.SPEECH_LOSS:
            return "validation speech loss"
        if self is RankingMetric.CER:
            return "character error rate"
        from core.library.evaluation_report import METRICS  # here, because the trainer imports this module

        title = METRICS[self.value].title
        return title if self.ideal is None else f"{self.ideal:g} minus {title}"


@dataclass(frozen=True)
class Ranking:
    """The values of `metric` at the evaluated checkpoints, by step, and the best step (lower is better)."""

    metric: RankingMetric | None = None  # None: nothing was measured yet
    best: int | None = None
    values: dict[int, float] = field(default_factory=dict)

    def with_value(self, step: int, value: float) -> Ranking:
        """The ranking with the value of `step` added; of equal values the later step is better."""
        return replace(self, values={**self.values, step: value})._with_best()

    def up_to(self, step: int) -> Ranking:
        """The ranking without the values after `step`, for a run that resumes from it."""
        values = {earlier: value for earlier, value in self.values.items() if earlier <= step}
        return replace(self, values=values)._with_best()

    def with_best_of(self, steps: Collection[int]) -> Ranking:
        """The same values, and the best step among `steps`."""
        values = {step: value for step, value in self.values.items() if step in steps}
        return replace(replace(self, values=values)._with_best(), values=self.values)

    def _with_best(self) -> Ranking:
        best = min(self.values, key=lambda step: (self.values[step], -step), default=None)
        return replace(self, best=best)


def read_ranking(run_dir: Path) -> Ranking:
    """The ranking of the run's checkpoints; an empty one when none was measured."""
    path = run_dir / CHECKPOINTS / RANKING
    if not path.is_file():
        return Ranking()
    try:
        values = foreign.read_json(path)
        by_step = {int(step): float(value) for step, value in values["values"].items()}
        best = values["best"]
        if best is not None and best not in by_step:
            raise ValueError(f"the best step {best!r} has no value")
        return Ranking(_metric(str(values["metric"])), best, by_step)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        hint = "Delete it and resume the run: the last checkpoint is measured again."
        raise UserError(f"{path} is damaged: {foreign.reason_of(error)}.", hint) from error


def write_ranking(run_dir: Path, ranking: Ranking) -> None:
    """Replace `best.json`, whole or not at all."""
    path = run_dir / CHECKPOINTS / RANKING
    try:
        write_json(path, asdict(ranking))
    except OSError as error:
        hint = "Free some space, then resume the run."
        raise UserError(f"{path} could not be written: {error.strerror}.", hint, ErrorKind.ENVIRONMENT) from error


def rank_existing(run_dir: Path) -> None:
    """Let the best checkpoint be one that is there, after some were deleted or restored."""
    ranking = read_ranking(run_dir)
    existing = ranking.with_best_of(checkpoint_steps(run_dir))
    if existing != ranking:
        write_ranking(run_dir, existing)


def best_step(run_dir: Path) -> int | None:
    """The best checkpoint that is still there, else the last one; None without any. `UserError` if the ranking is
    damaged.
    """
    steps = checkpoint_steps(run_dir)
    best = read_ranking(run_dir).with_best_of(steps).best
    return best if best is not None else steps[-1] if steps else None


def _metric(name: str) -> RankingMetric | None:
    """The metric by its name, or by its title, which files of earlier versions hold."""
    by_title = {metric.label: metric for metric in RankingMetric}
    return by_title.get(name) or (RankingMetric(name) if name else None)
