"""Sound files in, and log-mel."""

from __future__ import annotations

import math

import librosa
import numpy as np
import pytest
import soundfile
import torch

from config.errors import UserError
from data.acoustics import audio

SETTINGS = audio.MelSettings()


def _tone(seconds: float, hertz: float, rate: int = 16000) -> torch.Tensor:
    return 0.4 * torch.sin(2 * math.pi * hertz * torch.arange(int(seconds * rate)) / rate)


def test_stereo_at_another_rate_becomes_mono_at_the_rate_asked_for(tmp_path):
    left = _tone(0.5, 440, 44100).numpy()
    soundfile.write(tmp_path / "a.wav", np.stack([left, left], 1), 44100)
    waveform = audio.load(tmp_path / "a.wav", 16000)
    assert waveform.shape == (8000,)
    spectrum = torch.fft.rfft(waveform).abs()
    assert abs(spectrum.argmax().item() * 2 - 440) <= 2  # bins of 2 Hz


def test_a_file_that_is_not_audio_is_named_with_a_way_out(tmp_path):
    (tmp_path / "notes.wav").write_text("not sound")
    with pytest.raises(UserError, match="notes.wav could not be read as audio") as caught:
        audio.load(tmp_path / "notes.wav", 16000)
    assert "ffmpeg" in caught.value.hint


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="gone.wav"):
        audio.load(tmp_path / "gone.wav", 16000)


def test_frames_are_counted_from_the_hop():
    assert audio.log_mel(torch.zeros(1, 16000), SETTINGS).shape == (1, 80, 101)


def test_resampling_is_librosas_to_the_sample():
    for length, source, target in ((1000, 44100, 16000), (44099, 44100, 24000), (7001, 8000, 24000), (9, 48000, 16000)):
        waveform = _tone(length / source, 440, source)[:length]
        wanted = librosa.resample(waveform.numpy(), orig_sr=source, target_sr=target)
        assert np.array_equal(audio.resample(waveform, source, target).numpy(), wanted)


@pytest.mark.parametrize(("source", "target"), [(44100, 16000), (48000, 16000), (48000, 24000), (24000, 16000)])
def test_what_is_above_the_new_band_does_not_come_back(tmp_path, source, target):
    """A tone at 1.05 times the new Nyquist frequency, through the reading of a clip; it is the alias that is left."""
    tone = np.sin(2 * np.pi * 1.05 * target / 2 * np.arange(source) / source)  # in float64: noise of its own is less
    soundfile.write(tmp_path / "a.wav", tone, source, subtype="FLOAT")
    middle = audio.load(tmp_path / "a.wav", target)[target // 4:-target // 4]
    alias_db = 10 * math.log10(2 * float(middle.double().square().mean()))
    assert alias_db <= -100
