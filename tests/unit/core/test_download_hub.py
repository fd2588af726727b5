"""Downloads from a loopback hub: what comes, what is recorded, what is taken up again, and what network faults do."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from config.errors import UserError
from core.jobs.events import Plan
from core.library.lineage import Model
from core.library.records import read_model_record
from core.sources.partial_downloads import partial_folder
from core.workspace import Workspace
from tests.hub import LoopbackHub, serving
from tests.unit.hub_model import (
    FILES,
    GRAPHEMES,
    MAIN,
    OTHERS,
    PACK,
    QUICK,
    S3GEN,
    STALLED,
    T3,
    TOTAL,
    Recorder,
    contents,
    get,
    made_up,
    order,
    partial,
)


@pytest.fixture
def served() -> Iterator[LoopbackHub]:
    with serving() as hub:
        hub.add(MAIN, {**FILES, **OTHERS})
        yield hub


@pytest.fixture
def recorder(workspace: Workspace) -> Recorder:
    return Recorder(workspace.runs)


def failing(served: LoopbackHub, workspace: Workspace, recorder: Recorder, **how: object) -> UserError:
    with pytest.raises(UserError) as caught:
        get(served, workspace, recorder, **how)  # type: ignore[arg-type]
    assert workspace.list_models() == []
    return caught.value


def test_the_wanted_files_come_whole_from_one_commit_that_is_recorded(served, workspace, recorder):
    commit = served.repositories[MAIN].main
    result = get(served, workspace, recorder)
    model = workspace.model("chatterbox")
    assert contents(model) == FILES
    record = read_model_record(model)
    assert (record.family, record.variant, record.repository, record.revision) == (
        "chatterbox", "multilingual-v3", MAIN, commit)
    assert {name: (file.size, file.sha256) for name, file in record.files.items()} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in FILES.items()}
    assert Model.open(workspace, "base:chatterbox").family_name == "chatterbox"
    assert (result["revision"], result["bytes"], result["bytes_fetched"]) == (commit, TOTAL, TOTAL)
    assert os.listdir(workspace.models) == ["chatterbox"]
    assert served.sent == {name: len(content) for name, content in FILES.items()}


def test_the_total_is_said_before_the_start_and_progress_counts_the_whole_set(served, workspace, recorder):
    served.fault(S3GEN, bytes_per_s=1_500_000)
    get(served, workspace, recorder)
    [plan] = [event for event in recorder.events if isinstance(event, Plan)]
    assert plan.counts == {"files": len(FILES), "bytes": TOTAL, "bytes_here": 0}
    assert "MIT" in plan.lines[0]
    done = [event.done for event in recorder.progress]
    assert done == sorted(done)
    assert {event.total for event in recorder.progress} == {TOTAL}
    assert done[-1] == TOTAL
    assert any(event.per_second and event.seconds_left for event in recorder.progress)


def test_a_pack_takes_what_it_lacks_from_the_main_repository(served, workspace):
    pack = {"t3_hi.safetensors": made_up("hi", 9000), GRAPHEMES: b'{"its": "own"}', "s3gen_v3.pt": made_up("v3", 500)}
    own = served.add(PACK, pack)
    get(served, workspace, wanted=order("hi"))
    model = workspace.model("chatterbox-hi")
    shared = {name: FILES[name] for name in ("ve.safetensors", "conds.pt", "Cangjie5_TC.json")}
    assert contents(model) == {**pack, **shared}
    record = read_model_record(model)
    assert (record.repository, record.revision) == (PACK, own)
    assert record.companions == {MAIN: served.repositories[MAIN].main}


def test_a_revision_can_be_asked_for(served, workspace):
    first = served.repositories[MAIN].main
    served.add(MAIN, {**FILES, GRAPHEMES: b'{"newer": 1}'})
    get(served, workspace, wanted=order(revision=first))
    assert (workspace.model("chatterbox") / GRAPHEMES).read_bytes() == FILES[GRAPHEMES]
    with pytest.raises(UserError, match="has no revision 'v9'"):
        get(served, workspace, wanted=order(revision="v9", save_as="other"))


def test_a_dropped_connection_is_taken_up_where_it_broke(served, workspace, recorder):
    served.fault(T3, drop_after=700_000, times=2)
    get(served, workspace, recorder)
    assert contents(workspace.model("chatterbox")) == FILES
    assert served.sent[T3] == len(FILES[T3])
    assert len(recorder.warnings) == 2
    assert T3 in recorder.warnings[0]


def test_a_stall_is_noticed_told_and_restarted(served, workspace, recorder):
    served.fault(T3, stall_after=100_000, times=1)
    get(served, workspace, recorder, retry=STALLED)
    assert "no byte came for" in recorder.warnings[0]
    assert contents(workspace.model("chatterbox")) == FILES
    assert served.sent[T3] == len(FILES[T3])


def test_a_hub_that_never_answers_ends_in_plain_words(served, workspace, recorder):
    served.fault("list", stall_after=0)
    error = failing(served, workspace, recorder, retry=STALLED)
    assert "no answer within" in error.message or "did not answer" in error.message
    assert "then continue; or give a folder" in error.hint
    assert "--folder" in error.hint


def test_tries_are_bounded_and_what_came_is_kept(served, workspace, recorder):
    served.fault(T3, drop_after=10_000)
    error = failing(served, workspace, recorder)
    assert f"{T3} (of which" in error.message
    assert "continue" in error.hint
    kept = (partial(workspace) / T3).read_bytes()
    assert kept == FILES[T3][:40_000]  # four tries
    served.faults.clear()
    again = Recorder(workspace.runs)
    result = get(served, workspace, again)
    assert result["bytes_fetched"] == len(FILES[T3]) - 40_000  # smaller files came first
    assert served.sent[T3] == len(FILES[T3])
    [plan] = [event for event in again.events if isinstance(event, Plan)]
    assert plan.counts["bytes_here"] == TOTAL - len(FILES[T3]) + 40_000
    assert contents(workspace.model("chatterbox")) == FILES


def test_a_connection_that_brings_much_is_no_failure(served, workspace, recorder):
    served.fault(T3, drop_after=1_100_000)  # it breaks twice
    get(served, workspace, recorder, retry=replace(QUICK, max_attempts=2))
    assert served.sent[T3] == len(FILES[T3])


def test_a_server_without_ranges_loses_nothing_that_is_here(served, workspace, recorder):
    served.fault(T3, drop_after=2_000_000, times=1, no_ranges=True)
    get(served, workspace, recorder)
    assert contents(workspace.model("chatterbox")) == FILES
    assert served.sent[T3] == 2_000_000 + len(FILES[T3])


def test_wrong_bytes_are_fetched_once_more(served, workspace, recorder):
    served.fault(S3GEN, content=made_up("wrong", len(FILES[S3GEN])), lies=1)
    get(served, workspace, recorder)
    [warning] = recorder.warnings
    assert "arrived damaged" in warning
    assert "SHA-256" in warning
    assert contents(workspace.model("chatterbox")) == FILES


@pytest.mark.parametrize("name", [S3GEN, GRAPHEMES], ids=["by SHA-256", "by git hash"])
def test_a_hub_that_lies_about_a_hash_is_refused_and_the_rest_kept(served, workspace, recorder, name):
    served.fault(name, content=made_up("wrong", len(FILES[name])))
    error = failing(served, workspace, recorder)
    assert f"other bytes for {name} than its own list says" in error.message
    assert "Continue later" in error.hint
    assert not (partial(workspace) / name).exists()
    if name == S3GEN:
        assert (partial(workspace) / "conds.pt").read_bytes() == FILES["conds.pt"]


def test_a_file_shorter_than_listed_is_refused_with_both_sizes(served, workspace, recorder):
    served.fault(S3GEN, truncate_to=1000)
    error = failing(served, workspace, recorder)
    assert f"it has 1000 bytes, the whole file {len(FILES[S3GEN])}" in error.message


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_hub_is_asked_again(served, workspace, recorder, status):
    served.fault("list", status=status, refusals=1)
    served.fault(T3, status=status, refusals=2, retry_after="0")
    get(served, workspace, recorder)
    assert [f"answered {status}" in warning for warning in recorder.warnings] == [True, True]


def test_a_lost_network_says_how_to_go_on(workspace, recorder):
    with serving() as hub:
        pass
    error = failing(hub, workspace, recorder)
    assert MAIN in error.message
    assert "ConnectError" in error.message
    assert "HF_ENDPOINT" in error.hint


def test_parts_of_another_content_are_not_taken_up(served, workspace, recorder):
    served.fault(T3, drop_after=10_000)
    failing(served, workspace, recorder)
    served.faults.clear()
    newer = {**FILES, T3: made_up("newer", 100_000)}
    pinned = served.repositories[MAIN].main
    served.add(MAIN, newer)
    get(served, workspace)
    assert read_model_record(workspace.model("chatterbox")).revision == pinned  # it goes on with what it began
    get(served, workspace, wanted=order(save_as="second"))
    assert contents(workspace.model("second")) == newer


def test_a_commit_that_is_gone_is_told_and_the_newest_taken(served, workspace, recorder):
    served.fault(T3, drop_after=10_000)
    failing(served, workspace, recorder)
    served.faults.clear()
    newer = {**FILES, T3: made_up("newer", 100_000)}
    served.repositories[MAIN].commits.clear()
    served.add(MAIN, newer)
    again = Recorder(workspace.runs)
    get(served, workspace, again)
    assert "at which this download started" in again.warnings[0]
    assert contents(workspace.model("chatterbox")) == newer
    assert served.sent[S3GEN] == len(FILES[S3GEN])  # what is the same was not fetched again


def test_a_plan_that_was_cut_off_is_thrown_away_with_its_parts(served, workspace):
    partial(workspace).mkdir()
    (partial(workspace) / "plan.json").write_text('{"asked"')
    (partial(workspace) / T3).write_bytes(b"?" * 100)
    get(served, workspace)
    assert contents(workspace.model("chatterbox")) == FILES
    assert served.sent[T3] == len(FILES[T3])


def test_names_that_lead_outside_are_never_written(served, workspace, tmp_path):
    served.add(MAIN, {**FILES, "../../evil.txt": b"x", "/etc/evil": b"x", ".locks/evil": b"x", "model.json": b"{}"})
    get(served, workspace)
    assert contents(workspace.model("chatterbox")) == FILES
    assert not list(tmp_path.rglob("evil*"))
    assert json.loads((workspace.model("chatterbox") / "model.json").read_text())["family"] == "chatterbox"


def test_two_jobs_do_not_write_the_same_model(served, workspace, recorder):
    with (partial_folder(workspace.models / "chatterbox"),
          pytest.raises(UserError, match="chatterbox is being downloaded by another job")):
        get(served, workspace, recorder)
    assert not partial(workspace).exists()
    get(served, workspace, recorder)


def test_a_model_that_is_there_is_verified_and_mended_at_its_commit(served, workspace, recorder):
    get(served, workspace)
    model = workspace.model("chatterbox")
    served.add(MAIN, {**FILES, T3: made_up("newer", 10)})
    served.sent.clear()
    assert get(served, workspace)["outcome"] == "already there, verified"
    assert not served.sent
    os.truncate(model / T3, 5)
    (model / GRAPHEMES).unlink()
    (model / "conds.pt").write_bytes(made_up("wrong", len(FILES["conds.pt"])))
    result = get(served, workspace, recorder)
    assert result["outcome"] == "already there, 3 damaged files replaced"
    assert contents(model) == FILES
    assert set(served.sent) == {T3, GRAPHEMES, "conds.pt"}
    assert sum("It was replaced." in warning for warning in recorder.warnings) == 3
    assert os.listdir(workspace.models) == ["chatterbox"]
