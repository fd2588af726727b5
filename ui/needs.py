"""What a step's form lacks on this workspace, said before anybody fills it in, with the way to each thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import gradio as gr

from ui import suggest
from ui.live import View
from ui.markup import NOTHING, Html, div, element, paragraph
from ui.page import TABS, Page
from ui.suggest import Offered

_NEEDS: Mapping[str, tuple[str, str]] = {
    "model": ("There is no base model here yet: the Model tab gets one.", "model"),
    "dataset": ("There are no prepared recordings yet: the Data tab prepares yours.", "data"),
    "tokenizer": ("There is no tokenizer for this model yet: the Tokenizer tab makes one.", "tokenizer"),
    "extension": ("No model has rows for a new language yet: the Embeddings tab adds them.", "embeddings"),
}
"""By field: what is said when nothing can be chosen, and the tab that makes it."""

_LABELS = dict(TABS)


def build(page: Page, verb: str, tab: str, choices: Mapping[str, Offered]) -> None:
    """Lay out the notice and its buttons where the caller stands; both are there only while something is lacking."""
    said = gr.HTML(elem_id=f"{verb}-needs", elem_classes="notices")
    with gr.Row(elem_classes="controls"):
        ways = {name: gr.Button(f"Open {_LABELS[_NEEDS[name][1]]}", size="md", visible=False, min_width=150,
                                elem_id=f"{verb}-needs-{name}") for name in choices if name in _NEEDS}
        start = gr.Button("Open Start", size="md", visible=False, min_width=150, elem_id=f"{verb}-needs-start")
    page.live.panel(said, lambda view: needs_view(lacking(view, verb, choices)), tab)
    for name, button in ways.items():
        page.live.panel(button, _visible(verb, choices, name), tab)
        page.go(button, _NEEDS[name][1])
    page.live.panel(start, _visible(verb, choices), tab)
    page.go(start, "start")


def lacking(view: View, verb: str, choices: Mapping[str, Offered]) -> tuple[str, ...]:
    """Fields of a form of `verb` for which there is nothing to choose, and nothing in the making."""
    now = suggest.settled(view, verb, choices)
    return tuple(name for name in choices
                 if name in _NEEDS and not now.chosen[f"{verb}.{name}"] and not suggest.in_the_making(view, name))


def needs_view(names: Sequence[str]) -> Html:
    """What is lacking, and where it is made."""
    if not names:
        return NOTHING
    return div("notice info", element("strong", "Something comes before this"),
               *(paragraph(_NEEDS[name][0]) for name in names),
               paragraph("Or open Start, which does every step with one button."), role="status")


def _visible(verb: str, choices: Mapping[str, Offered], name: str = "") -> Callable[[View], object]:
    """Whether `name` is lacking; without one, whether anything is."""

    def render(view: View) -> object:
        found = lacking(view, verb, choices)
        return gr.update(visible=name in found if name else bool(found))

    return render
