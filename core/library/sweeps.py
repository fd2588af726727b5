"""A sweep: its trials, which of them are pruned, their ranking, and the recommendation with its evidence.

All of it follows from the options of the sweep and the journals of its runs, so a sweep that was killed and resumed
ends with the ranking of one that was not. Nothing here loads torch.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal

from config import loading
from config.arguments import to_arguments
from config.errors import UserError
from config.loading import parse_options
from config.schema import ANY_STEPS, SweepOptions, TrainOptions, option_fields, option_value, without_sections
from core.jobs.events import SampleGenerated
from core.jobs.state import JobState
from core.library import learning
from core.library.learning import Estimate, Learning
from core.workspace import Workspace
from data.durable_files import write_json

SWEEP = "sweep.json"  # file in the folder of a sweep
TrialStatus = Literal["waiting", "running", "finished", "pruned", "stopped", "failed"]
_MAX_TRIALS = 200
_OPTUNA_TRIALS = 10
# One of so many trials is random, before TPE has results to learn from.
_OPTUNA_STARTUP = 3
_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # Each learning rate is tried times these.
_SHARE = 10  # a trial of the learning-rate search takes the steps divided by this
_MIN_STEPS = 20  # A trial of the search has at least these.
_PRUNE_AFTER = 1 / 3  # share of a trial's steps
_PRUNE_TRIALS = 2  # earlier trials that a median needs
_LOG_RANGE = 10.0  # Optuna takes a wider range of positive values on a logarithmic scale
_STATUS_ORDER: tuple[TrialStatus, ...] = ("finished", "pruned", "stopped", "running", "failed", "waiting")
_BEST_FIRST = (Learning.LEARNED, Learning.PARTLY_LEARNED, Learning.NOT_MEASURED, Learning.NOT_LEARNED)
_OWN_OPTIONS = set(SweepOptions.model_fields) - set(TrainOptions.model_fields)


@dataclass(frozen=True)
class SweepTrial:
    """One run of a sweep. Losses are held-out speech losses in nats a code, error rates from 0 to about 1."""

    run: str  # id of its training
    changes: dict[str, Any]  # the varied options
    status: TrialStatus = "waiting"
    message: str = ""  # why it failed or was pruned
    step: int = 0  # its best checkpoint; of a pruned trial the validation that decided
    losses: dict[int, float] = field(default_factory=dict)  # speech losses of validation by step
    change: Estimate | None = None  # The change of the loss since step 0, paired by clip.
    learning: Learning = Learning.NOT_MEASURED
    outcome: str = ""
    errors: dict[str, float] = field(default_factory=dict)  # CER at `step`, by language and sentence

    @property
    def loss(self) -> float:
        """The held-out loss at `step`; infinite where nothing finite was measured."""
        value = self.losses.get(self.step, math.inf)
        return value if math.isfinite(value) else math.inf

    @property
    def cer(self) -> Estimate | None:
        """The mean CER of the sentences; None for fewer than two."""
        return Estimate.from_values(list(self.errors.values())) if len(self.errors) > 1 else None

    @property
    def description(self) -> str:
        """The varied options and their values."""
        return ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                         for name, value in self.changes.items())


@dataclass(frozen=True)
class SweepRecord:
    """`sweep.json`: the trials in the order in which they run."""

    count: int  # number of all trials
    trials: tuple[SweepTrial, ...] = ()

    def number(self, trial: SweepTrial) -> int:
        """The number of a trial, from 1."""
        return self.trials.index(trial) + 1


def read_sweep(folder: Path) -> SweepRecord | None:
    """The record of a sweep; None before its first trial."""
    path = folder / SWEEP
    if not path.is_file():
        return None
    return loading.read_record(path, SweepRecord, "Delete the file and resume the sweep: it is made again.")


def write_sweep(folder: Path, record: SweepRecord) -> None:
    """Write `sweep.json`."""
    write_json(folder / SWEEP, asdict(record))


def check_sweep(options: SweepOptions) -> int:
    """The number of trials; `UserError` if the options cannot be a sweep."""
    values = varied_values(options)
    if options.search == "learning_rate":
        if values:
            raise UserError(f"The search for the learning rate varies the learning rates alone, and `vary` is "
                            f"{options.vary!r}.", "Leave `vary` empty, or use the search `grid`.")
        if options.trials not in (0, len(_FACTORS)):
            raise UserError(f"The search for the learning rate has {len(_FACTORS)} trials, and `trials` is "
                            f"{options.trials}.", "Leave it at 0, or use the search `grid`.")
        return len(learning_rate_changes(options))

    if not values:
        raise UserError("No option is varied.", "Give options with their values, such as --vary 'adapter_lr: 0.001, "
                                                "0.002; adapter_rank: 8, 16', or --search learning_rate.")
    if options.search == "optuna":
        if importlib.util.find_spec("optuna") is None:
            raise UserError("The search `optuna` was chosen, and its package is not installed.",
                            "Install it (pip install optuna), or use the search `grid`.")
        _distributions(options)
        return options.trials or _OPTUNA_TRIALS

    combinations = math.prod(len(choices) for choices in values.values())
    count = min(combinations, options.trials or combinations)
    if count > _MAX_TRIALS:
        raise UserError(f"The grid has {combinations} combinations; a sweep has at most {_MAX_TRIALS} trials.",
                        "Vary fewer values, or set `trials`.")
    # Each combination is checked before the first run begins.
    for changes in islice(grid_changes(options), count):
        trial_options(options, changes)
    return count


def varied_values(options: SweepOptions) -> dict[str, tuple[Any, ...]]:
    """The values of each varied option; `UserError` names what is not an option or not a value."""
    result: dict[str, tuple[Any, ...]] = {}
    for part in options.vary.replace("\n", ";").split(";"):
        if not part.strip():
            continue
        name, colon, text = part.partition(":")
        name = name.strip().lstrip("-").replace("-", "_")
        if not colon:
            raise UserError(f"{part.strip()!r} does not say which option it is a value of.",
                            "Write the option, a colon and its values: `adapter_lr: 0.001, 0.002`.")
        if name not in option_fields(TrainOptions):
            near = difflib.get_close_matches(name.rpartition(".")[2], option_fields(TrainOptions), 1)
            raise UserError(f"{name!r} is not an option of a training.",
                            f"Perhaps {near[0]} is meant." if near else "See python -m scripts train --help.")
        if name in result:
            raise UserError(f"The option {name!r} is varied twice.", "Write all of its values in one place.")

        # Values are typed by the schema, and equal ones count once.
        words = [word.strip() for word in text.split(",") if word.strip()]
        values = tuple(option_value(_with_changes(options, {name: word}), name) for word in words)
        if not values:
            raise UserError(f"The option {name!r} has no values.", f"Write them after the colon: `{name}: A, B`.")
        result[name] = tuple(dict.fromkeys(values))
    return result


def grid_changes(options: SweepOptions) -> Iterator[dict[str, Any]]:
    """Each combination of the varied values; the last option changes first. There may be billions of them."""
    values = varied_values(options)
    for combination in product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def learning_rate_changes(options: SweepOptions) -> list[dict[str, Any]]:
    """The learning rates of the scope, all multiplied by the same factor."""
    names = ["row_lr"]
    if options.scope == "gated" or (options.scope == "full" and options.full.full_trainable == "adapters"):
        names.append("adapter_lr")
    elif options.scope == "full":
        names += ["layer_lr", "head_lr"]
    # A learning rate is at most 1; six digits hide the rounding of the product.
    rates = {name: option_value(options, name) for name in names}
    return [{name: min(1.0, float(f"{rate * factor:.6g}")) for name, rate in rates.items()} for factor in _FACTORS]


def propose(options: SweepOptions, trials: Sequence[SweepTrial]) -> dict[str, Any]:
    """The changes of the trial after `trials`."""
    if options.search == "learning_rate":
        return learning_rate_changes(options)[len(trials)]
    if options.search == "grid":
        return next(islice(grid_changes(options), len(trials), None))
    return _propose_by_optuna(options, trials)


def _propose_by_optuna(options: SweepOptions, trials: Sequence[SweepTrial]) -> dict[str, Any]:
    """The next proposal of Optuna's TPE sampler; the same for the same seed and results, so a resume repeats it."""
    import optuna  # optional

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # TPE needs finished trials. The default of ten random ones would be all trials of a short sweep.
    startup_trials = max(2, (options.trials or _OPTUNA_TRIALS) // _OPTUNA_STARTUP)
    sampler = optuna.samplers.TPESampler(seed=options.seed + len(trials), n_startup_trials=startup_trials)
    study = optuna.create_study(sampler=sampler)

    # The sampler learns from the values that each trial really had.
    distributions = _distributions(options)
    for trial in trials:
        # JSON has no tuples.
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in trial.changes.items()}
        outcome = {"value": trial.loss} if math.isfinite(trial.loss) else {"state": optuna.trial.TrialState.FAIL}
        study.add_trial(optuna.trial.create_trial(params=values, distributions=distributions, **outcome))
    return dict(study.ask(distributions).params)


