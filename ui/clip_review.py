"""Review on the Data tab: a dataset's clips by page, worst first, and the decisions about them.

`review.js` sends clicks and keys in the table as JSON commands.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import gradio as gr

from config.errors import UserError
from config.loading import parse_options
from config.schema import ReviseOptions
from core.dataset import review
from core.dataset.clip_index import ClipIndex, FindingSummary, IndexedClip, SpeakerSummary
from core.dataset.review import ReviewDecision, ReviewDecisions, TextMatch
from core.jobs.reporter import duration_text, pluralize
from ui import charts, job_views, media, verb_form
from ui.live import View, choice_update
from ui.markup import NOTHING, Html, div, element, join, paragraph, player, span, table, with_code
from ui.page import Page

TAB, PAGE, ALL = "data", 10, "all clips"
_WAVE_HEIGHT = 40.0
_KEYS = (("j", "next clip"), ("k", "previous clip"), ("space", "play or pause"), ("x", "exclude or include"),
         ("e", "edit transcript"), ("Esc", "save the text"), ("n", "next page"), ("p", "previous page"))
SHOWN_SPEAKERS = 12
_BEHIND_ALL = 10**9  # pages


def build(page: Page) -> None:
    """Lay out the part of the tab."""
    gr.HTML(div("lead", element("h2", "Review"), paragraph(
        "Clips with findings, worst first. Decisions are saved at once and applied when you save a new version; the "
        "old version stays.")))
    with gr.Row(elem_classes="grid"):
        dataset = gr.Dropdown([], label="Dataset", filterable=False, elem_id="review-dataset")
        kind = gr.Dropdown([ALL], value=ALL, label="Show", filterable=False, elem_id="review-kind")
        number = gr.Number(1, label="Page", minimum=1, precision=0, elem_id="review-page")
    found = gr.HTML(elem_id="review-found")
    with gr.Accordion("Statistics", open=True, elem_classes="fold"):
        spread = gr.HTML(elem_id="review-plots")
    table = gr.HTML(elem_id="review-table")
    command = gr.Textbox(label="Command", container=False, elem_id="review-command", elem_classes="unseen")
    with gr.Row(elem_classes="controls"):
        back = gr.Button("Previous page", size="md", elem_id="review-back")
        on = gr.Button("Next page", size="md", elem_id="review-next")
    notice = gr.HTML(elem_classes="notices", elem_id="review-notice")
    with gr.Row(elem_classes="grid"):
        name = gr.Textbox(label="Save as", max_lines=1, elem_id="review-name",
                          info="Name of the new version.")
        language = gr.Textbox(label="Correct language", max_lines=1, elem_id="review-language",
                              info="Code of the right language; empty keeps it.")
        model = gr.Dropdown([], label="Model", filterable=False, elem_id="review-model",
                            info="Its features are extracted for fixed clips.")
        save = gr.Button("Save new version", variant="primary", size="md", elem_id="review-save")
    saved = gr.HTML(elem_id="review-saved")
    for field, widget in (("dataset", dataset), ("kind", kind), ("page", number), ("model", model)):
        page.live.watch(f"review.{field}", widget)
    for component, render in ((kind, _kinds), (spread, _spread), (found, _findings), (table, _table)):
        page.live.panel(component, partial(render, page), TAB)
    page.live.panel(dataset, lambda view: choice_update(there := page.workspace.list_datasets(), view.follow(
        "review.dataset", view.values["review.dataset"], there, verb_form.newest_made(view, "dataset"))), TAB)
    page.live.panel(model, lambda view: choice_update(page.workspace.list_models(), view.values["review.model"]), TAB)
    last = verb_form.last_job_view("revise", "")
    page.live.panel(saved, lambda view: last(view) if view.newest("revise") else NOTHING, TAB)
    page.on(dataset.input, lambda: [NOTHING, 1, ALL], [], [notice, number, kind])
    page.on(kind.input, lambda: [NOTHING, 1], [], [notice, number])
    page.on(number.input, lambda: [NOTHING], [], [notice])
    page.on(back.click, lambda now: [NOTHING, max(1, page_number(now) - 1)], [number], [notice, number])
    page.on(on.click, lambda now: [NOTHING, page_number(now) + 1 if now else 1], [number], [notice, number])
    page.on(command.submit, lambda chosen, text: handle_command(page, chosen, text), [dataset, command],
            [notice, kind, number])
    page.on(save.click, lambda *values: _save(page, *values), [dataset, name, model, language], [notice])


def page_number(given: object) -> int:
    """The page that was asked for, from 1; a number that is too large is some page behind the last."""
    try:
        return max(1, int(min(float(str(given)), _BEHIND_ALL)))
    except ValueError:
        return 1


def _dataset(page: Page, chosen: str) -> str:
    """The chosen dataset, else the first."""
    there = page.workspace.list_datasets()
    return chosen if chosen in there else there[0] if there else ""


def _index(page: Page, view: View) -> ClipIndex | None:
    """The clip index of the chosen dataset; None where there is none, which `_findings` reports."""
    try:
        return review.index_of(page.workspace, _dataset(page, view.values["review.dataset"]))
    except UserError:
        return None


def _kinds(page: Page, view: View) -> object:
    index = _index(page, view)
    found = index.kinds() if index else []
    return choice_update([("All clips", ALL), *((f"{one.kind} ({one.count})", one.kind) for one in found)],
                         view.values["review.kind"])


def _spread(page: Page, view: View) -> Html:
    index = _index(page, view)
    if index is None:
        return NOTHING
    return join((charts.dataset_charts(index.plots()), speakers_view(index.speakers(SHOWN_SPEAKERS))))


def _findings(page: Page, view: View) -> Html:
    name = _dataset(page, view.values["review.dataset"])
    if not name:
        return NOTHING
    index = review.index_of(page.workspace, name)
    return join((match_view(review.text_match_of(page.workspace, name)),
                 findings_view(name, index.kinds(), review.read_decisions(page.workspace, name),
                               index.plots().level_lufs)))


def _table(page: Page, view: View) -> Html:
    name = _dataset(page, view.values["review.dataset"])
    if not name:
        return job_views.empty("Prepare a dataset first; its clips appear here.")
    index = _index(page, view)
    if index is None:
        return NOTHING
    kind = "" if view.values["review.kind"] in ("", ALL) else view.values["review.kind"]
    total = index.count(kind)
    pages = max(1, -(-total // PAGE))
    number = min(pages, page_number(view.values["review.page"]))
    shown = index.page((number - 1) * PAGE, PAGE, kind)
    made = review.read_decisions(page.workspace, name)
    facts = job_views.facts([
        ("With findings", f"{index.count_with_findings():,} of {index.count():,}"),
        ("Newly excluded", made.excluded.total()),
        ("Previously excluded", len(review.excluded(page.workspace.dataset(name)))),
        ("Edited transcripts", made.texts),
        ("To fix", made.clips_to_fix),
    ])
    where = paragraph(f"Page {number:,} of {pages:,}; {pluralize(total, 'clip')}.", class_="small")
    keys = div("keys", *(span("key-of", element("kbd", key), " ", does) for key, does in _KEYS))
    return join((facts, where, keys,
                 div("clips", *(clip_row(name, one, made.get(one.clip.id)) for one in shown), data_dataset=name)))


def handle_command(page: Page, chosen: object, command: object) -> Sequence[object]:
    """Run a command of the table: a JSON object of `do` and its arguments."""
    try:
        given = {str(key): str(value) for key, value in json.loads(str(command or "{}")).items()}
    except (ValueError, AttributeError) as error:
        raise UserError(f"Invalid command from the table: {error}.",
                        "Reload the page.") from error
    name = given.get("dataset") or _dataset(page, str(chosen or ""))  # the one that was shown, whichever is chosen now
    if name not in page.workspace.list_datasets():
        raise UserError(f"Dataset {name!r} was deleted.", "Choose another one.")
    kind, clip, stay = given.get("kind", ""), given.get("clip", ""), [gr.skip(), gr.skip()]
    match given.get("do"):
        case "show":
            return [NOTHING, kind, 1]
        case "exclude" | "include" as do:
            return [_decide(page, name, clip, included=do == "include"), *stay]
        case "text":
            return [_decide(page, name, clip, text=given.get("text", "")), *stay]
        case "exclude-kind" | "exclude-errors" as do:
            count = review.exclude_kind(page.workspace, name, kind, errors_only=do == "exclude-errors")
            return [_noted(f"{pluralize(count, 'more clip')} with the finding {kind!r} excluded"), *stay]
        case "fix":
            count = review.fix_kind(page.workspace, name, kind)
            return [_noted(f"{pluralize(count, 'more clip')} with the finding {kind!r} will be fixed"), *stay]
        case "undo-kind":
            count = review.undo_kind(page.workspace, name, kind)
            return [_noted(f"{pluralize(count, 'clip')} restored"), *stay]
    raise UserError(f"Unknown command from the table: {given.get('do')!r}.", "Reload the page.")


def _noted(what: str) -> Html:
    return job_views.notice(f"{what} in the next version.", "good")


def _decide(page: Page, name: str, clip: str, *, included: bool | None = None, text: str | None = None) -> Html:
    included_before = review.is_in(page.workspace, name, clip)

    def decided(there: ReviewDecision) -> ReviewDecision:
        if text is not None:
            return replace(there, text=text.strip())
        return replace(there, included=bool(included), reason="" if included else "by hand")

    review.update_decisions(page.workspace, name, [clip], decided,
                            lambda one: ReviewDecision(one, included=included_before))
    what = "has an edited transcript" if text is not None else "included again" if included else "excluded"
    return _noted(f"{clip} {what}")


def _save(page: Page, chosen: object, new: object, model: object, language: object) -> Sequence[object]:
    name, dataset = str(new or "").strip(), _dataset(page, str(chosen or ""))
    if not name:
        raise UserError("The new version has no name.", f"Enter one under Save as, such as {dataset}-2.")
    given = {"dataset": dataset, "save_as": name, "model": str(model or ""), "language": str(language or "")}
    return [page.started_notice(page.start("revise", parse_options(ReviseOptions, given)))]


def clip_row(dataset: str, one: IndexedClip, made: ReviewDecision | None) -> Html:
    """One clip: measurements, waveform, player, transcript, findings and button."""
    included = made is None or made.included
    text = made.text if made and made.text else one.clip.text
    marks = [span("pill", "edited")] if made and made.text else []
    marks += [span("pill", "will be fixed")] if made and made.fixes else []
    marks += [] if included else [span("pill wait", "excluded")]
    head = div("clip-head", element("strong", one.clip.id), *marks, span("small", measurements(one)))
    found = [paragraph(job_views.level_badge(finding.level), " ", finding.message) for finding in one.findings]
    transcript = element("textarea", text, rows="2", class_="clip-text", lang=one.clip.language, dir="auto",
                         aria_label=f"Transcript of {one.clip.id}")
    press = element("button", "Exclude" if included else "Include", type="button", class_="small-button",
                    data_do="exclude" if included else "include")
    sound = div("clip-sound", waveform_view(one), player(media.url("datasets", dataset, one.clip.audio), one.clip.id))
    return div("clip" + ("" if included else " out"), head, sound,
               div("clip-said", transcript, div("clip-found", *found) if found else NOTHING),
               div("clip-do", press),
               data_clip=one.clip.id, tabindex="0", role="group", aria_label=f"Clip {one.clip.id}")


def waveform_view(one: IndexedClip) -> Html:
    """The waveform from its peaks; the silence at both ends is paler."""
    peaks = list(bytes.fromhex(one.measures.outline)) if one.measures and one.measures.outline else []
    if one.measures is None or not peaks:
        return div("wave none", "No waveform. Prepare the dataset again to measure it.")
    heights = [max(0.6, _WAVE_HEIGHT / 2 * peak / 255) for peak in peaks]
    top = " ".join(f"{at},{_WAVE_HEIGHT / 2 - height:.1f}" for at, height in enumerate(heights))
    bottom = " ".join(f"{at},{_WAVE_HEIGHT / 2 + heights[at]:.1f}" for at in reversed(range(len(heights))))
    # The outline is that of the whole recording, also of what is trimmed from the clip.
    start_s = one.measures.silence_start_s + one.clip.trimmed_start_s
    end_s = one.measures.silence_end_s + one.clip.trimmed_end_s
    whole_s = one.measures.duration_s + one.clip.trimmed_start_s + one.clip.trimmed_end_s
    width, duration_s = len(peaks) - 1, max(whole_s, 1e-3)
    ends = [(0.0, start_s), (duration_s - end_s, end_s)]
    silent = join(element("rect", x=f"{width * start / duration_s:.1f}", y="0", height=f"{_WAVE_HEIGHT:g}",
                          width=f"{width * length / duration_s:.1f}", class_="silent") for start, length in ends)
    drawing = element("svg", element("polygon", points=f"{top} {bottom}"), silent, preserveAspectRatio="none",
                      viewBox=f"0 0 {width} {_WAVE_HEIGHT:g}", aria_hidden="true")
    return div("wave", drawing, span("wave-at"), title="Click to play from here")


def measurements(one: IndexedClip) -> str:
    """Duration, loudness, signal-to-noise ratio and speaking rate, in a line."""
    if one.measures is None:
        return "not measured"
    trimmed_s = one.clip.trimmed_start_s + one.clip.trimmed_end_s
    parts = [f"{one.measures.duration_s:.1f} s" + (f" ({trimmed_s:.1f} s of silence trimmed)" if trimmed_s else "")]
    parts += [f"{one.measures.level_lufs:.0f} LUFS"] if one.measures.level_lufs is not None else []
    parts += [f"{one.measures.snr_db:.0f} dB SNR"] if one.measures.snr_db is not None else []
    parts += [f"{one.rate:.1f} letters a second"] if one.rate is not None else []
    return " · ".join(parts)


def match_view(match: TextMatch | None) -> Html:
    """What the lengths say about texts and clips that do not belong together; nothing if they do."""
    if match is None or not match.is_finding:
        return NOTHING
    return div(f"notice {'bad' if match.is_proven else 'wait'}", element("strong", with_code(match.message)),
               paragraph(with_code(match.hint)), role="alert")


def findings_view(dataset: str, kinds: Sequence[FindingSummary], made: ReviewDecisions,
                  level_lufs: float | None) -> Html:
    """Each kind of finding with its number of clips, and buttons that act on all of them."""
    if not kinds:
        return job_views.notice("No problems found.", "good")
    lines = [_kind(one, made, level_lufs) for one in kinds]
    return div("kinds", table(("", "Finding", "Clips", "Apply to all"), lines), data_dataset=dataset)


def _kind(one: FindingSummary, made: ReviewDecisions, level_lufs: float | None) -> tuple[object, ...]:
    fix = review.FIXES.get(one.kind, "")
    out, mended = made.excluded[one.kind], made.mended[fix] if fix else 0
    does = review.describe_fix(one.kind, one.count, level_lufs)
    buttons = [_button("Show", "show", one.kind)]
    buttons += [_button(does.rstrip("."), "fix", one.kind)] if does and mended < one.count else []
    buttons += _excluding(one, out)
    buttons += [_button("Undo", "undo-kind", one.kind)] if out or mended else []
    decided = [f"{out:,} excluded"] if out else []
    decided += [f"{mended:,} will be fixed"] if mended else []
    note = review.BEFORE_EXCLUDING.get(one.kind, "") if out < one.count else ""
    return (job_views.level_badge(one.level), one.kind, one.parts or f"{one.count:,}", div(
        "bulk", *buttons, *(span("pill wait", words) for words in decided), span("small", note) if note else ""))


def _excluding(one: FindingSummary, out: int) -> list[Html]:
    """Exclude all, or only the errors: warnings need a person who listens."""
    if out >= one.count:
        return []
    if not one.parts:
        return [_button(f"Exclude {one.count:,} clip{'s' if one.count != 1 else ''}", "exclude-kind", one.kind)]
    errors = [_button(f"Exclude the {f'{one.errors:,} errors' if one.errors != 1 else 'error'}", "exclude-errors",
                      one.kind)] if out < one.errors else []
    return [*errors, _button(f"Exclude all {one.count:,}", "exclude-kind", one.kind)]


def _button(words: str, do: str, kind: str) -> Html:
    return element("button", words, type="button", class_="small-button", data_do=do, data_kind=kind)


def speakers_view(found: SpeakerSummary) -> Html:
    """The speakers with the most speech, and those with a single clip, which have no other as a prompt."""
    if not found.count:
        return NOTHING
    rows = [(one.name, f"{one.clips:,}", duration_text(one.seconds)) for one in found.largest]
    largest = table(("Speaker", "Clips", "Speech"), rows) if rows else NOTHING
    more = found.count - found.alone - len(rows)
    who = "One speaker has" if found.alone == 1 else f"{found.alone:,} speakers have"
    others = found.alone - len(found.some_alone)
    alone = (f"{who} a single clip, so no other clip can be its prompt: "
             f"{', '.join(one.name for one in found.some_alone)}{f' and {others:,} more' if others > 0 else ''}.")
    return join((element("h2", f"{found.count:,} speaker{'s' if found.count != 1 else ''}"), largest,
                 paragraph(f"{more:,} more with less speech.", class_="small") if more else NOTHING,
                 paragraph(alone, class_="small") if found.alone else NOTHING))
