"""What the built-in codec's own codes of silence are, where a recording of speech has a quiet room around it."""

import os
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from data.acoustics import audio
from models.base import Generated, Voice
from models.generate import SilenceCheck, repetition
from models.tiny.family import Tiny

ROOT = Path(__file__).resolve().parents[3]
PACK, CPU, RATE = ROOT / "models" / "tiny" / "pack", torch.device("cpu"), 16000
DEMO = ROOT / "data" / "demo" / "am" / "clips" / "combinations-001.ogg"
HUMAN = os.environ.get("LISAN_HUMAN", "")


def check(speech: np.ndarray, room_db: float) -> None:
    """Encode speech with four seconds of a room's noise before and after it, and ask what the noise is."""
    chance = np.random.default_rng(0)
    quiet = np.zeros(4 * RATE)
    waveform = np.concatenate([quiet, speech, quiet]) + chance.normal(0, 10 ** (room_db / 20), len(speech) + 8 * RATE)
    family = Tiny()
    features = family.load_extractor(PACK, CPU).extract(torch.from_numpy(waveform.astype(np.float32)))
    codes, voice = features.speech_codes.astype(np.int64), Voice(features.conditioning)
    silence = SilenceCheck(family.load_vocoder(PACK, CPU), [voice], 25)

    def sound(some: np.ndarray, start: int) -> str:
        return silence.repeated_sound(0, Generated(some, "limit"), start)

    assert sound(codes, len(codes) - 60) == "silence"  # after the speech
    assert sound(codes[:75], 15) == "no speech"  # before it
    loudest = int(np.square(speech[:len(speech) // 640 * 640]).reshape(-1, 640).sum(1).argmax())  # 40 ms a code
    vowel = np.concatenate([codes[:-100], np.repeat(codes[100 + loudest], 60)])
    assert sound(vowel, len(vowel) - 60) == "sound"  # a vowel that goes on


@pytest.mark.parametrize("room_db", [-200.0, -70.0, -60.0])
def test_the_codes_of_a_quiet_room_are_silence(room_db: float) -> None:
    check(audio.load(DEMO, RATE).numpy(), room_db)


def test_digital_silence_repeats_one_code() -> None:
    codes = Tiny().load_extractor(PACK, CPU).extract(torch.zeros(3 * RATE)).speech_codes
    assert repetition(codes[:-2]) is not None


@pytest.mark.skipif(not HUMAN, reason="LISAN_HUMAN names no folder of human recordings")
@pytest.mark.parametrize("corpus", ["hausa-f", "mboshi-abiayi", "kiswahili"])
def test_the_codes_of_a_quiet_room_around_a_human_voice_are_silence(corpus: str, tmp_path: Path) -> None:
    with tarfile.open(Path(HUMAN) / f"{corpus}.tar") as archive:
        name = sorted(one for one in archive.getnames() if one.endswith(".ogg"))[40]
        content = archive.extractfile(name).read()  # type: ignore[union-attr]
    waveform, rate = audio.read(BytesIO(content), name)
    check(audio.resample(waveform, rate, RATE).numpy(), -70.0)
