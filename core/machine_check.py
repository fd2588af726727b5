"""Checks of this machine, a row each, computed now. Never loads torch itself.

Torch and CUDA are checked in a process of their own (`core.compute`). A check that cannot be made has failed.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import soundfile

from config.errors import UserError
from config.versions import (
    NEWEST_TORCH,
    OLDEST_PYTHON,
    OLDEST_TORCH,
    PackageConflict,
    find_conflicts,
    public_version,
    torch_fits,
)
from core.jobs.gpus import find_driver_cuda
from core.jobs.job import gpu_is_visible
from core.jobs.locks import FileLock, is_held
from core.library import catalog, published
from core.library.lineage import Model
from core.library.records import ModelRecord, read_model_record
from core.machine import MachineCheck
from core.sources.hub import NOT_AN_ANSWER, Hub, bound_answers
from core.workspace import Workspace
from data.durable_files import ExpectedFile, find_faults, read_sums

ROOT = Path(__file__).resolve().parent.parent
LOW_DISK_GB, LEAST_DISK_GB = 5.0, 1.0  # the demo takes well under one; checkpoints add up
BUILT_IN = "tiny"
_INSTALL = "Install what is pinned: .venv/bin/python -m scripts.install (make run does it)."
_REINSTALL = ".venv/bin/python -m scripts.install --torch-index"
_OTHER_CUDA = f"Install a torch for an older CUDA: {_REINSTALL} https://download.pytorch.org/whl/cu126"
# The room for a model: itself and one export.
_COPIES = 2.0
_CHECKPOINTS_GB = 1.0
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;#]+)")
_GIGABYTES = re.compile(r"([\d.]+) GB")
_LATER = "Check the network, then run it again: make doctor"
_HARDWARE_TIMEOUT_S = 180.0


def check_machine(workspace: Path, requirements: Path = ROOT / "requirements.txt", port: int = 0,
                  hub_models: Sequence[str] = ()) -> Iterator[MachineCheck]:
    """All checks, one at a time as they are made. The workspace is created when it is missing.

    `port` is to be free, unless it is 0; `hub_models` are repositories that are to be read.
    """
    yield check_python(sys.version_info[:3])
    yield check_packages(requirements, installed_version)
    yield check_conflicts(find_conflicts(pinned_packages(requirements)))
    yield check_torch()
    yield from check_workspace(workspace)
    yield check_pack(BUILT_IN)
    yield from check_models(workspace)
    yield check_audio()
    yield check_ffmpeg(shutil.which("ffmpeg"))
    try:
        yield check_token(Hub.from_environment(), hub_models)
    except UserError as error:
        yield MachineCheck("Hub token", "warn", error.message, error.hint)
    if port:
        yield check_port(port)


def check_start(workspace: Path, requirements: Path = ROOT / "requirements.txt") -> Iterator[MachineCheck]:
    """The checks that take a moment, for the start of the app; torch only where it must fit a GPU."""
    yield check_packages(requirements, installed_version)
    yield from check_workspace(workspace)
    yield check_ffmpeg(shutil.which("ffmpeg"))
    if gpu_is_visible():
        yield check_torch()


def failed(checks: Sequence[MachineCheck]) -> bool:
    """Whether a check failed, so that Lisan cannot work."""
    return any(check.result == "fail" for check in checks)


def check_python(running: tuple[int, ...]) -> MachineCheck:
    """The version of the interpreter against the oldest that is supported."""
    facts = f"{'.'.join(map(str, running))} on {platform.system()} {platform.machine()}"
    if running[:2] < OLDEST_PYTHON:
        return MachineCheck("Python", "fail", facts,
                            "Python 3.11 or later is needed: make run PYTHON=/path/to/python3.11")
    return MachineCheck("Python", "ok", facts)


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
        fault = f"{requirements} could not be read: {error.strerror}"
        return MachineCheck("Packages", "fail", fault, "Restore it from the repository (git checkout).")
    matches = [_PIN.match(line.strip()) for line in lines]
    pins = [match.groups() for match in matches if match]
    absent, other = [], []
    for package, pinned in pins:
        seen = installed(package)
        if seen is None:
            absent.append(package)
        elif public_version(seen) != pinned and not (package in ("torch", "torchaudio") and torch_fits(seen)):
            other.append(f"{package} {seen} (pinned: {pinned})")
    if absent:
        return MachineCheck("Packages", "fail", f"missing: {', '.join(absent)}", _INSTALL)
    if other:
        return MachineCheck("Packages", "warn", "; ".join(other), _INSTALL)
    return MachineCheck("Packages", "ok", f"{len(pins)} as pinned, or a torch that was tried")


def pinned_packages(requirements: Path) -> list[str]:
    """The names in a requirements file; none if it cannot be read."""
    with suppress(OSError):
        lines = requirements.read_text(encoding="utf-8").splitlines()
        return [match[1] for match in (_PIN.match(line.strip()) for line in lines) if match]
    return []


def check_conflicts(conflicts: Sequence[PackageConflict]) -> MachineCheck:
    """Whether installed packages fit each other; only what Lisan needs, directly or through others, can fail."""
    needed = [str(conflict) for conflict in conflicts if conflict.needed]
    if needed:
        return MachineCheck("Packages together", "fail", "; ".join(needed), _INSTALL)
    if conflicts:
        listed = "; ".join(map(str, conflicts))
        return MachineCheck("Packages together", "ok", f"those that Lisan needs fit; not needed: {listed}")
    return MachineCheck("Packages together", "ok", "all installed packages fit each other")


def check_torch(command: Sequence[str] = (sys.executable, "-m", "core.compute")) -> MachineCheck:
    """Whether torch and torchaudio load, and which device runs will use."""
    try:
        process = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_HARDWARE_TIMEOUT_S, check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return MachineCheck("Torch", "fail", f"could not be checked: {error}", _INSTALL)
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        return MachineCheck("Torch", "fail", f"does not load: {reason}", _INSTALL)
    return check_hardware(json.loads(process.stdout.splitlines()[-1]), gpu_is_visible(), find_driver_cuda())


def check_hardware(hardware: Mapping[str, Any], has_device_file: bool, driver_cuda: str = "") -> MachineCheck:
    """Check what `core.compute` printed.

    `has_device_file`: the system shows an NVIDIA device; `driver_cuda`: the newest CUDA that its driver runs, such as
    "12.4", empty where it is not known.
    """
    torch, cuda = hardware["torch"], hardware["cuda"]
    versions = f"torch {torch}, torchaudio {hardware['torchaudio']}"
    if public_version(torch) != public_version(hardware["torchaudio"]):
        return MachineCheck("Torch", "fail", f"{versions}: they must be the same version", _INSTALL)
    if not torch_fits(torch):
        span = " to ".join(".".join(map(str, version)) for version in (OLDEST_TORCH, NEWEST_TORCH))
        return MachineCheck("Torch", "warn", f"{versions}; tried are {span}", _INSTALL)

    # A GPU without kernels fails only at its first operation, after the job has begun.
    unsupported = [device for device in hardware["accelerators"]
                   if not has_kernels(device["capability"], hardware["architectures"])]
    if unsupported:
        names = ", ".join(f"{device['name']} (compute capability {device['capability']})" for device in unsupported)
        return MachineCheck("Torch", "fail", f"{versions}, built for {', '.join(hardware['architectures'])}, has no "
                                             f"kernels for {names}", _OTHER_CUDA)

    # From here on, each device that torch sees can be used.
    devices = [
        f"{device['name']}, compute capability {device['capability']}, {device['memory_gib']} GiB, "
        f"bfloat16 {'in hardware' if device['bfloat16'] else 'missing (float32 is used)'}"
        for device in hardware["accelerators"]
    ]
    if devices:
        return MachineCheck("Torch", "ok", f"{versions}; {'; '.join(devices)}")

    # Without a device, the system tells whether there should be one.
    facts = f"{versions}; no CUDA device, runs use {hardware['cores']} CPU cores"
    if not has_device_file:
        return MachineCheck("Torch", "ok", facts)
    facts += ", though the system shows an NVIDIA device"
    if not cuda:
        return MachineCheck("Torch", "warn", f"{facts}: this torch was built without CUDA",
                            f"Install one with it: {_REINSTALL} https://download.pytorch.org/whl/cu128")
    if driver_cuda and _major(driver_cuda) < _major(cuda):
        return MachineCheck("Torch", "warn", f"{facts}: torch needs CUDA {cuda}, the driver runs CUDA {driver_cuda} at "
                                             "most", _OTHER_CUDA)
    return MachineCheck("Torch", "warn", facts,
                        f"Check the driver with nvidia-smi; this torch was built for CUDA {cuda}.")


def has_kernels(capability: str, architectures: Sequence[str]) -> bool:
    """Whether a torch built for `architectures` (such as sm_80, compute_90) runs on a GPU of this compute capability.

    Machine code runs on later minor versions of its major version; PTX (`compute_`) on all later ones (CUDA programming
    guide, binary and PTX compatibility). Code for one architecture alone has a letter at its end.
    """
    gpu = tuple(int(part) for part in capability.split("."))
    for architecture in architectures:
        kind, _, number = architecture.partition("_")
        digits = number.rstrip("af")
        if not digits.isdigit():
            continue
        built = int(digits[:-1]), int(digits[-1])
        if built == gpu or (digits == number and built < gpu and (kind == "compute" or built[0] == gpu[0])):
            return True
    return False


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def check_workspace(path: Path) -> Iterator[MachineCheck]:
    """Whether the workspace can be written and locked, and the space left there."""
    try:
        workspace = Workspace.open(path)
    except UserError as error:
        yield MachineCheck("Workspace", "fail", error.message, error.hint)
        return
    yield MachineCheck("Workspace", "ok", f"{workspace.path} can be written")
    yield check_locks(workspace.path)
    yield check_disk(workspace.free_bytes() / 1e9)
    yield check_room(workspace)


def check_locks(folder: Path) -> MachineCheck:
    """Whether file locks work there. Runs hold one while they live, and some network disks ignore them."""
    hint = "Put the workspace on a local disk: make run WORKSPACE=$HOME/lisan-workspace"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as temporary:
        path = Path(temporary) / "lock"
        try:
            lock = FileLock.acquire(path)
        except OSError as error:
            return MachineCheck("Locks", "fail", f"{folder} takes no file locks: {error.strerror}", hint)
        if lock is None:
            return MachineCheck("Locks", "fail", f"a new file in {folder} is locked already", hint)
        seen = is_held(path)
        lock.release()
    if not seen:
        return MachineCheck("Locks", "fail", f"{folder} ignores file locks", hint)
    return MachineCheck("Locks", "ok", "a held lock is seen by others")


def check_disk(free_gb: float) -> MachineCheck:
    """Check the free space of the workspace's disk."""
    facts = f"{free_gb:.1f} GB free"
    hint = "Free some space (du -sh workspace/* shows where it is), or choose another disk: make run WORKSPACE=/path"
    if free_gb < LEAST_DISK_GB:
        return MachineCheck("Disk", "fail", f"{facts}, at least {LEAST_DISK_GB:g} are needed", hint)
    if free_gb < LOW_DISK_GB:
        return MachineCheck("Disk", "warn", f"{facts}; long runs keep many checkpoints", hint)
    return MachineCheck("Disk", "ok", facts)


