"""A picture of a tab for the documents, of a workspace in which the work was done.

`python -m tests.browser.picture --workspace W --tab listen --to docs/listen.png`

The app is served over a workspace whose work was done before, so that what the picture shows was really measured.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from tests.browser.conftest import FLAGS, PATIENCE_MS, WIDE, chromium
from tests.serving import served

_COLOURS = 192  # of the picture's palette: few enough for a third of the size, enough for spectrograms

_SETTLE_MS = 4000  # what is offered comes with a second answer


def take(workspace: Path, tab: str, target: Path) -> int:
    """The size of the picture in bytes."""
    with served(workspace) as app, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS), timeout=PATIENCE_MS)
        page = browser.new_page(viewport={"width": WIDE[0], "height": WIDE[1]}, color_scheme="light")
        page.goto(f"{app.url}?tab={tab}", timeout=PATIENCE_MS)
        expect(page.locator(f"#tab-{tab}")).to_be_visible(timeout=PATIENCE_MS)
        expect(page.locator(".pill")).to_be_visible(timeout=PATIENCE_MS)  # the first refresh has come
        page.wait_for_timeout(_SETTLE_MS)
        page.evaluate("document.querySelectorAll('img').forEach(picture => { picture.loading = 'eager'; })")
        page.wait_for_function("[...document.images].every(picture => picture.complete && picture.naturalWidth)")
        shot = page.screenshot(full_page=True)
        browser.close()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(_COLOURS).save(target, optimize=True)
    return target.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--tab", default="listen")
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args()
    print(f"{given.to}: {take(given.workspace, given.tab, given.to):,} bytes")


if __name__ == "__main__":
    main()
