"""Books that somebody made to do harm: each is refused in a sentence or read within limits; nothing else happens."""

from __future__ import annotations

import io
import os
import stat
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import confinement
from config.errors import UserError
from core.speech import audiobook
from core.speech.audiobook import AudioChapter, BookLabels
from core.text.manuscript import open_book, read_pronunciations
from core.workspace import Workspace
from data.books import epub as reader
from data.books.reading import Book, read_book
from tests.books import CONTAINER, epub, epub_bytes, item, navigation, package, page, plain_book
from ui import media

LIMIT_S = 20.0  # for one book, on a busy machine
CANARY = "a secret of this machine"
DRM = ('<encryption xmlns:enc="http://www.w3.org/2001/04/xmlenc#"><enc:EncryptedData><enc:EncryptionMethod '
       'Algorithm="{method}"/><enc:CipherData><enc:CipherReference URI="{name}"/></enc:CipherData></enc:EncryptedData>'
       "</encryption>")


def refused_or_read(path: Path) -> Book | str:
    """The book, or the sentence of the refusal; within the time limit."""
    began = time.monotonic()
    try:
        outcome: Book | str = read_book(path)
    except UserError as refusal:
        outcome = refusal.message
        assert 10 < len(outcome) < 1000
        assert "\n" not in outcome
        assert "Traceback" not in outcome
    assert time.monotonic() - began < LIMIT_S
    return outcome


def one_page(body: str | bytes, **files: str | bytes) -> bytes:
    content = page(body) if isinstance(body, str) else body
    return epub_bytes({"OPS/package.opf": package([item("a", "a.xhtml")], ["a"]), "OPS/a.xhtml": content, **files})


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "canary.xhtml"
    path.write_text(page(f"<p>{CANARY}</p>"))
    return path


def test_a_member_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "book.epub"
    path.write_bytes(one_page(b"<p>" + b" " * (reader.MOST_MEMBER_BYTES + 10)))
    assert path.stat().st_size < 1 << 20
    assert "unpacks to more than" in str(refused_or_read(path))


def test_a_size_that_is_lied_about_is_measured(tmp_path: Path) -> None:
    content = bytearray(one_page(b"x" * (reader.MOST_MEMBER_BYTES + 10)))
    # Claim a size of ten bytes in the central directory and in the local header.
    size = (reader.MOST_MEMBER_BYTES + 10).to_bytes(4, "little")
    assert content.count(size) >= 1
    path = tmp_path / "book.epub"
    path.write_bytes(bytes(content).replace(size, (10).to_bytes(4, "little")))
    assert isinstance(refused_or_read(path), str)


def test_many_documents_together_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_TOTAL_BYTES", 100_000)
    path = plain_book(tmp_path / "book.epub", *["<p>" + "rain " * 5000 + "</p>"] * 10)
    assert "in all" in str(refused_or_read(path))


def test_very_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_MEMBERS", 100)
    files = {f"x/{number}": b"" for number in range(200)}
    path = tmp_path / "book.epub"
    path.write_bytes(one_page("<p>Text.</p>", **files))
    assert "at most 100" in str(refused_or_read(path))


@pytest.mark.parametrize("address", [
    "../../canary.xhtml", "/canary.xhtml", "file:///{canary}", "{canary}", "..%2f..%2fcanary.xhtml",
    "%2e%2e/canary.xhtml", "http://127.0.0.1:9/a.xhtml", "//127.0.0.1/a.xhtml",
    "a\0b.xhtml", "", "a" * 70_000, "http://[", "data:text/html,x",
    "C:\\canary.xhtml", "....//canary.xhtml",
])
def test_addresses_never_lead_out_of_the_book(tmp_path: Path, canary: Path, address: str) -> None:
    address = address.replace("{canary}", str(canary)).replace("\0", "&#0;")
    (tmp_path / "sub").mkdir()
    cover = item("p", address, "image/png", ' properties="cover-image"')
    path = epub(tmp_path / "sub" / "book.epub", {
        "OPS/package.opf": package([item("a", address), item("b", "b.xhtml"), cover], ["a", "b"]),
        "OPS/b.xhtml": page('<p>Text.</p><img src="../../canary.xhtml"/><iframe src="file:///etc/passwd"></iframe>')})
    outcome = refused_or_read(path)
    assert isinstance(outcome, Book)
    assert [block.text for chapter in outcome.chapters for block in chapter.blocks] == ["Text."]
    assert outcome.cover == b""


