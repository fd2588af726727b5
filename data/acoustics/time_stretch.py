"""Faster or slower speech at the same pitch, by WSOLA (Verhelst and Roelands 1993), in parts."""

from __future__ import annotations

import numpy as np

_WINDOW_S, _SEARCH_S = 0.03, 0.01


class TimeStretch:
    """Changes the speed of a mono waveform that comes in parts.

    Windows are added at a fixed distance. Each is taken from near its place in the input, where it continues the one
    before it best.
    """

    def __init__(self, sample_rate: int, speed: float) -> None:
        self._hop = round(_WINDOW_S * sample_rate / 2)
        self._search = round(_SEARCH_S * sample_rate)
        self._speed = speed
        window = np.hanning(2 * self._hop + 1)[:-1].astype(np.float32)
        self._fade_in, self._fade_out = window[:self._hop], window[self._hop:]
        self._input = np.zeros(0, np.float32)
        self._dropped = 0  # samples of the input that are not needed any more
        self._windows = 0
        self._tail: np.ndarray | None = None  # second half of the last window
        self._following = np.zeros(0, np.float32)  # The input behind the first half of the last window.

    def push(self, waveform: np.ndarray) -> np.ndarray:
        """Take more samples (S,) float32; returns those that are ready."""
        if self._speed == 1:
            return waveform
        self._input = np.concatenate([self._input, waveform])
        return self._process(last=False)

    def finish(self) -> np.ndarray:
        """The remaining samples."""
        if self._speed == 1:
            return np.zeros(0, np.float32)
        return self._process(last=True)

    def _process(self, last: bool) -> np.ndarray:
        hop, end = self._hop, self._dropped + len(self._input)
        ready: list[np.ndarray] = []
        while True:
            place = round(self._windows * hop * self._speed)
            if place >= end or (not last and place + self._search + 3 * hop > end):
                break
            start = self._best_start(place)
            piece = self._samples(start, 2 * hop)
            if self._tail is None:
                ready.append(piece[:hop])
            else:
                ready.append(self._tail * self._fade_out + piece[:hop] * self._fade_in)
            self._tail = piece[hop:]
            self._following = self._samples(start + hop, hop)
            self._windows += 1
            keep = max(0, round(self._windows * hop * self._speed) - self._search - self._dropped)
            self._input, self._dropped = self._input[keep:], self._dropped + min(keep, len(self._input))
        if last and self._tail is not None:
            ready.append(self._tail)
            output = np.concatenate(ready)
            length = round(end / self._speed) - (self._windows * hop + hop - len(output))
            self._tail, self._input = None, np.zeros(0, np.float32)
            return output[:max(0, length)]
        return np.concatenate(ready) if ready else np.zeros(0, np.float32)

    def _best_start(self, place: int) -> int:
        """Near `place`, where the input continues the last window best."""
        if self._tail is None:
            return place
        low = max(self._dropped, place - self._search)
        region = self._samples(low, 2 * self._search + self._hop)
        products = np.correlate(region, self._following, "valid")
        energy = np.convolve(region**2, np.ones(self._hop, np.float32), "valid")
        return low + int(np.argmax(products / np.sqrt(energy + 1e-6)))

    def _samples(self, start: int, count: int) -> np.ndarray:
        """Samples from `start` of the whole input, with zeros behind its end."""
        begin = max(0, start - self._dropped)
        samples = self._input[begin:begin + count]
        return np.pad(samples, (0, count - len(samples)))
