"""The maker's signature of an export: what OpenSSH and minisign sign is read here, and they read what we sign."""

from __future__ import annotations

import base64
import hashlib
import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from config.errors import UserError
from core.library import maker_signature, records
from core.library.certificate import CERTIFICATE
from core.library.maker_signature import MINISIGN, NAMESPACE, SIGNERS, MakerOutcome, MakerSignature
from core.library.records import EXPORT_CARD, EXPORT_SUMS
from core.library.verification import SIGNATURES, STATEMENT
from core.workspace import Workspace
from data.durable_files import hash_tree, write_json
from scripts import signature as script

WEIGHTS = "t3.safetensors"
SSH, MINI = SIGNATURES
# Made by minisign 0.11 of an export whose only file is WEIGHTS, with the content `weights`.
MINISIGN_KEY = "RWT91AbXcgLYOm7yMOct8/KCozKUUqIM5d/IdpXPTpvp/Myxr8Wv4++G"
OTHER_MINISIGN_KEY = "RWRcukoZhgVoQgchFvhDKVvxa5LL3pSJEzdKjIli/NArJL63IB1piSYf"
BY_MINISIGN = {"of the hash": """untrusted comment: signature from minisign secret key
RUT91AbXcgLYOiHcY1BgUMDXHI6Fz+gDZxqhkSv+ZBpt3CjF6ryRKveN4L2O9SQXsS7CaYiJs2wsKCFVf/fnNx0SBBHtUFQXbQo=
trusted comment: timestamp:1795820938\tfile:signed.sha256\thashed
Oyk2cprZgJuAKGK3N0xWta48Xr28LdMYzfCtEUPFiIvyQA1S3w4MkO85hdKhR6HB4b5oEpiaClSgb5pdgacTAQ==
""", "of the content": """untrusted comment: signature from minisign secret key
RWT91AbXcgLYOmaToL1mgWrl9fRbZp/vsuREwFviJkDY2N7YC0ZpzKoxUAu5VYzUc+L56AHq/WzIpzA+EISsO+5LefQ6uZtNNgQ=
trusted comment: timestamp:1795820938\tfile:signed.sha256
40fJUbrhcVRhpLXhJh/hTIj5Vr/9jyRugNP3xZzWp3/v52b4JwpPWEUscUL2mSc13W1B3UovM9co/tIA0lnxCw==
"""}
# RFC 8032, 7.1, tests 1 to 3: public key, message, signature.
OF_THE_RFC = (
    ("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
     "d25bf5f0595bbe24655141438e7a100b"),
    ("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
     "387b2eaeb4302aeeb00d291612bb0c00"),
    ("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
     "4a7c15e9716ed28dc027beceea1ec40a"))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    opened = Workspace.open(tmp_path / "workspace")
    folder = opened.exports / "mine"
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(b"weights")
    write_json(folder / EXPORT_SUMS, hash_tree(folder, (EXPORT_SUMS,)))
    return opened


def folder_of(workspace: Workspace) -> Path:
    return workspace.exports / "mine"


def make_key(path: Path, kind: str = "ed25519") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "a comment", "-f", str(path)], check=True)
    return path


def public(key: Path) -> str:
    return key.with_name(f"{key.name}.pub").read_text(encoding="utf-8")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "key")


@pytest.fixture
def signed(workspace: Workspace, key: Path) -> Workspace:
    maker_signature.trust(workspace, "me@example.org", public(key))
    assert maker_signature.sign(workspace, folder_of(workspace), key).outcome is MakerOutcome.TRUSTED
    return workspace


def check(workspace: Workspace) -> MakerSignature:
    return maker_signature.check(workspace, folder_of(workspace))


