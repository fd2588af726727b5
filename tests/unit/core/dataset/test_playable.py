"""Every recording that a dataset may hold can be heard on the page."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from starlette.applications import Starlette
from starlette.testclient import TestClient

from core.dataset import playable
from core.workspace import Workspace
from data.importers import SOUND_SUFFIXES
from ui import media

CONTAINERS = {".aif": "AIFF", ".oga": "OGG", ".opus": "OGG"}  # the others are called after their endings
BEGINS = {b"RIFF": "audio/wav", b"OggS": "audio/ogg", b"fLaC": "audio/flac", b"ID3": "audio/mpeg",
          b"\xff\xf3": "audio/mpeg", b"\xff\xfb": "audio/mpeg"}
RATE = 24000
SOUND = (0.4 * np.sin(np.arange(RATE) / 20)).astype(np.float32)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace.open(tmp_path / "w")
    (made.datasets / "d" / "audio").mkdir(parents=True)
    return made


def browser(workspace: Workspace) -> TestClient:
    app = Starlette(routes=media.routes(workspace))
    app.auth, app.cookie_id = None, "x"  # type: ignore[attr-defined]
    return TestClient(app)


def put(workspace: Workspace, suffix: str) -> Path:
    path = workspace.datasets / "d" / "audio" / f"clip{suffix}"
    container = CONTAINERS.get(suffix, suffix[1:].upper())
    soundfile.write(path, SOUND, RATE, format=container, subtype="OPUS" if suffix == ".opus" else None)
    return path


@pytest.mark.parametrize("suffix", SOUND_SUFFIXES)
def test_a_clip_is_heard_whatever_it_was_given_as(workspace: Workspace, suffix: str) -> None:
    path = put(workspace, suffix)
    before = path.read_bytes()
    given = browser(workspace).get(media.url("datasets", "d", f"audio/{path.name}"))
    assert given.status_code == 200
    assert given.headers["content-type"] == next(kind for start, kind in BEGINS.items()
                                                 if given.content.startswith(start))
    heard, rate = soundfile.read(io.BytesIO(given.content), dtype="float32")
    assert rate in (RATE, 48000)
    assert abs(len(heard) / rate - 1) < 0.06  # MP3 is padded to whole frames
    assert np.sqrt(np.mean(heard**2)) == pytest.approx(float(np.sqrt(np.mean(SOUND**2))), rel=0.1)
    assert path.read_bytes() == before


def test_a_decoded_clip_can_be_played_from_its_middle_and_is_decoded_once(workspace: Workspace) -> None:
    path = put(workspace, ".aiff")
    address = media.url("datasets", "d", f"audio/{path.name}")
    client = browser(workspace)
    whole = client.get(address).content
    part = client.get(address, headers={"Range": "bytes=100-199"})
    assert part.status_code == 206
    assert part.content == whole[100:200]
    assert len(list((workspace.cache / "playable").iterdir())) == 1
    soundfile.write(path, SOUND[::2], RATE, format="AIFF")
    assert len(client.get(address).content) < len(whole)  # another recording is not heard as the old one


def test_what_is_decoded_for_the_ear_is_bounded(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playable, "LONGEST_S", 0.25)
    monkeypatch.setattr(playable, "MOST_BYTES", 2 * (44 + RATE // 4 * 2))  # two WAV files of a quarter of a second
    for suffix in (".aiff", ".au", ".caf", ".w64"):
        made = playable.playable(workspace, put(workspace, suffix))
        assert soundfile.info(str(made)).duration == 0.25
    assert len(list((workspace.cache / "playable").iterdir())) == 2


def test_a_broken_clip_is_said_to_be_one(workspace: Workspace) -> None:
    path = workspace.datasets / "d" / "audio" / "clip.aiff"
    path.write_bytes(b"no sound at all")
    given = browser(workspace).get(media.url("datasets", "d", "audio/clip.aiff"))
    assert given.status_code == 415
    assert "clip.aiff could not be read as audio" in given.text
    assert list((workspace.cache / "playable").iterdir()) == []


def test_a_full_disk_is_said(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(playable, "_decode", full)
    given = browser(workspace).get(media.url("datasets", "d", f"audio/{put(workspace, '.au').name}"))
    assert given.status_code == 415
    assert "No space left on device" in given.text
