"""The installer, on platforms that refuse what it tries; no package is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from types import SimpleNamespace

import pytest

from config import versions
from scripts import install

REFUSES = "import sys\nsys.exit('Creating virtual environments is not allowed here.')\n"


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The installer with an empty list of packages, in a separate process."""
    (folder / "requirements.txt").write_text("# nothing\n")
    words = [sys.executable, "-m", "scripts.install", str(folder / "requirements.txt"), "--folder",
             str(folder / ".venv"), *arguments]
    return subprocess.run(words, cwd=install.ROOT, capture_output=True, text=True, check=False,
                          env={**os.environ, "LISAN_INSTALL": "auto", "TORCH_INDEX": "", **environment})


def refusing(folder: Path) -> dict[str, str]:
    """A platform without uv whose Python has a `venv` module that refuses."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / "venv.py").write_text(REFUSES)
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(modules)}


def test_where_the_platform_refuses_environments_its_own_is_used(tmp_path: Path) -> None:
    home = tmp_path / "a home with spaces"
    home.mkdir()
    done = run(home, **refusing(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "It did not work: Creating virtual environments is not allowed here." in done.stdout
    assert f"the packages go into that of {sys.executable}" in done.stdout
    assert "0 packages are new here: none." in done.stdout
    assert "0 are replaced: none." in done.stdout
    asked = "import sys; print(sys.prefix)"
    for command in ([str(home / ".venv" / "bin" / "python"), "-c", asked],
                    ["sh", "-c", f'. "$1/.venv/bin/activate" && python -c "{asked}"', "sh", str(home)]):
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == sys.prefix
    assert install.existing_way(home / ".venv") == "here"


def test_a_way_that_was_asked_for_has_no_substitute(tmp_path: Path) -> None:
    done = run(tmp_path, "--way", "venv", **refusing(tmp_path))
    assert done.returncode == 1
    assert "No Python environment could be made." in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_failed_installation_names_a_disk_that_was_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    """pip says where it stopped, not how much it needs."""
    monkeypatch.setattr(install, "existing_way", lambda folder: "venv")
    monkeypatch.setattr(install, "install", lambda *arguments: 1)
    for free, hint in ((5.4e9, "had 5.4 GB free"), (50e9, "check the package index")):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)

        assert install.main(["--folder", str(tmp_path / "environment")]) == 1

        assert hint in capsys.readouterr().err


def test_an_environment_sees_the_torch_that_is_kept(tmp_path: Path) -> None:
    assert install.make_environment(tmp_path / "e nv", "venv", share=True) == "venv" + install.SHARED
    code = "import importlib.metadata, sys; print(importlib.metadata.version('torch'), sys.prefix)"
    python = tmp_path / "e nv" / "bin" / "python"
    seen = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    torch, _, prefix = seen.stdout.strip().partition(" ")
    assert torch == install.torch_of_platform()
    assert prefix == str(tmp_path / "e nv")
    assert install.existing_way(tmp_path / "e nv") == "venv" + install.SHARED


@pytest.mark.parametrize(("torch", "fits"), [
    ("2.7.1+cu126", False), ("2.8.0+cu128", True), ("2.9.1", True), ("2.10.0", True), ("2.11.0", True),
    ("2.12.0", False), ("3.0", False), ("1.13.1", False), ("unknown", False),
])
def test_a_torch_is_kept_where_it_was_tried(torch: str, fits: bool) -> None:
    assert versions.torch_fits(torch) == fits


def test_a_kept_torch_takes_the_place_of_the_pins(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("# why\nnumpy==2.4.6\ntorch==2.11.0\ntorchaudio==2.11.0\ntorch-x==1\n")
    (tmp_path / "dev.txt").write_text("-r requirements.txt\npytest==9.2.0\n")
    assert install.requirement_lines(tmp_path / "dev.txt") == [
        "numpy==2.4.6", "torch==2.11.0", "torchaudio==2.11.0", "torch-x==1", "pytest==9.2.0"]
    assert install.requirement_lines(tmp_path / "dev.txt", "2.8.0+cu128") == [
        "numpy==2.4.6", "torch==2.8.0", "torchaudio==2.8.0", "torch-x==1", "pytest==9.2.0"]


def test_the_pinned_torch_is_in_the_range() -> None:
    pins = dict(line.split("==") for line in install.requirement_lines(install.ROOT / "requirements.txt"))
    assert versions.torch_fits(pins["torch"])
    assert pins["torch"] == pins["torchaudio"]


def distribution(folder: Path, name: str, version: str, *requirements: str) -> PathDistribution:
    """An installed package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {line}" for line in requirements)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    return PathDistribution(info)


def test_all_packages_of_a_platform_are_checked_against_each_other(tmp_path: Path) -> None:
    """Also those that nothing pinned names itself; of two versions the first on the path is imported."""
    installed = [
        distribution(tmp_path, "peft", "0.21.2", "transformers", "Hub_client>=1", "extra-only; extra == 'dev'"),
        distribution(tmp_path, "transformers", "5.17.0", "hub.client<2", "windows-only; sys_platform == 'win32'"),
        distribution(tmp_path, "hub-client", "2.4.0"),
        distribution(tmp_path / "platform", "hub-client", "1.5.0"),
        distribution(tmp_path, "torchvision", "0.27.0", "torch==2.12.0"),
        distribution(tmp_path, "torch", "2.11.0+cu130"),
        distribution(tmp_path, "alone", "1.0", "absent>3"),
        distribution(tmp_path, "of-debian", "0.1.43ubuntu1"),
        distribution(tmp_path, "uses-debian", "1.0", "of-debian", "of-debian>=0.1"),
    ]
    conflicts = versions.find_conflicts(["Peft", "torch"], installed)
    assert [(conflict.needed, str(conflict)) for conflict in conflicts] == [
        (True, "transformers 5.17.0 requires hub.client<2, which is 2.4.0"),
        (False, "alone 1.0 requires absent>3, which is not installed"),
        (False, "torchvision 0.27.0 requires torch==2.12.0, which is 2.11.0+cu130"),
        (False, "uses-debian 1.0 requires of-debian>=0.1, which is 0.1.43ubuntu1"),
    ]


def test_an_installation_with_a_conflict_fails_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    """The packages are seen by the Python of the environment, not by that of the installer."""
    packages = tmp_path / "platform"
    distribution(packages, "numpy", "2.4.6", "needed-by-numpy<2")
    distribution(packages, "needed-by-numpy", "2.0")
    distribution(packages, "other", "1.0", "numpy<2")
    (tmp_path / "requirements.txt").write_text("numpy==2.4.6\n")
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(install, "install", lambda *arguments: 0)
    monkeypatch.setattr(install, "existing_way", lambda folder: "venv" + install.SHARED)

    code = install.main([str(tmp_path / "requirements.txt"), "--folder", str(tmp_path / "environment")])

    printed = capsys.readouterr()
    assert code == 1
    assert "numpy 2.4.6 requires needed-by-numpy<2, which is 2.0" in printed.err
    assert "other 1.0 requires numpy<2, which is 2.4.6" in printed.out
