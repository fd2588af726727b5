"""One causal transformer for every family: RMSNorm, rotary positions, SwiGLU, static key-value cache.

Llama's layout and state-dict keys (Touvron et al. 2023), so that published weights load. Vectors in, vectors out:
text and speech are embedded elsewhere. Rows of a batch are contiguous and padded on the right only: with a causal
mask no real position attends to padding, so training needs no other mask.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from models.matmul_backends import Linear

_KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class RotaryScaling:
    """Llama 3's scaling of low rotary frequencies (Dubey et al. 2024)."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the transformer; a head has `width // heads` dimensions."""

    width: int
    layers: int
    heads: int
    mlp_width: int
    epsilon: float = 1e-5
    rotary_theta: float | None = 500_000.0  # None: no rotary positions
    rotary_scaling: RotaryScaling | None = None


class KVCache:
    """Keys and values of every layer in fixed storage, (layers, 2, B, heads, capacity, head size).

    Attention reads the first `span` positions. `aligned`: the newest position of every row is the last of them, so
    that a step of one position needs no mask. `queries` gets the queries of the layers in `watched`.
    """

    def __init__(self, config: DecoderConfig, batch: int, capacity: int, device, dtype) -> None:
        head = config.width // config.heads
        self.span, self.aligned = capacity, False
        self.watched: frozenset[int] = frozenset()
        self.queries: dict[int, torch.Tensor] = {}  # (B, heads, T, head size) of the last forward pass, by layer
        self.rotation: list[torch.Tensor] = []  # see `models.triton_kernels.rotation`
        # Zeros: what was never written is masked, but its weight of zero times infinity would not be zero.
        self.storage = torch.zeros(config.layers, 2, batch, config.heads, capacity, head, device=device, dtype=dtype)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor):
        """Store (B, heads, T, head size) at positions (B, T); the layer's keys and values over the span.

        On a CPU these are float32, in which attention is fastest there.
        """
        stored_keys, stored_values = self.storage[layer]
        index = positions[:, None, :, None].expand_as(keys)
        stored_keys.scatter_(2, index, keys.to(stored_keys.dtype))
        stored_values.scatter_(2, index, values.to(stored_values.dtype))
        keys_and_values = stored_keys[:, :, :self.span], stored_values[:, :, :self.span]
        return keys_and_values if self.storage.is_cuda else tuple(part.float() for part in keys_and_values)

    def watch(self, layer: int, rows: torch.Tensor) -> torch.Tensor | None:
        """Where a step's queries of a watched layer go, (B, width), beside `rows` (B, width); None for other layers."""
        if layer not in self.watched:
            # The layer writes its queries here, and the guard computes attention from them.
            return None
        queries = torch.empty_like(rows, dtype=self.storage.dtype)
        self.queries[layer] = queries.view(len(rows), self.storage.shape[3], 1, -1)
        return queries

    def rows(self, count: int) -> KVCache:
        """The cache of the first `count` rows, on the same storage."""
        part = copy(self)
        part.storage = self.storage[:, :, :count]
        return part

    def mask(self, positions: torch.Tensor) -> torch.Tensor | None:
        """Which of the span the positions (B, T) may attend to, (B, 1, T, span); None for all.

        On a GPU 0 or -inf in the type of the storage, to which attention would convert it in each layer.
        """
        if self.aligned and positions.shape[1] == 1:
            return None
        seen = torch.arange(self.span, device=positions.device) <= positions[:, None, :, None]
        if not self.storage.is_cuda:
            return seen
        return torch.zeros_like(seen, dtype=self.storage.dtype).masked_fill_(~seen, -torch.inf)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation in float32 (Zhang and Sennrich 2019); the result has the type of the weights.

    The products after it thus run in the type of the weights, while the residual stream may stay in float32.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = F.rms_norm(hidden.float(), (hidden.shape[-1],), None, self.epsilon)
        return self.weight * wide.to(self.weight.dtype)


