"""What is measured of a clip of speech beside its transcript: pitch, pauses, naturalness, speaker, spectral distance.

Waveforms are mono, (S,) float32 in [-1, 1]. Two networks come with the weights of their packages: Distill-MOS for the
naturalness, Resemblyzer's voice encoder for the speaker. Neither heard Amharic in its training, and Distill-MOS is
documented for English, so their values compare systems on the same sentences and say little by themselves.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein

from config.errors import UserError
from data.acoustics import audio
from data.acoustics.voice_encoder import SAMPLE_RATE, VoiceEncoder
from data.clip_findings import ClipLimits
from data.measures import Samples, frame_powers, silence_at_ends
from models.registry import family

VERSION = 1  # version of the measures, and so of their cache
NATURALNESS = ("Distill-MOS 0.9.1 (Microsoft, MIT): estimated mean opinion score, 1 to 5; trained on noise "
               "suppression, telephony, packet loss, NISQA, VoiceMOS 2022 and text-to-speech; documented for English")
SPEAKER = ("Resemblyzer 0.1.4 (Apache-2.0): GE2E voice encoder, trained on LibriSpeech-other, VoxCeleb 1 and 2; cosine "
           "with the mean vector of other recordings of the speaker")
LONG_PAUSE_S = 0.8
_RATE = 16000  # Hz, at which pitch and cepstra are computed
_HOP = 160  # samples
_LOWEST_HZ, _HIGHEST_HZ = 60.0, 500.0  # range of the pitch
_INTEGRATION = 400  # samples of YIN's difference function
_APERIODICITY = 0.15  # YIN's threshold; above it a frame is unvoiced
_LEAST_VOICED = 10  # frames for a range
_CEPSTRA = 13  # without the level
_QUIET_DB = 40.0  # under the loud frames: a pause
_LEAST_DBFS = -30.0  # Resemblyzer makes quieter clips as loud as this
_REPEATED = re.compile(r"(.{4,}?)\1")



@dataclass(frozen=True)
class EditCounts:
    """Edits that turn a reference into a transcript, and the words of the reference with an edit."""

    substitutions: int
    deletions: int
    insertions: int
    wrong_words: int


def count_edits(words: list[str], transcript: str) -> EditCounts:
    """Edits between the joined letters of `words` and the letters of `transcript`.

    Recognisers are not asked for spaces, which are not audible, so a word is wrong where one of its letters is
    substituted or deleted, or where letters are inserted inside or after it (the first also before it).
    """
    reference = "".join(words)
    ends = np.cumsum([len(word) for word in words])
    counts, wrong = {"replace": 0, "delete": 0, "insert": 0}, set[int]()
    for edit in Levenshtein.editops(reference, transcript):
        counts[edit.tag] += 1
        place = edit.src_pos - 1 if edit.tag == "insert" else edit.src_pos
        if words:
            wrong.add(int(np.searchsorted(ends, max(0, place), side="right")))
    return EditCounts(counts["replace"], counts["delete"], counts["insert"], len(wrong))


def transcript_values(text: str, reference: str, transcript: str, normalise: Callable[[str], str],
                      finish_reason: str = "") -> dict[str, tuple[float, float]]:
    """Numerator and denominator of what a transcript tells: `cer`, `deletions`, `repetition`, and `wer` of words.

    `reference` are the letters of `text`, by `normalise`; a rule of spelling may look beyond a word, and then words
    cannot be told. A model that was stopped because it repeated itself has the fault whatever is heard.
    """
    normalised = [normalise(part) for part in text.split()]
    words = [word for word in normalised if word]
    # Words are only counted if their letters are those of the whole text.
    by_words = "".join(words) == reference
    edits = count_edits(words if by_words else [reference], transcript)
    letters = float(max(1, len(reference)))
    values = {"cer": (float(edits.substitutions + edits.deletions + edits.insertions), letters),
              "deletions": (float(edits.deletions), letters),
              "repetition": (float(finish_reason == "repetition" or has_repetition(reference, transcript)), 1.0)}
    return {**values, "wer": (float(edits.wrong_words), float(len(words)))} if by_words else values


def fault_values(longest_pause_s: float, clipped: float) -> dict[str, tuple[float, float]]:
    """The faults of a sound, 1 or 0, so that their mean over clips is a share; `clipped`: share of its samples."""
    return {"long_silence": (float(longest_pause_s >= LONG_PAUSE_S), 1.0),
            "clipping": (float(clipped > ClipLimits().clipped_share), 1.0)}


def has_repetition(reference: str, transcript: str) -> bool:
    """Whether four or more letters follow themselves in the transcript and not in the reference."""
    return any(match[1] * 2 not in reference for match in _REPEATED.finditer(transcript))


def pitch(waveform: torch.Tensor, sample_rate: int) -> NDArray[np.float64]:
    """Fundamental frequency in Hz each 10 ms, NaN where unvoiced: YIN (de Cheveigné and Kawahara 2002).

    The smallest lag whose normalised difference is a local minimum below 0.15; refined by a parabola.
    """
    samples = audio.to_numpy(audio.resample(waveform, sample_rate, _RATE)).astype(np.float64)
    shortest, longest = int(_RATE / _HIGHEST_HZ), math.ceil(_RATE / _LOWEST_HZ)
    size = _INTEGRATION + longest + 1
    if len(samples) < size:
        return np.full(0, np.nan)

    # The difference function of all lags, from energies and a correlation by FFT.
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::_HOP]
    head = frames[:, :_INTEGRATION]
    transform = 1 << (size + _INTEGRATION).bit_length()
    correlation = np.fft.irfft(np.fft.rfft(frames, transform) * np.fft.rfft(head, transform).conj())[:, :longest + 2]
    energy = np.cumsum(np.pad(frames**2, ((0, 0), (1, 0))), axis=1)
    lags = np.arange(longest + 2)
    power = energy[:, lags + _INTEGRATION] - energy[:, lags]
    difference = np.maximum(0.0, power[:, :1] + power - 2 * correlation)

    # Normalised by its mean up to each lag, it begins with 1 and does not favour lag 0.
    mean = np.cumsum(difference[:, 1:], axis=1) / lags[1:]
    normalised = np.concatenate([np.ones((len(frames), 1)), difference[:, 1:] / np.maximum(mean, 1e-12)], axis=1)

    # Candidates are local minima below the threshold; quiet frames are unvoiced.
    inner = normalised[:, 1:-1]
    candidates = (inner < _APERIODICITY) & (inner <= normalised[:, :-2]) & (inner < normalised[:, 2:])
    candidates[:, :shortest - 1] = False
    loud = power[:, 0] > power[:, 0].max() * 10 ** (-_QUIET_DB / 10)
    voiced = np.flatnonzero(candidates.any(axis=1) & loud)

    # Take the smallest lag, else an octave too low is found; then refine it.
    best = candidates[voiced].argmax(axis=1) + 1
    previous, centre, following = (normalised[voiced, best + step] for step in (-1, 0, 1))
    shift = 0.5 * (previous - following) / np.maximum(previous - 2 * centre + following, 1e-12)
    frequencies = np.full(len(frames), np.nan)
    frequencies[voiced] = _RATE / (best + shift)
    return frequencies


def pitch_range(frequencies: NDArray[np.float64]) -> float | None:
    """Semitones between the 5th and the 95th percentile; None with fewer than ten voiced frames."""
    voiced = frequencies[np.isfinite(frequencies)]
    if len(voiced) < _LEAST_VOICED:
        return None
    low, high = np.percentile(voiced, (5, 95))
    return float(12 * np.log2(high / low))


def longest_pause(waveform: Samples, sample_rate: int) -> float:
    """Seconds of the longest silence between two sounds, 40 dB or more under the loud frames."""
    powers = frame_powers(waveform, sample_rate)
    sounding = np.flatnonzero(powers > np.percentile(powers, 95) * 10 ** (-_QUIET_DB / 10))
    return float(max(0, np.diff(sounding).max() - 1) * 0.01) if len(sounding) > 1 else 0.0


def speech_seconds(waveform: Samples, sample_rate: int) -> float:
    """Seconds between the silent ends."""
    start_s, end_s = silence_at_ends(waveform, sample_rate)
    return max(0.0, len(waveform) / sample_rate - start_s - end_s)


def mel_cepstra(waveform: torch.Tensor, sample_rate: int) -> NDArray[np.float64]:
    """Mel cepstra 1 to 13 of (S,) between its silent ends: (F, 13), each 10 ms.

    The one-sided cosine series of the logarithm of the mel amplitude, as mel-cepstral analysis defines it; the level
    (coefficient 0) is left out.
    """
    settings = audio.MelSettings()
    resampled = audio.resample(waveform, sample_rate, settings.sample_rate)
    mel = audio.log_mel(audio.trim_silence(resampled)[None], settings)[0].double().numpy()  # (n_mels, F)
    bands = (np.arange(settings.n_mels) + 0.5) * math.pi / settings.n_mels
    return mel.T @ (2 / settings.n_mels * np.cos(np.outer(bands, np.arange(1, _CEPSTRA + 1))))


def mel_cepstral_distance(cepstra: NDArray[np.float64], other_cepstra: NDArray[np.float64]) -> float:
    """Mean distance in dB of two cepstra (F, 13) along the path of dynamic time warping (Kubichek 1993)."""
    costs = 10 / math.log(10) * np.sqrt(2 * np.square(cepstra[:, None] - other_cepstra[None]).sum(-1))
    path = warp(costs)
    return float(costs[path[:, 0], path[:, 1]].mean())


def warp(costs: NDArray[np.float64]) -> NDArray[np.int64]:
    """The cheapest path (P, 2) through costs (N, M) from the first to the last cell, by steps of one, not back."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    # Cells of a diagonal depend on earlier diagonals only, so they are computed together.
    total[0, 0] = 0.0
    for diagonal in range(rows + columns - 1):
        i = np.arange(max(0, diagonal - columns + 1), min(diagonal, rows - 1) + 1)
        j = diagonal - i
        total[i + 1, j + 1] = costs[i, j] + np.minimum(np.minimum(total[i, j + 1], total[i + 1, j]), total[i, j])

    # Follow the cheapest steps back from the last cell.
    i, j = rows - 1, columns - 1
    path = [(i, j)]
    while i or j:
        steps = ((i - 1, j - 1), (i - 1, j), (i, j - 1))
        i, j = min(steps, key=lambda cell: total[cell[0] + 1, cell[1] + 1])
        path.append((i, j))
    return np.array(path[::-1])


