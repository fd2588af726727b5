"""A training with adapters of IndexTTS2's conditioner: certified, exported and loaded again, with the base intact."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from core import export, train
from core.jobs.checkpoint_names import folder_of
from core.jobs.job import create_job
from core.jobs.reporter import StopRequested
from core.library import certificate, verification
from core.library.certificate import CERTIFICATE
from core.library.verification import Outcome
from core.model import tensor_files
from models.indextts2.family import IndexTTS2
from models.indextts2.unified_voice import conditioner_layers
from tests import indextts2_world, indextts25_world
from tests.contract.test_adapter_runs import CHANGES, STEPS, Job
from tests.contract.test_second_language import differing, probes, teach_greek
from tests.trained import RUN, write_checkpoint
from tests.worlds import Listener, export_options, losses, train_and_certify, train_options

WEIGHTS = "adapter/adapter_model.safetensors"
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
@pytest.mark.parametrize("kind", ["lora", "dora", "adalora"])
def test_each_kind_is_resumed_to_the_bit_and_continued(kind: str, tmp_path: Path) -> None:
    workspace = indextts2_world.extended_world(tmp_path / "workspace")
    changes = {**CHANGES, "adapter": kind, "adapter_rank_conditioner": 2, "evaluation_sentences": 0}
    whole = Listener(workspace.runs / "whole")
    train.run(train_options(**changes), workspace, whole)
    job = create_job(workspace, "train", train_options(**changes), job_id="parts")
    parts = [Job(job, 2), Job(job)]
    torch.manual_seed(99)  # nothing may depend on what the process drew before
    with pytest.raises(StopRequested):
        train.run(train_options(**changes), workspace, parts[0])
    train.run(train_options(**changes), workspace, parts[1])
    assert losses(parts) == losses([whole])
    factors = [tensor_files.read(folder_of(workspace.run(name), STEPS) / WEIGHTS, "") for name in ("whole", "parts")]
    assert all(torch.equal(factors[0][name], factors[1][name]) for name in factors[0])

    # A new run starts from them.
    further = Listener(workspace.runs / "further")
    train.run(train_options(**{**changes, "steps": 2, "init_from": f"run:parts@{STEPS}"}), workspace, further)
    assert any("Its adapters are copied" in event.message for event in further.of("warning"))

    # The plan counts them among what is trained.
    counts = whole.of("plan")[-1].counts
    without = Listener(workspace.runs / "without")
    train.run(train_options(**{**changes, "steps": 2, "adapter_rank_conditioner": 0}), workspace, without)
    layers = conditioner_layers(IndexTTS2()._config(workspace.models / "indextts2"))
    factor_sizes = [value.numel() for name, value in factors[0].items()
                    if any(f".{layer}." in name for layer in layers)]
    assert sum(factor_sizes) > 0
    assert counts["adapter_parameters"] - sum(factor_sizes) == without.of("plan")[-1].counts["adapter_parameters"]


@pytest.mark.long
def test_a_second_language_keeps_what_the_first_changed_of_the_conditioner(tmp_path: Path) -> None:
    workspace = indextts2_world.extended_world(tmp_path / "workspace")
    write_checkpoint(workspace, "gated", adapter_rank_conditioner=4)
    world = teach_greek(workspace, "indextts2", adapter_rank_conditioner=4)
    before, after = world.load(f"run:{RUN}"), world.load("run:run-el")
    samples = probes(world, before)
    assert "am" in {item.language for item in samples}
    assert differing(before, after, samples) == []


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
