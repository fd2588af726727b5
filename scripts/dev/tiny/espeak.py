"""Speech from espeak-ng's library, with the times of its words and phonemes.

Needed only to rebuild the built-in pack; the app itself never calls it. The structures
follow the public header `espeak-ng/speak_lib.h`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

from config.errors import UserError
from data.acoustics.audio import resample

_SYNCHRONOUS, _PHONEME_EVENTS, _PHONEME_IPA = 2, 1, 2
_WORD, _PHONEME = 1, 7
_RATE, _UTF8 = 1, 1


class _Id(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("unique_identifier", ctypes.c_uint), ("text_position", ctypes.c_int),
        ("length", ctypes.c_int), ("audio_position", ctypes.c_int), ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p), ("id", _Id),
    ]


@dataclass(frozen=True)
class EspeakSpeech:
    """One spoken text: waveform (S,) float32, and starts in seconds from the first sample."""

    waveform: np.ndarray
    words: tuple[tuple[int, float], ...]  # (character offset, seconds)
    phonemes: tuple[tuple[str, float], ...]  # (IPA, seconds); an empty string is a pause


class Espeak:
    """One library handle; `say` is deterministic for the same espeak-ng version."""

    def __init__(self, sample_rate: int, words_per_minute: int = 170) -> None:
        self.sample_rate = sample_rate
        try:
            self._library = ctypes.CDLL("libespeak-ng.so.1")
        except OSError as error:
            raise UserError("libespeak-ng.so.1 was not found.", "Install it: apt-get install espeak-ng") from error
        self._native_rate = self._library.espeak_Initialize(
            _SYNCHRONOUS, 0, None, _PHONEME_EVENTS | _PHONEME_IPA
        )
        self._samples: list[np.ndarray] = []
        self._events: list[tuple[int, int, float, str]] = []
        signature = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
        )
        self._callback = signature(self._collect)  # kept, or the library calls freed memory
        self._library.espeak_SetSynthCallback(self._callback)
        self._words_per_minute = words_per_minute

    def _collect(self, samples, count: int, events) -> int:
        if samples and count > 0:
            self._samples.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type != 0:
            event = events[index]
            if event.type in (_WORD, _PHONEME):
                name = event.id.string.decode("utf-8", "ignore") if event.type == _PHONEME else ""
                self._events.append((event.type, event.text_position - 1, event.audio_position / 1000, name))
            index += 1
        return 0

    def say(self, text: str, voice: str, words_per_minute: int = 0) -> EspeakSpeech:
        """Speak `text` with an espeak voice such as "en-us" or "fr+f3"; silence at both ends is trimmed.

        `words_per_minute`: 0 is the rate of this handle.
        """
        self._samples.clear()
        self._events.clear()
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise UserError(f"espeak-ng has no voice {voice!r}.", "List them with: espeak-ng --voices")
        self._library.espeak_SetParameter(_RATE, words_per_minute or self._words_per_minute, 0)
        encoded = text.encode()
        self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None)
        self._library.espeak_Synchronize()
        raw = np.concatenate(self._samples).astype(np.float32) / 32768
        waveform = resample(torch.from_numpy(raw), self._native_rate, self.sample_rate).numpy()
        loud = np.flatnonzero(np.abs(waveform) > 0.01)
        if loud.size == 0:
            raise UserError(f"espeak-ng spoke nothing for {text!r}.", "Leave the sentence out.")
        start = max(0, loud[0] - int(0.03 * self.sample_rate))
        stop = min(len(waveform), loud[-1] + int(0.075 * self.sample_rate))
        return EspeakSpeech(
            waveform[start:stop],
            tuple((p, t - start / self.sample_rate) for kind, p, t, _ in self._events if kind == _WORD),
            tuple((n, t - start / self.sample_rate) for kind, _, t, n in self._events if kind == _PHONEME),
        )
