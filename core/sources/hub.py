"""A client of the Hugging Face hub, through `huggingface_hub`'s own session. Never loads torch.

Names, sizes, hashes and the commit come from `HfApi.repo_info`; the bytes from the hub's `resolve` address, by ranged
requests. `hf_hub_download` is not used: it does not report the bytes of a set of files, does not stop on request, and
its transfer backend (`hf_xet`) neither resumes nor sees a stall. Every fault becomes a `UserError` with a message of
our own, so that none holds a server's response, a signed address or a token.

The token is the one that `huggingface_hub` finds (`HF_TOKEN` first). It is sent to the hub alone: the session drops it
when a response redirects to another host.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from config.errors import ErrorKind, UserError
from core.sources import allowed
from data.durable_files import ExpectedFile

if TYPE_CHECKING:
    from httpx2 import Response

os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # read when huggingface_hub is imported, which is later

_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_RETRY_AFTER_S = 120.0
_MOST_ANSWER = 64 << 20  # bytes of an answer that is no file; a list of 100,000 files has 30 MB
_RESUME = "What was downloaded is kept: continue the job when the network is back."
_TOKENS = "make a token at {hub}/settings/tokens, set HF_TOKEN to it in the environment, and start Lisan again"


_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}")
NOT_AN_ANSWER = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, UnicodeError,
               json.JSONDecodeError, ValueError)
"""What the hub's library raises at answers of another form. Its own errors are none of these but for `ValueError`s
of names, which are checked before."""


class Interrupted(Exception):
    """A fault of the network or the hub that may pass. `wait_s`: how long the hub asks to wait."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class NoRevision(UserError):
    """The repository has no such branch, tag or commit (any more)."""


def check_repository_name(name: str) -> None:
    """Raise `UserError` where `name` is not OWNER/NAME."""
    if not _REPOSITORY.fullmatch(name):
        raise UserError(f"{name!r} is not the name of a repository.", "Write OWNER/NAME.")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository at a commit."""

    repository: str
    commit: str
    name: str
    expected: ExpectedFile


@dataclass(frozen=True)
class RepositoryFiles:
    """The files of a repository at a commit, by name."""

    repository: str
    commit: str
    files: Mapping[str, ExpectedFile]

    def file(self, name: str) -> RemoteFile:
        return RemoteFile(self.repository, self.commit, name, self.files[name])

    def size(self, names: Iterable[str]) -> int:
        """Bytes of the named files together."""
        return sum(self.files[name].size for name in names)


@dataclass(frozen=True)
class ByteStream:
    """The body of a response. `start` is the position of its first byte; `total` the whole file's size, if known."""

    start: int
    total: int | None
    blocks: Iterator[bytes]


