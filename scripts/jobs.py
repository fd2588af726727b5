"""The jobs of a workspace: list them, move one that waits, stop or resume one.

`list` shows what runs and waits, in the order in which it gets its device, then what has ended.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from core.jobs import checkpoint_names, control
from core.jobs.queue import Direction, move_in_queue
from core.jobs.state import JobBoard
from core.workspace import Workspace
from scripts.command import DEFAULT_WORKSPACE, run_in_workspace
from scripts.exit_codes import exit_with

MOST = 20  # ended jobs that are listed
Action = Callable[[JobBoard, str], str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked; the exit code."""
    return run_in_workspace(build_parser(), arguments, _do)


def _do(workspace: Workspace, given: argparse.Namespace) -> int:
    board = JobBoard(workspace)
    said = {**ACTIONS, **MOVES}[given.do](board, given.job) if given.do != "list" else ""
    if said:
        print(said)
    else:
        _list(board, as_json=given.json)
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.jobs", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for where, otherwise in ((parser, None), (anywhere := argparse.ArgumentParser(add_help=False), argparse.SUPPRESS)):
        where.add_argument("--workspace", default=otherwise or DEFAULT_WORKSPACE,
                           help=f"folder of all artefacts (default: {DEFAULT_WORKSPACE})")
        where.add_argument("--json", action="store_true", default=otherwise or False,
                           help="list each job as one line of JSON")
    parts = parser.add_subparsers(dest="do", required=True, metavar="WHAT")
    parts.add_parser("list", help="what runs, waits and has ended", parents=[anywhere]).set_defaults(job="")
    for name, words in {**_HELP, **{name: f"move a waiting job: {name}" for name in MOVES}}.items():
        parts.add_parser(name, help=words, parents=[anywhere]).add_argument("job", help="its id")
    return parser


def _stop(board: JobBoard, name: str) -> str:
    state = board.state(name)
    control.stop(state.job)
    return f"{name} {'leaves the queue' if state.status == 'waiting' else 'finishes its step, saves, and stops'}."


def _force_stop(board: JobBoard, name: str) -> str:
    job = board.state(name).job
    control.force_stop(job)
    return f"{name} was stopped by force. {checkpoint_names.resume_point(job)}"


def _resume(board: JobBoard, name: str) -> str:
    job = board.state(name).job
    resumed = control.resume_with_dependents(job, board.states())
    after = [one.id for one in resumed[1:]]
    return checkpoint_names.resume_point(job) + (f" Then: {', '.join(after)}." if after else "")


def _mover(direction: Direction) -> Action:
    def move(board: JobBoard, name: str) -> str:
        move_in_queue(board.queue(), name, direction)
        return ""

    return move


_HELP: Mapping[str, str] = {
    "stop": "let it finish its step and save; one that waits is taken out of the queue",
    "force-stop": "end its process now", "resume": "continue one that was stopped, failed or crashed",
}
ACTIONS: Mapping[str, Action] = {"stop": _stop, "force-stop": _force_stop, "resume": _resume}
MOVES: Mapping[str, Action] = {direction: _mover(direction) for direction in get_args(Direction)}


def _list(board: JobBoard, *, as_json: bool) -> None:
    queue = board.queue()
    ended = [state for state in board.states() if not state.alive][:MOST]
    for state in [*queue, *ended]:
        if as_json:
            print(json.dumps({"job": state.id, "verb": state.verb, "status": state.status, "device": state.job.device,
                              "reason": state.reason, "message": state.message}, ensure_ascii=False))
        else:
            print(f"{state.status:9} {state.job.device:5} {state.id}  {state.reason or state.message}".rstrip())
    if not queue and not ended and not as_json:
        print("There are no jobs in this workspace.")


if __name__ == "__main__":
    exit_with(main)
