"""The secret key of a workspace, with which it recognises the certificates of its own jobs. Never loads torch.

The key is 32 random bytes in `workspace.key`, which only its owner can read (mode 0600). It lies beside the folders of
the artefacts, so that no archive and no push takes it along. Whoever has it can sign: it is never shown or logged.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress

from config.confinement import WORKSPACE_KEY
from config.errors import UserError
from core.workspace import Workspace
from data.durable_files import fsync_path

_KEY_BYTES = 32
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def sign(workspace: Workspace, purpose: str, content: bytes) -> str:
    """HMAC-SHA256 of `content` for a `purpose`, in hex; the first signature of a workspace makes its key."""
    return _signature(_read(workspace) or _create(workspace), purpose, content)


def is_signed(workspace: Workspace, purpose: str, content: bytes, signature: str) -> bool:
    """Whether this workspace signed `content` for this `purpose`; without a key it signed nothing."""
    key = _read(workspace)
    signature_bytes = signature.encode("utf-8", "replace")
    return key is not None and hmac.compare_digest(_signature(key, purpose, content).encode(), signature_bytes)


def _signature(key: bytes, purpose: str, content: bytes) -> str:
    return hmac.new(key, f"lisan {purpose}\n".encode() + content, hashlib.sha256).hexdigest()


def _read(workspace: Workspace) -> bytes | None:
    """The key, or None if the workspace has none yet; `UserError` for a file that is no key."""
    path = workspace.path / WORKSPACE_KEY
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refusal(workspace, error.strerror or str(error)) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != _KEY_BYTES:
            raise _refusal(workspace, f"it is no plain file of {_KEY_BYTES} bytes")
        if status.st_mode & 0o077:
            # Some file systems have no modes.
            with suppress(OSError):
                os.fchmod(descriptor, 0o600)
        return os.read(descriptor, _KEY_BYTES)
    finally:
        os.close(descriptor)


def _create(workspace: Workspace) -> bytes:
    """Write a new key, whole or not at all; of two processes at once both get the key of the first."""
    path = workspace.path / WORKSPACE_KEY
    temporary = path.with_name(f".{WORKSPACE_KEY}-{secrets.token_hex(4)}")

    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # A hard link fails if another process was first; a rename would replace its key.
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            temporary.rename(path)
        fsync_path(path.parent)
    except OSError as error:
        raise _refusal(workspace, error.strerror or str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)

    key = _read(workspace)
    assert key is not None
    return key


def _refusal(workspace: Workspace, reason: str) -> UserError:
    return UserError(f"The key of the workspace, {workspace.path / WORKSPACE_KEY}, cannot be used: {reason}.",
                     "Restore it from a backup, or delete it and compute certificates and evaluations again "
                     "(python -m scripts certify --again, python -m scripts evaluate); reports of earlier trainings "
                     "then count as a sender's.")
