"""EPUB 2 and 3: chapters in the order of the spine, with the titles of the table of contents.

Nothing is unpacked to the disk. Members are read by the names that the package document gives, within limits on their
number and their real size. Protected books (DRM) are refused; obfuscated fonts are not read.
"""

from __future__ import annotations

import posixpath
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from config import confinement, foreign
from config.errors import UserError
from data.books import markup
from data.books.markup import Document

MOST_BYTES = 1 << 30  # The size of the file.
MOST_MEMBERS = 50_000
MOST_MEMBER_BYTES = 24 << 20  # A document, unpacked.
MOST_TOTAL_BYTES = 256 << 20  # All that is read, unpacked.
MOST_ENTRIES = 100_000  # Manifest, spine, table of contents.
_CONTAINER = "META-INF/container.xml"
_PACKAGE_TYPE = "application/oebps-package+xml"
_DOCUMENT_TYPES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
_PICTURE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_FONT_OBFUSCATION = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_DAMAGED = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, NotImplementedError, EOFError)
_AGAIN = "Get the book again, or open it in an e-book editor and save it."


@dataclass(frozen=True)
class Entry:
    """An entry of the table of contents: its level from 0, its title, and the document and anchor that it names."""

    level: int
    title: str
    document: str
    anchor: str


@dataclass
class PackedBook:
    """What an EPUB holds: metadata, the documents of the spine in order, and the table of contents."""

    title: str = ""
    authors: tuple[str, ...] = ()
    language: str = ""
    cover: bytes = b""
    documents: list[tuple[str, Document]] = field(default_factory=list)
    contents: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Tag:
    """An element of a package document: its name without prefix, its attributes, and its own text."""

    name: str
    attributes: Mapping[str, str]
    text: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        return markup.one_line("".join(self.text))


class _TagReader(HTMLParser):
    """All elements of an XML file in order. Entities of the document itself are never resolved."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[_Tag] = []
        self._stack: list[_Tag] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = _Tag(tag.rpartition(":")[2], {name.rpartition(":")[2]: value or "" for name, value in attrs})
        if len(self.tags) >= 10 * MOST_ENTRIES or len(self._stack) >= markup.DEEPEST:
            raise ValueError("it has too many elements")
        self.tags.append(element)
        self._stack.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._stack.pop()

    def handle_endtag(self, tag: str) -> None:
        if any(element.name == tag.rpartition(":")[2] for element in self._stack):
            while self._stack.pop().name != tag.rpartition(":")[2]:
                pass

    def handle_data(self, data: str) -> None:
        if self._stack:
            self._stack[-1].text.append(data)

    def unknown_decl(self, data: str) -> None:
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA["))


class _Archive:
    """Members of an EPUB by name, with a limit on the bytes that are read of them."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive, self._read_bytes = path, archive, 0
        entries = archive.infolist()
        if len(entries) > MOST_MEMBERS:
            raise UserError(f"{path.name} has {len(entries)} files; a book has at most {MOST_MEMBERS}.", _AGAIN)
        self._members = {entry.filename: entry for entry in entries if not entry.is_dir()}
        self._folded = {name.casefold(): name for name in self._members}

    def find(self, name: str) -> str | None:
        """The name of a member as the archive writes it; some packers change its case."""
        return name if name in self._members else self._folded.get(name.casefold())

    def read(self, name: str) -> bytes:
        """The content of a member; `UserError` if it is encrypted, a link, too large, or missing."""
        stored = self.find(name)
        if stored is None:
            raise UserError(f"{self._path.name} has no file {name[:200]!r}, which its package names.", _AGAIN)
        entry = self._members[stored]
        shown = f"{self._path.name}: {stored[:200]!r}"
        if entry.flag_bits & 1:
            raise UserError(f"{shown} is encrypted with a password.", "Give the book without a password.")
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind and kind != stat.S_IFREG:
            raise UserError(f"{shown} is a link or a device, which is not followed.", _AGAIN)

        # The real size is measured, because the one in the archive is only claimed.
        room = min(MOST_MEMBER_BYTES, MOST_TOTAL_BYTES - self._read_bytes)
        with self._archive.open(entry) as member:
            content = member.read(room + 1)
        if len(content) > room:
            raise UserError(f"{shown} unpacks to more than {room >> 20} MiB; the limits are {MOST_MEMBER_BYTES >> 20} "
                            f"MiB for a file and {MOST_TOTAL_BYTES >> 20} MiB in all.", _AGAIN)
        self._read_bytes += len(content)
        return content

    def tags(self, name: str) -> list[_Tag]:
        """The elements of an XML member."""
        reader = _TagReader()
        with foreign.reading(f"{self._path.name}: {name[:200]!r}", _AGAIN):
            markup.feed(reader, markup.decode(self.read(name)))
        return reader.tags


def read_epub(path: Path) -> PackedBook:
    """The book at `path`; `UserError` names what prevents reading it."""
    with confinement.verified(path) as readable:
        size = Path(readable).stat().st_size
        if size > MOST_BYTES:
            raise UserError(f"{path.name} has {size >> 20} MiB; a book has at most {MOST_BYTES >> 20} MiB.", _AGAIN)
        with foreign.reading(path.name, _AGAIN, *_DAMAGED), zipfile.ZipFile(readable) as archive:
            return _read(path, _Archive(path, archive))


