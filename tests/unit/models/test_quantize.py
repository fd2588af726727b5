"""Compact weights give nearly what the whole ones give, row by row, and leave adapters and heads alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from config.errors import UserError
from core.model.adapters import AdapterPlan, Adapters
from models.decoder import Decoder, DecoderConfig
from models.quantize import BFloat16Linear, FusedLinear, FusedLinearPart, Int8Linear, quantize_

CONFIG = DecoderConfig(width=64, layers=2, heads=4, mlp_width=128)


def matrix() -> torch.Tensor:
    return torch.randn(96, 64, generator=torch.Generator().manual_seed(0)) * 0.05


@pytest.mark.parametrize(("kind", "bound"), [(BFloat16Linear, 4e-3), (Int8Linear, 1.2e-2)])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 100])
def test_the_error_is_that_of_rounding(kind: type[nn.Module], bound: float, rows: int) -> None:
    weight, hidden = matrix(), torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))
    wanted = hidden @ weight.T
    assert (kind(weight)(hidden) - wanted).norm() / wanted.norm() < bound


@pytest.mark.parametrize("kind", [BFloat16Linear, Int8Linear])
def test_a_row_does_not_depend_on_others_of_another_size(kind: type[nn.Module]) -> None:
    hidden = torch.randn(2, 64)
    quiet, beside_loud = hidden.clone(), hidden.clone()
    beside_loud[1] *= 1000
    layer = kind(matrix())
    assert torch.equal(layer(quiet)[0], layer(beside_loud)[0])


@pytest.mark.parametrize(("kind", "bytes_a_weight"), [("bfloat16", 2), ("int8", 1)])
def test_a_decoder_shrinks_and_says_nearly_the_same(kind: str, bytes_a_weight: int) -> None:
    torch.manual_seed(0)
    decoder = Decoder(CONFIG).eval()
    hidden = torch.randn(1, 30, 64)
    wanted = decoder(hidden)
    matrices = sum(layer.weight.numel() for layer in decoder.modules() if isinstance(layer, nn.Linear))
    read = quantize_(decoder.layers, kind)
    assert matrices * bytes_a_weight <= read < matrices * bytes_a_weight * 1.1
    assert (decoder(hidden) - wanted).norm() / wanted.norm() < 0.03


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@torch.inference_mode()
def test_joined_layers_make_what_each_makes_alone_in_any_order(kind: str) -> None:
    weights = [matrix(), matrix()[:40] * 2, matrix()[50:]]
    first, second = torch.randn(2, 1, 64), torch.randn(2, 1, 64)
    joined = FusedLinear(weights, kind)
    parts = [FusedLinearPart(joined, index) for index in range(3)]
    alone = [(Int8Linear if kind == "int8" else BFloat16Linear)(weight) for weight in weights]
    for index, hidden in ((0, first), (1, first), (0, second), (2, second), (1, second), (1, first), (1, first)):
        assert torch.allclose(parts[index](hidden), alone[index](hidden), atol=1e-6)


def test_a_tensor_that_was_changed_is_computed_again_once_all_have_taken_their_part() -> None:
    joined = FusedLinear([matrix(), matrix()], "int8")
    hidden = torch.randn(1, 64)
    before = [joined.part(index, hidden) for index in range(2)]
    hidden.mul_(2)
    assert torch.allclose(joined.part(0, hidden), 2 * before[0])


def test_adapters_act_on_compact_layers() -> None:
    torch.manual_seed(0)
    decoder = Decoder(CONFIG).eval()
    adapters = Adapters.fresh(decoder, AdapterPlan("lora", {"q_proj": 4, "up_proj": 4}), 0)
    for name, value in adapters.parameters().items():
        if "lora_B" in name:
            nn.init.normal_(value, std=1.0)
    hidden = torch.randn(1, 10, 64)
    whole = {}
    for on in (True, False):
        adapters.switch(on)
        whole[on] = decoder.eval()(hidden).detach()
    quantize_(decoder.layers, "int8")
    assert not any(isinstance(layer, Int8Linear) for name, layer in decoder.named_modules() if "lora_" in name)
    for on in (True, False):
        adapters.switch(on)
        assert (decoder(hidden) - whole[on]).norm() / whole[on].norm() < 0.05
        assert (whole[True] - whole[False]).norm() / whole[on].norm() > 0.2


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UserError, match="'int3'"):
        quantize_(nn.Linear(2, 2), "int3")


@pytest.mark.parametrize(("kind", "bound"), [("bfloat16", 4e-3), ("int8", 1.2e-2)])
@pytest.mark.parametrize("joined", [False, True])
def test_biases_are_kept(kind: str, bound: float, joined: bool) -> None:
    torch.manual_seed(0)
    names = ("q_proj", "k_proj") if joined else ("c_fc",)
    layers = nn.ModuleDict({name: nn.Linear(64, 96) for name in names})
    for name in names:
        nn.init.normal_(layers[name].bias, std=3.0)
    hidden = torch.randn(3, 64)
    wanted = [layers[name](hidden).detach() for name in names]
    quantize_(layers, kind)
    for name, whole in zip(names, wanted, strict=True):
        assert (layers[name](hidden) - whole).norm() / whole.norm() < bound


def test_a_dora_adapter_leaves_the_bias_of_a_compact_layer_unscaled() -> None:
    torch.manual_seed(0)
    holder = nn.ModuleDict({"c_fc": nn.Linear(64, 96)})
    nn.init.normal_(holder["c_fc"].bias, std=3.0)
    adapters = Adapters.fresh(holder, AdapterPlan("dora", {"c_fc": 4}), 0)
    for name, value in adapters.parameters().items():
        if "magnitude" in name:
            value.data.mul_(2.0)
    adapters.switch(True)
    hidden = torch.randn(3, 64)
    whole = holder["c_fc"](hidden).detach()
    quantize_(holder, "int8")
    assert (holder["c_fc"](hidden) - whole).norm() / whole.norm() < 0.03


def test_joined_layers_of_which_one_has_a_bias_keep_it() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleDict({"q_proj": nn.Linear(64, 96), "k_proj": nn.Linear(64, 96, bias=False)})
    hidden = torch.randn(3, 64)
    wanted = [layers[name](hidden).detach() for name in layers]
    quantize_(layers, "int8")
    for layer, whole in zip(layers.values(), wanted, strict=True):
        assert (layer(hidden) - whole).norm() / whole.norm() < 1.2e-2