@dataclass(frozen=True)
class Hub:
    """A hub's address, and the token to use there."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    kind: Literal["model", "dataset"] = "model"  # kind of its repositories
    local_option: str = ""  # the option that takes files from the disk; empty: that of the kind

    @classmethod
    def from_environment(cls, kind: Literal["model", "dataset"] = "model") -> Hub:
        """The hub of `HF_ENDPOINT` (huggingface.co), with the token of `HF_TOKEN` or of `hf auth login`."""
        endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/")
        try:  # before the import, which fails at an address that cannot be read
            parts = urlsplit(endpoint)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if endpoint and not is_address:
            raise UserError(
                "HF_ENDPOINT is not the address of a hub.", "Unset it, or give one such as https://huggingface.co.",
            )
        from huggingface_hub import constants, get_token

        token = get_token()
        # A header cannot hold other characters.
        if token and not (token.isascii() and token.isprintable()):
            raise UserError("The token in HF_TOKEN has a character that no token has.",
                            "Copy it again from the settings of the hub, set HF_TOKEN to it in the environment, and "
                            "start Lisan again.")
        return cls(endpoint or constants.ENDPOINT, token, kind)

    @property
    def host(self) -> str:
        """The name of the hub, without a password that its address may hold."""
        parts = urlsplit(self.endpoint)
        return (parts.hostname or "") + (f":{parts.port}" if parts.port else "")

    @property
    def address(self) -> str:
        """The endpoint for people to read, without a password that it may hold."""
        parts = urlsplit(self.endpoint)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def without_hub(self) -> str:
        options = {"model": "--folder PATH; on the page: Folder on the Model tab",
               "dataset": "--source PATH; on the page: Source on the Data tab"}
        return f"a folder with the files ({self.local_option or options[self.kind]})"

    def list(self, repository: str, revision: str, timeout_s: float) -> RepositoryFiles:
        """Names, sizes and hashes at `revision`; raises `Interrupted`, or `UserError` if waiting does not help."""
        from huggingface_hub import DatasetInfo, HfApi, ModelInfo

        with self._explained(repository, revision):
            bound_answers()
            api = HfApi(endpoint=self.endpoint, token=self.token or False)
            try:
                info = api.repo_info(repository, revision=revision, repo_type=self.kind, files_metadata=True,
                                     timeout=timeout_s)
                files = {}
                for item in (info.siblings if isinstance(info, DatasetInfo | ModelInfo) else None) or ():
                    size = item.lfs.size if item.lfs else item.size
                    if size is not None:
                        blob = "" if item.lfs else item.blob_id or ""
                        files[item.rfilename] = ExpectedFile(size, item.lfs.sha256 if item.lfs else "", blob)

                # A hub of another make may answer anything, so types are checked.
                for name, expected in files.items():
                    if not (isinstance(expected.size, int) and 0 <= expected.size < 1 << 63
                            and all(isinstance(text, str) for text in (name, expected.sha256, expected.blob))):
                        raise TypeError("a file of a wrong type")
                if not isinstance(info.sha, str | None):
                    raise TypeError("a commit of a wrong type")
            except NOT_AN_ANSWER:
                raise UserError(
                    f"{self.host} sent something that is no list of files.",
                    "Check HF_ENDPOINT, and whether this network asks for a login in the browser first; then continue.",
                    ErrorKind.ENVIRONMENT,
                ) from None
        if not info.sha:
            raise UserError(f"{self.host} does not give the commit of {repository}.", "Use another HF_ENDPOINT.")
        return RepositoryFiles(repository, info.sha, files)

    @contextmanager
    def open(self, file: RemoteFile, start: int, timeout_s: float, until: int | None = None) -> Iterator[ByteStream]:
        """The bytes of `file` from `start` up to `until` (None: its end); all bytes from a hub without ranges.

        Raises `Interrupted` also while the blocks are read. `timeout_s` is for each wait for the network.
        """
        from huggingface_hub import errors, get_session, hf_hub_url, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(file.repository, file.name, revision=file.commit, endpoint=self.endpoint,
                         repo_type=None if self.kind == "model" else self.kind)
        # A range of compressed bytes would not be a range of the file.
        headers = {**build_hf_headers(token=self.token or False), "Accept-Encoding": "identity"}
        if start or until is not None:
            headers["Range"] = f"bytes={start}-{'' if until is None else until - 1}"
        bound_answers()
        with (self._explained(file.repository, file.commit, file.name),
              get_session().stream("GET", url, headers=headers, timeout=timeout_s) as response):
            # The answer may be an end of the file, an error, or compressed against the request.
            if start and response.status_code == 416:  # nothing is behind `start`
                yield ByteStream(start, _total_of(response), iter(()))
                return
            if response.status_code >= 400:
                _read_bounded(response)
                response.read()
            elif response.headers.get("Content-Encoding", "identity").lower() not in ("", "identity"):
                raise UserError(f"{self.host} sends {file.name} compressed, which was not asked for.",
                                f"Use another HF_ENDPOINT, or give {self.without_hub}.")
            try:
                hf_raise_for_status(response)
            except NOT_AN_ANSWER:  # the library expects names and values in what explains an error
                raise errors.HfHubHTTPError(f"status {response.status_code}", response=response) from None
            start_byte, total = part_of(response)
            yield ByteStream(start_byte, total, response.iter_bytes())

    @contextmanager
    def _explained(self, repository: str, revision: str, name: str = "") -> Iterator[None]:
        import httpx2
        from huggingface_hub import errors

        try:
            yield
        except errors.OfflineModeIsEnabled:
            raise UserError(
                f"{repository} cannot be downloaded: HF_HUB_OFFLINE is set.",
                f"Unset it, then continue; or give {self.without_hub}.",
                ErrorKind.ENVIRONMENT,
            ) from None
        except errors.HFValidationError:
            raise UserError(f"{repository!r} is not the name of a repository.", "Write OWNER/NAME.") from None
        except errors.HfHubHTTPError as error:
            raise self._refusal(error, repository, revision, name) from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects):
            raise UserError(
                f"{self.host} leads nowhere for {repository}.",
                f"Check HF_ENDPOINT, or give {self.without_hub}.",
            ) from None
        except httpx2.TimeoutException:
            raise Interrupted(f"{self.host} did not answer in time") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            raise Interrupted(f"the connection to {self.host} failed ({type(error).__name__})") from None

    def _refusal(self, error: Exception, repository: str, revision: str, name: str) -> Exception:
        """The error for a status of 400 and above; `Interrupted` when waiting may help."""
        from huggingface_hub import errors

        response: Response = error.response  # type: ignore[attr-defined]
        status = response.status_code
        page = f"{self.host}/{'' if self.kind == 'model' else 'datasets/'}{repository}"
        make_token = _TOKENS.format(hub=f"https://{self.host}")

        # Passing troubles come first, then what the user can change.
        if status in _TRANSIENT:
            return Interrupted(f"{self.host} answered {status}", _retry_after(response))
        if response.url.netloc.decode() != urlsplit(self.endpoint).netloc.rpartition("@")[2]:
            return Interrupted(f"{response.url.host}, where the hub keeps the file, answered {status}")
        if isinstance(error, errors.GatedRepoError):
            as_whom = "as the owner of the token in HF_TOKEN" if self.token else f"in a browser; then {make_token}"
            return UserError(
                f"{repository} is gated: its owner gives it to those who accept its terms.",
                f"Open {page} and accept them {as_whom}. Then continue.",
                ErrorKind.ENVIRONMENT,
            )
        if "Invalid credentials" in response.headers.get("X-Error-Message", "") and self.token:
            return UserError(f"{self.host} does not accept the token in HF_TOKEN ({status}).",
                             f"It may be mistyped or expired: {make_token}. Then continue.", ErrorKind.ENVIRONMENT)
        if isinstance(error, errors.RevisionNotFoundError):
            return NoRevision(f"{repository} has no revision {revision!r}.", "Leave --revision out to get the newest.")
        if isinstance(error, errors.EntryNotFoundError):
            return UserError(f"{repository} has no file {name!r} at {revision[:12]}.",
                             f"Look at what is there: {page}; or give {self.without_hub}.")
        if status in (401, 403, 404):
            return UserError(
                f"{repository} is private, or there is no such repository ({self.host} answered {status}).",
                f"Ask its owner to let the owner of the token in HF_TOKEN in, or check the name at {page}."
                if self.token else f"If it is private, {make_token}. Otherwise check the name at {page}.",
            )
        return UserError(f"{self.host} refused to give {repository} (status {status}).",
                         f"Continue later, or give {self.without_hub}.", ErrorKind.ENVIRONMENT)


def bound_answers() -> None:
    """Let `huggingface_hub` read no answer to its end that has none, and ask only servers that may be asked.

    Files are read block by block (`Hub.open`).
    """
    import httpx2
    from huggingface_hub import constants, get_session

    # Files are read in blocks; other answers go into memory whole.
    def bound(response: Response) -> None:
        if response.request.headers.get("Accept-Encoding") != "identity":
            _read_bounded(response)

    try:
        session = get_session()
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        raise allowed.proxy_fault(error) from None

    # The configured hub is trusted: it may be in a private network.
    configured = urlsplit(os.environ.get("HF_ENDPOINT", "").strip() or constants.ENDPOINT).hostname or ""
    allowed.guard(session, configured)

    # The session is shared, so the hook is added once.
    hooks = session.event_hooks
    if not any(getattr(hook, "__name__", "") == bound.__name__ for hook in hooks["response"]):
        session.event_hooks = {**hooks, "response": [*hooks["response"], bound]}


def _read_bounded(response: Response) -> None:
    """Read and unpack an answer into memory; `UserError` if it is longer than any list or error can be."""
    import httpx2

    if response.is_stream_consumed:
        return

    def bounded(blocks: Iterable[bytes]) -> Iterator[bytes]:
        size = 0
        for block in blocks:
            size += len(block)
            if size > _MOST_ANSWER:
                raise UserError(f"{response.url.host} sends an answer of more than {_MOST_ANSWER >> 20} MiB, where a "
                                "few lines are wanted.", "Check HF_ENDPOINT; then continue.", ErrorKind.ENVIRONMENT)
            yield block

    stream = response.stream
    assert isinstance(stream, httpx2.SyncByteStream)
    # Both are bounded: behind the end of compressed data, more can follow that unpacks to nothing.
    packed = httpx2.Response(response.status_code, headers=response.headers, content=bounded(stream))
    content = b"".join(bounded(packed.iter_bytes()))
    stream.close()
    response.headers.pop("Content-Encoding", None)
    response.stream = httpx2.ByteStream(content)


def unreachable(subject: str, reason: object, hint: str = _RESUME) -> UserError:
    """The error after too many interruptions."""
    return UserError(f"{subject} could not be downloaded: {reason}.", hint, ErrorKind.ENVIRONMENT)


def part_of(response: Response) -> tuple[int, int | None]:
    """The position of a response's first byte, and the size of the whole file if it is given."""
    return _first_of(response) if response.status_code == 206 else 0, _total_of(response)


def content_length(response: Response) -> int | None:
    """The number of bytes of an answer, if it says so and is not compressed."""
    length = "" if response.headers.get("Content-Encoding") else response.headers.get("Content-Length", "")
    return int(length) if _NUMBER.fullmatch(length) else None


def is_passing(status: int) -> bool:
    """Whether a later request may get another status."""
    return status in _TRANSIENT


def _first_of(response: Response) -> int:
    """The position of the first byte of a part, from `Content-Range: bytes FIRST-LAST/TOTAL`."""
    start_byte = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if not _NUMBER.fullmatch(start_byte):
        raise Interrupted("the hub sent a part without saying which")
    return int(start_byte)


def _total_of(response: Response) -> int | None:
    """The size of the whole file, if the answer has it."""
    if response.status_code == 200 and not response.headers.get("Content-Encoding"):
        return content_length(response)
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if _NUMBER.fullmatch(total) else None


def _retry_after(response: Response) -> float:
    value = response.headers.get("Retry-After", "")
    return min(float(value), _LONGEST_RETRY_AFTER_S) if _NUMBER.fullmatch(value) else 0.0
