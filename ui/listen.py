"""Listen tab: the same text, voice and seed through base and finetuned, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from config.errors import UserError
from config.schema import CompareOptions, SynthesizeOptions
from core import jobs
from core.job.state import JobState
from core.library import offers
from core.library.catalog import resolve, voice_models
from ui import comparison_views, job_views, media, records, verb_form, voice_settings
from ui.form import Value, parse
from ui.live import QUIET, View
from ui.markup import NOTHING, Html, div, element, join
from ui.page import Page
from ui.voice_settings import VoiceSettings

_FIRST = ("am", "en", "fr")  # languages, while no model is here
_HEAR = "watch('value', () => window.lisanHear && window.lisanHear(element));"


@dataclass(frozen=True)
class _Asking:
    """What is to be said, by whom and how."""

    finetuned: gr.Dropdown
    language: gr.Dropdown
    text: gr.Textbox
    length: gr.HTML  # what a long text will cost
    examples: gr.Radio
    speak: gr.Button
    notice: gr.HTML
    readiness: gr.HTML  # what the language lacks on this machine
    manner: VoiceSettings
    stream: gr.Checkbox
    blind: gr.Checkbox


@dataclass(frozen=True)
class _Hearing:
    """What was said, side by side."""

    status: gr.HTML
    hearing: gr.HTML  # no more than the list of parts that the page's script plays
    clips: gr.HTML
    ballot: gr.Row
    first: gr.Button
    same: gr.Button
    second: gr.Button
    uncover: gr.Button
    tally: gr.HTML
    asked: gr.State  # the comparison that this browser asked for, whose parts it plays


def build(page: Page) -> None:
    """Lay out the tab and make it live."""
    verb_form.tab_header("Listen", "The same sentence, voice and seed, before and after. A judge that knows the "
                                   "language "
                               "writes "
               "down what it hears; the share it gets wrong stands under each clip, beside its share on recordings.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            asking = _lay_out_asking()
        with gr.Column(scale=3, min_width=300):
            hearing = _lay_out_hearing(page)
    _follow(page, asking, hearing)
    asking.examples.input(lambda chosen: chosen, [asking.examples], [asking.text], **QUIET)
    asking.text.change(lambda text: comparison_views.length_notice(text or "", page.live.board.states()), [asking.text],
                       [asking.length], **QUIET)
    manner = asking.manner
    page.on(asking.speak.click, lambda *values: _speak(page, manner.names, *values),
            [asking.blind, manner.base, asking.finetuned, asking.language, asking.text, manner.voice, *manner.widgets],
            [asking.notice, hearing.asked, page.pair])
    for button, letter in ((hearing.first, "A"), (hearing.same, ""), (hearing.second, "B")):
        page.on(button.click, _voter(page, letter), [page.pair], [asking.notice])
    page.on(hearing.uncover.click, lambda pair: _uncover(page, pair), [page.pair], [asking.notice, asking.blind])


def _lay_out_asking() -> _Asking:
    finetuned = gr.Dropdown([], label="After: the trained voice", elem_id="listen-finetuned")
    language = gr.Dropdown([("Amharic", "am")], value="am", label="Language", elem_id="listen-language")
    ready = gr.HTML(elem_id="listen-readiness", elem_classes="notices")
    text = gr.Textbox(EXAMPLES["am"][0], label="Text", lines=2, elem_id="listen-text")
    length = gr.HTML(elem_id="listen-length", elem_classes="notices")
    examples = gr.Radio([], label="Or try one of these", elem_classes="chips", elem_id="listen-examples")
    speak = gr.Button("Speak both", variant="primary", size="lg", elem_id="speak")
    notice = gr.HTML(elem_classes="notices")
    manner = voice_settings.build()
    stream = gr.Checkbox(True, label="Play it while it is made", elem_id="listen-stream")
    blind = gr.Checkbox(False, label="Blind: hide which is which, and vote", elem_id="listen-blind")
    return _Asking(finetuned, language, text, length, examples, speak, notice, ready, manner, stream, blind)


def _lay_out_hearing(page: Page) -> _Hearing:
    page.pair.render()
    status = gr.HTML(elem_id="pair-status")
    hearing = gr.HTML(elem_id="hearing", js_on_load=_HEAR)
    clips = gr.HTML(elem_id="clips")
    with gr.Row(visible=False, elem_classes="controls", elem_id="vote") as ballot:
        first = gr.Button("A is better", size="md", elem_id="vote-a", min_width=90)
        same = gr.Button("No difference", size="md", elem_id="vote-same", min_width=90)
        second = gr.Button("B is better", size="md", elem_id="vote-b", min_width=90)
        uncover = gr.Button("Show without a vote", size="md", elem_id="vote-none", min_width=90)
    tally = gr.HTML(elem_id="tally")
    return _Hearing(status, hearing, clips, ballot, first, same, second, uncover, tally, gr.State(""))


def _follow(page: Page, asking: _Asking, hearing: _Hearing) -> None:
    """Let every part show what the workspace holds."""
    live = page.live
    voice_settings.attach(page, asking.manner)
    for name, widget in (("finetuned", asking.finetuned), ("text", asking.text),
                         ("language", asking.language), ("pair", page.pair), ("asked", hearing.asked),
                         ("blind", asking.blind), ("stream", asking.stream)):
        live.watch(name, widget)
    for component, render in (
        (asking.finetuned, lambda view: _offer_trained(page, view)),
        (asking.speak, lambda view: _button(page, view)),
        (asking.language, lambda view: _offer_languages(page, view)),
        (asking.readiness, lambda view: voice_settings.readiness(page.workspace, view)),
        (asking.text, lambda view: _suggest_text(page, view)),
        (asking.examples, lambda view: _offer_examples(page, view)),
        (page.pair, pair_choices), (hearing.status, status_view),
        (hearing.hearing, lambda view: hearing_view(page, view)),
        (hearing.clips, lambda view: clips_view(page, view)),
        (hearing.ballot, lambda view: gr.update(visible=_question(page, view) is not None)),
        (hearing.tally, lambda view: _tally(page, view)),
    ):
        live.panel(component, render, "listen")


def chosen(view: View) -> JobState | None:
    """The comparison that is looked at: the chosen one; when none is, the newest. None: it is gone.

    One that never began, since what it was to compare was not made, gives way to what there is to hear.
    """
    state = view.selected_job("pair", *comparison_views.VERBS)
    return view.newest(*comparison_views.VERBS) if state is not None and state.status == "skipped" else state


def pair_choices(view: View) -> object:
    """All that was spoken, by when, what and who."""
    titles = {job.id: voice_settings.pair_title(view, job) for job in view.jobs if job.verb in comparison_views.VERBS}
    found = view.choices("pair", titles, chosen(view))
    return gr.update(**found, visible=bool(found["choices"]))


def status_view(view: View) -> Html:
    state = chosen(view)
    if gone := view.deleted("pair"):
        return job_views.job_deleted(gone)
    if state is None:
        return job_views.empty("Nothing has been spoken yet. Choose a voice and a sentence, and press the button.")
    if state.status != "finished":
        return job_views.job_card(state)
    told = state.warnings and view.chosen.get("blind") != "True"  # a warning may name a side
    return div("card", job_views.warnings(state.warnings)) if told else NOTHING


def clips_view(page: Page, view: View) -> Html:
    """The comparison's clips, with what the judge makes of real recordings."""
    state = chosen(view)
    if state is None:
        return NOTHING
    blind = comparison_views.BlindMode(_is_blind(page, view, state), _voted(page, state))
    return comparison_views.comparison(state, records.originals(state), blind)


