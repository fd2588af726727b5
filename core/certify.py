"""The verb `certify`: compute the certificate of a run's selected checkpoint, and write it beside the run.

The selected checkpoint is the one that `run:ID` refers to: the one that a person chose, else the best intact one. The
run can be used meanwhile. Sentences that were scored before a stop or a kill are not synthesized again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from config.errors import UserError
from config.schema import CertifyOptions
from core import compute
from core.jobs import checkpoint_names
from core.jobs.checkpoint_names import BEST, CHOICE, pinned_names
from core.jobs.events import Result, WarningRaised
from core.jobs.reporter import Reporter, progress_callback, stage
from core.library import catalog, certificate, learning
from core.library.certificate import CERTIFICATE, Certificate
from core.proof import certification
from core.training import checkpoint
from core.workspace import Workspace


def run(options: CertifyOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write `certificate.json` for the checkpoint that is selected when the job begins.

    `run:ID@STEP` selected its checkpoint when the job was created (`job_chains.use_named_checkpoint`). It is not
    selected again here, because a person may have chosen another one before the job was resumed.
    """
    name, _, wanted = catalog.require_run(options.run).removeprefix("run:").partition("@")
    run_dir = workspace.run(name)

    def warn(message: str) -> None:
        reporter.emit(WarningRaised(message))

    names = pinned_names(run_dir)
    step = names[CHOICE] if CHOICE in names else checkpoint.best_intact(run_dir, warn)
    if CHOICE not in names and step != checkpoint.read_ranking(run_dir).best:
        checkpoint_names.set_choice(run_dir, str(step))  # the best one is damaged: select the one that is certified
    if wanted not in ("", BEST, str(step)) and names.get(wanted) != step:
        warn(f"The certificate is of step {step}, not of {options.run}: step {step} was selected for {name} meanwhile.")
    folder, device = checkpoint_names.folder_of(run_dir, step), compute.setup_device(options.device)
    with stage(reporter, "certificate"):
        progress = progress_callback(reporter, "Stopped. The run can be used; its certificate resumes at this "
                                               "sentence.")
        input_hash = certification.compute_input_hash(workspace, folder, device.type, certification.SENTENCES)
        made = certification.find_certificate(workspace, run_dir, input_hash)
        if made is None:
            made = certification.certify_folder(workspace, folder, device, progress=progress, warn=warn)
            certification.store_certificate(workspace, made)
        made = made.with_learning(run_dir)
        _write(run_dir, made, warn)

    failed = ", ".join(made.failed())
    if failed:
        warn(f"The certificate has failed checks: {failed}.")
    unproven = ", ".join(check.name for check in made.checks if check.result == "not proven")
    result: Result = {"run": run_dir.name, "step": step,
                      "certificate": (f"failed: {failed}" if failed else "passed")
                      + (f"; not proven: {unproven}" if unproven else ""),
                      "preservation": made.describe_preservation(), "learning": made.learning.value,
                      "learning_outcome": learning.describe_report(made.learning_report)}
    if made.base_note:
        result["base"] = made.base_note
    if made.learning.bad:
        warn(f"{made.describe()} {learning.advise(made.learning_report)}")
    for error in made.errors:
        for when, value in (("before", error.before), ("after", error.after), ("recordings", error.recordings_cer)):
            result[f"error_{error.language}_{when}"] = None if value is None else round(value, 4)
        if error.measured_by:
            result[f"error_{error.language}_by"] = error.measured_by
    return result


def _write(run_dir: Path, made: Certificate, warn: Callable[[str], None]) -> None:
    """Write the certificate, unless another checkpoint is selected now, or the run has a certificate that proves more.

    A certificate with a failed check is always written, because its finding is newer.
    """
    with checkpoint_names.checkpoint_lock(run_dir):
        selected = pinned_names(run_dir).get(CHOICE, checkpoint.read_ranking(run_dir).best)
        if selected != made.step:
            warn(f"The certificate of step {made.step} is not written, because step {selected} of {run_dir.name} is "
                 "selected now. Compute the certificate again, unless a job for that step is running.")
            return
        with suppress(UserError):  # there is no certificate yet, or a damaged one
            existing = certificate.read(run_dir / CERTIFICATE)
            if existing.has_same_subject(made) and existing.proves_more(made) and not made.failed():
                more = ", ".join(sorted(existing.proven() - made.proven()))
                warn(f"The certificate is not written, because {run_dir.name} has one of step {made.step} that proves "
                     f"more ({more}).")
                return
        certificate.write(run_dir / CERTIFICATE, made)
