"""Where a voice is heard: the network of silero-vad (MIT), with the weights that lie in its package, frame by frame.

The network is written here from its description in the package (`tinygrad_model.py`): the package itself sets torch's
threads when it is imported, and its TorchScript file is code; the weights are read as safetensors. Frames are of 32 ms
at 16 kHz. The convolutions see a frame and 4 ms before it, so many frames go through them at once; only the LSTM goes
one by one. State is carried from block to block, so a recording of any length needs the memory of one block.
"""

from __future__ import annotations

import importlib.util
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
_NOISE_S = 5.0  # of noise that is kept at most
_NO_VOICE = 0.1  # probability below which a frame holds no voice
FRAME = 512  # samples
FRAME_S = FRAME / VOICE_RATE
_CONTEXT = 64  # samples before a frame that are heard with it
_WEIGHTS = "silero_vad_16k.safetensors"


class VoiceNet(nn.Module):
    """Frames with their context (N, 576) to the probability of a voice in each (N,)."""

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
        """One probability a frame, and the state to go on with; None is that of a beginning."""
        spectrum = self.stft_conv(F.pad(frames[:, None], (0, 64), mode="reflect"))  # (N, 258, 4)
        hidden = (spectrum[:, :129].square() + spectrum[:, 129:].square()).sqrt()
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            hidden = F.relu(convolution(hidden))  # the last is (N, 128, 1)
        states, state = self.lstm(hidden[:, None, :, 0], state)
        return torch.sigmoid(self.final_conv(F.relu(states).transpose(1, 2)))[:, 0, 0], state


def weights_file() -> Path:
    """The weights within the installed package, which is not imported."""
    spec = importlib.util.find_spec("silero_vad")
    places = list(spec.submodule_search_locations or ()) if spec else []
    path = Path(places[0]) / "data" / _WEIGHTS if places else None
    if path is None or not path.is_file():
        raise UserError("The package silero-vad, which hears where a voice is, is not installed or not whole.",
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
    """Hears one recording, block after block."""

    def __init__(self) -> None:
        self._net = voice_net()
        self._state: tuple[torch.Tensor, torch.Tensor] | None = None
        self._waiting = np.zeros(_CONTEXT, np.float32)  # the context, and samples that are no whole frame yet

    @torch.inference_mode()
    def push(self, samples: np.ndarray) -> np.ndarray:
        """The next samples (S,) at 16 kHz to the probabilities (N,) of the frames that are whole by now."""
        heard = np.concatenate([self._waiting, samples.astype(np.float32, copy=False)])
        count = (len(heard) - _CONTEXT) // FRAME
        if count == 0:
            self._waiting = heard
            return np.zeros(0, np.float32)
        frames = torch.from_numpy(heard[:_CONTEXT + count * FRAME]).unfold(0, _CONTEXT + FRAME, FRAME)
        probabilities, self._state = self._net(frames, self._state)
        self._waiting = heard[count * FRAME:]
        return probabilities.numpy()

    def finish(self) -> np.ndarray:
        """The probability (1,) of the last frame, filled with silence; (0,) where none has begun."""
        left = len(self._waiting) - _CONTEXT
        return self.push(np.zeros(FRAME - left, np.float32)) if left else np.zeros(0, np.float32)


@dataclass(frozen=True)
class VoiceTrack:
    """What was heard of a recording: one value a frame of 32 ms, and some of its noise."""

    probabilities: np.ndarray  # (N,) of a voice
    levels: np.ndarray  # (N,) root mean square
    total_s: float
    noise: np.ndarray  # (S,) float32 at 16 kHz, at most 5 s; empty where a voice is all the time


def detect_voice(path: Path, heard: SecondsCallback = lambda seconds: None) -> VoiceTrack:
    """Listen to a whole recording for voices."""
    activity = VoiceActivityDetector()
    probabilities, levels, noise = [], [], list[np.ndarray]()
    waiting, done, quiet = np.zeros(0, np.float32), 0, 0
    for block in read_resampled(path, VOICE_RATE):
        found = activity.push(block)
        waiting = np.concatenate([waiting, block])
        frames = waiting[:len(found) * FRAME].reshape(-1, FRAME)
        waiting = waiting[len(found) * FRAME:]
        probabilities.append(found)
        levels.append(np.sqrt(np.square(frames).mean(1)))
        if quiet < _NOISE_S * VOICE_RATE:
            still = frames[_far_from(found >= _NO_VOICE)].reshape(-1)[:int(_NOISE_S * VOICE_RATE) - quiet]
            noise.append(still.copy())
            quiet += len(still)
        done += len(block)
        heard(done / VOICE_RATE)
    probabilities.append(activity.finish())
    if len(probabilities[-1]):
        levels.append(np.sqrt(np.square(waiting).mean(keepdims=True)))
    if done == 0:
        raise UserError(f"{path} holds no samples.", "Remove it or record it again.")
    return VoiceTrack(np.concatenate(probabilities), np.concatenate(levels), done / VOICE_RATE, np.concatenate(noise))


def _far_from(voice: np.ndarray) -> np.ndarray:
    """Frames that have none of `voice` (N,) among the four on either side: a word's end is no noise."""
    around = np.convolve(voice, np.ones(9), mode="same") if len(voice) >= 9 else np.ones(len(voice))
    return around < 0.5
