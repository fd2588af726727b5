"""Ways to pass an export off as one that its maker signed: no archive of other weights is imported with `signer`."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from config.errors import UserError
from config.schema import PackOptions, UnpackOptions
from core import pack, unpack
from core.library import certificate, maker_signature, verification
from core.library.certificate import CERTIFICATE
from core.library.maker_signature import MakerOutcome
from core.library.records import EXPORT_SUMS, check_export_files, read_export_sums
from core.library.verification import SIGNATURES, STATEMENT, Outcome
from core.workspace import Workspace
from scripts import certify as script
from tests.hostile import certified_world as world
from tests.hostile.certified_world import EXPORT, copied, export_of, relist, seal
from tests.trained import RUN
from tests.worlds import Listener
from ui import media, signature
from ui.page import Page

WEIGHTS = ("t3.safetensors", "t3-merged.safetensors", "codec.safetensors", "vocoder.safetensors",
           "recogniser.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json",
           "front_end/front_end.json", "front_end/tokenizer.json", "front_end/language-am.json", "export.json",
           "load_example.py", "training.yaml", "held_out.jsonl", "voices/low.ogg")
QUICK = ("t3.safetensors", "adapter/adapter_model.safetensors", "front_end/tokenizer.json")
SIGNATURE = SIGNATURES[0]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def sender(tmp_path: Path, key: Path) -> Workspace:
    """Who signed the export, and may change it afterwards."""
    workspace = copied(tmp_path / "workspace")
    maker_signature.sign(workspace, export_of(workspace), key)
    return workspace


@pytest.fixture
def elsewhere(tmp_path: Path, key: Path) -> Workspace:
    """A workspace that trusts the maker."""
    workspace = Workspace.open(tmp_path / "elsewhere")
    maker_signature.trust(workspace, "maker", key.with_suffix(".pub").read_text(encoding="utf-8"))
    return workspace


def packed(workspace: Workspace) -> str:
    made = pack.run(PackOptions(item=f"export:{EXPORT}"), workspace, Listener(workspace.runs / "packing"))
    return str(made["path"])


def imported(workspace: Workspace, archive: str, signer: str = "maker") -> dict[str, object]:
    return dict(unpack.run(UnpackOptions(archive=archive, signer=signer), workspace,
                           Listener(workspace.runs / "unpacking")))


def check(workspace: Workspace, *more: str) -> int:
    return script.main(["--workspace", str(workspace.path), "--check", f"export:{EXPORT}", *more])


def test_a_signed_export_is_imported_and_checked(sender: Workspace, elsewhere: Workspace, key: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    result = imported(elsewhere, packed(sender))
    assert str(result["signature"]).startswith("Maker: signed by maker (ssh-ed25519 SHA256:")
    assert result["certificate"] == Outcome.SENDER.value
    # By itself the certificate is the sender's word; for who trusts the signer it is the maker's.
    assert check(elsewhere) == 1
    assert check(elsewhere, "--signer", "maker") == 0
    assert "is the word of that maker" in capsys.readouterr().out
    assert check(elsewhere, "--signer", key.with_suffix(".pub").read_text(encoding="utf-8"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["certificate"]) == ("ok", Outcome.SENDER.value)

    # What was signed is part of the list of files, so it is pushed and packed too.
    assert {STATEMENT, SIGNATURE} <= set(read_export_sums(export_of(elsewhere)))
    check_export_files(export_of(elsewhere))
    shown = str(signature.signature_view(elsewhere, EXPORT))
    assert "Signed by maker" in shown
    assert "not that the checks were computed" in shown


def test_signing_leaves_the_certificate_as_it_was(sender: Workspace, elsewhere: Workspace) -> None:
    assert verification.verify(sender, f"export:{EXPORT}").outcome is Outcome.PASSED
    assert check(sender) == 0
    assert signature.signature_view(copied(sender.path.parent / "unsigned"), EXPORT) == ""
    assert "Signed by an unknown maker" in str(signature.signature_view(sender, EXPORT))


def _reseal(workspace: Workspace) -> None:
    relist(workspace, "export")
    seal(export_of(workspace))


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
                                  for name in WEIGHTS])
def test_a_flipped_bit_under_a_copied_signature(sender: Workspace, elsewhere: Workspace, name: str) -> None:
    """Certificate, list of hashes and archive all fit the changed file; the signature does not."""
    world.flip_bit(export_of(sender) / name)
    seal(export_of(sender))
    shutil.copytree(export_of(sender), export_of(elsewhere))
    result = maker_signature.check(elsewhere, export_of(elsewhere))
    assert (result.outcome, name in result.reason) == (MakerOutcome.OTHER_FILES, True)
    assert check(elsewhere, "--signer", "maker") == 1
    assert "verdict bad" in str(signature.signature_view(elsewhere, EXPORT))


def _other_weights(workspace: Workspace) -> None:
    world.flip_bit(export_of(workspace) / "t3.safetensors")
    _reseal(workspace)


def _other_list(workspace: Workspace) -> None:
    _other_weights(workspace)
    (export_of(workspace) / STATEMENT).write_bytes(maker_signature.statement(export_of(workspace)))
    seal(export_of(workspace))


def _stripped(workspace: Workspace) -> None:
    for name in (STATEMENT, SIGNATURE):
        (export_of(workspace) / name).unlink()
    _reseal(workspace)


def _by_another(workspace: Workspace) -> None:
    other = workspace.path.parent / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    _other_weights(workspace)
    maker_signature.sign(workspace, export_of(workspace), other)


def _forged_rates(workspace: Workspace) -> None:
    def edit(proof: certificate.Certificate) -> certificate.Certificate:
        return dataclasses.replace(proof, errors=tuple(dataclasses.replace(error, after=0.0) for error in proof.errors))

    world.rewrite(workspace, "export", edit)


FORGERIES: dict[str, Callable[[Workspace], None]] = {
    "other weights": _other_weights, "other weights and their list": _other_list, "no signature": _stripped,
    "another maker's signature": _by_another,
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_its_maker_did_not_sign_is_not_imported(sender: Workspace, elsewhere: Workspace, name: str) -> None:
    FORGERIES[name](sender)
    # The attacker's archive is whole; `pack` would refuse it only for the attacker's own certificate.
    certificate.write(export_of(sender) / CERTIFICATE, verification.sign(
        sender, certificate.read(export_of(sender) / CERTIFICATE)))
    seal(export_of(sender))
    archive = packed(sender)
    with pytest.raises(UserError, match="was not signed by maker"):
        imported(elsewhere, archive)
    assert not export_of(elsewhere).exists()
    assert not list(elsewhere.exports.iterdir())
    # Without a named signer it is imported, and nothing says that the maker signed it.
    assert "signed by maker" not in str(imported(elsewhere, archive, "").get("signature"))
    assert check(elsewhere, "--signer", "maker") == 1


def test_a_forged_error_rate_is_not_the_makers(sender: Workspace, elsewhere: Workspace,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """The weights are the maker's, the certificate is not."""
    _forged_rates(sender)
    result = imported(elsewhere, packed(sender))
    assert f"Not as it was signed: {CERTIFICATE}" in str(result["signature"])
    assert check(elsewhere, "--signer", "maker") == 1
    assert CERTIFICATE in capsys.readouterr().out


