"""The whole way on an IndexTTS2 of the published size with made-up weights: from a hub to an export, by the commands.

It takes 14 GiB of resident memory with mapped files (the export; docs/benchmarks/workflow.md), 25 GB of disk and 20
minutes on two shared cores, so it is slow.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from core.library import certificate
from core.library.catalog import BILIBILI, find_entry
from core.workspace import Workspace
from models.indextts2 import model_folder
from scripts.dev.benchmark.bench import release_memory
from tests.e2e.test_full_size import run, write_clips
from tests.hub import serving
from tests.indextts2_world import write_full_size

pytestmark = pytest.mark.slow
VARIANT = find_entry("indextts2").variants[0]


def test_the_whole_way(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    try:
        download(workspace, tmp_path / "hub")
        write_clips(tmp_path / "clips")
        run(workspace, "prepare", "--model", "indextts2", "--source", str(tmp_path / "clips"), "--dataset", "am")
        run(workspace, "tokenizer", "--model", "indextts2", "--dataset", "am", "--tokenizer", "am")
        run(workspace, "extend", "--model", "indextts2", "--tokenizer", "am", "--extension", "am")
        run(workspace, "train", "--extension", "am", "--dataset", "am", "--scope", "rows", "--steps", "2",
            "--batch-size", "2", "--checkpoint-every", "2", "--evaluation-sentences", "0", "--name", "rows")
        proof = certificate.read(Workspace.open(workspace).runs / "rows" / "certificate.json")
        assert not proof.failed()
        assert {proof.check(name).result for name in ("prefix_rows", "frozen_tensors", "base_logits")} == {"passed"}
        run(workspace, "export", "--run", "run:rows", "--export", "am", "--accept-learning")
        check_export(workspace)
        run(workspace, "synthesize", "--voice-model", "export:am", "--language", "am", "--text", "ሰላም።",
            "--flow-steps", "4", "--duration-s", "1", "--precision", "int8")
        [spoken] = workspace.glob("runs/synthesize-*/audio/speech.wav")
        assert spoken.stat().st_size > 44
    finally:
        shutil.rmtree(tmp_path)


def download(workspace: Path, folder: Path) -> None:
    """All files from the five repositories; S2Mel is left without its optimizer."""
    write_full_size(folder)
    release_memory()  # the commands need it
    accepted = [word for licence in VARIANT.licences for word in ("--accept-licence", licence.name)]
    accepted += [word for part in VARIANT.parts for [name] in part.files
                 for word in ("--accept-unknown", part.path(name))]
    with serving() as hub:
        for part in VARIANT.parts:
            commit = hub.add(part.repository, {name: folder / part.path(name) for [name] in part.files})
            hub.repositories[part.repository].refs[part.revision] = commit
        run(workspace, "download", "--model", "indextts2", "--no-probe", *accepted, HF_ENDPOINT=hub.url)
    published, stripped = (path / "s2mel.pth" for path in (folder, workspace / "models" / "indextts2"))
    assert stripped.stat().st_size < 0.6 * published.stat().st_size
    shutil.rmtree(folder)


def check_export(workspace: Path) -> None:
    """The base's 12,001 rows and more, in the published layout, with the notice of the licence."""
    folder = workspace / "exports" / "am"
    assert not certificate.read(folder / "certificate.json").failed()
    rows = model_folder.read_config(folder / "config.yaml")["gpt"]["number_text_tokens"] + 1
    assert rows > 12_001
    assert BILIBILI.notice in (folder / "README.md").read_text(encoding="utf-8")
