"""Adapters that others made: only what Lisan makes is loaded, and nothing is allocated before the shapes are known."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from config.errors import UserError
from core.model.adapters import SETTINGS, WEIGHTS, AdapterPlan, Adapters, check_settings

pytestmark = pytest.mark.slow  # peft takes seconds to load
LAYER = "layer"
WRONG: dict[str, object] = {
    "kind unknown": {"peft_type": "PREFIX_TUNING"}, "kind a list": {"peft_type": ["LORA"]},
    "kind none": {"peft_type": None},
    "rank negative": {"r": -1}, "rank zero": {"r": 0}, "rank huge": {"r": 2**30}, "rank a text": {"r": "8"},
    "rank half": {"r": 1.5}, "rank true": {"r": True}, "rank a list": {"r": [8]}, "scale none": {"lora_alpha": None},
    "scale infinite": {"lora_alpha": float("inf")}, "scale NaN": {"lora_alpha": float("nan")},
    "scale negative": {"lora_alpha": -1}, "scale a text": {"lora_alpha": "x"},
    "layers twice": {"layer_replication": [[0, 9]]},
    "modules a text": {"target_modules": ".*"}, "modules none": {"target_modules": None},
    "modules a number": {"target_modules": 5}, "modules of numbers": {"target_modules": [1]},
    "modules to save": {"modules_to_save": ["embed"]}, "other weights": {"init_lora_weights": "pissa"},
    "bias": {"bias": "all"}, "rank pattern huge": {"rank_pattern": {"layer": 2**28}},
    "rank pattern a list": {"rank_pattern": [1]}, "alpha pattern": {"alpha_pattern": {"layer": "x"}},
    "token indices": {"trainable_token_indices": [1]}, "megatron": {"megatron_config": {"a": 1}},
    "quantized": {"loftq_config": {"bits": 4}}, "an unknown key": {"run_this": "touch canary"},
    "parameters": {"target_parameters": ["layer.weight"]},
}


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.ModuleDict({LAYER: torch.nn.Linear(6, 5)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Adapters.fresh(module(), AdapterPlan("lora", {LAYER: 4}), 0).save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ["lora", "dora", "adalora"])
def test_what_lisan_writes_is_read(kind: str, tmp_path: Path) -> None:
    Adapters.fresh(module(), AdapterPlan(kind, {LAYER: 4}, steps=100), 0).save(tmp_path)  # type: ignore[arg-type]
    check_settings(tmp_path)
    assert Adapters.load(module(), tmp_path).parameters()


@pytest.mark.parametrize("wrong", WRONG)
def test_settings_of_other_kinds_are_refused_in_a_sentence(wrong: str, folder: Path) -> None:
    settings = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps({**settings, **WRONG[wrong]}))  # type: ignore[dict-item]
    with pytest.raises(UserError, match=SETTINGS):
        Adapters.load(module(), folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff", b"{}",
b'{"peft_type": "LORA"}'])
def test_settings_that_are_none_are_refused_in_a_sentence(content: bytes, folder: Path) -> None:
    (folder / SETTINGS).write_bytes(content)
    with pytest.raises(UserError, match=SETTINGS):
        Adapters.load(module(), folder)


def _header(values: object) -> bytes:
    text = json.dumps(values).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize("content", [
    b"", b"\0" * 8, b"\xff" * 8, struct.pack("<Q", 2**60) + b"{}", _header([]), _header({"a": 5}),
    _header({"x.lora_A.weight": {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 4]}}) + b"1234",
    _header({"x.lora_A.weight": {"dtype": "F32", "shape": [-1, 4], "data_offsets": [0, 4]}}) + b"1234",
    _header({"x.lora_A.weight": {"dtype": "NO", "shape": [1], "data_offsets": [0, 4]}}) + b"1234",
    b"\x80\x02cos\nsystem\nX\x0c\0\0\0touch canaryR.",
])
def test_weights_that_are_none_are_refused_in_a_sentence(content: bytes, folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(UserError):
        Adapters.load(module(), folder)
    assert not Path("canary").exists()


def test_factors_of_another_model_are_refused(folder: Path) -> None:
    save_file({"base_model.model.layer.lora_A.weight": torch.zeros(4, 60),
               "base_model.model.layer.lora_B.weight": torch.zeros(50, 4)}, folder / WEIGHTS)
    with pytest.raises(UserError, match="do not fit"):
        Adapters.load(module(), folder)
