"""Pushing an export to a loopback hub: what arrives, who may see it, and what is refused."""

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import PushOptions
from core import push
from core.jobs import control
from core.jobs.events import Progress
from core.jobs.job import create_job
from core.jobs.reporter import StopRequested
from core.library import certificate, verification
from core.library.catalog import BILIBILI
from core.library.certificate import Certificate, CertificateCheck
from core.library.records import EXPORT_RECORD, ExportRecord, Origin, read_export_record, write_record
from core.sources.hub import Hub
from core.workspace import Workspace
from data.durable_files import hash_tree
from tests.hub import LoopbackHub, serving
from tests.unit.hub_model import TOKEN, Recorder, made_up
from tests.unit.live_jobs import until

NAME = "me/amharic"
WEIGHTS = "t3.safetensors"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    with serving() as hub:
        hub.tokens[TOKEN] = "write"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


@pytest.fixture
def export(workspace: Workspace) -> Path:
    return write_export(workspace)


def write_export(workspace: Workspace, name: str = "mine", result: str = "passed") -> Path:
    """An export whose files are what its sums say, and whose certificate is of the same model."""
    folder = workspace.exports / name
    (folder / "samples").mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(made_up(WEIGHTS, 400_000))
    (folder / "samples" / "am.ogg").write_bytes(made_up("am", 2000))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A voice\n")
    origin = Origin("tiny", "tiny", "b" * 64, 10, 12, "f" * 64)
    write_record(folder / EXPORT_RECORD, ExportRecord(name, "run-1", 8, "gated", "amharic", ("am",), origin, {}, {}))
    write_certificate(folder, result)
    seal(folder)
    return folder


def write_certificate(folder: Path, result: str = "passed", **changes: object) -> None:
    """A certificate of this workspace's own, of the files that are there."""
    checks = tuple(CertificateCheck(name, result, "a", "a", "Rows.")  # type: ignore[arg-type]
                   for name in (*certificate.CHECKS, "export_reloads"))
    proof = Certificate("run:run-1@8", "run-1", 8, "gated", "tiny", "tiny-am", "b" * 64, "f" * 64, 0.0, checks, (),
                        kind="export")
    workspace = Workspace(folder.parent.parent)
    files = verification.certified_files(verification.Subject.of_export(folder))
    certificate.write(folder / "certificate.json",
                      verification.bind(workspace, replace(proof, **changes), files))  # type: ignore[arg-type]


def edit_sums(folder: Path, left_out: str) -> None:
    sums = json.loads((folder / "SHA256SUMS.json").read_text())
    (folder / "SHA256SUMS.json").write_text(json.dumps({name: sums[name] for name in sums if name != left_out}))


def seal(folder: Path) -> None:
    (folder / "SHA256SUMS.json").write_text(json.dumps(hash_tree(folder, ("SHA256SUMS.json",))))


def run(served: LoopbackHub, workspace: Workspace, recorder: Recorder | None = None, **options: object) -> dict:
    settings = {"export": "mine", "repository": NAME, **options}
    return push.push(PushOptions(**settings), workspace, recorder or Recorder(workspace.runs), Hub(served.url, TOKEN))


def test_the_export_arrives_as_one_commit_in_a_private_repository(served, workspace, export):
    recorder = Recorder(workspace.runs)
    result = run(served, workspace, recorder)
    repository = served.repositories[NAME]
    there = {name: b"".join(blob.blocks()) for name, blob in repository.commits[repository.main].items()}
    ours = {path.relative_to(export).as_posix(): path for path in export.rglob("*") if path.is_file()}
    assert there == {name: path.read_bytes() for name, path in ours.items()}
    assert repository.private
    assert len(repository.commits) == 2  # the empty one, and this
    assert (result["url"], result["commit"], result["public"]) == (f"{served.url}/{NAME}", repository.main, False)
    progress = [event for event in recorder.events if isinstance(event, Progress)]
    assert (progress[-1].done, progress[-1].total) == (result["bytes"], result["bytes"])


def test_a_password_in_the_address_of_the_hub_is_not_in_the_result(served, workspace, export):
    with_password = served.url.replace("//", "//me:s3cret@")
    served.tokens = {f"Basic {b64encode(b'me:s3cret').decode()}": "write"}  # sent in place of the token
    result = push.push(PushOptions(export="mine", repository=NAME), workspace, Recorder(workspace.runs),
                       Hub(with_password, TOKEN))
    assert result["url"] == f"{served.url}/{NAME}"


def test_what_the_hub_has_is_not_sent_again(served, workspace, export):
    run(served, workspace)
    sent = len([asked for asked in served.asked if asked.method == "PUT"])
    (export / "README.md").write_text("changed")
    seal(export)
    run(served, workspace)
    assert len([asked for asked in served.asked if asked.method == "PUT"]) == sent == 2
    assert len(served.repositories[NAME].commits) == 3


def test_a_public_repository_must_be_meant(served, workspace, export):
    run(served, workspace, public=True)
    assert not served.repositories[NAME].private
    with pytest.raises(UserError, match="everyone can see it") as caught:
        run(served, workspace)
    assert "--public" in caught.value.hint


def test_a_private_repository_is_not_made_public(served, workspace, export):
    run(served, workspace)
    recorder = Recorder(workspace.runs)
    assert run(served, workspace, recorder, public=True)["public"] is False
    assert "is private; it stays private" in recorder.warnings[-1]


