"""The command line of every verb: flags from the schema, the run as a job, an exit code.

The job is created in the workspace and is visible on the page, like one started there, but it runs in this process.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, Any, NoReturn, ParamSpec, get_args

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config.arguments import add_arguments, given_values, merged
from config.errors import ErrorKind, UserError, without_code_marks
from config.loading import parse_options
from config.resume_options import with_changes
from config.schema import LENGTHS, Options, TrainOptions, is_zero
from core.jobs import control, gpus, worker
from core.jobs.events import Event, Failed, Progress, Result
from core.jobs.job import Job, load_job
from core.jobs.reporter import describe
from core.jobs.state import JobBoard, JobState
from core.jobs.verbs import VERBS, read_preset, verb_module
from core.library import artefacts, catalog, lineage, presets
from core.library.records import read_extension
from core.submission import storage
from core.submission.jobs import submit, submit_certificate
from core.workspace import Workspace
from scripts import suggestions

DONE = worker.FINISHED
FAILED = worker.FAILED
"""A job failed, or a check did."""
USAGE_ERROR = 2
"""Nothing was started: a wrong option, value or name, or a missing artefact. The code of argparse."""
ALREADY_RUNNING = worker.ALREADY_RUNNING
STOPPED = worker.STOPPED
OUTPUT_CLOSED = 141
"""The reader of the output closed it, as `head` does; the code that a shell gives for a program ended by SIGPIPE."""

CODES = ("0 finished, 1 failed{graded}, 2 wrong usage (nothing was started), 3 already running, 130 stopped, "
         "141 output closed.")

DEFAULT_WORKSPACE = "workspace"
_NEWEST: Mapping[str, str] = {"segments": "segment", "tokenizer": "tokenizer", "extension": "extend",
                              "dataset": "prepare"}
"""Options whose default is the artefact that was made last, and the verb that makes it."""
_NO_CERTIFICATE = "no-certificate"
"""A file in the folder of a run that was started with `--no-certificate`."""
_Arguments = ParamSpec("_Arguments")
Work = Callable[[Workspace, argparse.Namespace], Mapping[str, Any] | int]


def run_verb(verb: str, arguments: Sequence[str] | None = None, *, grade: Callable[[JobState], int] = lambda _state: 0,
             graded: str = "", more: str = "") -> int:
    """Run `verb` with the arguments of the command line. Returns the exit code, for a finished job its `grade`.

    `graded` is the help for exit code 1 of a finished job, and `more` is help on other things that the script does.
    """
    parser = build_parser(verb, graded=graded)
    parser.epilog = f"{more} {parser.epilog}".strip()
    args = parser.parse_args(arguments)

    _replace_unknown_letters()

    # A resumed run keeps its options, except those of a training that may change.
    resuming = VERBS[verb].resumes and args.resume is not None
    other_options = given_values(args, VERBS[verb].options) or args.config
    if resuming and (args.name or is_preset_given(args)):
        parser.error("--resume continues a run with its own options; it takes no name and no preset")
    if resuming and other_options and verb != "train":
        parser.error("--resume continues a run with its own options; it takes no other option")

    # Requirements are checked before a job exists, so a refusal leaves no folder.
    changes: Mapping[str, object] = {}
    returned = False
    try:
        workspace = Workspace.open(args.workspace)
        if resuming:
            job, changes, returned = _resumed_job(verb, args, workspace)
        else:
            options = options_of(verb, args, workspace)
            # The certificate of a training is a job of its own after it, see below.
            [job] = submit(workspace, verb, options, name=args.name if VERBS[verb].resumes else None,
                           certificate=False)

        # A training ends with its certificate, unless the run was started without one.
        if verb == "train" and args.no_certificate:
            (job.directory / _NO_CERTIFICATE).touch()  # also read by a resume without the flag
        if verb == "train" and not (job.directory / _NO_CERTIFICATE).exists():
            return _train_and_certify(job, resuming=resuming, as_json=args.json, changes=changes, returned=returned)
        return run_job(job, resuming=resuming, as_json=args.json, changes=changes) or grade(control.read_state(job))
    except UserError as error:
        return _refuse(error, args.json)


def _resumed_job(verb: str, args: argparse.Namespace,
                 workspace: Workspace) -> tuple[Job, Mapping[str, object], bool]:
    """The job of `--resume`, the options that change, and whether it was returned to an earlier checkpoint."""
    run, _, checkpoint = args.resume.removeprefix("run:").partition("@")
    job = load_job(workspace, run)
    if job.verb != verb:
        raise UserError(f"{job.id} is a run of {job.verb!r}, not of {verb!r}.",
                        f"Use python -m scripts {job.verb}.")
    if verb != "train":
        if checkpoint:
            raise UserError(f"{args.resume!r} names a checkpoint, and {job.id} has none.", f"Write {job.id}.")
        return job, {}, False

    # The options are checked before checkpoints go to the bin.
    flags = given_values(args, TrainOptions)
    changes = merged(read_preset(args.config, verb) if args.config else {}, flags)
    with_changes(job.id, parse_options(TrainOptions, job.settings), changes)
    if not checkpoint:
        return job, changes, False
    step = lineage.find_checkpoint(job, checkpoint)
    for entry in storage.return_to_checkpoint(workspace, job.id, step):
        print(f"{entry.item.reference} is in the bin. It can be restored: python -m scripts storage restore "
              f"{entry.item.reference}")
    return job, changes, True


def script_parser(script: str, description: str | None, json_help: str) -> argparse.ArgumentParser:
    """A parser with the arguments that all scripts take."""
    parser = _Parser(prog=f"python -m scripts {script}", description=description, allow_abbrev=False,
                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", default=DEFAULT_WORKSPACE, help="folder of all artefacts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help=json_help)
    return parser


def actions_parser(script: str, description: str | None,
                   json_help: str) -> tuple[argparse.ArgumentParser, Callable[..., argparse.ArgumentParser]]:
    """The parser of a script with actions, and a function that adds one; `--workspace` and `--json` work on both."""
    parser: argparse.ArgumentParser = _Parser(prog=f"python -m scripts {script}", description=description,
                                              formatter_class=argparse.RawDescriptionHelpFormatter)
    anywhere = argparse.ArgumentParser(add_help=False)
    for target, otherwise in ((parser, None), (anywhere, argparse.SUPPRESS)):
        target.add_argument("--workspace", default=otherwise or DEFAULT_WORKSPACE,
                            help=f"folder of all artefacts (default: {DEFAULT_WORKSPACE})")
        target.add_argument("--json", action="store_true", default=otherwise or False, help=json_help)
    return parser, partial(parser.add_subparsers(dest="do", required=True, metavar="ACTION").add_parser,
                           parents=[anywhere])


def run_in_workspace(parser: argparse.ArgumentParser, arguments: Sequence[str] | None, do: Work) -> int:
    """Run a command that is no job: parse, open the workspace, `do` the work; the exit code.

    `do` returns what `--json` prints, or an exit code if it has printed everything itself.
    """
    args = parser.parse_args(arguments)
    _replace_unknown_letters()
    try:
        outcome = do(Workspace.open(args.workspace), args)
    except UserError as error:
        return _refuse(error, args.json)

    if isinstance(outcome, int):
        return outcome
    if args.json:
        print(json.dumps({"status": "ok", **outcome}, ensure_ascii=False))
    return 0


def _replace_unknown_letters() -> None:
    """Print escapes for characters that the terminal's encoding lacks, instead of raising an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def run_job(job: Job, *, resuming: bool = False, as_json: bool = False,
            changes: Mapping[str, object] | None = None) -> int:
    """Run `job` in this process, with a line for each event; the exit code.

    If a resume may help, the last line is the command for it. `changes`: see `control.resume`.
    """
    console = Console()
    console.say(f"{job.id} in {job.workspace.path}")
    lock = control.enqueue(job, resuming=resuming, changes=changes)
    for change in control.read_state(job).changes:
        console.say(f"Changed: {change}")
    code = worker.run_job(job, lock, listener=console.show)
    console.end_line()
    state = control.read_state(job)
    if is_worth_resuming(state):
        console.say(f"To resume: {resume_command(job)}")
    if as_json:
        console.say(json_line(state))
    return code


