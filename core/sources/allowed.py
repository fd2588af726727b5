"""What a person at the page may read: with `--sources`, chosen folders and addresses of other machines alone.

Without it, whoever signs in may give any path of this machine, as at its command line. Addresses at which clouds hand
out credentials are refused in any case, also where another address redirects there.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from config import confinement
from config.confinement import HINT
from config.errors import UserError

if TYPE_CHECKING:
    import httpcore2
    import httpx2

_METADATA = tuple(map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10", "fd00::/8", "100.100.100.200/32",
                                             "192.0.0.192/32", "168.63.129.16/32")))
"""Link-local addresses, among them AWS's, Google's and Azure's; the block in which AWS, Google, Oracle and Scaleway
have theirs of IPv6; Alibaba's, Oracle's and Azure's wire server."""
_METADATA_NAMES = ("metadata.google.internal", "metadata.goog", "metadata")


def check_value(value: object) -> None:
    """Raise `UserError` if sources are limited and `value`, of a widget or an event, is the path of something else.

    Nothing is looked up, so that the answer does not tell what exists: what begins as an absolute path does, or climbs
    (`..`), is one. A word without these may be a name, so the options are checked when it is known what it stands for.
    """
    if not confinement.is_confined():
        return
    if isinstance(value, list | tuple):
        for part in value:
            check_value(part)
        return
    if not isinstance(value, str):
        return

    # A value such as `folder:PATH` is checked with and without its prefix.
    prefix, _, path_part = value.strip().partition(":")
    for text in (value, path_part) if prefix in ("folder", "hub") else (value,):
        path = text.strip()
        if "\n" in path or not _PATH.match(path):
            continue
        if len(path) > confinement.LONGEST_PATH:
            raise UserError(f"{path[:60]!r} and so on has {len(path)} characters; a path has at most "
                            f"{confinement.LONGEST_PATH}.", "Give a shorter path.")
        confinement.check(path, links=False)


_PATH = re.compile(r"/|~[^/\s]*/|~$|(?:[^/]*/)*\.\.(?:/|$)")


def check_address(host: str, trusted: str = "") -> None:
    """Raise `UserError` if the server `host`, a name or an address, may not be asked.

    `trusted`: a host in this machine's network that was configured, such as a mirror of the hub.
    """
    if host.lower().rstrip(".") in _METADATA_NAMES:
        raise _refusal(host)
    try:
        _checked_addresses(host, None, trusted)
    except (OSError, UnicodeError):
        return  # the download says that there is none


def _checked_addresses(host: str, port: int | None, trusted: str) -> list[str]:
    """The addresses of `host`, if all are allowed; `OSError` if the name is not known."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    for address in addresses:
        check_ip(address, host, private=bool(trusted) and host == trusted)
    return addresses


def check_ip(text: str, host: str, *, private: bool = False) -> None:
    """Raise `UserError` if the address `text` of `host` may not be asked; `private` allows those of the network."""
    for address in _reached(ipaddress.ip_address(text.partition("%")[0])):
        if any(address in network for network in _METADATA):
            raise _refusal(host)
        if confinement.is_confined() and not private and not _is_public(address):
            raise _refusal(host)


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    in_use = isinstance(address, ipaddress.IPv4Address) or address in _GLOBAL_UNICAST
    return in_use and address.is_global and not address.is_multicast and not address.is_reserved


_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_EMBEDDING = tuple(map(ipaddress.ip_network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
"""IPv4-compatible, IPv4-mapped, IPv4-translated and NAT64 addresses (RFC 4291, 2765, 6052): the last 32 bits count."""
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")  # RFC 8215; its prefix may be longer


def _reached(address: ipaddress.IPv4Address | ipaddress.IPv6Address,
             ) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """What is reached by `address`: itself, or the IPv4 addresses that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    number = int(address)
    last = ipaddress.IPv4Address(number & 0xFFFFFFFF)
    # The prefix has 48, 56, 64 or 96 bits, and bits 64 to 71 are left out (RFC 6052).
    if address in _LOCAL_NAT64:
        without_octet = (number >> 64) << 56 | (number & (1 << 56) - 1)  # 120 bits
        return [last, *(ipaddress.IPv4Address(without_octet >> (120 - length - 32) & 0xFFFFFFFF)
                        for length in (48, 56, 64))]
    if any(address in network for network in _EMBEDDING) and number > 1:
        return [last]
    reached: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [address]
    # 6to4 and Teredo addresses carry IPv4 addresses too.
    if address.sixtofour:
        reached.append(address.sixtofour)
    if address.teredo:
        reached += address.teredo
    if number >> 32 & 0xFDFFFFFF == 0x00005EFE:  # ISATAP (RFC 5214)
        reached.append(last)
    return reached


def guard(client: httpx2.Client, trusted: str = "") -> None:
    """Let `client` ask only servers that `check_address` allows, also after a redirect.

    A direct connection goes to the address that was checked, whatever the name server answers next. A proxy resolves
    names itself, so for what goes through one the name is checked here beforehand.
    """
    transport = client._transport
    pool = getattr(transport, "_pool", None)
    if pool is None or isinstance(pool._network_backend, _checked_backend()):
        return
    pool._network_backend = _checked_backend()(trusted)

    def check_request(request: httpx2.Request) -> None:
        check_address(request.url.host, trusted)

    hooks = client.event_hooks
    client.event_hooks = {**hooks, "request": [*hooks["request"], check_request]}


@cache
def _checked_backend() -> Any:
    """The class that makes the connections of a guarded client; httpcore is slow to import."""
    import httpcore2

    class CheckedBackend(httpcore2.SyncBackend):
        def __init__(self, trusted: str) -> None:
            self._trusted = trusted

        def connect_tcp(self, host: str, port: int, *arguments: Any, **named: Any,
                        ) -> httpcore2.NetworkStream:
            try:
                addresses = _checked_addresses(host, port, self._trusted)
            except (OSError, UnicodeError) as error:
                raise httpcore2.ConnectError(str(error)) from error
            # All addresses were checked; only the last one may raise.
            for address in addresses[:-1]:
                with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                    return super().connect_tcp(address, port, *arguments, **named)
            return super().connect_tcp(addresses[-1], port, *arguments, **named)

    return CheckedBackend


def proxy_fault(error: Exception) -> UserError:
    """The refusal if no client can be made with the proxies of the environment."""
    if isinstance(error, ImportError):
        return UserError("The environment names a SOCKS proxy (all_proxy), which needs the package socksio, and that "
                         "is not installed.", "Install it: python -m pip install socksio; or name an HTTP proxy.")
    return UserError(f"The proxies of the environment cannot be used: {str(error)[:200]}.",
                     "Check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.")


def _refusal(host: str) -> UserError:
    return UserError(f"{host} is an address of this machine, of its network or of its cloud; it is not read.", HINT)
