"""Measures of one recording, each a pure function of its samples; `data.clip_findings` judges them.

A waveform is mono, (S,) float32 in [-1, 1]. Powers are mean squares; decibels are relative to full scale unless stated
otherwise.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyloudnorm

Samples = NDArray[np.float32]
Powers = NDArray[np.float64]

VERSION = 4  # version of the measures and their cache
NO_NOISE_DB = 100.0  # signal-to-noise ratio where pauses are digital silence
OUTLINE_PARTS = 120
PEAK_CEILING = 10 ** (-1 / 20)  # fraction of full scale, -1 dB (EBU R 128): gain never goes beyond it
LEAST_VOICE = 10 ** (-35 / 10)  # power of synthesized speech; what stays below it is silence
SILENCE_RATIO = 100.0  # power of a voice over that of silence beside it, at least
_VOICE_S, _SOUND_S = 0.15, 0.1  # the shortest word; the shortest sound that begins a sentence
OUTPUT_PEAK = 0.99  # fraction of full scale: limit of synthesized and augmented audio
_BLOCK_S, _BLOCK_HOP_S = 0.4, 0.1
_SILENT_LUFS = -70.0  # the absolute gate of BS.1770

_FULL = 0.999  # fraction of full scale: clipped
_STEP = 2.0**-15  # step of 16-bit samples
_FLAT = 3  # samples in a row at the peak, which no voice has
_FRAME_S, _HOP_S = 0.025, 0.010
_TAP_S, _TAP_DB, _TAP_GAP_S = 0.2, -20.0, 0.25  # tap: longest, level below loud frames, silence beside it
_BANDS, _MOMENTS = 17, 17  # size of the sketch: 16 x 16 differences
_SKETCH_S = 0.064
_SKETCH_HZ = (200.0, 3400.0)  # the band that every copy has, also a telephone's


@dataclass(frozen=True)
class Measures:
    """Measures of a recording; None if one cannot be computed."""

    duration_s: float
    sample_rate: int  # Hz
    peak: float  # fraction of full scale
    clipped_share: float  # share of samples
    level_lufs: float | None
    snr_db: float | None
    silence_start_s: float
    silence_end_s: float
    bandwidth_hz: float
    sketch: str  # 256 bits in hexadecimal, similar for copies; empty for too short or steady sounds
    outline: str = ""  # the peaks of OUTLINE_PARTS equal parts, for drawing: each two hexadecimal digits, ff full scale
    pause_s: float = 0.0  # the longest silence between the silent ends

    def trimmed(self, start_s: float, end_s: float) -> Measures:
        """The measures without so much silence at the ends; the outline stays that of the whole recording."""
        return replace(self, duration_s=round(self.duration_s - start_s - end_s, 3),
                       silence_start_s=round(max(0.0, self.silence_start_s - start_s), 3),
                       silence_end_s=round(max(0.0, self.silence_end_s - end_s), 3))

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict) -> Measures:
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


def measure(waveform: Samples, sample_rate: int) -> Measures:
    """All measures of (S,), S > 0."""
    # A constant offset is not sound.
    waveform = waveform - waveform.mean(dtype=np.float64).astype(np.float32)
    powers = frame_powers(waveform, sample_rate)
    start_s, end_s = silence_at_ends(waveform, sample_rate, powers)
    lufs, snr = integrated_loudness(waveform, sample_rate), signal_to_noise(powers)
    return Measures(
        round(len(waveform) / sample_rate, 3), sample_rate, round(peak(waveform), 4),
        round(clipped_share(waveform), 6), None if lufs is None else round(lufs, 1),
        None if snr is None else round(snr, 1), round(start_s, 3), round(end_s, 3),
        round(bandwidth(waveform, sample_rate)), sketch(waveform, sample_rate),
        outline(waveform), round(longest_pause(waveform, sample_rate, powers), 3),
    )


def outline(waveform: Samples) -> str:
    """The outline for drawing: peaks of equal parts, (S,) to 2 * OUTLINE_PARTS hexadecimal digits."""
    edges = np.linspace(0, len(waveform), OUTLINE_PARTS + 1).astype(int)[:-1]
    peaks = np.maximum.reduceat(np.abs(waveform), edges)
    return np.round(np.minimum(1.0, peaks) * 255).astype(np.uint8).tobytes().hex()


def peak(waveform: Samples) -> float:
    """The largest sample, of full scale."""
    return float(np.abs(waveform).max())


def clipped_share(waveform: Samples) -> float:
    """Share of the samples at full scale, or in a flat top: three or more in a row at the recording's own peak.

    The second finds recordings that were clipped and then made quieter.
    """
    size = np.abs(waveform)
    top = float(size.max())
    if top == 0:
        return 0.0
    on_top = np.concatenate(([False], size >= top - _STEP, [False]))
    edges = np.flatnonzero(on_top[1:] != on_top[:-1])
    flat = np.zeros(len(size) + 1, dtype=np.int32)
    for begin, end in edges.reshape(-1, 2):
        if end - begin >= _FLAT:
            flat[begin] += 1
            flat[end] -= 1
    return float(((size >= _FULL) | (np.cumsum(flat)[:-1] > 0)).mean())


def frame_powers(waveform: Samples, sample_rate: int) -> Powers:
    """Power of frames of 25 ms, one each 10 ms, (F,): at least one."""
    frame, hop = min(len(waveform), round(_FRAME_S * sample_rate)), max(1, round(_HOP_S * sample_rate))
    total = np.concatenate(([0.0], np.cumsum(waveform.astype(np.float64)**2)))
    starts = np.arange(0, len(waveform) - frame + 1, hop)
    return np.maximum(0.0, total[starts + frame] - total[starts]) / frame


def signal_to_noise(powers: Powers) -> float | None:
    """Estimated ratio of voice to noise in dB, from frame powers (F,): pauses hold only noise.

    Noise is the third percentile (short readings have few pauses) without digital silence at the ends; voice is what
    louder frames have beyond it. None without a pause.
    """
    sounding = np.flatnonzero(powers > 1e-12)
    if not len(sounding):
        return None
    inner = powers[sounding[0]:sounding[-1] + 1]
    noise, loud = float(np.percentile(inner, 3)), float(np.percentile(inner, 95))
    if loud < 2 * noise:
        return None
    voice = float(inner[inner > 2 * noise].mean()) - noise
    return min(NO_NOISE_DB, 10 * float(np.log10(voice / noise))) if noise > 1e-12 else NO_NOISE_DB


def silence_at_ends(waveform: Samples, sample_rate: int, powers: Powers | None = None) -> tuple[float, float]:
    """Seconds before the first and after the last frame with sound; all of it and 0 for a silent recording.

    Sound is 40 dB or less under the loud frames and 6 dB or more above the pauses. A tap on the microphone or a beep of
    the recorder at an end counts as silence: short, quiet and apart from the rest. Of 100 clips of the Mboshi corpus 74
    have one, and most of their silence is between it and the voice.
    """
    powers = frame_powers(waveform, sample_rate) if powers is None else powers
    duration_s = len(waveform) / sample_rate
    sounds = _sounds_without_taps(powers)
    if not len(sounds):
        return duration_s, 0.0

    # The first frame that sounds is the one whose end the sound reaches, the last the one whose start it reaches.
    begin, end = int(sounds[0, 0]), int(sounds[-1, 1]) - 1
    begin_s = begin * _HOP_S + (_FRAME_S if begin else 0.0)
    last = end * _HOP_S + (0.0 if end < len(powers) - 1 else duration_s)
    # A sound as short as a frame lies anywhere between the two.
    begin_s, last = min(begin_s, last), max(begin_s, last)
    return min(begin_s, duration_s), max(0.0, duration_s - last)


def longest_pause(waveform: Samples, sample_rate: int, powers: Powers | None = None) -> float:
    """Seconds of the longest silence between two sounds, as `silence_at_ends` defines sound."""
    sounds = _sounds_without_taps(frame_powers(waveform, sample_rate) if powers is None else powers)
    frames = int((sounds[1:, 0] - sounds[:-1, 1]).max(initial=0))
    return frames * _HOP_S + _FRAME_S - _HOP_S if frames else 0.0


def voice_power(waveform: Samples, sample_rate: int) -> float:
    """The power that 0.15 s of (S,) exceed: that of the voice, if there is one. 0 without samples."""
    if not len(waveform):
        return 0.0
    powers = np.sort(frame_powers(waveform, sample_rate))
    return float(powers[-min(round(_VOICE_S / _HOP_S), len(powers))])


def leading_silence(waveform: Samples, sample_rate: int) -> float:
    """Seconds before the first sound of synthesized speech (S,); all of it if nothing is as loud as a voice.

    Sound is 0.1 s that are 20 dB or less under the voice: a codec gives the noise of a quiet room some 25 dB under it,
    and less evenly than a recording has it, so `silence_at_ends` would take it for sound.
    """
    voice = voice_power(waveform, sample_rate)
    if voice < LEAST_VOICE:
        return len(waveform) / sample_rate
    sounding = frame_powers(waveform, sample_rate) > voice / SILENCE_RATIO
    runs = np.flatnonzero(np.diff(sounding, prepend=False, append=False)).reshape(-1, 2)
    long_runs = runs[runs[:, 1] - runs[:, 0] >= round(_SOUND_S / _HOP_S)]
    first_frame = int((long_runs if len(long_runs) else runs)[0, 0])
    return first_frame * _HOP_S + (_FRAME_S if first_frame else 0.0)


def _sounds_without_taps(powers: Powers) -> NDArray[np.int64]:
    """First frame and end of each run of frames with sound, (N, 2), without taps at the ends of the recording."""
    noise, loud = float(np.percentile(powers, 10)), float(np.percentile(powers, 95))
    if loud <= 1e-12:
        return np.zeros((0, 2), np.int64)
    sounding = powers > min(max(loud * 1e-4, noise * 4), loud / 10)
    runs = np.flatnonzero(np.diff(sounding, prepend=False, append=False)).reshape(-1, 2)

    # Sounds with less than a gap between them belong together: a weak onset or a stop's release to its word.
    gap = round(_TAP_GAP_S / _HOP_S)
    groups = np.split(runs, np.flatnonzero(runs[1:, 0] - runs[:-1, 1] >= gap) + 1) if len(runs) else []

    def is_tap(group: NDArray[np.int64]) -> bool:
        begin, end = int(group[0, 0]), int(group[-1, 1])
        short = (end - begin) * _HOP_S <= _TAP_S
        return short and float(powers[begin:end].max()) <= loud * 10 ** (_TAP_DB / 10)

    # Groups at both ends are removed as long as they are taps.
    while len(groups) > 1 and is_tap(groups[0]):
        groups = groups[1:]
    while len(groups) > 1 and is_tap(groups[-1]):
        groups = groups[:-1]
    return np.concatenate(groups) if groups else np.zeros((0, 2), np.int64)


def bandwidth(waveform: Samples, sample_rate: int) -> float:
    """The highest frequency in Hz at which the mean spectrum is 50 dB or less under its strongest part; 0 for silence.

    Upsampled sound ends at half of its old rate, however many samples a second it has now. Voices have some -35 dB at
    8 kHz (Byrne et al. 1994); what a short resampling filter leaves just beyond the old rate may still be counted.
    """
    spectrum = _mean_spectrum(waveform, sample_rate)
    if spectrum.max() <= 1e-14:
        return 0.0
    width = sample_rate / 2 / (len(spectrum) - 1)
    audible = np.flatnonzero(spectrum > spectrum.max() * 1e-5)
    return float(audible[-1] * width)


def _mean_spectrum(waveform: Samples, sample_rate: int) -> Powers:
    """Mean power spectrum of half-overlapping windows of 32 ms."""
    size = max(64, round(0.032 * sample_rate / 2) * 2)
    return _spectra(waveform, size, size // 2).mean(axis=0)


def _spectra(waveform: Samples, size: int, hop: int) -> Powers:
    """Power spectra (F, size // 2 + 1) of Blackman windows, whose side lobes are below -58 dB and fall fast."""
    padded = np.pad(waveform, (0, max(0, size - len(waveform))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    window = np.blackman(size).astype(np.float32)
    return np.concatenate([np.abs(np.fft.rfft(frames[start:start + 512] * window, axis=1)) ** 2 / window.sum()**2
                           for start in range(0, len(frames), 512)])


def sketch(waveform: Samples, sample_rate: int) -> str:
    """256 bits that copies of a recording share at any level, rate and format; empty if little happens.

    Whether the difference of neighbouring bands grows from one moment to the next (Haitsma and Kalker 2002), over 17
    bands up to 3.4 kHz and 17 parts of the recording between its silent ends.
    """
    start_s, end_s = silence_at_ends(waveform, sample_rate)
    voiced = waveform[int(start_s * sample_rate):max(1, ceil(len(waveform) - end_s * sample_rate))]
    size = round(_SKETCH_S * sample_rate / 2) * 2
    if len(voiced) < size * 6:
        return ""

    total = np.cumsum(_spectra(voiced, size, size // 4), axis=1)
    # Edges are in bins; the outer bins of a band count in part.
    edges = np.geomspace(*_SKETCH_HZ, _BANDS + 1) * size / sample_rate
    below = np.stack([np.interp(edges, np.arange(total.shape[1]), frame) for frame in total])
    parts = np.stack([part.mean(axis=0) for part in np.array_split(np.diff(below, axis=1), _MOMENTS)])
    level = np.log(parts + parts.max() * 1e-4)
    growth = np.diff(np.diff(level, axis=1), axis=0)
    return np.packbits(growth > 0).tobytes().hex() if (np.abs(growth) > 0.1).mean() > 0.5 else ""


def differing_bits(sketch_bits: str, other: str) -> int:
    """In how many of 256 bits two sketches differ: about 128 for unrelated recordings."""
    return (int(sketch_bits, 16) ^ int(other, 16)).bit_count()


def integrated_loudness(samples: NDArray[np.float32], rate: int) -> float | None:
    """Integrated loudness of (S,) in LUFS (ITU-R BS.1770-4, by pyloudnorm); None for silence.

    The filters have the standard's coefficients at 48 kHz (B. De Man 2014; pyloudnorm's default ones differ by 0.1 dB).
    The meter gets whole blocks only, since the standard counts no other. A clip shorter than 0.4 s is one block.
    """
    blocks = int((len(samples) / rate - _BLOCK_S) / _BLOCK_HOP_S + 1 + 1e-6)
    if blocks > 0:
        meter = _meter(rate, _BLOCK_S)
        samples = samples[:round((_BLOCK_S + _BLOCK_HOP_S * (blocks - 1)) * rate)]
    elif len(samples):
        # Half a sample less, so that rounding does not make the block too long.
        meter = _meter.__wrapped__(rate, (len(samples) - 0.5) / rate)
    else:
        return None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the mean of no block, in silence
        value = float(meter.integrated_loudness(samples.astype(np.float64)))
    return value if value > _SILENT_LUFS else None


def gain_to(lufs: float, measured: float, peak: float) -> float:
    """The factor that brings a clip of this loudness and peak to `lufs`, or as near as its peak allows."""
    gain = 10 ** ((lufs - measured) / 20)
    return min(gain, max(PEAK_CEILING / peak, 1.0)) if peak else 1.0


@lru_cache(maxsize=8)
def _meter(rate: int, block_s: float) -> pyloudnorm.Meter:
    import pyloudnorm  # slow: imports scipy

    return pyloudnorm.Meter(rate, filter_class="DeMan", block_size=block_s)
