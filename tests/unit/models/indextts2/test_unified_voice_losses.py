"""IndexTTS2's language model: its losses are those of the published code, and batches change nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from core.model.adapters import AdapterPlan, Adapters
from models.base import LossOptions, Sample, Sampling, Voice
from models.indextts2.unified_voice import TENSOR_LAYOUT, IndexTTS2LanguageModel, load
from tests.unit.models.indextts2.test_unified_voice import CPU, LOSSES, REFERENCE, SMALL, STATES, published

PLAIN = LossOptions()
GREEDY = Sampling(temperature=0.0, min_p=0.0)


@pytest.fixture(scope="module")
def model() -> IndexTTS2LanguageModel:
    module = load(published(SMALL), "gpt.pth")
    module.requires_grad_(False)
    return IndexTTS2LanguageModel(module, SMALL.text_rows, CPU)


@pytest.fixture(scope="module")
def sample() -> Sample:
    stored = load_file(REFERENCE)
    return Sample(stored["text_ids"][0].numpy(), stored["codes"][0].numpy(), {
        "speaker_latents": stored["latents"][0].numpy(), "emotion_vector": stored["emotion_vector_mixed"][0].numpy()})


def others(model: IndexTTS2LanguageModel, lengths: Sequence[tuple[int, int]]) -> list[Sample]:
    noise = np.random.default_rng(3)
    conditioning = model.probe_features(None).conditioning
    return [Sample(np.array([0, *noise.integers(2, 40, text), 1]), noise.integers(0, 68, codes), conditioning)
            for text, codes in lengths]


def test_losses_and_logits_are_those_of_the_published_package(model: IndexTTS2LanguageModel, sample: Sample) -> None:
    stored = load_file(REFERENCE)
    found = model.losses([sample], PLAIN)
    assert (found.text_count, found.speech_count) == (sample.text_targets, sample.speech_targets)
    assert float(found.text_sum) == pytest.approx(float(stored["text_loss"]), rel=LOSSES)
    assert float(found.speech_sum) == pytest.approx(float(stored["speech_loss"]), rel=LOSSES)
    logits = model.probe(sample)
    assert torch.allclose(logits.text_logits, stored["text_logits"][0], atol=STATES * 10)
    assert torch.allclose(logits.speech_logits, stored["speech_logits"][0], atol=STATES * 10)


def test_a_sample_adds_the_same_losses_whatever_stands_beside_it(model: IndexTTS2LanguageModel, sample: Sample) -> None:
    batch = [sample, *others(model, [(3, 20), (17, 4)])]
    together = model.losses(batch, PLAIN)
    alone = [model.losses([one], PLAIN) for one in batch]
    for name in ("text_sum", "speech_sum"):
        total = sum(float(getattr(one, name)) for one in alone)
        assert float(getattr(together, name)) == pytest.approx(total, rel=LOSSES)


def test_texts_are_decoded_together_as_alone_and_as_teacher_forcing_predicts(model: IndexTTS2LanguageModel) -> None:
    texts = [one.text_ids for one in others(model, [(5, 1), (14, 1)])]
    voice = Voice(model.probe_features(None).conditioning)
    together = model.generate(texts, [voice, model.prepare(voice)], GREEDY)
    for text, made in zip(texts, together, strict=True):
        assert np.array_equal(made.codes, model.generate([text], [voice], GREEDY)[0].codes)
        *_, streamed = model.stream(text, voice, GREEDY)
        assert np.array_equal(made.codes, streamed.codes)  # type: ignore[union-attr]
        logits = model.probe(Sample(text, made.codes, voice.conditioning)).speech_logits
        assert np.array_equal(logits[:len(made.codes)].argmax(-1).numpy(), made.codes)
        assert made.hidden_states is not None
        assert len(made.hidden_states) == len(made.codes)


def test_guidance_changes_nothing(model: IndexTTS2LanguageModel, sample: Sample) -> None:
    voice = Voice(sample.conditioning)
    plain, guided = (model.generate([sample.text_ids], [voice], Sampling(seed=2, guidance=guidance))[0].codes
                     for guidance in (0.0, 2.0))
    assert np.array_equal(plain, guided)


def test_the_best_code_alone_remains_at_top_k_1(model: IndexTTS2LanguageModel, sample: Sample) -> None:
    voice = Voice(sample.conditioning)
    best, sampled, one = (model.generate([sample.text_ids], [voice], sampling)[0].codes for sampling in (
        GREEDY, Sampling(temperature=2.0, min_p=0.0), Sampling(temperature=2.0, min_p=0.0, top_k=1)))
    assert np.array_equal(best, one)
    assert not np.array_equal(best, sampled)


def test_half_precision_conditioning_changes_little(model: IndexTTS2LanguageModel, sample: Sample) -> None:
    half = {name: value.astype(np.float16) for name, value in sample.conditioning.items()}
    found = model.probe(Sample(sample.text_ids, sample.speech_codes, half)).speech_logits
    wanted = model.probe(sample).speech_logits
    assert 0 < float((found - wanted).norm() / wanted.norm()) < 3e-3


def test_emotion_is_mostly_that_of_the_target(model: IndexTTS2LanguageModel) -> None:
    target, prompt = ({"speaker_latents": np.full((4, 128), value), "emotion_vector": np.full(128, value)}
                      for value in (1.0, 2.0))
    chance = random.Random(0)
    mixed = [model.sample_conditioning(target, prompt, chance) for _ in range(400)]
    assert all((one["speaker_latents"] == 2.0).all() for one in mixed)
    assert 270 < sum(float(one["emotion_vector"][0]) == 1.0 for one in mixed) < 330


def test_every_parameter_has_its_part_and_group(model: IndexTTS2LanguageModel) -> None:
    groups = {name: model.parameter_group(name) for name, _ in model.module.named_parameters()}
    assert groups["gpt.h.0.attn.c_attn.weight"] == ("layers", 2)
    assert groups["gpt.h.1.mlp.c_proj.bias"] == ("layers", 1)
    assert groups["final_norm.weight"] == groups["mel_head.weight"] == ("heads", 0)
    assert groups["text_head.bias"] == groups["speed_emb.weight"] == ("embeddings", 3)
    unused = {name for name, (group, _) in groups.items() if group == "unused"}
    frozen = {name.split(".")[0] for name in unused}
    assert frozen == {"conditioning_encoder", "perceiver_encoder", "emo_conditioning_encoder", "emo_perceiver_encoder",
                      "emo_layer", "emovec_layer"}
    assert all(TENSOR_LAYOUT.part(name) != "other" for name in groups)


def test_all_that_is_trained_gets_a_gradient_the_same_with_checkpointing(sample: Sample) -> None:
    module = load(published(SMALL), "gpt.pth")
    model = IndexTTS2LanguageModel(module, SMALL.text_rows, CPU)
    gradients = []
    for enabled in (False, True):
        model.set_activation_checkpointing(enabled)
        found = model.losses([sample], PLAIN)
        (found.text_sum + found.speech_sum).backward()
        gradients.append({name: value.grad for name, value in module.named_parameters() if value.grad is not None})
        module.zero_grad(set_to_none=True)
    trained = {name for name, _ in module.named_parameters() if model.parameter_group(name)[0] != "unused"}
    assert set(gradients[0]) == trained
    assert all(torch.equal(value, gradients[1][name]) for name, value in gradients[0].items())


def test_each_adapter_target_wraps_one_layer_of_each_block(sample: Sample) -> None:
    module = load(published(SMALL), "gpt.pth")
    model = IndexTTS2LanguageModel(module, SMALL.text_rows, CPU)
    before = model.probe(sample).speech_logits
    names = [name for part in ("attention", "mlp") for name in model.adapter_targets[part]]
    adapters = Adapters.fresh(module, AdapterPlan("lora", dict.fromkeys(names, 2)), 0)
    wrapped = {name.removesuffix(".lora_A.default.weight") for name in adapters.parameters() if ".lora_A." in name}
    assert wrapped == {f"gpt.h.{layer}.{name}" for layer in range(2) for name in names}
    assert torch.equal(model.probe(sample).speech_logits, before)
    whole = 4 * sum(value.numel() for part in (module.gpt, module.mel_head) for value in part.parameters())
    assert model.quantize_("int8") < 0.4 * whole
    found = model.probe(sample).speech_logits
    assert 0 < float((found - before).norm() / before.norm()) < 0.03
