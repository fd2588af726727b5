"""Every file of `scripts` can be run directly, from any folder, as people do who come from other projects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NO_COMMANDS = ("command", "scripts", "suggestions", "verb")
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "__init__")
# Starting Python with all imports takes seconds, so most are run in the long tests.
QUICK = ("doctor", "train", "install", "command", "__main__", "import_config")


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
                                  for name in NAMES])
def test_a_script_that_is_run_directly_runs_or_names_the_command(name: str, tmp_path: Path) -> None:
    path = SCRIPTS / f"{name}.py"
    done = subprocess.run([sys.executable, str(path), "--help"], cwd=tmp_path, capture_output=True, text=True,
                          check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    if name in NO_COMMANDS:
        assert done.stdout == "This file is not a command. The commands: python -m scripts\n"
    elif name == "__main__":
        assert "python -m scripts doctor" in done.stdout
    else:
        assert f"scripts {name}" in done.stdout or f"scripts.{name}" in done.stdout or f"{name}.py" in done.stdout
        assert "usage" in done.stdout.lower()
    assert not list(tmp_path.iterdir())


def test_the_folder_itself_can_be_run(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPTS)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "python -m scripts train" in done.stdout
