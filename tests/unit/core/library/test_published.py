"""Base models beside the published files: what differs is refused, accepted by name, and certified as unknown."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from config.errors import UserError
from config.schema import DownloadOptions
from core import download, machine_check
from core.library import catalog, published
from core.library.catalog import CATALOG, find_entry, variant
from core.library.certificate import Certificate, CertificateCheck
from core.library.records import BaseProbe, read_model_record
from core.sources import unknown_files
from core.sources.base_models import UnknownFilesError
from core.workspace import Workspace
from data.durable_files import ExpectedFile
from tests.chatterbox_world import write_model
from tests.unit.hub_model import Recorder
from ui.certificate import certificate_view

T3 = "t3_mtl23ls_v2.safetensors"
V2 = variant(find_entry("chatterbox"), "multilingual-v2")
VARIANTS = [one for family in CATALOG for one in family.variants]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Chatterbox of random noise, in a folder of its own."""
    folder = tmp_path_factory.mktemp("source") / "mine"
    write_model(folder, quick=True)
    (folder / "model.json").unlink()
    return folder


def get(workspace: Workspace, folder: Path, **options: object) -> dict[str, object]:
    values = {"model": "chatterbox", "variant": "multilingual-v2", "folder": str(folder), "probe": False, **options}
    return dict(download.run(DownloadOptions(**values), workspace, Recorder(workspace.runs)))  # type: ignore[arg-type]


def accepted(workspace: Workspace, folder: Path) -> tuple[str, ...]:
    """The files that are refused without consent."""
    with pytest.raises(UnknownFilesError) as caught:
        get(workspace, folder)
    return tuple(file.path for file in caught.value.files)


def test_every_listed_file_is_one_of_a_variant_and_has_a_whole_hash() -> None:
    parts = [part for one in VARIANTS for part in one.parts]
    names = {(part.repository, name) for part in parts for choice in part.files for name in choice}
    for repository, files in published.FILES.items():
        assert len(published.COMMITS[repository]) == 40
        for name, file in files.items():
            assert (repository, name) in names
            assert (len(file.sha256), len(file.blob)) in ((64, 0), (0, 40))


def test_each_variant_names_the_language_model_that_its_shapes_are_of() -> None:
    for one in VARIANTS:
        assert any(one.language_model == part.path(name) for part in one.parts for names in part.files
                   for name in names), one.name
    rows = {one.name: one.shapes["text_emb.weight"][0] for one in find_entry("chatterbox").variants}
    assert (rows["english"], rows["multilingual-v1"], rows["multilingual-v2"], rows["hi"]) == (704, 2352, 2454, 2454)


def test_published_sizes_are_those_of_the_shapes() -> None:
    """The T3 files differ in their text rows alone, which two tables of float32 hold."""
    sizes = {name: published.FILES["ResembleAI/chatterbox"][name].size
             for name in ("t3_cfg.safetensors", "t3_23lang.safetensors", T3)}
    assert sizes[T3] - sizes["t3_23lang.safetensors"] == (2454 - 2352) * 2 * 1024 * 4
    assert abs(sizes[T3] - sizes["t3_cfg.safetensors"] - (2454 - 704) * 2 * 1024 * 4) <= 8  # a longer header


def test_the_lfs_pointers_of_large_files_are_those_of_the_listed_size_and_hash() -> None:
    file = published.FILES["ResembleAI/chatterbox"][T3]
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{file.sha256}\nsize {file.size}\n".encode()
    blob = hashlib.sha1(b"blob %d\0" % len(pointer) + pointer, usedforsecurity=False).hexdigest()
    assert blob == "482ccdb7195ef1a44cafee78c72020bdb89c7e86"  # of the same list


def test_a_model_of_noise_is_refused_with_the_names_of_its_unknown_files(workspace: Workspace, source: Path) -> None:
    with pytest.raises(UnknownFilesError, match=rf"{T3} \(it has \d+ bytes, the published file 2143989752, "
                                                r"text_emb\.weight is \(\d+, 128\), the published one \(2454, 1024\)"
                       ) as caught:
        get(workspace, source)
    assert f"--accept-unknown {T3}" in caught.value.hint
    assert workspace.list_models() == []
    assert [file.path for file in unknown_files.read(workspace.runs)] == [file.path for file in caught.value.files]


def test_one_name_accepts_one_file(workspace: Workspace, source: Path) -> None:
    names = accepted(workspace, source)
    with pytest.raises(UserError, match="A file is not what was published") as caught:
        get(workspace, source, accept_unknown=tuple(name for name in names if name != T3))
    assert caught.value.hint.count("--accept-unknown") == 1


