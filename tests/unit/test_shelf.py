"""Models on the shelf: kept while their files are what was read, and never a moment longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from config.schema import SoundOptions
from core.library import records, tensor_files
from core.library.catalog import resolve
from core.library.records import CheckpointRecord
from core.speech.shelf import Ready, Shelf
from core.voice_model.prefix import new_rows
from core.workspace import Workspace
from data.acoustics import audio
from data.durable_files import hash_tree
from tests.trained import RUN, trained_world, write_checkpoint
from tests.worlds import RATE, tone

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    return Shelf()


def take(shelf: Shelf, world: Workspace, ref: str = "base:tiny", voice: str = "", precision: str = "auto",
         sound: SoundOptions | None = None) -> Ready:
    return shelf.speaker(ref, world, CPU, precision, voice, sound or SoundOptions())  # type: ignore[arg-type]


def test_the_second_request_finds_the_model(world: Workspace, shelf: Shelf) -> None:
    first, again = take(shelf, world), take(shelf, world)
    assert (first.kept, again.kept) == (False, True)
    assert again.speaker.model is first.speaker.model
    assert again.speaker.vocoder is first.speaker.vocoder


def test_what_is_said_with_a_model_belongs_to_one_request(world: Workspace, shelf: Shelf) -> None:
    take(shelf, world, sound=SoundOptions(exaggeration=2.0))
    assert take(shelf, world).speaker.voice.emotion == 0.5


def test_another_precision_is_another_model(world: Workspace, shelf: Shelf) -> None:
    first = take(shelf, world, precision="float32")
    other = take(shelf, world, precision="int8")
    assert not other.kept
    assert "int8" in other.computed_in
    assert take(shelf, world, precision="float32").speaker.model is first.speaker.model


def test_two_models_are_kept_and_the_one_not_used_for_longest_goes(world: Workspace, shelf: Shelf) -> None:
    write_checkpoint(world, "rows", name="other")
    for ref in ("base:tiny", f"run:{RUN}"):
        assert not take(shelf, world, ref).kept
    assert take(shelf, world, "base:tiny").kept
    assert not take(shelf, world, "run:other").kept
    assert take(shelf, world, "base:tiny").kept
    assert not take(shelf, world, f"run:{RUN}").kept


def test_a_run_and_its_base_share_the_vocoder(world: Workspace, shelf: Shelf) -> None:
    assert take(shelf, world, f"run:{RUN}").speaker.vocoder is take(shelf, world).speaker.vocoder


def test_a_changed_checkpoint_is_loaded_anew_even_when_its_times_are_set_back(world: Workspace, shelf: Shelf) -> None:
    first = take(shelf, world, f"run:{RUN}")
    folder = resolve(world, f"run:{RUN}").folder
    path = folder / records.ROWS
    seen = os.stat(path)
    tensor_files.write(path, {name: value + 1 for name, value in tensor_files.read(path, "").items()})
    _sign(folder)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert os.stat(path).st_size == seen.st_size
    again = take(shelf, world, f"run:{RUN}")
    assert not again.kept
    before, after = (new_rows(ready.speaker.model.model.module, ready.speaker.model.model.text_tables)
                     for ready in (first, again))
    assert all(torch.allclose(after[name], rows + 1) for name, rows in before.items())


def _sign(folder: Path) -> None:
    """Make a checkpoint whole again after one of its files was changed on purpose."""
    record = records.read_record(folder / records.CHECKPOINT, CheckpointRecord)
    sums = hash_tree(folder, leave_out=(records.CHECKPOINT,))
    records.write_record(folder / records.CHECKPOINT,
                         replace(record, files={name: sums[name] for name in record.files}))


def test_a_recording_that_changes_is_another_voice(world: Workspace, shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    audio.save(path, tone(9, 1.2, 300.0), RATE)
    first = take(shelf, world, voice=str(path)).speaker.voice
    assert take(shelf, world, voice=str(path)).speaker.voice.prompt_codes is first.prompt_codes
    audio.save(path, tone(9, 1.2, 90.0), RATE)
    other = take(shelf, world, voice=str(path)).speaker.voice
    assert not (other.speaker_embedding == first.speaker_embedding).all()
