"""Trimming of the silence at the ends of a clip."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from data.acoustics.voice_activity import FRAME, FRAME_S, VoiceActivityDetector
from data.measures import frame_powers, silence_at_ends
from data.sound_files import read_samples, silence_to_trim, trim

RATE = 16000
HUMAN = os.environ.get("LISAN_HUMAN", "")
CORPORA = ("hausa-f", "mboshi-abiayi", "kiswahili")


def utterance(onset: np.ndarray, room: float) -> np.ndarray:
    """0.8 s of room noise, a soft onset, a vowel of changing level, a stop with its release, 0.6 s of room noise."""
    chance, times = np.random.default_rng(1), np.arange(RATE) / RATE
    vowel = sum(np.sin(2 * np.pi * 130 * k * times) / k for k in range(1, 12)) * 0.1 * (1.2 + np.sin(9 * times))
    release = chance.normal(0, 0.01, RATE // 50) * np.linspace(1, 0.2, RATE // 50)
    speech = np.concatenate([onset, vowel, np.zeros(RATE // 12), release])
    padded = np.concatenate([np.zeros(int(0.8 * RATE)), speech, np.zeros(int(0.6 * RATE))])
    return (padded + chance.normal(0, room, len(padded))).astype(np.float32)


@pytest.mark.parametrize("room", [0.0, 3e-4, 1e-3])
def test_soft_onsets_and_releases_are_not_cut(room: float) -> None:
    fricative = np.random.default_rng(2).normal(0, 0.006, RATE // 8) * np.linspace(0.3, 1, RATE // 8)
    waveform = utterance(fricative, room)
    duration_s = len(waveform) / RATE
    start_s, end_s = silence_to_trim(*silence_at_ends(waveform, RATE), duration_s)
    assert 0.6 <= start_s <= 0.8  # where the fricative begins
    assert 0.4 <= end_s <= 0.6  # after the release
    cut = trim(waveform, RATE, start_s, end_s)
    assert len(cut) == pytest.approx((duration_s - start_s - end_s) * RATE, abs=2)
    inner = slice(RATE // 100, len(cut) - RATE // 100)
    assert np.array_equal(cut[inner], waveform[round(start_s * RATE):][:len(cut)][inner])
    assert cut[0] == cut[-1] == 0.0  # faded


def test_nothing_is_cut_of_a_clip_that_begins_and_ends_with_speech_or_holds_none() -> None:
    assert silence_to_trim(0.1, 0.05, 3.0) == (0.0, 0.0)
    assert silence_to_trim(3.0, 0.0, 3.0) == (0.0, 0.0)
    waveform = np.ones(100, np.float32)
    assert np.array_equal(trim(waveform, RATE, 0.0, 0.0), waveform)


@pytest.mark.skipif(not HUMAN, reason="LISAN_HUMAN names no folder of human recordings")
@pytest.mark.parametrize("corpus", CORPORA)
def test_what_is_trimmed_of_human_recordings_holds_no_speech(corpus: str) -> None:
    """Of 100 clips: hardly a frame that is cut has a voice, and none is near the level of the speech."""
    with tarfile.open(Path(HUMAN) / f"{corpus}.tar") as archive:
        members = [one for one in archive.getmembers() if one.name.endswith(".ogg")]
        clips = [read_samples(io.BytesIO(archive.extractfile(one).read()), one.name)  # type: ignore[union-attr]
                 for one in members[::max(1, len(members) // 100)][:100]]
    cut_frames = voiced_frames = 0
    for waveform, rate in clips:
        assert rate == RATE
        start_s, end_s = silence_to_trim(*silence_at_ends(waveform, rate), len(waveform) / rate)
        detector = VoiceActivityDetector()
        voiced = np.concatenate([detector.push(waveform), detector.finish()]) >= 0.5
        begins = np.arange(len(voiced)) * FRAME_S
        cut = (begins + FRAME_S <= start_s) | (begins >= len(waveform) / rate - end_s)
        cut_frames += int(cut.sum())
        voiced_frames += int((cut & voiced).sum())
        if cut.any():
            loud = np.percentile(frame_powers(waveform, rate), 95)
            loudest = max(np.mean(waveform[at * FRAME:(at + 1) * FRAME] ** 2) for at in np.flatnonzero(cut))
            assert loudest < loud * 10 ** -1.5
    assert cut_frames > 300
    assert voiced_frames < 0.03 * cut_frames