def check_room(workspace: Workspace) -> MachineCheck:
    """Whether the disk holds each model of the catalog with an export of it and its checkpoints.

    A model that is in the workspace already needs room for the export and the checkpoints alone.
    """
    free, families = workspace.free_bytes() / 1e9, set()
    for name in workspace.list_models():
        # A damaged model is reported by its own check.
        with suppress(UserError):
            families.add(Model.open(workspace, f"base:{name}").family_name)
    small: list[str] = []
    enough: list[str] = []
    for entry in catalog.CATALOG:
        size = _GIGABYTES.search(entry.size)
        if size:
            needed = float(size[1]) * (_COPIES - (entry.name in families)) + _CHECKPOINTS_GB
            (enough if free >= needed else small).append(f"{entry.name} ({needed:.1f} GB)")
    facts = f"{free:.1f} GB free; enough for {', '.join(enough) or 'the built-in model'}"
    if small:
        chosen = any(name.partition(" ")[0] in families for name in small)
        hint = "Delete old exports and runs, or choose another disk: make run WORKSPACE=/path" if chosen else ""
        return MachineCheck("Room for models", "warn" if chosen else "ok",
                            f"{facts}; not for {', '.join(small)}, with an export and checkpoints", hint)
    return MachineCheck("Room for models", "ok", facts)


