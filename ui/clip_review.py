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
from core import review
from core.dataset.clip_index import ClipIndex, Judged, Kind, Speakers
from core.review import Decision, Decisions
from ui import charts, job_views, media, verb_form
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, player, span, table
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
    page.live.panel(saved, lambda view: verb_form.last_job_view("revise",
                                                                "")(view) if view.newest("revise") else NOTHING,
                    TAB)
    page.on(dataset.input, lambda: [NOTHING, 1, ALL], [], [notice, number, kind])
    page.on(kind.input, lambda: [NOTHING, 1], [], [notice, number])
    page.on(number.input, lambda: [NOTHING], [], [notice])
    page.on(back.click, lambda now: [NOTHING, max(1, int(now or 1) - 1)], [number], [notice, number])
    page.on(on.click, lambda now: [NOTHING, int(now or 0) + 1], [number], [notice, number])
    page.on(command.submit, lambda chosen, asked: handle_command(page, chosen, asked), [dataset, command],
            [notice, kind, number])
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
    return join((charts.dataset_charts(index.plots()), speakers_view(index.speakers(SHOWN_SPEAKERS))))


def _found(page: Page, view: View) -> Html:
    name = _dataset(page, view.chosen["review.dataset"])
    if not name:
        return NOTHING
    index = review.index_of(page.workspace, name)
    return findings_view(name, index.kinds(), review.decisions(page.workspace, name),
                                      index.plots().level_lufs)


