"""The studio's start-up script: one block that comes and goes, and what it starts."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from scripts import lightning
from tests.processes import PATIENCE_S

OWN = "#!/bin/bash\n# This script runs every time your Studio starts.\necho mine"


@pytest.mark.parametrize("before", [None, OWN, OWN + "\n"])
def test_the_block_comes_once_and_goes_without_a_trace(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / lightning.SCRIPT
    if before is not None:
        path.parent.mkdir()
        path.write_text(before)
    for _ in range(2):
        assert lightning.main(["install", "--home", str(tmp_path), "--workspace", str(tmp_path / "w s")]) == 0
    text = path.read_text()
    assert text.startswith(before or "#!/bin/bash\n")
    assert text.count(lightning.BEGIN) == text.count(lightning.END) == 1
    assert os.access(path, os.X_OK)
    assert lightning.main(["remove", "--home", str(tmp_path)]) == 0
    assert (path.read_text().rstrip("\n") if path.exists() else None) == (before.rstrip("\n") if before else None)


def test_the_script_starts_the_app_and_does_not_wait_for_it(tmp_path: Path) -> None:
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text('#!/bin/sh\nread -r answer < "$GATE"\nprintf "%s\\n" "$PWD" "$@"\n')  # until the test lets it go on
    make.chmod(0o755)
    os.mkfifo(tmp_path / "gate")
    workspace = tmp_path / "a workspace"
    lightning.main(["install", "--home", str(tmp_path), "--workspace", str(workspace), "--args",
                 "--host 0.0.0.0 --port 7861"])
    subprocess.run([tmp_path / lightning.SCRIPT], check=True, cwd=tmp_path,
                   env={**os.environ, "PATH": f"{make.parent}:/usr/bin:/bin", "GATE": str(tmp_path / "gate")})
    (tmp_path / "gate").write_text("on\n")
    wanted = [str(lightning.ROOT), "run", f"WORKSPACE={workspace}", "ARGS=--host 0.0.0.0 --port 7861"]
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if (said := (workspace / "app.log").read_text().splitlines()) == wanted:
            return
        tick.wait(0.02)
    raise AssertionError(said)
