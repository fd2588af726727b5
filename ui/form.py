"""Options as widgets and back: labels, help, ranges and defaults come from the schema."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args, get_origin

import gradio as gr
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from config.arguments import flags, to_arguments
from config.errors import UserError
from config.loading import option_titles, plain_faults
from config.schema import GROUPS, Options, about, in_sections
from core.jobs.verbs import VERBS

SomeOptions = TypeVar("SomeOptions", bound=Options)
Value = str | int | float | bool | None
Choices = Mapping[str, Sequence[str]]
Kind = Literal["choice", "integer", "number", "switch", "text"]
_KINDS: Mapping[object, Kind] = {bool: "switch", int: "integer", float: "number"}
_NAMED = 2  # fields in a fold's label
_LONG_HELP = 90  # characters; a longer help text takes two columns
_ORDER = {group: place for place, group in enumerate(GROUPS)}


@dataclass(frozen=True)
class FormField:
    """One value that a person may set; `kind` decides the widget."""

    name: str  # dotted for a value inside a group, such as "sampling.seed"
    title: str
    help: str
    kind: Kind
    default: Value
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False  # may be left empty
    group: str = ""  # heading in the form; empty: the group of the rest
    suggestions: tuple[str, ...] = ()  # values to choose from, beside which others may be typed

    @property
    def step(self) -> float:
        """The step of a number box."""
        if self.kind == "integer":
            return 1
        size = abs(float(self.default or 0)) or (self.maximum or 1.0)
        return float(10.0 ** (math.floor(math.log10(size)) - (1 if size == self.maximum else 0)))

    @property
    def range_text(self) -> str:
        """Such as "0 to 0.9"; empty without an upper bound, or with a very large one."""
        if self.minimum is None or self.maximum is None or self.maximum >= 100_000:
            return ""
        return f"{self.minimum:g} to {self.maximum:g}"


def entries(model: type[Options], leave_out: Iterable[str] = ()) -> tuple[FormField, ...]:
    """The scalar values of `model` in the schema's order; a tab lays out tuples itself.

    Options for the command line alone are left out.
    """
    skipped = set(leave_out)
    fields = []
    for flag in flags(model):
        is_tuple = get_origin(flag.field.annotation) is tuple
        if flag.option not in skipped and not is_tuple and not about(flag.field, "command_line_only"):
            fields.append(_entry(flag.option, flag.field))
    return tuple(fields)


def _entry(name: str, field: FieldInfo) -> FormField:
    optional = type(None) in get_args(field.annotation)
    # The type of an optional field is the one beside None.
    annotation = (next(part for part in get_args(field.annotation) if part is not type(None)) if optional
                  else field.annotation)

    def bound(*names: str) -> float | None:
        for limit in field.metadata:
            for name in names:
                value = getattr(limit, name, None)
                if value is not None:
                    return float(value)
        return None

    choices = tuple(str(choice) for choice in get_args(annotation)) if get_origin(annotation) is Literal else ()
    kind = "choice" if choices else _KINDS.get(annotation, "text")
    suggestions = tuple(map(str, about(field, "suggestions", ())))
    return FormField(name, field.title or name, field.description or "", kind,
                     field.get_default(call_default_factory=True), choices, bound("ge", "gt"), bound("le", "lt"),
                     optional, str(about(field, "group", "")), suggestions)


@dataclass(frozen=True)
class FieldGroup:
    """Fields of a form in an accordion, whose label names the changed fields."""

    title: str
    fields: tuple[FormField, ...]
    block: gr.Accordion

    def label(self, values: Mapping[str, Value], suggested: Mapping[str, Value]) -> str:
        """The title, and the fields whose `values` differ from the `suggested` ones, else from the defaults."""
        changed = [entry.title for entry in self.fields
                   if entry.name in values and not same_value(values[entry.name],
                                                              suggested.get(entry.name, entry.default))]
        if not changed:
            return self.title
        return f"{self.title}: {', '.join(changed[:_NAMED])}" + (
            f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else "") + " changed"


def same_value(current: Value, other: Value) -> bool:
    """Whether two values are equal, as text from the page or as typed values of the schema."""
    texts = ["" if value is None else str(value).strip() for value in (current, other)]
    try:
        return float(texts[0]) == float(texts[1])
    except ValueError:
        return texts[0] == texts[1]


@dataclass(frozen=True)
class OptionsForm:
    """The widgets of one options model, in the order of `names`."""

    model: type[Options]
    names: tuple[str, ...]
    widgets: tuple[gr.components.Component, ...]
    groups: tuple[FieldGroup, ...] = ()

    def widget(self, name: str) -> gr.components.Component:
        return self.widgets[self.names.index(name)]

    def options(self, values: Sequence[Value], **fixed: object) -> Options:
        """Options from the widgets' `values` and `fixed`; `UserError` names each wrong field."""
        return parse(self.model, {**dict(zip(self.names, values, strict=True)), **fixed})


