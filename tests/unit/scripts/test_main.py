"""`python -m scripts`: one command for each verb and each other task."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from core.jobs.verbs import VERBS
from core.workspace import Workspace
from scripts import __main__ as commands
from scripts.command import USAGE_ERROR
from tests.repository.test_readme import help_of

ROOT = Path(__file__).parents[3]


def test_all_commands_are_listed_by_task(capsys: pytest.CaptureFixture[str]) -> None:
    commands.main([])
    listed = set(re.findall(r"python -m scripts (\w+)", capsys.readouterr().out))
    texts = {path.stem: path.read_text("utf-8") for path in (ROOT / "scripts").glob("*.py")}
    programs = {name for name, text in texts.items() if "__main__" in text and "This file is not a command" not in text}
    no_commands = {"__main__", "install", "lightning"}  # the last two prepare a machine
    assert listed == programs - no_commands | set(VERBS)


def test_every_verb_is_a_command() -> None:
    for verb in VERBS:
        assert f"python -m scripts {verb}" in help_of("-m", "scripts", verb)


def test_the_former_name_of_the_training_runs_it_too() -> None:
    """torchrun takes one module: `-m scripts.train`."""
    for words in (["-m", "scripts", "train"], ["-m", "scripts.train"], [str(ROOT / "scripts" / "train.py")]):
        done = subprocess.run([sys.executable, *words, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.split()) == (0, help_of("-m", "scripts", "train").split())


def test_every_verb_keeps_its_former_name() -> None:
    """Notes, scripts and job files of people have `python -m scripts.prepare`."""
    files = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    without_file = sorted(set(VERBS) - files)
    assert len(without_file) > 15
    for verb in without_file:
        found = find_spec(f"scripts.{verb}")
        assert found is not None
        assert found.origin == str(ROOT / "scripts" / "verb.py")
    assert find_spec("scripts.nosuch") is None
    done = subprocess.run([sys.executable, "-m", "scripts.prepare", "--help"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout.split()) == (0, help_of("-m", "scripts", "prepare").split())


@pytest.mark.parametrize("words", [["prepare", "--dataset", "mine", "--source", "/nope/x", "--language", "sw"],
                                   ["export", "--run", "run:nosuch"], ["review", "nosuch"]], ids=" ".join)
def test_a_command_ends_with_its_own_exit_code(workspace: Workspace, words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "scripts", *words, "--workspace", str(workspace.path)], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == USAGE_ERROR
    assert "nosuch" in done.stderr or "There is no source /nope/x" in done.stderr
    assert workspace.list_runs() == []


@pytest.mark.parametrize(("word", "hint"), [("trian", "train"), ("pin-checkpoint", "pin_checkpoint"),
                                            ("xyz", "All commands")])
def test_an_unknown_command_is_refused_with_the_nearest(word: str, hint: str,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([word]) == USAGE_ERROR
    shown = capsys.readouterr().err
    assert f"There is no command {word!r}" in shown
    assert hint in shown


def test_an_option_before_the_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["--workspace", "w", "prepare"]) == USAGE_ERROR
    assert "'--workspace' comes before the command" in capsys.readouterr().err