@pytest.mark.parametrize(("public_key", "message", "signature"), OF_THE_RFC)
def test_ed25519_of_the_standard(public_key: str, message: str, signature: str) -> None:
    key, content, value = map(bytes.fromhex, (public_key, message, signature))
    assert maker_signature.is_ed25519(key, content, value)
    assert not maker_signature.is_ed25519(key, content + b"x", value)
    for place in range(0, 64, 7):
        changed = bytearray(value)
        changed[place] ^= 1
        assert not maker_signature.is_ed25519(key, content, bytes(changed))
    # The same signature with another number modulo the order would be a second one of the same content.
    second = int.from_bytes(value[32:], "little") + 2 ** 252 + 27742317777372353535851937790883648493
    assert not maker_signature.is_ed25519(key, content, value[:32] + second.to_bytes(32, "little"))


@pytest.mark.parametrize("point", [1, 0, 2 ** 255 - 20, 2 ** 255 - 19, 2 ** 255 - 18, 2 ** 255 - 1])
def test_keys_that_fit_every_message_are_refused(point: int) -> None:
    key = point.to_bytes(32, "little")
    neutral = (1).to_bytes(32, "little") + bytes(32)
    assert not maker_signature.is_ed25519(key, b"anything", neutral)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_openssh_accepts_ours_and_we_accept_openssh(workspace: Workspace, tmp_path: Path, kind: str) -> None:
    key, folder = make_key(tmp_path / "key", kind), folder_of(workspace)
    unknown = maker_signature.sign(workspace, folder, key)
    assert (unknown.outcome, unknown.bad) == (MakerOutcome.UNKNOWN, False)
    maker_signature.trust(workspace, "me@example.org", public(key))
    trusted = check(workspace)
    assert (trusted.outcome, trusted.name, trusted.changed) == (MakerOutcome.TRUSTED, "me@example.org", ())

    # The list of the workspace is one that OpenSSH reads, and sha256sum reads what was signed.
    verified = subprocess.run(["ssh-keygen", "-Y", "verify", "-f", str(workspace.path / SIGNERS), "-I",
                               "me@example.org", "-n", NAMESPACE, "-s", str(folder / SSH)],
                              input=(folder / STATEMENT).read_bytes(), capture_output=True, check=False)
    assert verified.returncode == 0, verified.stderr
    subprocess.run(["sha256sum", "--strict", "-c", STATEMENT], cwd=folder, check=True, capture_output=True)
    fingerprint = subprocess.run(["ssh-keygen", "-l", "-f", f"{key}.pub"], capture_output=True, check=True, text=True)
    assert trusted.key is not None
    assert trusted.key.describe().split()[1] in fingerprint.stdout

    # A signature that a person made on another machine.
    (tmp_path / STATEMENT).write_bytes(maker_signature.statement(folder))
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(tmp_path / STATEMENT)],
                   check=True, capture_output=True)
    attached = maker_signature.attach(workspace, folder, (tmp_path / SSH).read_bytes())
    assert attached.outcome is MakerOutcome.TRUSTED
    records.check_export_files(folder)


@pytest.mark.parametrize("seed", range(4))
def test_python_and_openssh_agree_on_changed_signatures(workspace: Workspace, tmp_path: Path, key: Path,
                                                        seed: int) -> None:
    content, chance = maker_signature.statement(folder_of(workspace)), random.Random(seed)
    (tmp_path / STATEMENT).write_bytes(content)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(tmp_path / STATEMENT)],
                   check=True, capture_output=True)
    blob = bytearray(base64.b64decode("".join((tmp_path / SSH).read_text(encoding="ascii").splitlines()[1:-1])))
    blob[chance.randrange(len(blob))] ^= 1 << chance.randrange(8)
    text = base64.b64encode(blob).decode()
    armour = f"-----BEGIN SSH SIGNATURE-----\n{text}\n-----END SSH SIGNATURE-----\n"
    (tmp_path / SSH).write_text(armour, encoding="ascii")
    (tmp_path / SIGNERS).write_text(f"me {public(key)}", encoding="utf-8")
    verified = subprocess.run(["ssh-keygen", "-Y", "verify", "-f", str(tmp_path / SIGNERS), "-I", "me", "-n", NAMESPACE,
                               "-s", str(tmp_path / SSH)], input=content, capture_output=True, check=False)
    assert verified.returncode != 0
    with pytest.raises(UserError, match="no signature of the export"):
        maker_signature.attach(workspace, folder_of(workspace), armour.encode())


