"""The base languages are rehearsed with a person's own clips, or with what the base model itself speaks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from config.errors import UserError
from core.training import opening, rehearsal
from core.voice_model.loading import VoiceModel
from core.workspace import Workspace
from data import manifest
from models.base import Generated
from tests.contract.conftest import CPU, World
from tests.worlds import ENGLISH, train_options

FULL = {"scope": "full", "replay": 0.5}


@pytest.fixture
def voice(world: World) -> VoiceModel:
    return opening.new_voice(train_options(**FULL), world.workspace, CPU)


def texts(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_what_the_base_speaks_is_kept_and_what_it_cannot_end_is_left_out(
        voice: VoiceModel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def generate(self: object, ids: list[np.ndarray], voices: object, sampling: object) -> list[Generated]:
        made = []
        for one in ids:
            asked.append(len(one))
            made.append(Generated(np.arange(5) + len(asked), "limit" if len(asked) == 3 else "stop"))
        return made

    monkeypatch.setattr(type(voice.model), "generate", generate)
    monkeypatch.setattr(type(voice.family), "replay", lambda self, folder: [])
    lines = [f"en\t{text}" for text in (*ENGLISH, *ENGLISH[:3])]
    options = train_options(**FULL, replay_texts=texts(tmp_path / "texts.txt", [*lines, ""]))
    voices, told = voice.family.voices(voice.base_folder), []
    monkeypatch.setattr(rehearsal, "_BATCH", 3)
    seen: list[int] = []
    found = rehearsal.gather(options, world.workspace, voice, voices, tmp_path, told.append,
                             lambda progress: seen.append(progress.done))
    assert len(asked) == 7
    assert seen == [0, 3, 6]
    assert told == ["The base model spoke 6 of 7 sentences to rehearse and to measure its languages by; 1 could not be "
                    "read, or did not come to an end."]
    spoken = [item.speech_codes[0] for item in (*found.probing, *found.rehearsed)]
    assert len(found.probing) == 3
    assert 2 <= len(found.rehearsed) <= 3
    assert 3 not in spoken
    again = rehearsal.gather(options, world.workspace, voice, voices, tmp_path, told.append)
    assert len(asked) == 7  # not spoken again: the model may be another by now
    assert [item.speech_codes.tolist() for item in again.rehearsed] == [
        item.speech_codes.tolist() for item in found.rehearsed]
    assert json.loads((tmp_path / "spoken.json").read_text())[0][:2] == ["en", ENGLISH[0]]


def test_a_persons_own_clips_are_rehearsed_and_held_out_ones_measure(
        voice: VoiceModel, world: World, tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    shutil.copytree(world.workspace.datasets / "demo-am", workspace.datasets / "mine")
    shutil.rmtree(workspace.cache, ignore_errors=True)
    shutil.copytree(world.workspace.cache, workspace.cache)
    dataset = manifest.load(workspace.datasets / "mine")
    english = [type(clip)(**{**vars(clip), "language": "en", "text": "the cat"}) for clip in dataset.clips]
    manifest.save(workspace.datasets / "mine", manifest.make_card("mine", "en", "tones", english), english)
    told: list[str] = []
    options = train_options(**FULL, replay_datasets=" mine ")
    found = rehearsal.gather(options, workspace, voice, {}, tmp_path, told.append)
    assert (len(found.rehearsed), len(found.probing), told) == (12, 4, [])
    assert {item.language for item in found.rehearsed} == {"en"}
    shutil.copytree(world.workspace.datasets / "demo-am", workspace.datasets / "new")
    with pytest.raises(UserError, match="'new' is in 'am', which the base model does not speak"):
        rehearsal.gather(train_options(**FULL, replay_datasets="mine,new"), workspace, voice, {}, tmp_path, told.append)


def test_texts_that_cannot_be_read_are_told_by_line(voice: VoiceModel, world: World, tmp_path: Path) -> None:
    wrong = train_options(**FULL, replay_texts=texts(tmp_path / "a.txt", ["en\tthe cat", "am\tሀለመ"]))
    with pytest.raises(UserError, match=r"Line 2 of .*a\.txt is not a base language, a tab and a sentence"):
        rehearsal.sentences(wrong, voice)
    with pytest.raises(UserError, match="could not be read"):
        rehearsal.sentences(train_options(**FULL, replay_texts=str(tmp_path / "none.txt")), voice)
    assert len(rehearsal.sentences(train_options(**FULL), voice)) >= 10


def test_nothing_is_gathered_outside_of_full(voice: VoiceModel, world: World, tmp_path: Path) -> None:
    found = rehearsal.gather(train_options(replay_datasets="none"), world.workspace, voice, {}, tmp_path, print)
    assert (found.rehearsed, found.probing) == ((), ())
    assert list(tmp_path.iterdir()) == []
