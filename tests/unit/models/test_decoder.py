"""The decoder against an independent Llama, and against itself with a cache and with padding."""

from __future__ import annotations

import pytest
import torch

from models import decoder
from models.decoder import Decoder, DecoderConfig, KVCache, RotaryScaling

CONFIG = DecoderConfig(width=64, layers=3, heads=4, mlp_width=96, rotary_scaling=RotaryScaling())


def _decoder(config: DecoderConfig = CONFIG) -> Decoder:
    torch.manual_seed(0)
    return Decoder(config).eval()


@torch.inference_mode()
def test_equals_the_transformers_llama_with_the_same_weights():
    from transformers import LlamaConfig, LlamaModel

    decoder = _decoder()
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192, "rope_theta": 500_000.0}
    reference = LlamaModel(LlamaConfig(
        vocab_size=8, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
        rms_norm_eps=1e-5, rope_theta=500_000.0, rope_scaling=scaling, max_position_embeddings=131072,
    )).eval()
    missing = reference.load_state_dict(decoder.state_dict(), strict=False).missing_keys
    assert missing == ["embed_tokens.weight"]
    hidden = torch.randn(2, 300, 64)
    expected = reference(inputs_embeds=hidden).last_hidden_state
    assert torch.allclose(decoder(hidden), expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("theta", [None, 500_000.0])
def test_a_cache_gives_what_the_whole_row_gives(theta):
    decoder = _decoder(DecoderConfig(width=64, layers=2, heads=4, mlp_width=96, rotary_theta=theta))
    hidden = torch.randn(2, 12, 64)
    whole = decoder(hidden)
    cache = KVCache(decoder.config, 2, 20, hidden.device, hidden.dtype)
    first = decoder(hidden[:, :7], cache, torch.arange(7).expand(2, -1))
    rest = [decoder(hidden[:, i : i + 1], cache, torch.full((2, 1), i)) for i in range(7, 12)]
    assert torch.allclose(torch.cat([first, *rest], 1), whole, atol=1e-5)


@torch.inference_mode()
def test_what_stands_to_the_right_of_a_position_does_not_reach_it():
    decoder = _decoder()
    hidden = torch.randn(1, 10, 64)
    changed = hidden.clone()
    changed[:, 6:] = 100.0
    assert torch.equal(decoder(hidden)[:, :6], decoder(changed)[:, :6])


def test_it_is_said_where_triton_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a GPU, which has no driver for it."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.warns(UserWarning, match="Triton cannot compile its kernels: .*apt install gcc python3-dev"):
        assert not decoder.has_triton.__wrapped__(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not decoder.has_triton.__wrapped__(torch.device("cuda"))
