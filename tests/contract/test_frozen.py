"""Whatever is chosen and in whatever order it is done: what a run does not train does not move, not by a bit."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from config.schema import TrainOptions, option_fields
from core.model.precision import Precision
from core.model.prefix import base_tensors, hash_tensors
from core.training import checkpoint_evaluation, dataloader, setup
from core.training.dataloader import Utterance
from core.training.memory_plan import MicrobatchPlan
from core.training.trainer import Diverged, Trainer
from models.base import LossOptions
from tests.contract.conftest import World
from tests.contract.test_full import clips
from tests.worlds import DEVICE, train_options

CHOICES = {
    "scope": st.sampled_from(["rows", "gated", "full"]),
    "full_trainable": st.sampled_from(["everything", "layers", "heads", "adapters"]),
    "adapter": st.sampled_from(["lora", "dora", "adalora"]),
    "adapter_rank_heads": st.sampled_from([None, 0]),
    "schedule": st.sampled_from(["cosine", "linear", "constant"]),
    "ema": st.sampled_from([0.0, 0.9]),
    "weight_decay": st.sampled_from([0.0, 1.0]),
    "row_lr": st.sampled_from([1e-3, 1.0]),
    "layer_lr": st.sampled_from([1e-4, 1.0]),
    "adapter_lr": st.sampled_from([1e-3, 1.0]),
    "layer_lr_decay": st.sampled_from([0.5, 1.0]),
    "max_grad_norm": st.sampled_from([0.1, 1000.0]),
    "gradient_accumulation": st.integers(1, 2),
    "replay": st.sampled_from([0.0, 0.5]),
    "distillation": st.sampled_from([0.0, 1.0]),
    "l2_sp": st.sampled_from([0.0, 0.1]),
    "ewc": st.sampled_from([0.0, 0.1]),
    "guided_attention_weight": st.sampled_from([0.0, 0.1]),
    "activation_checkpointing": st.sampled_from(["off", "on"]),
    "adapter_rank": st.sampled_from([2, 4]),
    "adapter_scale": st.sampled_from([0.5, 8.0]),
    "adapter_dropout": st.sampled_from([0.0, 0.5]),
    "text_dropout": st.sampled_from([0.0, 0.9]),
    "code_dropout": st.sampled_from([0.0, 0.7]),
    "head_lr": st.sampled_from([1e-4, 1.0]),
    "min_lr_ratio": st.sampled_from([0.0, 1.0]),
    "warmup": st.sampled_from([0, 3]),
    "augmentation": st.sampled_from([0.0, 0.8]),
    "drift_action": st.sampled_from(["warn", "stop"]),
    "seed": st.integers(0, 3),
}
# What these say changes no tensor: names, counts, time, files, who is told; or it needs CUDA (compile, optimizer).
BESIDE = {"extension", "dataset", "steps", "max_minutes", "max_epochs", "decoder_minutes", "batch_size", "processes",
          "drift_bound", "fisher_clips",
          "adapter_rank_mlp", "adapter_rank_conditioner",
          "text_loss_weight", "replay_datasets", "replay_texts", "checkpoint_every", "keep_last",
          "init_from", "evaluation_sentences", "select_best_by", "validate_every", "validation_disjoint_by", "patience",
          "scale_lr", "min_improvement", "evaluation_texts", "evaluation_unknown", "evaluation_metrics",
          "mismatch_action", "tracker",
          "device", "precision", "compile", "optimizer", "max_attempts", "wait_for_gpu_gib", "wait_for_idle_gpu",
          "recogniser",
          "recogniser_language", "sharding"}
SEED = int(os.environ.get("LISAN_SEED") or secrets.randbits(32))  # of the slow draws: another one each time
MINUTES = float(os.environ.get("LISAN_MINUTES") or 2)
BEGAN: dict[str, float] = {}
TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
ACTIONS = st.lists(st.sampled_from(["step", "try", "speak", "go on", "halve", "guard"]), min_size=1, max_size=3)


def there_is_time(what: str) -> bool:
    """Whether the slow draws of `what` go on: so many minutes from their first one, however fast the machine is."""
    began = BEGAN.setdefault(what, time.monotonic())
    return time.monotonic() - began < 60 * MINUTES


def trainer_of(world: World, chosen: dict[str, object], dtype: torch.dtype) -> Trainer:
    options = train_options(steps=5, batch_size=2, fisher_clips=2, drift_bound=1e-6, **chosen)
    tts = setup.new_model(options, world.workspace, DEVICE)
    data = dataloader.load_training_data(world.workspace, options.dataset, tts)
    if options.data.augmentation:  # other clips stand for variants: these are made where a dataset is prepared
        data = replace(data, variants={item.id: data.train[:2] for item in data.train})
    return Trainer(options, tts, data, clips(world)[:4], Precision(DEVICE.type, dtype, "for the test"))


def measured(trainer: Trainer, drift_clips: Sequence[Utterance]) -> None:
    """The drift guard: base languages measured, with the average in place, and judged."""
    found = checkpoint_evaluation.validation_samples(trainer.tts, trainer.data, drift_clips)
    with trainer.evaluation_weights():
        losses = {language: one.speech_loss for language, one in checkpoint_evaluation.measure_losses(
            trainer.tts, found, 2, trainer.precision).items() if language != "am"}
    before = {language: loss - 1.0 for language, loss in losses.items()}
    checkpoint_evaluation.drift_warning(before, losses, trainer.options.full.drift_bound, trainer.step)


def act(trainer: Trainer, action: str, drift_clips: Sequence[Utterance]) -> None:
    if action == "step":
        trainer.train_step()
    elif action == "try":
        trainer.profile_forward_backward(trainer.loader.by_length()[-2:])
    elif action == "halve":
        trainer.set_microbatch_plan(MicrobatchPlan(2, trainer.microbatch_plan.activation_checkpointing))
    elif action == "go on":
        trainer.load_state_dict(trainer.state_dict())
    elif action == "guard":
        measured(trainer, drift_clips)
    else:
        model, samples = trainer.tts.lm, trainer.loader.next_batches()[0].samples
        adapters_for = trainer.tts.adapters_for_batch(["en", "am"])
        with trainer.evaluation_weights(), adapters_for, trainer.precision.autocast(), torch.no_grad():
            model.module.transformer(torch.zeros(2, 3, model.module.config.decoder.width, device=DEVICE))
        with trainer.tts.adapters_for("en"), trainer.precision.autocast(), torch.no_grad():
            model.losses(samples, LossOptions())


def test_every_option_of_a_training_is_tried_or_changes_no_tensor() -> None:
    assert set(CHOICES) <= set(option_fields(TrainOptions))
    assert set(option_fields(TrainOptions)) - set(CHOICES) <= BESIDE
    assert not set(CHOICES) & BESIDE


@settings(max_examples=10, deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(chosen=st.fixed_dictionaries(CHOICES), dtype=TYPES, actions=ACTIONS)
def test_no_sequence_of_options_and_actions_moves_a_frozen_tensor(
        world: World, chosen: dict[str, object], dtype: torch.dtype, actions: list[str]) -> None:
    check(world, chosen, dtype, actions)


@pytest.mark.slow
@seed(SEED)
@settings(max_examples=1000, deadline=None, database=None, phases=[Phase.generate], print_blob=True,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(chosen=st.fixed_dictionaries(CHOICES), dtype=TYPES, actions=ACTIONS)
def test_no_random_sequence_moves_a_frozen_tensor(
        world: World, chosen: dict[str, object], dtype: torch.dtype, actions: list[str]) -> None:
    note(f"LISAN_SEED={SEED} draws this again")
    if there_is_time(world.case.name):
        check(world, chosen, dtype, actions)


def check(world: World, chosen: dict[str, object], dtype: torch.dtype, actions: list[str]) -> None:
    trainer = trainer_of(world, chosen, dtype)
    module, tables = trainer.tts.lm.module, trainer.tts.lm.text_tables
    frozen = {name for name in base_tensors(module) if name not in trainer.trainables.base}
    assert set(tables) <= frozen
    before = {name: value.clone() for name, value in base_tensors(module).items() if name in frozen}
    try:
        for action in ["step", *actions, "step"]:
            act(trainer, action, clips(world)[4:6])
    except Diverged:  # at a rate of 1 some do; what is frozen is frozen all the same
        pass
    after = base_tensors(module)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert hash_tensors({name: after[name] for name in frozen}) == hash_tensors(before)
    assert trainer.compute_frozen_hash() == trainer.tts.base_hash
    held = {id(value) for group in trainer.optimizer.param_groups for value in group["params"]}
    assert held == {id(value) for value in trainer.trainables.named.values()}
