"""Help beside terms, and the guide as a page."""

from __future__ import annotations

import re

from core.workspace import Workspace
from ui import layout, terms
from ui.page import PLACES


def test_each_term_has_a_sentence_and_each_section_is_in_the_guide() -> None:
    ids = set(re.findall(r'id="([^"]+)"', terms.guide_page()))
    for section, words in terms._TABS.values():
        assert terms.anchor(section) in ids
        assert all(word in terms.TERMS for word in words)
    assert all(any(term in words for _, words in terms._TABS.values()) for term in terms.TERMS)


def test_links_within_the_guide_lead_to_its_headings() -> None:
    page = terms.guide_page()
    ids = set(re.findall(r'id="([^"]+)"', page))
    links = re.findall(r'href="([^"]+)"', page)
    assert len(links) > 20
    assert all(link[1:] in ids if link.startswith("#") else link.startswith("http") for link in links)


def test_a_tab_shows_its_terms_and_a_title_without_any_nothing() -> None:
    shown = terms.help_view("Train")
    assert "<dt>Checkpoint</dt>" in shown
    assert 'href="media/guide.html#training"' in shown
    assert terms.help_view("Something else") == ""


def test_each_section_of_help_is_shown_once(workspace: Workspace) -> None:
    texts = [str(block.value) for block in layout.build(workspace).blocks.values() if hasattr(block, "value")]
    assert sum(terms.GUIDE in text for text in texts) == len(terms._TABS)
    assert len(terms._TABS) == len(PLACES) - 2  # Start and Machine explain themselves
