"""One long recording and its subtitles become a trained step of the built-in model, with nothing touched by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from core.library import certificate
from core.workspace import Workspace
from scripts.command import run_verb
from tests.serving import ROOT

CLIPS, PAUSE_S = 16, 0.5


def write_film(folder: Path) -> Path:
    """Readings of the demo one after another with pauses between, and subtitles as a subtitler writes them."""
    demo = ROOT / "data/demo/am"
    rows = [json.loads(line) for line in (demo / "manifest.jsonl").read_text("utf-8").splitlines()][:CLIPS]
    sound: list[np.ndarray] = []
    blocks, now = [], 0.0
    for number, row in enumerate(rows, start=1):
        waveform, rate = soundfile.read(str(demo / row["audio"]), dtype="float32")
        blocks.append(f"{number}\n{stamp(now)} --> {stamp(now + len(waveform) / rate)}\n{row['text']}\n")
        sound += [waveform, np.zeros(round(PAUSE_S * rate), np.float32)]
        now += (len(sound[-2]) + len(sound[-1])) / rate
    folder.mkdir()
    soundfile.write(str(folder / "reading.flac"), np.concatenate(sound), rate)
    (folder / "reading.am.srt").write_text("\ufeff" + "\r\n".join("\n".join(blocks).splitlines()), encoding="utf-8")
    return folder


def stamp(seconds: float) -> str:
    whole = round(seconds * 1000)
    return f"{whole // 3600000:02}:{whole // 60000 % 60:02}:{whole // 1000 % 60:02},{whole % 1000:03}"


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Beside other work two threads wait for each other at each small product: 21 sentences in 5 minutes, not 286."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_recording_and_its_subtitles_become_a_trained_step(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    (workspace.models / "tiny").symlink_to(ROOT / "models/tiny/pack")
    film = write_film(tmp_path / "film")
    steps = (
        ("prepare", "--source", str(film), "--dataset", "film", "--language", "am"),
        ("tokenizer", "--dataset", "film", "--tokenizer", "film"),
        ("extend", "--tokenizer", "film", "--extension", "film"),
        ("train", "--extension", "film", "--dataset", "film", "--steps", "1", "--batch-size", "2", "--device", "cpu",
         "--evaluation-sentences", "0"),
    )
    for verb, *words in steps:
        assert run_verb(verb, [*words, "--workspace", str(workspace.path)]) == 0, verb
    report = json.loads((workspace.dataset("film") / "report.json").read_text("utf-8"))
    assert (report["found"], report["kept"], report["errors"]) == (CLIPS, CLIPS, [])
    (run,) = workspace.runs.glob("train-*")
    assert list((run / "checkpoints").glob("step-*")), "no step was saved"
    assert certificate.read(run / certificate.CERTIFICATE).failed() == ()
