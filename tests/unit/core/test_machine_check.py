"""The doctor finds what is wrong, names it, and says what to do."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from config.versions import PackageConflict
from core import machine_check
from core.sources.hub import Hub
from core.workspace import Workspace
from scripts import doctor as command
from tests.processes import free_port

CPU = {"torch": "2.11.0+cpu", "torchaudio": "2.11.0", "cuda": "", "architectures": [], "cores": 2, "accelerators": []}
GPU = {"name": "Tesla T4", "capability": "7.5", "memory_gib": 14.6, "bfloat16": False}


def model_folder(workspace: Path, content: bytes = b"weights") -> Path:
    folder = workspace / "models" / "small"
    folder.mkdir(parents=True)
    (folder / "t3.safetensors").write_bytes(content)
    sums = {"t3.safetensors": hashlib.sha256(b"weights").hexdigest()}
    (folder / "SHA256SUMS.json").write_text(json.dumps(sums), encoding="utf-8")
    return folder


def test_an_old_python_fails_with_the_version_wanted() -> None:
    check = machine_check.check_python((3, 10, 12))
    assert check.result == "fail"
    assert "3.10.12" in check.found
    assert "3.11" in check.hint


def test_this_python_is_accepted() -> None:
    assert machine_check.check_python(sys.version_info[:3]).result == "ok"


@pytest.mark.parametrize(
    ("seen", "result", "found"),
    [("2.11.0", "ok", "1 as pinned"), ("2.11.0+cu130", "ok", "1 as pinned"),
     ("2.8.0+cu128", "ok", "1 as pinned"), ("2.12.0", "warn", "torch 2.12.0 (pinned: 2.11.0)"),
     (None, "fail", "missing: torch")],
)
def test_packages_are_compared_with_their_pins(tmp_path: Path, seen: str | None, result: str, found: str) -> None:
    (tmp_path / "requirements.txt").write_text("# a comment\ntorch==2.11.0\n", encoding="utf-8")
    check = machine_check.check_packages(tmp_path / "requirements.txt", lambda _: seen)
    assert check.result == result
    assert check.found.startswith(found)


def test_only_conflicts_of_packages_that_are_needed_fail() -> None:
    other = PackageConflict("torchvision", "0.27", "torch==2.12", "2.11", needed=False)
    needed = PackageConflict("transformers", "5.17", "huggingface-hub<2", "2.4.0", needed=True)
    assert machine_check.check_conflicts([]).result == "ok"
    assert "torchvision 0.27" in machine_check.check_conflicts([other]).found
    assert machine_check.check_conflicts([other]).result == "ok"
    check = machine_check.check_conflicts([needed, other])
    assert (check.result, check.found) == ("fail", "transformers 5.17 requires huggingface-hub<2, which is 2.4.0")


def test_missing_requirements_are_a_failed_check(tmp_path: Path) -> None:
    assert machine_check.check_packages(tmp_path / "requirements.txt", lambda _: None).result == "fail"


def test_what_is_installed_here_is_what_is_pinned() -> None:
    check = machine_check.check_packages(machine_check.ROOT / "requirements.txt", machine_check.installed_version)
    assert check.result == "ok", check.found


def test_torch_that_does_not_load_fails_with_the_reason() -> None:
    check = machine_check.check_torch((sys.executable, "-c", "raise ImportError('libcudart.so.13 is missing')"))
    assert check.result == "fail"
    assert "libcudart.so.13 is missing" in check.found


def test_the_printed_hardware_is_read_back() -> None:
    check = machine_check.check_torch((sys.executable, "-c", f"print({json.dumps(json.dumps(CPU))})"))
    assert check.result in ("ok", "warn")
    assert "2 CPU cores" in check.found


def test_torchaudio_of_another_torch_fails() -> None:
    check = machine_check.check_hardware({**CPU, "torchaudio": "2.10.0"}, has_device_file=False)
    assert check.result == "fail"
    assert "2.11.0+cpu" in check.found
    assert "2.10.0" in check.found


def test_a_gpu_that_torch_does_not_see_is_a_warning() -> None:
    assert machine_check.check_hardware(CPU, has_device_file=True).result == "warn"


@pytest.mark.parametrize(("change", "driver", "result", "found", "hint"), [
    ({"architectures": ["sm_75", "sm_80", "sm_90"], "accelerators": [GPU]}, "", "ok", "Tesla T4", ""),
    ({"architectures": ["sm_80", "sm_90"], "accelerators": [GPU]}, "", "fail", "no kernels for Tesla T4", "whl/cu126"),
    ({"cuda": ""}, "12.4", "warn", "without CUDA", "scripts.install --torch-index"),
    ({"cuda": "13.0"}, "12.4", "warn", "torch needs CUDA 13.0, the driver runs CUDA 12.4", "whl/cu126"),
    ({"cuda": "12.8"}, "13.0", "warn", "shows an NVIDIA device", "nvidia-smi"),
    ({"torch": "2.7.1", "torchaudio": "2.7.1"}, "", "warn", "tried are 2.8 to 2.11", "scripts.install"),
])
def test_torchs_build_is_compared_with_gpu_and_driver(change: dict[str, object], driver: str, result: str, found: str,
                                                      hint: str) -> None:
    check = machine_check.check_hardware({**CPU, **change}, True, driver)
    assert check.result == result
    assert found in check.found
    assert hint in check.hint


@pytest.mark.parametrize(("capability", "architectures", "runs"), [
    ("8.9", ["sm_80"], True), ("9.0", ["sm_80"], False), ("9.0", ["compute_80"], True), ("8.0", ["sm_86"], False),
    ("12.0", ["sm_100", "sm_120"], True), ("12.1", ["sm_120"], True), ("9.0", ["sm_90a"], True),
    ("10.3", ["sm_100a"], False), ("7.0", ["compute_75"], False), ("7.5", [], False),
])
def test_kernels_run_on_the_gpus_they_were_built_for(capability: str, architectures: list[str], runs: bool) -> None:
    assert machine_check.has_kernels(capability, architectures) == runs


def test_a_missing_program_and_a_taken_port_come_with_their_command() -> None:
    assert machine_check.check_ffmpeg("/usr/bin/ffmpeg").result == "ok"
    assert "apt-get install" in machine_check.check_ffmpeg(None).hint
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        taken = machine_check.check_port(other.getsockname()[1])
    assert (taken.result, "--port 0" in taken.hint) == ("warn", True)
    assert machine_check.check_port(free_port()).result == "ok"


def test_the_disk_is_compared_with_what_each_model_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.open(tmp_path)
    for free, enough, small in ((4e9, "the built-in model", "not for chatterbox"),
                                (10e9, "chatterbox (7.4 GB)", "not for indextts2"), (90e9, "indextts2", "")):
        monkeypatch.setattr(Workspace, "free_bytes", lambda _self, free=free: int(free))
        check = machine_check.check_room(workspace)
        assert check.result == "ok"
        assert enough in check.found
        assert small in check.found


class FakeHub(BaseHTTPRequestHandler):
    """Knows one token, one open repository and a gated one."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Bearer hf_good"
        code, kind = 200, ""
        if "whoami" in self.path:
            code = 200 if known else 401
        elif "me/gated" in self.path:
            code, kind = 403, "GatedRepo"
        elif "me/none" in self.path:
            code, kind = 404, "RepoNotFound"
        self.send_response(code)
        if kind:
            self.send_header("X-Error-Code", kind)
        body = b'{"name": "me", "type": "user"}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        del format, values


