"""Pin a checkpoint of a run under a name, so that it is never deleted: `RUN STEP NAME`; `RUN --unpin NAME` ends that.

With `RUN` alone the checkpoints are listed. The run may go on meanwhile; `run:RUN@NAME` then stands for the checkpoint.
"""

import argparse
import json
from collections.abc import Sequence

from core.jobs import checkpoint_names
from core.workspace import Workspace
from scripts.command import run_in_workspace, script_parser
from scripts.exit_codes import DONE, exit_with


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked; the exit code."""
    parser = script_parser("pin_checkpoint", __doc__, "end with the checkpoints as one line of JSON")
    parser.add_argument("run", help="id of the run")
    parser.add_argument("step", nargs="?", type=int, help="step of the checkpoint to pin")
    parser.add_argument("name", nargs="?", help="its name")
    parser.add_argument("--unpin", metavar="NAME", help="remove this name; the run may delete the checkpoint again")
    given = parser.parse_args(arguments)
    if (given.step is None) != (given.name is None) or (given.unpin and given.step is not None):
        parser.error("give a step and a name, or --unpin with a name, or the run alone")
    return run_in_workspace(parser, arguments, _do)


def _do(workspace: Workspace, given: argparse.Namespace) -> int:
    run = workspace.run(given.run)
    if given.unpin:
        print(f"The checkpoint of step {checkpoint_names.unpin(run, given.unpin)} may be deleted again.")
    elif given.name:
        checkpoint_names.pin(run, given.step, given.name)
        print(f"The checkpoint of step {given.step} is pinned as {given.name}: run:{given.run}@{given.name}")
    steps, names = checkpoint_names.checkpoint_steps(run), checkpoint_names.pinned_names(run)
    if given.json:
        print(json.dumps({"run": run.name, "steps": steps, "names": names}, ensure_ascii=False))
        return DONE
    for step in steps:
        called = ", ".join(name for name, named in names.items() if named == step)
        print(f"step {step}{': ' + called if called else ''}")
    return DONE


if __name__ == "__main__":
    exit_with(main)
