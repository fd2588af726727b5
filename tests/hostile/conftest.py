"""The page in this process, without a server, and a workspace whose contents a case may spoil."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from core.workspace import Workspace
from tests.hostile.served_page import ServedPage, serve


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "workspace")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    """The page over an empty workspace, one for all cases of a file."""
    with serve(Workspace.open(tmp_path_factory.mktemp("page") / "workspace")) as served:
        yield served


@pytest.fixture(scope="module")
def client(page: ServedPage) -> TestClient:
    return page.client
