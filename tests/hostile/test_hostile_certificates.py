"""Ways to get a green certificate for weights, checks or error rates that it was not computed of: none succeeds.

The certificate, the list of hashes and the records of an export are files that anybody can rewrite so that they fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from config import confinement
from config.errors import UserError
from config.schema import CertifyOptions, PackOptions, PushOptions, ServeOptions, UnpackOptions
from core import certify, export, pack, push, unpack
from core.jobs.checkpoint_names import set_choice
from core.jobs.events import CheckpointSaved, append_event
from core.jobs.state import JobState
from core.library import certificate, records, verification, workspace_key
from core.library.certificate import CERTIFICATE, Certificate, CertificateCheck, CertifiedFile
from core.library.lineage import Model
from core.library.records import EXPORT_RECORD
from core.library.verification import Outcome
from core.proof import certification
from core.serving.served_models import ServedModels
from core.sources.hub import Hub
from core.workspace import Workspace
from data.durable_files import hash_file
from models.registry import family
from scripts import certify as script
from tests.hostile import certified_world as world
from tests.hostile.certified_world import EXPORT, copied, export_of, outcome, relist, rewrite, run_of, seal, verify
from tests.trained import RUN
from tests.unit.serving_world import serving
from tests.worlds import Listener, export_options
from ui import certificate as tab
from ui import listen
from ui import records as records_of_page
from ui.page import Page

KINDS = ("run", "export")
WEIGHTS = ("t3.safetensors", "t3-merged.safetensors", "codec.safetensors", "vocoder.safetensors",
           "adapter/adapter_model.safetensors")
FILES = ("t3.safetensors", "t3-merged.safetensors", "codec.safetensors", "vocoder.safetensors",
         "recogniser.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json",
         "front_end/front_end.json", "front_end/tokenizer.json",
         "front_end/language-am.json", "export.json", "training.yaml", "voices/low.ogg",
         "load_example.py", "held_out.jsonl")
RUN_FILES = ("rows.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json", "checkpoint.json",
             "front_end/front_end.json", "front_end/tokenizer.json", "front_end/language-am.json")
BASE_FILES = ("t3.safetensors", "codec.safetensors", "vocoder.safetensors", "recogniser.safetensors", "front_end.json",
              "tokenizer.json", "voices/high.ogg")


@pytest.fixture
def attacked(tmp_path: Path) -> Workspace:
    return copied(tmp_path / "workspace")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "elsewhere")


def assert_not_green(workspace: Workspace, kind: str, *outcomes: Outcome) -> None:
    """No consumer takes the certificate for one that holds."""
    result = verify(workspace, kind)
    assert result.outcome in (outcomes or tuple(one for one in Outcome if one is not Outcome.PASSED))
    page = records_of_page.verify(workspace, f"run:{RUN}" if kind == "run" else f"export:{EXPORT}")
    assert page is not None
    assert page.outcome is result.outcome  # the cached hashes tell the same
    shown = str(tab.verified_view(page))
    assert "verdict good" not in shown
    assert "check good" not in shown or result.outcome is Outcome.FAILED
    assert ("verdict bad" in shown) is result.outcome.bad
    if kind == "export" and result.outcome is not Outcome.FAILED:
        with pytest.raises(UserError, match="not pushed|error rates"):
            push.check_certificate(workspace, export_of(workspace))


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_touched_passes(attacked: Workspace, kind: str) -> None:
    result = verify(attacked, kind)
    assert (result.outcome, result.reason) == (Outcome.PASSED, "")
    page = records_of_page.verify(attacked, f"run:{RUN}" if kind == "run" else f"export:{EXPORT}")
    assert page is not None
    shown = str(tab.verified_view(page))
    assert f"It belongs to these {len(result.proof.files)} files" in shown
    assert "check good" in shown
    assert "cannot prove who made them" in shown
    reference = f"run:{RUN}" if kind == "run" else f"export:{EXPORT}"
    assert script.main(["--workspace", str(attacked.path), "--check", reference]) == 0


def test_every_file_that_speech_depends_on_is_listed() -> None:
    of_export, of_run = ({file.path for file in world.listed(kind)} for kind in KINDS[::-1])
    assert set(FILES) <= of_export
    folder = max((run_of(world.original()[1]) / "checkpoints").glob("step-*")).name
    assert {f"checkpoints/{folder}/{name}" for name in RUN_FILES} <= of_run
    assert {file.path for file in world.listed("run") if file.of_base} >= set(BASE_FILES)
    assert not any("training" in file.path for file in world.listed("run"))


@pytest.mark.parametrize("sums", ["as they were", "rewritten"])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_of_an_export(attacked: Workspace, name: str, sums: str) -> None:
    world.flip_bit(export_of(attacked) / name)
    if sums == "rewritten":
        seal(export_of(attacked))
    result = verify(attacked, "export")
    assert result.outcome is Outcome.OTHER_FILES
    assert name in result.reason or name == EXPORT_RECORD
    assert_not_green(attacked, "export", Outcome.OTHER_FILES)


@pytest.mark.parametrize("position", [0.0, 0.01, 0.99, 1.0])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_flipped_bit_anywhere_in_weights(attacked: Workspace, name: str, position: float) -> None:
    world.flip_bit(export_of(attacked) / name, position)
    assert outcome(attacked, "export") is Outcome.OTHER_FILES


@pytest.mark.parametrize("name", FILES)
def test_a_deleted_file_of_an_export(attacked: Workspace, name: str) -> None:
    (export_of(attacked) / name).unlink()
    seal(export_of(attacked))
    assert_not_green(attacked, "export", Outcome.OTHER_FILES)


def _run_file(workspace: Workspace, name: str, of_base: bool) -> Path:
    folder = max((run_of(workspace) / "checkpoints").glob("step-*"))
    return (workspace.models / "tiny" if of_base else folder) / name


RUN_CASES = [(name, False) for name in RUN_FILES] + [(name, True) for name in BASE_FILES]


@pytest.mark.parametrize(("name", "of_base"), RUN_CASES)
def test_a_flipped_bit_of_a_run_or_its_base(attacked: Workspace, name: str, of_base: bool) -> None:
    world.flip_bit(_run_file(attacked, name, of_base))
    assert_not_green(attacked, "run", Outcome.OTHER_FILES)


@pytest.mark.parametrize(("name", "of_base"), RUN_CASES)
def test_a_deleted_file_of_a_run_or_its_base(attacked: Workspace, name: str, of_base: bool) -> None:
    _run_file(attacked, name, of_base).unlink()
    assert_not_green(attacked, "run", Outcome.OTHER_FILES)


def test_a_deleted_checkpoint(attacked: Workspace) -> None:
    shutil.rmtree(run_of(attacked) / "checkpoints")
    result = records_of_page.verify(attacked, f"run:{RUN}")
    assert result is not None
    assert result.outcome is Outcome.OTHER_FILES


def test_a_deleted_base_model(attacked: Workspace) -> None:
    shutil.rmtree(attacked.models / "tiny")
    assert "is not in this workspace" in verify(attacked, "run").reason
    assert_not_green(attacked, "run", Outcome.OTHER_FILES)


# Weights that somebody made, with everything beside them rewritten so that it fits.

def _tensors(path: Path, change: Callable[[torch.Tensor], torch.Tensor], names: str = "") -> None:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        header = file.metadata()
    torch.manual_seed(0)
    values = {name: change(value).contiguous() if names in ("", name) else value
              for name, value in load_file(path).items()}
    save_file(values, path, metadata=header)


def _base_row(value: torch.Tensor) -> torch.Tensor:
    changed = value.clone()
    changed[3] += 1
    return changed


def _new_row(value: torch.Tensor) -> torch.Tensor:
    changed = value.clone()
    changed[-1] = torch.randn_like(changed[-1].float()).to(changed.dtype)
    return changed


MADE: dict[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor], str]] = {
    "merged weights of zeros": ("export", "t3-merged.safetensors", torch.zeros_like, ""),
    "merged weights doubled": ("export", "t3-merged.safetensors", lambda value: value * 2, ""),
    "the codec times 0.2": ("export", "codec.safetensors", lambda value: value * 0.2, ""),
    "the vocoder times 0.2": ("export", "vocoder.safetensors", lambda value: value * 0.2, ""),
    "a recogniser that hears all": ("export", "recogniser.safetensors", torch.ones_like, ""),
    "an adapter of noise": ("export", "adapter/adapter_model.safetensors", torch.randn_like, ""),
    "random new rows": ("export", "t3.safetensors", _new_row, "text_emb.weight"),
    "a changed base row": ("export", "t3.safetensors", _base_row, "text_emb.weight"),
    "a changed base tensor": ("export", "t3.safetensors", lambda value: value + 0.01, "cond_enc.emotion_adv_fc.weight"),
    "random rows of a run": ("run", "rows.safetensors", torch.randn_like, ""),
    "an adapter of noise of a run": ("run", "adapter/adapter_model.safetensors", torch.randn_like, ""),
    "the base's codec times 0.2": ("base", "codec.safetensors", lambda value: value * 0.2, ""),
    "the base's vocoder times 0.2": ("base", "vocoder.safetensors", lambda value: value * 0.2, ""),
}


def _make(workspace: Workspace, name: str) -> str:
    """Write the weights; the kind of what they belong to."""
    place, path, change, tensors = MADE[name]
    folder = {"export": export_of(workspace), "base": workspace.models / "tiny",
              "run": max((run_of(workspace) / "checkpoints").glob("step-*"))}[place]
    _tensors(folder / path, change, tensors)
    if place == "run":  # the checkpoint's own list too
        record = records.read_checkpoint(folder)
        files = {**record.files, path: hash_file(folder / path)}
        records.write_record(folder / records.CHECKPOINT, dataclasses.replace(record, files=files))
    if place == "export":
        seal(folder)
    return "export" if place == "export" else "run"


@pytest.mark.parametrize("name", MADE)
def test_made_weights_are_other_files(attacked: Workspace, name: str) -> None:
    kind = _make(attacked, name)
    assert_not_green(attacked, kind, Outcome.OTHER_FILES)


@pytest.mark.parametrize("name", MADE)
def test_a_certificate_that_lists_made_weights_is_nobodys(attacked: Workspace, name: str) -> None:
    kind = _make(attacked, name)
    relist(attacked, kind)
    assert_not_green(attacked, kind, Outcome.SENDER)
    assert script.main(["--workspace", str(attacked.path), "--check",
                        f"run:{RUN}" if kind == "run" else f"export:{EXPORT}"]) == 1


# Edited certificates of the right files.

def _check(proof: Certificate, name: str, **changes: object) -> Certificate:
    return dataclasses.replace(proof, checks=tuple(
        dataclasses.replace(check, **changes) if check.name == name else check  # type: ignore[arg-type]
        for check in proof.checks))


def _without(count: int) -> world.Edit:
    return lambda proof: dataclasses.replace(proof, checks=proof.checks[:len(proof.checks) - count])


def _field(**changes: object) -> world.Edit:
    return lambda proof: dataclasses.replace(proof, **changes)  # type: ignore[arg-type]


EDITS: dict[str, world.Edit] = {
    "error rates": lambda proof: dataclasses.replace(proof, errors=tuple(
        dataclasses.replace(error, before=0.9, after=0.001) for error in proof.errors)),
    "one error rate by a millionth": lambda proof: dataclasses.replace(proof, errors=(
        dataclasses.replace(proof.errors[0], after=(proof.errors[0].after or 0.0) - 1e-6), *proof.errors[1:])),
    "no error rates": _field(errors=()),
    "the text of the rates": lambda proof: _check(proof, certificate.ERROR_RATES, actual="FORGED 0.0%"),
    "a check with two values": lambda proof: _check(proof, "prefix_rows", actual="f" * 64),
    "a text of a check": lambda proof: _check(proof, "base_logits", what="All is well."),
    "a note on the base": _field(base_files="published", base_note=""),
    "the learning outcome": _field(learning="learned", learning_languages=()),
    "trained elsewhere": _field(trained_elsewhere=True),
    "created later": _field(created=4e9), "created never": _field(created=float("nan")),
    "the input hash": _field(input_hash="0" * 64),
    "the extension": _field(extension="other"), "the languages": _field(new_languages=("am", "sw")),
    "no signature": _field(signature=""), "a signature of zeros": _field(signature="0" * 64),
    "a signature that is no text": _field(signature="\ud800".encode("utf-8", "replace").decode()),
    "a long signature": _field(signature="a" * 100_000),
    "an extra check": lambda proof: dataclasses.replace(proof, checks=(
        *proof.checks, CertificateCheck("safe", "passed", "", "", "It is safe."))),
    "the list of checks": lambda proof: dataclasses.replace(proof, required_checks=proof.required_checks[:2]),
    "a size and hash less": lambda proof: dataclasses.replace(proof, ref="run:other@1"),
}
INCOMPLETE: dict[str, world.Edit] = {
    **{f"{count} checks less": _without(count) for count in (1, 2, 5, 7, 8)},
    "no checks": _field(checks=()), "no files": _field(files=()),
    "no checks and no list": _field(checks=(), required_checks=()),
    "seven of nine and a shorter list": lambda proof: dataclasses.replace(
        proof, checks=proof.checks[:2], required_checks=tuple(check.name for check in proof.checks[:2])),
    "a check twice": lambda proof: dataclasses.replace(proof, checks=(*proof.checks, proof.checks[0])),
    "all not proven": lambda proof: dataclasses.replace(proof, checks=tuple(
        dataclasses.replace(check, result="not proven") for check in proof.checks)),
    "rates not proven yet": lambda proof: _check(proof, certificate.ERROR_RATES, actual=certificate.NOT_PROVEN_YET),
    "as a restored model without its checks": _field(kind="restored"),
}
OTHERS: dict[str, world.Edit] = {
    "another run": _field(run="other"), "another step": _field(step=1), "another scope": _field(scope="rows"),
    "another model": _field(model="other"), "another base": _field(base_hash="0" * 64),
    "another front-end": _field(fingerprint="0" * 64),
    "a file less": lambda proof: dataclasses.replace(proof, files=proof.files[1:]),
    "the first file alone": lambda proof: dataclasses.replace(proof, files=proof.files[:1]),
    "a file twice": lambda proof: dataclasses.replace(proof, files=(*proof.files, proof.files[0])),
    "a file twice with other hashes": lambda proof: dataclasses.replace(
        proof, files=(*proof.files, dataclasses.replace(proof.files[0], sha256="0" * 64))),
    "a file outside": lambda proof: dataclasses.replace(
        proof, files=(*proof.files, CertifiedFile("../../../etc/passwd", 1, "0" * 64))),
    "an absolute file": lambda proof: dataclasses.replace(
        proof, files=(*proof.files, CertifiedFile("/etc/passwd", 1, "0" * 64))),
    "an empty name": lambda proof: dataclasses.replace(proof, files=(*proof.files, CertifiedFile("", 0, ""))),
    "sizes less by one": lambda proof: dataclasses.replace(
        proof, files=tuple(dataclasses.replace(file, size=file.size - 1) for file in proof.files)),
    "files of the base": lambda proof: dataclasses.replace(
        proof, files=tuple(dataclasses.replace(file, of_base=not file.of_base) for file in proof.files)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_certificate_is_not_this_workspaces(attacked: Workspace, kind: str, edit: str) -> None:
    rewrite(attacked, kind, EDITS[edit])
    assert_not_green(attacked, kind, Outcome.SENDER)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edit", INCOMPLETE)
def test_a_certificate_with_parts_removed_is_incomplete(attacked: Workspace, kind: str, edit: str) -> None:
    rewrite(attacked, kind, INCOMPLETE[edit])
    of_kind = edit.startswith("as a restored") and kind == "run"
    assert_not_green(attacked, kind, Outcome.OTHER_FILES if of_kind else Outcome.INCOMPLETE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edit", OTHERS)
def test_a_certificate_of_another_subject_is_of_other_files(attacked: Workspace, kind: str, edit: str) -> None:
    rewrite(attacked, kind, OTHERS[edit])
    assert_not_green(attacked, kind, Outcome.OTHER_FILES)


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b'{"checks": []}', b"[" * 100_000, b"\xff" * 64, b"PK\x03\x04",
])
def test_a_certificate_that_is_none(attacked: Workspace, content: bytes) -> None:
    for folder in (run_of(attacked), export_of(attacked)):
        (folder / CERTIFICATE).write_bytes(content)
    for kind in KINDS:
        with pytest.raises(UserError, match=CERTIFICATE):
            verify(attacked, kind)
    assert script.main(["--workspace", str(attacked.path), "--check", f"export:{EXPORT}"]) != 0


def test_too_many_files_are_refused(attacked: Workspace) -> None:
    many = tuple(CertifiedFile(f"file-{number}", 1, "0" * 64) for number in range(certificate.MOST_FILES + 1))
    rewrite(attacked, "export", _field(files=many))
    with pytest.raises(UserError, match="lists 20001 files"):
        verify(attacked, "export")


def test_names_that_stand_twice_in_the_json(attacked: Workspace) -> None:
    path = export_of(attacked) / CERTIFICATE
    text = path.read_text()
    path.write_text(text.replace('"errors": [', '"errors": [], "errors": [', 1)[:-2] + ', "errors": []}\n')
    seal(export_of(attacked))
    assert_not_green(attacked, "export", Outcome.SENDER)


VALUES = ("passed", "failed", "measured", "", 0, 1, -1, 0.5, None, True, [], {}, "0" * 64, "run", "recomputed",
          "restored", "published", float("nan"), 2**62)


def _places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, part in inner for place in _places(part, (*path, name)))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_certificate_with_random_values_is_as_it_was_or_not_green(attacked: Workspace, kind: str, seed: int) -> None:
    noise = random.Random(seed)
    path = (run_of(attacked) if kind == "run" else export_of(attacked)) / CERTIFICATE
    text, proof = path.read_text(), certificate.read(path)
    places = _places(json.loads(text))[1:]
    refused = 0
    for _ in range(40):
        values = json.loads(text)
        *place, last = noise.choice(places)
        parent = values
        for name in place:
            parent = parent[name]
        if noise.random() < 0.2:
            del parent[last]
        else:
            parent[last] = noise.choice(VALUES)
        path.write_text(json.dumps(values))
        try:
            result = verify(attacked, kind)
        except UserError:
            refused += 1
            continue
        assert result.outcome is not Outcome.PASSED or result.proof == proof, (place, last)
    assert refused < 40


@pytest.mark.parametrize(("source", "target"), [("run", "export"), ("export", "run")])
def test_the_certificate_of_the_other_kind(attacked: Workspace, source: str, target: str) -> None:
    folders = {"run": run_of(attacked), "export": export_of(attacked)}
    shutil.copyfile(folders[source] / CERTIFICATE, folders[target] / CERTIFICATE)
    seal(export_of(attacked))
    assert_not_green(attacked, target, Outcome.OTHER_FILES)


def test_a_certificate_of_another_run_of_this_workspace(attacked: Workspace) -> None:
    other = attacked.runs / "other"
    shutil.copytree(run_of(attacked), other)
    result = verification.verify_run(attacked, other)
    assert result.outcome is Outcome.OTHER_FILES
    assert "run 'run" in result.reason or "of run" in result.reason


# Files that a loader would read, and the certificate does not list.

NEW = ("t3_extra.safetensors", "s3gen.pt", "adapter/adapter_model.bin", "earlier_trainings/sw/rows.safetensors",
       "front_end/rules.json", ".hidden.safetensors", "voices/loud.ogg", "codec.safetensors.index.json",
       "config.yaml", "decoder-am.safetensors", "ADAPTER/x.json", "training.safetensors.bak")


@pytest.mark.parametrize("name", NEW)
def test_a_new_file_beside_an_export(attacked: Workspace, name: str) -> None:
    path = export_of(attacked) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    seal(export_of(attacked))
    assert_not_green(attacked, "export", Outcome.OTHER_FILES)


@pytest.mark.parametrize("place", ["checkpoint", "base"])
@pytest.mark.parametrize("name", NEW)
def test_a_new_file_beside_a_checkpoint_or_its_base(attacked: Workspace, name: str, place: str) -> None:
    path = _run_file(attacked, name, place == "base")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    assert_not_green(attacked, "run", Outcome.OTHER_FILES)


@pytest.mark.parametrize("name", ["notes.txt", "picture.png", ".gitattributes", ".DS_Store"])
def test_a_note_beside_an_export_is_no_other_model(attacked: Workspace, name: str) -> None:
    (export_of(attacked) / name).write_bytes(b"x")
    assert outcome(attacked, "export") is Outcome.PASSED


@pytest.mark.parametrize("name", ["t3.safetensors", "adapter/adapter_config.json"])
def test_a_link_in_the_place_of_a_file(attacked: Workspace, name: str, tmp_path: Path) -> None:
    path = export_of(attacked) / name
    shutil.move(path, tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert outcome(attacked, "export") is Outcome.OTHER_FILES


def test_a_link_in_the_place_of_a_folder(attacked: Workspace, tmp_path: Path) -> None:
    shutil.move(export_of(attacked) / "adapter", tmp_path / "adapter")
    (export_of(attacked) / "adapter").symlink_to(tmp_path / "adapter")
    assert outcome(attacked, "export") is Outcome.OTHER_FILES


def test_links_in_a_circle_and_a_pipe(attacked: Workspace) -> None:
    (attacked.models / "tiny" / "loop").symlink_to(attacked.models / "tiny")
    assert outcome(attacked, "run") is Outcome.PASSED  # a base model may lie elsewhere
    os.mkfifo(export_of(attacked) / "pipe.pt")
    os.mkfifo(attacked.models / "tiny" / "pipe.pt")
    for kind in KINDS:
        assert_not_green(attacked, kind, Outcome.OTHER_FILES)


# The key, and what it signs.

def test_the_key_is_its_owners_alone_and_never_leaves(attacked: Workspace, tmp_path: Path) -> None:
    key = attacked.path / confinement.WORKSPACE_KEY
    assert key.stat().st_mode & 0o777 == 0o600
    secret = key.read_bytes()
    reporter = Listener(tmp_path / "packing")
    for item in (f"run:{RUN}", f"export:{EXPORT}"):
        made = pack.run(PackOptions(item=item, model=item.startswith("run")), attacked, reporter)
        assert secret not in Path(str(made["path"])).read_bytes()
        assert secret.hex().encode() not in Path(str(made["path"])).read_bytes()
    for path in attacked.path.rglob("*"):
        if path.is_file() and path != key:
            content = path.read_bytes()
            assert secret not in content, path
            assert secret.hex().encode() not in content, path


@pytest.mark.parametrize("spelling", [
    "{workspace}/workspace.key", "{workspace}/models/../workspace.key", "{workspace}//workspace.key", "{link}",
])
def test_the_key_is_no_source(attacked: Workspace, tmp_path: Path, spelling: str) -> None:
    link = tmp_path / "list.txt"
    link.symlink_to(attacked.path / confinement.WORKSPACE_KEY)
    path = spelling.format(workspace=attacked.path, link=link)
    with pytest.raises(UserError, match="secret key of a workspace"):
        confinement.check(path)
    with pytest.raises(UserError, match="secret key of a workspace"):
        confinement.open_path(path)


@pytest.mark.parametrize("key", ["none", "another", "empty", "short", "long", "a folder", "a link"])
def test_with_another_key_nothing_is_green(attacked: Workspace, key: str, tmp_path: Path) -> None:
    path = attacked.path / confinement.WORKSPACE_KEY
    secret = path.read_bytes()
    path.unlink()
    (tmp_path / "key").write_bytes(secret)
    match key:
        case "another":
            path.write_bytes(os.urandom(32))
        case "empty" | "short" | "long":
            path.write_bytes(secret[:{"empty": 0, "short": 31, "long": 32}[key]] + b"x" * (key == "long"))
        case "a folder":
            path.mkdir()
        case "a link":
            path.symlink_to(tmp_path / "key")
    for kind in KINDS:
        if key in ("none", "another"):
            assert outcome(attacked, kind) is Outcome.SENDER
        else:
            with pytest.raises(UserError, match="key of the workspace"):
                verify(attacked, kind)


def test_a_key_that_others_could_read_is_closed(attacked: Workspace) -> None:
    path = attacked.path / confinement.WORKSPACE_KEY
    path.chmod(0o644)
    assert outcome(attacked, "run") is Outcome.PASSED
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_signature_for_another_purpose_is_none(attacked: Workspace) -> None:
    signature = workspace_key.sign(attacked, "file hash", b"content")
    assert workspace_key.is_signed(attacked, "file hash", b"content", signature)
    assert not workspace_key.is_signed(attacked, "certificate", b"content", signature)
    assert not workspace_key.is_signed(attacked, "file hash", b"contents", signature)


def test_the_key_of_an_archive_is_not_imported(attacked: Workspace, elsewhere: Workspace, tmp_path: Path) -> None:
    import tarfile

    made = Path(str(pack.run(PackOptions(item=f"export:{EXPORT}"), attacked, Listener(tmp_path / "p"))["path"]))
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path / "files", filter="data")
    listed = json.loads((tmp_path / "files" / "lisan.json").read_text())
    for name in ("workspace.key", "exports/../workspace.key", "runs/workspace.key"):
        spoilt = {**listed, "files": [{"path": name, "size": 0, "sha256": ""}, *listed["files"]]}
        (tmp_path / "files" / "lisan.json").write_text(json.dumps(spoilt))
        with tarfile.open(tmp_path / "spoilt.tar", "w", format=tarfile.GNU_FORMAT) as archive:
            archive.add(tmp_path / "files" / "lisan.json", "lisan.json")
        with pytest.raises(UserError):
            unpack.run(UnpackOptions(archive=str(tmp_path / "spoilt.tar")), elsewhere, Listener(tmp_path / "u"))
        assert not (elsewhere.path / confinement.WORKSPACE_KEY).exists()


# Hashes by stamp, which the page asks each second.

def _settled(workspace: Workspace) -> verification.HashCache:
    """A cache that knows the files: they are older than what is too young to be kept."""
    verification.hash_cache.cache_clear()
    return verification.hash_cache(workspace)


def test_the_page_sees_a_file_that_got_its_old_time_again(attacked: Workspace, monkeypatch) -> None:
    monkeypatch.setattr(verification, "_NEW_FILE_S", -1.0)  # as two seconds later
    cache = _settled(attacked)
    assert verification.verify_export(attacked, export_of(attacked), cache).outcome is Outcome.PASSED
    path = export_of(attacked) / "codec.safetensors"
    before = path.stat()
    world.flip_bit(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert verification.verify_export(attacked, export_of(attacked), cache).outcome is Outcome.OTHER_FILES


def test_the_page_sees_a_byte_that_was_stored_through_a_memory_map(attacked: Workspace, monkeypatch) -> None:
    monkeypatch.setattr(verification, "_NEW_FILE_S", -1.0)
    path = export_of(attacked) / "codec.safetensors"
    file_system = subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True, check=True)
    if file_system.stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip("pages of a file system in memory are never written back")
    cache = _settled(attacked)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        last = mapped[-1]
        mapped[-1] = last  # from now on the page is dirty, and further stores change no time
        os.utime(path, (1e9, 1e9))
        assert verification.verify_export(attacked, export_of(attacked), cache).outcome is Outcome.PASSED
        mapped[-1] = last ^ 1
        assert verification.verify_export(attacked, export_of(attacked), cache).outcome is Outcome.OTHER_FILES


@pytest.mark.parametrize("mac", ["", "0" * 64, "of another line"])
def test_forged_lines_of_the_hash_cache_are_ignored(attacked: Workspace, monkeypatch, mac: str) -> None:
    path = export_of(attacked) / "codec.safetensors"
    right = hash_file(path)
    world.flip_bit(path)
    stamp = verification._stamp(path.stat())
    signed = workspace_key.sign(attacked, "file hash", b"x") if mac == "of another line" else mac
    store = attacked.cache / certificate.FOLDER / "hashes.jsonl"
    store.parent.mkdir(exist_ok=True)
    store.write_text("\n".join(["{", "[1]", '["a", "b"]', json.dumps([stamp, right, signed])]) + "\n")
    assert verification.verify_export(attacked, export_of(attacked), _settled(attacked)).outcome is Outcome.OTHER_FILES


def test_a_file_that_is_new_is_read_again(attacked: Workspace) -> None:
    cache = _settled(attacked)
    path = export_of(attacked) / "codec.safetensors"
    world.flip_bit(path)
    first = cache(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with open(path, "r+b") as file:  # within the resolution of the times
        file.write(content)
    assert cache(path) != first
    assert not cache._known(path)


def test_large_files_are_not_read_while_the_page_waits(attacked: Workspace, monkeypatch) -> None:
    monkeypatch.setattr(records_of_page, "_INLINE_BYTES", 1000)
    monkeypatch.setattr(verification, "_NEW_FILE_S", -1.0)
    _settled(attacked)
    assert records_of_page.verify(attacked, f"export:{EXPORT}") is None
    deadline = time.monotonic() + 20
    while (found := records_of_page.verify(attacked, f"export:{EXPORT}")) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found is not None
    assert found.outcome is Outcome.PASSED


# What a job does with such certificates.

def certified(workspace: Workspace, reference: str, *, again: bool = False) -> dict[str, object]:
    options = CertifyOptions(run=reference, again=again)
    return dict(certify.run(options, workspace, Listener(workspace.runs / "certifying")))


def sent(workspace: Workspace, elsewhere: Workspace, item: str, folder: Path) -> dict[str, object]:
    """What the import of an archive of `item` tells in another workspace."""
    made = pack.run(PackOptions(item=item, model=item.startswith("run")), workspace, Listener(folder / "packing"))
    return dict(unpack.run(UnpackOptions(archive=str(made["path"])), elsewhere, Listener(folder / "unpacking")))


def forged(proof: Certificate) -> Certificate:
    return _check(EDITS["error rates"](proof), certificate.ERROR_RATES, actual="FORGED")


def test_forged_error_rates_of_a_packed_run_are_computed_again_elsewhere(
        attacked: Workspace, elsewhere: Workspace, tmp_path: Path) -> None:
    true = certificate.read(run_of(attacked) / CERTIFICATE)
    rewrite(attacked, "run", forged)
    assert sent(attacked, elsewhere, f"run:{RUN}", tmp_path)["certificate"] == Outcome.SENDER.value
    assert_not_green(elsewhere, "run", Outcome.SENDER)
    assert script.main(["--workspace", str(elsewhere.path), "--check", f"run:{RUN}"]) == 1
    assert certificate.read(run_of(elsewhere) / CERTIFICATE).check(certificate.ERROR_RATES).actual == "FORGED"
    certified(elsewhere, f"run:{RUN}")
    made = certificate.read(run_of(elsewhere) / CERTIFICATE)
    assert (made.errors, made.trained_elsewhere) == (true.errors, True)
    assert outcome(elsewhere, "run") is Outcome.PASSED
    assert script.main(["--workspace", str(elsewhere.path), "--check", f"run:{RUN}"]) == 0


def test_an_export_of_a_packed_run_does_not_take_its_forged_rates(
        attacked: Workspace, elsewhere: Workspace, tmp_path: Path) -> None:
    true = certificate.read(run_of(attacked) / CERTIFICATE)
    rewrite(attacked, "run", forged)
    sent(attacked, elsewhere, f"run:{RUN}", tmp_path)
    export.run(export_options(run=f"run:{RUN}", export=EXPORT), elsewhere, Listener(tmp_path / "export"))
    made = certificate.read(export_of(elsewhere) / CERTIFICATE)
    assert (made.errors, made.trained_elsewhere) == (true.errors, True)
    assert "FORGED" not in (export_of(elsewhere) / "README.md").read_text()


def test_a_forged_certificate_in_the_cache_is_not_used(attacked: Workspace) -> None:
    true = certificate.read(run_of(attacked) / CERTIFICATE)
    rewrite(attacked, "run", forged)
    for path in (attacked.cache / certificate.FOLDER).glob("*.json"):
        certificate.write(path, forged(certificate.read(path)))
    certified(attacked, f"run:{RUN}")
    assert certificate.read(run_of(attacked) / CERTIFICATE).errors == true.errors


def test_a_forged_certificate_that_proves_more_does_not_stay(attacked: Workspace) -> None:
    def proves_more(proof: Certificate) -> Certificate:
        more = tuple(dataclasses.replace(proof.errors[0], language=code) for code in ("xx", "yy"))
        return dataclasses.replace(proof, errors=(*proof.errors, *more), input_hash="")

    rewrite(attacked, "run", proves_more)
    certified(attacked, f"run:{RUN}")
    assert outcome(attacked, "run") is Outcome.PASSED


def test_a_frozen_hash_of_zeros_fails_whatever_certificate_lies_there(attacked: Workspace) -> None:
    folder = max((run_of(attacked) / "checkpoints").glob("step-*"))
    record = records.read_checkpoint(folder)
    records.write_record(folder / records.CHECKPOINT, dataclasses.replace(record, frozen_hash="0" * 64))
    assert_not_green(attacked, "run", Outcome.OTHER_FILES)
    relist(attacked, "run")
    assert_not_green(attacked, "run", Outcome.SENDER)
    assert certified(attacked, f"run:{RUN}")["certificate"] == "failed: frozen_in_training"
    assert_not_green(attacked, "run", Outcome.FAILED)


def test_the_codec_of_the_base_is_that_of_its_record(attacked: Workspace) -> None:
    _make(attacked, "the base's codec times 0.2")
    assert str(certified(attacked, f"run:{RUN}")["certificate"]).startswith("failed: codec_and_vocoder")
    with pytest.raises(UserError, match="codec_and_vocoder"):
        export.run(export_options(run=f"run:{RUN}", export="again"), attacked, Listener(attacked.runs / "again"))


def test_an_archive_of_an_export_says_whose_certificate_it_is(
        attacked: Workspace, elsewhere: Workspace, tmp_path: Path) -> None:
    assert sent(attacked, elsewhere, f"export:{EXPORT}", tmp_path)["certificate"] == Outcome.SENDER.value
    assert_not_green(elsewhere, "export", Outcome.SENDER)


def test_an_export_of_other_files_is_not_packed(attacked: Workspace, tmp_path: Path) -> None:
    _make(attacked, "the codec times 0.2")
    with pytest.raises(UserError, match="other files.*codec.safetensors differs.* It is not packed"):
        pack.run(PackOptions(item=f"export:{EXPORT}"), attacked, Listener(tmp_path / "packing"))


def test_a_run_with_a_damaged_certificate_is_packed_with_a_warning(attacked: Workspace, tmp_path: Path) -> None:
    (run_of(attacked) / CERTIFICATE).write_text("{")
    listener = Listener(tmp_path / "packing")
    assert "certificate" not in pack.run(PackOptions(item=f"run:{RUN}"), attacked, listener)
    assert any(CERTIFICATE in event.message for event in listener.of("warning"))


@pytest.mark.parametrize("name", [".cache/t3.safetensors", ".git/config", "model.txt", "voices/.DS_Store", "a.html"])
def test_files_that_nobody_certified_are_not_uploaded(attacked: Workspace, monkeypatch, name: str) -> None:
    path = export_of(attacked) / name
    path.parent.mkdir(exist_ok=True)
    shutil.copy(export_of(attacked) / "codec.safetensors", path)
    seal(export_of(attacked))
    monkeypatch.setenv("HF_TOKEN", "token")
    hub = Hub("http://127.0.0.1:9", "token")  # nobody answers there
    with pytest.raises(UserError, match="which the certificate does not know. It is not pushed"):
        push.push(PushOptions(export=EXPORT, repository="me/mine"), attacked, Listener(attacked.runs / "push"), hub)


@pytest.mark.parametrize("name", ["a changed base tensor", "a changed base row", "merged weights of zeros"])
@pytest.mark.parametrize("listed", [False, True])
def test_changed_weights_are_not_uploaded(attacked: Workspace, monkeypatch, name: str, listed: bool) -> None:
    _make(attacked, name)
    if listed:
        relist(attacked, "export")
    monkeypatch.setenv("HF_TOKEN", "token")
    hub = Hub("http://127.0.0.1:9", "token")  # nobody answers there
    with pytest.raises(UserError, match="It is not pushed"):
        push.push(PushOptions(export=EXPORT, repository="me/mine"), attacked, Listener(attacked.runs / "push"), hub)


def test_an_export_from_elsewhere_is_certified_from_its_files(
        attacked: Workspace, elsewhere: Workspace, tmp_path: Path) -> None:
    shutil.copytree(attacked.models, elsewhere.models, dirs_exist_ok=True)
    rewrite(attacked, "export", forged)
    sent(attacked, elsewhere, f"export:{EXPORT}", tmp_path)
    assert certified(elsewhere, f"export:{EXPORT}")["certificate"] == "passed; not proven: frozen_in_training"
    made = certificate.read(export_of(elsewhere) / CERTIFICATE)
    assert made.kind == "recomputed"
    assert "FORGED" not in str(made)
    assert outcome(elsewhere, "export") is Outcome.PASSED
    records.check_export_files(export_of(elsewhere))
    assert script.main(["--workspace", str(elsewhere.path), "--check", f"export:{EXPORT}"]) == 0


FAILS = {
    "merged weights of zeros": "merged_reloads", "merged weights doubled": "merged_reloads",
    "the codec times 0.2": "codec_and_vocoder", "the vocoder times 0.2": "codec_and_vocoder",
    "a recogniser that hears all": "codec_and_vocoder",
}


@pytest.mark.parametrize("name", FAILS)
def test_what_is_not_of_the_base_fails_when_it_is_computed_again(attacked: Workspace, name: str) -> None:
    _make(attacked, name)
    relist(attacked, "export")
    result = certified(attacked, f"export:{EXPORT}", again=True)
    assert FAILS[name] in str(result["certificate"])
    assert str(result["certificate"]).startswith("failed")
    assert_not_green(attacked, "export", Outcome.FAILED)

def _header(path: Path, **changes: object) -> None:
    """Change settings in the header of a file of weights; its tensors stay as they are."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        settings = json.loads(file.metadata()["config"])
    save_file(load_file(path), path, metadata={"config": json.dumps({**settings, **changes})})


