"""Triton kernels between the matrix products of a layer of `models.decoder`, in training and in a prefill on a GPU.

By torch's own operations a layer reads and writes its vectors dozens of times: for casts, each product and each sum
of the normalisation, the rotation and SwiGLU, and as often for their gradients. This takes longer than the matrix
products. Here each of the three is one kernel in the forward pass and one in the backward pass, and the norm's takes
the residual addition with it. They compute in float32 and round a result once, so they differ from torch by rounding.
No sum depends on the order in which programs run: the same inputs give the same bits. Only `models.decoder` imports
this module, where Triton can compile. Compiled layers do not use it, since torch.compile fuses the same operations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn
from torch.autograd.function import once_differentiable

from models.matmul_backends import Linear

_ELEMENTS = 2048  # elements of a program of SwiGLU
_GAIN_ROWS = 16  # rows of a program that adds up the gradient of a norm's weight


def add_norm(hidden: torch.Tensor, branch: torch.Tensor | None, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of `hidden` and `branch`, both (..., width), and that sum normalised by an `RMSNorm`, for `linear`.

    Without a branch the sum is `hidden`. The second result has the type of the norm's weight, or of autocast, to which
    the matrix products would convert it.
    """
    dtype = _autocast_dtype(hidden) or norm.weight.dtype
    total, normed = _AddNorm.apply(hidden, branch, norm.weight, norm.epsilon, dtype)
    return total, normed


def normalise(hidden: torch.Tensor, branch: torch.Tensor | None, norm: Any) -> torch.Tensor:
    """The second result of `add_norm` alone, in the type of the norm's weight."""
    normed: torch.Tensor = _AddNorm.apply(hidden, branch, norm.weight, norm.epsilon, norm.weight.dtype)[1]
    return normed


def linear(rows: torch.Tensor, layers: Sequence[nn.Module]) -> list[torch.Tensor]:
    """Rows (..., width) by several linear layers, (..., outputs) each.

    The backward pass adds the gradients of the rows in the matrix products, and those of LoRA's factors are products
    without anything between them. The adapters of these layers share one dropout mask: they read the same rows. Layers
    with a bias, or that are not plain for another reason, are called one by one.
    """
    products = [_product(layer) for layer in layers]
    rates = {product.dropout for product in products if product is not None and product.factors}
    dtype = _autocast_dtype(rows)
    if not all(product is not None and product.fits(dtype) for product in products) or len(rates) > 1:
        return [layer(rows) for layer in layers]
    if len(layers) == 1 and not rates:
        return [layers[0](rows)]

    weights: list[Any] = [product.weight for product in products if product is not None]
    if dtype is not None:
        rows, weights = rows.to(dtype), [weight.to(dtype) for weight in weights]
    if not rates:
        return list(_Products.apply(rows, *weights))
    pairs = [product.cast_factors(dtype) for product in products if product is not None]
    scales = tuple(product.scale for product in products if product is not None)
    factors = itertools.chain.from_iterable(pairs)
    return list(_AdaptedProducts.apply(rows, rates.pop(), scales, *weights, *factors))


@contextmanager
def adapters_cast(decoder: Any, hidden: torch.Tensor) -> Iterator[None]:
    """Context in which the factors of LoRA in `decoder` are cast for autocast: all in a few kernels, not one each.

    A pass that begins outside of it, as the recomputation of a layer does, casts those of its layers itself.
    """
    dtype = _autocast_dtype(hidden)
    adapted = []
    for layer in decoder.linear_layers if dtype is not None else ():
        product = _product(layer)
        if product is not None and product.factors:
            adapted.append((layer, product.factors))
    factors = [*itertools.chain.from_iterable(pair for _, pair in adapted)]
    # FSDP gathers the factors of a layer only when the layer begins.
    if not factors or any(type(factor) is not nn.Parameter or factor.dtype != factors[0].dtype for factor in factors):
        yield
        return

    cast = _Casts.apply(dtype, *factors)
    for index, (layer, _) in enumerate(adapted):
        layer.cast_factors = cast[2 * index:2 * index + 2]
    try:
        yield
    finally:
        for layer, _ in adapted:
            del layer.cast_factors


