"""Several nodes of one run: what is checked before their ranks join, and how a lost node is noticed.

Each rank writes its findings into the store of the rendezvous, and all read them. So every node ends with the same
sentence, and none waits for one that has found a fault.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import ipaddress
import json
import os
import platform
import re
import secrets
import socket
import stat
import struct
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store  # typed there; torch.distributed.Store is the same class

from config.errors import ErrorKind, UserError

CONTACT_TIMEOUT = timedelta(minutes=5)  # until all ranks have joined
LOST_AFTER_S = 30  # a connection is closed if the other end did not answer for so long
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 10, 5, 4  # A connection without traffic is probed.
_FILE_WAIT_S = 15.0  # a network file system may show a new file late
_PREFIX = "lisan/nodes"  # Keys in the store begin with it.
_SIOCGIFADDR = 0x8915  # ioctl: the IPv4 address of an interface (netdevice(7))
_PACKAGES = ("torch", "torchaudio", "numpy", "safetensors", "tokenizers", "peft")
_CODE = ("config", "core", "data", "models")  # packages whose code must be equal on all nodes
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Findings:
    """What a rank reports before it joins. An empty `fault`: nothing is wrong there."""

    node: str  # its number and the name of its host
    address: str
    fault: str = ""
    hint: str = ""


def several_nodes() -> bool:
    """Whether torchrun started ranks on more than one node."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1


def check_nodes(store: Store, rank: int, world_size: int, workspace: Path) -> dict[str, str]:
    """Check address, workspace and versions of all ranks. Returns the nodes by their addresses.

    Raises the same `UserError` on every rank if one of them has found a fault.
    """
    token_path = workspace / f".nodes-{secrets.token_hex(4)}" if rank == 0 else None
    token = secrets.token_hex(16)
    try:
        if token_path is not None:
            token_path.write_text(token, encoding="utf-8")
            plan = {"file": token_path.name, "token": token, "workspace": str(workspace), "versions": _versions()}
            store.set(f"{_PREFIX}/plan", json.dumps(plan))
        plan = json.loads(_get(store, f"{_PREFIX}/plan", "rank 0 did not begin; its job may wait in the queue"))
        findings = _examine(rank, workspace, plan)
        store.set(f"{_PREFIX}/{rank}", json.dumps(asdict(findings)))

        reports = [Findings(**json.loads(_get(store, f"{_PREFIX}/{other}", f"rank {other} did not join")))
                   for other in range(world_size)]
        _wait_for_readers(store, rank, world_size)
    finally:
        if token_path is not None:
            token_path.unlink(missing_ok=True)
    for report in reports:
        if report.fault:
            raise UserError(report.fault, report.hint, ErrorKind.ENVIRONMENT)
    return {report.address: report.node for report in reports}


def _get(store: Store, key: str, reason: str) -> bytes:
    """The value of a key that another rank sets; `UserError` if it does not within the timeout."""
    try:
        store.wait([key], CONTACT_TIMEOUT)
    except RuntimeError as error:
        raise no_contact(reason) from error
    value: bytes = store.get(key)
    return value


def no_contact(reason: str) -> UserError:
    """The error of a rank that waited for another one in vain."""
    hint = ("Start the command on every node, with the address and port of node 0 (--master-addr, --master-port), and "
            "let the firewall pass them." if several_nodes() else
            "See the last lines of the log for a process that ended. The run can resume.")
    return UserError(f"The processes of the run did not meet within {CONTACT_TIMEOUT.seconds // 60} minutes: {reason}.",
                     hint, ErrorKind.ENVIRONMENT)


def _wait_for_readers(store: Store, rank: int, world_size: int) -> None:
    """Wait until all ranks have read the findings: the store ends with the process of node 0."""
    store.add(f"{_PREFIX}/read", 1)
    if rank == 0:
        end = time.monotonic() + _FILE_WAIT_S
        while store.add(f"{_PREFIX}/read", 0) < world_size and time.monotonic() < end:
            time.sleep(0.05)


