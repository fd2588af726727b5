"""Parts of conformers in WeNet's layout, whose state-dict keys Chatterbox's flow and IndexTTS2's conditioning share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from models.matmul_backends import Linear


class PositionalAttention(nn.Module):
    """The weights of self-attention with positions (Dai et al. 2019, arXiv:1901.02860), and its heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear_q = Linear(width, width)
        self.linear_k = Linear(width, width)
        self.linear_v = Linear(width, width)
        self.linear_out = Linear(width, width)
        self.linear_pos = Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, width // heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, width // heads))

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., L, C) to (..., H, L, C / H)."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


class FeedForward(nn.Module):
    """Two linear layers with SiLU between them."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.w_1 = Linear(width, mlp_width)
        self.w_2 = Linear(mlp_width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.w_2(F.silu(self.w_1(hidden)))
