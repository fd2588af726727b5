"""Rules of a language from YAML or JSON; every fault is told with its place."""

from __future__ import annotations

from collections.abc import Iterable

import yaml
from pydantic import BaseModel, ValidationError

from config.errors import UserError
from config.loading import plain_fault
from config.text_rules import TextRules


class _NoDoubles(yaml.BaseLoader):
    """YAML in which every value is text (`no` is no false, 007 no 7) and a key that is given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        doubled = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if doubled is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{doubled!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def parse(content: str | bytes, where: str) -> TextRules:
    """Rules from YAML or JSON; `UserError` names every fault with its place in `where`."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        values = yaml.load(text, _NoDoubles)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        place = getattr(error, "problem_mark", None)
        line = f", line {place.line + 1}" if place else ""
        said = getattr(error, "problem", None) or str(error)
        raise UserError(f"The rules in {where}{line} could not be read: {said}.",
                        "Mend the line; text with : # or quotes in it stands between double quotes.") from error
    if not isinstance(values, dict):
        raise UserError(f"{where} holds no rules.", "Write one `name: value` a line; start from the shipped rules.")
    try:
        rules = TextRules.model_validate(values)
        rules.to_json()  # half of a surrogate pair cannot be saved
        return rules
    except UnicodeEncodeError as error:
        hint = "Write the character itself."
        raise UserError(f"The rules in {where} hold half a character: {error}.", hint) from error
    except ValidationError as error:
        faults = "; ".join(_fault(fault["loc"], fault["msg"], fault["input"]) for fault in error.errors())
        raise UserError(f"The rules in {where} cannot be used: {faults}.", "Mend these values.") from error


def _fault(place: Iterable[int | str], message: str, given: object) -> str:
    name = ".".join(str(part) for part in place)
    said = plain_fault(message, given if not isinstance(given, dict | list | BaseModel) else "...")
    return f"{name}: {said}".removesuffix(" (given: '...')").removeprefix(": ")
