"""Options from what people give: form values, flags, YAML. Every fault is reported at once, in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from config import foreign
from config.errors import UserError
from config.schema import NAME_RULE, NO_NAME, Options, in_sections, option_fields, option_path, without_sections

SomeOptions = TypeVar("SomeOptions", bound=Options)
Record = TypeVar("Record")


def parse_options(model: type[SomeOptions], values: Mapping[str, object]) -> SomeOptions:
    """`model` from `values`; `UserError` names each wrong field, the value seen and the values allowed.

    An option of a section may be named with its section or without it, as in files from before there were sections.
    """
    try:
        return model.model_validate(in_sections(model, values))
    except ValidationError as error:
        faults, hint = plain_faults(error, {path: name for path, (name, _title) in option_titles(model).items()})
        raise UserError("Options that cannot be used: " + "; ".join(faults) + ".", hint) from error


def change_options(options: SomeOptions, changes: Mapping[str, object]) -> SomeOptions:
    """`options` with `changes`, whose names have no section, checked as `parse_options` does."""
    kind = type(options)
    return parse_options(kind, {**without_sections(kind, options.model_dump(mode="json")), **changes})


def option_titles(model: type[Options]) -> dict[str, tuple[str, str]]:
    """By path with dots the name and the title of each option in a section; both are empty for a section itself."""
    titles = dict[str, tuple[str, str]]()
    for name, field in option_fields(model).items():
        *sections, _ = path = option_path(model, name)
        if sections:
            titles |= {".".join(sections): ("", ""), ".".join(path): (name, field.title or name)}
    return titles


def plain_faults(error: ValidationError, titles: Mapping[str, str]) -> tuple[list[str], str]:
    """Each fault with the title of its field, else its name, and what to do; an item is a fault of its list."""
    faults = []
    for fault in error.errors():
        path = ".".join(part for part in fault["loc"] if isinstance(part, str))
        name = titles.get(path, path)
        # A fault of several options together names them itself; its input would be all options there are.
        if not name:
            faults.append(fault["msg"].removeprefix("Value error, "))
            continue
        faults.append(f"{name}: {plain_fault(fault['msg'], fault['input'])}")
    of_names = any(NO_NAME in fault for fault in faults)
    return faults, f"{NAME_RULE}." if of_names else "Correct these values."


def read_record(path: Path, kind: type[Record], hint: str) -> Record:
    """The dataclass `kind` from the JSON in `path`; `UserError` with `hint` when it is missing or damaged."""
    try:
        return cast("Record", _parsed(path, kind))
    except ValidationError as error:
        faults = "; ".join(": ".join(filter(None, (".".join(map(str, fault['loc'])), fault['msg'])))
                           for fault in error.errors())
        raise UserError(f"{path} could not be read: {faults}.", hint) from error
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", hint) from error


@foreign.cached_by_file(1 << 14)
def _parsed(path: Path, kind: type) -> object:
    return _type_of(kind).validate_json(foreign.read_bytes(path))


@cache
def _type_of(kind: type) -> TypeAdapter[object]:
    """Made once: 5 ms each, and a page may read a thousand records."""
    return TypeAdapter(kind)


_WORDS = {"should be a valid integer, unable to parse string as an integer": "should be a whole number",
          "should be a valid number, unable to parse string as a number": "should be a number"}


def plain_fault(message: str, value: object) -> str:
    """What is wrong with a value, without the library's words, and the value unless it was named already."""
    is_ours = message.startswith("Value error, ")
    problem = message.removeprefix("Value error, ").removeprefix("Input ")
    problem = "is too large" if problem.endswith("as an integer, exceeded maximum size") else problem
    value = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    if is_ours and (not value or re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", problem)):
        return problem
    seen = "nothing was given" if value in (None, "") else f"given: {value!r}"
    return f"{_WORDS.get(problem, problem)} ({seen})"