def hearing_view(page: Page, view: View) -> Html:
    """Parts of clips that are still being made, for the script that plays them one after another; none while blind."""
    state = view.job(view.chosen["asked"])
    if state is None or view.chosen["stream"] != "True" or _is_blind(page, view, state):
        return NOTHING
    parts = [{"side": part.side, "url": media.url("runs", state.id, part.path), "seconds": part.duration_s}
             for part in state.audio_pieces]
    return div("hearing", data_job=state.id, data_parts=json.dumps(parts))


def _offer_trained(page: Page, view: View) -> object:
    """Trained voices, newest first; the first is preselected. Last comes none of them, for the base alone."""
    found = [model for model in voice_models(page.workspace, view.jobs) if model.kind != "base"]
    found.sort(key=lambda model: model.kind != "run")
    _, after = voice_settings.chosen(page.workspace, view)
    nobody = ("None: the base speaks alone", voice_settings.BASE_ONLY) if found else ("None yet: the base speaks alone",
                                                                                      "")
    return gr.update(choices=[*((voice_settings.label(view, model), model.reference) for model in found), nobody],
                     value=after.reference if after else nobody[1])


def _button(page: Page, view: View) -> object:
    before, after = voice_settings.chosen(page.workspace, view)
    return gr.update(value="Speak both" if before and after else "Speak")


def _offer_languages(page: Page, view: View) -> object:
    """Those of the chosen voice; before there is one, those that it will have."""
    codes = voice_settings.languages(page.workspace, view) or _FIRST
    return gr.update(choices=[(job_views.language_name(code), code) for code in codes], value=_language(page, view))


