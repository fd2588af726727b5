"""All scripts end alike: the same exit codes for the same reason, and quietly when nobody reads them any more."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from config.schema import DownloadOptions
from core.jobs import control
from core.jobs.events import Failed, Journal
from core.jobs.job import create_job, load_job
from core.workspace import Workspace
from scripts import jobs as scripts_jobs
from scripts import pin_checkpoint, review, rules
from scripts.command import USAGE_ERROR
from scripts.command import run_verb as verb

ROOT = Path(__file__).parents[3]
SCRIPTS = [path for pattern in ("*.py", "dev/*/__main__.py") for path in sorted((ROOT / "scripts").glob(pattern))
           if '__name__ == "__main__"' in path.read_text() and "This file is not a command" not in path.read_text()
           and path.name != "install.py"]  # it runs before the packages that exit_with imports are there


@pytest.mark.parametrize("ask", [
    lambda place: verb("train", ["--dataset", "nosuch", *place]),
    lambda place: verb("train", ["--resume", "nosuch", *place]),
    lambda place: verb("train", ["--steps", "0", *place]),
    lambda place: verb("synthesize", ["--voice-model", "base:nosuch", "--text", "hello", *place]),
    lambda place: verb("compare", place),
    lambda place: verb("export", ["--run", "run:nosuch", *place]),
    lambda place: verb("push", place),
    lambda place: verb("doctor", ["model", "/nosuch", "/nosuch", *place]),
    lambda place: scripts_jobs.main(["resume", "nosuch", *place]),
    lambda place: pin_checkpoint.main(["nosuch", *place]),
    lambda place: review.main(["nosuch", *place]),
    lambda place: rules.main(["show", "nosuch", *place]),
])
def test_what_was_asked_wrongly_ends_with_2_and_begins_nothing(workspace: Workspace, ask,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(["--workspace", str(workspace.path)]) == USAGE_ERROR
    assert capsys.readouterr().err.count("\n") >= 2  # what is wrong, and the way out
    assert workspace.list_runs() == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_script_ends_the_same_way(path: Path) -> None:
    assert path.read_text().rstrip().splitlines()[-1].startswith("    exit_with(")


def unread(*command: str) -> tuple[int, str]:
    """The exit code and the complaints of a command whose output nobody reads."""
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        complaints = process.stderr.read()
    return process.returncode, complaints


@pytest.mark.parametrize("words", [["jobs", "list"], ["rules"]], ids=" ".join)
def test_a_reader_that_goes_ends_a_command_quietly(workspace: Workspace, words: Sequence[str]) -> None:
    assert unread("-m", "scripts", words[0], *words[1:], "--workspace", str(workspace.path)) == (141, "")


def test_a_reader_that_stops_in_the_middle_ends_a_command_quietly(workspace: Workspace) -> None:
    for _ in range(20):
        journal = Journal(create_job(workspace, "download", DownloadOptions()).journal)
        journal.append(Failed("m" * 9000))
        journal.close()
    command = [sys.executable, "-m", "scripts", "jobs", "list", "--workspace", str(workspace.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(6) == "failed"
        process.stdout.close()
        complaints = process.stderr.read()
    assert (process.returncode, complaints) == (141, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output_is_no_fault(workspace: Workspace, closed: str) -> None:
    command = shlex.join([sys.executable, "-m", "scripts", "jobs", "list", "--workspace", str(workspace.path)])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_does_not_end_a_job(workspace: Workspace) -> None:
    script = (
        "from core.jobs import worker; from scripts import command\n"
        "from scripts.command import exit_with; from tests.unit import fake_verbs\n"
        "worker.import_work = lambda name: fake_verbs.train\n"
        "from core.submission import jobs; jobs.check_requirements = lambda *given: ()\n"
        f"exit_with(command.run_verb, 'train', ['--workspace', {str(workspace.path)!r}, '--extension', 'quick',\n"
        "    '--dataset', 'none', '--steps', '3', '--device', 'cpu', '--name', 'mine', '--no-certificate', '--json'])")
    assert unread("-c", script) == (0, "")
    assert control.read_state(load_job(workspace, "mine")).status == "finished"
