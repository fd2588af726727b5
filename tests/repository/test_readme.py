"""Every command in the documents exists and takes the arguments that it is shown with."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from itertools import dropwhile
from pathlib import Path

import pytest

from config.arguments import given_values
from config.loading import parse_options
from core.jobs.verbs import VERBS, read_preset
from core.submission import job_chains
from scripts import command

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "docs/guide.md", "docs/families.md", "docs/benchmarks.md", "docs/decisions.md",
             "docs/lightning.md", "docs/deploy.md", "docs/elsewhere.md",
             *(f"docs/benchmarks/{path.name}" for path in sorted((ROOT / "docs" / "benchmarks").glob("*.md"))))
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "requirements-reference.txt")
FIRST_SCREEN = 12  # lines


def shell_lines(text: str) -> list[str]:
    """Lines of the `sh` blocks, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


OTHER_PROGRAMS = ("ssh-keygen", "minisign", "sha256sum")  # theirs to say what they accept
COMMANDS = sorted({line for name in DOCUMENTS for line in shell_lines(read(name))})


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), flags=re.MULTILINE))


def check_make(words: list[str]) -> None:
    assert [word for word in words if "=" not in word] in [[target] for target in make_targets()]


def check_verb(verb: str, arguments: list[str]) -> None:
    """Parse as the command itself does, down to the checked options."""
    given = command.build_parser(verb).parse_args(arguments)
    below = read_preset(ROOT / given.config, verb) if given.config else {}
    parse_options(VERBS[verb].options, {**below, **given_values(given, VERBS[verb].options)})


@cache
def help_of(*program: str) -> str:
    """What `python PROGRAM --help` prints. It runs in this process: another would first import torch."""
    module, *words = program[1:] if program[0] == "-m" else (program[0].removesuffix(".py"),)
    place = ROOT / module.replace(".", "/")
    path = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
    said = io.StringIO()
    with redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(path), *words, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path), run_name="__main__")
    assert not ended.value.code
    return said.getvalue()


def check_help(program: list[str], arguments: list[str]) -> None:
    shown = help_of(*program)
    assert [word for word in arguments if word.startswith("--") and word not in shown] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_documents_exists(line: str) -> None:
    words = list(dropwhile(lambda word: re.fullmatch("[A-Z_]+=.*", word), shlex.split(line, comments=True)))
    if words[0] == "make":
        check_make(words[1:])
        return
    if words[0] in OTHER_PROGRAMS:
        return
    assert words[0] == "python", f"an unknown kind of command: {line}"
    if words[1] != "-m":
        check_help(words[1:2], words[2:])
        return
    if words[2] != "scripts":
        assert words[2].startswith(("scripts.dev.", "scripts.install"))
        check_help(words[1:3], words[3:])
        return

    command_name, arguments = words[3], words[4:]
    is_no_job = arguments and (command_name, arguments[0]) in (
        ("listening_test", "import"), ("listening_test", "results"), ("certify", "--check"))
    if command_name in VERBS and not is_no_job:
        check_verb(command_name, arguments)
    else:
        check_help(words[1:4], arguments)


def test_the_first_screen_is_the_commands() -> None:
    top = "\n".join(read("README.md").splitlines()[:FIRST_SCREEN])
    assert [line.split("#")[0].strip() for line in shell_lines(top)] == ["make run", "make demo"]


def test_the_commands_find_what_the_button_and_the_demo_made() -> None:
    """With other options of the same names they would be refused in a workspace that has seen `make demo`."""
    lines = [shlex.split(line, comments=True) for line in shell_lines(read("README.md"))]
    shown = {words[3]: words[4:] for words in lines if words[:3] == ["python", "-m", "scripts"] and words[3:]}
    for verb, chosen in job_chains.chain_steps(job_chains.ChainOptions()):
        if verb in ("tokenizer", "extend"):
            given = command.build_parser(verb).parse_args(shown[verb])
            assert parse_options(VERBS[verb].options, given_values(given, VERBS[verb].options)) == chosen


def test_every_verb_is_shown_in_the_guide() -> None:
    shown = {line.split()[3] for line in shell_lines(read("docs/guide.md")) if line.startswith("python -m scripts ")}
    assert shown >= set(VERBS)


def test_what_make_calls_is_there() -> None:
    makefile = read("Makefile")
    called = re.findall(r"\$\(PY\) -m scripts[. ]([a-z_.]+)", makefile)
    assert {"demo", "download", "prepare", "doctor"} <= set(called)
    assert [name for name in called
            if name not in VERBS and not (ROOT / "scripts" / f"{name.replace('.', '/')}.py").is_file()] == []
    assert "$(PY) app.py" in makefile
    assert (ROOT / "app.py").is_file()


@pytest.mark.parametrize("arguments", [
    ("ARGS=--workspace /data/x --port 0",), ("ARGS=--port 0 --workspace=/data/x",), ("WORKSPACE=/data/x",)])
def test_a_workspace_is_that_of_all_of_make_run(arguments: tuple[str, ...]) -> None:
    told = subprocess.run(["make", "-n", "run", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line for line in told.stdout.splitlines() if "-m scripts" in line or "app.py" in line][-3:]
    assert len(lines) == 3
    assert all('--workspace "/data/x"' in line for line in lines)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", read(name))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_requirements_are_exact() -> None:
    lines = [line for name in REQUIREMENTS for line in read(name).splitlines()]
    pins = [line for line in lines if line and not line.startswith(("#", "-r "))]
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9_-]+==[0-9]+(\.[0-9]+)+", line)] == []


def test_a_wrong_flag_is_found() -> None:
    with pytest.raises(SystemExit):
        check_verb("train", ["--stepz", "7"])
    with pytest.raises(AssertionError):
        check_make(["rum"])
