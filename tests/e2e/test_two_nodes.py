"""A training over two nodes, in two network namespaces with a cable between them, by the command of the guide."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from core.jobs import checkpoint_names
from tests.network import ADDRESSES, ROOT, SHARED, Network, network
from tests.worlds import extended_world, train_options

pytestmark = pytest.mark.long
PATIENCE_S = 600.0
NAMED_WITHIN_S = 60.0


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The folder that the nodes share, with a workspace and the options of a run."""
    extended_world(tmp_path / "workspace")
    write_options(tmp_path)
    return tmp_path


def write_options(shared: Path, **changes: object) -> None:
    values = {"steps": 6, "checkpoint_every": 3, "adapter_dropout": 0.0, **changes}
    options = train_options(**values).model_dump(mode="json")
    (shared / "first.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")


def guide_command(rank: int) -> str:
    """The command of the guide, to the letter; on node 1 with its rank, as the guide says."""
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    found = re.search(r"```text\n(export GLOO_SOCKET_IFNAME.*?)```", guide, re.DOTALL)
    assert found
    assert SHARED in found[1]
    assert ADDRESSES["a"] in found[1]
    return found[1].replace("--node-rank 0", f"--node-rank {rank}")


def start(net: Network, folder: Path, conf: str = "--rdzv-conf",
          change: Callable[[str], str] = str) -> list[tuple[subprocess.Popen[bytes], Path]]:
    """Start both nodes. `conf` replaces the flag of that name; `change` is done to the command of node 1."""
    logs = [folder / f"{node}.log" for node in ADDRESSES]
    commands = [guide_command(0).replace("--rdzv-conf", conf), change(guide_command(1).replace("--rdzv-conf", conf))]
    return [(net.start(node, command, log), log)
            for node, command, log in zip(ADDRESSES, commands, logs, strict=True)]


def wait_for_text(text: str, log: Path, timeout_s: float = PATIENCE_S) -> None:
    """Wait until `text` is in the log."""
    start_s = time.monotonic()
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() - start_s < timeout_s, f"no {text!r}: {log.read_text(errors='replace')[-3000:]}"
        time.sleep(0.1)


def wait_for_end(nodes: Sequence[tuple[subprocess.Popen[bytes], Path]]) -> list[int]:
    """The exit codes of both nodes."""
    return [process.wait(PATIENCE_S) for process, _ in nodes]


def rows(shared: Path, run: str) -> dict[str, bytes]:
    """The trained tensors of the last checkpoint."""
    folder = checkpoint_names.folder_of(shared / "workspace" / "runs" / run, 6)
    paths = [path for path in folder.rglob("*.safetensors") if path.name.startswith(("rows", "adapter"))]
    assert {path.name for path in paths} >= {"rows.safetensors", "adapter_model.safetensors"}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_the_guides_command_gives_the_rows_of_two_processes_on_one_machine(shared: Path) -> None:
    with network(shared) as net:
        nodes = start(net, shared)
        assert wait_for_end(nodes) == [0, 0], nodes[0][1].read_text()[-3000:]
    subprocess.run([sys.executable, "-m", "scripts", "train", "--workspace", str(shared / "workspace"), "--config",
                    str(shared / "first.yaml"), "--processes", "2", "--name", "alone", "--no-certificate"], cwd=ROOT,
                   check=True, stdout=subprocess.DEVNULL)
    assert rows(shared, "first") == rows(shared, "alone")


def test_a_pulled_cable_is_named_on_both_nodes_and_the_run_resumes(shared: Path) -> None:
    write_options(shared, steps=5000, evaluation_sentences=0)
    with network(shared) as net:
        nodes = start(net, shared)
        wait_for_text("step 4/", nodes[0][1])
        net.pull_cable()
        # One clock for both nodes: the second has the time that is left.
        deadline_s = time.monotonic() + NAMED_WITHIN_S
        for other, (_, log) in enumerate(nodes):
            wait_for_text(f"The connection to node {1 - other} ", log, deadline_s - time.monotonic())
        assert wait_for_end(nodes) == [1, 1]
    assert "The run can resume from its last checkpoint" in nodes[0][1].read_text()
    assert checkpoint_names.checkpoint_steps(shared / "workspace" / "runs" / "first")


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda command: f"umount {SHARED} && {command}",
     f"does not share the workspace of node 0: {SHARED}/workspace is no folder there."),
    (lambda command: command.replace("GLOO_SOCKET_IFNAME=eth0", "GLOO_SOCKET_IFNAME=lo"),
     "is 127.0.0.1, a loopback address: the other nodes cannot reach it there."),
], ids=["no folder", "loopback"])
def test_a_fault_of_node_1_is_named_on_both_nodes(shared: Path, change: Callable[[str], str], sentence: str) -> None:
    with network(shared) as net:
        # A mount is taken away from this node alone.
        nodes = start(net, shared, change=lambda command: f"exec unshare --mount bash -c '{change(command)}'")
        assert wait_for_end(nodes) == [1, 1]
    for _, log in nodes:
        text = log.read_text()
        assert sentence in text
        assert "ode 1 (" in text
        assert "This is a bug" not in text


def test_torchrun_restarts_the_ranks_and_they_resume(shared: Path) -> None:
    """The rank of node 1 dies; both nodes start again, from the last checkpoint."""
    write_options(shared, steps=100, checkpoint_every=30, evaluation_sentences=0)
    with network(shared) as net:
        nodes = start(net, shared, "--max-restarts 2 --rdzv-conf")
        wait_for_text("step 32/", nodes[0][1])
        net.kill_rank(1)
        wait_for_text("steps 30 to 100", nodes[0][1])
        assert wait_for_end(nodes) == [0, 0], nodes[0][1].read_text()[-3000:]
    assert checkpoint_names.checkpoint_steps(shared / "workspace" / "runs" / "first")[-1] == 100