class DecoderAttention(nn.Module):
    """Causal self-attention over (B, T, width)."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.layer = config.heads, layer
        self.q_proj = Linear(config.width, config.width, bias=False)
        self.k_proj = Linear(config.width, config.width, bias=False)
        self.v_proj = Linear(config.width, config.width, bias=False)
        self.o_proj = Linear(config.width, config.width, bias=False)

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to (B, heads, T, head size)."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def queries_and_keys(self, hidden: torch.Tensor, rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries and keys, (B, heads, T, head size)."""
        queries, keys = self.split(self.q_proj(hidden)), self.split(self.k_proj(hidden))
        if rotation is None:
            # Queries and keys are rotated together, in half the operations.
            return queries, keys
        rotated_queries, rotated_keys = _rotate(torch.cat([queries, keys], 1), rotation).chunk(2, 1)
        return rotated_queries, rotated_keys

    def forward(self, hidden, rotation, cache: KVCache | None, positions, mask) -> torch.Tensor:
        queries, keys = self.queries_and_keys(hidden, rotation)
        mixed = self.attend(queries, keys, self.split(self.v_proj(hidden)), cache, positions, mask)
        if cache is not None:
            mixed = mixed.to(hidden.dtype)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cache: KVCache | None, positions,
               mask) -> torch.Tensor:
        """Attention of queries, keys and values (B, heads, T, head size), and of what a cache has."""
        # Without a cache, each position sees itself and those before it.
        if cache is None:
            return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        keys, values = cache.write(self.layer, keys, values, positions)
        if self.layer in cache.watched:
            cache.queries[self.layer] = queries
        return F.scaled_dot_product_attention(queries.to(keys.dtype), keys, values, attn_mask=mask)


