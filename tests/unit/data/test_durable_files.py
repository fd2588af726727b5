"""Files and folders are whole or not there, and damaged ones are found."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config.errors import UserError
from data import durable_files
from data.durable_files import ExpectedFile

ROOT = Path(__file__).resolve().parents[3]


def write_and_fail(path: Path) -> None:
    path.write_text("half")
    raise RuntimeError


def test_a_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path):
    path = tmp_path / "card.json"
    durable_files.write_json(path, {"text": "ሰላም"})
    with pytest.raises(RuntimeError), durable_files.atomic_path(path) as temporary:
        write_and_fail(temporary)
    assert json.loads(path.read_text(encoding="utf-8")) == {"text": "ሰላም"}
    assert os.listdir(tmp_path) == ["card.json"]


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path):
    path = tmp_path / "card.json"
    durable_files.write_text(path, "old")
    script = ("import os, signal, sys, pathlib\nfrom data import durable_files\n"
              "with durable_files.atomic_path(pathlib.Path(sys.argv[1])) as temporary:\n"
              "    temporary.write_text('new')\n"
              "    os.kill(os.getpid(), signal.SIGKILL)\n")
    done = subprocess.run([sys.executable, "-c", script, str(path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["card.json"]


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path):
    target = tmp_path / "model"
    with pytest.raises(RuntimeError), durable_files.atomic_directory(target) as temporary:
        write_and_fail(temporary / "half")
    assert os.listdir(tmp_path) == []
    with durable_files.atomic_directory(target) as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "whole").write_text("x")
        assert not target.exists()
    assert os.listdir(tmp_path) == ["model"]
    assert (target / "sub" / "whole").read_text() == "x"


def test_a_directory_on_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with (pytest.raises(UserError, match=r"model could not be written: No space left on device") as caught,
          durable_files.atomic_directory(tmp_path / "model", "Free 3 MB.") as temporary):
        (temporary / "file").write_text("x")
    assert caught.value.hint == "Free 3 MB."
    assert os.listdir(tmp_path) == []


def test_a_line_after_one_that_was_cut_off_starts_a_new_line(tmp_path: Path):
    path = tmp_path / "decisions.jsonl"
    durable_files.append_text(path, "one\n")
    durable_files.append_text(path, "two\n")
    path.write_bytes(path.read_bytes() + b"cut o")
    durable_files.append_text(path, "three\n")
    assert path.read_text().splitlines() == ["one", "two", "cut o", "three"]


def test_faults_name_the_file_with_both_values(tmp_path: Path):
    (tmp_path / "whole").write_bytes(b"whole")
    (tmp_path / "short").write_bytes(b"sho")
    (tmp_path / "other").write_bytes(b"other")
    digest = hashlib.sha256(b"whole").hexdigest()
    files = {"whole": ExpectedFile(5, digest), "short": ExpectedFile(5, digest), "other": ExpectedFile(sha256=digest),
             "absent": ExpectedFile(5)}
    blocks: list[tuple[int, str]] = []
    faults = dict(durable_files.find_faults(tmp_path, files, lambda size, name: blocks.append((size, name))))
    assert faults["short"].endswith("short is cut off: it has 3 bytes, the whole file 5.")
    assert f"the whole file {digest[:12]}" in faults["other"]
    assert faults["absent"].endswith("absent is missing.")
    assert set(faults) == {"short", "other", "absent"}
    assert blocks == [(5, "whole"), (5, "other")]


def test_git_hashes_are_checked_too(tmp_path: Path):
    (tmp_path / "config.json").write_bytes(b"{}\n")
    blob = hashlib.sha1(b"blob 3\0{}\n").hexdigest()
    assert not dict(durable_files.find_faults(tmp_path, {"config.json": ExpectedFile(3, blob=blob)}))
    assert dict(durable_files.find_faults(tmp_path, {"config.json": ExpectedFile(3, blob="0" * 40)}))


def test_a_tree_is_hashed_by_relative_path(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"a")
    (tmp_path / "sums.json").write_bytes(b"{}")
    assert durable_files.hash_tree(tmp_path, leave_out=("sums.json",)) == {"sub/a": hashlib.sha256(b"a").hexdigest()}


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "a\\b", "", "a\0b"])
def test_a_list_of_files_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str):
    path = tmp_path / "sums.json"
    path.write_text(json.dumps({name: "0" * 64}))
    with pytest.raises(UserError, match="lies outside"):
        durable_files.read_sums(path, "Get it again.")