def _distributions(options: SweepOptions) -> dict[str, Any]:
    """Optuna's distributions: numbers between the smallest and the largest value, other values as they are."""
    from optuna import distributions  # optional

    result: dict[str, Any] = {}
    for name, values in varied_values(options).items():
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < len(values) or len(values) < 2:
            result[name] = distributions.CategoricalDistribution(values)
            continue
        low, high = min(numbers), max(numbers)
        is_log = low > 0 and high / low >= _LOG_RANGE
        is_whole = all(isinstance(value, int) for value in numbers)
        kind = distributions.IntDistribution if is_whole else distributions.FloatDistribution
        result[name] = kind(low, high, log=is_log)
    return result


def trial_options(options: SweepOptions, changes: Mapping[str, Any]) -> TrainOptions:
    """The options of a trial's training. `UserError` if they do not fit together."""
    if options.search != "learning_rate":
        trial = _with_changes(options, changes)
        if options.prune and not trial.evaluation.validate_every and trial.length.steps != ANY_STEPS:
            # A tenth of the steps apart, so that there is something to compare before the end.
            every = min(trial.checkpoints.checkpoint_every, trial.length.steps // 10)
            return _with_changes(trial, {"validate_every": max(1, every)})
        return trial

    # The schedule is that of the whole run, shorter. No sentence is synthesized: the loss decides.
    length, checkpoint_every = options.length, options.checkpoints.checkpoint_every
    short: dict[str, Any] = {"max_epochs": length.max_epochs / _SHARE, "max_minutes": length.max_minutes / _SHARE,
                             "warmup": options.optimization.warmup // _SHARE, "decoder_minutes": 0.0, "patience": 0,
                             "evaluation_sentences": 0, "select_best_by": "speech_loss"}
    if length.steps == ANY_STEPS:
        short |= {"steps": 0, "checkpoint_every": max(1, checkpoint_every // _SHARE)}
        short["validate_every"] = max(1, short["checkpoint_every"] // 2)
    else:
        steps = max(min(length.steps, _MIN_STEPS), length.steps // _SHARE)
        short |= {"steps": steps, "checkpoint_every": math.ceil(steps / 2), "validate_every": max(1, steps // 10)}
    return _with_changes(options, {**short, **changes})


def further_options(options: SweepOptions, trial: SweepTrial) -> TrainOptions:
    """The options of a run that goes on from the weights of a trial, with the steps and the schedule of the sweep."""
    return _with_changes(options, {**trial.changes, "init_from": f"run:{trial.run}"})


def further_command(options: SweepOptions, trial: SweepTrial, workspace: Workspace) -> str:
    """The command that goes on from the weights of a trial."""
    arguments = to_arguments(further_options(options, trial), ("extension", "dataset"))
    return shlex.join(("python", "-m", "scripts", "train", "--workspace", str(workspace.path), *arguments))


def _with_changes(options: TrainOptions, changes: Mapping[str, Any]) -> TrainOptions:
    values = without_sections(TrainOptions, options.model_dump(mode="json", exclude=_OWN_OPTIONS))
    return parse_options(TrainOptions, {**values, **changes})


def measure(trial: SweepTrial, state: JobState | None, earlier: Sequence[SweepTrial], *, prune: bool) -> SweepTrial:
    """The trial with what its journal says; None: it has not begun.

    Only what a run wrote up to its pruning counts, so it does not matter how soon it stopped after that.
    """
    if state is None or state.status == "created":
        return replace(trial, status="waiting")
    losses = {entry.step: entry.speech_loss for entry in state.evaluations}
    total_steps = state.steps[-1].total_steps if state.steps else 0
    pruned_step, bound = prune_point(losses, [other.losses for other in earlier], total_steps) if prune else (0, 0.0)
    if pruned_step:
        kept = {step: loss for step, loss in losses.items() if step <= pruned_step}
        return replace(trial, status="pruned", step=pruned_step, losses=kept, errors={}, change=None,
                       message=f"Its held-out loss {losses[pruned_step]:.3f} at step {pruned_step} is above "
                               f"{bound:.3f}, the median of the earlier trials.")
    trial = replace(trial, losses=losses, step=max(losses, default=0), message=state.message)
    if state.status == "finished":
        return _measure_finished(trial, state)
    return replace(trial, status="running" if state.alive else "stopped" if state.status == "stopped" else "failed")


def prune_point(losses: Mapping[int, float], earlier: Sequence[Mapping[int, float]],
                total_steps: int) -> tuple[int, float]:
    """The first validation at which a trial is worse than the median of earlier ones, and that median; 0 if none.

    The median rule of Vizier (Golovin et al. 2017), as in Optuna's MedianPruner.
    """
    for step in sorted(losses):
        values = [curve[step] for curve in earlier if step in curve]
        if not total_steps * _PRUNE_AFTER <= step < total_steps or len(values) < _PRUNE_TRIALS:
            continue
        bound = statistics.median(values)
        # NaN, the loss of a diverged model, is worse than any bound.
        if not losses[step] <= bound:
            return step, bound
    return 0, 0.0


def _measure_finished(trial: SweepTrial, state: JobState) -> SweepTrial:
    best = (state.result or {}).get("best_step")
    step = best if isinstance(best, int) else trial.step
    report = learning.read_report(state.job.directory, step)
    changes = [outcome.measurements.speech_change for outcome in report.languages]
    languages = {outcome.language for outcome in report.languages}

    # A resume that repeats an evaluation emits its samples again.
    samples: dict[str, SampleGenerated] = {sample.path: sample for sample in state.samples
                                           if sample.step == step and sample.language in languages}
    # Speakers may read the same text, so that a repeated one has its number.
    errors: dict[str, float] = {}
    counts: Counter[str] = Counter()
    for _, sample in sorted(samples.items()):
        sentence = f"{sample.language}: {sample.text}"
        counts[sentence] += 1
        if sample.error is not None:
            errors[sentence if counts[sentence] == 1 else f"{sentence} ({counts[sentence]})"] = sample.error
    return replace(trial, status="finished", step=step, message="", errors=errors, learning=report.learning,
                   outcome=learning.describe_report(report), change=changes[0] if len(changes) == 1 else None)


def rank(record: SweepRecord, options: SweepOptions) -> list[SweepTrial]:
    """The trials, best first: by status, outcome, CER where all finished trials have it, and held-out loss.

    The search for the learning rate goes by the loss alone: a tenth of the steps teaches no language.
    """
    by_cer = all(trial.cer for trial in record.trials if trial.status == "finished")

    def key(numbered: tuple[int, SweepTrial]) -> tuple[float, ...]:
        number, trial = numbered
        # A silent model is no further behind than one that speaks and learned nothing: its loss may be far lower.
        learned = Learning.NOT_LEARNED if trial.learning.bad else trial.learning
        outcome = 0 if options.search == "learning_rate" else _BEST_FIRST.index(learned)
        cer = trial.cer.mean if by_cer and trial.cer else 0.0
        return _STATUS_ORDER.index(trial.status), outcome, cer, trial.loss, number

    return [trial for _, trial in sorted(enumerate(record.trials), key=key)]


def difference(best: SweepTrial, trial: SweepTrial) -> Estimate | None:
    """The CER of `trial` minus that of `best`, paired by sentence; None if the sentences differ or are too few."""
    if len(best.errors) < 2 or best.errors.keys() != trial.errors.keys():
        return None
    return learning.paired_change(list(best.errors.values()), [trial.errors[sentence] for sentence in best.errors])


def summary(trial: SweepTrial) -> str:
    """What was varied in a trial and what came of it, on one line."""
    parts = [f"{trial.description}: {trial.status}"]
    if math.isfinite(trial.loss):
        parts.append(f"held-out loss {trial.loss:.3f} at step {trial.step}")
    if trial.change:
        parts.append(f"{trial.change} nats since step 0")
    if trial.cer:
        parts.append(f"CER {trial.cer.mean:.1%} ({trial.cer.low:.1%} to {trial.cer.high:.1%})")
    parts += [text for text in (trial.outcome, trial.message) if text]
    return ", ".join(parts)


def recommend(record: SweepRecord, options: SweepOptions) -> str:
    """Which trial to take, with the numbers that say so."""
    ranked = [trial for trial in rank(record, options) if trial.status == "finished"]
    if not ranked:
        return "No trial has finished, so there is nothing to recommend."
    best = ranked[0]
    name = f"trial {record.number(best)} ({best.description})"
    evidence = f"held-out speech loss {best.loss:.3f} at step {best.step}"
    if best.change:
        evidence += f", {best.change} nats since step 0"
    if best.cer:
        evidence += f"; CER {best.cer.mean:.1%} ({best.cer.low:.1%} to {best.cer.high:.1%}, {best.cer.count} sentences)"
    if best.change and not best.change.mean < 0:
        return f"No trial lowered the held-out loss; the best is {name}: {evidence}. Train for more steps."
    if options.search != "learning_rate" and best.learning.bad:
        return f"No trial learned the language; the best is {name}: {evidence}. {best.outcome}."

    sentences = [f"Take {name}: {evidence}."]
    if len(ranked) > 1:
        other = ranked[1]
        sentences.append(f"The next is trial {record.number(other)} ({other.description}) with {other.loss:.3f}"
                         + (f" and CER {other.cer.mean:.1%}." if other.cer else "."))
    tied = [str(record.number(trial)) for trial in ranked[1:] if is_tied(best, trial)]
    if tied:
        sentences.append(f"Trial{'s' if len(tied) > 1 else ''} {', '.join(tied)} cannot be told apart from it: the "
                         "95% intervals include no difference.")
    if options.search == "learning_rate":
        number = record.number(best)
        edge = {1: "smallest", record.count: "largest"}.get(number)
        if edge:
            sentences.append(f"It is the {edge} one tried: search again around it.")
        share = "tenth" if options.length.steps >= 10 * _MIN_STEPS else "part"
        sentences.append(f"Each trial took a {share} of the steps, so a whole run is the test.")
    return " ".join(sentences)


def is_tied(best: SweepTrial, trial: SweepTrial) -> bool:
    """Whether the difference of two trials may be chance: by sentence where CER was measured, else by the intervals of
    their changes.
    """
    paired = difference(best, trial)
    if paired:
        return paired.low <= 0 <= paired.high
    return bool(best.change and trial.change and trial.change.low <= best.change.high)
