"""Train the codec's decoder on the recordings of one reader; the encoder stays, so codes keep their meaning."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from models.phonetic_encoder.encoder import PhoneticEncoder
from models.tiny.model_folder import load_module
from scripts.dev.tiny.voices import recordings
from scripts.dev.tiny.voices.codec import CRITIC, WEIGHTS, Codec
from scripts.dev.tiny.voices.train_codec import CodecTraining, Sampler

PEAK = 5e-4  # learning rate
BATCH = 8


def adapt(codec: Codec, waveforms: Sequence[torch.Tensor], seconds: float, seed: int, weights: Path = WEIGHTS) -> Codec:
    """A copy of `codec` whose decoder was trained for `seconds` of processor time on `waveforms` (S,) at 16 kHz."""
    torch.manual_seed(seed)
    data = recordings.prepare((("reader", waveform.numpy()) for waveform in waveforms), None, torch.device("cpu"),
                              hops=(recordings.SETTINGS.hop_length,))
    sampler = Sampler(data, codec.config, torch.arange(len(data.lengths)), seed)
    adapted = copy.deepcopy(codec).train()
    training = CodecTraining(adapted, PhoneticEncoder.load(), PEAK, frozen_encoder=True)
    load_module(weights / CRITIC, training.discriminator).train()
    begin = time.process_time()
    while (share := (time.process_time() - begin) / seconds) < 1:
        losses = training.step(sampler.batch(BATCH, augment=False), max(share, 0.2))
        if training.steps % 50 == 0:
            line = " ".join(f"{name} {float(value):.3f}" for name, value in losses.items())
            print(f"adaptation step {training.steps} {line} {time.process_time() - begin:.0f} s", flush=True)
    return training.average.eval()
