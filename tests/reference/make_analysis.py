"""Write `chatterbox/analysis.safetensors`: what the published package makes of the sounds of `clips.py`.

It is chatterbox-tts 0.1.7 (MIT) with s3tokenizer 0.3.0 and librosa 0.11.0; run this in its environment:

    make reference && .reference/bin/python tests/reference/make_analysis.py

The models are filled from a seed by `scripts.dev.random_weights`. The speech tokenizer is small here (two layers of
128), but for `full_codes` and `full_hidden`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import librosa
import numpy as np
import torch
from chatterbox.models.s3gen.utils.mel import mel_spectrogram
from chatterbox.models.s3gen.xvector import CAMPPlus
from chatterbox.models.s3tokenizer import S3Tokenizer
from chatterbox.models.voice_encoder import VoiceEncoder
from s3tokenizer.model_v2 import AudioEncoderV2, FSQVectorQuantization
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.dev.random_weights import fill
from tests.reference.clips import stepped, voiced

SEED = 11
LENGTHS = (9600, 31999, 83333, 192001)  # samples at 16 kHz, 0.6 to 12 s
COMPUTED = ("_mel_filters", "window")


def tokenizer(small: bool) -> S3Tokenizer:
    module = S3Tokenizer("speech_tokenizer_v2_25hz")
    if small:
        module.encoder = AudioEncoderV2(128, 128, 2, 2, 2, False)
        module.quantizer = FSQVectorQuantization(128, 3 ** 8)
    fill(module, SEED, "tokenizer.", COMPUTED)
    return module.eval()


def tokenizer_outputs() -> dict[str, torch.Tensor]:
    small, found = tokenizer(small=True), {}
    mel = small.log_mel_spectrogram(torch.from_numpy(voiced(9600, 16000))[None])
    found["log_mel"] = mel
    found["hidden"] = small.encoder(mel, torch.tensor([mel.shape[2]]))[0]
    for length in (*LENGTHS, 640000):  # the last is cut into windows
        found[f"codes_{length}"] = small([torch.from_numpy(voiced(length, 16000))])[0][0].to(torch.int16)
    large = tokenizer(small=False)
    mel = large.log_mel_spectrogram(torch.from_numpy(voiced(83333, 16000))[None])
    states = large.encoder(mel, torch.tensor([mel.shape[2]]))[0]
    found["full_hidden"] = states[:, ::10, ::20]
    found["full_codes"] = large.quantizer.encode(states)[0].to(torch.int16)
    return found


def speaker_outputs() -> dict[str, torch.Tensor]:
    timbre, voice, found = CAMPPlus(memory_efficient=False).eval(), VoiceEncoder().eval(), {}
    fill(timbre, SEED, "speaker_encoder.")
    fill(voice, SEED)
    for length in LENGTHS:
        sound = voiced(length, 16000)
        found[f"timbre_{length}"] = timbre.inference(torch.from_numpy(sound)[None])[0]
        found[f"voice_{length}"] = torch.from_numpy(voice.embeds_from_wavs([sound], sample_rate=16000))[0]
    return found


def trims() -> torch.Tensor:
    """First sample and end of what is left of 40 sounds."""
    sounds = [stepped(500 + 1777 * number, 100 + 31.0 * number) for number in range(40)]
    return torch.from_numpy(np.stack([librosa.effects.trim(sound, top_db=20)[1] for sound in sounds]))


@torch.inference_mode()
def main(target: Path) -> None:
    found = {**tokenizer_outputs(), **speaker_outputs(), "trims": trims()}
    found["prompt_mel"] = mel_spectrogram(torch.from_numpy(voiced(14411, 24000)))
    save_file({name: value.contiguous().clone() for name, value in found.items()}, str(target), {"seed": str(SEED)})


if __name__ == "__main__":
    main(Path(__file__).parent / "chatterbox" / "analysis.safetensors")
