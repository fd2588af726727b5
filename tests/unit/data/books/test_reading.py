"""Books as chapters: the order of the spine, titles, what is not read, and the faults of other programs as kinds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.errors import UserError
from data.books.markup import TextBlock, join_lines, read_markup
from data.books.reading import SUFFIXES, Book, read_book
from tests.books import epub, item, navigation, package, page, plain_book

OTHER_BOOKS = os.environ.get("LISAN_TEST_BOOKS", "")
"""A folder of EPUB files that other programs made, such as those of IDPF/epub3-samples."""


def texts(book: Book) -> list[str]:
    return [block.text for chapter in book.chapters for block in chapter.blocks]


def blocks(body: str) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for block in read_markup(page(body), "a page").blocks]


def test_the_spine_orders_the_book_and_not_the_manifest(tmp_path: Path) -> None:
    files = {f"OPS/{name}.xhtml": page(f"<h1>{name}</h1><p>Text of {name}.</p>") for name in ("a", "b", "c")}
    manifest = [item("a", "a.xhtml"), item("b", "b.xhtml"), item("c", "c.xhtml")]
    book = read_book(epub(tmp_path / "book.epub", {"OPS/package.opf": package(manifest, ["c", "a", "b"]), **files}))
    assert [chapter.title for chapter in book.chapters] == ["c", "a", "b"]
    assert (book.title, book.authors, book.language) == ("The Boat", ("Ada Reed",), "en-GB")


def test_a_heading_without_text_gets_the_title_of_the_contents(tmp_path: Path) -> None:
    files = {"OPS/a.xhtml": page('<h2><img src="one.png"/></h2><p>It rained.</p>'),
             "OPS/b.xhtml": page("<h2></h2><p>It stopped.</p>"),
             "OPS/nav.xhtml": navigation('<li><a href="a.xhtml">Rain</a></li><li><a href="b.xhtml">Sun</a></li>')}
    manifest = [item("a", "a.xhtml"), item("b", "b.xhtml"), item("nav", "nav.xhtml", more=' properties="nav"')]
    book = read_book(epub(tmp_path / "book.epub", {"OPS/package.opf": package(manifest, ["a", "b"]), **files}))
    assert [chapter.title for chapter in book.chapters] == ["Rain", "Sun"]
    assert texts(book) == ["It rained.", "It stopped."]


def test_without_any_title_chapters_are_numbered(tmp_path: Path) -> None:
    book = read_book(plain_book(tmp_path / "book.epub", "<h1></h1><p>One.</p>", "<h1><br/></h1><p>Two.</p>"))
    assert all(chapter.title.strip() for chapter in book.chapters)


@pytest.mark.parametrize(("lines", "title"), [
    (["CHAPTER I", "Down the Rabbit-Hole"], "CHAPTER I. Down the Rabbit-Hole"),
    (["A Guide to", "Understanding"], "A Guide to Understanding"),
    (["ALICE", "IN", "WONDERLAND"], "ALICE IN WONDERLAND"),
    (["Part One:", "The Sea"], "Part One: The Sea"),
    (["ምዕራፍ አንድ", "ጀልባው"], "ምዕራፍ አንድ. ጀልባው"),
    (["", " The \n Boat "], "The Boat"),
])
def test_titles_of_several_lines_become_one_line(lines: list[str], title: str) -> None:
    assert join_lines(lines) == title


@pytest.mark.parametrize("heading", [
    "<h1>CHAPTER I<br/>The Boat</h1>", "<h1><span>CHAPTER I</span><span>The Boat</span></h1>",
    "<h1><div>CHAPTER I</div><div>The Boat</div></h1>", "<h1>\n  CHAPTER I\n  <br/>\n The\n Boat</h1>",
])
def test_a_heading_of_several_lines_is_one_block(heading: str) -> None:
    assert blocks(f"{heading}<p>It rained.</p>") == [("heading", "CHAPTER I. The Boat"), ("paragraph", "It rained.")]


@pytest.mark.parametrize("body", [
    '<p>Before <img src="a.png" alt="A picture"/> after.</p>', "<p>Before <svg><text>drawn</text></svg> after.</p>",
    '<p>Before <span><img src="a.png"/></span> after.</p>',
])
def test_text_around_an_illustration_stays(body: str) -> None:
    assert blocks(body) == [("paragraph", "Before after.")]


def test_text_beside_a_figure_stays_with_its_caption() -> None:
    body = '<div>Before<figure><img src="a.png" alt="no"/><figcaption>A boat.</figcaption></figure>after</div>'
    assert [text for _, text in blocks(body)] == ["Before", "A boat.", "after"]


def test_a_drop_cap_is_a_letter_of_its_word() -> None:
    assert blocks('<p><img src="a.png" alt="A"/>lice was tired.</p>') == [("paragraph", "Alice was tired.")]
    assert blocks('<p><span class="cap">A</span>lice was tired.</p>') == [("paragraph", "Alice was tired.")]


@pytest.mark.parametrize("mark", [
    '<a epub:type="noteref" href="#n1">1</a>', '<a role="doc-noteref" href="notes.xhtml#n1">12</a>', "<sup>[3]</sup>",
    '<sup><a href="#n1">1</a></sup>', '<a href="#n1"><sup>1</sup></a>', "<sup>1</sup>", "<sup>*</sup>",
    '<a href="n.xhtml#n1">[12]</a>', '<a href="#n1">1</a>', '<a class="fnanchor" href="#n1">[a]</a>', "²",
    '<sup><a href="#n">a</a></sup>', '<span epub:type="pagebreak" title="12">12</span>',
    '<span class="pagenum">[12]</span>', '<a href="#n1">*</a>', '<a href="#n1">†</a>', "<sup>(a)</sup>", "<sup>#</sup>",
    '<sup>[<a href="#n1">1</a>]</sup>', '<sup><a href="#n1">1</a>,<a href="#n2">2</a></sup>',
    '<a href="#n1"><sup>a</sup></a>', " <sup>1</sup>",
])
def test_footnote_numbers_and_page_numbers_are_not_read(mark: str) -> None:
    assert blocks(f"<p>It rained{mark} again.</p>") == [("paragraph", "It rained again.")]
    assert blocks(f"<p>It rained.{mark} Again.</p>") == [("paragraph", "It rained. Again.")]


@pytest.mark.parametrize(("body", "text"), [
    ("<p>See chapter <a href='#c3'>3</a>.</p>", "See chapter 3."), ("<p>On the 1<sup>st</sup> of May.</p>",
                                                                   "On the 1st of May."),
    ("<p>It has 20 m<sup>2</sup>.</p>", "It has 20 m²."), ("<p>About 10<sup>6</sup> of them.</p>",
                                                          "About 10⁶ of them."),
    ("<p>Water is H<sub>2</sub>O.</p>", "Water is H2O."), ("<p>Born in 1914.</p>", "Born in 1914."),
    ("<p>M<sup>me</sup> Reed</p>", "Mme Reed"), ("<p>Le XVIII<sup>e</sup> siècle</p>", "Le XVIIIe siècle"),
    ("<p>D.<sup>a</sup> Ana y S.<sup>r</sup> Paz</p>", "D.a Ana y S.r Paz"),
    ("<p><a href='#c18'>Le XVIII<sup>e</sup> siècle</a></p>", "Le XVIIIe siècle"),
    ("<p>cos<sup>2</sup> x + sin<sup>2</sup>(y) = 1</p>", "cos² x + sin²(y) = 1"),
    ("<p>(a + b)<sup>2</sup> = c</p>", "(a + b)² = c"), ("<p>By the <sup>14</sup>C in it.</p>", "By the ¹⁴C in it."),
    ("<p>A sin<sup>2</sup> indeed; a cost<sup>2</sup> of it.</p>", "A sin indeed; a cost of it."),
])
def test_numbers_that_belong_to_the_text_stay(body: str, text: str) -> None:
    assert blocks(body) == [("paragraph", text)]


@pytest.mark.parametrize("note", [
    '<aside epub:type="footnote" id="n1"><p>1 A note.</p></aside>',
    '<section role="doc-endnotes"><p>A note.</p></section>',
    '<div class="footnotes"><h2>Notes</h2><p>A note.</p></div>', "<p hidden>A note.</p>", "<script>a note()</script>",
    '<nav epub:type="landmarks"><ol><li>Cover</li></ol></nav>', '<p style="display: none">A note.</p>',
    "<style>p { color: red }</style>", "<template><p>A note.</p></template>",
])
def test_notes_and_hidden_parts_are_not_read(note: str) -> None:
    document = read_markup(page(f"<p>It rained.</p>{note}<p>It stopped.</p>"), "a page")
    assert [block.text for block in document.blocks] == ["It rained.", "It stopped."]


def test_left_out_notes_are_counted(tmp_path: Path) -> None:
    body = '<h1>One</h1><p>Rain<sup>1</sup>.</p><aside epub:type="footnote"><p>A note.</p></aside>'
    book = read_book(plain_book(tmp_path / "book.epub", body))
    assert any(note.startswith("2 footnotes") for note in book.notes)


def test_paragraphs_lists_tables_and_breaks() -> None:
    body = ("<p>One<br/>line.</p><hr/><ul><li>first<li>second</ul><table><tr><td>a</td><td>b</td></tr></table>"
            "<blockquote>Quoted.</blockquote>loose<p>unclosed<p>next</p>")
    assert blocks(body) == [
        ("paragraph", "One line."), ("break", ""), ("paragraph", "first"), ("paragraph", "second"),
        ("paragraph", "a, b"), ("paragraph", "Quoted."), ("paragraph", "loose"), ("paragraph", "unclosed"),
        ("paragraph", "next")]


@pytest.mark.parametrize("content", [
    "<head><title>Rain</title><body><p>It rained.", "<!doctype html><head><title>Rain</title><p>It rained.",
    "<!doctype html><title>Rain</title><p>It rained.", "<html><head><title>Rain</title><div>It rained.</div></html>",
    "<head><title>Rain</title><meta charset=utf-8><noscript><p>none</p></noscript><style>p {}</style><body>It rained.",
    "<head><title>Rain</title><center>It rained.</center></body>",
    "<html><head><title>Rain</title></head><body><svg><title>A drop</title></svg><p>It rained.</p></body></html>",
])
def test_tags_that_html_leaves_optional(content: str) -> None:
    document = read_markup(content, "a page")
    assert document.title == "Rain"
    assert document.blocks == (TextBlock("paragraph", "It rained."),)


def test_characters_that_are_not_seen_are_left_out() -> None:
    assert blocks("<p>hy\u00adphen zero\u200bwidth no\u00a0break &eacute;&#233;&amp;</p>") == [
        ("paragraph", "hyphen zerowidth no break éé&")]
    assert blocks("<p>東<ruby>京<rp>(</rp><rt>きょう</rt><rp>)</rp></ruby></p>") == [("paragraph", "東京")]


def test_entities_of_a_document_are_neither_expanded_nor_read() -> None:
    content = ('<!DOCTYPE html [<!ENTITY xxe SYSTEM "file:///etc/passwd"><!ENTITY a "&xxe;&xxe;">]>'
               "<html><body><p>Before &xxe;&a;after &eacute;.</p></body></html>")
    assert [block.text for block in read_markup(content, "a page").blocks] == ["Before after é."]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "windows-1252"])
def test_documents_of_other_encodings(tmp_path: Path, encoding: str) -> None:
    content = f'<?xml version="1.0" encoding="{encoding}"?><html><body><h1>É</h1><p>déjà</p></body></html>'
    manifest = [item("a", "a.xhtml")]
    path = epub(tmp_path / "book.epub", {"OPS/package.opf": package(manifest, ["a"]),
                                         "OPS/a.xhtml": content.encode(encoding)})
    assert texts(read_book(path)) == ["É", "déjà"]


NCX = ('<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap><navPoint id="1"><navLabel><text>Part\none</text>'
       '</navLabel><content src="a.xhtml"/><navPoint id="2"><navLabel><text>Rain</text></navLabel>'
       '<content src="b%20b.xhtml#start"/></navPoint></navPoint></navMap><pageList><pageTarget><navLabel><text>7</text>'
       '</navLabel><content src="b%20b.xhtml#p7"/></pageTarget></pageList></ncx>')


def test_the_contents_of_epub_2(tmp_path: Path) -> None:
    files = {"OPS/a.xhtml": page("<p>A part.</p>"),
             "OPS/b b.xhtml": page('<p id="start">It rained.</p><p id="p7">On.</p>'),
             "OPS/c.xhtml": page("<p>It went on.</p>"), "OPS/toc.ncx": NCX}
    manifest = [item("a", "a.xhtml"), item("b", "b%20b.xhtml"), item("c", "c.xhtml"),
                item("ncx", "toc.ncx", "application/x-dtbncx+xml")]
    book = read_book(epub(tmp_path / "book.epub", {
        "OPS/package.opf": package(manifest, ["a", "b", "c"], spine_attributes=' toc="ncx"'), **files}))
    assert [chapter.title for chapter in book.chapters] == ["Part one", "Rain"]
    assert [block.text for block in book.chapters[1].blocks] == ["It rained.", "On.", "It went on."]


def test_entries_within_a_document_divide_it(tmp_path: Path) -> None:
    body = '<p>Foreword.</p><h2 id="one">One</h2><p>It rained.</p><h2 id="two">Two</h2><p>It stopped.</p>'
    entries = '<li><a href="a.xhtml#one">First</a></li><li><a href="a.xhtml#two">Second</a></li>'
    files = {"OPS/a.xhtml": page(body), "OPS/nav.xhtml": navigation(entries)}
    manifest = [item("a", "a.xhtml"), item("nav", "nav.xhtml", more=' properties="nav"')]
    book = read_book(epub(tmp_path / "book.epub", {"OPS/package.opf": package(manifest, ["nav", "a"]), **files}))
    assert [(chapter.title, len(chapter.blocks)) for chapter in book.chapters] == [("The Boat", 1), ("First", 2),
                                                                                   ("Second", 2)]


def test_a_long_chapter_is_divided_at_the_entries_below_it(tmp_path: Path) -> None:
    long_text = "<p>" + "rain " * 4000 + "</p>"
    body = f'<h1>Part</h1><h2 id="one">One</h2>{long_text}<h2 id="two">Two</h2>{long_text}'
    entries = ('<li><a href="a.xhtml">Part</a><ol><li><a href="a.xhtml#one">One</a></li>'
               '<li><a href="a.xhtml#two">Two</a></li></ol></li><li><a href="b.xhtml">End</a></li>')
    files = {"OPS/a.xhtml": page(body), "OPS/b.xhtml": page("<p>End.</p>"), "OPS/nav.xhtml": navigation(entries)}
    manifest = [item("a", "a.xhtml"), item("b", "b.xhtml"), item("nav", "nav.xhtml", more=' properties="nav"')]
    book = read_book(epub(tmp_path / "book.epub", {"OPS/package.opf": package(manifest, ["a", "b"]), **files}))
    assert [chapter.title for chapter in book.chapters] == ["Part", "One", "Two", "End"]


@pytest.mark.parametrize("entries", [
    '<li><a href="a.xhtml">A</a></li>' * 50, '<li><a href="nav.xhtml">Self</a></li><li><a href="a.xhtml">A</a></li>',
    '<li><a href="b.xhtml">B</a><ol><li><a href="a.xhtml">A</a><ol><li><a href="b.xhtml">B</a></li></ol></li></ol>',
    '<li><a href="../../a.xhtml">Out</a></li><li><a href="http://x.example/a.xhtml">Far</a></li>',
    "<ol>" * 300 + '<li><a href="a.xhtml">A</a></li>',
])
def test_contents_in_a_circle_or_out_of_the_book_change_no_order(tmp_path: Path, entries: str) -> None:
    files = {"OPS/a.xhtml": page("<h1>A</h1><p>First.</p>"), "OPS/b.xhtml": page("<h1>B</h1><p>Second.</p>"),
             "OPS/nav.xhtml": navigation(entries)}
    manifest = [item("a", "a.xhtml"), item("b", "b.xhtml"), item("nav", "nav.xhtml", more=' properties="nav"')]
    book = read_book(epub(tmp_path / "book.epub", {"OPS/package.opf": package(manifest, ["a", "b"]), **files}))
    assert texts(book) == ["A", "First.", "B", "Second."]


def test_what_is_outside_the_reading_order_is_named(tmp_path: Path) -> None:
    files = {"OPS/a.xhtml": page("<p>Text.</p>"), "OPS/s.svg": "<svg/>", "OPS/x.xhtml": page("<p>Aside.</p>")}
    manifest = [item("a", "a.xhtml"), item("s", "s.svg", "image/svg+xml"), item("x", "x.xhtml"),
                item("gone", "gone.xhtml"), item("f", "f.json", "application/json", ' fallback="g"'),
                item("g", "g.json", "application/json", ' fallback="f"')]
    content = package(manifest, ["a", "s", "a", "gone", "f"]).replace(
        "</spine>", '<itemref idref="x" linear="no"/></spine>')
    book = read_book(epub(tmp_path / "book.epub", {"OPS/package.opf": content, **files}))
    assert texts(book) == ["Text."]
    assert len(book.notes) == 4


def test_the_cover(tmp_path: Path) -> None:
    picture = b"\x89PNG picture"
    for metadata, properties in (("", ' properties="cover-image"'), ('<meta name="cover" content="pic"/>', "")):
        manifest = [item("a", "a.xhtml"), item("pic", "pic.png", "image/png", properties)]
        book = read_book(epub(tmp_path / "book.epub", {
            "OPS/package.opf": package(manifest, ["a"], metadata), "OPS/a.xhtml": page("<p>Text.</p>"),
            "OPS/pic.png": picture}))
        assert book.cover == picture


MARKDOWN = """---
title: "The Boat"
author: Ada Reed
lang: en
---
# The Boat

