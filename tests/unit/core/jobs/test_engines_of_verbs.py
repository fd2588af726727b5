"""Every verb writes the same bytes with every engine, also if workers are killed at random moments."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from config.confinement import WORKSPACE_KEY
from config.errors import UserError
from config.loading import parse_options
from config.schema import (
    AlignOptions,
    EvaluateOptions,
    PrepareOptions,
    SegmentOptions,
    SynthesizeOptions,
    TranscribeOptions,
)
from core import align, evaluate, prepare, segment, synthesize, transcribe
from core.dataset.clip_index import MeasureStore
from core.jobs.events import AudioGenerated, Progress, read_events
from core.jobs.job import NO_DEVICE, choose_device
from core.workspace import Workspace
from data import manifest
from data.feature_cache import FeatureCache
from models.registry import family
from tests.unit.core.library.test_segments import srt, write_long
from tests.unit.small_data import Recorder

ROOT = Path(__file__).resolve().parents[4]
OTHERS = ["processes", pytest.param("ray", marks=pytest.mark.skipif(
    find_spec("ray") is None, reason="the optional package ray is not installed"))]


def demo_workspace(path: Path) -> Workspace:
    opened = Workspace.open(path)
    (opened.models / "tiny").symlink_to(ROOT / "models/tiny/pack")
    # Measures are signed, and are the same bytes with the same key alone.
    key = opened.path / WORKSPACE_KEY
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    return opened


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder, by its name there; a killed process leaves hidden ones half written."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")}


def prepared(path: Path, clips: int, recorder: Recorder | None = None, **more: object) -> dict[str, object]:
    """What `prepare` makes of the first clips of the demo: dataset, features with variants, and measures."""
    workspace = demo_workspace(path)
    options = PrepareOptions.model_validate({"max_clips": clips, "variants": 1, "device": "cpu", **more})
    prepare.run(options, workspace, recorder or Recorder())
    dataset = manifest.load(workspace.dataset("amharic-demo"))
    cache = FeatureCache(workspace.cache, family("tiny").extractor_fingerprint(workspace.model("tiny")))
    measures = MeasureStore(workspace).load(clip.sha256 for clip in dataset.clips)
    assert len(measures) == len(dataset.clips)
    return {"dataset": contents(dataset.folder), "features": contents(cache.root / cache.fingerprint),
            "measures": {name: values.to_json() for name, values in measures.items()}}


def workers_of_processes() -> list[int]:
    """The ids of the worker processes that this process has."""
    return [process.pid for process in multiprocessing.active_children() if process.pid is not None]


def workers_of_ray() -> list[int]:
    """The ids of the actors of Ray's node that this process has started; Ray renames the processes of actors."""
    parents = dict[int, int]()
    actors = list[int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::_RayActor"):
                actors.append(int(folder.name))
    return [actor for actor in actors if parents.get(parents.get(actor, 0)) == os.getpid()]


@contextmanager
def killing_workers(features: Path, counts: Sequence[int], find: Callable[[], list[int]]) -> Iterator[list[int]]:
    """Kill a random worker that `find` finds when each number of files is there; the ids of those that were killed."""
    choice, killed, ended = random.Random(1), list[int](), threading.Event()

    def kill() -> None:
        pending = sorted(counts)
        while pending and not ended.wait(0.02):
            workers = find() if len(list(features.glob("*.safetensors"))) >= pending[0] else []
            if workers:
                process = choice.choice(workers)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                    del pending[0]

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        ended.set()
        killer.join()


@pytest.mark.long
@pytest.mark.parametrize("engine", OTHERS)
def test_a_prepared_dataset_is_the_same(tmp_path: Path, engine: str) -> None:
    here = prepared(tmp_path / "here", 70)
    assert prepared(tmp_path / "there", 70, engine=engine, workers=2) == here
    assert len(here["features"]) == 70 + 63 + 1  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("engine", OTHERS)
def test_segments_and_their_transcripts_are_the_same(tmp_path: Path, engine: str) -> None:
    for name, first in (("one", 0), ("two", 8), ("three", 16)):
        write_long(tmp_path / "in" / f"{name}.wav", first, 4 + first // 4, first)
    made = {}
    for name in ("here", engine):
        workspace = demo_workspace(tmp_path / name)
        choice = {} if name == "here" else {"engine": name, "workers": 2}
        segment.run(SegmentOptions.model_validate({"source": str(tmp_path / "in"), "segments": "talks",
                                                   "language": "am", **choice}), workspace, Recorder())
        transcribe.run(TranscribeOptions.model_validate({"segments": "talks", "recogniser": "built-in",
                                                         "device": "cpu", **choice}), workspace, Recorder())
        made[name] = contents(workspace.segments / "talks")
    assert made[engine] == made["here"]
    assert any(name.startswith("work/transcripts/") for name in made["here"])


@pytest.mark.long
@pytest.mark.parametrize("engine", OTHERS)
def test_aligned_segments_are_the_same(tmp_path: Path, engine: str) -> None:
    for number in range(3):
        truth = write_long(tmp_path / "in" / f"{number}.wav", 5 * number, 4, number)
        (tmp_path / "in" / f"{number}.srt").write_text(srt(truth), encoding="utf-8")
    made = {}
    for name in ("here", engine):
        workspace, recorder = demo_workspace(tmp_path / name), Recorder()
        choice = {} if name == "here" else {"engine": name, "workers": 2}
        result = align.run(AlignOptions.model_validate({
            "source": str(tmp_path / "in"), "segments": "talks", "language": "am", "recogniser": "built-in",
            "device": "cpu", **choice}), workspace, recorder)
        del result["folder"]
        made[name] = contents(workspace.segments / "talks"), result, recorder.warnings
    assert made[engine] == made["here"]


@pytest.mark.long
@pytest.mark.parametrize("engine", OTHERS)
def test_an_evaluation_has_the_same_clips_and_values(tmp_path: Path, engine: str) -> None:
    made = {}
    for name in ("here", engine):
        workspace, job = demo_workspace(tmp_path / name), tmp_path / f"job-{name}"
        job.mkdir()
        choice = {} if name == "here" else {"engine": name, "workers": 2}
        evaluate.run(EvaluateOptions.model_validate({
            "models": ["base:tiny", "base:tiny+romanised", "recordings"], "languages": ["en"], "count": 3,
            "device": "cpu", **choice}), workspace, Recorder(job))
        clips = json.loads((job / "evaluation.json").read_text())["clips"]
        for clip in clips:
            clip["values"].pop("real_time_factor", None)
        made[name] = clips, contents(job / "audio"), contents(workspace.cache / "evaluation")
    assert made[engine] == made["here"]
    assert len(made["here"][0]) == 9


@pytest.mark.long
@pytest.mark.parametrize("engine", OTHERS)
def test_a_file_is_spoken_the_same(tmp_path: Path, engine: str) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(f"the {word} dog sees a red bird" for word in (
        "old", "young", "green", "small", "big", "quiet", "wet", "good", "bad", "last")), encoding="utf-8")
    made = {}
    for name in ("here", engine):
        workspace, job = demo_workspace(tmp_path / name), tmp_path / f"job-{name}"
        job.mkdir()
        recorder = Recorder(job)
        choice = {} if name == "here" else {"engine": name, "workers": 2}
        result = synthesize.run(SynthesizeOptions.model_validate({
            "voice_model": "base:tiny", "file": str(tmp_path / "lines.txt"), "language": "en", "device": "cpu",
            **choice}), workspace, recorder)
        spoken = [replace(event, seconds=0.0) for event in recorder.events if isinstance(event, AudioGenerated)]
        made[name] = contents(job / "audio"), spoken, result["error"], result["clips"], recorder.warnings
    assert made[engine] == made["here"]
    assert made["here"][3] == 10


def test_a_text_is_not_divided(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="divides the lines of a file, and a text was given"):
        synthesize.run(SynthesizeOptions(text="a", engine="processes"), workspace, Recorder())


def refuse_source(source: str, *_arguments: object) -> NoReturn:
    pytest.fail(f"the source {source} is opened again")


def test_shards_of_a_preparation_make_the_same_and_a_gap_is_refused(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    here = prepared(tmp_path / "here", 70, variants=0)
    workspace = demo_workspace(tmp_path / "there")

    def step(shard: str) -> Mapping[str, object]:
        options = PrepareOptions(max_clips=70, device="cpu", shard=shard)
        assert choose_device("prepare", options.model_dump()) == ("cpu" if shard.startswith("merge") else NO_DEVICE)
        return prepare.run(options, workspace, Recorder())

    with pytest.raises(UserError, match="'amharic-demo' is not written yet"):
        step("1/2")
    step("import")
    # Neither the shards nor the merge read the source again: it may be a download.
    monkeypatch.setattr(prepare.dataset_source, "open_source", refuse_source)
    assert step("2/2")["clips"] == 32  # of batches of 32, 32 and 6 clips
    with pytest.raises(pytest.fail.Exception, match="opened again"):
        prepare.run(PrepareOptions(max_clips=70, device="cpu", shard="2/2", held_out=0.3), workspace, Recorder())
    with pytest.raises(UserError, match=r"1 of 2 shards have no completion list in .*: 1\."):
        step("merge/2")
    assert step("1/2")["clips"] == 38

    # A result that was deleted since is a gap, which the shard fills.
    features = workspace.cache / family("tiny").extractor_fingerprint(workspace.model("tiny"))
    lost = next(features.glob("*.safetensors"))
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(UserError, match=f"lacks 1 of 3[28] results, such as {lost.stem}"):
        step("merge/2")
    step("1/2")
    step("2/2")
    assert lost.read_bytes() == content
    step("merge/2")
    shards = {name: digest for name, digest in contents(features).items() if name.startswith("shards/")}
    assert len(shards) == 2
    assert {name: digest for name, digest in contents(features).items() if name not in shards} == here["features"]
    assert contents(workspace.dataset("amharic-demo")) == here["dataset"]


def test_shards_of_a_transcription_make_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcribe, "_BATCH_CLIPS", 2)
    write_long(tmp_path / "in" / "one.wav", 0, 12, 0)
    made = {}
    for name, shards in (("here", [""]), ("there", ["3/3", "1/3", "2/3", "merge/3"])):
        workspace = demo_workspace(tmp_path / name)
        segment.run(SegmentOptions(source=str(tmp_path / "in"), segments="talks", language="am"), workspace, Recorder())
        for shard in shards:
            transcribe.run(TranscribeOptions(segments="talks", recogniser="built-in", device="cpu", shard=shard),
                           workspace, Recorder())
        made[name] = contents(workspace.segments / "talks")
    extra = {name for name in made["there"] if "-of-3" in name}
    assert len(extra) == 6
    assert {name: digest for name, digest in made["there"].items() if name not in extra} == made["here"]


def test_a_resumed_shard_counts_the_clips_that_it_repeats_once(tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcribe, "_BATCH_CLIPS", 2)
    write_long(tmp_path / "in" / "one.wav", 0, 12, 0)
    workspace = demo_workspace(tmp_path / "there")
    segment.run(SegmentOptions(source=str(tmp_path / "in"), segments="talks", language="am"), workspace, Recorder())
    options = TranscribeOptions(segments="talks", recogniser="built-in", device="cpu", shard="1/2")
    transcribe.run(options, workspace, Recorder())

    # The process ended within the first batch: one of its clips has a transcript.
    file, = (workspace.segments / "talks/work/transcripts").glob("*.1-of-2.jsonl")
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) > 2
    file.write_text(lines[0], encoding="utf-8")
    recorder = Recorder()
    transcribe.run(options, workspace, recorder)
    counts = [(event.done, event.total) for event in recorder.events
              if isinstance(event, Progress) and event.unit == "clips"]
    assert counts == [(done, len(lines)) for done in (*range(2, len(lines), 2), len(lines))]


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "merge", "all/2"])
def test_what_is_no_shard_is_refused(shard: str) -> None:
    with pytest.raises(UserError, match="is not a shard: give I/N"):
        parse_options(PrepareOptions, {"shard": shard})


