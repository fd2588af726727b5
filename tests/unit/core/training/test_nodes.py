"""The checks of several nodes, with threads as ranks; `tests/e2e/test_two_nodes.py` has them over a network."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from config.errors import UserError
from core.training import distributed, nodes
from scripts import train


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_FILE_WAIT_S", 0.5)
    monkeypatch.setattr(nodes, "CONTACT_TIMEOUT", timedelta(seconds=5))
    monkeypatch.setattr(nodes, "_address_of_host", lambda host: "10.0.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: "big")
    for name in ("GLOO_SOCKET_IFNAME", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)


def checked(*workspaces: Path) -> list[object]:
    """What each rank gets or what it raises."""
    store = dist.HashStore()

    def check(rank: int) -> object:
        try:
            return nodes.check_nodes(store, rank, len(workspaces), workspaces[rank])
        except UserError as error:
            return error.message

    with ThreadPoolExecutor(len(workspaces)) as pool:
        return list(pool.map(check, range(len(workspaces))))


def test_nodes_that_share_everything_are_known_by_address(tmp_path: Path) -> None:
    assert checked(tmp_path, tmp_path) == [{"10.0.0.1": "node 1 (big)"}] * 2
    assert not list(tmp_path.iterdir())


def test_a_node_with_another_folder_is_named_on_all(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    words = f"Node 1 (big) does not share the workspace of node 0: a file that node 0 wrote into it is not in " \
            f"{tmp_path / 'other'} there."
    assert checked(tmp_path, tmp_path / "other") == [words] * 2
    words = f"Node 1 (big) does not share the workspace of node 0: {tmp_path / 'none'} is no folder there."
    assert checked(tmp_path, tmp_path / "none") == [words] * 2


def test_a_loopback_address_and_an_unknown_interface_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_address_of_host", lambda host: "127.0.1.1")
    words = "The address of node 0 (big) is 127.0.1.1, a loopback address: the other nodes cannot reach it there."
    assert checked(tmp_path, tmp_path) == [words] * 2
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib7")
    words = "GLOO_SOCKET_IFNAME is 'ib7' on node 0 (big), which has no such interface with an address."
    assert checked(tmp_path, tmp_path) == [words] * 2


def test_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_versions", lambda: {"torch": "2.9.1", "Lisan": "a"})
    (tmp_path / "file").write_text("token", encoding="utf-8")
    plan = {"file": "file", "token": "token", "workspace": "w", "versions": {"torch": "2.11.0", "Lisan": "a"}}
    findings = nodes._examine(1, tmp_path, plan)
    assert findings.fault == "Node 1 (big) runs other code than node 0: torch 2.9.1 instead of 2.11.0."


def test_a_rank_that_does_not_join_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "CONTACT_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="rank 1 did not join") as caught:
        nodes.check_nodes(dist.HashStore(), 0, 2, tmp_path)
    assert caught.value.hint.startswith("Start the command on every node")
    with pytest.raises(UserError, match="rank 0 did not begin"):
        nodes.check_nodes(dist.HashStore(), 1, 2, tmp_path)


@pytest.mark.parametrize("nodes_of_torchrun", ["", "1"])
def test_processes_of_one_machine_that_do_not_meet_get_no_hint_about_nodes(
        monkeypatch: pytest.MonkeyPatch, nodes_of_torchrun: str) -> None:
    monkeypatch.delenv("GROUP_WORLD_SIZE", raising=False)
    if nodes_of_torchrun:
        monkeypatch.setenv("GROUP_WORLD_SIZE", nodes_of_torchrun)
    monkeypatch.setattr(nodes, "CONTACT_TIMEOUT", timedelta(seconds=1))
    with pytest.raises(UserError, match="did not meet") as caught:
        distributed.init_process_group("tcp://127.0.0.1:9", 1, 2)
    assert "node" not in caught.value.hint


def test_only_sockets_to_other_machines_are_watched_and_no_file_is_copied(monkeypatch: pytest.MonkeyPatch,
                                                                           tmp_path: Path) -> None:
    monkeypatch.setattr(socket.socket, "getpeername", lambda connection: ("10.0.0.2", 1))
    with socket.create_server(("127.0.0.1", 0)) as server, \
            socket.create_connection(server.getsockname()) as connection, open(tmp_path / "lock", "w") as _file:
        before = sorted(Path("/proc/self/fd").iterdir())
        nodes.close_lost_connections()
        assert sorted(Path("/proc/self/fd").iterdir())[:len(before)] == before
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_the_node_in_an_error_is_named() -> None:
    names = {"10.0.0.1": "node 0 (a)", "10.0.0.2": "node 1 (b)"}
    for reason in ("Connection timed out", "No route to host"):
        assert nodes.lost_node(f"Read error [10.0.0.2]:4711: {reason}", names) == "node 1 (b)"
    assert nodes.lost_node("Connection closed by peer [10.0.0.9]:4711", names) == ""


@pytest.mark.parametrize(("count", "arguments", "resumed"), [
    ("0", ["--name", "first"], []),
    ("1", ["--name", "first", "--steps", "9", "--no-certificate"], ["--resume", "first", "--no-certificate"]),
    ("1", ["--name", "other"], []),
    ("1", ["--steps", "9"], []),
])
def test_a_restart_by_torchrun_resumes_the_named_run(count: str, arguments: list[str], resumed: list[str],
                                                     tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    workspace = ["--workspace", str(tmp_path)]
    assert train.restarted_arguments([*workspace, *arguments]) == ([*workspace, *resumed] if resumed else [])


@pytest.mark.parametrize(("restarts", "code"), [("3", 0), ("0", 130)])
def test_a_stop_does_not_let_torchrun_start_the_ranks_again(restarts: str, code: int,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    monkeypatch.setattr(train, "run_verb", lambda verb, arguments: 130)
    assert train.rank_0([]) == code