def naturalness(waveform: torch.Tensor, sample_rate: int) -> float:
    """Estimated mean opinion score of (S,), 1 to 5, by Distill-MOS (Stahl and Gamper 2025, arXiv:2502.05356)."""
    resampled = audio.resample(waveform, sample_rate, _RATE)
    with torch.inference_mode():
        return float(_naturalness_model()(resampled[None])[0])


@lru_cache(maxsize=1)
def _naturalness_model() -> Any:
    import distillmos  # only where it is used

    with contextlib.redirect_stdout(io.StringIO()):  # it prints where its weights are
        model = distillmos.ConvTransformerSQAModel()
    return model.eval().requires_grad_(False)


def similarity_embedding(waveform: torch.Tensor, sample_rate: int) -> NDArray[np.float32]:
    """Speaker embedding (256,) of unit length of (S,), by Resemblyzer's encoder; `UserError` for a clip without sound.

    Quieter clips are made as loud as -30 dBFS first, as the package does; pauses inside a clip are left in.
    """
    resampled = audio.resample(waveform, sample_rate, SAMPLE_RATE)
    level_db = 10 * math.log10(max(float(resampled.double().square().mean()), 1e-12))
    return _speaker_encoder().embed(resampled * 10 ** (max(0.0, _LEAST_DBFS - level_db) / 20)).numpy()


@lru_cache(maxsize=1)
def _speaker_encoder() -> VoiceEncoder:
    """The network with the weights of the installed package, which is not imported: it would need webrtcvad."""
    spec = importlib.util.find_spec("resemblyzer")
    places = list(spec.submodule_search_locations or ()) if spec else []
    path = Path(places[0]) / "pretrained.pt" if places else None
    if path is None or not path.is_file():
        raise UserError("The package Resemblyzer, whose weights measure speaker similarity, is not installed.",
                        "Install it: pip install --no-deps -r requirements-weights.txt (make run does it).")

    weights = family("tiny").open_weights(path)
    encoder, start = VoiceEncoder(), "model_state."
    encoder.load_state_dict({name.removeprefix(start).replace("linear.", "proj."): weights.tensor(name)
                             for name in weights.names if name.startswith(start)})
    return encoder.eval().requires_grad_(False)


def cosine(vector: NDArray[np.floating], other_vector: NDArray[np.floating]) -> float:
    """Cosine of two vectors (D,)."""
    norms = float(np.linalg.norm(vector) * np.linalg.norm(other_vector))
    return float(np.dot(vector, other_vector)) / norms if norms else 0.0
