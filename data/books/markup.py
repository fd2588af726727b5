"""HTML and XHTML as headings and paragraphs, as a person would read them aloud.

Left out are references to footnotes and the footnotes themselves, page numbers, tables of contents, scripts, drawings
and pronunciations above the line (ruby). Text before, after and below an illustration stays; its alternative text is
read only if it is a single letter at the start of a word, a drop cap.

`html.parser` resolves only the entities of HTML, so a document cannot define one that expands, and it never opens
another file.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import chain
from typing import Literal

from config import foreign
from config.errors import UserError

BlockKind = Literal["heading", "paragraph", "break"]
DEEPEST = 400  # open elements
_VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
                   "track", "wbr"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "dialog", "div", "dl",
    "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hgroup", "html", "legend", "li", "main",
    "menu", "ol", "p", "pre", "search", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead", "tr",
    "ul", *_HEADINGS})
_SKIPPED = frozenset({"annotation", "annotation-xml", "audio", "button", "canvas", "head", "iframe", "nav", "noscript",
                      "object", "rp", "rt", "script", "select", "style", "svg", "template", "textarea", "title",
                      "video"})
_SKIPPED_TYPES = frozenset({"noteref", "pagebreak", "footnote", "footnotes", "endnote", "endnotes", "rearnote",
                            "rearnotes", "toc", "landmarks", "page-list", "backlink"})
"""Values of `epub:type`, and of `role` after `doc-`, of what is not read."""
_SKIPPED_CLASSES = frozenset({"pagenum", "pageno", "pagenumber", "page-number", "fnanchor", "noteref", "footnote",
                              "footnotes", "endnotes"})
_NOTES = frozenset({"footnote", "footnotes", "endnote", "endnotes", "rearnote", "rearnotes"})
_LINE, _CELL = "\x1e", "\x1f"  # a line break, and the end of a table cell, in the text that is collected
_REFERENCE = re.compile(r"[(\[{]?\s*(?:\d{1,4}|[*†‡§¶#]{1,4}|[a-z]|[ivxlc]{1,6})\s*[)\]}]?")
_BARE_REFERENCE = re.compile(r"\d{1,4}|[*†‡§¶#]{1,4}|[(\[{]\s*(?:\d{1,4}|[*†‡§¶#]{1,4}|[a-z]|[ivxlc]{1,6})\s*[)\]}]")
_WORD_END = r"(?<=[^\W\d_]{3})|(?<=[.,;:!?…\"'”’»)\]።፣፤፧॥।。」』])"
_AFTER_WORD = re.compile(rf"(?:{_WORD_END})\s?$")
# cos² x and (a + b)² = c are powers.
_FUNCTION = r"(?<=\b(?:sin|cos|tan|cot|sec|csc|log))|(?<=\b(?:sinh|cosh|tanh))"
_POWER = rf"(?:{_FUNCTION})[²³⁴-⁹](?=\s?(?:[^\W\d_]\b|[(\[\d]))|[²³⁴-⁹](?=\s?[=+−×·<>])"
# A number before a letter belongs to it, as in ¹⁴C.
_RAISED = re.compile(rf"(?=\s?[⁰¹²³⁴-⁹])(?!{_POWER})(?:{_WORD_END})(?:[⁰¹²³⁴-⁹]+|\s[⁰¹²³⁴-⁹]+(?!\w))")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
_ENDS = re.compile(r"[.!?…:;,—–-][\"'”’»)\]]*$")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ROMAN = re.compile("[IVXLCDM]+")
_SUBSET_END = re.compile(r"\]\s*>")
_ENTITY = re.compile(r"<!ENTITY\s+([\w.-]{1,100})")
_ENTITY_USE = re.compile(r"&([\w.-]{1,100});")
_DECLARED = re.compile(rb"(?:encoding|charset)\s*=\s*[\"']?\s*([A-Za-z0-9._-]{2,30})")
# Encodings of texts; others that Python has, such as punycode, take quadratic time.
_ENCODINGS = re.compile(r"utf[-_]?8|us-ascii|ascii|latin-?1|iso[-_]8859-\d+|windows-\d+|cp\d+|koi8-[ru]|macintosh|"
                        r"gb2312|gbk|gb18030|big5|shift[-_]jis|euc-(?:jp|kr)|tis-620")


@dataclass(frozen=True)
class TextBlock:
    """A heading, a paragraph, or a break between scenes, which has no text; `anchors`: the ids at its place."""

    kind: BlockKind
    text: str = ""
    level: int = 0  # A heading's level, from 1.
    anchors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Document:
    """A page of a book. `footnotes` counts references to notes, and notes, that were left out."""

    blocks: tuple[TextBlock, ...]
    title: str = ""
    language: str = ""
    footnotes: int = 0

    @property
    def anchors(self) -> frozenset[str]:
        """The ids at any of its blocks."""
        return frozenset(chain.from_iterable(block.anchors for block in self.blocks))


def decode(content: bytes) -> str:
    """Text of markup: by its byte order mark, its declaration, as UTF-8, else as Windows-1252."""
    encoding = foreign.encoding_of(content[:1 << 16])
    if encoding == "utf-8-sig" and not content.startswith(codecs.BOM_UTF8):
        declared = _DECLARED.search(content[:1024])
        name = declared[1].decode("ascii").lower() if declared else ""
        encoding = name if _ENCODINGS.fullmatch(name) else encoding
    for name in (encoding, "utf-8-sig"):
        try:
            return content.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
    return content.decode("cp1252", "replace")


def one_line(text: str) -> str:
    """`text` without invisible characters and control characters, with single spaces."""
    return " ".join(_CONTROL.sub(" ", text.translate(_INVISIBLE)).split())


def join_lines(lines: list[str]) -> str:
    """The lines of a title as one: `Chapter 1. The Boat`, but `A Guide to Understanding`, where the line goes on."""
    title = ""
    for line in filter(None, map(one_line, lines)):
        goes_on = _ENDS.search(title) or _is_short(title.rpartition(" ")[2]) or line[0].islower() or _is_short(line)
        title = line if not title else f"{title} {line}" if goes_on else f"{title}. {line}"
    return title


def _is_short(word: str) -> bool:
    """Whether a line of a title goes on after or before `word`, such as "of" or "IN"; never for a Roman number."""
    return word.islower() and len(word) <= 4 or (
        word.isupper() and word.isalpha() and 2 <= len(word) <= 3 and not _ROMAN.fullmatch(word))


def read_markup(content: str, name: str) -> Document:
    """The blocks of a document; `UserError` with its `name` if it is nested too deeply, or no text."""
    if "\0" in content:
        raise UserError(f"{name} is not a document: it has zero bytes.", "Get the book again.")
    parser = _Parser(name)
    feed(parser, content)
    parser.flush()
    return Document(tuple(parser.blocks), one_line("".join(parser.title)), parser.language, parser.footnotes)


def feed(parser: HTMLParser, content: str) -> None:
    """Parse a whole document in linear time, without what its DOCTYPE declares."""
    parser.feed(_linear(_without_declarations(content)))
    parser.close()


def _without_declarations(content: str) -> str:
    """The document without the declarations in its DOCTYPE, and without the entities that they define."""
    begin = content.find("<!DOCTYPE", 0, 4096)
    opening = content.find("[", begin, begin + 2048) if begin >= 0 else -1
    if opening < 0 or content.find(">", begin, opening) >= 0:
        return content
    end = _SUBSET_END.search(content, opening)
    if end is None:
        return content
    names = frozenset(_ENTITY.findall(content, opening, end.start()))
    remainder = content[end.end():]
    return _ENTITY_USE.sub(lambda use: "" if use[1] in names else use[0], remainder) if names else remainder


def _linear(content: str) -> str:
    """The document without comments, and without tags that never end: `html.parser` reads on to the end for each."""
    pieces: list[str] = []
    place = 0
    begin = content.find("<!--")
    while begin >= 0:
        pieces.append(content[place:begin])
        end = content.find("-->", begin + 4)
        place = len(content) if end < 0 else end + 3
        begin = content.find("<!--", place)
    pieces.append(content[place:])
    text = "".join(pieces)
    # What stands after the last end of a tag is no tag.
    last = text.rfind(">") + 1
    return text[:last] + text[last:].replace("<", "&lt;")


@dataclass
class _Open:
    """An element that is open: whether its content is left out, and where its text begins."""

    tag: str
    skipped: bool
    start: int  # index of its first piece of text
    href: str = ""
    linked: bool = False  # a link lies in it


class _Parser(HTMLParser):
    """Collects blocks; broken markup never fails."""

    def __init__(self, name: str) -> None:
        super().__init__(convert_charrefs=True)
        self.name = name
        self.blocks: list[TextBlock] = []
        self.title: list[str] = []
        self.language = ""
        self.footnotes = 0
        self._stack: list[_Open] = []
        self._open: Counter[str] = Counter()
        self._pieces: list[str] = []
        self._anchors: list[str] = []
        self._skipping = 0
        self._heading = 0  # level of the heading that is open
        self._after_span = False  # an inline element ended, and nothing followed it yet

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        tag = tag.rpartition(":")[2]
        if tag in _VOID:
            self._void(tag, attrs)
            return
        # In HTML the end tag of a head is optional; blocks of a head itself lie in `noscript` or `template`.
        if self._open["head"] and (tag == "body" or tag in _BLOCKS and self._skipping == 1):
            self.handle_endtag("head")
        # A paragraph ends where the next block begins, also without its end tag.
        if tag in _BLOCKS and self._stack and self._stack[-1].tag == "p":
            self._pop()
        if len(self._stack) >= DEEPEST:
            raise UserError(f"{self.name} is nested more than {DEEPEST} levels deep.",
                            "Open it in an e-book editor and save it again.")
        self._begin(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag.rpartition(":")[2] not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        tag = tag.rpartition(":")[2]
        if not self._open[tag]:
            return
        while self._stack[-1].tag != tag:
            self._pop()
        self._pop()

    def handle_data(self, data: str) -> None:
        if self._stack and self._stack[-1].tag == "title" and not self._open["svg"]:
            self.title.append(data)
        if self._skipping or not data:
            return
        # Parts of a title that touch are lines of it, which a style sheet sets below each other.
        self._after_span = False
        self._pieces.append(data)

    def unknown_decl(self, data: str) -> None:
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))

    def flush(self) -> None:
        """End the block that is collected."""
        if not self._pieces:
            return
        raw = "".join(self._pieces)
        self._pieces.clear()
        for element in self._stack:
            element.start = 0
        if raw.isspace():
            return
        if self._heading:
            text = join_lines(raw.split(_LINE))
        else:
            cells = [one_line(cell) for cell in raw.replace(_LINE, " ").split(_CELL)]
            text = ", ".join(cell for cell in cells if cell)
        text, count = _RAISED.subn("", text)
        self.footnotes += count
        if not text:
            return
        kind: BlockKind = "heading" if self._heading else "paragraph"
        self._emit(TextBlock(kind, text, self._heading))

    def _emit(self, block: TextBlock) -> None:
        self.blocks.append(TextBlock(block.kind, block.text, block.level, tuple(self._anchors)))
        self._anchors.clear()

    def _void(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if attributes.get("id") and not self._skipping:
            self._anchor(attributes)
        if self._skipping:
            return
        if tag == "br":
            self._pieces.append(_LINE)
        elif tag == "hr":
            self.flush()
            self._emit(TextBlock("break"))
        elif tag == "img":
            alternative = one_line(attributes.get("alt") or "")
            # A drop cap is a letter; a heading that is a picture has its text there.
            if (len(alternative) == 1 and alternative.isalpha()) or (self._heading and alternative):
                self._pieces.append(alternative)

    def _anchor(self, attributes: Mapping[str, str | None]) -> None:
        for name in ("id", "name"):
            value = attributes.get(name)
            if value:
                self._anchors.append(value[:200])

    def _begin(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "html" or (tag == "body" and not self.language):
            self.language = one_line(attributes.get("xml:lang") or attributes.get("lang") or self.language)
        kinds = f"{attributes.get('epub:type') or ''} {attributes.get('role') or ''}"
        types = {word.removeprefix("doc-") for word in kinds.lower().split()}
        classes = set((attributes.get("class") or "").lower().split())
        left_out = types & _SKIPPED_TYPES or classes & _SKIPPED_CLASSES
        skipped = bool(tag in _SKIPPED or left_out or "hidden" in attributes
                       or re.search(r"display\s*:\s*none", attributes.get("style") or ""))

        # Blocks within a heading are lines of it.
        if tag in _BLOCKS and not self._skipping:
            if self._heading:
                self._pieces.append(_LINE)
            elif tag not in ("td", "th"):
                self.flush()
        elif self._heading and self._after_span and tag == "span":
            self._pieces.append(_LINE)
        if not self._skipping and ("id" in attributes or "name" in attributes):
            self._anchor(attributes)
        if tag in _HEADINGS and not self._skipping and not self._heading:
            self._heading = _HEADINGS[tag]
        if skipped and not self._skipping and (
                "noteref" in types | classes or "fnanchor" in classes or (types | classes) & _NOTES):
            self.footnotes += 1

        self._after_span = False
        self._skipping += skipped
        self._stack.append(_Open(tag, skipped, len(self._pieces), attributes.get("href") or ""))
        self._open[tag] += 1
        if tag == "a" and "#" in (attributes.get("href") or ""):
            for element in self._stack:
                element.linked = True

    def _pop(self) -> None:
        element = self._stack.pop()
        self._open[element.tag] -= 1
        if element.skipped:
            self._skipping -= 1
            return
        if self._skipping:
            return
        if element.tag in ("sup", "a"):
            self._drop_reference(element)
        if element.tag in ("td", "th") and not self._heading:
            self._pieces.append(_CELL)
        elif element.tag in _HEADINGS and not any(outer.tag in _HEADINGS for outer in self._stack):
            self.flush()
            self._heading = 0
        elif element.tag in _BLOCKS:
            if self._heading:
                self._pieces.append(_LINE)
            else:
                self.flush()
        self._after_span = element.tag == "span"

    def _drop_reference(self, element: _Open) -> None:
        """Take back the text of an element if it is the number or sign of a footnote."""
        text = "".join(self._pieces[element.start:]).strip()
        before = "".join(self._pieces[max(0, element.start - 8):element.start])[-8:]
        if element.tag == "a":
            within_raised = any(outer.tag == "sup" for outer in self._stack)
            pattern = _REFERENCE if within_raised else _BARE_REFERENCE
            # "see chapter 3" is a link after a space; a reference touches the word before it or has brackets.
            touches = bool(before) and not before[-1].isspace()
            dropped = bool("#" in element.href and pattern.fullmatch(text)
                           and (within_raised or touches or not text[0].isdigit()))
        elif self._is_linked(element):
            dropped = bool(_REFERENCE.fullmatch(text))
        else:
            # Without a link a letter belongs to the text, as in XVIIIe. A number waits for what follows it (`_RAISED`).
            dropped = bool(not text.isdigit() and _BARE_REFERENCE.fullmatch(text) and _AFTER_WORD.search(before))
        if dropped and text:
            del self._pieces[element.start:]
            self.footnotes += 1
        elif element.tag == "sup" and element.linked and not any(letter.isalnum() for letter in text):
            # Brackets around a reference that was dropped.
            del self._pieces[element.start:]
        elif element.tag == "sup" and text.isdigit():
            self._pieces[element.start:] = [piece.translate(_SUPERSCRIPT) for piece in self._pieces[element.start:]]

    def _is_linked(self, element: _Open) -> bool:
        """Whether an element is all that a link to a place in a document has before its end."""
        links = [outer for outer in self._stack if "#" in outer.href]
        return any(not "".join(self._pieces[link.start:element.start]).strip() for link in links)
