"""Options as widgets and back: labels, help, ranges and defaults come from the schema alone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin

import annotated_types
import gradio as gr
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from config.arguments import flags, to_arguments
from config.errors import UserError
from config.loading import plain_fault
from config.schema import GROUPS, Options

SomeOptions = TypeVar("SomeOptions", bound=Options)
Value = str | int | float | bool | None
Choices = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Entry:
    """One value that a person may set. `kind` says which widget sets it."""

    name: str  # with dots for a value inside a group, such as "sampling.seed"
    title: str
    help: str
    kind: Literal["choice", "integer", "number", "switch", "text"]
    default: Value
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False  # may be left empty
    group: str = ""  # of the form's folds; empty: the one for the rest

    @property
    def step(self) -> float:
        """What the arrows of a number box add."""
        if self.kind == "integer":
            return 1
        size = abs(float(self.default or 0)) or (self.maximum or 1.0)
        return float(10.0 ** (math.floor(math.log10(size)) - (1 if size == self.maximum else 0)))

    @property
    def range_text(self) -> str:
        """Such as "0 to 0.9"; empty when there is no upper bound worth saying."""
        if self.minimum is None or self.maximum is None or self.maximum >= 100_000:
            return ""
        return f"{self.minimum:g} to {self.maximum:g}"


def entries(model: type[Options], leave_out: Iterable[str] = ()) -> tuple[Entry, ...]:
    """The scalar values of `model` in the schema's order; tuples are left to their tab."""
    skipped = set(leave_out)
    found = []
    for flag in flags(model):
        name = ".".join(flag.path)
        if name not in skipped and get_origin(flag.field.annotation) is not tuple:
            found.append(_entry(name, flag.field))
    return tuple(found)


def _entry(name: str, field: FieldInfo) -> Entry:
    annotation = _plain_type(field.annotation)
    minimum = maximum = None
    for limit in field.metadata:
        if isinstance(limit, annotated_types.Ge | annotated_types.Gt):
            minimum = _number(limit.ge if isinstance(limit, annotated_types.Ge) else limit.gt)
        if isinstance(limit, annotated_types.Le | annotated_types.Lt):
            maximum = _number(limit.le if isinstance(limit, annotated_types.Le) else limit.lt)
    choices = tuple(str(choice) for choice in get_args(annotation)) if get_origin(annotation) is Literal else ()
    kind: Literal["choice", "integer", "number", "switch", "text"] = "text"
    if choices:
        kind = "choice"
    elif annotation is bool:
        kind = "switch"
    elif annotation is int:
        kind = "integer"
    elif annotation is float:
        kind = "number"
    return Entry(name, field.title or name, field.description or "", kind,
                 field.get_default(call_default_factory=True), choices, minimum, maximum,
                 type(None) in get_args(field.annotation), _group(field))


def _group(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra.get("group", "")) if isinstance(extra, dict) else ""


def _plain_type(annotation: object) -> object:
    """The type beside None: a number that may be left empty is a number."""
    given = [part for part in get_args(annotation) if part is not type(None)]
    return given[0] if type(None) in get_args(annotation) else annotation


def _number(bound: object) -> float:
    return float(bound)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Fold:
    """Fields of a form that belong together, folded away; its label tells what of them is not as it was suggested."""

    title: str
    entries: tuple[Entry, ...]
    block: gr.Accordion

    def label(self, values: Mapping[str, Value], suggested: Mapping[str, Value]) -> str:
        """The title, and which of `values` differ from what is `suggested` (else from the schema's defaults)."""
        changed = [entry.title for entry in self.entries
                   if entry.name in values and not same(values[entry.name], suggested.get(entry.name, entry.default))]
        if not changed:
            return self.title
        return f"{self.title}: {', '.join(changed[:_NAMED])}" + (
            f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else "") + " changed"


_NAMED = 2  # fields in a fold's label
_LONG_HELP = 90  # letters: more of them want two columns
_ORDER = {group: place for place, group in enumerate(GROUPS)}


def same(one: Value, other: Value) -> bool:
    """Whether two values say the same, be they as a page sends them, in words, or as the schema has them."""
    texts = ["" if value is None else str(value).strip() for value in (one, other)]
    try:
        return float(texts[0]) == float(texts[1])
    except ValueError:
        return texts[0] == texts[1]


