"""The verb `certify`: compute the certificate of a run's selected checkpoint, or of an export alone.

It is written beside the run or into the export, signed by this workspace. `again` computes it in any case. The selected
checkpoint is the one that `run:ID` refers to: the one that a person chose, else the best intact one. The run can be
used meanwhile. Sentences that were scored before a stop or a kill are not synthesized again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from config.errors import UserError
from config.schema import CertifyOptions
from core import compute
from core.jobs import checkpoint_names
from core.jobs.checkpoint_names import BEST, CHOICE, pinned_names
from core.jobs.events import Result, WarningRaised
from core.jobs.reporter import Reporter, progress_callback, stage
from core.library import certificate, checkpoints, learning, lineage, records, verification
from core.library.certificate import CERTIFICATE, Certificate, CertifiedFile
from core.library.lineage import Model
from core.library.records import EXPORT_SUMS
from core.proof import certification
from core.training import checkpoint
from core.workspace import Reference, Workspace
from data.durable_files import hash_file, write_json


def run(options: CertifyOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write `certificate.json` for the checkpoint that is selected when the job begins.

    `export:NAME` gets a certificate of its own files.

    `run:ID@STEP` selected its checkpoint when the job was created (`core.submission.jobs.submit`). It is not
    selected again here, because a person may have chosen another one before the job was resumed.
    """
    if options.run.startswith("export:"):
        return _certify_export(options, workspace, reporter)
    reference = Reference.parse(lineage.require_run(options.run))
    run_dir = workspace.run(reference.name)

    def warn(message: str) -> None:
        reporter.emit(WarningRaised(message))

    # The checkpoint is selected now, so that certificate and selection agree.
    names = pinned_names(run_dir)
    step = names[CHOICE] if CHOICE in names else checkpoint.best_intact(run_dir, warn)
    if CHOICE not in names and step != checkpoints.read_ranking(run_dir).best:
        # The best one is damaged: the one that is certified is selected.
        checkpoint_names.set_choice(run_dir, str(step))
    if reference.checkpoint not in ("", BEST, str(step)) and names.get(reference.checkpoint) != step:
        warn(f"The certificate is of step {step}, not of {options.run}: step {step} was selected for {reference.name} "
             "meanwhile.")

    # A stored certificate of the same files is used again.
    folder, device = checkpoint_names.folder_of(run_dir, step), compute.setup_device(options.device)
    with stage(reporter, "certificate"):
        progress = progress_callback(reporter, "Stopped. The run can be used; its certificate resumes at this "
                                               "sentence.")
        input_hash = certification.compute_input_hash(workspace, folder, device.type, certification.SENTENCES)
        proof = None if options.again else certification.find_certificate(workspace, run_dir, input_hash)
        if proof is None:
            proof = certification.certify_folder(workspace, folder, device, progress=progress, warn=warn)
            certification.store_certificate(workspace, proof)
        elsewhere = verification.is_trained_elsewhere(run_dir)
        proof = verification.sign(workspace, replace(proof.with_learning(run_dir), trained_elsewhere=elsewhere))
        _write(workspace, run_dir, proof, warn)

    if elsewhere:
        warn(f"{run_dir.name} was trained elsewhere, or its trainer's report was changed or is of an older version: "
             "that its frozen tensors did not move in the trainer's memory, and what it learned, is what its sender "
             "reported.")
    return _result(run_dir.name, proof, warn)


