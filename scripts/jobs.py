"""The jobs of a workspace: list them, move one that waits, stop or resume one.

`list` shows what runs and waits, in the order in which it gets its device, then what has ended.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import get_args

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core.jobs import control
from core.jobs.checkpoint_names import resume_point
from core.jobs.queue import Direction, move_in_queue
from core.jobs.state import STATUS_TITLES, JobBoard
from core.submission.job_subjects import subject
from core.workspace import Workspace
from scripts.command import actions_parser, exit_with, run_in_workspace

MOST = 20  # ended jobs that are listed
ACTIONS = {
    "stop": "let it finish its step and save; one that waits is taken out of the queue",
    "force-stop": "end its process now", "resume": "resume one that was stopped, failed or crashed",
    "rename": "give one a name to be shown by; its id stays, as others refer to it",
    **{direction: f"move a waiting job: {direction}" for direction in get_args(Direction)},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the action of the command line; the exit code."""
    return run_in_workspace(build_parser(), arguments, _run)


def build_parser() -> argparse.ArgumentParser:
    parser, add_action = actions_parser("jobs", __doc__, "list each job as one line of JSON")
    add_action("list", help="what runs, waits and has ended")
    for name, words in ACTIONS.items():
        action = add_action(name, help=words)
        action.add_argument("job", help="its id")
        if name == "rename":
            action.add_argument("name", help="up to 64 letters; '' removes the name")
    return parser


def _run(workspace: Workspace, args: argparse.Namespace) -> int:
    board = JobBoard(workspace)
    if args.do == "list":
        _list(board, as_json=args.json)
        return 0

    state = board.state(args.job)
    match args.do:
        case "stop":
            control.stop(state.job)
            waits = state.status == "waiting"
            print(f"{state.id} {'leaves the queue' if waits else 'finishes its step, saves, and stops'}.")
        case "force-stop":
            control.force_stop(state.job)
            print(f"{state.id} was stopped by force. {resume_point(state.job)}")
        case "resume":
            resumed = control.resume_with_dependents(state.job, board.states())
            after = ", ".join(job.id for job in resumed[1:])
            print(resume_point(state.job) + (f" Then: {after}." if after else ""))
        case "rename":
            name = control.rename(state.job, args.name)
            print(f"{state.id} is named {name}." if name else f"{state.id} has no name any more.")
        case direction:
            move_in_queue(board.queue(), state.id, direction)
            _list(board, as_json=args.json)
    return 0


def _list(board: JobBoard, *, as_json: bool) -> None:
    queue = board.queue()
    ended = [state for state in board.states() if not state.alive][:MOST]
    for state in [*queue, *ended]:
        if as_json:
            print(json.dumps({"job": state.id, "name": state.title, "verb": state.verb, "about": subject(state),
                              "status": state.status, "device": state.job.device,
                              "learning": (state.result or {}).get("learning", ""),
                              "reason": state.reason, "message": state.message}, ensure_ascii=False))
        else:
            outcome = str((state.result or {}).get("learning_outcome", ""))
            about = "; ".join(part for part in (outcome, subject(state), state.reason or state.message) if part)
            print(f"{STATUS_TITLES[state.status]:11} {state.job.device:5} {state.id}  {about}".rstrip())
    if not queue and not ended and not as_json:
        print("There are no jobs in this workspace.")


if __name__ == "__main__":
    exit_with(main)
