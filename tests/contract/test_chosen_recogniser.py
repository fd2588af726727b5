"""A recogniser of one's choice measures a run, the certificate and a comparison, in every family."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import CompareOptions
from core import compare, train
from core.jobs import checkpoint_names
from core.jobs.events import Journal
from core.jobs.job import create_job
from core.library import certificate, records
from core.training import checkpoint
from tests.contract.conftest import World
from tests.contract.families import FAMILIES
from tests.unit import tiny_recognisers
from tests.worlds import Listener, train_and_certify, train_options


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_recognisers.write_ctc(tmp_path_factory.mktemp("recogniser"), {"amh": tiny_recognisers.ETHIOPIC})


@pytest.fixture(scope="module")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The family that is quick to speak, in both tests that are no slow ones."""
    case = FAMILIES[0]
    return World(case, case.extended_world(tmp_path_factory.mktemp("small")))


def test_a_chosen_recogniser_scores_what_is_spoken(small_world: World, recogniser: Path) -> None:
    _scored_throughout(small_world, recogniser)


@pytest.mark.slow
def test_it_scores_for_a_family_without_a_recogniser(world: World, recogniser: Path) -> None:
    _scored_throughout(world, recogniser)


def _scored_throughout(world: World, recogniser: Path) -> None:
    options = train_options(steps=2, checkpoint_every=2, evaluation_sentences=1, select_best_by="cer",
                            recogniser=str(recogniser))
    made = create_job(world.workspace, "train", options, job_id="scored")
    run = made.directory
    listener = Listener(run)
    train_and_certify(options, world.workspace, listener)
    evaluated = listener.of("evaluated")[-1]
    assert evaluated.errors["am"] > 0.0  # its weights are random
    assert records.read_checkpoint(checkpoint_names.folder_of(run, 2)).recogniser == str(recogniser)
    assert "am" in {one.language for one in certificate.read(run / certificate.CERTIFICATE).errors}
    with closing(Journal(made.journal)) as journal:
        for event in listener.events:
            journal.append(event)
    heard = Listener(world.workspace.runs / "compared")
    compare.run(CompareOptions(base=f"base:{world.case.model}", finetuned=f"run:{run.name}@2",
                               texts=(("am", "ሀለመ ሰረቀ"),), device="cpu"), world.workspace, heard)
    assert [event.error is not None for event in heard.clips()] == [True, True]


def test_a_recogniser_that_is_none_ends_the_run_before_it_begins(small_world: World, tmp_path: Path) -> None:
    run = small_world.workspace.runs / "scored-by-nothing"
    with pytest.raises(UserError, match="holds no recogniser"):
        train.run(train_options(steps=2, recogniser=str(tmp_path)), small_world.workspace, Listener(run))
    assert checkpoint.quarantine_damaged_checkpoints(run, lambda message: None) is None
