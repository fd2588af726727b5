"""Voice activity detection: the network of silero-vad (MIT) with the weights of its package.

The network follows the package's `tinygrad_model.py`: importing the package would set torch's threads, and its
TorchScript file is code; the weights are read as safetensors. Frames have 32 ms at 16 kHz. The convolutions see a
frame and 4 ms before it, so many frames run at once; only the LSTM runs frame by frame. State is carried from block to
block, so a recording of any length needs the memory of one block.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from config.errors import UserError
from data.sound_files import VOICE_RATE, read_resampled

SecondsCallback = Callable[[float], None]
"""Gets how many seconds of a recording are done."""
_NOISE_S = 5.0  # seconds of noise that are stored at most
_VOICE = 0.5  # probability from which a frame holds voice
_QUIET_PERCENT = 2  # percentile of the frames; in clean speech they are 30 dB or more below the voice
_NO_VOICE = 0.1  # probability below which a frame holds no voice
FRAME = 512  # samples
FRAME_S = FRAME / VOICE_RATE
_CONTEXT = 64  # samples before a frame that the network sees too
_WEIGHTS = "silero_vad_16k.safetensors"


class VoiceNet(nn.Module):
    """Frames with their context (N, 576) to voice probabilities (N,)."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)  # real and imaginary part of 129 bins
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm = nn.LSTM(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, frames: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None
                ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """One probability a frame, and the next state; None is the initial state."""
        spectrum = self.stft_conv(F.pad(frames[:, None], (0, 64), mode="reflect"))  # (N, 258, 4)
        hidden = (spectrum[:, :129].square() + spectrum[:, 129:].square()).sqrt()
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            hidden = F.relu(convolution(hidden))  # the last is (N, 128, 1)
        states, state = self.lstm(hidden[:, None, :, 0], state)
        return torch.sigmoid(self.final_conv(F.relu(states).transpose(1, 2)))[:, 0, 0], state


def weights_file() -> Path:
    """Path of the weights in the installed package, which is not imported."""
    spec = importlib.util.find_spec("silero_vad")
    places = list(spec.submodule_search_locations or ()) if spec else []
    path = Path(places[0]) / "data" / _WEIGHTS if places else None
    if path is None or not path.is_file():
        raise UserError("The package silero-vad, which detects voice, is not installed or not complete.",
                        "Install it again: pip install -r requirements.txt.")
    return path


@lru_cache(maxsize=1)
def voice_net() -> VoiceNet:
    """The network with its weights, on the CPU."""
    names = {"lstm_cell.weight_ih": "lstm.weight_ih_l0", "lstm_cell.weight_hh": "lstm.weight_hh_l0",
             "lstm_cell.bias_ih": "lstm.bias_ih_l0", "lstm_cell.bias_hh": "lstm.bias_hh_l0"}
    net = VoiceNet()
    net.load_state_dict({names.get(name, name): value for name, value in load_file(weights_file()).items()})
    return net.eval().requires_grad_(False)


class VoiceActivityDetector:
    """Voice probabilities of one recording, block by block."""

    def __init__(self) -> None:
        self._net = voice_net()
        self._state: tuple[torch.Tensor, torch.Tensor] | None = None
        self._waiting = np.zeros(_CONTEXT, np.float32)  # the context, and samples of an incomplete frame

    @torch.inference_mode()
    def push(self, samples: np.ndarray) -> np.ndarray:
        """The next samples (S,) at 16 kHz to the probabilities (N,) of the frames that are complete."""
        samples = np.concatenate([self._waiting, samples.astype(np.float32, copy=False)])
        count = (len(samples) - _CONTEXT) // FRAME
        if count == 0:
            self._waiting = samples
            return np.zeros(0, np.float32)
        frames = torch.from_numpy(samples[:_CONTEXT + count * FRAME]).unfold(0, _CONTEXT + FRAME, FRAME)
        probabilities, self._state = self._net(frames, self._state)
        self._waiting = samples[count * FRAME:]
        return probabilities.numpy()

    def finish(self) -> np.ndarray:
        """The probability (1,) of the last frame, padded with silence; (0,) if no samples are left."""
        remaining = len(self._waiting) - _CONTEXT
        return self.push(np.zeros(FRAME - remaining, np.float32)) if remaining else np.zeros(0, np.float32)


@dataclass(frozen=True)
class VoiceTrack:
    """Voice of a recording: one value for each frame of 32 ms, and some of its noise."""

    probabilities: np.ndarray  # (N,) of voice
    levels: np.ndarray  # (N,) root mean square
    total_s: float
    noise: np.ndarray  # (S,) float32 at 16 kHz, at most 5 s; empty without pauses

    @property
    def has_voice(self) -> bool:
        return bool((self.probabilities >= _VOICE).any())

    @property
    def signal_to_noise_db(self) -> float | None:
        """How far the voice is above the noise; None if no voice or no noise was detected.

        Without a pause, as with other voices behind the speaker, the noise is the level of the quietest frames.
        """
        voiced = np.square(self.levels[self.probabilities >= _VOICE])
        quiet = float(np.percentile(self.levels, _QUIET_PERCENT)) ** 2 if len(self.levels) else 0.0
        noise = float(np.square(self.noise).mean()) if len(self.noise) else quiet
        if not len(voiced) or noise == 0:
            return None
        return 10 * math.log10(max(float(voiced.mean()) - noise, 1e-3 * noise) / noise)


def detect_voice(path: Path, progress: SecondsCallback = lambda seconds: None) -> VoiceTrack:
    """Run voice activity detection over a whole recording."""
    activity = VoiceActivityDetector()
    probabilities, levels, noise = [], [], list[np.ndarray]()
    unframed, samples, quiet = np.zeros(0, np.float32), 0, 0

    for block in read_resampled(path, VOICE_RATE):
        voice = activity.push(block)
        unframed = np.concatenate([unframed, block])
        frames = unframed[:len(voice) * FRAME].reshape(-1, FRAME)
        unframed = unframed[len(voice) * FRAME:]
        probabilities.append(voice)
        levels.append(np.sqrt(np.square(frames).mean(1)))

        # Some seconds of noise, far from any voice, give the signal-to-noise ratio and the noise profile.
        if quiet < _NOISE_S * VOICE_RATE:
            still = frames[_far_from(voice >= _NO_VOICE)].reshape(-1)[:int(_NOISE_S * VOICE_RATE) - quiet]
            noise.append(still.copy())
            quiet += len(still)
        samples += len(block)
        progress(samples / VOICE_RATE)

    # The last frame may be incomplete.
    probabilities.append(activity.finish())
    if len(probabilities[-1]):
        levels.append(np.sqrt(np.square(unframed).mean(keepdims=True)))
    if samples == 0:
        raise UserError(f"{path} holds no samples.", "Remove it or record it again.")
    return VoiceTrack(np.concatenate(probabilities), np.concatenate(levels), samples / VOICE_RATE,
                      np.concatenate(noise))


def _far_from(voice: np.ndarray) -> np.ndarray:
    """Frames without `voice` (N,) in the four frames on either side: the end of a word is no noise."""
    around = np.convolve(voice, np.ones(9), mode="same") if len(voice) >= 9 else np.ones(len(voice))
    return around < 0.5
