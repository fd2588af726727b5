"""The NVIDIA GPUs of this machine as `nvidia-smi` lists them, and the wait of a job for a free one.

`nvidia-smi` comes with the driver, so nothing need be installed, and it can be given a time limit, unlike a call into
the driver's library. Which GPUs a job sees follows CUDA's rules (CUDA programming guide, environment variables;
NVIDIA's guide to MIG).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

from config.schema import TrainOptions
from core.jobs.events import WarningRaised
from core.jobs.job import Job
from core.jobs.reporter import Reporter

_PROGRAM = "nvidia-smi"
_QUERY = ("--query-gpu=index,uuid,name,memory.total,memory.free,utilization.gpu", "--format=csv,noheader,nounits")
_GPU_LINE = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-[^)]+)\)")
_MIG_LINE = re.compile(r"MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")
_MIG = " MIG "  # separator in the name of an instance
_CUDA_ORDER = Path(__file__).with_name("cuda_order.py")
_TIMEOUT_S = 10.0
_FRESH_S = 15.0
IDLE_LOAD, IDLE_USED_MIB = 5, 600  # percent, and what a driver or a screen takes
Probe = Callable[[], tuple["Gpu", ...]]


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance of a GPU, at one moment."""

    index: int  # nvidia-smi's number, which counts by PCI bus
    uuid: str
    name: str
    total_mib: int
    free_mib: int
    utilization_percent: int | None  # None: not reported
    parent_uuid: str = ""  # UUID of the GPU, for a MIG instance

    @property
    def total_gib(self) -> float:
        return self.total_mib / 1024

    @property
    def free_gib(self) -> float:
        return self.free_mib / 1024

    @property
    def gpu_uuid(self) -> str:
        """UUID of the GPU as a whole."""
        return self.parent_uuid or self.uuid


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that a job started from here could use; none without a driver, or when it does not answer."""
    table = _output(_PROGRAM, *_QUERY)
    gpus = parse_nvidia_smi(table)
    if "N/A" in table or "MIG-" in os.environ.get("CUDA_VISIBLE_DEVICES", ""):  # a GPU with MIG reports no load
        listing = _output(_PROGRAM, "-L")
        if _MIG_LINE.search(listing):
            gpus = add_mig_instances(gpus, listing, _output(_PROGRAM, "-q", "-x"))
    return visible_gpus(gpus, os.environ)


def find_driver_cuda() -> str:
    """The newest CUDA that the driver runs, such as "12.4"; empty without a driver."""
    match = re.search(r"CUDA Version: ([\d.]+)", _output(_PROGRAM))
    return match[1] if match else ""


def _output(*command: str) -> str:
    """What a program prints; nothing when it is not there, fails or takes too long."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def parse_nvidia_smi(text: str) -> tuple[Gpu, ...]:
    """The lines of `nvidia-smi` with the fields of `_QUERY`; a line without sizes is left out."""
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 6 and parts[0].isdigit() and parts[3].isdigit() and parts[4].isdigit():
            utilization = int(parts[5]) if parts[5].isdigit() else None
            gpus.append(Gpu(int(parts[0]), parts[1], parts[2], int(parts[3]), int(parts[4]), utilization))
    return tuple(gpus)


def add_mig_instances(gpus: Sequence[Gpu], listing: str, report: str) -> tuple[Gpu, ...]:
    """`gpus` with the MIG instances of a GPU in its place.

    `listing` is of `nvidia-smi -L`, which names them; `report` of `nvidia-smi -q -x`, which has their memory.
    """
    memory = _instance_memory(report)
    whole_gpus = {gpu.uuid: [gpu] for gpu in gpus}
    instances: dict[str, list[Gpu]] = {}
    # The lines of a GPU's instances follow its own line.
    index, name, gpu_uuid = 0, "", ""
    for line in listing.splitlines():
        gpu_match, mig_match = _GPU_LINE.match(line.strip()), _MIG_LINE.match(line.strip())
        if gpu_match:
            index, name, gpu_uuid = int(gpu_match[1]), gpu_match[2], gpu_match[3]
        elif mig_match and (gpu_uuid, int(mig_match[2])) in memory:
            total, free = memory[gpu_uuid, int(mig_match[2])]
            instance = Gpu(index, mig_match[3], f"{name}{_MIG}{mig_match[1]}", total, free, None, gpu_uuid)
            instances.setdefault(gpu_uuid, []).append(instance)

    # Instances replace the GPU that they are a part of.
    by_index = sorted({**whole_gpus, **instances}.values(), key=lambda group: group[0].index)
    return tuple(chain.from_iterable(by_index))


