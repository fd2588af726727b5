"""Which rented machine this is, and what the page and the terminal say of it."""

from pathlib import Path

import pytest
import torch

import app
from core import compute, machine
from core.jobs.gpus import Gpu
from core.machine import MachineCheck, detect_platform
from core.workspace import Workspace
from ui import layout


@pytest.mark.parametrize(("environment", "name", "address", "note"), [
    ({"LIGHTNING_CLOUDSPACE_HOST": "01abc.cloudspaces.litng.ai", "LIGHTNING_CLOUD_SPACE_ID": "01abc"},
     "Lightning studio", "https://7860-01abc.cloudspaces.litng.ai", "scripts lightning install"),
    ({"LIGHTNING_CLOUD_SPACE_ID": "01abc"}, "Lightning studio", "https://7860-01abc.cloudspaces.litng.ai",
     "jobs go on"),
    ({"COLAB_RELEASE_TAG": "release"}, "Colab", "", "serve_kernel_port_as_window(7860)"),
    ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "Kaggle", "", "--share"),
    ({"RUNPOD_POD_ID": "xyz"}, "Runpod", "https://xyz-7860.proxy.runpod.net", "/workspace"),
    ({"SPACE_HOST": "me-lisan.hf.space"}, "Hugging Face Space", "https://me-lisan.hf.space", "storage"),
    ({"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.1 22", "USER": "me"}, "SSH", "http://127.0.0.1:7860",
     "ssh -N -L 7860:127.0.0.1:7860 me@10.0.0.1"),
    ({"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.1 22", "RUNPOD_POD_ID": "xyz"}, "Runpod",
     "https://xyz-7860.proxy.runpod.net", "7860"),
])
def test_a_rented_machine_is_known_by_its_variables(environment: dict[str, str], name: str, address: str,
                                                   note: str) -> None:
    found = detect_platform(7860, environment)
    assert found is not None
    assert (found.name, found.address) == (name, address)
    assert note in found.note
    shown = app.address_line(found, "127.0.0.1")
    assert address in shown
    assert ("--host 0.0.0.0" in shown) == (name in ("Lightning studio", "Runpod", "Hugging Face Space"))
    assert "--host" not in app.address_line(found, "0.0.0.0")


def test_a_machine_of_ones_own_needs_no_words() -> None:
    assert detect_platform(7860, {"HOME": "/home/me"}) is None


def test_the_header_names_device_memory_and_disk(workspace: Workspace) -> None:
    gpus = tuple(Gpu(index, f"GPU-{index}", "NVIDIA L4", 23034, 20000, 0) for index in (0, 1))
    assert layout.machine_line(gpus, workspace).startswith("2 x NVIDIA L4 · 6 of 45 GiB in use · ")
    line = layout.machine_line((), workspace)
    assert line.startswith("CPU · ")
    assert line.endswith(f"{workspace.free_bytes() / 1e9:.0f} GB of disk free")


def test_what_the_start_check_finds_is_said_with_its_command(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no ffmpeg
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    findings: list[MachineCheck] = []
    app.check_machine(workspace, findings)
    shown = capsys.readouterr().out
    [missing] = [one for one in findings if one.name == "ffmpeg"]
    assert missing.hint in shown
    assert missing.hint in layout.findings_view(findings)
    assert all(one.result != "ok" for one in findings)


def test_linux_tells_of_the_processor_what_an_older_torch_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The entries of a processor with two cores of two threads each."""
    text = "".join(f"processor\t: {number}\nmodel name\t: AMD EPYC\nphysical id\t: 0\ncore id\t\t: {number // 2}\n"
                   "flags\t\t: fpu avx2 avx512_bf16\n\n" for number in range(4))
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    found = compute.cpu_capabilities()
    assert (found["cpu_name"], found["num_physical_cores"]) == ("AMD EPYC", 2)
    assert (found.get("avx512_bf16"), found.get("amx_bf16")) == (True, None)
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "none")
    assert compute.cpu_capabilities() == {"cpu_name": "", "num_physical_cores": 0}