def test_the_token_is_shown_to_the_hub() -> None:
    server = HTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        for token, models, result, found, hint in (
            (None, (), "ok", "not set", ""), ("hf_good", (), "ok", "of me", ""),
            ("hf_good", ("me/open",), "ok", "me/open", ""),
            ("hf_bad", (), "warn", "does not accept", "/settings/tokens"),
            ("hf_good", ("me/gated",), "warn", "me/gated is gated", f"{address}/me/gated"),
            ("hf_good", ("me/none",), "warn", "does not exist", "name"),
        ):
            check = machine_check.check_token(Hub(address, token), models)
            assert (check.result, found in check.found, hint in check.hint) == (result, True, True), check
    finally:
        server.shutdown()
        server.server_close()
    check = machine_check.check_token(Hub(address, "hf_good"))
    assert (check.result, "could not be checked" in check.found) == ("warn", True)


@pytest.mark.parametrize("body", [b"<html>sign in first</html>", b"[]", b"{}"])
def test_an_answer_of_something_else_than_a_hub_is_told(body: bytes) -> None:
    class LoginPage(FakeHub):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), LoginPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        check = machine_check.check_token(Hub(f"http://127.0.0.1:{server.server_address[1]}", "hf_good"))
    finally:
        server.shutdown()
        server.server_close()
    assert (check.result, "no answer of a hub" in check.found, "login" in check.hint) == ("warn", True, True), check


