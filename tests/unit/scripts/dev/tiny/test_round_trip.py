"""The measurement of codec and vocoder on recordings, and the codec for people's voices."""

import json

import numpy as np
import pytest
import torch

from config.errors import UserError
from data.acoustics import audio
from scripts.dev.tiny import round_trip
from scripts.dev.tiny.voices import recordings
from scripts.dev.tiny.voices.codec import LEVEL, WEIGHTS, Codec, normalise_level

RATE = 16000


def tone(hertz: float, seconds: float = 1.0, level: float = 0.3) -> torch.Tensor:
    """A voice-like sound (S,): ten harmonics whose pitch rises by a semitone."""
    times = torch.arange(int(seconds * RATE)) / RATE
    phase = 2 * torch.pi * hertz * (times + 0.03 * times.square() / seconds)
    return level * sum(torch.sin(number * phase) / number for number in range(1, 11))


def test_the_level_of_speech_does_not_depend_on_gain_or_pauses():
    speech = tone(140.0)
    paused = torch.cat([speech, torch.zeros(RATE), speech])

    for waveform in (speech, 0.01 * speech, paused):
        loud = normalise_level(waveform)
        assert loud[:RATE].square().mean().sqrt() == pytest.approx(LEVEL, rel=0.02)
    assert torch.equal(normalise_level(torch.zeros(800)), torch.zeros(800))


@pytest.mark.parametrize("hertz", [95.0, 210.0])
def test_the_pitch_of_the_training_is_that_of_the_sound(hertz):
    log_f0, voiced = recordings.pitch(tone(hertz), 100)

    assert voiced[5:90].all()
    assert float(log_f0[5:90].exp().mean()) == pytest.approx(hertz * 1.03, rel=0.03)


def test_a_recording_played_faster_keeps_the_times_of_its_frames():
    waveform = torch.cat([torch.zeros(8000), tone(120.0), torch.zeros(8000)])
    frames = {hop: recordings.shifted_mel(waveform, hop) for hop in recordings.HOPS}

    for mel in frames.values():
        loud = (mel.mean(1) > mel.mean(1).max() - 3).nonzero()[:, 0]
        assert abs(int(loud[0]) - 50) <= 3
        assert abs(int(loud[-1]) - 150) <= 3


def test_agreement_of_pitch_is_one_for_the_same_contour_and_none_without_voice():
    contour = round_trip.contour(tone(150.0, 2.0) )

    correlation, ratio = round_trip.pitch_agreement(contour, contour * 1.5)
    assert correlation == pytest.approx(1.0)
    assert ratio == pytest.approx(1.0)
    assert round_trip.pitch_agreement(contour, np.full(len(contour), np.nan)) is None


def test_a_table_that_names_a_missing_clip_is_refused_by_its_name(tmp_path):
    (tmp_path / "metadata.csv").write_text("clips/1.wav|jambo\n", encoding="utf-8")

    with pytest.raises(UserError, match="clips/1.wav, which does not exist"):
        round_trip.read_clips(tmp_path)


def test_the_saved_codec_reads_a_clip_and_makes_one_of_its_length():
    codec = Codec.load(WEIGHTS)
    mel = audio.log_mel(normalise_level(tone(130.0))[None], recordings.SETTINGS)

    codes = codec.encode(mel)
    decoded = codec.decode(codes, codec.embed_speaker(mel))

    assert codes.shape == (1, 26)
    assert int(codes.max()) < codec.config.codebook_size
    assert decoded.shape == (1, 80, 104)
    assert float((decoded[..., 10:90] - mel[..., 10:90]).abs().mean()) < 1.5  # silence is over 4 away


def test_round_trip_prints_each_version_as_json(tmp_path, capsys, monkeypatch):
    (tmp_path / "clips").mkdir()
    names = [f"clips/{number}.wav" for number in range(3)]
    for number, name in enumerate(names):
        audio.save(tmp_path / name, tone(110.0 + 20 * number), RATE)
    (tmp_path / "metadata.csv").write_text("".join(f"{name}|text\n" for name in names), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["round_trip", str(tmp_path), "--count", "2", "--json"])
    monkeypatch.setattr(round_trip.measures, "naturalness", lambda waveform, rate: 3.0)

    assert round_trip.main() == 0
    results = json.loads(capsys.readouterr().out)

    assert results["clips"] == 2
    for version in ("recording", "vocoder", "codec"):
        assert {"cer", "mos", "similarity", "f0_correlation", "f0_range_ratio"} <= set(results[version])
        assert results[version]["cer"] is None
    assert results["recording"]["similarity"] == pytest.approx(1.0, abs=1e-3)
    assert results["vocoder"]["f0_correlation"] > 0.9
