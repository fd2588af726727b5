"""Clients that others wrote against the speech server: pipecat and LiveKit, which take PCM to have 24 kHz.

They are not installed with Lisan. `LISAN_SPEECH_CLIENTS` is a Python that has `pipecat-ai[openai]` and
`livekit-plugins-openai`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.workspace import Workspace
from tests.unit.serving_world import Server, serving
from tests.worlds import write_model

PYTHON = os.environ.get("LISAN_SPEECH_CLIENTS", "")
TEXT = "the cat sees a dog. we go home now."
LIVEKIT = """
import asyncio, sys
from livekit.plugins import openai

async def main():
    speech = openai.TTS(base_url=sys.argv[1], api_key="none", model="tts-1", voice="alloy", response_format="pcm")
    samples = 0
    async for part in speech.synthesize(sys.argv[2]):
        samples, rate = samples + part.frame.samples_per_channel, part.frame.sample_rate
    await speech.aclose()
    print(samples / rate)

asyncio.run(main())
"""
PIPECAT = """
import asyncio, sys
from pipecat.services.openai.tts import OpenAITTSService

async def main():
    service = OpenAITTSService(api_key="none", base_url=sys.argv[1], sample_rate=24000)
    service._sample_rate = 24000
    samples = 0
    async for frame in service.run_tts(sys.argv[2], "context"):
        if hasattr(frame, "audio"):
            samples, rate = samples + len(frame.audio) // 2, frame.sample_rate
    print(samples / rate)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    workspace = Workspace.open(tmp_path_factory.mktemp("clients") / "workspace")
    write_model(workspace.models / "tiny")
    with serving(workspace, "served") as found:
        yield found


@pytest.mark.long
@pytest.mark.skipif(not PYTHON, reason="LISAN_SPEECH_CLIENTS names no Python with the clients")
@pytest.mark.parametrize("program", [LIVEKIT, PIPECAT], ids=["livekit", "pipecat"])
def test_the_client_hears_all_of_the_speech_at_its_speed(server: Server, program: str, tmp_path: Path) -> None:
    wanted_s = len(server.speak(TEXT, response_format="pcm").body) / 48_000
    done = subprocess.run([PYTHON, "-c", program, server.address, TEXT], capture_output=True, text=True, check=False,
                          cwd=tmp_path, timeout=180)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) == pytest.approx(wanted_s, abs=0.02)