def _train_and_certify(training: Job, *, resuming: bool, as_json: bool, changes: Mapping[str, object],
                       returned: bool) -> int:
    """Run a training and the job that certifies it, unless another job does that already; the exit code.

    `returned`: the training resumes from an earlier checkpoint, so a certificate that is finished is not of its result.
    """
    code, result = run_job(training, resuming=resuming, changes=changes), Result()
    if code == 0:
        states = JobBoard(training.workspace).states()
        earlier = next((state for state in states if state.certifies == training.id
                        and not (returned and state.status == "finished")), None)
        if earlier is None or not (earlier.alive or earlier.status == "finished"):
            proof = earlier.job if earlier else submit_certificate(training)
            code = run_job(proof, resuming=earlier is not None and earlier.resumable)
            result = control.read_state(proof).result or {}
    state = control.read_state(training)
    if as_json:
        Console().say(json_line(replace(state, result={**(state.result or {}), **result})))
    return code


def is_worth_resuming(state: JobState) -> bool:
    """Whether a resume without other options may succeed; not if the user must change an option, such as a taken name.

    A training is worth resuming unless its hint has another command.
    """
    if not state.resumable or state.error_kind == ErrorKind.OTHER_COMMAND:
        return False
    rejected = state.status == "failed" and not state.traceback and state.verb != "train"
    return not rejected or state.error_kind == ErrorKind.ENVIRONMENT


