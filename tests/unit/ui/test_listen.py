"""Characters that a model cannot read are marked while they are typed, not after it was loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.workspace import Workspace
from tests.worlds import extended_world, write_model
from ui import listen


@pytest.fixture
def page(tmp_path: Path) -> Any:
    return SimpleNamespace(workspace=extended_world(tmp_path))


def test_unknown_characters_are_marked_in_their_place(page: Any) -> None:
    shown = listen.unknown_view(page, "a λ 3", "en", "", "base:tiny")
    assert "English of this model has no" in shown
    assert "notice bad" in shown
    for character in ("λ",):
        assert f'<mark class="old">{character}</mark>' in shown
    assert '<mark class="old"> </mark>' not in shown


def test_nothing_is_said_of_what_the_model_reads_or_of_no_model(page: Any) -> None:
    for text, reference in (("a", "base:tiny"), ("", "base:tiny"), ("λ", ""), ("λ", "base:missing")):
        assert listen.unknown_view(page, text, "en", "", reference) == ""
    assert listen.unknown_view(page, "λ", "xx", "", "base:tiny") == ""


def test_marking_loads_no_torch(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    write_model(cast(Path, workspace.models / "tiny"))
    program = ("import sys; from types import SimpleNamespace; from core.workspace import Workspace; "
               "from ui import listen; from pathlib import Path; "
               f"print(len(listen.unknown_view(SimpleNamespace(workspace=Workspace(Path({str(tmp_path)!r}))), 'λ', "
               "'en', '', 'base:tiny'))); sys.exit('torch' in sys.modules)")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 0
