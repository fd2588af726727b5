"""The sampler against an independent reading of its controls, one text and one control at a time."""

from __future__ import annotations

import math

import pytest
import torch

from models.base import Sampling
from models.sampling import Sampler

CODES, STOP = 50, 49
PLAIN = {"temperature": 1.0, "min_p": 0.0, "guidance": 0.0}


def sampler(texts: int = 1, **controls: float) -> Sampler:
    made = Sampler(texts, torch.ones(CODES, dtype=torch.bool), STOP, 100_000)
    made.reset(Sampling(**{**PLAIN, **controls}))  # type: ignore[arg-type]
    return made


def draws(made: Sampler, logits: torch.Tensor, count: int) -> torch.Tensor:
    """`count` codes, each from the same logits (V,), at steps 1, 2, ..."""
    return torch.stack([made.sample(logits[None].clone(), torch.tensor(step + 1))[0] for step in range(count)])


def logits(seed: int = 0, rows: int = 1, scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(rows, CODES, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_codes_come_as_often_as_their_probability_says(temperature: float) -> None:
    row, count = logits()[0], 8000
    seen = torch.bincount(draws(sampler(temperature=temperature, seed=5), row, count), minlength=CODES) / count
    wanted = (row / temperature).softmax(-1)
    spread = (wanted * (1 - wanted) / count).sqrt()
    assert ((seen - wanted).abs() <= 5 * spread + 1 / count).all()


def test_temperature_zero_is_the_likeliest_code() -> None:
    rows = logits(rows=20)
    assert torch.equal(sampler(20, temperature=0.0).sample(rows, torch.tensor(3)), rows.argmax(-1))


def test_min_p_and_top_p_leave_out_the_unlikely() -> None:
    row = logits()[0]
    probabilities = row.softmax(-1)
    kept = set(torch.nonzero(probabilities >= 0.2 * probabilities.max()).flatten().tolist())
    assert set(draws(sampler(min_p=0.2), row, 2000).tolist()) == kept
    ordered, order = probabilities.sort(descending=True)
    enough = int((ordered.cumsum(0) < 0.6).sum()) + 1
    assert set(draws(sampler(top_p=0.6), row, 3000).tolist()) == set(order[:enough].tolist())


def test_a_code_that_was_used_becomes_less_likely() -> None:
    row = torch.full((1, CODES), -1.0)
    row[0, 7], row[0, 8] = 2.0, 1.5
    made = sampler(temperature=0.0, repetition_penalty=2.0)
    chosen = [int(made.sample(row.clone(), torch.tensor(step))) for step in (1, 2, 3)]
    assert chosen == [7, 8, 7]  # 2.0, then 1.5 against 1.0, then 1.0 against 0.75


def test_guidance_adds_the_difference_to_speech_without_text() -> None:
    with_text, without = logits(1), logits(2)
    chosen = sampler(guidance=0.7, temperature=0.0).sample(torch.cat([with_text, without]), torch.tensor(1))
    assert chosen == (with_text + 0.7 * (with_text - without)).argmax()


def test_forbidden_codes_and_a_stop_at_once_are_never_chosen() -> None:
    row = torch.zeros(1, CODES)
    row[0, 3], row[0, STOP] = 10.0, 20.0
    allowed = torch.ones(CODES, dtype=torch.bool)
    allowed[3] = False
    made = Sampler(1, allowed, STOP, 10)
    made.reset(Sampling(temperature=0.0, guidance=0.0))
    assert made.sample(row.clone(), torch.tensor(0)) not in (3, STOP)
    assert made.sample(row.clone(), torch.tensor(1)) == STOP


def test_a_text_is_drawn_the_same_whatever_stands_beside_it() -> None:
    rows = logits(rows=3)
    together, alone = sampler(3, seed=4), sampler(1, seed=4)
    for step in range(20):
        at = torch.tensor(step)
        assert together.sample(rows.clone(), at)[1] == alone.sample(rows[1:2].clone(), at)


def test_noise_is_even_over_seeds_steps_and_codes() -> None:
    noise = torch.cat([sampler(seed=seed)._noise(torch.tensor([step])) for seed in range(30) for step in range(30)])
    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.03)  # Euler's constant: the mean of Gumbel noise
    assert noise.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.03)
    assert torch.corrcoef(noise.T).fill_diagonal_(0).abs().max() < 0.2


def test_new_texts_begin_afresh_with_new_controls() -> None:
    row = torch.full((1, CODES), -1.0)
    row[0, 7], row[0, 8] = 2.0, 1.5
    made = sampler(temperature=0.0, repetition_penalty=2.0)
    assert made.sample(row.clone(), torch.tensor(1)) == 7
    made.reset(Sampling(temperature=0.0, guidance=0.0))
    assert [int(made.sample(row.clone(), torch.tensor(step))) for step in (1, 2)] == [7, 7]