def resume_command(job: Job) -> str:
    """The command that resumes a job: that of its verb, else `jobs`."""
    workspace_flags = ("--workspace", str(job.workspace.path))
    words = ((job.verb, *workspace_flags, "--resume") if VERBS[job.verb].resumes
             else ("jobs", *workspace_flags, "resume"))
    return shlex.join(("python", "-m", "scripts", *words, job.id))


def json_line(state: JobState) -> str:
    """The outcome of a job as one line of strict JSON."""
    result = {name: None if isinstance(value, float) and not math.isfinite(value) else value  # JSON has no NaN
              for name, value in (state.result or {}).items()}
    return json.dumps({
        "job": state.id, "verb": state.verb, "status": state.status, "directory": str(state.job.directory),
        "seconds": round(state.seconds, 3), "result": result, "message": state.message, "hint": state.hint,
    }, ensure_ascii=False, allow_nan=False)


class _Parser(argparse.ArgumentParser):
    """A parser that accepts `-3°C` as a value, as argparse accepts `-3`: only `-x` and `--word` are options."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._negative_number_matcher = re.compile(r"-(?!-?[a-zA-Z]$|-[a-zA-Z])")

    def error(self, message: str) -> NoReturn:
        """As argparse does, with the nearest known options for unknown ones."""
        super().error(suggestions.with_nearest(message, self._option_string_actions))


class _Help(argparse.HelpFormatter):
    """Wraps each paragraph of a text separately; an example stays one line, to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(part if part.startswith("Example") else super(_Help, self)._fill_text(part, width, indent)
                           for part in text.split("\n\n"))


def build_parser(verb: str, *, graded: str = "") -> argparse.ArgumentParser:
    """The parser of `verb`: common arguments, then one flag for each of its options."""
    model = VERBS[verb].options
    example = f"Example: python -m scripts {verb} {VERBS[verb].example}"
    codes = f"Exit code: {CODES.format(graded=f' or {graded}' if graded else '')}"
    parser = script_parser(verb, model.__doc__, "end with the outcome as one line of JSON")
    parser.epilog, parser.formatter_class = f"{codes}\n\n{example}", _Help
    parser.add_argument("--config", metavar="FILE", help="options from a YAML file; flags override it")
    if VERBS[verb].resumes:
        parser.add_argument("--resume", metavar="ID", help=(
            "resume a run that was stopped, failed or crashed" + (
                "; options beside it that may change replace those of the run; ID@STEP returns to an earlier "
                "checkpoint with its optimizer, and later ones go to the bin" if verb == "train" else "")))

        parser.add_argument("--name", help="name of the run (default: verb and time)")

    # Some flags are not options of the job.
    if verb == "certify":  # `scripts.certify` reads it
        parser.add_argument("--check", metavar="REFERENCE",
                            help="run:ID or export:NAME, instead of these options: compare the certificate with the "
                                 "files, in seconds and without a job. Exit code 0 only if this workspace computed it, "
                                 "it is complete, and it belongs to exactly these files; --signer NAME_OR_KEY beside "
                                 "it: only if this maker signed the export")

    if verb == "train":
        parser.add_argument("--no-certificate", action="store_true",
                            help="end after the last step, also when resumed; python -m scripts certify certifies the "
                                 "run later")
    if verb == "sweep":
        parser.add_argument("--grid", metavar="FILE",
                            help="YAML file of options of `train` and of these; an option with a list of values is "
                                 "varied; flags override it")

    # Preflight and sweeps take the presets too, as their options extend those of a training.
    if issubclass(model, TrainOptions):
        parser.add_argument("--preset", choices=("auto", *presets.NAMES),
                            help="options for an amount of speech; auto chooses by the dataset's hours; --config and "
                                 "flags override it (default: none)")
        parser.add_argument("--memory", choices=get_args(presets.Memory), default="auto",
                            help="the preset for a GPU of this many GB; auto detects it (default: %(default)s)")

    add_arguments(parser, model)
    return parser


