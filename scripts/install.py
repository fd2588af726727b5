"""Install the packages of Lisan; `make run` calls it, with a Python that has none of them.

The environment is .venv, made by uv where it is there, else by Python's venv module. Where the platform refuses both,
the packages go into the Python environment that runs this, and .venv/bin/python only calls it. A torch that is
installed there already and recent enough is kept, in all three ways. Packages of the platform that do not fit those
that were installed are named.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config.versions import NEWEST_TORCH, OLDEST_PYTHON, OLDEST_TORCH, canonical_name, public_version, torch_fits

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("uv", "venv", "here")
SHARED = ", with the packages of the platform"
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;#]+)")
_NO_CHECK = "--disable-pip-version-check"
_NEEDED_BYTES = 10e9  # while pip works: .venv with torch's CUDA libraries, 6.3 GB, and the packed files beside it


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environment where it is missing, and install; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.install", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", nargs="?", default="requirements.txt", help="default: %(default)s")
    parser.add_argument("--way", choices=("auto", *WAYS), default=os.environ.get("LISAN_INSTALL", "auto"),
                        help="how .venv is made; auto takes the first that works (or set LISAN_INSTALL)")
    parser.add_argument("--torch-index", metavar="URL", default=os.environ.get("TORCH_INDEX", ""),
                        help="package index of torch and torchaudio, such as https://download.pytorch.org/whl/cpu, "
                             "whose builds have no CUDA libraries (or set TORCH_INDEX)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv", help="default: .venv beside the Makefile")
    args = parser.parse_args(arguments)

    # With an older Python the packages would fail only later, and less clearly.
    if sys.version_info[:2] < OLDEST_PYTHON:
        return _fail(f"Python {'.'.join(map(str, OLDEST_PYTHON))} or later is needed; this is "
                     f"{sys.version.split()[0]}.", "make run PYTHON=/path/to/python3.12")

    start, free = time.monotonic(), shutil.disk_usage(ROOT).free

    # An environment that works is used as it is.
    way = existing_way(args.folder)
    if not way:
        shared_torch = "" if args.torch_index else torch_of_platform()
        way = make_environment(args.folder, args.way, bool(shared_torch))
        if not way:
            return _fail("No Python environment could be made.", "Install Python's venv module (Debian, Ubuntu: apt "
                         "install python3-venv) or uv (pip install uv), then run it again.")

    code = install(args.folder, way, Path(args.requirements), args.torch_index)
    if code:
        hint = "Read its last lines above. Without network: check the package index."
        if free < _NEEDED_BYTES:
            hint = (f"The disk had {free / 1e9:.1f} GB free, and all packages take up to {_NEEDED_BYTES / 1e9:.0f} GB "
                    f"while they are installed: free some space, then run it again.")
        elif way == "here":
            hint = ("If this Python is managed by the system, delete .venv, make an environment of your own and name "
                    "its Python: make run PYTHON=/path/to/python3.12")
        return _fail("The packages could not be installed.", hint, code)

    # pip has seen the pinned packages and what they need, not what else a platform brings.
    needed, others = conflicts(args.folder, Path(args.requirements))
    if others:
        print("Packages of the platform that Lisan does not need, and that do not fit the others any more: "
              f"{'; '.join(others)}.", flush=True)
    if needed:
        return _fail(f"Installed packages do not fit each other: {'; '.join(needed)}.",
                     "Delete .venv, and install them in an environment of their own: "
                     "make run PYTHON=/path/to/python3.12")

    print(f"Installed in {time.monotonic() - start:.0f} s. Free disk before: {free / 1e9:.1f} GB, now: "
          f"{shutil.disk_usage(ROOT).free / 1e9:.1f} GB.", flush=True)
    return 0


def torch_of_platform() -> str:
    """The version of the torch of this Python, if it is to be kept; else empty."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
    span = f"{'.'.join(map(str, OLDEST_TORCH))} to {'.'.join(map(str, NEWEST_TORCH))}"
    if not torch_fits(torch):
        print(f"The installed torch {torch} is not one of {span}: another is installed.", flush=True)
        return ""
    print(f"The installed torch {torch} is kept (recent enough: {span}).", flush=True)
    return torch


def existing_way(folder: Path) -> str:
    """How the environment `folder` was made, and whether it shares packages; empty where there is none that works."""
    python = folder / "bin" / "python"
    if not python.exists():
        return ""

    # An environment without pip gets it from Python's own copy.
    for module in (["pip", "--version"], ["ensurepip"], ["pip", "--version"]):  # environments made by uv have no pip
        outcome = subprocess.run([python, "-m", *module], capture_output=True)
        if not outcome.returncode and module[0] == "pip":
            break
    else:
        return ""
    way = folder / ".way"
    return way.read_text(encoding="utf-8").strip() if way.exists() else "venv"


