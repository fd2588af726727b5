"""Codes as the published tokenizer makes them, whatever else is in the batch and however long the clip."""

from __future__ import annotations

import pytest
import torch

from config.errors import UserError
from models.chatterbox import speech_tokenizer
from models.chatterbox.speech_tokenizer import SpeechTokenizer, SpeechTokenizerConfig
from scripts.dev.random_weights import fill
from tests.parity import relative_error, spectral_error
from tests.unit.chatterbox_analysis import LENGTHS, SEED, STATES, clip, reference

COMPUTED = ("_mel_filters", "window")
CODES = 6561


def filled(config: SpeechTokenizerConfig | None = None) -> SpeechTokenizer:
    module = SpeechTokenizer(config).eval()
    fill(module, SEED, "tokenizer.", COMPUTED)
    return module


@pytest.fixture(scope="module")
def tokenizer() -> SpeechTokenizer:
    return filled(SpeechTokenizerConfig(width=128, heads=2, layers=2))


def power(log_mel: torch.Tensor) -> torch.Tensor:
    """The mel power that `SpeechTokenizer.log_mel` took the logarithm of, where it was not cut."""
    return 10 ** (4 * log_mel - 4)


def lengths(mel: torch.Tensor) -> torch.Tensor:
    return torch.tensor([mel.shape[-1]] * len(mel))


def test_mel_states_and_codes_are_those_of_the_published_package(tokenizer):
    mel = tokenizer.log_mel(clip(9600)[None])
    assert spectral_error(power(mel), power(reference()["log_mel"])) < 2e-5
    assert relative_error(tokenizer.hidden(mel, lengths(mel)), reference()["hidden"]) < STATES
    assert torch.equal(tokenizer.codes(mel, lengths(mel))[0], reference()["codes_9600"].long())


@pytest.mark.parametrize("samples", [*LENGTHS, 640000])  # the last is 40 s: two windows
def test_codes_of_short_odd_and_long_clips_are_those_of_the_published_package(tokenizer, samples):
    codes = tokenizer.encode([clip(samples)])[0]
    wanted = reference()[f"codes_{samples}"].long()
    assert codes.shape == wanted.shape
    assert codes.dtype == torch.int64
    assert (codes == wanted).float().mean() >= 0.99
    assert wanted.unique().numel() > 10  # else equal codes would say little


@pytest.mark.slow
def test_the_published_size_makes_the_published_codes():
    module = filled()
    mel = module.log_mel(clip(83333)[None])
    assert relative_error(module.hidden(mel, lengths(mel))[:, ::10, ::20], reference()["full_hidden"]) < STATES
    assert (module.codes(mel, lengths(mel)) == reference()["full_codes"].long()).float().mean() >= 0.99


def test_a_clip_does_not_depend_on_its_neighbours(tokenizer):
    loud, quiet = clip(31999), 0.01 * clip(20000, 210.0)
    clips = [clip(9600), loud, quiet, clip(83333, 95.0), loud]
    alone = [tokenizer.encode([waveform])[0] for waveform in clips]
    for order in ([0, 1, 2, 3, 4], [3, 4, 0, 2, 1]):
        together = tokenizer.encode([clips[place] for place in order])
        assert all(torch.equal(codes, alone[place]) for codes, place in zip(together, order, strict=True))


def test_rows_of_a_mel_are_cut_by_their_own_loudest_place(tokenizer):
    rows = torch.stack([clip(9600), 1e-4 * clip(9600, 210.0)])
    alone = torch.cat([tokenizer.log_mel(row[None]) for row in rows])
    assert spectral_error(power(tokenizer.log_mel(rows)), power(alone)) < 5e-5


@pytest.mark.parametrize("frames", [59, 60, 61, 62])  # both convolutions look one frame ahead at odd ends
def test_what_stands_in_the_padding_is_never_read(tokenizer, frames):
    mel = tokenizer.log_mel(clip(160 * frames)[None])
    count = -(-frames // 4)
    noise = torch.randn(1, 128, 500, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([mel, 50 * noise[..., :137]], dim=-1).repeat(2, 1, 1)
    padded[1] = 50 * noise[..., :padded.shape[-1]]
    both = torch.tensor([mel.shape[-1], padded.shape[-1]])
    states, codes = tokenizer.hidden(padded, both), tokenizer.codes(padded, both)
    assert relative_error(states[:1, :count], tokenizer.hidden(mel, lengths(mel))) < 1e-5
    assert not states[0, count:].any()
    assert not codes[0, count:].any()
    assert torch.equal(codes[0, :count], tokenizer.codes(mel, lengths(mel))[0])


@pytest.mark.parametrize(("samples", "count"), [(201, 1), (640, 1), (799, 1), (800, 2), (1279, 2), (1440, 3)])
def test_a_code_is_made_of_each_begun_40_ms(tokenizer, samples, count):
    assert tokenizer.encode([clip(samples)])[0].shape == (count,)


# Frames at which the published code, with one more window at the end, drops up to 50 codes.
@pytest.mark.parametrize("frames", [3000, 3001, 5201, 5400, 5600, 5601, 8000])
def test_no_end_of_a_long_clip_is_lost(tokenizer, frames):
    assert len(tokenizer.encode([clip(160 * frames)])[0]) == -(-frames // 4)


def test_windows_of_long_clips_go_in_batches_of_bounded_size(tokenizer, monkeypatch):
    monkeypatch.setattr(speech_tokenizer, "FRAMES_PER_BATCH", 6000)
    shapes, plain = [], tokenizer.codes

    def codes(mel, lengths):
        shapes.append(mel.shape)
        return plain(mel, lengths)

    clips = [clip(16000 * seconds) for seconds in (110, 2, 3, 1)]
    whole = tokenizer.encode(clips)
    monkeypatch.setattr(tokenizer, "codes", codes)
    assert all(torch.equal(one, two) for one, two in zip(tokenizer.encode(clips), whole, strict=True))
    assert len(shapes) > 2
    assert max(rows * frames for rows, _, frames in shapes) <= 6000


def test_little_of_a_batch_is_padding(tokenizer, monkeypatch):
    padded, plain = [], tokenizer.codes

    def codes(mel, lengths):
        padded.append(1 - float(lengths.sum()) / (len(mel) * mel.shape[-1]))
        return plain(mel, lengths)

    monkeypatch.setattr(tokenizer, "codes", codes)
    tokenizer.encode([clip(1600 * tenths) for tenths in (120, 90, 119, 107, 60, 60, 45, 10)])
    assert len(padded) == 6
    assert max(padded) < 0.1


def test_silence_has_codes(tokenizer):
    codes = tokenizer.encode([torch.zeros(16000)])[0]
    assert codes.shape == (25,)
    assert 0 <= codes.min() <= codes.max() < CODES


@pytest.mark.parametrize(("waveform", "message"), [
    (torch.zeros(1), "The clip has 1 samples at 16000 Hz; at least 201 are needed."),
    (torch.full((16000,), float("nan")), "not finite"),
])
def test_what_cannot_be_encoded_is_refused_with_a_way_out(tokenizer, waveform, message):
    with pytest.raises(UserError, match=message) as caught:
        tokenizer.encode([clip(9600), waveform])
    assert caught.value.hint