def options_of(verb: str, args: argparse.Namespace, workspace: Workspace) -> Options:
    """The options: flags override the file of `--config`, and that overrides the preset."""
    flags = given_values(args, VERBS[verb].options)
    values = read_preset(args.config, verb) if args.config else {}
    if verb == "sweep" and args.grid:
        values = merged(values, read_grid(args.grid))
    if args.config and issubclass(VERBS[verb].options, TrainOptions):
        # Options of other training programs are shown beside those of Lisan.
        for line in suggestions.foreign_settings_table(args.config):
            print(line, file=sys.stderr)

    values = merged(without_other_lengths(values, flags), flags)
    # Wrong values are reported before missing ones.
    parse_options(VERBS[verb].options, values)
    if not (VERBS[verb].resumes and args.resume is not None):
        values = merged(values, made_last(verb, values, workspace))
    if is_preset_given(args):
        values = merged(without_other_lengths(preset_values(args, values, workspace), values), values)
    return parse_options(VERBS[verb].options, values)


def read_grid(path: str) -> dict[str, object]:
    """The options of a sweep in a YAML file: a list is the values of an option that is varied."""
    plain, varied = dict[str, object](), list[str]()
    for name, value in read_preset(path, "sweep").items():
        if not isinstance(value, list):
            plain[name] = value
            continue
        # The list becomes a part of `vary`, a text in which these signs divide options and values.
        for item in value:
            text = str(item)
            if not isinstance(item, str | int | float) or not text.strip() or any(sign in text for sign in ",;\n"):
                shown = "null" if item is None else repr(item)
                raise UserError(f"{path} varies {name!r} with {shown}; a varied value must be a number, true, false "
                                "or a text without comma, semicolon and line break.",
                                "Leave it out of the list, and start a training with it.")
        varied.append(f"{name}: {', '.join(map(str, value))}")
    if varied:
        plain["vary"] = "; ".join(filter(None, (str(plain.get("vary", "")), *varied)))
    return plain


def without_other_lengths(below: Mapping[str, object], above: Mapping[str, object]) -> Mapping[str, object]:
    """`below` without its length if `above` gives one: steps, epochs and minutes are units of the same thing."""
    if all(is_zero(above.get(name)) for name in LENGTHS):
        return below
    return {name: value for name, value in below.items() if name not in LENGTHS}


