"""What became of one tensor is told by its values alone, whatever type it was saved in."""

from __future__ import annotations

import pytest
import torch

from core.proof.tensor_comparison import (
    compare_new_rows,
    compare_tensors,
    find_rows,
    format_spans,
    is_transposed,
    low_rank,
)

HALVES = (torch.bfloat16, torch.float16)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("shape", [(), (7,), (40, 24), (3, 5, 7)])
def test_a_rounding_is_never_taken_for_training(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    before = noise(*shape)
    for after in (before.to(kind), before.to(kind).float()):
        assert compare_tensors(before, after).state in ("rounded", "equal")
    assert compare_tensors(before.to(kind), before.to(kind).float()).state == "equal"


@pytest.mark.parametrize("kind", HALVES)
def test_training_is_seen_through_a_rounding(kind: torch.dtype) -> None:
    before = noise(40, 24)
    found = compare_tensors(before, (before + 0.05 * noise(40, 24, seed=1)).to(kind))
    assert found.state == "trained"
    assert found.change == pytest.approx(0.05, rel=0.1)


def test_one_row_that_moved_is_counted_alone() -> None:
    before = noise(40, 24)
    after = before.clone()
    after[7] *= 1.5
    found = compare_tensors(before, after, after)
    assert found.rows_moved == 1
    assert found.largest == pytest.approx(0.5)


@pytest.mark.parametrize("factor", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_a_common_factor_is_weight_decay(factor: float, kind: torch.dtype) -> None:
    before = noise(400, 64)
    found = compare_tensors(before.to(kind), (before * factor).to(kind))
    assert found.state == "shrunk"
    assert f"{factor:g}"[:4] in found.words


def test_growth_is_no_weight_decay() -> None:
    before = noise(40, 24)
    assert compare_tensors(before, before * 1.01).state != "shrunk"


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_rows_is_found_again(seed: int) -> None:
    before = noise(50, 16, seed=seed)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))[:50]
    among = noise(60, 16, seed=seed + 100)
    among[order] = before
    assert compare_tensors(before, among[:50], among).state == "permuted"
    assert torch.equal(find_rows(before, among), order)


@pytest.mark.parametrize("width", [0.5, 0.8, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_shaken_rows_are_counted_whole_and_not_called_permuted(seed: int, width: float) -> None:
    before = noise(49, 32, seed=seed)
    before[1], before[3] = before[5] + 0.05 * noise(32, seed=7), before[5]  # alike, as rows of rare tokens are
    before[1:8:2] *= 0.1  # and short: noise reaches them first
    after = before + width * before.std() * noise(49, 32, seed=seed + 50)
    found = compare_tensors(before, after, after)
    assert found.state in ("trained", "replaced")
    assert found.rows_moved == 49
    assert "49" in found.words or found.words.startswith("trained: moved by")


def test_rows_of_noise_are_noise_and_those_of_another_model_are_not() -> None:
    before, few = noise(200, 64), noise(8, 64, seed=2)
    other = noise(200, 8, seed=3) @ few + 0.3 * noise(200, 64, seed=4)  # a few directions carry most of them
    for rows in (noise(200, 64, seed=9), 3 + 0.1 * noise(200, 64, seed=9), torch.rand(200, 64)):
        assert compare_tensors(before, rows, rows).state == "noise"
    assert compare_tensors(before, other, other).state == "replaced"
    half = torch.cat([before[:100], noise(100, 64, seed=9)])
    assert compare_tensors(before, half, half).state == "replaced"


def test_rows_that_are_twins_stay_where_they_are() -> None:
    before = noise(1, 16).expand(20, 16).contiguous()
    assert torch.equal(find_rows(before, before), torch.arange(20))


@pytest.mark.parametrize("rank", [1, 16, 100])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_rank_of_a_merged_lora_is_found_in_a_large_matrix(rank: int, kind: torch.dtype) -> None:
    before = noise(420, 600) / 600**0.5
    merged = (before + 0.1 * noise(420, rank, seed=1) @ noise(rank, 600, seed=2) / (rank * 600) ** 0.5).to(kind)
    if kind == torch.float32:
        assert low_rank(merged - before, merged, kind) == rank
    else:  # what is below the rounding cannot be counted, and must not be made up
        found = low_rank(merged.float() - before, merged.float(), kind)
        assert found is None or found <= rank


def test_a_full_training_has_no_low_rank() -> None:
    before = noise(300, 300)
    assert low_rank(0.01 * noise(300, 300, seed=1), before, torch.float32) is None
    assert low_rank(noise(300, 200, seed=1) @ noise(200, 300, seed=2), before, torch.float32) is None


def test_a_symmetric_matrix_is_not_called_transposed() -> None:
    before = noise(8, 8)
    assert is_transposed(before, before.T.contiguous())
    assert not is_transposed(before, noise(8, 8, seed=1))
    assert compare_tensors(before + before.T, (before + before.T).T.contiguous()).state == "equal"


def test_a_tensor_that_was_zero_has_a_change_that_can_be_read() -> None:
    found = compare_tensors(torch.zeros(8), torch.ones(8))
    assert found.state == "trained"
    assert found.change == 1.0


def test_rows_are_named_by_spans() -> None:
    rows = torch.zeros(20, dtype=torch.bool)
    rows[[0, 3, 4, 5, 9]] = True
    assert format_spans(rows) == "0, 3-5, 9"
    assert format_spans(torch.arange(20) % 2 == 0) == "0, 2, 4, 6 and more"


def test_a_value_that_is_no_number_hides_neither_its_row_nor_the_others() -> None:
    before = noise(40, 24)
    held = before.clone()
    held[3] = noise(24, seed=9)
    held[3, 0] = torch.nan
    assert compare_tensors(before, held, held).words == (
        "1 of 960 values are no numbers (rows 3); beside these: 1 of 40 rows hold something else altogether (rows 3)")
    decayed = (0.9 * before).index_fill(0, torch.tensor([5]), torch.inf)
    assert "24 of 960 values are no numbers; beside these: " in compare_tensors(before, decayed).words
    assert compare_tensors(before, decayed).words.endswith("shrunk to 0.9 of what it was: weight decay")
    vector = before[0].clone()
    vector[0] = torch.nan
    assert compare_tensors(before[0], vector).words == "1 of 24 values are no numbers; all others are bit-identical"
    assert compare_tensors(before, before * torch.nan).words == "960 of 960 values are no numbers"


@pytest.mark.parametrize(("before", "after"), [
    (torch.tensor([1.0, float("inf"), 3.0, 4.0]), torch.tensor([1.0, float("inf"), 3.0, 4.0])),
    (torch.full((3, 3), float("-inf")).triu(1), torch.full((3, 3), float("-inf")).triu(1)),
    (torch.tensor([1.0, 1e5, 3.0]), torch.tensor([1.0, 1e5, 3.0]).half()),
], ids=["infinity", "mask", "overflow"])
def test_infinities_that_the_base_has_too_are_told_and_end_nothing(before: torch.Tensor, after: torch.Tensor) -> None:
    assert compare_tensors(before, after).state == "broken"


def test_new_biases_are_never_called_alike_but_must_be_numbers() -> None:
    before, after = torch.randn(5), torch.cat([torch.randn(5), torch.full((3,), 0.25)])
    [found] = compare_new_rows("text_head.bias", before, after)
    assert (found.state, found.rows, found.shape) == ("new", 3, (3,))
    assert found.words == "biases from 0.25 to 0.25"
    after[6] = torch.nan
    [found] = compare_new_rows("text_head.bias", before, after)
    assert (found.state, found.words) == ("broken", "1 of 3 rows hold values that are no numbers")