@pytest.mark.parametrize("way", BY_MINISIGN)
def test_a_signature_of_minisign(workspace: Workspace, way: str) -> None:
    folder, signature = folder_of(workspace), BY_MINISIGN[way].encode()
    with pytest.raises(UserError, match="3AD80272D706D4FD is not trusted here") as raised:
        maker_signature.attach(workspace, folder, signature)
    assert "scripts signature trust" in raised.value.hint
    maker_signature.trust(workspace, "you", f"untrusted comment: minisign public key\n{MINISIGN_KEY}\n")
    result = maker_signature.attach(workspace, folder, signature)
    assert (result.outcome, result.name) == (MakerOutcome.TRUSTED, "you")

    # Its key is known by eight bytes that anybody can give a key of their own.
    maker_signature.forget(workspace, "you")
    forged = base64.b64encode(base64.b64decode(MINISIGN_KEY)[:10] + base64.b64decode(OTHER_MINISIGN_KEY)[10:]).decode()
    assert check(workspace).outcome is MakerOutcome.UNKNOWN
    maker_signature.trust(workspace, "forger", forged)
    assert check(workspace).outcome is MakerOutcome.INVALID
    maker_signature.trust(workspace, "you", MINISIGN_KEY)
    assert check(workspace).name == "you"


@pytest.mark.parametrize("place", range(0, 74, 6))
def test_changed_signatures_of_minisign(workspace: Workspace, place: int) -> None:
    maker_signature.trust(workspace, "you", MINISIGN_KEY)
    lines = BY_MINISIGN["of the hash"].splitlines()
    raw = bytearray(base64.b64decode(lines[1]))
    raw[place] ^= 4
    lines[1] = base64.b64encode(raw).decode()
    with pytest.raises(UserError):
        maker_signature.attach(workspace, folder_of(workspace), "\n".join(lines).encode())


def test_the_comment_of_minisign_is_signed_too(workspace: Workspace) -> None:
    maker_signature.trust(workspace, "you", MINISIGN_KEY)
    changed = BY_MINISIGN["of the hash"].replace("timestamp:17", "timestamp:18").encode()
    with pytest.raises(UserError, match="it was changed"):
        maker_signature.attach(workspace, folder_of(workspace), changed)


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")
def test_minisign_signs_for_us_and_verifies_ours(workspace: Workspace, tmp_path: Path) -> None:
    secret, pub = tmp_path / "mini.key", tmp_path / "mini.pub"
    subprocess.run(["minisign", "-G", "-W", "-s", str(secret), "-p", str(pub)], check=True, capture_output=True)
    maker_signature.trust(workspace, "you", pub.read_text(encoding="utf-8"))
    folder = folder_of(workspace)
    assert maker_signature.sign(workspace, folder, secret).outcome is MakerOutcome.TRUSTED
    subprocess.run(["minisign", "-V", "-m", str(folder / STATEMENT), "-x", str(folder / MINI), "-p", str(pub)],
                   check=True, capture_output=True)


def reseal(folder: Path) -> None:
    write_json(folder / EXPORT_SUMS, hash_tree(folder, (EXPORT_SUMS,)))


def _flip(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"Weights")


def _restate(folder: Path) -> None:
    _flip(folder)
    digest = hashlib.sha256(b"Weights").hexdigest()
    (folder / STATEMENT).write_text(f"{digest}  {WEIGHTS}\n", encoding="utf-8")


def _link(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder.parent / "elsewhere")
    (folder / WEIGHTS).symlink_to(folder.parent / "elsewhere")


def _second_line(folder: Path) -> None:
    content = (folder / STATEMENT).read_text(encoding="utf-8")
    (folder / STATEMENT).write_text(content + content, encoding="utf-8")


