"""The signature that the maker of an export may add to it, by an SSH key or a minisign key. Never loads torch.

Signed is `signed.sha256` in the export: a line for each file, as `sha256sum` writes it, the certificate among them. So
other programs can check an export (`ssh-keygen -Y verify`, `minisign -V`, then `sha256sum -c signed.sha256`), and what
they signed is checked here. Ed25519 keys, those of minisign included, are checked in Python, since a container often
has no OpenSSH; the other SSH keys by `ssh-keygen`. A private key is read by `ssh-keygen` or `minisign` alone.

Formats: PROTOCOL.sshsig of OpenSSH, the page of minisign (jedisct1.github.io/minisign), RFC 8032.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from config import foreign
from config.errors import UserError
from core.library import records
from core.library.certificate import CERTIFICATE
from core.library.records import EXPORT_SUMS
from core.library.verification import SIGNATURES, STATEMENT, HashFile, Subject, list_files
from core.workspace import Workspace
from data.durable_files import (
    ExpectedFile,
    append_text,
    check_relative_path,
    find_faults,
    hash_file,
    write_bytes,
    write_json,
    write_text,
)

NAMESPACE = "lisan-export"
"""The purpose that an SSH signature names: one that was made for mail or Git is none of an export."""
SIGNERS = "allowed_signers"
"""In the workspace: a line NAME KEYTYPE KEY for each trusted maker, as OpenSSH reads it, without its options."""
MINISIGN = "minisign"
MOST_BYTES = 16 << 10
"""Of a signature or a public key. A signature by an RSA key of 16,384 bits has 6 kB."""
_SSH_SIGNATURE, _MINISIGN_SIGNATURE = SIGNATURES
_ED25519 = "ssh-ed25519"
_SSH_KEYS = (_ED25519, "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
             "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")
_ARMOUR = re.compile(rb"-----BEGIN SSH SIGNATURE-----\s+([A-Za-z0-9+/=\s]+?)-----END SSH SIGNATURE-----\s*")
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^\x00-\x1f\\]+)")
_NAME = re.compile(r"[\w.@+-]{1,100}")
_KEY_HINT = ("Give the public key: a line `ssh-ed25519 AAAA...` (a file that ends in .pub), or the key of minisign, "
             "which begins with RW.")
_COMMAND_S = 300.0  # a person may have to type a passphrase


class MakerOutcome(StrEnum):
    """What the maker's signature says of an export."""

    UNSIGNED = "not signed by its maker"
    TRUSTED = "signed by"
    UNKNOWN = "signed by a key that nobody here trusts"
    OTHER_FILES = "signed, but these are other files"
    INVALID = "has a signature that is not valid"


@dataclass(frozen=True)
class PublicKey:
    """A maker's public key: `kind` is the SSH key type or `minisign`, `text` the Base64 of the key."""

    kind: str
    text: str

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.text)

    @property
    def ed25519(self) -> bytes | None:
        """The 32 bytes of an Ed25519 key, None for other kinds."""
        return self.content[-32:] if self.kind in (_ED25519, MINISIGN) else None

    def describe(self) -> str:
        """The fingerprint that `ssh-keygen -l` shows; of minisign the key itself, since its ID can be chosen freely."""
        if self.kind == MINISIGN:
            return f"minisign {self.text}"
        digest = base64.b64encode(hashlib.sha256(self.content).digest()).decode().rstrip("=")
        return f"{self.kind} SHA256:{digest}"


@dataclass(frozen=True)
class Signer:
    """A maker whom a person trusts by a name of their own."""

    name: str
    key: PublicKey


