"""Share tab: a trained model as a file, with its certificate; the evaluation report; archives, the Hub, and a server.
"""

from __future__ import annotations

from collections.abc import Iterator

import gradio as gr

from core.jobs.reporter import size_text
from core.jobs.state import JobState
from core.library import lineage
from core.workspace import Workspace
from ui import certificate, job_views, media, piper, serve, verb_form
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, table
from ui.page import Page

TAB = certificate.TAB
MOST_ARCHIVES, MOST_REPORTS = 5, 5


def build(page: Page) -> None:
    """Lay out the tab."""
    verb_form.tab_header(
        "Share", "Take a trained model with you, publish it, or let other programs use it.")
    certificate.build(page)

    with gr.Accordion("Evaluation report", open=False, elem_classes="fold", elem_id="share-report"):
        reports = gr.HTML(elem_id="report-links")
        page.live.panel(reports, lambda view: reports_view(page.workspace, view), TAB)
    with gr.Accordion("Archive of a run or export", open=False, elem_classes="fold", elem_id="share-archive"):
        gr.HTML(paragraph("A run brings the extended model and the datasets that a resume needs, or names them. "
                          "Storage imports an archive.", class_="small"))
        verb_form.build_verb_form(page, "pack", "Pack archive", first=("item", "data", "model"),
                                  choices={"item": lambda view: list(packable(page.workspace, view))})
        packed = gr.HTML(elem_id="pack-result")
        page.live.panel(packed, packed_view, TAB)
    with gr.Accordion("Push to the Hub", open=False, elem_classes="fold", elem_id="share-push"):
        certificate.build_push(page)
    with gr.Accordion("Serve", open=False, elem_classes="fold", elem_id="serve-section"):
        serve.build(page)
    with gr.Accordion("Dataset for a Piper voice", open=False, elem_classes="fold", elem_id="piper-section"):
        piper.build(page)


def packable(workspace: Workspace, view: View) -> Iterator[str]:
    """Exports, then trainings with a checkpoint that have ended."""
    ended = [state for state in view.jobs if not state.alive]
    # A run that is still training could change while it is packed.
    references = lineage.list_models(workspace, ended)
    yield from (reference.reference for reference in references if reference.kind == "export")
    yield from (reference.reference for reference in references if reference.kind == "run")


def packed_view(view: View) -> Html:
    """The newest packing, and links to the archives that were packed lately."""
    state = view.newest("pack")
    if state is None:
        return job_views.empty("The archive appears here, to be downloaded.")
    packings = [job for job in view.jobs if job.verb == "pack" and job.status == "finished" and job.result]
    rows = [(element("a", str(job.result["archive"]), href=media.archive_url(job.id), download=True),
             size_text(float(job.result.get("bytes") or 0)), str(job.result.get("missing") or "nothing"))
            for job in packings[:MOST_ARCHIVES] if job.result]
    return join((job_views.job_card(state) if state.status != "finished" else NOTHING,
                 table(("Archive", "Size", "Not in it"), rows) if rows else NOTHING))


def reports_view(workspace: Workspace, view: View) -> Html:
    """The reports of the last evaluations, each to be opened or downloaded."""
    evaluations = [state for state in view.jobs if state.verb == "evaluate" and state.status == "finished"
                   and media.report_path(workspace, state.id) is not None]
    if not evaluations:
        return job_views.empty("No evaluation yet. Listen, Evaluate makes one; its report is one file that needs no "
                               "other.")
    return join(_report_card(state) for state in evaluations[:MOST_REPORTS])


def _report_card(state: JobState) -> Html:
    address = media.report_url(state.id)
    return div("card", div("ends", element("strong", f"Evaluation of {job_views.clock(state.ended_at)}"),
                           div("bulk", element("a", "Open", href=address, target="_blank", rel="noopener"),
                               element("a", "Download", href=media.report_url(state.id, download=True),
                                       download=True))),
               job_views.about(state))
