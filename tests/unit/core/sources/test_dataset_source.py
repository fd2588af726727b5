"""Sources from elsewhere: files by URL, and datasets of the hub, from servers on the loopback address."""

from __future__ import annotations

import io
import json
import shutil
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from config.errors import UserError
from core.sources import dataset_source
from core.sources.dataset_source import download_url
from core.sources.downloader import RetryPolicy
from core.sources.hub import Hub
from core.sources.hub_dataset import CONVERTED, DatasetAddress, ensure_downloaded
from core.workspace import Workspace
from data.importers import import_source
from tests.hub import serving
from tests.unit.small_data import AMHARIC, Recorder, write_clip, write_dataset

QUICK = RetryPolicy(max_attempts=3, listing_attempts=2, first_wait_s=0.01, longest_wait_s=0.02)


class Server:
    """What it gives, and what it was asked for; `cut` bytes of each answer, then the connection ends."""

    def __init__(self) -> None:
        self.content, self.headers, self.status = b"", dict[str, str](), 200
        self.cut: int | None = None
        self.sized, self.url = True, ""
        self.ranges: list[str | None] = []


@contextmanager
def web() -> Iterator[Server]:
    given = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            given.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            body = given.content[start:]
            self.send_response(206 if start else given.status)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(given.content) - 1}/{len(given.content)}")
            if given.sized:
                self.send_header("Content-Length", str(len(body)))
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):
                self.wfile.write(body if given.cut is None else body[:given.cut])
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    given.url = f"http://127.0.0.1:{server.server_address[1]}/data/readings.zip?key=secret"
    try:
        yield given
    finally:
        server.shutdown()
        server.server_close()


def archive(folder: Path) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as writing:
        for path in sorted(write_dataset(folder).iterdir()):
            writing.write(path, path.name)
    return made.getvalue()


def test_an_archive_by_its_url_is_gone_on_with_and_cleared_away(tmp_path: Path, workspace: Workspace) -> None:
    with web() as server:
        server.content, server.cut = archive(tmp_path / "in"), 60_000
        server.headers = {"ETag": '"one"'}
        with pytest.raises(UserError, match="could not be downloaded"):
            download_url(server.url, workspace.cache / "downloads", Recorder(),
                         RetryPolicy(stall_s=0.5, max_attempts=1))
        kept = next((workspace.cache / "downloads").rglob("readings.zip")).stat().st_size
        assert kept >= 60_000
        server.cut, server.ranges = None, []
        with dataset_source.open_source(server.url, "am", workspace, Recorder(), retry=QUICK) as gathered:
            assert gathered.foreign
            assert len(import_source(gathered.path, foreign=True).rows) == len(AMHARIC)
        assert server.ranges == [None, f"bytes={kept}-"]
        assert list((workspace.cache / "downloads").iterdir()) == []


def test_an_address_that_cannot_be_reached_is_not_taken_for_the_hub(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="could not be downloaded") as caught:
        download_url("http://127.0.0.1:1/readings.zip", workspace.cache / "downloads", Recorder(), QUICK)
    assert "HF_ENDPOINT" not in caught.value.hint
    assert "--folder" not in caught.value.hint


def test_another_content_begins_anew_and_no_size_is_streamed(tmp_path: Path) -> None:
    with web() as server:
        server.content, server.headers = b"first" * 100, {"ETag": '"one"'}
        path = download_url(server.url, tmp_path, Recorder(), QUICK)
        server.content, server.headers = b"other" * 100, {"ETag": '"two"'}
        assert download_url(server.url, tmp_path, Recorder(), QUICK).read_bytes() == b"other" * 100
        server.sized = False
        assert download_url(server.url, tmp_path, Recorder(), QUICK) == path
        server.headers = {"Content-Disposition": 'attachment; filename="../../x y.tar"'}
        assert download_url(server.url, tmp_path, Recorder(), QUICK).relative_to(path.parent) == Path("x_y.tar")


@pytest.mark.parametrize(("status", "headers", "said"), [
    (404, {}, r"/data/readings.zip cannot be downloaded: 127\.0\.0\.1 answered 404"),
    (200, {"Content-Type": "text/html; charset=utf-8"}, "is a web page, not a file"),
])
def test_what_is_no_file_is_said_without_the_secret(
        tmp_path: Path, status: int, headers: dict[str, str], said: str) -> None:
    with web() as server:
        server.status, server.headers, server.content = status, headers, b"no"
        with pytest.raises(UserError, match=said) as caught:
            download_url(server.url, tmp_path, Recorder(), QUICK)
        assert "secret" not in caught.value.message + caught.value.hint


def table(folder: Path, texts: tuple[str, ...], first: int = 0) -> bytes:
    """A Parquet table as the hub has them."""
    rows = []
    for index, text in enumerate(texts, start=first):
        clip = write_clip(folder / f"{index}.wav", pitch=300 + 10 * index)
        rows.append({"audio": {"bytes": clip.read_bytes(), "path": f"../clip {index % 2}.wav"}, "sentence": text,
                     "client_id": f"s{index}"})
    made = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), made)
    return made.getvalue()


