"""GPT-2's blocks as a decoder over the shared key-value cache (Radford et al. 2019).

The modules have the state-dict keys of transformers' GPT2Model, without its tables of tokens and positions: vectors
in, vectors out. Published files store the matrices of `Conv1D` layers input by output; here they are plain linear
layers, output by input, so that quantization, adapters and the fast products know them. `transpose_matrices` converts
the tensors of a file when they are loaded and back when they are exported.

There is no dropout: transformers' default of 0.1 at three places is that of GPT-2's own pre-training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from models.decoder import DecoderConfig, KVCache, compiled_without_cache, step_kernels
from models.matmul_backends import Linear

_TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


def transpose_matrices(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors by name, the matrices of `Conv1D` layers transposed, in the same memory; its own inverse."""
    return {name: value.t() if name.endswith(_TRANSPOSED) else value for name, value in tensors.items()}


class LayerNorm(nn.LayerNorm):
    """Layer normalisation in the type of its input or a wider one; the result has the type of the weights.

    The products after it thus run in the type of the weights, while the residual stream may stay in float32.
    """

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.dtype == self.weight.dtype:
            return super().forward(hidden)
        normed = F.layer_norm(hidden.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)
        return normed.to(self.weight.dtype)


class GPT2Attention(nn.Module):
    """Causal self-attention over (B, T, width)."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.layer = config.heads, layer
        self.c_attn = Linear(config.width, 3 * config.width)
        self.c_proj = Linear(config.width, config.width)

    def forward(self, hidden: torch.Tensor, cache: KVCache | None, positions: torch.Tensor,
                mask: torch.Tensor | None) -> torch.Tensor:
        queries, keys, values = self.c_attn(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        if cache is None:
            mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            keys, values = cache.write(self.layer, keys, values, positions)
            mixed = F.scaled_dot_product_attention(queries.to(keys.dtype), keys, values, attn_mask=mask)
            mixed = mixed.to(hidden.dtype)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class GPT2MLP(nn.Module):
    """Two linear layers with GELU between them, in its tanh approximation."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.c_fc = Linear(config.width, config.mlp_width)
        self.c_proj = Linear(config.mlp_width, config.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.c_proj(F.gelu(self.c_fc(hidden), approximate="tanh"))


class GPT2Block(nn.Module):
    """Attention and MLP, each with pre-normalisation and a residual connection."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.width, config.epsilon)
        self.attn = GPT2Attention(config, index)
        self.ln_2 = LayerNorm(config.width, config.epsilon)
        self.mlp = GPT2MLP(config)

    def forward(self, hidden: torch.Tensor, cache: KVCache | None, positions: torch.Tensor,
                mask: torch.Tensor | None) -> torch.Tensor:
        hidden = hidden + self.attn(self.ln_1(hidden), cache, positions, mask)
        return hidden + self.mlp(self.ln_2(hidden))


class GPT2(nn.Module):
    """Blocks and a final norm; a drop-in for `models.decoder.Decoder`. Positions are learned and added elsewhere."""

    activation_checkpointing = False  # see `models.decoder.Decoder`

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.h = nn.ModuleList([GPT2Block(config, index) for index in range(config.layers)])
        self.ln_f = LayerNorm(config.width, config.epsilon)

    @property
    def layers(self) -> nn.ModuleList:
        return self.h

    @property
    def norm(self) -> nn.Module:
        return self.ln_f

    def compile_layers(self) -> None:
        """See `models.decoder.Decoder.compile_layers`."""
        for block in self.h:
            block.forward = compiled_without_cache(block.forward)

    def forward(self, hidden: torch.Tensor, cache: KVCache | None = None,
                positions: torch.Tensor | None = None) -> torch.Tensor:
        """(B, T, width) to (B, T, width). With a cache, `positions` (B, T) are those of the vectors in their rows."""
        if positions is None:
            positions = torch.arange(hidden.shape[1], device=hidden.device)[None].expand(hidden.shape[0], -1)
        if cache is not None:
            kernels = step_kernels(hidden, self)
            if kernels is not None:
                return self._step(kernels, hidden[:, 0], cache, positions[:, 0])

        # Without kernels for a step, each block runs as it is.
        mask = None if cache is None else cache.mask(positions)
        recompute = self.activation_checkpointing and cache is None and torch.is_grad_enabled()
        for block in self.h:
            inputs = (hidden, cache, positions, mask)
            hidden = checkpoint(block, *inputs, use_reentrant=False) if recompute else block(*inputs)
        return self.ln_f(hidden)

    @property
    def linear_layers(self) -> list[nn.Module]:
        """The layers that a step reads."""
        blocks: Any = self.h
        layers: list[nn.Module] = []
        for block in blocks:
            layers += [block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj]
        return layers

    def _step(self, kernels, rows: torch.Tensor, cache: KVCache, positions: torch.Tensor) -> torch.Tensor:
        """One position of each row, (B, width) to (B, 1, width), by `kernels`, which `step_kernels` chose."""
        blocks: Any = self.h
        for index, block in enumerate(blocks):
            joined = kernels.linear(rows, (block.attn.c_attn,), block.ln_1)
            mixed = kernels.attend(joined, block.attn.heads, None, cache, index, positions)
            rows = kernels.linear(mixed, (block.attn.c_proj,), residual=rows)
            widened = kernels.linear(rows, (block.mlp.c_fc,), block.ln_2, activation="gelu")
            rows = kernels.linear(widened, (block.mlp.c_proj,), residual=rows)
        return self.ln_f(rows)[:, None]
