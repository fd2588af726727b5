"""Long recordings on the Data tab: cut at pauses and written down, or aligned with the text that there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import gradio as gr

from config.errors import UserError
from config.loading import parse_options
from config.schema import AlignOptions, ClipOptions, Options, SegmentOptions, TranscribeOptions
from core.job.directory import Job
from core.segments.folder import PREFIX, TABLE, Card, Piece, Segments, read_pieces
from core.text import lab_text
from ui import job_views
from ui.form import Form, Value, build_form, command_line
from ui.live import View
from ui.markup import NOTHING, Html, element, join, paragraph, table
from ui.page import Page

TAB = "data"
WITHOUT, WITH = "They have no text", "They have a text or subtitles"
_RECOGNISERS = {WITHOUT: ("openai/whisper-small", "openai/whisper-large-v3", "facebook/mms-1b-all", "built-in"),
                WITH: ("facebook/mms-1b-all", "built-in")}
_SHARED = ("source", "language")  # fields of the form above
_OWN = ("kind", "recogniser", "segments", "called", "text")
_MOST_DOUBTS = 20


def build(page: Page, form: Form, looked: gr.HTML) -> None:
    """Lay out the fold; recordings and language are those of the preparation's `form`.

    `looked` is where it stands what the source was taken for, which a start makes an old story.
    """
    with gr.Accordion("Long recordings", open=False, elem_classes="fold", elem_id="long-audio"):
        gr.HTML(paragraph(
            "Hours of speech in a few files become clips of 2 to 15 seconds with their texts. The recordings and the "
            "language are those chosen above. When the clips have their texts, a button takes them as the source."))
        kind = gr.Radio([WITHOUT, WITH], value=WITHOUT, label="The recordings", elem_id="long-kind")
        with gr.Row(elem_classes="grid"):
            recogniser = gr.Dropdown(list(_RECOGNISERS[WITHOUT]), value=_RECOGNISERS[WITHOUT][0],
                                     allow_custom_value=True, label="Recogniser", elem_id="long-recogniser",
                                     info="OWNER/NAME on the hub, a folder, or built-in, for the built-in model's "
                                          "synthetic voices alone. It is fetched once.", min_width=150)
            name = gr.Textbox("recordings", label="Name", max_lines=1, elem_id="long-name", min_width=150,
                              info="What the clips are called in the workspace.")
        text = gr.Textbox("", label="Text", lines=3, max_lines=8, elem_id="long-text", visible=False,
                          info="Of one recording: pasted, or the path of a text or of subtitles. Empty takes the file "
                               "of the same name beside each recording. Times of subtitles are not believed.")
        with gr.Accordion("Clips, sound and speakers", open=False, elem_classes="fold", elem_id="long-more"):
            clips = build_form(ClipOptions)
            called = gr.Textbox("", label="The recogniser's name of the language", max_lines=1, elem_id="long-called",
                                info="Only where it is not the code or its letters, such as amh for MMS.")
        with gr.Row(elem_classes="controls"):
            start = gr.Button("Make clips with texts", variant="primary", size="md", elem_id="run-long",
                              min_width=140)
        notice = gr.HTML(elem_classes="notices", elem_id="long-notice")
        command = gr.HTML(elem_id="command-long")
    own = (kind, recogniser, name, called, text)
    for field, widget in (*zip(_OWN, own, strict=True), *zip(clips.names, clips.widgets, strict=True)):
        page.live.watch(f"long.{field}", widget)
    page.live.panel(command, lambda view: _command(page, view, clips.names), TAB)
    page.on(kind.change, _chosen, [kind], [notice, recogniser, text])
    shared = [form.widget(field) for field in _SHARED]
    page.on(start.click, lambda *values: _start(page, clips.names, *values), [*shared, *own, *clips.widgets],
            [notice])
    page.on(start.click, lambda: [NOTHING], [], [looked])


def build_results(page: Page, form: Form, looked: gr.HTML) -> None:
    """Lay out what there is, and the button that takes the newest clips with texts as the source of `form`."""
    shown = gr.HTML(elem_id="long-result")
    with gr.Row(elem_classes="controls"):
        take = gr.Button("Prepare these clips", variant="primary", size="md", visible=False, elem_id="long-take")
    page.live.panel(shown, lambda view: shown_view(page, view), TAB)
    page.live.panel(take, lambda view: offer(ready(page, view), view.chosen["prepare.source"]), TAB)
    page.on(take.click, lambda: _take(page), [],
            [looked, *(form.widget(field) for field in ("source", "dataset", "language"))])


def ready(page: Page, view: View) -> Card | None:
    """What the newest finished job made clips with texts of."""
    made = [state for state in view.jobs if state.verb in ("transcribe", "align") and state.status == "finished"]
    newest = max(made, key=lambda state: state.job.created, default=None)
    found = _loaded(page, str(newest.job.settings.get("segments", ""))) if newest is not None else None
    return found.card if found is not None and found.card.texts else None


def offer(card: Card | None, source: str) -> object:
    """The button, while there are clips to take that are not the source already."""
    if card is None or source.strip() == f"{PREFIX}{card.name}":
        return gr.update(visible=False)
    return gr.update(visible=True, value=f"Take the {card.texts} clips of {card.name} as the source")


def _take(page: Page) -> Sequence[object]:
    card = ready(page, View(TAB, {}, tuple(page.live.board.states())))
    if card is None:
        raise UserError("There are no clips with texts.", "Make them under Long recordings first.")
    return [job_views.notice(f"The clips of {card.name} are the source now: check and prepare them.", "good"),
            f"{PREFIX}{card.name}", card.name, card.language]


def _chosen(kind: str) -> Sequence[object]:
    offered = _RECOGNISERS[kind]
    return [NOTHING, gr.update(choices=list(offered), value=offered[0]), gr.update(visible=kind == WITH)]


def jobs_to_start(page: Page, values: Mapping[str, Value], *, keep: bool) -> list[tuple[str, Options]]:
    """The verbs and options that the fold asks for. Pasted text becomes a file of the workspace when `keep` is set."""
    clips = {name: values[name] for name in ClipOptions.model_fields}
    common = {"source": values["source"], "segments": values["segments"], "language": values["language"]}
    hears = {"recogniser": values["recogniser"], "recogniser_language": values["called"]}
    if not str(values["source"] or "").strip() or values["source"] == "demo":
        raise UserError("No long recordings were chosen.",
                        "Upload them above, or give the path of a recording or a folder of them as the source.")
    if str(values["source"]).startswith(PREFIX):
        raise UserError("The source above is made of long recordings already.",
                        "Prepare it, or give other recordings as the source.")
    if values["kind"] == WITHOUT:
        return [("segment", parse_options(SegmentOptions, {**common, **clips})),
                ("transcribe", parse_options(TranscribeOptions, {"segments": values["segments"], **hears}))]
    text = str(values["text"] or "").strip()
    if text and ("\n" in text or len(text) > 1000 or not Path(text).expanduser().is_absolute()):
        text = str((lab_text.keep if keep else lab_text.place)(page.workspace, text))
    return [("align", parse_options(AlignOptions, {**common, **hears, **clips, "text": text}))]


def _start(page: Page, clips: Sequence[str], *given: Value) -> Sequence[object]:
    values = dict(zip((*_SHARED, *_OWN, *clips), given, strict=True))
    begun: list[Job] = []
    for verb, options in jobs_to_start(page, values, keep=True):
        begun.append(page.start(verb, options, after=[job.id for job in begun]))
    return [join(map(page.started_notice, begun))]


def _command(page: Page, view: View, clips: Sequence[str]) -> Html:
    values = {field: view.chosen[f"prepare.{field}"] for field in _SHARED}
    values |= {field: view.chosen[f"long.{field}"] for field in (*_OWN, *clips)}
    try:
        asked = jobs_to_start(page, values, keep=False)
    except UserError:
        return NOTHING  # said when the button is pressed
    return element("pre", "\n".join(command_line(verb, options, page.workspace.path) for verb, options in asked),
                   class_="command")


def shown_view(page: Page, view: View) -> Html:
    """The newest jobs, what there is, and what to listen to."""
    jobs = [state for verb in ("segment", "transcribe", "align") if (state := view.newest(verb)) is not None]
    newest = sorted(jobs, key=lambda state: state.job.created)[-2:]
    cards = join(job_views.job_card(state) for state in newest)
    found = [segments for name in page.workspace.list_segments() if (segments := _loaded(page, name)) is not None]
    return join((cards, segments_view(found), *(doubts_view(one) for one in found)))


def _loaded(page: Page, name: str) -> Segments | None:
    try:
        return Segments.load(page.workspace.segments / name)
    except UserError:
        return None


def segments_view(found: Sequence[Segments]) -> Html:
    """The segments of the workspace."""
    if not found:
        return NOTHING
    rows = [(f"{PREFIX}{card.name}", job_views.language_name(card.language),
             f"{card.clips} of {job_views.duration(card.recorded_s)}", _texts(card), card.recogniser or "–")
            for card in (one.card for one in found)]
    head = ("Source", "Language", "Clips", "With text", "Recogniser")
    return join((element("h4", "Cut from long recordings"), table(head, rows)))


def _texts(card: Card) -> str:
    if not card.texts:
        return "none yet"
    return f"{card.texts}, {card.doubtful} doubtful" if card.doubtful else str(card.texts)


def doubts_view(segments: Segments) -> Html:
    """The clips to listen to, the least sure first."""
    if not segments.card.doubtful:
        return NOTHING
    doubtful = _doubtful(segments.folder, (segments.folder / TABLE).stat().st_mtime_ns)
    rows = [(piece.recording, _clock(piece), piece.doubt, piece.text[:120]) for piece in doubtful[:_MOST_DOUBTS]]
    more = len(doubtful) - len(rows)
    return element("details", element("summary", f"{len(doubtful)} clips of {segments.card.name} to listen to"),
                   table(("Recording", "At", "Why", "Text"), rows),
                   paragraph(f"{more} more are in {segments.folder.name}/metadata.jsonl.", class_="small")
                   if more > 0 else NOTHING)


@lru_cache(maxsize=8)
def _doubtful(folder: Path, _stamp: int) -> list[Piece]:
    """Read once for each state of the table."""
    told = (piece for piece in read_pieces(folder / TABLE) if piece.doubt)
    return sorted(told, key=lambda piece: piece.score or 0.0)


def _clock(piece: Piece) -> str:
    minutes, seconds = divmod(int(piece.from_s), 60)
    return f"{minutes}:{seconds:02d}"
