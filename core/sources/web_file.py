"""Downloads of files from any web server: resumed where the server can, limited by the disk, ready to stop.

Only `http` and `https` are used. No message holds the part of an address that could be a password or a signature.
Never loads torch.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from config.errors import UserError
from core.jobs.locks import FileLock
from core.jobs.reporter import Reporter
from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy, call_with_retries
from core.sources.hub import ByteStream, Interrupted, RemoteFile, is_passing, part_of
from core.sources.partial_downloads import SPARE_BYTES, check_disk
from data.durable_files import ExpectedFile, FileHasher, hash_with_progress
from data.importers import safe_id

if TYPE_CHECKING:
    from httpx2 import Response


@dataclass(frozen=True)
class WebFile:
    """What a server says of a file; `size` is None where it does not say, `version` changes with the content."""

    name: str
    size: int | None
    version: str


@dataclass(frozen=True)
class WebAddress:
    """One address, as a server for `Downloader`."""

    url: str

    @property
    def host(self) -> str:
        """The server's name, without a password."""
        return urlsplit(self.url).hostname or "the address"

    @property
    def shown(self) -> str:
        """The address without a password and without what follows a question mark."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{self.host}{parts.path}"[:200]

    def describe(self, timeout_s: float) -> WebFile:
        """What is there; only the head of the response is read."""
        with self._answer({}, timeout_s) as response:
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise UserError(f"{self.shown} is a web page, not a file.",
                                "Give the address of the file itself, as the page's download button has it.")
            length = response.headers.get("Content-Length", "")
            plain = not response.headers.get("Content-Encoding") and length.isdigit()
            version = response.headers.get("ETag", "") or response.headers.get("Last-Modified", "")
            return WebFile(_name_of(response), int(length) if plain else None, version)

    @contextmanager
    def open(self, file: RemoteFile, start: int, timeout_s: float) -> Iterator[ByteStream]:
        """The bytes from `start` on; from 0 on where the server does not support ranges."""
        with self._answer({"Range": f"bytes={start}-"} if start else {}, timeout_s) as response:
            if start and response.status_code == 416:
                yield ByteStream(start, None, iter(()))
                return
            first, total = part_of(response)
            yield ByteStream(first, total, response.iter_bytes())

    @contextmanager
    def _answer(self, headers: dict[str, str], timeout_s: float) -> Iterator[Response]:
        import httpx2

        headers = {"Accept-Encoding": "identity", "User-Agent": "lisan", **headers}
        try:
            with (httpx2.Client(follow_redirects=True, max_redirects=10, timeout=timeout_s) as client,
                  client.stream("GET", self.url, headers=headers) as response):
                if response.status_code >= 400 and response.status_code != 416:
                    raise self._refusal(response)
                yield response
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects):
            raise UserError(f"{self.shown} leads nowhere.", "Check the address.") from None
        except httpx2.TimeoutException:
            raise Interrupted(f"{self.host} did not answer in time") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Interrupted(f"the connection to {self.host} failed ({type(error).__name__})") from None

    def _refusal(self, response: Response) -> Exception:
        if is_passing(response.status_code):
            return Interrupted(f"{self.host} answered {response.status_code}")
        return UserError(f"{self.shown} cannot be downloaded: {self.host} answered {response.status_code}.",
                         "Check the address in a browser; a file that asks for a login must be downloaded there first.")


def download_url(url: str, folder: Path, reporter: Reporter,
                 retry: RetryPolicy = RetryPolicy()) -> Path:  # noqa: B008  a frozen value
    """The file at `url`, in a folder of its own within `folder`; an earlier download is resumed."""
    web = WebAddress(url)
    home = folder / sha256(url.encode()).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock.take(home / "lock")
    if lock is None:
        raise UserError(f"{web.shown} is being downloaded by another job.", "Watch that one, or stop it first.")
    try:
        found = call_with_retries(lambda: web.describe(retry.stall_s), reporter, retry, web.shown)
        path = home / found.name
        if found.size is None:
            _stream(web, path, reporter, retry)
        else:
            _complete(web, path, found, reporter, retry)
        return path
    finally:
        lock.close()


def _complete(web: WebAddress, path: Path, found: WebFile, reporter: Reporter, retry: RetryPolicy) -> None:
    assert found.size is not None
    expected = ExpectedFile(found.size)
    mark = path.with_name("version")
    version = f"{found.size} {found.version}"
    partial = None
    if path.is_file():
        same = mark.is_file() and mark.read_text("utf-8") == version and path.stat().st_size <= found.size
        if same:
            partial = hash_with_progress(path, expected, lambda size, name: None)
        else:
            path.unlink()
    mark.write_text(version, "utf-8")
    check_disk(path.parent, found.size - (partial.size if partial else 0), f"The file {found.name}")
    progress = DownloadProgress(reporter, found.size, partial.size if partial else 0)
    Downloader(web, progress, retry).download(RemoteFile(web.host, "", found.name, expected), path,
                                              partial or FileHasher(expected))


def _stream(web: WebAddress, path: Path, reporter: Reporter, retry: RetryPolicy) -> None:
    """Download a file of unknown size in one connection, as far as the disk allows."""
    room = shutil.disk_usage(path.parent).free - SPARE_BYTES
    file = RemoteFile(web.host, "", path.name, ExpectedFile(0))
    Downloader(web, DownloadProgress(reporter, None), retry).download_unsized(file, path, room)


def _name_of(response: Response) -> str:
    """The file's name from the response's headers or from the address; safe as the name of a file."""
    given = re.search(r"filename\*?=(?:UTF-8'')?\"?([^\";]+)", response.headers.get("Content-Disposition", ""))
    name = unquote(given[1]) if given else unquote(response.url.path.rpartition("/")[2])
    return safe_id(name.replace("\\", "/").rpartition("/")[2].strip() or "download")
