"""Whether a model can reproduce a voice is decided from similarities, and measured through its codec."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import ResynthesizeOptions
from core import resynthesize
from core.jobs.events import AudioGenerated
from core.library.reproduction import Reproduction, ReproductionMeasurements
from core.submission.jobs import check_requirements
from core.workspace import Workspace
from tests.worlds import Listener


def measured(similarity: float, recordings: float) -> ReproductionMeasurements:
    return ReproductionMeasurements.from_clips("tiny", "tiny", [similarity], [recordings], [1.9], [2.9])


@pytest.mark.parametrize(("similarity", "recordings", "outcome"), [
    (0.53, 0.84, Reproduction.NOT_REPRODUCED), (0.89, 0.92, Reproduction.REPRODUCED),
    (0.53, 0.55, Reproduction.NOT_MEASURED), (math.nan, math.nan, Reproduction.NOT_MEASURED)])
def test_the_outcome_is_decided_by_similarity(similarity: float, recordings: float, outcome: Reproduction) -> None:
    assert measured(similarity, recordings).reproduction is outcome


def test_a_voice_that_is_lost_names_the_families_that_keep_it() -> None:
    lost = measured(0.53, 0.84)
    assert "Built-in tiny model cannot reproduce this voice" in lost.describe()
    assert "Chatterbox Multilingual or IndexTTS2" in lost.advise()
    assert measured(0.89, 0.92).advise() == ""


def test_a_result_is_read_back_as_it_was_stored() -> None:
    for one in (measured(0.53, 0.84), measured(0.89, 0.92)):
        assert ReproductionMeasurements.from_result(one.to_result()) == one
    assert ReproductionMeasurements.from_result({"similarity": 0.5}) is None
    assert ReproductionMeasurements.from_result(None) is None


def test_one_place_is_needed(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    for options in (ResynthesizeOptions(), ResynthesizeOptions(source="demo", dataset="mine")):
        with pytest.raises(UserError, match="one of the two"):
            check_requirements(workspace, "resynthesize", options)
    with pytest.raises(UserError, match="missing"):
        check_requirements(workspace, "resynthesize", ResynthesizeOptions(source="demo", model="missing"))
    assert check_requirements(workspace, "resynthesize", ResynthesizeOptions(source="demo", language="am")) == ()


def test_the_built_in_model_reproduces_its_own_voices(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    reporter = Listener(workspace.path / "runs" / "job")
    result = resynthesize.run(ResynthesizeOptions(source="demo", language="am", device="cpu"), workspace, reporter)
    assert result["reproduction"] == "reproduced"
    sounds = [event for event in reporter.events if isinstance(event, AudioGenerated)]
    assert [(one.side, one.index) for one in sounds] == [
        (side, index) for index in range(3) for side in ("recording", "resynthesis")]
    assert all((reporter.directory / one.path).is_file() for one in sounds)
