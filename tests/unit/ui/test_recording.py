"""Recording sentences on the page: what is stored for which sentence, and what the page gets after an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from config.errors import UserError
from core.jobs.state import JobBoard
from core.sources import prompt_lists
from core.submission import storage
from core.workspace import Workspace
from tests.unit.small_data import write_clip
from ui import recording
from ui.live import Live, workspace_mark

Actions = dict[str, Callable[..., Sequence[Any]]]


def actions_of(workspace: Workspace) -> Actions:
    """The actions of the fold, by the names of their functions."""
    actions: Actions = {}

    def on(_event: object, action: Callable[..., Sequence[Any]], *_widgets: object, **_settings: object) -> None:
        actions[action.__name__] = action

    with gr.Blocks():
        page: Any = SimpleNamespace(workspace=workspace, live=Live(workspace, JobBoard(workspace)), on=on)
        recording.build(page)
    return actions


@pytest.fixture
def folder(workspace: Workspace) -> Path:
    return prompt_lists.create(workspace, "mine", "am", ("ሰላም ነው", "ደህና ነኝ", "ቡና ጠጣሁ")).folder


@pytest.fixture
def upload(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "upload" / "audio.wav")


def test_a_recording_belongs_to_the_sentence_at_which_it_began(workspace: Workspace, folder: Path,
                                                               upload: Path) -> None:
    keep = actions_of(workspace)["keep"]
    _notice, card, place, microphone, _make, recorded = keep(("mine", 2), ("mine", 1), str(upload))
    assert prompt_lists.load(folder).recorded == {1}
    assert (place, microphone) == (("mine", 2), None)
    assert "Sentence 3 of 3" in card
    assert recorded == ("", -1)
    assert not upload.exists()


def test_a_recording_whose_beginning_is_unknown_replaces_none(workspace: Workspace, folder: Path, upload: Path) -> None:
    notice, *_, recorded = actions_of(workspace)["keep"](("mine", 2), ("", -1), str(upload))
    assert "The app was not told which sentence this recording is of." in notice
    assert prompt_lists.load(folder).recorded == frozenset()
    assert recorded == ("", -1)


@pytest.mark.parametrize("fault", ["no sound", "no upload", "deleted list", "no disk"])
def test_the_microphone_is_empty_after_each_error(fault: str, workspace: Workspace, folder: Path, upload: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    keep = actions_of(workspace)["keep"]
    if fault == "no sound":
        upload.write_bytes(b"no sound")
    elif fault == "deleted list":
        storage.delete(workspace, storage.parse("recording:mine"))
    elif fault == "no disk":
        def refuse(*_values: object, **_settings: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(prompt_lists.soundfile, "write", refuse)
    path = None if fault == "no upload" else str(upload)
    notice, _card, _place, microphone, _make, recorded = keep(("mine", 0), ("mine", 0), path)
    assert "notice bad" in notice
    assert microphone is None
    assert recorded == ("", -1)


def test_a_recording_of_a_list_that_is_no_longer_shown_empties_the_microphone(workspace: Workspace, folder: Path,
                                                                              upload: Path) -> None:
    prompt_lists.create(workspace, "other", "am", ("ቤት",))
    notice, card, place, microphone, _make, _recorded = actions_of(workspace)["keep"](
        ("other", 0), ("mine", 0), str(upload))
    assert prompt_lists.load(folder).recorded == {0}
    assert microphone is None
    assert notice == ""
    assert card == place == gr.skip()


def test_a_list_that_was_shortened_by_hand_is_named(workspace: Workspace, folder: Path) -> None:
    table = folder / prompt_lists.PROMPTS
    table.write_text('{"language": "am", "prompts": ["ሰላም ነው"], "skipped": []}', encoding="utf-8")
    for action in ("go_back", "leave_out"):
        with pytest.raises(UserError, match="has 1 sentences, and none with the number [23]"):
            actions_of(workspace)[action](("mine", 2))


def test_sentences_are_added_behind_those_that_were_typed() -> None:
    assert recording.appended("", ("One.", "Two.")) == "One.\nTwo."
    assert recording.appended("Typed.\nTwo.\n", ("One.", "Two.")) == "Typed.\nTwo.\nOne."


def test_a_dataset_that_is_being_imported_has_its_name(workspace: Workspace) -> None:
    jobs = [SimpleNamespace(verb=verb, job=SimpleNamespace(settings={"dataset": name}))
            for verb, name in (("prepare", "mine"), ("train", "theirs"))]
    board = SimpleNamespace(queue=lambda: jobs)
    page: Any = SimpleNamespace(workspace=workspace, live=SimpleNamespace(board=board))
    assert recording._dataset_names(page) == {"mine"}


def test_page_follows_a_new_list_and_a_recording(workspace: Workspace, folder: Path, upload: Path) -> None:
    board = JobBoard(workspace)
    marks = [workspace_mark(board)["mark"]]
    prompt_lists.save_take(folder, 0, upload)
    marks.append(workspace_mark(board)["mark"])
    shutil.rmtree(folder)
    marks.append(workspace_mark(board)["mark"])
    assert len(set(marks)) == 3
