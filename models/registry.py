"""Families by name. The code of a family is imported on demand, in the worker only."""

from __future__ import annotations

from importlib import import_module

from config.errors import UserError
from models.base import Family

FAMILIES = {"tiny": "models.tiny.family:Tiny", "chatterbox": "models.chatterbox.family:Chatterbox",
            "indextts2": "models.indextts2.family:IndexTTS2"}


def family(name: str) -> Family:
    """The family called `name`."""
    if name not in FAMILIES:
        raise UserError(f"There is no model family {name!r}.", f"Choose one of: {', '.join(sorted(FAMILIES))}.")
    module, _, attribute = FAMILIES[name].partition(":")
    return getattr(import_module(module), attribute)()