def check_ffmpeg(program: str | None) -> MachineCheck:
    """Films, M4A and other formats need ffmpeg; WAV, FLAC, OGG and MP3 do not."""
    if program:
        return MachineCheck("ffmpeg", "ok", program)
    return MachineCheck("ffmpeg", "warn", "missing: films, M4A and some other recordings cannot be read",
                        "sudo apt-get install -y ffmpeg")


def check_token(hub: Hub, models: Sequence[str] = ()) -> MachineCheck:
    """Whether the hub accepts the token, and lets its owner read the repositories `models`."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    make = f"make one at {hub.address}/settings/tokens, then: export HF_TOKEN=hf_..."
    if hub.token is None and not models:
        return MachineCheck("Hub token", "ok", "HF_TOKEN is not set: public repositories only")

    # Each refusal of the hub has a remedy of its own.
    api = HfApi(endpoint=hub.endpoint, token=hub.token or False)
    try:
        bound_answers()
        owner = str(api.whoami()["name"]) if hub.token else "nobody (HF_TOKEN is not set)"
        for model in models:
            api.auth_check(model)
    except GatedRepoError:
        return MachineCheck("Hub token", "warn", f"{model} is gated, and {owner} has no access",
                            f"Accept its terms at {hub.address}/{model}; without a token, {make}")
    except RepositoryNotFoundError:
        return MachineCheck("Hub token", "warn", f"{model} does not exist, or {owner} may not see it",
                            f"Check the name; without a token, {make}")
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            return MachineCheck("Hub token", "warn", f"the hub does not accept the token in HF_TOKEN ({status})",
                                f"{make[0].upper()}{make[1:]}")
        return MachineCheck("Hub token", "warn", f"could not be checked: the hub answered {status}", _LATER)
    except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        return MachineCheck("Hub token", "warn", f"could not be checked: {error}", _LATER)
    except NOT_AN_ANSWER:
        return MachineCheck("Hub token", "warn",
                            f"could not be checked: {hub.host} sent something that is no answer of a hub",
                            "Check HF_ENDPOINT, and whether this network asks for a login in the browser first; then "
                            "run it again: make doctor")
    return MachineCheck("Hub token", "ok", " ".join((f"accepted, of {owner};" if hub.token else "no token;",
                                                     f"{', '.join(models) or 'no repository'} asked for")))


def check_port(port: int) -> MachineCheck:
    """Whether a program may listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return MachineCheck("Port", "warn", f"{port} cannot be used: {error.strerror}",
                                'Choose another, 0 for a free one: make run ARGS="--port 0"')
    return MachineCheck("Port", "ok", f"{port} is free")


