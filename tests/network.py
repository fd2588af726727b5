"""Two nodes of a network on this machine: two network namespaces with a cable between them and a shared folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHARED = "/mnt/shared"
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2"}
ROOT = Path(__file__).resolve().parents[1]
_SETUP = f"""set -e
mount -t tmpfs none /run
mount -t tmpfs none /mnt
mkdir {SHARED}
mount --bind "$1" {SHARED}
ip netns add a
ip netns add b
ip link add switch type bridge
ip link set switch up
for node in a b; do
  ip link add port-$node type veth peer name eth0 netns $node
  ip link set port-$node master switch
  ip link set port-$node up
  ip -n $node link set lo up
  ip -n $node link set eth0 up
done
ip -n a address add {ADDRESSES["a"]}/24 dev eth0
ip -n b address add {ADDRESSES["b"]}/24 dev eth0
echo ready
cat
"""


class Network:
    """The namespaces of a process that holds them. With it they end, and every process in them."""

    def __init__(self, holder: int) -> None:
        self._enter = ("nsenter", "--target", str(holder), "--user", "--net", "--mount", "--pid",
                       "--preserve-credentials")

    def start(self, node: str, script: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a bash script on a node; its output goes to `log`."""
        environment = {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
                       "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
        with open(log, "wb") as output:
            return subprocess.Popen([*self._enter, "ip", "netns", "exec", node, "bash", "-c",
                                     f"cd {shlex.quote(str(ROOT))} && {script}"], stdout=output, stderr=output,
                                    env=environment, start_new_session=True)

    def run(self, *words: str) -> None:
        subprocess.run([*self._enter, *words], check=True)

    def kill_rank(self, rank: int) -> None:
        """Kill the process of a rank of torchrun."""
        self.run("bash", "-c", f"""for folder in /proc/[0-9]*; do
          if grep -qz '^RANK={rank}$' $folder/environ 2>/dev/null; then kill -9 ${{folder#/proc/}}; fi
        done""")

    def pull_cable(self) -> None:
        """Pull the cable of node b out of the switch: nothing of what the nodes send arrives."""
        self.run("ip", "link", "set", "port-b", "down")


@contextmanager
def network(shared: Path) -> Iterator[Network]:
    """The network, with `shared` at `SHARED` on both nodes. Skips the test where there are no namespaces."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"two nodes need network namespaces, and {missing[0]} is not installed")
    words = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--mount-proc", "--fork",
             "--kill-child", "bash", "-c", _SETUP, "-", str(shared)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    try:
        if holder.stdout.readline().strip() != "ready":
            reason = holder.stderr.read().strip().splitlines()
            pytest.skip(f"two nodes need network namespaces, which cannot be created here: {reason[-1:]}")
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        yield Network(int(children[0]))
    finally:
        holder.stdin.close()
        holder.kill()
        holder.wait()

