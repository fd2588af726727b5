"""How the processes of a shared training part: what shares gradients goes before the connections that it uses."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from core.training import distributed
from core.training.distributed import ProcessGroup
from tests.processes import free_port


@pytest.mark.parametrize("failing", [False, True])
def test_what_shares_gradients_is_gone_before_the_connections(failing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a traceback holds its frames. In the other order a process could wait for itself, for ever."""
    distributed.connect(f"tcp://127.0.0.1:{free_port()}", 0, 1, torch.device("cpu"))
    module, order = nn.Linear(2, 2), list[tuple[object, bool]]()
    beside = ProcessGroup()

    def losses(given: torch.Tensor) -> torch.Tensor:
        if failing:
            raise ArithmeticError("made up")
        return module(given).sum()

    beside.join(SimpleNamespace(module=module, losses=losses))  # type: ignore[arg-type]
    assert beside._wrapped is not None
    reducer, passing, destroy = weakref.ref(beside._wrapped.reducer), beside._passing, dist.destroy_process_group

    def destroyed(group: dist.ProcessGroup | None = None) -> None:
        order.append((group, reducer() is None))
        destroy(group)

    monkeypatch.setattr(dist, "destroy_process_group", destroyed)
    held = None
    try:
        beside.losses(torch.ones(2)).backward()  # type: ignore[attr-defined]
        beside.share_gradients()
    except ArithmeticError as error:
        held = error
    beside.leave()
    assert (held is not None) == failing
    assert order == [(passing, True), (None, True)]
    assert not dist.is_initialized()