def _rename(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


UNLIKE_THE_BASE: dict[str, Callable[[Path], object]] = {
    "another stop code": lambda folder: _header(folder / "t3.safetensors", stop_speech=3),
    "other heads that follow the text": lambda folder: _header(folder / "t3.safetensors", aligned_heads=[[1, 0]]),
    "two start tokens": lambda folder: _header(folder / "t3.safetensors", doubled_start=True),
    "another stop code of the merged file": lambda folder: _header(folder / "t3-merged.safetensors", stop_speech=3),
    "no vocoder": lambda folder: (folder / "vocoder.safetensors").unlink(),
    "no codec": lambda folder: (folder / "codec.safetensors").unlink(),
    "no voices": lambda folder: shutil.rmtree(folder / "voices"),
    "without the default voice": lambda folder: (folder / "voices" / "low.ogg").unlink(),
    "a renamed voice": lambda folder: _rename(folder / "voices" / "low.ogg", "aaa.ogg"),
    "a voice named as if it was merged": lambda folder: shutil.copy(folder / "samples" / "am.wav",
                                                                    folder / "voices" / "a-merged.ogg"),
    "old languages in short parts": lambda folder: records.write_record(folder / EXPORT_RECORD, dataclasses.replace(
        records.read_export_record(folder), longest_texts={"en": 3, "fr": 3, "am": 50})),
    "other held-out sentences": lambda folder: (folder / "held_out.jsonl").write_text(""),
}


@pytest.mark.parametrize("name", UNLIKE_THE_BASE)
def test_what_changes_the_old_languages_without_a_tensor_fails_when_it_is_computed_again(
        attacked: Workspace, name: str) -> None:
    folder = export_of(attacked)
    UNLIKE_THE_BASE[name](folder)
    seal(folder)
    relist(attacked, "export")
    result = certified(attacked, f"export:{EXPORT}", again=True)
    assert str(result["certificate"]).startswith("failed")
    assert_not_green(attacked, "export", Outcome.FAILED)


def test_a_merged_file_of_an_export_without_adapters_is_no_file_of_the_base(attacked: Workspace) -> None:
    results = [certification.export_codec_check(attacked.model("tiny"), export_of(attacked), family("tiny"),
                                                has_merged).result for has_merged in (True, False)]
    assert results == ["passed", "failed"]


@pytest.mark.parametrize("name", ["a changed base row", "a changed base tensor"])
@pytest.mark.parametrize("record", ["as it was", "of the changed weights"])
def test_a_changed_base_gets_no_certificate(attacked: Workspace, name: str, record: str) -> None:
    from core.model.loading import _split_export
    from core.model.prefix import hash_tensors

    _make(attacked, name)
    folder = export_of(attacked)
    if record == "of the changed weights":
        about = records.read_export_record(folder)
        found = hash_tensors(_split_export(folder, about.origin, torch.device("cpu")).lm.module.state_dict())
        records.write_record(folder / EXPORT_RECORD, dataclasses.replace(about, weights_hash=found))
        seal(folder)
    relist(attacked, "export")
    with contextlib.suppress(UserError):
        assert str(certified(attacked, f"export:{EXPORT}", again=True)["certificate"]).startswith("failed")
    assert_not_green(attacked, "export", Outcome.FAILED, Outcome.SENDER)


@pytest.mark.parametrize("languages", ["fr", "en,fr", "fr,am", "am,en", "sw"])
def test_an_earlier_training_acts_on_no_language_of_the_base(attacked: Workspace, languages: str) -> None:
    """Else its adapters would be on both sides of the comparison with the base."""
    from core.model import loading, tensor_files

    folder = max((run_of(attacked) / "checkpoints").glob("step-*"))
    front_end = loading.FrontEnd.load(folder / "front_end")
    record = records.EarlierTrainingRecord(languages, "run:x@1", "gated", "", front_end.size, front_end.fingerprint, "")
    base = loading.load_base(attacked, "tiny", torch.device("cpu"))
    rows = tensor_files.read(folder / records.ROWS, "")
    with pytest.raises(UserError, match="names the languages"):
        loading._add_earlier_training(base, front_end, record, rows, folder / records.ADAPTER)


@pytest.mark.parametrize("tensor", ["cond_enc.emotion_adv_fc.weight", "speech_emb.weight"])
def test_a_gated_run_that_brings_changed_tensors_fails(attacked: Workspace, tensor: str) -> None:
    """They may be such as no probe reads."""
    folder = max((run_of(attacked) / "checkpoints").glob("step-*"))
    value = load_file(attacked.models / "tiny" / "t3.safetensors")[tensor]
    save_file({tensor: value.float() + 0.1}, folder / records.CHANGED)
    record = records.read_checkpoint(folder)
    records.write_record(folder / records.CHECKPOINT, dataclasses.replace(
        record, files={**record.files, records.CHANGED: hash_file(folder / records.CHANGED)}))
    assert "frozen_tensors" in str(certified(attacked, f"run:{RUN}")["certificate"])
    assert_not_green(attacked, "run", Outcome.FAILED)


def test_a_journal_names_no_other_folder_for_a_step(attacked: Workspace) -> None:
    folder = max((run_of(attacked) / "checkpoints").glob("step-*"))
    for name in ("other", "step-000004", "step-8"):
        shutil.copytree(folder, folder.with_name(name))
        append_event(run_of(attacked) / "events.jsonl", CheckpointSaved(8, f"checkpoints/{name}", True))
        for reference in (f"run:{RUN}", f"run:{RUN}@8", f"run:{RUN}@best"):
            assert Model.open(attacked, reference).folder == folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_front_end_that_reads_a_base_language_otherwise_fails(attacked: Workspace, kind: str) -> None:
    """In texts that no sample has, so that the samples are encoded as before."""
    from data.front_end import FrontEnd

    folder = export_of(attacked) if kind == "export" else max((run_of(attacked) / "checkpoints").glob("step-*"))
    path = folder / "front_end" / "front_end.json"
    settings = json.loads(path.read_text())
    settings["languages"]["fr"]["normaliser"] = "generic"
    path.write_text(json.dumps(settings))
    fingerprint = FrontEnd.load(folder / "front_end").fingerprint
    name, record_type = ((EXPORT_RECORD, records.ExportRecord) if kind == "export"
                         else (records.CHECKPOINT, records.CheckpointRecord))
    record = records.read_record(folder / name, record_type)
    record = dataclasses.replace(record, origin=dataclasses.replace(record.origin, fingerprint=fingerprint))
    if isinstance(record, records.CheckpointRecord):
        record = dataclasses.replace(record, files={**record.files, "front_end/front_end.json": hash_file(path)})
    records.write_record(folder / name, record)
    if kind == "export":
        seal(folder)
    result = certified(attacked, f"run:{RUN}" if kind == "run" else f"export:{EXPORT}", again=True)
    assert "front_end" in str(result["certificate"]).partition(";")[0]
    assert_not_green(attacked, kind, Outcome.FAILED)


def test_weights_of_the_base_that_no_record_names_fail(attacked: Workspace) -> None:
    """A loader may prefer them, and a published hash is known of the others."""
    sums = json.loads((attacked.models / "tiny" / "SHA256SUMS.json").read_text())
    (attacked.models / "tiny" / "SHA256SUMS.json").write_text(json.dumps(
        {name: digest for name, digest in sums.items() if name != "codec.safetensors"}))
    assert str(certified(attacked, f"run:{RUN}")["certificate"]).startswith("failed: codec_and_vocoder")


def test_files_that_change_while_they_are_certified_are_not_signed(attacked: Workspace, monkeypatch) -> None:
    from core.proof import certification

    compute = certification.compute_certificate

    def slowly(*given: object, **more: object) -> Certificate:
        made = compute(*given, **more)  # type: ignore[arg-type]
        world.flip_bit(max((run_of(attacked) / "checkpoints").glob("step-*")) / "rows.safetensors")
        return made

    monkeypatch.setattr(certification, "compute_certificate", slowly)
    with pytest.raises(UserError, match="changed while its certificate was computed"):
        certified(attacked, f"run:{RUN}", again=True)


@pytest.mark.parametrize(("reference", "shown"), [
    (f"run:{RUN}", True), (f"run:{RUN}@8", True), (f"run:{RUN}@16", False),
    (f"run:{RUN}@gone", False)])
@pytest.mark.parametrize("chosen", [False, True])
def test_listen_shows_no_error_rates_of_another_checkpoint(attacked: Workspace, reference: str, shown: bool,
                                                           chosen: bool) -> None:
    checkpoints = run_of(attacked) / "checkpoints"
    shutil.copytree(checkpoints / "step-000008", checkpoints / "step-000016")
    if chosen:
        set_choice(run_of(attacked), "16")
    page = cast(Page, SimpleNamespace(workspace=attacked))
    settings = {"finetuned": reference, "texts": [["en", "the cat"]]}
    state = cast(JobState, SimpleNamespace(verb="compare", job=SimpleNamespace(settings=settings), audio=()))
    is_shown = shown and not (chosen and reference == f"run:{RUN}")
    assert ("English" in str(listen._means(page, state))) == is_shown


def test_speech_of_other_files_warns(attacked: Workspace) -> None:
    assert verification.spoken_note(attacked, f"run:{RUN}") == ""
    assert verification.spoken_note(attacked, f"export:{EXPORT}") == ""
    assert verification.spoken_note(attacked, "base:tiny") == ""
    _make(attacked, "the codec times 0.2")
    assert "other files" in verification.spoken_note(attacked, f"export:{EXPORT}")
    rewrite(attacked, "run", forged)
    assert "computed by the sender, not verified here" in verification.spoken_note(attacked, f"run:{RUN}")


@pytest.mark.parametrize("name", ["the codec times 0.2", "an adapter of noise"])
def test_other_files_are_not_served(attacked: Workspace, name: str) -> None:
    options = ServeOptions(models=(f"export:{EXPORT}",))
    models = ServedModels(options, attacked, torch.device("cpu"))
    models.describe(f"export:{EXPORT}")
    _make(attacked, name)
    # A server that runs loads the files again, and one that begins looks at them first.
    with pytest.raises(UserError, match="is not served.*other files"):
        models.open(f"export:{EXPORT}", "", "", "")
    with pytest.raises(UserError, match="is not served.*other files"):
        ServedModels(options, attacked, torch.device("cpu"))
    ServedModels(options.model_copy(update={"accept_outcome": True}), attacked, torch.device("cpu"))


def test_a_server_says_whose_certificate_it_is(attacked: Workspace) -> None:
    rewrite(attacked, "export", forged)
    with serving(attacked, "served", models=(f"export:{EXPORT}",)) as server:
        assert any("computed by the sender" in event.message for event in server.listener.of("warning"))


@pytest.mark.parametrize("reference", ["run:none", "export:none", "base:tiny", "export:../mine", "", "run:"])
def test_a_check_of_what_is_not_there_is_refused(attacked: Workspace, reference: str) -> None:
    assert script.main(["--workspace", str(attacked.path), "--check", reference]) == 2


def test_a_check_prints_the_outcome(attacked: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(attacked, "export", _without(7))
    assert script.main(["--workspace", str(attacked.path), "--check", f"export:{EXPORT}", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["certificate"]) == ("failed", "incomplete")
