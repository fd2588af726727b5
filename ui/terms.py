"""Help beside terms: what the words of a tab mean, and the guide, which the page shows as a page of its own."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

from ui.markup import NOTHING, Html, element, join, paragraph

GUIDE = "media/guide.html"
_FILE = Path(__file__).parents[1] / "docs" / "guide.md"

TERMS: Mapping[str, str] = {
    "Base model": "The downloaded model, with the languages that it speaks already.",
    "Codec": "The part of a model that turns sound into codes and back; it limits how close a voice can come.",
    "Clip": "A short recording with its text.",
    "Held-out clips": "Clips that are not trained on, so that they can measure what was learned.",
    "Token": "A letter or a piece of a word, which the model reads as one number.",
    "Text rules": "Rules that write out numbers, dates and abbreviations as they are spoken.",
    "Embedding row": "The numbers that stand for one token in the model; a new language needs new rows.",
    "Extended model": "A base model with rows for the tokens of a new language, before training.",
    "Step": "One update of the trained weights, from one batch of clips.",
    "Loss": "How badly the model predicts the speech of the clips; lower is better.",
    "Checkpoint": "The state of a training that was saved at a step; the model can speak from it.",
    "Scope": "What is trained: the new rows, adapters beside them, or the base too.",
    "Adapter": "Small weights beside the base's, which are active for the new language only.",
    "Drift": "How much a base language changed; in scope rows and gated it cannot change.",
    "Recogniser (ASR)": "A model that writes down what it hears; it measures how well speech can be understood.",
    "Character error rate (CER)": "The share of letters that a recogniser gets wrong; 0% is perfect.",
    "Seed": "A number that fixes the random choices: the same seed gives the same sound.",
    "Certificate": "Checks that the base languages are unchanged, with the error rates of each language.",
    "Frozen tensors": "Weights that the training may not change; the certificate compares them bit by bit.",
    "Export": "The trained model in its original format, with its certificate.",
}
"""Each term with one sentence."""

_TABS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Base models": ("Base models", ("Base model", "Codec")),
    "Recordings": ("Recordings", ("Clip", "Held-out clips", "Recogniser (ASR)")),
    "Tokenizer": ("Tokenizer", ("Token", "Text rules")),
    "Embeddings": ("Embeddings", ("Embedding row", "Extended model")),
    "Train": ("Training", ("Step", "Loss", "Held-out clips", "Checkpoint", "Scope", "Adapter", "Drift")),
    "Listen": ("Compare", ("Character error rate (CER)", "Recogniser (ASR)", "Seed")),
    "Share": ("Certificate and export", ("Certificate", "Frozen tensors", "Export")),
    "Doctor": ("Model doctor", ()),
    "Storage": ("Storage", ()),
    "Jobs": ("Jobs", ()),
}
"""By title of a tab: its section of the guide, and its terms in the order of the work."""


def help_view(title: str) -> Html:
    """The terms of the tab with this title, folded, and a link to its section of the guide."""
    if title not in _TABS:
        return NOTHING
    section, terms = _TABS[title]
    link = element("a", "Open this section of the guide", href=f"{GUIDE}#{anchor(section)}", target="_blank")
    if not terms:
        return paragraph(link)
    rows = [join((element("dt", term), element("dd", TERMS[term]))) for term in terms]
    return element("details", element("summary", "Terms and guide"), element("dl", *rows), paragraph(link),
                   class_="terms")


def anchor(heading: str) -> str:
    """The id of a heading of the guide."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@cache
def guide_page() -> str:
    """The guide as a page: its headings have ids, and links to other documents are plain text."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(_FILE.read_text(encoding="utf-8"))
    body = re.sub(r"<(h[1-6])>(.*?)</\1>", _with_id, body)
    body = re.sub(r'<a href="(?!#|https?:)[^"]*">(.*?)</a>', r"\1", body, flags=re.DOTALL)
    style = ("body{font:16px/1.6 ui-sans-serif,system-ui,sans-serif;max-width:80ch;margin:2em auto;padding:0 1em}"
             "pre{overflow-x:auto;padding:.8em;background:#8882;border-radius:8px}"
             "table{border-collapse:collapse;display:block;overflow-x:auto}"
             "td,th{border:1px solid #8886;padding:4px 10px;text-align:left}:root{color-scheme:light dark}")
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Lisan: guide</title>'
            f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>'
            f"<body><main>{body}</main></body></html>")


def _with_id(match: re.Match[str]) -> str:
    text = html.unescape(re.sub(r"<[^>]+>", "", match[2]))
    return f'<{match[1]} id="{anchor(text)}">{match[2]}</{match[1]}>'
