"""Compute the certificate of a run: of its chosen checkpoint, else of the best that is intact.

Sentences that were scored before a stop or a kill are not spoken again. The run can be used meanwhile.
"""

from __future__ import annotations

from config.schema import CertifyOptions
from core import compute
from core.jobs import checkpoint_names, control
from core.jobs.checkpoint_names import BEST, CHOICE, pinned_names
from core.jobs.directory import load_job
from core.jobs.events import Result, WarningRaised
from core.jobs.reporter import Reporter, progress_callback, stage
from core.library import catalog, certificate
from core.proof import certify
from core.training import checkpoint
from core.workspace import Workspace


def run(options: CertifyOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write `certificate.json` beside the run; `run:ID@STEP` or a name chooses that checkpoint first.

    `run:ID@best` ends the choice.
    """
    name, _, wanted = catalog.require_run(options.run).removeprefix("run:").partition("@")
    run_dir = workspace.run(name)
    chosen = pinned_names(run_dir).get(CHOICE)
    if wanted == BEST and chosen is not None:
        control.use_checkpoint(load_job(workspace, name), "")
    elif wanted not in ("", BEST) and catalog.resolve(workspace, options.run).step != chosen:
        control.use_checkpoint(load_job(workspace, name), wanted)

    def warn(message: str) -> None:
        reporter.emit(WarningRaised(message))

    step = pinned_names(run_dir).get(CHOICE) or checkpoint.best_intact(run_dir, warn)
    if CHOICE not in pinned_names(run_dir) and step != checkpoint.read_ranking(run_dir).best:
        checkpoint_names.choose(run_dir, str(step))  # the best one is damaged: the run stands for what is certified
    folder, device = checkpoint.folder_of(run_dir, step), compute.setup_device(options.device)
    with stage(reporter, "certificate"):
        progress = progress_callback(reporter, "Stopped. The run can be used, and its certificate resumes at the "
                                               "sentence where it was.")
        input_hash = certify.compute_input_hash(workspace, folder, device.type, certify.SENTENCES)
        made = certify.find_certificate(workspace, run_dir, input_hash)
        if made is None:
            made = certify.certify_folder(workspace, folder, device, progress=progress, warn=warn)
            certify.store_certificate(workspace, made)
        certificate.write(run_dir / certificate.CERTIFICATE, made)

    failed = ", ".join(made.failed())
    if failed:
        warn(f"The certificate has failed checks: {failed}.")
    result: Result = {"run": run_dir.name, "step": step, "certificate": f"failed: {failed}" if failed else "passed"}
    for error in made.errors:
        for when, value in (("before", error.before), ("after", error.after), ("recordings", error.recordings_cer)):
            result[f"error_{error.language}_{when}"] = None if value is None else round(value, 4)
    return result
