"""A model from a folder on disk: linked or copied, checked by what is known of its files, and mended from it."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import DownloadOptions
from core import download, machine_check
from core.library.records import read_model_record
from core.sources import base_models
from core.workspace import Workspace
from tests.hub_state import Blob
from tests.unit.hub_model import CANGJIE, FILES, GRAPHEMES, S3GEN, T3, Recorder, contents, made_up, safetensors

COMMIT = "5bb1f6ee58e50c3b8d408bc82a6d3740c2db6e18"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files as somebody has them, `.pt` where that is all there is."""
    made = tmp_path / "mine"
    made.mkdir()
    for name, content in FILES.items():
        (made / name).write_bytes(content)
    (made / "conds.pt").write_bytes(_zip())
    (made / "more.txt").write_text("not wanted")
    return made


def _zip() -> bytes:
    """The smallest zip archive: an end record alone."""
    return b"PK\x05\x06" + b"\0" * 18


def get(workspace: Workspace, folder: Path, recorder: Recorder | None = None, **options: str) -> dict:
    """Import a folder; its made-up files are accepted by name, and not loaded."""
    options = {"model": "chatterbox", "folder": str(folder), "accept_unknown": tuple(FILES) + ("s3gen.pt",),
               "probe": False, **options}
    return download.run(DownloadOptions(**options), workspace, recorder or Recorder(workspace.runs))


def test_the_files_are_linked_and_recorded_and_the_folder_left_as_it_was(workspace: Workspace, folder: Path):
    before = contents(folder)
    result = get(workspace, folder)
    model = workspace.model("chatterbox")
    assert contents(folder) == before
    assert set(contents(model)) == set(FILES)
    assert (model / T3).stat().st_ino == (folder / T3).stat().st_ino
    assert result["outcome"].startswith(f"linked from {folder}, unknown base: {T3}: it has ")
    assert result["probe"] == "not probed: turned off (--no-probe)"
    record = read_model_record(model)
    assert (record.variant, record.revision) == ("multilingual-v3", "")
    assert record.files[T3].sha256 == hashlib.sha256(FILES[T3]).hexdigest()
    assert os.listdir(workspace.models) == ["chatterbox"]


def test_the_files_are_copied_where_they_cannot_be_linked(workspace: Workspace, folder: Path,
                                                          monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(base_models.os, "link", refuse)
    monkeypatch.setattr(base_models, "same_disk", lambda path, folder: False)
    assert get(workspace, folder, save_as="copy")["outcome"].startswith("copied")
    assert (workspace.model("copy") / T3).read_bytes() == FILES[T3]
    assert (workspace.model("copy") / T3).stat().st_ino != (folder / T3).stat().st_ino


def test_the_other_form_of_a_file_will_do(workspace: Workspace, folder: Path):
    (folder / S3GEN).unlink()
    (folder / "s3gen.pt").write_bytes(_zip())
    get(workspace, folder)
    assert (workspace.model("chatterbox") / "s3gen.pt").is_file()


def test_all_missing_files_are_named(workspace: Workspace, folder: Path):
    (folder / S3GEN).unlink()
    (folder / CANGJIE).unlink()
    with pytest.raises(UserError, match=rf"has no {CANGJIE}, no {S3GEN} or s3gen.pt"):
        get(workspace, folder)
    with pytest.raises(UserError, match="There is no folder"):
        get(workspace, folder / "absent")
    assert os.listdir(workspace.models) == []


@pytest.mark.parametrize(("name", "content", "said"), [
    (T3, FILES[T3][:-1], "its header says"),
    (T3, FILES[T3] + b"x", "its header says"),
    (T3, b"<html>not found</html>", "its header should have"),
    (T3, safetensors(T3, 9)[:8] + b"?" * 100, "cannot be read"),
    ("conds.pt", b"version https://git-lfs", "no whole PyTorch file"),
    (GRAPHEMES, b'{"model": ', "cannot be read"),
    (GRAPHEMES, b"", "cannot be read"),
], ids=["cut off", "too long", "a web page", "no header", "a git pointer", "half a tokenizer", "nothing"])
def test_a_file_that_contradicts_its_own_kind_is_refused(workspace: Workspace, folder: Path, name: str,
                                                         content: bytes, said: str):
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"mine/{name} is damaged: .*{said}"):
        get(workspace, folder)
    assert os.listdir(workspace.models) == []


