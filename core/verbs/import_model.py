"""What the verb `import_model` refuses before its work, which is `core.import_model`."""

from __future__ import annotations

from config.errors import UserError
from config.schema import ImportModelOptions
from core.workspace import Workspace


def check(workspace: Workspace, options: ImportModelOptions) -> None:
    """Base, checkpoint and language must be given; the job compares the files."""
    for field in ("base", "checkpoint", "language"):
        if not getattr(options, field):
            title = ImportModelOptions.model_fields[field].title
            raise UserError(f"{title} is missing.", f"{ImportModelOptions.model_fields[field].description}")
