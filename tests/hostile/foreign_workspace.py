"""A workspace with one artefact of each kind, as small as the page needs it, and what others may have put into it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from config.schema import ExportOptions, TrainOptions
from core.jobs import events
from core.jobs.job import create_job
from core.jobs.state import JobBoard
from core.library import segments
from core.workspace import Workspace

DEEP = 100_000
RUN, DATASET, TOKENIZER, EXTENSION, EXPORT, MODEL = "trained", "clips", "pieces", "rows", "made", "tiny"
SEGMENTS, RECOGNISER = "talks", "some--one"


def build(path: Path) -> Workspace:
    """The workspace, with a finished run, its checkpoint and certificate, and what it was made from."""
    workspace = Workspace.open(path)
    run = create_job(workspace, "train", TrainOptions(extension=EXTENSION, dataset=DATASET), job_id=RUN).directory
    journal = events.Journal(run / "events.jsonl")
    for event in (events.Queued(), events.Started(1, 1), events.Stage("prepare", 1.0), events.Plan(("a plan",)),
                  *(events.Step(step, 3, 5.0 - step, 4.0, {"rows": 1e-3}, 1.0, 100.0, 1.0 * step)
                    for step in (1, 2, 3)),
                  events.Evaluated(3, 4.0, {"am": 0.5}), events.SampleGenerated(3, "am", "text", "samples/a.wav", 0.5),
                  events.CheckpointSaved(3, "checkpoints/step-000003", True), events.WarningRaised("a warning"),
                  events.Finished({"steps": 3})):
        journal.append(event)
    journal.close()
    (run / "output.log").write_text("a line of the log\n")
    checkpoint = run / "checkpoints" / "step-000003"
    for folder in (checkpoint / "front_end", run / "samples", run / "audio"):
        folder.mkdir(parents=True)
    origin = {"family": "tiny", "model": MODEL, "base_hash": "a", "prefix_size": 3, "size": 4, "fingerprint": "b"}
    languages = {"languages": ["en", "fr", "am"], "base_languages": ["en", "fr"]}
    _json(checkpoint / "checkpoint.json", {"run": RUN, "step": 3, "scope": "gated", "extension": EXTENSION,
                                           "dataset": DATASET, "rows_hash": "a", "frozen_hash": "b", "origin": origin})
    _json(checkpoint / "front_end" / "front_end.json", languages)
    _json(run / "checkpoints" / "names.json", {"kept": 3})
    check = {"name": "prefix_rows", "result": "passed", "expected": "a", "actual": "a", "what": "Rows are equal."}
    certificate = {"ref": f"run:{RUN}", "run": RUN, "step": 3, "scope": "gated", "model": MODEL, "extension": EXTENSION,
                   "base_hash": "a", "fingerprint": "b", "created": 1.7e9, "checks": [check],
                   "errors": [{"language": "am", "new": True, "sentences": 3, "before": 0.9, "after": 0.2,
                               "recordings_cer": 0.0}]}
    _json(run / "certificate.json", certificate)
    dataset = workspace.datasets / DATASET
    (dataset / "audio").mkdir(parents=True)
    (dataset / "dataset.yaml").write_text(yaml.safe_dump({
        "name": DATASET, "language": "am", "source": "demo", "clips": 2, "train_clips": 1, "held_out_clips": 1,
        "duration_s": 3.0, "fingerprint": "a", "licence": "CC0-1.0"}))
    (dataset / "manifest.jsonl").write_text('{"text": "one", "split": "train"}\n{"text": "two", "split": "held_out"}\n')
    _json(dataset / "report.json", {})
    tokenizer = workspace.tokenizers / TOKENIZER
    tokenizer.mkdir()
    _json(tokenizer / "report.json", {"unknown": 0, "proofs": [{"language": "en", "sentences": [
        {"text": "a", "tokens_before": 1, "tokens_after": 1, "same": True}]}]})
    _json(tokenizer / "front_end.json", languages)
    _json(tokenizer / "tokenizer.json", {"model": {"vocab": {"a": 0}}})
    extension = workspace.extensions / EXTENSION
    extension.mkdir()
    _json(extension / "extension.json", {"name": EXTENSION, "tokenizer": TOKENIZER, "languages": ["am"],
                                         "initialisation": "mean", "seed": 0, "rows_hash": "a", "origin": origin})
    export = workspace.exports / EXPORT
    (export / "front_end").mkdir(parents=True)
    _json(export / "export.json", {"name": EXPORT, "run": RUN, "step": 3, "scope": "gated", "dataset": DATASET,
                                   "languages": ["am"], "origin": origin, "longest_texts": {}, "recordings_cer": {}})
    _json(export / "certificate.json", certificate)
    _json(export / "front_end" / "front_end.json", languages)
    (export / "README.md").write_text("# a card\n")
    model = workspace.models / MODEL
    model.mkdir()
    _json(model / "model.json", {"family": "tiny", "name": MODEL, "variant": "", "repository": "", "revision": "",
                                 "requested_revision": "", "files": {}})
    _json(model / "front_end.json", languages)
    clip = segments.SegmentClip("a-0-1", "audio/a.flac", 0.0, 1.0, "a.wav", 2.0, 3.0, "", False, "one", 0.4, "unsure")
    folder = workspace.segments / SEGMENTS
    for path in (segments.PIECES, segments.TABLE):
        segments.write_clips(folder / path, [clip])
    segments.write_card(folder, segments.SegmentsCard(SEGMENTS, "am", "/home/me/talks", "cut", {"denoise": True}, 1, 1,
                                                      1.0, 5.0, 1, 1, "openai/whisper-small"))
    recogniser = workspace.recognisers / RECOGNISER
    recogniser.mkdir(parents=True)
    _json(recogniser / "config.json", {"model_type": "whisper"})
    (recogniser / "model.safetensors").write_bytes(b"weights")
    sizes = {path.name: {"size": path.stat().st_size, "sha256": "", "blob": ""} for path in recogniser.iterdir()}
    _json(recogniser / "model.json", {"family": "recogniser", "variant": "", "repository": "some/one",
                                      "revision": "a", "requested_revision": "main", "files": sizes})
    made = create_job(workspace, "export", ExportOptions(run=f"run:{RUN}", export=EXPORT), job_id="exported").directory
    (made / "events.jsonl").write_text('{"event": "finished", "time": 5.0, "result": {"export": "made"}}\n')
    (workspace.rules).mkdir()
    (workspace.rules / "mine.yaml").write_text("language: am\n")
    JobBoard(workspace).states()  # leaves its list of ended jobs, which others may have changed too
    return workspace


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def records(workspace: Workspace) -> Iterator[Path]:
    """Every file that the page may read."""
    for path in sorted(workspace.path.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.parent.name != "devices":
            yield path


def _write(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def _long(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(200 << 20)


def _everywhere(change: Callable[[object], object]) -> Callable[[Path], None]:
    """Replace every value in a JSON or YAML file, and in each line of a journal."""

    def spoil(path: Path) -> None:
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(_spoilt(json.loads(line), change)) + "\n"
                                    for line in path.read_text().splitlines()))
        elif path.suffix == ".json":
            path.write_text(json.dumps(_spoilt(json.loads(path.read_text()), change)))
        elif path.suffix == ".yaml":
            path.write_text(yaml.safe_dump(_spoilt(yaml.safe_load(path.read_text()), change)))

    return spoil


def _spoilt(value: object, change: Callable[[object], object]) -> object:
    if isinstance(value, dict):
        return {key: one if key in ("event", "verb") else _spoilt(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_spoilt(one, change) for one in value]
    return change(value)


SECRET = "the content of a file outside of the workspace"
DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": _write(b""), "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "zeros": _write(b"\0" * 500), "not UTF-8": _write(b"\xff\xfe{\x80"), "a number": _write(b"5"),
    "null": _write(b"null"),
    "a list": _write(b"[1, [2], {}]"), "a text": _write(b'"text"'), "a long number": _write(b"9" * 5000),
    "an infinite number": _write(b'{"created": 1e400, "time": 1e400, "event": "finished", "clips": 1e400}\n'),
    "deep JSON": _write(b"[" * DEEP), "deep objects": _write(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "less deep JSON": _write(b"[" * 300 + b"]" * 300), "deep YAML": _write(b"a: " + b"[" * DEEP + b"]" * DEEP),
    "deep lists of YAML": _write(b"- " * DEEP + b"1"), "aliases": _write(
        b"a: &a [x, x]\n" + b"".join(b"%c: &%c [%s]\n" % (one, one, b", ".join([b"*%c" % (one - 1)] * 9))
                                     for one in range(ord("b"), ord("k")))),
    "a tag of Python": _write(b"!!python/object/apply:os.system ['touch canary']"), "200 MB": _long,
    "a folder": _instead(Path.mkdir), "a pipe": _instead(os.mkfifo),
    "a link to nothing": _instead(lambda path: path.symlink_to("/nowhere/at/all")),
    "a link in a circle": _instead(lambda path: path.symlink_to(path.name)),
    "a link out": _instead(lambda path: path.symlink_to(secret_file(path))),
    "not to be read": lambda path: path.chmod(0), "missing": Path.unlink,
    "every value null": _everywhere(lambda value: None), "every value a list": _everywhere(lambda value: [value]),
    "every value an object": _everywhere(lambda value: {"a": {"b": value}}),
    "every value a text": _everywhere(lambda value: "<script>alert(1)</script>"),
    "every value negative": _everywhere(lambda value: -1), "every value 10^400": _everywhere(lambda value: 10**400),
    "every value NaN": _everywhere(lambda value: float("nan")), "every value huge": _everywhere(lambda value: 1e308),
    "every value infinite": _everywhere(lambda value: float("inf")),
    "every value true": _everywhere(lambda value: True),
    "every value a path": _everywhere(lambda value: "../../../../../../etc/passwd"),
    "every value long": _everywhere(lambda value: "a" * 20_000),
    "every value a NUL": _everywhere(lambda value: "\0\x1b[2J\u202e"),
    "every value half a character": _everywhere(lambda value: "\ud800"),
}


def secret_file(path: Path) -> Path:
    """A file outside of the workspace of `path`."""
    outside = next(parent for parent in path.parents if (parent / "datasets").is_dir()).parent / "outside.txt"
    outside.write_text(SECRET)
    return outside


def refresh(template: Workspace, workspace: Workspace) -> None:
    """Make `workspace` a copy of `template` again."""
    shutil.rmtree(workspace.path, ignore_errors=True)
    shutil.copytree(template.path, workspace.path)
