"""The spectra that published models were trained on: alike to the published code, and alike however they are cut."""

from __future__ import annotations

import math

import pytest
import torch

from config.errors import UserError
from data.acoustics import audio
from tests.parity import spectral_error
from tests.reference.clips import stepped, voiced
from tests.unit.chatterbox_analysis import clip, reference

PROMPT_MEL = 1e-5


def test_silence_is_trimmed_where_librosa_trims_it():
    for number, (start, end) in enumerate(reference()["trims"].tolist()):
        sound = torch.from_numpy(stepped(500 + 1777 * number, 100 + 31.0 * number))
        assert torch.equal(audio.trim_silence(sound), sound[start:end]), number
    starts, ends = reference()["trims"].T
    assert starts.unique().numel() > 5  # else there was nothing to trim
    assert (ends - starts).unique().numel() > 20


def test_silence_alone_is_left_as_it_is():
    assert len(audio.trim_silence(torch.zeros(5000))) == 5000


def test_the_prompt_mel_is_that_of_the_published_package():
    mel = audio.prompt_mel(torch.from_numpy(voiced(14411, 24000))[None])
    assert mel.shape == (1, 80, 14411 // 480)
    assert spectral_error(mel.exp(), reference()["prompt_mel"].exp()) < PROMPT_MEL
    assert mel.min() == pytest.approx(math.log(1e-5))  # its floor
    assert reference()["prompt_mel"].min() == pytest.approx(math.log(1e-5))


def test_a_hundredth_of_a_percent_or_one_sample_is_seen_beside_rounding(monkeypatch):
    sound, wanted = torch.from_numpy(voiced(14411, 24000))[None], reference()["prompt_mel"].exp()
    assert spectral_error(audio.prompt_mel(sound.roll(1, -1)).exp(), wanted) > PROMPT_MEL
    filters = audio.slaney_filters(24000, 1920, 80, 8000.0)
    monkeypatch.setattr(audio, "slaney_filters", lambda *asked: 1.0001 * filters)
    assert spectral_error(audio.prompt_mel(sound).exp(), wanted) > PROMPT_MEL


def test_a_prompt_too_short_to_reflect_is_refused():
    with pytest.raises(UserError, match="has 720 samples at 24000 Hz; at least 721"):
        audio.prompt_mel(torch.zeros(1, 720))


def test_pieces_of_a_spectrum_are_the_spectrum(monkeypatch):
    wide, sound = torch.from_numpy(voiced(60001, 24000)), clip(40001)
    filters, window = audio.slaney_filters(16000, 400, 40, 8000.0), torch.hann_window(400)

    def features() -> list[torch.Tensor]:
        return [audio.prompt_mel(wide[None]).exp(), audio.mel_power(sound[None], filters, window, 160),
                audio.kaldi_filterbank(sound).t().exp()]

    whole = features()
    monkeypatch.setattr(audio, "PIECE", 7)
    assert all(spectral_error(cut, uncut) < 5e-5 for cut, uncut in zip(features(), whole, strict=True))


def test_filters_have_equal_area_and_meet_at_their_peaks():
    filters = audio.slaney_filters(24000, 1920, 80, 8000.0)
    assert filters.shape == (80, 961)
    wide = filters[60:].sum(1) * 12.5  # Hz a bin; narrow filters are sampled too coarsely to have it
    assert bool(((wide - 1).abs() < 0.01).all())
    assert not filters[:, 641:].any()  # above 8000 Hz
    assert bool((filters.argmax(1).diff() > 0).all())
