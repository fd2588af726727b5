"""A certificate is computed from files, and sees it when one of them is not what it should be."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from core import certificate, certify, checkpoint, records, train
from core.certificate import Certificate, Check
from core.records import CheckpointRecord
from core.workspace import Workspace
from tests.worlds import Listener, extended_world, train_options

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = extended_world(tmp_path_factory.mktemp("certificate"))
    for scope in ("gated", "full"):
        options = train_options(scope=scope, judged_sentences=0)
        train.run(options, workspace, Listener(workspace.runs / scope))
    return workspace


def certified(world: Workspace, run: str = "gated") -> Certificate:
    return certify.certify_folder(world, checkpoint.folder_of(world.runs / run, 8), CPU, sentences=2)


def test_gated_passes_every_check(world: Workspace) -> None:
    made = certified(world)
    assert [check.name for check in made.checks if check.verdict != "passed"] == ["judged_errors"]
    assert made.check("base_logits").seen == "4 of 4 samples (en, fr) equal to the bit"
    assert made.check("prefix_rows").expected == made.check("prefix_rows").seen


def test_full_reports_the_drift_it_measured(world: Workspace) -> None:
    check = certified(world, "full").check("base_logits")
    assert check.verdict == "measured"
    assert "0 of 4 samples" in check.seen
    assert "largest difference" in check.seen


def test_errors_stand_beside_the_judges_own(world: Workspace) -> None:
    errors = {error.language: error for error in certified(world).errors}
    assert set(errors) == {"en", "fr", "am"}
    assert all(error.original is not None for error in errors.values())
    assert errors["en"].before == errors["en"].after


def test_an_adapter_left_on_for_a_base_language_fails(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.loading.VoiceModel.adapts", lambda self, language: self.adapters is not None)
    made = certified(world)
    assert made.failed() == ("base_logits",)
    assert made.blocking() == ("base_logits",)
    assert made.blocking(("base_logits",)) == ()


def test_a_base_tensor_that_moved_fails(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    load = certify.load_checkpoint

    def moved(*given):
        voice = load(*given)
        with torch.no_grad():
            voice.model.module.get_buffer("text_emb.weight")[3, 0] += 1e-7
        return voice

    monkeypatch.setattr(certify, "load_checkpoint", moved)
    made = certified(world)
    assert {"prefix_rows", "frozen_tensors"} <= set(made.failed())


def test_what_moved_in_the_trainer_fails(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    read = records.read

    def other(path: Path, kind):
        record = read(path, kind)
        return dataclasses.replace(record, frozen_hash="0" * 64) if kind is CheckpointRecord else record

    monkeypatch.setattr(records, "read", other)
    assert certified(world).failed() == ("frozen_in_training",)


def test_a_deleted_dataset_is_said_and_not_made_up(world: Workspace) -> None:
    folder = world.datasets / "demo-am"
    folder.rename(world.datasets / "elsewhere")
    try:
        made = certified(world)
    finally:
        (world.datasets / "elsewhere").rename(folder)
    assert {error.language for error in made.errors} == {"en", "fr"}
    assert "am: There is no dataset named 'demo-am'" in made.check("judged_errors").seen


def test_a_certificate_survives_the_disk(tmp_path: Path) -> None:
    check = Check("base_logits", "failed", "equal", "not", "Logits.")
    made = Certificate("run:a@1", "a", 1, "gated", "tiny", "tiny-am", "b", "f", 1.0, (check,),
                       (certificate.LanguageError("am", True, 4, 0.7, None, 0.1),))
    certificate.write(tmp_path / certificate.FILE, made)
    assert certificate.read(tmp_path / certificate.FILE) == made
    (tmp_path / certificate.FILE).write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        certificate.read(tmp_path / certificate.FILE)
    with pytest.raises(UserError, match="no certificate"):
        certificate.read(tmp_path / "other.json")


def test_reading_a_certificate_needs_no_torch() -> None:
    code = "import sys, core.certificate, core.records; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sentences_that_chose_the_checkpoint_are_not_counted(world: Workspace) -> None:
    train.run(train_options(judged_sentences=1), world, Listener(world.runs / "chosen"))
    folder = checkpoint.folder_of(world.runs / "chosen", 8)
    assert len(records.read(folder / records.CHECKPOINT, CheckpointRecord).judged) == 1
    made = certify.certify_folder(world, folder, CPU)
    assert next(error for error in made.errors if error.language == "am").sentences == 3
