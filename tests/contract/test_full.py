"""Scope `full`: all but the prefix really trains, what was trained is what is kept, and the base can be held on to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from core import export, train
from core.jobs.checkpoint_names import folder_of
from core.jobs.events import Evaluated, Journal
from core.jobs.job import create_job
from core.jobs.reporter import StopRequested, pluralize
from core.library import certificate
from core.model.loading import load, load_checkpoint
from core.model.precision import Precision
from core.model.prefix import base_tensors
from core.proof import certification
from core.training import checkpoint, checkpoint_evaluation, dataloader, parameter_groups, setup
from core.training.dataloader import Utterance
from core.training.trainer import Trainer
from core.training.weight_regularization import WeightRegularizer
from models.base import LossOptions
from tests.contract.conftest import World
from tests.contract.test_resume import evaluations, losses
from tests.worlds import DEVICE, Listener, export_options, extended_world, train_options

pytestmark = pytest.mark.covering

FULL = {"scope": "full", "steps": 6, "warmup": 0, "batch_size": 3, "text_dropout": 0.0, "adapter_dropout": 0.0}


def rehearsing(world: World, dtype: torch.dtype = torch.float32, **changes: object) -> Trainer:
    """A trainer with clips to replay, also where the family has none: those of the dataset under a base language."""
    options = train_options(**{**FULL, **changes})
    tts = setup.new_model(options, world.workspace, DEVICE)
    data = dataloader.load_training_data(world.workspace, options.dataset, tts)
    return Trainer(options, tts, data, clips(world), Precision(DEVICE.type, dtype, "for the test"))


def clips(world: World) -> tuple[Utterance, ...]:
    tts = world.base()
    ids = tts.front_end.encode("the cat", "en")
    data = dataloader.load_training_data(world.workspace, "demo-am", world.extension())
    return tuple(replace(item, language="en", text="the cat", text_ids=ids) for item in data.train)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("changes", ["everything", "layers", "heads"])
def test_what_is_asked_for_really_trains_and_nothing_else(world: World, changes: str, dtype: torch.dtype) -> None:
    trainer = rehearsing(world, dtype, full_trainable=changes, replay=0.34)
    module = trainer.tts.lm.module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(3):
        trainer.train_step()
    after = module.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(trainer.trainables.named)
    parts = {trainer.tts.lm.parameter_group(name)[0] for name in trainer.trainables.base}
    assert parts == {"everything": {"embeddings", "layers", "heads"}, "layers": {"layers", "heads"},
                     "heads": {"heads"}}[changes]
    for table in trainer.tts.lm.text_tables:
        assert table not in moved
    everything = set(base_tensors(module)) - set(trainer.tts.lm.text_tables)
    if changes == "everything":
        unread = {name for name in everything if trainer.tts.lm.parameter_group(name)[0] == "unused"}
        assert everything - moved <= unread
    assert all(after[name].dtype == torch.float32 for name in moved)
    assert trainer.compute_frozen_hash() == trainer.tts.base_hash
    assert trainer.counts.changed_parameters == sum(value.numel() for value in trainer.trainables.base.values())


def test_every_layer_has_its_rate_and_rows_and_base_are_not_decayed(world: World) -> None:
    trainer = rehearsing(world, layer_lr=1e-3, head_lr=2e-3, layer_lr_decay=0.5, row_lr=1e-2, weight_decay=0.3)
    rates = {group.name: group.lr for group in trainer.parameter_groups}
    assert rates == {"rows": 1e-2, "heads": 2e-3, "layer 1 from the top": 1e-3, "layer 2 from the top": 5e-4,
                     "embeddings": 2.5e-4}
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.0}
    trainer.train_step()
    assert [group["lr"] for group in trainer.optimizer.param_groups] == list(rates.values())
    counted = [value for group in trainer.parameter_groups for value in group.parameters.values()]
    assert sorted(map(id, counted)) == sorted(map(id, trainer.trainables.named.values()))
    table = parameter_groups.describe_groups(trainer.parameter_groups)
    tensors = pluralize(len(trainer.tts.lm.text_tables), "tensor")
    assert table[0] == (f"rows: {trainer.counts.row_parameters:,} parameters in {tensors}, learning rate 0.01, "
                        "no weight decay")
    assert len(table) == 5
    lines = parameter_groups.describe_groups(rehearsing(world).parameter_groups)
    assert len(lines) == 4  # layers of one rate are one line


def test_distillation_keeps_the_base_languages_nearer(world: World) -> None:
    def divergence(**changes: object) -> float:
        trainer = rehearsing(world, layer_lr=1e-2, head_lr=1e-2, replay=0.34, **changes)
        for _ in range(8):
            trainer.train_step()
        samples = [dataloader.make_sample(item, item, trainer.tts.lm) for item in clips(world)[:4]]
        teacher = world.base().lm.predictions(samples, LossOptions())
        with torch.no_grad():
            found = trainer.tts.lm.losses(samples, LossOptions(), teacher=teacher).speech_divergence
        assert found is not None
        return float(found)

    assert divergence(distillation=100.0) < 0.8 * divergence()


def test_the_teacher_is_the_base_to_the_bit_whatever_was_learnt(world: World) -> None:
    for changes in ("everything", "adapters"):
        trainer = rehearsing(world, full_trainable=changes, distillation=1.0, l2_sp=0.1 * (changes == "everything"))
        samples = [dataloader.make_sample(item, item, trainer.tts.lm) for item in clips(world)[:2]]
        wanted = world.base().lm.predictions(samples, LossOptions())
        for _ in range(3):
            trainer.train_step()
        with trainer.initial_weights():
            seen = trainer.tts.lm.predictions(samples, LossOptions())
        assert torch.equal(wanted.text, seen.text)
        assert torch.equal(wanted.speech, seen.speech)
        assert not torch.equal(trainer.tts.lm.predictions(samples, LossOptions()).speech, wanted.speech)


def test_no_divergence_from_oneself(world: World) -> None:
    model = world.base().lm
    samples = [dataloader.make_sample(item, item, model) for item in clips(world)[:2]]
    found = model.losses(samples, LossOptions(), teacher=model.predictions(samples, LossOptions()))
    assert found.speech_divergence is not None
    assert abs(float(found.speech_divergence)) < 1e-3


def test_pulls_have_the_gradient_of_their_penalty() -> None:
    start = torch.tensor([1.0, 2.0, -1.0])
    value = torch.nn.Parameter(torch.tensor([1.5, 2.0, -3.0]))
    regularizer = WeightRegularizer({"w": value}, {"w": start})
    regularizer.importance = {"w": torch.tensor([1.0, 2.0, 3.0])}
    own = torch.tensor([0.1, 0.2, 0.3])
    value.grad = own.clone()
    regularizer.add_gradients(0.5, 2.0)
    free = value.detach().clone().requires_grad_(True)
    penalty = 0.25 * (free - start).square().sum() + (regularizer.importance["w"] * (free - start).square()).sum()
    wanted, = torch.autograd.grad(penalty, free)
    torch.testing.assert_close(value.grad, own + wanted)
    with regularizer.initial_weights():
        assert torch.equal(value.data, start)
    assert value[0] == 1.5


@pytest.mark.parametrize("pull", ["l2_sp", "ewc"])
def test_a_pull_keeps_the_base_nearer(world: World, pull: str) -> None:
    def gone(**changes: object) -> float:
        trainer = rehearsing(world, layer_lr=1e-3, head_lr=1e-3, max_grad_norm=1e3, **changes)
        base = dict(world.base().lm.module.named_parameters())
        for _ in range(6):
            trainer.train_step()
        return sum((value - base[name]).square().sum().item() for name, value in trainer.trainables.base.items())

    assert gone(**{pull: 100.0}) < 0.9 * gone()


def test_importance_is_the_mean_squared_gradient_of_the_base(world: World) -> None:
    trainer = rehearsing(world, full_trainable="heads", ewc=1.0, fisher_clips=3)
    regularizer = trainer.regularizer
    assert regularizer is not None
    squares: dict[str, torch.Tensor] = {}
    for item in clips(world)[:3]:
        found = trainer.tts.lm.losses([dataloader.make_sample(item, item, trainer.tts.lm)], LossOptions())
        named = trainer.trainables.base
        for name, value in zip(named, torch.autograd.grad(found.speech_sum / found.speech_count, list(named.values())),
                               strict=True):
            squares[name] = squares.get(name, 0) + value.square()
    mean = sum(value.sum() for value in squares.values()) / sum(value.numel() for value in squares.values())
    for name, value in squares.items():
        torch.testing.assert_close(regularizer.importance[name], value / mean, rtol=1e-3, atol=1e-5)


def test_importance_without_clips_is_refused(world: World) -> None:
    options = train_options(**FULL, ewc=1.0)
    tts = setup.new_model(options, world.workspace, DEVICE)
    data = dataloader.load_training_data(world.workspace, options.dataset, tts)
    with pytest.raises(UserError, match="estimated on replayed clips; there are none"):
        Trainer(options, tts, data, (), Precision(DEVICE.type, torch.float32, "for the test"))


def test_a_run_in_full_is_kept_resumed_and_certified(world: World) -> None:
    options = train_options(**{**FULL, "steps": 5, "checkpoint_every": 3, "l2_sp": 0.1, "distillation": 0.5,
                               "ema": 0.9, "layer_lr_decay": 0.8, "layer_lr": 1e-2, "text_dropout": 0.3,
                               "evaluation_sentences": 1, "replay_texts": world.few_sentences()})
    whole, parts = (Listener(world.workspace.runs / f"full-{name}") for name in ("whole", "parts"))
    train.run(options, world.workspace, whole)
    parts.stop_after = 2
    torch.manual_seed(99)  # nothing may hang on what the process drew before
    with pytest.raises(StopRequested):
        train.run(options, world.workspace, parts)
    resumed = Listener(parts.directory)
    train.run(options, world.workspace, resumed)
    assert losses([parts, resumed]) == losses([whole])
    assert evaluations([parts, resumed]) == evaluations([whole])
    one, other = (load_checkpoint(world.workspace, folder_of(made.directory, 5), DEVICE, keep_base=True)
                  for made in (whole, parts))
    first, second = one.lm.module.state_dict(), other.lm.module.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    base = world.base().lm.module.state_dict()
    assert all(torch.equal(one.base_values[name], base[name]) for name in one.changed)
    assert one.changed
    assert not any(torch.equal(first[name], base[name]) for name in one.changed if name.endswith("norm.weight"))
    states = [checkpoint.load_state(made.directory, 5) for made in (whole, parts)]
    assert all(torch.equal(states[0].tensors[name], states[1].tensors[name])
               for name in states[0].tensors if "cuda" not in name)
    assert states[0].base_losses == states[1].base_losses != {}
    assert states[0].schedule == states[1].schedule
    made = certification.certify_folder(world.workspace, folder_of(whole.directory, 5), DEVICE, sentences=1)
    assert made.failed() == ()
    assert made.check("changed_tensors").result == "measured"
    assert {check.name for check in made.checks} <= set(certificate.CHECKS)
    begun: list[Evaluated] = whole.of("evaluated")
    if world.case.name == "tiny":
        assert begun[0].step == 0
        assert set(begun[0].languages) == {"am", *world.case.texts}


def test_a_changed_base_is_exported_and_reloads_to_the_bit(tmp_path: Path) -> None:
    workspace = extended_world(tmp_path)
    options = train_options(scope="full", steps=2, checkpoint_every=2, evaluation_sentences=0)
    made = create_job(workspace, "train", options, job_id="one")
    listener = Listener(made.directory)
    train.run(options, workspace, listener)
    journal = Journal(made.journal)
    for event in listener.of("checkpoint"):
        journal.append(event)
    journal.close()
    result = export.run(export_options(run="run:one", export="whole"), workspace, Listener(workspace.runs / "export"))
    assert (result["export_reloads"], result["changed_tensors"]) == ("passed", "measured")
    there, run = load(workspace, "export:whole", DEVICE), load(workspace, "run:one", DEVICE)
    tensors = there.lm.module.state_dict()
    assert all(torch.equal(value, tensors[name]) for name, value in run.lm.module.state_dict().items())
    assert there.base_hash == run.base_hash
    assert run.changed


def test_drift_past_the_bound_is_named() -> None:
    before = {"en": 2.0, "fr": 2.5}
    assert checkpoint_evaluation.drift_warning(before, {"en": 2.19, "fr": 1.0}, 0.2, 7) == ""
    said = checkpoint_evaluation.drift_warning(before, {"en": 2.3, "fr": 2.4}, 0.2, 7)
    assert said.startswith("At step 7 the loss of base languages is more than 0.2 nats a code above that before the "
                           "training: en 2.000 to 2.300 (+0.300).")
    assert checkpoint_evaluation.drift_warning({}, {"en": 9.0}, 0.2, 7) == ""
    broken = checkpoint_evaluation.drift_warning(before, {"en": 2.3, "fr": float("nan")}, 0.2, 7)
    assert "training: fr 2.500 to nan (+nan), en 2.000 to 2.300 (+0.300)." in broken
    assert "en 2.000 to nan" in checkpoint_evaluation.drift_warning(before, {"en": float("nan"), "fr": 2.5}, 0.2, 7)