CHANGES: dict[str, tuple[Callable[[Path], object], MakerOutcome]] = {
    "other weights": (_flip, MakerOutcome.OTHER_FILES),
    "other weights and another list": (_restate, MakerOutcome.INVALID),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), MakerOutcome.OTHER_FILES),
    "a link": (_link, MakerOutcome.OTHER_FILES),
    "a new file of weights": (lambda folder: (folder / "adapter.bin").write_bytes(b"x"), MakerOutcome.OTHER_FILES),
    "a new file that no loader reads": (lambda folder: (folder / "notes").write_bytes(b"x"), MakerOutcome.OTHER_FILES),
    "no list": (lambda folder: (folder / STATEMENT).unlink(), MakerOutcome.INVALID),
    "an empty list": (lambda folder: (folder / STATEMENT).write_bytes(b""), MakerOutcome.INVALID),
    "a line twice": (_second_line, MakerOutcome.INVALID),
    "no signature": (lambda folder: (folder / SSH).unlink(), MakerOutcome.UNSIGNED),
    "an empty signature": (lambda folder: (folder / SSH).write_bytes(b""), MakerOutcome.INVALID),
    "a large signature": (lambda folder: (folder / SSH).write_bytes(b"A" * (1 << 20)), MakerOutcome.INVALID),
    "a pipe": (lambda folder: ((folder / SSH).unlink(), subprocess.run(["mkfifo", str(folder / SSH)], check=True)),
               MakerOutcome.INVALID),
    "a signature twice": (lambda folder: (folder / SSH).write_bytes((folder / SSH).read_bytes() * 2),
                          MakerOutcome.INVALID),
    "two signatures": (lambda folder: (folder / MINI).write_bytes(b"x"), MakerOutcome.INVALID),
    "a signature of another program": (lambda folder: (folder / SSH).rename(folder / MINI), MakerOutcome.INVALID),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_after_it_was_signed_is_not_signed(signed: Workspace, change: str) -> None:
    apply, outcome = CHANGES[change]
    apply(folder_of(signed))
    reseal(folder_of(signed)) if change != "a pipe" else None
    result = check(signed)
    assert result.outcome is outcome, result.describe()
    with pytest.raises(UserError, match="was not signed by me@example.org"):
        maker_signature.require(signed, folder_of(signed), "me@example.org")


@pytest.mark.parametrize("line", ["{digest}  ../mine/{name}", "{digest}  /etc/passwd", "{digest}  a\\nb", "zz  {name}",
                                  "{digest} {name}", "{digest}  {name}\n{digest}  {name}"])
def test_a_signed_list_that_names_other_places(signed: Workspace, key: Path, line: str) -> None:
    """A maker may sign any list; it is read as a stranger's."""
    folder, digest = folder_of(signed), hashlib.sha256(b"weights").hexdigest()
    (folder / STATEMENT).write_text(line.format(digest=digest, name=WEIGHTS) + "\n", encoding="utf-8")
    (folder / SSH).unlink()
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(folder / STATEMENT)],
                   check=True, capture_output=True)
    assert check(signed).outcome is MakerOutcome.OTHER_FILES


@pytest.mark.parametrize("namespace", ["file", "git", "lisan", "lisan-export2", ""])
def test_a_signature_for_another_purpose(workspace: Workspace, tmp_path: Path, key: Path, namespace: str) -> None:
    content = maker_signature.statement(folder_of(workspace))
    (tmp_path / STATEMENT).write_bytes(content)
    done = subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", namespace or " ",
                           str(tmp_path / STATEMENT)], check=False, capture_output=True)
    assert done.returncode == 0
    with pytest.raises(UserError, match="it was made for"):
        maker_signature.attach(workspace, folder_of(workspace), (tmp_path / SSH).read_bytes())


