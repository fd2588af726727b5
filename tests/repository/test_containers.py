"""The container files name what is there. They are not built here: that needs a container engine."""

from __future__ import annotations

import json
import re

import pytest

import app
from scripts import install

ROOT = install.ROOT


@pytest.mark.parametrize("name", ["Containerfile.cpu", "Containerfile.cuda"])
def test_a_container_file_copies_and_starts_what_there_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / name).read_text()
    assert text.count("FROM ") == 2
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    assert all((ROOT / path).exists() for path in copied)
    [entry] = re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)
    python, program, *arguments = json.loads(entry)
    assert (python, program) == (".venv/bin/python", "app.py")
    given = app.build_parser().parse_args(arguments)
    monkeypatch.delenv(app.PASSWORD_VARIABLE, raising=False)
    with pytest.raises(app.UserError, match=r"0\.0\.0\.0"):
        app.sign_in(given.host, given.share, None, given.no_password)


def test_both_run_the_same_app() -> None:
    cpu, cuda = ((ROOT / name).read_text().split("FROM ")[2] for name in ("Containerfile.cpu", "Containerfile.cuda"))
    cuda = cuda.replace("ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n", "")
    assert cuda.replace("ffmpeg gcc libc6-dev", "ffmpeg") == cpu  # Triton compiles where it runs
