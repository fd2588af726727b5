"""Options from what people give: form values, flags, YAML. Every fault is reported at once, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from config import foreign
from config.errors import UserError
from config.schema import Options

SomeOptions = TypeVar("SomeOptions", bound=Options)
Record = TypeVar("Record")


def parse_options(model: type[SomeOptions], values: Mapping[str, object]) -> SomeOptions:
    """`model` from `values`; `UserError` names each wrong field, the value seen and what is wanted."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {plain_fault(fault['msg'], fault['input'])}"
            for fault in error.errors()
        ]
        raise UserError("Options that cannot be used: " + "; ".join(faults) + ".", "Correct these values.") from error


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


def plain_fault(message: str, given: object) -> str:
    """What is wrong with a value, without the library's words; a value that was not given is called so."""
    problem = message.removeprefix("Value error, ").removeprefix("Input ")
    problem = "is too large" if problem.endswith("as an integer, exceeded maximum size") else problem
    shown = "nothing was given" if given in (None, "") else f"given: {given!r}"
    return f"{problem} ({shown})"