def _read(path: Path, archive: _Archive) -> PackedBook:
    if archive.find(_CONTAINER) is None:
        raise UserError(f"{path.name} is not an EPUB: it has no {_CONTAINER}.", _AGAIN)
    roots = [tag.attributes.get("full-path", "") for tag in archive.tags(_CONTAINER) if tag.name == "rootfile"
             and tag.attributes.get("media-type", _PACKAGE_TYPE) == _PACKAGE_TYPE]
    if not roots:
        raise UserError(f"{path.name} names no package document in {_CONTAINER}.", _AGAIN)
    package_name = unquote(roots[0])
    package, folder = archive.tags(package_name), posixpath.dirname(package_name)
    items = {tag.attributes.get("id", ""): tag.attributes for tag in package if tag.name == "item"}
    spine = [tag.attributes for tag in package if tag.name == "itemref"]
    if len(items) > MOST_ENTRIES or len(spine) > MOST_ENTRIES:
        raise UserError(f"{path.name} lists {max(len(items), len(spine))} files; at most {MOST_ENTRIES} are read.",
                        _AGAIN)
    if not spine:
        raise UserError(f"{path.name} has no reading order: its spine is empty.", _AGAIN)

    book = PackedBook()
    _read_metadata(book, package)
    protected = _protected(archive)
    places = {code: _resolve(folder, item.get("href", "")) for code, item in items.items()}
    navigation = next((places[code] for code, item in items.items() if "nav" in item.get("properties", "").split()), "")
    missing, repeated, undrawn, aside, seen = 0, 0, 0, 0, set[str]()

    # The spine is the reading order; the manifest lists files in any order.
    for reference in spine:
        code = _readable_item(items, reference.get("idref", ""))
        name = places.get(code, "")
        if reference.get("linear", "yes") == "no":
            aside += 1
        elif code and name in seen:
            repeated += 1
        elif not code and reference.get("idref", "") in items:
            undrawn += 1
        elif not name or archive.find(name) is None:
            missing += 1
        elif name != navigation:
            seen.add(name)
            if name in protected:
                raise UserError(f"{path.name} is protected (DRM): {name[:200]!r} is encrypted with {protected[name]}.",
                                "Only books without protection can be read. Ask the seller for one.")
            document = markup.read_markup(markup.decode(archive.read(name)), f"{path.name}: {name[:200]!r}")
            book.documents.append((name, document))

    book.contents = _contents(archive, package, items, places, navigation)
    book.cover = _cover(archive, package, items, places, protected, book.notes)
    for count, fault in ((missing, "named by the spine and not in the book"),
                         (repeated, "twice in the spine, read once"),
                         (undrawn, "without text, such as drawings, left out"),
                         (aside, "outside the reading order (linear=no), left out")):
        if count:
            book.notes.append(f"{count} {'file' if count == 1 else 'files'} {fault}.")
    return book


def _read_metadata(book: PackedBook, package: Sequence[_Tag]) -> None:
    refined = {tag.attributes.get("refines", "").removeprefix("#"): tag.words for tag in package
               if tag.name == "meta" and tag.attributes.get("property") == "title-type"}
    titles = [tag for tag in package if tag.name == "title" and tag.words]
    main = next((tag for tag in titles if refined.get(tag.attributes.get("id", "")) == "main"), None)
    book.title = (main or titles[0]).words[:300] if titles else ""
    book.authors = tuple(tag.words[:100] for tag in package if tag.name == "creator" and tag.words)[:10]
    book.language = next((tag.words for tag in package if tag.name == "language" and tag.words), "")[:30]


def _protected(archive: _Archive) -> dict[str, str]:
    """The algorithm by the name of each encrypted file, fonts left out."""
    name = "META-INF/encryption.xml"
    if archive.find(name) is None:
        return {}
    algorithms: dict[str, str] = {}
    algorithm = ""
    for tag in archive.tags(name):
        if tag.name == "encrypteddata":
            algorithm = ""
        elif tag.name == "encryptionmethod" and not algorithm:
            algorithm = tag.attributes.get("algorithm", "")
        elif tag.name == "cipherreference" and algorithm not in _FONT_OBFUSCATION:
            algorithms[_resolve("", tag.attributes.get("uri", ""))] = algorithm[:100] or "an unnamed method"
    return algorithms


def _resolve(folder: str, address: str) -> str:
    """The name of the member that `address` means beside `folder`; empty for another place than this book."""
    try:
        parts = urlsplit(address.strip())
    except ValueError:
        return ""
    if parts.scheme or parts.netloc or not parts.path:
        return ""
    name = posixpath.normpath(posixpath.join(folder, unquote(parts.path)))
    return "" if name.startswith(("/", "..")) or name == "." else name


