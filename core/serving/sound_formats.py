"""Speech as bytes in the formats of OpenAI's speech API, in parts or as a whole file.

A file that is sent in parts has no length in its header (WAV: the largest, as OpenAI sends it). A whole one has the
right length. WAV, FLAC, MP3 and AAC have the sample rate of the model. PCM has 24 kHz, which clients take for granted,
and Opus too, as it allows few rates.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
from collections.abc import Iterator
from typing import IO, Literal, Protocol

import numpy as np
import soundfile
import soxr

from config.errors import UserError
from data.ffmpeg_audio import ffmpeg_path

SoundFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
CONTENT_TYPES: dict[SoundFormat, str] = {
    "mp3": "audio/mpeg", "opus": "audio/ogg; codecs=opus", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav",
    "pcm": "audio/pcm",
}
HAVE_LENGTH: tuple[SoundFormat, ...] = ("wav", "flac")
"""Formats whose header holds the length of the sound: they are whole unless a stream was asked for."""
PCM_RATE = 24_000
_UNKNOWN_LENGTH = 0xFFFFFFFF
_SOUNDFILE = {"mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS"), "flac": ("FLAC", "PCM_16")}
_PIECE = 8192  # samples written to ffmpeg between two reads of what it gave


class SoundEncoder(Protocol):
    """Encodes a mono waveform that comes in parts."""

    def push(self, waveform: np.ndarray) -> bytes:
        """Take samples (S,) float32; returns the bytes that are ready."""
        ...

    def finish(self) -> bytes:
        """The remaining bytes."""
        ...

    def close(self) -> None:
        """Free what it uses, also before it is finished."""
        ...


def output_rate(sound_format: SoundFormat, sample_rate: int) -> int:
    """The sample rate of a file in this format, of speech at `sample_rate`."""
    return PCM_RATE if sound_format in ("pcm", "opus") else sample_rate


def open_encoder(sound_format: SoundFormat, sample_rate: int, streamed: bool) -> SoundEncoder:
    """An encoder of speech at `sample_rate`; `UserError` if AAC needs ffmpeg and it is not installed.

    If it is not `streamed`, everything comes from `finish`.
    """
    rate = output_rate(sound_format, sample_rate)
    encoder: SoundEncoder
    if sound_format in _SOUNDFILE:
        encoder = _SoundfileEncoder(sound_format, rate, streamed)
    elif sound_format == "aac":
        encoder = _FfmpegEncoder(rate)
    else:
        encoder = _PlainEncoder(sound_format == "wav", rate, streamed)
    return _Resampled(encoder, sample_rate, rate) if rate != sample_rate else encoder


def encode(sound_format: SoundFormat, waveform: np.ndarray, sample_rate: int) -> bytes:
    """A whole file."""
    encoder = open_encoder(sound_format, sample_rate, streamed=False)
    try:
        return encoder.push(waveform) + encoder.finish()
    finally:
        encoder.close()


def to_pcm16(waveform: np.ndarray) -> bytes:
    """Samples as little-endian integers of 16 bits."""
    return (np.clip(waveform, -1, 1) * 32767).round().astype("<i2").tobytes()


class _PlainEncoder:
    """PCM of 16 bits, with or without the header of WAV."""

    def __init__(self, header: bool, rate: int, streamed: bool) -> None:
        self._header, self._rate, self._streamed = header, rate, streamed
        self._begun = False
        self._held: list[bytes] = []

    def push(self, waveform: np.ndarray) -> bytes:
        self._held.append(to_pcm16(waveform))
        return self._take(_UNKNOWN_LENGTH) if self._streamed else b""

    def finish(self) -> bytes:
        return self._take(_UNKNOWN_LENGTH if self._streamed else sum(map(len, self._held)))

    def close(self) -> None:
        pass

    def _take(self, size: int) -> bytes:
        held, self._held = b"".join(self._held), []
        header = _wav_header(self._rate, size) if self._header and not self._begun else b""
        self._begun = True
        return header + held


def _wav_header(rate: int, size: int) -> bytes:
    riff_size = min(size + 36, _UNKNOWN_LENGTH)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", riff_size, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16,
                       b"data", size)


class _GrowingFile(io.RawIOBase):
    """A file in memory, of which `take` gives what was appended; later changes of a header stay here."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._place = self._taken = 0
        self.first_write = 0  # bytes

    def leave_out_first_write(self) -> None:
        """Let `take` give nothing of what was written first."""
        self._taken = max(self._taken, self.first_write)

    def take(self) -> bytes:
        new = bytes(self.content[self._taken:])
        self._taken = len(self.content)
        return new

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.first_write = self.first_write or len(data)
        self.content[self._place:self._place + len(data)] = data
        self._place += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, len(self.content))[whence]
        return self._place

    def tell(self) -> int:
        return self._place


