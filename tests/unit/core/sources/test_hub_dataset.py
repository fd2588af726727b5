"""Datasets of the hub in parts: an import that was stopped goes on, and few clips cost few bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from config.errors import UserError
from core.jobs.events import Progress
from core.jobs.reporter import StopRequested
from core.sources import dataset_source
from core.sources.downloader import RetryPolicy
from core.sources.hub import Hub
from core.sources.hub_dataset import BLOCK, DatasetAddress, FetchedDataset, ensure_downloaded
from core.sources.partial_downloads import partial_download
from core.workspace import Workspace
from data.importers import import_source
from tests.hub import LoopbackHub, serving
from tests.unit.small_data import AMHARIC, Recorder, write_clip

QUICK = RetryPolicy(max_attempts=2, listing_attempts=2, first_wait_s=0.01, longest_wait_s=0.02)
SOURCE = DatasetAddress("me/speech")
TABLES = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet")


class Stopping(Recorder):
    """Asks for a stop once `limit` bytes of `name` were sent."""

    def __init__(self, hub: LoopbackHub, name: str, limit: int) -> None:
        super().__init__()
        self._hub, self._name, self._limit = hub, name, limit

    def stop_requested(self) -> bool:
        return self._hub.sent[self._name] >= self._limit


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_clip(tmp_path_factory.mktemp("sound") / "a.wav", duration_s=2.0).read_bytes()


def table(sound: bytes, first: int, count: int, group: int = 1000) -> bytes:
    """Rows of different sounds; `group` in each group of rows, whose pages have a few each."""
    rows = [{"audio": {"bytes": sound + bytes([number]) * 2000, "path": f"{number}.wav"},
             "sentence": f"{AMHARIC[number % len(AMHARIC)]} {number}"} for number in range(first, first + count)]
    made = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), made, row_group_size=group, compression="none",
                                use_dictionary=False, write_batch_size=5)
    return made.getvalue()


@pytest.fixture
def hub(sound: bytes) -> Iterator[LoopbackHub]:
    with serving() as there:
        there.add("me/speech", {TABLES[0]: table(sound, 0, 3), TABLES[1]: table(sound, 3, 40, 20)}, kind="dataset")
        yield there


@contextmanager
def fetched(hub: LoopbackHub, folder: Path, most: int = 0, reporter: Recorder | None = None,
            address: DatasetAddress = SOURCE) -> Iterator[FetchedDataset]:
    with ensure_downloaded(address, folder, "am", most, Hub(hub.url, None, "dataset"), reporter or Recorder(),
                           QUICK) as there:
        yield there


def texts(folder: Path) -> list[str]:
    return [row.text for row in import_source(folder, foreign=True).rows]


def sizes(folder: Path) -> list[int]:
    return [row.audio.stat().st_size for row in import_source(folder, foreign=True).rows]


def all_texts(count: int) -> list[str]:
    return [f"{AMHARIC[number % len(AMHARIC)]} {number}" for number in range(count)]


def test_a_stopped_import_goes_on_where_it_was(tmp_path: Path, hub: LoopbackHub, sound: bytes) -> None:
    hub.fault(TABLES[1], bytes_per_s=20_000_000)
    with pytest.raises(StopRequested, match="What was downloaded is kept"), fetched(
            hub, tmp_path, reporter=Stopping(hub, TABLES[1], 1_000_000)):
        raise AssertionError("it did not stop")
    (part,) = tmp_path.rglob(Path(TABLES[1]).name)
    kept = part.stat().st_size
    assert 0 < kept < 4_000_000
    hub.faults.clear()
    hub.sent.clear()
    hub.asked.clear()
    with fetched(hub, tmp_path) as there:
        assert texts(there.folder) == all_texts(43)
        assert sizes(there.folder) == [len(sound) + 2000] * 43
        assert "1 of which were here already" in there.notes[0]
    assert TABLES[0] not in hub.sent
    assert [asked.range for asked in hub.asked if asked.server == "storage"] == [f"bytes={kept}-"]
    assert list(tmp_path.iterdir()) == []


def test_what_was_fetched_outlives_an_import_that_fails(tmp_path: Path, hub: LoopbackHub) -> None:
    with pytest.raises(UserError, match="no disk"), fetched(hub, tmp_path):
        raise UserError("There is no disk.", "Buy one.")
    hub.sent.clear()
    with fetched(hub, tmp_path) as there:
        assert texts(there.folder) == all_texts(43)
    assert not hub.sent


def test_a_recording_that_is_cut_off_since_makes_it_begin_again(tmp_path: Path, hub: LoopbackHub, sound: bytes) -> None:
    with suppress(RuntimeError), fetched(hub, tmp_path) as there:
        next((there.folder / "audio").glob("7.wav")).write_bytes(b"RIFF")
        raise RuntimeError
    hub.sent.clear()
    with fetched(hub, tmp_path) as there:
        assert sizes(there.folder) == [len(sound) + 2000] * 43
    assert set(hub.sent) == set(TABLES)


def test_it_goes_on_with_the_commit_at_which_it_began(tmp_path: Path, hub: LoopbackHub, sound: bytes) -> None:
    with pytest.raises(StopRequested), fetched(hub, tmp_path, reporter=Stopping(hub, TABLES[0], 1)):
        raise AssertionError
    before = hub.repositories["me/speech"].main
    hub.add("me/speech", {TABLES[0]: table(sound, 50, 1)}, kind="dataset")
    with suppress(RuntimeError), fetched(hub, tmp_path) as there:
        assert texts(there.folder) == all_texts(43)
        raise RuntimeError
    del hub.repositories["me/speech"].commits[before]
    told = Recorder()
    with fetched(hub, tmp_path, reporter=told) as there:
        assert len(texts(there.folder)) == 1
    assert f"no longer has {before[:12]}, at which this import started" in told.warnings
    assert list(tmp_path.iterdir()) == []


def test_a_job_at_work_keeps_what_it_has_when_the_hub_takes_its_commit_away(
        tmp_path: Path, hub: LoopbackHub, sound: bytes) -> None:
    told, before = Recorder(), hub.repositories["me/speech"].main
    with fetched(hub, tmp_path) as first:
        hub.add("me/speech", {TABLES[0]: table(sound, 50, 1)}, kind="dataset")
        del hub.repositories["me/speech"].commits[before]
        with fetched(hub, tmp_path, reporter=told) as second:
            assert len(texts(second.folder)) == 1
            assert texts(first.folder) == all_texts(43)
    assert "beside another job" in told.warnings
    assert list(tmp_path.iterdir()) == []


def test_many_that_fetch_the_same_at_once_have_it_whole_or_are_refused(tmp_path: Path) -> None:
    """None may find the folder of another, which is just being deleted, as its own."""
    def fetch(number: int) -> str:
        try:
            with partial_download(tmp_path / "home", {"it": "same"}, "c", "it") as home:
                (home / "content").mkdir()
                for name in range(20):
                    (home / "content" / f"{name}").write_text(str(number))
                return "".join(sorted({path.read_text() for path in (home / "content").iterdir()}))
        except UserError:
            return "refused"

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(fetch, range(40)))
    assert all(one in (str(number), "refused") for number, one in enumerate(said))
    assert said.count("refused") < 40
    assert list(tmp_path.iterdir()) == []


def test_two_jobs_do_not_fetch_the_same(tmp_path: Path, hub: LoopbackHub) -> None:
    with (fetched(hub, tmp_path), pytest.raises(UserError, match="being fetched by another job"),
          fetched(hub, tmp_path)):
        raise AssertionError


@pytest.mark.parametrize("group", [1000, 5])
def test_few_clips_of_a_large_table_cost_few_bytes(tmp_path: Path, hub: LoopbackHub, sound: bytes, group: int) -> None:
    large = table(sound, 0, 120, group)
    hub.add("me/speech", {"data/train.parquet": large}, kind="dataset")
    with suppress(RuntimeError), fetched(hub, tmp_path, most=4) as there:
        assert texts(there.folder) == all_texts(4)
        raise RuntimeError
    wanted = 16 * (len(sound) + 2000)  # rows are decoded so many at once
    assert hub.sent["data/train.parquet"] < 2 * wanted + 4 * BLOCK < len(large) / 2
    hub.sent.clear()
    with fetched(hub, tmp_path, most=4) as there:
        assert texts(there.folder) == all_texts(4)
    assert not hub.sent.total()


def test_more_clips_than_were_wanted_first_go_on_from_them(tmp_path: Path, hub: LoopbackHub) -> None:
    with suppress(RuntimeError), fetched(hub, tmp_path, most=5) as there:
        assert texts(there.folder) == all_texts(5)
        raise RuntimeError
    hub.sent.clear()
    with fetched(hub, tmp_path) as there:
        assert texts(there.folder) == all_texts(43)
    assert set(hub.sent) == {TABLES[1]}


@pytest.mark.parametrize("faults", [{"no_ranges": True}, {"drop_after": 100_000, "times": 1},
                                    {"status": 503, "refusals": 1}])
def test_parts_come_from_a_hub_that_fails_or_has_none(
        tmp_path: Path, hub: LoopbackHub, faults: dict[str, object]) -> None:
    hub.fault(TABLES[1], **faults)
    with fetched(hub, tmp_path, most=8) as there:
        assert texts(there.folder) == all_texts(8)


def test_a_stop_is_heard_while_parts_come(tmp_path: Path, hub: LoopbackHub) -> None:
    hub.fault(TABLES[1], bytes_per_s=5_000_000)
    with pytest.raises(StopRequested, match="What was downloaded is kept"), fetched(
            hub, tmp_path, 30, Stopping(hub, TABLES[1], 600_000)):
        raise AssertionError


def test_few_clips_of_a_repository_of_files_are_all_that_is_fetched(
        tmp_path: Path, hub: LoopbackHub, sound: bytes) -> None:
    rows = [{"file_name": f"clips/{number}.wav", "text": text} for number, text in enumerate(AMHARIC)]
    files = {f"data/clips/{number}.wav": sound + bytes(number) for number in range(len(AMHARIC))}
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    hub.add("me/files", {"data/metadata.jsonl": lines, **files}, kind="dataset")
    with suppress(RuntimeError), fetched(hub, tmp_path, 2, address=DatasetAddress("me/files")) as there:
        first = import_source(there.folder, foreign=True).rows[:2]
        assert [row.audio.read_bytes() for row in first] == [sound, sound + bytes(1)]
        raise RuntimeError
    assert set(hub.sent) == {"data/metadata.jsonl", "data/clips/0.wav", "data/clips/1.wav"}
    with fetched(hub, tmp_path, address=DatasetAddress("me/files")) as there:
        assert sizes(there.folder) == [len(sound) + number for number in range(len(AMHARIC))]
    assert hub.sent["data/clips/0.wav"] == len(sound)


def test_a_source_of_the_hub_is_kept_in_the_workspace_until_its_import_is_whole(
        workspace: Workspace, hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    downloads = workspace.cache / "downloads"
    with pytest.raises(StopRequested), dataset_source.open_source(
            "hub:me/speech", "am", workspace, Stopping(hub, TABLES[1], 1), retry=QUICK):
        raise AssertionError
    (home,) = downloads.iterdir()
    assert home.name.startswith("me--speech-")
    assert list((workspace.cache / "imports").iterdir()) == []
    hub.sent.clear()
    told = Recorder()
    with dataset_source.open_source("hub:me/speech", "am", workspace, told, retry=QUICK) as gathered:
        assert texts(gathered.path) == all_texts(43)
    assert TABLES[0] not in hub.sent
    assert list(downloads.iterdir()) == []
    first, last = ([event for event in told.events if isinstance(event, Progress)][at] for at in (0, -1))
    assert first.total == last.total == last.done == sum(
        blob.size for blob in hub.repositories["me/speech"].commits[hub.repositories["me/speech"].main].values())
