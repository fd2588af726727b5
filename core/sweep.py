"""The verb `sweep`: runs over a grid, one after another through the queue, with early pruning and a ranking.

Each trial is a training of its own: it waits in the queue of its device, is shown on the page, and can be stopped. The
sweep itself takes no device. It can be killed at any moment: a resume finds the trials by their ids.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from config.errors import ErrorKind, UserError
from config.schema import SweepOptions
from core.jobs import control
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.job import Job, check_id_free, load_job_directory, with_whole_ids
from core.jobs.reporter import Reporter, StopRequested, pluralize
from core.jobs.state import JobReader, JobState
from core.library import sweeps
from core.library.sweeps import SweepRecord, SweepTrial
from core.submission.jobs import submit
from core.workspace import Workspace

_POLL_S = 0.3
_MAX_RESUMES = 3  # A trial that crashes is resumed so often in one attempt.
_STOPPED = "Stopped with its trial. A resume goes on with that trial."


def run(options: SweepOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Run the trials that are not done yet, and rank all of them."""
    count = sweeps.check_sweep(options)
    folder = reporter.directory
    record = sweeps.read_sweep(folder) or SweepRecord(count)
    reporter.emit(Plan((
        f"{pluralize(count, 'trial')}, one after another.",
        *(f"{name}: {', '.join(map(str, values))}" for name, values in sweeps.varied_values(options).items()),
        *(["A trial with a held-out loss above the median of the earlier ones is stopped early."]
          if options.prune else [])), {"trials": count}))

    for index in range(count):
        # The plan of a trial is stored before its run exists, so that a resume finds that run.
        if index == len(record.trials):
            trial = SweepTrial(f"{folder.name}-{index + 1:02d}", sweeps.propose(options, record.trials))
            _check_trial_id(options, workspace, trial)
            record = replace(record, trials=(*record.trials, trial))
            sweeps.write_sweep(folder, record)
        trial = _run_trial(options, workspace, reporter, record, index)
        record = replace(record, trials=(*record.trials[:index], trial, *record.trials[index + 1:]))
        sweeps.write_sweep(folder, record)

    finished = [trial for trial in sweeps.rank(record, options) if trial.status == "finished"]
    failed = [trial for trial in record.trials if trial.status == "failed"]
    if not finished:
        reason = failed[0].message if failed else "each was stopped"
        raise UserError(f"None of the {pluralize(count, 'trial')} finished: {reason}",
                        "Look at their jobs, then resume the sweep.")
    best = finished[0]
    return {
        "best": best.run, "best_changes": best.description, "recommendation": sweeps.recommend(record, options),
        "finished": len(finished), "pruned": sum(trial.status == "pruned" for trial in record.trials),
        "failed": len(failed),
    }


def _check_trial_id(options: SweepOptions, workspace: Workspace, trial: SweepTrial) -> None:
    """Raise `UserError` if another job has the id of a trial that is not in `sweep.json` yet.

    A training with the trial's options is that trial: `sweep.json` was deleted.
    """
    directory = workspace.runs / trial.run
    if directory.exists():
        job = load_job_directory(directory)
        trial_options = with_whole_ids(workspace, "train", sweeps.trial_options(options, trial.changes))
        if job.verb != "train" or job.options() != trial_options:
            check_id_free(workspace, trial.run)


def _run_trial(options: SweepOptions, workspace: Workspace, reporter: Reporter, record: SweepRecord,
               index: int) -> SweepTrial:
    """Run trial `index`, or what is missing of it. Returns it with its measurements."""
    trial, earlier = record.trials[index], record.trials[:index]
    try:
        job = _trial_job(options, workspace, trial)
    except UserError as error:
        # The options of this trial do not work; others may. A full disk or a damaged trial ends the sweep.
        if error.kind is ErrorKind.ENVIRONMENT or (workspace.runs / trial.run).exists():
            raise
        reporter.emit(WarningRaised(f"Trial {index + 1} ({trial.description}) was not started. {error}"))
        return replace(trial, status="failed", message=error.message)
    reader = JobReader(job)
    resumes, note = 0, ""
    if not _begin(job, reader.state(), is_pruned=_measure(options, trial, reader, earlier).status == "pruned"):
        return _measure(options, trial, reader, earlier)

    while True:
        state = reader.state()
        measured = sweeps.measure(trial, state, earlier, prune=options.prune)
        if measured.status == "pruned" and state.alive and state.status != "stopping":
            reporter.emit(WarningRaised(f"Trial {index + 1} ({trial.description}) is stopped early. "
                                        f"{measured.message}"))
            control.stop(job)
        if reporter.stop_requested():
            control.stop(job)
            control.wait(job)
            raise StopRequested(_STOPPED)
        # The journal grows by what changed alone.
        if _note(index, trial, state) != note:
            note = _note(index, trial, state)
            reporter.emit(Progress(index, record.count, "trials", note))

        if state.ended:
            if state.status != "crashed" or measured.status == "pruned" or resumes == _MAX_RESUMES:
                reporter.emit(Progress(index + 1, record.count, "trials", f"{trial.run}: {measured.status}"))
                return measured
            resumes += 1
            with suppress(control.AlreadyRunning):
                control.resume(job)
        time.sleep(_POLL_S)


def _measure(options: SweepOptions, trial: SweepTrial, reader: JobReader,
             earlier: tuple[SweepTrial, ...]) -> SweepTrial:
    return sweeps.measure(trial, reader.state(), earlier, prune=options.prune)


def _trial_job(options: SweepOptions, workspace: Workspace, trial: SweepTrial) -> Job:
    """The job of a trial, created unless it exists."""
    directory = workspace.runs / trial.run
    if directory.exists():
        return load_job_directory(directory)
    [job] = submit(workspace, "train", sweeps.trial_options(options, trial.changes), name=trial.run, certificate=False)
    control.rename(job, trial.description[:64])
    return job


def _begin(job: Job, state: JobState, *, is_pruned: bool) -> bool:
    """Start or resume the trial. False if it has ended: it finished, was pruned, or failed by its options."""
    if state.status == "created":
        control.start(job)
    elif not state.alive:
        is_final = state.status == "finished" or (
            state.status == "failed" and state.error_kind != ErrorKind.ENVIRONMENT)
        if is_pruned or is_final:
            return False
        # The app may have resumed it already, after a restart of the machine.
        with suppress(control.AlreadyRunning):
            control.resume(job)
    return True


def _note(index: int, trial: SweepTrial, state: JobState) -> str:
    """Such as "trial 2, adapter_lr 0.002: step 40 of 80, held-out loss 2.310"."""
    place = f"step {state.steps[-1].step} of {state.steps[-1].total_steps}" if state.steps else state.status
    loss = f", held-out loss {state.evaluations[-1].speech_loss:.3f}" if state.evaluations else ""
    return f"trial {index + 1}, {trial.description}: {place}{loss}"
