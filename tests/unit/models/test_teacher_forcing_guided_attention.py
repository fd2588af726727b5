"""The loss on where heads look: whom it listens to, and that neighbours do not change it."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch

from models.base import LossOptions, Sample
from models.decoder import DecoderConfig
from models.speech_network import T3, T3Config
from models.teacher_forcing import GuidedAttention, TeacherForcingBatch, collate, losses

CONFIG = T3Config(
    DecoderConfig(width=32, layers=2, heads=2, mlp_width=48), text_rows=30, speech_rows=22, start_speech=20,
    stop_speech=21, text_positions=40, speech_positions=40, speaker_size=4, prompt_queries=2,
    aligned_heads=((0, 1), (1, 0)),
)


def _sample(text: int, codes: int, seed: int) -> Sample:
    noise = np.random.default_rng(seed)
    return Sample(noise.integers(0, 30, text), noise.integers(0, 20, codes), {
        "speaker_embedding": noise.standard_normal(4).astype(np.float32), "prompt_codes": noise.integers(0, 20, 5)})


def _model() -> T3:
    torch.manual_seed(0)
    return T3(CONFIG).eval()


def _batch(*samples: Sample) -> TeacherForcingBatch:
    return collate(samples, CONFIG, torch.device("cpu"))


def test_a_sample_has_the_same_loss_alone_and_beside_a_longer_one():
    model, short, long = _model(), _sample(6, 9, 1), _sample(14, 30, 2)
    options = LossOptions(attention=True)
    alone = [losses(model, _batch(sample), options).attention_sum for sample in (short, long)]
    together = losses(model, _batch(short, long), options).attention_sum
    torch.testing.assert_close(together, alone[0] + alone[1], rtol=1e-4, atol=1e-4)


def test_only_the_aligned_heads_are_asked():
    model = _model()
    losses(model, _batch(_sample(6, 9, 1)), LossOptions(attention=True)).attention_sum.backward()
    touched = {index: layer.self_attn.q_proj.weight.grad.abs().sum(1) for index, layer in enumerate(model.tfmr.layers)}
    assert touched[1][:16].sum() > 0  # head 0 of the last layer
    assert touched[1][16:].sum() == 0


def test_it_falls_when_the_heads_look_where_they_should():
    text_at, codes_at = torch.arange(3, 9)[None], torch.arange(9, 15)[None]
    model = _model()
    with GuidedAttention(model.tfmr, ((1, 0),)) as guide, torch.no_grad():
        model.tfmr(torch.randn(1, 15, 32))
        near = guide.loss(text_at, codes_at, torch.full((1, 6), 2.5), torch.ones(1, 6))
        nowhere = guide.loss(text_at, codes_at, torch.full((1, 6), 99.0), torch.ones(1, 6))
    assert near < nowhere


def test_without_the_option_nothing_is_measured_and_no_hook_stays():
    model = _model()
    assert losses(model, _batch(_sample(6, 9, 1)), LossOptions()).attention_sum is None
    losses(model, _batch(_sample(6, 9, 1)), LossOptions(attention=True))
    assert all(not layer._forward_pre_hooks for layer in model.tfmr.layers)


def test_a_family_without_aligned_heads_skips_it():
    model = T3(dataclasses.replace(CONFIG, aligned_heads=()))
    assert losses(model, _batch(_sample(6, 9, 1)), LossOptions(attention=True)).attention_sum is None


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling on a processor needs g++")
@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_layers_learn_the_same(recompute: bool) -> None:
    def learnt(compiled: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model = _model()
        model.tfmr.activation_checkpointing = recompute
        if compiled:
            model.tfmr.compile_layers()
        found = [losses(model, _batch(*samples), LossOptions(attention=True)) for samples in (
            (_sample(6, 9, 1), _sample(14, 30, 2)), (_sample(20, 20, 3),))]
        assert all(each.attention_sum is not None for each in found)
        total = sum(each.speech_sum + each.text_sum + each.attention_sum for each in found)
        total.backward()
        return total.detach(), [value.grad for value in model.tfmr.parameters()]

    (plain, wanted), (compiled, seen) = learnt(False), learnt(True)
    torch.testing.assert_close(compiled, plain)
    for one, other in zip(wanted, seen, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
