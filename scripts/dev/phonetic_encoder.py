"""Make the files of `models/phonetic_encoder` from Whisper base, and measure what rounding to int8 changes.

    python -m scripts.dev.phonetic_encoder WHISPER [--clips CLIP ...]

WHISPER is the folder of openai/whisper-base in the format of transformers. The measure is the error of the features
of each clip beside those of transformers in float32, relative to their standard deviation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file

from data.acoustics import audio
from models import weights
from models.phonetic_encoder import encoder
from models.phonetic_encoder.encoder import (
    FILES,
    FOLDER,
    LAYERS,
    SAMPLE_RATE,
    TAPPED_LAYERS,
    PhoneticEncoder,
    dequantize,
    quantize,
)

_SPLIT = LAYERS // 2  # the first layer of the second file
_PREFIX = "model.encoder."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("whisper", type=Path)
    parser.add_argument("--clips", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()

    tensors = read_whisper(arguments.whisper)
    files: tuple[dict[str, torch.Tensor], ...] = ({}, {})
    for name, value in quantize(tensors).items():
        second = name.startswith("layers.") and int(name.split(".")[1]) >= _SPLIT
        files[second][name] = value
    for file_name, content in zip(FILES, files, strict=True):
        save_file({name: value.contiguous() for name, value in content.items()}, FOLDER / file_name)
        print(f"{FOLDER / file_name}: {(FOLDER / file_name).stat().st_size:,} bytes")

    exact = PhoneticEncoder()
    weights.load_into(exact, tensors, str(arguments.whisper))
    rounded = PhoneticEncoder()
    weights.load_into(rounded, dequantize(files[0] | files[1]), str(FOLDER))
    for path in arguments.clips:
        waveform = audio.load(path, SAMPLE_RATE)
        print(f"{path.name}: {compare(arguments.whisper, waveform, exact.eval())}; "
              f"int8: {relative_error(rounded.eval().encode(waveform), exact.encode(waveform)):.4f}")


def read_whisper(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the encoder's convolutions and first layers, in float32, under the names of `PhoneticEncoder`."""
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        for name, value in weights.read(path).items():
            short = name.removeprefix(_PREFIX).replace("self_attn.", "")
            is_used = short.startswith("conv") or (
                short.startswith("layers.") and int(short.split(".")[1]) < LAYERS)
            if name.startswith(_PREFIX) and is_used:
                tensors[short] = value.float()
    return tensors


@torch.inference_mode()
def compare(folder: Path, waveform: torch.Tensor, exact: PhoneticEncoder) -> str:
    """The error of mel and features of the first 30 s, beside those of transformers with its padding."""
    import transformers  # slow

    whisper = transformers.WhisperModel.from_pretrained(folder, dtype=torch.float32).encoder.eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    padded = torch.nn.functional.pad(waveform[:30 * SAMPLE_RATE], (0, max(0, 30 * SAMPLE_RATE - len(waveform))))
    inputs = extractor(padded.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features
    states = whisper(inputs, output_hidden_states=True).hidden_states
    reference = torch.cat([states[layer][0] for layer in TAPPED_LAYERS], dim=-1)
    mel = encoder.log_mel(padded)
    features, frames = exact(mel[None])[0], len(waveform) // 320
    unpadded = exact.encode(waveform)[:frames]
    return (f"mel {float((mel - inputs[0]).abs().max()):.1e}; features {relative_error(features, reference):.1e}; "
            f"without padding {relative_error(unpadded, reference[:frames]):.3f}")


def relative_error(features: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square error of (F, 1024) over the mean of the features' standard deviations."""
    return float((features - reference).square().mean().sqrt() / reference.std(0).square().mean().sqrt())


if __name__ == "__main__":
    main()
