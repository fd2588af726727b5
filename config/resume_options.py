"""The options of a training that may change when it is resumed, and the reasons why the others may not."""

from __future__ import annotations

from collections.abc import Mapping

from config.errors import UserError
from config.loading import change_options
from config.schema import TrainOptions, about, option_fields, option_value

_STEPS_DEPEND = "the steps after the resume depend on it"
CHANGEABLE = tuple(name for name, field in option_fields(TrainOptions).items() if about(field, "may_change"))
"""Options of a training that change no step, in the order of a form."""
GLOBAL_BATCH = ("batch_size", "processes")
"""May change together, if their product, the clips of a step, stays."""


def may_change(name: str, before: TrainOptions, after: TrainOptions) -> bool:
    """Whether the option `name` may differ between two attempts of one run."""
    if name == "evaluation_sentences":  # A change to or from 0 would change the ranking's metric.
        return bool(before.evaluation.evaluation_sentences and after.evaluation.evaluation_sentences)
    if name in GLOBAL_BATCH:
        return (before.batches.batch_size * before.hardware.processes
                == after.batches.batch_size * after.hardware.processes)
    return name in CHANGEABLE


def reason(name: str) -> str:
    """Why the option `name` may not change, as its field says."""
    return str(about(option_fields(TrainOptions)[name], "fixed_because", _STEPS_DEPEND))


def with_changes(run: str, options: TrainOptions, changes: Mapping[str, object]) -> TrainOptions:
    """The options of `run` with `changes`; `UserError` names each that may not change, its values and the reason."""
    changed = change_options(options, changes)
    rejected = [f"{name} is {option_value(options, name)} and cannot become {option_value(changed, name)} "
                f"({reason(name)})"
                for name in changes if option_value(changed, name) != option_value(options, name)
                and not may_change(name, options, changed)]
    if rejected:
        raise UserError(f"A run that is resumed keeps these options: {'; '.join(rejected)}.",
                        f"Start a new run with them from its weights: --init-from run:{run}. "
                        f"These may change: {', '.join(CHANGEABLE)}.")
    return changed


def describe_changes(before: TrainOptions, after: TrainOptions) -> tuple[str, ...]:
    """The options that differ, with both values."""
    return tuple(f"{name}: {option_value(after, name)} (before: {option_value(before, name)})"
                 for name in option_fields(TrainOptions) if option_value(before, name) != option_value(after, name))
