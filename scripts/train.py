"""Train the extended model on a dataset, or resume a run (`--resume ID`).

Over several machines: `torchrun --nnodes N --nproc-per-node M ... -m scripts.train ...`; the workspace is shared.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

import scripts  # noqa: F401  so that this file can be run directly, see scripts/scripts.py
from core.workspace import Workspace
from scripts.command import DEFAULT_WORKSPACE, DONE, STOPPED, exit_with, run_verb


def other_rank() -> int:
    """The ranks of torchrun but the first: they run the loop of rank 0 and write nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workspace", default=DEFAULT_WORKSPACE)
    # As the ranks that Lisan starts itself: python -m core.train WORKSPACE.
    sys.argv = ["core.train", parser.parse_known_args()[0].workspace]
    runpy.run_module("core.train", run_name="__main__", alter_sys=True)
    return DONE


def rank_0(arguments: Sequence[str]) -> int:
    """The training. If torchrun starts its ranks again (`--max-restarts`), the run of the first start is resumed."""
    code = run_verb("train", restarted_arguments(arguments) or arguments)
    # A stop is no failure: torchrun would start the ranks again.
    return 0 if code == STOPPED and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) else code


def restarted_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments that resume the run `--name` after a restart by torchrun; empty if it must be started.

    Its options are those of the first start, so no other ones are given.
    """
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return []
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--workspace", default=DEFAULT_WORKSPACE)
    parser.add_argument("--name", default="")
    switches = ("--json", "--no-certificate")
    for switch in switches:
        parser.add_argument(switch, action="store_true")
    options, _ = parser.parse_known_args(arguments)

    # Without a name, or if the first start ended before it created the run, there is nothing to resume.
    if not options.name or not (Workspace.open(options.workspace).runs / options.name).is_dir():
        return []
    return ["--workspace", options.workspace, "--resume", options.name,
            *(switch for switch in switches if getattr(options, switch[2:].replace("-", "_")))]


if __name__ == "__main__":
    if int(os.environ.get("RANK", "0")) > 0:
        exit_with(other_rank)
    exit_with(rank_0, sys.argv[1:])
