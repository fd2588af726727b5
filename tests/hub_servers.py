"""The two servers of the loopback hub: what each address answers, and how answers go wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_state import Asked, Blob, Faults, HubState, Repository

LARGE = (".safetensors", ".pt", ".ogg", ".wav", ".parquet")
SIGNATURE = "signed-for-you"
_REPO = r"(?P<repo>[^/]+/[^/]+)"
_KIND = r"(?P<kind>model|dataset)"


class _Handler(BaseHTTPRequestHandler):
    """What both servers share: notes, answers, bodies with faults."""

    hub: HubState
    which = ""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def parse_request(self) -> bool:
        good = super().parse_request()
        if good:
            self.hub.note(Asked(self.which, self.command, self.path, self.headers.get("Authorization"),
                                self.headers.get("Range")))
        return good

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, values: object = None, **headers: str) -> None:
        data = b"" if values is None else json.dumps(values).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, code: str = "", message: str = "") -> None:
        said = {name: value for name, value in (("X_Error_Code", code), ("X_Error_Message", message)) if value}
        self.answer(status, {"error": f"{message} (you sent {self.headers.get('Authorization')})"}, **said)

    def file(self, name: str, blob: Blob) -> None:
        """Send a file, or the part that is asked for, with what goes wrong."""
        faults = self.hub.faults.get(name, Faults())
        if faults.status and self.hub.spend(faults, "refusals"):
            said = {"Retry_After": faults.retry_after} if faults.retry_after else {}
            self.answer(faults.status, {"error": "no"}, **said)
            return
        if faults.content is not None and self.hub.spend(faults, "lies"):
            blob = Blob(faults.content)
        size = blob.size if faults.truncate_to is None else faults.truncate_to
        start, end, wanted = 0, size, self.headers.get("Range")
        if wanted and not faults.no_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(size, int(last) + 1) if last else size
            if start >= size:
                self.answer(416, None, Content_Range=f"bytes */{size}")
                return
        part = (start, end) != (0, size)
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command != "HEAD":
            self._send(name, blob, start, end, faults)

    def _send(self, name: str, blob: Blob, start: int, end: int, faults: Faults) -> None:
        limits = [limit for limit in (faults.drop_after, faults.stall_after) if limit is not None]
        limit = min(limits) if limits and self.hub.spend(faults, "times") else None
        done = 0
        for block in blob.blocks(start):
            block = block[:end - start - done]
            part = block if limit is None else block[:limit - done]
            self.hub.count(name, len(part))  # before they are sent: who has them all may look at once
            self.wfile.write(part)
            self.wfile.flush()
            done += len(part)
            if faults.bytes_per_s:
                self.hub.closing.wait(len(part) / faults.bytes_per_s)
            if limit is not None and done >= limit:
                if faults.stall_after is not None:
                    self.hub.closing.wait()
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return


class StorageHandler(_Handler):
    """Where large files lie: `/SHA256/NAME?signature`."""

    which = "storage"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parse_qs(parts.query).get("signature") != [SIGNATURE]:
            self.answer(403, {"error": "unsigned"})
            return
        _, digest, name = parts.path.split("/", 2)
        for repository in list(self.hub.repositories.values()):
            for files in list(repository.commits.values()):
                for path, blob in files.items():
                    if path == unquote(name) and blob.sha256 == digest:
                        self.file(path, blob)
                        return
        self.answer(404)

    def do_PUT(self) -> None:
        name = urlsplit(self.path).path.strip("/")
        faults = self.hub.faults.get("upload", Faults())
        if faults.stall_after is not None and self.hub.spend(faults, "times"):
            self.rfile.read(faults.stall_after)
            self.hub.closing.wait()
            return
        data = self.body()
        if faults.status and self.hub.spend(faults, "refusals"):
            self.answer(faults.status, {"error": "no"})
            return
        if hashlib.sha256(data).hexdigest() != name:
            self.answer(400, {"error": "another hash"})
            return
        self.hub.uploaded[name] = data
        self.answer(200)


class HubHandler(_Handler):
    """The hub itself."""

    which = "hub"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path == "/api/whoami-v2":
            may = self.hub.tokens.get(self._token())
            self.answer(200, {"type": "user", "name": "me"}) if may else self.refuse(401, "", "Invalid credentials")
        elif match := re.fullmatch(rf"/api/{_KIND}s/{_REPO}(/revision/(?P<revision>.+))?", path):
            self._info(match["repo"], match["revision"] or "main", match["kind"])
        elif match := re.fullmatch(rf"/({_KIND}s/)?{_REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)", path):
            self._resolve(match["repo"], match["revision"], match["name"], match["kind"] or "model")
        else:
            self.refuse(404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        data = self.body()
        if path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif self.hub.tokens.get(self._token()) != "write":
            self.refuse(403 if self._token() in self.hub.tokens else 401, "", "You may not write")
        elif path == "/api/repos/create":
            self._create(json.loads(data))
        elif match := re.fullmatch(rf"/api/models/{_REPO}/preupload/.+", path):
            files = [{"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                      "shouldIgnore": False} for file in json.loads(data)["files"]]
            self.answer(200, {"files": files})
        elif re.fullmatch(rf"/{_REPO}\.git/info/lfs/objects/batch", path):
            self._batch(json.loads(data))
        elif match := re.fullmatch(rf"/api/models/{_REPO}/commit/.+", path):
            self._commit(match["repo"], data)
        else:
            self.refuse(404)

    def _token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _may_read(self, name: str, kind: str) -> Repository | None:
        """The repository, or None when a refusal was sent. As on the true hub, private and absent look the same."""
        repository, token = self.hub.repositories.get(name), self._token()
        may = self.hub.tokens.get(token)
        if token and may is None:
            self.refuse(401, "", "Invalid credentials in Authorization header")
            return None
        if repository is None or repository.kind != kind or (repository.private and not may):
            self.refuse(404 if may else 401, "RepoNotFound", "Repository not found")
            return None
        return repository

    def _info(self, name: str, revision: str, kind: str) -> None:
        faults = self.hub.faults.get("list", Faults())
        if faults.status and self.hub.spend(faults, "refusals"):
            self.answer(faults.status, {"error": "no"})
            return
        if faults.stall_after is not None and self.hub.spend(faults, "times"):
            self.hub.closing.wait()
            return
        if faults.content is not None:
            self.file("list", Blob(faults.content))
            return
        repository = self._may_read(name, kind)
        if repository is None:
            return
        commit = repository.main if revision == "main" else repository.refs.get(revision, revision)
        if commit not in repository.commits:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        siblings = []
        for path, blob in repository.commits[commit].items():
            item: dict[str, object] = {"rfilename": path, "size": blob.size, "blobId": blob.sha1}
            if path.endswith(LARGE):
                item["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": 134}
            siblings.append(item)
        self.answer(200, {"id": name, "sha": commit, "private": repository.private, "siblings": siblings})

    def _resolve(self, name: str, revision: str, path: str, kind: str) -> None:
        repository = self._may_read(name, kind)
        if repository is None:
            return
        if repository.gated and self.hub.tokens.get(self._token()) in (None, "gated"):
            self.refuse(403 if self._token() else 401, "GatedRepo", "Access to this model is restricted")
            return
        commit = repository.main if revision == "main" else revision
        blob = repository.commits.get(commit, {}).get(path)
        if blob is None:
            code = "EntryNotFound" if commit in repository.commits else "RevisionNotFound"
            self.refuse(404, code, "not there")
        elif path.endswith(LARGE):
            self.answer(302, None, Location=f"{self.hub.storage}/{blob.sha256}/{path}?signature={SIGNATURE}",
                        X_Repo_Commit=commit, X_Linked_Size=str(blob.size), X_Linked_Etag=f'"{blob.sha256}"')
        else:
            self.file(path, blob)

    def _create(self, wanted: dict[str, str]) -> None:
        name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        if name in self.hub.repositories:
            self.answer(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
            return
        self.hub.repositories[name] = Repository(private=wanted.get("visibility") == "private")
        self.hub.repositories[name].commit({})
        self.answer(200, {"url": f"{self.hub.url}/{name}", "name": name})

    def _batch(self, wanted: dict[str, list[dict[str, object]]]) -> None:
        objects = []
        for item in wanted["objects"]:
            if item["oid"] not in self.hub.uploaded:
                item = {**item, "actions": {"upload": {"href": f"{self.hub.storage}/{item['oid']}"}}}
            objects.append(item)
        self.answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, name: str, data: bytes) -> None:
        repository = self.hub.repositories[name]
        files = dict(repository.commits[repository.main])
        for line in data.splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                files[item["value"]["path"]] = Blob(base64.b64decode(item["value"]["content"]))
            elif item["key"] == "lfsFile":
                files[item["value"]["path"]] = Blob(self.hub.uploaded[item["value"]["oid"]])
        commit = repository.commit(files)
        self.answer(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit, "success": True})
