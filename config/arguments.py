"""Command-line flags from an options model and back: one flag a field, nested models flattened.

A field marked `json_schema_extra={"positional": True}` is given as a word instead, in the order of the fields.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from config.schema import ANY_STEPS, GROUPS, Options, about, option_fields, option_path

_LIMITS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(frozen=True)
class Flag:
    """One flag: `path` leads to the value in the nested options, `field` describes it."""

    path: tuple[str, ...]
    field: FieldInfo
    option: str  # its name in a form: as `path` with dots, without a section

    @property
    def name(self) -> str:
        """Such as `--top-p`; the name of the group a value stands in is omitted."""
        return "--" + self.path[-1].replace("_", "-")

    @property
    def positional(self) -> bool:
        return bool(about(self.field, "positional"))

    @property
    def group(self) -> str:
        """Its heading in a form and in the help, one of `GROUPS`; empty: none."""
        return str(about(self.field, "group", ""))

    @property
    def destination(self) -> str:
        """Where argparse puts it; apart from the destinations of other arguments."""
        return "option:" + ".".join(self.path)


def flags(model: type[Options]) -> Iterator[Flag]:
    """All flags of `model`. Field names must be unique over its nested groups."""
    for name, field in option_fields(model).items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            for inner in flags(field.annotation):
                yield Flag((name, *inner.path), inner.field, f"{name}.{inner.option}")
        else:
            yield Flag(option_path(model, name), field, name)


def add_arguments(parser: argparse.ArgumentParser, model: type[Options]) -> None:
    """Add the flags of `model` to `parser`, in the groups of a form. Values stay text: the model checks them."""
    used = {flag.group for flag in flags(model)}
    groups = {name: parser.add_argument_group(name.lower() or "main options")
              for name in dict.fromkeys(("", *GROUPS, *sorted(used))) if name in used}
    for flag in flags(model):
        names = [flag.destination] if flag.positional else [flag.name]
        settings: dict[str, Any] = {"help": _help(flag), "default": argparse.SUPPRESS, **_shape(flag)}
        if flag.positional:
            # Python 3.11 checks SUPPRESS against the choices when the word is omitted.
            settings["default"] = None
        else:
            settings["dest"] = flag.destination
        groups[flag.group].add_argument(*names, **settings)


def given_values(namespace: argparse.Namespace, model: type[Options]) -> dict[str, object]:
    """The values that were given as flags, nested as in `model`, but without its sections."""
    values: dict[str, Any] = {}
    for flag in flags(model):
        value = getattr(namespace, flag.destination, None)
        if value is not None and not (flag.positional and value == []):
            *groups, name = flag.option.split(".")
            inner = values
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[name] = value
    return values


def merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """`above` laid over `below`, group by group."""
    result = dict(below)
    for name, value in above.items():
        under = result.get(name)
        result[name] = merged(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return result


def to_arguments(options: Options, always: Collection[str] = ()) -> list[str]:
    """The flags that give `options`: those that differ from the defaults, for showing the equal command.

    `always`: names of fields whose flag is written even for the default, unless that is empty.
    """

    words: list[str] = []
    arguments: list[str] = []
    for flag in flags(type(options)):
        value: object = options
        for part in flag.path:
            value = getattr(value, part)
        # Defaults are left out, so that the command stays short.
        is_default = value == flag.field.get_default(call_default_factory=True)
        if is_default and not (value and flag.path[-1] in always):
            continue
        if flag.path == ("length", "steps") and value == ANY_STEPS:  # Without the flag another unit decides.
            continue

        # A switch has a negation; each item of a list has a flag of its own.
        if isinstance(value, bool):
            arguments.append(flag.name if value else "--no-" + flag.name[2:])
        elif flag.positional:
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
        elif isinstance(value, tuple):
            for item in value:
                arguments += [flag.name, *(item if isinstance(item, tuple) else (str(item),))]
        else:
            arguments += [flag.name, str(value)]

    return words + arguments


def _shape(flag: Flag) -> dict[str, Any]:
    """How argparse reads the value: a choice, a switch, a list (several words, or the flag repeated), or a word."""
    annotation = flag.field.annotation
    if get_origin(annotation) is Literal:
        choices, value_of_flag_alone = get_args(annotation), about(flag.field, "bare")
        if value_of_flag_alone is not None:
            return {"choices": choices, "nargs": "?", "const": value_of_flag_alone}
        return {"choices": choices, "nargs": "?", "metavar": flag.path[-1]} if flag.positional else {"choices": choices}
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}

    # A tuple is a flag that may be repeated; its items may have several words.
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        if get_origin(item) is tuple:
            parts = get_args(item)
            metavar = tuple(f"PART{number + 1}" for number in range(len(parts)))
            return {"action": "append", "nargs": len(parts), "metavar": metavar}
        if flag.positional:
            return {"nargs": "*", "metavar": flag.path[-1]}
        return {"action": "extend", "nargs": "+", "metavar": flag.path[-1].upper()}
    return {"metavar": flag.path[-1], "nargs": "?"} if flag.positional else {"metavar": flag.path[-1].upper()}


def _help(flag: Flag) -> str:
    default = flag.field.get_default(call_default_factory=True)
    default_text = about(flag.field, "shown_default", "none" if default in ((), "") else default)
    bounds_of = [(words, getattr(limit, name, None)) for limit, (name, words) in product(
        flag.field.metadata, _LIMITS.items())]
    limits = [f"{words} {bound}" for words, bound in bounds_of if bound is not None]
    bounds = f", {' and '.join(limits)}" if limits else ""
    return f"{flag.field.description} (default: {default_text}{bounds})".replace("%", "%%")


