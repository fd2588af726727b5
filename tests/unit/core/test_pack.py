"""A run or an export as one archive: it arrives whole in another workspace, and a forged one changes nothing."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from config.errors import UserError
from config.schema import PackOptions, UnpackOptions
from core import pack, unpack
from core.jobs.control import enqueue
from core.jobs.events import Queued, Started, append_event
from core.jobs.job import load_job
from core.jobs.state import JobBoard, JobReader
from core.library.lineage import Model
from core.library.verification import IMPORTED
from core.model.loading import load_checkpoint
from core.model.prefix import base_tensors, hash_tensors
from core.submission import storage
from core.workspace import Workspace
from data.durable_files import hash_tree
from tests.files_before_sections import write_without_sections
from tests.trained import RUN, trained_world
from tests.worlds import Listener


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def packed(trained: Workspace) -> Path:
    return packed_run(trained)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "elsewhere")


def packed_run(workspace: Workspace, **options: bool) -> Path:
    reporter = Listener(workspace.path / "-".join(("packing", *options)))
    made = pack.run(PackOptions(item=f"run:{RUN}", **options), workspace, reporter)
    return Path(str(made["path"]))


def imported(archive: Path, workspace: Workspace, **options: str) -> dict[str, Any]:
    given = UnpackOptions(archive=str(archive), **options)  # type: ignore[arg-type]
    return dict(unpack.run(given, workspace, Listener(workspace.path / "unpacking")))


def stored(workspace: Workspace) -> dict[str, str]:
    return {name: digest for folder in ("runs", "extensions", "datasets", "models", "exports")
            for name, digest in hash_tree(workspace.path / folder).items()}


def test_a_run_arrives_with_what_it_needs_and_names_what_is_missing(trained: Workspace, packed: Path,
                                                                    elsewhere: Workspace) -> None:
    made = imported(packed, elsewhere)
    assert made["imported"] == f"run:{RUN}, extension:tiny-am, dataset:demo-am"
    assert made["missing"] == "model:tiny"
    for kind, name in (("runs", RUN), ("extensions", "tiny-am"), ("datasets", "demo-am")):
        assert hash_tree(elsewhere.path / kind / name, (IMPORTED,)) == hash_tree(trained.path / kind / name)
    shutil.copytree(trained.models / "tiny", elsewhere.models / "tiny")

    def tensors(workspace: Workspace) -> str:
        model = load_checkpoint(workspace, Model.open(workspace, f"run:{RUN}").folder, torch.device("cpu"))
        assert model.adapters is not None
        return hash_tensors({**base_tensors(model.lm.module), **model.adapters.parameters()})

    assert tensors(elsewhere) == tensors(trained)
    assert load_job(elsewhere, RUN).settings == load_job(trained, RUN).settings


def test_a_run_from_before_there_were_sections_arrives_with_its_options(trained: Workspace, tmp_path: Path,
                                                                        elsewhere: Workspace) -> None:
    shutil.copytree(trained.path, tmp_path / "before")
    old = Workspace.open(tmp_path / "before")
    write_without_sections(old.runs / RUN / "config.yaml")
    imported(packed_run(old), elsewhere)
    assert "steps" in yaml.safe_load((elsewhere.runs / RUN / "config.yaml").read_text(encoding="utf-8"))["options"]
    assert load_job(elsewhere, RUN).options() == load_job(trained, RUN).options()


def test_with_its_base_nothing_is_missing_and_without_data_they_are_named(trained: Workspace,
                                                                         elsewhere: Workspace) -> None:
    assert imported(packed_run(trained, model=True), elsewhere)["missing"] == ""
    assert hash_tree(elsewhere.models / "tiny") == hash_tree(trained.models / "tiny")
    storage.delete(elsewhere, storage.parse(f"run:{RUN}"))
    made = imported(packed_run(trained, model=True), elsewhere)
    assert made["here_already"] == "model:tiny, extension:tiny-am, dataset:demo-am"
    lean = Workspace.open(elsewhere.path.parent / "lean")
    made = imported(packed_run(trained, data=False), lean)
    assert made["missing"] == "model:tiny, extension:tiny-am, dataset:demo-am"


def test_other_programs_read_the_archive(packed: Path, trained: Workspace, tmp_path: Path) -> None:
    subprocess.run(["tar", "xf", packed, "-C", tmp_path], check=True)
    assert hash_tree(tmp_path / "runs" / RUN) == hash_tree(trained.runs / RUN)
    listed = "".join(f"{one['sha256']}  {one['path']}\n" for one in json.loads(
        (tmp_path / pack.MANIFEST).read_text())["files"])
    subprocess.run(["sha256sum", "--check", "--quiet"], input=listed, text=True, cwd=tmp_path, check=True)


def test_a_name_clash_is_told_and_nothing_is_written(packed: Path, elsewhere: Workspace) -> None:
    (elsewhere.datasets / "demo-am").mkdir()
    (elsewhere.datasets / "demo-am" / "mine").write_text("mine")
    before = stored(elsewhere)
    with pytest.raises(UserError, match="Dataset 'demo-am' is here already, with other content"):
        imported(packed, elsewhere)
    assert stored(elsewhere) == before
    storage.delete(elsewhere, storage.parse("dataset:demo-am"))
    imported(packed, elsewhere)
    before = stored(elsewhere)
    with pytest.raises(UserError, match=f"Run '{RUN}' is here already"):
        imported(packed, elsewhere)
    with pytest.raises(UserError, match="keeps its id"):
        imported(packed, elsewhere, save_as="other")
    assert stored(elsewhere) == before


@pytest.mark.parametrize("item", ["dataset:demo-am", "base:tiny", "demo-am"])
def test_another_item_is_refused_with_what_can_be_packed(item: str, workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"'{item}' is neither an export nor a run") as caught:
        pack.run(PackOptions(item=item), workspace, Listener(tmp_path))
    assert caught.value.hint == "Give export:NAME or run:ID."


def test_a_run_that_changes_is_not_packed(trained: Workspace, tmp_path: Path) -> None:
    workspace = Workspace.open(shutil.copytree(trained.path, tmp_path / "w"))
    job = load_job(workspace, RUN)
    lock = enqueue(job)  # a run that is queued lives
    with pytest.raises(UserError, match="its files still change"):
        packed_run(workspace)
    lock.release()


def test_an_imported_run_that_was_cut_off_is_not_resumed_by_itself(trained: Workspace, tmp_path: Path,
                                                                   elsewhere: Workspace) -> None:
    workspace = Workspace.open(shutil.copytree(trained.path, tmp_path / "w"))
    for event in (Queued(), Started(1, 1)):
        append_event(workspace.runs / RUN / "events.jsonl", event)
    assert JobReader(load_job(workspace, RUN)).state().interrupted
    imported(packed_run(workspace), elsewhere)
    [state] = JobBoard(elsewhere).states()
    assert (state.status, state.interrupted) == ("stopped", False)


Members = list[tuple[tarfile.TarInfo, bytes]]


def forged(archive: Path, target: Path, change: Callable[[Members, dict[str, Any]], None]) -> Path:
    """The archive after `change` of its members and its list, written by Python's tarfile."""
    with tarfile.open(archive) as reading:
        members = [(about, reading.extractfile(about).read()) for about in reading]  # type: ignore[union-attr]
    listed = json.loads(members.pop(0)[1])
    change(members, listed)
    with tarfile.open(target, "w") as writing:
        content = json.dumps(listed).encode()
        for about, data in [(tarfile.TarInfo(pack.MANIFEST), content), *members]:
            if about.isreg():
                about.size = len(data)
            writing.addfile(about, io.BytesIO(data) if about.isreg() else None)
    return target


