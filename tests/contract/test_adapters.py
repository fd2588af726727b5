"""Every kind of adapter: new rows train beside it, base languages do not notice it, and it is kept and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel

from config.errors import UserError
from config.schema import AdapterOptions
from core.model.adapters import Adapters, plan_adapters
from core.model.prefix import base_tensors, parameter_name
from core.training import trainer as trainer_module
from core.training.trainer import Trainer, make_optimizer
from models.base import LossOptions, Sampling
from tests.contract.conftest import World
from tests.worlds import DEVICE, ENGLISH

pytestmark = pytest.mark.covering

KINDS = ("lora", "dora", "adalora")
HARD = {"weight_decay": 0.1, "max_grad_norm": 0.5, "adapter_dropout": 0.1, "steps": 9, "warmup": 0, "row_lr": 0.05,
        "adapter_lr": 0.05, "batch_size": 3}
GREEDY = Sampling(temperature=0.0, guidance=0.5)


def trained(world: World, steps: int = 4, dtype: torch.dtype = torch.float32, **changes: object) -> Trainer:
    trainer = world.trainer(dtype, **{**HARD, **changes})
    for _ in range(steps):
        trainer.train_step()
    return trainer


@pytest.mark.parametrize(("kind", "dtype"), [
    ("lora", torch.float32), ("dora", torch.float16), ("dora", torch.bfloat16), ("adalora", torch.float32),
    ("adalora", torch.bfloat16)], ids=str)
def test_new_rows_train_beside_every_kind_and_nothing_of_the_base_moves(
        world: World, kind: str, dtype: torch.dtype) -> None:
    trainer = world.trainer(dtype, adapter=kind, **HARD)
    module = trainer.tts.lm.module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(4):
        trainer.train_step()
    after = module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert trainer.tts.adapters is not None
    allocation, named = trainer.tts.adapters.allocation, trainer.trainables.named
    # AdaLoRA may leave a layer no direction, whose values are then the zeros that they began with.
    lost = {name for name, rank in allocation.ranks().items() if rank == 0} if allocation else set()
    assert changed | lost == set(named)
    assert all(trainer.optimizer.state[named[name]]["exp_avg"].any() for name in lost)  # it was trained until then
    for table in trainer.tts.lm.text_tables:
        rows = trainer.trainables.rows[parameter_name(table)]
        assert rows.requires_grad
        assert rows.grad is not None
        assert (before[parameter_name(table)] != after[parameter_name(table)]).any()
    assert (before["text_head.new"] != after["text_head.new"]).any(-1).all()
    assert trainer.compute_frozen_hash() == trainer.tts.base_hash


@pytest.mark.parametrize("kind", KINDS)
def test_switched_off_every_kind_gives_the_logits_of_the_base_to_the_bit(world: World, kind: str) -> None:
    base, trainer = world.base(), trained(world, adapter=kind)
    assert trainer.tts.adapters is not None
    for item in world.probes()[:2]:
        wanted = base.lm.probe(item.sample)
        with trainer.tts.adapters_for(item.language):
            seen = trainer.tts.lm.probe(item.sample)
        assert torch.equal(wanted.speech_logits, seen.speech_logits)
        assert torch.equal(wanted.text_logits, seen.text_logits[:, :wanted.text_logits.shape[1]])
        with trainer.tts.adapters.enabled(True):
            assert not torch.equal(trainer.tts.lm.probe(item.sample).speech_logits, wanted.speech_logits)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_start_without_effect(world: World, kind: str) -> None:
    trainer = world.trainer(adapter=kind, adapter_dropout=0.0)
    assert trainer.tts.adapters is not None
    item = world.probes()[0]
    with trainer.tts.adapters.enabled(True):
        acting = trainer.tts.lm.probe(item.sample).speech_logits
    torch.testing.assert_close(acting, world.base().lm.probe(item.sample).speech_logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_old_and_new_languages_share_a_batch_and_old_rows_stay_equal_to_the_bit(
        world: World, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every logit of a base row, at every code of a guided batch, is that of a batch without adapters.

    Alone, on a GPU, the texts are spoken by CUDA graphs, whose replays call no hook.
    """
    trainer = trained(world, adapter=kind)
    tts, model = trainer.tts, trainer.tts.lm
    assert tts.adapters is not None
    languages = ["en", "am", "en", "am"]
    texts = [tts.front_end.encode(text, language) for text, language in
             zip((ENGLISH[0], "ሀለመ", ENGLISH[2], "ሰረቀ ሀለ"), languages, strict=True)]
    speaker = next(iter(world.voices(tts).values()))
    with tts.adapters_for("en"):
        plain = model.prepare(speaker)
    with tts.adapters_for("am"):
        adapted = model.prepare(speaker)
    voices = [plain, adapted, plain, adapted]
    seen: list[torch.Tensor] = []
    hook = model.module.transformer.register_forward_hook(lambda _module, _given, made: seen.append(made.clone()))
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "_stepper_for", lambda *_: None)
        with tts.adapters_for_batch(languages):
            together = model.generate(texts, voices, GREEDY)
        mixed, seen[:] = list(seen), []
        with tts.adapters.enabled(False):
            model.generate(texts, voices, GREEDY)
    hook.remove()
    old = torch.arange(0, len(mixed[0]), 2)  # with guidance the rows stand there twice
    assert len(old) == (4 if model.module.guided else 2)
    prefills = mixed[0], seen[0]
    assert torch.equal(prefills[0][old], prefills[1][old])
    assert not torch.equal(prefills[0], prefills[1])
    assert all(torch.equal(one[old], other[old]) for one, other in zip(mixed, seen, strict=False))
    for index, language in enumerate(languages):
        with tts.adapters_for(language):
            alone = model.generate([texts[index]], [voices[index]], GREEDY)[0]
        assert alone.codes.tolist() == together[index].codes.tolist()