def test_a_run_has_no_maker_to_ask_for(sender: Workspace, elsewhere: Workspace) -> None:
    made = pack.run(PackOptions(item=f"run:{RUN}", data=False), sender, Listener(sender.runs / "packing"))
    with pytest.raises(UserError, match="is a run, and only exports are signed"):
        imported(elsewhere, str(made["path"]))
    assert not (elsewhere.runs / RUN).exists()


def test_a_name_that_nobody_trusts_is_no_signer(sender: Workspace, elsewhere: Workspace) -> None:
    with pytest.raises(UserError, match="'someone' is no maker who is trusted here"):
        imported(elsewhere, packed(sender), "someone")
    assert not list(elsewhere.exports.iterdir())


def test_the_list_of_makers_travels_in_no_archive(elsewhere: Workspace, sender: Workspace, key: Path) -> None:
    maker_signature.trust(sender, "attacker", key.with_suffix(".pub").read_text(encoding="utf-8"))
    with open(packed(sender), "rb") as archive:
        assert b"attacker" not in archive.read()


@pytest.mark.parametrize("name", ["none", "..", "%2e%2e", "mine/..", ".hidden"])
def test_the_page_gives_the_list_of_exports_alone(sender: Workspace, name: str) -> None:
    client = TestClient(Starlette(routes=media.routes(sender)))
    assert client.get(f"/media/signed/{name}/{STATEMENT}").status_code == 404
    answer = client.get(f"/{media.statement_url(EXPORT)}")
    assert answer.content == maker_signature.statement(export_of(sender))
    assert "attachment" in answer.headers["content-disposition"]


