"""How much of a reader's words the codes hold: the error of a CTC head that is trained on the codes of this reader.

    python -m scripts.dev.tiny.voices.code_recogniser FOLDER --codec FOLDER --count 24 --minutes 4

FOLDER has `clips/` and `metadata.csv` with a line `clips/NAME|text` for each clip. The head learns from all clips but
`--count`, which it then reads. It needs no decoder, so it measures an encoder in minutes, and the difference between
`--inputs mel`, `features` (what a phonetic codec hears) and `codes` is what the quantisation loses.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rapidfuzz.distance import Levenshtein
from torch import nn

from config.errors import UserError
from core.speech.ctc_decoding import greedy
from data.acoustics.audio import log_mel
from data.languages.words import scored_letters
from models.tiny.model_folder import load_config, load_module
from scripts.command import exit_with
from scripts.dev.tiny import round_trip
from scripts.dev.tiny.voices.codec import ENCODER, WEIGHTS, Codec, CodecConfig
from scripts.dev.tiny.voices.recordings import SETTINGS
from scripts.dev.tiny.voices.train_encoder import CodeHead, ctc_loss

INPUTS = ("codes", "features", "mel")
BATCH, PEAK = 16, 2e-3  # clips, and learning rate


def inputs_of(codec: Codec, waveform: torch.Tensor, kind: str) -> torch.Tensor:
    """What the head reads of a waveform (S,): (U, D)."""
    if kind == "codes":
        return codec.quantizer.dequantize(codec.encode_waveform(waveform))[0].clone()
    if kind == "features":
        if codec.extractor is None:
            raise UserError("This codec hears the mel, and `--inputs features` needs one that hears features.",
                            "Choose `--inputs mel`.")
        return codec.features(waveform).clone()
    frames = codec.normalise(log_mel(waveform[None], SETTINGS))[0]
    return frames.reshape(len(frames) // codec.config.frames_per_code, -1)


def train(clips: Sequence[tuple[torch.Tensor, torch.Tensor]], labels: int, seconds: float, seed: int) -> CodeHead:
    """A head trained for `seconds` of this process on inputs (U, D) and their labels."""
    torch.manual_seed(seed)
    head = CodeHead(clips[0][0].shape[1], labels, dropout=0.2)
    optimizer = torch.optim.AdamW(head.parameters(), PEAK, weight_decay=0.05, fused=True)
    generator, step, begin = random.Random(seed), 0, time.process_time()
    batches: list[Sequence[tuple[torch.Tensor, torch.Tensor]]] = []
    while (share := (time.process_time() - begin) / seconds) < 1:
        if not batches:
            # Clips of about one length are together in a batch.
            drawn = sorted(generator.sample(clips, min(4 * BATCH, len(clips))), key=lambda clip: len(clip[0]))
            batches = [drawn[start : start + BATCH] for start in range(0, len(drawn), BATCH)]
            generator.shuffle(batches)
        chosen = batches.pop()
        inputs = nn.utils.rnn.pad_sequence([clip[0] for clip in chosen], batch_first=True)
        codes = torch.tensor([len(clip[0]) for clip in chosen])
        # A twentieth of the codes is left out, so that the head reads words from their neighbours too.
        inputs = inputs * (torch.rand(*inputs.shape[:2], 1) > 0.05)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(1.0, (step + 1) / 100) * (1 - share + 0.01)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = head(inputs)
        loss = ctc_loss(logits, codes, [clip[1] for clip in chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 200 == 0:
            print(f"step {step} loss {float(loss.detach()):.3f} {share:.0%}", flush=True)
    return head.eval()


def main() -> int:
    """Print the character error rate with its interval."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with clips/ and metadata.csv")
    parser.add_argument("--codec", type=Path, default=WEIGHTS, help="a folder of weights")
    parser.add_argument("--inputs", choices=INPUTS, default=INPUTS[0])
    parser.add_argument("--count", type=int, default=24, help="clips to read")
    parser.add_argument("--minutes", type=float, default=4.0, help="of processor time, on one thread")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    paths = round_trip.read_clips(arguments.folder)
    random.Random(arguments.seed).shuffle(paths)
    codec = Codec(load_config(arguments.codec / ENCODER, CodecConfig)).eval()
    load_module(arguments.codec / ENCODER, codec.encoder)
    inputs = [inputs_of(codec, round_trip.load(path), arguments.inputs) for path, _ in paths]
    texts = [scored_letters(text) for _, text in paths]
    alphabet = sorted(set("".join(texts)))
    clips = [(values, torch.tensor([alphabet.index(letter) + 1 for letter in text]))
             for values, text in zip(inputs, texts, strict=True)]
    head = train(clips[arguments.count:], len(alphabet) + 1, 60 * arguments.minutes, arguments.seed)

    errors = []
    with torch.inference_mode():
        for (values, labels), text in zip(clips[: arguments.count], texts, strict=False):
            read = greedy(head(values[None])[0].float().numpy())
            errors.append((Levenshtein.distance(labels.tolist(), read), len(text)))
    rate = sum(edits for edits, _ in errors) / sum(letters for _, letters in errors)
    low, high = round_trip.interval([edits / max(1, letters) for edits, letters in errors])
    print(f"CER {rate:.1%} (mean over clips {low:.1%} to {high:.1%}), {len(errors)} clips, {arguments.inputs}")
    return 0


if __name__ == "__main__":
    exit_with(main)