def build_fields(model: type[Options], names: Sequence[str], prefix: str) -> tuple[gr.components.Component, ...]:
    """Widgets of some fields of `model`, beside a form of it: `prefix` makes their elements' ids differ."""
    by_name = {entry.name: entry for entry in entries(model)}
    with gr.Row(elem_classes="grid"):
        return tuple(_widget(replace(by_name[name], name=f"{prefix}.{name}"), {}, {}, model)
                     for name in names)


def build_form(model: type[Options], *, first: Sequence[str] = (), leave_out: Iterable[str] = (),
               choices: Choices | None = None, defaults: Mapping[str, Value] | None = None,
               more: str = "Advanced") -> OptionsForm:
    """Lay out the widgets of `model`; those that are not in `first` go into accordions by group."""
    by_name = {entry.name: entry for entry in entries(model, leave_out)}
    unfolded = [by_name[name] for name in (first or by_name)]

    with gr.Row(elem_classes="grid"):
        widgets = {entry.name: _widget(entry, choices or {}, defaults or {}, model) for entry in unfolded}

    # The other fields are folded by group.
    groups: dict[str, list[FormField]] = {}
    for name, entry in by_name.items():
        if first and name not in first:
            groups.setdefault(entry.group or more, []).append(entry)
    field_groups = []
    with gr.Column(elem_classes="groups", visible=bool(groups)):
        for title, folded in sorted(groups.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER))):
            with gr.Accordion(title, open=False, elem_classes="fold") as block, gr.Row(elem_classes="grid"):
                widgets |= {entry.name: _widget(entry, choices or {}, defaults or {}, model) for entry in folded}
            field_groups.append(FieldGroup(title, tuple(folded), block))
    return OptionsForm(model, tuple(widgets), tuple(widgets.values()), tuple(field_groups))


def _widget(entry: FormField, choices: Choices, defaults: Mapping[str, Value],
            model: type[Options]) -> gr.components.Component:
    """The Gradio component of a field, with label and limits of the schema; its id is unique on the page."""
    value = defaults.get(entry.name, entry.default)
    info = f"{entry.help} ({entry.range_text})" if entry.range_text else entry.help
    name = f"field-{entry.name.replace('.', '-')}"
    common = {"label": entry.title, "info": info, "elem_id": f"{model.__name__.removesuffix('Options').lower()}-{name}",
              "min_width": 150, "elem_classes": [name, *(["long-help"] if len(info) > _LONG_HELP else [])]}
    if entry.name in choices:  # a default that is not among the choices is not shown
        offered = list(choices[entry.name])
        return gr.Dropdown(offered, value=value if value in offered else None, allow_custom_value=True, **common)
    if entry.suggestions:
        return gr.Dropdown(list(entry.suggestions), value=value, allow_custom_value=True, **common)
    if entry.kind == "choice":
        return gr.Dropdown(list(entry.choices), value=value, filterable=False, **common)
    if entry.optional:  # not a number box, which shows an empty value as 0
        return gr.Textbox(value="" if value is None else f"{value}", max_lines=1, **common)
    if entry.kind in ("integer", "number"):
        return gr.Number(value=value, precision=0 if entry.kind == "integer" else None, minimum=entry.minimum,
                         maximum=entry.maximum, step=entry.step, **common)
    if entry.kind == "switch":
        return gr.Checkbox(value=bool(value), **common)
    return gr.Textbox(value=value, max_lines=1, **common)


def parse(model: type[SomeOptions], values: Mapping[str, object]) -> SomeOptions:
    """`model` from flat values with dotted names; the error lists every wrong field by its label."""

    nested: dict[str, object] = {}
    optional = {entry.name for entry in entries(model) if entry.optional}
    for name, entered in values.items():
        value = entered.strip() if isinstance(entered, str) else entered
        value = None if name in optional and value in (None, "") else value
        # A dotted name leads through nested sections.
        *groups, inner = name.split(".")
        inside = nested
        for group in groups:
            deeper = inside.setdefault(group, {})
            assert isinstance(deeper, dict)
            inside = deeper
        inside[inner] = value

    try:
        return model.model_validate(in_sections(model, nested))
    except ValidationError as error:
        # The error names fields as the form labels them.
        titles = {".".join(flag.path): flag.field.title for flag in flags(model) if flag.field.title}
        titles |= {path: title for path, (_name, title) in option_titles(model).items()}
        faults, hint = plain_faults(error, titles)
        raise UserError(" ".join(f"{fault}." for fault in faults), hint) from error


def command_line(verb: str, options: Options, workspace: Path) -> str:
    """The equivalent command, ready to paste into a shell."""
    named = [name for name in VERBS[verb].needs if name in ("segments", "tokenizer", "extension", "dataset")]
    arguments = to_arguments(options, [*VERBS[verb].makes, *named])
    return shlex.join(["python", "-m", "scripts", verb, "--workspace", str(workspace), *arguments])
