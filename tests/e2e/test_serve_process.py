"""The speech server as a process: the command, the device that it holds, curl, and its end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import openai
import pytest
import soundfile

from core.jobs import locks
from core.jobs.state import JobBoard
from core.workspace import Workspace
from tests.worlds import write_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_the_command_serves_holds_the_device_and_ends_at_an_interrupt(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    write_model(workspace.models / "tiny")
    environment = {**os.environ, "LISAN_SERVE_KEY": "a-key-that-is-long-enough"}
    command = [sys.executable, "-m", "scripts", "serve", "base:tiny", "--workspace", str(workspace.path), "--port", "0",
               "--device", "cpu"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as process:
        try:
            port = _port(workspace)
            address = f"http://127.0.0.1:{port}"
            with urllib.request.urlopen(f"{address}/health", timeout=30) as answer:
                assert json.load(answer)["status"] == "ok"
            assert locks.is_held(workspace.devices / "cpu.lock")
            assert locks.read_holder(workspace.devices / "cpu.lock").startswith("serve-")

            target = tmp_path / "speech.wav"
            subprocess.run(["curl", "-sf", f"{address}/v1/audio/speech", "-H", "Content-Type: application/json", "-H",
                            "Authorization: Bearer a-key-that-is-long-enough", "-o", str(target), "-d",
                            '{"model": "tts-1", "voice": "alloy", "input": "a dog", "response_format": "wav"}'],
                           check=True)
            assert soundfile.info(target).frames > 0

            client = openai.OpenAI(base_url=f"{address}/v1", api_key="a-key-that-is-long-enough")
            with client.audio.speech.with_streaming_response.create(
                    model="tts-1", voice="alloy", input="a dog", response_format="opus") as response:
                assert soundfile.info(io.BytesIO(b"".join(response.iter_bytes()))).frames > 0
        finally:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Stopped on request after 2 requests." in output
    assert not locks.is_held(workspace.devices / "cpu.lock")
    assert "a-key-that-is-long-enough" not in output


def _port(workspace: Workspace) -> int:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for state in JobBoard(workspace).states():
            if state.plan is not None and state.plan.counts.get("port"):
                return state.plan.counts["port"]
            assert not state.ended, state.message
        time.sleep(0.2)
    raise AssertionError("the server does not start")
