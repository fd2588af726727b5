"""What every family must keep while it learns."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from core import compute
from core.model.prefix import base_tensors, parameter_name
from core.training.memory_plan import MicrobatchPlan
from models.base import LossOptions, Sample, Sampling
from tests.contract.conftest import World
from tests.worlds import DEVICE

pytestmark = pytest.mark.covering

OPTIONAL = {"ja", "ru", "zh"}  # their text needs packages that may not be installed
HALVES = (torch.float32, torch.bfloat16, torch.float16)
HARD = {"weight_decay": 0.1, "max_grad_norm": 0.5, "gradient_accumulation": 2, "adapter_dropout": 0.1, "steps": 6,
        "row_lr": 0.1,
        "full_trainable": "adapters"}  # what of the base `full` can train: test_full.py


def test_one_batch_overfits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = world.trainer(batch_size=4, adapter_rank=32, adapter_dropout=0.0, text_dropout=0.0, code_dropout=0.0,
                            guided_attention_weight=0.0, text_loss_weight=1.0, row_lr=5e-3, adapter_lr=5e-3,
                            weight_decay=0.01, schedule="constant", warmup=0)
    batches = trainer.loader.next_batches()
    monkeypatch.setattr(trainer.loader, "next_batches", lambda: batches)
    losses = [trainer.train_step() for _ in range(100)]
    assert losses[-1].speech < 0.05 * losses[0].speech
    assert losses[-1].text < 0.2 * losses[0].text


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scope", ["rows", "gated", "full"])
def test_the_prefix_and_all_frozen_tensors_do_not_move(world: World, scope: str, dtype: torch.dtype) -> None:
    trainer = world.trainer(dtype, scope=scope, **HARD)
    module, base = trainer.tts.lm.module, world.base().lm.module.state_dict()
    before = {name: value.clone() for name, value in base_tensors(module).items()}
    assert all(torch.equal(before[name], base[name].to(dtype)) for name in base)
    for _ in range(6):
        trainer.train_step()
    after = base_tensors(module)
    assert before.keys() == after.keys() == base.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert trainer.compute_frozen_hash() == world.base().base_hash


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_frozen_tensor_that_moved_is_told(world: World, dtype: torch.dtype) -> None:
    trainer = world.trainer(dtype)
    next(iter(base_tensors(trainer.tts.lm.module).values())).view(-1)[0] += 1.0
    assert trainer.compute_frozen_hash() != world.base().base_hash


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scope", ["rows", "gated"])
def test_only_what_is_trained_is_float32_and_has_gradient_and_state(
        world: World, scope: str, dtype: torch.dtype) -> None:
    trainer = world.trainer(dtype, scope=scope, **HARD)
    optimizer = trainer.optimizer
    for _ in range(2):
        trainer.train_step()
    named = dict(trainer.tts.lm.module.named_parameters())
    assert {name for name, value in named.items() if value.grad is not None} == set(trainer.trainables.named)
    assert {name for name, value in named.items() if value.requires_grad} == set(trainer.trainables.named)
    assert all(value.dtype == torch.float32 for value in trainer.trainables.named.values())
    assert {value.dtype for value in base_tensors(trainer.tts.lm.module).values()} == {dtype}
    held = [value for group in optimizer.param_groups for value in group["params"]]
    assert set(map(id, held)) == set(map(id, trainer.trainables.named.values()))
    assert all(moment.dtype == torch.float32 for state in optimizer.state.values() for moment in state.values())


@pytest.mark.parametrize("dtype", HALVES[1:], ids=str)
def test_half_precision_learns_what_float32_learns(world: World, dtype: torch.dtype) -> None:
    plain = {"adapter_dropout": 0.0, "row_lr": 1e-2, "steps": 12}
    exact, halved = world.trainer(**plain), world.trainer(dtype, **plain)
    pairs = [(exact.train_step(), halved.train_step()) for _ in range(12)]
    for one, other in pairs:
        assert other.speech == pytest.approx(one.speech, rel=0.02)
        assert other.text == pytest.approx(one.text, rel=0.02)
    assert pairs[-1][1].text < 0.9 * pairs[0][1].text


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("scope", ["rows", "gated"])
def test_a_model_in_training_speaks(world: World, scope: str, dtype: torch.dtype) -> None:
    """What is greedily said is what the model finds likeliest when it is told the truth, up to rounding."""
    trainer = world.trainer(dtype, scope=scope, **HARD)
    for _ in range(3):
        trainer.train_step()
    tts, model = trainer.tts, trainer.tts.lm
    ids, speaker = tts.front_end.encode("ሀለመ ሰረቀ",
                                        "am"), next(iter(world.voices(tts).values()))
    with tts.adapters_for("am"):
        codes = model.generate([ids], [speaker], Sampling(temperature=0.0, guidance=0.0))[0].codes
        logits = model.probe(Sample(ids, codes, speaker.conditioning)).speech_logits.float()
    assert len(codes) > 0
    chosen = logits[torch.arange(len(codes)), torch.from_numpy(codes)]
    best = logits[:len(codes), :world.case.codes].amax(-1)
    assert (best - chosen).max() <= (0.0 if dtype == torch.float32 else 0.05 * logits.abs().max())


@pytest.mark.parametrize("scope", ["rows", "gated", "full"])
def test_what_changes_is_what_the_plan_counts(world: World, scope: str) -> None:
    trainer = world.trainer(scope=scope, **HARD, text_dropout=0.0)
    module, counts = trainer.tts.lm.module, trainer.counts
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(6):
        trainer.train_step()
    after = module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(trainer.trainables.named)
    assert sum(after[name].numel() for name in changed) == counts.row_parameters + counts.adapter_parameters
    assert sum(value.numel() for value in after.values()) == (
        counts.row_parameters + counts.adapter_parameters + counts.frozen_parameters)
    for table in trainer.tts.lm.text_tables:
        rows = after[parameter_name(table)]
        moved = (before[parameter_name(table)] != rows).reshape(len(rows), -1).any(-1)
        if table == trainer.tts.lm.language_table:
            assert moved.tolist() == [True]  # of the one new language
            continue
        assert len(after[table]) == counts.old_rows
        assert len(moved) == counts.new_rows
        if "head" in table:
            assert moved.all()  # every row is pushed down where it is not the target


@pytest.mark.parametrize("scope", ["rows", "gated"])
def test_base_logits_stay_equal_to_the_bit(world: World, scope: str) -> None:
    base, trainer = world.base(), world.trainer(scope=scope, **HARD)
    for _ in range(6):
        trainer.train_step()
    probes = world.probes()
    assert {item.language for item in probes} >= set(base.front_end.base_languages) - OPTIONAL
    for item in probes:
        before = base.lm.probe(item.sample)
        with trainer.tts.adapters_for(item.language):
            after = trainer.tts.lm.probe(item.sample)
        assert torch.equal(before.speech_logits, after.speech_logits)
        assert torch.equal(before.text_logits, after.text_logits[:, :base.front_end.prefix_size])


def test_adapters_do_change_the_new_language(world: World) -> None:
    trainer = world.trainer(scope="gated", **HARD)
    for _ in range(6):
        trainer.train_step()
    sample = trainer.loader.next_batches()[0].samples[0]
    with trainer.tts.adapters_for("am"):
        spoken = trainer.tts.lm.probe(sample).speech_logits
    with trainer.tts.adapters_for("en"):
        plain = trainer.tts.lm.probe(sample).speech_logits
    assert not torch.equal(spoken, plain)


def test_full_drifts_on_base_languages(world: World) -> None:
    """The measure of drift must be able to see one."""
    base, trainer = world.base(), world.trainer(scope="full", **HARD)
    for _ in range(6):
        trainer.train_step()
    item = world.probes()[0]
    with trainer.tts.adapters_for(item.language):
        after = trainer.tts.lm.probe(item.sample)
    assert not torch.equal(base.lm.probe(item.sample).speech_logits, after.speech_logits)


def test_a_sample_costs_the_same_alone_and_in_company(world: World) -> None:
    trainer = world.trainer()
    model, samples = trainer.tts.lm, trainer.loader.next_batches()[0].samples
    model.module.eval()
    with torch.no_grad():
        together = model.losses(samples, LossOptions())
        alone = [model.losses([sample], LossOptions()) for sample in samples]
    assert together.speech_count == sum(sample.speech_targets for sample in samples)
    assert together.text_count == sum(sample.text_targets for sample in samples)
    torch.testing.assert_close(together.speech_sum, torch.stack([one.speech_sum for one in alone]).sum())
    torch.testing.assert_close(together.text_sum, torch.stack([one.text_sum for one in alone]).sum())


def test_how_a_step_is_cut_changes_memory_and_not_the_gradient(world: World) -> None:
    """Not even with text and codes hidden, because that hangs on each sample's own seed."""
    gradients = []
    for splits in (1, 3, 4):  # micro-batches of 6, 2, and of 2 and 1 clips
        trainer = world.trainer(text_dropout=0.5, code_dropout=0.5, adapter_dropout=0.0, batch_size=6,
                                gradient_accumulation=2, max_grad_norm=1e3)
        trainer.set_microbatch_plan(MicrobatchPlan(splits))
        trainer.train_step()
        gradients.append({name: value.grad.clone() for name, value in trainer.trainables.named.items()})
    for others in gradients[1:]:
        for name, value in gradients[0].items():
            torch.testing.assert_close(value, others[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("scope", "dtype"), [
    ("rows", torch.float32), ("gated", torch.float32), ("gated", torch.bfloat16)], ids=str)
def test_recomputed_activations_change_nothing_to_the_bit(world: World, scope: str, dtype: torch.dtype) -> None:
    options = {"scope": scope, "adapter_dropout": 0.3, "steps": 4}
    # On a GPU torch warns that the backward of its faster attention adds in any order, even as `deterministic` asks.
    attention = sdpa_kernel(SDPBackend.MATH) if DEVICE.type == "cuda" else nullcontext()
    with compute.deterministic(), attention:
        plain = world.trainer(dtype, activation_checkpointing="off", **options)
        wanted = [plain.train_step() for _ in range(4)]
        saving = world.trainer(dtype, activation_checkpointing="on", **options)
        assert saving.microbatch_plan.activation_checkpointing
        assert [saving.train_step() for _ in range(4)] == wanted
    for name, value in plain.trainables.named.items():
        assert torch.equal(value, saving.trainables.named[name])


def test_losses_are_those_of_the_logits(world: World) -> None:
    """Position i predicts token i + 1, and the last code predicts a stop."""
    trainer = world.trainer()
    sample = trainer.loader.next_batches()[0].samples[0]
    model = trainer.tts.lm
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
