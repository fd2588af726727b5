"""Checks of this machine, a row each, computed now. Never loads torch itself.

Torch and CUDA are checked in a process of their own (`core.compute`). A check that cannot be made has failed.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import soundfile

from config.errors import UserError
from core import download
from core.jobs.locks import FileLock, is_held
from core.library.records import read_model_record
from core.workspace import Workspace
from data.durable_files import ExpectedFile, find_faults, read_sums

CheckStatus = Literal["ok", "warn", "fail"]
ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
LOW_DISK_GIB, LEAST_DISK_GIB = 5.0, 1.0  # the demo takes well under one; checkpoints add up
BUILT_IN = "tiny"
_INSTALL = "Install what is pinned: python -m pip install -r requirements.txt (make run does it)."
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;#]+)")
_HARDWARE_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class MachineCheck:
    """One row: what was checked, its status, what was found, and what to do about it."""

    name: str
    result: CheckStatus
    found: str
    hint: str = ""


def check_machine(workspace: Path, requirements: Path = ROOT / "requirements.txt") -> Iterator[MachineCheck]:
    """All checks, one at a time as they are made. The workspace is created when it is missing."""
    yield check_python(sys.version_info[:3])
    yield check_packages(requirements, installed_version)
    yield check_torch()
    yield from check_workspace(workspace)
    yield check_pack(BUILT_IN)
    yield from check_models(workspace)
    yield check_audio()


def failed(checks: Sequence[MachineCheck]) -> bool:
    """Whether a check failed, so that Lisan cannot work."""
    return any(check.result == "fail" for check in checks)


def check_python(running: tuple[int, ...]) -> MachineCheck:
    """The version of the interpreter against the oldest that is supported."""
    found = f"{'.'.join(map(str, running))} on {platform.system()} {platform.machine()}"
    if running[:2] < OLDEST_PYTHON:
        return MachineCheck("Python", "fail", found,
                            "Python 3.11 or later is needed: make run PYTHON=/path/to/python3.11")
    return MachineCheck("Python", "ok", found)


def installed_version(package: str) -> str | None:
    """The version that is installed; None when there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_packages(requirements: Path, installed: Callable[[str], str | None]) -> MachineCheck:
    """Installed packages against the exact pins of a requirements file; `+cpu` and the like are the same version."""
    try:
        lines = requirements.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        found = f"{requirements} could not be read: {error.strerror}"
        return MachineCheck("Packages", "fail", found, "Restore it from the repository (git checkout).")
    pins = [match.groups() for line in lines if (match := _PIN.match(line.strip()))]
    missing, other = [], []
    for package, wanted in pins:
        seen = installed(package)
        if seen is None:
            missing.append(package)
        elif seen.partition("+")[0] != wanted:
            other.append(f"{package} {seen} (pinned: {wanted})")
    if missing:
        return MachineCheck("Packages", "fail", f"missing: {', '.join(missing)}", _INSTALL)
    if other:
        return MachineCheck("Packages", "warn", "; ".join(other), _INSTALL)
    return MachineCheck("Packages", "ok", f"{len(pins)} as pinned")


