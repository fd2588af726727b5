"""The path of a new user from a person's recordings to an exported file: clicks, and seconds until each assessment.

LISAN_HUMAN names the folder with `hausa-f.tar`. Half of the minutes are spent on the training, the shortest that Start
offers, and on its certificate.
"""

from __future__ import annotations

import csv
import io
import os
import tarfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import soundfile
from playwright.sync_api import Locator, Page, Response, expect

from core.jobs import control
from core.jobs.state import JobBoard
from core.workspace import Workspace
from tests.browser.conftest import choose, wait_until
from tests.serving import served

HUMAN = os.environ.get("LISAN_HUMAN", "")
pytestmark = [pytest.mark.browser, pytest.mark.slow,
              pytest.mark.skipif(not HUMAN, reason="LISAN_HUMAN names no folder of human recordings")]
CLIPS = 300
CLICKS_TO_TRAINING, CLICKS_TO_FILE = 6, 4
FIRST_S, SECOND_S = 2.0, 25.0
"""Seconds after the upload until the first and the second assessment."""
LONGEST_S = 3600.0


@dataclass
class Hand:
    """Clicks, and counts them."""

    clicks: int = 0

    def click(self, field: Locator) -> None:
        self.clicks += 1
        field.click()


def recordings(path: Path) -> Path:
    """The first clips of the Hausa reader as WAV files with their table, in a ZIP."""
    with tarfile.open(Path(HUMAN) / "hausa-f.tar") as source, zipfile.ZipFile(path, "w") as archive:
        lines = source.extractfile("metadata.csv").read().decode().splitlines()[:CLIPS]  # type: ignore[union-attr]
        rows = list(csv.reader(lines, delimiter="|", quoting=csv.QUOTE_NONE))
        sounds = {name: source.extractfile(name).read() for name, _ in rows}  # type: ignore[union-attr]
        for name, content in sounds.items():
            samples, rate = soundfile.read(io.BytesIO(content), dtype="int16")
            wave = io.BytesIO()
            soundfile.write(wave, samples, rate, format="WAV", subtype="PCM_16")
            archive.writestr(Path(name).with_suffix(".wav").as_posix(), wave.getvalue())
        table = "".join(f"{Path(name).with_suffix('.wav').as_posix()}|{text}\n" for name, text in rows)
        archive.writestr("metadata.csv", table)
    return path


def test_path_of_a_new_user(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    packed = recordings(tmp_path / "my-voice.zip")
    workspace = Workspace.open(tmp_path / "workspace")
    with served(workspace.path) as app:
        try:
            page = open_page(app.url)
            expect(page.locator("#chain")).to_contain_text("What will happen")
            # The shortest length keeps this test short; it is no part of the path.
            choose(page.locator("#start-length input"), page.get_by_role("option", name="Quick test"))

            hand, uploaded = Hand(), list[float]()

            def note(response: Response) -> None:
                if "/gradio_api/upload" in response.url:
                    uploaded.append(time.monotonic())

            page.on("response", note)
            hand.click(page.locator("#start-dataset input"))
            hand.click(page.get_by_role("option", name="My own recordings"))
            with page.expect_file_chooser() as chooser:
                hand.click(page.locator("#own-upload button").first)
            chosen = time.monotonic()
            chooser.value.set_files(packed)

            # Each assessment comes by itself.
            expect(page.locator("#own-found [data-assessment]")).to_contain_text(f"{CLIPS} clips, about 2")
            first = time.monotonic()
            expect(page.locator("#own-found audio")).to_have_count(3)
            hand.click(page.locator("#own-language input"))
            page.keyboard.type("Hausa")
            page.keyboard.press("Enter")
            expect(page.locator("#teach")).to_have_text("Train Hausa")
            expect(page.locator("#own-voice .verdict")).to_be_visible()
            second = time.monotonic()
            first_s, second_s = first - uploaded[-1], second - uploaded[-1]
            print(f"\n{packed.stat().st_size / 1e6:.0f} MB, uploaded after {uploaded[-1] - chosen:.2f} s; then the "
                  f"first assessment after {first_s:.2f} s and the second after {second_s:.2f} s")

            hand.click(page.locator("#teach"))
            expect(page.locator("#chain")).to_contain_text("Hausa from my-voice")
            print(f"{hand.clicks} clicks to the training")
            assert hand.clicks <= CLICKS_TO_TRAINING

            # The page opens Listen when the model can be heard; the certificate comes after it.
            began = time.monotonic()
            page.locator("#tab-listen").wait_for(timeout=1000 * LONGEST_S)
            heard_s = time.monotonic() - began
            wait_until(lambda: page.locator("#header .pill").inner_text() == "No job running", page, LONGEST_S)
            print(f"Listen after {heard_s:.0f} s, the certificate after {time.monotonic() - began:.0f} s")

            hand = Hand()
            hand.click(page.locator('#tabs [role="tab"]:visible:text-is("Share")'))
            expect(page.locator("#share-file")).to_be_visible()
            page.wait_for_timeout(3000)
            if page.locator("#accept-learning").is_visible():
                hand.click(page.locator("#accept-learning input"))
            hand.click(page.locator("#share-file"))
            link = page.locator("#share-result .download-button")
            link.wait_for(timeout=1000 * LONGEST_S)
            with page.expect_download() as download:
                hand.click(link)
            assert tarfile.is_tarfile(download.value.path())
            print(f"{hand.clicks} clicks to {download.value.suggested_filename}")
            assert hand.clicks <= CLICKS_TO_FILE
            assert first_s <= FIRST_S
            assert second_s <= SECOND_S
        finally:
            for state in JobBoard(workspace).queue():
                control.force_stop(state.job)