@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_in_a_book_are_not_followed(tmp_path: Path, canary: Path, mode: int) -> None:
    path = epub(tmp_path / "book.epub", {"OPS/package.opf": package([item("a", "a.xhtml")], ["a"])})
    link = zipfile.ZipInfo("OPS/a.xhtml")
    link.external_attr = (mode | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, str(canary))
    outcome = refused_or_read(path)
    assert "link or a device" in str(outcome)


@pytest.mark.parametrize("content", [
    '<!DOCTYPE html [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><html><body><p>&b;&b;</p></body></html>',
    '<!DOCTYPE html [<!ENTITY a SYSTEM "file:///etc/passwd">]><html><body><p>Text &a;.</p></body></html>',
    '<!DOCTYPE html [<!ENTITY % a SYSTEM "http://127.0.0.1:9/x.dtd"> %a;]><html><body><p>Text.</p></body></html>',
    "<!DOCTYPE html [" + '<!ENTITY e "x">' * 5000 + "]><html><body><p>Text.</p></body></html>",
])
def test_entities_are_never_expanded(tmp_path: Path, content: str) -> None:
    for target in ("OPS/a.xhtml", "OPS/package.opf", "META-INF/container.xml"):
        files: dict[str, str | bytes] = {"OPS/package.opf": package([item("a", "a.xhtml")], ["a"]),
                                         "OPS/a.xhtml": page("<p>Text.</p>")}
        prolog, _, root = content.partition("<html>")
        files[target] = content if target.endswith("xhtml") else prolog + (
            CONTAINER if "container" in target else str(files["OPS/package.opf"])).partition("?>")[2]
        assert root
        path = tmp_path / "book.epub"
        path.write_bytes(epub_bytes(files))
        outcome = refused_or_read(path)
        words = outcome.words if isinstance(outcome, Book) else 0
        assert words < 10
        assert "root:" not in str(outcome)
        assert "lollol" not in str(outcome)


def test_a_protected_book_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "book.epub"
    path.write_bytes(one_page(os.urandom(500), **{"META-INF/encryption.xml": DRM.format(
        method="http://www.w3.org/2001/04/xmlenc#aes128-cbc", name="OPS/a.xhtml")}))
    assert "is protected (DRM)" in str(refused_or_read(path))


@pytest.mark.parametrize("method", ["http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC"])
def test_obfuscated_fonts_are_no_protection(tmp_path: Path, method: str) -> None:
    path = tmp_path / "book.epub"
    path.write_bytes(one_page("<p>Text.</p>", **{
        "OPS/font.otf": b"x", "META-INF/encryption.xml": DRM.format(method=method, name="OPS/font.otf")}))
    assert isinstance(refused_or_read(path), Book)


def test_a_password_is_refused_by_name(tmp_path: Path) -> None:
    content = bytearray(one_page("<p>Text.</p>"))
    # The flag of encryption, in every local header and every entry of the directory.
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = content.find(mark)
        while start >= 0:
            content[start + place] |= 1
            start = content.find(mark, start + 4)
    path = tmp_path / "book.epub"
    path.write_bytes(content)
    assert "encrypted with a password" in str(refused_or_read(path))


WHOLE = one_page("<h1>One</h1><p>Text.</p>")


