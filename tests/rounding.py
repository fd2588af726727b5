"""Run tests with the rounding of a processor that nobody has: python -m pytest -p tests.rounding ...

IEEE 754 fixes the results of +, -, *, / and the square root. The order in which a sum is taken, the last digits of an
exponential and the factors of a Fourier transform are left to the library, which chooses them by processor. This
plugin moves the float32 results of such torch operations by random noise as large as their rounding error may be
(Monte Carlo arithmetic: Parker, 1997). The noise is a function of the operation, its shapes and the seed
LISAN_ROUNDING (default 1), so the same call has the same result, as it has on one machine. LISAN_ROUNDING_TIMES
(default 1) enlarges it. A test that fails here rests on one processor's rounding. Other packages, threads, processes
and devices stay as they are, and so do a module's fixtures.

The sizes are those of probabilistic rounding analysis (Higham and Mary, 2019): sqrt(n) / 2 units of rounding for a
sum of n products taken in order, relative to the root of the sum of their squares; 2 sqrt(log2 n) for a Fourier
transform, relative to the root mean square of its output; 4 for other functions, relative to each value.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

UNIT = 2.0**-24
SEED, TIMES = os.environ.get("LISAN_ROUNDING", "1"), float(os.environ.get("LISAN_ROUNDING_TIMES", "1"))
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "dot": (0, 1),  # places of the factors
            "addmm": (1, 2), "baddbmm": (1, 2), "addmv": (1, 2)}
CONVOLUTIONS = {"convolution", "mkldnn_convolution"}
SUMS = {"sum", "mean", "cumsum"}
TRANSFORMS = {"_fft_r2c", "_fft_c2r", "_fft_c2c"}
FUSED = {"addcmul", "addcdiv"}  # the product inside is rounded or it is not
OTHERS = {
    "exp", "expm1", "log", "log10", "log2", "log1p", "sin", "cos", "tan", "tanh", "atan2", "angle", "sigmoid", "erf",
    "pow", "rsqrt", "gelu", "silu", "mish", "elu", "softplus", "polar", "_softmax", "_log_softmax", "logsumexp",
    "log_sigmoid_forward", "native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm",
    "var", "std", "var_mean", "linalg_vector_norm", "norm", "_weight_norm_interface", "avg_pool2d", "upsample_linear1d",
    "_scaled_dot_product_flash_attention_for_cpu", "_pdist_forward", "_cdist_forward", "_euclidean_dist",
    "mkldnn_rnn_layer", "lstm", "linalg_pinv", "hann_window", "linspace", "nll_loss_forward",
    "gelu_backward", "silu_backward", "mish_backward", "tanh_backward", "sigmoid_backward", "convolution_backward",
    "_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward", "_fused_rms_norm_backward",
    "native_group_norm_backward", "_scaled_dot_product_flash_attention_for_cpu_backward",
}


class Rounding(TorchDispatchMode):
    """Within it, float32 results of torch on the CPU are rounded in another way."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        if composite and not func.is_view:  # as inference mode hands them over
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        results = [one for one in (out if isinstance(out, tuple | list) else [out]) if _is_moved(one)]
        if results and not func.is_view:
            with torch.no_grad():
                _move(func, args, kwargs, results)
        return out


def _is_moved(value: object) -> bool:
    return (type(value) in (torch.Tensor, torch.nn.Parameter) and value.dtype in (torch.float32, torch.complex64)
            and value.device.type == "cpu" and value.numel() > 0)


def _move(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[torch.Tensor]) -> None:
    """Add rounding noise to the `results` of a call, in place."""
    name, first = func._schema.name.split("::")[-1].rstrip("_"), results[0]
    call = f"{SEED} {name} {[tuple(one.shape) for one in args if isinstance(one, torch.Tensor)]}"
    if name in PRODUCTS or name == "_linear_pointwise":  # the second is oneDNN's, of weights (N, width)
        one, other = (args[place].detach().double() for place in PRODUCTS.get(name, (0, 1)))
        other = other.t() if name == "_linear_pointwise" else other
        size = (one.square() @ other.square()).sqrt_().float().reshape(first.shape)
        first += size * _noise(call, first) * max(1.0, math.sqrt(one.shape[-1]) / 2)
    elif name in CONVOLUTIONS:
        inputs, weight = (value.detach().double().square() for value in args[:2])
        transposed = name == "convolution" and args[6]
        count = (weight[:, 0] if transposed else weight[0]).numel()
        size = func(inputs, weight, None, *args[3:]).sqrt_().float()
        first += size * _noise(call, first) * max(1.0, math.sqrt(count) / 2)
    elif name in SUMS:
        count = args[0].shape[args[1]] if name == "cumsum" else args[0].numel() / first.numel()
        size = func(args[0].detach().abs().to(first.dtype).square(), *args[1:], **kwargs).sqrt_()
        if name == "mean":
            size /= math.sqrt(count)
        first += size * _noise(call, first) * max(1.0, math.sqrt(count) / 2)
    elif name in TRANSFORMS:
        count = args[3] if name == "_fft_c2r" else math.prod(args[0].shape[place] for place in args[1])
        size = first.abs().square().mean(dim=args[1], keepdim=True).sqrt_() * (2 * math.sqrt(math.log2(max(2, count))))
        moved = _noise(call, first)
        first += size * (torch.complex(moved, _noise(f"{call} i", first)) if first.is_complex() else moved)
    elif name in FUSED:
        size = args[1].detach() * args[2].detach() if name == "addcmul" else args[1].detach() / args[2].detach()
        first += size * float(kwargs.get("value", 1)) * _noise(call, first)
    elif name in OTHERS or (name == "abs" and args[0].is_complex()):
        for place, one in enumerate(results):
            one *= 1 + 4 * _noise(f"{call} {place}", one)


def _noise(call: str, like: torch.Tensor) -> torch.Tensor:
    """Uniform in [-UNIT, UNIT], times what was asked for."""
    generator = torch.Generator().manual_seed(zlib.crc32(call.encode()))
    return torch.rand(like.shape, generator=generator).sub_(0.5).mul_(2 * UNIT * TIMES)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    with Rounding():
        yield
