"""A book file as chapters, by its suffix: EPUB, HTML, Markdown or plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from config import foreign
from config.errors import UserError
from data.books import markup
from data.books.epub import Entry, read_epub
from data.books.markup import TextBlock

SUFFIXES = (".epub", ".html", ".htm", ".xhtml", ".md", ".markdown", ".txt")
_FORMATS = "Give an EPUB (.epub), HTML (.html), Markdown (.md) or plain text (.txt) in UTF-8."
MOST_MARKDOWN_BYTES = 16 << 20
_LONG_CHAPTER_WORDS = 6000  # 40 minutes of speech
_DEEPEST_LEVEL = 4  # Long chapters are divided at entries of up to so many more levels.
# A line of plain text names a chapter by a division with a number, or by a section; in some languages with many books.
_DIVISIONS = """
    chapter part book chapitre partie livre kapitel teil buch capítulo capitulo parte libro livro capitolo глава часть
    hoofdstuk deel rozdział część kapitola kapittel luku bölüm sura sehemu ምዕራፍ ክፍል kutaa boqonnaa"""
_SECTIONS = """
    prologue epilogue introduction preface foreword afterword épilogue préface prolog epilog vorwort nachwort einleitung
    prólogo prologo epílogo epilogo prefacio prefácio introducción introdução introduzione prefazione пролог эпилог
    предисловие voorwoord wstęp መቅድም መግቢያ"""
# Without "to" and "on", which are numbers in Norwegian and Turkish.
_NUMBER_WORDS = """
    one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
    nineteen twenty thirty forty fifty sixty seventy eighty ninety first second third fourth fifth sixth seventh eighth
    ninth tenth eleventh twelfth last
    un une deux trois quatre cinq six sept huit neuf dix onze douze premier première deuxième second seconde troisième
    quatrième cinquième sixième septième huitième neuvième dixième onzième douzième dernier dernière
    eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf
    uno dos tres cuatro cinco seis siete ocho nueve diez once doce primero primera segundo segunda tercero tercera
    cuarto cuarta quinto quinta sexto sexta séptimo séptima octavo octava noveno novena décimo décima último última
    um uma dois duas três quatro cinco sete oito nove dez doze primeiro primeira terceiro terceira quarto quarta sétimo
    sétima oitavo oitava nono nona
    due tre quattro cinque sei sette otto dieci undici dodici primo prima secondo seconda terzo terza sesto sesta
    settimo settima ottavo ottava ultimo ultima
    один одна два две три четыре пять шесть семь восемь девять десять одиннадцать двенадцать первая вторая третья
    четвёртая четвертая пятая шестая седьмая восьмая девятая десятая одиннадцатая двенадцатая последняя
    een één twee drie vier vijf zes zeven acht negen tien elf twaalf
    jeden dwa trzy cztery pięć sześć siedem osiem dziewięć dziesięć pierwszy pierwsza drugi druga trzeci trzecia czwarty
    czwarta piąty piąta szósty szósta siódmy siódma ósmy ósma dziewiąty dziewiąta dziesiąty dziesiąta
    jedna dvě tři čtyři pět šest sedm osm devět deset první druhá třetí čtvrtá pátá šestá sedmá osmá devátá desátá
    én tre fire fem seks sju syv åtte elleve tolv
    yksi kaksi kolme neljä viisi kuusi seitsemän kahdeksan yhdeksän kymmenen
    bir iki üç dört beş altı yedi sekiz dokuz
    moja mbili tatu nne tano sita saba nane tisa kumi kwanza pili
    አንድ ሁለት ሦስት ሶስት አራት አምስት ስድስት ሰባት ስምንት ዘጠኝ አሥር አስር
    አንደኛ ሁለተኛ ሦስተኛ ሶስተኛ አራተኛ አምስተኛ ስድስተኛ ሰባተኛ ስምንተኛ ዘጠነኛ አሥረኛ አስረኛ
    tokko lama sadii afur shan jaha torba saddeet sagal kudhan tokkoffaa lammaffaa sadaffaa afraffaa shanaffaa"""
_ROMAN_NUMBER = "(?=[ivxlc])c{0,3}(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})"
_NUMBER_WORD = f"(?:{'|'.join(_NUMBER_WORDS.split())})"
_NUMBER = rf"\d{{1,4}}|[፩-፼]{{1,6}}|{_ROMAN_NUMBER}|(?:the |ya )?{_NUMBER_WORD}(?:[ -]{_NUMBER_WORD})?"
_CHAPTER_LINE = re.compile(
    rf"(?:(?:{'|'.join(_DIVISIONS.split())}) (?P<number>{_NUMBER})|{'|'.join(_SECTIONS.split())})"
    r"(?!\w)(?P<mark>(?:\s*[.:)፡።—–-])*)(?P<title>.{0,70})", re.IGNORECASE)
_FOOTNOTE_TEXT = re.compile(r"^\[\^[^\]\n]{1,60}\]:.*(?:\n(?:[ \t]{2,}.*|[ \t]*(?=\n[ \t]{2,})))*", re.MULTILINE)
_FOOTNOTE_MARK = re.compile(r"\[\^[^\]\n]{1,60}\]")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_FIELD = re.compile(r"^(title|author|lang|language):[ \t]*[\"']?(.*?)[\"']?[ \t]*$", re.MULTILINE | re.IGNORECASE)
_BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True)
class Chapter:
    """A chapter: its title, on one line, and what is read of it."""

    title: str
    blocks: tuple[TextBlock, ...]


@dataclass(frozen=True)
class Book:
    """A book in its reading order. `cover`: a picture as it was stored. `notes`: what was left out, a sentence each."""

    title: str
    authors: tuple[str, ...]
    language: str
    chapters: tuple[Chapter, ...]
    cover: bytes = b""
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> int:
        return sum(len(block.text.split()) for block in self.blocks)

    @property
    def blocks(self) -> tuple[TextBlock, ...]:
        """The blocks of all chapters."""
        return tuple(chain.from_iterable(chapter.blocks for chapter in self.chapters))


def read_book(path: Path, name: str = "") -> Book:
    """The book at `path`, called `name` in messages; `UserError` for one that cannot be read or has no text."""
    name = name or path.name
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"{name} has the suffix {suffix or 'none'!r}, which no book has that Lisan reads.", _FORMATS)
    if not path.is_file():
        raise UserError(f"There is no file {path}.", _FORMATS)
    book = (_of_epub(path) if suffix == ".epub" else _of_markdown(path, name) if suffix in (".md", ".markdown")
            else _of_text(path, name) if suffix == ".txt" else _of_html(path, name))
    if not book.chapters:
        raise UserError(f"{name} has no text to read.", "A book of pictures alone has none; give another one.")
    return book


def _of_epub(path: Path) -> Book:
    packed = read_epub(path)
    chapters = _chapters_of_contents(packed.documents, packed.contents, packed.title)
    if len(chapters) < 2:
        # Without a table of contents each document with a heading begins a chapter.
        parts = [list(document.blocks) for _, document in packed.documents]
        by_document = list(_titled(_joined_without_heading(parts), packed.title))
        by_heading = list(_by_headings(list(chain.from_iterable(parts)), packed.title))
        chapters = by_document if len(by_document) > 1 else by_heading
    footnotes = sum(document.footnotes for _, document in packed.documents)
    language = packed.language or next((document.language for _, document in packed.documents if document.language), "")
    return Book(packed.title or path.stem, packed.authors, language, tuple(chapters), packed.cover,
                (*packed.notes, *_footnote_note(footnotes)))


def _chapters_of_contents(documents: Sequence[tuple[str, markup.Document]],
                          contents: Sequence[Entry], book_title: str) -> list[Chapter]:
    """A chapter begins at each entry of the top level, and at the first entry of any level that names a document.

    A chapter of more than `_LONG_CHAPTER_WORDS` words is divided at the entries of the next level in it. Documents that
    no entry names belong to the chapter before them. Entries may repeat, or name places in any order.
    """
    names = {name for name, _ in documents}
    by_document: dict[str, list[Entry]] = {}
    starts: list[Entry] = []
    for entry in contents:
        if entry.document in names:
            if entry.level == 0 or entry.document not in by_document:
                starts.append(entry)
            by_document.setdefault(entry.document, []).append(entry)

    parts = _cut(documents, starts)
    for _ in range(_DEEPEST_LEVEL):
        further: list[Entry] = []
        for part in parts:
            if sum(len(block.text.split()) for block in part.texts) > _LONG_CHAPTER_WORDS:
                further += _next_level(part, by_document, starts)
        if not further:
            break
        starts += further
        parts = _cut(documents, starts)
    return list(_titled(((part.title, part.texts) for part in parts), book_title))


@dataclass(frozen=True)
class _Part:
    """Blocks with the names of their documents, from an entry of the table of contents to the next."""

    title: str
    blocks: list[tuple[str, TextBlock]]

    @property
    def texts(self) -> list[TextBlock]:
        return [block for _, block in self.blocks]


def _cut(documents: Sequence[tuple[str, markup.Document]], starts: Sequence[Entry]) -> list[_Part]:
    titles_by_document: dict[str, dict[str, str]] = {}
    for entry in starts:
        titles_by_document.setdefault(entry.document, {}).setdefault(entry.anchor, entry.title)
    parts: list[_Part] = []
    for name, document in documents:
        titles = titles_by_document.get(name, {})
        anchors = document.anchors
        # No anchor means the beginning of the document; so does a lost one, if it is the only entry.
        whole = titles.get("") or ("" if anchors & titles.keys() else next(iter(titles.values()), ""))
        if whole or not parts:
            parts.append(_Part(whole, []))
        for block in document.blocks:
            anchor = next((anchor for anchor in block.anchors if anchor in titles), None)
            if anchor is not None:
                # Text of this document before its first entry is the end of the chapter before.
                parts.append(_Part(titles.pop(anchor), []))
            parts[-1].blocks.append((name, block))
    return parts


def _next_level(part: _Part, by_document: Mapping[str, Sequence[Entry]], starts: Sequence[Entry]) -> list[Entry]:
    """The entries of the highest level that name a place within a part, and begin none yet."""
    start_places = {(entry.document, entry.anchor) for entry in starts}
    places: set[tuple[str, str]] = set()
    for name, block in part.blocks:
        places.update((name, anchor) for anchor in block.anchors)
    inside: list[Entry] = []
    for name in dict.fromkeys(name for name, _ in part.blocks):
        inside += [entry for entry in by_document.get(name, ()) if (name, entry.anchor) in places - start_places]
    level = min((entry.level for entry in inside), default=0)
    return [entry for entry in inside if entry.level == level]


def _joined_without_heading(parts: Iterable[list[TextBlock]]) -> list[tuple[str, list[TextBlock]]]:
    """Each part that begins with a heading, with the parts without one that follow it."""
    joined: list[tuple[str, list[TextBlock]]] = []
    for blocks in parts:
        if joined and not any(block.kind == "heading" for block in blocks[:3]):
            joined[-1][1].extend(blocks)
        else:
            joined.append(("", list(blocks)))
    return joined


def _titled(parts: Iterable[tuple[str, Sequence[TextBlock]]], book_title: str) -> Iterator[Chapter]:
    """Chapters of the parts with text. Without a title of its own a chapter has that of its first headings."""
    number = 0
    for title, blocks in parts:
        if not any(block.text for block in blocks):
            continue
        number += 1
        yield Chapter(title or _first_headings(blocks) or (book_title if number == 1 else "") or f"{number}",
                      tuple(blocks))


def _first_headings(blocks: Sequence[TextBlock]) -> str:
    """The headings before the first paragraph as one line."""
    lines: list[str] = []
    for block in blocks:
        if block.kind == "paragraph":
            break
        if block.text:
            lines.append(block.text)
    return markup.join_lines(lines[:3])[:300]


def _by_headings(blocks: Sequence[TextBlock], book_title: str) -> Iterator[Chapter]:
    """Chapters begin at the headings of the highest level that occurs twice, else at those of the highest level."""
    levels = [block.level for block in blocks if block.kind == "heading"]
    level = next((level for level in sorted(set(levels)) if levels.count(level) > 1), min(levels, default=0))
    parts: list[tuple[str, list[TextBlock]]] = [("", [])]
    for block in blocks:
        # A heading directly after another one continues its title.
        follows_heading = bool(parts[-1][1]) and all(part.kind == "heading" for part in parts[-1][1])
        if block.kind == "heading" and block.level <= level and not (follows_heading and len(parts) > 1):
            parts.append(("", []))
        parts[-1][1].append(block)
    yield from _titled(parts, book_title)


def _of_html(path: Path, name: str) -> Book:
    content = foreign.read_bytes(path)
    document = markup.read_markup(markup.decode(content), name)
    return _of_document(document, document.title or Path(name).stem, ())


def _of_document(document: markup.Document, title: str, authors: tuple[str, ...], language: str = "") -> Book:
    chapters = tuple(_by_headings(document.blocks, title))
    return Book(title, authors, language or document.language, chapters, b"", _footnote_note(document.footnotes))


def _footnote_note(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"{count:,} {'footnote or reference to one is' if count == 1 else 'footnotes and references to them are'} "
            "not read.",)


def _of_markdown(path: Path, name: str) -> Book:
    from markdown_it import MarkdownIt  # takes 50 ms

    text = foreign.read_text(path, name).replace("\r\n", "\n")
    if len(text) > MOST_MARKDOWN_BYTES:
        raise UserError(f"{name} has {len(text):,} characters; Markdown may have {MOST_MARKDOWN_BYTES:,}.",
                        "Give it in parts.")
    fields: dict[str, str] = {}
    front_matter = _FRONT_MATTER.match(text)
    if front_matter:
        fields = {key.lower(): value for key, value in _FIELD.findall(front_matter[1])}
        text = text[front_matter.end():]

    # Footnotes are not part of CommonMark.
    text, definitions = _FOOTNOTE_TEXT.subn("", text)
    text, marks = _FOOTNOTE_MARK.subn("", text)
    with foreign.reading(name, _FORMATS):
        html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    document = markup.read_markup(html, name)
    footnotes = document.footnotes + definitions + marks
    document = markup.Document(document.blocks, document.title, document.language, footnotes)
    heading = next((block.text for block in document.blocks if block.kind == "heading" and block.level == 1), "")
    title = markup.one_line(fields.get("title", "")) or heading or Path(name).stem
    author = markup.one_line(fields.get("author", ""))
    language = fields.get("lang") or fields.get("language") or ""
    return _of_document(document, title, (author,) if author else (), language)


def _of_text(path: Path, name: str) -> Book:
    """Paragraphs stand between empty lines; without empty lines each line is one."""
    text = foreign.read_text(path, name).replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n")
    paragraphs = _BLANK_LINES.split(text) if _BLANK_LINES.search(text) else text.split("\n")
    blocks: list[TextBlock] = []
    for paragraph in paragraphs:
        line = markup.one_line(paragraph)
        if not any(letter.isalnum() for letter in line):
            # Stars or dashes alone separate scenes.
            blocks += [TextBlock("break")] if line else []
        elif _is_chapter_line(line):
            blocks.append(TextBlock("heading", markup.join_lines(paragraph.split("\n")), 1))
        else:
            blocks.append(TextBlock("paragraph", line))
    return Book(Path(name).stem, (), "", tuple(_by_headings(blocks, Path(name).stem)))


def _is_chapter_line(line: str) -> bool:
    """Whether a paragraph of plain text names a chapter, as `CHAPTER 1. Loomings.`, `Part Two` and `Prologue` do."""
    match = _CHAPTER_LINE.fullmatch(line)
    if match is None:
        return False
    title = match["title"].strip(" —–-")
    if not title or (match["number"] and match["mark"]):
        return True
    # A sentence goes on in lower case, as in "Part one of him believed it", or ends with a mark.
    return not title[0].islower() and title[-1] not in ".!?…,;።"
