"""Review on the Data tab: the clips of a dataset, the worst first, by pages, and what is decided about them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import gradio as gr

from config.errors import UserError
from config.loading import parse_options
from config.schema import ReviseOptions
from core.dataset import review
from core.dataset.clip_index import ClipIndex, IndexedClip
from core.dataset.review import ReviewDecision
from ui import bars, present, review_table, steps, voices
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph
from ui.page import Page

TAB, PAGE, ALL = "data", 10, "all clips"


def build(page: Page) -> None:
    """Lay out the part of the tab."""
    gr.HTML(div("lead", element("h3", "Review"), paragraph(
        "Each clip with what was found, the worst first. What you decide is noted at once and changes nothing yet: "
        "it makes a new version of the dataset, and the old one stays as it is.")))
    with gr.Row(elem_classes="grid"):
        dataset = gr.Dropdown([], label="Dataset", filterable=False, elem_id="review-dataset")
        kind = gr.Dropdown([ALL], value=ALL, label="Show", filterable=False, elem_id="review-kind")
        number = gr.Number(1, label="Page", minimum=1, precision=0, elem_id="review-page")
    found = gr.HTML(elem_id="review-found")
    with gr.Accordion("How the clips are spread", open=True, elem_classes="fold"):
        spread = gr.HTML(elem_id="review-plots")
    table = gr.HTML(elem_id="review-table")
    command = gr.Textbox(label="Command", container=False, elem_id="review-command", elem_classes="unseen")
    with gr.Row(elem_classes="controls"):
        back = gr.Button("Previous page", size="md", elem_id="review-back")
        on = gr.Button("Next page", size="md", elem_id="review-next")
    notice = gr.HTML(elem_classes="notices", elem_id="review-notice")
    with gr.Row(elem_classes="grid"):
        name = gr.Textbox(label="Save as", max_lines=1, elem_id="review-name",
                          info="Name of the new dataset; the old one stays.")
        model = gr.Dropdown([], label="Model", filterable=False, elem_id="review-model",
                            info="Whose features are made of mended clips.")
        save = gr.Button("Save as a new version", variant="primary", size="md", elem_id="review-save")
    saved = gr.HTML(elem_id="review-saved")
    for field, widget in (("dataset", dataset), ("kind", kind), ("page", number), ("model", model)):
        page.live.watch(f"review.{field}", widget)
    panels = ((dataset, _datasets), (kind, _kinds), (spread, _spread), (found, _found), (table, _table),
              (model, _models))
    for component, render in panels:
        page.live.panel(component, partial(render, page), TAB)
    page.live.panel(saved, lambda view: steps.last_job("revise", "")(view) if view.newest("revise") else NOTHING, TAB)
    page.on(dataset.input, lambda: [NOTHING, 1, ALL], [], [notice, number, kind])
    page.on(kind.input, lambda: [NOTHING, 1], [], [notice, number])
    page.on(number.input, lambda: [NOTHING], [], [notice])
    page.on(back.click, lambda now: [NOTHING, max(1, int(now or 1) - 1)], [number], [notice, number])
    page.on(on.click, lambda now: [NOTHING, int(now or 0) + 1], [number], [notice, number])
    page.on(command.submit, lambda chosen, asked: obey(page, chosen, asked), [dataset, command], [notice, kind, number])
    page.on(save.click, lambda *asked: _save(page, *asked), [dataset, name, model], [notice])


def _datasets(page: Page, view: View) -> object:
    return gr.update(choices=page.workspace.list_datasets(),
                     value=_dataset(page, view.chosen["review.dataset"]) or None)


def _dataset(page: Page, chosen: str) -> str:
    """The dataset that is looked at: the chosen one, else the first."""
    there = page.workspace.list_datasets()
    return chosen if chosen in there else there[0] if there else ""


def _models(page: Page, view: View) -> object:
    there, now = page.workspace.list_models(), view.chosen["review.model"]
    return gr.update(choices=there, value=now if now in there else there[0] if there else None)


def _index(page: Page, view: View) -> ClipIndex | None:
    """What was measured of the dataset that is looked at; None before it is, which `_found` says for all."""
    try:
        return review.index_of(page.workspace, _dataset(page, view.chosen["review.dataset"]))
    except UserError:
        return None


def _kinds(page: Page, view: View) -> object:
    index = _index(page, view)
    found = index.kinds() if index else []
    choices = [("All clips", ALL), *((f"{one.kind} ({one.count})", one.kind) for one in found)]
    now = view.chosen["review.kind"]
    return gr.update(choices=choices, value=now if now in {value for _, value in choices} else ALL)


def _spread(page: Page, view: View) -> Html:
    index = _index(page, view)
    if index is None:
        return NOTHING
    return join((bars.plots(index.plots()), voices.speakers(index.speakers(voices.SHOWN))))


def _found(page: Page, view: View) -> Html:
    name = _dataset(page, view.chosen["review.dataset"])
    if not name:
        return NOTHING
    index = review.index_of(page.workspace, name)
    return review_table.found(name, index.kinds(), review.read_decisions(page.workspace, name),
                              index.plots().level_lufs)


def _shown(index: ClipIndex, view: View) -> tuple[list[IndexedClip], int, int]:
    """The clips of the page that is open, its number from 1, and how many there are."""
    kind = "" if view.chosen["review.kind"] in ("", ALL) else view.chosen["review.kind"]
    total = index.count(kind)
    last = max(1, -(-total // PAGE))
    asked = view.chosen["review.page"].partition(".")[0]
    number = min(last, max(1, int(asked) if asked.isdecimal() else 1))
    return index.page((number - 1) * PAGE, PAGE, kind), number, total


def _table(page: Page, view: View) -> Html:
    name = _dataset(page, view.chosen["review.dataset"])
    if not name:
        return present.empty("Prepare recordings first; their clips appear here.")
    index = _index(page, view)
    if index is None:
        return NOTHING
    shown, number, total = _shown(index, view)
    made = review.read_decisions(page.workspace, name)
    facts = present.facts([
        ("With findings", f"{index.count_with_findings():,} of {index.count():,}"),
        ("Excluded now", made.excluded.total()),
        ("Excluded before", len(review.excluded(page.workspace.dataset(name)))),
        ("Texts written anew", made.texts),
        ("To be mended", made.clips_to_fix),
    ])
    pages = max(1, -(-total // PAGE))
    where = paragraph(f"Page {number:,} of {pages:,}; {total:,} clips.", class_="small")
    return join((facts, where, review_table.keys(), review_table.rows(name, shown, made)))


def obey(page: Page, chosen: object, asked: object) -> Sequence[object]:
    """Do what was pressed or typed in the table: a JSON object of `do` and what it is about."""
    try:
        told = {str(key): str(value) for key, value in json.loads(str(asked or "{}")).items()}
    except (ValueError, AttributeError) as error:
        raise UserError(f"The table asked for something that is not understood: {error}.",
                        "Reload the page.") from error
    name, kind, clip = _named(page, told, str(chosen or "")), told.get("kind", ""), told.get("clip", "")
    stay = [gr.skip(), gr.skip()]
    match told.get("do"):
        case "show":
            return [NOTHING, kind, 1]
        case "exclude" | "include" as do:
            return [_decide(page, name, clip, included=do == "include"), *stay]
        case "text":
            return [_decide(page, name, clip, text=told.get("text", "")), *stay]
        case "exclude-kind" | "exclude-errors" as do:
            count = review.exclude_kind(page.workspace, name, kind, errors_only=do == "exclude-errors")
            return [_noted(f"{count:,} more clips with the finding {kind!r} are out"), *stay]
        case "fix":
            count = review.fix_kind(page.workspace, name, kind)
            return [_noted(f"{count:,} more clips with the finding {kind!r} are mended"), *stay]
        case "undo-kind":
            count = review.undo_kind(page.workspace, name, kind)
            return [_noted(f"{count:,} clips are as they were"), *stay]
    raise UserError(f"The table asked for {told.get('do')!r}, which nobody knows.", "Reload the page.")


def _named(page: Page, told: Mapping[str, str], chosen: str) -> str:
    """The dataset that was on the page when something was pressed, whichever is chosen by now."""
    name = told.get("dataset") or _dataset(page, chosen)
    if name not in page.workspace.list_datasets():
        raise UserError(f"There is no dataset named {name!r} any more.", "Choose another one.")
    return name


def _noted(what: str) -> Html:
    return present.notice(f"{what}, in the next version.", "good")


def _decide(page: Page, name: str, clip: str, *, included: bool | None = None, text: str | None = None) -> Html:
    known = review.is_in(page.workspace, name, clip)

    def decided(there: ReviewDecision) -> ReviewDecision:
        if text is not None:
            return replace(there, text=text.strip())
        return replace(there, included=bool(included), reason="" if included else "by hand")

    review.update_decisions(page.workspace, name, [clip], decided, lambda one: ReviewDecision(one, included=known))
    return _noted(f"{clip} " + ("has another text" if text is not None else "is in again" if included else "is out"))


def _save(page: Page, chosen: object, new: object, model: object) -> Sequence[object]:
    name, dataset = str(new or "").strip(), _dataset(page, str(chosen or ""))
    if not name:
        raise UserError("The new version has no name yet.", f"Write one into Save as, such as {dataset}-2.")
    given = {"dataset": dataset, "save_as": name, "model": str(model or "")}
    return [page.begun(page.start("revise", parse_options(ReviseOptions, given)))]
