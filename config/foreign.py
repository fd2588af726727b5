"""Files that others may have made: read with limits on size and depth, and any failure becomes one refusal.

A file may be a pipe that never ends, a link to elsewhere, a gigabyte in the place of a record, or brackets so deep that
a parser written in C ends the process. Whoever reads JSON or YAML of a workspace, a model or a dataset reads it here.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from itertools import chain
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

import yaml

from config import confinement
from config.errors import UserError

More = ParamSpec("More")
Value = TypeVar("Value")
RECORD_BYTES = 64 << 20  # tokenizers of large vocabularies are JSON of 20 MB
YAML_BYTES = 1 << 20
DEEPEST = 64  # levels; our own records have at most 6
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold one, no text in UTF-8 does
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_MOST_ALIASES = 20  # aliases of YAML: ten that name one another ten times each are ten billion values
_DIGITS = re.compile(r"\d{20}")  # four times as fast as the next, and seldom found
_LONG_NUMBER = re.compile(r"(?<![\d.eE+-])-?\d{20}")
_MOST_ALIASED = 100_000  # values that aliases stand for, beside those that are written out
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # in C: ten times as fast
    """Without merge keys (`<<`), which multiply pairs: 5 levels of `<<: [*a, *a, *a, *a]` make 1,024 of each."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == _MERGE for key, _value in node.value):
            raise ValueError("it has a merge key (`<<`), which is not read: write the values out")
        super().flatten_mapping(node)


_AGAIN, _TOO_DEEP = "Restore it, or make it again.", f"it has more than {DEEPEST} levels"
_NESTED_LINE = re.compile(r"(?:[-?] ){20}|^ {40}", re.MULTILINE)
_UNREADABLE = (ArithmeticError, AttributeError, AssertionError, BufferError, EOFError, LookupError, MemoryError,
               OSError, RuntimeError, TypeError, ValueError, yaml.YAMLError)
"""What parsers raise at bytes that they were not written for (`RecursionError` is a `RuntimeError`)."""


