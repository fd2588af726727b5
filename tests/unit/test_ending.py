"""All scripts end alike: the same exit codes for the same reason, and quietly when nobody reads them any more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.jobs import control
from core.jobs.directory import load_job
from core.workspace import Workspace
from scripts import jobs as scripts_jobs
from scripts import keep, review, rules
from scripts.command import main as verb
from scripts.ending import ASKED_WRONGLY

ROOT = Path(__file__).parents[2]
SCRIPTS = [path for pattern in ("*.py", "*/__main__.py") for path in sorted((ROOT / "scripts").glob(pattern))
           if '__name__ == "__main__"' in path.read_text() and path.stem not in ("build_tiny", "made_up_weights")]


@pytest.mark.parametrize("ask", [
    lambda place: verb("train", ["--dataset", "nosuch", *place]),
    lambda place: verb("train", ["--resume", "nosuch", *place], resumable=True),
    lambda place: verb("train", ["--steps", "0", *place]),
    lambda place: verb("synthesize", ["--voice-model", "base:nosuch", "--text", "hello", *place]),
    lambda place: verb("compare", place),
    lambda place: verb("export", ["--run", "run:nosuch", *place]),
    lambda place: verb("push", place),
    lambda place: verb("doctor", ["model", "/nosuch", "/nosuch", *place]),
    lambda place: scripts_jobs.main(["resume", "nosuch", *place]),
    lambda place: keep.main(["nosuch", *place]),
    lambda place: review.main(["nosuch", *place]),
    lambda place: rules.main(["show", "nosuch", *place]),
])
def test_what_was_asked_wrongly_ends_with_2_and_begins_nothing(workspace: Workspace, ask,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(["--workspace", str(workspace.path)]) == ASKED_WRONGLY
    assert capsys.readouterr().err.count("\n") >= 2  # what is wrong, and the way out
    assert workspace.list_runs() == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_script_ends_the_same_way(path: Path) -> None:
    assert path.read_text().rstrip().splitlines()[-1].startswith("    end(")


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
    assert unread("-m", f"scripts.{words[0]}", *words[1:], "--workspace", str(workspace.path)) == (141, "")


def test_a_reader_that_goes_does_not_end_a_job(workspace: Workspace) -> None:
    script = (
        "from core.jobs import worker; from scripts import command\n"
        "from scripts.ending import end; from tests.unit import fake_verbs\n"
        "worker._verb = lambda name, verbs: fake_verbs.train\n"
        "command.check_requirements = lambda *given: ()\n"
        f"end(command.main, 'train', ['--workspace', {str(workspace.path)!r}, '--extension', 'quick', '--steps', '3',\n"
        "    '--device', 'cpu', '--name', 'mine', '--json'], resumable=True)")
    assert unread("-c", script) == (0, "")
    assert control.read_state(load_job(workspace, "mine")).status == "finished"
