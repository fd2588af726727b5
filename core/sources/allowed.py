"""What a person at the page may read: with `--sources`, chosen folders and addresses of other machines alone.

Without it, whoever signs in may give any path of this machine, as at its command line. Addresses at which clouds hand
out credentials are refused in any case, also where another address redirects there.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from config.errors import UserError
from core.workspace import Workspace

VARIABLE = "LISAN_SOURCES"  # of the app and of the workers that it starts
_METADATA = tuple(map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32",
                                             "192.0.0.192/32", "168.63.129.16/32")))
"""Link-local addresses, among them AWS's, Google's and Azure's; Alibaba's, Oracle's and Azure's wire server."""
_METADATA_NAMES = ("metadata.google.internal", "metadata.goog", "metadata")
_HINT = "Give a file of another machine, or one in the folders that the app was started with (--sources)."


def limit_to(folders: Sequence[str]) -> None:
    """Limit this process, and those that it starts, to `folders`; `UserError` for one that is none."""
    for folder in folders:
        if not Path(folder).expanduser().is_dir():
            raise UserError(f"--sources {folder!r} is not a folder.", "Give a folder that exists.")
    if folders:
        os.environ[VARIABLE] = os.pathsep.join(str(Path(folder).expanduser().resolve()) for folder in folders)
    else:
        os.environ.pop(VARIABLE, None)


def check_value(value: object, workspace: Workspace) -> None:
    """Raise `UserError` where sources are limited and `value` is the path of something else."""
    limits = os.environ.get(VARIABLE)
    if not limits or not isinstance(value, str) or len(value) > 4096:
        return
    try:
        path = Path(value.strip()).expanduser()
        if not path.exists() or not ("/" in value or value.startswith("~") or path.is_file()):
            return  # a name, or a text
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):
        return
    roots = [*map(Path, limits.split(os.pathsep)), workspace.path.resolve()]
    if not any(real.is_relative_to(root) for root in roots):
        raise UserError(f"{value[:200]!r} is not in the folders that may be read.", _HINT)


def check_address(host: str) -> None:
    """Raise `UserError` where the server `host`, a name or an address, may not be asked."""
    if host.lower().rstrip(".") in _METADATA_NAMES:
        raise _refusal(host)
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return  # the download says that there is none
    for address in found:
        check_ip(address, host)


def check_ip(text: str, host: str) -> None:
    """`check_address` of one address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    inside = any(address in network for network in _METADATA)
    if inside or (os.environ.get(VARIABLE) and not address.is_global):
        raise _refusal(host)


def _refusal(host: str) -> UserError:
    return UserError(f"{host} is an address of this machine, of its network or of its cloud; it is not read.", _HINT)
