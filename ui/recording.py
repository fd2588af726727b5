"""Record sentences with the microphone on the Data tab, one after the other, and make a dataset of them.

A recording is stored when it is stopped (`core.sources.prompt_lists`). `recording.js` has the keys and keeps the focus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import gradio as gr

from config import foreign
from config.errors import UserError
from config.languages import NAMES, NATIVE_NAMES, language_title, typed_code
from config.schema import PrepareOptions
from core.jobs.reporter import pluralize
from core.sources import prompt_lists
from core.sources.prompt_lists import PromptList
from core.workspace import free_name
from ui import job_views, media
from ui.form import OptionsForm, parse
from ui.live import View
from ui.markup import NOTHING, Html, div, element, paragraph, player, span
from ui.page import Page

TAB, NEW = "data", "+"
_NEW_LABEL = "New prompt list"
_NOWHERE: tuple[str, int] = ("", -1)
_KEYS = (("r", "record or stop"), ("p", "play"), ("n", "next"), ("b", "back"), ("s", "skip"))


def build(page: Page) -> Callable[[OptionsForm, gr.HTML], None]:
    """Lay out the fold; a function that lets its button fill the dataset's form and start the import."""
    with gr.Accordion("Record sentences with the microphone", open=False, elem_classes="fold", elem_id="recording"):
        list_choice = gr.Dropdown([(_NEW_LABEL, NEW)], value=None, label="Prompt list", filterable=False,
                                  elem_id="recording-list")
        with gr.Column(elem_id="recording-new") as new:
            create = _build_new(page, list_choice)
        with gr.Column(visible=False, elem_id="recording-sentences") as recorder:
            card = gr.HTML(elem_id="recording-card")
            microphone = gr.Audio(sources=["microphone"], type="filepath", editable=False, buttons=[],
                                  label="Microphone", elem_id="recording-microphone")
            with gr.Row(elem_classes="controls"):
                back = gr.Button("Back", size="md", elem_id="recording-back", min_width=80)
                skip = gr.Button("Skip", size="md", elem_id="recording-skip", min_width=80)
                onward = gr.Button("Next", variant="primary", size="md", elem_id="recording-next", min_width=80)
            make = gr.Button("Make a dataset", size="md", visible=False, elem_id="recording-make")
        notice = gr.HTML(elem_classes="notices", elem_id="recording-notice")

    place = gr.State(_NOWHERE)  # the list and the number of the sentence
    recorded = gr.State(_NOWHERE)  # those of the recording that runs
    page.live.watch("recording.list", list_choice)
    page.live.panel(list_choice, lambda view: _list_choices(page, view), TAB)

    def show(prompts: PromptList, number: int, message: Html = NOTHING) -> Sequence[object]:
        """What follows a change: the sentence, an empty microphone, and the button for all recordings."""
        prompt_lists.require_number(prompts, number)
        count = len(prompts.included)
        label = f"Make a dataset of {pluralize(count, 'recording')}"
        return [message, card_view(prompts, number), (prompts.name, number), None,
                gr.update(visible=count > 0, value=label)]

    def open_list(name: str | None) -> Sequence[object]:
        """The first sentence that is still to be recorded, or the fields of a new list."""
        if not name or name == NEW:
            return [NOTHING, NOTHING, _NOWHERE, None, gr.update(visible=False), gr.update(visible=True),
                    gr.update(visible=False)]
        prompts = prompt_lists.load(prompt_lists.folder_of(page.workspace, name))
        number = prompts.next_open()
        return [*show(prompts, len(prompts.prompts) - 1 if number is None else number), gr.update(visible=False),
                gr.update(visible=True)]

    def keep(shown_place: tuple[str, int], recorded_place: tuple[str, int], path: str | None) -> Sequence[object]:
        """Store what was recorded for the sentence at which it was begun, whichever is shown by now.

        The microphone is emptied after an error too: with a sound in it, it has no button to record again.
        """
        unchanged = [gr.skip(), gr.skip(), None, gr.skip()]
        try:
            prompts = _save(page, recorded_place, path)
            name, number = shown_place
            changes = show(prompts, number) if name == prompts.name else [NOTHING, *unchanged]
        except UserError as error:
            changes = [job_views.fault(error.message, error.hint), *unchanged]
        return [*changes, _NOWHERE]

    def leave_out(shown_place: tuple[str, int]) -> Sequence[object]:
        folder, number = _opened(page, shown_place)
        return _go_on(prompt_lists.skip(folder, number), number)

    def go_on(shown_place: tuple[str, int]) -> Sequence[object]:
        folder, number = _opened(page, shown_place)
        return _go_on(prompt_lists.load(folder), number)

    def _go_on(prompts: PromptList, number: int) -> Sequence[object]:
        """The next sentence; behind the last one the first that is open."""
        if number + 1 < len(prompts.prompts):
            return show(prompts, number + 1)
        remaining = prompts.next_open()
        if remaining is not None:
            return show(prompts, remaining)
        ended = job_views.notice("That was the last sentence: all are recorded or skipped.", "good")
        return show(prompts, number, ended)

    def go_back(shown_place: tuple[str, int]) -> Sequence[object]:
        folder, number = _opened(page, shown_place)
        return show(prompt_lists.load(folder), max(0, number - 1))

    outputs = [notice, card, place, microphone, make]
    page.on(list_choice.change, open_list, [list_choice], [*outputs, new, recorder])
    page.on(microphone.start_recording, lambda shown_place: [NOTHING, shown_place], [place], [notice, recorded])
    page.on(microphone.stop_recording, keep, [place, recorded, microphone], [*outputs, recorded], files=True)
    page.on(onward.click, go_on, [place], outputs)
    page.on(skip.click, leave_out, [place], outputs)
    page.on(back.click, go_back, [place], outputs)
    create(notice)

    def listen(form: OptionsForm, preview: gr.HTML) -> None:
        page.on(make.click, lambda shown_place, model: _make_dataset(page, shown_place, model),
                [place, form.widget("model")],
                [notice, preview, *(form.widget(field) for field in ("source", "dataset", "language"))])

    return listen


