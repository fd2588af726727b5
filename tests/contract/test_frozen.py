"""Whatever is chosen and in whatever order it is done: what a run does not train does not move, not by a bit."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.training import opening, training_data
from core.training.fitting import Setting
from core.training.optimization import Diverged
from core.training.trainer import Trainer
from core.voice_model.precision import Precision
from core.voice_model.prefix import base_tensors, hash_tensors
from models.base import LossOptions
from tests.contract.conftest import CPU, World
from tests.contract.test_full import clips
from tests.worlds import train_options

OPTIONS = st.fixed_dictionaries({
    "scope": st.sampled_from(["rows", "gated", "full"]),
    "full_changes": st.sampled_from(["everything", "layers", "heads", "adapters"]),
    "adapter": st.sampled_from(["lora", "dora", "adalora"]),
    "adapter_rank_heads": st.sampled_from([None, 0]),
    "schedule": st.sampled_from(["cosine", "linear", "constant"]),
    "ema": st.sampled_from([0.0, 0.9]),
    "weight_decay": st.sampled_from([0.0, 1.0]),
    "row_rate": st.sampled_from([1e-3, 1.0]),
    "layer_rate": st.sampled_from([1e-4, 1.0]),
    "adapter_rate": st.sampled_from([1e-3, 1.0]),
    "layer_decay": st.sampled_from([0.5, 1.0]),
    "clip": st.sampled_from([0.1, 1000.0]),
    "accumulation": st.integers(1, 2),
    "replay": st.sampled_from([0.0, 0.5]),
    "distillation": st.sampled_from([0.0, 1.0]),
    "l2_sp": st.sampled_from([0.0, 0.1]),
    "ewc": st.sampled_from([0.0, 0.1]),
    "attention_weight": st.sampled_from([0.0, 0.1]),
    "activation_checkpointing": st.sampled_from(["off", "on"]),
})
TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
ACTIONS = st.lists(st.sampled_from(["step", "try", "speak", "go on", "halve"]), min_size=1, max_size=3)


def trainer_of(world: World, chosen: dict[str, object], dtype: torch.dtype) -> Trainer:
    options = train_options(steps=5, warmup=0, batch_size=2, fisher_clips=2, **chosen)
    voice = opening.new_voice(options, world.workspace, CPU)
    data = training_data.load(world.workspace, options.dataset, voice)
    return Trainer(options, voice, data, clips(world)[:4], Precision("cpu", dtype, "for the test"))


def act(trainer: Trainer, action: str) -> None:
    if action == "step":
        trainer.take_step()
    elif action == "try":
        trainer.attempt(trainer.by_length()[-2:])
    elif action == "halve":
        trainer.use(Setting(2, trainer.setting.recompute))
    elif action == "go on":
        trainer.restore(trainer.state())
    else:
        model, samples = trainer.voice.model, trainer.draw()[0].samples
        with trainer.averaged(), trainer.voice.speaking_each(["en", "am"]), torch.no_grad():
            model.module.tfmr(torch.zeros(2, 3, model.module.config.decoder.width))
        with trainer.voice.speaking("en"), trainer.precision.autocast(), torch.no_grad():
            model.losses(samples, LossOptions())


@settings(max_examples=10, deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(chosen=OPTIONS, dtype=TYPES, actions=ACTIONS)
def test_no_sequence_of_options_and_actions_moves_a_frozen_tensor(
        world: World, chosen: dict[str, object], dtype: torch.dtype, actions: list[str]) -> None:
    trainer = trainer_of(world, chosen, dtype)
    module, tables = trainer.voice.model.module, trainer.voice.model.text_tables
    frozen = {name for name in base_tensors(module) if name not in trainer.trained.base}
    assert {f"{table}.weight" for table in tables} <= frozen
    before = {name: value.clone() for name, value in base_tensors(module).items() if name in frozen}
    try:
        for action in ["step", *actions, "step"]:
            act(trainer, action)
    except Diverged:  # at a rate of 1 some do; what is frozen is frozen all the same
        pass
    after = base_tensors(module)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert hash_tensors({name: after[name] for name in frozen}) == hash_tensors(before)
    assert trainer.frozen_hash == trainer.voice.base_hash
    held = {id(value) for group in trainer.optimizer.param_groups for value in group["params"]}
    assert held == {id(value) for value in trainer.trained.named.values()}