def make_environment(folder: Path, preferred: str, share: bool) -> str:
    """Make `folder` in the `preferred` way, or in the first that works; the way, empty where none did.

    `share`: the packages of this Python are seen from within, behind those of the environment.
    """
    for way in WAYS if preferred == "auto" else (preferred,):
        uv = shutil.which("uv") or ""
        if way == "uv" and not uv:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        if way == "here":
            print(f"No environment can be made here: the packages go into that of {sys.executable}.", flush=True)
            _call_this_python(folder)
        else:
            command = ([uv, "venv", "--quiet", "--seed", "--python", sys.executable, os.fspath(folder)] if way == "uv"
                       else [sys.executable, "-m", "venv", os.fspath(folder)])
            print(f"Making {folder.name} with {way} ({sys.version.split()[0]}).", flush=True)

            outcome = subprocess.run(command, capture_output=True, text=True)
            # A failed try is removed, so that the next way begins with no folder.
            if outcome.returncode or not existing_way(folder):
                lines = (outcome.stderr or outcome.stdout).strip().splitlines() or [f"exit code {outcome.returncode}"]
                print(f"It did not work: {lines[-1]}", flush=True)
                shutil.rmtree(folder, ignore_errors=True)
                continue

            if share:
                _share_packages(folder)
                way += SHARED
        (folder / ".way").write_text(f"{way}\n", encoding="utf-8")
        return way
    return ""


def _call_this_python(folder: Path) -> None:
    """A `bin/python` in `folder` that runs this Python: a link would lose the environment that this one belongs to."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    python = binaries / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (binaries / "activate").write_text(f'python() {{ {shlex.quote(sys.executable)} "$@"; }}\n', encoding="utf-8")


def _share_packages(folder: Path) -> None:
    """Let `folder` see the packages of this Python.

    venv's --system-site-packages would skip those of an environment that this Python itself belongs to.
    """
    packages = sysconfig.get_paths()["purelib"]
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    # The environment's own Python knows where its packages are.
    inside = subprocess.run([folder / "bin" / "python", "-c", code], capture_output=True, text=True,
                            check=True).stdout.strip()
    (Path(inside) / "platform.pth").write_text(f"{packages}\n", encoding="utf-8")


def install(folder: Path, way: str, requirements: Path, torch_index: str) -> int:
    """Install `requirements` into the environment `folder`; the exit code of the last installer."""
    python = os.fspath(folder / "bin" / "python")
    pip = [python, "-m", "pip"]
    if torch_index:
        pins = [line for line in requirement_lines(requirements) if line.startswith("torch")]
        code = subprocess.run([*pip, "install", _NO_CHECK, "--index-url", torch_index, *pins]).returncode
        if code:
            return code
    shared = way == "here" or way.endswith(SHARED)
    torch = _installed(python).get("torch", "") if shared else ""
    lines = requirement_lines(requirements, torch if torch_fits(torch) else "")
    with tempfile.TemporaryDirectory() as temporary:
        listed = Path(temporary) / "requirements.txt"
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if way == "here" and (code := announce(pip, listed, _installed(python))):
            return code
        uv = shutil.which("uv") if way == "uv" else None  # it does not see the packages of the platform, pip does
        installer = [uv, "pip", "install", "--python", python] if uv else [*pip, "install", _NO_CHECK]
        return subprocess.run([*installer, "-r", os.fspath(listed)]).returncode


def conflicts(folder: Path, requirements: Path) -> tuple[list[str], list[str]]:
    """Conflicts among the packages that the environment `folder` sees: of those that Lisan needs, and of others."""
    pins = [match[1] for match in map(_PIN.match, requirement_lines(requirements)) if match]
    code = ("import json, sys; from config.versions import find_conflicts; "
            "print(json.dumps([(each.needed, str(each)) for each in find_conflicts(sys.argv[1:])]))")
    output = subprocess.run([folder / "bin" / "python", "-c", code, *pins], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout
    conflict_texts = json.loads(output)
    return ([text for needed, text in conflict_texts if needed],
            [text for needed, text in conflict_texts if not needed])


def requirement_lines(path: Path, kept_torch: str = "") -> list[str]:
    """The pins of a requirements file and those that it names; of torch and torchaudio, the version of `kept_torch`."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            lines += requirement_lines(path.parent / line[3:].strip(), kept_torch)
        elif (pin := _PIN.match(line.strip())) and pin[1] in ("torch", "torchaudio") and kept_torch:
            lines.append(f"{pin[1]}=={public_version(kept_torch)}")
        elif line.strip() and not line.lstrip().startswith("#"):
            lines.append(line.strip())
    return lines


def announce(pip: Sequence[str], requirements: Path, installed: Mapping[str, str]) -> int:
    """Say what pip would install and replace; its exit code."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report.json"
        code = subprocess.run([*pip, "install", _NO_CHECK, "--quiet", "--dry-run", "--report", os.fspath(report),
                               "-r", os.fspath(requirements)]).returncode
        if code:
            return code
        entries = [entry["metadata"] for entry in json.loads(report.read_text(encoding="utf-8"))["install"]]

    # Names are compared as pip spells them.
    names = {canonical_name(name): version for name, version in installed.items()}
    new = [f"{entry['name']} {entry['version']}" for entry in entries if canonical_name(entry["name"]) not in names]
    replaced = [f"{entry['name']} {names[canonical_name(entry['name'])]} by {entry['version']}" for entry in entries
                if canonical_name(entry["name"]) in names]

    print(f"{len(new)} packages are new here: {', '.join(sorted(new)) or 'none'}.")
    print(f"{len(replaced)} are replaced: {', '.join(sorted(replaced)) or 'none'}.", flush=True)
    return 0


def _installed(python: str) -> dict[str, str]:
    """Packages that `python` sees, with their versions."""
    code = ("import importlib.metadata as m, json; "
            "print(json.dumps({d.metadata['Name']: d.version for d in reversed(list(m.distributions()))}))")
    versions: dict[str, str] = json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True,
                                                         check=True).stdout)
    return versions


def _fail(message: str, hint: str, code: int = 1) -> int:
    sys.stderr.write(f"{message}\n{hint}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