def test_the_certificate_and_the_card_may_be_written_again(signed: Workspace, key: Path) -> None:
    folder = folder_of(signed)
    for name in (CERTIFICATE, EXPORT_CARD):
        (folder / name).write_text("{}", encoding="utf-8")
    reseal(folder)
    signature = maker_signature.sign(signed, folder, key)
    assert signature.of_certificate
    (folder / CERTIFICATE).write_text("[]", encoding="utf-8")
    (folder / EXPORT_CARD).write_text("[]", encoding="utf-8")
    result = check(signed)
    assert (result.outcome, set(result.changed)) == (MakerOutcome.TRUSTED, {CERTIFICATE, EXPORT_CARD})
    assert not result.of_certificate
    assert "Not as it was signed: " in result.describe()


def test_a_damaged_export_is_not_signed(workspace: Workspace, key: Path) -> None:
    (folder_of(workspace) / WEIGHTS).write_bytes(b"Weights")
    with pytest.raises(UserError, match=WEIGHTS):
        maker_signature.sign(workspace, folder_of(workspace), key)
    assert not (folder_of(workspace) / STATEMENT).exists()


def _blob(size: int) -> str:
    """A public key of Ed25519 with `size` bytes."""
    kind = b"ssh-ed25519"
    return base64.b64encode(struct.pack(">I", len(kind)) + kind + struct.pack(">I", size) + bytes(size)).decode()


@pytest.mark.parametrize("text", [
    "", "ssh-ed25519", "ssh-ed25519 AAAA", "ssh-ed25519 !", "RWT9", "me ssh-ed25519 AAAA", "hello", "ssh-dss AAAA",
    "ssh-ed25519-cert-v01@openssh.com AAAA", MINISIGN_KEY[:-4], f"{MINISIGN_KEY}\n{OTHER_MINISIGN_KEY}",
    f"ssh-ed25519 {MINISIGN_KEY}",
    f"ssh-ed25519 {_blob(31)}", f"ssh-rsa {_blob(32)}"])
def test_texts_that_are_no_keys(workspace: Workspace, text: str) -> None:
    with pytest.raises(UserError, match="no public key|no whole public key") as raised:
        maker_signature.trust(workspace, "me", text)
    assert "ssh-ed25519 AAAA" in raised.value.hint
    assert not (workspace.path / SIGNERS).exists()


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "*", "#", 'x" namespaces="', "a" * 101])
def test_texts_that_are_no_names(workspace: Workspace, name: str, key: Path) -> None:
    with pytest.raises(UserError, match="no name for a maker"):
        maker_signature.trust(workspace, name, public(key))


def test_one_name_is_one_key(workspace: Workspace, key: Path, tmp_path: Path) -> None:
    maker_signature.trust(workspace, "me", public(key))
    maker_signature.trust(workspace, "me", public(key))
    assert len(maker_signature.read_signers(workspace)) == 1
    other = make_key(tmp_path / "other")
    for name, text in (("me", public(other)), ("you", public(key))):
        with pytest.raises(UserError, match="me is trusted here with the key ssh-ed25519 SHA256:"):
            maker_signature.trust(workspace, name, text)
    maker_signature.forget(workspace, "me")
    maker_signature.trust(workspace, "you", public(key))
    assert [signer.key.kind for signer in maker_signature.read_signers(workspace)] == ["ssh-ed25519"]
    maker_signature.trust(workspace, "mini", MINISIGN_KEY)
    assert maker_signature.find_signer(workspace, "mini").key.kind == MINISIGN
    with pytest.raises(UserError, match="Nobody is trusted here by the name 'me'"):
        maker_signature.forget(workspace, "me")


def test_comments_in_the_list_of_makers_stay(workspace: Workspace, key: Path, tmp_path: Path) -> None:
    comments = f"# The studio in Addis.\n\nstudio {public(make_key(tmp_path / 'other')).strip()} of the studio"
    (workspace.path / SIGNERS).write_text(comments, encoding="utf-8")
    maker_signature.trust(workspace, "me", public(key))
    assert [signer.name for signer in maker_signature.read_signers(workspace)] == ["studio", "me"]
    maker_signature.forget(workspace, "me")
    assert (workspace.path / SIGNERS).read_text(encoding="utf-8") == f"{comments}\n"


