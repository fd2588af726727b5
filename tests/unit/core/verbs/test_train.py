"""Which runs can be sharded, and what is said of the others."""

from __future__ import annotations

import pytest

from config import schema
from config.errors import UserError
from core.submission.jobs import check_requirements
from core.training.memory_plan import MicrobatchPlan, first_plan
from core.workspace import Workspace
from tests.worlds import train_options


def test_what_cannot_be_sharded_is_refused_with_the_reason() -> None:
    schema.check_sharding(train_options(scope="full", sharding="full"), 2)
    schema.check_sharding(train_options(scope="gated"), 1)
    for changes, processes, said in (
            ({"scope": "gated"}, 2, "small"), ({"scope": "full", "full_trainable": "adapters"}, 2, "small"),
            ({"scope": "full"}, 1, "one process"), ({"scope": "full", "ewc": 1.0}, 2, "importance"),
            ({"scope": "full", "optimizer": "adamw8bit"}, 2, "bitsandbytes"),
            ({"scope": "full", "compile": "on"}, 2, "compiled"),
            ({"scope": "full", "precision": "float16"}, 2, "float16")):
        with pytest.raises(UserError, match=said):
            schema.check_sharding(train_options(sharding="full", **changes), processes)
    with pytest.raises(UserError, match="float16"):
        schema.check_sharding(train_options(scope="full", sharding="full"), 2, in_float16=True)


def test_it_is_said_when_the_run_is_asked_for(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="there is only one process") as raised:
        check_requirements(workspace, "train", train_options(scope="full", sharding="full"))
    assert raised.value.hint == "Set `processes` to the number of GPUs."


def test_processes_of_torchrun_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert schema.get_world_size(3) == 3
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert schema.get_world_size(1) == 8


@pytest.mark.parametrize(("asked", "sharded", "recompute"), [
    ("auto", False, True), ("off", False, False), ("on", False, True), ("auto", True, True), ("off", True, False)])
def test_a_run_goes_on_as_it_was_but_for_what_is_asked_now(asked: str, sharded: bool, recompute: bool) -> None:
    options = train_options(activation_checkpointing=asked)
    before = MicrobatchPlan(4, activation_checkpointing=True)
    assert first_plan(options.hardware, sharded=sharded, saved=before) == MicrobatchPlan(1 if sharded else 4, recompute)
    assert first_plan(options.hardware, sharded=False) == MicrobatchPlan(1, asked == "on")
