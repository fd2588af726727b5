"""What the codec hears: phonetic states and prosody of a recording, without the level of its reader.

The states are those of the phonetic encoder, which has heard very many readers; pitch and voicing come from the network
of the vocoder. The mean of a clip is taken away, and with it most of the reader and the room.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from models.phonetic_encoder.encoder import FEATURES as STATES
from models.phonetic_encoder.encoder import PhoneticEncoder
from models.tiny.vocoder import MelVocoder

FRAMES_PER_CODE = 4  # mel frames
STATE_FEATURES = 2 * STATES  # two frames of states for each code
PROSODY_FEATURES = 3 * FRAMES_PER_CODE  # F0, voicing and energy of each mel frame
FEATURES = STATE_FEATURES + PROSODY_FEATURES
_SEMITONE = math.log(2) / 12
_VOICING_BANDS = 4  # lowest of the vocoder's noise bands


class SpeechFeatures(nn.Module):
    """Features of one clip, from its log-mel for the pitch, and from Whisper's for the states; see `forward`."""

    def __init__(self, phonetic_encoder: PhoneticEncoder, vocoder: MelVocoder) -> None:
        super().__init__()
        self.phonetic_encoder, self.vocoder = phonetic_encoder, vocoder
        self.eval().requires_grad_(False)

    @torch.inference_mode()
    def forward(self, mel: torch.Tensor, whisper_mel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-mels (n_mels, F), F a multiple of four, to features (F / 4, FEATURES), not standardised.

        The second value is mean and deviation of the clip's log F0 (2,).
        """
        with torch.autocast(mel.device.type, dtype=torch.bfloat16):
            states = self.phonetic_encoder.encode_mel(whisper_mel)
        states = states - states.mean(0)

        frequencies, _, noise = self.vocoder.analyse(mel[None])
        log_f0, voicing = frequencies[0].log(), 1 - torch.sigmoid(noise[0, :, :_VOICING_BANDS]).mean(-1)
        weight = voicing.square()
        count = weight.sum().clamp(min=1e-3)
        mean = (log_f0 * weight).sum() / count
        relative = (log_f0 - mean) * weight
        deviation = (relative.square().sum() / count).sqrt()
        energy = torch.logsumexp(2 * mel, 0) / 2
        prosody = torch.stack([relative / (4 * _SEMITONE), voicing, energy / 3], 1)

        codes = mel.shape[1] // FRAMES_PER_CODE
        features = torch.cat([states.reshape(codes, -1), prosody.reshape(codes, -1)], 1)
        return features, torch.stack([mean, deviation])
