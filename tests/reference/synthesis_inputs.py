"""What flow and vocoder are given in `make_synthesis.py` and in the tests: made from a seed, not stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scripts.dev.random_weights import tensor

FLOW_SEEDS = (23, 24)
VOCODER_SEED = 29
STEPS = 3
GUIDANCE = 0.45  # not the usual one, so that a fixed one is noticed
ROWS = 2


def normal(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Standard normal numbers, the same everywhere."""
    count = torch.Size(shape).numel()
    return torch.from_numpy(tensor(f"input.{name}", (count, 1), seed).copy()).view(shape)


def codes(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return (normal(name, shape, seed).abs() * 10_000).long() % 6561


@dataclass(frozen=True)
class FlowInputs:
    """Two rows with prompts of their own."""

    prompt_codes: torch.Tensor  # (2, P)
    prompt_mel: torch.Tensor  # (2, 2P, 80)
    speaker: torch.Tensor  # (2, 192)
    codes: torch.Tensor  # (2, U)
    noise: torch.Tensor  # (2, 80, 2(P + U))
    times: torch.Tensor  # (2,)

    @staticmethod
    def made(seed: int, prompt: int = 5, length: int = 8) -> FlowInputs:
        return FlowInputs(
            codes("prompt", (ROWS, prompt), seed), normal("mel", (ROWS, 2 * prompt, 80), seed) - 5,
            normal("speaker", (ROWS, 192), seed), codes("codes", (ROWS, length), seed),
            normal("noise", (ROWS, 80, 2 * (prompt + length)), seed), torch.tensor([0.2, 0.9]),
        )


@dataclass(frozen=True)
class VocoderInputs:
    """Two rows of mel and excitation; a pitch with unvoiced frames."""

    mel: torch.Tensor  # (2, 80, F)
    source: torch.Tensor  # (2, 1, 480 F)
    f0: torch.Tensor  # (2, F) Hz
    offsets: torch.Tensor  # (9,) turns

    @staticmethod
    def made(seed: int, frames: int = 11) -> VocoderInputs:
        f0 = 150 + 60 * normal("f0", (ROWS, frames), seed)
        f0[:, 3:5] = 0
        offsets = torch.linspace(-0.4, 0.4, 9)
        offsets[0] = 0
        mel, source = normal("mel", (ROWS, 80, frames), seed), normal("source", (ROWS, 1, 480 * frames), seed)
        return VocoderInputs(mel, 0.1 * source, f0.clamp(min=0), offsets)