By the *sea*,[^1] [there](http://x.example) was `one` boat. ![a picture](boat.png)

## Chapter one

- first
- second

| a | b |
|---|---|
| c | d |

Chapter two
-----------

It stopped.

[^1]: A note
    of two lines.
"""


def test_markdown(tmp_path: Path) -> None:
    path = tmp_path / "boat.md"
    path.write_text(MARKDOWN)
    book = read_book(path)
    assert (book.title, book.authors, book.language) == ("The Boat", ("Ada Reed",), "en")
    assert [chapter.title for chapter in book.chapters] == ["The Boat", "Chapter one", "Chapter two"]
    assert texts(book) == ["The Boat", "By the sea, there was one boat.", "Chapter one", "first", "second", "a, b",
                           "c, d", "Chapter two", "It stopped."]


def test_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "boat.txt"
    path.write_bytes("\ufeffThe Boat\r\n\r\nChapter 1.\r\nRain\r\n\r\nIt rained\r\non the sea.\r\n\r\n* * *\r\n\r\n"
                     "It stopped.\r\n\r\nCHAPTER II\r\n\r\nThe end of the chapter was near.\r\n".encode())
    book = read_book(path)
    assert [chapter.title for chapter in book.chapters] == ["boat", "Chapter 1. Rain", "CHAPTER II"]
    assert book.chapters[1].blocks == (
        TextBlock("heading", "Chapter 1. Rain", 1), TextBlock("paragraph", "It rained on the sea."), TextBlock("break"),
        TextBlock("paragraph", "It stopped."))


@pytest.mark.parametrize("line", [
    "Chapter 1", "CHAPTER I.", "chapter iv", "CHAPTER 1. Loomings.", "Chapter 12 Down the Rabbit-Hole",
    "PART THE FIRST", "Chapter Twenty-One", "Book Two: The Sea", "Part Two — Rain", "Prologue", "EPILOGUE.",
    "Chapitre premier", "Livre II", "Kapitel drei", "Capítulo 3", "Parte segunda", "Глава первая", "ምዕራፍ አንድ",
    "ምዕራፍ ፲፪ ጀልባው", "Sura ya kwanza", "Boqonnaa 2", "Chapter 3 – Who goes there?", "CHAPTER I — THE BOY.",
    "Chapitre 2 - L'arrivée !",
])
def test_a_line_that_names_a_chapter(tmp_path: Path, line: str) -> None:
    path = tmp_path / "boat.txt"
    path.write_text(f"The boat.\n\n{line}\n\nIt rained.\n")
    assert [chapter.title for chapter in read_book(path).chapters] == ["boat", line]


@pytest.mark.parametrize("line", [
    "Part of him believed it.", "Part one of him believed it.", "Book him!", "Book a table", "Part I liked most.",
    "Part company with him, she said", "Introduction is not the word for it.", "Prologue and epilogue were lost.",
    "Livre de poche.", "Parte di me lo sapeva.", "Teil des Plans war es.", "Chapter 2 was the longest of all.",
    "Partie hier.", "Deel van het plan.", "Part ways", "Buch und Stift.", "Parte vi da terra.", "Часть его верила.",
])
def test_prose_is_no_chapter_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "boat.txt"
    path.write_text(f"The boat.\n\n{line}\n\nIt rained.\n")
    assert texts(read_book(path)) == ["The boat.", line, "It rained."]
    assert len(read_book(path).chapters) == 1


def test_plain_text_without_empty_lines_has_a_paragraph_a_line(tmp_path: Path) -> None:
    path = tmp_path / "boat.txt"
    path.write_text("It rained.\nIt stopped.\n")
    assert texts(read_book(path)) == ["It rained.", "It stopped."]


def test_html_is_divided_at_its_headings(tmp_path: Path) -> None:
    path = tmp_path / "boat.html"
    body = "<h1>The Boat</h1><h2>One</h2><h3>Arrival</h3><p>Rain.</p><h2>Two</h2><p>Sun.</p>"
    path.write_text(page(body, "The Boat"))
    book = read_book(path)
    assert book.title == "The Boat"
    assert [chapter.title for chapter in book.chapters] == ["The Boat. One. Arrival", "Two"]


@pytest.mark.parametrize("name", ["book.pdf", "book.mobi", "book.azw3", "book"])
def test_other_formats_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match="no book has"):
        read_book(tmp_path / name)


@pytest.mark.parametrize("suffix", SUFFIXES[1:])
def test_a_book_without_text_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"book{suffix}"
    path.write_text("\n  \n")
    with pytest.raises(UserError, match="no text"):
        read_book(path)


@pytest.mark.skipif(not OTHER_BOOKS, reason="LISAN_TEST_BOOKS names no folder of EPUB files")
def test_books_of_other_programs() -> None:
    """Each is read or refused in a sentence, in the order of its spine, and with a title for each chapter."""
    paths = sorted(Path(OTHER_BOOKS).glob("*.epub"))
    assert paths
    refusals: list[str] = []
    for path in paths:
        try:
            book = read_book(path)
        except UserError as error:
            refusals.append(error.message)
            continue
        assert all(chapter.title.strip() and "\n" not in chapter.title for chapter in book.chapters), path.name
        assert book.words > 0
    assert all("no text" in refusal for refusal in refusals)
    if (Path(OTHER_BOOKS) / "moby-dick.epub").is_file():
        book = read_book(Path(OTHER_BOOKS) / "moby-dick.epub")
        numbered = [chapter.title for chapter in book.chapters if chapter.title.startswith("Chapter ")]
        assert len(numbered) == 135
        assert [int(title.split()[1].rstrip(".")) for title in numbered] == list(range(1, 136))
