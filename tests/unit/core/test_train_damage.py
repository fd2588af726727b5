"""A run that is killed, or whose disk is full or damaged, loses no more than the steps since its last checkpoint."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from config.schema import CertifyOptions
from core import certify, train
from core.jobs import checkpoint_names
from core.jobs.checkpoint_names import CHOICE, checkpoint_steps, pinned_names
from core.library import certificate
from core.model import tensor_files
from core.model.loading import load_checkpoint
from core.training import checkpoint
from core.workspace import Workspace
from tests.unit.short_runs import measured_as, started
from tests.worlds import Listener, train_options


def test_a_kill_while_samples_are_made_loses_nothing(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("core.training.checkpoint_evaluation.TrainingRun.evaluate_checkpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            train.run(train_options(), world, Listener(world.runs / "one"))
    assert checkpoint_steps(world.runs / "one") == [4]
    listener = started(world)
    assert [event.step for event in listener.of("evaluated")] == [4, 8]
    assert [event.step for event in listener.of("step")] == [5, 6, 7, 8]


def test_a_disk_that_will_not_hold_a_checkpoint_ends_the_run_before_it_is_begun(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(path: Path) -> object:
        free = 5_000_000 if checkpoint_steps(world.runs / "one") else 10**12
        return shutil._ntuple_diskusage(10**12, 0, free)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "disk_usage", usage)
        with pytest.raises(UserError, match="The checkpoint of step 8 was not written: .* has 5.0 MB .5,000,000 bytes. "
                                            "free, 16.. MB .16,...,... bytes. are needed") as caught:
            train.run(train_options(), world, Listener(world.runs / "one"))
    assert "The checkpoint of step 4 is intact." in caught.value.message
    assert checkpoint_steps(world.runs / "one") == [4]
    assert [event.step for event in started(world).of("step")] == [5, 6, 7, 8]


def test_a_disk_without_room_for_the_first_checkpoint_is_refused_before_the_first_step(
        world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(world.runs / "one")
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, 5_000_000))
    with pytest.raises(UserError, match=r"The first checkpoint needs about 16\.. MB, and 5\.0 MB are free in .*one"):
        train.run(train_options(), world, listener)
    assert not listener.of("step")


def test_a_full_disk_leaves_the_checkpoint_before_intact(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tensor_files.write

    def full(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        written(path, tensors)
        if "step-000008" in str(path) and path.name == "training.safetensors":
            os.truncate(path, 100)
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensor_files, "write", full)
        with pytest.raises(UserError, match="step 8 could not be saved") as caught:
            train.run(train_options(), world, Listener(world.runs / "one"))
    assert "MB needed" in caught.value.message
    assert "The checkpoint of step 4 is intact." in caught.value.message
    assert "Free some space, then resume" in caught.value.hint
    assert [path.name for path in (world.runs / "one" / "checkpoints").iterdir() if path.is_dir()] == ["step-000004"]
    assert [event.step for event in started(world).of("step")] == [5, 6, 7, 8]


def test_a_damaged_last_checkpoint_falls_back_to_the_one_before_and_says_so(world: Workspace) -> None:
    wanted = started(world, name="whole", checkpoint_every=3).of("step")
    run = started(world, checkpoint_every=3, stop_after=7).directory
    assert checkpoint_steps(run) == [6, 7]
    for step in (6, 7):
        broken = checkpoint_names.folder_of(run, step) / "training.safetensors"
        kept_bytes = broken.read_bytes()
        broken.write_bytes(kept_bytes[:-1] + bytes([kept_bytes[-1] ^ 1]))  # same size, another content
    with pytest.raises(UserError, match="No checkpoint of one is intact. .*step-000007.* is damaged"):
        train.run(train_options(checkpoint_every=3), world, Listener(run))
    assert checkpoint_steps(run) == [6, 7]
    (checkpoint_names.folder_of(run, 6) / "training.safetensors").write_bytes(_state_of_step_6(world))
    listener = started(world, checkpoint_every=3)
    said = listener.of("warning")[0].message
    assert "step-000007/training.safetensors is damaged" in said
    assert "renamed to .damaged-step-000007; the run resumes from the one before, of step 6" in said
    assert [(step.step, step.speech_loss) for step in listener.of("step")] == [
        (step.step, step.speech_loss) for step in wanted[6:]]


def _state_of_step_6(world: Workspace) -> bytes:
    """The same file of a run that was not damaged."""
    run = started(world, name="again", checkpoint_every=3, stop_after=6).directory
    return (checkpoint_names.folder_of(run, 6) / "training.safetensors").read_bytes()


def test_a_best_checkpoint_that_is_damaged_is_not_certified(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([1.0, 2.0])
    measured_as(monkeypatch, losses)
    run = started(world, evaluation_sentences=0, stop_after=6).directory
    broken = checkpoint_names.folder_of(run, 4) / "rows.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    listener = started(world, evaluation_sentences=0)
    assert any("The best checkpoint cannot be used" in event.message for event in listener.of("warning"))
    proving = Listener(run)
    assert certify.run(CertifyOptions(run=f"run:{run.name}"), world, proving)["step"] == 8
    assert "The best checkpoint cannot be used" in proving.of("warning")[0].message
    assert certificate.read(run / certificate.CERTIFICATE).step == 8
    assert pinned_names(run)[CHOICE] == 8  # the run stands for what is proven


def test_a_damaged_record_is_named(world: Workspace) -> None:
    run = started(world, stop_after=1).directory
    record = checkpoint_names.folder_of(run, 1) / "checkpoint.json"
    record.write_text(record.read_text()[:50])
    with pytest.raises(UserError, match="checkpoint.json could not be read") as caught:
        load_checkpoint(world, record.parent, torch.device("cpu"))
    assert "no other intact checkpoint" in caught.value.hint


def test_what_a_killed_writer_left_is_removed(world: Workspace) -> None:
    leftover = world.runs / "one" / "checkpoints" / ".writing-step-000004"
    leftover.mkdir(parents=True)
    (leftover / "rows.safetensors").write_bytes(b"half")
    started(world, stop_after=1)
    assert not leftover.exists()
