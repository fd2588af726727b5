"""Which GPUs a job sees: by CUDA's own numbers, by UUIDs, and instances of divided GPUs, as the driver writes them."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.jobs import cuda_order, gpus
from core.jobs.gpus import Gpu

CARD, SLOW, FAST, TWIN = (f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "cdef")
SLICES = [f"MIG-{letter * 8}-0000-0000-0000-000000000000" for letter in "ab"]
DIFFERENT = f"""0, {SLOW}, Tesla T4, 15360, 15000, 0
1, {FAST}, NVIDIA A100-PCIE-40GB, 40960, 40000, 0
2, {TWIN}, Tesla T4, 15360, 15000, 0
"""
DIVIDED = f"""0, {CARD}, NVIDIA A100-SXM4-40GB, 40960, [N/A], [N/A]
1, {SLOW}, NVIDIA A100-SXM4-40GB, 40960, 40000, 2
"""
LISTING = f"""GPU 0: NVIDIA A100-SXM4-40GB (UUID: {CARD})
  MIG 3g.20gb     Device  0: (UUID: {SLICES[0]})
  MIG 1g.5gb      Device  1: (UUID: {SLICES[1]})
GPU 1: NVIDIA A100-SXM4-40GB (UUID: {SLOW})
"""
REPORT = f"""<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <gpu id="00000000:07:00.0"><uuid>{CARD}</uuid>
    <fb_memory_usage><total>40960 MiB</total><free>N/A</free></fb_memory_usage>
    <mig_devices>
      <mig_device><index>0</index><gpu_instance_id>2</gpu_instance_id>
        <fb_memory_usage><total>19968 MiB</total><free>19949 MiB</free></fb_memory_usage></mig_device>
      <mig_device><index>1</index><gpu_instance_id>9</gpu_instance_id>
        <fb_memory_usage><total>4864 MiB</total><free>864 MiB</free></fb_memory_usage></mig_device>
    </mig_devices></gpu>
  <gpu id="00000000:0B:00.0"><uuid>{SLOW}</uuid><mig_devices>None</mig_devices></gpu>
</nvidia_smi_log>
"""


def seen(found: tuple[Gpu, ...], environment: Mapping[str, str], *order: str) -> list[str]:
    return [gpu.uuid for gpu in gpus.visible_gpus(found, environment, lambda: order)]


def test_numbers_are_cudas_and_not_those_of_nvidia_smi() -> None:
    found = gpus.parse_nvidia_smi(DIFFERENT)
    numbers = {"CUDA_VISIBLE_DEVICES": "0,2"}
    assert seen(found, numbers, FAST, SLOW, TWIN) == [FAST, TWIN]
    assert seen(found, {**numbers, "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, FAST, SLOW, TWIN) == [FAST, TWIN]
    assert seen(found, {**numbers, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, FAST, SLOW, TWIN) == [SLOW, TWIN]
    assert seen(found, numbers) == [SLOW, TWIN]  # CUDA does not answer
    alike = tuple(gpu for gpu in found if gpu.name == "Tesla T4")
    assert seen(alike, numbers, "never asked") == [SLOW, TWIN]


def test_a_number_that_is_not_there_ends_the_list_and_so_does_a_doubtful_uuid() -> None:
    found = gpus.parse_nvidia_smi(DIFFERENT)
    assert seen(found, {"CUDA_VISIBLE_DEVICES": "2,-1,0"}, SLOW, FAST, TWIN) == [TWIN]
    assert seen(found, {"CUDA_VISIBLE_DEVICES": f"{FAST[:8]},{TWIN}"}) == [FAST, TWIN]
    assert seen(found, {"CUDA_VISIBLE_DEVICES": f"{TWIN},GPU-,{FAST}"}) == [TWIN]
    assert seen(found, {"CUDA_VISIBLE_DEVICES": f"{TWIN},{TWIN},{FAST}"}) == [TWIN]


@pytest.mark.parametrize(("asked", "wanted"), [
    (SLICES[1], [SLICES[1]]), (f"{SLICES[1]},{SLICES[0]}", [SLICES[1]]),  # a process can use one
    ("0", [SLICES[0]]), (CARD[:10], [SLICES[0]]), (f"1,{SLICES[0]}", [SLOW]), ("MIG-", []), ("1", [SLOW])])
def test_instances_of_a_divided_gpu_have_names_and_memory_of_their_own(asked: str, wanted: list[str]) -> None:
    found = gpus.add_mig_instances(gpus.parse_nvidia_smi(DIVIDED), LISTING, REPORT)
    assert [(gpu.index, gpu.free_mib, gpu.total_mib) for gpu in found] == [
        (0, 19949, 19968), (0, 864, 4864), (1, 40000, 40960)]
    assert found[0].name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert seen(found, {"CUDA_VISIBLE_DEVICES": asked}) == wanted
    assert seen(found, {}) == [SLOW]


def test_the_program_is_asked_for_instances_only_where_there_may_be_some(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    for name, text in (("csv", DIVIDED), ("list", LISTING), ("xml", REPORT)):
        (tmp_path / name).write_text(text)
    program.write_text(f"""#!/bin/sh
cd {tmp_path}
case "$1" in
  -L) cat list ;;
  -q) echo asked >> asked; cat xml ;;
  *) cat csv ;;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", SLICES[0])
    [one] = gpus.find_gpus()
    assert (one.uuid, one.free_mib) == (SLICES[0], 19949)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "csv").write_text(DIFFERENT)
    assert [gpu.uuid for gpu in gpus.find_gpus()] == [SLOW, FAST, TWIN]
    assert (tmp_path / "asked").read_text() == "asked\n"
    (tmp_path / "csv").unlink()
    assert gpus.find_gpus() == ()


class Driver:
    """CUDA's library with two GPUs; every call gives 0, or `fault`."""

    def __init__(self, fault: int = 0) -> None:
        self.fault = fault

    def cuInit(self, _flags: int) -> int:
        return self.fault

    def cuDeviceGetCount(self, count) -> int:
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, device, ordinal: int) -> int:
        device._obj.value = 7 - ordinal
        return 0

    def cuDeviceGetUuid(self, name, device: ctypes.c_int) -> int:
        ctypes.memmove(name._obj, uuid.UUID(({7: FAST, 6: SLOW}[device.value]).removeprefix("GPU-")).bytes, 16)
        return 0


def test_cuda_says_its_order_in_the_names_of_nvidia_smi() -> None:
    assert cuda_order.uuids(Driver()) == [FAST, SLOW]
    assert cuda_order.uuids(Driver(fault=100)) == []
