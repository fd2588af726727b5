"""What the verb `doctor` refuses before its work, which is `core.doctor`."""

from __future__ import annotations

from config.schema import DoctorOptions
from core.submission.requirements import check_new_export
from core.workspace import Workspace


def check(workspace: Workspace, options: DoctorOptions) -> None:
    if options.restore:
        check_new_export(workspace, options.restore)