def rotate(queries: torch.Tensor, keys: torch.Tensor, heads: int,
           rotation: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys (B, T, width) split into heads and rotated, (B, heads, T, head size).

    `rotation` are cosines and signed sines, each (B or 1, 1, T, head size), as `models.decoder.Decoder.rotation` makes.
    In memory a position's heads are side by side, which attention reads without a copy.
    """
    dtype = _autocast_dtype(queries) or torch.promote_types(queries.dtype, rotation[0].dtype)
    rotated_queries, rotated_keys = _Rotation.apply(queries, keys, *rotation, heads, dtype)
    return rotated_queries.transpose(1, 2), rotated_keys.transpose(1, 2)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, all of the same shape."""
    output: torch.Tensor = _SwiGLU.apply(gate, up)
    return output


def _autocast_dtype(value: torch.Tensor) -> torch.dtype | None:
    """The type to which autocast converts `value` for a matrix product; None if it is off."""
    kind = value.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


@dataclass(frozen=True)
class _Product:
    """What a linear layer computes: rows by its weight, and by the two factors of LoRA if its adapter is on."""

    layer: Any
    weight: torch.Tensor
    factors: tuple[nn.Parameter, ...] = ()  # (rank, width) and (outputs, rank)
    scale: float | None = None
    dropout: float = 0.0

    def fits(self, dtype: torch.dtype | None) -> bool:
        """Whether weight and factors are multiplied in the same type; autocast to `dtype` sees to that."""
        return dtype is not None or all(factor.dtype == self.weight.dtype for factor in self.factors)

    def cast_factors(self, dtype: torch.dtype | None) -> tuple[torch.Tensor, ...]:
        """The factors for autocast to `dtype`."""
        cast: tuple[torch.Tensor, ...] | None = getattr(self.layer, "cast_factors", None)
        if cast is not None and self.factors and cast[0].dtype == dtype:
            return cast
        return self.factors if dtype is None else tuple(factor.to(dtype) for factor in self.factors)


def _product(layer: Any) -> _Product | None:
    """What `layer` computes, if that is a product without a bias, with LoRA of peft or without."""
    if _is_plain(layer):
        return _Product(layer, layer.weight)
    # Of peft's kinds of adapters, AdaLoRA has layers of another class, and DoRA is a variant.
    if not hasattr(layer, "base_layer") or not _is_plain(layer.base_layer) or _has_hooks(layer):
        return None
    if type(layer).__module__ != "peft.tuners.lora.layer" or layer.merged or hasattr(layer, "rows_switched"):
        return None
    names = [] if layer.disable_adapters else [name for name in layer.active_adapters if name in layer.lora_A]
    if not names:
        return _Product(layer, layer.base_layer.weight)
    factor_a, factor_b, dropout = (part[names[0]] for part in (layer.lora_A, layer.lora_B, layer.lora_dropout))
    parts = (factor_a, factor_b, dropout)
    if len(names) > 1 or names[0] in layer.lora_variant or factor_b.bias is not None or any(map(_has_hooks, parts)):
        return None
    rate = dropout.p if isinstance(dropout, nn.Dropout) and dropout.training else 0.0
    return _Product(layer, layer.base_layer.weight, (factor_a.weight, factor_b.weight), layer.scaling[names[0]], rate)


def _is_plain(layer: nn.Module) -> bool:
    return type(layer) is Linear and layer.bias is None and not _has_hooks(layer)


def _has_hooks(layer: nn.Module) -> bool:
    """Whether a call computes more than the class does; with a merged adapter the layer has a `forward` of its own."""
    hooks = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks)
    return "forward" in vars(layer) or any(hooks)


