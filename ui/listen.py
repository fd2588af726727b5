"""Listen tab: the same text, voice and seed with the base and the trained model, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import gradio as gr

from config import foreign
from config.errors import UserError
from config.schema import CertifyOptions, CompareOptions, SynthesizeOptions
from core.dataset import original_recordings
from core.jobs.reporter import pluralize
from core.jobs.state import JobState
from core.jobs.verbs import SYNTHESIS_VERBS
from core.library import certificate
from core.library.lineage import Model
from core.workspace import Reference
from ui import books, comparison_views, evaluation, job_views, media, records, verb_form, voice_settings
from ui.form import Value, parse
from ui.live import QUIET, View
from ui.markup import NOTHING, Html, div, element, join, paragraph, shortened
from ui.page import Page
from ui.titles import title_of

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "am": ("ሰላም ለሁሉም", "ውሃ እፈልጋለሁ", "ዛሬ በጣም ደስ ብሎኛል"),
    "en": ("The old boat came home before the rain.", "She opened the window and listened."),
    "fr": ("Le petit bateau rentre avant la pluie.", "Elle ouvre la fenêtre et écoute."),
}
"""Example sentences by language; their characters are all in the demo's recordings."""
_MARKED_CHARACTERS = 600  # characters of a text that is marked while it is typed
_PLAY_PARTS = "watch('value', () => window.lisanStream && window.lisanStream(element));"


