"""A file of any web server into a folder: resumed where the server can, bounded by the disk, ready to stop.

The bytes come by `core.incoming.transfer`, as the hub's do. Only `http` and `https` are asked. No message holds the
part of an address that could be a password or a signature. Never loads torch.
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
from core.incoming.fetch import SPARE_BYTES, check_disk
from core.incoming.hub import Body, Interrupted, RemoteFile, is_passing, part_of
from core.incoming.transfer import Fetcher, Meter, Patience, ask
from core.jobs.locks import FileLock
from core.jobs.reporter import Reporter
from core.library.model_record import Expected, Hasher, hash_file
from data.importers import safe_id

if TYPE_CHECKING:
    from httpx2 import Response


@dataclass(frozen=True)
class Found:
    """What a server says of a file; `size` is None where it does not tell, `version` changes with the content."""

    name: str
    size: int | None
    version: str


@dataclass(frozen=True)
class Web:
    """One address."""

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

    def look(self, patience_s: float) -> Found:
        """What is there, by asking for it and reading nothing."""
        with self._answer({}, patience_s) as response:
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise UserError(f"{self.shown} is a web page, not a file.",
                                "Give the address of the file itself, as the page's download button has it.")
            length = response.headers.get("Content-Length", "")
            plain = not response.headers.get("Content-Encoding") and length.isdigit()
            version = response.headers.get("ETag", "") or response.headers.get("Last-Modified", "")
            return Found(_name_of(response), int(length) if plain else None, version)

    @contextmanager
    def open(self, file: RemoteFile, start: int, patience_s: float) -> Iterator[Body]:
        """The bytes from `start` on; from 0 on where the server cannot do that."""
        with self._answer({"Range": f"bytes={start}-"} if start else {}, patience_s) as response:
            if start and response.status_code == 416:
                yield Body(start, None, iter(()))
                return
            first, total = part_of(response)
            yield Body(first, total, response.iter_bytes())

    @contextmanager
    def _answer(self, headers: dict[str, str], patience_s: float) -> Iterator[Response]:
        import httpx2

        headers = {"Accept-Encoding": "identity", "User-Agent": "lisan", **headers}
        try:
            with (httpx2.Client(follow_redirects=True, max_redirects=10, timeout=patience_s) as client,
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
        return UserError(f"{self.shown} cannot be had: {self.host} answered {response.status_code}.",
                         "Check the address in a browser; a file that asks for a login must be downloaded there first.")


def fetch(url: str, folder: Path, reporter: Reporter, patience: Patience = Patience()) -> Path:  # noqa: B008  frozen
    """The file at `url` in a folder of its own within `folder`; what came before is gone on with."""
    web = Web(url)
    home = folder / sha256(url.encode()).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock.take(home / "lock")
    if lock is None:
        raise UserError(f"{web.shown} is being downloaded by another job.", "Watch that one, or stop it first.")
    try:
        found = ask(lambda: web.look(patience.stall_s), reporter, patience, web.shown)
        path = home / found.name
        if found.size is None:
            _stream(web, path, reporter, patience)
        else:
            _complete(web, path, found, reporter, patience)
        return path
    finally:
        lock.close()


def _complete(web: Web, path: Path, found: Found, reporter: Reporter, patience: Patience) -> None:
    assert found.size is not None
    expected = Expected(found.size)
    mark = path.with_name("version")
    version = f"{found.size} {found.version}"
    begun = None
    if path.is_file():
        same = mark.is_file() and mark.read_text("utf-8") == version and path.stat().st_size <= found.size
        if same:
            begun = hash_file(path, expected, lambda size, name: None)
        else:
            path.unlink()
    mark.write_text(version, "utf-8")
    check_disk(path.parent, found.size - (begun.size if begun else 0), f"The file {found.name}")
    meter = Meter(reporter, found.size, begun.size if begun else 0)
    Fetcher(web, meter, patience).fetch(RemoteFile(web.host, "", found.name, expected), path, begun or Hasher(expected))


def _stream(web: Web, path: Path, reporter: Reporter, patience: Patience) -> None:
    """A file whose size nobody tells: in one go, as far as the disk allows."""
    room = shutil.disk_usage(path.parent).free - SPARE_BYTES
    file = RemoteFile(web.host, "", path.name, Expected(0))
    Fetcher(web, Meter(reporter, None), patience).fetch_once(file, path, room)


def _name_of(response: Response) -> str:
    """What the file is called, by the server's word or by the address; safe as the name of a file."""
    said = re.search(r"filename\*?=(?:UTF-8'')?\"?([^\";]+)", response.headers.get("Content-Disposition", ""))
    name = unquote(said[1]) if said else unquote(response.url.path.rpartition("/")[2])
    return safe_id(name.replace("\\", "/").rpartition("/")[2].strip() or "download")
