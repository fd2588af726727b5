"""Every way to a job checks the same things, and a refusal leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.errors import UserError
from config.loading import parse_options
from config.schema import (
    CertifyOptions,
    CompareOptions,
    DownloadOptions,
    ExportOptions,
    ExtendOptions,
    PrepareOptions,
    TokenizerOptions,
    TrainOptions,
)
from core.jobs.events import Finished, Queued, Started, append_event
from core.jobs.job import create_job, load_job
from core.jobs.locks import FileLock
from core.submission.job_chains import ChainOptions, chain_steps, submit_chain
from core.submission.jobs import check_requirements, submit, submit_certificate
from core.workspace import Workspace


def test_a_chain_is_checked_before_its_first_job_exists(workspace: Workspace, tmp_path: Path) -> None:
    """Start and the demo checked nothing: a chain from a folder that does not exist failed at its second job."""
    missing = ChainOptions(source=str(tmp_path / "none"), dataset="mine", language="am")
    with pytest.raises(UserError, match="There is no source"):
        submit_chain(workspace, missing)
    with pytest.raises(UserError, match="no text rules named 'nosuch'"):
        submit_chain(workspace, ChainOptions(dataset="mine", rules="nosuch"))
    with pytest.raises(UserError, match="no dataset named 'nosuch'"):
        submit_chain(workspace, ChainOptions(train=parse_options(
            TrainOptions, {"scope": "full", "replay_datasets": "nosuch"})))
    assert workspace.list_runs() == []


def test_a_chain_ends_with_the_comparison_and_the_certificate_of_its_training(workspace: Workspace) -> None:
    jobs = submit_chain(workspace, comparison=CompareOptions(texts=(("am", "ሰላም"),)))
    assert [job.verb for job in jobs] == ["download", "prepare", "tokenizer", "extend", "train", "compare", "certify"]
    *_, training, comparison, certificate = jobs
    assert comparison.options() == CompareOptions(finetuned=f"run:{training.id}", texts=(("am", "ሰላም"),))
    assert certificate.options() == CertifyOptions(run=f"run:{training.id}")
    assert comparison.after == certificate.after == (training.id,)


def test_a_follower_that_is_refused_leaves_no_training(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="One of the texts to compare is empty"):
        submit_chain(workspace, comparison=CompareOptions(texts=(("am", " "),)))
    *preparation, (_, training) = chain_steps(ChainOptions(model_present=True))
    with pytest.raises(UserError, match="There is no base model named 'tiny'"):
        submit(workspace, "train", training, preparation=preparation)
    assert workspace.list_runs() == []


def test_a_job_waits_for_a_living_maker_and_for_the_jobs_before_it(workspace: Workspace) -> None:
    making = create_job(workspace, "download", DownloadOptions(save_as="tiny"))
    append_event(making.journal, Queued())
    lock = FileLock.acquire(making.lock)
    assert lock is not None
    other = create_job(workspace, "prepare", PrepareOptions())
    [job] = submit(workspace, "tokenizer", TokenizerOptions(), after=(other.id,))
    assert job.after == (other.id, making.id)  # the dataset is made by `other`, which has not begun
    lock.release()


def test_what_the_jobs_before_it_wait_for_exists_too(workspace: Workspace) -> None:
    training = submit_chain(workspace, certificate=False)[-1]
    proof = submit_certificate(training)
    [export] = submit(workspace, "export", ExportOptions(run=f"run:{training.id}", export="new"), after=(proof.id,))
    assert export.after == (proof.id,)
    with pytest.raises(UserError, match="There is no (base model|tokenizer) named"):
        check_requirements(workspace, "extend", ExtendOptions())


def test_what_an_ended_job_made_must_still_exist(workspace: Workspace) -> None:
    training = submit_chain(workspace, certificate=False)[-1]
    for job_id in workspace.list_runs():
        for event in (Queued(), Started(1, 1), Finished({})):
            append_event(load_job(workspace, job_id).journal, event)
    with pytest.raises(UserError, match="There is no (extension|dataset|base model) named"):
        submit(workspace, "train", TrainOptions(), after=(training.id,))


def test_a_damaged_job_before_others_refuses_nothing(workspace: Workspace) -> None:
    training = submit_chain(workspace, certificate=False)[-1]
    (load_job(workspace, training.after[0]).directory / "config.yaml").write_text("verb: gone\n", encoding="utf-8")
    assert submit_certificate(training).after == (training.id,)


def test_a_certificate_is_on_the_device_of_its_training_and_can_be_left_out(workspace: Workspace) -> None:
    chain = ChainOptions(train=TrainOptions(device="cpu"), name="beef")
    jobs = submit_chain(workspace, chain)
    assert (jobs[-1].verb, jobs[-1].settings["device"], jobs[-1].settings["run"]) == ("certify", "cpu", "run:beef")
    assert load_job(workspace, "beef").verb == "train"
    assert submit_chain(workspace, ChainOptions(), certificate=False)[-1].verb == "train"


def test_a_name_that_looks_like_a_short_id_is_the_new_run(workspace: Workspace) -> None:
    """`run:beef` of a run that is not created yet must not become the id of another run that ends so."""
    create_job(workspace, "train", TrainOptions(), job_id="train-20261123-084835-beef")
    jobs = submit_chain(workspace, ChainOptions(name="beef"), comparison=CompareOptions())
    assert [job.settings[name] for job, name in zip(jobs[-2:], ("finetuned", "run"), strict=True)] == ["run:beef"] * 2