def _shown(index: ClipIndex, view: View) -> tuple[list[Judged], int, int]:
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
        return job_views.empty("Prepare recordings first; their clips appear here.")
    index = _index(page, view)
    if index is None:
        return NOTHING
    shown, number, total = _shown(index, view)
    made = review.decisions(page.workspace, name)
    facts = job_views.facts([
        ("With findings", f"{index.faulty():,} of {index.count():,}"),
        ("Excluded now", made.excluded.total()),
        ("Excluded before", len(review.excluded(page.workspace.dataset(name)))),
        ("Texts written anew", made.texts),
        ("To be mended", made.to_mend),
    ])
    pages = max(1, -(-total // PAGE))
    where = paragraph(f"Page {number:,} of {pages:,}; {total:,} clips.", class_="small")
    return join((facts, where, keys_view(), clip_rows(name, shown, made)))


def handle_command(page: Page, chosen: object, asked: object) -> Sequence[object]:
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
    return job_views.notice(f"{what}, in the next version.", "good")


def _decide(page: Page, name: str, clip: str, *, included: bool | None = None, text: str | None = None) -> Html:
    known = review.is_in(page.workspace, name, clip)

    def decided(there: Decision) -> Decision:
        if text is not None:
            return replace(there, text=text.strip())
        return replace(there, included=bool(included), reason="" if included else "by hand")

    review.change(page.workspace, name, [clip], decided, lambda one: Decision(one, included=known))
    return _noted(f"{clip} " + ("has another text" if text is not None else "is in again" if included else "is out"))


def _save(page: Page, chosen: object, new: object, model: object) -> Sequence[object]:
    name, dataset = str(new or "").strip(), _dataset(page, str(chosen or ""))
    if not name:
        raise UserError("The new version has no name yet.", f"Write one into Save as, such as {dataset}-2.")
    given = {"dataset": dataset, "save_as": name, "model": str(model or "")}
    return [page.started_notice(page.start("revise", parse_options(ReviseOptions, given)))]


_WAVE_HEIGHT = 40.0
_KEYS = (("j", "next clip"), ("k", "previous clip"), ("space", "play or pause"), ("x", "exclude or include"),
         ("e", "edit the text"), ("Esc", "leave the text, which keeps it"), ("n", "next page"), ("p", "previous page"))


def keys_view() -> Html:
    """What the keyboard does in the table."""
    return div("keys", *(span("key-of", element("kbd", key), " ", does) for key, does in _KEYS))


def clip_rows(dataset: str, shown: Sequence[Judged], made: Mapping[str, Decision]) -> Html:
    """The clips of a page."""
    return div("clips", *(clip_row(dataset, one, made.get(one.clip.id)) for one in shown), data_dataset=dataset)


def clip_row(dataset: str, one: Judged, made: Decision | None) -> Html:
    """One clip: what it is, how it sounds, what is said, what was found, and what can be done."""
    included = made is None or made.included
    text = made.text if made and made.text else one.clip.text
    marks = [span("pill", "text anew")] if made and made.text else []
    marks += [span("pill", "will be mended")] if made and made.fixes else []
    marks += [] if included else [span("pill wait", "excluded")]
    head = div("clip-head", element("strong", one.clip.id), *marks, span("small", measurements(one)))
    findings_view = [paragraph(job_views.level_badge(finding.level), " ", finding.message) for finding in one.findings]
    said = element("textarea", text, rows="2", class_="clip-text", lang=one.clip.language, dir="auto",
                   aria_label=f"What is said in {one.clip.id}")
    press = element("button", "Exclude" if included else "Include", type="button", class_="small-button",
                    data_do="exclude" if included else "include")
    sound = div("clip-sound", waveform_view(one), player(media.url("datasets", dataset, one.clip.audio), one.clip.id))
    return div("clip" + ("" if included else " out"), head, sound,
               div("clip-said", said, div("clip-found", *findings_view) if findings_view else NOTHING),
               div("clip-do", press),
               data_clip=one.clip.id, tabindex="0", role="group", aria_label=f"Clip {one.clip.id}")


def waveform_view(one: Judged) -> Html:
    """The recording drawn from its peaks; the silence at its ends is paler."""
    peaks = list(bytes.fromhex(one.measures.outline)) if one.measures and one.measures.outline else []
    if one.measures is None or not peaks:
        return div("wave none", "No waveform: prepare the dataset once more, and it is measured.")
    heights = [max(0.6, _WAVE_HEIGHT / 2 * peak / 255) for peak in peaks]
    top = " ".join(f"{at},{_WAVE_HEIGHT / 2 - height:.1f}" for at, height in enumerate(heights))
    bottom = " ".join(f"{at},{_WAVE_HEIGHT / 2 + heights[at]:.1f}" for at in reversed(range(len(heights))))
    width, duration_s = len(peaks) - 1, max(one.measures.duration_s, 1e-3)
    ends = [(0.0, one.measures.silence_start_s), (duration_s - one.measures.silence_end_s, one.measures.silence_end_s)]
    silent = join(element("rect", x=f"{width * start / duration_s:.1f}", y="0", height=f"{_WAVE_HEIGHT:g}",
                          width=f"{width * length / duration_s:.1f}", class_="silent") for start, length in ends)
    drawing = element("svg", element("polygon", points=f"{top} {bottom}"), silent, preserveAspectRatio="none",
                      viewBox=f"0 0 {width} {_WAVE_HEIGHT:g}", aria_hidden="true")
    return div("wave", drawing, span("wave-at"), title="Press where it shall play from")


def measurements(one: Judged) -> str:
    """What was measured, in a line."""
    if one.measures is None:
        return "not measured"
    parts = [f"{one.measures.duration_s:.1f} s"]
    parts += [f"{one.measures.level_lufs:.0f} LUFS"] if one.measures.level_lufs is not None else []
    parts += [f"{one.measures.snr_db:.0f} dB over the noise"] if one.measures.snr_db is not None else []
    parts += [f"{one.rate:.1f} letters a second"] if one.rate is not None else []
    return " · ".join(parts)


def findings_view(dataset: str, kinds: Sequence[Kind], made: Decisions, level_lufs: float | None) -> Html:
    """Each kind of finding with how many clips have it, and what can be done about all of them at once."""
    if not kinds:
        return job_views.notice("Nothing to complain about.", "good")
    lines = [_kind(one, made, level_lufs) for one in kinds]
    return div("kinds", table(("", "Finding", "Clips", "For all of them at once"), lines),
               data_dataset=dataset)


def _kind(one: Kind, made: Decisions, level_lufs: float | None) -> tuple[object, ...]:
    fix = review.FIXES.get(one.kind, "")
    out, mended = made.excluded[one.kind], made.mended[fix] if fix else 0
    does = review.what_fix_does(one.kind, one.count, level_lufs)
    buttons = [_button("Show", "show", one.kind)]
    buttons += [_button(does.rstrip("."), "fix", one.kind)] if does and mended < one.count else []
    buttons += _excluding(one, out)
    buttons += [_button("Undo", "undo-kind", one.kind)] if out or mended else []
    told = [f"{out:,} excluded"] if out else []
    told += [f"{mended:,} will be mended"] if mended else []
    note = review.BEFORE_EXCLUDING.get(one.kind, "") if out < one.count else ""
    return (job_views.level_badge(one.level), one.kind, one.parts or f"{one.count:,}",
            div("bulk", *buttons, *(span("pill wait", words) for words in told), span("small", note) if note else ""))


def _excluding(one: Kind, out: int) -> list[Html]:
    """Leave out all, or first the errors alone: a warning is for the ear to decide."""
    if out >= one.count:
        return []
    if not one.parts:
        return [_button(f"Exclude {one.count:,} clip{'s' if one.count != 1 else ''}", "exclude-kind", one.kind)]
    errors = [_button(f"Exclude the {f'{one.errors:,} errors' if one.errors != 1 else 'error'}", "exclude-errors",
                      one.kind)] if out < one.errors else []
    return [*errors, _button(f"Exclude all {one.count:,}", "exclude-kind", one.kind)]


def _button(words: str, do: str, kind: str) -> Html:
    return element("button", words, type="button", class_="small-button", data_do=do, data_kind=kind)


SHOWN_SPEAKERS = 12


def speakers_view(found: Speakers) -> Html:
    """The voices with the most speech; those with one clip are told apart, because they leave no pair."""
    if not found.count:
        return NOTHING
    rows = [(one.name, f"{one.clips:,}", job_views.duration(one.seconds)) for one in found.largest]
    table = table(("Speaker", "Clips", "Speech"), rows) if rows else NOTHING
    more = found.count - found.alone - len(rows)
    return join((element("h4", f"{found.count:,} speaker{'s' if found.count != 1 else ''}"), table,
                 paragraph(f"{more:,} more have less speech.", class_="small") if more else NOTHING, _alone(found)))


def _alone(found: Speakers) -> Html:
    if not found.alone:
        return NOTHING
    names = ", ".join(one.name for one in found.some_alone)
    more = f" and {found.alone - len(found.some_alone):,} more" if found.alone > len(found.some_alone) else ""
    who = "One speaker has" if found.alone == 1 else f"{found.alone:,} speakers have"
    return paragraph(f"{who} a single clip, so there is no other of theirs that could be its prompt: {names}{more}.",
                     class_="small")
