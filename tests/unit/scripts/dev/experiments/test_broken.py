"""The recipe that people use: its certificate is red, and by how much is computed as for any other model."""

from __future__ import annotations

import pytest

from core.library import certificate
from core.library.certificate import CERTIFICATE, Certificate
from core.model import loading
from core.workspace import Workspace
from scripts.dev.experiments import broken
from scripts.dev.experiments.broken import _CPU
from tests.worlds import extended_world, train_options


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return extended_world(tmp_path_factory.mktemp("broken"))


def red(world: Workspace, decay: float) -> tuple[Certificate, set[str]]:
    name = f"decay-{decay}"
    broken.run(world, name, train_options(steps=2, layer_lr=1e-3, weight_decay=decay), sentences=1)
    proof = certificate.read(world.exports / name / CERTIFICATE)
    return proof, {check.name for check in proof.checks if check.result == "failed"}


def test_decay_moves_the_rows_whose_gradient_is_zeroed(world: Workspace) -> None:
    proof, failed = red(world, 0.01)
    assert failed == {"prefix_rows", "frozen_tensors", "frozen_in_training", "base_logits"}
    assert proof.check("frozen_tensors").actual.startswith("0 equal")
    assert loading.load_export(world.exports / "decay-0.01", _CPU).front_end.is_new("am")  # it can be loaded and heard
    assert not list(world.exports.glob(".*"))


def test_without_decay_the_hook_holds_the_rows_and_nothing_else(world: Workspace) -> None:
    proof, failed = red(world, 0.0)
    assert failed == {"frozen_tensors", "frozen_in_training", "base_logits"}
    assert not proof.check("frozen_tensors").actual.startswith("0 equal")  # the rows that the hook held