def _warps(block: int) -> int:
    return min(8, max(1, block // 256))


class _AddNorm(torch.autograd.Function):
    """See `add_norm`. The backward pass adds the gradients of both results in the norm's kernel."""

    @staticmethod
    def forward(ctx, hidden, branch, gain, epsilon, dtype):
        width, hidden = hidden.shape[-1], hidden.contiguous()
        normed = torch.empty_like(hidden, dtype=dtype)
        total = hidden
        if branch is not None:
            branch = branch.contiguous()
            total = torch.empty_like(hidden, dtype=torch.promote_types(hidden.dtype, branch.dtype))
        block = triton.next_power_of_2(width)
        _add_norm[(hidden.numel() // width,)](hidden, branch, gain, total, normed, epsilon, WIDTH=width, BLOCK=block,
                                              num_warps=_warps(block))
        ctx.save_for_backward(total, gain)
        ctx.epsilon, ctx.types = epsilon, (hidden.dtype, None if branch is None else branch.dtype)
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total, grad_normed):
        total, gain = ctx.saved_tensors
        kind, branch_kind = ctx.types
        if grad_normed is None:  # nothing reads the normalised rows
            grad_branch = None if branch_kind is None or grad_total is None else grad_total.to(branch_kind)
            return None if grad_total is None else grad_total.to(kind), grad_branch, None, None, None
        width = total.shape[-1]
        count, block = total.numel() // width, triton.next_power_of_2(width)
        # Programs that add up the gradient of the gain take several rows.
        rows_each = _GAIN_ROWS if ctx.needs_input_grad[2] else 1
        programs = triton.cdiv(count, rows_each)
        grad_hidden = torch.empty_like(total, dtype=kind)
        grad_branch = None if branch_kind in (None, kind) else torch.empty_like(total, dtype=branch_kind)
        partial = total.new_empty(programs, width, dtype=torch.float32) if ctx.needs_input_grad[2] else None
        _add_norm_backward[(programs,)](
            total, gain, grad_normed.contiguous(), None if grad_total is None else grad_total.contiguous(),
            grad_hidden, grad_branch, partial, count, ctx.epsilon, WIDTH=width, BLOCK=block, ROWS=rows_each,
            num_warps=_warps(block))

        # With equal types, branch and residual share a gradient.
        if branch_kind == kind:
            grad_branch = grad_hidden
        return grad_hidden, grad_branch, None if partial is None else partial.sum(0).to(gain.dtype), None, None


class _Products(torch.autograd.Function):
    """Rows (..., width) by weights (outputs, width) of the same type."""

    @staticmethod
    def forward(ctx, rows, *weights):
        ctx.save_for_backward(rows if any(ctx.needs_input_grad[1:]) else None, *weights)
        ctx.set_materialize_grads(False)
        return tuple(F.linear(rows, weight) for weight in weights)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        rows, *weights = ctx.saved_tensors
        grad_rows, grad_weights = None, []
        for index, (grad, weight) in enumerate(zip(grads, weights, strict=True)):
            flat: Any = None if grad is None else grad.flatten(0, -2)
            needs_grad = flat is not None and ctx.needs_input_grad[1 + index]
            grad_weights.append(flat.t() @ rows.flatten(0, -2) if needs_grad else None)
            if flat is None or not ctx.needs_input_grad[0]:
                # Gradients of the rows are added within the products.
                continue
            if grad_rows is None:
                shape, grad_rows = grad.shape[:-1], flat @ weight
            else:
                grad_rows.addmm_(flat, weight)
        return None if grad_rows is None else grad_rows.unflatten(0, shape), *grad_weights


class _AdaptedProducts(torch.autograd.Function):
    """Rows (..., width) by weights, and by LoRA's factors where a layer has a scale; all of the same type.

    The first factors of all layers are one product, and each second factor is added in the product by it.
    """

    @staticmethod
    def forward(ctx, rows, dropout, scales, *tensors):
        weights, factors = tensors[:len(scales)], tensors[len(scales):]
        flat = rows.flatten(0, -2)
        dropped, mask = flat, None
        if dropout:
            dropped, mask = torch.native_dropout(flat, dropout, True)
        joined = factors[0] if len(factors) == 2 else torch.cat(factors[::2])
        reduced = dropped @ joined.t()  # (rows, sum of the ranks)

        outputs, seconds, start = [], iter(factors[1::2]), 0
        for weight, scale in zip(weights, scales, strict=True):
            output = flat @ weight.t()
            if scale is not None:
                second = next(seconds)
                rank = second.shape[1]
                output.addmm_(reduced[:, start:start + rank], second.t(), alpha=scale)
                start += rank
            outputs.append(output.unflatten(0, rows.shape[:-1]))

        trains_weights = any(ctx.needs_input_grad[3:3 + len(scales)])
        ctx.save_for_backward(flat if trains_weights else None, dropped, mask, reduced, joined, *weights,
                              *factors[1::2])
        ctx.dropout, ctx.scales, ctx.shape = dropout, scales, rows.shape
        ctx.ranks = [factor.shape[0] for factor in factors[::2]]
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        flat, dropped, mask, reduced, joined, *tensors = ctx.saved_tensors
        weights, seconds = tensors[:len(ctx.scales)], iter(tensors[len(ctx.scales):])
        needs_rows, ranks = ctx.needs_input_grad[0], iter(ctx.ranks)
        grad_reduced = torch.empty_like(reduced)
        grad_rows: Any = None
        grad_weights, grad_seconds = list[Any](), list[Any]()
        start = 0
        for index, (wide_grad, weight, scale) in enumerate(zip(grads, weights, ctx.scales, strict=True)):
            grad: Any = None if wide_grad is None else wide_grad.flatten(0, -2)
            needs_weight = grad is not None and ctx.needs_input_grad[3 + index]
            grad_weights.append(grad.t() @ flat if needs_weight else None)
            # Gradients of the rows are added within the products.
            if grad is not None and needs_rows:
                grad_rows = grad @ weight if grad_rows is None else grad_rows.addmm_(grad, weight)
            if scale is None:
                continue
            second, part = next(seconds), slice(start, start + next(ranks))
            start = part.stop
            if grad is None:
                grad_reduced[:, part].zero_()
                grad_seconds.append(None)
                continue
            # With beta 0 what the memory held does not count, and the scale takes no kernel of its own.
            grad_reduced[:, part].addmm_(grad, second, beta=0, alpha=scale)
            grad_seconds.append(torch.empty_like(second).addmm_(grad.t(), reduced[:, part], beta=0, alpha=scale))

        grad_firsts = (grad_reduced.t() @ dropped).split(ctx.ranks)
        if needs_rows and mask is None:
            grad_rows = grad_reduced @ joined if grad_rows is None else grad_rows.addmm_(grad_reduced, joined)
        elif needs_rows:
            grad_dropped = grad_reduced @ joined
            grad_rows = torch.zeros_like(grad_dropped) if grad_rows is None else grad_rows
            grad_rows.addcmul_(grad_dropped, mask, value=1 / (1 - ctx.dropout))
        factors = itertools.chain.from_iterable(zip(grad_firsts, grad_seconds, strict=True))
        return grad_rows.view(ctx.shape) if needs_rows else None, None, None, *grad_weights, *factors


class _Casts(torch.autograd.Function):
    """Tensors to another type, and their gradients back."""

    @staticmethod
    def forward(ctx, dtype, *tensors):
        ctx.dtype = tensors[0].dtype
        ctx.set_materialize_grads(False)
        return _cast_together(tensors, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        cast = iter(_cast_together([grad for grad in grads if grad is not None], ctx.dtype))
        return None, *(None if grad is None else next(cast) for grad in grads)


def _cast_together(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    cast = [torch.empty_like(tensor, dtype=dtype, memory_format=torch.contiguous_format) for tensor in tensors]
    if cast:
        torch._foreach_copy_(cast, [tensor.contiguous() for tensor in tensors])
    return tuple(cast)


class _Rotation(torch.autograd.Function):
    """Queries and keys (B, T, heads * size) to rotated ones, (B, T, heads, size)."""

    @staticmethod
    def forward(ctx, queries, keys, cosines, sines, heads, dtype):
        ctx.save_for_backward(cosines, sines)
        ctx.types = queries.dtype, keys.dtype
        queries, keys = (part.contiguous().unflatten(-1, (heads, -1)) for part in (queries, keys))
        return _launch_rotation(queries, keys, cosines, sines, (dtype, dtype), inverse=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_queries, grad_keys):
        cosines, sines = ctx.saved_tensors
        gradients = _launch_rotation(grad_queries.contiguous(), grad_keys.contiguous(), cosines, sines, ctx.types,
                                inverse=True)
        return *(part.flatten(2) for part in gradients), None, None, None, None


def _launch_rotation(queries, keys, cosines, sines, dtypes, *, inverse: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Contiguous queries and keys (B, T, heads, size), rotated, or rotated back with `inverse`."""
    batch, length, heads, size = queries.shape
    cosines, sines = (part.expand(batch, 1, length, size) for part in (cosines, sines))
    if cosines.stride() != sines.stride() or cosines.stride(-1) != 1:
        cosines, sines = cosines.contiguous(), sines.contiguous()
    outputs = [torch.empty_like(part, dtype=dtype) for part, dtype in zip((queries, keys), dtypes, strict=True)]
    block_heads, block_half = triton.next_power_of_2(heads), triton.next_power_of_2(size // 2)
    _rotate[(length, batch)](queries, keys, cosines, sines, *outputs, cosines.stride(0), cosines.stride(2), HEADS=heads,
                             BLOCK_HEADS=block_heads, HALF=size // 2, BLOCK_HALF=block_half, INVERSE=inverse,
                             num_warps=_warps(block_heads * block_half))
    return outputs[0], outputs[1]


class _SwiGLU(torch.autograd.Function):
    """See `swiglu`."""

    @staticmethod
    def forward(ctx, gate, up):
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        output = torch.empty_like(gate, dtype=torch.promote_types(gate.dtype, up.dtype))
        _swiglu[(triton.cdiv(gate.numel(), _ELEMENTS),)](gate, up, output, gate.numel(), BLOCK=_ELEMENTS, num_warps=4)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        _swiglu_backward[(triton.cdiv(gate.numel(), _ELEMENTS),)](
            gate, up, grad.contiguous(), grad_gate, grad_up, gate.numel(), BLOCK=_ELEMENTS, num_warps=4)
        return grad_gate, grad_up


@triton.jit
def _add_norm(hidden, branch, gain, total, normed, epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row."""
    start = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(hidden + start + column, mask=inside, other=0).to(tl.float32)
    if branch is not None:
        value += tl.load(branch + start + column, mask=inside, other=0).to(tl.float32)
        value = value.to(total.dtype.element_ty)
        tl.store(total + start + column, value, mask=inside)
        value = value.to(tl.float32)
    weight = tl.load(gain + column, mask=inside, other=0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / WIDTH + epsilon)
    tl.store(normed + start + column, (value * scale * weight).to(normed.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _add_norm_backward(total, gain, grad_normed, grad_total, grad_hidden, grad_branch, partial, count, epsilon,
                       WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """The gradients of some rows; `partial` (programs, width) gets the sum of their gradients of the weight."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    weight = tl.load(gain + column, mask=column < WIDTH, other=0).to(tl.float32)
    grad_weight = tl.zeros((BLOCK,), tl.float32)

    for index in range(ROWS):
        row = program * ROWS + index
        offset = row * WIDTH + column
        inside = (column < WIDTH) & (row < count)
        value = tl.load(total + offset, mask=inside, other=0).to(tl.float32)
        grad = tl.load(grad_normed + offset, mask=inside, other=0).to(tl.float32)

        # The norm's gradient: remove the part along the normalised row.
        scale = 1 / tl.sqrt(tl.sum(value * value, 0) / WIDTH + epsilon)
        value *= scale
        grad_weight += grad * value
        grad *= weight
        grad = scale * (grad - value * (tl.sum(grad * value, 0) / WIDTH))

        # The branch and the residual get the same gradient.
        if grad_total is not None:
            grad += tl.load(grad_total + offset, mask=inside, other=0).to(tl.float32)
        tl.store(grad_hidden + offset, grad.to(grad_hidden.dtype.element_ty), mask=inside)
        if grad_branch is not None:
            tl.store(grad_branch + offset, grad.to(grad_branch.dtype.element_ty), mask=inside)

    if partial is not None:
        tl.store(partial + program * WIDTH + column, grad_weight, mask=column < WIDTH)


@triton.jit
def _rotate(queries, keys, cosines, sines, rotated_queries, rotated_keys, batch_stride, position_stride,
            HEADS: tl.constexpr, BLOCK_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr,
            INVERSE: tl.constexpr):
    """One position of a row of the batch."""
    position, row = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    head, column = tl.arange(0, BLOCK_HEADS)[:, None], tl.arange(0, BLOCK_HALF)[None]
    inside = (head < HEADS) & (column < HALF)
    first_half = (row * tl.num_programs(0) + position) * (2 * HEADS * HALF) + head * (2 * HALF) + column
    second_half = first_half + HALF

    # Load both halves of each head and their angles.
    query_1 = tl.load(queries + first_half, mask=inside, other=0).to(tl.float32)
    query_2 = tl.load(queries + second_half, mask=inside, other=0).to(tl.float32)
    key_1 = tl.load(keys + first_half, mask=inside, other=0).to(tl.float32)
    key_2 = tl.load(keys + second_half, mask=inside, other=0).to(tl.float32)
    angle = row * batch_stride + position * position_stride + column
    cosine_1 = tl.load(cosines + angle, mask=column < HALF, other=0).to(tl.float32)
    cosine_2 = tl.load(cosines + angle + HALF, mask=column < HALF, other=0).to(tl.float32)
    sine_1 = tl.load(sines + angle, mask=column < HALF, other=0).to(tl.float32)
    sine_2 = tl.load(sines + angle + HALF, mask=column < HALF, other=0).to(tl.float32)

    # The gradient of a rotation is the rotation backwards.
    if INVERSE:
        sine_1, sine_2 = sine_2, sine_1
    kind = rotated_queries.dtype.element_ty
    key_kind = rotated_keys.dtype.element_ty
    tl.store(rotated_queries + first_half, (query_1 * cosine_1 + query_2 * sine_1).to(kind), mask=inside)
    tl.store(rotated_queries + second_half, (query_2 * cosine_2 + query_1 * sine_2).to(kind), mask=inside)
    tl.store(rotated_keys + first_half, (key_1 * cosine_1 + key_2 * sine_1).to(key_kind), mask=inside)
    tl.store(rotated_keys + second_half, (key_2 * cosine_2 + key_1 * sine_2).to(key_kind), mask=inside)


@triton.jit
def _swiglu(gate, up, output, count, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < count
    value = tl.load(gate + offset, mask=inside, other=0).to(tl.float32)
    factor = tl.load(up + offset, mask=inside, other=0).to(tl.float32)
    tl.store(output + offset, (value * tl.sigmoid(value) * factor).to(output.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward(gate, up, grad, grad_gate, grad_up, count, BLOCK: tl.constexpr):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < count
    value = tl.load(gate + offset, mask=inside, other=0).to(tl.float32)
    factor = tl.load(up + offset, mask=inside, other=0).to(tl.float32)
    upstream = tl.load(grad + offset, mask=inside, other=0).to(tl.float32)
    sigmoid = tl.sigmoid(value)
    slope = sigmoid * (1 + value * (1 - sigmoid))
    tl.store(grad_gate + offset, (upstream * factor * slope).to(grad_gate.dtype.element_ty), mask=inside)
    tl.store(grad_up + offset, (upstream * value * sigmoid).to(grad_up.dtype.element_ty), mask=inside)
