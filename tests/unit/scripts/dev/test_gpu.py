"""`make gpu` without a GPU: that its stages run, are stopped, and say what they found."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from config.versions import PackageConflict
from scripts.dev import gpu
from scripts.dev.benchmark import machine
from scripts.dev.gpu import STAGES, GpuStage, StageResult, run, write

CPU = torch.device("cpu")
TESTS = """
import os, pytest, time
def test_one(): assert os.environ["LISAN_TEST_DEVICE"] == "cuda"
@pytest.mark.skip
def test_two(): pass
{third}
"""


def test_every_file_that_emulates_cuda_is_run_on_a_gpu() -> None:
    folder = Path(__file__).parents[3]
    users = {path.relative_to(folder.parent).as_posix() for path in folder.rglob("test_*.py")
             if "emulated_cuda(" in path.read_text("utf-8") and path != Path(__file__)}
    assert set(gpu.CUDA_TESTS) == users


def wait_until_gone(process: int) -> None:
    """A killed process may be left until its new parent asks for it."""
    status = Path(f"/proc/{process}/stat")
    end = time.monotonic() + 30
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.1)


def result(stage: GpuStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float = 60.0) -> StageResult:
    monkeypatch.setitem(STAGES, "mine", stage)
    return run("mine", CPU, tmp_path / "scratch", quick=True, limit_s=limit_s)


@pytest.mark.slow
def test_tests_are_counted_and_a_stage_that_takes_too_long_is_stopped(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_them.py"
    stage = GpuStage("these", (str(path), "-c", "/dev/null", f"--rootdir={tmp_path}"),
                  environment={"LISAN_TEST_DEVICE": "cuda"})
    path.write_text(TESTS.format(third=""))
    made = result(stage, tmp_path, monkeypatch)
    assert (made.result, made.found) == ("passed", {"passed": 1, "skipped": 1, "failed": []})
    path.write_text(TESTS.format(third="def test_three(): assert False"))
    made = result(stage, tmp_path, monkeypatch)
    assert (made.result, made.reason, made.found["failed"]) == ("failed", "exit code 1", ["test_them::test_three"])
    write(tmp_path / "out", made)
    assert "- `test_them::test_three`" in (tmp_path / "out" / "gpu.md").read_text()
    path.write_text(TESTS.format(third=f"""
def test_three():
    import subprocess
    left = subprocess.Popen(['sleep', '600'])
    open({str(tmp_path / "pid")!r}, 'w').write(str(left.pid))
    time.sleep(600)
"""))
    for parallel in ((), ("-n", "1")):
        more = replace(stage, tests=(*stage.tests, *parallel))
        made = result(more, tmp_path, monkeypatch, limit_s=12.0)
        assert (made.result, made.found["passed"], made.found["skipped"]) == ("stopped", 1, 1)
        wait_until_gone(int((tmp_path / "pid").read_text()))
    path.write_text("import pytest\n@pytest.mark.skip\ndef test_none(): pass")
    assert result(stage, tmp_path, monkeypatch).result == "not run"


@pytest.mark.slow
def test_a_part_of_the_benchmark_is_written_beside_what_was_found_before(tmp_path: Path) -> None:
    """The benchmark itself, on a narrow model."""
    write(tmp_path, StageResult("former", "a stage that is no more", "", "passed", 1.0, "2026-01-01", "abc", "a GPU"))
    write(tmp_path, StageResult("demo", "the demo", "", "failed", 1.0, "2026-01-01", "abc", "a GPU", "exit code 3"))
    assert gpu.main(["--stage", "S2Mel", "--device", "cpu", "--quick", "--out", str(tmp_path),
                     "--scratch", str(tmp_path / "scratch")]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert list(found) == ["demo", "S2Mel", "former"]
    assert found["S2Mel"]["result"] == "passed"
    assert {row["part"] for row in found["S2Mel"]["found"]["rows"]} == {"S2Mel"}
    written = (tmp_path / "gpu.md").read_text()
    assert "| demo | the demo | failed: exit code 3 |" in written
    assert all(f"| {row['what']} | {row['unit']} |" in written for row in found["S2Mel"]["found"]["rows"])
    assert str(tmp_path) not in written


def write_passed(folder: Path, name: str, commit: str, outcome: str = "passed") -> None:
    host = machine.describe(CPU)
    write(folder, StageResult(name, name, "", outcome, 1.0, "2026-01-01", commit, f"{host.device}; a processor"))


def run_main(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str) -> list[str]:
    """The stages that `main` runs, in the order of their starts."""
    started: list[str] = []

    def run_stage(name: str, *_: object, **__: object) -> StageResult:
        started.append(name)
        return StageResult(name, name, "", "passed", 1.0, "2026-01-01", "abc", "cpu; a processor")

    monkeypatch.setattr(gpu, "run", run_stage)
    monkeypatch.setattr(gpu, "find_conflicts", lambda pins: [])
    assert gpu.main(["--device", "cpu", "--out", str(out), *arguments]) == 0
    return started


def test_a_resumed_run_leaves_out_what_passed_with_this_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_commit", lambda: "abc")
    write_passed(tmp_path, "T3", "abc")
    write_passed(tmp_path, "GPT", "other")
    write_passed(tmp_path, "S3Gen", "abc", "stopped")
    assert run_main(monkeypatch, tmp_path, "--stage", "T3,S3Gen,GPT", "--resume") == ["S3Gen", "GPT"]

    monkeypatch.setattr(machine, "_commit", lambda: "abc" + machine.CHANGED)
    assert run_main(monkeypatch, tmp_path, "--stage", "T3,S3Gen,GPT", "--resume") == ["T3", "S3Gen", "GPT"]


def test_timed_stages_run_alone_and_last_and_no_stage_starts_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                      capsys: pytest.CaptureFixture[str]) -> None:
    started = run_main(monkeypatch, tmp_path, "--stage", "T3,demo,GPT,kill", "--minutes", "1.5")
    assert started == ["kill", "T3", "GPT"]
    assert "demo: not started, as it takes about 225 s" in capsys.readouterr().out


def test_conflicting_packages_are_named_before_the_first_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    conflict = PackageConflict("transformers", "5.17.0", "huggingface-hub<2", "2.4.0", needed=True)
    monkeypatch.setattr(gpu, "find_conflicts", lambda pins: [conflict])
    monkeypatch.setattr(gpu, "run", lambda *_, **__: pytest.fail("a stage was run"))
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path)]) == 2
    assert "transformers 5.17.0 requires huggingface-hub<2, which is 2.4.0" in capsys.readouterr().err


def test_without_a_gpu_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert gpu.main(["--stage", "demo", "--out", str(tmp_path)]) == 2
    assert "There is no CUDA device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
