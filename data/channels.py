"""Which channels of a recording become its waveform, by measures of each: never a mean that cancels the voice.

`ChannelStatistics` sees the recording once, in blocks of any size. A constant offset is subtracted before anything else
is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

AUTO, MIX = "auto", "mix"
"""What a person may choose beside the number of a channel, from 1: by the measures, or the mean of all."""
OFFSET_LIMIT = 0.01  # fraction of full scale; a larger constant offset is a finding
_OFFSET = 1e-3  # fraction of full scale; a smaller offset is left, as no recording of a voice has a mean of exactly 0
_CHANCE = 5.0  # standard errors of the mean, so that the mean of a short noise is not taken for an offset
_QUIET = 10 ** (-20 / 10)  # power of a channel without voice, relative to the loudest one
_CANCELLED = 0.25  # power of the mix, relative to the loudest channel: two channels with a correlation of -0.5
_UNLIKE = 0.5  # correlation of samples, and of levels, below which two channels hold different sound
_IN_PHASE = 0.7  # correlation of samples; the mean of one voice at two distances is a comb filter
_LOUDER = 2.0  # power of a centre channel that holds the speech, relative to every other one
_FRAME_S = 0.05
_FULL = 0.999  # fraction of full scale
_LONGEST_ENVELOPE = 400_000  # frames, 5.5 h
_CENTRE = 2  # index in all layouts of 3 channels and more, except 4
_LOW_FREQUENCIES = 3  # LFE, in layouts of 6 channels and more


class Mix(Enum):
    """How the waveform is made of the channels."""

    PLAIN = "plain"  # the mean of all
    LOUDEST = "loudest"  # the others are silent
    INVERTED = "inverted"
    OUT_OF_PHASE = "out of phase"
    DIFFERENT = "different sound"  # two speakers, or speech and music
    WEIGHTED = "weighted"  # weights are those of the layout's standard
    CHOSEN = "chosen"  # A person chose the channel.


@dataclass(frozen=True)
class Downmix:
    """The waveform is the sum over channels of `weights` times (samples - `offsets`)."""

    mix: Mix = Mix.PLAIN
    weights: tuple[float, ...] = (1.0,)
    offsets: tuple[float, ...] = (0.0,)  # fractions of full scale; 0 if not worth subtracting
    between: tuple[int, int] = (0, 0)  # the two channels that were compared, from 0
    correlation: float = 1.0  # correlation of these two
    full_scale_shares: tuple[float, ...] = (0.0,)  # (channels,), before the offset is subtracted

    @property
    def full_scale_share(self) -> float:
        """The largest share of samples at full scale of a channel that is used."""
        return max(share for share, weight in zip(self.full_scale_shares, self.weights, strict=True) if weight)

    def chosen(self, channel: str) -> Downmix:
        """This, or the channel or mix that a person chose; `ValueError` if there is no such channel.

        A recording with one channel is used as it is, whatever was chosen for all recordings of a source.
        """
        count = len(self.weights)
        # Where the mean of all is used anyway, the file may stay as it is.
        if channel == AUTO or count == 1 or (channel == MIX and self.mix is Mix.PLAIN):
            return self
        if channel == MIX:
            return replace(self, mix=Mix.CHOSEN, weights=(1 / count,) * count)
        number = int(channel)
        if not 1 <= number <= count:
            raise ValueError(f"it has {count} channels, and channel {number} was chosen")
        return replace(self, mix=Mix.CHOSEN, weights=tuple(float(index + 1 == number) for index in range(count)))

    @property
    def largest_offset(self) -> float:
        """The largest offset of a channel that is used."""
        return max((offset for offset, weight in zip(self.offsets, self.weights, strict=True) if weight), key=abs)

    @property
    def has_offset(self) -> bool:
        return self.largest_offset != 0

    @property
    def is_plain(self) -> bool:
        """Whether the mean of the channels is the waveform."""
        return self.mix is Mix.PLAIN and not self.has_offset

    def apply(self, samples: np.ndarray) -> np.ndarray:
        """Samples (S, channels) float32 as waveform (S,) float32."""
        if self.mix is Mix.PLAIN:
            waveform = samples.mean(axis=1)
        else:
            used = [channel for channel, weight in enumerate(self.weights) if weight]
            waveform = samples[:, used] @ np.array([self.weights[channel] for channel in used], np.float32)
        if self.has_offset:
            waveform = waveform - np.float32(np.dot(self.weights, self.offsets))
        return waveform


@dataclass
class ChannelStatistics:
    """Sums over a recording of `channels` at `sample_rate` Hz, from blocks (S, channels) float32."""

    channels: int
    sample_rate: int
    samples: int = 0
    _totals: np.ndarray = field(init=False)
    _squares: np.ndarray = field(init=False)
    _products: np.ndarray = field(init=False)
    _full: np.ndarray = field(init=False)
    _means: list[np.ndarray] = field(default_factory=list)  # means of frames, (F, channels)
    _powers: list[np.ndarray] = field(default_factory=list)
    _frames: int = 0

    def __post_init__(self) -> None:
        self._totals = np.zeros(self.channels)
        self._squares = np.zeros(self.channels)
        self._products = np.zeros((self.channels, self.channels))
        self._full = np.zeros(self.channels)

    def add(self, block: np.ndarray) -> None:
        self.samples += len(block)
        self._totals += block.sum(axis=0, dtype=np.float64)
        self._squares += np.einsum("sc,sc->c", block, block, dtype=np.float64)
        self._full += (np.abs(block) >= _FULL).sum(axis=0)
        if self.channels == 1 or not len(block):
            return
        wide = block.astype(np.float64)
        self._products += wide.T @ wide
        if self._frames < _LONGEST_ENVELOPE:
            # A shorter frame at the end of each block is left out.
            size = max(1, round(_FRAME_S * self.sample_rate))
            frames = wide[:len(wide) // size * size].reshape(-1, size, self.channels)
            self._means.append(frames.mean(axis=1))
            self._powers.append(np.square(frames).mean(axis=1))
            self._frames += len(frames)

    def downmix(self) -> Downmix:
        """How to make the waveform."""
        if not self.samples:
            silence = (0.0,) * self.channels
            return Downmix(weights=(1 / self.channels,) * self.channels, offsets=silence, full_scale_shares=silence)
        offsets = self._totals / self.samples
        covariance = self._products / self.samples - np.outer(offsets, offsets)
        weights, mix, between, correlation = self._choose(covariance, offsets)
        errors = np.sqrt(np.maximum(0.0, self._squares / self.samples - offsets**2) / self.samples)
        offsets = np.where(np.abs(offsets) > np.maximum(_OFFSET, _CHANCE * errors), offsets, 0.0)
        return Downmix(mix, tuple(map(float, weights)), tuple(map(float, offsets)), between, correlation,
                       tuple(map(float, self._full / self.samples)))

    def _choose(self, covariance: np.ndarray,
                offsets: np.ndarray) -> tuple[np.ndarray, Mix, tuple[int, int], float]:
        """Weights (channels,), the mix, the two loudest channels and their correlation."""
        mean = np.full(self.channels, 1 / self.channels)
        powers = covariance.diagonal()
        # A single channel and silence need no choice.
        if self.channels == 1 or powers.max() < 1e-10:
            return mean, Mix.PLAIN, (0, 0), 1.0
        loudest, second = (int(channel) for channel in np.argsort(-powers, kind="stable")[:2])
        alone = np.zeros(self.channels)
        alone[loudest] = 1.0
        # A second channel this quiet has no voice.
        if powers[second] < _QUIET * powers[loudest]:
            return alone, Mix.LOUDEST, (loudest, second), 0.0

        correlation = float(covariance[loudest, second] / np.sqrt(powers[loudest] * powers[second]))
        between = (min(loudest, second), max(loudest, second))
        has_centre = self.channels == 3 or self.channels > 4

        # A loud centre channel holds the speech.
        if has_centre and loudest == _CENTRE and powers[loudest] > _LOUDER * powers[second]:
            return alone, Mix.WEIGHTED, between, correlation
        weights, mix = mean, Mix.PLAIN
        if self.channels > 2:
            weights, mix = self._standard_weights(powers, loudest), Mix.WEIGHTED

        # The mix is refused if the channels cancel in it, or if one voice is out of phase in it.
        if weights @ covariance @ weights <= _CANCELLED * powers[loudest]:
            return alone, Mix.INVERTED, between, correlation
        if abs(correlation) < _UNLIKE and self._level_correlation(*between, offsets) < _UNLIKE:
            return weights, Mix.DIFFERENT, between, correlation
        if correlation < _IN_PHASE:
            return alone, Mix.OUT_OF_PHASE, between, correlation
        return weights, mix, between, correlation

    def _standard_weights(self, powers: np.ndarray, loudest: int) -> np.ndarray:
        """ITU-R BS.775 weights of the channels with sound, in the order of WAV and FLAC, scaled to a sum of 1."""
        weights = np.full(self.channels, 2**-0.5)
        weights[:2] = 1.0
        if self.channels >= 6:
            weights[_LOW_FREQUENCIES] = 0.0
        weights[powers < _QUIET * powers.max()] = 0.0
        if not weights.any():
            weights[loudest] = 1.0
        return weights / weights.sum()

    def _level_correlation(self, channel: int, other: int, offsets: np.ndarray) -> float:
        """Correlation of the levels of two channels over time; 1 for a recording of a few frames."""
        if self._frames < 8:
            return 1.0
        means = np.concatenate(self._means)[:, [channel, other]]
        powers = np.concatenate(self._powers)[:, [channel, other]]
        shifts = offsets[[channel, other]]
        levels = np.sqrt(np.maximum(0.0, powers - 2 * means * shifts + shifts**2))
        spreads = levels.std(axis=0)
        if spreads.min() <= 0.05 * levels.mean(axis=0).max():
            return 0.0  # either is a steady sound
        return float(np.corrcoef(levels.T)[0, 1])
