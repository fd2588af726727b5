"""What the verb `sweep` refuses before its work, which is `core.sweep`."""

from __future__ import annotations

from config.schema import SweepOptions
from core.library import sweeps
from core.verbs import train
from core.workspace import Workspace


def check(workspace: Workspace, options: SweepOptions) -> None:
    sweeps.check_sweep(options)
    train.check(workspace, options)
