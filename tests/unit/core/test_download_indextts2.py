"""IndexTTS2 from a loopback hub: five repositories in one folder, licences accepted by name, S2Mel stripped."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from config.errors import UserError
from config.schema import DownloadOptions
from core import download
from core.jobs.events import Plan
from core.library.catalog import find_entry
from core.library.records import MODEL_RECORD, read_model_record, write_record
from core.workspace import Workspace
from models.indextts2 import model_folder
from models.indextts2.s2mel import PARTS
from tests.hub import LoopbackHub, serving
from tests.unit.hub_model import Recorder, made_up, partial, safetensors

ENTRY = find_entry("indextts2")
VARIANT = ENTRY.variants[0]
ALL = tuple(licence.name for licence in VARIANT.licences)
MAIN, CODEC = "IndexTeam/IndexTTS-2", "hf_cache/semantic_codec_model.safetensors"


def pickled(content: object, zipped: bool = True) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


def s2mel(optimizer: bool = True) -> bytes:
    """Three parts, and what a training adds: another part, and an optimizer with as much again, twice."""
    torch.manual_seed(1)
    net = {part: {f"module.{part[0]}": torch.randn(20_000)} for part in PARTS}
    if not optimizer:
        return pickled({"net": net})
    state = {"exp_avg": torch.randn(60_000), "exp_avg_sq": torch.randn(60_000)}
    return pickled({"net": {**net, "style_encoder": {"s": torch.zeros(5)}}, "optimizer": [("cfm", {"state": state})],
                    "scheduler": {"last_epoch": 3}, "iters": 7, "epoch": 1})


def published() -> dict[str, dict[str, bytes]]:
    """Every file of the variant by repository and name; each of its kind, and unlike all others."""
    made: dict[str, dict[str, bytes]] = {}
    for part in VARIANT.parts:
        for [name] in part.files:
            content = made_up(part.path(name), 5000)
            if name.endswith(".safetensors"):
                content = safetensors(part.path(name), 40_000)
            elif name.endswith(".json"):
                content = f'{{"of": "{part.repository}"}}'.encode()
            elif name.endswith((".pt", ".pth", ".bin")):
                tensor = torch.full((2000,), float(len(part.path(name))))
                content = pickled({"weight": tensor}, zipped=not name.endswith(".bin"))
            made.setdefault(part.repository, {})[name] = content
    made[MAIN]["s2mel.pth"] = s2mel()
    return made


FILES = published()
LAID_OUT = {part.path(name): FILES[part.repository][name] for part in VARIANT.parts for [name] in part.files}
TOTAL = sum(len(content) for content in LAID_OUT.values())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    with serving() as hub:
        for part in VARIANT.parts:
            tested = hub.add(part.repository, {**FILES[part.repository], "README.md": b"# read me"})
            hub.repositories[part.repository].refs[part.revision] = tested
            hub.add(part.repository, {"README.md": b"# nothing of the model is left at main"})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def get(workspace: Workspace, recorder: Recorder | None = None, **changes: object) -> dict[str, object]:
    options = DownloadOptions(**{"model": "indextts2", "accept_licence": ALL, "accept_unknown": tuple(LAID_OUT),
                                 "probe": False, **changes})  # type: ignore[arg-type]
    return dict(download.run(options, workspace, recorder or Recorder(workspace.runs)))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.name != "model.json"}


def assert_stripped(folder: Path) -> None:
    """The tensors of S2Mel are those of the published file, and nothing else is in it."""
    held, wanted = (torch.load(source, weights_only=True) for source in (folder / "s2mel.pth", io.BytesIO(s2mel())))
    assert held.keys() == {"net"}
    assert held["net"].keys() == set(PARTS)
    assert all(torch.equal(value, wanted["net"][part][name]) for part in held["net"]
               for name, value in held["net"][part].items())
    assert (folder / "s2mel.pth").stat().st_size < 0.4 * len(s2mel())


def test_five_repositories_make_one_folder_in_the_published_layout(served, workspace):
    recorder = Recorder(workspace.runs)
    result = get(workspace, recorder)
    model = workspace.model("indextts2")
    found = contents(model)
    assert {path: content for path, content in found.items() if path != "s2mel.pth"} == {
        path: content for path, content in LAID_OUT.items() if path != "s2mel.pth"}
    assert_stripped(model)
    assert {getattr(model_folder.find_files(model), field.name).relative_to(model).as_posix()
            for field in fields(model_folder.IndexTTS2Files)} == found.keys() == LAID_OUT.keys()
    assert (result["bytes_fetched"], result["bytes"]) == (TOTAL, sum(map(len, found.values())))
    [plan] = [event for event in recorder.events if isinstance(event, Plan)]
    assert plan.counts == {"files": 14, "bytes": TOTAL, "bytes_here": 0}
    totals = {event.total for event in recorder.progress}
    assert totals == {TOTAL}  # one bar
    assert not recorder.warnings


def test_the_record_has_every_commit_the_licences_and_the_published_hash_of_what_was_stripped(served, workspace):
    get(workspace)
    record = read_model_record(workspace.model("indextts2"))
    assert {MAIN: record.revision, **record.companions} == {
        name: commit for name, repository in served.repositories.items() for commit in repository.refs.values()}
    assert record.licences == ALL
    assert record.originals.keys() == {"s2mel.pth"}
    original = record.originals["s2mel.pth"]
    assert (original.size, original.sha256) == (len(s2mel()), served.repositories[MAIN].commits[record.revision][
        "s2mel.pth"].sha256)
    assert record.files["s2mel.pth"].size < original.size


@pytest.mark.parametrize("accepted", [(), ALL[:-1]])
def test_nothing_is_fetched_before_every_licence_is_accepted(served, workspace, accepted):
    with pytest.raises(UserError, match="under licences that you have not accepted") as caught:
        get(workspace, accept_licence=accepted)
    assert not served.asked
    assert [name for name in ALL if f"--accept-licence {name}" in caught.value.hint] == [
        name for name in ALL if name not in accepted]
    assert list(workspace.models.iterdir()) == []


def test_the_licences_of_all_parts_are_shown_before_the_download(served, workspace):
    served.fault("gpt.pth", status=404)
    recorder = Recorder(workspace.runs)
    with pytest.raises(UserError):
        get(workspace, recorder)
    [plan] = [event for event in recorder.events if isinstance(event, Plan)]
    lines = "\n".join(plan.lines)
    assert all(part.repository in lines and part.licence.title in lines for part in VARIANT.parts)
    assert "non-commercial" in lines


def test_a_broken_download_goes_on_where_it_was_also_in_folders(served, workspace):
    served.fault("bigvgan_generator.pt", drop_after=3000, times=1)
    served.fault("s2mel.pth", status=404)  # the largest, which comes last
    with pytest.raises(UserError):
        get(workspace)
    here = contents(partial(workspace, "indextts2"))
    assert all(here[path] == content for path, content in LAID_OUT.items() if path != "s2mel.pth")
    served.faults.clear()
    served.sent.clear()
    recorder = Recorder(workspace.runs)
    get(workspace, recorder)
    [plan] = [event for event in recorder.events if isinstance(event, Plan)]
    assert plan.counts["bytes_here"] == TOTAL - len(s2mel())
    assert served.sent["s2mel.pth"] == len(s2mel())
    assert set(served.sent) == {"s2mel.pth"}
    assert contents(workspace.model("indextts2")).keys() == LAID_OUT.keys()
    assert not partial(workspace, "indextts2").exists()


def test_files_that_are_called_the_same_do_not_mix(served, workspace):
    get(workspace)
    model = workspace.model("indextts2")
    for folder, repository in (("w2v-bert-2.0", "facebook/w2v-bert-2.0"),
                               ("bigvgan", "nvidia/bigvgan_v2_22khz_80band_256x")):
        assert (model / "hf_cache" / folder / "config.json").read_bytes() == FILES[repository]["config.json"]


def test_a_model_that_is_there_needs_no_consent_again_and_its_damage_is_mended(served, workspace):
    get(workspace)
    model = workspace.model("indextts2")
    served.sent.clear()
    assert get(workspace, accept_licence=())["outcome"] == "already there, verified"
    assert not served.sent
    shutil.rmtree(model / "hf_cache" / "bigvgan")
    os.truncate(model / "s2mel.pth", 50)
    result = get(workspace, accept_licence=())
    assert result["outcome"] == "already there, 3 damaged files replaced"
    assert contents(model).keys() == LAID_OUT.keys()
    assert_stripped(model)
    assert get(workspace)["outcome"] == "already there, verified"


def test_a_job_that_was_killed_before_the_file_was_replaced_replaces_it_now(served, workspace):
    get(workspace)
    model = workspace.model("indextts2")
    (model / "s2mel.pth").write_bytes(s2mel())
    served.sent.clear()
    assert get(workspace)["outcome"] == "already there, verified"
    assert_stripped(model)
    assert not served.sent
    record = read_model_record(model)
    write_record(model / MODEL_RECORD, replace(
        record, files={**record.files, "s2mel.pth": record.originals["s2mel.pth"]}, originals={}))
    (model / "s2mel.pth").write_bytes(s2mel())  # killed even earlier
    get(workspace)
    assert_stripped(model)
    assert read_model_record(model) == record


def test_a_tested_commit_that_is_gone_is_told_and_the_newest_taken(served, workspace):
    served.repositories["funasr/campplus"].refs.clear()
    served.add("funasr/campplus", FILES["funasr/campplus"])
    recorder = Recorder(workspace.runs)
    get(workspace, recorder)
    [warning] = recorder.warnings
    assert "funasr/campplus no longer has" in warning
    assert "was tested" in warning


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def test_a_folder_of_the_published_code_is_imported_and_left_as_it_was(workspace, tmp_path):
    folder = write_folder(tmp_path / "checkpoints", LAID_OUT)
    get(workspace, folder=str(folder))
    assert_stripped(workspace.model("indextts2"))
    assert contents(folder) == LAID_OUT
    assert os.path.samefile(folder / CODEC, workspace.model("indextts2") / CODEC)


def test_companions_in_a_cache_of_the_hub_are_found(workspace, tmp_path):
    files = {path: content for path, content in LAID_OUT.items() if not path.startswith("hf_cache")}
    for part in VARIANT.parts[1:]:
        home = f"hf_cache/models--{part.repository.replace('/', '--')}/snapshots/{part.revision}"
        files |= {f"{home}/{name}": FILES[part.repository][name] for [name] in part.files}
    folder = write_folder(tmp_path / "checkpoints", files)
    get(workspace, folder=str(folder))
    found = contents(workspace.model("indextts2"))
    assert {path: found[path] for path in LAID_OUT if path != "s2mel.pth"} == {
        path: content for path, content in LAID_OUT.items() if path != "s2mel.pth"}


def test_a_file_that_was_stripped_already_stays(workspace, tmp_path):
    folder = write_folder(tmp_path / "checkpoints", {**LAID_OUT, "s2mel.pth": s2mel(optimizer=False)})
    get(workspace, folder=str(folder))
    assert os.path.samefile(folder / "s2mel.pth", workspace.model("indextts2") / "s2mel.pth")
    assert read_model_record(workspace.model("indextts2")).originals == {}


def test_all_missing_companions_are_named(workspace, tmp_path):
    folder = write_folder(tmp_path / "checkpoints", {path: content for path, content in LAID_OUT.items()
                                                     if path not in (CODEC, "feat2.pt")})
    with pytest.raises(UserError, match=rf"has no feat2\.pt, no {CODEC}, which IndexTTS2"):
        get(workspace, folder=str(folder))
    with pytest.raises(UserError, match=rf"lacks feat2\.pt, {CODEC}"):
        model_folder.find_files(folder)


@pytest.mark.parametrize(("content", "said"), [
    (b"<html>not found</html>", "it is no whole PyTorch file"),
    (pickled({"model": {"a": torch.zeros(1)}}), "is no S2Mel of IndexTTS2: it lacks cfm, length_regulator under"),
])
def test_a_wrong_s2mel_is_named(workspace, tmp_path, content, said):
    folder = write_folder(tmp_path / "checkpoints", {**LAID_OUT, "s2mel.pth": content})
    with pytest.raises(UserError, match=said):
        get(workspace, folder=str(folder))
    assert workspace.list_models() == []
    assert contents(folder)["s2mel.pth"] == content
