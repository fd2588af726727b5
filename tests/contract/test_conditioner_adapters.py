"""A training with adapters of IndexTTS2's conditioner: certified, exported and loaded again, with the base intact."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import export
from core.library import certificate, verification
from core.library.certificate import CERTIFICATE
from core.library.verification import Outcome
from core.model import tensor_files
from models.indextts2.family import IndexTTS2
from models.indextts2.unified_voice import conditioner_layers
from tests import indextts2_world, indextts25_world
from tests.trained import RUN, write_checkpoint
from tests.worlds import Listener, export_options, train_and_certify, train_options

WORLDS = {"indextts2": indextts2_world, "indextts25": indextts25_world}


@pytest.mark.long
@pytest.mark.parametrize("family", ["indextts2", pytest.param("indextts25", marks=pytest.mark.slow)])
def test_a_run_with_adapters_of_the_conditioner_keeps_its_certificate(family: str, tmp_path: Path) -> None:
    workspace = WORLDS[family].extended_world(tmp_path / "workspace")
    options = train_options(steps=4, checkpoint_every=4, adapter_rank_conditioner=4, adapter_lr=0.02)
    result = train_and_certify(options, workspace, Listener(workspace.runs / "adapted"))
    proof = certificate.read(workspace.runs / "adapted" / CERTIFICATE)
    assert not proof.failed(), result
    outcomes = {check.name: check.result for check in proof.checks}
    assert [outcomes[name] for name in ("prefix_rows", "frozen_tensors", "frozen_in_training", "base_logits")] == [
        "passed"] * 4

    # The factors of the conditioner were trained.
    folder = max((workspace.runs / "adapted" / "checkpoints").glob("step-*"))
    stored = tensor_files.read(folder / "adapter" / "adapter_model.safetensors", "")
    for layer in conditioner_layers(IndexTTS2()._config(workspace.models / "indextts2")):
        names = [name for name in stored if f".{layer}.lora_B" in name]
        assert names, layer
        assert all(stored[name].abs().sum() > 0 for name in names), layer


@pytest.mark.long
@pytest.mark.parametrize("family", ["indextts2", pytest.param("indextts25", marks=pytest.mark.slow)])
def test_an_export_with_adapters_of_the_conditioner_is_loaded_again(family: str, tmp_path: Path) -> None:
    workspace = WORLDS[family].extended_world(tmp_path / "workspace")
    write_checkpoint(workspace, "gated", adapter_rank_conditioner=4)
    export.run(export_options(run=f"run:{RUN}", export="adapted"), workspace, Listener(workspace.runs / "export"))
    result = verification.verify(workspace, "export:adapted")
    assert result.outcome is Outcome.PASSED, result.describe()
    checks = {check.name: check.result for check in result.proof.checks}
    names = ("base_logits", "frozen_tensors", "export_reloads", "merged_reloads")
    assert [checks[name] for name in names] == ["passed"] * 4
