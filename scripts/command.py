"""The frame of every verb on the command line: flags from the schema, the run as a job, an exit code.

The job stands in the workspace like one started from the page, and is seen there; only its
process is this one. Exit codes are in `scripts.ending`.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from config.arguments import add_arguments, given_values, merged
from config.errors import UserError
from config.loading import parse_options
from config.schema import Options, TrainOptions
from core.jobs import control, worker
from core.jobs.directory import Job, create_job, load_job
from core.jobs.events import Event, Failed, Progress, Result
from core.jobs.reporter import describe
from core.jobs.state import JobState
from core.jobs.verbs import VERBS, read_preset
from core.submission import requirements
from core.workspace import Workspace
from scripts import preset
from scripts.ending import ALREADY_RUNNING, ASKED_WRONGLY, CODES, to_nobody

DEFAULT_WORKSPACE = "workspace"
Work = Callable[[Workspace, argparse.Namespace], Mapping[str, Any] | int]


def main(verb: str, arguments: Sequence[str] | None = None, *, resumable: bool = False,
         grade: Callable[[JobState], int] = lambda _state: 0, graded: str = "") -> int:
    """Run `verb` as the command line says; the exit code, which for a job that finished is its `grade`.

    `graded` says in the help when that is not 0.
    """
    parser = build_parser(verb, resumable=resumable, graded=graded)
    given = parser.parse_args(arguments)
    _take_any_letter()
    resuming = resumable and given.resume is not None
    if resuming and (given_values(given, VERBS[verb].options) or given.config or given.name or preset.given(given)):
        parser.error("--resume goes on with a run as it was configured; it takes no other option")
    try:
        workspace = Workspace.open(given.workspace)
        options = options_of(verb, given, workspace)
        if resuming:
            job = _load(workspace, verb, given.resume)
        else:
            job = create_job(workspace, verb, options,
                                 after=requirements.check_requirements(workspace, verb, options),
                              name=given.name if resumable else None)
        return run_job(job, resuming=resuming, resumable=resumable,
                       as_json=given.json) or grade(control.read_state(job))
    except UserError as error:
        return _refuse(error, given.json)


def do_at_once(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, do: Work) -> int:
    """The frame of what is no job: parse, open the workspace, `do` it, say the outcome; the exit code.

    `do` gives what `--json` tells, or an exit code when it has said all itself.
    """
    given = parser.parse_args(arguments)
    _take_any_letter()
    try:
        outcome = do(Workspace.open(given.workspace), given)
    except UserError as error:
        return _refuse(error, given.json)
    if isinstance(outcome, int):
        return outcome
    if given.json:
        print(json.dumps({"status": "ok", **outcome}, ensure_ascii=False))
    return 0


def _take_any_letter() -> None:
    """A terminal without Ethiopic letters must not end the work."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def run_job(job: Job, *, resuming: bool = False, resumable: bool = False, as_json: bool = False) -> int:
    """Run `job` in this process, with a line for each event; the exit code.

    `resumable`: its script takes `--resume`. Messages say "continue" as the page's button does; the last line says how.
    """
    console = Console()
    console.say(f"{job.id} in {job.workspace.path}")
    code = worker.run(job, control.enqueue(job, resuming=resuming), listener=console.show)
    console.end_line()
    state = control.read_state(job)
    if worth_continuing(state):
        console.say(f"To continue it: {continuing(job, resumable)}")
    if as_json:
        console.say(json_line(state))
    return code


def worth_continuing(state: JobState) -> bool:
    """Whether the job may come further as it was asked for: not so where the person must ask otherwise (a taken name).

    Hints at what can be mended around it say "continue"; one that holds the command itself needs no other. A training
    always may: it has steps and a name of its own.
    """
    refused = state.status == "failed" and not state.traceback and state.verb != "train"
    told_already = "--resume" in state.hint
    return state.resumable and not told_already and not (
        refused and "continue" not in f"{state.message} {state.hint}".lower())