@pytest.mark.slow
@pytest.mark.parametrize("engine", OTHERS)
def test_workers_that_are_killed_at_random_moments_change_nothing(tmp_path: Path, engine: str) -> None:
    find = {"processes": workers_of_processes, "ray": workers_of_ray}[engine]
    kills = int(os.environ.get("LISAN_KILLS", "6"))
    here = prepared(tmp_path / "here", 300)
    features = tmp_path / "there/cache" / family("tiny").extractor_fingerprint(tmp_path / "here/models/tiny")
    takes = len(here["features"]) - 1  # type: ignore[arg-type]
    with killing_workers(features, random.Random(0).choices(range(1, takes - 40), k=kills), find) as killed:
        recorder = Recorder()
        there = prepared(tmp_path / "there", 300, recorder, engine=engine, workers=2)
    assert there == here
    assert len(killed) == kills
    assert "has no features" not in recorder.warnings


@pytest.mark.long
def test_a_killed_driver_leaves_no_worker_and_its_job_resumes(tmp_path: Path) -> None:
    here = prepared(tmp_path / "here", 300, variants=0)
    workspace = demo_workspace(tmp_path / "there")
    command = [sys.executable, "-m", "scripts", "prepare", "--workspace", str(workspace.path), "--max-clips", "300",
               "--device", "cpu", "--engine", "processes", "--workers", "2", "--name", "killed"]
    driver = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    fingerprint = family("tiny").extractor_fingerprint(workspace.model("tiny"))
    features = workspace.cache / fingerprint
    while len(list(features.glob("*.safetensors"))) < 64:
        assert driver.poll() is None
        time.sleep(0.05)
    workers = subprocess.run(["ps", "-o", "pid=", "--ppid", str(driver.pid)], capture_output=True, text=True,
                             check=True).stdout.split()
    assert len(workers) >= 2
    driver.kill()
    driver.wait()
    deadline_s = time.monotonic() + 60
    while any(Path("/proc", number).exists() for number in workers):
        assert time.monotonic() < deadline_s, "a worker outlives its driver"
        time.sleep(0.1)

    assert len(list(features.glob("*.safetensors"))) < 300
    subprocess.run([*command[:6], "--resume", "killed"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    dataset = manifest.load(workspace.dataset("amharic-demo"))
    assert contents(dataset.folder) == here["dataset"]
    assert contents(features) == here["features"]
    events, _ = read_events(workspace.runs / "killed/events.jsonl")
    assert [event.kind for event in events].count("finished") == 1
