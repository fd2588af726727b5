"""Compute the certificate of a run: of its chosen checkpoint, else of the best that is intact.

Sentences that were scored before a stop or a kill are not spoken again. The run can be used meanwhile. Where two such
jobs end one after the other, the certificate that stays is of what the run stands for, and the one that proves more.
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
from core.library import catalog, certificate
from core.library.certificate import CERTIFICATE, Certificate
from core.proof import certify
from core.training import checkpoint
from core.workspace import Workspace


def run(options: CertifyOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write `certificate.json` beside the run, of the checkpoint that it stands for when this begins.

    The checkpoint of `run:ID@STEP` was chosen when the job was made (`job_chains.choose_checkpoint`): a resume changes
    no choice that was made since.
    """
    name, _, wanted = catalog.require_run(options.run).removeprefix("run:").partition("@")
    run_dir = workspace.run(name)

    def warn(message: str) -> None:
        reporter.emit(WarningRaised(message))

    names = pinned_names(run_dir)
    step = names.get(CHOICE) or checkpoint.best_intact(run_dir, warn)
    if CHOICE not in names and step != checkpoint.read_ranking(run_dir).best:
        checkpoint_names.choose(run_dir, str(step))  # the best one is damaged: the run stands for what is certified
    if wanted not in ("", BEST, str(step)) and names.get(wanted) != step:
        warn(f"{options.run} was to be certified. Another choice was made since: {name} stands for step {step}, whose "
             "certificate this is.")
    folder, device = checkpoint.folder_of(run_dir, step), compute.setup_device(options.device)
    with stage(reporter, "certificate"):
        progress = progress_callback(reporter, "Stopped. The run can be used, and its certificate resumes at the "
                                               "sentence where it was.")
        input_hash = certify.compute_input_hash(workspace, folder, device.type, certify.SENTENCES)
        made = certify.find_certificate(workspace, run_dir, input_hash)
        if made is None:
            made = certify.certify_folder(workspace, folder, device, progress=progress, warn=warn)
            certify.store_certificate(workspace, made)
        _write(run_dir, made, warn)

    failed = ", ".join(made.failed())
    if failed:
        warn(f"The certificate has failed checks: {failed}.")
    result: Result = {"run": run_dir.name, "step": step, "certificate": f"failed: {failed}" if failed else "passed"}
    for error in made.errors:
        for when, value in (("before", error.before), ("after", error.after), ("recordings", error.recordings_cer)):
            result[f"error_{error.language}_{when}"] = None if value is None else round(value, 4)
    return result


def _write(run_dir: Path, made: Certificate, warn: Callable[[str], None]) -> None:
    """Write the certificate, unless the run stands for another checkpoint by now or has one that proves more.

    One with a failed check is always written: what it found is newer.
    """
    with checkpoint_names.checkpoint_lock(run_dir):
        now = pinned_names(run_dir).get(CHOICE) or checkpoint.read_ranking(run_dir).best
        if now != made.step:
            warn(f"{run_dir.name} stands for step {now} by now: its certificate is kept, and that of step {made.step} "
                 "is not written. Compute the certificate again, if that of the new choice is not being made.")
            return
        with suppress(UserError):  # there is none, or a damaged one
            before = certificate.read(run_dir / CERTIFICATE)
            if before.of_the_same(made) and before.proven() > made.proven() and not made.failed():
                more = ", ".join(sorted(before.proven() - made.proven()))
                warn(f"The certificate that {run_dir.name} has of step {made.step} proves more ({more}): it is kept, "
                     "and this one is not written.")
                return
        certificate.write(run_dir / CERTIFICATE, made)
