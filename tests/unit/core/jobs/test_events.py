import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import pytest

from config.errors import UserError
from core.jobs import events as journal
from core.jobs import events as kinds
from core.jobs.events import (
    AudioGenerated,
    Evaluated,
    Failed,
    Finished,
    Journal,
    Plan,
    Progress,
    Step,
    WarningRaised,
    read_events,
)

ROOT = Path(__file__).parents[4]


def append(path: Path, *events: journal.Event) -> None:
    writer = Journal(path)
    for event in events:
        writer.append(event)
    writer.close()


def test_every_kind_of_event_comes_back_as_it_was_written(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    written = [
        journal.Queued(), journal.Waiting("for cpu"), journal.Started(12, 1), journal.Stage("copy", 1.5),
        Plan(("81 new rows of 2535", "0 of 2454 old rows"), {"new": 81, "old": 0}), Progress(1, None, "clips", "ሰላም"),
        Step(1, 10, 2.5, 3.5, {"rows": 1e-3}, 0.7, 900.0, 1.0, 9.0), Evaluated(1, 2.25, {"am": 0.5}),
        journal.SampleGenerated(1, "am", "ሰላም", "samples/1.wav", None), journal.AudioChunk("base", 0, 1, "a.wav", 0.5),
        AudioGenerated("base", 0, "a.wav", "hello", "en", 1.5, 0.3, 0.1, "hallo", "a.png"),
        journal.CheckpointSaved(1, "checkpoints/1", True), WarningRaised("short"),
        Finished({"error": 0.2, "name": None}),
        Failed("no", "do", "line 1\nline 2\r\u2028", 1), journal.Stopped("on request"),
        journal.Skipped("no", "do"), journal.Renamed("mine"),
    ]
    append(path, *written)
    events, offset = read_events(path)
    assert [dataclasses.replace(event, time=0.0) for event in events] == written
    assert {type(event) for event in written} == set(kinds._KINDS.values())
    assert offset == path.stat().st_size
    assert all(event.time > 0 for event in events)


def test_a_loss_that_is_not_a_number_is_kept(tmp_path: Path):
    append(tmp_path / "events.jsonl", Evaluated(1, math.nan))
    [event], _ = read_events(tmp_path / "events.jsonl")
    assert isinstance(event, Evaluated)
    assert math.isnan(event.speech_loss)


def test_a_file_name_that_is_not_utf8_is_kept(tmp_path: Path):
    name = b"caf\xe9.wav".decode("utf-8", "surrogateescape")
    append(tmp_path / "events.jsonl", WarningRaised(f"{name} is missing"))
    [event], _ = read_events(tmp_path / "events.jsonl")
    assert isinstance(event, WarningRaised)
    assert event.message == f"{name} is missing"


def test_reading_goes_on_from_the_offset(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    append(path, WarningRaised("one"))
    _, offset = read_events(path)
    assert read_events(path, offset) == ([], offset)
    append(path, WarningRaised("two"))
    [event], _ = read_events(path, offset)
    assert isinstance(event, WarningRaised)
    assert event.message == "two"


def test_a_journal_that_is_not_there_has_no_events(tmp_path: Path):
    assert read_events(tmp_path / "events.jsonl") == ([], 0)


@pytest.mark.parametrize("cut", range(1, len(journal.encode(WarningRaised("ሰላም")))))
def test_a_line_cut_anywhere_is_left_for_later_and_spoils_nothing(tmp_path: Path, cut: int):
    path = tmp_path / "events.jsonl"
    append(path, WarningRaised("whole"))
    with open(path, "ab") as file:
        file.write(journal.encode(WarningRaised("ሰላም"))[:-cut])
    before, offset = read_events(path)
    assert len(before) == 1
    append(path, Finished({}))
    after, end = read_events(path, offset)
    assert isinstance(after[-1], Finished)
    assert len(after) == 2  # the cut line is a warning, or the whole event when only its newline was lost
    assert isinstance(after[0], WarningRaised)
    assert end == path.stat().st_size


def test_a_line_that_is_no_event_is_shown_and_not_lost_in_silence(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"event": "from the future", "x": 1}\n[1]\nnull\n{"event": "started"}\n\xff\xfe\n')
    events, _ = read_events(path)
    assert len(events) == 5
    assert all(isinstance(event, WarningRaised) for event in events)
    assert "from the future" in str(events[0])


def test_an_unknown_field_of_a_known_event_is_ignored(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "warning", "time": 5.0, "message": "m", "new": 1}\n')
    assert read_events(path)[0] == [WarningRaised("m", time=5.0)]


def test_a_reader_beside_a_writing_process_sees_each_event_once_in_order(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    script = (
        "import sys; from pathlib import Path; from core.jobs.events import Journal, Progress, Finished\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for n in range(2000): journal.append(Progress(n, 2000, 'clips', 'ሰላም' * 50))\n"
        "journal.append(Finished({}))\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=ROOT)
    seen: list[journal.Event] = []
    offset = 0
    while not (seen and isinstance(seen[-1], Finished)):
        events, offset = read_events(path, offset)
        seen += events
        assert writer.poll() in (None, 0)
    assert [event.done for event in seen if isinstance(event, Progress)] == list(range(2000))
    assert writer.wait() == 0


def test_a_full_disk_is_a_clear_error():
    with pytest.raises(UserError, match=r"/dev/full could not be written: No space left") as caught:
        Journal(Path("/dev/full")).append(WarningRaised("x"))
    assert "Free some disk space" in caught.value.hint


def test_a_folder_that_is_gone_is_a_clear_error(tmp_path: Path):
    with pytest.raises(UserError, match="could not be written: No such file"):
        Journal(tmp_path / "gone" / "events.jsonl")
