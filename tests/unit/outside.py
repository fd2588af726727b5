"""Inputs as people really have them: speech of the demo in files whose headers, channels or tables are odd."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from core.jobs.events import Failed, WarningRaised, read_events
from core.workspace import Workspace
from data import manifest
from data.manifest import PreparedDataset
from scripts.command import run_verb

DEMO = Path(__file__).resolve().parents[2] / "data" / "demo" / "am"
RATE = 16000  # Hz
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")


@lru_cache(maxsize=32)
def speech(number: int) -> np.ndarray:
    """A clip of the demo, (S,) float32 at 16 kHz."""
    line = (DEMO / "manifest.jsonl").read_text("utf-8").splitlines()[number]
    return np.asarray(soundfile.read(DEMO / json.loads(line)["audio"], dtype="float32")[0])


def text(number: int) -> str:
    return str(json.loads((DEMO / "manifest.jsonl").read_text("utf-8").splitlines()[number])["text"])


def encoded(path: Path, waveform: np.ndarray, *options: str, pipe: bool = False) -> Path:
    """A file made by ffmpeg from (S,) or (S, channels); through a pipe it cannot go back to fill in its header."""
    source = path.with_name(f"{path.name}.source.wav")
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(source, waveform, RATE)
    command = ["ffmpeg", "-nostdin", "-v", "error", "-y", "-i", str(source), *options]
    if pipe:
        made = subprocess.run([*command, "-f", path.suffix[1:], "-"], check=True, capture_output=True).stdout
        path.write_bytes(made)
    else:
        subprocess.run([*command, str(path)], check=True, capture_output=True)
    source.unlink()
    return path


def joined(path: Path, parts: list[Path]) -> Path:
    """Files one behind another, as `cat` does it."""
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    for part in parts:
        part.unlink()
    return path


def by_command(workspace: Workspace, verb: str, *words: str) -> tuple[int, str]:
    """The exit code of a command, and its warnings."""
    code = run_verb(verb, ["--workspace", str(workspace.path), *words])
    return code, warnings_of(workspace)


def warnings_of(workspace: Workspace) -> str:
    """The warnings and the error of the newest job, a line each."""
    journal = max(workspace.path.rglob("events.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return "\n".join(event.message for event in read_events(journal)[0] if isinstance(event, WarningRaised | Failed))


def prepared(workspace: Workspace, source: Path, language: str = "am", *words: str) -> tuple[PreparedDataset, str]:
    """The dataset that `python -m scripts prepare` makes of a source, and its warnings."""
    code, warnings = by_command(workspace, "prepare", "--source", str(source), "--dataset", "d", "--language",
                                language, "--any-script", *words)
    assert code == 0, warnings
    return manifest.load(workspace.dataset("d")), warnings