def test_a_password_in_the_address_of_the_hub_is_not_printed() -> None:
    server = HTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"127.0.0.1:{server.server_address[1]}"
    try:
        for token, models in (("hf_bad", ()), ("hf_good", ("me/gated",))):
            check = machine_check.check_token(Hub(f"http://me:s3cret@{place}", token), models)
            assert (check.result, f"http://{place}" in check.hint, "s3cret" in str(check)) == ("warn", True, False)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("name", "value", "found"), [
    ("HF_ENDPOINT", "huggingface.co", "not the address of a hub"), ("HF_ENDPOINT", "http://[::1", "not the address"),
    ("HF_ENDPOINT", "http://hub:port", "not the address"), ("HF_TOKEN", "hf_\N{BULLET}", "a character that no"),
])
def test_a_wrong_variable_of_the_hub_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str,
                                                  value: str, found: str) -> None:
    monkeypatch.setenv(name, value)
    for check in ("check_torch", "check_pack"):
        passed = machine_check.MachineCheck(check, "ok", "")
        monkeypatch.setattr(machine_check, check, lambda *_given, passed=passed: passed)
    checks = {one.name: one for one in machine_check.check_machine(tmp_path / "workspace", port=free_port())}
    assert checks["Hub token"].result == "warn"
    assert found in checks["Hub token"].found
    assert "Port" in checks


def test_a_machine_without_gpu_is_fine() -> None:
    assert machine_check.check_hardware(CPU, has_device_file=False).result == "ok"


def test_bfloat16_by_emulation_is_not_called_hardware() -> None:
    seen = {**CPU, "architectures": ["sm_75"], "accelerators": [GPU]}
    check = machine_check.check_hardware(seen, has_device_file=True)
    assert "bfloat16 missing" in check.found
    assert "7.5" in check.found


def test_a_workspace_that_cannot_be_written_fails_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    checks = list(machine_check.check_workspace(tmp_path / "file" / "workspace"))
    assert [check.result for check in checks] == ["fail"]
    assert str(tmp_path / "file") in checks[0].found


def test_a_good_workspace_passes_every_check(tmp_path: Path) -> None:
    checks = {check.name: check for check in machine_check.check_workspace(tmp_path / "new")}
    assert list(checks) == ["Workspace", "Locks", "Disk", "Room for models"]
    assert checks["Workspace"].result == checks["Locks"].result == "ok"


@pytest.mark.parametrize(("free_gb", "result"), [(0.2, "fail"), (3.0, "warn"), (80.0, "ok")])
def test_little_disk_space_is_told(free_gb: float, result: str) -> None:
    assert machine_check.check_disk(free_gb).result == result


def test_a_whole_model_passes(tmp_path: Path) -> None:
    model_folder(tmp_path)
    assert [check.result for check in machine_check.check_models(tmp_path)] == ["ok"]


def test_a_changed_file_of_a_model_fails_and_is_named(tmp_path: Path) -> None:
    model_folder(tmp_path, b"weighty")
    [check] = machine_check.check_models(tmp_path)
    assert check.result == "fail"
    assert "t3.safetensors" in check.found
    assert "scripts download" in check.hint


def test_a_lost_file_of_a_model_fails_and_is_named(tmp_path: Path) -> None:
    (model_folder(tmp_path) / "t3.safetensors").unlink()
    [check] = machine_check.check_models(tmp_path)
    assert check.result == "fail"
    assert "t3.safetensors" in check.found


def test_audio_is_written_and_read_back() -> None:
    assert machine_check.check_audio().result == "ok"


@pytest.mark.parametrize(("result", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_command_fails_only_when_a_check_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str], result: str, code: int) -> None:
    row = machine_check.MachineCheck("Disk", result, "little", "free some")  # type: ignore[arg-type]
    monkeypatch.setattr(machine_check, "check_machine", lambda workspace, **_rest: iter([row]))
    assert command.main(["--workspace", str(tmp_path), "--json"]) == code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["checks"] == [{"name": "Disk", "result": result, "found": "little", "hint": "free some"}]
