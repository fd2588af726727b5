"""Audio augmentation: variants of a recording with another speed or pitch, or with noise.

A variant is determined by the audio's hash, its number and the recipe, so its features can be cached. Speed and pitch
are independent: a slower clip must not have a lower voice, because its prompt, another clip of the speaker, is not
changed. Stretching is librosa's phase vocoder, resampling soxr's.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import random
import shutil
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np

from config.errors import UserError
from data.measures import OUTPUT_PEAK

FILE = "augmentation.json"  # file in a dataset's folder
_VERSION = "1"  # version of `apply`, part of the keys
_WINDOW_S = 0.064  # window of the phase vocoder: longer ones smear consonants, shorter ones roughen low voices
_QUIETEST_NOISE = 20.0  # dB below the loudest noise


@dataclass(frozen=True)
class AudioVariant:
    """The changes to a recording."""

    speed: float  # above 1 is faster, at the same pitch
    semitones: float  # above 0 is higher, at the same speed
    noise_db: float | None  # level of the voice above white noise; None adds no noise


@dataclass(frozen=True)
class AugmentationRecipe:
    """The number of variants of a recording, and their ranges; 0 disables a change."""

    variants: int
    speed: float  # largest relative change
    semitones: float  # largest shift
    noise_db: float  # smallest level of the voice above the noise
    seed: int = 0

    def of(self, sha256: str) -> tuple[tuple[str, AudioVariant], ...]:
        """The variants of a recording, each with its key in a feature cache."""
        return tuple(self._one(sha256, number) for number in range(self.variants))

    def _one(self, sha256: str, number: int) -> tuple[str, AudioVariant]:
        draw = random.Random(f"{self.seed}/{number}/{sha256}").uniform
        noise = round(draw(self.noise_db, self.noise_db + _QUIETEST_NOISE), 1) if self.noise_db else None
        variant = AudioVariant(round(1 + draw(-self.speed, self.speed), 4),
                            round(draw(-self.semitones, self.semitones), 3), noise)
        key = f"variant {_VERSION} {number} {variant.speed:.4f} {variant.semitones:.3f} {variant.noise_db} {sha256}"
        return hashlib.sha256(key.encode()).hexdigest(), variant

    def __str__(self) -> str:
        parts = [f"speed within {self.speed:.0%}" if self.speed else "", f"pitch within {self.semitones:g} semitones"
                 if self.semitones else "", f"noise at least {self.noise_db:g} dB below" if self.noise_db else ""]
        return f"{self.variants} a clip, {', '.join(filter(None, parts)) or 'with nothing changed'}, seed {self.seed}"


def save(folder: Path, recipe: AugmentationRecipe) -> None:
    """Save the recipe in a dataset's folder."""
    (folder / FILE).write_text(json.dumps(asdict(recipe), indent=1) + "\n", encoding="utf-8")


def require(folder: Path) -> AugmentationRecipe:
    """The recipe of a dataset; `UserError` if it was prepared without variants."""
    recipe = load(folder)
    if recipe is None:
        raise UserError(f"The dataset {folder.name!r} was prepared without variants, so training cannot augment it.",
                        f"Prepare {folder.name!r} again, the same source under the same name, with --variants 2 or "
                        "more (what is cached is kept), or train with augmentation 0.")
    return recipe


def load(folder: Path) -> AugmentationRecipe | None:
    """The recipe of a dataset, or None if it was prepared without variants."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return AugmentationRecipe(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error}.", "Delete it and prepare the dataset again.") from error


def import_librosa() -> ModuleType:
    """Import `librosa` (slow), also if neither its folder nor the home is writable.

    numba, which it imports, caches in one of these and raises RuntimeError if it cannot: then it gets a temporary
    folder, which is deleted at exit.
    """
    spec = find_spec("librosa")
    places = [Path(spec.origin).parent / "__pycache__"] if spec and spec.origin else []
    places.append(Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "numba")
    if "NUMBA_CACHE_DIR" not in os.environ and not any(map(_can_be_written, places)):
        folder = os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="numba-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    import librosa

    return librosa


def _can_be_written(folder: Path) -> bool:
    """As numba tests it; creates a missing folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def apply(samples: np.ndarray, sample_rate: int, variant: AudioVariant, key: str) -> np.ndarray:
    """Waveform (S,) float32 to (about S / speed,) at the same level; the noise is seeded by `key`."""
    librosa = import_librosa()
    ratio = 2 ** (variant.semitones / 12)
    # Resampling changes pitch and duration together; the stretch then sets the duration alone.
    output = librosa.resample(samples, orig_sr=sample_rate * ratio, target_sr=sample_rate, res_type="soxr_hq")
    window = 2 ** round(math.log2(_WINDOW_S * sample_rate))
    output = librosa.effects.time_stretch(output, rate=variant.speed / ratio, n_fft=window)
    level = _level(samples)
    output = output * (level / max(_level(output), 1e-12))
    if variant.noise_db is not None:
        noise = np.random.default_rng(int(key[:16], 16)).standard_normal(len(output))
        output = output + noise * level * 10 ** (-variant.noise_db / 20)
    peak = max(float(np.abs(output).max(initial=0.0)), 1e-12)
    return (output * min(1.0, OUTPUT_PEAK / peak)).astype(np.float32)


def _level(samples: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))