def _instance_memory(report: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Total and free MiB of each instance, by the GPU's UUID and its number there."""
    memory = {}
    try:
        root = ElementTree.fromstring(report)
    except ElementTree.ParseError:
        return {}
    for gpu in root.iter("gpu"):
        for device in gpu.iter("mig_device"):
            sizes = [device.findtext(f"fb_memory_usage/{name}", "").removesuffix(" MiB") for name in ("total", "free")]
            number = device.findtext("index", "").strip()
            if number.isdigit() and all(size.isdigit() for size in sizes):
                memory[gpu.findtext("uuid", "").strip(), int(number)] = int(sizes[0]), int(sizes[1])
    return memory


def _cuda_order() -> tuple[str, ...]:
    """UUIDs of all GPUs in CUDA's order, from a separate process; none without CUDA."""
    return tuple(_output(sys.executable, str(_CUDA_ORDER)).split())


def visible_gpus(gpus: Sequence[Gpu], environment: Mapping[str, str],
                 cuda_order: Callable[[], Sequence[str]] = _cuda_order) -> tuple[Gpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order; as in CUDA, the first unknown name ends the list.

    A process can use one MIG instance, and none beside whole GPUs.
    """
    names = environment.get("CUDA_VISIBLE_DEVICES")
    # Without a list all are visible, whole GPUs first, as in CUDA.
    visible: list[Gpu] = []
    if names is None:
        visible = sorted(gpus, key=lambda gpu: gpu.parent_uuid != "")
    for name in (part.strip() for part in names.split(",")) if names is not None else ():
        gpu = _named(name, gpus, environment, cuda_order)
        if gpu is None or gpu in visible:
            break
        visible.append(gpu)

    if visible and visible[0].parent_uuid:
        return tuple(visible[:1])
    return tuple(gpu for gpu in visible if not gpu.parent_uuid)


def _named(name: str, gpus: Sequence[Gpu], environment: Mapping[str, str],
           cuda_order: Callable[[], Sequence[str]]) -> Gpu | None:
    """The GPU of a number, of a UUID or of its beginning; with MIG its first instance. None: unknown."""
    if name.isdigit():
        gpu_uuid = _cuda_numbers(gpus, environment, cuda_order).get(int(name))
        return next((gpu for gpu in gpus if gpu.gpu_uuid == gpu_uuid), None)
    if not name.startswith(("GPU-", "MIG-")):
        return None
    # The beginning of a UUID names a GPU if it fits one only.
    fitting = [gpu for gpu in gpus if (gpu.gpu_uuid if name.startswith("GPU-") else gpu.uuid).startswith(name)]
    uuids = {gpu.gpu_uuid if name.startswith("GPU-") else gpu.uuid for gpu in fitting}
    return fitting[0] if len(uuids) == 1 else None


def _cuda_numbers(gpus: Sequence[Gpu], environment: Mapping[str, str],
                  cuda_order: Callable[[], Sequence[str]]) -> dict[int, str]:
    """UUIDs of GPUs by CUDA's numbers: in the order of the PCI bus where the environment sets that, else fastest first.

    Only CUDA knows which is the fastest; equal GPUs are in the order of the bus.
    """
    by_bus = {gpu.index: gpu.gpu_uuid for gpu in gpus}
    kinds = {gpu.name.partition(_MIG)[0] for gpu in gpus}
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(kinds) < 2:
        return by_bus
    return dict(enumerate(cuda_order())) or by_bus


class CachedGpus:
    """The GPUs, looked up again when older than `fresh_s` seconds: the page asks every second."""

    def __init__(self, probe: Probe = find_gpus, fresh_s: float = _FRESH_S) -> None:
        self._probe, self._fresh_s = probe, fresh_s
        self._guard = threading.Lock()
        self._when: float | None = None
        self._gpus: tuple[Gpu, ...] = ()

    def __call__(self) -> tuple[Gpu, ...]:
        with self._guard:
            if self._when is None or time.monotonic() - self._when > self._fresh_s:
                self._gpus, self._when = self._probe(), time.monotonic()
            return self._gpus


class GpuWait:
    """Lets a job wait until as many GPUs are free as its options ask for.

    The worker checks at the job's turn, so jobs of this workspace keep their order, and lets others pass meanwhile.
    """

    def __init__(self, job: Job, reporter: Reporter, probe: Probe = find_gpus) -> None:
        self._job, self._reporter, self._probe = job, reporter, probe
        self._reason = ""

    def reserve_or_reason(self) -> str | None:
        """Reserve the free GPUs if there are as many as the job has processes; else return why it waits.

        None: it may start. Reserved GPUs are those of CUDA_VISIBLE_DEVICES, which is set here; their names are
        printed. On a CPU, or where the driver does not answer, a warning is emitted and the job does not wait. A
        reason that differs from the last one in numbers alone is not repeated.
        """
        options = self._job.options()
        if not isinstance(options, TrainOptions) or not (options.job.wait_for_gpu_gib or options.job.wait_for_idle_gpu):
            return None
        if self._job.device != "cuda":
            self._reporter.emit(WarningRaised("Waiting for a GPU has no effect: this job runs on the CPU."))
            return None

        gpus = self._probe()
        if not gpus:
            self._reporter.emit(WarningRaised("It cannot wait for a free GPU: nvidia-smi does not answer here. "
                                              "It starts now."))
            return None

        # On a machine with fewer GPUs than processes, the job waits for all of them.
        free = [gpu for gpu in gpus if is_free(gpu, options.job.wait_for_gpu_gib, options.job.wait_for_idle_gpu)]
        if len(free) >= min(options.hardware.processes, len(gpus)):
            free.sort(key=lambda gpu: -gpu.free_mib)
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in free)
            names = ", ".join(f"{gpu.index} ({gpu.name}, {gpu.free_gib:.1f} GiB)" for gpu in free)
            sys.stdout.write(f"Free GPUs: {names}\n")
            return None

        # Free memory changes all the time, and each reason is an event.
        reason = wait_reason(gpus, options)
        if _without_numbers(reason) != _without_numbers(self._reason):
            self._reason = reason
        return self._reason


def is_free(gpu: Gpu, free_gib: float, idle: bool) -> bool:
    """Whether `gpu` has so much free memory and, where it must be `idle`, no other program uses it."""
    used = gpu.total_mib - gpu.free_mib
    # A MIG instance reports no load, so only its memory tells.
    in_use = (gpu.utilization_percent or 0) > IDLE_LOAD or used > IDLE_USED_MIB
    return gpu.free_gib >= free_gib and not (idle and in_use)


def wait_reason(gpus: Sequence[Gpu], options: TrainOptions) -> str:
    """What the job waits for, and what there is."""
    demands = " and ".join(part for part in (
        f"{options.job.wait_for_gpu_gib:g} GiB of free memory" if options.job.wait_for_gpu_gib else "",
        "no other program at work" if options.job.wait_for_idle_gpu else "") if part)
    count = "a GPU" if options.hardware.processes == 1 else f"{min(options.hardware.processes, len(gpus))} GPUs"
    memory = "; ".join(f"GPU {gpu.index} has {gpu.free_gib:.1f} of {gpu.total_gib:.1f} GiB free"
                       + (f", {gpu.utilization_percent}% load" if gpu.utilization_percent is not None else "")
                       for gpu in gpus)
    return f"Waiting for {count} with {demands}: {memory}."


def _without_numbers(reason: str) -> str:
    return "".join(letter for letter in reason if not letter.isdigit())
