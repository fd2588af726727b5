"""bfloat16 only where the hardware has it, whatever torch says it can emulate."""

from __future__ import annotations

import pytest
import torch

from config.errors import UserError
from core import compute, precision


@pytest.mark.parametrize(("capability", "wanted"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_card_is_asked_for_its_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int],
                                            wanted: bool) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert precision.decide("auto", torch.device("cuda")).bfloat16 is wanted


@pytest.mark.parametrize(("features", "wanted"),
                         [({}, False), ({"avx512_bf16": True}, True), ({"amx_bf16": True}, True)])
def test_a_processor_is_asked_for_its_features(monkeypatch: pytest.MonkeyPatch, features: dict[str, bool],
                                               wanted: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert precision.decide("auto", torch.device("cpu")).bfloat16 is wanted


def test_emulation_is_refused_and_float32_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    with pytest.raises(UserError, match="the processor has neither avx512_bf16 nor amx_bf16"):
        precision.decide("bfloat16", torch.device("cpu"))
    assert not precision.decide("float32", torch.device("cpu")).bfloat16


def test_a_missing_card_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        compute.prepare("cuda")
    assert compute.prepare("auto") == torch.device("cpu")
