"""Certificate tab: the proof of what moved and what did not, and the export that carries it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import gradio as gr

from config.errors import UserError
from config.schema import ExportOptions, PushOptions
from core import jobs
from core.job.journal import Result
from core.proof.certificate import Certificate, Check, LanguageError, read
from ui import job_views, records, verb_form
from ui.form import parse
from ui.job_views import result_fact
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span, table
from ui.page import Page


def build(page: Page) -> None:
    """Lay out the tab."""
    live = page.live
    verb_form.tab_header("Certificate", "After each run, what should not have moved is measured again and compared. A "
                                    "check that "
               "fails is red, and a voice with a red check is not exported unless you name that check.")
    subject = gr.Dropdown([], label="Run or export", elem_id="proof-choice")
    proof = gr.HTML(elem_id="proof")
    with gr.Accordion("Export", open=True, elem_classes="fold"):
        gr.HTML(paragraph("A folder with the weights in the layout that the model's own tools load, and this "
                          "certificate.", class_="small"))
        with gr.Row(elem_classes="grid"):
            name = gr.Textbox(ExportOptions.model_fields["export"].default, label="Name of the export",
                              elem_id="export-name", min_width=200)
            override = gr.CheckboxGroup([], label="Export in spite of these failed checks", visible=False,
                                        elem_id="override", min_width=200)
        export = gr.Button("Export", variant="primary", size="lg", elem_id="export")
        notice = gr.HTML(elem_classes="notices")
        last = gr.HTML(elem_id="export-result")
    with gr.Accordion("Push to the hub", open=False, elem_classes="fold"):
        build_push(page)
    live.watch("proof", subject)
    live.panel(subject, lambda view: _subjects(page, view), "certificate")
    live.panel(proof, lambda view: _proof(page, view), "certificate")
    live.panel(override, lambda view: _overrides(page, view), "certificate")
    live.panel(last, lambda view: _last_export(view), "certificate")
    live.watch("export.name", name)
    live.panel(name, lambda view: verb_form.suggest_value(view.chosen["export.name"], _name(page, view),
                                               verb_form.generated_names(page.workspace)), "certificate")
    page.on(export.click, lambda *values: _export(page, *values), [subject, name, override], [notice])


def _references(page: Page, view: View) -> list[tuple[str, str]]:
    """Runs and exports with a certificate, newest first, as label and reference."""
    found = [(f"Run {job_views.run_name(state)}", f"run:{state.id}") for state in view.jobs
             if state.verb == "train" and records.certificate_path(page.workspace, f"run:{state.id}").is_file()]
    found += [(f"Export {name}", f"export:{name}") for name in page.workspace.list_exports()]
    return found


def _chosen(page: Page, view: View) -> str:
    offered = [reference for _, reference in _references(page, view)]
    current = view.chosen.get("proof", "")
    return current if current in offered else offered[0] if offered else ""


def _subjects(page: Page, view: View) -> object:
    return gr.update(choices=_references(page, view), value=_chosen(page, view) or None)


def _name(page: Page, view: View) -> str:
    """That of the extension which the chosen run trained."""
    state = view.job(_chosen(page, view).partition(":")[2])
    return str(state.job.settings["extension"]) if state else str(ExportOptions.model_fields["export"].default)


def _proof(page: Page, view: View) -> Html:
    reference = _chosen(page, view)
    if not reference:
        return job_views.empty("When a run has finished, its certificate is here.")
    return certificate_view(read(records.certificate_path(page.workspace, reference)))


def certificate_view(proof: Certificate) -> Html:
    """Verdict, errors by language, checks with hashes, and what it was computed from."""
    failed = proof.failed()
    counted = [check for check in proof.checks if check.verdict in ("passed", "failed")]
    if not counted:
        banner = job_views.fault("Nothing was checked.", "A certificate without checks proves nothing; train again.")
    elif failed:
        banner = div("verdict bad", element("strong", f"{len(failed)} of {len(counted)} checks failed"),
                     paragraph("Red lines say what moved."))
    else:
        banner = div("verdict good", element("strong", f"All {len(counted)} checks passed"), paragraph(_promise(proof)))
    about = job_views.facts([("Run", proof.run), ("Step", proof.step), ("Scope", proof.scope),
                           ("Base model", proof.model), ("Made", job_views.clock(proof.created))])
    return join((banner, _errors(proof.errors), element("h3", "Checks"),
                 div("checks", *(_check(check) for check in proof.checks)), about))


def _promise(proof: Certificate) -> str:
    """What passing means, which is less in a scope whose drift is measured."""
    if any(check.name == "base_logits" and check.verdict == "measured" for check in proof.checks):
        return "What must not move did not. The drift of the old languages was measured; it stands below."
    return "What the voice could say before, it says exactly as before."


_TONES = {"passed": ("good", "✓"), "failed": ("bad", "✗"), "measured": ("wait", "≈"), "skipped": ("wait", "–")}


def _check(check: Check) -> Html:
    tone, mark = _TONES[check.verdict]
    return div(f"check {tone}", span("mark", mark), div(
        "step", div("ends", element("strong", check.name.replace("_", " ")), span(f"badge {tone}", check.verdict)),
        paragraph(check.what),
        div("hashes", span("small", "before "), element("code", check.expected)) if check.expected else NOTHING,
        div("hashes", span("small", "after "), element("code", check.seen)),
    ))


BEFORE_HERE = ("Before, for a new language, is the extension that was not trained: its letters are there, and not yet "
               "learned. On Listen the base reads a romanised spelling instead, which can be understood better.")


def _errors(rows: Sequence[LanguageError]) -> Html:
    if not rows:
        return NOTHING
    cells = [
        (element("div", job_views.language_name(row.language), " ", span("badge busy", "new") if row.new else NOTHING),
         job_views.percent(row.before), job_views.percent(row.after), job_views.percent(row.original),
         str(row.sentences))
        for row in rows
    ]
    table = table(("Language", "Before", "After", "Original recordings", "Sentences"), cells)
    new = paragraph(BEFORE_HERE, class_="small") if any(row.new for row in rows) else NOTHING
    codes = [job_views.language_name(row.language) for row in rows if row.chose]
    chose = paragraph(f"{', '.join(codes)}: measured on the sentences that chose the checkpoint, because no others "
                      "were held out. On others it can be higher.", class_="small") if codes else NOTHING
    return join((element("h3", "How much the judge misheard"), table, chose, new))


def _failed(page: Page, reference: str) -> tuple[str, ...]:
    if not reference:
        return ()
    return read(records.certificate_path(page.workspace, reference)).failed()


def _overrides(page: Page, view: View) -> object:
    failed = _failed(page, _chosen(page, view))
    return gr.update(choices=list(failed), visible=bool(failed))


def _export(page: Page, reference: str, name: str, override: Sequence[str] | None) -> Sequence[object]:
    if not (reference or "").startswith("run:"):
        raise UserError("Choose a run to export.", "An export is made from a run; train one first.")
    blocking = [check for check in _failed(page, reference) if check not in (override or ())]
    if blocking:
        raise UserError(f"These checks failed: {', '.join(blocking)}.",
                        "Tick each of them to export in spite of it, or train again.")
    settings = {"run": reference, "export": name, "override": tuple(override or ())}
    job = page.start("export", parse(ExportOptions, settings))
    return [page.started_notice(job)]


def _last_export(view: View) -> Html:
    state = view.newest("export")
    return join((job_views.job_card(state), exported_view(state.result))) if state else NOTHING


_VERDICTS = ("passed", "failed", "measured", "skipped")
_TWICE = ("export", "ref", "run", "scope", "overridden")  # told by the path, or by the certificate above


def exported_view(result: Result | None) -> Html:
    """Where the export lies, its size and its errors; its checks counted, and those that did not pass by name."""
    if not result:
        return NOTHING
    checks = {name: str(value) for name, value in result.items() if value in _VERDICTS}
    failed = [name.replace("_", " ") for name, verdict in checks.items() if verdict == "failed"]
    tiles = [result_fact(name, value) for name, value in result.items() if name not in checks and name not in _TWICE]
    said = f"{', '.join(failed)} failed; exported all the same" if failed else "none failed"
    return join((paragraph("It is in ", element("code", str(result.get("path", ""))), ", and on Listen as ",
                           element("code", str(result.get("ref", ""))), ".", class_="small"),
                 job_views.facts([(name, value) for name, value in tiles if name != "Path"]
                               + [(f"Of {len(checks)} checks", said)])))


def build_push(page: Page) -> None:
    """Lay out export, repository and button where the caller stands."""
    fields = PushOptions.model_fields
    gr.HTML(paragraph(
        "An export whose certificate has no failed check goes to a repository of huggingface.co, as one commit. "
        "The token comes from HF_TOKEN in the environment that Lisan was started in, and is kept nowhere.",
        class_="small"))
    with gr.Row(elem_classes="grid"):
        export = gr.Dropdown([], label="Export", elem_id="push-export", min_width=200)
        repository = gr.Textbox("", label="Repository", info=fields["repository"].description, max_lines=1,
                                placeholder="me/my-voice", elem_id="push-repository", min_width=200)
    public = gr.Checkbox(False, label="Let everyone see it", elem_id="push-public")
    with gr.Row(elem_classes="controls"):
        push = gr.Button("Push", variant="primary", size="md", scale=0, min_width=160, elem_id="push")
        stop = gr.Button("Stop", size="md", scale=0, min_width=110, elem_id="stop-push")
    notice = gr.HTML(elem_classes="notices")
    last = gr.HTML(elem_id="push-result")
    page.live.watch("push.export", export)
    page.live.panel(export, lambda view: _export_choices(page, view), "certificate")
    page.live.panel(stop, _stop_button, "certificate")
    page.live.panel(last, _last_push, "certificate")
    page.on(push.click, lambda *values: _push(page, *values), [export, repository, public], [notice])
    page.on(stop.click, lambda: _stop(page), [], [notice])


def _export_choices(page: Page, view: View) -> object:
    names = page.workspace.list_exports()
    current = view.chosen["push.export"]
    return gr.update(choices=names, value=current if current in names else names[0] if names else None)


def _push(page: Page, export: str | None, repository: str, public: bool) -> Sequence[object]:
    if not export:
        raise UserError("There is no export yet.", "Export a run first; then it can be pushed.")
    if not os.environ.get("HF_TOKEN"):
        raise UserError("HF_TOKEN is not set where Lisan was started.", "Make a token with write access in the "
                        "settings of the hub, set HF_TOKEN to it, and start Lisan again.")
    job = page.start("push", parse(PushOptions, {"export": export, "repository": repository, "public": public}))
    return [page.started_notice(job)]


def _stop_button(view: View) -> object:
    state = view.newest("push")
    return gr.update(visible=state is not None and state.alive and state.status != "stopping")


def _stop(page: Page) -> Sequence[object]:
    for state in page.live.board.states():
        if state.verb == "push" and state.alive:
            jobs.stop(state.job)
    return [job_views.notice("It stops; nothing is committed.")]


def _last_push(view: View) -> Html:
    state = view.newest("push")
    if state is None:
        return NOTHING
    plan = job_views.plan(state.plan.lines, "What is pushed") if state.plan else NOTHING
    if state.result is None:
        return join((job_views.job_card(state), plan))
    return join((job_views.job_card(state), push_result_view(state.result)))


def push_result_view(result: Result) -> Html:
    """Where it is, and what arrived."""
    url = str(result.get("url", ""))
    good = url.startswith(("http://", "https://"))
    link = element("a", url, href=url, target="_blank", rel="noopener") if good else url
    seen_by = "everyone" if result.get("public") else "its owner"
    return join((
        job_views.notice(join(("It is at ", link)), "good"),
        job_views.facts([("Commit", str(result.get("commit"))[:12]), ("Files", result.get("files")),
                       ("Size", job_views.size(float(result.get("bytes") or 0))), ("Seen by", seen_by)]),
    ))