class _SoundfileEncoder:
    """MP3, Opus and FLAC by libsndfile."""

    def __init__(self, sound_format: SoundFormat, rate: int, streamed: bool) -> None:
        container, kind = _SOUNDFILE[sound_format]
        self._file, self._streamed = _GrowingFile(), streamed
        # A reader tells the length of an MP3 stream by a constant bit rate.
        settings = {"bitrate_mode": "CONSTANT", "compression_level": 0.5} if sound_format == "mp3" else {}
        self._sound = soundfile.SoundFile(self._file, "w", rate, 1, format=container, subtype=kind, **settings)

    def push(self, waveform: np.ndarray) -> bytes:
        self._sound.write(np.clip(waveform, -1, 1))
        if self._streamed and self._sound.format == "MP3":
            # The first frame has no sound. It states the length, which is only known at the end.
            self._file.leave_out_first_write()
        return self._file.take() if self._streamed else b""

    def finish(self) -> bytes:
        self._sound.close()
        return self._file.take()

    def close(self) -> None:
        self._sound.close()


class _FfmpegEncoder:
    """AAC in ADTS frames by ffmpeg, which reads from a pipe and writes to one."""

    def __init__(self, rate: int) -> None:
        program = ffmpeg_path()
        if program is None:
            raise UserError("The format aac needs ffmpeg, which is not installed on the server.",
                            "Install ffmpeg there, or ask for mp3, opus, flac, wav or pcm.")
        command = [program, "-v", "error", "-protocol_whitelist", "pipe", "-f", "f32le", "-ar", str(rate), "-ac", "1",
                   "-i", "pipe:0", "-c:a", "aac", "-b:a", "96k", "-flush_packets", "1", "-f", "adts", "pipe:1"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(self._stream("stdout").fileno(), False)

    def push(self, waveform: np.ndarray) -> bytes:
        encoded: list[bytes] = []
        for start in range(0, len(waveform), _PIECE):
            self._stream("stdin").write(np.clip(waveform[start:start + _PIECE], -1, 1).astype("<f4").tobytes())
            self._stream("stdin").flush()
            encoded += self._available()
        return b"".join(encoded)

    def finish(self) -> bytes:
        self._stream("stdin").close()
        os.set_blocking(self._stream("stdout").fileno(), True)
        tail = self._stream("stdout").read()
        if self._process.wait():
            raise RuntimeError(f"ffmpeg ended with status {self._process.returncode}")
        return tail

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for name in ("stdin", "stdout"):
            self._stream(name).close()

    def _available(self) -> Iterator[bytes]:
        while piece := self._stream("stdout").read(1 << 16):
            yield piece

    def _stream(self, name: Literal["stdin", "stdout"] | str) -> IO[bytes]:
        stream: IO[bytes] = getattr(self._process, name)
        return stream


class _Resampled:
    """An encoder behind a resampler."""

    def __init__(self, encoder: SoundEncoder, source_rate: int, rate: int) -> None:
        self._encoder = encoder
        self._stream = soxr.ResampleStream(source_rate, rate, 1, dtype="float32", quality="HQ")

    def push(self, waveform: np.ndarray) -> bytes:
        return self._encoder.push(self._stream.resample_chunk(waveform.astype(np.float32)))

    def finish(self) -> bytes:
        tail = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return self._encoder.push(tail) + self._encoder.finish()

    def close(self) -> None:
        self._encoder.close()
