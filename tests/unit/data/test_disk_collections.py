"""What is remembered of many utterances lies on the disk and is what it would be in memory."""

from __future__ import annotations

import gc
import io
import json
import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.errors import UserError
from core.dataset.clip_index import build_index
from core.workspace import Workspace
from data import manifest, splits
from data.clip_findings import AnalysedClip
from data.disk_collections import DiskDict, DiskList, sorted_on_disk, unnamed_file
from data.importers import SourceRow
from data.manifest import ManifestClip
from data.measures import Measures
from data.validation import CheckedRow, checked_rows_on_disk

few = settings(max_examples=60, deadline=None)
words = st.text(st.characters(blacklist_characters="\n"), max_size=8)


@few
@given(st.lists(words, max_size=40), st.integers(1, 9))
def test_lines_are_sorted_as_in_memory(lines: list[str], at_once: int) -> None:
    assert list(sorted_on_disk(lines, at_once)) == sorted(lines)


@few
@given(st.lists(words, max_size=30))
def test_rows_are_a_list(items: list[str]) -> None:
    rows = DiskList(json.dumps, json.loads)
    for at, item in enumerate(items):
        rows.add(item)
        assert rows[at] == item
        assert list(rows) == items[:at + 1]
    assert rows == items
    assert rows[1:7:2] == tuple(items[1:7:2])
    assert rows != [*items, "more"]
    with pytest.raises(IndexError):
        rows[len(items)]


def test_files_lie_where_they_were_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[object] = []
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir=None: places.append(dir) or io.BytesIO())
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    for folder in (tmp_path, None):
        unnamed_file(folder)
    assert places == [tmp_path, "/elsewhere"]


def test_two_go_through_the_rows_at_once() -> None:
    rows = DiskList(json.dumps, json.loads)
    for number in range(700):
        rows.add(number)
    assert [one for one, _ in zip(rows, rows, strict=True)] == list(range(700))
    assert sum(1 for one in rows for two in rows[:3] if one == two) == 3


def test_a_name_is_put_once_and_replaced_when_told() -> None:
    with DiskDict() as kept:
        assert kept.put("a\ud800", "one") is None
        assert kept.put("a\ud800", "two") == "one"
        kept.replace("a\ud800", "three")
        assert (kept.get("a\ud800"), kept.get("b")) == ("three", None)


def test_blank_lines_and_a_byte_order_mark_move_no_clip(tmp_path: Path) -> None:
    clips = [ManifestClip(f"c{n}", f"audio/c{n}.wav", f"ሰላም {n}", "am", "train", 1.5, "one",
                          str(n) * 64) for n in range(5)]
    manifest.save(tmp_path, manifest.make_card("d", "am", "demo", clips), clips)
    path = tmp_path / manifest.MANIFEST_FILE
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\n".join(lines))
    dataset = manifest.load(tmp_path)
    assert dataset.clips == clips
    assert [dataset.clips[at] for at in (4, 0, -2)] == [clips[4], clips[0], clips[3]]


def test_a_dataset_is_what_was_checked_though_its_folder_goes(tmp_path: Path) -> None:
    clips = [ManifestClip("c", "audio/c.wav", "ሰላም", "am", "train", 1.5, "one", "0" * 64)]
    manifest.save(tmp_path, manifest.make_card("d", "am", "demo", clips), clips)
    dataset = manifest.load(tmp_path)
    (tmp_path / manifest.MANIFEST_FILE).unlink()
    assert dataset.clips == clips


def test_a_byte_that_is_not_utf8_has_its_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    with pytest.raises(UserError, match=r"byte 16 is 0xff"):
        list(manifest.read_json_lines(path))


def held(work: Callable[[], object]) -> int:
    """Most bytes that Python held at once for `work`."""
    gc.collect()
    gc.freeze()  # what stands already delays the collecting of what does not, the more the larger it is
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_manifest_is_written_and_read_in_the_same_memory_whatever_its_size(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(count: int) -> Iterator[ManifestClip]:
        return (ManifestClip(f"u{n}", f"audio/u{n}.wav", "ሰላም ለሁሉም ሰው " * 4, "am", "train", 3.0, "one", f"{n:064x}")
                for n in range(count))

    def through(count: int) -> None:
        folder = tmp_path / str(count)
        folder.mkdir()
        manifest.save(folder, manifest.make_card("d", "am", "made", made(count)), made(count))
        assert sum(1 for _ in manifest.load(folder).clips) == count

    monkeypatch.setattr(sorted_on_disk, "__defaults__", (1000,))
    through(20)  # what is made once is there then
    small, large = (held(lambda count=count: through(count)) for count in (1500, 4500))
    assert (large - small) / 3000 < 32, "bytes an utterance"  # 8 of them: where each line begins


@pytest.mark.slow
def test_clips_are_judged_and_indexed_in_the_same_memory_however_many(workspace: Workspace) -> None:
    def through(count: int) -> None:
        chance = random.Random(0)
        folder = workspace.datasets / str(count)
        folder.mkdir()
        clips = [ManifestClip(f"u{n}", f"audio/u{n}.wav", f"ሰላም ለሁሉም ሰው {n}", "am", "train", 3.0, f"s{n % 70}",
                              f"{n:064x}")
                 for n in range(count)]
        manifest.save(folder, manifest.make_card("d", "am", "made", clips), clips)
        dataset = manifest.load(folder)
        del clips
        spoken = (AnalysedClip(clip.id, clip.text, clip.speaker, Measures(
            clip.duration_s, 24000, 0.5, 0.0, chance.gauss(-20, 3), 30.0, 0.1, 0.1, 11000.0,
            f"{chance.getrandbits(256):064x}", "00" * 120)) for clip in dataset.clips)
        tracemalloc.reset_peak()
        build_index(workspace, dataset, spoken, {})

    through(20)  # what is made once is there then; Python itself keeps up to 2,000 tuples of each length
    small, large = (held(lambda count=count: through(count)) for count in (2500, 6500))
    assert (large - small) / 4000 < 150, "bytes an utterance"  # 56 for the medians, 16 for places, and copies


def test_splits_are_drawn_in_the_same_memory_however_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def through(count: int) -> None:
        rows = checked_rows_on_disk()
        for n in range(count):
            text = f"ሰላም ለሁሉም ሰው {n}"
            row = SourceRow(f"u{n}", Path(f"/in/{n // 3}.wav"), text, f"line {n}", f"s{n // 3 % 70}")
            rows.add(CheckedRow(row, text, 3.0, "0"))
        drawn = splits.assign(rows, 0.1, 0, by_speaker=True)
        assert splits.overlaps(rows, drawn, by_speaker=True) == {}
        assert 0 < drawn.count(manifest.HELD_OUT) < 0.5 * count

    monkeypatch.setattr(sorted_on_disk, "__defaults__", (600,))
    through(20)  # what is made once is there then
    # The smaller of two, as a thread that an earlier test left behind is counted too.
    small, large = (min(held(lambda count=count: through(count)) for _ in range(2)) for count in (1200, 3000))
    assert (large - small) / 1800 < 150, "bytes an utterance"  # place, group, side, and runs that are sorted
