"""The adapters' dropout on a CPU, compared with torch's and with the binomial distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from config.schema import AdapterKind
from core.model.adapters import AdapterPlan, Adapters, FastCpuDropout

ROUNDED = 1 / (1 << 17)  # the largest rounding of a probability to 16 bits


def masks(dropout: nn.Module, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return dropout(torch.ones(shape))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_each_element_is_kept_with_the_probability_and_scaled_to_the_same_mean(p: float) -> None:
    made, torchs = masks(FastCpuDropout(p), (2000, 511)), masks(nn.Dropout(p), (2000, 511))
    error = 5 * (p * (1 - p) / made.numel()) ** 0.5 + ROUNDED
    assert abs(float((made == 0).float().mean()) - p) < error
    assert abs(float(made.mean()) - 1) < error / (1 - p)
    torch.testing.assert_close(made.max(), torchs.max(), rtol=2 * ROUNDED / (1 - p), atol=0)
    assert len(made.unique()) == 2


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_elements_are_dropped_independently_of_each_other_and_of_the_last_mask(p: float) -> None:
    dropout = FastCpuDropout(p)
    torch.manual_seed(1)
    first, second = ((dropout(torch.ones(1000, 512)) == 0).double() - p for _ in range(2))
    bound = 5 * p * (1 - p) / first.numel() ** 0.5  # five standard errors of a covariance
    for one, other in ((first, second), (first[1:], first[:-1]), *((first[:, lag:], first[:, :-lag])
                                                                  for lag in (1, 2, 3, 4, 8, 16, 64))):
        assert abs(float((one * other).mean())) < bound * (first.numel() / one.numel()) ** 0.5


@given(st.lists(st.integers(0, 9), min_size=0, max_size=3), st.integers(0, 2**32),
       st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
def test_the_state_of_torchs_generator_decides_the_mask(shape: list[int], seed: int, dtype: torch.dtype) -> None:
    dropout, x = FastCpuDropout(0.4), torch.ones(shape, dtype=dtype)
    torch.manual_seed(seed)
    state = torch.get_rng_state()
    made = [dropout(x), dropout(x)]
    torch.set_rng_state(state)
    again = [dropout(x), dropout(x)]
    assert all(torch.equal(one, other) for one, other in zip(made, again, strict=True))
    assert made[0].shape == x.shape
    assert made[0].dtype == dtype


def test_the_number_of_threads_does_not_change_the_mask() -> None:
    threads = torch.get_num_threads()
    made = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            made.append(masks(FastCpuDropout(0.3), (700, 513)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*made)


def test_the_gradient_is_the_mask_also_when_the_activations_are_recomputed() -> None:
    dropout, x = FastCpuDropout(0.3), torch.randn(64, 33, requires_grad=True)
    torch.manual_seed(2)
    plain = dropout(x)
    gradient, = torch.autograd.grad(plain.sum(), x)
    assert torch.equal(plain, x * gradient)
    torch.manual_seed(2)
    recomputed = checkpoint(dropout, x, use_reentrant=False)
    assert torch.equal(recomputed, plain)
    assert torch.equal(torch.autograd.grad(recomputed.sum(), x)[0], gradient)


@pytest.mark.parametrize("dropout", [FastCpuDropout(0.0), FastCpuDropout(0.5).eval()],
                         ids=["none", "evaluation"])
def test_nothing_is_dropped_where_torch_drops_nothing(dropout: nn.Module) -> None:
    assert torch.equal(masks(dropout, (50, 7)), torch.ones(50, 7))


def test_where_it_cannot_run_it_is_torchs() -> None:
    assert masks(FastCpuDropout(1.0), (5, 3)).count_nonzero() == 0
    assert torch.equal(masks(FastCpuDropout(1e-6), (2000, 512)), masks(nn.Dropout(1e-6), (2000, 512)))
    compiled = torch.compile(FastCpuDropout(0.3), backend="eager", fullgraph=True)
    assert torch.equal(masks(compiled, (50, 7)), masks(nn.Dropout(0.3), (50, 7)))
    assert FastCpuDropout(0.3)(torch.ones(5, 3, device="meta")).shape == (5, 3)
    with FakeTensorMode() as mode:
        assert FastCpuDropout(0.3)(mode.from_tensor(torch.ones(5, 3))).shape == (5, 3)


@pytest.mark.parametrize("kind", ["lora", "dora", "adalora"])
def test_every_adapter_has_it_with_the_given_probability(kind: AdapterKind) -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    Adapters.fresh(module, AdapterPlan(kind, {"0": 2, "1": 2}, dropout=0.3, steps=10), seed=0)
    found = [one for one in module.modules() if isinstance(one, nn.Dropout)]
    assert [(type(one), one.p, one.training) for one in found] == [(FastCpuDropout, 0.3, True)] * 2
