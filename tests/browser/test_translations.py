"""The page in French, Amharic and Swahili: nothing of the interface left in English, nothing of a person's changed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import PATIENCE_MS, wait_until
from tests.serving import served
from ui.translations import tables

pytestmark = pytest.mark.browser

NAMES = re.compile(
    r"(?<!\w)(?:[\w@.:/-]*(?:\d|[/_@:.](?=\w))[\w@.:/-]*"  # ids, versions, paths, files, references, sizes
    r"|Lisan|tiny|tiny-am|amharic-demo|IndexTTS2?|Chatterbox|Multilingual|Apache|MIT|bilibili|Google|USA|CPU|GPU"
    r"|am|en|fr|auto|gated|romanised|one|The old boat came home.*|She opened the window.*|Le petit .*|Elle ouvre .*"
    r"|Model Use License Agreement|License|Creative Commons Attribution-NonCommercial|float32"
    r"|English|Français|Kiswahili|CC-BY-NC|SNR|dB|LUFS|Hz|kB|MB|GB|GiB|CER)(?!\w)")
"""What is the same in each language: names, codes, units, and example sentences in languages of their own."""
TABS = """[...document.querySelectorAll('[role=tab][id^=tab-]')].map(
  (tab) => [tab.id.slice(4, -7), Boolean(tab.closest('#tabs'))])"""
"""The id of each tab, and whether it is in the bar of the page and not beside it."""

MISNAMED = """[...document.querySelectorAll('[role=tab][data-description]')].map(
  (tab) => [tab.textContent.trim(), tab.getAttribute('aria-label')]).filter(([seen, name]) => !name.includes(seen))"""
"""The tabs whose name for a screen reader lacks the word that is seen."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    workspace = Workspace.open(tmp_path_factory.mktemp("translations") / "Jobs")
    scenes.chain(workspace, steps=100, total=100, finished=True)
    with served(workspace.path) as app:
        yield app.url


def visit(browser: Browser, url: str, locale: str) -> Page:
    """The page in a browser whose user prefers `locale`."""
    page = browser.new_context(viewport={"width": 1600, "height": 900}, locale=locale).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(url)
    page.wait_for_selector("#tabs [role=tab]")
    return page


def in_english(page: Page) -> list[str]:
    """The visible texts that the table of the page's language lacks."""
    texts = [text for text, whole in page.evaluate("window.lisanTexts()") if not whole]
    return [text for text in texts if re.search(r"[A-Za-z]{2}", NAMES.sub("", text))]


def test_no_tab_shows_english(browser: Browser, url: str) -> None:
    pages = {language: visit(browser, url, language) for language in tables()}
    for language, page in pages.items():
        expect(page.locator("html")).to_have_attribute("lang", language)
        table = tables()[language]
        expect(page.locator("#tab-start-button").first).to_have_text(table.texts.get("Start") or table.values["Start"])

    missing = {}
    for tab, in_bar in dict(pages["fr"].evaluate(TABS)).items():
        for page in pages.values():
            if in_bar:
                page.evaluate("tab => document.getElementById(`tab-${tab}-button`).click()", tab)
            else:
                page.goto(f"{url}?tab={tab}")
            page.locator(f"#tab-{tab}").wait_for(state="visible")
        # What the app sends for this tab arrives on all pages meanwhile.
        pages["fr"].wait_for_timeout(2000)
        for language, page in pages.items():
            if texts := in_english(page):
                missing[language, tab] = texts

    # The name of a tab has the word that is seen, whichever state it has.
    misnamed = {language: page.evaluate(MISNAMED) for language, page in pages.items()}
    for page in pages.values():
        page.context.close()
    assert not any(misnamed.values()), misnamed
    assert missing == {}, "`python -m scripts.dev.page_texts --missing LANGUAGE` lists them"


def test_language_is_chosen_by_hand_and_remembered(browser: Browser, url: str) -> None:
    page = visit(browser, url, "fr-FR")
    chooser, tab = page.locator("#language select"), page.locator("#tab-start-button").first
    expect(tab).to_have_text("Démarrer")
    expect(page.locator("#language .draft")).to_have_text(re.compile("provisoire"))
    page.evaluate("document.getElementById('tab-train-button').click()")
    expect(page.locator("#tab-train h1")).to_have_text("Entraîner")
    chosen = page.locator("#run-choice input")
    expect(chosen).to_have_value(re.compile("terminé"))  # the label of the chosen run, in its field

    # Back to English, everything is as the app wrote it.
    chooser.select_option("en")
    expect(page.locator("#tab-train h1")).to_have_text("Train")
    expect(chosen).to_have_value(re.compile("finished"))
    expect(page.locator("#language .draft")).to_be_hidden()
    page.reload()
    expect(tab).to_have_text("Start")
    expect(page.locator("html")).to_have_attribute("lang", "en")

    chooser.select_option("am")
    expect(tab).to_have_text("ጀምር")
    page.reload()
    expect(tab).to_have_text("ጀምር")
    page.context.close()


def test_english_loads_no_table(browser: Browser, url: str) -> None:
    page = browser.new_context(locale="en-GB").new_page()
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(url, timeout=PATIENCE_MS)
    page.wait_for_selector("#tabs [role=tab]")
    wait_until(lambda: page.evaluate("Boolean(window.lisanText)"), page)
    assert not [address for address in addresses if "/media/texts/" in address]
    assert page.evaluate("window.lisanText('Start')") == "Start"
    page.context.close()


@pytest.mark.parametrize("short_id", ["06a1", "cfeb", "1234"])
def test_label_of_a_run_is_translated_whatever_its_id(browser: Browser, url: str, short_id: str) -> None:
    """Two in a hundred short ids are letters alone, which once looked like a word that the table lacks."""
    page = visit(browser, url, "fr")
    wait_until(lambda: page.evaluate("Boolean(window.lisanText)"), page)
    expect(page.locator("html")).to_have_attribute("lang", "fr")
    label = f"tiny-am on amharic-demo, 06:34 ({short_id}), step 100, best, not proven yet"
    shown = str(page.evaluate("label => window.lisanText(label)", label))
    assert f"06:34 ({short_id})" in shown
    assert shown.endswith("pas 100, meilleur, pas encore prouvé")
    page.context.close()


def test_what_a_person_wrote_stays(browser: Browser, url: str) -> None:
    page = visit(browser, url, "fr")
    expect(page.locator("#tab-start-button").first).to_have_text("Démarrer")
    page.evaluate("""() => {
      const box = document.createElement("div");
      box.id = "written";
      box.innerHTML = "<p lang='en'>Start</p><pre>Start</pre><code>Start</code><p translate='no'>Start</p>" +
        "<p class='seen'>Start</p><p class='mixed'>Give it as <code>Start</code> has started.</p>";
      document.body.append(box);
    }""")
    expect(page.locator("#written .seen")).to_have_text("Démarrer")
    assert page.locator("#written > *").all_inner_texts()[:4] == ["Start"] * 4
    expect(page.locator("#written code").last).to_have_text("Start")
    page.context.close()
