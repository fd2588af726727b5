"""Reference recordings: what is kept of one, what is said of an odd one, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import gradio as gr
import numpy as np
import pytest
import soundfile

from config.errors import UserError
from core.library import reference_voices
from core.workspace import Workspace
from ui import voice_settings
from ui.page import Page


def sound(seconds: float, rate: int = 16_000, channels: int = 1) -> np.ndarray:
    time = np.arange(int(seconds * rate)) / rate
    return np.repeat((0.3 * np.sin(2 * np.pi * 200 * time))[:, None], channels, axis=1).astype(np.float32)


def write(path: Path, samples: np.ndarray, rate: int = 16_000) -> Path:
    soundfile.write(path, samples, rate, subtype="FLOAT" if path.suffix == ".wav" else None)
    return path


def test_a_good_recording_is_kept_as_it_is(workspace: Workspace, tmp_path: Path) -> None:
    path = write(tmp_path / "My voice (1).wav", sound(5.0))
    kept, reference = reference_voices.save_recording(workspace, path, path.name)
    assert kept == workspace.voices / "My-voice-1.wav"
    assert reference.notes == ()
    again, rate = soundfile.read(kept)
    assert rate == 16_000
    np.testing.assert_allclose(again, sound(5.0)[:, 0], atol=1e-4)
    assert reference_voices.list_recordings(workspace) == [kept]


def test_a_second_one_of_the_same_name_does_not_replace_the_first(workspace: Workspace, tmp_path: Path) -> None:
    path = write(tmp_path / "me.wav", sound(5.0))
    first, second = (reference_voices.save_recording(workspace, path, "me.wav")[0] for _ in range(2))
    assert (first.name, second.name) == ("me.wav", "me-2.wav")
    assert reference_voices.list_recordings(workspace)[0] == second


@pytest.mark.parametrize("title", ["../../etc/passwd", ".hidden", "ድምፅ", "", "/"])
def test_no_title_leads_out_of_the_folder(workspace: Workspace, tmp_path: Path, title: str) -> None:
    path = write(tmp_path / "me.wav", sound(1.0))
    kept, _ = reference_voices.save_recording(workspace, path, title)
    assert kept.parent == workspace.voices
    assert not kept.name.startswith(".")


@pytest.mark.parametrize(("samples", "rate", "note"), [
    (sound(5.0, channels=2), 16_000, "Its 2 channels are mixed into one."),
    (sound(5.0, 8_000), 8_000, "At 8000 samples a second the voice will sound muffled."),
    (sound(1.5), 16_000, "It lasts 1.5 s; five to ten seconds give a better likeness."),
])
def test_what_is_odd_is_told_and_used(tmp_path: Path, samples: np.ndarray, rate: int, note: str) -> None:
    reference = reference_voices.read_recording(write(tmp_path / "me.wav", samples, rate))
    assert reference.notes == (note,)
    assert reference.waveform.shape == (len(samples),)


def test_of_an_hour_only_the_beginning_is_read(workspace: Workspace, tmp_path: Path) -> None:
    path = write(tmp_path / "hour.flac", np.tile(sound(60.0, 8_000), (60, 1)), 8_000)
    kept, reference = reference_voices.save_recording(workspace, path, "hour")
    assert len(reference.waveform) == 30 * 8_000
    assert reference.notes[0] == "It lasts 3600 s; the first 30 s are used."
    assert soundfile.info(kept).duration == 30.0


@pytest.mark.parametrize(("samples", "message"), [
    (np.zeros(16_000), r"me\.wav is silent: its peak is 0\.00000"),
    (sound(0.25), r"me\.wav lasts 0\.25 s; at least 0\.5 s are needed"),
    (np.zeros(0), r"me\.wav holds no samples"),
    (np.full(16_000, np.nan), r"me\.wav holds samples that are not finite numbers"),
])
def test_what_holds_no_voice_is_refused_and_not_kept(workspace: Workspace, tmp_path: Path, samples: np.ndarray,
                                                     message: str) -> None:
    path = write(tmp_path / "me.wav", samples)
    with pytest.raises(UserError, match=message):
        reference_voices.save_recording(workspace, path, "me.wav")
    assert reference_voices.list_recordings(workspace) == []


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "me.wav").write_text("not audio")
    with pytest.raises(UserError, match=r"me\.wav could not be read as audio: Format not recognised\."):
        reference_voices.read_recording(tmp_path / "me.wav")


def test_a_broken_upload_is_named_by_its_file_and_leaves_the_player(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / ("8086e973" * 8)
    folder.mkdir()
    (folder / "noise.wav").write_text("not audio")
    notice, choice, player = voice_settings.save_recording(
        cast(Page, SimpleNamespace(workspace=workspace)), str(folder / "noise.wav"))
    assert "<strong>noise.wav could not be read as audio: Format not recognised.</strong>" in str(notice)
    assert folder.name not in str(notice)
    assert (choice, player) == (gr.skip(), gr.update(value=None))
    assert not (folder / "noise.wav").exists()