def _language(page: Page, view: View) -> str:
    """The language that will be spoken: the chosen one where the voice has it, else the voice's first."""
    codes = voice_settings.languages(page.workspace, view) or _FIRST
    return view.chosen["language"] if view.chosen["language"] in codes else codes[0]


def _suggest_text(page: Page, view: View) -> object:
    """A sentence of the language in the place of an example in another one; what was typed stays."""
    others = [text for code, texts in EXAMPLES.items() if code != _language(page, view) for text in texts]
    own = EXAMPLES.get(_language(page, view), ("",))
    return verb_form.suggest_value(view.chosen["text"], own[0], others)


def _offer_examples(page: Page, view: View) -> object:
    """Sentences of the language: those kept from training when there are some."""
    code = view.chosen["language"] or "am"
    own = [text for found in records.datasets(page.workspace) if found.language == code
           for text in records.held_out_texts(page.workspace, found.name, 5)]
    return gr.update(choices=list(dict.fromkeys([*own, *EXAMPLES.get(code, ())]))[:6])


def _speak(page: Page, names: Sequence[str], blind: bool, base: str, finetuned: str, language: str, text: str,
           voice: str, *values: Value) -> Sequence[object]:
    """Queue what was asked for: both voices side by side, or the base alone."""
    alone = finetuned in (voice_settings.BASE_ONLY, "")
    if not (base if alone else finetuned):
        raise UserError("There is no voice yet.", "Get a base model first: the Model tab does it with one button.")
    if not (text or "").strip():
        raise UserError("The text is empty.", "Write what should be said, or choose an example.")
    family = offers.family_of_voice(page.workspace, resolve(page.workspace, base if alone else finetuned))
    manner = {"voice": voice or "", **voice_settings.settings(family, names, values)}
    if alone:
        said = {"voice_model": base, "language": language, "text": text.strip(), **manner}
        job = page.start("synthesize", parse(SynthesizeOptions, said))
    else:
        asked = {"base": base, "finetuned": finetuned, "texts": ((language, text.strip()),), **manner}
        job = page.start("compare", parse(CompareOptions, asked))
        if blind:
            comparison_views.set_blind(_votes_file(page), job.id)
    return [NOTHING, job.id, page.show(job.id)]


def _votes_file(page: Page) -> Path:
    return page.workspace.path / "votes.jsonl"


def _is_blind(page: Page, view: View, state: JobState) -> bool:
    """Whether a comparison is heard blind: now, or since it was asked for so."""
    return view.chosen["blind"] == "True" or comparison_views.is_blind(_votes_file(page), state.id)


def _uncover(page: Page, pair: str) -> Sequence[object]:
    """Tell which is which without a vote."""
    comparison_views.set_blind(_votes_file(page), pair, on=False)
    return [NOTHING, False]


def _voted(page: Page, state: JobState) -> frozenset[int]:
    return frozenset(vote.index for vote in comparison_views.read_votes(_votes_file(page)) if vote.job == state.id)


def _question(page: Page, view: View) -> int | None:
    """The clip that is to be voted on in blind mode."""
    state = chosen(view)
    if state is None or not _is_blind(page, view, state):
        return None
    return comparison_views.open_question(state, _voted(page, state))


def _voter(page: Page, letter: str) -> Callable[[str], Sequence[object]]:
    def vote(pair: str) -> Sequence[object]:
        state = jobs.state(jobs.load(page.workspace, pair))
        index = comparison_views.open_question(state, _voted(page, state))
        if index is None:
            raise UserError("There is nothing left to vote on here.", "Speak another sentence.")
        clip = comparison_views.clips(state)[index]["base"]
        choice = dict(zip("AB", comparison_views.blind_order(state.id, index), strict=True)).get(letter, "same")
        comparison_views.save_vote(_votes_file(page), comparison_views.Vote(
            state.id, index, clip.language, clip.text, choice, str(state.job.settings.get("finetuned", "")),
            # type: ignore[arg-type]
        ))
        return [job_views.notice("Thank you. It is kept in votes.jsonl in the workspace.")]

    return vote


def _tally(page: Page, view: View) -> Html:
    state = chosen(view)
    if state is None or not _is_blind(page, view, state):
        return NOTHING
    voted = bool(_voted(page, state))
    return join((comparison_views.votes_view(comparison_views.read_votes(_votes_file(page))),)) if voted else element("span")


EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "am": ("ሰላም ለሁሉም", "ውሃ እፈልጋለሁ", "ዛሬ በጣም ደስ ብሎኛል"),
    "en": ("The old boat came home before the rain.", "She opened the window and listened."),
    "fr": ("Le petit bateau rentre avant la pluie.", "Elle ouvre la fenêtre et écoute."),
}

