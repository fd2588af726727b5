"""The spectra that published models were trained on: alike to the published code, and alike however they are cut."""

from __future__ import annotations

import pytest
import torch

from config.errors import UserError
from data import audio
from tests.reference.clips import stepped, voiced
from tests.unit.chatterbox_analysis import MEL, clip, error, reference


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
    assert error(mel, reference()["prompt_mel"]) < MEL


def test_a_prompt_too_short_to_reflect_is_refused():
    with pytest.raises(UserError, match="has 720 samples at 24000 Hz; at least 721"):
        audio.prompt_mel(torch.zeros(1, 720))


def test_pieces_of_a_spectrum_are_the_spectrum(monkeypatch):
    wide, sound = torch.from_numpy(voiced(60001, 24000)), clip(40001)
    filters, window = audio.slaney_filters(16000, 400, 40, 8000.0), torch.hann_window(400)

    def features() -> list[torch.Tensor]:
        return [audio.prompt_mel(wide[None]), audio.mel_power(sound[None], filters, window, 160),
                audio.kaldi_filterbank(sound)]

    whole = features()
    monkeypatch.setattr(audio, "PIECE", 7)
    assert all(error(cut, uncut) < 1e-6 for cut, uncut in zip(features(), whole, strict=True))


def test_filters_have_equal_area_and_meet_at_their_peaks():
    filters = audio.slaney_filters(24000, 1920, 80, 8000.0)
    assert filters.shape == (80, 961)
    wide = filters[60:].sum(1) * 12.5  # Hz a bin; narrow filters are sampled too coarsely to have it
    assert bool(((wide - 1).abs() < 0.01).all())
    assert not filters[:, 641:].any()  # above 8000 Hz
    assert bool((filters.argmax(1).diff() > 0).all())
