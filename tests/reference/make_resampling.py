"""Write `chatterbox/resampling.safetensors`: a clip at 44.1 kHz on the way into the published package.

It is chatterbox-tts 0.1.7 (MIT) with librosa 0.11.0 and torchaudio 2.11.0, step by step as `prepare_conditionals` and
`S3Gen.embed_ref` call them; run this in its environment:

    make reference && .reference/bin/python tests/reference/make_resampling.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import librosa
import soundfile
import torch
from chatterbox.models.s3gen.s3gen import get_resampler
from chatterbox.models.s3gen.utils.mel import mel_spectrogram
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.reference.clips import voiced

SAMPLES, RATE = 22051, 44100


@torch.inference_mode()
def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.wav"
        soundfile.write(clip, voiced(SAMPLES, RATE), RATE, subtype="FLOAT")
        wave_24k, _ = librosa.load(clip, sr=24000)
    wave_16k = librosa.resample(wave_24k, orig_sr=24000, target_sr=16000)
    first = torch.from_numpy(wave_24k)[None]
    save_file({
        "wave_16k": torch.from_numpy(wave_16k),  # of the voice encoder and T3's prompt codes
        "s3gen_16k": get_resampler(24000, 16000, torch.device("cpu"))(first)[0].contiguous(),
        "mel": mel_spectrogram(first)[0].T.contiguous(),
    }, str(target))


if __name__ == "__main__":
    main(Path(__file__).parent / "chatterbox" / "resampling.safetensors")
