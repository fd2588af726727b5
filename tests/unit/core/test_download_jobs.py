"""Downloads as jobs in true worker processes: killed and taken up again, stopped, and never leaving a token behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.schema import DownloadOptions
from core.jobs import control, locks
from core.jobs.job import Job, create_job
from core.jobs.state import JobState
from core.workspace import Workspace
from tests.hub import LoopbackHub, serving
from tests.processes import PATIENCE_S
from tests.unit.hub_model import FILES, MAIN, T3, TOKEN, TOTAL, contents, made_up, partial
from tests.unit.live_jobs import until

ROOT = Path(__file__).parents[3]
ON_THE_WAY = 600_000  # bytes in buffers of sockets and the worker when it is killed


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    """A hub that the environment names, with a token."""
    with serving() as hub:
        hub.add(MAIN, FILES, private=True)
        hub.tokens[TOKEN] = "read"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub


def start(workspace: Workspace, **options: str) -> Job:
    accepted = DownloadOptions(model="chatterbox", accept_unknown=tuple(FILES), probe=False, **options)
    job = create_job(workspace, "download", accepted)
    control.start(job)
    return job


def downloading(state: JobState) -> bool:
    return state.progress is not None and (state.progress.done or 0) > 2_500_000


def test_a_killed_worker_loses_nothing_that_came(served: LoopbackHub, workspace: Workspace) -> None:
    served.fault(T3, stall_after=1_000_000)
    job = start(workspace)
    until(job, downloading)
    os.killpg(int(locks.read_holder(job.lock).split()[1]), signal.SIGKILL)
    crashed = until(job, lambda state: state.ended)
    assert crashed.status == "crashed"
    had = (partial(workspace) / T3).stat().st_size
    assert had > 500_000
    assert workspace.list_models() == []
    served.faults.clear()
    control.resume(job)
    done = until(job, lambda state: state.ended)
    assert (done.status, done.message) == ("finished", "")
    assert contents(workspace.model("chatterbox")) == FILES
    assert done.result["bytes_fetched"] == len(FILES[T3]) - had
    assert served.sent[T3] <= len(FILES[T3]) + ON_THE_WAY
    assert sum(served.sent.values()) - served.sent[T3] == TOTAL - len(FILES[T3])  # the others came once


def test_a_stop_keeps_what_came_and_the_job_goes_on(served: LoopbackHub, workspace: Workspace) -> None:
    served.fault(T3, stall_after=1_000_000)
    job = start(workspace)
    state = until(job, downloading)
    assert state.progress.total == TOTAL
    control.stop(job)
    stopped = until(job, lambda state: state.ended)  # long before the stall is given up
    assert stopped.status == "stopped"
    assert not stopped.warnings
    assert (partial(workspace) / T3).stat().st_size == 1_000_000
    served.faults.clear()
    control.resume(job)
    assert until(job, lambda state: state.ended).status == "finished"
    assert served.sent[T3] == len(FILES[T3])


@pytest.mark.parametrize("token", [TOKEN, TOKEN + "wrong"], ids=["good", "wrong"])
def test_no_file_of_the_workspace_holds_the_token(
    served: LoopbackHub, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, token: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HF_DEBUG", "1")
    served.fault(T3, drop_after=500_000, times=1)
    job = start(workspace)
    ended = until(job, lambda state: state.ended)
    assert ended.status == ("finished" if token == TOKEN else "failed")
    assert any(asked.authorization == f"Bearer {token}" for asked in served.asked)
    for path in workspace.path.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path


def test_the_command_line_tells_progress_and_the_result(served: LoopbackHub, workspace: Workspace) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts", "download", "--workspace", str(workspace.path), "--model", "chatterbox",
         "--variant", "multilingual-v3", "--save-as", "mine", "--json",
         "--no-probe", *(word for name in FILES for word in ("--accept-unknown", name))],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(FILES)} files, 4.6 MB" in done.stdout
    assert "MB/s" in done.stdout
    assert '"model": "mine"' in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    assert contents(workspace.model("mine")) == FILES


def test_the_next_job_takes_up_what_a_failed_one_left(served: LoopbackHub, workspace: Workspace) -> None:
    served.fault(T3, content=made_up("wrong", len(FILES[T3])))
    first = until(start(workspace), lambda state: state.ended)
    assert first.status == "failed"
    assert "other bytes" in first.message
    served.faults.clear()
    assert until(start(workspace), lambda state: state.ended).status == "finished"
    assert sum(served.sent.values()) - served.sent[T3] == TOTAL - len(FILES[T3])
    assert contents(workspace.model("chatterbox")) == FILES