def taken(url: str, folder: Path, source: str, most: int = 0) -> str:
    """What an import of `source` would read, in `folder`; what it says of it."""
    address = DatasetAddress.parse(source, url)
    assert address is not None
    downloads = folder.with_name(f"{folder.name} downloads")
    with ensure_downloaded(address, downloads, "am", most, Hub(url, None, "dataset"), Recorder(), QUICK) as there:
        shutil.copytree(there.folder, folder)
    assert list(downloads.iterdir()) == []
    return " ".join(there.notes)


def test_tables_of_the_hub_become_recordings_with_ids_of_their_own(tmp_path: Path) -> None:
    with serving() as hub:
        hub.add("me/speech", {"am/train-00000-of-00002.parquet": table(tmp_path, AMHARIC[:3]),
                              "am/train-00001-of-00002.parquet": table(tmp_path, AMHARIC[3:5], 3),
                              "am/test-00000-of-00001.parquet": table(tmp_path, AMHARIC[5:], 5),
                              "fr/train.parquet": b"another language"}, kind="dataset")
        note = taken(hub.url, tmp_path / "all", "hub:me/speech")
        assert "configuration am: 6 clips of 3 Parquet tables" in note
        rows = import_source(tmp_path / "all", foreign=True).rows
        assert [row.text for row in rows] == list(AMHARIC)
        assert [row.split for row in rows] == ["train"] * 5 + ["test"]
        assert [row.id for row in rows] == ["clip_0", "clip_1", "clip_0-2", "clip_1-2", "clip_0-3", "clip_1-3"]
        assert rows[5].speaker == "s5"
        assert rows[4].audio.read_bytes() == (tmp_path / "4.wav").read_bytes()
        hub.sent.clear()
        taken(hub.url, tmp_path / "some", f"{hub.url}/datasets/me/speech/viewer/am/train", most=2)
        assert len(import_source(tmp_path / "some").rows) == 2
        assert [name for name in hub.sent if name.endswith("parquet")] == ["am/train-00000-of-00002.parquet"]
        with pytest.raises(UserError, match="none is 'xx': am, fr"):
            taken(hub.url, tmp_path / "none", "hub:me/speech/xx")


def test_a_dataset_without_tables_comes_converted_or_as_files(tmp_path: Path) -> None:
    with serving() as hub:
        files = {path.name: path.read_bytes() for path in write_dataset(tmp_path / "in").iterdir()}
        rows = [{"file_name": f"clip{index}.wav", "text": text} for index, text in enumerate(AMHARIC[:2])]
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        hub.add("me/files", {**{f"data/{name}": content for name, content in files.items() if name.endswith("wav")},
                             "data/metadata.jsonl": lines, "README.md": b"#", "../x.wav": b"evil"}, kind="dataset")
        taken(hub.url, tmp_path / "files", "hub:me/files")
        assert [row.text for row in import_source(tmp_path / "files").rows] == list(AMHARIC[:2])
        hub.add("me/script", {"loader.py": b"import os"}, kind="dataset")
        with pytest.raises(UserError, match="has no recordings"):
            taken(hub.url, tmp_path / "script", "hub:me/script")
        made = {"default/train/0000.parquet": table(tmp_path, AMHARIC[:1])}
        hub.repositories["me/script"].refs[CONVERTED] = hub.add("me/script", made, kind="dataset")
        hub.add("me/script", {"loader.py": b"import os"}, kind="dataset")
        assert "1 clip" in taken(hub.url, tmp_path / "converted", "hub:me/script")
        hub.add("me/broken", {"data/train.parquet": b"PAR1 and nothing"}, kind="dataset")
        with pytest.raises(UserError, match=r"train\.parquet could not be read as a Parquet table"):
            taken(hub.url, tmp_path / "broken", "hub:me/broken")


@pytest.mark.parametrize(("source", "address"), [
    ("hub:a/b", DatasetAddress("a/b")), ("hub:a/b/am_et", DatasetAddress("a/b", "am_et")),
    ("hub:a/b@v1/am", DatasetAddress("a/b", "am", "v1")),
    ("https://huggingface.co/datasets/a/b", DatasetAddress("a/b")),
    ("https://huggingface.co/datasets/a/b/viewer/am/train?row=3", DatasetAddress("a/b", "am")),
    ("https://huggingface.co/datasets/a/b/tree/main", DatasetAddress("a/b")),
    ("https://huggingface.co/datasets/a/b/resolve/main/x.zip", None), ("https://example.org/datasets/a/b", None),
])
def test_addresses_of_datasets(source: str, address: DatasetAddress | None) -> None:
    assert DatasetAddress.parse(source) == address


def test_what_names_no_dataset_is_refused() -> None:
    with pytest.raises(UserError, match="names no dataset of the hub"):
        DatasetAddress.parse("hub:../..")