def _examine(rank: int, workspace: Path, plan: dict[str, Any]) -> Findings:
    """What this rank finds of itself."""
    host = socket.gethostname()
    number = os.environ.get("GROUP_RANK", str(rank))
    node = f"node {number} ({host})"
    interfaces = ", ".join(f"{name} ({address})" for name, address in interface_addresses().items())
    variables = ("Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME on each node to its interface that reaches the others. "
                 f"{host} has {interfaces}.")
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface and interface not in interface_addresses():
        return Findings(node, "", f"GLOO_SOCKET_IFNAME is {interface!r} on {node}, which has no such interface with an "
                                  "address.", variables)

    # Gloo takes the address of the interface, else that of the host's name.
    address = interface_addresses().get(interface, "") or _address_of_host(host)
    if not address or ipaddress.ip_address(address).is_loopback:
        kind = ", a loopback address" if address else ""
        return Findings(node, address, f"The address of {node} is {address or 'unknown'}{kind}: the other nodes cannot "
                                       "reach it there.", variables)

    fault = _workspace_fault(workspace, plan)
    if fault:
        return Findings(node, address, f"Node {number} ({host}) does not share the workspace of node 0: {fault}.",
                        f"Mount the folder {plan['workspace']} of node 0 on every node, and give its path there with "
                        "--workspace.")

    versions: dict[str, str] = plan["versions"]
    different = [f"{name} {value} instead of {versions.get(name)}" for name, value in _versions().items()
                 if value != versions.get(name)]
    if different:
        return Findings(node, address, f"Node {number} ({host}) runs other code than node 0: {', '.join(different)}.",
                        "Install the same version of Lisan and of its packages on every node.")
    return Findings(node, address)


def _workspace_fault(workspace: Path, plan: dict[str, Any]) -> str:
    """Why the file of rank 0 cannot be read in the workspace; empty if it has the right content."""
    path = workspace / plan["file"]
    end = time.monotonic() + _FILE_WAIT_S
    while True:
        try:
            return "" if path.read_text(encoding="utf-8") == plan["token"] else f"{path} has another content there"
        except OSError:
            if not workspace.is_dir():
                return f"{workspace} is no folder there"
            if time.monotonic() > end:
                return f"a file that node 0 wrote into it is not in {workspace} there"
        time.sleep(0.2)


def interface_addresses() -> dict[str, str]:
    """The IPv4 addresses of this machine's interfaces, by name."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses[name] = socket.inet_ntoa(reply[20:24])
    return addresses


def _address_of_host(host: str) -> str:
    with suppress(OSError):
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    return ""


@cache
def _versions() -> dict[str, str]:
    """The versions of Python and the packages, and a hash of our code."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return {"Python": platform.python_version(), **{name: version(name) for name in _PACKAGES},
            "Lisan": digest.hexdigest()[:12]}


def close_lost_connections() -> None:
    """Let the system close connections to other machines whose other end does not answer for half a minute.

    Without it a pulled cable goes unnoticed until a collective times out. Gloo sets no such option, so it is set on the
    open sockets (tcp(7): TCP_USER_TIMEOUT, and keep-alive probes where nothing is sent).
    """
    options = {socket.TCP_KEEPIDLE: _PROBE_AFTER_S, socket.TCP_KEEPINTVL: _PROBE_EVERY_S,
               socket.TCP_KEEPCNT: _PROBES, socket.TCP_USER_TIMEOUT: LOST_AFTER_S * 1000}
    descriptors = [int(entry) for entry in os.listdir("/proc/self/fd")]
    for descriptor in descriptors:
        # Only sockets are copied: a copy of another file may hold a lock.
        with suppress(OSError), _socket_copy(descriptor) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
                continue
            if ipaddress.ip_address(connection.getpeername()[0]).is_loopback:
                continue
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in options.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _socket_copy(descriptor: int) -> socket.socket:
    """A copy of an open socket; `OSError` if the descriptor is of another kind."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENOTSOCK, "not a socket")
    return socket.socket(fileno=os.dup(descriptor))


def lost_node(message: str, nodes: dict[str, str]) -> str:
    """The node whose address an error of a collective names; empty if it names none.

    The message only tells which node people read of: the error itself is known to be a lost connection.
    """
    named = [nodes[address] for address in re.findall(r"\d+\.\d+\.\d+\.\d+", message) if address in nodes]
    own_nodes = {nodes[address] for address in interface_addresses().values() if address in nodes}
    return next((node for node in named if node not in own_nodes), "")
