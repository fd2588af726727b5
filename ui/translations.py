"""The page in other languages: a table of texts for each, the chooser in the header, and what the page's script needs.

The app writes English, and `translate.js` replaces sentences in the browser. A table is `ui/texts/CODE.json`:

- `texts`: English sentences with their translations. A place such as {name} takes what is put in there as it is;
  a place of one letter, such as {n}, takes a number only, and {id}, {id2} take one word.
- `values`: what may stand in a place and has a translation too, such as "{n} clips" or "finished".
- `read_by`: the speaker who has read the table. While it is empty the page says that the translation is a draft.
- `glossary`: the words that the translations use for terms.

`python -m scripts.dev.page_texts` compares the tables with the texts of the page and of the code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ui.markup import Html, element, span

FOLDER = Path(__file__).parent / "texts"
ADDRESS = "media/texts"
SOURCE = "en"
DRAFT = "Draft translation, not yet read by a speaker"


@dataclass(frozen=True)
class TextTable:
    """The texts of one language."""

    language: str
    name: str  # The language's own name for itself.
    direction: str  # ltr or rtl
    read_by: str  # the speaker who has read all of it; empty: a draft
    glossary: Mapping[str, str]
    texts: Mapping[str, str]
    values: Mapping[str, str]
    comma: str = ","


@cache
def tables() -> Mapping[str, TextTable]:
    """The tables by code of the language, in the order of their codes."""
    paths = sorted(FOLDER.glob("*.json"))
    return {path.stem: TextTable(**json.loads(path.read_text(encoding="utf-8"))) for path in paths}


@cache
def contents() -> Mapping[str, bytes]:
    """What the browser gets of each table, by the code of the language."""
    contents_by_code: dict[str, bytes] = {}
    for code, table in tables().items():
        parts = {name: getattr(table, name) for name in ("direction", "comma", "read_by", "texts", "values")}
        contents_by_code[code] = json.dumps(parts, ensure_ascii=False).encode()
    return contents_by_code


def script() -> str:
    """The addresses of the tables, for `translate.js`; an address changes with its table."""
    addresses = {code: f"{ADDRESS}/{code}.json?{hashlib.blake2b(content, digest_size=6).hexdigest()}"
                 for code, content in contents().items()}
    return f"window.lisanTables = {json.dumps(addresses)};"


def chooser() -> Html:
    """A list of the languages, and the remark about a draft, which the page's script shows."""
    names = {SOURCE: "English", **{code: table.name for code, table in tables().items()}}
    options = [element("option", name, value=code, lang=code) for code, name in names.items()]
    field = element("select", *options, aria_label="Language of the page", class_="small-button", autocomplete="off")
    return element("span", span("draft", DRAFT, hidden=True), field, id="language", class_="language")
