"""Options from what people give: form values, flags, YAML. Every fault is reported at once, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import ValidationError

from config.errors import UserError
from config.schema import VERBS, Options

_SAME_OPTIONS = {"preflight": "train"}  # a verb takes what was written for another
ABOUT = "preset"
"""The section of a preset that says what it is for; it holds no options."""

SomeOptions = TypeVar("SomeOptions", bound=Options)


def parse_options(model: type[SomeOptions], values: Mapping[str, object]) -> SomeOptions:
    """`model` from `values`; `UserError` names each wrong field, the value seen and what is wanted."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {plain_fault(fault['msg'], fault['input'])}"
            for fault in error.errors()
        ]
        raise UserError("Options that cannot be used: " + "; ".join(faults) + ".", "Mend these values.") from error


def plain_fault(message: str, given: object) -> str:
    """What is wrong with a value, without the library's words; a value that was not given is called so."""
    said = message.removeprefix("Value error, ").removeprefix("Input ")
    shown = "nothing was given" if given in (None, "") else f"given: {given!r}"
    return f"{said} ({shown})"


def read_preset(path: str | Path, verb: str) -> dict[str, object]:
    """Options of `verb` in a YAML file.

    The file holds the options alone, or a section for each of several verbs (`presets/demo.yaml`),
    or it is a job's own `config.yaml`, to do the same again.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        values = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"The preset {path} could not be read: {error}.", "Give a YAML file of options.") from error
    if not isinstance(values, dict):
        raise UserError(f"The preset {path} holds no options.", "Write one `name: value` a line.")
    values.pop(ABOUT, None)
    if values and set(values) <= set(VERBS):
        values = values.get(verb) or values.get(_SAME_OPTIONS.get(verb, "")) or {}
    if "verb" in values and values["verb"] not in (verb, _SAME_OPTIONS.get(verb)):
        raise UserError(f"The preset {path} is for {values['verb']!r}, not for {verb!r}.", "Give the right file.")
    options = values.get("options", {}) if "verb" in values else values
    return {str(name): value for name, value in options.items()}
