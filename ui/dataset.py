"""Data tab: bring recordings in, see what was found and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gradio as gr

from config.errors import UserError
from core.incoming import looking
from core.job.state import JobState
from core.review import index_of
from core.text import text_rules
from ui import clip_review, job_views, long_audio, records, verb_form
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, table
from ui.page import Page

_MOST_FINDINGS = 80


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header("Recordings", "Speech with its text, as you have it: clips with texts or a table, a film or "
                                   "recording "
               "with its subtitles or labels, LJSpeech, Common Voice, Kaldi, an archive, a dataset of the hub. Lisan "
               "recognises what it is, and names what cannot be used. Hours of speech without text, or with one that "
               "lacks its times, begin at Long recordings below.")
    with gr.Row(elem_classes="two"):
        with gr.Column(scale=2, min_width=300):
            choices = {"model": lambda view: page.workspace.list_models(),
                       "add_to": lambda view: ["", *page.workspace.list_datasets()],
                       "rules": lambda view: _rules(page, view.chosen["prepare.language"])}
            verb_form.build_prerequisites(page, "prepare", "data", choices)
            upload = gr.File(file_count="multiple", type="filepath", height=160, elem_id="prepare-upload",
                             label="Upload: an archive, or files that belong together")
            notice = gr.HTML(elem_classes="notices", elem_id="prepare-look")
            step = verb_form.build_verb_form(page, "prepare", "Check and prepare",
                                   first=("source", "dataset", "language", "model", "held_out", "add_to", "rules",
                                          "licence"), choices=choices)
            form = step.form
            long_audio.build(page, form, notice)
            source, language = form.widget("source"), form.widget("language")
            page.on(upload.upload, lambda files, code: save_upload(page, files, code), [upload, language],
                    [notice, source, upload], files=True)
            for event in (source.submit, source.blur):
                page.on(event, lambda text, code: [preview(text, code)], [source, language], [notice])
            page.on(step.start.click, lambda text, code: [_unless_told(text, code)], [source, language], [notice])
        with gr.Column(scale=3, min_width=300):
            last = gr.HTML(elem_id="prepare-result")
            page.live.panel(last, verb_form.last_job_view("prepare", "The report on your recordings appears here.",
                                                 lambda state: report(page, state)), "data")
            long_audio.build_results(page, form, notice)
            known = gr.HTML()
            page.live.panel(known, lambda view: dataset_list(page, view), "data")
    clip_review.build(page)


def _rules(page: Page, language: str) -> list[str]:
    """Text rules for the language of the form; none first."""
    return ["", *text_rules.choices(page.workspace, language.strip().lower())]


def save_upload(page: Page, files: Sequence[str] | str | None, language: str) -> Sequence[object]:
    """Keep what was uploaded and let it be the source."""
    paths = [files] if isinstance(files, str) else list(files or ())
    kept = str(looking.keep(page.workspace, [Path(path) for path in paths]))
    return [preview(kept, language), kept, None]


def preview(source: str, language: str) -> Html:
    """What the source is taken for, before it is prepared."""
    lines = looking.look(str(source or "").strip(), language)
    return div("notice info", *(paragraph(line) for line in lines)) if lines else NOTHING


def _unless_told(source: str, language: str) -> object:
    """What the source is taken for stays; a fault of it goes, since the start tells of it beside its own button."""
    try:
        looking.look(str(source or "").strip(), language)
    except UserError:
        return NOTHING
    return gr.skip()


def report(page: Page, state: JobState) -> Html:
    """What the check of a dataset counted and found."""
    name = str(state.job.settings.get("dataset", ""))
    found = records.dataset_report(page.workspace.datasets / name)
    if found is None:
        return job_views.result_facts(state.result)
    return join((report_view(found), _speakers(page, name)))


def _speakers(page: Page, name: str) -> Html:
    """Who speaks in the dataset; nothing before its clips are measured."""
    try:
        return clip_review.speakers_view(index_of(page.workspace, name).speakers(clip_review.SHOWN_SPEAKERS))
    except UserError:
        return NOTHING


def report_view(report: records.DatasetReport) -> Html:
    """Counts in tiles; then each error and warning with its place."""
    tiles = job_views.facts([
        ("Found", f"{report.found} clips"), ("Usable", f"{report.kept} clips"),
        ("Speech", job_views.duration(report.duration_s)), ("Letters", report.characters),
    ])
    spoken_not = f"Punctuation that is not spoken: {report.dropped}."
    left_out = paragraph(spoken_not, class_="small") if report.dropped else NOTHING
    read_as = join(paragraph(line, class_="small") for line in report.notes)
    tiles = join((read_as, tiles))
    if not report.findings:
        return join((tiles, left_out, job_views.notice("Nothing to complain about.", "good")))
    rows = [(job_views.level_badge(one.level), one.where, one.message) for one in report.findings[:_MOST_FINDINGS]]
    rest = len(report.findings) - len(rows)
    more = paragraph(f"{rest} more are in the dataset's report.json.", class_="small") if rest else NOTHING
    return join((tiles, left_out, table(("", "Where", "What"), rows), more))


def dataset_list(page: Page, view: View) -> Html:
    """The datasets of the workspace."""
    found = records.datasets(page.workspace)
    if not found:
        return NOTHING
    rows = [
        (one.name, job_views.language_name(one.language), _or_dash(one.clips), _or_dash(one.held_out_clips),
         job_views.duration(one.duration_s), one.licence or "not given")
        for one in found
    ]
    return join((element("h3", "In the workspace"),
                 table(("Dataset", "Language", "Clips", "Held out", "Speech", "Licence"), rows)))


def _or_dash(count: int | None) -> str:
    return "–" if count is None else str(count)
