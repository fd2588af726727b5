"""Text rules and the licence when a dataset is prepared: what is checked is what is spoken, what is kept is what was
written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import PrepareOptions
from core.export import _licence
from core.prepare import import_dataset
from core.workspace import Workspace
from data import manifest
from data.manifest import PreparedDataset
from data.validation import ValidationReport
from tests.unit.small_data import AMHARIC, Recorder, write_clip, write_dataset


def prepared(source: Path, workspace: Workspace, name: str = "d", **changes: str) -> tuple[PreparedDataset, str,
                                                                                           ValidationReport]:
    options = PrepareOptions.model_validate({"source": str(source), "dataset": name, "language": "am", "held_out": 0.3,
                                             **changes})
    return import_dataset(options, "words", workspace, Recorder())


def kinds(report: ValidationReport) -> set[str]:
    return {finding.kind for finding in (*report.errors, *report.warnings)}


def test_rules_write_digits_out_before_the_text_is_checked(tmp_path: Path, workspace: Workspace) -> None:
    source = write_dataset(tmp_path / "in", (*AMHARIC[:5], "በ1967 50% አገኘ"))
    _, _, without = prepared(source, workspace)
    assert "characters" in kinds(without)
    assert set("1967") <= set(without.characters)
    dataset, _, with_rules = prepared(source, workspace, "r", rules="am")
    assert "characters" not in kinds(with_rules)
    assert not set("1967") & set(with_rules.characters)
    assert "በ1967 50% አገኘ" in {clip.text for clip in dataset.clips}  # as it was written


def test_a_text_that_rules_make_long_is_measured_as_it_is_spoken(tmp_path: Path, workspace: Workspace) -> None:
    source = write_dataset(tmp_path / "in", AMHARIC[:5])
    write_clip(source / "number.wav", duration_s=0.5, pitch=500)
    (source / "number.txt").write_text("987654321987", encoding="utf-8")
    _, _, without = prepared(source, workspace)
    assert "number" not in {Path(finding.where).stem for finding in without.errors}
    _, _, with_rules = prepared(source, workspace, "r", rules="am")
    assert {(Path(one.where).stem, one.kind) for one in with_rules.errors} == {("number", "pace")}


def test_rules_of_another_language_are_refused(tmp_path: Path, workspace: Workspace) -> None:
    with pytest.raises(UserError, match="'om'.*'am'"):
        prepared(write_dataset(tmp_path / "in"), workspace, rules="om")
    assert workspace.list_datasets() == []


def test_the_licence_is_kept_and_told(tmp_path: Path, workspace: Workspace) -> None:
    source = write_dataset(tmp_path / "in")
    dataset, _, _ = prepared(source, workspace, licence="CC-BY-4.0")
    assert manifest.load_card(dataset.folder).licence == "CC-BY-4.0"
    assert _licence("CC-BY-4.0") == ", licence CC-BY-4.0."
    assert "not recorded" in _licence("")


def test_a_licence_can_be_added_and_not_replaced(tmp_path: Path, workspace: Workspace) -> None:
    source = write_dataset(tmp_path / "in")
    assert prepared(source, workspace)[0].card.licence == ""
    dataset, state, _ = prepared(source, workspace, licence="CC0-1.0")
    assert (state, dataset.card.licence) == ("already there", "CC0-1.0")
    assert prepared(source, workspace)[0].card.licence == "CC0-1.0"
    with pytest.raises(UserError, match=r"'CC0-1.0', not 'MIT'"):
        prepared(source, workspace, licence="MIT")
    assert manifest.load(dataset.folder).card == dataset.card


def test_a_joined_dataset_has_both_licences(tmp_path: Path, workspace: Workspace) -> None:
    prepared(write_dataset(tmp_path / "in", AMHARIC[:4]), workspace, licence="CC0-1.0")
    more = tmp_path / "more"
    write_clip(more / "x.wav", pitch=700)
    (more / "x.txt").write_text(AMHARIC[5], encoding="utf-8")
    dataset, _, _ = prepared(more, workspace, "both", add_to="d", licence="CC-BY-4.0")
    assert dataset.card.licence == "CC0-1.0; CC-BY-4.0"


def test_a_card_without_a_licence_can_be_read(tmp_path: Path, workspace: Workspace) -> None:
    dataset, _, _ = prepared(write_dataset(tmp_path / "in"), workspace)
    path = dataset.folder / manifest.CARD_FILE
    path.write_text(path.read_text("utf-8").replace("licence: ''\n", ""), "utf-8")
    assert "\nlicence:" not in path.read_text("utf-8")
    assert manifest.load(dataset.folder).card == replace(dataset.card, licence="")
