"""What every family must keep while it learns."""

from __future__ import annotations

import pytest
import torch

from core import optimization
from core.prefix import base_tensors, hash_tensors
from models.base import LossOptions
from tests.contract.conftest import World

HARD = {"weight_decay": 0.1, "clip": 0.5, "accumulation": 2, "adapter_dropout": 0.1, "steps": 6, "row_rate": 0.1}


def test_one_batch_overfits(world: World) -> None:
    trainer = world.trainer(batch_size=4, adapter_rank=32, adapter_dropout=0.0, text_dropout=0.0, code_dropout=0.0,
                            attention_weight=0.0, text_loss_weight=1.0)
    batch = trainer.draw().samples
    optimizer = torch.optim.AdamW(trainer.trained.named.values(), lr=1e-2)
    with trainer.voice.speaking("am"):
        losses = [optimization.step(trainer.voice, [batch], trainer.trained, optimizer, trainer.options,
                                    trainer.precision, torch.Generator()) for _ in range(300)]
    assert losses[-1].speech < 0.05 * losses[0].speech
    assert losses[-1].text < 0.2 * losses[0].text


@pytest.mark.parametrize("scope", ["rows", "gated", "full"])
def test_the_prefix_and_all_frozen_tensors_do_not_move(world: World, scope: str) -> None:
    trainer = world.trainer(bfloat16=True, scope=scope, **HARD)
    module = trainer.voice.model.module
    before = {name: value.clone() for name, value in base_tensors(module).items()}
    for _ in range(6):
        trainer.take_step()
    after = base_tensors(module)
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert hash_tensors(after) == world.base().base_hash


@pytest.mark.parametrize("scope", ["rows", "gated", "full"])
def test_what_changes_is_what_the_plan_counts(world: World, scope: str) -> None:
    trainer = world.trainer(scope=scope, **HARD, text_dropout=0.0)
    module, counts = trainer.voice.model.module, trainer.counts
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(6):
        trainer.take_step()
    after = module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(trainer.trained.named)
    assert sum(after[name].numel() for name in changed) == counts.row_parameters + counts.adapter_parameters
    assert sum(value.numel() for value in after.values()) == (
        counts.row_parameters + counts.adapter_parameters + counts.base_parameters)
    for table in trainer.voice.model.text_tables:
        moved = (before[f"{table}.new"] != after[f"{table}.new"]).any(-1)
        assert len(after[f"{table}.weight"]) == counts.old_rows
        assert len(moved) == counts.new_rows
    assert moved.all()  # of the head: every row is pushed down where it is not the target


@pytest.mark.parametrize("scope", ["rows", "gated"])
def test_base_logits_stay_equal_to_the_bit(world: World, scope: str) -> None:
    base, trainer = world.base(), world.trainer(scope=scope, **HARD)
    for _ in range(6):
        trainer.take_step()
    probes = world.probes()
    assert {item.language for item in probes} == set(base.front_end.base_languages)
    for item in probes:
        before = base.model.probe(item.sample)
        with trainer.voice.speaking(item.language):
            after = trainer.voice.model.probe(item.sample)
        assert torch.equal(before.speech_logits, after.speech_logits)
        assert torch.equal(before.text_logits, after.text_logits[:, :base.front_end.prefix_size])


def test_adapters_do_change_the_new_language(world: World) -> None:
    trainer = world.trainer(scope="gated", **HARD)
    for _ in range(6):
        trainer.take_step()
    sample = trainer.draw().samples[0]
    with trainer.voice.speaking("am"):
        spoken = trainer.voice.model.probe(sample).speech_logits
    with trainer.voice.speaking("en"):
        plain = trainer.voice.model.probe(sample).speech_logits
    assert not torch.equal(spoken, plain)


def test_full_drifts_on_base_languages(world: World) -> None:
    """The measure of drift must be able to see one."""
    base, trainer = world.base(), world.trainer(scope="full", **HARD)
    for _ in range(6):
        trainer.take_step()
    item = world.probes()[0]
    with trainer.voice.speaking(item.language):
        after = trainer.voice.model.probe(item.sample)
    assert not torch.equal(base.model.probe(item.sample).speech_logits, after.speech_logits)


def test_a_sample_costs_the_same_alone_and_in_company(world: World) -> None:
    trainer = world.trainer()
    model, samples = trainer.voice.model, trainer.draw().samples
    model.module.eval()
    with torch.no_grad():
        together = model.losses(samples, LossOptions())
        alone = [model.losses([sample], LossOptions()) for sample in samples]
    assert together.speech_count == sum(sample.speech_targets for sample in samples)
    assert together.text_count == sum(sample.text_targets for sample in samples)
    torch.testing.assert_close(together.speech_sum, torch.stack([one.speech_sum for one in alone]).sum())
    torch.testing.assert_close(together.text_sum, torch.stack([one.text_sum for one in alone]).sum())


def test_accumulation_changes_memory_and_not_the_gradient(world: World) -> None:
    trainer = world.trainer(text_dropout=0.0, code_dropout=0.0, adapter_dropout=0.0, batch_size=6)
    samples = trainer.draw().samples
    gradients = []
    for parts in ([samples], [samples[:1], samples[1:3], samples[3:]]):
        optimizer = torch.optim.SGD(trainer.trained.named.values(), lr=0.0)
        with trainer.voice.speaking("am"):
            optimization.step(trainer.voice, parts, trainer.trained, optimizer, trainer.options.model_copy(
                update={"clip": 1e3}), trainer.precision, torch.Generator())
        gradients.append({name: value.grad.clone() for name, value in trainer.trained.named.items()})
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name], rtol=1e-4, atol=1e-6)


def test_losses_are_those_of_the_logits(world: World) -> None:
    """Position i predicts token i + 1, and the last code predicts a stop."""
    trainer = world.trainer()
    sample = trainer.draw().samples[0]
    model = trainer.voice.model
    model.module.eval()
    with torch.no_grad():
        losses, probe = model.losses([sample], LossOptions()), model.probe(sample)
    chances = probe.speech_logits.float().log_softmax(-1)
    codes = torch.from_numpy(sample.speech_codes)
    known = -chances[torch.arange(len(codes)), codes].sum()
    stop = losses.speech_sum - known
    assert torch.isclose(-chances[-1], stop, atol=1e-3).any()
    text = torch.from_numpy(sample.text_ids)
    chances = probe.text_logits.float().log_softmax(-1)
    expected = -chances[torch.arange(len(text) - 1), text[1:]].sum()
    torch.testing.assert_close(losses.text_sum, expected, rtol=1e-4, atol=1e-4)
