"""Records what the published alignment analyzer decides on attention patterns.

PYTHONPATH=. .reference/bin/python tests/reference/make_alignment.py

Each case is a text of some ids and a path through it, one text position a code. The attention to a position falls off
like a bell, with noise; the codes are distinct but where a case repeats one. What is recorded: the mean attention of
the heads, the codes, and for each code whether the stop was suppressed (-1) or forced (1). It is chatterbox-tts 0.1.7
(MIT), whose analyzer raises an IndexError for a text of five ids or fewer once its end is reached.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from chatterbox.models.t3.inference.alignment_stream_analyzer import AlignmentStreamAnalyzer
from safetensors.torch import save_file
from torch import nn

CONDITIONING, CODES, STOP, HEADS = 3, 60, 7, 3
TARGET = Path(__file__).parent / "chatterbox" / "alignment.safetensors"


def paths() -> list[tuple[int, np.ndarray]]:
    """Text ids and the text position at each code."""
    frames = np.arange(CODES)
    steady = {length: np.minimum(frames * (length - 1) / 40, length - 1) for length in (7, 8, 12, 25)}
    reread = np.where(frames < 36, frames * 24 / 30, (frames - 36) * 24 / 30).clip(max=24)
    jump = np.where(frames < 10, frames * 0.5, 22.0)
    early = np.minimum(frames * 0.2, 8.0)
    fast = np.minimum(frames * 2.0, 24.0)
    return [*steady.items(), (25, reread), (25, jump), (25, early), (25, fast), (40, np.full(CODES, 3.0)),
            (6, np.minimum(frames * 0.1, 5.0)), (25, np.minimum(frames * 24 / 40, 24.0)),
            (25, np.minimum(frames * 24 / 20, 23.0))]


def main() -> None:
    noise = np.random.default_rng(0)
    made = paths()
    longest = max(length for length, _ in made)
    attention, decisions = np.zeros((len(made), CODES, longest), np.float32), np.zeros((len(made), CODES), np.int64)
    codes = np.tile(10 + np.arange(CODES), (len(made), 1))
    codes[-2, 20] = codes[-2, 19]
    for case, (length, path) in enumerate(made):
        layers = [SimpleNamespace(self_attn=nn.Identity()) for _ in range(14)]
        analyzer = AlignmentStreamAnalyzer(SimpleNamespace(layers=layers), None,
                                           (CONDITIONING, CONDITIONING + length), eos_idx=STOP)
        for frame in range(CODES):
            bell = np.exp(-0.5 * ((np.arange(length) - path[frame]) / 0.6) ** 2)
            heads = bell / bell.sum() * noise.uniform(0.5, 1.0, (HEADS, 1)) + 0.02 * noise.random((HEADS, length))
            rows = CONDITIONING + length + 2 if frame == 0 else 1
            for head in range(HEADS):
                weights = np.zeros((rows, CONDITIONING + length + 2 + frame), np.float32)
                weights[-1, CONDITIONING:CONDITIONING + length] = heads[head]
                analyzer.last_aligned_attns[head] = torch.from_numpy(weights)
            attention[case, frame, :length] = heads.mean(0)
            last = 6 if frame == 0 else int(codes[case, frame - 1])  # the start token comes first
            logits = analyzer.step(torch.zeros(1, 100), next_token=last)
            decisions[case, frame] = int(torch.sign(logits[0, STOP]))
    save_file({"attention": torch.from_numpy(attention), "codes": torch.from_numpy(codes),
               "lengths": torch.tensor([length for length, _ in made]), "decisions": torch.from_numpy(decisions)},
              str(TARGET))
    for (length, _), row in zip(made, decisions, strict=True):
        print(length, "".join(".+-"[value] for value in row))


if __name__ == "__main__":
    main()