def _certify_export(options: CertifyOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Compute the certificate of an export from its files and the base model, and write it into the export."""
    def warn(message: str) -> None:
        reporter.emit(WarningRaised(message))

    export, device = Model.open(workspace, options.run), compute.setup_device(options.device)
    subject = verification.Subject.of_export(export.folder)
    with stage(reporter, "certificate"):
        own_certificate = _own_certificate(workspace, subject)
        if own_certificate is not None and not options.again:
            return _result(export.name, own_certificate, warn)

        progress = progress_callback(reporter, "Stopped. The export keeps its earlier certificate.")
        records.check_export_files(export.folder)
        files = verification.certified_files(subject)
        proof = certification.certify_export(workspace, export.folder, device, progress=progress, warn=warn)
        verification.check_unchanged(subject, files)
        proof = verification.bind(workspace, proof, files, _own_texts(workspace, subject))
        # The certificate belongs to the export, so its list of hashes is written again.
        sums = records.read_export_sums(export.folder)
        certificate.write(subject.certificate, proof)
        write_json(export.folder / EXPORT_SUMS, {**sums, CERTIFICATE: hash_file(subject.certificate)})

    warn("What the trainer reported (frozen tensors in its memory, what was learned) is not part of an export, so it "
         "is not proven.")
    return _result(export.name, proof, warn)


def _own_certificate(workspace: Workspace, subject: verification.Subject) -> Certificate | None:
    """The certificate that this workspace computed of these files, if there is one."""
    with suppress(UserError):
        proof = certificate.read(subject.certificate)
        outcome = verification.verify_proof(workspace, subject, proof).outcome
        if verification.is_own(workspace, proof) and not outcome.of_other_files:
            return proof
    return None


def _own_texts(workspace: Workspace, subject: verification.Subject) -> tuple[CertifiedFile, ...]:
    """Card and evaluations as this workspace wrote them before; none for those of a sender."""
    with suppress(UserError):
        earlier = certificate.read(subject.certificate)
        if verification.is_own(workspace, earlier):
            return earlier.texts
    return ()


def _result(name: str, proof: Certificate, warn: Callable[[str], None]) -> Result:
    failed = ", ".join(proof.failed())
    if failed:
        warn(f"The certificate has failed checks: {failed}.")

    unproven = ", ".join(check.name for check in proof.checks if check.result == "not proven")
    result: Result = {"run" if proof.kind == "run" else "export": name, "step": proof.step,
                      "certificate": (f"failed: {failed}" if failed else "passed")
                      + (f"; not proven: {unproven}" if unproven else ""),
                      "preservation": proof.describe_preservation(), "learning": proof.learning.value,
                      "learning_outcome": learning.describe_report(proof.learning_report)}

    if proof.base_note:
        result["base"] = proof.base_note
    if proof.learning.bad:
        warn(f"{proof.describe()} {learning.advise(proof.learning_report)}")
    for error in proof.errors:
        for when, value in (("before", error.before), ("after", error.after), ("recordings", error.recordings_cer)):
            result[f"error_{error.language}_{when}"] = None if value is None else round(value, 4)
        if error.measured_by:
            result[f"error_{error.language}_by"] = error.measured_by
    return result


def _write(workspace: Workspace, run_dir: Path, proof: Certificate, warn: Callable[[str], None]) -> None:
    """Write the certificate, unless another checkpoint is selected now, or the run has a certificate that proves more.

    Only one that this workspace computed of the same files can stand in its place. A certificate with a failed check is
    always written, because its finding is newer.
    """
    with checkpoint_names.checkpoint_lock(run_dir):
        selected = pinned_names(run_dir).get(CHOICE, checkpoints.read_ranking(run_dir).best)
        if selected != proof.step:
            warn(f"The certificate of step {proof.step} is not written, because step {selected} of {run_dir.name} is "
                 "selected now. Compute the certificate again, unless a job for that step is running.")
            return
        # There may be no certificate yet, or a damaged one.
        with suppress(UserError):
            existing = certificate.read(run_dir / CERTIFICATE)
            is_equal = existing.files == proof.files and verification.is_own(workspace, existing)
            if is_equal and existing.has_same_subject(proof) and existing.proves_more(proof) and not proof.failed():
                further_checks = ", ".join(sorted(existing.proven() - proof.proven()))
                warn(f"The certificate is not written, because {run_dir.name} has one of step {proof.step} that proves "
                     f"more ({further_checks}).")
                return
        certificate.write(run_dir / CERTIFICATE, proof)
