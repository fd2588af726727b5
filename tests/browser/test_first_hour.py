"""The first hour with one's own recordings: from an empty workspace to Swahili in one's own voice, then Greek on top.

The recordings are made by espeak-ng, of sentences of the Universal Declaration of Human Rights. What a person does is
clicked and counted; times are printed (`-s`), as they hold for two idle cores alone.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Locator, Page, expect

from core.jobs import control
from core.jobs.state import JobBoard, JobState
from core.library import certificate, records
from core.library.certificate import Certificate
from core.workspace import Workspace
from tests.browser.conftest import Take, open_tab, wait_until
from tests.serving import ROOT, served
from ui import start
from ui.start import chain_of

pytestmark = [
    pytest.mark.browser, pytest.mark.slow,
    *(pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")
      for program in ("espeak-ng", "ffmpeg"))]
TEXTS = ROOT / "scripts" / "dev" / "tiny" / "udhr.jsonl"
MOST_CLICKS = 12
CHAIN_MS = 3_600_000  # a busy machine takes longer than the ten minutes, which are no bound here
WORDS, PAUSE_S = 6, 0.8


def sentences(language: str, count: int) -> list[str]:
    """`count` texts of six words each."""
    rows = (json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines())
    words = " ".join(next(row["paragraphs"] for row in rows if row["language"] == language)).split()
    found = [" ".join(words[start:start + WORDS]) for start in range(0, len(words) - WORDS, WORDS)]
    assert len(found) >= count, f"{len(found)} sentences in {language}"
    return found[:count]


def speak(text: str, language: str, path: Path) -> Path:
    subprocess.run(["espeak-ng", "-v", language, "-w", str(path), "--stdin"], input=text, text=True, check=True)
    return path


def swahili(folder: Path) -> list[Path]:
    """150 clips with a text each as a ZIP, and a film with subtitles."""
    texts = sentences("sw", 170)
    clips, film = texts[:150], texts[150:]
    with zipfile.ZipFile(folder / "rekodi.zip", "w") as archive:
        for number, text in enumerate(clips):
            archive.write(speak(text, "sw", folder / "clip.wav"), f"{number:03d}.wav")
            archive.writestr(f"{number:03d}.txt", text)
    parts, subtitles, at = list[np.ndarray](), list[str](), 0.0
    for number, text in enumerate(film, 1):
        waveform, rate = soundfile.read(speak(text, "sw", folder / "clip.wav"))
        end = at + len(waveform) / rate
        subtitles += [str(number), f"{stamp(at)} --> {stamp(end)}", text, ""]
        parts += [waveform, np.zeros(int(PAUSE_S * rate))]
        at = end + int(PAUSE_S * rate) / rate
    soundfile.write(folder / "sound.wav", np.concatenate(parts), rate)
    (folder / "filamu.srt").write_text("\n".join(subtitles), encoding="utf-8")
    subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "color=c=navy:s=64x64:r=5", "-i",
                    str(folder / "sound.wav"), "-shortest", "-c:v", "mpeg4", "-c:a", "aac",
                    str(folder / "filamu.mp4")], check=True, stdin=subprocess.DEVNULL)
    return [folder / "rekodi.zip", folder / "filamu.mp4", folder / "filamu.srt"]


def stamp(seconds: float) -> str:
    """A time of a subtitle."""
    millis = round(1000 * seconds)
    return f"{millis // 3_600_000:02d}:{millis // 60_000 % 60:02d}:{millis // 1000 % 60:02d},{millis % 1000:03d}"


def greek(folder: Path) -> list[Path]:
    """60 clips and a CSV of their texts."""
    lines, clips = ["audio,text"], list[Path]()
    for number, text in enumerate(sentences("el", 60)):
        clips.append(speak(text, "el", folder / f"el{number:02d}.wav"))
        lines.append(f'{clips[-1].name},"{text}"')
    (folder / "fones.csv").write_text("\n".join(lines), encoding="utf-8")
    return [folder / "fones.csv", *clips]


@dataclass
class Person:
    """Somebody at the page, whose clicks are counted; to open a list and to choose from it are two."""

    page: Page
    clicks: int = 0
    heard: dict[str, list[float]] = field(default_factory=dict)  # seconds of the clips, by language

    def click(self, place: Locator, **options: object) -> None:
        place.click(**options)  # type: ignore[arg-type]
        self.clicks += 1

    def choose(self, field_id: str, option: str) -> None:
        self.click(self.page.locator(f"#{field_id} input"))
        self.click(self.page.locator(f"#{field_id} [role=option]").filter(has_text=option).first)

    def drop(self, files: list[Path]) -> None:
        """Choose the files that are asked for at one click."""
        self.page.locator("#own-upload input[type=file]").set_input_files([str(path) for path in files])
        self.clicks += 1
        expect(self.page.locator("#own-found")).not_to_be_empty()

    def hear(self, language: str) -> None:
        """Play the first clip of the trained model in a language to where it sounds."""
        pair = self.page.locator("#clips .pair", has=self.page.locator(f'blockquote[lang="{language}"]')).first
        audio = pair.locator(".side audio").last
        audio.scroll_into_view_if_needed()
        box = audio.bounding_box()
        assert box is not None
        self.click(audio, position={"x": 22, "y": box["height"] / 2})
        wait_until(lambda: audio.evaluate("audio => audio.currentTime") > 0.2, self.page)
        answer = self.page.request.get(self.page.url.split("?")[0] + str(audio.get_attribute("src")))
        waveform, rate = soundfile.read(io.BytesIO(answer.body()))
        assert np.abs(waveform).max() > 0.02, "the clip is silent"
        self.heard.setdefault(language, []).append(len(waveform) / rate)


def test_swahili_in_ones_own_voice_then_greek_on_top(tmp_path: Path, open_page: Callable[..., Page],
                                                     take: Take) -> None:
    made = tmp_path / "made"
    made.mkdir()
    sources = swahili(made), greek(made)
    workspace = Workspace.open(tmp_path / "workspace")
    with served(workspace.path) as app:
        page = open_page(app.url)
        board = JobBoard(workspace)
        try:
            first = learn(page, board, take, "Swahili", "sw", sources[0])
            second = learn(page, board, take, "Greek", "el", sources[1], first)
        finally:
            for state in board.queue():
                control.force_stop(state.job)

    proof = proof_of(workspace, second)
    assert proof.failed() == ()
    assert proof.new_languages == ("el",)
    assert "(en, fr, sw) bit-identical" in proof.check("base_logits").actual
    record = records.read_extension(workspace.extension(str(second.job.settings["extension"])))
    assert [(one.language, one.source.partition("@")[0]) for one in record.origin.earlier_trainings] == [
        ("sw", f"run:{first.id}")]


def learn(page: Page, board: JobBoard, take: Take, language: str, code: str, files: list[Path],
          before: JobState | None = None) -> JobState:
    """Teach a language by the page, `before` is the training to build upon; hear it; the training."""
    person, begin = Person(page), time.monotonic()
    if before is not None:
        open_tab(page, "Start")
        person.clicks += 1
        person.choose("start-model", before.id)
    person.choose("start-dataset", start.OWN_LABEL)
    person.drop(files)
    person.choose("own-language", language)
    expect(page.locator("#own-name input, #own-name textarea")).to_have_value(language.lower())
    take(page, f"first-hour-{code}-start")
    person.click(page.locator("#teach"))
    expect(page.locator("#tab-listen")).to_be_visible(timeout=CHAIN_MS)
    person.hear(code)
    seconds = time.monotonic() - begin
    take(page, f"first-hour-{code}-listen")
    assert person.clicks <= MOST_CLICKS

    chain = chain_of(board.states())
    training = next(state for state in chain if state.verb == "train")
    compared = next(state for state in chain if state.verb == "compare")
    assert compared.job.settings["voice"] == "speaker:"
    if before is not None:
        for base_language in ("sw", "el"):
            person.hear(base_language)
    proof = control.wait(next(state for state in chain if state.verb == "certify").job, CHAIN_MS / 1000)
    assert proof.status == "finished", proof.message
    print(f"\n{language}: heard after {seconds:.0f} s and {person.clicks} clicks; " + ", ".join(
        f"{state.verb} {state.seconds:.0f} s" for state in (*chain[:-1], proof)))
    return training


def proof_of(workspace: Workspace, training: JobState) -> Certificate:
    return certificate.read(workspace.run(training.id) / certificate.CERTIFICATE)
