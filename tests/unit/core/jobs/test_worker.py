"""The worker from outside: exit codes, signals, and what it loads."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import TrainOptions
from core.jobs import control, locks, worker
from core.jobs.events import Event, Failed, Started, Stopped
from core.jobs.job import Job, create_job, load_job
from core.jobs.reporter import Reporter, StopRequested, check_stop, stage
from core.jobs.state import JobState
from core.workspace import Workspace
from tests.unit.fake_verbs import COMMAND
from tests.unit.live_jobs import PATIENCE_S, launch, running, train, until

ROOT = Path(__file__).parents[4]


def by_hand(job: Job) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, str(job.directory)], cwd=ROOT, text=True, stderr=subprocess.PIPE)


def test_exit_codes(workspace: Workspace):
    for behaviour, code in (("quick", 0), ("wrong", 1), ("buggy", 1), ("exits", 7), ("killed", 137)):
        assert by_hand(train(workspace, behaviour)).wait(PATIENCE_S) == code


def test_a_second_worker_on_the_same_run_is_turned_away(workspace: Workspace):
    job = launch(train(workspace, "patient"))
    running(job)
    before = job.journal.read_bytes()
    second = by_hand(job)
    _, said = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == worker.ALREADY_RUNNING
    assert f"{job.id} is already running" in said
    assert job.journal.read_bytes() == before


def test_a_folder_that_is_no_job_is_a_clear_error(workspace: Workspace):
    done = subprocess.run([*COMMAND, str(workspace.runs)], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "is not the configuration of a job" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_either_process_lets_the_job_save(workspace: Workspace, number: signal.Signals):
    for take_inner in (True, False):
        job = train(workspace, "patient")
        outer = by_hand(job)
        running(job)
        inner = int(locks.read_holder(job.lock).split()[0])
        os.kill(inner if take_inner else outer.pid, number)
        assert outer.wait(PATIENCE_S) == worker.STOPPED
        assert control.read_state(job).message == "Saved at step 7."


def test_the_page_may_die_and_the_job_goes_on(workspace: Workspace):
    """A process starts the job and is killed at once; the job is seen, and stopped, from this one."""
    job = train(workspace, "patient")
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from core.jobs import control; from core.jobs.job import load_job_directory\n"
        "from tests.unit.fake_verbs import COMMAND\n"
        "control.start(load_job_directory(Path(sys.argv[1])), command=COMMAND); os.killpg(0, signal.SIGKILL)"
    )
    page = subprocess.run([sys.executable, "-c", script, str(job.directory)], cwd=ROOT, start_new_session=True,
                          check=False)
    assert page.returncode == -signal.SIGKILL
    running(job)
    control.stop(job)
    assert control.wait(job, PATIENCE_S).status == "stopped"


def test_the_worker_has_a_session_of_its_own_and_gives_way(workspace: Workspace):
    job = launch(train(workspace, "patient"))
    running(job)
    pid = int(locks.read_holder(job.lock).split()[0])
    assert os.getsid(pid) == os.getpgid(pid) != os.getsid(0)
    assert os.getpriority(os.PRIO_PROCESS, pid) >= 5


def test_a_waiting_worker_has_not_loaded_torch(workspace: Workspace):
    running(launch(train(workspace, "patient")))
    waiting = create_job(workspace, "train", TrainOptions(device="cpu"))
    control.start(waiting)  # the true worker
    until(waiting, lambda state: state.status == "waiting")
    pid = int(locks.read_holder(waiting.lock).split()[0])
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    control.stop(waiting)
    assert control.wait(waiting, PATIENCE_S).status == "stopped"


def in_process(workspace: Workspace, verb: worker.VerbFunction) -> tuple[int, list[Event], JobState]:
    job = train(workspace, "quick")
    heard: list[Event] = []
    code = worker.run_job(job, control.enqueue(job), listener=heard.append, verbs={"train": verb})
    return code, heard, control.read_state(job)


def test_a_listener_hears_what_is_journaled(workspace: Workspace):
    def verb(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> dict:
        with stage(reporter, "copy"):
            pass
        return {"files": 3}

    code, heard, state = in_process(workspace, verb)
    assert (code, state.status, state.result) == (0, "finished", {"files": 3})
    assert [event.kind for event in heard] == ["started", "stage", "stage", "finished"]
    assert [(part.name, part.seconds is not None) for part in state.stages] == [("copy", True)]


def test_a_second_interrupt_ends_a_job_that_does_not_listen(workspace: Workspace):
    def verb(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> dict:
        os.kill(os.getpid(), signal.SIGINT)
        assert reporter.stop_requested()
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second interrupt must not come here")

    before = signal.getsignal(signal.SIGINT)
    code, heard, state = in_process(workspace, verb)
    assert (code, state.status) == (worker.STOPPED, "stopped")
    assert isinstance(heard[-1], Stopped)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_disk_that_fills_is_told_when_there_is_room_for_a_line(workspace: Workspace):
    def verb(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> dict:
        raise OSError(28, "No space left on device", "checkpoints/100")

    code, heard, _ = in_process(workspace, verb)
    assert code == worker.FAILED
    failure = heard[-1]
    assert isinstance(failure, Failed)
    assert "checkpoints/100" in failure.message
    assert "disk is full" in failure.hint


def test_a_journal_that_cannot_be_written_ends_the_job_with_words(workspace: Workspace,
                                                                  capfd: pytest.CaptureFixture[str]):
    def verb(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> dict:
        raise AssertionError("must not start")

    job = train(workspace, "quick")
    lock = control.enqueue(job)
    job.journal.unlink()
    job.journal.symlink_to("/dev/full")
    assert worker.run_job(job, lock, verbs={"train": verb}) == worker.FAILED
    assert "No space left on device" in capfd.readouterr().err
    assert not locks.is_held(job.lock)


def test_options_that_no_longer_fit_fail_with_the_field(workspace: Workspace):
    job = train(workspace, "quick")
    config = job.directory / "config.yaml"
    config.write_text(config.read_text().replace("steps:", "iterations:"))
    job = load_job(workspace, job.id)
    assert worker.run_job(job, control.enqueue(job), verbs={"train": lambda *_: {}}) == worker.FAILED
    assert "iterations" in control.read_state(job).message


def test_check_stop_raises_only_when_asked(workspace: Workspace):
    def verb(options: TrainOptions, workspace: Workspace, reporter: Reporter) -> dict:
        check_stop(reporter)
        (reporter.directory / "stop").touch()
        with pytest.raises(StopRequested):
            check_stop(reporter)
        raise UserError("done", "")

    _, heard, _ = in_process(workspace, verb)
    assert isinstance(heard[0], Started)
    assert heard[-1] == Failed("done", "", exit_code=1, time=heard[-1].time)


def test_a_worker_is_nicer_than_the_page_also_in_a_session_of_its_own(workspace: Workspace):
    job = launch(train(workspace, "patient"))
    running(job)
    for pid in map(int, locks.read_holder(job.lock).split()):
        niceness = os.getpriority(os.PRIO_PROCESS, pid)
        assert niceness > os.getpriority(os.PRIO_PROCESS, 0)
        session = Path(f"/proc/{pid}/autogroup")
        if session.exists():  # the kernel divides the processor among sessions first
            assert session.read_text().split()[-1] == str(niceness)
    control.force_stop(job, grace_s=0.0)


def test_a_session_that_others_share_keeps_its_niceness(tmp_path: Path):
    file = tmp_path / "autogroup"
    code = ("import sys; from pathlib import Path; from core.jobs import worker;"
            "worker.extend_niceness_to_session(Path(sys.argv[1]))")
    for alone in (False, True):
        subprocess.run([sys.executable, "-c", code, str(file)], cwd=ROOT, start_new_session=alone, check=True)
        assert file.exists() == alone


def test_a_niceness_that_the_kernel_takes_later_is_offered_again(monkeypatch: pytest.MonkeyPatch):
    offered = []

    class Busy:
        def write_text(self, text: str) -> None:
            offered.append(text)
            if len(offered) < 3:
                raise BlockingIOError

    monkeypatch.setattr(worker.os, "getsid", lambda _: os.getpid())
    monkeypatch.setattr(worker.time, "sleep", lambda _: None)
    worker.extend_niceness_to_session(Busy())  # type: ignore[arg-type]
    assert offered == [str(os.getpriority(os.PRIO_PROCESS, 0))] * 3
