"""Programs that build what Lisan ships and check what it claims."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


class _VerbFinder(MetaPathFinder):
    """Finds `scripts.VERB`, the earlier way to name a command, in `scripts/verb.py`, for verbs without a file here."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != "scripts":
            return None
        from core.jobs.verbs import VERBS

        return spec_from_file_location(fullname, Path(__file__).with_name("verb.py")) if name in VERBS else None


# Behind all others, so that it is asked for what has no file.
sys.meta_path.append(_VerbFinder())