@pytest.mark.parametrize("content", [
    b"", b"PK", b"PK\3\4" + b"\0" * 100, b"%PDF-1.7", WHOLE[:len(WHOLE) // 2], WHOLE[100:], WHOLE[:-10],
    WHOLE.replace(b"OPS/package.opf", b"OPS/package.xxx"), epub_bytes({}), epub_bytes({"META-INF/container.xml": ""}),
    epub_bytes({"META-INF/container.xml": "<container/>"}), epub_bytes({"OPS/package.opf": ""}),
    epub_bytes({"OPS/package.opf": package([], [])}), epub_bytes({"OPS/package.opf": package([], ["a", "b"])}),
    epub_bytes({"OPS/package.opf": b"\xff\xfe\x00"}), epub_bytes({"OPS/package.opf": "<package>" * 5000}),
    one_page(b"\0" * 1000), one_page(b"\xff\xfe" + b"<\0" * 500), one_page(b"<" * 200_000),
    one_page(b"<p" * 100_000), one_page(b"<p>" * 100_000 + b"x"), one_page(b"<div>" * 100_000),
    one_page(b"<b>" * 50_000), one_page(b"&" * 200_000), one_page(b"<!--" * 50_000), one_page(b"<![CDATA[" * 20_000),
    one_page(b"<a href='" + b"x" * 1_000_000), one_page(b"<p " + b"a=b " * 100_000 + b">x</p>"),
    one_page(b'<?xml encoding="punycode"?><p>' + b"a" * 100_000 + b"</p>"),
    one_page(b'<?xml encoding="zlib_codec"?><p>Text.</p>'), one_page(b"<sup>" + b"1" * 500_000 + b"</sup>"),
    one_page(b"<p>" + b"<a href='#'>1</a>" * 50_000 + b"</p>"), one_page("<h1>" + "<br/>" * 100_000 + "x</h1>"),
    one_page("<script>" * 10_000), one_page("<p>" + "\u202e" * 1000 + "x</p>"), one_page("<p>\ud800</p>".encode(
        "utf-8", "surrogatepass")),
])
def test_broken_books_are_refused_or_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "book.epub"
    path.write_bytes(content)
    refused_or_read(path)


@pytest.mark.parametrize("entries", [
    "<ol><li>" * 20_000, '<li><a href="a.xhtml">' + "A" * 500_000 + "</a></li>",
    '<li><a href="a.xhtml">x</a></li>' * 10_000,
    '<li><a href="a.xhtml#' + "x" * 100_000 + '">x</a></li>', '<li><a href="a.xhtml">\n<br/>\0\u202e</a></li>',
])
def test_a_hostile_table_of_contents_changes_no_text(tmp_path: Path, entries: str) -> None:
    path = epub(tmp_path / "book.epub", {
        "OPS/package.opf": package([item("a", "a.xhtml"), item("n", "n.xhtml", more=' properties="nav"')], ["a"]),
        "OPS/a.xhtml": page("<p>Text.</p>"), "OPS/n.xhtml": navigation(entries)})
    outcome = refused_or_read(path)
    assert isinstance(outcome, Book)
    assert all(0 < len(chapter.title) <= 300 and chapter.title.isprintable() for chapter in outcome.chapters)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=12))
