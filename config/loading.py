"""Options from what people give: form values, flags, YAML. Every fault is reported at once, in plain words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, lru_cache
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
        raise UserError("Options that cannot be used: " + "; ".join(faults) + ".", "Mend these values.") from error


def read_record(path: Path, kind: type[Record], hint: str) -> Record:
    """The dataclass `kind` from the JSON in `path`; `UserError` with `hint` when it is missing or damaged."""
    try:
        status = os.stat(path)
        return cast("Record", _parsed(path, kind, status.st_mtime_ns, status.st_size))  # type: ignore[arg-type]
    except ValidationError as error:
        faults = "; ".join(": ".join(filter(None, (".".join(map(str, fault['loc'])), fault['msg'])))
                           for fault in error.errors())
        raise UserError(f"{path} could not be read: {faults}.", hint) from error
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", hint) from error


@lru_cache(1 << 14)
def _parsed(path: Path, kind: type[Record], _changed: int, _size: int) -> Record:
    """Kept while the file is as it was: a page asks for the records of all runs each second. Do not change it."""
    return _type_of(kind).validate_json(foreign.read_bytes(path))  # type: ignore[arg-type]


@cache
def _type_of(kind: type[Record]) -> TypeAdapter[Record]:
    """Made once: 5 ms each, and a page may read a thousand records."""
    return TypeAdapter(kind)


def plain_fault(message: str, given: object) -> str:
    """What is wrong with a value, without the library's words; a value that was not given is called so."""
    problem = message.removeprefix("Value error, ").removeprefix("Input ")
    shown = "nothing was given" if given in (None, "") else f"given: {given!r}"
    return f"{problem} ({shown})"
