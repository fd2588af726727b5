"""Review table on the Data tab: the clips of a dataset, the worst first, by pages, and what is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import gradio as gr

from config.errors import UserError
from core import review
from core.dataset.clip_index import Judged
from core.review import Decision
from ui import media, present
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span
from ui.page import Page
from ui.training import player

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
    table = gr.HTML(elem_id="review-table")
    with gr.Row(elem_classes="controls"):
        back = gr.Button("Previous", size="md", elem_id="review-back")
        on = gr.Button("Next", size="md", elem_id="review-next")
    with gr.Row(elem_classes="grid"):
        clip = gr.Dropdown([], label="Clip", allow_custom_value=True, elem_id="review-clip",
                           info="One of this page, or the id of any other.")
        text = gr.Textbox(label="What is said", lines=2, elem_id="review-text")
    with gr.Row(elem_classes="controls"):
        keep = gr.Button("Keep this text", size="md", elem_id="review-keep")
        out = gr.Button("Exclude", size="md", elem_id="review-exclude")
        again = gr.Button("Include", size="md", elem_id="review-include")
        every = gr.Button("Exclude all with this finding", size="md", elem_id="review-every")
    with gr.Row(elem_classes="grid"):
        name = gr.Textbox(label="New version", max_lines=1, elem_id="review-name", info="Name of the reviewed dataset.")
        save = gr.Button("Save as a new version", variant="primary", size="md", elem_id="review-save")
    notice = gr.HTML(elem_classes="notices", elem_id="review-notice")
    for field, widget in (("dataset", dataset), ("kind", kind), ("page", number)):
        page.live.watch(f"review.{field}", widget)
    page.live.panel(dataset, lambda view: gr.update(choices=page.workspace.list_datasets(),
                                                    value=_dataset(page, view.chosen["review.dataset"]) or None), TAB)
    page.live.panel(kind, lambda view: _kinds(page, view), TAB)
    page.live.panel(table, lambda view: _table(page, view), TAB)
    page.live.panel(clip, lambda view: gr.update(choices=[one.clip.id for one in _shown(page, view)[0]]), TAB)
    where = [dataset, clip]
    page.on(dataset.input, lambda: [NOTHING, 1, ALL], [], [notice, number, kind])
    page.on(kind.input, lambda: [NOTHING, 1], [], [notice, number])
    page.on(number.input, lambda: [NOTHING], [], [notice])
    page.on(back.click, lambda now: [NOTHING, max(1, int(now or 1) - 1)], [number], [notice, number])
    page.on(on.click, lambda now: [NOTHING, int(now or 0) + 1], [number], [notice, number])
    page.on(clip.input, lambda chosen, one: [NOTHING, _text(page, _dataset(page, str(chosen or "")), str(one))], where,
            [notice, text])
    page.on(keep.click, lambda chosen, one, said: _decide(page, chosen, one, text=str(said or "")), [*where, text],
            [notice])
    page.on(out.click, lambda chosen, one: _decide(page, chosen, one, included=False), where, [notice])
    page.on(again.click, lambda chosen, one: _decide(page, chosen, one, included=True), where, [notice])
    page.on(every.click, lambda chosen, shown: _every(page, chosen, shown), [dataset, kind], [notice])
    page.on(save.click, lambda chosen, new: _save(page, chosen, new), [dataset, name], [notice, dataset])


def _dataset(page: Page, chosen: str) -> str:
    """The dataset that is looked at: the chosen one, else the first."""
    there = page.workspace.list_datasets()
    return chosen if chosen in there else there[0] if there else ""


def _kinds(page: Page, view: View) -> object:
    name = _dataset(page, view.chosen["review.dataset"])
    found = review.index_of(page.workspace, name).kinds() if name else []
    choices = [("All clips", ALL), *((f"{one.kind} ({one.count})", one.kind) for one in found)]
    now = view.chosen["review.kind"]
    return gr.update(choices=choices, value=now if now in {value for _, value in choices} else ALL)


def _shown(page: Page, view: View) -> tuple[list[Judged], int, int]:
    """The clips of the page that is open, its number from 1, and how many there are."""
    name = _dataset(page, view.chosen["review.dataset"])
    if not name:
        return [], 1, 0
    index = review.index_of(page.workspace, name)
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
    shown, number, total = _shown(page, view)
    index = review.index_of(page.workspace, name)
    made = review.decisions(page.workspace, name)
    out = sum(not one.included for one in made.values())
    changed = sum(one.text is not None for one in made.values())
    before = len(review.excluded(page.workspace.dataset(name)))
    facts = present.facts([
        ("With findings", f"{index.faulty():,} of {index.count():,}"), ("Excluded now", out),
        ("Excluded before", before), ("Texts written anew", changed),
    ])
    rows = [_row(name, one, made.get(one.clip.id)) for one in shown]
    pages = max(1, -(-total // PAGE))
    return join((facts, paragraph(f"Page {number:,} of {pages:,}; {total:,} clips.", class_="small"),
                 present.table_of(("Clip", "Sound", "Text", "Findings"), rows)))


def _row(dataset: str, one: Judged, made: Decision | None) -> tuple[object, ...]:
    state = NOTHING
    if made is not None:
        state = span("pill", "text anew") if made.text else NOTHING
        state = state if made.included else span("pill wait", "excluded")
    sound = player(media.url("datasets", dataset, one.clip.audio), f"{one.clip.id}")
    measures = paragraph(_measures(one), class_="small")
    found = [paragraph(present.tone_word(finding.level), " ", finding.message) for finding in one.findings]
    text = made.text if made and made.text else one.clip.text
    return div("", one.clip.id, " ", state), sound, div("", text, measures), div("", *found) if found else "none"


def _measures(one: Judged) -> str:
    if one.measures is None:
        return "not measured"
    parts = [f"{one.measures.duration_s:.1f} s"]
    parts += [f"{one.measures.level_lufs:.0f} LUFS"] if one.measures.level_lufs is not None else []
    parts += [f"{one.measures.snr_db:.0f} dB over the noise"] if one.measures.snr_db is not None else []
    parts += [f"{one.rate:.1f} letters a second"] if one.rate is not None else []
    return " · ".join(parts)


def _text(page: Page, name: str, clip: str) -> str:
    made = review.decisions(page.workspace, name).get(clip)
    found = review.index_of(page.workspace, name).clip(clip)
    return made.text if made and made.text else found.clip.text if found else ""


def _decide(page: Page, chosen: object, clip: object, *, included: bool | None = None,
            text: str | None = None) -> Sequence[object]:
    name, one = _dataset(page, str(chosen or "")), str(clip or "")
    known = review.is_in(page.workspace, name, one)
    there = review.decisions(page.workspace, name).get(one, Decision(one, included=known))
    if included is not None:
        there = replace(there, included=included, reason="" if included else "by hand")
    review.decide(page.workspace, name, [replace(there, text=text.strip()) if text is not None else there])
    said = "has another text" if text is not None else "is in again" if included else "is out"
    return [present.notice(f"{one} {said}, in the next version.", "good")]


def _every(page: Page, chosen: object, kind: object) -> Sequence[object]:
    name = _dataset(page, str(chosen or ""))
    if kind in (None, "", ALL):
        raise UserError("No finding is chosen.", "Choose one under Show first.")
    count = review.exclude_kind(page.workspace, name, str(kind))
    return [present.notice(f"{count} more clips with the finding {kind!r} are out, in the next version.", "good")]


def _save(page: Page, chosen: object, new: object) -> Sequence[object]:
    made = review.save_version(page.workspace, _dataset(page, str(chosen or "")), str(new or "").strip())
    told = (f"{made.name}: {made.clips:,} clips; {len(made.excluded)} excluded, {len(made.included)} included again, "
            f"{len(made.changed)} texts written anew. Choose it where you make a tokenizer and train.")
    return [present.notice(told, "good"), gr.update(choices=page.workspace.list_datasets(), value=made.name)]
