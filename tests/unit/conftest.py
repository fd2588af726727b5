"""A workspace whose workers are gone when the test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core import jobs
from core.job import locks
from core.job.reader import JobBoard
from core.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    opened = Workspace.open(tmp_path / "workspace")
    yield opened
    for state in JobBoard(opened).states():
        if state.alive and locks.is_held(state.job.lock):
            jobs.force_stop(state.job, grace_s=0.0)
