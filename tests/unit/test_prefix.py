"""Old rows are a buffer, and new rows are all there is to train."""

from __future__ import annotations

import torch
from torch import nn

from core.model.prefix import PrefixEmbedding, PrefixLinear, base_tensors, extend_tables, hash_tensors


def test_the_embedding_gives_old_and_new_rows() -> None:
    old, new = torch.randn(5, 3), torch.randn(2, 3)
    table = PrefixEmbedding(old, new)
    assert torch.equal(table(torch.arange(7)), torch.cat([old, new]))
    assert [name for name, _ in table.named_parameters()] == ["new"]


def test_gradients_reach_new_rows_alone() -> None:
    table = PrefixEmbedding(torch.randn(5, 3), torch.randn(2, 3))
    table(torch.tensor([1, 6])).sum().backward()
    assert table.new.grad is not None
    assert torch.equal(table.new.grad, torch.tensor([[0.0] * 3, [1.0] * 3]))


def test_the_head_makes_the_very_product_of_the_base() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        base, hidden = nn.Linear(64, 46, bias=False), torch.randn(1, 17, 64)
        head = PrefixLinear(base.weight.data, torch.randn(11, 64))
        assert torch.equal(head(hidden)[..., :46], base(hidden))


def test_decay_and_momentum_do_not_move_old_rows() -> None:
    module = nn.ModuleDict({"table": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    before = hash_tensors(dict(module.state_dict()))
    extend_tables(module, {"table": torch.randn(2, 3), "head": torch.randn(2, 3)})
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        module["head"](module["table"](torch.tensor([0, 6]))).square().sum().backward()
        optimizer.step()
    assert hash_tensors(base_tensors(module)) == before


def test_a_hash_sees_name_type_shape_and_bit() -> None:
    value = torch.zeros(2, 3)
    hashes = {hash_tensors(tensors) for tensors in (
        {"a": value}, {"b": value}, {"a": value.half()}, {"a": value.reshape(3, 2)}, {"a": -value})}
    assert len(hashes) == 5