def _readable_item(items: Mapping[str, Mapping[str, str]], code: str) -> str:
    """The item of a spine entry, or the first of its fallbacks, that is a document; empty if there is none."""
    visited = set[str]()
    while code in items and code not in visited:
        if items[code].get("media-type", "").strip().lower() in _DOCUMENT_TYPES:
            return code
        visited.add(code)
        code = items[code].get("fallback", "")
    return ""


def _contents(archive: _Archive, package: Sequence[_Tag], items: Mapping[str, Mapping[str, str]],
              places: Mapping[str, str], navigation: str) -> list[Entry]:
    """The entries of the navigation document, else of the NCX."""
    if navigation and archive.find(navigation):
        entries = list(_navigation_entries(archive.read(navigation), posixpath.dirname(navigation)))
        if entries:
            return entries[:MOST_ENTRIES]
    listed = next((tag.attributes.get("toc", "") for tag in package if tag.name == "spine"), "")
    codes = [listed, *(code for code, item in items.items()
                       if item.get("media-type", "") == "application/x-dtbncx+xml")]
    name = next((places[code] for code in codes if code in places and archive.find(places[code])), "")
    if not name:
        return []
    reader = _NcxReader(posixpath.dirname(name))
    markup.feed(reader, markup.decode(archive.read(name)))
    return reader.entries[:MOST_ENTRIES]


class _NcxReader(HTMLParser):
    """The navigation points of an NCX, of its map and not of its page list."""

    def __init__(self, folder: str) -> None:
        super().__init__(convert_charrefs=True)
        self.entries: list[Entry] = []
        self._folder, self._level, self._text, self._in_map = folder, -1, list[str](), False
        self._collecting = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = tag.rpartition(":")[2]
        if name == "navmap":
            self._in_map = True
        elif name == "navpoint":
            self._level += 1
            self._text.clear()
        elif name == "text":
            self._collecting = self._in_map
        elif name == "content" and self._in_map and self._level >= 0:
            self.entries += _entry(self._level, ["".join(self._text)], dict(attrs).get("src") or "", self._folder)

    def handle_endtag(self, tag: str) -> None:
        name = tag.rpartition(":")[2]
        if name == "navmap":
            self._in_map = False
        elif name == "navpoint":
            self._level = max(-1, self._level - 1)
        elif name == "text":
            self._collecting = False

    def handle_data(self, data: str) -> None:
        if self._collecting:
            self._text.append(data)


class _NavigationReader(HTMLParser):
    """The links of the first `nav` of a navigation document that is a table of contents."""

    def __init__(self, folder: str) -> None:
        super().__init__(convert_charrefs=True)
        self.entries: list[Entry] = []
        self._folder, self._level, self._lines, self._href = folder, -1, list[str](), ""
        self._inside = self._done = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name, attributes = tag.rpartition(":")[2], dict(attrs)
        types = f"{attributes.get('epub:type') or ''} {attributes.get('role') or ''}".split()
        if name == "nav":
            self._inside = not self._done and bool({"toc", "doc-toc"} & set(types))
        elif name in ("ol", "ul"):
            self._level += 1
        elif name == "a" and self._inside:
            self._href, self._lines = attributes.get("href") or "", [""]
        elif name == "br" and self._lines:
            self._lines.append("")
        elif name == "img" and self._lines:
            self._lines[-1] += attributes.get("alt") or ""

    def handle_endtag(self, tag: str) -> None:
        name = tag.rpartition(":")[2]
        if name == "nav":
            self._done |= self._inside
            self._inside = False
        elif name in ("ol", "ul"):
            self._level = max(-1, self._level - 1)
        elif name == "a" and self._inside and self._lines:
            self.entries += _entry(max(0, self._level), self._lines, self._href, self._folder)
            self._lines = []

    def handle_data(self, data: str) -> None:
        if self._lines:
            self._lines[-1] += data


def _navigation_entries(content: bytes, folder: str) -> Iterator[Entry]:
    reader = _NavigationReader(folder)
    markup.feed(reader, markup.decode(content))
    yield from reader.entries


def _entry(level: int, lines: list[str], address: str, folder: str) -> Iterable[Entry]:
    """The entry of a link into this book, else nothing."""
    document = _resolve(folder, address)
    if document:
        anchor = unquote(address.partition("#")[2])
        yield Entry(level, markup.join_lines(lines)[:300], document, anchor[:200])


def _cover(archive: _Archive, package: Sequence[_Tag], items: Mapping[str, Mapping[str, str]],
           places: Mapping[str, str], protected: Mapping[str, str], notes: list[str]) -> bytes:
    """The picture of the cover as it is stored; nothing if there is none that can be read."""
    named = next((tag.attributes.get("content", "") for tag in package
                  if tag.name == "meta" and tag.attributes.get("name") == "cover"), "")
    codes = [code for code, item in items.items() if "cover-image" in item.get("properties", "").split()]
    codes += [named, *(code for code, item in items.items() if "cover" in f"{code} {item.get('href', '')}".lower())]
    for code in codes:
        name = places.get(code, "")
        if (name and archive.find(name) and name not in protected
                and items[code].get("media-type", "").lower() in _PICTURE_TYPES):
            try:
                return archive.read(name)
            except UserError as error:
                notes.append(f"The cover was left out: {error.message}")
    return b""
