"""What is stored: sizes as `du` has them, what depends on what, and a bin from which everything comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import CompareOptions, EvaluateOptions, PrepareOptions, SynthesizeOptions
from core.jobs import control, worker
from core.jobs.events import Finished, append_event
from core.jobs.job import create_job
from core.jobs.state import JobBoard
from core.submission import storage
from core.submission.storage import Inventory, Item, Usage, parse
from core.workspace import Workspace
from data.durable_files import hash_tree
from scripts import storage as command
from tests.unit.fake_verbs import COMMAND
from tests.unit.live_jobs import launch, running, train
from ui import storage as storage_tab
from ui.live import View


def fill(workspace: Workspace, reference: str, **files: bytes) -> Path:
    """An item with these files."""
    folder = parse(reference).path(workspace)
    for name, content in (files or {"data": b"x" * 5000}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def du(*paths: Path) -> list[int]:
    """Bytes on the disk as `du` counts them, a file with several links once over all `paths`."""
    shown = subprocess.run(["du", "-s", "-B1", *paths], capture_output=True, text=True, check=True).stdout
    return [int(line.split("\t")[0]) for line in shown.splitlines()]


def test_sizes_are_those_of_du_and_what_is_shared_counts_once(workspace: Workspace) -> None:
    first = fill(workspace, "dataset:first", one=b"1" * 70_000, two=b"2" * 9_000)
    second = fill(workspace, "dataset:second", three=b"3" * 30_000)
    os.link(first / "one", second / "one")
    os.link(first / "two", first / "again")
    (second / "link").symlink_to(first)
    model = fill(workspace, "model:tiny", weights=b"4" * 123_456)
    storage.delete(workspace, Item("model", "tiny"))
    found = storage.take_inventory(workspace)
    usage = {item.reference: one for item, one in found.items.items()}
    for path in (first, second):
        assert [usage[f"dataset:{path.name}"].size] == du(path)
    [entry] = found.deleted
    assert [found.deleted[entry].size] == du(entry.path(workspace))
    assert not model.exists()
    assert found.total == sum(du(first, second, entry.path(workspace)))
    before = usage["dataset:second"]
    assert before.size - before.freed == (second / "one").stat().st_blocks * 512  # `first` keeps that file
    assert usage["dataset:first"].size - usage["dataset:first"].freed == before.size - before.freed


def test_what_is_deleted_comes_back_as_it_was(workspace: Workspace) -> None:
    folder = fill(workspace, "dataset:mine", **{"manifest.jsonl": b"{}", "audio/1.wav": b"sound"})
    before = hash_tree(folder)
    entry = storage.delete(workspace, Item("dataset", "mine"))
    assert workspace.list_datasets() == []
    with pytest.raises(UserError, match="no dataset named 'mine'") as missing:
        workspace.dataset("mine")
    assert "restore dataset:mine" in missing.value.hint
    assert [one.item.reference for one in storage.list_deleted(workspace)] == ["dataset:mine"]
    assert abs(entry.deleted - entry.path(workspace).parent.stat().st_mtime) < 2
    assert storage.restore(workspace, "dataset:mine") == Item("dataset", "mine")
    assert hash_tree(folder) == before
    assert storage.list_deleted(workspace) == []


def test_nothing_is_written_over_and_every_deleted_one_of_a_name_is_kept(workspace: Workspace) -> None:
    fill(workspace, "export:voice", data=b"old")
    old = storage.delete(workspace, Item("export", "voice"))
    there = fill(workspace, "export:voice", data=b"new")
    with pytest.raises(UserError, match="Export 'voice' is there again"):
        storage.restore(workspace, "export:voice")
    assert (there / "data").read_bytes() == b"new"
    storage.delete(workspace, Item("export", "voice"))
    storage.restore(workspace, old.reference)
    assert (there / "data").read_bytes() == b"old"
    storage.delete(workspace, Item("export", "voice"))
    storage.restore(workspace, "export:voice")
    assert (there / "data").read_bytes() == b"old", "the one that was deleted last"


def test_only_emptying_removes_and_it_follows_no_link(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "recordings"
    outside.mkdir()
    (outside / "mine.wav").write_bytes(b"sound")
    folder = fill(workspace, "dataset:mine")
    (folder / "link").symlink_to(outside)
    (workspace.models / "elsewhere").symlink_to(outside)
    for item in (Item("dataset", "mine"), Item("model", "elsewhere")):
        storage.delete(workspace, item)
    kept = fill(workspace, "dataset:kept")
    storage.delete(workspace, Item("dataset", "kept"))
    assert storage.empty_bin(workspace, "dataset:mine") == 1
    assert storage.empty_bin(workspace, "model:elsewhere") == 1
    assert (outside / "mine.wav").read_bytes() == b"sound"
    assert [one.item.name for one in storage.list_deleted(workspace)] == ["kept"]
    storage.restore(workspace, "dataset:kept")
    assert kept.is_dir()
    assert storage.empty_bin(workspace) == 0


def test_a_deletion_that_is_killed_has_happened_or_not(workspace: Workspace) -> None:
    folder = fill(workspace, "dataset:mine", **{name: name.encode() for name in "abc"})
    before = hash_tree(folder)
    for rounds in range(1, 9):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            while True:
                storage.delete(workspace, Item("dataset", "mine"))
                os.write(writing, b".")
                storage.restore(workspace, "dataset:mine")
                os.write(writing, b".")
        os.close(writing)
        seen = 0
        while seen < rounds:
            seen += len(os.read(reading, 1))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        deleted = storage.list_deleted(workspace)
        assert len(deleted) + len(workspace.list_datasets()) == 1
        if deleted:
            storage.restore(workspace, "dataset:mine")
        assert hash_tree(folder) == before


def test_an_emptying_that_was_killed_leaves_nothing_to_restore(workspace: Workspace,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    fill(workspace, "dataset:mine")
    entry = storage.delete(workspace, Item("dataset", "mine"))

    def killed(_path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            storage.empty_bin(workspace)
    assert storage.list_deleted(workspace) == []
    assert list(entry.path(workspace).parent.iterdir())
    storage.empty_bin(workspace)
    assert list(entry.path(workspace).parent.iterdir()) == []


def test_what_others_put_into_the_bin_is_no_entry_of_it(workspace: Workspace) -> None:
    fill(workspace, "dataset:mine")
    entry = storage.delete(workspace, Item("dataset", "mine"))
    stray = [entry.path(workspace).with_name(name) for name in ("a-b-c.txt", "99999999-999999-1.x", "notes")]
    for path in stray:
        path.mkdir()
    assert storage.list_deleted(workspace) == [entry]
    assert storage.empty_bin(workspace) == 1
    assert all(path.is_dir() for path in stray)


@pytest.mark.parametrize("reference", ["dataset:../runs", "dataset:..", "dataset:.bin", "dataset:", "nonsense:x",
                                       "cache:uploads", "/etc/passwd", "dataset:a/b", "dataset:missing"])
def test_nothing_outside_is_deleted(workspace: Workspace, reference: str) -> None:
    fill(workspace, "upload:1", data=b"x")
    before = hash_tree(workspace.path, (".storage.lock",))
    with pytest.raises(UserError):
        storage.delete(workspace, parse(reference))
    assert hash_tree(workspace.path, (".storage.lock",)) == before


def test_what_a_living_job_needs_cannot_be_deleted(workspace: Workspace) -> None:
    record = {"name": "patient", "tokenizer": "letters", "languages": ["am"], "initialisation": "mean", "seed": 0,
              "rows_hash": "", "origin": {"family": "tiny", "model": "base", "base_hash": "", "prefix_size": 1,
                                          "size": 2, "fingerprint": ""}}
    fill(workspace, "extension:patient", **{"extension.json": json.dumps(record).encode()})
    needed = ["extension:patient", "dataset:amharic-demo", "model:base", "run:teacher", "cache:features"]
    free = ["dataset:other", "tokenizer:letters"]
    for reference in (*needed[1:3], needed[4], *free):
        fill(workspace, reference)
    append_event(train(workspace, "quick", name="teacher").journal, Finished({}))
    job = launch(train(workspace, "patient", after=("teacher",), name="pupil"))
    running(job)
    for reference in (*needed, "run:pupil"):
        with pytest.raises(UserError, match="pupil runs or waits and needs it"):
            storage.delete(workspace, parse(reference))
    for reference in free:
        storage.delete(workspace, parse(reference))
    control.force_stop(job, grace_s=0.0)
    found = storage.take_inventory(workspace).by_item
    assert {one.user.reference for one in found[Item("model", "base")]} == {"extension:patient", "run:pupil"}
    for reference in (*needed, "run:pupil"):
        storage.delete(workspace, parse(reference))
    assert JobBoard(workspace).states() == []


def test_a_comparison_and_an_evaluation_show_what_they_were_made_from(workspace: Workspace) -> None:
    train(workspace, "fast", name="first")
    of_data = {"model:tiny", "run:first", "dataset:amharic-demo"}
    speaking = (("compare", CompareOptions(finetuned="run:first@8"), of_data),
                ("evaluate", EvaluateOptions(models=("base:tiny+romanised", "recordings"), dataset="others"),
                 {"model:tiny", "dataset:others"}),
                ("synthesize", SynthesizeOptions(voice_model="run:first", text="a"),
                 {"run:first", "dataset:amharic-demo"}))
    for verb, options, _ in speaking:
        create_job(workspace, verb, options, job_id=f"its-{verb}")
    found = storage.find_dependencies(workspace, JobBoard(workspace).states())
    for verb, _, wanted in speaking:
        own = [one for one in found if one.user == Item("run", f"its-{verb}")]
        assert {one.item.reference for one in own} == wanted
        assert {one.how for one in own} == {storage.MADE_FROM}  # what they made stays without it


def test_a_job_that_had_begun_resumes_without_the_jobs_before_it(workspace: Workspace) -> None:
    """Their folders may be deleted: what they made was there when it began."""
    append_event(train(workspace, "quick", name="teacher").journal, Finished({}))
    job = launch(train(workspace, "patient", after=("teacher",), name="pupil"))
    running(job)
    control.force_stop(job, grace_s=0.0)
    storage.delete(workspace, Item("run", "teacher"))
    control.resume(job, command=COMMAND)
    running(job)


@pytest.mark.parametrize(("fails", "named_by_another", "stays"), [
    (False, False, False), (True, False, True), (False, True, True)])
def test_an_upload_is_removed_when_its_import_has_finished(workspace: Workspace, *, fails: bool,
                                                           named_by_another: bool, stays: bool) -> None:
    folder = workspace.uploads / "20261123-1"
    fill(workspace, "upload:20261123-1", **{"clips.zip": b"PK"})
    other = fill(workspace, "upload:20261123-2")
    options = PrepareOptions(source=str(folder / "clips.zip"), dataset="mine", language="sw")
    job = create_job(workspace, "prepare", options)
    if named_by_another:
        create_job(workspace, "prepare", PrepareOptions(source=str(folder), dataset="again", language="sw"))

    def prepare(_options: object, _workspace: Workspace, _reporter: object) -> dict[str, object]:
        assert folder.is_dir()
        if fails:
            raise UserError("No clip could be read.", "Look at them.")
        return {}

    worker.run_job(job, control.enqueue(job), verbs={"prepare": prepare})
    assert folder.is_dir() == stays
    assert other.is_dir()


def test_the_command_lists_deletes_restores_and_empties(workspace: Workspace,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    def call(*words: str) -> tuple[int, str]:
        code = command.main([*words, "--workspace", str(workspace.path)])
        return code, capsys.readouterr().out

    fill(workspace, "dataset:mine")
    assert "dataset:mine" in call("list")[1]
    assert call("delete", "dataset:mine")[0] == 0
    assert call("delete", "dataset:mine")[0] == 2
    listed = json.loads(call("list", "--json")[1].splitlines()[-1])
    assert [one["item"].partition("@")[0] for one in listed["bin"]] == ["dataset:mine"]
    assert call("restore", "dataset:mine")[0] == 0
    assert workspace.list_datasets() == ["mine"]
    call("delete", "dataset:mine")
    assert "1 item removed for good" in call("empty")[1]
    assert "dataset:mine" not in call("list")[1]


def test_the_list_says_what_deleting_each_item_frees(workspace: Workspace) -> None:
    item = Item("tokenizer", "mine")
    shown = storage_tab.items_view(Inventory({item: Usage(5000, 5000)}, {}, 5000, (), 0.0), workspace,
                                   View("storage", {"storage.kind": "tokenizer"}, ()))
    assert '<td data-name="Frees">5.0 kB</td>' in shown