def test_a_name_that_was_given_two_keys_by_hand_is_forgotten_whole(workspace: Workspace, key: Path,
                                                                   tmp_path: Path) -> None:
    keys = [public(key), public(make_key(tmp_path / "other"))]
    (workspace.path / SIGNERS).write_text("".join(f"me {text.strip()}\n" for text in keys), encoding="utf-8")
    maker_signature.forget(workspace, "me")
    assert maker_signature.read_signers(workspace) == []


def test_options_of_openssh_are_refused_by_the_line(signed: Workspace, key: Path) -> None:
    (signed.path / SIGNERS).write_text(f'# mine\nme namespaces="git" {public(key)}', encoding="utf-8")
    with pytest.raises(UserError, match=f"{SIGNERS}, line 2") as raised:
        check(signed)
    assert "without options" in raised.value.hint


def test_a_damaged_list_of_makers_is_named(signed: Workspace) -> None:
    (signed.path / SIGNERS).write_text("me ssh-ed25519 AAAA\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"{SIGNERS}, line 1"):
        check(signed)


def test_the_named_maker_alone_counts(signed: Workspace, tmp_path: Path, key: Path) -> None:
    other = make_key(tmp_path / "other")
    maker_signature.trust(signed, "other@example.org", public(other))
    assert maker_signature.require(signed, folder_of(signed), public(key)).outcome is MakerOutcome.TRUSTED
    for name in ("other@example.org", public(other), MINISIGN_KEY):
        with pytest.raises(UserError, match="mine was not signed by"):
            maker_signature.require(signed, folder_of(signed), name)
    with pytest.raises(UserError, match="no maker who is trusted here, and no public key"):
        maker_signature.require(signed, folder_of(signed), "nobody")


def test_without_openssh_ed25519_is_verified_and_the_others_are_refused(
        workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {kind: make_key(tmp_path / kind, kind) for kind in ("ed25519", "rsa")}
    for kind, key in keys.items():
        maker_signature.trust(workspace, kind, public(key))
    signatures = {}
    for kind, key in keys.items():
        maker_signature.sign(workspace, folder_of(workspace), key)
        signatures[kind] = (folder_of(workspace) / SSH).read_bytes()

    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert maker_signature.attach(workspace, folder_of(workspace), signatures["ed25519"]).name == "ed25519"
    with pytest.raises(UserError, match="ssh-keygen is not installed, and only it reads keys of the kind ssh-rsa"):
        maker_signature.attach(workspace, folder_of(workspace), signatures["rsa"])
    with pytest.raises(UserError, match="ssh-keygen is not installed, and signing needs it"):
        maker_signature.sign(workspace, folder_of(workspace), keys["ed25519"])


def test_the_command(workspace: Workspace, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*words: str) -> tuple[int, str]:
        code = script.main(["--workspace", str(workspace.path), *words])
        return code, capsys.readouterr().out

    assert call("list") == (0, "Nobody is trusted yet.\n")
    code, out = call("sign", "export:mine", "--key", str(key))
    assert (code, "signed by a key that nobody here trusts" in out) == (0, True)
    assert call("trust", "me", f"{key}.pub")[0] == 0
    assert call("trust", "mini", *f"minisign {MINISIGN_KEY}".split())[0] == 0
    assert "me ssh-ed25519 SHA256:" in call("list")[1]
    code, out = call("statement", "export:mine")
    assert out == f"{hashlib.sha256(b'weights').hexdigest()}  {WEIGHTS}\n"
    (tmp_path / "mine.minisig").write_text(BY_MINISIGN["of the hash"], encoding="utf-8")
    code, out = call("attach", "export:mine", str(tmp_path / "mine.minisig"))
    assert (code, out.startswith("Maker: signed by mini")) == (0, True)
    assert not (folder_of(workspace) / SSH).exists()
    assert call("forget", "mini")[0] == 0
    assert call("sign", "run:mine", "--key", str(key))[0] == 2
    assert call("sign", "export:mine", "--key", str(tmp_path / "none"))[0] == 2
    assert call("sign", "export:mine", "--key", f"{key}.pub.none")[0] == 2