def continuing(job: Job, resumable: bool) -> str:
    """The command that goes on with a job: by its own script in the terminal, or in the background."""
    where = ("--workspace", str(job.workspace.path))
    words = (f"scripts.{job.verb}", *where, "--resume") if resumable else ("scripts.jobs", *where, "resume")
    return shlex.join(("python", "-m", *words, job.id))


def json_line(state: JobState) -> str:
    """The outcome of a job as one line of strict JSON."""
    result: Result = {name: _finite(value) for name, value in (state.result or {}).items()}
    return json.dumps({
        "job": state.id, "verb": state.verb, "status": state.status, "directory": str(state.job.directory),
        "seconds": round(state.seconds, 3), "result": result, "message": state.message, "hint": state.hint,
    }, ensure_ascii=False, allow_nan=False)


def build_parser(verb: str, *, resumable: bool = False, graded: str = "") -> argparse.ArgumentParser:
    """The parser of `verb`: common arguments, then one flag for each of its options."""
    model = VERBS[verb].options
    codes = f"Exit code: {CODES.format(graded=f' or {graded}' if graded else '')}"
    parser = argparse.ArgumentParser(prog=f"python -m scripts.{verb}", description=model.__doc__, epilog=codes,
                                     allow_abbrev=False)
    parser.add_argument("--workspace", default=DEFAULT_WORKSPACE, help="folder of all artefacts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="end with the outcome as one line of JSON")
    parser.add_argument("--config", metavar="FILE", help="options from a YAML file; flags win over it")
    if resumable:
        parser.add_argument("--resume", metavar="ID", help="continue a run that was stopped, failed or crashed")
        parser.add_argument("--name", help="name of the run (default: verb and time)")
    if issubclass(model, TrainOptions):
        preset.add_arguments(parser)
    add_arguments(parser.add_argument_group("options"), model)
    return parser


def options_of(verb: str, given: argparse.Namespace, workspace: Workspace) -> Options:
    """What the flags say, above the file of `--config`, above the preset."""
    values = read_preset(given.config, verb) if given.config else {}
    values = merged(values, given_values(given, VERBS[verb].options))
    if preset.given(given):
        values = merged(preset.values(given, values, workspace), values)
    return parse_options(VERBS[verb].options, values)


def _finite(value: str | int | float | bool | None) -> str | int | float | bool | None:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _load(workspace: Workspace, verb: str, name: str) -> Job:
    job = load_job(workspace, name)
    if job.verb != verb:
        raise UserError(f"{name} is a run of {job.verb!r}, not of {verb!r}.", f"Use python -m scripts.{job.verb}.")
    return job


def _refuse(error: UserError, as_json: bool) -> int:
    """Say why nothing was begun; the exit code."""
    sys.stderr.write(f"{error.message}\n{error.hint}\n")
    if as_json:
        outcome = {"status": "refused", "message": error.message, "hint": error.hint}
        sys.stdout.write(json.dumps(outcome, ensure_ascii=False) + "\n")
    return ALREADY_RUNNING if isinstance(error, control.AlreadyRunning) else ASKED_WRONGLY


class Console:
    """Events as lines; on a terminal, progress is written over itself."""

    def __init__(self) -> None:
        self._open_line = False

    def show(self, event: Event) -> None:
        text = describe(event)
        if isinstance(event, Progress) and sys.stdout.isatty():
            sys.stdout.write(f"\r\033[K{text[:shutil.get_terminal_size().columns - 1]}")
            sys.stdout.flush()
            self._open_line = True
        elif text:
            self.end_line()
            self.say(text, failed=isinstance(event, Failed))

    def say(self, text: str, *, failed: bool = False) -> None:
        stream = sys.stderr if failed else sys.stdout
        try:
            stream.write(text + "\n")
            stream.flush()
        except BrokenPipeError:  # whoever listened has gone; the run goes on
            to_nobody(stream)

    def end_line(self) -> None:
        if self._open_line:
            sys.stdout.write("\n")
            self._open_line = False