def test_an_accepted_model_is_recorded_as_unknown(workspace: Workspace, source: Path) -> None:
    names = accepted(workspace, source)
    result = get(workspace, source, accept_unknown=names)
    assert "verified" not in str(result["outcome"])
    assert "unknown base: " in str(result["outcome"])
    record = read_model_record(workspace.model("chatterbox-multilingual-v2"))
    assert record is not None
    assert record.accepted_unknown == names
    assert record.probe == BaseProbe("not probed", "not probed: turned off (--no-probe)")
    identity, note = published.identify_base(workspace, "chatterbox-multilingual-v2")
    assert identity == "unknown"
    assert T3 in note
    [check] = machine_check.check_models(workspace.path)
    assert "unknown base: " in check.found
    assert "not probed" in check.found


def test_published_files_need_no_consent(workspace: Workspace, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path.name: ExpectedFile(path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
             for path in source.iterdir()}
    files["Cangjie5_TC.json"] = ExpectedFile(blob=published.git_hash(source / "Cangjie5_TC.json"))
    monkeypatch.setattr(published, "FILES", {"ResembleAI/chatterbox": files})
    assert get(workspace, source)["outcome"] == f"linked from {source}, verified"
    assert published.identify_base(workspace, "chatterbox-multilingual-v2") == ("published", "")
    other = {**files, "Cangjie5_TC.json": ExpectedFile(blob="0" * 40)}
    monkeypatch.setattr(published, "FILES", {"ResembleAI/chatterbox": other})
    with pytest.raises(UnknownFilesError, match="its git hash begins"):
        get(workspace, source, save_as="second")


def test_without_a_published_hash_shapes_alone_are_compared(workspace: Workspace, source: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "FILES", {})
    with pytest.raises(UnknownFilesError, match=r"text_emb\.weight is") as caught:
        get(workspace, source)
    assert [file.path for file in caught.value.files] == [T3]
    shapes = {name: tuple(value.shape) for name, value in load_file(source / T3).items()}
    chosen = replace(V2, shapes={name: shapes[name] for name in ("text_emb.weight", "speech_head.weight")})
    monkeypatch.setattr(catalog, "CATALOG", tuple(
        replace(family, variants=(chosen,)) if family.name == "chatterbox" else family for family in CATALOG))
    outcome = str(get(workspace, source)["outcome"])
    assert "not verified: no published hash is known of " in outcome
    assert published.identify_base(workspace, "chatterbox")[0] == "unlisted"


def test_names_behind_a_prefix_are_compared() -> None:
    shapes = {f"t3.{name}": shape for name, shape in V2.shapes.items()}
    assert published.compare_shapes(V2, shapes) == ""
    assert published.compare_shapes(V2, {**shapes, "t3.text_emb.weight": (704, 1024)}) == (
        "text_emb.weight is (704, 1024), the published one (2454, 1024)")
    assert published.compare_shapes(V2, {}).startswith("it has no text_emb.weight")


def test_a_built_in_model_with_other_files_is_unknown(workspace: Workspace) -> None:
    download.run(DownloadOptions(), workspace, Recorder(workspace.runs))
    assert published.identify_base(workspace, "tiny") == ("published", "")
    path = workspace.models / "tiny" / catalog.SUMS
    path.write_text(path.read_text().replace('"codec', '"kodec'))
    assert published.identify_base(workspace, "tiny")[0] == "unknown"


def test_the_page_says_of_a_certificate_that_its_base_is_unknown() -> None:
    check = CertificateCheck("prefix_rows", "passed", "a", "a", "The rows are those of the base.")
    proof = Certificate("run:a@1", "a", 1, "gated", "chatterbox", "am", "b", "f", 1.0, (check,), ())
    assert "unknown base" not in str(certificate_view(proof))
    note = f"unknown base: {T3}: its SHA-256 begins 0000"
    shown = str(certificate_view(replace(proof, base_files="unknown", base_note=note)))
    assert ", unknown base<" in shown
    assert f"Unknown base: {T3}: its SHA-256 begins 0000." in shown


def test_a_file_of_the_published_size_is_known_by_its_hash() -> None:
    check = published.check_files(V2, {T3: ExpectedFile(2_143_989_752, "0" * 64)})
    assert [file.path for file in check.unknown] == [T3]
    assert check.unknown[0].reason == "its SHA-256 begins 000000000000, that of the published file b1237586127c"
