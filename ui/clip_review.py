"""Review on the Data tab: a dataset's clips by page, worst first, and the decisions about them.

`review.js` sends clicks and keys in the table as JSON commands.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
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

TAB, PAGE, ALL, TITLE = "data", 10, "all clips", "Review clips"
_WAVE_HEIGHT = 40.0
_KEYS = (("j", "next clip"), ("k", "previous clip"), ("space", "play or pause"), ("x", "exclude or include"),
         ("e", "edit transcript"), ("Esc", "save the text"), ("n", "next page"), ("p", "previous page"))
SHOWN_SPEAKERS = 12
_BEHIND_ALL = 10**9  # pages


def build(page: Page) -> None:
    """Lay out the part of the tab."""
    with gr.Accordion(TITLE, open=False, visible=False, elem_classes="fold", elem_id="review-fold") as fold:
        gr.HTML(paragraph(
            "Clips with findings, worst first. Decisions are saved at once and applied when you save a new version; "
            "the old version stays.", class_="small"))
        with gr.Row(elem_classes="grid"):
            dataset = gr.Dropdown([], label="Dataset", filterable=False, elem_id="review-dataset")
            kind = gr.Dropdown([ALL], value=ALL, label="Show", filterable=False, elem_id="review-kind")
            number = gr.Number(1, label="Page", minimum=1, precision=0, elem_id="review-page")
        findings = gr.HTML(elem_id="review-found")
        with gr.Accordion("Statistics", open=True, elem_classes="fold"):
            spread = gr.HTML(elem_id="review-plots")
        table = gr.HTML(elem_id="review-table")
        command = gr.Textbox(label="Command", container=False, elem_id="review-command", elem_classes="unseen")
        with gr.Row(elem_classes="controls"):
            back = gr.Button("Previous page", size="md", elem_id="review-back")
            on = gr.Button("Next page", size="md", elem_id="review-next")
        notice = gr.HTML(elem_classes="notices", elem_id="review-notice")

        # Decisions take effect only in a new version, which gets its own name.
        with gr.Row(elem_classes="grid"):
            name = gr.Textbox(label="Save as", max_lines=1, elem_id="review-name",
                              info="Name of the new version.")
            language = gr.Textbox(label="Correct language", max_lines=1, elem_id="review-language",
                                  info="Code of the right language; empty keeps it.")
            model = gr.Dropdown([], label="Model", filterable=False, elem_id="review-model",
                                info="Its features are extracted for fixed clips.")
            save = gr.Button("Save new version", variant="primary", size="md", elem_id="review-save")
        saved = gr.HTML(elem_id="review-saved")

    # The widgets are watched, so that each refresh sees what is chosen.
    for field, widget in (("dataset", dataset), ("kind", kind), ("page", number), ("model", model)):
        page.live.watch(f"review.{field}", widget)
    for component, render in ((kind, _kinds), (spread, _spread), (findings, _findings), (table, _table)):
        page.live.panel(component, partial(render, page), TAB)

    def fold_title(view: View) -> object:
        """Say how many clips have findings, so that a person knows whether to open it."""
        name, index = _dataset(page, view.values["review.dataset"]), _index(page, view)
        title = f"{TITLE}: {name}" if name else TITLE
        if index is not None:
            with suppress(UserError):
                flagged, clips = index.count_with_findings(), pluralize(index.count(), "clip")
                title += f", {flagged:,} of {clips} with findings"
        return gr.update(visible=bool(name), label=title)

    page.live.panel(fold, fold_title, TAB)

    def dataset_choices(view: View) -> object:
        datasets = page.workspace.list_datasets()
        newest = verb_form.newest_made(view, "dataset")
        return choice_update(datasets, view.follow("review.dataset", view.values["review.dataset"], datasets, newest))

    page.live.panel(dataset, dataset_choices, TAB)
    page.live.panel(model, lambda view: choice_update(page.workspace.list_models(), view.values["review.model"]), TAB)
    last = verb_form.last_job_view("revise", "")
    page.live.panel(saved, lambda view: last(view) if view.newest("revise") else NOTHING, TAB)

    # Another dataset or kind begins at its first page.
    page.on(dataset.input, lambda: [NOTHING, 1, ALL], [], [notice, number, kind])
    page.on(kind.input, lambda: [NOTHING, 1], [], [notice, number])
    page.on(number.input, lambda: [NOTHING], [], [notice])
    page.on(back.click, lambda current: [NOTHING, max(1, page_number(current) - 1)], [number], [notice, number])
    page.on(on.click, lambda current: [NOTHING, page_number(current) + 1 if current else 1], [number], [notice, number])
    page.on(command.submit, lambda chosen, text: handle_command(page, chosen, text), [dataset, command],
            [notice, kind, number])
    page.on(save.click, lambda *values: _save(page, *values), [dataset, name, model, language], [notice])


def page_number(value: object) -> int:
    """The page that was asked for, from 1; a number that is too large is some page behind the last."""
    try:
        return max(1, int(min(float(str(value)), _BEHIND_ALL)))
    except ValueError:
        return 1


def _dataset(page: Page, chosen: str) -> str:
    """The chosen dataset, else the first."""
    datasets = page.workspace.list_datasets()
    return chosen if chosen in datasets else datasets[0] if datasets else ""


def _index(page: Page, view: View) -> ClipIndex | None:
    """The clip index of the chosen dataset; None where there is none, which `_findings` reports."""
    try:
        return review.index_of(page.workspace, _dataset(page, view.values["review.dataset"]))
    except UserError:
        return None


def _kinds(page: Page, view: View) -> object:
    index = _index(page, view)
    kinds = index.kinds() if index else []
    return choice_update([("All clips", ALL), *((f"{kind.kind} ({kind.count})", kind.kind) for kind in kinds)],
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
    # A number beyond the last page means the last page.
    number = min(pages, page_number(view.values["review.page"]))
    page_clips = index.page((number - 1) * PAGE, PAGE, kind)
    decisions = review.read_decisions(page.workspace, name)

    facts = job_views.facts([
        ("With findings", f"{index.count_with_findings():,} of {index.count():,}"),
        ("Newly excluded", decisions.excluded.total()),
        ("Previously excluded", len(review.excluded(page.workspace.dataset(name)))),
        ("Edited transcripts", decisions.texts),
        ("To fix", decisions.clips_to_fix),
    ])
    position = paragraph(f"Page {number:,} of {pages:,}; {pluralize(total, 'clip')}.", class_="small")
    keys = div("keys", *(span("key-of", element("kbd", key), " ", does) for key, does in _KEYS))
    return join((facts, position, keys,
                 div("clips", *(clip_row(name, entry, decisions.get(entry.clip.id)) for entry in page_clips),
                 data_dataset=name)))


def handle_command(page: Page, chosen: object, command: object) -> Sequence[object]:
    """Run a command of the table: a JSON object of `do` and its arguments."""
    try:
        arguments = {str(key): str(value) for key, value in json.loads(str(command or "{}")).items()}
    except (ValueError, AttributeError) as error:
        raise UserError(f"Invalid command from the table: {error}.",
                        "Reload the page.") from error
    name = arguments.get("dataset") or _dataset(page, str(chosen or ""))  # the shown dataset, not the chosen one
    if name not in page.workspace.list_datasets():
        raise UserError(f"Dataset {name!r} was deleted.", "Choose another one.")

    # Exclusions and texts change a clip's row only; `stay` leaves kind and page as they are.
    kind, clip, stay = arguments.get("kind", ""), arguments.get("clip", ""), [gr.skip(), gr.skip()]
    match arguments.get("do"):
        case "show":
            return [NOTHING, kind, 1]
        case "exclude" | "include" as do:
            return [_decide(page, name, clip, included=do == "include"), *stay]
        case "text":
            return [_decide(page, name, clip, text=arguments.get("text", "")), *stay]
        case "exclude-kind" | "exclude-errors" as do:
            count = review.exclude_kind(page.workspace, name, kind, errors_only=do == "exclude-errors")
            return [_noted(f"{pluralize(count, 'more clip')} with the finding {kind!r} excluded"), *stay]
        case "fix":
            count = review.fix_kind(page.workspace, name, kind)
            return [_noted(f"{pluralize(count, 'more clip')} with the finding {kind!r} will be fixed"), *stay]
        case "undo-kind":
            count = review.undo_kind(page.workspace, name, kind)
            return [_noted(f"{pluralize(count, 'clip')} restored"), *stay]
    raise UserError(f"Unknown command from the table: {arguments.get('do')!r}.", "Reload the page.")


def _noted(effect: str) -> Html:
    return job_views.notice(f"{effect} in the next version.", "good")


def _decide(page: Page, name: str, clip: str, *, included: bool | None = None, text: str | None = None) -> Html:
    # A clip that was never decided about keeps its state.
    included_before = review.is_in(page.workspace, name, clip)

    def decided(decision: ReviewDecision) -> ReviewDecision:
        if text is not None:
            return replace(decision, text=text.strip())
        return replace(decision, included=bool(included), reason="" if included else "by hand")

    review.update_decisions(page.workspace, name, [clip], decided,
                            lambda clip_id: ReviewDecision(clip_id, included=included_before))
    effect = "has an edited transcript" if text is not None else "included again" if included else "excluded"
    return _noted(f"{clip} {effect}")


def _save(page: Page, chosen: object, new: object, model: object, language: object) -> Sequence[object]:
    name, dataset = str(new or "").strip(), _dataset(page, str(chosen or ""))
    if not name:
        raise UserError("The new version has no name.", f"Enter one under Save as, such as {dataset}-2.")
    options = {"dataset": dataset, "save_as": name, "model": str(model or ""), "language": str(language or "")}
    return [page.started_notice(page.start("revise", parse_options(ReviseOptions, options)))]


def clip_row(dataset: str, entry: IndexedClip, decision: ReviewDecision | None) -> Html:
    """One clip: measurements, waveform, player, transcript, findings and button."""
    included = decision is None or decision.included
    text = decision.text if decision and decision.text else entry.clip.text
    marks = [span("pill", "edited")] if decision and decision.text else []
    marks += [span("pill", "will be fixed")] if decision and decision.fixes else []
    marks += [] if included else [span("pill wait", "excluded")]

    head = div("clip-head", element("strong", entry.clip.id), *marks, span("small", measurements(entry)))
    findings = [paragraph(job_views.level_badge(finding.level), " ", finding.message) for finding in entry.findings]
    transcript = element("textarea", text, rows="2", class_="clip-text", lang=entry.clip.language, dir="auto",
                         aria_label=f"Transcript of {entry.clip.id}")
    # The page's script sends the decision.
    press = element("button", "Exclude" if included else "Include", type="button", class_="small-button",
                    data_do="exclude" if included else "include")
    sound = div("clip-sound", waveform_view(entry),
                player(media.url("datasets", dataset, entry.clip.audio), entry.clip.id))

    return div("clip" + ("" if included else " out"), head, sound,
               div("clip-said", transcript, div("clip-found", *findings) if findings else NOTHING),
               div("clip-do", press),
               data_clip=entry.clip.id, tabindex="0", role="group", aria_label=f"Clip {entry.clip.id}")


def waveform_view(entry: IndexedClip) -> Html:
    """The waveform from its peaks; the silence at both ends is paler."""
    # The outline is stored as one byte for each column.
    peaks = list(bytes.fromhex(entry.measures.outline)) if entry.measures and entry.measures.outline else []
    if entry.measures is None or not peaks:
        return div("wave none", "No waveform. Prepare the dataset again to measure it.")
    heights = [max(0.6, _WAVE_HEIGHT / 2 * peak / 255) for peak in peaks]
    top = " ".join(f"{index},{_WAVE_HEIGHT / 2 - height:.1f}" for index, height in enumerate(heights))
    bottom = " ".join(f"{index},{_WAVE_HEIGHT / 2 + heights[index]:.1f}" for index in reversed(range(len(heights))))

    # The outline is that of the whole recording, also of what is trimmed from the clip.
    start_s = entry.measures.silence_start_s + entry.clip.trimmed_start_s
    end_s = entry.measures.silence_end_s + entry.clip.trimmed_end_s
    whole_s = entry.measures.duration_s + entry.clip.trimmed_start_s + entry.clip.trimmed_end_s
    width, duration_s = len(peaks) - 1, max(whole_s, 1e-3)
    # The silence at both ends is drawn over the wave.
    ends = [(0.0, start_s), (duration_s - end_s, end_s)]
    silent = join(element("rect", x=f"{width * start / duration_s:.1f}", y="0", height=f"{_WAVE_HEIGHT:g}",
                          width=f"{width * length / duration_s:.1f}", class_="silent") for start, length in ends)

    drawing = element("svg", element("polygon", points=f"{top} {bottom}"), silent, preserveAspectRatio="none",
                      viewBox=f"0 0 {width} {_WAVE_HEIGHT:g}", aria_hidden="true")
    return div("wave", drawing, span("wave-at"), title="Click to play from here")


def measurements(entry: IndexedClip) -> str:
    """Duration, loudness, signal-to-noise ratio and speaking rate, in a line."""
    if entry.measures is None:
        return "not measured"
    trimmed_s = entry.clip.trimmed_start_s + entry.clip.trimmed_end_s
    parts = [f"{entry.measures.duration_s:.1f} s" + (f" ({trimmed_s:.1f} s of silence trimmed)" if trimmed_s else "")]
    parts += [f"{entry.measures.level_lufs:.0f} LUFS"] if entry.measures.level_lufs is not None else []
    parts += [f"{entry.measures.snr_db:.0f} dB SNR"] if entry.measures.snr_db is not None else []
    parts += [f"{entry.rate:.1f} letters a second"] if entry.rate is not None else []
    return " · ".join(parts)


def match_view(match: TextMatch | None) -> Html:
    """What the lengths say about texts and clips that do not belong together; nothing if they do."""
    if match is None or not match.is_finding:
        return NOTHING
    return div(f"notice {'bad' if match.is_proven else 'wait'}", element("strong", with_code(match.message)),
               paragraph(with_code(match.hint)), role="alert")


def findings_view(dataset: str, kinds: Sequence[FindingSummary], decisions: ReviewDecisions,
                  level_lufs: float | None) -> Html:
    """Each kind of finding with its number of clips, and buttons that act on all of them."""
    if not kinds:
        return job_views.notice("No problems found.", "good")
    lines = [_kind(entry, decisions, level_lufs) for entry in kinds]
    return div("kinds", table(("", "Finding", "Clips", "Apply to all"), lines), data_dataset=dataset)


def _kind(entry: FindingSummary, decisions: ReviewDecisions, level_lufs: float | None) -> tuple[object, ...]:
    fix = review.FIXES.get(entry.kind, "")
    out, mended = decisions.excluded[entry.kind], decisions.mended[fix] if fix else 0
    does = review.describe_fix(entry.kind, entry.count, level_lufs)

    # Only the actions that still change something have a button.
    buttons = [_button("Show", "show", entry.kind)]
    buttons += [_button(does.rstrip("."), "fix", entry.kind)] if does and mended < entry.count else []
    buttons += _excluding(entry, out)
    buttons += [_button("Undo", "undo-kind", entry.kind)] if out or mended else []

    decided = [f"{out:,} excluded"] if out else []
    decided += [f"{mended:,} will be fixed"] if mended else []
    note = review.BEFORE_EXCLUDING.get(entry.kind, "") if out < entry.count else ""
    return (job_views.level_badge(entry.level), entry.kind, entry.parts or f"{entry.count:,}", div(
        "bulk", *buttons, *(span("pill wait", words) for words in decided), span("small", note) if note else ""))


def _excluding(entry: FindingSummary, out: int) -> list[Html]:
    """Exclude all, or only the errors: warnings need a person who listens."""
    if out >= entry.count:
        return []
    if not entry.parts:
        return [_button(f"Exclude {entry.count:,} clip{'s' if entry.count != 1 else ''}", "exclude-kind", entry.kind)]
    errors = [_button(f"Exclude the {f'{entry.errors:,} errors' if entry.errors != 1 else 'error'}", "exclude-errors",
                      entry.kind)] if out < entry.errors else []
    return [*errors, _button(f"Exclude all {entry.count:,}", "exclude-kind", entry.kind)]


def _button(words: str, do: str, kind: str) -> Html:
    return element("button", words, type="button", class_="small-button", data_do=do, data_kind=kind)


def speakers_view(speakers: SpeakerSummary) -> Html:
    """The speakers with the most speech, and those with a single clip, which have no other as a prompt."""
    if not speakers.count:
        return NOTHING
    rows = [(speaker.name, f"{speaker.clips:,}", duration_text(speaker.seconds)) for speaker in speakers.largest]
    largest = table(("Speaker", "Clips", "Speech"), rows) if rows else NOTHING

    remaining = speakers.count - speakers.alone - len(rows)
    subject = "One speaker has" if speakers.alone == 1 else f"{speakers.alone:,} speakers have"
    unnamed = speakers.alone - len(speakers.some_alone)
    alone = (f"{subject} a single clip, so no other clip can be its prompt: "
             f"{', '.join(speaker.name for speaker in speakers.some_alone)}"
             f"{f' and {unnamed:,} more' if unnamed > 0 else ''}.")

    return join((element("h2", f"{speakers.count:,} speaker{'s' if speakers.count != 1 else ''}"), largest,
                 paragraph(f"{remaining:,} more with less speech.", class_="small") if remaining else NOTHING,
                 paragraph(alone, class_="small") if speakers.alone else NOTHING))
