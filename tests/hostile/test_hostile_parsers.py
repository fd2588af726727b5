"""Bytes that no parser was written for: each is refused in a sentence or read, and nothing else happens."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import re
import struct
import tarfile
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import httpx2
import pyarrow
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from config import confinement, foreign
from config.errors import UserError
from config.schema import PushOptions
from config.text_rules import parse_rules
from core import push
from core.dataset.review import _Draft
from core.jobs import checkpoint_names, events
from core.jobs.job import load_job_directory
from core.library import certificate, diagnosis, evaluation_report, records, segments
from core.library.checkpoints import read_ranking
from core.library.reference_voices import read_recording
from core.model import tensor_files
from core.proof.tokenizer_fit import read_pieces
from core.sources import allowed, dataset_source, hub_dataset, recognisers, source_preview
from core.sources import hub as hub_client
from core.sources.archives import unpack_archive
from core.sources.dataset_source import WebAddress
from core.sources.downloader import (
    Downloader,
    DownloadProgress,
    RetryPolicy,
    list_repository,
    public_name,
)
from core.sources.hub import Hub, Interrupted, RemoteFile
from core.sources.hub_dataset import DatasetAddress
from core.text.pieces import read_tokenizer
from core.workspace import Workspace
from data import manifest
from data.durable_files import ExpectedFile, hash_file
from data.front_end import FrontEnd, read_segmenter
from data.importers import import_source
from data.segmenters import base_file, vocabulary
from tests.unit.hub_model import Recorder

DEEP = 100_000
TEXTS = {
    "empty": b"", "zeros": b"\0" * 1000, "not UTF-8": b"\xff\xfe\x80\x81", "half a mark": b"\xef\xbb", "one line": b"a",
    "deep list": b"[" * DEEP, "deep objects": b'{"a":' * DEEP, "a long number": b"9" * 10_000, "null": b"null",
    "deep and whole": b"[" * 900 + b"]" * 900, "numbers": b"[1, 2, 3]", "a text": b'"a"', "half a pair": b'"\\ud800"',
    "objects of lists": b'[{"audio": ["a"], "text": {"b": 1}}]', "no audio": b'[{"text": 5}]',
    "NaN": b'[{"audio": NaN, "text": Infinity}]', "long keys": b'{"' + b"k" * 100_000 + b'": 1}',
    "a huge line": b"a|" + b"b" * 3_000_000, "quotes": b'"' * 9999, "bars": b"|" * 9999, "tabs": b"\t" * 9999 + b"\n",
    "a path out": b"file,text\n../../../etc/passwd,x\n", "a root path": b"file,text\n/etc/passwd,x\n",
    "a command": b"a sox x -t wav - |\n", "a NUL in a name": b"file,text\na\0b.wav,x\n",
    "a long name": b"file,text\n" + b"a" * 300 + b".wav,x\n", "direction marks": "file,text\n\u202ea.wav,x\n".encode(),
    "times": b"file,text,start,end\na.wav,x,1e400,-5\n", "infinite times": b"file,text,start,end\na.wav,x,inf,nan\n",
    "subtitles": b"1\n99999999999:00:00,000 --> 00:00:01,000\nx\n",
    "subtitles back": b"1\n00:00:05,0 --> 00:00:01,0\nx\n",
}
NAMES = ("metadata.csv", "a.tsv", "a.json", "a.jsonl", "a.txt", "a.srt", "a.vtt", "wav.scp", "a.lrc", "text")


def refused_or(run: Callable[[], object]) -> None:
    """Call `run`, which may only end well or in a sentence."""
    said = "read"
    try:
        run()
    except UserError as refusal:
        said = refusal.message
    assert said
    assert len(said) < 2000
    assert "Traceback" not in said


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", TEXTS)
def test_a_source_that_is_no_dataset_is_refused_or_read(name: str, text: str, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / name).write_bytes(TEXTS[text])
    (folder / "a.wav").write_bytes(b"RIFF")
    for source in (folder, folder / name):
        def read(source: Path = source) -> None:
            for entry in import_source(source, "am", foreign=True):
                audio = getattr(entry, "audio", None)
                assert audio is None or audio.resolve().is_relative_to(folder.resolve())
        refused_or(read)


COLUMNS = {
    "numbers": {"audio": [1, 2], "text": [3, 4]}, "lists": {"audio": [[1]], "text": [["a"]]},
    "bytes as text": {"audio": [b"\xff"], "text": [b"\xff"]}, "no values": {"audio": [None], "text": [None]},
    "empty": {"audio": [], "text": []}, "other names": {"a": [1]}, "structs": {"audio": [{"x": 1}], "text": ["a"]},
    "wrong structs": {"audio": [{"bytes": 5, "path": 7}], "text": ["a"]},
    "no sound": {"audio": [{"bytes": b"", "path": None}], "text": ["a"]},
    "a path out": {"audio": [{"bytes": None, "path": "../../etc/passwd"}], "text": ["a"]},
    "a path for a name": {"audio": [{"bytes": b"RIFF", "path": "../../canary.wav"}], "text": ["a"]},
    "a long name": {"audio": [{"bytes": b"RIFF", "path": "a" * 5000}], "text": ["a"]},
    "a NUL": {"audio": [{"bytes": b"RIFF", "path": "a\0.wav"}], "text": ["a\0"]},
    "switches": {"audio": [True], "text": [False]}, "numbers for texts": {"audio": [{"bytes": b"R", "path": "a.wav"}],
                                                                         "text": [5]},
}


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_parquet_table_of_wrong_columns_is_refused_or_read(columns: str, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    parquet.write_table(pyarrow.table(COLUMNS[columns]), folder / "a.parquet")
    refused_or(lambda: list(import_source(folder, "am", foreign=True)))
    assert not list(tmp_path.rglob("canary*"))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", b"PAR1\0\0\0\0PAR1",
                                     b"PAR1" + struct.pack("<I", 2**31) + b"PAR1"])
def test_a_broken_parquet_table_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    refused_or(lambda: list(import_source(tmp_path, "am", foreign=True)))


def _tar(*members: tuple[str | bytes, bytes], kind: bytes = tarfile.REGTYPE, link: str = "", mode: str = "w") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode, errors="surrogateescape") as archive:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name)
            info.size, info.type, info.linkname = len(data) if kind == tarfile.REGTYPE else 0, kind, link
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def _zip(*members: tuple[str, bytes]) -> bytes:
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(name, data)
    return content.getvalue()


def _patched(content: bytes, at: int, by: bytes) -> bytes:
    return content[:at] + by + content[at + len(by):]


GOOD = _tar(("a.txt", b"x" * 5000), ("b.wav", b"RIFF"))
ARCHIVES = {
    "empty.zip": b"", "empty.tar": b"", "zeros.tar": b"\0" * 10240, "text.zip": b"PK\3\4 no zip", "cut.zip": _zip(
        ("a.txt", b"x"))[:-10], "cut.tar": GOOD[:700], "cut.tar.gz": gzip.compress(GOOD)[:60],
    "cut.tar.bz2": bz2.compress(GOOD)[:40], "cut.tar.xz": lzma.compress(GOOD)[:60],
    "spoilt.tar.gz": _patched(gzip.compress(GOOD), 15, b"\xff\xff\xff"),
    "spoilt.tar.bz2": _patched(bz2.compress(GOOD), 20, b"\xff\xff\xff\xff"),
    "spoilt.tar.xz": _patched(lzma.compress(GOOD), 30, b"\xff\xff\xff\xff"),
    "head.tar.xz": b"\xfd7zXZ\0" + b"\xff" * 50, "head.tar.bz2": b"BZh9" + b"\xff" * 50,
    "head.tgz": b"\x1f\x8b" + b"\xff" * 50,
    "long.tar": _tar(("a" * 300 + ".txt", b"x")), "long.zip": _zip(("a" * 300 + ".txt", b"x")),
    "deep.tar": _tar(("a/" * 500 + "a.txt", b"x")), "deep.zip": _zip(("a/" * 2000 + "a.txt", b"x")),
    "not-utf8.tar": _tar((b"\xff\xfe.txt", b"x")), "out.tar": _tar(("../canary.txt", b"x")),
    "out.zip": _zip(("../canary.txt", b"x")), "root.tar": _tar(("/tmp/canary.txt", b"x")),
    "drive.zip": _zip(("C:\\canary.txt", b"x")), "back.zip": _zip(("..\\canary.txt", b"x")),
    "link.tar": _tar(("a.txt", b""), kind=tarfile.SYMTYPE, link="/etc/passwd"),
    "hard.tar": _tar(("a.txt", b""), kind=tarfile.LNKTYPE, link="/etc/passwd"),
    "pipe.tar": _tar(("a.txt", b""), kind=tarfile.FIFOTYPE), "device.tar": _tar(("a.txt", b""), kind=tarfile.CHRTYPE),
    "twice.tar": _tar(("a.txt", b"x"), ("a.txt", b"y")), "twice.zip": _zip(("a.txt", b"x"), ("a.txt", b"y")),
    "file-and-folder.tar": _tar(("a.txt", b"x"), ("a.txt/b.txt", b"y")), "nul.zip": _zip(("a\0b.txt", b"x")),
    "size.tar": _patched(GOOD, 124, b"77777777777\0"), "minus.tar": _patched(GOOD, 124, b"\xff" * 12),
    "sum.tar": _patched(GOOD, 148, b"0000000\0"), "many.zip": _zip(*((f"{number}.txt", b"") for number in range(500))),
    "bomb.zip": _zip(("a.txt", b"\0" * 60_000_000)), "bomb.tar.xz": lzma.compress(
        _tar(("a.txt", b"\0" * 60_000_000)), preset=0),
    "method.zip": _patched(_zip(("a.txt", b"x" * 100)), 8, b"\x63\0"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_writes_nothing_beyond_its_folder(name: str, tmp_path: Path) -> None:
    path, folder = tmp_path / name, tmp_path / "unpacked"
    path.write_bytes(ARCHIVES[name])
    folder.mkdir()
    refused_or(lambda: unpack_archive(path, folder, 250_000_000))
    assert sorted(tmp_path.iterdir()) == sorted([path, folder])
    assert not list(tmp_path.rglob("canary*"))
    assert not Path("/tmp/canary.txt").exists()
    assert sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) <= 50_000_000
    assert not [one for one in folder.rglob("*") if one.is_symlink()]


SOURCES = [
    "http://[::1", "http://", "https://:80/", "http://a b/", "http://\u202e/", "http://" + "a" * 300 + ".com/",
    "http://..",
    "http://x:99999/", "http://x:y/", "https://[fe80::1%25eth0]/a", "http://0x7f.1/",
    "https://huggingface.co/datasets/",
    "https://huggingface.co/datasets/a", "hub:", "hub:a", "hub:../../x", "hub:a/b/c/d/e/f", "hub:a/b@../..", "hub:\0/x",
    "http://user:password@[::1", "http://-a-/", "http://\ud800/", "HTTP://[",
]


@pytest.mark.parametrize("source", SOURCES)
def test_an_address_that_is_none_is_refused_in_a_sentence(source: str) -> None:
    refused_or(lambda: DatasetAddress.parse(source))

    def shown() -> None:
        web = WebAddress(source)
        assert "password" not in web.shown
        assert web.host

    refused_or(shown)
    assert "password" not in public_name(source)


@pytest.mark.parametrize(("given", "public"), [
    ("https://me:secret@x.org/a.zip?token=secret#secret", "https://x.org/a.zip"), ("hub:a/b@main", "hub:a/b@main"),
    ("https://x.org/a.zip?X-Amz-Signature=secret", "https://x.org/a.zip"), ("/home/me/a?b@c", "/home/me/a?b@c"),
    ("HTTPS://me@x.org", "HTTPS://x.org"), ("http://a@b@x.org/y", "http://x.org/y"), ("demo", "demo"),
    ("https://x.org/@me/a", "https://x.org/@me/a"), (" https://u:p@x.org/a ", "https://x.org/a"),
])
def test_what_others_read_of_a_source_has_no_credentials(given: str, public: str) -> None:
    assert public_name(given) == public


METADATA = ["169.254.169.254", "metadata.google.internal", "metadata.google.internal.", "METADATA", "fe80::1",
            "fd00:ec2::254", "fd12::1", "::ffff:169.254.169.254", "100.100.100.200", "168.63.129.16", "2852039166"]
PRIVATE = ["127.0.0.1", "localhost", "10.0.0.1", "192.168.1.1", "172.16.0.1", "::1", "0.0.0.0",
           "::ffff:127.0.0.1",
           "127.1", "2130706433", "0x7f000001", "100.64.0.1", "0"]


@pytest.mark.parametrize("host", [*METADATA, *PRIVATE])
def test_addresses_of_the_machine_are_not_read_where_sources_are_limited(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(confinement.VARIABLE, raising=False)
    if host in METADATA:
        with pytest.raises(UserError, match="is not read"):
            allowed.check_address(host)
    else:
        allowed.check_address(host)
    monkeypatch.setenv(confinement.VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match="is not read"):
        allowed.check_address(host)
    allowed.check_address("8.8.8.8")


@pytest.mark.parametrize(("value", "fine"), [
    ("/etc/passwd", False), ("/etc", False), ("../secret", False), ("{chosen}/a.txt", True), ("{chosen}/link", False),
    ("{chosen}/../secret", False), ("a name", True), ("some text/with a stroke", True), ("{workspace}/runs", True),
    ("/nowhere/at/all", False), ("~", False), ("", True), ("\0", True), ("{chosen}", True), ("{secret}", False),
    ("https://x.org/a", True), ("a" * 5000, True), (5, True), (None, True),
])
def test_only_chosen_folders_are_read_where_sources_are_limited(
    value: object, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    monkeypatch.setattr(confinement, "_WORKSPACES", [str(workspace.path.resolve())])
    chosen, secret = tmp_path / "chosen", tmp_path / "secret"
    chosen.mkdir()
    (chosen / "a.txt").write_text("x")
    secret.write_text("x")
    (chosen / "link").symlink_to(secret)
    monkeypatch.chdir(chosen)
    given = value.format(chosen=chosen, workspace=workspace.path, secret=secret) if isinstance(value, str) else value
    monkeypatch.delenv(confinement.VARIABLE, raising=False)
    allowed.check_value(given)
    monkeypatch.setenv(confinement.VARIABLE, str(chosen))
    if fine:
        allowed.check_value(given)
    else:
        with pytest.raises(UserError, match="may be read"):
            allowed.check_value(given)


RULES = {
    "a list": "- a", "a number": "5", "deep": "words: " + "[" * DEEP, "deep lists": "- " * DEEP + "a",
    "deep by lines": "\n".join(" " * depth + "a:" for depth in range(300)),
    "a tag": "!!python/object/apply:os.system [x]",
    "words a list": "words: [a, b]", "words a number": "words: 5", "keys of lists": "words: {[a]: b}",
    "an alias": "words: &a {x: *a}", "many": "words:\n" + "".join(f"  w{number}: v\n" for number in range(40_000)),
    "twice": "words: {a: b, a: c}", "half a pair": 'about: "\\ud800"', "a NUL": "about: \0",
    "a date": "language: 2020-01-01",
    "merge": "<<: [1, 2]", "empty": "", "tabs": "\t\t", "aliases": "a: &a [x]\n" + "b: [" + "*a, " * 60 + "]",
}


@pytest.mark.parametrize("text", RULES)
def test_rules_of_wrong_types_are_refused_in_a_sentence(text: str) -> None:
    refused_or(lambda: parse_rules(RULES[text], "mine.yaml"))


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b"[" * DEEP, b'{"model": 5}', b'{"model": {"vocab": []}}',
    b'{"model": {"vocab": {"a": [1]}}}',
    b'{"model": {"vocab": {"a": "x"}}}', b'{"model": {"vocab": {"a": null}}}', b'{"model": {"vocab": {"a": 1e400}}}',
    b'{"model": {"vocab": {"a": -1}}}', b'{"model": {"vocab": {"a": 1}}, "added_tokens": [5]}',
    b'{"model": {"vocab": {"a": 1}}, "added_tokens": [{"id": [1], "content": "x"}]}',
    b'{"model": {"vocab": {"a": 1}}, "added_tokens": {"id": 1}}',
    b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": 5}}',
    b'{"model": {"vocab": [["a", 1]]}}', b'{"model": {"vocab": [[1, "a"], 5]}}', b"\xff\xfe", b'{"model": null}', b"5",
])
def test_a_tokenizer_of_wrong_types_is_refused_in_a_sentence(content: bytes) -> None:
    refused_or(lambda: vocabulary(content, "tokenizer.json"))


@pytest.mark.parametrize("content", [
    b"", b"RIFF", b"RIFF\xff\xff\xff\xffWAVEfmt ", b"OggS" + b"\0" * 100, b"fLaC" + b"\xff" * 100,
    b"ID3" + b"\xff" * 200,
    b"FORM\0\0\0\0AIFF", b"\0" * 5000, b"text",
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0data\0\0\0\0",
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\xff\xff\xff\x7f\xff\xff\xff\x7f\x02\0\x10\0data\xff\xff\xff\x7f",
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\xff\xff\x44\xac\0\0\0\0\0\0\x02\0\x10\0data\x10\0\0\0" + b"\0" * 16,
])
@pytest.mark.parametrize("suffix", [".wav", ".flac", ".ogg", ".mp3"])
def test_sound_that_is_none_is_refused_in_a_sentence(content: bytes, suffix: str, tmp_path: Path) -> None:
    from core.library.reference_voices import read_recording

    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    refused_or(lambda: read_recording(path))


def test_a_sound_file_that_can_be_read_is_read(tmp_path: Path) -> None:
    import numpy as np

    from core.library.reference_voices import read_recording

    soundfile.write(tmp_path / "a.wav", 0.3 * np.sin(np.arange(96_000) / 20), 24_000)
    assert read_recording(tmp_path / "a.wav").sample_rate == 24_000


_JSON = st.recursive(st.none() | st.booleans() | st.integers(-2**70, 2**70) | st.floats() | st.text(max_size=8),
                     lambda inner: (st.lists(inner, max_size=4)
                                    | st.dictionaries(st.text(max_size=8), inner, max_size=4)),
                     max_leaves=12)
_KEYS = ("audio", "text", "file", "path", "duration", "speaker", "model", "vocab", "merges", "added_tokens", "event",
         "time",
         "step", "language", "words", "numbers")
_OBJECTS = st.dictionaries(st.sampled_from(_KEYS), _JSON, max_size=6)
_ANY = st.one_of(st.binary(max_size=300), _JSON.map(lambda value: json.dumps(value).encode()),
                 _OBJECTS.map(lambda value: json.dumps(value).encode()))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(content=_ANY)
def test_any_bytes_and_any_json_are_refused_or_read_by_every_parser(content: bytes) -> None:
    for parse in (foreign.parse_json, foreign.parse_yaml, parse_rules, vocabulary):
        refused_or(lambda parse=parse: parse(content, "a file"))  # type: ignore[misc]
    event = events.decode(content)
    assert events.decode(events.encode(event)).kind
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        for name in ("a.json", "metadata.csv", "dataset.yaml", "manifest.jsonl"):
            (folder / name).write_bytes(content)
        refused_or(lambda: list(import_source(folder, "am", foreign=True)))
        refused_or(lambda: manifest.load(folder))


_NAMED = st.dictionaries(st.sampled_from((
    "name", "family", "variant", "repository", "revision", "requested_revision", "files", "run", "step", "scope",
    "extension", "dataset", "rows_hash", "frozen_hash", "origin", "languages", "base_languages", "size", "prefix_size",
    "segmenter", "style", "values", "metric", "best", "created", "checks", "errors", "proofs", "sentences", "clips",
    "models", "base", "id", "audio", "begin", "end", "text", "fixes", "included", "found", "kept", "notes", "state",
    "job", "config", "journal", "lengths", "last_step", "data", "ref")), _JSON, max_size=12)
_FRONT_END = {"segmenter": "bpe",
              "languages": {"en": {"tag": "[en]", "normaliser": "lower", "tokenizer": "tokenizer.json"}},
              "base_languages": ["en"], "size": 4, "prefix_size": 4, "style": "words", "data": []}
_SPOILT = st.tuples(st.sampled_from([*_FRONT_END, "languages.en"]), _JSON | st.dictionaries(
    st.sampled_from(["tag", "normaliser", "tokenizer", "rules", "added", "en", "../en"]), _JSON)).map(
        lambda one: {**_FRONT_END, **({"languages": {"en": one[1]}} if "." in one[0] else {one[0]: one[1]})})
_RECORD = st.one_of(_ANY, (_NAMED | _SPOILT).map(lambda value: json.dumps(value).encode()))


def _front_end(folder: Path) -> object:
    """One whose tokenizer is whole, so that its settings are read to the end."""
    (folder / "tokenizer.json").write_bytes(base_file(["[en]"], "ab"))
    return FrontEnd.load(folder)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "model": ("model.json", lambda path: records.read_model_record(path.parent)),
    "checkpoint": ("checkpoint.json", lambda path: records.find_damage(path.parent)),
    "export": ("export.json", lambda path: records.read_export_record(path.parent)),
    "hashes of an export": (records.EXPORT_SUMS, lambda path: records.check_export_files(path.parent)),
    "extension": ("extension.json", lambda path: records.read_record(path, records.ExtensionRecord)),
    "certificate": ("certificate.json", certificate.read),
    "evaluation": (evaluation_report.JSON, lambda path: evaluation_report.read(path.parent)),
    "diagnosis": ("diagnosis.json", lambda path: diagnosis.read(path.parent)),
    "front-end": ("front_end.json", lambda path: _front_end(path.parent)),
    "card of segments": ("segments.yaml", lambda path: segments.Segments.load(path.parent)),
    "segments": ("pieces.jsonl", segments.read_clips),
    "names of checkpoints": ("checkpoints/names.json", lambda path: checkpoint_names.pinned_names(path.parents[1])),
    "ranking": ("checkpoints/best.json", lambda path: read_ranking(path.parents[1])),
    "decisions": ("review.jsonl", lambda path: _Draft(path).read()),
    "report of a dataset": ("report.json", lambda path: source_preview.read_report(path.parent)),
    "tokenizer": ("a.json", read_tokenizer), "SentencePiece": ("a.model", read_tokenizer),
    "tiktoken": ("a.tiktoken", lambda path: read_segmenter(path.read_bytes(), "a.tiktoken")),
    "pieces of the Doctor": ("b.json", read_pieces),
    "weights": ("a.safetensors", lambda path: tensor_files.read(path, "Make it again.")),
    "shapes of weights": ("a.safetensors", lambda path: tensor_files.shapes(path, "Make it again.")),
    "zip": ("a.zip", lambda path: unpack_archive(path, path.parent / "out", 10_000_000)),
    "tar": ("a.tar.gz", lambda path: unpack_archive(path, path.parent / "out", 10_000_000)),
    "sound": ("a.wav", read_recording), "job": ("config.yaml", lambda path: load_job_directory(path.parent)),
    "journal": ("events.jsonl", lambda path: events.read_events(path)),
    "subtitles": ("a.srt", lambda path: list(import_source(path.parent, "am", foreign=True))),
    "lyrics": ("a.lrc", lambda path: list(import_source(path.parent, "am", foreign=True))),
    "Kaldi": ("wav.scp", lambda path: list(import_source(path.parent, "am", foreign=True))),
    "recogniser": ("config.json", lambda path: recognisers._has_all(path.parent, ("amh",))),
}


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(content=_RECORD)
def test_any_bytes_and_any_json_are_refused_or_read_by_every_reader(reader: str, content: bytes) -> None:
    name, read = READERS[reader]
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "out").mkdir()
        (path.parent / "a.mp3").touch()
        path.write_bytes(content)
        refused_or(lambda: read(path))


_HUB_FILE = st.fixed_dictionaries({}, optional={
    "rfilename": st.one_of(_JSON, st.sampled_from(["config.json", "a.parquet", "../a", "/a", "model.safetensors"])),
    "size": _JSON, "blobId": _JSON,
    "lfs": st.one_of(_JSON, st.dictionaries(st.sampled_from(["size", "sha256", "pointerSize"]), _JSON))})
_HUB_ANSWER = st.one_of(_ANY, st.fixed_dictionaries({}, optional={
    "sha": st.one_of(_JSON, st.just("a" * 40)), "id": _JSON, "siblings": st.one_of(_JSON, st.lists(_HUB_FILE)),
    "lastModified": _JSON, "cardData": _JSON, "tags": _JSON, "gated": _JSON, "downloads": _JSON, "safetensors": _JSON,
    "config": _JSON, "createdAt": _JSON}).map(lambda value: json.dumps(value).encode()))
_HEADER_VALUES = st.one_of(st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=20),
                           st.sampled_from(["bytes 5-9/10", "bytes 9-1/*", "bytes -/-", "bytes \u00b2-9/\u00b3",
                                            "1e400", "-1", "9" * 5000, "nan"]))
_HEADERS = st.dictionaries(st.sampled_from([
    "Content-Range", "Retry-After", "Content-Type", "X-Error-Code", "X-Error-Message", "ETag", "Content-Encoding",
    "X-Repo-Commit", "Link"]), _HEADER_VALUES, max_size=3)
_STATUS = st.sampled_from([200, 200, 200, 204, 206, 206, 301, 400, 401, 403, 404, 416, 429, 500, 503])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(status=_STATUS, headers=_HEADERS, body=_HUB_ANSWER, start=st.integers(0, 20), kind=st.sampled_from(
    ["model", "dataset"]))
def test_any_answer_of_a_hub_is_refused_or_read(status: int, headers: dict[str, str], body: bytes, start: int,
                                                kind: Literal["model", "dataset"]) -> None:
    hub = Hub("http://hub.example", None, kind)

    def read() -> None:
        found = hub.list("a/b", "main", 5.0)
        assert all(isinstance(name, str) and isinstance(one.size, int) for name, one in found.files.items())
        hub_dataset._tables(found)
        list(recognisers.select_files(found))

    def stream() -> None:
        file = RemoteFile("a/b", "a" * 40, "a.bin", ExpectedFile(100))
        with hub.open(file, start, 5.0) as answer:
            assert sum(map(len, answer.blocks)) >= 0

    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = httpx2.MockTransport(lambda request: httpx2.Response(status, headers=sent, content=body))
    with mock.patch("huggingface_hub.utils._http._GLOBAL_CLIENT", httpx2.Client(transport=answer)):
        for one in (read, stream):
            with suppress(Interrupted):
                refused_or(one)


BOUND = 1_000_000  # bytes, of what has no end, while these cases run
QUICKLY = RetryPolicy(stall_s=5.0, max_attempts=2, listing_attempts=2, first_wait_s=0.01, longest_wait_s=0.02)
ZEROS = gzip.compress(bytes(1 << 20))  # of which one follows another, as gzip allows
BINARY = "application/octet-stream"
ENDLESS: dict[str, tuple[int, dict[str, str], bytes, str]] = {  # status, headers, what is repeated, the refusal
    "no length": (200, {"Content-Type": BINARY}, b"x" * 65_536, "has no end that its server says"),
    "chunks": (200, {"Transfer-Encoding": "chunked"}, b"x" * 65_536, "has no end that its server says"),
    "no number": (200, {"Content-Length": "\u00b2"}, b"x" * 65_536, "connection to 127.0.0.1 failed|no end that"),
    "a long number": (200, {"Content-Length": "9" * 30}, b"x" * 65_536, "no end that|connection to"),
    "more than there is": (200, {"Content-Length": "9" * 18}, b"x" * 65_536, "needs .* free"),
    "compressed": (200, {"Content-Encoding": "gzip"}, ZEROS, "is sent compressed"),
    "compressed twice": (200, {"Content-Encoding": "gzip, gzip"}, ZEROS, "is sent compressed"),
    "an error": (404, {"Content-Type": BINARY}, b"x" * 65_536, "answered 404"),
    "a compressed error": (403, {"Content-Encoding": "gzip"}, ZEROS, "is sent compressed"),
    "a web page": (200, {"Content-Type": "text/html"}, b"<p>" * 20_000, "is a web page"),
    "a part": (206, {"Content-Range": "bytes 0-9/*"}, b"x" * 65_536, "has no end that its server says"),
}
HUB_ENDLESS: dict[str, tuple[int, dict[str, str], bytes, str]] = {
    "list": (200, {"Content-Type": "application/json"}, b'{"a": "' + b"x" * 65_000, "answer of more than 1 MiB"),
    "compressed list": (200, {"Content-Encoding": "gzip"}, ZEROS, "answer of more than 1 MiB"),
    "compressed error": (403, {"Content-Encoding": "gzip"}, ZEROS, "answer of more than 1 MiB"),
    "error": (401, {"X-Error-Code": "GatedRepo"}, b"x" * 65_536, "answer of more than 1 MiB"),
}


class _Endless(BaseHTTPRequestHandler):
    """Sends what its server was given until the other side has enough."""

    def do_GET(self) -> None:
        server: Any = self.server
        status, headers, block, _ = server.case
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        chunked = "Transfer-Encoding" in headers
        with suppress(OSError):
            while server.sent < 200 * BOUND and not server.closing.is_set():
                self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
                server.sent += len(block)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endless() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Endless)
    server.daemon_threads, server.sent, server.closing = True, 0, threading.Event()
    running = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    running.start()
    yield server
    server.closing.set()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("case", ENDLESS)
def test_a_download_that_never_ends_is_refused_at_its_bound_and_leaves_nothing(
    case: str, endless: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataset_source, "_UNSIZED_BYTES", BOUND)
    monkeypatch.delenv(confinement.VARIABLE, raising=False)
    endless.case = ENDLESS[case]
    with pytest.raises(UserError, match=ENDLESS[case][3]) as refused:
        dataset_source.download_url(f"http://127.0.0.1:{endless.server_port}/a.zip", tmp_path, Recorder(tmp_path),
                                    QUICKLY)
    assert refused.value.message.count(". ") == 0
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 200
    assert endless.sent < 50 * BOUND  # what both systems hold between them is some megabytes


def test_a_download_of_a_declared_size_takes_that_much_of_what_never_ends(endless: Any, tmp_path: Path) -> None:
    endless.case = 200, {"Content-Length": "100000"}, b"x" * 65_536, ""
    path = dataset_source.download_url(f"http://127.0.0.1:{endless.server_port}/a.zip", tmp_path, Recorder(tmp_path),
                                       QUICKLY)
    assert path.read_bytes() == b"x" * 100_000


@pytest.mark.parametrize("case", HUB_ENDLESS)
def test_a_hub_whose_answer_never_ends_is_refused_at_a_bound(
    case: str, endless: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_client, "_MOST_ANSWER", 1 << 20)
    endless.case = HUB_ENDLESS[case]
    hub = Hub(f"http://127.0.0.1:{endless.server_port}", None)
    file = RemoteFile("a/b", "a" * 40, "a.bin", ExpectedFile(100))

    def listing() -> None:
        list_repository(hub, "a/b", "main", Recorder(tmp_path), QUICKLY)

    def download() -> None:
        downloader = Downloader(hub, DownloadProgress(Recorder(tmp_path), 100), QUICKLY)
        downloader.download(file, tmp_path / "a.bin")

    for ask in (listing, download) if HUB_ENDLESS[case][0] >= 400 else (listing,):
        with pytest.raises(UserError, match=HUB_ENDLESS[case][3]) as refused:
            ask()
        assert "Traceback" not in refused.value.message
    assert not list(tmp_path.iterdir())
    assert endless.sent < 50 * BOUND


def test_a_file_of_a_hub_ends_where_its_list_says_and_is_not_taken_compressed(
    endless: Any, tmp_path: Path,
) -> None:
    hub = Hub(f"http://127.0.0.1:{endless.server_port}", None)
    file = RemoteFile("a/b", "a" * 40, "a.bin", ExpectedFile(100))
    for headers, block in (({}, b"x" * 65_536), ({"Content-Encoding": "gzip"}, ZEROS)):
        endless.case = 200, headers, block, ""
        downloader = Downloader(hub, DownloadProgress(Recorder(tmp_path), 100), QUICKLY)
        if headers:
            with pytest.raises(UserError, match=r"sends a\.bin compressed"):
                downloader.download(file, tmp_path / "b.bin")
            assert not (tmp_path / "b.bin").exists()
        else:
            downloader.download(file, tmp_path / "a.bin")
            assert (tmp_path / "a.bin").read_bytes() == b"x" * 100
    assert endless.sent < 50 * BOUND


_GOOD_PUSH = {
    "/api/repos/create": {"url": "http://hub.example/me/voice"},
    "/api/models/me/voice": {"id": "me/voice", "private": True, "siblings": [], "tags": [], "downloads": 0, "likes": 0},
    "/api/models/me/voice/preupload/main": {"files": [
        {"path": "a.bin", "uploadMode": "lfs", "shouldIgnore": False},
        {"path": "b.txt", "uploadMode": "regular", "shouldIgnore": False}]},
    "/me/voice.git/info/lfs/objects/batch": {"transfer": "basic", "objects": [
        {"oid": hashlib.sha256(b"x" * 100).hexdigest(), "size": 100, "actions": {
            "upload": {"href": "http://hub.example/put"}, "verify": {"href": "http://hub.example/verify"}}}]},
    "/put": {}, "/verify": {},
    "/api/models/me/voice/commit/main": {"commitUrl": "http://hub.example/me/voice/commit/" + "a" * 40,
                                         "commitOid": "a" * 40},
}
_PUSH_ANSWER = st.one_of(_JSON, st.sampled_from(list(_GOOD_PUSH.values())), st.dictionaries(st.sampled_from([
    "url", "id", "private", "files", "path", "uploadMode", "objects", "transfer", "actions", "commitUrl", "commitOid",
    "error"]), _JSON, max_size=4), st.fixed_dictionaries({"objects": st.lists(st.fixed_dictionaries({
        "oid": _JSON, "size": _JSON, "actions": st.one_of(_JSON, st.fixed_dictionaries({"upload": st.fixed_dictionaries(
            {"href": st.one_of(_JSON, st.sampled_from(["http://hub.example/put", "/put", "http://["])),
             "header": _JSON})}))}), max_size=2)}))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(at=st.sampled_from(list(_GOOD_PUSH)), status=st.sampled_from([200, 200, 200, 201, 204, 301, 400, 401, 403, 404,
                                                                      409, 412, 422, 500, 503]),
       headers=_HEADERS, body=st.one_of(_ANY, _PUSH_ANSWER.map(lambda value: json.dumps(value).encode())))
def test_any_answer_to_a_push_is_refused_or_read(at: str, status: int, headers: dict[str, str], body: bytes) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == at:
            sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            return httpx2.Response(status, headers=sent, content=body)
        good = _GOOD_PUSH.get(request.url.path)
        return httpx2.Response(404) if good is None else httpx2.Response(200, json=good)

    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        for name, content in (("a.bin", b"x" * 100), ("b.txt", b"y")):
            (Path(home) / name).write_bytes(content)
        files = {name: stack.enter_context(push._ProgressFile(
            Path(home) / name, hash_file(Path(home) / name))) for name in ("a.bin", "b.txt")}
        upload = push._Upload(Hub("http://hub.example", "a-token"), PushOptions(
            export="mine", repository="me/voice"), files)
        stack.enter_context(mock.patch("huggingface_hub.utils._http._GLOBAL_CLIENT",
                                       httpx2.Client(transport=httpx2.MockTransport(answer))))
        stack.enter_context(mock.patch("time.sleep"))
        upload._run()
    if upload.error is None:
        assert re.fullmatch(r".{1,64}", upload.commit)
    else:
        assert isinstance(upload.error, UserError), repr(upload.error)
        assert "a-token" not in upload.error.message + upload.error.hint
        assert len(upload.error.message) < 2000


def test_the_push_of_these_cases_ends_in_a_commit() -> None:
    test_any_answer_to_a_push_is_refused_or_read.hypothesis.inner_test(  # type: ignore[attr-defined]
        at="/put", status=200, headers={}, body=b"{}")
