"""The one way to a new job: `submit` checks what it needs, then creates it and the jobs that follow it.

The page, the command line, Start, the demo, pinning, sweeps and the experiments all call it, so each of them refuses
the same things in the same words, and a refusal leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from config import confinement, schema
from config.schema import CertifyOptions, CompareOptions, Options, TrainOptions
from core.jobs import control
from core.jobs.checkpoint_names import BEST, CHOICE, pinned_names
from core.jobs.job import Job, check_id_free, create_job, load_job, new_job_id, with_whole_ids
from core.jobs.state import JobBoard
from core.jobs.verbs import verb_module
from core.library import lineage
from core.library.lineage import Model
from core.submission.requirements import PlannedJob, find_makers
from core.workspace import Reference, Workspace


def submit(workspace: Workspace, verb: str, options: Options, *, name: str | None = None, after: Sequence[str] = (),
           preparation: Sequence[tuple[str, Options]] = (), comparison: CompareOptions | None = None,
           certificate: bool = True) -> list[Job]:
    """Create a job with those before and after it, without starting them. Returns all, in the order of their work.

    `preparation` are verbs and options of jobs that run before it, one after another. A training is followed by the
    `comparison` of its result with another model, whose `finetuned` is set here, and by its certificate, unless
    `certificate` is False. Each job also waits for the living jobs that make what it needs, and the first one for the
    jobs `after`; a job is skipped if one that it waits for fails.

    All jobs are checked before the first is created: `UserError` for what neither exists nor is being made, for options
    that are known not to work, and for a name that another job has.
    """
    earlier = _jobs_before(workspace, after)
    planned: list[PlannedJob] = []

    def plan(job_verb: str, job_options: Options, waits: Sequence[str], job_id: str | None = None) -> PlannedJob:
        makers = check_requirements(workspace, job_verb, job_options, [*earlier, *planned])
        job = PlannedJob(job_id or new_job_id(workspace, job_verb), job_verb, job_options,
                         tuple(dict.fromkeys([*waits, *makers])))
        planned.append(job)
        return job

    # Each job of a chain waits for the one before it.
    waits = tuple(after)
    for job_verb, job_options in preparation:
        waits = (plan(job_verb, with_whole_ids(workspace, job_verb, job_options), waits).id,)
    job = plan(verb, with_whole_ids(workspace, verb, options), waits, name)

    # What follows names this job, whose id is whole already.
    reference, waits = f"run:{job.id}", (job.id,)
    if comparison is not None:
        comparison = with_whole_ids(workspace, "compare", comparison)
        plan("compare", comparison.model_copy(update={"finetuned": reference}), waits)
    if verb == "train" and certificate:
        plan("certify", _certificate_options(reference, job.options), waits)

    # Nothing was changed so far. The choice of a checkpoint may be refused too, so it comes before the jobs.
    if name is not None:
        check_id_free(workspace, name)
    for step in planned:
        if isinstance(step.options, CertifyOptions) and step.id == job.id:
            select_named_checkpoint(workspace, step.options)
    return [create_job(workspace, step.verb, step.options, after=step.after, job_id=step.id) for step in planned]


def submit_certificate(training: Job) -> Job:
    """Create the job that certifies `training` after it has finished, without starting it."""
    options = _certificate_options(f"run:{training.id}", training.options())
    [job] = submit(training.workspace, "certify", options, after=(training.id,))
    return job


def check_requirements(workspace: Workspace, verb: str, options: Options,
                       planned: Sequence[Job | PlannedJob] = ()) -> tuple[str, ...]:
    """Ids of the living jobs that make what `options`, with whole ids, need and what does not exist yet.

    They must finish first. `planned` are jobs that will have finished then. Raises `UserError` as `submit` does.
    """
    for _name, path in schema.path_options(options):
        confinement.check(path)
    module = verb_module(verb)
    if module:
        module.check(workspace, options)
    return find_makers(workspace, verb, options, planned)


def select_named_checkpoint(workspace: Workspace, options: CertifyOptions) -> None:
    """Select the checkpoint that `run:ID@STEP` names, before the job that certifies it is created.

    `run:ID@best` ends an earlier choice. Nothing changes if that checkpoint is selected already.
    """
    if options.run.startswith("export:"):
        return
    _, name, checkpoint, _ = Reference.parse(lineage.require_run(options.run))
    choice = pinned_names(workspace.run(name)).get(CHOICE)
    if checkpoint == BEST and choice is not None:
        control.use_checkpoint(load_job(workspace, name), "")
    elif checkpoint not in ("", BEST) and Model.open(workspace, options.run).step != choice:
        control.use_checkpoint(load_job(workspace, name), checkpoint)


def _certificate_options(reference: str, training: Options) -> CertifyOptions:
    assert isinstance(training, TrainOptions)
    return CertifyOptions(run=reference, device=training.device)


def _jobs_before(workspace: Workspace, ids: Sequence[str]) -> list[Job]:
    """The jobs `ids`, and those that they wait for, which have not ended: what they make will exist then."""
    states = {state.id: state for state in JobBoard(workspace).states()} if ids else {}
    jobs: dict[str, Job] = {}
    waiting = list(ids)
    while waiting:
        # A job that was deleted since, or is damaged, makes nothing; what an ended one made exists or is missing.
        state = states.get(waiting.pop())
        if state is not None and state.id not in jobs and (state.alive or state.status == "created"):
            jobs[state.id] = state.job
            waiting += state.job.after
    return list(jobs.values())
