"""The model cache: models stay while their files are what was read, and no longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from config.schema import SoundOptions
from core.library import records
from core.library.lineage import Model
from core.model import tensor_files
from core.model.prefix import new_rows
from core.speech.model_cache import CachedSynthesizer, ModelCache
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
def model_cache() -> Iterator[ModelCache]:
    return ModelCache()


def take(model_cache: ModelCache, world: Workspace, ref: str = "base:tiny", voice: str = "", precision: str = "auto",
         sound: SoundOptions | None = None) -> CachedSynthesizer:
    return model_cache.synthesizer(ref, world, CPU, precision, voice, sound or SoundOptions())  # type: ignore[arg-type]


def test_the_second_request_finds_the_model(world: Workspace, model_cache: ModelCache) -> None:
    first, again = take(model_cache, world), take(model_cache, world)
    assert (first.cached, again.cached) == (False, True)
    assert again.synthesizer.model is first.synthesizer.model
    assert again.synthesizer.vocoder is first.synthesizer.vocoder


def test_what_is_said_with_a_model_belongs_to_one_request(world: Workspace, model_cache: ModelCache) -> None:
    take(model_cache, world, sound=SoundOptions(exaggeration=2.0))
    assert take(model_cache, world).synthesizer.voice.emotion == 0.5


def test_another_precision_is_another_model(world: Workspace, model_cache: ModelCache) -> None:
    first = take(model_cache, world, precision="float32")
    other = take(model_cache, world, precision="int8")
    assert not other.cached
    assert "int8" in other.precision
    assert take(model_cache, world, precision="float32").synthesizer.model is first.synthesizer.model


def test_two_models_are_kept_and_the_one_not_used_for_longest_goes(world: Workspace, model_cache: ModelCache) -> None:
    write_checkpoint(world, "rows", name="other")
    for ref in ("base:tiny", f"run:{RUN}"):
        assert not take(model_cache, world, ref).cached
    assert take(model_cache, world, "base:tiny").cached
    assert not take(model_cache, world, "run:other").cached
    assert take(model_cache, world, "base:tiny").cached
    assert not take(model_cache, world, f"run:{RUN}").cached


def test_a_run_and_its_base_share_the_vocoder(world: Workspace, model_cache: ModelCache) -> None:
    assert take(model_cache, world, f"run:{RUN}").synthesizer.vocoder is take(model_cache, world).synthesizer.vocoder


def test_a_changed_checkpoint_is_loaded_anew_even_when_its_times_are_set_back(world: Workspace,
                                                                              model_cache: ModelCache) -> None:
    first = take(model_cache, world, f"run:{RUN}")
    folder = Model.open(world, f"run:{RUN}").folder
    path = folder / records.ROWS
    seen = os.stat(path)
    tensor_files.write(path, {name: value + 1 for name, value in tensor_files.read(path, "").items()})
    _sign(folder)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert os.stat(path).st_size == seen.st_size
    again = take(model_cache, world, f"run:{RUN}")
    assert not again.cached
    before, after = (new_rows(ready.synthesizer.model.lm.module, ready.synthesizer.model.lm.text_tables)
                     for ready in (first, again))
    assert all(torch.allclose(after[name], rows + 1) for name, rows in before.items())


def _sign(folder: Path) -> None:
    """Make a checkpoint whole again after one of its files was changed on purpose."""
    record = records.read_checkpoint(folder)
    sums = hash_tree(folder, leave_out=(records.CHECKPOINT,))
    records.write_record(folder / records.CHECKPOINT,
                         replace(record, files={name: sums[name] for name in record.files}))


def test_a_recording_that_changes_is_another_voice(world: Workspace, model_cache: ModelCache, tmp_path: Path) -> None:
    path = tmp_path / "me.wav"
    audio.save(path, tone(9, 1.2, 300.0), RATE)
    first = take(model_cache, world, voice=str(path)).synthesizer.voice
    assert take(model_cache, world, voice=str(path)).synthesizer.voice.conditioning is first.conditioning
    audio.save(path, tone(9, 1.2, 90.0), RATE)
    other = take(model_cache, world, voice=str(path)).synthesizer.voice
    assert not (other.conditioning["speaker_embedding"] == first.conditioning["speaker_embedding"]).all()
