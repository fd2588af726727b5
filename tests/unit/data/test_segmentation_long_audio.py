"""Long recordings: heard in blocks, read in order, resampled once, and brought to one loudness."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch

from config.errors import UserError
from data import sound_files
from data.acoustics.voice_activity import FRAME, VoiceActivityDetector, VoiceNet, detect_voice, weights_file
from data.measures import PEAK_CEILING, integrated_loudness
from data.segmentation import voiced_runs
from data.sound_files import VOICE_RATE, ClipFormat, format_clip

HELD_OUT = Path(__file__).resolve().parents[3] / "models/tiny/pack/held_out"


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """Four synthetic sentences with pauses of half a second, at 16 kHz."""
    parts = []
    for number in range(4):
        parts += [np.zeros(VOICE_RATE // 2, np.float32),
                  soundfile.read(HELD_OUT / f"en-combinations-0{number}.ogg", dtype="float32")[0]]
    return np.concatenate([*parts, np.zeros(VOICE_RATE // 2, np.float32)])


def probabilities(samples: np.ndarray, step: int) -> np.ndarray:
    activity = VoiceActivityDetector()
    return np.concatenate([*(activity.push(samples[at:at + step]) for at in range(0, len(samples), step)),
                           activity.finish()])


def test_the_network_is_that_of_the_package(speech: np.ndarray) -> None:
    published = torch.jit.load(str(weights_file().with_name("silero_vad.jit")))
    values = {name.removeprefix("_model."): value for name, value in published.state_dict().items()}
    net = VoiceNet().eval()
    parts = {"encoder.0.reparam_conv": "conv1", "encoder.1.reparam_conv": "conv2", "encoder.2.reparam_conv": "conv3",
             "encoder.3.reparam_conv": "conv4", "decoder.decoder.2": "final_conv"}
    state = {f"{ours}.{part}": values[f"{theirs}.{part}"] for theirs, ours in parts.items()
             for part in ("weight", "bias")}
    state |= {f"lstm.{part}_l0": values[f"decoder.rnn.{part}"]
              for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    net.load_state_dict({**state, "stft_conv.weight": values["stft.forward_basis_buffer"]})
    samples = torch.from_numpy(speech[:200 * FRAME])
    frames = torch.cat([torch.zeros(64), samples]).unfold(0, FRAME + 64, FRAME)
    with torch.inference_mode():
        ours = net(frames, None)[0]
        theirs = torch.cat([published(frame[None], VOICE_RATE)[0] for frame in samples.view(-1, FRAME)])
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_blocks_of_any_size_are_heard_alike(speech: np.ndarray) -> None:
    whole = probabilities(speech, len(speech))
    assert len(whole) == -(-len(speech) // FRAME)
    assert np.allclose(probabilities(speech, 700), whole, atol=1e-4)
    runs = voiced_runs(whole)
    assert len(runs) == 4
    assert runs[0][0] * FRAME / VOICE_RATE == pytest.approx(0.5, abs=0.15)


def test_silence_and_noise_are_no_voice() -> None:
    noise = 0.05 * np.random.default_rng(0).standard_normal(4 * VOICE_RATE).astype(np.float32)
    assert voiced_runs(probabilities(np.concatenate([np.zeros(4 * VOICE_RATE, np.float32), noise]), VOICE_RATE)) == []


@pytest.mark.parametrize("rate", [16000, 22050, 48000])
def test_a_recording_of_any_rate_is_heard_in_its_own_time(tmp_path: Path, speech: np.ndarray, rate: int) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([soxr.resample(speech, VOICE_RATE, rate)] * 2, 1), rate)
    told: list[float] = []
    heard = detect_voice(tmp_path / "a.wav", told.append)
    assert heard.total_s == pytest.approx(len(speech) / VOICE_RATE, abs=0.01)
    assert told[-1] == pytest.approx(heard.total_s)
    assert len(voiced_runs(heard.probabilities)) == 4
    assert len(heard.levels) == len(heard.probabilities)
    assert len(heard.noise) > VOICE_RATE // 4
    assert np.abs(heard.noise).max() < 0.05


def test_pieces_are_the_samples_of_their_time_whatever_the_blocks(tmp_path: Path) -> None:
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, 50 * VOICE_RATE).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", samples, VOICE_RATE, subtype="FLOAT")
    spans = [(0.0, 2.0), (2.0, 15.5), (19.9, 20.1), (35.0, 41.0), (48.0, 50.0)]
    for (begin, end), piece in zip(spans, sound_files.read_spans(tmp_path / "a.wav", spans), strict=True):
        assert np.array_equal(piece, samples[round(begin * VOICE_RATE):round(end * VOICE_RATE)])


def test_memory_does_not_grow_with_the_length(tmp_path: Path) -> None:
    def peak(minutes: int) -> int:
        path = tmp_path / f"{minutes}.wav"
        with soundfile.SoundFile(str(path), "w", 8000, 1) as file:
            for _ in range(minutes):
                file.write(np.zeros(60 * 8000))
        tracemalloc.start()
        spans = [(10.0 * n, 10.0 * n + 5) for n in range(6 * minutes)]
        assert sum(len(piece) for piece in sound_files.read_spans(path, spans)) == 5 * 8000 * len(spans)
        assert sum(map(len, sound_files.read_resampled(path, VOICE_RATE))) == minutes * 60 * VOICE_RATE
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1)
    assert peak(20) < 1.2 * peak(2)


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"no sound")
    with pytest.raises(UserError, match=r"a\.wav could not be read as audio"):
        list(sound_files.read_blocks(tmp_path / "a.wav"))


def test_a_clip_gets_the_loudness_and_rate_that_are_asked_for(speech: np.ndarray) -> None:
    quiet = 0.05 * speech
    made, rate = format_clip(quiet, VOICE_RATE, ClipFormat(24000, -26.0), np.zeros(0, np.float32))
    assert rate == 24000
    assert len(made) == round(len(quiet) * 1.5)
    assert integrated_loudness(made, rate) == pytest.approx(-26.0, abs=0.1)
    same, rate = format_clip(quiet, VOICE_RATE, ClipFormat(0, None), np.zeros(0, np.float32))
    assert rate == VOICE_RATE
    assert np.array_equal(same, quiet)


def test_a_clip_is_not_clipped_for_its_loudness() -> None:
    clicks = np.zeros(2 * VOICE_RATE, np.float32)
    clicks[::4000] = 0.5
    made, _ = format_clip(clicks, VOICE_RATE, ClipFormat(0, -14.0), np.zeros(0, np.float32))
    assert np.abs(made).max() == pytest.approx(PEAK_CEILING, rel=1e-5)


def test_silence_stays_silence() -> None:
    silent = np.zeros(VOICE_RATE, np.float32)
    assert np.array_equal(format_clip(silent, VOICE_RATE, ClipFormat(0, -23.0), silent)[0], silent)


def test_noise_goes_by_what_the_pauses_sound_like(speech: np.ndarray) -> None:
    random = np.random.default_rng(0)
    noise = (0.02 * random.standard_normal(len(speech))).astype(np.float32)
    sample = (0.02 * random.standard_normal(2 * VOICE_RATE)).astype(np.float32)
    made, _ = format_clip(speech + noise, VOICE_RATE, ClipFormat(0, None, denoise=True), sample)
    pause, voice = slice(1000, 7000), slice(VOICE_RATE // 2 + 2000, VOICE_RATE)
    assert np.std(made[pause]) < 0.3 * np.std(noise[pause])
    assert np.std(made[voice]) > 0.7 * np.std(speech[voice])
