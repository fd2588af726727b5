"""What a person at the page may read: with `--sources`, chosen folders and addresses of other machines alone.

Without it, whoever signs in may give any path of this machine, as at its command line. Addresses at which clouds hand
out credentials are refused in any case, also where another address redirects there.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from pathlib import Path

from config import confinement
from config.confinement import HINT
from config.errors import UserError

_METADATA = tuple(map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32",
                                             "192.0.0.192/32", "168.63.129.16/32")))
"""Link-local addresses, among them AWS's, Google's and Azure's; Alibaba's, Oracle's and Azure's wire server."""
_METADATA_NAMES = ("metadata.google.internal", "metadata.goog", "metadata")


def check_value(value: object) -> None:
    """Raise `UserError` if sources are limited and `value`, of a widget or an event, is the path of something else.

    A word without a slash may be a name, so the options are checked when it is known what it stands for.
    """
    if not confinement.is_confined():
        return
    if isinstance(value, list | tuple):
        for part in value:
            check_value(part)
        return
    if not isinstance(value, str):
        return
    prefix, _, rest = value.strip().partition(":")
    for text in (value, rest) if prefix in ("folder", "hub") else (value,):
        path = text.strip()
        if "/" in path and len(path) > confinement.LONGEST_PATH and "\n" not in path and path[0] in "/.~":
            raise UserError(f"{path[:60]!r} and so on has {len(path)} characters; a path has at most "
                            f"{confinement.LONGEST_PATH}.", "Give a shorter path.")
        if not ("/" in path or path.startswith("~")) or len(path) > confinement.LONGEST_PATH:
            continue
        with suppress(OSError, RuntimeError, ValueError):
            if Path(path).expanduser().exists():
                confinement.check(path, links=False)


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
    if inside or (confinement.is_confined() and not address.is_global):
        raise _refusal(host)


def _refusal(host: str) -> UserError:
    return UserError(f"{host} is an address of this machine, of its network or of its cloud; it is not read.", HINT)
