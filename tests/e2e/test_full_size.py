"""The whole way on a Chatterbox of the published size with made-up weights: from a hub to an export, by the commands.

It takes 15 GB of disk, 12 GB of memory and a quarter of an hour on two cores, so it is slow.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.library import certificate
from core.workspace import Workspace
from data.manifest import read_json_lines
from tests.chatterbox_world import write_full_size
from tests.hub import serving

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DEMO = ROOT / "data" / "demo" / "am"
REPOSITORY = "ResembleAI/chatterbox"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A workspace with the model fetched from a hub, a small dataset, its tokenizer and the extension."""
    path = tmp_path_factory.mktemp("full")
    write_full_size(path / "hub")
    (path / "hub" / "model.json").unlink()
    accepted = [word for file in (path / "hub").iterdir() for word in ("--accept-unknown", file.name)]
    with serving() as hub:
        hub.add(REPOSITORY, {file.name: file for file in (path / "hub").iterdir()})
        run(path / "workspace", "download", "--model", "chatterbox", "--variant", "multilingual-v2", "--save-as",
            "chatterbox", "--no-probe", *accepted, HF_ENDPOINT=hub.url)
    shutil.rmtree(path / "hub")
    write_clips(path / "clips")
    run(path / "workspace", "prepare", "--model", "chatterbox", "--source", str(path / "clips"), "--dataset", "am")
    run(path / "workspace", "tokenizer", "--model", "chatterbox", "--dataset", "am", "--tokenizer", "am")
    run(path / "workspace", "extend", "--model", "chatterbox", "--tokenizer", "am", "--extension", "am")
    yield path / "workspace"
    shutil.rmtree(path)


def write_clips(folder: Path) -> None:
    """A few clips of the demo dataset."""
    rows = [row for _, row in read_json_lines(DEMO / "manifest.jsonl")]
    kept = [row for row in rows if row["split"] == "train"][:16] + [row for row in rows if row["split"] != "train"][:4]
    (folder / "clips").mkdir(parents=True)
    for row in kept:
        shutil.copyfile(DEMO / str(row["audio"]), folder / str(row["audio"]))
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in kept)
    (folder / "manifest.jsonl").write_text(lines + "\n", encoding="utf-8")


def run(workspace: Path, verb: str, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "scripts", verb, "--workspace", str(workspace), *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("scope", ["rows", "gated", "full"])
def test_a_few_steps_in_each_scope_are_certified(workspace: Path, scope: str) -> None:
    run(workspace, "train", "--extension", "am", "--dataset", "am", "--scope", scope, "--steps", "2", "--batch-size",
        "2", "--checkpoint-every", "2", "--evaluation-sentences", "0", "--name", scope)
    proof = certificate.read(Workspace.open(workspace).runs / scope / "certificate.json")
    assert not proof.failed()
    assert proof.check("prefix_rows").result == proof.check("frozen_tensors").result == "passed"
    assert proof.check("base_logits").result == ("measured" if scope == "full" else "passed")
    if scope == "gated":
        speak_and_take_away(workspace)


def speak_and_take_away(workspace: Path) -> None:
    """Compare, export, and speak with the export."""
    said = run(workspace, "compare", "--base", "base:chatterbox", "--finetuned", "run:gated", "--texts", "en",
               "Hello there.", "--texts", "am", "ሰላም።", "--precision", "int8", "--flow-steps", "4")
    assert "identical_en True" in said
    run(workspace, "export", "--run", "run:gated", "--export", "am", "--accept-learning")
    assert not certificate.read(workspace / "exports" / "am" / "certificate.json").failed()
    run(workspace, "synthesize", "--voice-model", "export:am", "--language", "am", "--text", "ሰላም።",
        "--flow-steps", "4")
    [spoken] = workspace.glob("runs/synthesize-*/audio/speech.wav")
    assert spoken.stat().st_size > 44
