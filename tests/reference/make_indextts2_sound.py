"""Write `indextts2/sound.safetensors`: what the published code of IndexTTS2 makes of the sounds of `clips.py`.

It is indextts2-inference 2.1.1 (the code of index-tts/index-tts) with transformers and librosa; run this in its
environment:

    make reference && .reference/bin/python tests/reference/make_indextts2_sound.py

The models are small and filled from a seed by `scripts.dev.random_weights`. As in `IndexTTS2.get_emb`, the states are
those after layer 2 of a model of three layers.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import librosa
import numpy as np
import soundfile
import torch
import torchaudio
from indextts.s2mel.modules.audio import mel_spectrogram
from indextts.utils.maskgct.models.codec.kmeans.repcodec_model import RepCodec
from safetensors.torch import save_file
from transformers import SeamlessM4TFeatureExtractor, Wav2Vec2BertConfig, Wav2Vec2BertModel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.dev.random_weights import fill, tensor
from tests.reference.clips import voiced

SEED, WIDTH, RATE = 21, 64, 24000
LENGTHS = (9600, 16160, 24320)  # samples at 16 kHz: 58, 99 and 150 frames of 10 ms
TARGET = Path(__file__).parent / "indextts2" / "sound.safetensors"


def models() -> tuple[Wav2Vec2BertModel, RepCodec]:
    states = Wav2Vec2BertModel(Wav2Vec2BertConfig(hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=4,
                                                  intermediate_size=96, add_adapter=False)).eval()
    codec = RepCodec(codebook_size=128, hidden_size=WIDTH, vocos_dim=24, vocos_intermediate_dim=48,
                     vocos_num_layers=2).eval()
    fill(states, SEED)
    fill(codec, SEED)
    return states, codec


@torch.inference_mode()
def main() -> None:
    extract, (network, codec) = SeamlessM4TFeatureExtractor(padding_value=1.0), models()
    mean = torch.from_numpy(tensor("mean", (WIDTH,), SEED))
    variance = torch.from_numpy(tensor("var", (WIDTH,), SEED)).square() + 0.5
    outputs = {"mean": mean, "var": variance}
    for length in LENGTHS:
        inputs = extract(voiced(length, 16000), sampling_rate=16000, return_tensors="pt")
        hidden = network(**inputs, output_hidden_states=True).hidden_states[2]
        states = (hidden - mean) / variance.sqrt()
        codes, embedding = codec.quantize(states)
        outputs |= {f"filterbank_{length}": inputs["input_features"][0], f"states_{length}": states[0],
                    f"codes_{length}": codes[0], f"embedding_{length}": embedding[0]}

    sound = io.BytesIO()
    soundfile.write(sound, voiced(16 * RATE, RATE), RATE, format="WAV", subtype="FLOAT")  # of which 15 s count
    wide, _ = librosa.load(io.BytesIO(sound.getvalue()), sr=22050)
    direct, _ = librosa.load(io.BytesIO(sound.getvalue()), sr=16000)
    wide, direct = torch.from_numpy(wide[:15 * 22050])[None], torch.from_numpy(direct[:15 * 16000])
    mel = mel_spectrogram(wide, n_fft=1024, num_mels=80, sampling_rate=22050, hop_size=256, win_size=1024, fmin=0,
                          fmax=None)
    narrow = torchaudio.transforms.Resample(22050, 16000)(wide)[0]
    outputs |= {"prompt_mel": mel[0].T[::20], "speaker_16k": narrow[::50], "emotion_16k": direct[::50],
                "lengths": torch.from_numpy(np.array([mel.shape[2], len(narrow), len(direct)]))}
    save_file({name: value.contiguous().clone() for name, value in outputs.items()}, str(TARGET), {"seed": str(SEED)})


if __name__ == "__main__":
    main()