def test_a_batch_that_does_not_divide_into_its_rows_is_an_error(world: World) -> None:
    trainer = trained(world, 1)
    assert trainer.tts.adapters is not None
    with trainer.tts.adapters.enabled_for_rows([True, False]), pytest.raises(ValueError, match="rows for a mask of 2"):
        trainer.tts.lm.losses(trainer.loader.next_batches()[0].samples, LossOptions())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_what_was_trained_and_peft_reads_it(world: World, kind: str, tmp_path: Path) -> None:
    trainer = trained(world, 9, adapter=kind, adapter_rank=3, adapter_rank_mlp=None if kind == "adalora" else 2)
    tts = trainer.tts
    assert tts.adapters is not None
    tts.adapters.save(tmp_path)
    again = world.extension()
    adapters = Adapters.load(again.lm.module, tmp_path)
    assert all(torch.equal(value, adapters.tensors()[name]) for name, value in tts.adapters.tensors().items())
    sample = trainer.loader.next_batches()[0].samples[0]
    rows = trainer.trainables.rows
    with torch.no_grad():
        for table in again.lm.text_tables:
            again.lm.module.get_parameter(parameter_name(table)).copy_(rows[parameter_name(table)])
    with tts.adapters_for("am"), adapters.enabled(True):
        wanted = tts.lm.probe(sample).speech_logits
        torch.testing.assert_close(again.lm.probe(sample).speech_logits, wanted, rtol=0, atol=0)
    theirs = world.extension()
    wrapped = PeftModel.from_pretrained(theirs.lm.module, str(tmp_path))
    with torch.no_grad():
        for table in theirs.lm.text_tables:
            theirs.lm.module.get_parameter(parameter_name(table)).copy_(rows[parameter_name(table)])
    theirs.lm.module = wrapped.base_model.model
    torch.testing.assert_close(theirs.lm.probe(sample).speech_logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_what_the_optimizer_of_a_gpu_trained(world: World, kind: str, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """It is fused, and changes parameters without their version, by which DoRA sees that its norms are old."""
    monkeypatch.setattr(trainer_module, "make_optimizer",
                        lambda groups, name, device: make_optimizer(groups, name, torch.device("cuda")))
    trainer = trained(world, adapter=kind)
    assert all(group["fused"] for group in trainer.optimizer.param_groups)
    assert trainer.tts.adapters is not None
    trainer.tts.adapters.save(tmp_path)
    again = world.extension()
    adapters, rows = Adapters.load(again.lm.module, tmp_path), trainer.trainables.rows
    with torch.no_grad():
        for table in again.lm.text_tables:
            again.lm.module.get_parameter(parameter_name(table)).copy_(rows[parameter_name(table)])
    sample = trainer.loader.next_batches()[0].samples[0]
    with trainer.tts.adapters_for("am"), adapters.enabled(True):
        assert torch.equal(again.lm.probe(sample).speech_logits, trainer.tts.lm.probe(sample).speech_logits)


@pytest.mark.parametrize("kind", KINDS)
def test_folded_weights_speak_like_the_adapters(world: World, kind: str) -> None:
    trainer = trained(world, adapter=kind)
    tts, plain = trainer.tts, world.extension()
    assert tts.adapters is not None
    folded, base = tts.adapters.merged_weights(), base_tensors(tts.lm.module)
    layers = {name for name in base if name.endswith("_proj.weight") and not name.startswith("spk_emb_proj.")}
    assert layers < set(folded) < set(base)
    with torch.no_grad():
        for name, value in {**folded, **trainer.trainables.rows}.items():
            plain.lm.module.get_parameter(name).copy_(value)
    sample = trainer.loader.next_batches()[0].samples[0]
    with tts.adapters_for("am"):
        wanted = tts.lm.probe(sample).speech_logits
    torch.testing.assert_close(plain.lm.probe(sample).speech_logits, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="weights are packed on a CPU alone")
@pytest.mark.parametrize(("kind", "form"), [("lora", "int8"), ("dora", "int8"), ("adalora", "bfloat16")])
def test_every_kind_speaks_with_packed_weights(world: World, kind: str, form: str, tmp_path: Path) -> None:
    trainer = trained(world, adapter=kind)
    assert trainer.tts.adapters is not None
    trainer.tts.adapters.save(tmp_path)
    again = world.extension()
    adapters = Adapters.load(again.lm.module, tmp_path)
    sample = trainer.loader.next_batches()[0].samples[0]
    with adapters.enabled(True):
        wanted = again.lm.probe(sample).speech_logits
        again.lm.quantize_(form)
        seen = again.lm.probe(sample).speech_logits
    assert (seen - wanted).abs().max() < 0.1 * wanted.abs().max()
    assert not torch.equal(seen, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_goes_on_from_its_state_as_if_it_had_not_stopped(world: World, kind: str, tmp_path: Path) -> None:
    """Also in the middle of AdaLoRA's sharing out, whose averages decide what is put to zero later."""
    options = {"adapter": kind, **HARD}
    whole = trained(world, 9, adapter=kind)
    first = trained(world, 4, adapter=kind)
    assert first.tts.adapters is not None
    first.tts.adapters.save(tmp_path)
    state, rows = first.state_dict(), {name: value.detach().clone() for name, value in first.trainables.rows.items()}
    again = world.trainer(**options)
    assert again.tts.adapters is not None
    kept = Adapters.load(world.extension().lm.module, tmp_path).tensors()
    with torch.no_grad():
        for name, value in again.tts.adapters.tensors().items():
            value.copy_(kept[name])
        for name, value in again.trainables.rows.items():
            value.copy_(rows[name])
    again.load_state_dict(state)
    for _ in range(5):
        again.train_step()
    for name, value in whole.trainables.named.items():
        assert torch.equal(value, again.trainables.named[name]), name


def test_adalora_shares_its_ranks_out_until_the_budget_is_met(world: World) -> None:
    trainer = world.trainer(**{**HARD, "adapter": "adalora", "steps": 30, "adapter_rank": 4, "adapter_dropout": 0.0,
                               "adapter_lr": 0.01})
    assert trainer.tts.adapters is not None
    allocation = trainer.tts.adapters.allocation
    assert allocation is not None
    for _ in range(30):
        trainer.train_step()
    ranks = allocation.ranks()
    assert sum(ranks.values()) == 4 * len(ranks)
    assert len(set(ranks.values())) > 1  # it is not the same everywhere, or it would be LoRA


def test_ranks_are_per_part_of_the_model(world: World) -> None:
    trainer = world.trainer(adapter_rank=6, adapter_rank_mlp=3, adapter_rank_heads=0, adapter_scale=2.0)
    adapters = trainer.tts.adapters
    assert adapters is not None
    layers = {name.split(".lora_A")[0]: len(value) for name, value in adapters.tensors().items() if ".lora_A" in name}
    targets = {layer: rank for part, rank in (("attention", 6), ("mlp", 3))
               for layer in trainer.tts.lm.adapter_targets[part]}
    ranks = {target: {rank for name, rank in layers.items() if name.endswith(f".{target}")} for target in targets}
    assert ranks == {target: {rank} for target, rank in targets.items()}
    assert all(name.endswith(tuple(targets)) for name in layers)
    scalings = {layer.scaling["default"] for layer in adapters.module.modules() if hasattr(layer, "lora_variant")}
    assert scalings == {2.0}


def test_adapters_that_cannot_be_made_are_refused_with_the_way_out(world: World) -> None:
    targets = world.base().lm.adapter_targets
    with pytest.raises(UserError, match="rank 0 in every part") as caught:
        plan_adapters(AdapterOptions(adapter_rank=0), targets, 8)
    assert "scope `rows`" in caught.value.hint
    with pytest.raises(UserError, match="one budget .* attention 8, mlp 4, heads 8"):
        plan_adapters(AdapterOptions(adapter="adalora", adapter_rank=8, adapter_rank_mlp=4), targets, 8)
    plan = plan_adapters(AdapterOptions(adapter="adalora", adapter_rank=4, adapter_rank_heads=0), targets, 8)
    assert set(plan.ranks.values()) == {4}