def made_last(verb: str, values: Mapping[str, object], workspace: Workspace) -> dict[str, str]:
    """Values for options that `values` lack: the artefacts that were made last, as on the page, and a name for the new
    artefact. Each is printed. `UserError` if there is no such artefact.
    """
    options, chosen = VERBS[verb].options.model_fields, dict[str, str]()

    def of(name: str) -> str:
        return str(values.get(name) or chosen.get(name) or options[name].default)

    # An artefact that the verb needs and the command line does not name is the newest one.
    for name in _NEWEST:
        if name not in options or name not in VERBS[verb].needs or VERBS[verb].makes.get(name) == name or (
                values.get(name)):
            continue
        if not options[name].default:  # the option may be left out
            continue
        names = artefacts.newest_first(workspace, name)
        if not names:
            article, maker = ("an" if name[0] in "aeiou" else "a"), _NEWEST[name]
            raise UserError(f"No {name} was named, and there is none in {workspace.path} yet.",
                            f"Give one (--{name}), or make {article} {name} first: python -m scripts {maker}.")
        if name == "dataset" and "extension" in options:  # only datasets in the languages that the extension adds
            learnt = read_extension(workspace.extension(of("extension"))).languages
            fitting = [dataset for dataset in names if artefacts.languages_of_dataset(workspace, dataset) == learnt]
            names = fitting or names
        chosen[name] = names[0]

    # A verb may name what it makes after what it reads.
    suggest_name = getattr(verb_module(verb), "suggest_name", None)
    for name in VERBS[verb].makes:
        if suggest_name and not values.get(name):
            known = {field: value for field, value in {**values, **chosen}.items() if value not in ("", None)}
            settings = {field: str(known.get(field, options[field].default)) for field in options}
            chosen |= {name: suggested} if (suggested := suggest_name(workspace, settings)) else {}

    # Standard output belongs to the result, so the choices are printed beside it.
    for name, value in chosen.items():
        print(f"{options[name].title}: {value}", file=sys.stderr)
    return chosen


def _refuse(error: UserError, as_json: bool) -> int:
    """Print why nothing was started; the exit code."""
    sys.stderr.write(without_code_marks(f"{error.message}\n{error.hint}\n"))
    if as_json:
        outcome = {"status": "refused", "message": error.message, "hint": error.hint}
        sys.stdout.write(json.dumps(outcome, ensure_ascii=False) + "\n")
    return ALREADY_RUNNING if isinstance(error, control.AlreadyRunning) else USAGE_ERROR


def is_preset_given(arguments: argparse.Namespace) -> bool:
    """Whether a preset was chosen; a memory class alone chooses one too."""
    return getattr(arguments, "preset", None) is not None or getattr(arguments, "memory", "auto") != "auto"


def preset_values(arguments: argparse.Namespace, above: Mapping[str, object],
                  workspace: Workspace) -> dict[str, object]:
    """What the preset sets below the options `above`, printed before the start."""
    defaults = TrainOptions.model_fields
    # The preset depends on the amount of speech and the memory of the GPU.
    extension, dataset = (str(above.get(name, defaults[name].default)) for name in ("extension", "dataset"))
    family = catalog.find_entry(read_extension(workspace.extension(extension)).origin.family).name
    devices = gpus.find_gpus() if above.get("device") != "cpu" else ()
    chosen = presets.fit(family, presets.speech_amount_of(workspace, dataset), devices,
                         arguments.preset or "auto", arguments.memory)

    print(f"Preset {chosen.name}: {chosen.words}")
    for reason in chosen.reasons:
        print(f"  {reason}")
    for name, value in chosen.values.items():
        instead = f" (here {above[name]})" if name in above and str(above[name]) != str(value) else ""
        print(f"  {name}: {value}{instead}")
    return dict(chosen.values)


class Console:
    """Prints events as lines; on a terminal, progress overwrites its line."""

    def __init__(self) -> None:
        self._open_line = False

    def show(self, event: Event) -> None:
        text = without_code_marks(describe(event))
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
        except BrokenPipeError:  # nobody reads the output; the run continues
            discard_output(stream)

    def end_line(self) -> None:
        if self._open_line:
            sys.stdout.write("\n")
            self._open_line = False


def exit_with(main: Callable[_Arguments, int], *positional: _Arguments.args, **named: _Arguments.kwargs) -> NoReturn:
    """Run a script's `main` and exit with its code; a `UserError` is told in its sentence and hint."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115

    try:
        try:
            code = main(*positional, **named)
        except UserError as error:
            code = _refuse(error, as_json=False)
        finally:
            sys.stdout.flush()  # here, where it can be caught; at the exit Python prints a traceback
    except BrokenPipeError:
        # What remains in the buffers would raise the error again at exit.
        for stream in (sys.stdout, sys.stderr):
            discard_output(stream)
        code = OUTPUT_CLOSED
    sys.exit(code)


def discard_output(stream: IO[str]) -> None:
    """Redirect a stream without a reader to /dev/null (Python's manual, `signal`, note on SIGPIPE)."""
    try:
        stream.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


if __name__ == "__main__":
    print("This file is not a command. The commands: python -m scripts")
