"""Old rows are a buffer, and new rows are all there is to train."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from core.model.prefix import PrefixEmbedding, PrefixLinear, base_tensors, extend_tables, hash_tensors, new_rows


def test_the_embedding_gives_old_and_new_rows() -> None:
    old, new = torch.randn(5, 3), torch.randn(2, 3)
    table = PrefixEmbedding(old)
    table.append(new, None, frozen=False)
    assert torch.equal(table(torch.arange(7)), torch.cat([old, new]))
    assert [name for name, _ in table.named_parameters()] == ["new"]


def test_gradients_reach_new_rows_alone() -> None:
    table = PrefixEmbedding(torch.randn(5, 3))
    table.append(torch.randn(1, 3), None, frozen=True)
    table.append(torch.randn(2, 3), None, frozen=False)
    table(torch.tensor([1, 5, 7])).sum().backward()
    assert table.new is not None
    assert table.new.grad is not None
    assert torch.equal(table.new.grad, torch.tensor([[0.0] * 3, [1.0] * 3]))


def test_an_id_behind_the_last_row_is_an_error() -> None:
    table = PrefixEmbedding(torch.randn(5, 3))
    table.append(torch.randn(1, 3), None, frozen=True)
    table.append(torch.randn(2, 3), None, frozen=False)
    with pytest.raises(IndexError):
        table(torch.tensor([8]))


def test_the_head_makes_the_very_product_of_the_base() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        base, hidden = nn.Linear(64, 46, bias=False), torch.randn(1, 17, 64)
        head = PrefixLinear(base.weight.data)
        head.append(torch.randn(11, 64), None, frozen=False)
        assert torch.equal(head(hidden)[..., :46], base(hidden))


@pytest.mark.parametrize("bias", [False, True])
def test_rows_of_an_earlier_training_keep_their_product_whatever_comes_behind(bias: bool) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        base, first, second = (nn.Linear(64, rows, bias=bias) for rows in (46, 11, 7))
        hidden, weights = torch.randn(1, 17, 64), [(one.weight.data, one.bias.data if bias else None)
                                                   for one in (base, first, second)]
        alone, both = PrefixLinear(*weights[0]), PrefixLinear(*weights[0])
        alone.append(*weights[1], frozen=False)
        both.append(*weights[1], frozen=True)
        both.append(*weights[2], frozen=False)
        assert torch.equal(both(hidden)[..., :57], alone(hidden))
        assert torch.equal(both(hidden), torch.cat([one(hidden) for one in (base, first, second)], -1))
        assert {name for name, _ in both.named_parameters()} == {"new", *["new_bias"] * bias}


def test_a_head_with_a_bias_is_the_product_of_the_base_and_that_of_the_new_rows() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        base, new, hidden = nn.Linear(64, 46), nn.Linear(64, 11), torch.randn(1, 17, 64)
        head = PrefixLinear(base.weight.data, base.bias.data)
        head.append(new.weight.data, new.bias.data, frozen=False)
        assert torch.equal(head(hidden), torch.cat([base(hidden), new(hidden)], -1))
        assert [name for name, _ in head.named_parameters()] == ["new", "new_bias"]


@pytest.mark.parametrize("bias", [False, True])
def test_decay_and_momentum_do_not_move_old_rows(bias: bool) -> None:
    module = nn.ModuleDict({"table": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=bias)})
    before = hash_tensors(dict(module.state_dict()))
    tables = ("table.weight", "head.weight", *["head.bias"] * bias)
    rows = {"table": torch.randn(2, 3), "head": torch.randn(2, 3)} | ({"head.bias": torch.randn(2)} if bias else {})
    extend_tables(module, tables, rows)
    assert {name: value.shape for name, value in new_rows(module, tables).items()} == {
        name: value.shape for name, value in rows.items()}
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        module["head"](module["table"](torch.tensor([0, 6]))).square().sum().backward()
        optimizer.step()
    assert hash_tensors(base_tensors(module)) == before
    assert all(not torch.equal(new_rows(module, tables)[name], value) for name, value in rows.items())


def test_a_hash_sees_name_type_shape_and_bit() -> None:
    value = torch.zeros(2, 3)
    hashes = {hash_tensors(tensors) for tensors in (
        {"a": value}, {"b": value}, {"a": value.half()}, {"a": value.reshape(3, 2)}, {"a": -value})}
    assert len(hashes) == 5