def test_flipped_bytes_are_refused_or_read(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(WHOLE)
    for place, value in changes:
        content[place] = value
    path = tmp_path / "book.epub"
    path.write_bytes(content)
    refused_or_read(path)


@pytest.mark.parametrize("content", [
    b"\0" * 5000, b"\xff\xfe\x80", "[" * 50_000, "`" * 50_000, "> " * 9000, "* " * 20_000, "![" * 9000,
    "[^1]: x\n" * 5000, "---\n" * 5000, "#" * 50_000, "a\n" * 20_000, "<div>" * 20_000, "\n" * 100_000 + "x",
    "[^" + "x" * 100_000,
])
@pytest.mark.parametrize("suffix", [".md", ".txt", ".html"])
def test_hostile_texts_are_refused_or_read(tmp_path: Path, content: bytes | str, suffix: str) -> None:
    path = tmp_path / f"book{suffix}"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    refused_or_read(path)


def test_a_pipe_and_a_folder_are_no_books(tmp_path: Path) -> None:
    for suffix in (".epub", ".txt", ".md", ".html"):
        pipe, folder = tmp_path / f"pipe{suffix}", tmp_path / f"folder{suffix}"
        os.mkfifo(pipe)
        folder.mkdir()
        assert isinstance(refused_or_read(pipe), str)
        assert isinstance(refused_or_read(folder), str)


def test_books_and_lists_outside_the_allowed_folders_are_refused(tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    allowed.mkdir()
    outside.mkdir()
    plain_book(outside / "book.epub", f"<p>{CANARY}</p>")
    (outside / "list.txt").write_text(f"{CANARY} -> x\n")
    (allowed / "link.epub").symlink_to(outside / "book.epub")
    plain_book(allowed / "book.epub", "<p>Text.</p>")
    monkeypatch.setenv(confinement.VARIABLE, str(allowed))
    with confinement.job(tmp_path / "workspace"):
        for path in (outside / "book.epub", allowed / "link.epub", allowed / ".." / "outside" / "book.epub"):
            with pytest.raises(UserError, match="not in the folders|leads out"):
                open_book(str(path))
        with pytest.raises(UserError, match="not in the folders"):
            read_pronunciations(str(outside / "list.txt"))
        assert open_book(str(allowed / "book.epub")).words == 1


@pytest.mark.parametrize("title", [
    "a\n[CHAPTER]\nSTART=0", "=;#\\", "\\", "a\0b", "-i /etc/passwd", "../../x", "\u202etxt.exe", "%s%n", "$(id)",
    "`id`", "x" * 100_000,
])
def test_titles_never_leave_their_line_or_their_name(title: str) -> None:
    chapters = [AudioChapter(title, ()), AudioChapter("b", ())]
    lines = audiobook.chapter_metadata(chapters, BookLabels(title, (title,), title), 16000).splitlines()
    assert lines.count("[CHAPTER]") == 2
    assert sum(line.startswith("START=") for line in lines) == 2
    stem = audiobook.file_stem(title, "chapter")
    assert not set(stem) & set("/\\\0.\n$`%")
    assert len(stem.encode()) <= 100
    assert not stem.startswith("-")


def test_a_picture_of_a_billion_pixels_is_refused() -> None:
    header = (b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (100_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0")
    import zlib

    header += zlib.crc32(header[12:]).to_bytes(4, "big")
    data = zlib.compress(b"\0" * 1000)
    chunk = b"IDAT" + data
    content = header + len(data).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    with pytest.raises(UserError, match="cover cannot be read"):
        audiobook.jpeg_cover(content)


@pytest.mark.parametrize("name", [
    "../config.yaml", "..", ".hidden.mp3", "book.m4b/../../config.yaml", "config.yaml", "sentences.jsonl", "link.mp3",
    "a\0.mp3", "x" * 300 + ".mp3", "/etc/passwd", "%2e%2e/config.yaml",
])
def test_the_page_serves_finished_files_of_a_book_alone(tmp_path: Path, name: str) -> None:
    from config.schema import BookOptions
    from core.jobs.job import create_job

    workspace = Workspace.open(tmp_path / "workspace")
    job = create_job(workspace, "book", BookOptions(book=str(tmp_path / "book.epub")), job_id="reading")
    folder = job.directory / media.BOOK
    folder.mkdir()
    (folder / "1-Rain.mp3").write_bytes(b"sound")
    (tmp_path / "secret.mp3").write_text(CANARY)
    (folder / "link.mp3").symlink_to(tmp_path / "secret.mp3")
    (folder / ".hidden.mp3").write_text(CANARY)
    assert media.book_path(workspace, "reading", "1-Rain.mp3") == folder / "1-Rain.mp3"
    assert media.book_path(workspace, "reading", name) is None
    assert media.book_path(workspace, "../reading", "1-Rain.mp3") is None


def test_a_zip_of_zips_is_not_opened_further(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("a.xhtml", page(f"<p>{CANARY}</p>"))
    path = tmp_path / "book.epub"
    path.write_bytes(one_page(inner.getvalue()))
    assert "is not a document" in str(refused_or_read(path))