def test_who_signed_is_asked_before_the_certificate_is_computed_again(sender: Workspace, elsewhere: Workspace) -> None:
    """After `certify --again` the weights are still the maker's, and the certificate is ours."""
    imported(elsewhere, packed(sender))
    proof = certificate.read(export_of(elsewhere) / CERTIFICATE)
    certificate.write(export_of(elsewhere) / CERTIFICATE, verification.sign(elsewhere, proof))
    sums = read_export_sums(export_of(elsewhere))
    sums[CERTIFICATE] = verification.hash_file(export_of(elsewhere) / CERTIFICATE)
    (export_of(elsewhere) / EXPORT_SUMS).write_text(json.dumps(sums), encoding="utf-8")
    assert check(elsewhere) == 0
    assert check(elsewhere, "--signer", "maker") == 0


def test_a_certificate_that_the_list_does_not_name_is_not_the_makers(sender: Workspace, elsewhere: Workspace,
                                                                     tmp_path: Path, key: Path) -> None:
    folder, statement = export_of(sender), tmp_path / STATEMENT
    lines = maker_signature.statement(folder).decode().splitlines(keepends=True)
    statement.write_text("".join(line for line in lines if not line.endswith(f"  {CERTIFICATE}\n")), encoding="utf-8")
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", maker_signature.NAMESPACE, str(statement)],
                   check=True, capture_output=True)
    shutil.copy(statement, folder / STATEMENT)
    shutil.copy(statement.with_name(f"{STATEMENT}.sig"), folder / SIGNATURE)
    world.rewrite(sender, "export", lambda proof: dataclasses.replace(proof, created=1.0))
    assert imported(elsewhere, packed(sender))["certificate"] == Outcome.SENDER.value
    signed = maker_signature.check(elsewhere, export_of(elsewhere))
    assert (signed.outcome, signed.changed) == (MakerOutcome.TRUSTED, (CERTIFICATE,))
    assert check(elsewhere, "--signer", "maker") == 1


def test_the_page_takes_a_signature_that_was_made_elsewhere(tmp_path: Path, key: Path) -> None:
    workspace = copied(tmp_path / "workspace")
    page = cast(Page, SimpleNamespace(workspace=workspace))
    content = TestClient(Starlette(routes=media.routes(workspace))).get(f"/{media.statement_url(EXPORT)}").content
    (tmp_path / STATEMENT).write_bytes(content)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "lisan-export", str(tmp_path / STATEMENT)],
                   check=True, capture_output=True)
    _notice, text, upload = signature._read(str(tmp_path / f"{STATEMENT}.sig"))
    assert upload is None
    assert not (tmp_path / f"{STATEMENT}.sig").exists()
    for reference, words in (("", "No export is chosen"), (f"run:{RUN}", "runs are not signed")):
        with pytest.raises(UserError) as raised:
            signature._attach(page, reference, str(text))
        assert words in f"{raised.value.message} {raised.value.hint}"
    with pytest.raises(UserError, match="No signature was uploaded"):
        signature._attach(page, f"export:{EXPORT}", "")
    with pytest.raises(UserError, match="no signature of the export"):
        signature._attach(page, f"export:{EXPORT}", str(text).replace("A", "B"))
    signature._trust(page, " maker ", key.with_suffix(".pub").read_text(encoding="utf-8"))
    notice, _ = signature._attach(page, f"export:{EXPORT}", str(text))
    assert "signed by maker" in str(notice)
    assert "maker" in str(signature._signers(workspace))
    signature._forget(page, "maker")
    assert "Nobody is trusted yet" in str(signature._signers(workspace))