def build(page: Page) -> None:
    """Lay out the tab and add its listeners."""
    verb_form.tab_header("Listen", "Synthesize a sentence with the base and the trained model, with the same voice and "
                         "seed. Where a recogniser (ASR) knows the language, each clip has a character error rate "
                         "(CER), beside the CER of original recordings.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            finetuned = gr.Dropdown([], label="Trained model (after)", elem_id="listen-finetuned")
            use = gr.Button("Use this checkpoint for the run", size="md", visible=False, elem_id="listen-use")
            used = gr.HTML(elem_classes="notices", elem_id="listen-used")
            with gr.Row(elem_classes="grid"):
                language = gr.Dropdown([("Amharic", "am")], value="am", label="Language", elem_id="listen-language",
                                       min_width=150)
                voice = gr.Dropdown([], label="Voice", elem_id="listen-voice", min_width=150)
            readiness = gr.HTML(elem_id="listen-readiness", elem_classes="notices")
            text = gr.Textbox(EXAMPLES["am"][0], label="Text", lines=2, elem_id="listen-text")
            unknown = gr.HTML(elem_id="listen-unknown", elem_classes="notices")
            length = gr.HTML(elem_id="listen-length", elem_classes="notices")  # the duration of a long text
            examples = gr.Radio([], label="Examples", elem_classes="chips", elem_id="listen-examples")
            compares = gr.Checkbox(True, label="Compare with the base model", elem_id="listen-both")
            start = gr.Button("Compare", variant="primary", size="lg", elem_id="speak")
            notice = gr.HTML(elem_classes="notices")

            # A file is synthesized with the same voice and settings as a text.
            settings = voice_settings.build(page, voice)
            with gr.Accordion("Many clips from a text file", open=False, elem_classes="fold", elem_id="listen-many"):
                file = gr.File(label="Text file (UTF-8)", file_types=["text"], elem_id="listen-file", height=120)
                path = gr.Textbox("", visible="hidden")
                lines = gr.Checkbox(True, label="A clip per line; otherwise one long text", elem_id="listen-lines")
                start_file = gr.Button("Synthesize the file", size="md", elem_id="speak-file")
                file_notice = gr.HTML(elem_classes="notices", elem_id="listen-file-notice")
            # Streaming and the blind test concern how clips are heard, not how they are made.
            stream = gr.Checkbox(True, label="Stream audio while it is synthesized", elem_id="listen-stream")
            blind = gr.Checkbox(False, label="Blind test: hide which is which, and vote", elem_id="listen-blind")
        with gr.Column(scale=3, min_width=300):
            page.pair.render()
            status = gr.HTML(elem_id="pair-status")
            with gr.Row(elem_classes="controls"):
                stop = gr.Button("Stop", size="md", visible=False, elem_id="stop-speech", scale=0, min_width=110)
            stop_notice = gr.HTML(elem_classes="notices")
            parts = gr.HTML(elem_id="stream-player", js_on_load=_PLAY_PARTS)  # the page's script plays these
            clips = gr.HTML(elem_id="clips")
            with gr.Row(visible=False, elem_classes="controls", elem_id="vote") as vote_row:
                vote_first = gr.Button("A is better", size="md", elem_id="vote-a", min_width=90)
                same = gr.Button("No difference", size="md", elem_id="vote-same", min_width=90)
                second = gr.Button("B is better", size="md", elem_id="vote-b", min_width=90)
                reveal = gr.Button("Reveal", size="md", elem_id="vote-none", min_width=90)
            tally = gr.HTML(elem_id="tally")
    evaluation.build(page)
    books.build(page)
    requested = gr.State("")  # the comparison that this browser started, whose parts it plays

    live = page.live
    for name, widget in (("finetuned", finetuned), ("text", text), ("language", language), ("pair", page.pair),
                         ("requested", requested), ("blind", blind), ("stream", stream), ("both", compares)):
        live.watch(name, widget)
    for component, render in (
        (finetuned, lambda view: _trained_choices(page, view)),
        (start, lambda view: gr.update(
            value="Compare" if _compares(page, view) else "Synthesize")),
        (compares, lambda view: gr.update(visible=all(voice_settings.selected_models(page.workspace, view)))),
        (blind, lambda view: gr.update(visible=_compares(page, view))),
        (language, lambda view: gr.update(
            choices=[(job_views.language_name(code), code) for code in _languages(page, view)],
            value=_language(page, view))),
        (readiness, lambda view: voice_settings.readiness(page.workspace, view)),
        (text, lambda view: _suggested_text(page, view)), (examples, lambda view: _example_choices(page, view)),
        (page.pair, pair_choices), (status, status_view), (parts, lambda view: parts_view(page, view)),
        (clips, lambda view: clips_view(page, view)), (tally, lambda view: _tally(page, view)),
    ):
        live.panel(component, render, "listen")

    live.show_when(vote_row, lambda view: _blind_comparison(page, view),
                   lambda job: comparison_views.open_question(job, _voted(page, job)) is not None, "listen")
    live.show_when(stop, selected_comparison, lambda job: job.alive and job.status != "stopping", "listen")

    # A checkpoint other than the one that the run refers to can become that one.
    live.panel(use, lambda view: gr.update(visible=_other_checkpoint(page, view) is not None), "listen")
    page.on(use.click, lambda reference: _use(page, reference), [finetuned], [used, finetuned])
    examples.input(lambda chosen: chosen, [examples], [text], **QUIET)
    text.change(lambda text: comparison_views.length_notice(text or "", live.board.states()), [text], [length],
                **QUIET)

    # Unknown characters are marked while a person types.
    for event in (text.change, language.change, finetuned.change):
        event(lambda *chosen: unknown_view(page, *chosen), [text, language, finetuned, settings.base], [unknown],
              **QUIET)

    page.on(start.click, lambda *values: _start(page, settings.names, *values),
            [blind, compares, settings.base, finetuned, language, text, settings.voice, *settings.widgets],
            [notice, requested, page.pair])
    page.on(file.upload, _uploaded, [file], [file_notice, path], files=True)
    page.on(file.clear, lambda: [NOTHING, ""], [], [file_notice, path])
    page.on(start_file.click, lambda *values: _start_file(page, settings.names, *values),
            [path, lines, settings.base, finetuned, language, settings.voice, *settings.widgets],
            [file_notice, requested, page.pair])
    page.on(stop.click, lambda pair: page.stop(_shown(page, pair).id), [page.pair], [stop_notice])

    for button, letter in ((vote_first, "A"), (same, ""), (second, "B")):
        page.on(button.click, partial(_vote, page, letter), [page.pair], [notice])

    def show_sides(pair: str | None) -> Sequence[object]:
        comparison_views.set_blind(_votes_file(page), _shown(page, pair).id, on=False)
        return [NOTHING, False]

    page.on(reveal.click, show_sides, [page.pair], [notice, blind])


def selected_comparison(view: View) -> JobState | None:
    """The chosen comparison; when none is chosen, the newest. None: it was deleted.

    A skipped one, whose models were never made, gives way to what can be played.
    """
    state = view.selected_job("pair", *SYNTHESIS_VERBS)
    return view.newest(*SYNTHESIS_VERBS) if state is not None and state.status == "skipped" else state


def _shown(page: Page, pair: str | None) -> JobState:
    """The comparison that the page shows; the browser draws the clips before the dropdown of pairs has its value."""
    state = selected_comparison(View("listen", {"pair": pair or ""}, tuple(page.live.board.states())))
    if state is None:
        raise UserError("The comparison was deleted.", "Choose another one, or synthesize a text.")
    return state


def pair_choices(view: View) -> object:
    """All comparisons, by time, text and model."""
    titles = {job.id: voice_settings.pair_title(view, job) for job in view.jobs if job.verb in SYNTHESIS_VERBS}
    update = view.choices("pair", titles, selected_comparison(view))
    return gr.update(**update, visible=bool(update["choices"]))


def status_view(view: View) -> Html:
    state = selected_comparison(view)
    deleted = view.deleted("pair")
    if deleted:
        return job_views.job_deleted(deleted)
    if state is None:
        return job_views.empty("Nothing synthesized yet. Choose a model and a text, then click the button.")
    if state.status != "finished":
        return job_views.job_card(state)
    has_notice = state.warnings and view.values.get("blind") != "True"  # a warning may name a side
    return div("card", job_views.warnings(state.warnings)) if has_notice else NOTHING


def clips_view(page: Page, view: View) -> Html:
    """The clips of the comparison with their scores, and those of original recordings."""
    state = selected_comparison(view)
    if state is None:
        selected = voice_settings.selected_models(page.workspace, view)[1]
        return _outcome(page, view, selected.reference) if selected else NOTHING
    # In a blind test nothing may tell which model speaks.
    blind = _is_blind(page, view, state)
    speaking = str(state.job.settings.get("finetuned" if state.verb == "compare" else "voice_model", ""))
    outcome = NOTHING if blind else _outcome(page, view, speaking)
    dataset = _dataset_of(view, speaking)

    def recording(text: str) -> str:
        original = original_recordings.original_recording(page.workspace, dataset, text)
        return media.url("datasets", original.dataset, original.audio) if original else ""

    pairs = comparison_views.comparison(state, records.originals(state), blind, _voted(page, state), recording)
    return join((outcome, _means(page, state), pairs,
                 comparison_views.download_view(state, blind)))


def _dataset_of(view: View, reference: str) -> str:
    """The dataset that the run at `reference` was trained on; empty for other models."""
    run = view.job(Reference.parse(reference).run)
    return str(run.job.settings.get("dataset", "")) if run is not None else ""


def _outcome(page: Page, view: View, reference: str) -> Html:
    """What the training of the model at `reference` taught; nothing for a base model."""
    parts = Reference.parse(reference)
    run = view.job(parts.run)
    if run is not None:
        report = records.learning_report(run, int(parts.checkpoint) if parts.checkpoint.isdigit() else None)
        return job_views.learning_view(report, claimed=records.is_imported(run))
    path = records.certificate_path(page.workspace, reference)
    if parts.kind == "export" and path.is_file():
        result = records.verify(page.workspace, reference)
        warning = comparison_views.verification_view(result)
        if result is None or result.outcome.of_other_files:
            return warning
        claimed = result.claimed or result.proof.trained_elsewhere
        return join((warning, job_views.learning_view(result.proof.learning_report, claimed=claimed)))
    return NOTHING


def _means(page: Page, state: JobState) -> Html:
    """A line for each language of the clips: the mean errors on the certificate of the model that speaks."""
    reference = str(state.job.settings.get("finetuned" if state.verb == "compare" else "voice_model", ""))
    name = reference.partition("@")[0]
    # Errors are those of the certificate, over all held-out sentences.
    path = records.certificate_path(page.workspace, name)
    if not name.startswith(("run:", "export:")) or not path.is_file():
        return NOTHING
    proof = certificate.read(path)
    try:
        step = Model.open(page.workspace, reference).step
    except UserError:
        # The checkpoint was deleted.
        return NOTHING
    # The certificate may be of another checkpoint: another one was named, or chosen since.
    if step not in (None, proof.step):
        return NOTHING
    codes = dict.fromkeys([code for code, _ in comparison_views.texts_of(state)] + [clip.language for clip in
                                                                                    state.audio])

    result = records.verify(page.workspace, name)
    warning = comparison_views.verification_view(result) if name.startswith("run:") else NOTHING  # else in `_outcome`
    if result is None or result.outcome.of_other_files:
        return warning
    return join((warning, *(comparison_views.means_view(proof, code) for code in codes)))


def parts_view(page: Page, view: View) -> Html:
    """The finished parts of clips for the script that plays them in order; none in a blind test."""
    state = view.job(view.values["requested"])
    if state is None or view.values["stream"] != "True" or _is_blind(page, view, state):
        return NOTHING
    parts = [{"clip": f"{state.id}/{part.index}/{part.side}", "url": media.url("runs", state.id, part.path)}
             for part in state.audio_chunks]
    return div("stream-player", data_job=state.id, data_parts=json.dumps(parts))


def _trained_choices(page: Page, view: View) -> object:
    """Trained models, newest first, and the base alone; the first is preselected, and again when its training ends."""
    models = voice_settings.trained_models(page.workspace, view)
    _, after = voice_settings.selected_models(page.workspace, view)
    newest = view.job(models[0].name) if models and models[0].kind == "run" else None
    # The base alone stays a choice, to hear it without a comparison.
    none = ("Base model only", voice_settings.BASE_ONLY) if models else ("No trained model yet: base model only", "")
    return gr.update(choices=[*((voice_settings.label(view, model), model.reference) for model in models), none],
                     value=view.follow("finetuned", after.reference if after else none[1],
                                       [model.reference for model in models],
                                       models[0].reference if newest and newest.status == "finished" else ""))


def _compares(page: Page, view: View) -> bool:
    """Whether the button compares two models."""
    return view.values["both"] == "True" and all(voice_settings.selected_models(page.workspace, view))


def _other_checkpoint(page: Page, view: View) -> JobState | None:
    """The finished run of the chosen checkpoint, if it does not refer to that checkpoint already."""
    _, after = voice_settings.selected_models(page.workspace, view)
    state = view.job(after.name) if after and after.kind == "run" and "@" in after.reference else None
    return state if state is not None and state.status == "finished" else None


def _use(page: Page, reference: str) -> Sequence[object]:
    """Let the run refer to the chosen checkpoint, and certify it."""
    reference = reference or ""
    name = Reference.parse(reference).run
    step = Model.open(page.workspace, reference).step
    page.start("certify", CertifyOptions(run=reference))
    title = title_of(page.workspace, f"run:{name}")
    return [job_views.notice(f"{title} refers to step {step} now. Its certificate is being computed."),
            gr.update(value=f"run:{name}")]


def unknown_view(page: Page, text: str | None, language: str | None, finetuned: str | None,
                 base: str | None) -> Html:
    """The text with the characters marked that the model cannot read, while it is typed; nothing if it reads all."""
    text, language = (text or "")[:_MARKED_CHARACTERS], language or ""
    reference = base if finetuned in (voice_settings.BASE_ONLY, "", None) else finetuned
    # Nothing is marked before there are a text and a model.
    if not text.strip() or not reference:
        return NOTHING
    try:
        front_end = Model.open(page.workspace, reference).front_end
        if language not in front_end.languages or front_end.unready(language):
            return NOTHING
        unknown = front_end.unknown_characters(text, language)
        if not unknown:
            return NOTHING
        readable = {character: not front_end.unknown_characters(character, language) for character in set(text)}
    except (UserError, OSError):  # a damaged model: the button says so
        return NOTHING

    marked = join(character if readable[character] or character.isspace() else element("mark", character, class_="old")
                  for character in text)

    # Digits have a remedy of their own.
    digits = any(character.isdigit() for character in unknown)
    hint = ("Write numbers as words, or train with text rules, which write them out." if digits else
            "Spell them in another way, or choose under “Precision and unknown characters” to leave them out.")
    return div("notice bad", element("strong", f"{job_views.language_name(language)} of this model has no "
                                               f"{' '.join(unknown)}"),
               element("p", marked, class_="turned", lang=language), paragraph(hint), role="alert")


def _languages(page: Page, view: View) -> Sequence[str]:
    """The languages of the chosen model; before there is one, those of the examples."""
    return voice_settings.languages(page.workspace, view) or tuple(EXAMPLES)


def _language(page: Page, view: View) -> str:
    """The chosen language where the model has it, else the model's first."""
    codes = _languages(page, view)
    return view.values["language"] if view.values["language"] in codes else codes[0]


def _suggested_text(page: Page, view: View) -> object:
    """An example of the language in the place of one in another language; what was typed stays."""
    code = _language(page, view)
    examples = list(chain.from_iterable(texts for other, texts in EXAMPLES.items() if other != code))
    return verb_form.suggest_value(view.values["text"], EXAMPLES.get(code, ("",))[0], examples)


def _example_choices(page: Page, view: View) -> object:
    """Held-out sentences of the language's datasets, then the built-in ones."""
    code = _language(page, view)
    texts: list[str] = []
    for dataset in records.datasets(page.workspace):
        if code in dataset.languages:
            texts += records.held_out_texts(page.workspace, dataset.name, 5, code)
    return gr.update(choices=list(dict.fromkeys([*texts, *EXAMPLES.get(code, ())]))[:6])


def _speaking(page: Page, names: Sequence[str], base: str, finetuned: str, voice: str,
              values: Sequence[Value]) -> tuple[str, Mapping[str, Value]]:
    """The model that speaks alone: the trained one, where there is one; and the settings of the widgets."""
    model = base if finetuned in (voice_settings.BASE_ONLY, "") else finetuned
    if not model:
        raise UserError("There is no model yet.", "Download a base model on the Model tab.")
    family = Model.open(page.workspace, model).family
    return model, {"voice": voice or "", **voice_settings.settings(family, names, values)}


def _uploaded(path: str | None) -> Sequence[object]:
    """Note the path of an uploaded text file, and say how many clips it gives."""
    if not path:
        return [NOTHING, ""]
    texts = [line for line in foreign.read_text(Path(path), Path(path).name).splitlines() if line.strip()]
    if not texts:
        raise UserError(f"{Path(path).name} has no text.", "Write a line for each clip.")
    return [job_views.notice(f"{pluralize(len(texts), 'line')}. The first: {shortened(texts[0], 60)}"), path]


def _start_file(page: Page, names: Sequence[str], path: str, lines: bool, base: str, finetuned: str, language: str,
                voice: str, *values: Value) -> Sequence[object]:
    """Queue the synthesis of a text file with one model."""
    if not path:
        raise UserError("No text file was given.", "Upload one with a line for each clip.")
    model, settings = _speaking(page, names, base, finetuned, voice, values)
    job = page.start("synthesize", parse(SynthesizeOptions, {
        "voice_model": model, "language": language, "file": path, "lines": bool(lines), **settings}))
    return [page.started_notice(job), job.id, page.show(job.id)]


def _start(page: Page, names: Sequence[str], blind: bool, compares: bool, base: str, finetuned: str, language: str,
           text: str, voice: str, *values: Value) -> Sequence[object]:
    """Queue a comparison of both models, or a synthesis with one alone."""
    model, settings = _speaking(page, names, base, finetuned, voice, values)

    if not (text or "").strip():
        raise UserError("The text is empty.", "Enter a text, or choose an example.")
    if not compares or model == base or not base:  # without a base model there is nothing to compare with
        job = page.start("synthesize", parse(SynthesizeOptions, {
            "voice_model": model, "language": language, "text": text.strip(), **settings}))
    else:
        job = page.start("compare", parse(CompareOptions, {
            "base": base, "finetuned": finetuned, "texts": ((language, text.strip()),), **settings}))
        if blind:
            comparison_views.set_blind(_votes_file(page), job.id)
    return [NOTHING, job.id, page.show(job.id)]


def _votes_file(page: Page) -> Path:
    return page.workspace.path / "votes.jsonl"


def _is_blind(page: Page, view: View, state: JobState) -> bool:
    """Whether a comparison is blind: by the checkbox, or since it was started so."""
    return view.values["blind"] == "True" or comparison_views.is_blind(_votes_file(page), state.id)


def _voted(page: Page, state: JobState) -> frozenset[int]:
    return frozenset(vote.index for vote in comparison_views.read_votes(_votes_file(page)) if vote.job == state.id)


def _blind_comparison(page: Page, view: View) -> JobState | None:
    """The comparison to vote on."""
    state = selected_comparison(view)
    return state if state is not None and _is_blind(page, view, state) else None


def _vote(page: Page, letter: str, pair: str | None) -> Sequence[object]:
    state = _shown(page, pair)
    index = comparison_views.open_question(state, _voted(page, state))
    if index is None:
        raise UserError("All clips of this comparison have a vote.", "Synthesize another text.")
    # Both sides have the same text and language.
    clip = comparison_views.clips(state)[index]["base"]
    # Letters are translated back to models only after the vote.
    sides = dict(zip("AB", comparison_views.blind_order(state.id, index), strict=True))
    models = {side: str(state.job.settings.get(side, "")) for side in comparison_views.SIDES}

    comparison_views.save_vote(_votes_file(page), comparison_views.Vote(
        state.id, index, clip.language, clip.text, sides.get(letter, "same"), models["finetuned"],
        base=models["base"]))
    answer = f"You chose {letter}" if letter in sides else "You heard no difference"
    were = ", ".join(f"{name} was {title_of(state.job.workspace, models[side])}" for name, side in sides.items())
    return [job_views.notice(f"{answer}; {were}. Saved in votes.jsonl in the workspace.")]


def _tally(page: Page, view: View) -> Html:
    state = _blind_comparison(page, view)
    if state is None:
        return NOTHING
    votes = comparison_views.read_votes(_votes_file(page))
    models = [str(state.job.settings.get(side, "")) for side in comparison_views.SIDES]
    titles = [title_of(page.workspace, model) for model in models]
    return comparison_views.votes_view(votes, models[0], models[1], titles) if _voted(page, state) else element("span")
