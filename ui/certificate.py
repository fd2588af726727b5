"""The certificate on the Share tab: the checks of a run or export, the export of a run, and its push to the Hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import gradio as gr

from config.errors import UserError
from config.schema import CertifyOptions, ExportOptions, PackOptions, PushOptions
from core.jobs import control
from core.jobs.events import Result
from core.jobs.job import Job
from core.jobs.reporter import pluralize, size_text
from core.jobs.state import JobState
from core.jobs.verbs import RUN_VERBS
from core.library import learning, verification
from core.library.certificate import Certificate, CertificateCheck, LanguageCER, read
from core.library.lineage import run_model
from core.library.verification import Outcome, Verification
from core.workspace import Reference, free_name
from ui import job_views, media, records, signature, verb_form
from ui.form import parse
from ui.job_views import result_fact
from ui.live import QUIET, View, choice_update
from ui.markup import NOTHING, Html, div, element, join, paragraph, span, table
from ui.page import Page

TAB = "share"
_TONES = {"passed": ("good", "✓"), "failed": ("bad", "✗"), "measured": ("wait", "≈"), "not proven": ("wait", "–")}
UNTRAINED_BASELINE = ("For the new language, “before” is the extended model before training. On Listen, the base model "
                      "reads a romanised text instead, which has a lower error rate.")
_CHECK_TITLES = {
    "prefix_rows": "Embeddings of the old languages", "frozen_tensors": "Frozen tensors",
    "changed_tensors": "Changed tensors", "frozen_in_training": "Frozen tensors, as the trainer saw them",
    "base_logits": "Predictions in the old languages", "base_languages": "Old languages compared",
    "base_tokens": "Tokens of the old languages", "front_end": "Text processing",
    "codec_and_vocoder": "Codec and vocoder", "character_error_rates": "Character error rates",
    "merged_reloads": "Weights with merged adapters", "export_reloads": "Export, loaded again",
}
_VERDICTS = ("passed", "failed", "measured", "not proven")
_SHOWN_ELSEWHERE = ("export", "ref", "run", "scope", "overridden")  # shown in the path or in the certificate above


def build(page: Page) -> None:
    """Lay out the run or export to share, its file, and its certificate."""
    live = page.live
    # Everything below is about the chosen run or export.
    subject = gr.Dropdown([], label="Run or export", elem_id="proof-choice")
    verb_form.build_damaged(page, "export", TAB)

    # Export, with the overrides that a failed check or an open certificate needs.
    with gr.Column(elem_classes="card", elem_id="share-export"):
        gr.HTML(join((element("h2", "The model as a file"), paragraph(
            "The weights in the model's original format, with this certificate, in one archive.", class_="small"))))
        with gr.Row(elem_classes="grid", elem_id="export-naming") as naming:
            name = gr.Textbox(ExportOptions.model_fields["export"].default, label="Export name",
                              elem_id="export-name", min_width=200)
            override = gr.CheckboxGroup([], label="Override failed checks", visible=False,
                                        elem_id="override", min_width=200)
        accept = gr.Checkbox(False, label="Export in spite of the outcome", visible=False, elem_id="accept-learning",
                             info="The card and the certificate of the export say so.")
        unproven = gr.Checkbox(False, label="Export before the certificate is complete", visible=False,
                               elem_id="unproven", info="The export says that it is not proven yet.")
        with gr.Row(elem_classes="controls"):
            pack = gr.Button("Export as a file", variant="primary", size="lg", elem_id="share-file", min_width=200)
            export = gr.Button("Export into the workspace", size="lg", elem_id="export", min_width=200)
        notice = gr.HTML(elem_classes="notices")
        file = gr.HTML(elem_id="share-result")
        last = gr.HTML(elem_id="export-result")

    proof = gr.HTML(elem_id="proof")
    with gr.Row(elem_classes="controls"):
        compute = gr.Button("Compute certificate", variant="primary", size="md", visible=False, elem_id="certify",
                            scale=0, min_width=200)
        stop = gr.Button("Stop", size="md", visible=False, elem_id="stop-certify", scale=0, min_width=110)
    proof_notice = gr.HTML(elem_classes="notices")
    with gr.Accordion("Signature of the maker", open=False, elem_classes="fold", elem_id="signature-section"):
        signature.build(page, subject, lambda view: _chosen(page, view))

    # Each panel is drawn again when the jobs or the watched choices change.
    live.watch("proof", subject)
    live.panel(subject, lambda view: _subjects(page, view), TAB)
    live.panel(proof, lambda view: _proof(page, view), TAB)

    def override_choices(view: View) -> object:
        failed = _failed(page, _chosen(page, view))
        return gr.update(choices=[(check_title(name), name) for name in failed], visible=bool(failed))

    live.panel(override, override_choices, TAB)
    live.panel(last, _last_export, TAB)
    live.watch("export.name", name)
    # A typed name stays; a suggested one follows the chosen run.
    live.panel(name, lambda view: _suggested_name(page, view), TAB)
    export_inputs = [subject, name, override, unproven, accept]
    page.on(export.click, lambda *values: [page.started_notice(_export(page, *values))], export_inputs, [notice])
    page.on(pack.click, lambda *values: _pack(page, *values), export_inputs, [notice])
    live.panel(file, lambda view: _file(page, view), TAB)

    def is_run(view: View) -> bool:
        return not _chosen(page, view).startswith("export:")

    # An export is packed as it is: it has its name, and its checks were accepted.
    for block in (export, naming):
        live.panel(block, lambda view: gr.update(visible=is_run(view)), TAB)
    live.panel(pack, lambda view: gr.update(value="Export as a file" if is_run(view) else "Pack as a file"), TAB)

    live.panel(accept, lambda view: _acceptance(page, view), TAB)
    # Another run has another outcome, which was not accepted yet.
    live.pending.append(subject.change(lambda: gr.update(value=False), None, [accept], **QUIET))

    def unproven_run(view: View) -> JobState | None:
        reference = _chosen(page, view)
        state = view.job(Reference.parse(reference).run)
        return state if state is not None and records.is_unproven(state) else None

    def living_proof(view: View) -> JobState | None:
        job = _proof_job(view, _chosen(page, view))
        return job if job is not None and job.alive else None

    live.panel(compute, lambda view: gr.update(visible=_may_be_computed(page, view) and living_proof(view) is None),
               TAB)
    live.panel(unproven, lambda view: gr.update(visible=unproven_run(view) is not None), TAB)
    live.show_when(stop, living_proof, lambda job: job.status != "stopping", TAB)
    page.on(compute.click, lambda reference: _compute(page, reference), [subject], [proof_notice])
    page.on(stop.click, lambda reference: _stop(page, reference), [subject], [proof_notice])


def _may_be_computed(page: Page, view: View) -> bool:
    """Whether the chosen run or export has no certificate that this workspace computed of these files."""
    reference = _chosen(page, view)
    if not reference:
        return False
    state = view.job(Reference.parse(reference).run)
    if state is not None and records.is_unproven(state):
        return True
    try:
        result = records.verify(page.workspace, reference)
    except UserError:  # there is none, or it is damaged
        return True
    return result is not None and result.outcome not in (Outcome.PASSED, Outcome.FAILED)


def _subjects(page: Page, view: View) -> object:
    """The runs and exports, and the one that was made last when it is new; else the chosen one."""
    labelled = _references(page, view)
    finished = [state for state in view.jobs if state.status == "finished" and state.verb in (*RUN_VERBS, "export")]
    # A new run or export is chosen for the person, once.
    last = max(finished, key=lambda state: state.ended_at or 0.0, default=None)
    newest = "" if last is None else (
        f"run:{last.id}" if last.verb in RUN_VERBS else f"export:{last.job.settings.get('export')}")
    offered = [reference for _, reference in labelled]
    return choice_update(labelled, view.follow("proof", view.values["proof"], offered, newest))


def _references(page: Page, view: View) -> list[tuple[str, str]]:
    """Runs with a checkpoint, and exports, newest first, as label and reference."""
    return view.once(("proven",), lambda: _list_references(page, view))


def _list_references(page: Page, view: View) -> list[tuple[str, str]]:
    labelled = [(f"Run {job_views.run_name(state)}{records.learning_note(state)}{records.unproven_note(state)}",
                 f"run:{state.id}")
                for state in view.jobs if state.verb in RUN_VERBS and run_model(state)]
    labelled += [(f"Export {name}", f"export:{name}") for name in page.workspace.list_exports()]
    return labelled


def _chosen(page: Page, view: View) -> str:
    offered = [reference for _, reference in _references(page, view)]
    current = view.values.get("proof", "")
    return current if current in offered else offered[0] if offered else ""


def _suggested_name(page: Page, view: View) -> object:
    """The extension of the chosen run, with a number where an export has that name."""
    state = view.job(Reference.parse(_chosen(page, view)).run)
    name = str(state.job.settings["extension"] if state else ExportOptions.model_fields["export"].default)
    name = free_name(name, page.workspace.list_exports().__contains__)
    return verb_form.suggest_value(view.values["export.name"], name, verb_form.generated_names(page.workspace))


def _proof(page: Page, view: View) -> Html:
    reference = _chosen(page, view)
    if not reference:
        return job_views.empty("No certificate yet. Each finished run has one.")
    state = view.job(Reference.parse(reference).run)
    unproven = state is not None and records.is_unproven(state)
    job = _proof_job(view, reference)
    if unproven:
        outcome = job_views.learning_view(
            records.learning_report(state), claimed=records.is_imported(state)) if state is not None else NOTHING
        return join((not_proven_view(reference, job), outcome, job_views.job_card(job) if job else NOTHING))
    # A proven run shows its certificate, checked against the files.
    result = records.verify(page.workspace, reference)
    verdict = verified_view(result) if result else div(
        "verdict unsure", element("strong", "Comparing the files with the certificate"),
        paragraph("They are read once, and again when they change."))
    kind, name, *_ = Reference.parse(reference)
    signed = signature.signature_view(page.workspace, name) if result and kind == "export" else NOTHING
    return join((job_views.job_card(job) if job and job.alive else NOTHING, verdict, signed))


def verified_view(result: Verification) -> Html:
    """The certificate beside what it says of the files that are there now."""
    proof, outcome = result.proof, result.outcome
    about = [paragraph(verification.NO_PROOF_OF_ORIGIN, class_="small")]
    if result.texts_note:
        about.append(paragraph(result.texts_note, class_="small"))
    if proof.trained_elsewhere:
        about.append(paragraph("The run was trained elsewhere, or its trainer's report was changed or is of an older "
                               "version. That its frozen tensors did not move in the trainer's memory, and what it "
                               "learned, is what its sender reported.", class_="small"))
    if outcome is Outcome.PASSED:
        about.insert(0, paragraph(f"It belongs to these {pluralize(len(proof.files), 'file')}: sizes and hashes are "
                                  f"those that it lists. This workspace computed it.", class_="small"))
        return join((certificate_view(proof), *about))
    # A failed check is red whoever computed it, so it needs no banner.
    if outcome is Outcome.FAILED:
        return join((certificate_view(proof, claimed=result.claimed), *about))
    tone = "bad" if outcome.bad else "unsure"
    title = {Outcome.OTHER_FILES: "Certificate of other files", Outcome.INCOMPLETE: "Incomplete certificate"}.get(
        outcome, "Computed by the sender, not verified here")
    banner = div(f"verdict {tone}", element("strong", title), paragraph(result.reason), paragraph(
        "To compute it here from the files: Compute certificate, or ",
        element("code", f"python -m scripts certify --again --run {result.reference.partition('@')[0]}"), "."))
    if outcome is Outcome.SENDER:
        claims = certificate_view(proof, claimed=True)
        return join((banner, *about, element("h3", "What the sender says"), claims))
    return join((banner, *about, _about(proof)))


def _proof_job(view: View, reference: str) -> JobState | None:
    """The newest job that certifies a run or an export."""
    return next((state for state in view.jobs if state.verb == "certify"
                 and str(state.job.settings.get("run", "")).partition("@")[0] == reference), None)


def not_proven_view(reference: str, job: JobState | None) -> Html:
    """What stands in the place of a certificate that is not complete."""
    how = ("Its certificate is being computed." if job and job.alive else
           "Press Compute certificate.")
    return div("verdict unsure", element("strong", "Not proven yet"),
               paragraph(f"Whether the old languages are unchanged is not known yet. {how}"))


def certificate_view(proof: Certificate, *, claimed: bool = False) -> Html:
    """Result, error rates by language, checks with hashes, and the run; `claimed`: by a sender, so nothing is green."""
    failed = proof.failed()
    counted = [check for check in proof.checks if check.result in ("passed", "failed")]
    new = _new_language_line(proof)

    if not counted:
        banner = job_views.fault("No checks were made.", "A certificate without checks proves nothing. Train again.")
    elif failed:
        banner = div("verdict bad", element("strong", f"{len(failed)} of {len(counted)} checks failed"),
                     paragraph("The failed checks are marked red."))
    else:
        # in scope `full` the drift of base languages is measured, not excluded
        logits = next((check.result for check in proof.checks if check.name == "base_logits"), "not proven")
        tone, headline = "good", f"All {len(counted)} checks passed"
        results = {"passed": "Base-language results are bit-identical to those of the base model.",
                   "measured": "Frozen tensors are unchanged. The drift of the base languages was measured; see below."}
        # The headline names what is unproven; without that, all checks passed.
        languages = proof.unproven_languages()
        unproven = []
        if logits not in results:
            unproven.append("base languages")
        elif languages:
            unproven.append("some base languages")
        if not proof.complete:
            unproven.append("error rates")
        if unproven:
            yet = " yet" if unproven == ["error rates"] else ""
            tone, headline = "unsure", (f"Not proven{yet}: {' and '.join(unproven)}. The other {len(counted)} checks "
                                        "passed")

        compared = results.get(
            logits, "Frozen tensors are unchanged, but no base-language results could be compared; see below.")
        if logits in results and languages:
            compared = f"{compared} Of others nothing was compared ({languages})."
        if proof.base_files == "unknown":
            # The certificate proves nothing about a base whose files are not known.
            tone, headline = "unsure", f"{headline}, unknown base"
        # The sender's word alone makes nothing green.
        tone = "unsure" if claimed else tone
        banner = div(f"verdict {tone}", element("strong", headline), paragraph(compared),
                     paragraph(f"{proof.base_note[0].upper()}{proof.base_note[1:]}.") if proof.base_note else NOTHING)

    if proof.preservation.bad and not failed:
        banner = div("verdict bad", element("strong", f"Old languages: {proof.describe_preservation()}"),
                     paragraph(headline))

    learned = job_views.learning_view(proof.learning_report, claimed=claimed or proof.trained_elsewhere)
    # Preservation and learning stand side by side, as neither proves the other.
    halves = div("halves", element("section", element("h2", "Old languages"), banner, class_="half old"),
                 element("section", element("h2", "New language"), learned, paragraph(new), class_="half new"))
    # A failed check is open, as its reader has to decide about it.
    checks = element("details", element("summary", f"The {pluralize(len(proof.checks), 'check')} in detail"),
                     div("checks", *(_check(check, claimed=claimed) for check in proof.checks)), _about(proof),
                     open=bool(failed))
    return join((halves, _errors(proof.errors), checks))


def _about(proof: Certificate) -> Html:
    return job_views.facts([("Run", proof.run), ("Step", proof.step), ("Scope", proof.scope),
                            ("Base model", proof.model), ("Base files", proof.base_files),
                            ("Created", job_views.clock(proof.created))])


def _new_language_line(proof: Certificate) -> str:
    """What is known of the new languages after how many steps."""
    errors = {error.language: error for error in proof.errors if error.new}
    facts = list[str]()
    for code in proof.new_languages or tuple(errors):
        error, name = errors.get(code), job_views.language_name(code)
        if error is None or error.after is None:
            facts.append(f"{name} was not measured")
        else:
            base_error = f", {error.before:.1%} before" if error.before is not None else ""
            facts.append(f"{name}: CER {error.after:.1%} in {pluralize(error.sentences, 'sentence')}{base_error}")
    facts_text = "; ".join(facts) or "No new language was measured"
    trained = f" Trained for {pluralize(proof.step, 'step')}." if proof.step else ""  # elsewhere, if it was restored
    return f"{facts_text}.{trained}"


def _check(check: CertificateCheck, *, claimed: bool = False) -> Html:
    tone, mark = _TONES[check.result]
    if claimed and check.result == "passed":
        tone, mark = _TONES["measured"]
    return div(f"check {tone}", span("mark", mark), div(
        "step", div("ends", element("strong", check_title(check.name)), span(f"badge {tone}", check.result)),
        paragraph(check.what), _values(check)))


def check_title(name: str) -> str:
    """The title of a check, also of one that another version made."""
    return _CHECK_TITLES.get(name, name.replace("_", " "))


_LONG_VALUE = 40  # characters; a hash has 64


def _values(check: CertificateCheck) -> Html:
    """What was expected and found; folded where it is a hash."""
    values = join((
        div("hashes", span("small", "before "), element("code", check.expected)) if check.expected else NOTHING,
        div("hashes", span("small", "after "), element("code", check.actual))))
    is_hash = any(len(word) > _LONG_VALUE for word in f"{check.expected} {check.actual}".split())
    return element("details", element("summary", "Hashes"), values) if is_hash else values


def _errors(rows: Sequence[LanguageCER]) -> Html:
    if not rows:
        return NOTHING
    cells = [
        (element("div", job_views.language_name(row.language), " ", span("badge busy", "new") if row.new else NOTHING),
         job_views.percent(row.before), job_views.percent(row.after), job_views.percent(row.recordings_cer),
         str(row.sentences))
        for row in rows
    ]

    sheet = table(("Language", "Before", "After", "Original recordings", "Sentences"), cells)
    new = paragraph(UNTRAINED_BASELINE, class_="small") if any(row.new for row in rows) else NOTHING
    codes = [job_views.language_name(row.language) for row in rows if row.used_for_selection]
    selection = paragraph(f"{', '.join(codes)}: measured on the sentences that selected the checkpoint, as no others "
                          "were held out; on other sentences it can be higher.", class_="small") if codes else NOTHING
    notes = [paragraph(f"{job_views.language_name(row.language)}: measured by {row.measured_by}. It was made with this "
                       "dataset, so it is not an independent judge.", class_="small") for row in rows
             if row.measured_by]
    return join((element("h2", "Character error rate (CER)"), sheet, *notes, selection, new))


def _failed(page: Page, reference: str) -> tuple[str, ...]:
    path = records.certificate_path(page.workspace, reference) if reference else None
    return read(path).failed() if path and path.is_file() else ()


def _compute(page: Page, reference: str) -> Sequence[object]:
    """Start the job that certifies the chosen run or export."""
    if not (reference or "").startswith(("run:", "export:")):
        raise UserError("No run and no export is chosen.", "Choose one; a base model has no certificate.")
    job = page.start("certify", parse(CertifyOptions, {"run": reference}))
    return [page.started_notice(job)]


def _stop(page: Page, reference: str) -> Sequence[object]:
    """Stop the job that certifies the chosen run."""
    for state in page.live.board.states():
        if state.alive and state.verb == "certify" and \
                str(state.job.settings.get("run", "")).partition("@")[0] == reference:
            control.stop(state.job)
    return [job_views.notice("Stopping. The run can be used; Compute certificate continues at the same sentence.")]


def _acceptance(page: Page, view: View) -> object:
    """The checkbox of a run that learned nothing: it names the outcome."""
    report = _learning(page, _chosen(page, view))
    if report is None or not report.learning.bad:
        return gr.update(visible=False)
    return gr.update(visible=True, label=f"Export although the outcome is: {learning.describe_report(report)}")


def _learning(page: Page, reference: str) -> learning.LearningReport | None:
    """What the training of the chosen run taught; None for an export, whose outcome was accepted or good."""
    state = page.live.board.state(Reference.parse(reference).run) if reference.startswith("run:") else None
    return records.learning_report(state) if state is not None else None


def _export(page: Page, reference: str, name: str, override: Sequence[str] | None,
            unproven: bool, accept_learning: bool = False) -> Job:
    """Start the export of a run; `UserError` if a failed check or a bad outcome was not accepted."""
    if not (reference or "").startswith("run:"):
        raise UserError("No run is chosen.", "Choose a run to export, or train one first.")
    blocking = [check for check in _failed(page, reference) if check not in (override or ())]
    if blocking:
        raise UserError(f"These checks failed: {', '.join(map(check_title, blocking))}.",
                        "Select each of them under Override failed checks, or train again.")
    report = _learning(page, reference)
    if report is not None and report.learning.bad and not accept_learning:
        raise UserError(f"It is not exported: {learning.describe_report(report)}.",
                        f"{learning.advise(report)} Or tick the checkbox that names the outcome.")
    settings = {"run": reference, "export": name, "override": tuple(override or ()), "unproven": bool(unproven),
                "accept_learning": bool(accept_learning)}
    return page.start("export", parse(ExportOptions, settings))


def _pack(page: Page, reference: str, *values: Any) -> Sequence[object]:
    """Pack the chosen export into one file; a chosen run is exported first."""
    if (reference or "").startswith("export:"):
        return [page.started_notice(page.start("pack", PackOptions(item=reference)))]
    export = _export(page, reference, *values)
    page.start("pack", PackOptions(item=f"export:{export.settings['export']}"), after=(export.id,))
    return [page.started_notice(export)]


def _file(page: Page, view: View) -> Html:
    """The archive of the chosen export, or of the newest export of the chosen run: its progress, then a link."""
    reference = _chosen(page, view)
    exports = [state for state in view.jobs if state.verb == "export"]
    export = None
    if reference.startswith("run:"):
        export = next((state for state in exports if state.job.settings.get("run") == reference), None)
        if export is None or not (export.alive or export.status == "finished"):
            return NOTHING
        reference = f"export:{export.job.settings.get('export')}"

    # The newest export of a name has its files, which another run may have taken since; earlier archives have others.
    newest = next((state for state in exports if f"export:{state.job.settings.get('export')}" == reference), None)
    if export is not newest and export is not None:
        return NOTHING
    jobs = view.jobs[:view.jobs.index(newest)] if newest is not None else view.jobs
    packing = next((state for state in jobs if state.verb == "pack" and state.job.settings.get("item") == reference),
                   None)
    if packing is None or packing.status == "skipped":
        return NOTHING
    if packing.status != "finished" or not packing.result:
        return job_views.job_card(packing)
    if media.archive_path(page.workspace, packing.id) is None:  # it was deleted since
        return NOTHING
    size = size_text(float(packing.result.get("bytes") or 0))
    return element("a", f"Download {packing.result.get('archive')} ({size})", href=media.archive_url(packing.id),
                   download=True, class_="download-button")


def _last_export(view: View) -> Html:
    state = view.newest("export")
    if state is None:
        return NOTHING
    bad = div("notice bad", element("strong", f"This export is bad: {job_views.short_outcome(state)}."),
              role="alert") if job_views.learned_nothing(state) else NOTHING
    return join((job_views.job_card(state), bad, exported_view(state.result)))


def exported_view(result: Result | None) -> Html:
    """Path, size and error rates of the export, and its checks by outcome; those that did not pass are named."""
    if not result:
        return NOTHING
    checks = {name: str(value) for name, value in result.items() if value in _VERDICTS}
    tiles = [result_fact(name, value) for name, value in result.items()
             if name not in checks and name not in _SHOWN_ELSEWHERE]
    outcome = []
    for verdict in _VERDICTS:
        named = [check_title(name) for name, result_verdict in checks.items() if result_verdict == verdict]
        names = f" ({', '.join(named)})" if verdict in ("failed", "not proven") else ""
        outcome += [f"{len(named)} {verdict}{', overridden' * (verdict == 'failed')}{names}"] if named else []

    title = str(result.get("ref", "")).replace(":", " ")
    return join((paragraph("Exported to ", element("code", str(result.get("path", ""))), f". On Listen: {title}.",
                           class_="small"),
                 job_views.facts([(name, value) for name, value in tiles if name != "Path"]
                                 + [("Checks", ", ".join(outcome))])))


def build_push(page: Page) -> None:
    """Lay out export, repository and button."""
    fields = PushOptions.model_fields
    gr.HTML(paragraph(
        "Uploads an export without failed checks to a repository on huggingface.co, or on the hub of HF_ENDPOINT, as "
        "one commit. The token is read from the environment variable HF_TOKEN and is not stored.",
        class_="small"))
    with gr.Row(elem_classes="grid"):
        export = gr.Dropdown([], label="Export", elem_id="push-export", min_width=200)
        repository = gr.Textbox("", label="Repository", info=fields["repository"].description, max_lines=1,
                                placeholder="me/my-voice", elem_id="push-repository", min_width=200)
    public = gr.Checkbox(False, label="Public", elem_id="push-public")
    with gr.Row(elem_classes="controls"):
        push = gr.Button("Push", variant="primary", size="md", scale=0, min_width=160, elem_id="push")
        stop = gr.Button("Stop", size="md", scale=0, min_width=110, elem_id="stop-push")
    notice = gr.HTML(elem_classes="notices")
    last = gr.HTML(elem_id="push-result")

    page.live.watch("push.export", export)

    def export_choices(view: View) -> object:
        exports = page.workspace.list_exports()
        newest = verb_form.newest_made(view, "export")
        return choice_update(exports, view.follow("push.export", view.values["push.export"], exports, newest))

    page.live.panel(export, export_choices, TAB)
    page.live.show_when(stop, lambda view: view.newest("push"),
                        lambda job: job.alive and job.status != "stopping", TAB)

    def start(export: str | None, repository: str, public: bool) -> Sequence[object]:
        if not export:
            raise UserError("There is no export yet.", "Export a run first.")
        if not os.environ.get("HF_TOKEN"):
            raise UserError("HF_TOKEN is not set.", "Create a token with write access in the settings of the Hub, set "
                            "HF_TOKEN to it, and restart Lisan.")
        # The job reads the token itself, so that it is not among the stored options.
        job = page.start("push", parse(PushOptions, {"export": export, "repository": repository, "public": public}))
        return [page.started_notice(job)]

    def stop_all() -> Sequence[object]:
        for state in page.live.board.states():
            if state.verb == "push" and state.alive:
                control.stop(state.job)
        return [job_views.notice("Stopping; nothing is committed.")]

    def last_push(view: View) -> Html:
        state = view.newest("push")
        if state is None:
            return NOTHING
        # The plan tells which files go up before the first byte does.
        plan = job_views.plan(state.plan.lines, "Files to upload") if state.plan else NOTHING
        return join((job_views.job_card(state), push_result_view(state.result) if state.result else plan))

    page.live.panel(last, last_push, TAB)
    page.on(push.click, start, [export, repository, public], [notice])
    page.on(stop.click, stop_all, [], [notice])


def push_result_view(result: Result) -> Html:
    """The address of the repository, and what was uploaded."""
    url = str(result.get("url", ""))
    is_web = url.startswith(("http://", "https://"))
    link = element("a", url, href=url, target="_blank", rel="noopener") if is_web else url
    visible_to = "everyone" if result.get("public") else "its owner"
    return join((job_views.notice(join(("Pushed to ", link)), "good"), job_views.facts([
        ("Commit", str(result.get("commit"))[:12]), ("Files", result.get("files")),
        ("Size", size_text(float(result.get("bytes") or 0))), ("Visible to", visible_to)])))