@dataclass(frozen=True)
class MakerSignature:
    """The outcome for one export; `reason` is a sentence.

    `changed` names files that no model reads and that are not as they were signed, or not signed at all.
    """

    outcome: MakerOutcome
    name: str = ""
    key: PublicKey | None = None
    reason: str = ""
    changed: tuple[str, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether it is shown in red."""
        return self.outcome in (MakerOutcome.OTHER_FILES, MakerOutcome.INVALID)

    @property
    def of_certificate(self) -> bool:
        """Whether the maker signed the very certificate that lies in the export."""
        return not self.bad and self.outcome is not MakerOutcome.UNSIGNED and CERTIFICATE not in self.changed

    def describe(self) -> str:
        """A sentence or more for a line of output."""
        text = f"Maker: {self.outcome.value}"
        if self.outcome is MakerOutcome.TRUSTED:
            text += f" {self.name}"
        if self.key is not None:
            text += f" ({self.key.describe()})"
        changed = f" Not as it was signed: {', '.join(self.changed)}." if self.changed else ""
        return f"{text}. {self.reason}".rstrip() + changed


# Public keys and the people who have them.


def parse_key(text: str) -> PublicKey:
    """The public key in `text`: a line or file of OpenSSH or minisign; `UserError` for anything else."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("#", "untrusted "))]
    words = lines[0].split() if len(lines) == 1 else []
    if words and words[0] in (*_SSH_KEYS, MINISIGN) and len(words) > 1:
        key = PublicKey(words[0], words[1])
    elif len(words) == 1:
        key = PublicKey(MINISIGN, words[0])
    else:
        raise UserError(f"{text.strip()[:60]!r} is no public key of OpenSSH or minisign.", _KEY_HINT)

    try:
        content = base64.b64decode(key.text, validate=True)
        if key.kind == MINISIGN:
            is_complete = len(content) == 42 and content[:2] == b"Ed"
        else:
            fields = list(_fields(content))
            is_complete = fields[0] == key.kind.encode() and (key.kind != _ED25519 or [*map(len, fields[1:])] == [32])
    except (binascii.Error, ValueError, IndexError):
        is_complete = False
    if not is_complete:
        raise UserError(f"{key.text[:60]!r} is no whole public key of the kind {key.kind}.", _KEY_HINT)
    return PublicKey(key.kind, base64.b64encode(content).decode())


def read_signers(workspace: Workspace) -> list[Signer]:
    """Those who are trusted here; `UserError` for a damaged list."""
    return [signer for _, signer in _read_lines(workspace) if signer is not None]


def _read_lines(workspace: Workspace) -> list[tuple[str, Signer | None]]:
    """The lines of the list, each with its maker; comments and empty lines have none."""
    path = workspace.path / SIGNERS
    try:
        text = foreign.read_bytes(path, 1 << 20).decode()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {foreign.reason_of(error)}.", "Restore it, or delete it.") from error

    lines: list[tuple[str, Signer | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            lines.append((line, None))
            continue
        name, _, key = line.strip().partition(" ")
        try:
            if not _NAME.fullmatch(name):
                raise UserError(f"{name[:60]!r} is no name")
            lines.append((line, Signer(name, parse_key(key))))
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error.message}",
                            "A line is NAME KEYTYPE KEY, without options. Correct or delete it.") from error
    return lines


def trust(workspace: Workspace, name: str, text: str) -> Signer:
    """Add a maker to the list of the workspace; `UserError` if the name or the key has another line there."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:120]!r} is no name for a maker.",
                        "Use up to 100 letters, digits and . _ @ + -, such as an e-mail address.")
    signer, signers = Signer(name, parse_key(text)), read_signers(workspace)
    for trusted in signers:
        if (trusted.name == name) != (trusted.key == signer.key):
            raise UserError(f"{trusted.name} is trusted here with the key {trusted.key.describe()}.",
                            f"Remove that line first: python -m scripts signature forget {trusted.name}.")
    if signer not in signers:
        append_text(workspace.path / SIGNERS, f"{signer.name} {signer.key.kind} {signer.key.text}\n")
    return signer


def forget(workspace: Workspace, name: str) -> Signer:
    """Remove a maker from the list of the workspace."""
    signers = read_signers(workspace)
    signer = next((signer for signer in signers if signer.name == name), None)
    if signer is None:
        raise UserError(f"Nobody is trusted here by the name {name[:120]!r}.",
                        f"The names are: {', '.join(entry.name for entry in signers) or 'none yet'}.")
    lines = [line for line, known in _read_lines(workspace) if known is None or known.name != name]
    write_text(workspace.path / SIGNERS, "".join(f"{line}\n" for line in lines))
    return signer


def find_signer(workspace: Workspace, name_or_key: str) -> Signer:
    """The maker that a person named: by a trusted name, or by a public key."""
    for signer in read_signers(workspace):
        if signer.name == name_or_key.strip():
            return signer
    try:
        return Signer("the named key", parse_key(name_or_key))
    except UserError as error:
        raise UserError(f"{name_or_key.strip()[:60]!r} is no maker who is trusted here, and no public key.",
                        f"{_KEY_HINT} Or trust it by a name: python -m scripts signature trust NAME KEY.") from error


# Signing.


def statement(folder: Path) -> bytes:
    """What a maker signs of the export in `folder`; `UserError` if a file is not the one that was exported."""
    sums = {name: digest for name, digest in records.read_export_sums(folder).items() if not _is_own_file(name)}
    # A damaged signature does not stop a new one.
    for _, fault in find_faults(folder, {name: ExpectedFile(sha256=digest) for name, digest in sums.items()}):
        raise UserError(fault, records.EXPORT_AGAIN_HINT)
    lines = [f"{digest}  {name}" for name, digest in sorted(sums.items())]
    for line in lines:
        if not _LINE.fullmatch(line):
            raise UserError(f"{line[66:146]!r} is a name that `sha256sum` writes otherwise.", "Rename that file.")
    return "".join(f"{line}\n" for line in lines).encode()


def sign(workspace: Workspace, folder: Path, key: Path) -> MakerSignature:
    """Sign the export in `folder` with the private key in the file `key`, and put the signature into it.

    `ssh-keygen` and `minisign` ask for a passphrase on the terminal. A public key is enough if the SSH agent has its
    other half.
    """
    try:
        head = foreign.read_bytes(key, 1 << 20)[:200]
    except (OSError, ValueError) as error:
        raise UserError(f"The key {key} cannot be read: {foreign.reason_of(error)}.",
                        "Give the file of an SSH key (~/.ssh/id_ed25519) or of a minisign key.") from error
    content = statement(folder)
    by_minisign = head.startswith(b"untrusted comment:")
    with tempfile.TemporaryDirectory(prefix="sign-") as place:
        source, target = Path(place) / STATEMENT, Path(place) / (_MINISIGN_SIGNATURE if by_minisign else _SSH_SIGNATURE)
        source.write_bytes(content)
        if by_minisign:
            _call(["minisign", "-S", "-s", str(key), "-m", str(source), "-x", str(target)])
        else:
            _call(["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(source)])
        signature = target.read_bytes()
    return attach(workspace, folder, signature, content)


def attach(workspace: Workspace, folder: Path, signature: bytes, signed: bytes | None = None) -> MakerSignature:
    """Put a signature of `statement(folder)` into the export in the place of an earlier one.

    `UserError` unless it is a valid signature of these files. Whether a signature of minisign is valid shows only with
    its public key, so that must be trusted before.
    """
    content = statement(folder) if signed is None else signed
    name = _SSH_SIGNATURE if _ARMOUR.fullmatch(signature.strip()) else _MINISIGN_SIGNATURE
    try:
        _verify(signature, name, content, read_signers(workspace))
    except UnknownKey as error:
        raise UserError(f"{error}.", "Trust the public key first, under Trusted makers (python -m scripts signature "
                        "trust NAME KEY).") from error
    except ValueError as error:
        raise UserError(f"This is no signature of the export {folder.name}: {error}.",
                        f"Sign its {STATEMENT}: ssh-keygen -Y sign -n {NAMESPACE} -f KEY {STATEMENT}, or minisign -S "
                        f"-m {STATEMENT}.") from error

    for other in SIGNATURES:
        (folder / other).unlink(missing_ok=True)
    write_bytes(folder / STATEMENT, content)
    write_bytes(folder / name, signature)
    sums = {path: digest for path, digest in records.read_export_sums(folder).items() if not _is_own_file(path)}
    sums |= {path: hash_file(folder / path) for path in (STATEMENT, name)}
    write_json(folder / EXPORT_SUMS, sums)
    return check(workspace, folder)


def _call(command: list[str]) -> None:
    """Run a program that signs; it asks for a passphrase on the terminal, and says there why it fails."""
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]} is not installed, and signing needs it.",
                        "Install it (the package openssh-client or minisign), or sign on another machine and add the "
                        "signature: python -m scripts signature attach.")
    try:
        # The last line of the output may be JSON, so these programs write to standard error alone.
        code = subprocess.run(command, stdout=2, timeout=_COMMAND_S, check=False).returncode
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{command[0]} did not end within {_COMMAND_S:g} s.",
                        "Call it by hand, then add the signature: python -m scripts signature attach.") from error
    if code != 0:
        raise UserError(f"{command[0]} did not sign; it ended with code {code}.",
                        "Give the private key, with its passphrase, or a public key whose other half the SSH agent "
                        "has.")


# Verifying.


def check(workspace: Workspace, folder: Path, hash_one: HashFile = hash_file,
          signer: Signer | None = None) -> MakerSignature:
    """What the maker's signature says of the export in `folder`.

    `signer`: the only maker whose signature counts as trusted; without, all who are trusted in the workspace.
    """
    names = [name for name in SIGNATURES if os.path.lexists(folder / name)]
    if not names:
        return MakerSignature(MakerOutcome.UNSIGNED)
    if len(names) > 1:
        return MakerSignature(MakerOutcome.INVALID, reason=f"It has two signatures: {' and '.join(names)}.")

    signers = [signer] if signer is not None else read_signers(workspace)
    try:
        content = foreign.read_bytes(folder / STATEMENT, foreign.RECORD_BYTES)
        signature = foreign.read_bytes(folder / names[0], MOST_BYTES)
        key = _verify(signature, names[0], content, signers)
    except UnknownKey as error:
        return MakerSignature(MakerOutcome.UNKNOWN, reason=f"{error}.")
    except (OSError, ValueError) as error:
        return MakerSignature(MakerOutcome.INVALID, reason=f"{names[0]}: {foreign.reason_of(error)}.")

    # The signature is valid. Only now its list of files is compared with the files.
    name = next((signer.name for signer in signers if signer.key == key), "")
    outcome = MakerOutcome.TRUSTED if name else MakerOutcome.UNKNOWN
    try:
        fault, changed = _differing(folder, content, hash_one)
    except UserError as error:
        fault, changed = error.message, ()
    except (OSError, ValueError) as error:
        fault, changed = f"{foreign.reason_of(error)}.", ()
    if fault:
        return MakerSignature(MakerOutcome.OTHER_FILES, name, key, fault)
    return MakerSignature(outcome, name, key, "", changed)


def require(workspace: Workspace, folder: Path, name_or_key: str) -> MakerSignature:
    """`check` for one maker; `UserError` unless that maker signed exactly the model in `folder`."""
    signer = find_signer(workspace, name_or_key)
    result = check(workspace, folder, signer=signer)
    if result.outcome is not MakerOutcome.TRUSTED:
        raise UserError(f"{folder.name.lstrip('.')} was not signed by {signer.name} ({signer.key.describe()}). "
                        f"{result.describe()}",
                        "Ask its maker for a signed export, or leave the signer out and check it by other means.")
    return result


class UnknownKey(ValueError):
    """A signature whose public key is not known here, so that nothing is known of it."""


def _verify(signature: bytes, name: str, content: bytes, signers: list[Signer]) -> PublicKey:
    """The key that made the signature in the file `name` of `content`; `ValueError` if it is not valid."""
    if len(signature) > MOST_BYTES:
        raise ValueError(f"it has {len(signature)} bytes, and a signature at most {MOST_BYTES}")
    if name == _SSH_SIGNATURE:
        return _verify_ssh(signature, content)
    return _verify_minisign(signature, content, [signer.key for signer in signers if signer.key.kind == MINISIGN])


def _verify_ssh(signature: bytes, content: bytes) -> PublicKey:
    """The key of a signature of `ssh-keygen -Y sign`, which brings its public key with it."""
    armour = _ARMOUR.fullmatch(signature.strip())
    if armour is None:
        raise ValueError("it is no signature of `ssh-keygen -Y sign`")
    blob = base64.b64decode(b"".join(armour[1].split()), validate=True)
    if blob[:10] != b"SSHSIG\x00\x00\x00\x01":
        raise ValueError("it is no SSH signature of version 1")
    fields = list(_fields(blob[10:]))
    if len(fields) != 5:
        raise ValueError("it has no five fields")

    # The namespace keeps signatures that were made for other purposes from counting here.
    public, namespace, reserved, hash_name, raw = fields
    if namespace != NAMESPACE.encode():
        raise ValueError(f"it was made for {namespace[:40].decode('utf-8', 'replace')!r}, not for {NAMESPACE!r}")
    if hash_name not in (b"sha256", b"sha512"):
        raise ValueError(f"it has the hash {hash_name[:20]!r}")
    kind = next(_fields(public)).decode("ascii", "replace")
    try:
        key = parse_key(f"{kind} {base64.b64encode(public).decode()}")
    except UserError as error:
        raise ValueError(error.message.rstrip(".")) from error

    # Only Ed25519 is verified here; other kinds of keys need ssh-keygen.
    if key.ed25519 is None:
        _verify_by_program(signature, content, key)
        return key
    algorithm, *numbers = _fields(raw)
    digest = hashlib.new(hash_name.decode(), content).digest()
    signed = b"SSHSIG" + b"".join(struct.pack(">I", len(part)) + part
                                  for part in (namespace, reserved, hash_name, digest))
    if algorithm != _ED25519.encode() or len(numbers) != 1 or not is_ed25519(key.ed25519, signed, numbers[0]):
        raise ValueError("it is not of this list of files, or it was changed")
    return key


def _verify_by_program(signature: bytes, content: bytes, key: PublicKey) -> None:
    """Let `ssh-keygen` verify a signature by an RSA or ECDSA key, or by a security key."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise ValueError(f"ssh-keygen is not installed, and only it reads keys of the kind {key.kind}")
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        allowed, file = Path(place) / SIGNERS, Path(place) / _SSH_SIGNATURE
        allowed.write_text(f"maker {key.kind} {key.text}\n", encoding="ascii")
        file.write_bytes(signature)
        try:
            process = subprocess.run([program, "-Y", "verify", "-f", str(allowed), "-I", "maker", "-n", NAMESPACE,
                                      "-s", str(file)], input=content, capture_output=True, timeout=60, check=False)
        except subprocess.TimeoutExpired as error:
            raise ValueError("ssh-keygen did not end within 60 s") from error
    if process.returncode != 0:
        raise ValueError("it is not of this list of files, or it was changed")


def _verify_minisign(signature: bytes, content: bytes, keys: list[PublicKey]) -> PublicKey:
    """The key of a signature of `minisign -S`, which names its key by an ID of eight bytes alone."""
    lines = signature.decode("utf-8").splitlines()
    if len(lines) != 4 or not lines[0].startswith("untrusted comment: ") or not lines[2].startswith(
            "trusted comment: "):
        raise ValueError("it is no signature of OpenSSH or minisign")
    head, of_comment = (base64.b64decode(line, validate=True) for line in lines[1::2])
    if len(head) != 74 or head[:2] not in (b"ED", b"Ed") or len(of_comment) != 64:
        raise ValueError("it is no signature of minisign")

    named = [key for key in keys if key.content[2:10] == head[2:10]]
    if not named:
        raise UnknownKey(f"The minisign key {head[9:1:-1].hex().upper()} is not trusted here, so its signature could "
                         "not be verified")
    # `ED` signs the BLAKE2b hash, and `Ed` of older versions the content itself.
    signed = hashlib.blake2b(content).digest() if head[:2] == b"ED" else content
    comment = lines[2].removeprefix("trusted comment: ").encode()
    for key in named:
        assert key.ed25519 is not None
        if is_ed25519(key.ed25519, signed, head[10:]) and is_ed25519(key.ed25519, head[10:] + comment, of_comment):
            return key
    raise ValueError("it is not of this list of files, or it was changed")


def _fields(blob: bytes) -> Iterator[bytes]:
    """The length-prefixed fields of an SSH blob; `ValueError` if a length leads beyond its end."""
    place = 0
    while place < len(blob):
        if place + 4 > len(blob):
            raise ValueError("it is cut off")
        (size,) = struct.unpack_from(">I", blob, place)
        place += 4
        if place + size > len(blob):
            raise ValueError("it is cut off")
        yield blob[place:place + size]
        place += size


def _differing(folder: Path, content: bytes, hash_one: HashFile) -> tuple[str, tuple[str, ...]]:
    """A sentence about model files that are not those that were signed, and the other signed files that differ."""
    signed = dict[str, str]()
    for line in content.decode("utf-8").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match[2] in signed:
            raise ValueError(f"{STATEMENT} has the line {line[:80]!r}")
        check_relative_path(match[2], STATEMENT)
        signed[match[2]] = match[1]

    model = {name for name, _ in list_files(Subject.of_export(folder))}
    faults = [f"{name} is new" for name in sorted(model) if name not in signed]
    changed = []
    for name, digest in signed.items():
        path = folder / name
        is_same = path.is_file() and not path.is_symlink() and hash_one(path) == digest
        if is_same:
            continue
        # The certificate, the card and evaluations may be written again after an export was signed.
        if name in (CERTIFICATE, records.EXPORT_CARD) or name.startswith("evaluation/"):
            changed.append(name)
        else:
            faults.append(f"{name} {'differs' if path.exists() else 'is missing'}")
    # A list that was made by hand may name the weights alone, and a certificate may be added later.
    if CERTIFICATE not in signed and os.path.lexists(folder / CERTIFICATE):
        changed.append(CERTIFICATE)
    if faults:
        further = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        return f"{', '.join(faults[:3])}{further}.", ()
    return "", tuple(changed)


def _is_own_file(name: str) -> bool:
    return name in (STATEMENT, *SIGNATURES)


# Ed25519 (RFC 8032, 5.1). Points have the coordinates X, Y, Z, T with x = X/Z, y = Y/Z and xy = T/Z.

_P = 2 ** 255 - 19
_ORDER = 2 ** 252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_Point = tuple[int, int, int, int]
_NEUTRAL: _Point = (0, 1, 1, 0)


def is_ed25519(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) of `message` is valid for the public key (32 bytes).

    Nothing here is secret, so its time may depend on the values.
    """
    public = _point(key)
    if public is None or len(signature) != 64:
        return False
    scalar = int.from_bytes(signature[32:], "little")
    # With a point of small order as key one signature would fit many messages.
    if scalar >= _ORDER or _same(_times(8, public), _NEUTRAL):
        return False

    challenge = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % _ORDER
    expected = _add(_times(scalar, _BASE), _times(challenge, _negative(public)))
    return _encode(expected) == signature[:32]


def _point(encoded: bytes) -> _Point | None:
    """The point of 32 bytes; None if they are of none."""
    if len(encoded) != 32:
        return None
    number = int.from_bytes(encoded, "little")
    y, sign = number & ((1 << 255) - 1), number >> 255
    if y >= _P:
        return None
    # x² = (y² - 1) / (dy² + 1), whose root is a power because p = 5 mod 8.
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    if x * x % _P != square or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _add(p: _Point, q: _Point) -> _Point:
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * p[3] * q[3] * _D % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(factor: int, point: _Point) -> _Point:
    total = _NEUTRAL
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total


def _negative(point: _Point) -> _Point:
    return -point[0] % _P, point[1], point[2], -point[3] % _P


def _same(p: _Point, q: _Point) -> bool:
    return ((p[0] * q[2] - q[0] * p[2]) % _P == 0
            and (p[1] * q[2] - q[1] * p[2]) % _P == 0)


def _encode(point: _Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


_generator = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
assert _generator is not None
_BASE: _Point = _generator
