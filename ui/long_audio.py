"""Long recordings on the Data tab, after their upload: segmented and transcribed, or aligned with an existing text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import gradio as gr

from config.errors import ErrorKind, UserError
from config.foreign import cached_by_file
from config.loading import parse_options
from config.schema import AlignOptions, ClipOptions, Options, SegmentOptions, TranscribeOptions
from core.jobs.job import Job
from core.jobs.reporter import duration_text, pluralize
from core.library.segments import (
    PREFIX,
    TABLE,
    SegmentClip,
    Segments,
    SegmentsCard,
    damaged_segments,
    read_clips,
    save_typed_text,
)
from core.sources import source_preview
from core.sources.recognisers import damaged_recognisers
from ui import job_views, media, uploads
from ui.form import OptionsForm, Value, build_form, command_line
from ui.live import View, choice_update
from ui.markup import NOTHING, Html, element, join, paragraph, table
from ui.page import Page
from ui.tokenizer import pasted_text_path

TAB = "data"
WITHOUT, WITH = "Without text: segment and transcribe (ASR)", "With text or subtitles: align"
BY_HAND = "Without text and recogniser: segment, then type the texts"
_RECOGNISERS = {BY_HAND: ("",),
                WITHOUT: ("openai/whisper-small", "openai/whisper-large-v3", "facebook/mms-1b-all", "built-in"),
                WITH: ("facebook/mms-1b-all", "built-in")}
_SHARED = ("source", "language")  # fields of the form above
_FIELDS = ("kind", "recogniser", "segments", "recogniser_language", "text")
_MOST_DOUBTS = 20


def build(page: Page, form: OptionsForm, preview: gr.HTML) -> None:
    """Lay out the accordion; recordings and language are those of the dataset's `form`.

    `preview` shows the detected format of the source; a start clears it.
    """
    with gr.Accordion("Long recordings", open=False, visible=False, elem_classes="fold", elem_id="long-audio") as fold:
        gr.HTML(paragraph(
            "Make clips of 2 to 15 seconds with their texts from long recordings. Source and language are those above. "
            "When the clips are ready, a button makes them the source.", class_="small"))
        kind = gr.Radio([WITHOUT, WITH, BY_HAND], value=WITHOUT, label="Recordings", elem_id="long-kind")
        with gr.Row(elem_classes="grid"):
            recogniser = gr.Dropdown(list(_RECOGNISERS[WITHOUT]), value=_RECOGNISERS[WITHOUT][0],
                                     allow_custom_value=True, label="Recogniser", elem_id="long-recogniser",
                                     info="OWNER/NAME on the Hub, a folder, or built-in (only for the built-in model's "
                                     "synthetic voices). Downloaded once.", min_width=150)
            name = gr.Textbox("recordings", label="Name", max_lines=1, elem_id="long-name", min_width=150,
                              info="Name of the segments in the workspace.")
        text = gr.Textbox("", label="Text", lines=3, max_lines=8, elem_id="long-text", visible=False,
                          info="Of one recording: paste it, or give the path of a text or subtitle file. Empty: the "
                          "file of the same name beside each recording. Subtitle timestamps are ignored.")
        with gr.Accordion("Clip length, audio and speakers", open=False, elem_classes="fold", elem_id="long-more"):
            clips = build_form(ClipOptions)
            recogniser_language = gr.Textbox(
                "", label="Recogniser language", max_lines=1, elem_id="long-called",
                info="The recogniser's name of the language where it is not the code, such as amh for MMS.")
        with gr.Row(elem_classes="controls"):
            start = gr.Button("Make clips", variant="primary", size="md", elem_id="run-long",
                              min_width=140)
        notice = gr.HTML(elem_classes="notices", elem_id="long-notice")
        command = gr.HTML(elem_id="command-long")

    # The command follows every field of the accordion.
    widgets = (kind, recogniser, name, recogniser_language, text)
    for field, widget in (*zip(_FIELDS, widgets, strict=True), *zip(clips.names, clips.widgets, strict=True)):
        page.live.watch(f"long.{field}", widget)
    page.live.panel(command, lambda view: _command(page, view, clips.names), TAB)
    page.live.panel(fold, after_upload, TAB)

    def of_kind(mode: str) -> Sequence[object]:
        if mode not in _RECOGNISERS:
            raise UserError(f"Kind: nothing is chosen (given: {mode!r}).", f"Choose one of {', '.join(_RECOGNISERS)}.")
        # Each way to find the texts needs other recognisers.
        offered = _RECOGNISERS[mode]
        return [NOTHING, gr.update(choices=list(offered), value=offered[0], visible=mode != BY_HAND),
                gr.update(visible=mode == WITH)]

    page.on(kind.change, of_kind, [kind], [notice, recogniser, text])
    shared = [form.widget(field) for field in _SHARED]
    page.on(start.click, lambda *values: _start(page, clips.names, *values), [*shared, *widgets, *clips.widgets],
            [notice])
    page.on(start.click, lambda: [NOTHING], [], [preview])


def after_upload(view: View) -> object:
    """Show the fold once there is a source, and open it for recordings without a text; then a person may close it."""
    source, language = view.values["prepare.source"].strip(), view.values["prepare.language"].strip().lower()
    uncut = bool(source) and source != "demo" and not source.startswith(PREFIX)
    return gr.update(visible=uncut, open=uncut and _lacks_text(source, language, uploads.source_key(source)))


@lru_cache(maxsize=16)
def _lacks_text(source: str, language: str, _key: str) -> bool:
    try:
        source_preview.preview(source, language)
    except UserError as error:  # the form says what it is
        return error.kind is ErrorKind.NO_TEXT
    except OSError:
        return False
    return False


def build_results(page: Page, form: OptionsForm, preview: gr.HTML) -> None:
    """Lay out the segments, and the button that makes the newest ones with texts the source of `form`."""
    results = gr.HTML(elem_id="long-result")

    with gr.Row(elem_classes="controls"):
        take = gr.Button("Use as source", variant="primary", size="md", visible=False, elem_id="long-take")
    page.live.panel(results, lambda view: shown_view(page, view), TAB)
    page.live.panel(take, lambda view: offer(ready(page, view), view.values["prepare.source"]), TAB)
    page.on(take.click, lambda: _take(page), [],
            [preview, *(form.widget(field) for field in ("source", "dataset", "language"))])


def build_typing(page: Page) -> None:
    """One clip after another: it is played, its text is typed, Enter saves it and plays the next."""
    with gr.Accordion("Type the texts of segments", open=False, visible=False, elem_classes="fold",
                      elem_id="typing") as fold:
        gr.HTML(paragraph("Each clip is played; type what is said and press Enter. Ctrl and space play it again. An "
                          "empty text leaves the clip out.", class_="small"))
        chosen = gr.Dropdown([], label="Segments", filterable=False, elem_id="typing-segments")
        clip_html = gr.HTML(elem_id="typing-clip")
        text = gr.Textbox("", label="Text of this clip", max_lines=1, elem_id="typing-text")
        with gr.Row(elem_classes="controls"):
            back = gr.Button("Previous clip", size="md", elem_id="typing-back")
            save = gr.Button("Save and next", variant="primary", size="md", elem_id="typing-save")
        notice = gr.HTML(elem_classes="notices")
    page.live.panel(fold, lambda view: gr.update(visible=bool(page.workspace.list_segments())), TAB)
    place = gr.State(-1)  # number of the clip; below 0 before the first
    page.live.watch("typing.segments", chosen)
    page.live.panel(chosen, lambda view: choice_update(
        [name for name in page.workspace.list_segments() if _loaded(page, name) is not None],
        view.values["typing.segments"]), TAB)

    def show(name: str | None, number: int, *, play: bool) -> Sequence[object]:
        """The clip, its text and its number."""
        segments = _loaded(page, name or "")
        if segments is None:
            return [NOTHING, NOTHING, "", -1]
        pieces = segments.pieces()
        number = min(max(0, number), len(pieces) - 1)
        return [NOTHING, typed_clip_view(segments, pieces, number, play), pieces[number].text if pieces else "", number]

    def open_first(name: str | None) -> Sequence[object]:
        segments = _loaded(page, name or "")
        pieces = segments.pieces() if segments is not None else ()
        return show(name, next((index for index, piece in enumerate(pieces) if not piece.text), 0), play=False)

    def keep(name: str | None, number: int, typed: str | None) -> Sequence[object]:
        segments = _loaded(page, name or "")
        if segments is None or number < 0:
            raise UserError("No segments are chosen.", "Make some under Long recordings first.")
        pieces = segments.pieces()
        save_typed_text(segments.folder, pieces[number].id, typed or "")
        return show(name, number + 1, play=True)

    # Enter and the button do the same, and both play the next clip.
    outputs = [notice, clip_html, text, place]
    page.on(chosen.change, open_first, [chosen], outputs)
    page.on(text.submit, keep, [chosen, place, text], outputs)
    page.on(save.click, keep, [chosen, place, text], outputs)
    page.on(back.click, lambda name, number: show(name, number - 1, play=True), [chosen, place], outputs)


def typed_clip_view(segments: Segments, pieces: Sequence[SegmentClip], index: int, play: bool) -> Html:
    """A clip with its player, and how many have a text."""
    if not pieces:
        return job_views.empty("These segments have no clip.")
    piece = pieces[index]
    address = f"{media.url('segments', segments.folder.name, piece.audio)}#t={piece.begin_s:.3f},{piece.end_s:.3f}"
    sound = element("audio", controls=True, preload="metadata", autoplay=play, src=address,
                    aria_label=f"Clip {index + 1} of {len(pieces)}")
    texts = sum(bool(clip.text) for clip in pieces)
    return join((paragraph(element("strong", f"Clip {index + 1} of {len(pieces)}"), f", {piece.duration_s:.1f} s; "
                           f"{pluralize(texts, 'clip')} with a text."), sound))


def ready(page: Page, view: View) -> SegmentsCard | None:
    """The segments with texts of the newest finished job."""
    finished = [state for state in view.jobs if state.verb in ("segment", "transcribe", "align")
                and state.status == "finished"]
    # The newest segments are those that a person means.
    newest = max(finished, key=lambda state: state.job.created, default=None)
    segments = _loaded(page, str(newest.job.settings.get("segments", ""))) if newest is not None else None
    return segments.card if segments is not None and segments.card.texts else None


def offer(card: SegmentsCard | None, source: str) -> object:
    """An update of the button: visible while there are clips that are not the source already."""
    if card is None or source.strip() == f"{PREFIX}{card.name}":
        return gr.update(visible=False)
    return gr.update(visible=True, value=f"Use the {pluralize(card.texts, 'clip')} of {card.name} as source")


def _take(page: Page) -> Sequence[object]:
    card = ready(page, View(TAB, {}, tuple(page.live.board.states())))
    if card is None:
        raise UserError("There are no clips with texts.", "Make them under Long recordings first.")
    return [job_views.notice(f"Source: the clips of {card.name}. Now prepare the dataset.", "good"),
            f"{PREFIX}{card.name}", card.name, card.language]


def jobs_to_start(page: Page, values: Mapping[str, Value], *, keep: bool) -> list[tuple[str, Options]]:
    """The verbs and options to start. Pasted text becomes a file of the workspace when `keep` is set."""
    clips = {name: values[name] for name in ClipOptions.model_fields}
    common = {"source": values["source"], "segments": values["segments"], "language": values["language"]}
    recogniser = {"recogniser": values["recogniser"], "recogniser_language": values["recogniser_language"]}
    if not str(values["source"] or "").strip() or values["source"] == "demo":
        raise UserError("No long recordings are chosen.",
                        "Upload them above, or enter the path of a recording or a folder as the source.")
    if str(values["source"]).startswith(PREFIX):
        raise UserError("The source is already cut from long recordings.",
                        "Prepare it, or choose other recordings as the source.")
    if values["kind"] == BY_HAND:
        return [("segment", parse_options(SegmentOptions, {**common, **clips}))]
    if values["kind"] == WITHOUT:
        return [("segment", parse_options(SegmentOptions, {**common, **clips})),
                ("transcribe", parse_options(TranscribeOptions, {"segments": values["segments"], **recogniser}))]
    text = pasted_text_path(page, str(values["text"] or "").strip(), keep=keep)
    return [("align", parse_options(AlignOptions, {**common, **recogniser, **clips, "text": text}))]


def _start(page: Page, clips: Sequence[str], *entered: Value) -> Sequence[object]:
    # The order is that of the event's inputs.
    values = dict(zip((*_SHARED, *_FIELDS, *clips), entered, strict=True))
    # Each job waits for those before it, whose clips it reads.
    started: list[Job] = []
    for verb, options in jobs_to_start(page, values, keep=True):
        started.append(page.start(verb, options, after=[job.id for job in started]))
    return [join(map(page.started_notice, started))]


def _command(page: Page, view: View, clips: Sequence[str]) -> Html:
    values = {field: view.values[f"prepare.{field}"] for field in _SHARED}
    values |= {field: view.values[f"long.{field}"] for field in (*_FIELDS, *clips)}
    try:
        planned_jobs = jobs_to_start(page, values, keep=False)
    except UserError:
        return NOTHING  # shown when the button is clicked
    return element("pre", "\n".join(command_line(verb, options, page.workspace.path) for verb, options in planned_jobs),
                   class_="command")


def shown_view(page: Page, view: View) -> Html:
    """The newest jobs, the segments, and the clips with low confidence."""
    newest_of_verbs = [view.newest(verb) for verb in ("segment", "transcribe", "align")]
    jobs = [state for state in newest_of_verbs if state is not None]
    newest = sorted(jobs, key=lambda state: state.job.created)[-2:]
    cards = join(job_views.job_card(state) for state in newest)

    damaged = damaged_segments(page.workspace)
    names = [name for name in page.workspace.list_segments() if name not in damaged]
    candidates = [_loaded(page, name) for name in names]
    loaded = [segments for segments in candidates if segments is not None]
    return join((cards, segments_view(loaded), job_views.damaged_view(damaged, "Segments that cannot be read"),
                 *(doubts_view(segments_shown) for segments_shown in loaded),
                 job_views.damaged_view(damaged_recognisers(page.workspace), "Recognisers that cannot be read")))


def _loaded(page: Page, name: str) -> Segments | None:
    try:
        return Segments.load(page.workspace.segments / name)
    except UserError:
        return None


def segments_view(loaded: Sequence[Segments]) -> Html:
    """The segments of the workspace."""
    if not loaded:
        return NOTHING
    rows = [(f"{PREFIX}{card.name}", job_views.language_name(card.language),
             f"{card.clips} of {duration_text(card.recorded_s)}",
             (f"{card.texts}, {card.doubtful} flagged" if card.doubtful else str(card.texts)) if card.texts
             else "none yet", card.recogniser or "–")
            for card in (segments.card for segments in loaded)]
    head = ("Source", "Language", "Clips", "With text", "Recogniser")
    return join((element("h2", "Segments of long recordings"), table(head, rows)))


def doubts_view(segments: Segments) -> Html:
    """The flagged clips, the lowest confidence first."""
    if not segments.card.doubtful:
        return NOTHING

    # A person checks the least certain clips first.
    doubtful = _doubtful(segments.folder / TABLE)
    rows = [(piece.recording, f"{int(piece.from_s) // 60}:{int(piece.from_s) % 60:02d}", piece.doubt, piece.text[:120])
            for piece in doubtful[:_MOST_DOUBTS]]
    remaining = len(doubtful) - len(rows)
    return element("details", element("summary", f"{pluralize(len(doubtful), 'flagged clip')} of {segments.card.name}"),
                   table(("Recording", "Time", "Reason", "Text"), rows),
                   paragraph(f"{remaining} more are in {segments.folder.name}/metadata.jsonl.", class_="small")
                   if remaining > 0 else NOTHING)


@cached_by_file(8)
def _doubtful(table: Path) -> list[SegmentClip]:
    flagged = (piece for piece in read_clips(table) if piece.doubt)
    return sorted(flagged, key=lambda piece: piece.score or 0.0)
