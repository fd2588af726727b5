"""The base languages are rehearsed with a person's own clips, or with what the base model itself speaks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from config.errors import UserError
from config.schema import PrepareOptions
from core import prepare, train
from core.model.loading import TTSModel
from core.submission.jobs import check_requirements
from core.training import replay, setup
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from models.base import Generated
from tests.contract.conftest import World
from tests.worlds import DEVICE, ENGLISH, RATE, Listener, tone, train_options

pytestmark = pytest.mark.covering

FULL = {"scope": "full", "replay": 0.5}


@pytest.fixture
def tts(world: World) -> TTSModel:
    return setup.new_model(train_options(**FULL), world.workspace, DEVICE)


def texts(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_what_the_base_speaks_is_kept_and_what_it_cannot_end_is_left_out(
        tts: TTSModel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def generate(self: object, ids: list[np.ndarray], *others: object) -> list[Generated]:
        made: dict[int, Generated] = {}
        for one in ids:
            if id(one) not in made:  # on a GPU copies of the last text fill a batch
                asked.append(len(one))
                made[id(one)] = Generated(np.arange(5) + len(asked), "limit" if len(asked) == 3 else "stop")
        return [made[id(one)] for one in ids]

    monkeypatch.setattr(type(tts.lm), "generate", generate)
    monkeypatch.setattr(type(tts.family), "load_replay_clips", lambda self, folder: [])
    lines = [f"en\t{text}" for text in (*ENGLISH, *ENGLISH[:3])]
    options = train_options(**FULL, replay_texts=texts(tmp_path / "texts.txt", [*lines, ""]))
    voices, told = world.voices(tts), []
    monkeypatch.setattr(replay, "_BATCH", 3)
    seen: list[int] = []
    found = replay.gather_replay_clips(options, world.workspace, tts, voices, tmp_path, told.append,
                             lambda progress: seen.append(progress.done))
    assert len(asked) == 7
    assert seen == [0, 3, 6]
    assert told == ["The base model spoke 6 of 7 sentences for replay and drift; 1 could not be read, or did not end."]
    spoken = [item.speech_codes[0] for item in (*found.drift_clips, *found.replayed)]
    assert len(found.drift_clips) == 3
    assert 2 <= len(found.replayed) <= 3
    assert 3 not in spoken
    again = replay.gather_replay_clips(options, world.workspace, tts, voices, tmp_path, told.append)
    assert len(asked) == 7  # not spoken again: the model may be another by now
    assert [item.speech_codes.tolist() for item in again.replayed] == [
        item.speech_codes.tolist() for item in found.replayed]
    assert json.loads((tmp_path / "spoken.json").read_text())[0][:2] == ["en", ENGLISH[0]]


@pytest.fixture(scope="module")
def with_english(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Listener]:
    """A copy of the world in which a person prepared recordings of their own in English, and what the job told."""
    source = tmp_path_factory.mktemp("recordings")
    for index in range(10):
        audio.save(source / f"{index}.wav", tone(index + 300, 0.6, (100.0, 220.0)[index % 2]), RATE)
        snowman = " ☃" if index == 9 else ""  # bytes alone spell it
        words = f"{ENGLISH[index % 4]} {'abcdefghij'[index]}{snowman}"
        (source / f"{index}.txt").write_text(words, encoding="utf-8")
    path = tmp_path_factory.mktemp("own") / "workspace"
    workspace = Workspace.open(shutil.copytree(world.workspace.path, path))
    listener = Listener(workspace.runs / "prepare")
    prepare.run(PrepareOptions(source=str(source), dataset="mine", language="en", held_out=0.3,
                               model=world.case.model, device="cpu"), workspace, listener)
    return workspace, listener


def test_recordings_in_a_base_language_are_prepared_and_it_is_said_what_they_are_for(
        with_english: tuple[Workspace, Listener], tts: TTSModel) -> None:
    workspace, listener = with_english
    assert manifest.load(workspace.dataset("mine")).card.language == "en"
    told = " ".join(event.message for event in listener.of("warning"))
    assert "speaks English (en) already, and nothing of it may change" in told
    assert "--replay-datasets mine" in told
    unknown = "1 text has characters that the model does not know and will not be replayed with it: ☃"
    assert (unknown in told) == bool(tts.front_end.unknown_characters("☃", "en"))


def test_a_persons_own_clips_are_rehearsed_and_held_out_ones_measure(
        with_english: tuple[Workspace, Listener], tts: TTSModel, tmp_path: Path) -> None:
    workspace, told = with_english[0], []
    unknown = tts.front_end.unknown_characters("☃", "en")
    clips = [clip for clip in manifest.load(workspace.dataset("mine")).clips
             if not unknown or "☃" not in clip.text]
    found = replay.gather_replay_clips(train_options(**FULL, replay_datasets=" mine, mine ",
                                                        replay_texts="/no/such/file"),
                             workspace, tts, {}, tmp_path, told.append)
    assert {item.id for item in found.replayed} == {clip.id for clip in clips if clip.split == "train"}
    assert {item.id for item in found.drift_clips} == {clip.id for clip in clips if clip.split == "held_out"} != set()
    assert {item.language for item in found.replayed} == {"en"}
    assert told == ["Clips of mine, mine that are not used: 1 have characters that the model "
                    "does not know, such as digits: spell them out."] * bool(unknown)
    with pytest.raises(UserError, match="'demo-am' is in 'am', which the base model does not speak"):
        replay.gather_replay_clips(train_options(**FULL, replay_datasets="mine,demo-am"), workspace, tts, {},
                                      tmp_path, print)


def test_full_trains_with_a_persons_own_clips_and_they_are_no_target(
        with_english: tuple[Workspace, Listener], tmp_path: Path) -> None:
    workspace = with_english[0]
    options = train_options(**FULL, replay_datasets="mine", steps=2, checkpoint_every=2, evaluation_sentences=0)
    listener = Listener(workspace.runs / "with-mine")
    train.run(options, workspace, listener)
    assert [set(event.languages) for event in listener.of("evaluated")] == [{"am", "en"}] * 2
    assert not [event for event in listener.of("warning") if "rehearse" in event.message and "1 have" not in
                event.message]
    target = train_options(dataset="mine")
    refused = "'mine' is in English .en., which the base model already speaks: nothing of it may change"
    with pytest.raises(UserError, match=refused) as caught:
        train.run(target, workspace, Listener(tmp_path / "refused"))
    assert "--replay-datasets mine" in caught.value.hint
    with pytest.raises(UserError, match=refused):
        check_requirements(workspace, "train", target)
    with pytest.raises(UserError, match="'demo-am' is in 'am', which the base model does not speak"):
        check_requirements(workspace, "train", train_options(**FULL, replay_datasets="mine,demo-am"))
    with pytest.raises(UserError, match="no dataset named 'other'"):
        check_requirements(workspace, "train", train_options(**FULL, replay_datasets="mine,other"))
    assert check_requirements(workspace, "train", options) == ()


def test_given_texts_are_spoken_although_the_model_comes_with_clips(
        tts: TTSModel, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [Generated(np.arange(4) + 1, "stop")] * 4
    monkeypatch.setattr(type(tts.lm), "generate", lambda *given: said)
    options = train_options(**FULL, replay_texts=texts(tmp_path / "texts.txt", [f"en\t{text}" for text in ENGLISH]))
    found = replay.gather_replay_clips(options, world.workspace, tts, world.voices(tts),
                                          tmp_path, print)
    assert {item.text for item in (*found.replayed, *found.drift_clips)} <= set(ENGLISH)
    assert {item.id[:7] for item in (*found.replayed, *found.drift_clips)} == {"spoken-"}


def test_a_resumed_run_that_lost_what_the_base_spoke_is_refused(
        tts: TTSModel, world: World, tmp_path: Path) -> None:
    """Its model is another by now; the file of texts may be gone too."""
    options = train_options(**FULL, replay_texts=str(tmp_path / "gone.txt"))
    voices, resumed = world.voices(tts), replace(tts, changed=("norm.weight",))
    with pytest.raises(UserError, match=r"spoken\.json is missing") as caught:
        replay.gather_replay_clips(options, world.workspace, resumed, voices, tmp_path, print)
    assert f"--init-from run:{tmp_path.name}" in caught.value.hint


def test_texts_that_cannot_be_read_are_told_by_line(tts: TTSModel, world: World, tmp_path: Path) -> None:
    wrong = train_options(**FULL, replay_texts=texts(tmp_path / "a.txt", ["en\tthe cat", "am\tሀለመ"]))
    with pytest.raises(UserError, match=r"Line 2 of .*a\.txt is not a base language, a tab and a sentence"):
        replay.sentences(wrong.full, tts)
    with pytest.raises(UserError, match="cannot be read"):
        replay.sentences(train_options(**FULL, replay_texts=str(tmp_path / "none.txt")).full, tts)
    assert len(replay.sentences(train_options(**FULL).full, tts)) >= 10


def test_nothing_is_gathered_outside_of_full(tts: TTSModel, world: World, tmp_path: Path) -> None:
    found = replay.gather_replay_clips(train_options(replay_datasets="none"), world.workspace, tts, {}, tmp_path,
                                          print)
    assert (found.replayed, found.drift_clips) == ((), ())
    assert list(tmp_path.iterdir()) == []