def _build_new(page: Page, list_choice: gr.Dropdown) -> Callable[[gr.HTML], None]:
    """The fields of a new list; a function that adds their listeners, whose messages go to a notice."""
    gr.HTML(paragraph("Read one sentence after the other. Each recording is stored in the workspace when you stop it, "
                      "and the list goes on where you left it.", class_="small"))
    with gr.Row(elem_classes="grid"):
        language = gr.Dropdown(sorted((language_title(code), code) for code in {**NAMES, **NATIVE_NAMES}), value=None,
                               allow_custom_value=True, label="Language (any name, or its code)",
                               elem_id="recording-language", min_width=140)
        name = gr.Textbox("", label="Name of the recordings", max_lines=1, elem_id="recording-name", min_width=140)
    text = gr.Textbox("", label="Sentences, one a line", lines=4, max_lines=10, elem_id="recording-text",
                      info="Type or paste them. A longer text is divided into sentences.")
    with gr.Row(elem_classes="controls"):
        included = gr.Button("Use the included sentences", size="md", visible=False, elem_id="recording-included",
                             min_width=140)
        upload = gr.UploadButton("Take a text file", file_count="single", type="filepath", size="md",
                                 elem_id="recording-upload", min_width=140)
        create = gr.Button("Start recording", variant="primary", size="md", elem_id="recording-create", min_width=140)
    page.live.watch("recording.language", language)
    page.live.panel(included, _included_button, TAB)

    def read(path: str | None, text: str | None) -> Sequence[object]:
        if not path:
            return [NOTHING, gr.skip()]
        try:
            content = foreign.read_text(Path(path), Path(path).name)
        finally:
            Path(path).unlink(missing_ok=True)
        return [NOTHING, appended(text, prompt_lists.parse_prompts(content))]

    def start(language: str | None, name: str | None, text: str | None) -> Sequence[object]:
        code = typed_code(language)
        title = (name or "").strip() or free_name(f"{code or 'my'}-recordings", _is_taken(page))
        folder = prompt_lists.folder_of(page.workspace, title)
        options = parse(PrepareOptions, {"source": str(folder), "dataset": title, "language": code})
        prompts = prompt_lists.parse_prompts(text or "", options.language)
        created = prompt_lists.create(page.workspace, options.dataset, options.language, prompts)
        names = prompt_lists.list_names(page.workspace)
        return [NOTHING, gr.update(choices=_choices(names), value=created.name), "", ""]

    def listen(notice: gr.HTML) -> None:
        page.on(included.click, lambda language, text: [NOTHING, appended(text, _included(typed_code(language)))],
                [language, text], [notice, text])
        page.on(upload.upload, read, [upload, text], [notice, text], files=True)
        page.on(create.click, start, [language, name, text], [notice, list_choice, name, text])

    return listen


def card_view(prompts: PromptList, number: int) -> Html:
    """A sentence to read aloud, and its recording with what is wrong with it.

    Each answer of the app differs in `data-answer`, for which the page's script waits.
    """
    counts = [f"{len(prompts.included)} recorded"]
    if prompts.skipped:
        counts.append(f"{len(prompts.skipped)} skipped")
    position = f"Sentence {number + 1:,} of {len(prompts.prompts):,}"
    sentence = element("p", prompts.prompts[number], class_="prompt-text", lang=prompts.language, dir="auto")
    keys = div("keys", *(span("key-of", element("kbd", key), " ", does) for key, does in _KEYS))
    head = paragraph(element("strong", position), " · ", ", ".join(counts))
    insecure = div("notice bad insecure", paragraph(
        "A browser gives the microphone only to pages with https or on localhost. Open this page through an SSH tunnel "
        "(ssh -L), or behind https."), hidden=True)
    return element("div", head, sentence, _take_view(prompts, number), keys, insecure, class_="prompt", tabindex="0",
                   role="group", aria_label=position, data_answer=time.monotonic_ns())


