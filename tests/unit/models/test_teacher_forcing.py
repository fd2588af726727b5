"""Rows are contiguous, and what is hidden of a sample hangs on its seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.base import LossOptions, Sample
from models.decoder import DecoderConfig
from models.speech_network import T3, T3Config
from models.teacher_forcing import collate, embed_rows, losses

CONFIG = T3Config(
    DecoderConfig(width=32, layers=2, heads=2, mlp_width=48), text_rows=30, speech_rows=22, start_speech=20,
    stop_speech=21, text_positions=40, speech_positions=40, speaker_size=4, prompt_queries=2,
)
CPU = torch.device("cpu")
DROPOUT = LossOptions(text_dropout=0.3, code_dropout=0.5)


def sample(text: int, codes: int, seed: int) -> Sample:
    noise = np.random.default_rng(seed)
    return Sample(noise.integers(0, 30, text), noise.integers(0, 20, codes), {
        "speaker_embedding": noise.standard_normal(4).astype(np.float32), "prompt_codes": noise.integers(0, 20, 5)})


SAMPLES = [sample(6, 9, 1), sample(14, 30, 2), sample(3, 2, 3)]


@pytest.fixture(scope="module")
def model() -> T3:
    torch.manual_seed(0)
    return T3(CONFIG).eval()


def test_a_row_is_conditioning_text_and_speech_without_a_gap(model: T3) -> None:
    batch = collate(SAMPLES, CONFIG, CPU, DROPOUT, [1, 2, 3])
    assert batch.drop is not None
    rows, text_at, codes_at = embed_rows(model, batch)
    given = model.embed_conditioning(batch.conditioning)
    text = model.embed_text(batch.text_ids, batch.drop.text)
    speech = model.embed_speech(batch.codes, batch.drop.codes)
    assert rows.shape[1] == CONFIG.conditioning_length + 14 + 31
    for row, (text_length, code_length) in enumerate(((6, 10), (14, 31), (3, 3))):
        wanted = torch.cat([given[row], text[row, :text_length], speech[row, :code_length]])
        assert torch.equal(rows[row, :len(wanted)], wanted)
        assert torch.equal(rows[row, text_at[row, :text_length]], text[row, :text_length])
        assert torch.equal(rows[row, codes_at[row, :code_length]], speech[row, :code_length])


def test_what_is_hidden_of_a_sample_is_the_same_alone_and_in_company() -> None:
    together = collate(SAMPLES, CONFIG, CPU, DROPOUT, [11, 12, 13]).drop
    assert together is not None
    for row, item in enumerate(SAMPLES):
        alone = collate([item], CONFIG, CPU, DROPOUT, [11 + row]).drop
        assert alone is not None
        length = len(item.speech_codes) + 1
        assert torch.equal(alone.codes[0], together.codes[row, :length])
        assert alone.text[0] == together.text[row]
        assert together.codes[row, 0] == 1


def test_hiding_has_the_shares_that_are_asked_for() -> None:
    many = [sample(4, 30, seed) for seed in range(400)]
    drop = collate(many, CONFIG, CPU, DROPOUT, range(400)).drop
    assert drop is not None
    assert 1 - float(drop.text.mean()) == pytest.approx(0.3, abs=0.07)
    assert 1 - float(drop.codes[:, 1:].mean()) == pytest.approx(0.25, abs=0.04)  # half of the largest share
    assert collate(many, CONFIG, CPU, LossOptions()).drop is None


def test_losses_are_over_real_positions_alone(model: T3) -> None:
    found = losses(model, collate(SAMPLES, CONFIG, CPU), LossOptions())
    assert found.text_count == sum(item.text_targets for item in SAMPLES)
    assert found.speech_count == sum(item.speech_targets for item in SAMPLES)
    seen: list[int] = []
    hooks = [head.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[0]))
             for head in (model.text_head, model.speech_head)]
    losses(model, collate(SAMPLES, CONFIG, CPU), LossOptions())
    for hook in hooks:
        hook.remove()
    assert seen == [found.text_count, found.speech_count]
