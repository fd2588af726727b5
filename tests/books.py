"""Small EPUB files for tests, with every part open to change."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CONTAINER = ('<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">'
             '<rootfiles><rootfile full-path="OPS/package.opf" media-type="application/oebps-package+xml"/></rootfiles>'
             "</container>")


def page(body: str, title: str = "A page") -> str:
    """An XHTML document."""
    return ('<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml" '
            f'xmlns:epub="http://www.idpf.org/2007/ops"><head><title>{title}</title></head><body>{body}</body></html>')


def package(manifest: Sequence[str], spine: Sequence[str], metadata: str = "", spine_attributes: str = "") -> str:
    """A package document; `manifest` holds whole `item` elements, `spine` their ids."""
    references = "".join(f'<itemref idref="{code}"/>' for code in spine)
    return ('<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata '
            'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>The Boat</dc:title><dc:creator>Ada Reed</dc:creator>'
            f"<dc:language>en-GB</dc:language>{metadata}</metadata><manifest>{''.join(manifest)}</manifest>"
            f"<spine{spine_attributes}>{references}</spine></package>")


def item(code: str, href: str, media_type: str = "application/xhtml+xml", more: str = "") -> str:
    return f'<item id="{code}" href="{href}" media-type="{media_type}"{more}/>'


def navigation(entries: str) -> str:
    """A navigation document; `entries` is the content of its list."""
    return page(f'<nav epub:type="toc"><ol>{entries}</ol></nav>')


def epub(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write an EPUB with these files beside the container."""
    path.write_bytes(epub_bytes(files))
    return path


def epub_bytes(files: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, content in {"META-INF/container.xml": CONTAINER, **files}.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def plain_book(path: Path, *bodies: str, **more: str | bytes) -> Path:
    """An EPUB whose chapters have these bodies, in this order, without a table of contents."""
    codes = [f"c{number}" for number in range(len(bodies))]
    files: dict[str, str | bytes] = {f"OPS/{code}.xhtml": page(body) for code, body in zip(codes, bodies, strict=True)}
    manifest = [item(code, f"{code}.xhtml") for code in codes]
    return epub(path, {"OPS/package.opf": package(manifest, codes), **files, **more})
