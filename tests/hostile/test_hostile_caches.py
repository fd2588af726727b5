"""Caches that a certificate is computed from: who can write to them chooses no error rate that is signed then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from config.schema import CertifyOptions
from core import certify
from core.library import certificate, workspace_key
from core.library.certificate import CERTIFICATE, FOLDER, Certificate
from core.library.verification import Outcome
from core.proof.certification import ScoreCache, SentenceScore
from core.workspace import Workspace
from tests.hostile.certified_world import copied, outcome, run_of
from tests.trained import RUN
from tests.worlds import Listener


@pytest.fixture
def attacked(tmp_path: Path) -> Workspace:
    return copied(tmp_path / "workspace")


def scores(workspace: Workspace) -> list[Path]:
    return sorted((workspace.cache / FOLDER).glob("scores-*.jsonl"))


def no_edits(line: str) -> str:
    return json.dumps({**json.loads(line), "edits": 0})


def without_signature(line: str) -> str:
    values = json.loads(line)
    values.pop("mac", None)
    return json.dumps({**values, "edits": 0})


def other_signature(line: str) -> str:
    return json.dumps({**json.loads(line), "edits": 0, "mac": "0" * 64})


def further_key(line: str) -> str:
    values = json.loads(line)
    return json.dumps({**values, "keys": [*values["keys"], "another"], "edits": 0})


FORGERIES: dict[str, Callable[[str], str]] = {
    "no edits": no_edits, "no signature": without_signature, "another signature": other_signature,
    "one key more": further_key,
}


def certified(workspace: Workspace) -> Certificate:
    certify.run(CertifyOptions(run=f"run:{RUN}", again=True), workspace, Listener(workspace.runs / "certifying"))
    return certificate.read(run_of(workspace) / CERTIFICATE)


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_scores_of_sentences_are_computed_again(attacked: Workspace, name: str) -> None:
    true = certificate.read(run_of(attacked) / CERTIFICATE)
    assert any(error.after for error in true.errors)
    for path in scores(attacked):
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("".join(FORGERIES[name](line) + "\n" for line in lines), encoding="utf-8")
    assert scores(attacked)
    assert certified(attacked).errors == true.errors
    assert outcome(attacked, "run") is Outcome.PASSED


def test_scores_of_a_workspace_with_another_key_are_computed_again(attacked: Workspace) -> None:
    """A workspace that somebody gives away whole: its key is deleted, and its cache says what its giver likes."""
    true = certificate.read(run_of(attacked) / CERTIFICATE)
    for path in scores(attacked):
        forged = "".join(f"{no_edits(line)}\n" for line in path.read_text(encoding="utf-8").splitlines())
        path.write_text(forged, encoding="utf-8")
    (attacked.path / "workspace.key").unlink()
    assert outcome(attacked, "run") is Outcome.SENDER
    assert certified(attacked).errors == true.errors
    assert outcome(attacked, "run") is Outcome.PASSED


def test_a_score_is_of_its_own_cache_and_its_own_keys(attacked: Workspace) -> None:
    cache = ScoreCache(attacked, "one")
    cache.add(SentenceScore(1, 10, "hash"), "a", "b")
    assert ScoreCache(attacked, "one").find("b") == SentenceScore(1, 10, "hash")
    folder = attacked.cache / FOLDER
    (folder / "scores-two.jsonl").write_bytes((folder / "scores-one.jsonl").read_bytes())
    assert ScoreCache(attacked, "two").find("b") is None


@pytest.mark.parametrize("damage", ["flipped", "cut", "no signature", "of another batch", "of another cache"])
def test_forged_codes_of_a_batch_are_generated_again(attacked: Workspace, damage: str) -> None:
    from models.base import Generated

    cache, folder = ScoreCache(attacked, "one"), attacked.cache / FOLDER
    cache.write_batch("a", [Generated([1, 2, 3], "stop", None)])
    assert [list(item.codes) for item in cache.read_batch("a")] == [[1, 2, 3]]
    path, asked, reader = folder / "codes-a.npz", "a", cache
    content = path.read_bytes()
    match damage:
        case "flipped":
            path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        case "cut":
            path.write_bytes(content[:-1])
        case "no signature":
            path.write_bytes(content[64:])
        case "of another batch":
            (folder / "codes-b.npz").write_bytes(content)
            asked = "b"
        case _:
            reader = ScoreCache(attacked, "two")
    assert reader.read_batch(asked) == []


def test_a_signature_of_a_score_is_none_of_a_certificate(attacked: Workspace) -> None:
    mac = workspace_key.sign(attacked, "sentence score", b"content")
    assert not workspace_key.is_signed(attacked, "certificate", b"content", mac)
    assert not workspace_key.is_signed(attacked, "file hash", b"content", mac)
