"""The noise that stands for another processor's rounding: where it is, how large it is, and that it repeats itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.parity import relative_error
from tests.rounding import TIMES, UNIT, Rounding

ROWS = torch.randn(50, 400, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(400, 30, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("compute", [
    lambda rows: rows + 3 * rows / 7 - rows.sqrt(), lambda rows: rows.relu().t()[3:].clone(),
    lambda rows: torch.cat([rows, rows]).amax(0), lambda rows: rows.double() @ WEIGHT.double()])
def test_what_ieee_754_fixes_stays(compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
    wanted = compute(ROWS.abs())
    with Rounding():
        assert torch.equal(compute(ROWS.abs()), wanted)


@pytest.mark.parametrize("compute", [
    lambda rows: rows @ WEIGHT.to(rows), lambda rows: torch.nn.functional.linear(rows, WEIGHT.t().to(rows)),
    lambda rows: torch.nn.functional.conv1d(rows[None], torch.ones(7, 50, 3).to(rows)), lambda rows: rows.sum(1),
    torch.exp, lambda rows: torch.fft.rfft(rows).abs(), lambda rows: rows.softmax(-1)])
def test_what_it_leaves_open_is_moved_by_units_of_rounding(compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
    exact = compute(ROWS.double())
    with Rounding(), torch.inference_mode():
        found, again = compute(ROWS), compute(ROWS)
    assert UNIT / 2 < relative_error(found, exact) < 60 * UNIT * TIMES
    assert torch.equal(found, again)


def test_nothing_times_nothing_is_nothing() -> None:
    with Rounding():
        assert not (torch.zeros(3, 4) @ torch.randn(4, 5)).any()
        assert torch.equal(torch.addcmul(torch.ones(3), torch.zeros(3), torch.randn(3)), torch.ones(3))


def test_gradients_are_moved_too() -> None:
    gradients = []
    for number in (0, 1):
        rows = ROWS.clone().requires_grad_()
        with Rounding() if number else torch.enable_grad():
            (rows @ WEIGHT).square().sum().backward()
        gradients.append(rows.grad)
    assert not torch.equal(*gradients)
    assert relative_error(*gradients) < 200 * UNIT * TIMES