def _take_view(prompts: PromptList, number: int) -> Html:
    """The recording of a sentence."""
    clip = prompts.clip(number)
    if number in prompts.skipped:
        return paragraph("Skipped: it is left out of the dataset. Record it to take it back.", class_="small")
    if number not in prompts.recorded:
        return paragraph("Not recorded yet.", class_="small")
    try:
        stamp = clip.stat().st_mtime_ns
        take = prompt_lists.look_at_take(prompts, number)
    except (OSError, UserError) as error:
        return job_views.fault(f"The recording cannot be read: {getattr(error, 'message', error)}", "Record it again.")
    address = f"{media.url('recordings', prompts.name, f'{prompt_lists.CLIPS}/{clip.name}')}?{stamp}"
    duration = f"{take.duration_s:.1f} s"
    status = (element("ul", *(element("li", fault) for fault in take.faults), class_="findings") if take.faults
              else paragraph("Level and length are fine."))
    return div(f"notice {'bad' if take.faults else 'good'}", element("strong", f"Your recording, {duration}"), status,
               player(address, f"Your recording: {prompts.prompts[number]}"), role="status", data_take=stamp)


def _list_choices(page: Page, view: View) -> object:
    """The lists, the last one first, and a new one; the last one is chosen when the page is opened."""
    names = prompt_lists.list_names(page.workspace)
    current = view.values["recording.list"]
    name = current if current in (*names, NEW) else next(iter(names), NEW)
    return gr.update(choices=_choices(names), value=name)


def _choices(names: Sequence[str]) -> list[tuple[str, str]]:
    return [*((name, name) for name in names), (_NEW_LABEL, NEW)]


def appended(text: str | None, prompts: Sequence[str]) -> str:
    """The sentences that were typed, and behind them those of `prompts` that are not among them."""
    lines = (text or "").rstrip().splitlines()
    return "\n".join([*lines, *(prompt for prompt in prompts if prompt not in lines)])


def _included_button(view: View) -> object:
    count = len(_included(typed_code(view.values["recording.language"])))
    return gr.update(visible=count > 0, value=f"Use the {count:,} included sentences")


@lru_cache(maxsize=64)
def _included(code: str) -> tuple[str, ...]:
    return prompt_lists.included_prompts(code)


def _is_taken(page: Page) -> Callable[[str], bool]:
    """Whether a name is that of a list or of a dataset."""
    return frozenset((*prompt_lists.list_names(page.workspace), *_dataset_names(page))).__contains__


def _dataset_names(page: Page) -> set[str]:
    """The names of the datasets that exist, and of those that are being imported."""
    imports = [state.job for state in page.live.board.queue() if state.verb == "prepare"]
    return {*page.workspace.list_datasets(), *(str(job.settings.get("dataset", "")) for job in imports)}


def _save(page: Page, place: tuple[str, int], path: str | None) -> PromptList:
    """Store the uploaded recording at `path`, and delete the upload."""
    if not path:
        raise UserError("The recording is empty.", "Record it again.")
    try:
        if place == _NOWHERE:
            raise UserError("The app was not told which sentence this recording is of.", "Record it again.")
        name, number = place
        return prompt_lists.save_take(prompt_lists.folder_of(page.workspace, name), number, Path(path))
    finally:
        Path(path).unlink(missing_ok=True)


def _opened(page: Page, place: tuple[str, int]) -> tuple[Path, int]:
    """The folder of the list that is shown, and the number of its sentence."""
    name, number = place
    if not name:
        raise UserError("No prompt list is open.", "Choose one, or make a new one.")
    return prompt_lists.folder_of(page.workspace, name), number


def _make_dataset(page: Page, shown_place: tuple[str, int], model: str | None) -> Sequence[object]:
    """Import the recordings like any folder, under the name of the list or the next free one."""
    folder, _ = _opened(page, shown_place)
    prompts, source = prompt_lists.load(folder), prompt_lists.source_of(folder)
    dataset = free_name(prompts.name, _dataset_names(page).__contains__)
    options = parse(PrepareOptions, {"source": source, "dataset": dataset, "language": prompts.language,
                                     "model": model or "tiny"})
    job = page.start("prepare", options)
    return [page.started_notice(job), NOTHING, source, dataset, prompts.language]
