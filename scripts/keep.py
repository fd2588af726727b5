"""Name a checkpoint of a run, so that it is never deleted: `RUN STEP NAME`; `RUN --release NAME` takes the name away.

With `RUN` alone the checkpoints are listed. The run may go on meanwhile; `run:RUN@NAME` then stands for the checkpoint.
"""

import argparse
import json
from collections.abc import Sequence

from core.jobs import checkpoint_names
from core.workspace import Workspace
from scripts.command import DEFAULT_WORKSPACE, do_at_once
from scripts.ending import DONE, end


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.keep", description=__doc__)
    parser.add_argument("run", help="id of the run")
    parser.add_argument("step", nargs="?", type=int, help="step of the checkpoint to keep")
    parser.add_argument("name", nargs="?", help="its name")
    parser.add_argument("--release", metavar="NAME", help="take this name away")
    parser.add_argument("--workspace", default=DEFAULT_WORKSPACE, help="folder of all artefacts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="end with the checkpoints as one line of JSON")
    given = parser.parse_args(arguments)
    if (given.step is None) != (given.name is None) or (given.release and given.step is not None):
        parser.error("give a step and a name, or --release with a name, or the run alone")
    return do_at_once(parser, arguments, _do)


def _do(workspace: Workspace, given: argparse.Namespace) -> int:
    run = workspace.run(given.run)
    if given.release:
        print(f"The checkpoint of step {checkpoint_names.unpin(run, given.release)} may be deleted again.")
    elif given.name:
        checkpoint_names.pin(run, given.step, given.name)
        print(f"The checkpoint of step {given.step} is kept as {given.name}: run:{given.run}@{given.name}")
    _show(run.name, checkpoint_names.checkpoint_steps(run), checkpoint_names.pinned_names(run), given.json)
    return DONE


def _show(run: str, steps: list[int], names: dict[str, int], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"run": run, "steps": steps, "names": names}, ensure_ascii=False))
        return
    for step in steps:
        called = ", ".join(name for name, named in names.items() if named == step)
        print(f"step {step}{': ' + called if called else ''}")


if __name__ == "__main__":
    end(main)
