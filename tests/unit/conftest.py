"""A workspace whose workers are gone when the test is over, and a small world to train in."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.jobs import control, locks
from core.jobs.state import JobBoard
from core.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    opened = Workspace.open(tmp_path / "workspace")
    yield opened
    for state in JobBoard(opened).states():
        if state.alive and locks.is_held(state.job.lock):
            control.force_stop(state.job, grace_s=0.0)


@pytest.fixture(scope="session")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A base model, a dataset and an extension, made once; tests take copies (`world`)."""
    from tests.worlds import extended_world  # on use: it loads torch

    return extended_world(tmp_path_factory.mktemp("small_world"))


@pytest.fixture
def world(small_world: Workspace, tmp_path: Path) -> Workspace:
    """A small world of the test's own."""
    return Workspace.open(shutil.copytree(small_world.path, tmp_path / "workspace"))


@pytest.fixture
def filled_memory() -> Iterator[None]:
    """Every new tensor is NaN until it is written, so that one which a kernel leaves out is seen."""
    import torch  # on use

    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = before[1]
