"""Folders of peft that are imported: settings and factors are a stranger's, and are merged as peft merges them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from config.errors import UserError
from core.model import peft_folder
from models.registry import family

SETTINGS, WEIGHTS = peft_folder.SETTINGS, peft_folder.WEIGHTS[0]


class Weights:
    """A base of one layer and one embedding, as a file of weights."""

    path = Path("base.safetensors")
    held = {"tfmr.layers.0.self_attn.q_proj.weight": torch.ones(4, 6), "text_emb.weight": torch.ones(5, 6)}
    names = tuple(held)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.held[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self.held[name].dtype

    def tensor(self, name: str) -> torch.Tensor:
        return self.held[name]


def peft_folder_of(folder: Path, factors: dict[str, torch.Tensor], **settings: object) -> Path:
    save_file(factors, folder / WEIGHTS)
    (folder / SETTINGS).write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, **settings}))
    return folder


Q = "base_model.model.tfmr.layers.0.self_attn.q_proj"
FACTORS = {f"{Q}.lora_A.weight": torch.ones(2, 6), f"{Q}.lora_B.weight": torch.ones(4, 2)}
UNUSABLE: dict[str, tuple[dict[str, torch.Tensor], dict[str, object], str]] = {
    "another kind": (FACTORS, {"peft_type": "PREFIX_TUNING"}, "peft_type 'PREFIX_TUNING'"),
    "a list for a kind": (FACTORS, {"peft_type": ["LORA"]}, r"peft_type \['LORA'\]"),
    "a scale that is none": (FACTORS, {"lora_alpha": None}, "lora_alpha None"),
    "an infinite scale": (FACTORS, {"lora_alpha": float("inf")}, "lora_alpha inf"),
    "a pattern that is a list": (FACTORS, {"alpha_pattern": [1]}, "alpha_pattern"),
    "one factor": ({f"{Q}.lora_A.weight": torch.ones(2, 6)}, {}, "only one of two factors"),
    "two ranks": ({**FACTORS, f"{Q}.lora_B.weight": torch.ones(4, 3)}, {}, "the factors of"),
    "another shape": ({**FACTORS, f"{Q}.lora_A.weight": torch.ones(2, 60)}, {}, "its shape in"),
    "no matrix": ({**FACTORS, f"{Q}.lora_A.weight": torch.ones(6)}, {}, "a matrix is expected"),
    "another model": ({"x.y.lora_A.weight": torch.ones(2, 6)}, {}, "belong to none of the base's"),
}


@pytest.mark.parametrize("wrong", UNUSABLE)
def test_folders_of_peft_that_do_not_fit_are_refused_in_a_sentence(wrong: str, tmp_path: Path) -> None:
    factors, settings, message = UNUSABLE[wrong]
    with pytest.raises(UserError, match=message) as refused:
        peft_folder.open_merged(peft_folder_of(tmp_path, factors, **settings), Weights(), family("tiny"))
    assert refused.value.hint


@pytest.mark.parametrize(("settings", "scale"), [
    ({}, 2.0), ({"use_rslora": True}, 4 / 2**0.5), ({"alpha_pattern": {"self_attn.q_proj": 8}}, 4.0),
    ({"alpha_pattern": {"k_proj": 8}}, 2.0),
])
def test_the_scale_is_that_of_peft(settings: dict[str, object], scale: float, tmp_path: Path) -> None:
    merged = peft_folder.open_merged(peft_folder_of(tmp_path, FACTORS, **settings), Weights(), family("tiny"))
    name = Weights.names[0]
    assert torch.allclose(merged.tensor(name), 1 + scale * 2 * torch.ones(4, 6))
    assert torch.equal(merged.tensor(Weights.names[1]), torch.ones(5, 6))


def test_the_magnitudes_of_dora_are_the_norms_of_its_rows(tmp_path: Path) -> None:
    factors = {**FACTORS, f"{Q}.lora_magnitude_vector": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    merged = peft_folder.open_merged(peft_folder_of(tmp_path, factors, use_dora=True), Weights(), family("tiny"))
    assert torch.allclose(merged.tensor(Weights.names[0]).norm(dim=1), torch.tensor([1.0, 2.0, 3.0, 4.0]))


@pytest.mark.slow  # peft takes seconds to load
@pytest.mark.parametrize(("settings", "transposed"), [
    ({}, False), ({"use_rslora": True}, False), ({"use_dora": True}, False), ({"fan_in_fan_out": True}, True),
    ({"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"q_proj": 9}}, False),
])
def test_merged_weights_are_those_of_peft_itself(
    settings: dict[str, object], transposed: bool, tmp_path: Path,
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(2)
    layer = Conv1D(4, 6) if transposed else torch.nn.Linear(6, 4)
    module = torch.nn.ModuleDict({"q_proj": layer})
    before = layer.weight.detach().clone()
    model = get_peft_model(module, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], **settings))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                value.add_(0.3 * torch.randn_like(value))
    model.save_pretrained(tmp_path)
    wanted = model.merge_and_unload()["q_proj"].weight

    class Base(Weights):
        held = {"q_proj.weight": before}
        names = ("q_proj.weight",)

    merged = peft_folder.open_merged(tmp_path, Base(), family("tiny"))
    assert torch.allclose(merged.tensor("q_proj.weight"), wanted, atol=1e-6)
