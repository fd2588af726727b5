"""A run from end to end on a small world: what it says, keeps, and does when something is wrong."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from config.errors import UserError
from config.schema import CertifyOptions
from core import certify, train, wait_policy
from core.jobs import checkpoint_names
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.events import CheckpointSaved, Event
from core.jobs.reporter import StopRequested, describe, memory_text
from core.library import certificate, checkpoints
from core.library.checkpoints import RankingMetric
from core.model.loading import load, load_checkpoint, load_extension
from core.training.trainer import Diverged
from core.workspace import Workspace
from tests.unit.short_runs import measured_as, started
from tests.worlds import Listener, train_and_certify, train_options
from ui.certificate import certificate_view

CPU = torch.device("cpu")


def test_a_run_says_what_it_will_train_before_the_first_step(world: Workspace) -> None:
    events = started(world).events
    plan = next(event for event in events if event.kind == "plan")
    assert events.index(plan) < next(index for index, event in enumerate(events) if event.kind == "step")
    assert plan.lines[0] == ("Trains 11 new embedding rows and adapters of 4.2 k parameters; 30.6 k parameters "
                             "frozen.")


def test_each_step_tells_of_its_memory_and_rates_and_the_log_says_the_memory(world: Workspace) -> None:
    steps = started(world, steps=2, evaluation_sentences=0).of("step")
    chosen = train_options()
    assert [list(step.learning_rates) for step in steps] == [["rows", "adapters"]] * 2
    assert steps[0].learning_rates["adapters"] / steps[0].learning_rates["rows"] == pytest.approx(
        chosen.optimization.adapter_lr / chosen.optimization.row_lr, rel=1e-3)
    assert [step.memory_of for step in steps] == ["process", "process"]
    assert 0 < steps[0].memory_bytes <= steps[1].memory_bytes
    assert f"process memory at most {memory_text(steps[1].memory_bytes)}" in describe(steps[1])


def test_a_run_keeps_the_best_and_the_last_checkpoint(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([3.0, 1.0, 2.0, 2.5])
    measured_as(monkeypatch, losses)
    listener = started(world, steps=8, checkpoint_every=2, evaluation_sentences=0, keep_last=1)
    assert checkpoint_steps(listener.directory) == [4, 8]
    ranked = checkpoints.read_ranking(listener.directory)
    assert (ranked.metric, ranked.best) == (RankingMetric.SPEECH_LOSS, 4)
    assert [(event.step, event.best) for event in listener.of("checkpoint")] == [
        (2, False), (2, True), (4, False), (4, True), (6, False), (8, False)]


@pytest.mark.parametrize(("second", "best"), [(2.0, [False]), (0.5, [True])])
def test_a_killed_run_reports_its_checkpoint_when_it_has_resumed(
        world: Workspace, monkeypatch: pytest.MonkeyPatch, second: float, best: list[bool]) -> None:
    class Killed(BaseException):
        """Nothing that the run catches."""

    class Deaf(Listener):
        def emit(self, event: Event) -> None:
            if isinstance(event, CheckpointSaved) and event.step == 4:
                raise Killed
            super().emit(event)

    measured_as(monkeypatch, iter([1.0, second]))
    options = train_options(steps=4, checkpoint_every=2, evaluation_sentences=0)
    with pytest.raises(Killed):
        train.run(options, world, Deaf(world.runs / "one"))
    assert checkpoint_steps(world.runs / "one") == [2, 4]
    resumed = Listener(world.runs / "one")
    train.run(options, world, resumed)
    assert [event.best for event in resumed.of("checkpoint") if event.step == 4] == best


def test_the_last_ones_and_those_with_a_name_are_kept(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    measured_as(monkeypatch, losses)
    changes = {"checkpoint_every": 1, "evaluation_sentences": 0, "keep_last": 3}
    run = started(world, stop_after=4, **changes).directory
    assert checkpoint_steps(run) == [1, 2, 3, 4]
    checkpoint_names.pin(run, 3, "good")
    started(world, **changes)
    assert checkpoint_steps(run) == [1, 3, 6, 7, 8]


def test_the_best_checkpoint_is_chosen_by_judged_speech_and_not_by_loss(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, errors = iter([3.0, 2.0]), iter([0.2, 0.9])
    measured_as(monkeypatch, losses)
    monkeypatch.setattr("core.training.checkpoint_evaluation.TrainingRun._synthesize",
                        lambda self: ({"am": next(errors)}, {}, []))
    ranked = checkpoints.read_ranking(started(world).directory)
    assert (ranked.metric, ranked.best, ranked.values) == (RankingMetric.CER, 4, {4: 0.2, 8: 0.9})


def test_samples_are_spoken_at_each_checkpoint(world: Workspace) -> None:
    listener = started(world)
    made = listener.of("sample")
    assert [event.step for event in made] == [4, 4, 8, 8]
    for event in made:
        assert (listener.directory / event.path).stat().st_size > 1000
        assert event.error is not None


def test_in_full_a_sentence_of_two_base_languages_is_heard_before_the_first_step_and_at_each_checkpoint(
        world: Workspace) -> None:
    listener = started(world, scope="full", steps=4, evaluation_sentences=4)
    made = listener.of("sample")
    assert [(event.step, event.language) for event in made] == [
        (0, "en"), (0, "fr"), *[(4, "am")] * 4, (4, "en"), (4, "fr")]
    assert [event.text for event in made[:2]] == [event.text for event in made[-2:]]
    assert all((listener.directory / event.path).stat().st_size > 1000 for event in made)
    assert all(list(event.errors) in ([], ["am"]) for event in listener.of("evaluated"))


def test_a_run_ends_with_a_certificate_of_its_best_checkpoint(world: Workspace) -> None:
    listener = Listener(world.runs / "one")
    assert train_and_certify(train_options(), world, listener)["certificate"] == "passed"
    made = certificate.read(listener.directory / certificate.CERTIFICATE)
    assert made.failed() == ()
    assert made.step == checkpoints.read_ranking(listener.directory).best
    assert {error.language: error.new for error in made.errors} == {"en": False, "fr": False, "am": True}
    environment = json.loads((listener.directory / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__.partition("+")[0]
    assert environment["threads"] == torch.get_num_threads()
    assert environment["wait_policy"] == wait_policy.description(torch.get_num_threads())


def test_a_stop_saves_the_step_it_came_at(world: Workspace) -> None:
    listener = started(world, stop_after=3)
    assert checkpoint_steps(listener.directory) == [3]
    assert [(event.step, event.best) for event in listener.of("checkpoint")] == [(3, False)]


def test_a_stop_counts_the_steps_of_the_schedule(world: Workspace) -> None:
    with pytest.raises(StopRequested, match="Stopped after step 1 of 2, which is saved"):
        train.run(train_options(steps=800, max_epochs=0.5), world, Listener(world.runs / "one", stop_after=1))


def test_a_time_limit_is_said_and_the_run_is_whole(world: Workspace) -> None:
    listener = started(world, max_minutes=1e-6)
    assert [(event.step, event.total_steps) for event in listener.of("step")] == [(1, 1)]  # the schedule ends there
    assert any("time limit" in event.message for event in listener.of("warning"))
    assert checkpoint_steps(listener.directory) == [1]
    again = Listener(listener.directory)
    result = train.run(train_options(max_minutes=1e-6), world, again)
    assert result["certificate"] == "not proven yet"
    assert result["beside_programs_s"] >= 0
    assert [stage.name for stage in again.of("stage") if stage.seconds is None] == ["load"]  # no probe of memory


def test_a_loss_that_is_no_number_names_the_step_and_the_clips(world: Workspace) -> None:
    options = train_options(row_lr=1.0, adapter_lr=1.0, max_grad_norm=1000.0, steps=200, warmup=0,
                            evaluation_sentences=0, checkpoint_every=500)
    with pytest.raises(UserError, match=r"diverged at step \d+: speech loss .*nan.*clips of the step: 0\d\d") as caught:
        train.run(options, _exploding(world), Listener(world.runs / "one"))
    assert isinstance(caught.value.__cause__, Diverged)
    assert "lower learning rates" in caught.value.hint


def _exploding(world: Workspace) -> Workspace:
    """Features with an infinite speaker embedding."""
    from safetensors.numpy import load_file, save_file

    for path in world.cache.rglob("*.safetensors"):
        arrays = load_file(path)
        arrays["speaker_embedding"][:] = float("inf")
        save_file(arrays, path)
    return world


def test_another_dataset_under_the_same_name_does_not_resume(world: Workspace) -> None:
    from tests.worlds import write_dataset

    started(world, stop_after=2)
    shutil.rmtree(world.datasets / "demo-am")
    write_dataset(world, train=10)
    with pytest.raises(UserError, match="not the one this run began with: its clips, texts or splits"):
        train.run(train_options(), world, Listener(world.runs / "one"))


@pytest.mark.parametrize(("changes", "said"), [
    ({"scope": "full"}, "scope full, wanted gated .the optimizer's parameter groups"),
    ({"adapter_rank": 2}, "adapter_rank 2, wanted 4 .the checkpoint's adapters"),
    ({"steps": 12, "batch_size": 2}, "steps 12, wanted 8 .the learning rate depends on it.*; "
                                     "batch_size 2, wanted 4 .the order of the clips depends on it."),
    ({"extension": "other", "row_lr": 0.1}, "extension other, wanted tiny-am"),
])
def test_other_options_do_not_resume_a_run(world: Workspace, changes: dict[str, object], said: str) -> None:
    run = started(world, stop_after=2).directory
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file())
    with pytest.raises(UserError, match=f"differs from that of the checkpoint of step 2: .*{said}") as caught:
        train.run(train_options(**changes), world, Listener(run))
    assert "Restore these values and resume, or start a new run" in caught.value.hint
    assert "--init-from run:one@2" in caught.value.hint
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()) == before


def test_where_and_how_long_a_run_goes_on_may_change(world: Workspace) -> None:
    run = started(world, stop_after=2).directory
    train.run(train_options(max_minutes=9.0, checkpoint_every=3), world, Listener(run))
    assert checkpoint_steps(run)[-1] == 8


def test_a_changed_base_model_is_refused(world: Workspace) -> None:
    from tests.worlds import write_model

    started(world, stop_after=2)
    shutil.rmtree(world.models / "tiny")
    write_model(world.models / "tiny", seed=5)
    with pytest.raises(UserError, match="was made for a base model of 46 text rows"):
        load_extension(world, "tiny-am", CPU)
    with pytest.raises(UserError, match="was made for a base model"):
        train.run(train_options(), world, Listener(world.runs / "one"))


def test_clips_that_cannot_be_used_are_counted_and_named(world: Workspace) -> None:
    victim = next(world.cache.rglob("*.safetensors"))
    victim.unlink()
    listener = started(world, stop_after=1)
    message = listener.of("warning")[0].message
    assert message.startswith("1 clip left out (no features in the cache")


def test_a_language_no_judge_knows_is_chosen_by_loss_and_said(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.tiny.family.Tiny.load_recogniser", lambda self, folder: None)
    listener = started(world)
    assert "No recogniser for 'am'" in listener.of("warning")[0].message
    assert checkpoints.read_ranking(listener.directory).metric is RankingMetric.SPEECH_LOSS
    certify.run(CertifyOptions(run="run:one"), world, listener)
    proof = certificate.read(listener.directory / certificate.CERTIFICATE)
    assert proof.check("character_error_rates").result == "not proven"
    shown = str(certificate_view(proof))
    assert "checks passed" in shown
    assert "Amharic was not measured. Trained for 8 steps." in shown


def test_adapters_load_with_peft_itself(world: Workspace) -> None:
    from peft import PeftModel

    run = started(world).directory
    finetuned = load_checkpoint(world, checkpoint_names.folder_of(run, 8), CPU)
    plain = load(world, "base:tiny", CPU)
    wrapped = PeftModel.from_pretrained(plain.lm.module, str(checkpoint_names.folder_of(run, 8) / "adapter"))
    theirs = {name: value for name, value in wrapped.named_parameters() if "lora_" in name}
    assert finetuned.adapters is not None
    ours = finetuned.adapters.parameters()
    assert len(theirs) == len(ours)
    assert all(torch.equal(theirs[f"base_model.model.{name}"], value) for name, value in ours.items())