class DecoderMLP(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.width, config.mlp_width, bias=False)
        self.up_proj = Linear(config.width, config.mlp_width, bias=False)
        self.down_proj = Linear(config.mlp_width, config.width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class DecoderLayer(nn.Module):
    """Attention and MLP, each with pre-normalisation and a residual connection."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.self_attn = DecoderAttention(config, index)
        self.mlp = DecoderMLP(config)
        self.input_layernorm = RMSNorm(config.width, config.epsilon)
        self.post_attention_layernorm = RMSNorm(config.width, config.epsilon)

    def queries_and_keys(self, hidden: torch.Tensor, branch: torch.Tensor | None,
                         rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries and keys (B, heads, T, head size) of the layer's inputs, without a cache."""
        attention = self.self_attn
        kernels = training_kernels(hidden) if rotation is not None else None
        if kernels is None:
            hidden = hidden if branch is None else hidden + branch
            return attention.queries_and_keys(self.input_layernorm(hidden), rotation)
        _, normed = kernels.add_norm(hidden, branch, self.input_layernorm)
        queries, keys = kernels.linear(normed, (attention.q_proj, attention.k_proj))
        rotated: tuple[torch.Tensor, torch.Tensor] = kernels.rotate(queries, keys, attention.heads, rotation)
        return rotated

    def forward(self, hidden: torch.Tensor, branch: torch.Tensor | None, rotation, cache, positions,
                mask) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states (B, T, width) and a branch that is still to be added to them, or None, to such a pair.

        Only the kernels of training and prefill leave a branch, to the next norm, which adds it in its own kernel.
        """
        kernels = training_kernels(hidden) if cache is None or hidden.shape[1] > 1 else None
        if kernels is not None:
            return self._forward_by_kernels(kernels, hidden, branch, rotation, cache, positions, mask)
        hidden = hidden if branch is None else hidden + branch
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, cache, positions, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), None

    def _forward_by_kernels(self, kernels, hidden: torch.Tensor, branch: torch.Tensor | None, rotation,
                            cache: KVCache | None, positions, mask) -> tuple[torch.Tensor, torch.Tensor]:
        """`forward` by `kernels`, which `training_kernels` chose."""
        attention, mlp = self.self_attn, self.mlp
        hidden, normed = kernels.add_norm(hidden, branch, self.input_layernorm)
        queries, keys, values = kernels.linear(normed, (attention.q_proj, attention.k_proj, attention.v_proj))
        if rotation is None:
            queries, keys = attention.split(queries), attention.split(keys)
        else:
            queries, keys = kernels.rotate(queries, keys, attention.heads, rotation)
        mixed = attention.attend(queries, keys, attention.split(values), cache, positions, mask)
        if cache is not None:
            mixed = mixed.to(normed.dtype)
        branch, = kernels.linear(mixed.transpose(1, 2).flatten(2), (attention.o_proj,))
        hidden, normed = kernels.add_norm(hidden, branch, self.post_attention_layernorm)
        gate, up = kernels.linear(normed, (mlp.gate_proj, mlp.up_proj))
        branch, = kernels.linear(kernels.swiglu(gate, up), (mlp.down_proj,))
        return hidden, branch


class Decoder(nn.Module):
    """Layers and a final norm. Published checkpoints have an unused `embed_tokens`, kept so that they load strictly.

    With `activation_checkpointing` the backward pass recomputes each layer from its input (Chen et al. 2016,
    arXiv:1604.06174): less memory, a third more work.
    """

    frequencies: torch.Tensor
    activation_checkpointing = False

    def __init__(self, config: DecoderConfig, unused_tokens: int = 0) -> None:
        super().__init__()
        self.config = config
        if unused_tokens:
            self.embed_tokens = nn.Embedding(unused_tokens, config.width)
        self.layers = nn.ModuleList([DecoderLayer(config, index) for index in range(config.layers)])
        self.norm = RMSNorm(config.width, config.epsilon)
        self.compute_frequencies()

    def compute_frequencies(self) -> None:
        """Compute the buffers that checkpoints lack; call it again on a model that was built on the meta device."""
        with torch.device("cpu"):
            self.register_buffer("frequencies", _frequencies(self.config), persistent=False)

    def compile_layers(self) -> None:
        """Compile each layer's forward without a cache at its first use, for any batch size and length.

        Hooks and activation checkpointing stay outside the compiled code.
        """
        for layer in self.layers:
            layer.forward = compiled_without_cache(layer.forward)

    def rotation(self, positions: torch.Tensor):
        """Cosines and sines for positions (B, T) or (1, T), each (B, 1, T, head size); None without rotary.

        The sines of the first half are negated, as the second half of a vector is when it takes the first one's place.
        """
        if self.config.rotary_theta is None:
            return None
        # Angles are computed in float32: in half precision, distant positions would coincide.
        angles = positions[:, None, :, None].float() * self.frequencies
        cosines, sines = angles.cos(), angles.sin()
        return torch.cat([cosines, cosines], -1), torch.cat([-sines, sines], -1)

    def forward(self, hidden: torch.Tensor, cache: KVCache | None = None,
                positions: torch.Tensor | None = None) -> torch.Tensor:
        """(B, T, width) to (B, T, width). With a cache, `positions` (B, T) are those of the vectors in their rows."""
        if positions is None:
            positions = torch.arange(hidden.shape[1], device=hidden.device)[None].expand(hidden.shape[0], -1)
        if cache is not None:
            step = step_kernels(hidden, self)
            if step is not None:
                return self._step(step, hidden[:, 0], cache, positions[:, 0])

        rotation = self.rotation(positions)
        mask = None if cache is None else cache.mask(positions)
        if rotation is not None:
            rotation = tuple(part.to(self.norm.weight.dtype) for part in rotation)

        recompute = self.activation_checkpointing and cache is None and torch.is_grad_enabled()
        kernels = training_kernels(hidden) if cache is None or hidden.shape[1] > 1 else None
        branch = None
        with nullcontext() if kernels is None else kernels.adapters_cast(self, hidden):
            for layer in self.layers:
                if recompute and branch is not None:
                    # Otherwise both would be stored for the backward pass.
                    hidden, branch = hidden + branch, None
                inputs = (hidden, branch, rotation, cache, positions, mask)
                hidden, branch = checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)

        # In training and in a prefill, the last addition and the norm are one kernel.
        if kernels is not None:
            normed: torch.Tensor = kernels.normalise(hidden, branch, self.norm)
            return normed

        return self.norm(hidden)

    @property
    def linear_layers(self) -> list[nn.Module]:
        """The layers that a step reads."""
        layers: Any = self.layers
        parts: list[nn.Module] = []
        for layer in layers:
            attention, mlp = layer.self_attn, layer.mlp
            parts += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
                      mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        return parts

    def _step(self, kernels, rows: torch.Tensor, cache: KVCache, positions: torch.Tensor) -> torch.Tensor:
        """One position of each row, (B, width) to (B, 1, width), by `kernels`, which `step_kernels` chose."""
        rotation = kernels.rotation(self, cache, positions)
        layers: Any = self.layers
        for index, layer in enumerate(layers):
            attention, mlp = layer.self_attn, layer.mlp
            joined = kernels.linear(rows, (attention.q_proj, attention.k_proj, attention.v_proj), layer.input_layernorm)
            mixed = kernels.attend(joined, attention.heads, rotation, cache, index, positions)
            rows = kernels.linear(mixed, (attention.o_proj,), residual=rows)
            gated = kernels.linear(rows, (mlp.gate_proj, mlp.up_proj), layer.post_attention_layernorm,
                                   activation="swiglu")
            rows = kernels.linear(gated, (mlp.down_proj,), residual=rows)
        return self.norm(rows)[:, None]


def step_kernels(hidden: torch.Tensor, decoder: Any, *other_layers: nn.Module) -> ModuleType | None:
    """The module whose kernels compute a step of `decoder` on `hidden` (B, T, width) with a cache, if there is one.

    On a GPU they must be able to compute `other_layers` linear layers too.
    """
    if hidden.shape[1] > 1 or torch.is_grad_enabled():
        return None
    if hidden.device.type == "cpu" and hidden.dtype == decoder.norm.weight.dtype == torch.float32:
        from models import cpu_kernels

        return cpu_kernels
    if not hidden.is_cuda or not has_triton(hidden.device):
        return None
    from models import triton_kernels

    config = decoder.config
    fits = triton_kernels.supports(hidden, config.width // config.heads, [*decoder.linear_layers, *other_layers])
    return triton_kernels if fits else None


def training_kernels(hidden: torch.Tensor) -> ModuleType | None:
    """The module whose kernels compute the layers of training or of a prefill on `hidden` (B, T, width), if any."""
    if torch.compiler.is_compiling() or not hidden.is_cuda or hidden.dtype not in _KERNEL_DTYPES:
        return None  # torch.compile fuses the same operations
    if not has_triton(hidden.device):
        return None
    from models import triton_training

    return triton_training


@lru_cache
def has_triton(device: torch.device) -> bool:
    """Whether Triton knows the GPU and can compile here; a warning if it lacks a compiler."""
    if find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    from triton.runtime import driver

    try:
        driver.active.get_current_target()  # compiles a part of Triton
    except Exception as error:  # noqa: BLE001  (of any compiler)
        warnings.warn("Speech is synthesized and models are trained at half the speed, because Triton cannot compile "
                      f"its kernels: {error} It needs a C compiler and Python's headers (Debian, Ubuntu: apt install "
                      "gcc python3-dev).", stacklevel=2)
        return False
    return True


def uses_triton(value: torch.Tensor) -> bool:
    """Whether Triton's kernels compute with this tensor: on a GPU that has them, without gradients."""
    return value.is_cuda and not torch.is_grad_enabled() and has_triton(value.device)


def compiled_without_cache(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward that is compiled at its first use; a call with a cache among its inputs runs as it is."""
    compiled = torch.compile(plain, dynamic=True)

    def forward(*inputs) -> Any:
        cached = any(isinstance(value, KVCache) for value in inputs)
        return (plain if cached else compiled)(*inputs)

    return forward


def _rotate(vectors: torch.Tensor, rotation) -> torch.Tensor:
    cosines, signed_sines = rotation
    first_half, second_half = vectors.chunk(2, -1)
    return vectors * cosines + torch.cat([second_half, first_half], -1) * signed_sines


def _frequencies(config: DecoderConfig) -> torch.Tensor:
    """Rotary frequencies (head size / 2,) in radians per position."""
    head = config.width // config.heads
    theta = config.rotary_theta or 1.0
    plain = 1.0 / theta ** (torch.arange(0, head, 2, dtype=torch.float32) / head)
    scaling = config.rotary_scaling
    if scaling is None:
        return plain
    turns = scaling.original_positions * plain / (2 * math.pi)
    blend = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return plain * (blend + (1 - blend) / scaling.factor)
