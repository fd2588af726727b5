"""Pin a checkpoint of a run under a name, so that it is never deleted: `RUN STEP NAME`; `RUN --unpin NAME` ends that.

With `RUN` alone the checkpoints are listed. The run may still be training. `run:RUN@NAME` refers to the checkpoint.
`RUN --use STEP` lets `run:RUN` of a finished run refer to that checkpoint instead of the best one, and certifies it;
`RUN --use best` ends that.
"""

import argparse
import json
from collections.abc import Sequence

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from config.schema import CertifyOptions
from core.jobs import checkpoint_names, control
from core.library import lineage
from core.submission.jobs import submit
from core.workspace import Workspace
from scripts.command import DONE, exit_with, run_in_workspace, run_job, script_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked; the exit code."""
    parser = script_parser("pin_checkpoint", __doc__, "end with the checkpoints as one line of JSON")
    parser.add_argument("run", help="id of the run")
    parser.add_argument("step", nargs="?", type=int, help="step of the checkpoint to pin")
    parser.add_argument("name", nargs="?", help="its name")
    parser.add_argument("--unpin", metavar="NAME", help="remove this name; the run may delete the checkpoint again")
    parser.add_argument("--use", metavar="STEP", help="let the run refer to the checkpoint of this step or pinned "
                                                      "name, and certify it; `best`: to the best one again")
    args = parser.parse_args(arguments)
    actions = (args.step is not None, bool(args.unpin), bool(args.use))
    if (args.step is None) != (args.name is None) or sum(actions) > 1:
        parser.error("give a step and a name, or --unpin with a name, or --use with a step, or the run alone")
    return run_in_workspace(parser, arguments, _do)


def _do(workspace: Workspace, args: argparse.Namespace) -> int:
    job, code = lineage.find_training(workspace, args.run), DONE
    run = job.directory

    if args.unpin:
        print(f"The checkpoint of step {checkpoint_names.unpin(run, args.unpin)} may be deleted again.")
    elif args.name:
        checkpoint_names.pin(run, args.step, args.name)
        print(f"The checkpoint of step {args.step} is pinned as {args.name}: run:{job.id}@{args.name}")
    elif args.use:
        control.require_finished(job)
        [proof] = submit(workspace, "certify", CertifyOptions(run=f"run:{job.id}@{args.use}"))
        code = run_job(proof)

    # Every call ends with the list of checkpoints.
    steps, names = checkpoint_names.checkpoint_steps(run), checkpoint_names.pinned_names(run)
    if args.json:
        print(json.dumps({"run": run.name, "steps": steps, "names": names}, ensure_ascii=False))
        return code
    for step in steps:
        labels = ", ".join(name for name, named in names.items() if named == step)
        print(f"step {step}{': ' + labels if labels else ''}")
    return code


if __name__ == "__main__":
    exit_with(main)
