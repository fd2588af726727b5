import hashlib
import json
import os
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import DownloadOptions
from core import download
from core.jobs.events import Event, Progress, WarningRaised
from core.jobs.reporter import StopRequested
from core.workspace import Workspace

FILES = {"t3.safetensors": b"t" * 3_000_000, "voices/low.ogg": b"v" * 1000, "tokenizer.json": b"{}"}


class Recorder:
    """A reporter that keeps what it hears, and asks for a stop after `stop_after` events."""

    def __init__(self, directory: Path, stop_after: int | None = None) -> None:
        self.directory = directory
        self.events: list[Event] = []
        self.stop_after = stop_after

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def stop_requested(self) -> bool:
        return self.stop_after is not None and len(self.events) >= self.stop_after


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pack"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    (folder / "SHA256SUMS.json").write_text(json.dumps(sums))
    monkeypatch.setattr(download, "pack_folder", lambda name: folder)
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "workspace")


def get(workspace: Workspace, stop_after: int | None = None) -> tuple[dict, list[Event]]:
    recorder = Recorder(workspace.runs, stop_after)
    return download.run(DownloadOptions(), workspace, recorder), recorder.events


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_model_is_copied_whole_with_progress_in_bytes(pack: Path, workspace: Workspace):
    result, events = get(workspace)
    model = workspace.model("tiny")
    assert names(model) == names(pack)
    assert all((model / name).read_bytes() == content for name, content in FILES.items())
    progress = [event for event in events if isinstance(event, Progress)]
    total = sum(len(content) for content in FILES.values())
    assert (progress[-1].done, progress[-1].total, progress[-1].unit) == (total, total, "bytes")
    assert [event.done for event in progress] == sorted(event.done for event in progress)
    assert result["outcome"] == "copied, verified"
    assert os.listdir(workspace.models) == ["tiny"]


def test_a_second_download_verifies_and_writes_nothing(pack: Path, workspace: Workspace):
    get(workspace)
    file = workspace.model("tiny") / "t3.safetensors"
    before = file.stat()
    result, _ = get(workspace)
    assert result["outcome"] == "already there, verified"
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(("damage", "said"), [
    (lambda file: os.truncate(file, 10), "is cut off: it has 10 bytes, the whole file 3000000."),
    (lambda file: file.write_bytes(b"x" * 3_000_000), "is damaged: its 3000000 bytes have the SHA-256"),
    (lambda file: file.unlink(), "is missing."),
])
def test_a_damaged_file_is_named_and_replaced_and_the_rest_kept(pack: Path, workspace: Workspace, damage, said: str):
    get(workspace)
    model = workspace.model("tiny")
    (model / "notes.txt").write_text("mine")
    damage(model / "t3.safetensors")
    result, events = get(workspace)
    [warning] = [event for event in events if isinstance(event, WarningRaised)]
    assert str(model / "t3.safetensors") in warning.message
    assert said in warning.message
    assert result["outcome"] == "already there, 1 damaged files replaced"
    assert (model / "t3.safetensors").read_bytes() == FILES["t3.safetensors"]
    assert names(model) == names(pack) | {"notes.txt"}


def test_a_cut_off_file_of_the_pack_is_refused_and_leaves_nothing(pack: Path, workspace: Workspace):
    os.truncate(pack / "t3.safetensors", 1234)
    with pytest.raises(UserError, match=r"t3.safetensors is damaged or cut off: its 1234 bytes") as caught:
        get(workspace)
    assert "git checkout" in caught.value.hint
    assert os.listdir(workspace.models) == []


def test_a_pack_cut_off_later_does_not_harm_the_model_that_is_there(pack: Path, workspace: Workspace):
    get(workspace)
    os.truncate(pack / "t3.safetensors", 1234)
    with pytest.raises(UserError, match="damaged or cut off"):
        get(workspace)
    assert (workspace.model("tiny") / "t3.safetensors").read_bytes() == FILES["t3.safetensors"]


def test_a_missing_file_or_list_of_the_pack_is_named(pack: Path, workspace: Workspace):
    (pack / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"are missing: .*tokenizer.json"):
        get(workspace)
    (pack / "SHA256SUMS.json").write_text("[1]")
    with pytest.raises(UserError, match=r"SHA256SUMS.json could not be read"):
        get(workspace)


def test_a_list_that_points_outside_is_refused(pack: Path, workspace: Workspace):
    (pack / "SHA256SUMS.json").write_text(json.dumps({"../secret": "0" * 64}))
    with pytest.raises(UserError, match=r"'\.\./secret', which lies outside"):
        get(workspace)


def test_a_stop_leaves_nothing_half_written(pack: Path, workspace: Workspace):
    with pytest.raises(StopRequested):
        get(workspace, stop_after=2)
    assert os.listdir(workspace.models) == []


def test_a_full_disk_says_how_much_is_needed(pack: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device") as caught:
        get(workspace)
    assert "3 MB" in caught.value.hint
    assert "then continue" in caught.value.hint
    assert os.listdir(workspace.models) == []


def test_an_unknown_family_is_refused(workspace: Workspace):
    with pytest.raises(UserError, match="no model family named 'other'"):
        download.run(DownloadOptions(model="other"), workspace, Recorder(workspace.runs))
    assert os.listdir(workspace.models) == []


@pytest.mark.parametrize("options", [{"folder": "/somewhere"}, {"save_as": "mine"}, {"variant": "v3"}])
def test_the_built_in_model_has_one_place_and_one_form(workspace: Workspace, options: dict):
    with pytest.raises(UserError, match="ships with Lisan|has no variant"):
        download.run(DownloadOptions(**options), workspace, Recorder(workspace.runs))
    assert os.listdir(workspace.models) == []


def test_a_missing_pack_says_how_to_make_it(tmp_path: Path):
    with pytest.raises(UserError, match=r"there is no .*models/absent/pack") as caught:
        download.pack_folder("absent")
    assert "scripts.dev.tiny" in caught.value.hint