@dataclass(frozen=True)
class Form:
    """The widgets of one options model, in the order of `names`."""

    model: type[Options]
    names: tuple[str, ...]
    widgets: tuple[gr.components.Component, ...]
    folds: tuple[Fold, ...] = ()

    def widget(self, name: str) -> gr.components.Component:
        return self.widgets[self.names.index(name)]

    def options(self, values: Sequence[Value], **fixed: object) -> Options:
        """The options that the widgets' `values` and `fixed` say; `UserError` names each field that is wrong."""
        return parse(self.model, {**dict(zip(self.names, values, strict=True)), **fixed})


def build_form(model: type[Options], *, first: Sequence[str] = (), leave_out: Iterable[str] = (),
               choices: Choices | None = None, defaults: Mapping[str, Value] | None = None,
               more: str = "More settings") -> Form:
    """Lay out the widgets of `model` where the caller stands; what is not in `first` goes into folds by group."""
    known = {entry.name: entry for entry in entries(model, leave_out)}
    shown = [known[name] for name in (first or known)]
    with gr.Row(elem_classes="grid"):
        widgets = {entry.name: _widget(entry, choices or {}, defaults or {}) for entry in shown}
    groups: dict[str, list[Entry]] = {}
    for name, entry in known.items():
        if first and name not in first:
            groups.setdefault(entry.group or more, []).append(entry)
    folds = []
    with gr.Column(elem_classes="groups", visible=bool(groups)):
        for title, folded in sorted(groups.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER))):
            with gr.Accordion(title, open=False, elem_classes="fold") as block, gr.Row(elem_classes="grid"):
                widgets |= {entry.name: _widget(entry, choices or {}, defaults or {}) for entry in folded}
            folds.append(Fold(title, tuple(folded), block))
    return Form(model, tuple(widgets), tuple(widgets.values()), tuple(folds))


def _widget(entry: Entry, choices: Choices, defaults: Mapping[str, Value]) -> gr.components.Component:
    """The fitting Gradio component, labelled and limited as the schema says."""
    value = defaults.get(entry.name, entry.default)
    common = {"label": entry.title, "info": _info(entry), "elem_id": f"field-{entry.name.replace('.', '-')}",
              "min_width": 150, "elem_classes": "long-help" if len(_info(entry)) > _LONG_HELP else None}
    if entry.name in choices:  # the default may be the name of nothing here, so it is not shown unless it is offered
        offered = list(choices[entry.name])
        return gr.Dropdown(offered, value=value if value in offered else None, allow_custom_value=True, **common)
    if entry.kind == "choice":
        return gr.Dropdown(list(entry.choices), value=value, filterable=False, **common)
    if entry.optional:  # a number box shows nothing as 0
        return gr.Textbox(value="" if value is None else f"{value}", max_lines=1, **common)
    if entry.kind in ("integer", "number"):
        return gr.Number(value=value, precision=0 if entry.kind == "integer" else None, minimum=entry.minimum,
                         maximum=entry.maximum, step=entry.step, **common)
    if entry.kind == "switch":
        return gr.Checkbox(value=bool(value), **common)
    return gr.Textbox(value=value, max_lines=1, **common)


def _info(entry: Entry) -> str:
    return f"{entry.help} ({entry.range_text})" if entry.range_text else entry.help


def parse(model: type[SomeOptions], values: Mapping[str, object]) -> SomeOptions:
    """`model` from flat values with dotted names; every fault is told at once, by the field's label."""
    nested: dict[str, object] = {}
    optional = {entry.name for entry in entries(model) if entry.optional}
    for name, given in values.items():
        value = None if name in optional and not str(given or "").strip() and given != 0 else given
        group, dot, inner = name.partition(".")
        if not dot:
            nested[name] = _trimmed(value)
        else:
            inside = nested.setdefault(group, {})
            assert isinstance(inside, dict)
            inside[inner] = _trimmed(value)
    try:
        return model.model_validate(nested)
    except ValidationError as error:
        titles = {entry.name: entry.title for entry in entries(model)}
        faults = [
            f"{titles.get(name := '.'.join(str(part) for part in fault['loc']), name)}: "
            f"{plain_fault(fault['msg'], fault['input'])}"
            for fault in error.errors()
        ]
        raise UserError(" ".join(f"{fault}." for fault in faults), "Mend these values and try again.") from error


def _trimmed(value: object) -> object:
    """Spaces around a text are nobody's intent; a number box gives 10.0 for 10, which pydantic takes."""
    return value.strip() if isinstance(value, str) else value


def command_line(verb: str, options: Options, workspace: Path) -> str:
    """The equal command on the command line, ready to paste into a shell."""
    words = ["python", "-m", f"scripts.{verb}", "--workspace", str(workspace), *to_arguments(options)]
    return shlex.join(words)
