"""Gated adapters of IndexTTS2's conditioner: they change speaker and emotion of the new language alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions, with_values
from core.library.catalog import CATALOG
from core.model.adapters import AdapterPlan, Adapters, plan_adapters
from models import generate, merged_adapters
from models.base import LossOptions, Sample, Sampling, Voice
from models.indextts2.unified_voice import (
    IndexTTS2LanguageModel,
    UnifiedVoice,
    conditioner_layers,
    language_model,
    load,
)
from models.language_model import TransformerLanguageModel
from tests.unit.models.indextts2.test_unified_voice import CPU, SMALL, published

SMALL_2_5 = replace(SMALL, speaker=None, style=192, languages=110)
ALONE = parse_options(TrainOptions, {"adapter_rank": 0, "adapter_rank_conditioner": 4, "seed": 1})


def fresh(config: object = SMALL) -> IndexTTS2LanguageModel:
    module = load(published(SMALL), "gpt.pth") if config is SMALL else UnifiedVoice(SMALL_2_5)
    if not module.config.speaker:
        module.language_of = torch.zeros(8, dtype=torch.long)
    module.requires_grad_(False)
    module.eval()
    return language_model(module, CPU, 600)


def replace_options(**changes: object) -> TrainOptions:
    return with_values(ALONE, changes)


def plan_of(model: IndexTTS2LanguageModel, options: TrainOptions) -> AdapterPlan:
    return plan_adapters(options.adapters, model.adapter_targets, options.length.steps)


def adapted(model: IndexTTS2LanguageModel, options: TrainOptions = ALONE) -> Adapters:
    """Adapters as a training leaves them: their second factors are no longer zero."""
    adapters = Adapters.fresh(model.module, plan_of(model, options), options.seed)
    noise = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, value in adapters.parameters().items():
            if ".lora_B" in name or ".lora_E" in name:
                value.copy_(torch.randn(value.shape, generator=noise) * 0.3)
    model.module.eval()
    return adapters


@pytest.fixture(params=["2.0", "2.5"])
def model(request: pytest.FixtureRequest) -> IndexTTS2LanguageModel:
    torch.manual_seed(2)
    return fresh(SMALL if request.param == "2.0" else SMALL_2_5)


def samples(model: IndexTTS2LanguageModel) -> list[Sample]:
    noise = np.random.default_rng(3)
    conditioning = model.probe_features(None).conditioning
    return [Sample(np.array([0, *noise.integers(2, 40, 7), 1]), noise.integers(0, 60, 12), conditioning)
            for _ in range(4)]


def test_the_layers_exist_and_are_not_the_default(model: IndexTTS2LanguageModel) -> None:
    names = conditioner_layers(model.module.config)
    assert all(isinstance(model.module.get_submodule(name), torch.nn.Linear) for name in names)
    assert not set(names) & set(plan_of(model, TrainOptions()).ranks)
    wrapped = {name.rpartition(".lora_A")[0] for name in adapted(model).parameters() if ".lora_A" in name}
    assert wrapped == set(names)


def test_rows_of_the_base_keep_their_bits_beside_adapted_rows(model: IndexTTS2LanguageModel) -> None:
    batch = samples(model)
    config = model.module.config
    conditioning = config.stack_conditioning([sample.conditioning for sample in batch])
    base = model.module.embed_conditioning(conditioning)
    adapters = adapted(model)
    with torch.inference_mode():
        assert torch.equal(model.module.embed_conditioning(conditioning), base)
        with adapters.enabled_for_rows([True, False, True, False]):
            mixed = model.module.embed_conditioning(conditioning)
        with adapters.enabled(True):
            whole = model.module.embed_conditioning(conditioning)
    assert torch.equal(mixed[1::2], base[1::2])
    assert torch.allclose(mixed[::2], whole[::2], atol=1e-5)
    assert (whole - base).abs().amax() > 0.01


def test_base_logits_are_bit_identical_with_adapters_in_the_model(model: IndexTTS2LanguageModel) -> None:
    sample = samples(model)[0]
    base = model.probe(sample)
    adapters = adapted(model)
    with_them = model.probe(sample)
    assert torch.equal(with_them.speech_logits, base.speech_logits)
    assert torch.equal(with_them.text_logits, base.text_logits)
    with adapters.enabled(True):
        assert not torch.equal(model.probe(sample).speech_logits, base.speech_logits)


def test_the_losses_train_them(model: IndexTTS2LanguageModel) -> None:
    batch = samples(model)
    adapters = adapted(model)
    with adapters.enabled(True):
        model.losses(batch, LossOptions()).speech_sum.backward()
    gradients = {name: value.grad for name, value in adapters.parameters().items()}
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())
    assert all(value.grad is None for name, value in model.module.named_parameters() if ".lora_" not in name)


def test_merged_weights_predict_as_the_adapters_do() -> None:
    model = fresh()
    sample = samples(model)[0]
    adapters = adapted(model)
    with adapters.enabled(True):
        expected = model.probe(sample).speech_logits
    merged, other = adapters.merged_weights(), fresh()
    assert {name.removesuffix(".weight") for name in merged} == set(conditioner_layers(SMALL))
    other.module.load_state_dict(merged, strict=False)
    other.module.recomputes_conditioning = True
    assert torch.allclose(other.probe(sample).speech_logits, expected, atol=1e-3 * float(expected.abs().max()))


def test_speech_is_decoded_with_them(model: IndexTTS2LanguageModel) -> None:
    sample, greedy = samples(model)[0], Sampling(temperature=0.0, min_p=0.0)
    voice = Voice(sample.conditioning)
    base = model.generate([sample.text_ids], [voice], greedy)[0].codes
    adapters = adapted(model)
    assert np.array_equal(model.generate([sample.text_ids], [voice], greedy)[0].codes, base)
    with adapters.enabled(True):
        made = model.generate([sample.text_ids], [voice], greedy)[0].codes
        logits = model.probe(Sample(sample.text_ids, made, voice.conditioning)).speech_logits
    assert np.array_equal(logits[:len(made)].argmax(-1).numpy(), made)


@torch.inference_mode()
def test_a_batch_that_serves_both_languages_gives_each_the_codes_that_it_has_alone(
        model: IndexTTS2LanguageModel) -> None:
    sample, greedy = samples(model)[0], Sampling(temperature=0.0, min_p=0.0)
    voice, limit = Voice(sample.conditioning), model.code_limit(len(sample.text_ids))
    plain_voice, base = model.prepare(voice), model.generate([sample.text_ids], [voice], greedy)[0].codes
    adapters = adapted(model)
    with adapters.enabled(True):
        adapted_voice, changed = model.prepare(voice), model.generate([sample.text_ids], [voice], greedy)[0].codes
    assert not np.array_equal(adapted_voice.keys_and_values, plain_voice.keys_and_values)

    batch, codes = model.continuous_batch(), dict[int, np.ndarray]()
    batch.join(0, sample.text_ids, plain_voice, greedy, limit)
    with adapters.enabled(True):
        batch.join(1, sample.text_ids, adapted_voice, greedy, limit)
    while batch.keys:
        with adapters.enabled_for_rows([key == 1 for key in batch.keys]):
            codes |= {decoded.key: decoded.result.codes for decoded in batch.decode() if decoded.result is not None}
    assert np.array_equal(codes[0], base)
    assert np.array_equal(codes[1], changed)


@pytest.mark.parametrize("kind", ["lora", "dora", "adalora"])
def test_each_kind_of_adapter_changes_the_conditioning_and_keeps_the_bits_of_the_base(
        model: IndexTTS2LanguageModel, kind: str) -> None:
    config = model.module.config
    conditioning = config.stack_conditioning([sample.conditioning for sample in samples(model)])
    base = model.module.embed_conditioning(conditioning)
    adapters = adapted(model, replace_options(adapter=kind, adapter_rank=4))
    with torch.inference_mode():
        assert torch.equal(model.module.embed_conditioning(conditioning), base)
        with adapters.enabled_for_rows([False, True, False, True]):
            mixed = model.module.embed_conditioning(conditioning)
    assert torch.equal(mixed[::2], base[::2])
    assert (mixed[1::2] - base[1::2]).abs().amax() > 0.01


def test_memory_for_merging_counts_no_layer_that_is_not_merged(model: IndexTTS2LanguageModel,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "merges_adapters", lambda *_: True)
    adapters = adapted(model, replace_options(adapter_rank_mlp=0, adapter_rank_heads=0))
    assert model.bytes_to_merge() == 0
    layers = [model.module.get_submodule(name) for name in conditioner_layers(model.module.config)]
    with adapters.enabled(True):
        assert all(merged_adapters.adapted(layer) for layer in layers)
        assert model.bytes_to_merge() == 0


def test_features_of_before_are_named() -> None:
    model = fresh()
    sample = samples(model)[0]
    old = {name: sample.conditioning[name] for name in model.module.config.conditioning_shapes}
    adapters = adapted(model)
    assert model.probe(replace(sample, conditioning=old)).speech_logits is not None
    with adapters.enabled(True), pytest.raises(UserError, match="more of each clip than these features hold") as raised:
        model.probe(replace(sample, conditioning=old))
    assert "--source as-is" in raised.value.hint


def test_a_family_without_such_layers_refuses() -> None:
    targets = TransformerLanguageModel.__dataclass_fields__["adapter_targets"].default_factory()
    with pytest.raises(UserError, match="--adapter-rank-conditioner is 4, but this model's voice conditioner"):
        plan_adapters(ALONE.adapters, targets, 1)
    assert {entry.name for entry in CATALOG if entry.conditioner_adapters} == {"indextts2"}
