"""Sweeps: which trials there are, which are pruned, how they rank, and that a kill changes none of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import gradio as gr
import pytest

from config.errors import UserError
from config.loading import parse_options
from config.schema import SweepOptions, TrainOptions
from core import sweep, train
from core.jobs import control
from core.jobs.events import Evaluated, Event, Finished, Journal, SampleGenerated, Started, Step
from core.jobs.job import Job, create_job
from core.jobs.reporter import JournalReporter
from core.jobs.state import JobState
from core.library import learning, sweeps
from core.library.learning import Estimate, Learning, LearningRecord, LearningReport
from core.library.sweeps import SweepRecord, SweepTrial
from core.workspace import Workspace
from scripts.command import read_grid
from tests.unit.core.library.test_learning import HEALTHY
from tests.worlds import Listener, extended_world, train_options, train_settings
from ui import sweeps as page
from ui.form import Value, build_form
from ui.live import View
from ui.markup import NOTHING
from ui.page import Page

CURVES = ({2: 3.0, 4: 2.0, 6: 1.5}, {2: 3.2, 4: 2.4, 6: 1.7})


def options(**changes: object) -> SweepOptions:
    return parse_options(SweepOptions, {**train_settings(), "vary": "adapter_lr: 0.001, 0.002", **changes})


def test_a_grid_is_each_combination_and_equal_values_count_once() -> None:
    chosen = options(vary="adapter-lr: 1e-3, 0.001, 0.002\nadapter_rank: 4, 8")
    assert sweeps.check_sweep(chosen) == 4
    assert [sweeps.propose(chosen, [SweepTrial("", {})] * index) for index in range(4)] == [
        {"adapter_lr": rate, "adapter_rank": rank} for rate in (0.001, 0.002) for rank in (4, 8)]


def test_a_grid_of_billions_is_not_built_for_a_few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def counted(*values: Sequence[object]) -> Iterator[tuple[object, ...]]:
        for combination in itertools.product(*values):
            drawn.append(combination)
            assert len(drawn) < 10, "combinations that no trial takes are built"
            yield combination

    monkeypatch.setattr(sweeps, "product", counted)
    chosen = options(vary="; ".join(f"{name}: 0.001, 0.002, 0.003" for name in ("row_lr", "adapter_lr", "layer_lr")),
                     trials=3)
    assert sweeps.check_sweep(chosen) == 3
    assert sweeps.propose(chosen, [SweepTrial("", {})] * 2)["layer_lr"] == 0.003


@pytest.mark.parametrize(("changes", "words"), [
    ({"vary": ""}, "No option is varied"),
    ({"vary": "adapter_lrr: 1, 2"}, "'adapter_lrr' is not an option of a training"),
    ({"vary": "adapter_lr"}, "'adapter_lr' does not say which option it is a value of"),
    ({"vary": "adapter_lr: 3, 0.1"}, "adapter_lr: .*less than or equal to 1"),
    ({"vary": "adapter_lr: "}, "'adapter_lr' has no values"),
    ({"vary": "seed: 1; seed: 2"}, "'seed' is varied twice"),
    ({"vary": f"seed: {', '.join(map(str, range(201)))}"}, "201 combinations; a sweep has at most 200"),
    ({"search": "learning_rate"}, "varies the learning rates alone, and `vary` is 'adapter_lr: 0.001, 0.002'"),
    ({"search": "learning_rate", "vary": "", "trials": 3}, "has 5 trials, and `trials` is 3"),
])
def test_what_is_no_sweep_is_refused_in_a_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        sweeps.check_sweep(options(**changes))
    assert caught.value.hint


def test_the_search_for_the_learning_rate_takes_five_values_and_a_tenth_of_the_steps() -> None:
    chosen = options(search="learning_rate", vary="", steps=800, warmup=30, scope="gated")
    assert sweeps.check_sweep(chosen) == 5
    trials = [sweeps.trial_options(chosen, sweeps.propose(chosen, [SweepTrial("", {})] * index)) for index in range(5)]
    assert [trial.optimization.adapter_lr for trial in trials] == pytest.approx([0.0002, 0.0006, 0.002, 0.006, 0.02])
    assert [trial.optimization.row_lr / trial.optimization.adapter_lr for trial in trials] == pytest.approx([2.5] * 5)
    assert {(trial.length.steps, trial.optimization.warmup, trial.evaluation.evaluation_sentences)
            for trial in trials} == {(80, 3, 0)}
    # The run that goes on has the whole length again.
    further = sweeps.further_options(chosen, SweepTrial("s-03", {"adapter_lr": 0.006}))
    assert (further.length.steps, further.optimization.adapter_lr) == (800, 0.006)
    assert further.checkpoints.init_from == "run:s-03"


@pytest.mark.parametrize("scope", ["rows", "gated", "full"])
def test_the_varied_learning_rates_are_those_that_the_scope_trains(scope: str) -> None:
    names = {"rows": {"row_lr"}, "gated": {"row_lr", "adapter_lr"}, "full": {"row_lr", "layer_lr", "head_lr"}}
    assert sweeps.learning_rate_changes(options(search="learning_rate", scope=scope))[0].keys() == names[scope]


def test_a_list_in_a_grid_file_is_varied(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("steps: 80\nadapter_lr: [1e-3, 2e-3]\nscope: [rows, gated]\n", encoding="utf-8")
    assert read_grid(str(path)) == {"steps": 80, "vary": "adapter_lr: 1e-3, 2e-3; scope: rows, gated"}


@pytest.mark.parametrize(("values", "shown"), [
    ("adapter_rank_mlp: [null, 8]", "'adapter_rank_mlp' with null"),
    ("init_from: ['run:a,b', 'run:c']", "'init_from' with 'run:a,b'"),
    ("init_from: ['', 'run:c']", "'init_from' with ''"),
    ("replay_datasets: [[one, two], [three]]", r"'replay_datasets' with \['one', 'two'\]"),
])
def test_a_value_that_cannot_be_varied_is_refused(tmp_path: Path, values: str, shown: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(values, encoding="utf-8")
    with pytest.raises(UserError, match=f"plan.yaml varies {shown}; a varied value must be a number"):
        read_grid(str(path))


@pytest.mark.parametrize(("losses", "step"), [
    ({2: 3.0, 4: 2.0, 6: 1.4}, 0),
    ({2: 9.0, 4: 2.1, 6: 1.6}, 0),  # before a third of the steps nothing is decided
    ({2: 3.0, 4: 2.3, 6: 1.4}, 4),
    ({2: 3.0, 4: 2.0, 6: math.nan}, 6),
    ({2: 3.0, 4: 2.0, 6: 1.5, 9: 9.0}, 0),  # the last step is the end
])
def test_a_trial_above_the_median_is_pruned(losses: dict[int, float], step: int) -> None:
    assert sweeps.prune_point(losses, CURVES, 9)[0] == step
    assert sweeps.prune_point(losses, CURVES[:1], 9)[0] == 0


def finished(folder: Path, loss: float, errors: Sequence[float | None],
             report: Learning = Learning.LEARNED) -> JobState:
    folder.mkdir()
    outcome = dataclasses.replace(LearningReport.from_measurements(6, [HEALTHY]), learning=report)
    learning.write_learning(folder, LearningRecord().with_report(outcome))
    language = HEALTHY.language
    samples = [SampleGenerated(6, language, f"text {index}", f"{index:02d}.wav", error)
               for index, error in enumerate(errors)]
    # A resume repeats what it evaluated last.
    return JobState(Job(folder, "train", "cpu", (), 1.0, {}), "finished", result={"best_step": 6},
                    steps=[Step(6, 6, 1.0, 1.0, {}, 1.0, 1.0, 1.0, 0.0)],
                    evaluations=[Evaluated(6, loss)] * 2, samples=samples * 2)


def test_each_reading_of_a_text_counts(tmp_path: Path) -> None:
    state = finished(tmp_path / "a", 1.0, (0.1, 0.9, None, 0.2))
    samples = [dataclasses.replace(sample, text="the same") for sample in state.samples]
    trial = sweeps.measure(SweepTrial("s-0", {"seed": 0}), dataclasses.replace(state, samples=samples), (), prune=True)
    language = HEALTHY.language
    assert trial.errors == {f"{language}: the same": 0.1, f"{language}: the same (2)": 0.9,
                            f"{language}: the same (4)": 0.2}


def test_outcome_comes_before_cer_and_that_before_the_loss(tmp_path: Path) -> None:
    states = [finished(tmp_path / "a", 1.0, (0.5, 0.4, 0.6)), finished(tmp_path / "b", 2.0, (0.1, 0.2, 0.15)),
              finished(tmp_path / "c", 0.5, (0.0, 0.0, 0.0), Learning.NOT_LEARNED)]
    record = SweepRecord(4)
    for index, state in enumerate([*states, None]):
        trial = sweeps.measure(SweepTrial(f"s-{index}", {"seed": index}), state, record.trials, prune=True)
        record = dataclasses.replace(record, trials=(*record.trials, trial))
    assert [trial.run for trial in sweeps.rank(record, options())] == ["s-1", "s-0", "s-2", "s-3"]
    assert [trial.run for trial in sweeps.rank(record, options(search="learning_rate"))][0] == "s-2"
    best = record.trials[1]
    assert list(best.errors.values()) == [0.1, 0.2, 0.15]
    assert best.cer == Estimate.from_values((0.1, 0.2, 0.15))
    assert not sweeps.is_tied(best, record.trials[0])
    words = sweeps.recommend(record, options())
    assert words.startswith("Take trial 2 (seed 1): held-out speech loss 2.000 at step 6")
    assert "CER 15.0%" in words
    # What is written is what is read.
    sweeps.write_sweep(tmp_path, record)
    assert sweeps.read_sweep(tmp_path) == record
    table = page.ranking_table(record, options())
    assert table.index("seed 1") < table.index("seed 0") < table.index("seed 2")


def test_trials_that_lack_different_sentences_are_not_paired(tmp_path: Path) -> None:
    states = [finished(tmp_path / "a", 1.0, (0.1, 0.2, None)), finished(tmp_path / "b", 2.0, (None, 0.2, 0.9)),
              finished(tmp_path / "c", 2.0, (0.2, 0.2, None))]
    first, second, third = [sweeps.measure(SweepTrial(f"s-{index}", {}), state, (), prune=False)
                            for index, state in enumerate(states)]
    assert first.cer == Estimate.from_values((0.1, 0.2))
    assert sweeps.difference(first, second) is None
    assert sweeps.difference(first, third) == Estimate.from_values((0.1, 0.0))


def test_the_best_at_the_edge_and_a_chance_difference_are_said() -> None:
    chosen = options(search="learning_rate", vary="", steps=800)
    change = Estimate(-0.5, -0.6, -0.4, 8)
    trials = tuple(SweepTrial(f"s-{index}", {"row_lr": rate}, "finished", "", 80, {80: 2.0 - rate}, change)
                   for index, rate in enumerate((0.1, 0.2, 0.3)))
    words = sweeps.recommend(SweepRecord(3, trials), chosen)
    assert "Take trial 3 (row_lr 0.3): held-out speech loss 1.700 at step 80" in words
    assert "It is the largest one tried" in words
    assert "Trials 2, 1 cannot be told apart from it" in words
    rising = tuple(dataclasses.replace(trial, change=Estimate(0.2, 0.1, 0.3, 8)) for trial in trials)
    assert sweeps.recommend(SweepRecord(3, rising), chosen).startswith("No trial lowered the held-out loss")


def optuna_trials(chosen: SweepOptions, losses: Sequence[float]) -> list[SweepTrial]:
    """The trials of a search whose runs end with `losses`, read again from JSON before each proposal."""
    trials: list[SweepTrial] = []
    for loss in losses:
        changes = json.loads(json.dumps(sweeps.propose(chosen, trials)))
        trials.append(SweepTrial("", changes, "finished", "", 1, {1: loss}))
    return trials


def test_optuna_proposes_the_same_after_a_resume() -> None:
    pytest.importorskip("optuna", reason="optuna is optional: pip install optuna")
    chosen = options(search="optuna", trials=4,
                     vary="adapter_lr: 0.0001, 0.01; adapter_rank: 4, 16; scope: rows, gated")
    assert sweeps.check_sweep(chosen) == 4
    trials = optuna_trials(chosen, (0, 1, 2, 3))
    assert trials == optuna_trials(chosen, (0, 1, 2, 3))
    assert len({str(trial.changes) for trial in trials}) > 1
    assert all(0.0001 <= trial.changes["adapter_lr"] <= 0.01 for trial in trials)


def test_optuna_proposes_values_near_those_with_a_low_loss() -> None:
    pytest.importorskip("optuna", reason="optuna is optional: pip install optuna")
    rates = (0.0001, 0.0002, 0.0005, 0.002, 0.005, 0.01)

    def mean_proposal(losses: Sequence[float]) -> float:
        """The geometric mean of the learning rates proposed with ten seeds."""
        trials = [SweepTrial("", {"adapter_lr": rate}, "finished", "", 1, {1: loss})
                  for rate, loss in zip(rates, losses, strict=True)]
        return statistics.geometric_mean(
            sweeps.propose(options(search="optuna", vary="adapter_lr: 0.0001, 0.01", seed=seed), trials)["adapter_lr"]
            for seed in range(10))

    assert mean_proposal((1, 2, 3, 4, 5, math.nan)) < 0.0005
    assert mean_proposal((math.nan, 5, 4, 3, 2, 1)) > 0.002


def test_optuna_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="its package is not installed"):
        sweeps.check_sweep(options(search="optuna"))


def test_the_page_starts_a_sweep_with_the_options_of_the_form() -> None:
    with gr.Blocks():
        form = build_form(TrainOptions)
    values: list[Value] = [getattr(widget, "value", None) for widget in form.widgets]
    values[form.names.index("adapter_rank")] = 8
    chosen = page.options_of(form, values, ["grid", "row_lr: 0.01, 0.02", "0", "False"])
    assert (chosen.adapters.adapter_rank, chosen.vary, chosen.prune) == (8, "row_lr: 0.01, 0.02", False)
    assert sweeps.check_sweep(chosen) == 2


def test_the_page_shows_ranking_recommendation_and_all_curves(tmp_path: Path) -> None:
    chosen = options(vary="row_lr: 0.1, 0.2, 0.3")
    trials = tuple(SweepTrial(f"s-{index}", {"row_lr": rate}, "finished", "", 80, {40: 3.0, 80: 2.0 - rate},
                         Estimate(-0.5, -0.6, -0.4, 8), Learning.LEARNED)
                   for index, rate in enumerate((0.1, 0.2)))
    sweeps.write_sweep(tmp_path, SweepRecord(3, trials))
    job = JobState(Job(tmp_path, "sweep", "none", (), 1.0, chosen.model_dump(mode="json")), "running", started_at=1.0)
    view = View("train", {"sweep": "", "sweep.trial": ""}, (job,))
    shown = page.result_view(view)
    assert "Take trial 2 (row_lr 0.2): held-out speech loss 1.800 at step 80" in shown
    assert "1 more to come." in shown
    curves = page.curves_view(view, compare=lambda states, logarithmic, by_time: NOTHING)
    assert "row_lr 0.1" in curves
    assert "row_lr 0.2" in curves
    choices = cast(dict[str, object], page.trial_choices(view))["choices"]
    assert choices == [("the best", ""), ("s-1: row_lr 0.2", "s-1"), ("s-0: row_lr 0.1", "s-0")]


def test_without_a_choice_the_newest_sweep_is_trained_further(workspace: Workspace) -> None:
    chosen = options(vary="row_lr: 0.1, 0.2")
    job = create_job(workspace, "sweep", chosen, job_id="rates")
    sweeps.write_sweep(job.directory, SweepRecord(2, (SweepTrial("rates-01", {"row_lr": 0.2}, "finished"),)))
    started: list[TrainOptions] = []
    board = SimpleNamespace(states=lambda: (control.read_state(job),))

    def start(verb: str, run_options: TrainOptions) -> None:
        started.append(run_options)

    small_page = SimpleNamespace(workspace=workspace, live=SimpleNamespace(board=board), start=start,
                                 started_notice=lambda job: NOTHING)
    page.train_further(cast(Page, small_page), "", "")
    (run_options,) = started
    assert (run_options.checkpoints.init_from, run_options.optimization.row_lr) == ("run:rates-01", 0.2)


class Killed(BaseException):
    """The end of a process without a word."""


class InlineWorkers:
    """Trains in this process what a sweep starts; `kill_after`: so many events later all of it dies, once."""

    def __init__(self, kill_after: int = 0) -> None:
        self.kill_after, self.started = kill_after, list[str]()

    def start(self, job: Job, *, resuming: bool = False) -> None:
        lock = control.enqueue(job, resuming=resuming)
        journal = Journal(job.journal)
        self.started.append(job.id)
        try:
            journal.append(Started(1, 1))
            reporter = JournalReporter(journal, job.stop_file.exists, self.count)
            result = train.run(cast(TrainOptions, job.options()), job.workspace, reporter)
            journal.append(Finished(result))
        finally:
            journal.close()
            lock.release()

    def count(self, _event: Event) -> None:
        self.kill_after -= 1
        if self.kill_after == 0:
            raise Killed

    def resume(self, job: Job) -> None:
        self.start(job, resuming=True)


def swept(world: Workspace, name: str, kills: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> SweepRecord:
    """A sweep that is killed after so many events of its trainings, and resumed each time."""
    chosen = options(steps=4, checkpoint_every=2, evaluation_sentences=0, vary="row_lr: 0.3, 0.1, 0.001")
    for kill in (*kills, 0):
        workers = InlineWorkers(kill)
        monkeypatch.setattr(sweep.control, "start", workers.start)
        monkeypatch.setattr(sweep.control, "resume", workers.resume)
        if kill:
            with pytest.raises(Killed):
                sweep.run(chosen, world, Listener(world.runs / name))
        else:
            sweep.run(chosen, world, Listener(world.runs / name))
    record = sweeps.read_sweep(world.runs / name)
    assert record is not None
    return record


def test_a_job_that_has_the_id_of_a_trial_is_not_taken_for_it(workspace: Workspace) -> None:
    create_job(workspace, "train", train_options(), job_id="rates-01")
    folder = workspace.runs / "rates"
    with pytest.raises(UserError, match="A job named 'rates-01' already exists"):
        sweep.run(options(), workspace, Listener(folder))
    assert sweeps.read_sweep(folder) is None


def test_a_trial_that_is_refused_is_listed_as_failed_and_the_others_run(tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    world = extended_world(tmp_path / "workspace")
    workers = InlineWorkers()
    monkeypatch.setattr(sweep.control, "start", workers.start)
    chosen = options(steps=2, checkpoint_every=2, evaluation_sentences=0, vary=f"dataset: nosuch, {options().dataset}")
    folder = Listener(world.runs / "datasets")
    sweep.run(chosen, world, folder)
    record = sweeps.read_sweep(world.runs / "datasets")
    assert record is not None
    assert [trial.status for trial in record.trials] == ["failed", "finished"]
    assert "There is no dataset named 'nosuch'" in record.trials[0].message
    assert workers.started == ["datasets-02"]  # the refused trial left no folder


def without_names(record: SweepRecord) -> list[SweepTrial]:
    return [dataclasses.replace(trial, run="") for trial in sweeps.rank(record, options())]


def test_a_killed_sweep_ends_with_the_ranking_of_one_that_was_not(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    world = extended_world(tmp_path / "workspace")
    whole = swept(world, "whole", (), monkeypatch)
    killed = swept(world, "killed", (9, 25), monkeypatch)
    assert without_names(killed) == without_names(whole)
    assert [trial.changes["row_lr"] for trial in sweeps.rank(whole, options())] == [0.3, 0.1, 0.001]
    assert [trial.status for trial in whole.trials] == ["finished", "finished", "pruned"]

    # Without its record it finds its trials again, as the hint about a damaged record promises.
    (world.runs / "whole" / sweeps.SWEEP).unlink()
    assert swept(world, "whole", (), monkeypatch) == whole