def check_torch(command: Sequence[str] = (sys.executable, "-m", "core.compute")) -> MachineCheck:
    """Whether torch and torchaudio load, and which device runs will use."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_HARDWARE_TIMEOUT_S, check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return MachineCheck("Torch", "fail", f"could not be checked: {error}", _INSTALL)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"exit code {done.returncode}"
        return MachineCheck("Torch", "fail", f"does not load: {why}", _INSTALL)
    return check_hardware(json.loads(done.stdout.splitlines()[-1]), any(Path("/dev").glob("nvidia[0-9]*")))


def check_hardware(hardware: Mapping[str, Any], has_device_file: bool) -> MachineCheck:
    """Check what `core.compute` printed; `has_device_file`: the system shows an NVIDIA device."""
    versions = f"torch {hardware['torch']}, torchaudio {hardware['torchaudio']}"
    if hardware["torch"].partition("+")[0] != hardware["torchaudio"].partition("+")[0]:
        return MachineCheck("Torch", "fail", f"{versions}: they must be the same version", _INSTALL)
    devices = [
        f"{device['name']}, compute capability {device['capability']}, {device['memory_gib']} GiB, "
        f"bfloat16 {'in hardware' if device['bfloat16'] else 'missing (float32 is used)'}"
        for device in hardware["accelerators"]
    ]
    if devices:
        return MachineCheck("Torch", "ok", f"{versions}; {'; '.join(devices)}")
    found = f"{versions}; no CUDA device, runs use {hardware['cores']} CPU cores"
    if has_device_file:
        return MachineCheck(
            "Torch", "warn", f"{found}, though the system shows an NVIDIA device",
            f"Check the driver with nvidia-smi; this torch was built for CUDA {hardware['cuda'] or '(none)'}.",
        )
    return MachineCheck("Torch", "ok", found)


def check_workspace(path: Path) -> Iterator[MachineCheck]:
    """Whether the workspace can be written and locked, and the space left there."""
    try:
        workspace = Workspace.open(path)
    except UserError as error:
        yield MachineCheck("Workspace", "fail", error.message, error.hint)
        return
    yield MachineCheck("Workspace", "ok", f"{workspace.path} can be written")
    yield check_locks(workspace.path)
    yield check_disk(workspace.free_bytes() / 2**30)


def check_locks(folder: Path) -> MachineCheck:
    """Whether file locks work there. Runs hold one while they live, and some network disks ignore them."""
    hint = "Put the workspace on a local disk with --workspace."
    with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as temporary:
        path = Path(temporary) / "lock"
        try:
            lock = FileLock.take(path)
        except OSError as error:
            return MachineCheck("Locks", "fail", f"{folder} takes no file locks: {error.strerror}", hint)
        if lock is None:
            return MachineCheck("Locks", "fail", f"a new file in {folder} is locked already", hint)
        seen = is_held(path)
        lock.close()
    if not seen:
        return MachineCheck("Locks", "fail", f"{folder} ignores file locks", hint)
    return MachineCheck("Locks", "ok", "a held lock is seen by others")


def check_disk(free_gib: float) -> MachineCheck:
    """Check the free space of the workspace's disk."""
    found = f"{free_gib:.1f} GiB free"
    hint = "Free some space, or choose another disk with --workspace."
    if free_gib < LEAST_DISK_GIB:
        return MachineCheck("Disk", "fail", f"{found}, at least {LEAST_DISK_GIB:g} are needed", hint)
    if free_gib < LOW_DISK_GIB:
        return MachineCheck("Disk", "warn", f"{found}; long runs keep many checkpoints", hint)
    return MachineCheck("Disk", "ok", found)


def check_pack(name: str) -> MachineCheck:
    """The hashes of the files of the built-in model as they came with the app."""
    hint = "Restore the files from the repository (git checkout), or make them again: python -m scripts.dev.tiny."
    try:
        return _check_folder("Built-in model", download.pack_folder(name), hint)
    except UserError as error:
        return MachineCheck("Built-in model", "fail", error.message, error.hint)


def check_models(path: Path) -> Iterator[MachineCheck]:
    """The hashes of each base model in the workspace."""
    workspace = Workspace(path.expanduser().absolute())
    for name in workspace.list_models():
        title, folder = f"Model {name}", workspace.models / name
        try:
            record = read_model_record(folder)
        except UserError as error:
            yield MachineCheck(title, "fail", error.message, error.hint)
            continue
        if record is None:
            yield _check_folder(title, folder, f"Get it again: python -m scripts.download --model {name}")
            continue
        if faults := dict(find_faults(folder, record.files)):
            command = f"--model {record.family} --variant {record.variant} --save-as {name}"
            yield MachineCheck(title, "fail", " ".join(faults.values()),
                               f"Get it again: python -m scripts.download {command}")
        else:
            yield MachineCheck(title, "ok", f"{len(record.files)} files match their hashes")


def _check_folder(title: str, folder: Path, hint: str) -> MachineCheck:
    try:
        sums = read_sums(folder / download.SUMS, hint)
    except UserError as error:
        return MachineCheck(title, "fail", error.message, hint)
    files = {name: ExpectedFile(sha256=digest) for name, digest in sums.items()}
    if faults := [fault for _, fault in find_faults(folder, files)]:
        return MachineCheck(title, "fail", " ".join(faults), hint)
    return MachineCheck(title, "ok", f"{len(sums)} files match their hashes")


def check_audio() -> MachineCheck:
    """Write and read back a tone in the formats that datasets and packs use."""
    rate, errors = 16000, {}
    tone = (0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for suffix, tolerance in (("wav", 1e-4), ("flac", 1e-4), ("ogg", 0.1)):
            path = Path(folder) / f"tone.{suffix}"
            try:
                soundfile.write(path, tone, rate)
                back, back_rate = soundfile.read(path, dtype="float32")
            except (soundfile.SoundFileError, OSError) as error:
                errors[suffix] = str(error)
                continue
            if back_rate != rate or back.shape != tone.shape or np.abs(back - tone).max() > tolerance:
                errors[suffix] = "what was read is not what was written"
    if errors:
        return MachineCheck("Audio", "fail", "; ".join(f"{name}: {why}" for name, why in errors.items()), _INSTALL)
    return MachineCheck("Audio", "ok", f"WAV, FLAC and OGG by libsndfile {soundfile.__libsndfile_version__}")