@pytest.mark.parametrize(("spoil", "said"), [
    (lambda folder: (write_certificate(folder, "failed"), seal(folder)), "has failed checks: prefix_rows, "),
    (lambda folder: (write_certificate(folder, "not proven"), seal(folder)), "has no check that passed"),
    (lambda folder: (write_certificate(folder, base_hash="0" * 64), seal(folder)), "these files are of run 'run-1'"),
    (lambda folder: (write_certificate(folder, run="other"), seal(folder)), "It is of run 'other'"),
    (lambda folder: (write_certificate(folder, kind="run"), seal(folder)), "It is of a run, not of export:mine"),
    (lambda folder: write_certificate(folder, "passed", created=1.0), "certificate.json is damaged"),
    (lambda folder: ((folder / "certificate.json").unlink(), seal(folder)), "There is no certificate"),
    (lambda folder: ((folder / WEIGHTS).write_bytes(b"x"), seal(folder)), "other files.*t3.safetensors differs"),
    (lambda folder: ((folder / "extra.pt").write_bytes(b"x"), seal(folder)), "other files.*extra.pt is new"),
    (lambda folder: (folder.parent.parent / "workspace.key").unlink(), "computed by the sender, not verified here"),
    (lambda folder: edit_sums(folder, WEIGHTS), "does not list t3.safetensors"),
    (lambda folder: (folder / WEIGHTS).write_bytes(b"x"), "t3.safetensors is damaged"),
    (lambda folder: (folder / WEIGHTS).unlink(), "t3.safetensors is missing"),
    (lambda folder: (folder / "SHA256SUMS.json").write_text('{"../../secret": "0"}'), "lies outside"),
])
def test_an_export_that_does_not_verify_stays_here(served, workspace, export, spoil, said):
    spoil(export)
    with pytest.raises(UserError, match=said):
        run(served, workspace)
    assert served.asked == []


@pytest.fixture
def binding(export: Path) -> Path:
    """An export of a model whose licence asks for a notice and for its text."""
    record = read_export_record(export)
    write_record(export / EXPORT_RECORD, replace(record, origin=replace(record.origin, family="indextts2")))
    for name in BILIBILI.files:
        (export / name).write_text("the agreement")
    write_certificate(export)
    (export / "README.md").write_text(f"# A voice\n\n> {BILIBILI.notice}\n")
    seal(export)
    return export


def test_a_card_with_the_notice_of_the_licence_is_pushed(served, workspace, binding):
    run(served, workspace)
    pushed = served.repositories[NAME]
    assert set(BILIBILI.files) <= set(pushed.commits[pushed.main])


@pytest.mark.parametrize(("name", "content", "said"), [
    ("README.md", "# A voice\n\nAny modifications are not endorsed.\n", "lacks this notice in README.md: “Any modifi"),
    (BILIBILI.files[0], None, "lacks LICENSE.txt. The bilibili Model Use License Agreement wants that"),
])
def test_without_what_the_licence_asks_for_nothing_is_pushed(served, workspace, binding, name, content, said):
    (binding / name).unlink() if content is None else (binding / name).write_text(content)
    seal(binding)
    with pytest.raises(UserError) as caught:
        run(served, workspace)
    assert said in caught.value.message
    assert NAME not in served.repositories


def test_files_that_were_not_exported_are_not_pushed(served, workspace, export):
    (export / "notes.txt").write_text("private")
    run(served, workspace)
    repository = served.repositories[NAME]
    assert "notes.txt" not in repository.commits[repository.main]


@pytest.mark.parametrize(("token", "may", "said"), [
    ("", "write", "HF_TOKEN is not set"), (TOKEN, "read", r"does not let .* write to me/amharic \(403\)"),
    (TOKEN, "", r"does not let .* write to me/amharic \(401\)"),
])
def test_the_token_must_be_there_and_may_write(served, workspace, export, monkeypatch, token, may, said):
    monkeypatch.setenv("HF_TOKEN", token)
    served.tokens = {TOKEN: may} if may else {}
    with pytest.raises(UserError, match=said) as caught:
        run(served, workspace)
    assert "HF_TOKEN" in caught.value.message + caught.value.hint
    assert TOKEN not in f"{caught.value.message}{caught.value.hint}"
    assert NAME not in served.repositories


@pytest.mark.parametrize("name", ["", "amharic", "me/../x", "https://huggingface.co/me/x", "me/a b"])
def test_a_repository_must_be_named(served, workspace, export, name):
    with pytest.raises(UserError, match="is not the name of a repository"):
        run(served, workspace, repository=name)


def test_a_broken_upload_leaves_the_repository_as_it_was(served, workspace, export):
    served.fault("upload", status=403)
    with pytest.raises(UserError):
        run(served, workspace)
    assert len(served.repositories[NAME].commits) == 1
    served.faults.clear()
    run(served, workspace)
    assert len(served.repositories[NAME].commits) == 2


def test_a_stop_is_heard_while_the_hub_hangs_and_nothing_is_committed(served, workspace, export):
    served.fault("upload", stall_after=1000)
    recorder = Recorder(workspace.runs)
    recorder.stop_when = lambda: any(asked.method == "PUT" for asked in served.asked)
    with pytest.raises(StopRequested, match="not committed"):
        run(served, workspace, recorder)
    assert len(served.repositories[NAME].commits) == 1


def test_a_push_is_a_job_whose_files_never_hold_the_token(served, workspace, export):
    job = create_job(workspace, "push", PushOptions(export="mine", repository=NAME))
    control.start(job)
    state = until(job, lambda state: state.ended)
    assert (state.status, state.message) == ("finished", "")
    assert state.result["url"] == f"{served.url}/{NAME}"
    for path in workspace.path.rglob("*"):
        if path.is_file():
            assert TOKEN.encode() not in path.read_bytes(), path