class DamagedFile(UserError, ValueError):
    """A file whose content contradicts its name; `reason`: the fault, without the file's name."""

    def __init__(self, message: str, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason or message.rstrip(".")


def reason_of(error: Exception) -> str:
    """What went wrong, for a sentence that names the file itself."""
    if isinstance(error, DamagedFile):
        return error.reason
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if isinstance(error, ValueError) else repr(error)


@contextmanager
def reading(subject: object, hint: str, *library_errors: type[Exception]) -> Iterator[None]:
    """Turn errors while the foreign bytes of `subject` are parsed into a `DamagedFile` that names it.

    `library_errors`: what a library raises beside Python's own errors.
    """
    try:
        yield
    except UserError:
        raise
    except (*_UNREADABLE, *library_errors) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else text or type(error).__name__
        raise DamagedFile(f"{subject} cannot be read: {reason[:300]}.", hint) from error


def file_stamp(path: Path | str) -> tuple[int, int]:
    """Time in nanoseconds and size in bytes, which change with a file or folder; zeros if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _exact_stamp(path: Path) -> tuple[int, ...]:
    """As `file_stamp`; also another file of the same size and time has another one."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ctime_ns, status.st_ino


def cached_by_file(max_entries: int) -> Callable[[Callable[Concatenate[Path, More], Value]],
                                          Callable[Concatenate[Path, More], Value]]:
    """Cache up to `max_entries` results of a function while the file that is its first argument stays unchanged.

    A page asks for the same files each second. The same object is returned again: do not change it.
    """
    def decorate(read: Callable[Concatenate[Path, More], Value]) -> Callable[Concatenate[Path, More], Value]:
        @lru_cache(max_entries)
        def cached(path: Path, _stamp: tuple[int, ...], *arguments: More.args, **named: More.kwargs) -> Value:
            return read(path, *arguments, **named)

        @wraps(read)
        def current(path: Path, *arguments: More.args, **named: More.kwargs) -> Value:
            return cached(path, _exact_stamp(path), *arguments, **named)  # type: ignore[arg-type]  # they are hashable

        return current

    return decorate


def read_bytes(path: Path, max_bytes: int = RECORD_BYTES) -> bytes:
    """The content of a plain file of at most `max_bytes` bytes; `DamagedFile` for anything else, `OSError` for none."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise DamagedFile(f"{path} has {size} bytes; at most {max_bytes} are read.",
                              "It was not written by Lisan. Move it away.")
        return file.read(max_bytes + 1)


def read_text(path: Path, name: str = "") -> str:
    """A person's text file of at most 64 MiB, in UTF-8 or UTF-16.

    `UserError` for anything else; it calls the file `name`, or by its path.
    """
    hint = "Give a text file in UTF-8 or UTF-16."
    with reading(name or path, hint):
        with confinement.verified(path):  # before anything is said of it
            if not path.is_file() and path.exists():
                raise UserError(f"{name or path} is no file of text.", hint)
        content = read_bytes(path)
        return content.decode(encoding_of(content[:1 << 16]))


def encoding_of(head: bytes) -> str:
    """UTF-16 by its byte order mark or by the zero bytes of its spaces and line ends; otherwise UTF-8."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    zeros = [head[parity::2].count(0) for parity in (0, 1)]
    if sum(zeros) > len(head) // 100 and min(zeros) * 10 < max(zeros):
        return "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    return "utf-8-sig"


def open_plain(path: Path) -> IO[bytes]:
    """A plain file, open for reading; `DamagedFile` for a pipe or a device, which would be waited for."""
    with confinement.verified(path) as readable:
        file = open(readable, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise DamagedFile(f"{path} is no plain file.", "Delete it: it was not written by Lisan.")


def read_json(path: Path, max_bytes: int = RECORD_BYTES) -> Any:
    """The value in a JSON file."""
    return parse_json(read_bytes(path, max_bytes), path)


def read_yaml(path: Path) -> Any:
    """The value in a YAML file."""
    return parse_yaml(read_bytes(path, YAML_BYTES), path)


def parse_json(content: bytes | str, source: object) -> Any:
    """As `loads`; the failure is a `DamagedFile` that names `source`."""
    try:
        return loads(content)
    except ValueError as error:
        reason = f"it is not JSON: {str(error)[:200]}"
        raise DamagedFile(f"{source} is damaged: {reason}.", _AGAIN, reason) from error


def loads(content: bytes | str) -> Any:
    """The value of JSON in UTF-8; `ValueError` also for more than 64 levels and for integers that nothing holds."""
    text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    try:
        long = _DIGITS.search(text) and _LONG_NUMBER.search(text)
        value = json.loads(text, parse_int=_integer) if long else json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None

    # The parser may accept deeper values than the limit, so levels are counted.
    if text.count("[") + text.count("{") > DEEPEST:
        level = [value]
        for _ in range(DEEPEST):
            containers = [value for value in level if isinstance(value, list | dict)]
            level = list(chain.from_iterable(
                value.values() if isinstance(value, dict) else value for value in containers))
        if level:
            raise ValueError(_TOO_DEEP)
    return value


def parse_yaml(content: bytes | str, source: object) -> Any:
    """The value of YAML in UTF-8; as `parse_json`."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        check_yaml(text)
        return yaml.load(text, Loader=_Loader)
    except (RecursionError, ValueError, TypeError, ArithmeticError, AttributeError, yaml.YAMLError) as error:
        fault = _TOO_DEEP if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]
        reason = f"it is not YAML: {fault}"
        raise DamagedFile(f"{source} is damaged: {reason}.", _AGAIN, reason) from error


def _integer(text: str) -> int:
    if len(text) > 19:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def check_yaml(text: str) -> None:
    """Raise `ValueError` for YAML with too many levels or aliases, or aliases that stand for too many values.

    The events of libyaml are counted: only construction recurses, and recursion in C would end the process.
    """
    if text.count("[") + text.count("{") <= DEEPEST and "*" not in text and not _NESTED_LINE.search(text):
        return
    depth = aliases = aliased = 0
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # anchor, and values so far
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)

        # The size of a node is the number of values that it stands for, with its aliases resolved.
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
            sizes[anchor or ""] = size
        elif isinstance(event, yaml.ScalarEvent):
            size = sizes[event.anchor or ""] = 1
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 0)
            aliased += size
            if not size:
                raise ValueError("a part of it refers to itself")

        # Add the node to the one that contains it.
        anchor, values = open_nodes[-1]
        open_nodes[-1] = anchor, values + size

        if aliased > _MOST_ALIASED:
            raise ValueError(f"its aliases stand for more than {_MOST_ALIASED} values")
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)
        if aliases > _MOST_ALIASES:
            raise ValueError(f"it has more than {_MOST_ALIASES} aliases")