def test_what_another_workspace_recorded_is_checked(workspace: Workspace, folder: Path, tmp_path: Path):
    get(workspace, folder)
    other = Workspace.open(tmp_path / "other")
    source = tmp_path / "copied"
    source.mkdir()
    for path in workspace.model("chatterbox").iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    get(other, source)
    (source / S3GEN).write_bytes(safetensors("another", 1_500_000))
    with pytest.raises(UserError, match=rf"{S3GEN} is damaged: .*SHA-256"):
        get(other, source, save_as="second")


def cache(tmp_path: Path, folder: Path) -> Path:
    """The folder as `huggingface_hub` keeps it: links to blobs named by their hash."""
    snapshot, blobs = tmp_path / "cache" / "snapshots" / COMMIT, tmp_path / "cache" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in FILES:
        blob = Blob((folder / name).read_bytes())
        target = blobs / (blob.sha1 if name.endswith(".json") else blob.sha256)
        target.write_bytes(blob.source)
        (snapshot / name).symlink_to(target)
    return snapshot


@pytest.mark.parametrize("name", [S3GEN, GRAPHEMES])
def test_the_hashes_of_a_cache_are_checked_and_its_links_followed(workspace: Workspace, folder: Path, tmp_path: Path,
                                                                  name: str):
    snapshot = cache(tmp_path, folder)
    get(workspace, snapshot)
    model = workspace.model("chatterbox")
    assert not (model / T3).is_symlink()
    assert read_model_record(model).revision == COMMIT
    content = (snapshot / name).read_bytes()
    (snapshot / name).resolve().write_bytes(content[:-2] + (b"[]" if name == S3GEN else b" }"))
    with pytest.raises(UserError, match=rf"is damaged: its .*{'SHA-256' if name == S3GEN else 'git hash'}"):
        get(workspace, snapshot, save_as="second")


def test_the_notes_beside_a_local_download_are_checked(workspace: Workspace, folder: Path):
    notes = folder / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    (notes / f"{T3}.metadata").write_text(f"{COMMIT}\n{hashlib.sha256(FILES[T3]).hexdigest()}\n1790000000.0\n")
    get(workspace, folder)
    (notes / f"{T3}.metadata").write_text(f"{COMMIT}\n{'0' * 64}\n1790000000.0\n")
    with pytest.raises(UserError, match=f"{T3} is damaged"):
        get(workspace, folder, save_as="second")


def test_a_damaged_model_is_mended_from_the_folder(workspace: Workspace, folder: Path):
    (folder / CANGJIE).write_bytes(b'["own"]')
    get(workspace, folder)
    model = workspace.model("chatterbox")
    (model / T3).unlink()
    os.truncate(model / "conds.pt", 3)  # the same file as in the folder, as long as they are linked
    (folder / "conds.pt").write_bytes(_zip())
    recorder = Recorder(workspace.runs)
    assert get(workspace, folder, recorder)["outcome"] == "already there, 1 damaged files replaced"
    assert (model / T3).read_bytes() == FILES[T3]
    assert "is missing. It was replaced." in recorder.warnings[0]
    assert get(workspace, folder)["outcome"] == "already there, verified"
    (model / T3).unlink()
    (folder / T3).write_bytes(made_up("other", len(FILES[T3])))
    with pytest.raises(UserError, match="is damaged"):
        get(workspace, folder)


def test_the_doctor_checks_a_model_by_its_record(workspace: Workspace, folder: Path):
    get(workspace, folder)
    [check] = machine_check.check_models(workspace.path)
    assert (check.name, check.result) == ("Model chatterbox", "ok")
    (workspace.model("chatterbox") / T3).unlink()
    [check] = machine_check.check_models(workspace.path)
    assert check.result == "fail"
    assert f"{T3} is missing" in check.found
    assert "--model chatterbox --variant multilingual-v3 --save-as chatterbox" in check.hint
    (workspace.model("chatterbox") / "model.json").write_text(json.dumps([]))
    assert [check.result for check in machine_check.check_models(workspace.path)] == ["fail"]