def add(members: Members, listed: dict[str, Any], path: str, data: bytes = b"evil", **about: object) -> None:
    """A file at `path`, with its true hash in the list."""
    member = tarfile.TarInfo(path)
    for name, value in about.items():
        setattr(member, name, value)
    members.append((member, data))
    listed["files"].append({"path": path, "size": len(data) if member.isreg() else 0,
                            "sha256": hashlib.sha256(data if member.isreg() else b"").hexdigest()})


def _flip(members: Members, _listed: dict[str, Any]) -> None:
    at = next(at for at, (about, _) in enumerate(members) if about.name.endswith("rows.safetensors"))
    about, data = members[at]
    members[at] = about, data[:-1] + bytes([data[-1] ^ 1])


FORGERIES: dict[str, tuple[Callable[[Members, dict[str, Any]], None], str]] = {
    "a changed byte": (_flip, "SHA-256"),
    "an absolute path": (lambda m, f: add(m, f, "/etc/evil"), "from the root"),
    "a way out": (lambda m, f: add(m, f, f"runs/{RUN}/../../../evil"), "leads out"),
    "another way out": (lambda m, f: add(m, f, "../evil"), "leads out"),
    "a Windows path": (lambda m, f: add(m, f, "C:\\evil"), "from the root"),
    "a link": (lambda m, f: add(m, f, f"runs/{RUN}/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "link"),
    "a hard link": (lambda m, f: add(m, f, f"runs/{RUN}/link", type=tarfile.LNKTYPE, linkname="/etc/passwd"), "link"),
    "a device": (lambda m, f: add(m, f, f"runs/{RUN}/zero", type=tarfile.CHRTYPE, devmajor=1, devminor=5), "device"),
    "a pipe": (lambda m, f: add(m, f, f"runs/{RUN}/pipe", type=tarfile.FIFOTYPE), "device"),
    "a hidden file": (lambda m, f: add(m, f, f"runs/{RUN}/.hidden"), "hidden"),
    "a lock": (lambda m, f: add(m, f, f"runs/{RUN}/lock"), "belongs to nothing"),
    "a file of another run": (lambda m, f: add(m, f, "runs/other/config.yaml"), "belongs to nothing"),
    "a file of the app": (lambda m, f: add(m, f, "cache/measures/x"), "no folder of a workspace"),
    "a file that is not listed": (lambda m, f: (add(m, f, f"runs/{RUN}/more"), f["files"].pop())[0], "more data after"),
    "a file that is missing": (lambda m, f: m.pop() and None, "truncated|empty|end|header"),
    "another order": (lambda m, f: m.reverse(), "stands where its list has"),
    "a file twice": (lambda m, f: f["files"].append(f["files"][0]), "one twice"),
    "a file in a file": (lambda m, f: (add(m, f, f"runs/{RUN}/a"), add(m, f, f"runs/{RUN}/a/b"))[0],
                         f"its list has 'runs/{RUN}/a/b', and 'runs/{RUN}/a' as a file, so nothing lies in it"),
    "a folder that is a file": (lambda m, f: (add(m, f, f"runs/{RUN}/a/b"), add(m, f, f"runs/{RUN}/a"))[0],
                                f"and 'runs/{RUN}/a' as a file"),
    "a bomb": (lambda m, f: f["files"][-1].update(size=10**15), "larger than it is"),
    "a negative size": (lambda m, f: f["files"][-1].update(size=-1), "belongs to nothing"),
    "a kind that no archive holds": (lambda m, f: f["items"].append("cache:uploads"), "names nothing"),
    "a voice": (lambda m, f: f["items"].append("voice:x"), "no archive holds"),
    "a name that leads out": (lambda m, f: f["items"].append("run:.."), "names nothing"),
    "nothing": (lambda m, f: f.update(items=[]), "no export and no run"),
    "a newer format": (lambda m, f: f.update(format=2), "format"),
    "a list of another type": (lambda m, f: f.update(files={"a": 1}), "no archive of Lisan"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_archive_is_refused_and_changes_nothing(name: str, packed: Path, elsewhere: Workspace,
                                                         tmp_path: Path) -> None:
    change, said = FORGERIES[name]
    archive = forged(packed, tmp_path / "forged.tar", change)
    before = sorted(path for path in elsewhere.path.rglob("*") if "unpacking" not in path.parts)
    with pytest.raises(UserError, match=said) as caught:
        imported(archive, elsewhere)
    assert caught.value.hint.startswith("Take an archive that was packed by Lisan")
    assert sorted(path for path in elsewhere.path.rglob("*") if "unpacking" not in path.parts) == before
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_with_a_negative_size_reads_nothing(kind: bytes) -> None:
    about = tarfile.TarInfo(pack.MANIFEST)
    about.size, about.type = -1, kind
    archive = io.BytesIO(about.tobuf(tarfile.GNU_FORMAT) + b"x" * 10_000)
    with pytest.raises(ValueError, match="only plain files|-1 bytes"):
        unpack._read_header(archive)
    assert archive.tell() == pack.HEADER_BYTES


def test_an_unchanged_copy_by_another_program_is_accepted(packed: Path, elsewhere: Workspace, tmp_path: Path) -> None:
    """The forgeries are refused for what they are, not for who wrote them."""
    imported(forged(packed, tmp_path / "copy.tar", lambda _members, _listed: None), elsewhere)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_an_archive_that_was_cut_off_is_refused(packed: Path, elsewhere: Workspace, tmp_path: Path,
                                                share: float) -> None:
    data = packed.read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[:int(share * (len(data) - 1024))])
    with pytest.raises(UserError, match="no archive of Lisan, or damaged"):
        imported(tmp_path / "cut.tar", elsewhere)
    assert stored(elsewhere) == {}


def test_another_job_cannot_come_as_a_training(packed: Path, elsewhere: Workspace, tmp_path: Path) -> None:
    def change(members: Members, listed: dict[str, Any]) -> None:
        at = next(at for at, (about, _) in enumerate(members) if about.name == f"runs/{RUN}/config.yaml")
        data = members[at][1].replace(b"verb: train", b"verb: push")
        members[at] = members[at][0], data
        listed["files"][at].update(size=len(data), sha256=hashlib.sha256(data).hexdigest())

    with pytest.raises(UserError, match="a job of 'push'"):
        imported(forged(packed, tmp_path / "forged.tar", change), elsewhere)
    assert stored(elsewhere) == {}
