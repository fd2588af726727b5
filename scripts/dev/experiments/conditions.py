"""Copies of a folder of recordings as bad conditions would have left them: a telephone, noise, a reverberant room.

    python -m scripts.dev.experiments.conditions FOLDER OUT [--clips 300]

FOLDER has `clips/` and `metadata.csv` with a line `clips/NAME|text` for each clip. OUT gets a folder of the same kind
for each condition, which `python -m scripts prepare --source` reads: `clean`, the recordings themselves; `telephone`,
300 to 3,400 Hz at 8 kHz in the eight bits of mu-law (ITU-T G.711); `noise`, pink noise 20 dB below the voice; and
`room`, an exponential decay of 0.8 s to -60 dB that is as strong as the direct sound.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from data.acoustics import audio
from scripts.command import exit_with
from scripts.dev.tiny.round_trip import read_clips

RATE, TELEPHONE_RATE = 16_000, 8_000
BAND_HZ = (300.0, 3400.0)
SIGNAL_TO_NOISE_DB = 20.0
DECAY_S = 0.8
_MU = 255.0
_ACTIVE = 0.9  # the level of the voice is that of the loudest tenth of its 20 ms frames


def telephone(samples: np.ndarray, _choice: np.random.Generator) -> tuple[np.ndarray, int]:
    """Samples (S,) at 16 kHz to (S / 2,) at 8 kHz: a band of a telephone line, coded by mu-law."""
    spectrum, frequencies = np.fft.rfft(samples), np.fft.rfftfreq(len(samples), 1 / RATE)
    spectrum[(frequencies < BAND_HZ[0]) | (frequencies > BAND_HZ[1])] = 0
    narrow = np.fft.irfft(spectrum, len(samples))[::RATE // TELEPHONE_RATE]
    coded = np.sign(narrow) * np.log1p(_MU * np.abs(np.clip(narrow, -1, 1))) / np.log1p(_MU)
    coded = np.round(coded * 127) / 127
    return np.sign(coded) * np.expm1(np.abs(coded) * np.log1p(_MU)) / _MU, TELEPHONE_RATE


def noise(samples: np.ndarray, choice: np.random.Generator) -> tuple[np.ndarray, int]:
    """Samples (S,) with pink noise 20 dB below the active level of the voice."""
    spectrum = np.fft.rfft(choice.standard_normal(len(samples)))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[0] = 0
    hiss = np.fft.irfft(spectrum, len(samples))
    frames = samples[:len(samples) // 320 * 320].reshape(-1, 320)
    voice = np.sqrt(np.quantile(np.square(frames).mean(1), _ACTIVE))
    return samples + hiss / np.sqrt(np.square(hiss).mean()) * voice * 10 ** (-SIGNAL_TO_NOISE_DB / 20), RATE


def room(samples: np.ndarray, choice: np.random.Generator) -> tuple[np.ndarray, int]:
    """Samples (S,) in a room: its reverberation is decaying noise with the energy of the direct sound."""
    times = np.arange(int(DECAY_S * RATE)) / RATE
    tail = choice.standard_normal(len(times)) * 10 ** (-3 * times / DECAY_S)
    response = tail / np.sqrt(np.square(tail).sum())
    response[0] += 1.0
    length = len(samples) + len(response) - 1
    heard = np.fft.irfft(np.fft.rfft(samples, length) * np.fft.rfft(response, length), length)[:len(samples)]
    return heard * min(1.0, 0.95 / max(np.abs(heard).max(), 1e-9)), RATE


CONDITIONS: dict[str, Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, int]]] = {
    "clean": lambda samples, _choice: (samples, RATE), "telephone": telephone, "noise": noise, "room": room}


def main() -> int:
    """Write the copies; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.experiments.conditions", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clips", type=int, default=300, help="the first ones (default: %(default)s)")
    args = parser.parse_args()

    clips = read_clips(args.folder)[:args.clips]
    for name, condition in CONDITIONS.items():
        folder = args.out / name
        (folder / "clips").mkdir(parents=True)
        lines = []
        for number, (path, text) in enumerate(clips):
            samples = audio.load(path, RATE).numpy().astype(np.float64)
            changed, rate = condition(samples, np.random.default_rng(number))
            audio.save(folder / "clips" / f"{path.stem}.wav", torch.from_numpy(changed.astype(np.float32)), rate)
            lines.append(f"clips/{path.stem}.wav|{text}")
        (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{folder}: {len(clips)} clips")
    return 0


if __name__ == "__main__":
    exit_with(main)
