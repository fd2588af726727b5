"""Import Gradio in half the time.

Gradio parses its own source and rewrites its `.pyi` stubs each time that it is imported:
1.2 of 2.2 seconds of processor time on the machine where this was measured. It leaves out
classes whose source file cannot be found, so during the import that is what it is told.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from types import ModuleType


def import_gradio() -> ModuleType:
    """`gradio`, with its telemetry off and without rewriting its stubs."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    if "gradio" in sys.modules:
        return sys.modules["gradio"]
    find_source = inspect.getfile

    def without_components(thing: object) -> str:
        if type(thing).__name__ == "ComponentMeta":
            raise OSError("stubs are not wanted")
        return find_source(thing)  # type: ignore[arg-type]

    inspect.getfile = without_components  # type: ignore[assignment]
    try:
        return importlib.import_module("gradio")
    finally:
        inspect.getfile = find_source
