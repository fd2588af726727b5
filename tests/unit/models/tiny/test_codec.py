"""The built-in codec: its quantiser, and independence from what shares a batch."""

from __future__ import annotations

import torch

from models.tiny.codec import Codec, CodecConfig, Quantizer

CONFIG = CodecConfig(width=32, encoder_blocks=2, decoder_blocks=2)


def _codec() -> Codec:
    torch.manual_seed(0)
    return Codec(CONFIG).eval()


def test_every_code_stands_for_one_point_of_the_grid():
    quantizer = Quantizer((5, 3, 7))
    codes = torch.arange(5 * 3 * 7)[None]
    grid = quantizer.dequantize(codes)
    assert len(torch.unique(grid[0], dim=0)) == 5 * 3 * 7
    assert grid.abs().max() <= 1
    assert torch.equal(quantizer.to_codes(grid), codes)


def test_rounding_passes_the_gradient_straight_through():
    quantizer = Quantizer((5, 5))
    latent = torch.zeros(1, 4, 2, requires_grad=True)
    quantizer.quantize(latent).sum().backward()
    assert torch.allclose(latent.grad, torch.ones_like(latent))


def test_a_clip_has_the_same_codes_alone_and_beside_a_longer_one():
    codec = _codec()
    torch.manual_seed(1)
    short, long = torch.randn(1, 80, 50) * 2 - 5, torch.randn(1, 80, 90) * 2 - 5
    beside = torch.full((2, 80, 90), 3.0)
    beside[0, :, :50], beside[1] = short[0], long[0]
    together = codec.encode(beside, torch.tensor([50, 90]))
    assert torch.equal(together[0, :13], codec.encode(short)[0])
    assert torch.equal(together[1], codec.encode(long)[0])


def test_codes_decode_to_four_frames_each():
    codec = _codec()
    mel = codec.decode(torch.zeros(2, 9, dtype=torch.long), torch.ones(2, CONFIG.speaker_size))
    assert mel.shape == (2, 80, 36)


def test_a_speaker_embedding_has_unit_length():
    assert torch.allclose(_codec().embed_speaker(torch.randn(3, 80, 41)).norm(dim=-1), torch.ones(3), atol=1e-5)