def check_pack(name: str) -> MachineCheck:
    """The hashes of the files of the built-in model as they came with the app."""
    hint = "Restore the files from the repository (git checkout), or make them again: python -m scripts.dev.tiny."
    try:
        return _check_folder("Built-in model", catalog.pack_folder(name), hint)
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
            yield _check_folder(title, folder, f"Get it again: python -m scripts download --model {name}")
            continue
        faults = dict(find_faults(folder, record.files))
        if faults:
            command = f"--model {record.family} --variant {record.variant} --save-as {name}"
            yield MachineCheck(title, "fail", " ".join(faults.values()),
                               f"Get it again: python -m scripts download {command}")
        else:
            yield _check_base(title, name, folder, record)


def _check_base(title: str, name: str, folder: Path, record: ModelRecord) -> MachineCheck:
    """What is known of a model whose files are those that it came with: whether they are published, and its probe."""
    facts = [f"{len(record.files)} files match their hashes"]
    # This version may not know the variant.
    with suppress(UserError):
        chosen = catalog.variant(catalog.find_entry(record.family), record.variant)
        note = published.check_record(chosen, record, folder).note
        if note:
            facts.append(note)
    facts.append(record.probe.words if record.probe else "not probed")
    again = (f"Probe it: python -m scripts download --model {record.family} --variant {record.variant} "
             f"--save-as {name}")
    if record.probe is not None and record.probe.outcome == "broken":
        return MachineCheck(title, "fail", "; ".join(facts), "Train nothing on it. Get the published files.")
    if record.probe is None or record.probe.outcome == "not probed":
        return MachineCheck(title, "ok", "; ".join(facts), again)
    return MachineCheck(title, "ok", "; ".join(facts))


def _check_folder(title: str, folder: Path, hint: str) -> MachineCheck:
    try:
        sums = read_sums(folder / catalog.SUMS, hint)
    except UserError as error:
        return MachineCheck(title, "fail", error.message, hint)
    files = {name: ExpectedFile(sha256=digest) for name, digest in sums.items()}
    faults = [fault for _, fault in find_faults(folder, files)]
    if faults:
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
        return MachineCheck("Audio", "fail", "; ".join(f"{name}: {fault}" for name, fault in errors.items()), _INSTALL)
    return MachineCheck("Audio", "ok", f"WAV, FLAC and OGG by libsndfile {soundfile.__libsndfile_version__}")
