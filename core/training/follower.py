"""A process of a training beside its worker: `python -m core.training.follower WORKSPACE`, with torchrun's environment.

It does what rank 0 says, and writes nothing. It ends when rank 0 says so, or dies.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from config.schema import TrainOptions
from core import compute
from core.jobs.events import Event
from core.training import company
from core.training.opening import open_run
from core.workspace import Workspace


@dataclass(frozen=True)
class Silent:
    """A reporter that tells nobody; rank 0 tells."""

    directory: Path

    def emit(self, event: Event) -> None:
        """Rank 0 has said it."""

    def stop_requested(self) -> bool:
        return False


def main(arguments: list[str]) -> int:
    """Follow rank 0 through its run."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for rank 0, which says what becomes of the others
        signal.signal(number, signal.SIG_IGN)
    workspace = Workspace(Path(arguments[0]).absolute())
    device = compute.setup_device(os.environ.get("LISAN_DEVICE", "auto"))
    company.meet("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device)
    beside = company.Company()
    try:
        follow(beside, workspace, device)
    finally:
        beside.leave()
    return 0


def follow(beside: company.Company, workspace: Workspace, device: torch.device) -> None:
    """Open the run that rank 0 names, and take its steps."""
    name, settings = beside.agree(None)
    run = Silent(workspace.runs / name)
    trainer = open_run(TrainOptions(**settings), workspace, run, device, company=beside).trainer
    while (heard := beside.hear())[0] != company.END:
        word, setting = heard
        if setting is not None and setting != trainer.setting:
            trainer.use(setting)
        if word == company.STEP:
            trainer.take_step()
        elif word == company.GATHER:
            trainer.gather()
        elif word == company.TRIAL:
            trainer.attempt(())
        else:
            trainer.state()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
